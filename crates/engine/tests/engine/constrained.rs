//! Constrained decoding, with reasoning before the answer.

use std::sync::mpsc::{Sender, channel};

use puna_engine::{AnswerStage, Sink, Speculation};
use puna_sampler::Constraint;
use serde_json::{Value, json};

use super::*;

fn person() -> Constraint {
    Constraint::schema(json!({
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "sea": {"type": "boolean"}, "age": {"type": "integer"}},
        "required": ["city", "sea", "age"],
    }))
}

fn constrained(engine: &Engine, constraint: &Constraint, request: Request) -> Request {
    Request { grammar: Some(engine.grammar(constraint).unwrap()), max_tokens: Some(200), ..request }
}

fn is_person(text: &str) -> bool {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
    keys == ["city", "sea", "age"] && value["sea"].is_boolean() && value["age"].is_i64()
}

#[test]
fn answers_follow_the_constraint_for_all_samplers() {
    let engine = cria(&EngineOptions::default());
    let prompt = request(&engine, &chat("Tell me about Lima."));
    for (seed, temperature) in [(0, 0.0), (1, 0.8), (2, 5.0), (3, 50.0)] {
        let sampling = Params {
            temperature,
            seed,
            top_k: 0,
            top_p: 1.0,
            repeat_penalty: 1.3,
            ..Params::default()
        };
        let (text, summary) =
            run(&engine, constrained(&engine, &person(), Request { sampling, ..prompt.clone() }));
        match summary.finish {
            // At high temperatures, a number may be longer than the token limit.
            FinishReason::Length => assert!(temperature > 1.0, "{text}"),
            _ => assert!(is_person(&text) && summary.finish == FinishReason::End, "{text}"),
        }
    }
}

#[test]
fn speculation_does_not_change_constrained_answers() {
    let engine = cria(&EngineOptions::default());
    let always = Speculation { always: true, ..Speculation::AUTO };
    let list = Constraint::Gbnf("root ::= \"[\" pair (\", \" pair){9} \"]\"\npair ::= \"[\" [0-9]{1,3} \", \\\"\" [a-z]{2,6} \"\\\"]\"".into());
    for sampling in [greedy(), Params { seed: 5, temperature: 1.0, ..Params::default() }] {
        let base = Request { sampling, ..request(&engine, &chat("Count.")) };
        let with = |speculation| {
            let request = Request { speculation: Some(speculation), ..base.clone() };
            run(&engine, constrained(&engine, &list, request))
        };
        let (plain, guessed) = (with(Speculation::OFF), with(always));
        assert_eq!(plain.0, guessed.0);
        assert!(guessed.1.draft_stats.total().accepted > 0, "nothing was guessed: {}", guessed.0);
    }
}

#[test]
fn sequences_with_different_constraints_are_independent() {
    let engine = cria(&EngineOptions::default());
    let (question, yes) = (chat("Is water wet?"), Constraint::Regex("yes|no".into()));
    let (alone, _) = run(&engine, request(&engine, &question));
    let free = start(&engine, request(&engine, &question));
    let short = start(&engine, constrained(&engine, &yes, request(&engine, &question)));
    let long = start(&engine, constrained(&engine, &person(), request(&engine, &question)));
    assert_eq!(finish(&free).0, alone);
    assert!(["yes", "no"].contains(&finish(&short).0.as_str()));
    assert!(is_person(&finish(&long).0));
}

/// Classifies the text before a mark as reasoning.
struct Thinker {
    events: Sender<Event>,
    text: String,
    mark: &'static str,
    end: Vec<u32>,
}

impl Sink for Thinker {
    fn stage(&self, text: &str) -> AnswerStage {
        let all = self.text.clone() + text;
        match (self.text.contains(self.mark), all.split_once(self.mark)) {
            (true, _) => AnswerStage::Answer,
            (false, Some((_, answer))) if !answer.trim().is_empty() => AnswerStage::Mixed,
            _ => AnswerStage::BeforeAnswer,
        }
    }

    fn reasoning_end_tokens(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.end)
    }

    fn send(&mut self, event: Event) -> bool {
        if let Event::Piece(piece) = &event {
            self.text.push_str(&piece.text);
        }
        self.events.send(event).is_ok()
    }
}

#[test]
fn reasoning_is_not_constrained() {
    let engine = cria(&EngineOptions::default());
    let base = Request {
        max_tokens: Some(200),
        ..request(&engine, &chat("What is the capital of France?"))
    };
    let (free, _) = run(&engine, base.clone());
    let think = |mark, end: Option<&str>, constraint: &Constraint| {
        let (events, receiver) = channel();
        let encode = EncodeOptions { add_special: false, parse_special: true };
        let end = end.map(|end| engine.tokenizer().encode(end, encode)).unwrap_or_default();
        let sink = Thinker { events, text: String::new(), mark, end };
        engine.submit(constrained(&engine, constraint, base.clone()), Box::new(sink)).unwrap();
        receiver
    };
    assert_eq!(free, "Paris.");
    let (text, summary) = finish(&think("Paris", None, &Constraint::Regex("[0-9]{3}".into())));
    let (thought, answer) = text.split_at(text.len() - 3);
    assert!(thought == "Paris" && answer.bytes().all(|b| b.is_ascii_digit()), "{text}");
    assert_eq!(summary.finish, FinishReason::End);
    // Reasoning without its mark continues until the token limit.
    let (text, summary) = finish(&think("never said", None, &person()));
    assert!(text.starts_with("Paris.") && summary.finish == FinishReason::Length, "{text}");
    // With the tokens of the mark, the engine ends the reasoning.
    let (text, summary) =
        finish(&think(" So:", Some(" So:"), &Constraint::Regex("[0-9]{3}".into())));
    let (thought, answer) = text.split_at(text.len() - 3);
    assert!(thought == "Paris. So:" && answer.bytes().all(|b| b.is_ascii_digit()), "{text}");
    assert_eq!(summary.finish, FinishReason::End);
}

fn whole(engine: &Engine, constraint: &Constraint, request: &Request) -> (Request, usize) {
    let mut grammar = engine.whole_grammar(constraint).unwrap();
    let shortest = grammar.shortest_end().unwrap();
    (Request { grammar: Some(grammar), ..request.clone() }, shortest)
}

#[test]
fn complete_answers_fit_any_limit() {
    let engine = cria(&EngineOptions::default());
    let prompt = request(&engine, &chat("Tell me about Lima."));
    let (prompt, shortest) = whole(&engine, &person(), &prompt);
    let always = Speculation { always: true, ..Speculation::AUTO };
    for (seed, limit) in (shortest..shortest + 24).enumerate() {
        let temperature = [0.0, 1.0, 50.0][seed % 3];
        let sampling =
            Params { temperature, seed: seed as i64, top_k: 0, top_p: 1.0, ..Params::default() };
        let speculation = Some(if seed % 2 == 0 { always } else { Speculation::OFF });
        let request = Request { sampling, speculation, max_tokens: Some(limit), ..prompt.clone() };
        let (text, summary) = run(&engine, request.clone());
        assert!(is_person(&text) && summary.finish == FinishReason::End, "{limit}: {text}");
        assert!(summary.generated_tokens <= limit);
        // The end of the context limits the answer, too.
        let context = Some(request.prompt.len() + limit - 1);
        let (text, summary) =
            run(&engine, Request { context, shift: false, max_tokens: None, ..request });
        assert!(
            is_person(&text) && summary.finish == FinishReason::End,
            "{limit} of a context: {text}"
        );
    }
}

#[test]
fn biases_do_not_prevent_the_end_of_an_answer() {
    let engine = cria(&EngineOptions::default());
    let (base, shortest) =
        whole(&engine, &person(), &request(&engine, &chat("Tell me about Lima.")));
    let bans = |text: &str| {
        let encode = EncodeOptions { add_special: false, parse_special: false };
        engine
            .tokenizer()
            .encode(text, encode)
            .into_iter()
            .map(|token| (token, -100.0))
            .collect::<Vec<_>>()
    };
    let logit_bias = bans("\"}truefalse0123456789");
    let request = Request {
        sampling: Params { logit_bias, ..greedy() },
        max_tokens: Some(shortest + 2),
        ..base
    };
    let (text, summary) = run(&engine, request);
    assert!(is_person(&text) && summary.finish == FinishReason::End, "{text}");
}

#[test]
fn repeating_constrained_answers_end() {
    let engine = cria(&EngineOptions::default());
    let text = Constraint::schema(
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}),
    );
    let encode = EncodeOptions { add_special: false, parse_special: false };
    let [word, ..] = engine.tokenizer().encode(" sea", encode)[..] else { panic!() };
    let sampling = Params { logit_bias: vec![(word, 100.0)], ..greedy() };
    let base = Request { sampling, ..request(&engine, &chat("Hello.")) };
    let (request, _) = whole(&engine, &text, &base);
    let (text, summary) = run(&engine, Request { max_tokens: Some(400), ..request });
    let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(value["a"].is_string() && summary.finish == FinishReason::End, "{text}");
    assert!(summary.generated_tokens < 60, "{text}");
}

#[test]
fn reasoning_ends_while_the_shortest_answer_fits() {
    let engine = cria(&EngineOptions::default());
    let base = request(&engine, &chat("What is the capital of France?"));
    let (base, shortest) = whole(&engine, &person(), &base);
    let encode = EncodeOptions { add_special: false, parse_special: true };
    let end = engine.tokenizer().encode(" So:", encode);
    for more in [0, 1, 2, 7, 20] {
        for end in [end.clone(), Vec::new()] {
            let (events, receiver) = channel();
            let limit = shortest + end.len() + more;
            let sink = Thinker { events, text: String::new(), mark: " So:", end };
            engine
                .submit(Request { max_tokens: Some(limit), ..base.clone() }, Box::new(sink))
                .unwrap();
            let (text, summary) = finish(&receiver);
            let answer = &text[text.find('{').unwrap_or_else(|| panic!("{text}"))..];
            assert!(is_person(answer) && summary.finish == FinishReason::End, "{limit}: {text}");
        }
    }
}

#[test]
fn invalid_constraints_are_rejected_before_a_request_runs() {
    let engine = cria(&EngineOptions::default());
    let error = engine.grammar(&Constraint::schema(json!({"not": {}}))).unwrap_err();
    assert!(error.to_string().contains("not"), "{error}");
}

/// A sink that never decides whether reasoning has ended, until the engine begins the answer.
struct Stubborn {
    events: Sender<Event>,
    answers: bool,
    end: Vec<u32>,
}

impl Sink for Stubborn {
    fn stage(&self, _text: &str) -> AnswerStage {
        if self.answers { AnswerStage::Answer } else { AnswerStage::Mixed }
    }

    fn reasoning_end_tokens(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.end)
    }

    fn begin_answer(&mut self) {
        self.answers = true;
    }

    fn send(&mut self, event: Event) -> bool {
        self.events.send(event).is_ok()
    }
}

#[test]
fn endless_reasoning_is_ended_before_the_answer() {
    let engine = cria(&EngineOptions::default());
    let base = request(&engine, &chat("What is the capital of France?"));
    let encode = EncodeOptions { add_special: false, parse_special: true };
    for end in ["", " So:"] {
        let (events, receiver) = channel();
        let tokens = engine.tokenizer().encode(end, encode);
        let sink = Stubborn { events, answers: false, end: tokens };
        let form = Constraint::Regex("[0-9]{3}".into());
        engine.submit(constrained(&engine, &form, base.clone()), Box::new(sink)).unwrap();
        let (text, summary) = finish(&receiver);
        let answer = text
            .strip_prefix(end)
            .unwrap_or_else(|| panic!("{text:?} does not begin with {end:?}"));
        assert!(answer.len() == 3 && answer.bytes().all(|b| b.is_ascii_digit()), "{text}");
        assert_eq!(summary.finish, FinishReason::End);
    }
}

#[test]
fn constraints_without_matching_tokens_are_refused() {
    let engine = cria(&EngineOptions::default());
    let has_digit = |id: &u32| engine.tokenizer().piece(*id).iter().any(u8::is_ascii_digit);
    let digits = (0..engine.tokenizer().vocab_size() as u32).filter(has_digit);
    let sampling =
        Params { logit_bias: digits.map(|id| (id, f32::NEG_INFINITY)).collect(), ..greedy() };
    let base = Request { sampling, ..request(&engine, &chat("Count.")) };
    let events = start(&engine, constrained(&engine, &Constraint::Regex("ab[0-9]".into()), base));
    let mut text = String::new();
    let refused = events.iter().find_map(|event| match event {
        Event::Piece(piece) => {
            text += &piece.text;
            None
        }
        Event::Refused(message) => Some(message),
        Event::Failed(message) => panic!("{message}"),
        Event::Done(_) => panic!("{text} is no answer of the form"),
        _ => None,
    });
    assert_eq!(text, "ab");
    assert!(refused.unwrap().contains("the constraint allows no token of this model"));
}

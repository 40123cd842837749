//! How thoughts are ended from outside.

use super::hostile::BITS;
use super::*;
use crate::Kind;

fn thinking() -> impl Iterator<Item = (&'static str, OutputParser)> {
    let on = &Think::Switch(true);
    OutputParser::names().filter_map(move |name| {
        let input = ParserInput { think: Some(on), ..ParserInput::default() };
        let mut parser = OutputParser::by_name(name, &input).unwrap();
        let open = match name {
            "harmony" => "<|channel|>analysis<|message|>",
            "gemma4" => "<|channel>thought\n",
            "glimmer" => " to=self<|message|>",
            "olmo3-think" | "lfm2-thinking" | "qwen3-thinking" => "<think>",
            _ => "",
        };
        parser.push(open);
        parser.push("Let me see.");
        parser.is_thinking().then_some((name, parser))
    })
}

#[test]
fn the_end_of_a_thought_ends_it_and_the_answer_begins() {
    let mut known = Vec::new();
    for (name, mut parser) in thinking() {
        let Some(end) = parser.thought_end() else { continue };
        known.push(name);
        parser.push(&end);
        assert_eq!(
            (parser.stage(), parser.thought_end()),
            (Stage::Answer, None),
            "{name}: {end:?}"
        );
        let mut parts = parser.push("42");
        parts.extend(parser.finish());
        assert!(parts.iter().any(|part| *part == Part::Content("42".into())), "{name}: {parts:?}");
    }
    for name in [
        "harmony",
        "gemma4",
        "qwen3-thinking",
        "qwen3.5",
        "deepseek3",
        "glm-4.7",
        "laguna",
        "cohere",
        "glimmer",
    ] {
        assert!(known.contains(&name), "{name} is not among {known:?}");
    }
}

#[test]
fn a_model_that_writes_to_itself_answers_between_its_messages_too() {
    let message = |parser: &mut OutputParser| {
        let end = parser.thought_end().unwrap();
        let parts = parser.push(&(end + "42<|eot|>"));
        assert_eq!((parts, parser.stage()), (vec![Part::Content("42".into())], Stage::Answer));
    };
    for before in ["", " to=self<|message|>Well.<|eom|>"] {
        let mut parser = OutputParser::by_name("glimmer", &ParserInput::default()).unwrap();
        parser.push(before);
        message(&mut parser);
    }
    // A header that has begun cannot be gone on with.
    let mut parser = OutputParser::by_name("glimmer", &ParserInput::default()).unwrap();
    parser.push(" to=");
    assert!(parser.is_thinking() && parser.thought_end().is_none());
}

#[test]
fn a_thought_that_surely_goes_on_does() {
    let template =
        Template::parse(Kind::Jinja, "{{ '<think>\\n' }}{{ messages }}</think>").unwrap();
    let tags = template.think_tags();
    let generic = OutputParser::for_template(
        &template,
        tags,
        &ParserInput { prompt: "<think>", ..ParserInput::default() },
    );
    let mut sure = 0;
    for (name, parser) in thinking().chain([("template", generic)]) {
        for bit in BITS.iter().copied().chain(["and so", " 1 < 2", "\n", "<", "[", "\n</thi", "é"])
        {
            if parser.keeps_thinking(bit) {
                sure += 1;
                assert_eq!(parser.peek_stage(bit), Stage::Thinking, "{name}: {bit:?}");
                // Nor does what comes behind end it earlier than in one piece.
                let mut parser = parser.copy();
                parser.push(bit);
                assert!(
                    parser.is_thinking() && !parser.keeps_thinking("</think>"),
                    "{name}: {bit:?}"
                );
            }
        }
    }
    assert!(sure > 40, "{sure}");
}

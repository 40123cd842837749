//! Diffusion models: all positions of an answer start as mask tokens.

use std::sync::atomic::{AtomicBool, Ordering};

use puna_engine::{Diffusion, DraftModel, Sink, UnmaskOrder, plan_memory_with_draft};
use puna_sampler::Constraint;

use super::progress::hanging;
use super::*;

const MODELS: [&str; 4] = ["dream", "llada", "llada-moe", "rnd1"];

fn model(name: &str) -> Engine {
    open_at(Some("portable"), &format!("tests/data/zoo/{name}.gguf"), &EngineOptions::default())
}

fn prompt() -> Vec<u32> {
    vec![315, 40, 41, 42, 90, 17, 200, 8]
}

/// A request for an answer of `length` tokens that does not end early.
fn whole(length: usize) -> Request {
    let sampling = Params { ignore_eos: true, ..greedy() };
    Request { max_tokens: Some(length), ..Request::new(prompt(), sampling) }
}

fn diffusion(steps: usize, block_length: usize, algorithm: UnmaskOrder) -> Diffusion {
    Diffusion { steps: Some(steps), block_length: Some(block_length), algorithm: Some(algorithm) }
}

/// The generated tokens.
fn answer(engine: &Engine, request: Request) -> Vec<u32> {
    let prompt = request.prompt.len();
    run(engine, request).1.tokens.split_off(prompt)
}

/// Expected tokens come from the llama.cpp of llama-cpp-python 0.3.36 in f32 (`diffusion_generate`
/// of examples/diffusion), for cases in which it does not draw the mask itself. Further tokens come
/// from the loops of Dream's and LLaDA's authors (`generation_utils.py`, `generate.py`) at
/// temperature 0, run on its logits.
#[test]
fn unmasked_tokens_match_the_references() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/cases/diffusion.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let engines = MODELS.map(|name| (name, model(name)));
    let mut failures = Vec::new();
    for line in text.lines() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        let number = |key: &str| case[key].as_f64();
        let ids = |key: &str| -> Vec<u32> {
            case[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
        };
        let algorithm = match case["algorithm"].as_str().unwrap() {
            "confidence" => UnmaskOrder::Confidence,
            "entropy" => UnmaskOrder::Entropy,
            "margin" => UnmaskOrder::Margin,
            "random" => UnmaskOrder::Random,
            _ => UnmaskOrder::Origin,
        };
        let sampling = Params {
            temperature: number("temperature").unwrap() as f32,
            top_k: number("top_k").unwrap_or(0.0) as i32,
            top_p: number("top_p").unwrap_or(1.0) as f32,
            seed: number("seed").unwrap_or(1.0) as i64,
            ..Params::default()
        };
        let of = |key| number(key).unwrap() as usize;
        let request = Request {
            max_tokens: Some(of("length")),
            diffusion: diffusion(of("steps"), of("block_length"), algorithm),
            ..Request::new(ids("prompt"), sampling)
        };
        let (_, engine) = engines.iter().find(|(name, _)| case["model"] == *name).unwrap();
        if answer(engine, request) != ids("tokens") {
            failures.push(line.to_owned());
        }
    }
    assert!(text.lines().count() > 60);
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn default_settings_match_the_authors_settings() {
    for (name, block_length, algorithm) in [
        ("dream", 0, UnmaskOrder::Entropy),
        ("llada", 32, UnmaskOrder::Confidence),
        ("llada-moe", 32, UnmaskOrder::Confidence),
        ("rnd1", 0, UnmaskOrder::Entropy),
    ] {
        let engine = model(name);
        let told = Request { diffusion: diffusion(48, block_length, algorithm), ..whole(48) };
        assert_eq!(answer(&engine, whole(48)), answer(&engine, told), "{name}");
        // Other settings give another answer.
        let other = Request { diffusion: diffusion(6, 8, UnmaskOrder::Random), ..whole(48) };
        assert_ne!(answer(&engine, whole(48)), answer(&engine, other), "{name}");
    }
}

#[test]
fn answer_length_follows_the_limit_the_context_or_256_tokens() {
    let engine = model("llada");
    let length = |max_tokens, context| {
        let quick = Diffusion { steps: Some(1), ..Diffusion::default() };
        let (_, summary) =
            run(&engine, Request { max_tokens, context, diffusion: quick, ..whole(0) });
        assert_eq!(summary.finish, FinishReason::Length);
        assert_eq!(summary.generated_tokens, summary.tokens.len() - summary.prompt_tokens);
        summary.generated_tokens
    };
    assert_eq!(length(Some(0), None), 0);
    assert_eq!(length(Some(37), None), 37);
    assert_eq!(length(None, None), 256);
    assert_eq!(length(Some(5000), None), 512 - 8);
    assert_eq!(length(Some(100), Some(20)), 12);
    assert_eq!(length(Some(100), Some(8)), 0);
}

#[test]
fn tokens_are_emitted_in_order_once_no_mask_precedes_them() {
    let engine = model("llada");
    let request = Request { diffusion: diffusion(24, 4, UnmaskOrder::Confidence), ..whole(24) };
    let prompt = request.prompt.len();
    let events = start(&engine, request);
    let (mut tokens, mut steps) = (Vec::new(), vec![0]);
    let summary = loop {
        match events.recv_timeout(Duration::from_secs(20)).unwrap() {
            Event::Piece(piece) => tokens.push(piece.token),
            // Each step sends this event.
            Event::Prefill { done, total } => {
                assert_eq!((done, total), (8, 8));
                steps.push(tokens.len());
            }
            Event::Done(summary) => break summary,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(tokens, summary.tokens[prompt..]);
    assert_eq!(
        (summary.prompt_tokens, summary.generated_tokens, summary.cached_tokens),
        (8, 24, 0)
    );
    // Each block is complete before the next block begins.
    for block in 1..6 {
        assert_eq!(steps[4 * block + 1..].iter().min(), Some(&(4 * block)), "{steps:?}");
    }
    assert_eq!(steps.len(), 25);
}

#[test]
fn an_end_token_or_stop_string_skips_later_steps() {
    let engine = model("llada");
    let base = Request { diffusion: diffusion(32, 4, UnmaskOrder::Confidence), ..whole(32) };
    let (text, all) = run(&engine, base.clone());
    let steps = |request| {
        // The end of an answer is sent before its last step is counted.
        wait_until_idle(&engine);
        let before = engine.stats().steps;
        let (text, summary) = run(&engine, request);
        wait_until_idle(&engine);
        (text, summary, engine.stats().steps - before)
    };
    let stop: String = text.chars().skip(4).take(3).collect();
    let found = text.find(&stop).unwrap();
    let (cut, summary, taken) = steps(Request { stop: vec![stop], ..base.clone() });
    assert_eq!((cut.as_str(), summary.finish), (&text[..found], FinishReason::Stop(0)));
    assert!(taken < 32, "{taken} steps");
    // The end token is unmasked in the middle of the first block.
    let end = engine.tokenizer().eos().unwrap();
    let sampling = Params { logit_bias: vec![(end, 1e6)], ..greedy() };
    let (nothing, summary, taken) = steps(Request { sampling, ..base });
    assert_eq!(
        (nothing.as_str(), summary.finish, summary.generated_tokens),
        ("", FinishReason::End, 1)
    );
    assert!(taken <= 4, "{taken} steps");
    assert_eq!(all.generated_tokens, 32);
}

#[test]
fn a_seed_reproduces_an_answer_and_another_differs() {
    let engine = model("dream");
    for algorithm in [UnmaskOrder::Confidence, UnmaskOrder::Random, UnmaskOrder::Origin] {
        let of = |seed| {
            let sampling = Params { seed, temperature: 1.2, ignore_eos: true, ..Params::default() };
            answer(
                &engine,
                Request { sampling, diffusion: diffusion(6, 0, algorithm), ..whole(30) },
            )
        };
        assert_eq!(of(3), of(3));
        assert_ne!(of(3), of(4));
    }
}

#[test]
fn masks_are_never_sampled_and_log_probabilities_match_the_sample() {
    let engine = model("rnd1");
    let sampling = Params {
        logit_bias: vec![(318, 1e9)],
        temperature: 2.0,
        seed: 5,
        top_k: 0,
        ..Params::default()
    };
    let request = Request {
        sampling,
        logprobs: Some(2),
        diffusion: diffusion(4, 0, UnmaskOrder::Margin),
        ..whole(40)
    };
    let events = start(&engine, request);
    let mut seen = 0;
    loop {
        match events.recv_timeout(Duration::from_secs(20)).unwrap() {
            Event::Piece(piece) => {
                assert_ne!(piece.token, 318);
                let logprobs = piece.logprobs.expect("they were asked for");
                assert!(logprobs.logprob < 0.0 && logprobs.top.len() == 2);
                seen += 1;
            }
            Event::Done(_) => break,
            _ => {}
        }
    }
    assert!(seen > 0);
}

#[test]
fn concurrent_answers_equal_answers_alone() {
    let options = EngineOptions { max_sequences: Some(2), ..EngineOptions::default() };
    let (engine, lock, steps) = hanging("tests/data/zoo/llada.gguf", &options);
    let (sender, ended) = channel();
    let waits = lock.lock().unwrap();
    let of = |client, first| {
        let mut request = whole(16);
        request.prompt[1] = first;
        Request { client, ..request }
    };
    let requests = [("a1", of(1, 30)), ("a2", of(1, 31)), ("a3", of(1, 32)), ("b1", of(2, 33))];
    for (name, request) in requests.clone() {
        let sender = sender.clone();
        let sink = move |event| match event {
            Event::Done(summary) => sender.send((name, summary.tokens)).is_ok(),
            _ => true,
        };
        engine.submit(request, Box::new(sink)).unwrap();
    }
    drop(waits);
    let all: Vec<_> =
        requests.iter().map(|_| ended.recv_timeout(Duration::from_secs(20)).unwrap()).collect();
    let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
    assert!(names[..2].contains(&"b1"), "{names:?}");
    assert_eq!(steps.load(Ordering::Relaxed), 4 * 16);
    for (name, tokens) in all {
        let (_, request) = requests.iter().find(|(of, _)| *of == name).unwrap();
        assert_eq!(run(&engine, request.clone()).1.tokens, tokens, "{name}");
    }
}

#[test]
fn single_step_requests_do_not_starve_other_clients() {
    let (engine, lock, _) = hanging("tests/data/zoo/llada.gguf", &EngineOptions::default());
    let (sender, ended) = channel();
    let waits = lock.lock().unwrap();
    let quick = Request {
        client: 1,
        diffusion: Diffusion { steps: Some(1), ..Diffusion::default() },
        ..whole(4)
    };
    let long = Request { client: 2, ..whole(8) };
    for (name, request) in std::iter::repeat_n(("quick", quick), 20).chain([("long", long)]) {
        let sender = sender.clone();
        let sink = move |event| !matches!(event, Event::Done(_)) || sender.send(name).is_ok();
        engine.submit(request, Box::new(sink)).unwrap();
    }
    drop(waits);
    let names: Vec<_> =
        (0..21).map(|_| ended.recv_timeout(Duration::from_secs(20)).unwrap()).collect();
    // The long request gets every second step.
    let before = names.iter().position(|name| *name == "long").unwrap();
    assert!((7..=10).contains(&before), "{names:?}");
}

#[test]
fn default_settings_fit_any_context() {
    let options = EngineOptions { num_ctx: Some(24), ..EngineOptions::default() };
    let engine = open_at(Some("portable"), "tests/data/zoo/llada.gguf", &options);
    assert_eq!(engine.info().n_ctx, 24);
    assert_eq!(run(&engine, whole(100)).1.generated_tokens, 24 - 8);
}

/// A sink that accepts nothing until it is opened.
struct Shut {
    open: Arc<AtomicBool>,
    sender: std::sync::mpsc::Sender<Event>,
}

impl Sink for Shut {
    fn ready(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }
    fn send(&mut self, event: Event) -> bool {
        self.sender.send(event).is_ok()
    }
}

#[test]
fn slow_sinks_delay_only_their_request_and_closed_sinks_end_it() {
    let engine = model("llada");
    let open = Arc::new(AtomicBool::new(false));
    let (sender, slow) = channel();
    engine.submit(whole(20), Box::new(Shut { open: open.clone(), sender })).unwrap();
    let (alone, _) = run(&engine, whole(20));
    assert!(slow.try_recv().is_err(), "it was told of something");
    open.store(true, Ordering::Relaxed);
    assert_eq!(finish(&slow).0, alone);

    let id = engine.submit(whole(500), Box::new(|_| true)).unwrap();
    engine.cancel(id);
    drop(start(&engine, whole(500)));
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while engine.stats().running + engine.stats().waiting > 0 {
        assert!(std::time::Instant::now() < deadline, "{:?}", engine.stats());
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(engine.stats().steps < 500, "{:?}", engine.stats());
}

#[test]
fn unsupported_options_are_refused_by_name() {
    let engine = model("dream");
    let refused =
        |request: Request| engine.submit(request, Box::new(|_| true)).unwrap_err().to_string();
    let grammar = engine.grammar(&Constraint::Json).unwrap();
    let sampled = |sampling| Request { sampling, ..whole(8) };
    let always = puna_engine::Speculation { always: true, ..puna_engine::Speculation::AUTO };
    for (request, what) in [
        (Request { grammar: Some(grammar), ..whole(8) }, "constrained output"),
        (Request { prompt_logprobs: Some(0), ..whole(8) }, "log-probabilities of the prompt"),
        (Request { speculation: Some(always), ..whole(8) }, "speculative decoding"),
        (sampled(Params { mirostat: 2, ..Params::default() }), "mirostat"),
        (sampled(Params { dry_multiplier: 0.5, ..Params::default() }), "dry_multiplier"),
    ] {
        let text = refused(request);
        assert!(text.contains("architecture dream") && text.contains(what), "{text}");
    }
    let filled = |steps, block_length| Diffusion { steps, block_length, algorithm: None };
    let of = |diffusion| refused(Request { diffusion, ..whole(8) });
    assert!(of(filled(Some(0), None)).starts_with("diffusion_steps is 0"));
    assert!(of(filled(Some(1 << 20), None)).starts_with("diffusion_steps is 1048576"));
    assert!(of(filled(None, Some(513))).contains("at most 512"), "{}", of(filled(None, Some(513))));
    let llama = open("tests/data/zoo/llama.gguf", &EngineOptions::default());
    let request = Request { diffusion: filled(Some(8), None), ..Request::new(prompt(), greedy()) };
    let text = llama.submit(request, Box::new(|_| true)).unwrap_err().to_string();
    assert!(text.contains("architecture llama is not a diffusion model"), "{text}");
}

#[test]
fn draft_models_are_refused_for_diffusion_models() {
    let backend =
        || Box::new(CpuBackend::new(&Config { threads: Some(1), ..Config::default() }).unwrap());
    let zoo = |name: &str| file(&format!("tests/data/zoo/{name}.gguf"));
    let options = EngineOptions::default();
    for (model, draft, named) in [("dream", "llama", "dream"), ("llama", "rnd1", "rnd1")] {
        let guesser = || DraftModel { view: zoo(draft), backend: backend() };
        let planned =
            plan_memory_with_draft(&zoo(model), backend(), &options, guesser()).unwrap_err();
        assert!(planned.to_string().contains(&format!("(architecture {named})")), "{planned}");
        let Err(opened) = Engine::open_with_draft(zoo(model), backend(), &options, guesser())
        else {
            panic!("{model} was opened with {draft}");
        };
        let vocabulary = matches!(opened, EngineError::DraftVocabulary { .. });
        assert!(vocabulary || opened == planned, "{opened}");
    }
}

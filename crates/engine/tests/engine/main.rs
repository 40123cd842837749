//! The engine on the embedded model: answers, prefix reuse, batching, stopping, shifting,
//! embedding.

mod adapters;
mod constrained;
mod deterministic;
mod diffusion;
mod encoder;
mod fairness;

mod loadable;
mod many;
mod media;
mod memory;
mod mutated;
mod observe;
mod progress;
mod prompts;
mod recurrent;
mod scarce_pages;
mod windows;

#[path = "../../../../fuzz/bodies/load.rs"]
mod body;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use puna_cpu::{Config, CpuBackend};
use puna_engine::{
    Engine, EngineError, EngineOptions, Event, FinishReason, GenerationStats, PAGE_TOKENS, Request,
};
use puna_gguf::{Gguf, View};
use puna_sampler::Params;
use puna_tokenizer::EncodeOptions;

fn file(path: &str) -> View {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    View::new(Arc::new(Gguf::open(&path).unwrap())).unwrap()
}

fn open(path: &str, options: &EngineOptions) -> Engine {
    open_at(None, path, options)
}

fn open_at(kernels: Option<&str>, path: &str, options: &EngineOptions) -> Engine {
    let config =
        Config { threads: Some(2), kernels: kernels.map(str::to_owned), ..Config::default() };
    Engine::open(file(path), Box::new(CpuBackend::new(&config).unwrap()), options).unwrap()
}

fn cria(options: &EngineOptions) -> Engine {
    open("models/cria/cria-q8_0.gguf", options)
}

fn greedy() -> Params {
    Params { temperature: 0.0, ..Params::default() }
}

fn request(engine: &Engine, text: &str) -> Request {
    let prompt =
        engine.tokenizer().encode(text, EncodeOptions { add_special: true, parse_special: true });
    Request { max_tokens: Some(64), ..Request::new(prompt, greedy()) }
}

fn chat(question: &str) -> String {
    format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")
}

/// Starts a request that sends its events to a channel.
fn start(engine: &Engine, request: Request) -> Receiver<Event> {
    let (sender, receiver) = channel();
    engine.submit(request, Box::new(move |event| sender.send(event).is_ok())).unwrap();
    receiver
}

/// Waits for the end of a request.
fn finish(events: &Receiver<Event>) -> (String, GenerationStats) {
    let mut text = String::new();
    loop {
        match events.recv_timeout(Duration::from_secs(60)).expect("a request ends") {
            Event::Prefill { .. } | Event::Prompt(_) => {}
            Event::Piece(piece) => text.push_str(&piece.text),
            Event::Done(summary) => return (text, summary),
            Event::Failed(reason) | Event::Refused(reason) => panic!("{reason}"),
        }
    }
}

/// Waits until all pages are released. A request reports its end a moment before the loop releases
/// its pages.
fn wait_until_idle(engine: &Engine) {
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while (engine.stats().running > 0 || engine.stats().pages_pinned > 0)
        && std::time::Instant::now() < deadline
    {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn run(engine: &Engine, request: Request) -> (String, GenerationStats) {
    finish(&start(engine, request))
}

#[test]
fn the_embedded_model_answers() {
    let engine = cria(&EngineOptions::default());
    let (text, summary) = run(&engine, request(&engine, &chat("What is the capital of France?")));
    assert_eq!(text, "Paris.");
    assert_eq!(summary.finish, FinishReason::End);
}

#[test]
fn a_shared_prefix_is_computed_once() {
    let engine = cria(&EngineOptions::default());
    let system = format!("<|im_start|>system\n{}<|im_end|>\n", "Answer in one word. ".repeat(40));
    let (_, first) =
        run(&engine, request(&engine, &(system.clone() + &chat("What is the capital of France?"))));
    assert_eq!(first.cached_tokens, 0);
    // A question with a clear answer, since other chunks of the prompt give logits that differ in
    // the last digits.
    let (text, second) =
        run(&engine, request(&engine, &(system.clone() + &chat("What is the capital of Japan?"))));
    let shared = engine
        .tokenizer()
        .encode(&system, EncodeOptions { add_special: true, parse_special: true })
        .len();
    assert!(second.cached_tokens >= shared, "{} of {shared} cached", second.cached_tokens);
    let fresh = cria(&EngineOptions::default());
    assert_eq!(
        text,
        run(&fresh, request(&fresh, &(system + &chat("What is the capital of Japan?")))).0
    );
}

#[test]
fn several_answers_to_one_prompt_compute_it_once() {
    let prompt: Vec<u32> = (0..280).map(|t| 300 + (t * 7) % 900).collect();
    let answer = |seed| {
        let sampling = Params { seed, temperature: 1.5, ignore_eos: true, ..Params::default() };
        Request { max_tokens: Some(4), client: 1, ..Request::new(prompt.clone(), sampling) }
    };
    for num_batch in [512, 100] {
        let engine = cria(&EngineOptions { num_batch, ..EngineOptions::default() });
        let all = [7, 8, 9, 10].map(|seed| start(&engine, answer(seed)));
        let all = all.map(|events| finish(&events));
        wait_until_idle(&engine);
        // All requests share the prompt, except the last token, which each computes for its own
        // logits.
        assert_eq!(engine.stats().prompt_tokens, 280 + 3, "in steps of {num_batch}");
        let mut cached = all.clone().map(|(_, summary)| summary.cached_tokens);
        cached.sort_unstable();
        assert_eq!(cached, [0, 279, 279, 279]);
        // Copied pages equal computed pages: the answers match the answers of a request alone.
        for (seed, (text, _)) in [7, 8, 9, 10].into_iter().zip(all) {
            assert_eq!(run(&engine, answer(seed)).0, text, "{seed}");
        }
    }
}

#[test]
fn another_client_does_not_wait_for_a_prompt_that_is_being_computed() {
    let (engine, lock, _) =
        progress::hanging("tests/data/zoo/llama.gguf", &EngineOptions::default());
    let of = |client| Request {
        client,
        max_tokens: Some(1),
        ..Request::new((40..240).collect(), greedy())
    };
    let waits = lock.lock().unwrap();
    let (one, other) = (start(&engine, of(1)), start(&engine, of(2)));
    drop(waits);
    let cached = [one, other].map(|events| finish(&events).1.cached_tokens);
    assert!(cached.iter().all(|tokens| *tokens < 199), "{cached:?}");
}

#[test]
fn the_next_turn_of_a_chat_computes_only_what_is_new() {
    let engine = cria(&EngineOptions::default());
    let first = chat("What is the capital of Peru?");
    let (answer, summary) = run(&engine, request(&engine, &first));
    let next = format!("{first}{answer}<|im_end|>\n{}", chat("And the currency?"));
    let (_, second) = run(&engine, request(&engine, &next));
    // The end token was sampled but not computed.
    assert_eq!(second.cached_tokens, summary.tokens.len() - 1);
}

#[test]
fn jobs_that_run_together_answer_as_if_alone() {
    let questions = [
        "capital of Japan",
        "capital of Peru",
        "symbol of gold",
        "opposite of hot",
        "plural of mouse",
    ];
    let alone: Vec<String> = questions
        .map(|q| {
            let engine = cria(&EngineOptions::default());
            run(&engine, request(&engine, &chat(&format!("What is the {q}?")))).0
        })
        .to_vec();
    let engine = cria(&EngineOptions { max_sequences: Some(3), ..EngineOptions::default() });
    let all =
        questions.map(|q| start(&engine, request(&engine, &chat(&format!("What is the {q}?")))));
    let together: Vec<String> = all.iter().map(|events| finish(events).0).collect();
    assert_eq!(alone, together);
}

#[test]
fn a_seed_reproduces_and_another_differs() {
    let engine = cria(&EngineOptions::default());
    let write = |seed| {
        let sampling = Params { seed, temperature: 1.5, top_k: 0, top_p: 1.0, ..Params::default() };
        run(&engine, Request { sampling, ..request(&engine, &chat("Write a story.")) }).0
    };
    assert_eq!(write(7), write(7));
    assert_ne!(write(7), write(8));
}

#[test]
fn a_stop_string_across_tokens_ends_the_answer_before_it() {
    let engine = cria(&EngineOptions::default());
    let base = request(&engine, &chat("Count from 1 to 9."));
    let (whole, _) = run(&engine, base.clone());
    let stop = whole[whole.len() / 2..whole.len() / 2 + 3].to_owned();
    let (text, summary) =
        run(&engine, Request { stop: vec!["never".into(), stop.clone()], ..base });
    assert_eq!(text, whole[..whole.find(&stop).unwrap()]);
    assert_eq!(summary.finish, FinishReason::Stop(1));
}

#[test]
fn a_token_limit_ends_with_length_and_zero_generates_nothing() {
    let engine = cria(&EngineOptions::default());
    let (_, three) = run(
        &engine,
        Request { max_tokens: Some(3), ..request(&engine, &chat("Count from 1 to 9.")) },
    );
    assert_eq!((three.finish, three.generated_tokens), (FinishReason::Length, 3));
    let (text, none) =
        run(&engine, Request { max_tokens: Some(0), ..request(&engine, &chat("Hello")) });
    assert_eq!((text.as_str(), none.finish, none.generated_tokens), ("", FinishReason::Length, 0));
}

#[test]
fn a_full_context_shifts_or_ends() {
    let engine = cria(&EngineOptions { num_ctx: Some(64), ..EngineOptions::default() });
    let prompt = vec![4085; 40];
    let base = Request { prompt, max_tokens: Some(200), ..request(&engine, "") };
    let sampling = Params {
        temperature: 1.0,
        seed: 1,
        logit_bias: vec![(4086, -1e9), (4088, -1e9)],
        ..Params::default()
    };
    let base = Request { sampling, ..base };
    let (_, shifted) = run(&engine, Request { shift: true, keep: 4, ..base.clone() });
    if shifted.finish == FinishReason::Length {
        assert_eq!(shifted.generated_tokens, 200);
        assert!(shifted.shifted_tokens > 100);
    }
    let (_, ended) = run(&engine, Request { shift: false, ..base });
    assert!(ended.generated_tokens <= 25, "{} tokens in a context of 64", ended.generated_tokens);
}

#[test]
fn a_context_limit_applies_only_to_its_request() {
    let engine = cria(&EngineOptions { num_ctx: Some(256), ..EngineOptions::default() });
    let small = |shift| {
        let request = request(&engine, "1, 2, 3, 4,");
        let sampling = Params { ignore_eos: true, ..greedy() };
        Request { context: Some(32), max_tokens: Some(60), shift, sampling, ..request }
    };
    let (_, ended) = run(&engine, small(false));
    assert_eq!(ended.finish, FinishReason::Length);
    assert_eq!(ended.tokens.len(), 33, "the last one is sampled, and does not fit");
    let (_, shifted) = run(&engine, small(true));
    assert!(shifted.generated_tokens == 60 && shifted.shifted_tokens > 0, "{shifted:?}");
    let (_, whole) = run(&engine, Request { context: None, ..small(false) });
    assert_eq!((whole.generated_tokens, whole.shifted_tokens), (60, 0));
    let long = Request { context: Some(4), ..small(true) };
    let refused = engine.submit(long, Box::new(|_| true)).unwrap_err();
    assert!(
        matches!(refused, puna_engine::EngineError::PromptTooLong { n_ctx: 4, .. }),
        "{refused}"
    );
}

#[test]
fn a_closed_sink_ends_its_request_and_frees_pages() {
    let engine = cria(&EngineOptions::default());
    let (sender, receiver) = channel();
    let long = Request {
        max_tokens: Some(1500),
        stop: Vec::new(),
        ..request(&engine, &chat("Count from 1 to 9."))
    };
    let sampling = Params { logit_bias: vec![(4086, -1e9), (4088, -1e9)], ..greedy() };
    engine
        .submit(Request { sampling, ..long }, Box::new(move |event| sender.send(event).is_ok()))
        .unwrap();
    for _ in 0..3 {
        receiver.recv_timeout(Duration::from_secs(20)).unwrap();
    }
    drop(receiver);
    wait_until_idle(&engine);
    assert_eq!((engine.stats().running, engine.stats().pages_pinned), (0, 0));
    assert!(engine.stats().generated_tokens < 1000);
}

#[test]
fn requests_beyond_the_sequence_limit_wait() {
    let engine = cria(&EngineOptions {
        num_ctx: Some(2 * PAGE_TOKENS),
        max_sequences: Some(3),
        ..EngineOptions::default()
    });
    let all: Vec<_> = (0..8)
        .map(|i| {
            let prompt: Vec<u32> = (0..100).map(|t| 300 + (t * 7 + i * 13) % 900).collect();
            start(&engine, Request { prompt, max_tokens: Some(20), ..request(&engine, "") })
        })
        .collect();
    all.iter().for_each(|events| assert!(finish(events).1.generated_tokens > 0));
    wait_until_idle(&engine);
    assert_eq!(engine.stats().pages_pinned, 0);
}

#[test]
fn impossible_jobs_are_refused() {
    let engine = cria(&EngineOptions { num_ctx: Some(32), ..EngineOptions::default() });
    let submit = |prompt: Vec<u32>| {
        engine.submit(Request { prompt, ..request(&engine, "") }, Box::new(|_| true)).unwrap_err()
    };
    assert_eq!(submit(Vec::new()), EngineError::EmptyPrompt);
    assert_eq!(submit(vec![1; 33]), EngineError::PromptTooLong { tokens: 33, n_ctx: 32 });
    assert_eq!(submit(vec![9999]), EngineError::UnknownToken { token: 9999, n_vocab: 4096 });
}

#[test]
fn embeddings_are_pooled_as_the_reference_does() {
    for name in ["bert-mean", "bert-cls", "bert-rank", "qwen3-embedding"] {
        let engine = open(&format!("tests/data/zoo/{name}.gguf"), &EngineOptions::default());
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/data/zoo/{name}.json"));
        let json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let list = |key: &str| {
            json[key].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect::<Vec<_>>()
        };
        let tokens: Vec<u32> = list("tokens").into_iter().map(|t| t as u32).collect();
        let (sender, receiver) = channel();
        let shorter = tokens[..tokens.len() / 2].to_vec();
        let inputs = vec![shorter, tokens];
        engine.embed(0, inputs, Box::new(move |result| sender.send(result).unwrap())).unwrap();
        let vectors = receiver.recv_timeout(Duration::from_secs(20)).unwrap().unwrap();
        let want = list("embedding");
        assert_eq!(vectors[1].len(), want.len(), "{name}");
        for (got, want) in vectors[1].iter().zip(want) {
            assert!((f64::from(*got) - want).abs() < 0.01, "{name}: {got} instead of {want}");
        }
    }
}

#[test]
fn a_character_cut_by_the_token_limit_is_omitted() {
    let engine = cria(&EngineOptions::default());
    let tokenizer = engine.tokenizer();
    let half = (0..tokenizer.vocab_size() as u32).find(|id| tokenizer.piece(*id) == [0xC3]);
    let half = half.expect("the vocabulary has single bytes");
    let biased = |max_tokens| {
        let sampling = Params { logit_bias: vec![(half, 1e6)], ..greedy() };
        Request { sampling, max_tokens: Some(max_tokens), ..request(&engine, "x") }
    };
    assert_eq!(run(&engine, biased(1)).0, "");
    // A second token shows that the character is incomplete, so that it is replaced.
    assert_eq!(run(&engine, biased(2)).0, "\u{FFFD}");
}

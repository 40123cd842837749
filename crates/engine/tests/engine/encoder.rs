//! Encoder–decoder models: answers match the reference, requests share batches, only an identical
//! prompt is reused, and the context is a limit.
//!
//! The portable level computes a row independently of the other rows of a step, so that texts can
//! be compared token by token.

use puna_engine::{DraftModel, Evaluator, Outputs, SequenceInput, Speculation};
use puna_graph::KvType;

use super::*;

const PATH: &str = "tests/data/zoo/t5.gguf";

fn options() -> EngineOptions {
    EngineOptions { cache_k: KvType::F32, cache_v: KvType::F32, ..EngineOptions::default() }
}

fn portable(options: &EngineOptions) -> Engine {
    open_at(Some("portable"), PATH, options)
}

/// The reference's prompt and its greedy answer.
fn reference(name: &str) -> (Vec<u32>, Vec<u32>) {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/data/zoo/{name}.json"));
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let list = |key: &str| -> Vec<u32> {
        json[key].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
    };
    (list("encoder_tokens"), list("greedy")[1..].to_vec())
}

/// A request of client `client` that ends only at its token limit.
fn endless(prompt: Vec<u32>, tokens: usize, client: u64) -> Request {
    let params = Params { temperature: 1.0, seed: 5, ignore_eos: true, ..Params::default() };
    Request { max_tokens: Some(tokens), client, ..Request::new(prompt, params) }
}

/// `shared` tokens that all prompts have, then `own` tokens that only prompt `n` has.
fn nth(n: u32, shared: u32, own: u32) -> Vec<u32> {
    (0..shared + own).map(|t| 40 + if t < shared { t * 7 } else { t * 11 + n * 31 } % 250).collect()
}

fn alone(request: &Request) -> Vec<u32> {
    run(&portable(&options()), request.clone()).1.tokens
}

fn assert_all_given_back(engine: &Engine) {
    wait_until_idle(engine);
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.pages_pinned), (0, 0, 0));
}

#[test]
fn greedy_answers_match_the_reference() {
    for name in ["t5", "t5-umt5"] {
        let (prompt, answer) = reference(name);
        assert_eq!(answer.len(), 24);
        for kernels in [Some("portable"), None] {
            let engine = open_at(kernels, &format!("tests/data/zoo/{name}.gguf"), &options());
            let sampling = Params { ignore_eos: true, ..greedy() };
            let request = Request {
                max_tokens: Some(answer.len()),
                ..Request::new(prompt.clone(), sampling)
            };
            let beside: Vec<_> =
                (0..3).map(|n| start(&engine, endless(nth(n, 20, 30), 20, 7))).collect();
            let (text, summary) = run(&engine, request);
            // In the unigram vocabulary every piece begins with a blank; the answer begins with
            // none.
            if name == "t5-umt5" {
                let pieces: Vec<String> = answer.iter().map(|token| format!("t{token}")).collect();
                assert_eq!(text, pieces.join(" "));
            }
            // Prompt and answer, without the start token of the answer.
            assert_eq!(summary.tokens, [&prompt[..], &answer].concat(), "{name}");
            assert_eq!(summary.prompt_tokens, prompt.len());
            beside.iter().for_each(|events| drop(finish(events)));
        }
    }
}

#[test]
fn jobs_that_run_together_answer_as_if_alone() {
    for num_batch in [512, 50] {
        let engine = portable(&EngineOptions { num_batch, ..options() });
        let requests: Vec<Request> =
            (0..5).map(|n| endless(nth(n, 30, 10 + 11 * n), 30, u64::from(n))).collect();
        let all: Vec<_> = requests.iter().map(|request| start(&engine, request.clone())).collect();
        for (request, events) in requests.iter().zip(&all) {
            assert_eq!(finish(events).1.tokens, alone(request), "in steps of {num_batch}");
        }
        assert_all_given_back(&engine);
    }
}

#[test]
fn only_identical_prompts_are_reused() {
    let engine = portable(&options());
    let prompt = nth(1, 0, 100);
    let (_, first) = run(&engine, endless(prompt.clone(), 20, 1));
    wait_until_idle(&engine);
    assert_eq!(engine.stats().prompt_tokens, 101);
    let (_, second) = run(&engine, endless(prompt.clone(), 20, 2));
    assert_eq!((first.cached_tokens, second.cached_tokens), (0, 100));
    assert_eq!(first.tokens, second.tokens);
    wait_until_idle(&engine);
    assert_eq!(engine.stats().prompt_tokens, 102);
    // Both prompts share the first page with the earlier prompt.
    for other in [prompt[..99].to_vec(), [&prompt[..], &[41]].concat()] {
        let request = endless(other, 20, 3);
        let (_, summary) = run(&engine, request.clone());
        assert_eq!(summary.cached_tokens, 0);
        assert_eq!(summary.tokens, alone(&request));
    }
}

#[test]
fn several_answers_to_one_prompt_encode_it_once() {
    for tokens in [40, 100, 128] {
        let engine = portable(&options());
        let answer = |seed| {
            let request = endless(nth(1, 0, tokens), 4, 1);
            Request { sampling: Params { seed, ..request.sampling.clone() }, ..request }
        };
        let all = [7, 8, 9, 10].map(|seed| start(&engine, answer(seed)));
        let all = all.map(|events| finish(&events).1);
        for (seed, summary) in [7, 8, 9, 10].into_iter().zip(&all) {
            assert_eq!(summary.tokens, alone(&answer(seed)), "{tokens} tokens");
        }
        wait_until_idle(&engine);
        let read = engine.stats().prompt_tokens;
        // Requests wait for an identical prompt that fills a page. Each request computes its own
        // start token.
        assert!(read == u64::from(tokens) + 4 || tokens < 64, "{read} for {tokens} tokens");
    }
}

#[test]
fn preempted_sequences_equal_sequences_alone() {
    let engine = portable(&EngineOptions { cache_pages: Some(5), ..options() });
    let requests: Vec<Request> =
        (0..4).map(|n| endless(nth(n, 40, 20), 100, u64::from(n))).collect();
    let all: Vec<_> = requests.iter().map(|request| start(&engine, request.clone())).collect();
    for (request, events) in requests.iter().zip(&all) {
        assert_eq!(finish(events).1.tokens, alone(request));
    }
    assert!(
        engine.stats().preempted > 0,
        "four sequences of three pages had five: {:?}",
        engine.stats()
    );
    assert_all_given_back(&engine);
}

#[test]
fn context_shifts_drop_only_tokens_of_the_answer() {
    let engine = portable(&options());
    let n_ctx = engine.info().n_ctx;
    assert_eq!(n_ctx, 2 * 96);
    let prompt = nth(1, 0, 150);
    let long = Request { max_tokens: Some(120), ..endless(prompt.clone(), 0, 1) };
    let (_, ended) = run(&engine, Request { shift: false, ..long.clone() });
    assert_eq!((ended.finish, ended.tokens.len()), (FinishReason::Length, n_ctx));
    let (_, shifted) = run(&engine, Request { shift: true, ..long });
    assert_eq!(shifted.generated_tokens, 120);
    assert!(shifted.shifted_tokens > 0);
    assert_eq!(shifted.tokens[..150], prompt);
    assert_eq!(shifted.tokens.len() + shifted.shifted_tokens, 150 + 120);
    // If the prompt leaves one position, the answer has one token.
    let (_, full) =
        run(&engine, Request { shift: true, ..endless(nth(2, 0, n_ctx as u32 - 1), 50, 1) });
    assert_eq!(
        (full.finish, full.generated_tokens, full.shifted_tokens),
        (FinishReason::Length, 1, 0)
    );
    assert_all_given_back(&engine);
}

#[test]
fn closed_sinks_and_cancelled_requests_free_pages() {
    let engine = portable(&options());
    let (sender, receiver) = channel();
    let long = endless(nth(1, 0, 70), 10_000, 1);
    engine.submit(long.clone(), Box::new(move |event| sender.send(event).is_ok())).unwrap();
    receiver.recv_timeout(Duration::from_secs(20)).unwrap();
    drop(receiver);
    let id = engine.submit(Request { prompt: nth(2, 0, 80), ..long }, Box::new(|_| true)).unwrap();
    while engine.stats().running == 0 {
        std::thread::sleep(Duration::from_millis(2));
    }
    engine.cancel(id);
    assert_all_given_back(&engine);
}

#[test]
fn speculation_does_not_change_answers() {
    let answer = |speculation| {
        let engine = portable(&EngineOptions { speculation, ..options() });
        let sampling = Params { ignore_eos: true, ..greedy() };
        // The answer soon repeats, so that n-gram drafts are accepted.
        let request = Request { max_tokens: Some(80), ..Request::new(nth(3, 0, 40), sampling) };
        run(&engine, request).1
    };
    let always = Speculation { always: true, ..Speculation::AUTO };
    let (with, without) = (answer(always), answer(Speculation::OFF));
    assert_eq!(with.tokens, without.tokens);
    assert!(with.draft_stats.total().accepted > 0, "nothing was guessed");
}

#[test]
fn unsupported_requests_are_refused() {
    let engine = portable(&options());
    let request = endless(nth(1, 0, 10), 3, 1);
    let refused = |request: Request| engine.submit(request, Box::new(|_| true)).unwrap_err();
    assert_eq!(
        refused(Request { prompt_logprobs: Some(1), ..request.clone() }),
        EngineError::CannotScorePrompt
    );
    let whole = Request { prompt: nth(1, 0, 192), ..request.clone() };
    assert_eq!(refused(whole), EngineError::PromptTooLong { tokens: 193, n_ctx: 192 });
    let embedded = engine.embed(0, vec![vec![50]], Box::new(|_| {}));
    assert_eq!(embedded, Err(EngineError::CannotEmbed));
    // An encoder–decoder model is not a draft model, and has no draft model.
    let backend =
        || Box::new(CpuBackend::new(&Config { threads: Some(1), ..Config::default() }).unwrap());
    let draft = DraftModel { view: file(PATH), backend: backend() };
    // A model with the same vocabulary.
    let other = file("tests/data/zoo/grovemoe.gguf");
    let opened = Engine::open_with_draft(other, backend(), &EngineOptions::default(), draft);
    assert_eq!(opened.err(), Some(EngineError::EncoderDraft { architecture: "t5" }));
    let draft = DraftModel { view: file("tests/data/zoo/llama.gguf"), backend: backend() };
    let alone = Engine::open_with_draft(file(PATH), backend(), &options(), draft).unwrap();
    assert_eq!(alone.memory().draft, 0);
}

#[test]
fn the_evaluator_encodes_prompts() {
    let (prompt, answer) = reference("t5");
    let config = Config { threads: Some(2), kernels: Some("portable".into()), ..Config::default() };
    let backend = Box::new(CpuBackend::new(&config).unwrap());
    let mut evaluator = Evaluator::open(&file(PATH), backend, &options()).unwrap();
    let start = evaluator.info().start.unwrap();
    let read = SequenceInput { sequence: 1, tokens: &prompt, outputs: Outputs::None };
    assert_eq!(evaluator.encode(&[read]).unwrap().len(), prompt.len() * 48);
    let mut token = start;
    for want in answer {
        let logits = evaluator
            .logits(&[SequenceInput { sequence: 1, tokens: &[token], outputs: Outputs::Last }])
            .unwrap();
        token = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32;
        assert_eq!(token, want);
    }
    // Without an encoded prompt, attention has no positions, but logits are finite.
    let logits = evaluator
        .logits(&[SequenceInput { sequence: 0, tokens: &[start], outputs: Outputs::Last }])
        .unwrap();
    assert!(logits.iter().all(|logit| logit.is_finite()));
}

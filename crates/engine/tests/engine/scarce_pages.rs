//! A cache with too few pages: preempted sequences continue later with the same result.
//!
//! The portable level computes a row independently of the other rows of a step, so that texts can
//! be compared token by token.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use puna_engine::{Sink, Stats};

use super::*;

const ZOO: &str = "tests/data/zoo/llama.gguf";

fn portable(path: &str, num_ctx: usize, pages: Option<usize>) -> Engine {
    let options = EngineOptions {
        num_ctx: Some(num_ctx),
        max_sequences: Some(4),
        cache_pages: pages,
        ..EngineOptions::default()
    };
    open_at(Some("portable"), path, &options)
}

/// A request that ends only at its token limit.
fn endless(engine: &Engine, prompt: Vec<u32>, tokens: usize, temperature: f32) -> Request {
    let params = Params { temperature, seed: 5, ignore_eos: true, ..Params::default() };
    Request { prompt, sampling: params, max_tokens: Some(tokens), keep: 4, ..request(engine, "x") }
}

/// Prompts that share a first page and then differ.
fn prompts() -> Vec<Vec<u32>> {
    (0..4)
        .map(|i| {
            (0..90).map(|t| if t < 70 { 40 + t } else { 40 + (t * 7 + i * 31) % 250 }).collect()
        })
        .collect()
}

fn alone(num_ctx: usize, request: &Request) -> (String, GenerationStats) {
    run(&portable(ZOO, num_ctx, None), request.clone())
}

fn wait_until(engine: &Engine, what: &str, holds: impl Fn(&Stats) -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while !holds(&engine.stats()) {
        assert!(
            std::time::Instant::now() < deadline,
            "waited in vain: {what}: {:?}",
            engine.stats()
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until no request runs or waits, and every page is free or in the prefix tree.
fn assert_all_given_back(engine: &Engine) {
    wait_until(engine, "everybody ends", |s| s.running == 0 && s.waiting == 0);
    wait_until(engine, "no page is held", |s| s.pages_pinned == 0);
}

#[test]
fn preempted_sequences_equal_sequences_alone() {
    for temperature in [0.0, 1.3] {
        let engine = portable(ZOO, 256, Some(7));
        let requests: Vec<Request> =
            prompts().into_iter().map(|p| endless(&engine, p, 150, temperature)).collect();
        let all: Vec<_> = requests.iter().map(|request| start(&engine, request.clone())).collect();
        for (request, events) in requests.iter().zip(&all) {
            let (text, summary) = finish(events);
            let (text_alone, summary_alone) = alone(256, request);
            assert_eq!(summary.tokens, summary_alone.tokens, "temperature {temperature}");
            assert_eq!((text, summary.generated_tokens), (text_alone, 150));
        }
        assert!(
            engine.stats().preempted > 0,
            "four sequences of four pages had seven: {:?}",
            engine.stats()
        );
        assert_all_given_back(&engine);
    }
}

#[test]
fn the_embedded_model_answers_the_same_with_scarce_pages() {
    let questions = ["Count from 1 to 9.", "Write a story.", "What is the capital of France?"];
    let requests: Vec<Request> = {
        let engine = portable("models/cria/cria-q8_0.gguf", 256, None);
        let sampling = Params { ignore_eos: true, ..greedy() };
        questions
            .map(|q| Request {
                sampling: sampling.clone(),
                max_tokens: Some(120),
                ..request(&engine, &chat(q))
            })
            .to_vec()
    };
    let answers = |pages| {
        let engine = portable("models/cria/cria-q8_0.gguf", 256, pages);
        let all: Vec<_> = requests.iter().map(|request| start(&engine, request.clone())).collect();
        let texts: Vec<String> = all.iter().map(|events| finish(events).0).collect();
        assert_all_given_back(&engine);
        (texts, engine.stats().preempted)
    };
    let (plenty, none) = answers(None);
    let (scarce, some) = answers(Some(4));
    assert_eq!(plenty, scarce);
    assert!(none == 0 && some > 0, "{none} and {some}");
}

#[test]
fn contexts_shift_with_scarce_pages_as_with_plenty() {
    let engine = portable(ZOO, 128, Some(4));
    let requests: Vec<Request> =
        prompts().into_iter().map(|p| endless(&engine, p, 260, 1.0)).collect();
    let all: Vec<_> = requests.iter().map(|request| start(&engine, request.clone())).collect();
    for (request, events) in requests.iter().zip(&all) {
        let (text, summary) = finish(events);
        let (text_alone, summary_alone) = alone(128, request);
        assert_eq!((text, &summary.tokens), (text_alone, &summary_alone.tokens));
        assert_eq!(summary.shifted_tokens, summary_alone.shifted_tokens);
        assert!(summary.shifted_tokens > 100, "{summary:?}");
    }
    assert!(engine.stats().preempted > 0, "{:?}", engine.stats());
    assert_all_given_back(&engine);
}

/// A sink that accepts some events, and the rest when it is opened.
struct Gate {
    left: AtomicU64,
    open: Arc<AtomicBool>,
    events: Sender<Event>,
}

impl Sink for Gate {
    fn ready(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0 || self.open.load(Ordering::Relaxed)
    }

    fn send(&mut self, event: Event) -> bool {
        let left = self.left.get_mut();
        *left = left.saturating_sub(1);
        self.events.send(event).is_ok()
    }
}

#[test]
fn preempted_requests_can_be_cancelled() {
    let engine = portable(ZOO, 256, Some(4));
    let [first, second] = [0, 1].map(|i| endless(&engine, prompts()[i].clone(), 150, 0.0));
    let (events, heard) = channel();
    let open = Arc::new(AtomicBool::new(false));
    // The first sequence needs a third page, so that the second is preempted, but it cannot finish
    // yet.
    let gate = Gate { left: 120.into(), open: open.clone(), events };
    engine.submit(first.clone(), Box::new(gate)).unwrap();
    let (sender, lost) = channel();
    let id = engine.submit(second, Box::new(move |event| sender.send(event).is_ok())).unwrap();
    wait_until(&engine, "the second is sent back", |s| s.preempted > 0 && s.waiting == 1);
    engine.cancel(id);
    wait_until(&engine, "the second is gone", |s| s.waiting == 0);
    assert!(lost.iter().all(|event| matches!(event, Event::Prefill { .. } | Event::Piece(_))));
    open.store(true, Ordering::Relaxed);
    assert_eq!(finish(&heard).1.tokens, alone(256, &first).1.tokens);
    assert_all_given_back(&engine);
}

#[test]
fn no_context_is_longer_than_all_pages_together() {
    let engine = portable(ZOO, 512, Some(2));
    assert_eq!(engine.info().n_ctx, 2 * PAGE_TOKENS);
    let prompt = |n: u32| (0..n).map(|t| 40 + t % 200).collect::<Vec<u32>>();
    let too_long =
        engine.submit(endless(&engine, prompt(129), 10, 0.0), Box::new(|_| true)).unwrap_err();
    assert_eq!(too_long, EngineError::PromptTooLong { tokens: 129, n_ctx: 128 });
    let fits = endless(&engine, prompt(128), 10, 0.0);
    let (_, full) = run(&engine, Request { shift: false, ..fits.clone() });
    assert_eq!(
        (full.finish, full.generated_tokens),
        (FinishReason::Length, 1),
        "room for nothing after it"
    );
    let (_, shifted) = run(&engine, fits);
    assert_eq!((shifted.finish, shifted.generated_tokens), (FinishReason::Length, 10));
    assert_all_given_back(&engine);
}

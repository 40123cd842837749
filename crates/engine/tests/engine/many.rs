//! More sequences, and more texts to embed, than fit a step: there are no fixed slots, and every
//! sequence makes progress.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use puna_engine::Speculation;

use super::progress::hanging;
use super::*;

const ZOO: &str = "tests/data/zoo/llama.gguf";

/// A request for `tokens` tokens with a prompt that shares no prefix with others.
fn nth(n: u32, tokens: usize) -> Request {
    let sampling = Params { ignore_eos: true, ..greedy() };
    let prompt = vec![40 + n, 41 + (n * 7) % 250, 60 + (n * 31) % 200];
    Request { client: u64::from(n % 3), max_tokens: Some(tokens), ..Request::new(prompt, sampling) }
}

fn portable(num_batch: usize, pages: usize) -> Engine {
    let options = EngineOptions {
        num_batch,
        max_sequences: None,
        cache_pages: Some(pages),
        ..EngineOptions::default()
    };
    open_at(Some("portable"), ZOO, &options)
}

/// Starts requests that all arrive before the second step, and waits until they end. The loop's
/// thread calls `seen` for each event with the number of the request.
fn run_all(
    engine: &Arc<Engine>,
    lock: &Mutex<()>,
    requests: Vec<Request>,
    seen: impl Fn(usize, &Event) + Send + Sync + 'static,
) {
    let held = lock.lock().unwrap();
    let (seen, (sender, ended), count) = (Arc::new(seen), channel(), requests.len());
    for (n, request) in requests.into_iter().enumerate() {
        let (seen, sender) = (seen.clone(), sender.clone());
        let sink = move |event: Event| {
            seen(n, &event);
            !matches!(event, Event::Done(_)) || sender.send(()).is_ok()
        };
        engine.submit(request, Box::new(sink)).unwrap();
    }
    drop(held);
    (0..count).for_each(|_| ended.recv_timeout(Duration::from_secs(60)).unwrap());
}

#[test]
fn concurrency_is_limited_by_pages() {
    for (pages, bounds) in [(201, 100..=100), (41, 30..=41)] {
        let options = EngineOptions {
            max_sequences: None,
            cache_pages: Some(pages),
            ..EngineOptions::default()
        };
        let (engine, lock, _) = hanging(ZOO, &options);
        let (engine, max) = (Arc::new(engine), Arc::new(AtomicUsize::new(0)));
        let (weak, highest) = (Arc::downgrade(&engine), max.clone());
        let look = move |_: usize, _: &Event| {
            let running = weak.upgrade().map_or(0, |engine| engine.stats().running);
            highest.fetch_max(running, Ordering::Relaxed);
        };
        run_all(&engine, &lock, (0..100).map(|n| nth(n, 50)).collect(), look);
        let max = max.load(Ordering::Relaxed);
        assert!(bounds.contains(&max), "{max} ran at once with {pages} pages");
        wait_until_idle(&engine);
        assert_eq!(engine.stats().pages_pinned, 0);
    }
}

#[test]
fn sequences_progress_evenly_with_too_few_rows_per_step() {
    let options = EngineOptions {
        num_batch: 8,
        max_sequences: None,
        cache_pages: Some(64),
        ..EngineOptions::default()
    };
    let (engine, lock, _) = hanging(ZOO, &options);
    let alike = |n| Request { speculation: Some(Speculation::OFF), ..nth(n, 60) };
    let counts = Arc::new(Mutex::new((vec![0; 40], None)));
    let tell = counts.clone();
    let count = move |n: usize, event: &Event| {
        let mut counts = tell.lock().unwrap();
        match event {
            Event::Piece(_) => counts.0[n] += 1,
            Event::Done(_) if counts.1.is_none() => counts.1 = Some(counts.0.clone()),
            _ => {}
        }
    };
    run_all(&Arc::new(engine), &lock, (0..40).map(alike).collect(), count);
    let counts = counts.lock().unwrap().1.clone().unwrap();
    // The first requests generate while the prompts of the others are computed.
    let min = *counts.iter().min().unwrap();
    assert!(min >= 30, "when the first had 60 tokens, the others had {counts:?}");
}

#[test]
fn answers_of_many_sequences_equal_answers_alone() {
    let engine = portable(8, 64);
    let all: Vec<_> = (0..40).map(|n| start(&engine, nth(n, 20))).collect();
    for (n, events) in (0..).zip(&all) {
        let (text, summary) = finish(events);
        assert_eq!(
            (text, summary.generated_tokens),
            (run(&portable(8, 8), nth(n, 20)).0, 20),
            "sequence {n}"
        );
    }
}

/// Embeds one text per request; all requests arrive before the second step. Returns the vectors and
/// the number of steps.
fn embed_together(path: &str, texts: &[Vec<u32>]) -> (Vec<Vec<f32>>, u64) {
    let (engine, lock, steps) = hanging(path, &EngineOptions::default());
    let held = lock.lock().unwrap();
    let all: Vec<_> = texts
        .iter()
        .map(|text| {
            let (sender, result) = channel();
            let done =
                Box::new(move |r: Result<Vec<Vec<f32>>, _>| sender.send(r.unwrap()).unwrap());
            engine.embed(0, vec![text.clone()], done).unwrap();
            result
        })
        .collect();
    drop(held);
    let vectors =
        all.iter().map(|r| r.recv_timeout(Duration::from_secs(20)).unwrap().remove(0)).collect();
    wait_until_idle(&engine);
    assert_eq!(engine.stats().pages_pinned, 0);
    (vectors, steps.load(Ordering::Relaxed))
}

#[test]
fn a_client_with_many_texts_leaves_another_its_share_of_the_steps() {
    let (engine, lock, _) =
        hanging("tests/data/zoo/qwen3-embedding.gguf", &EngineOptions::default());
    let text = |n: u32| -> Vec<u32> { (0..300).map(|t| 40 + (t * 7 + n * 31) % 250).collect() };
    let (sender, ends) = channel();
    let embed = |client: u64, inputs: Vec<Vec<u32>>| {
        let sender = sender.clone();
        let done = Box::new(move |r: Result<Vec<Vec<f32>>, _>| {
            r.unwrap();
            sender.send(client).unwrap();
        });
        engine.embed(client, inputs, done).unwrap();
    };
    let held = lock.lock().unwrap();
    (0..20).for_each(|n| embed(1, vec![text(n), text(n + 100)]));
    embed(2, vec![text(50), text(51)]);
    drop(held);
    let order: Vec<u64> =
        (0..21).map(|_| ends.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
    let place = order.iter().position(|client| *client == 2).unwrap();
    assert!(place <= 4, "{place} requests of another client ended before: {order:?}");
}

#[test]
fn texts_of_several_requests_are_embedded_in_one_step() {
    let texts: Vec<Vec<u32>> =
        (0..12).map(|n| (0..10 + n).map(|t| 40 + (t * 7 + n * 31) % 250).collect()).collect();
    for path in ["tests/data/zoo/bert-mean.gguf", "tests/data/zoo/qwen3-embedding.gguf"] {
        let (together, steps) = embed_together(path, &texts);
        // The first text has its own step, since the others arrive later.
        assert!(steps <= 2, "{path}: {steps} steps for twelve texts");
        for (text, vector) in texts.iter().zip(&together) {
            let (alone, _) = embed_together(path, std::slice::from_ref(text));
            let far = vector.iter().zip(&alone[0]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(far < 1e-2, "{path}: {far}");
        }
    }
}

//! More sequences, and more texts to embed, than fit a step: nobody has a slot, everybody gets a turn.

use std::sync::atomic::Ordering;

use puna_engine::Speculation;

use super::progress::hanging;
use super::*;

const ZOO: &str = "tests/data/zoo/llama.gguf";

/// A job of some tokens that no other begins like.
fn nth(n: u32, tokens: usize) -> Job {
    let sampling = Params { ignore_eos: true, ..greedy() };
    let prompt = vec![40 + n, 41 + (n * 7) % 250, 60 + (n * 31) % 200];
    Job { client: u64::from(n % 3), max_tokens: Some(tokens), ..Job::new(prompt, sampling) }
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

fn most_running(engine: &Engine, until: impl Fn() -> bool) -> usize {
    let (mut most, begun) = (0, std::time::Instant::now());
    while !until() && begun.elapsed() < Duration::from_secs(60) {
        most = most.max(engine.stats().running);
        std::thread::sleep(Duration::from_millis(1));
    }
    most
}

#[test]
fn as_many_run_at_once_as_there_are_pages_for() {
    for (pages, bounds) in [(201, 80..=100), (41, 30..=41)] {
        let engine = portable(512, pages);
        let all: Vec<_> = (0..100).map(|n| start(&engine, nth(n, 50))).collect();
        let most = most_running(&engine, || engine.stats().generated_tokens >= 5000);
        assert!(bounds.contains(&most), "{most} ran at once with {pages} pages");
        let answers: Vec<_> = all.iter().map(|events| finish(events).0).collect();
        for n in [0, 57, 99] {
            let alone = run(&portable(512, 8), nth(n, 50)).0;
            assert_eq!(answers[n as usize], alone, "sequence {n} of 100, {pages} pages");
        }
        wait_until_idle(&engine);
        assert_eq!(engine.stats().pages_held, 0);
    }
}

/// How many tokens each of several answers had when the first of them was whole.
fn when_the_first_ends(engine: &Engine, jobs: Vec<Job>) -> Vec<usize> {
    let counts = Arc::new(std::sync::Mutex::new(vec![0; jobs.len()]));
    let (sender, ended) = channel();
    for (n, job) in jobs.into_iter().enumerate() {
        let (counts, sender) = (counts.clone(), sender.clone());
        let sink = move |event| {
            let mut counts = counts.lock().unwrap();
            match event {
                Event::Piece(_) => counts[n] += 1,
                Event::Done(_) => drop(sender.send(counts.clone())),
                _ => {}
            }
            true
        };
        engine.submit(job, Box::new(sink)).unwrap();
    }
    ended.recv_timeout(Duration::from_secs(60)).unwrap()
}

#[test]
fn where_a_step_has_too_few_rows_all_get_on_alike() {
    let engine = portable(8, 64);
    let alike = |n| Job { speculation: Some(Speculation::OFF), ..nth(n, 60) };
    let counts = when_the_first_ends(&engine, (0..40).map(alike).collect());
    // The first begin while the prompts of the others are read.
    let least = *counts.iter().min().unwrap();
    assert!(least >= 30, "when the first had 60 tokens, the others had {counts:?}");
}

#[test]
fn answers_of_a_crowd_are_those_of_each_alone() {
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

/// Vectors of one text for each of several jobs, which are all there when the second step begins.
fn embed_together(path: &str, texts: &[Vec<u32>]) -> (Vec<Vec<f32>>, u64) {
    let (engine, lock, steps) = hanging(path, &EngineOptions::default());
    let held = lock.lock().unwrap();
    let all: Vec<_> = texts
        .iter()
        .map(|text| {
            let (sender, result) = channel();
            let done = Box::new(move |r: Result<Vec<Vec<f32>>, _>| sender.send(r.unwrap()).unwrap());
            engine.embed(vec![text.clone()], done).unwrap();
            result
        })
        .collect();
    drop(held);
    let vectors = all.iter().map(|r| r.recv_timeout(Duration::from_secs(20)).unwrap().remove(0)).collect();
    wait_until_idle(&engine);
    assert_eq!(engine.stats().pages_held, 0);
    (vectors, steps.load(Ordering::Relaxed))
}

#[test]
fn texts_of_several_requests_are_embedded_in_one_step() {
    let texts: Vec<Vec<u32>> =
        (0..12).map(|n| (0..10 + n).map(|t| 40 + (t * 7 + n * 31) % 250).collect()).collect();
    for path in ["tests/data/zoo/bert-mean.gguf", "tests/data/zoo/qwen3-embedding.gguf"] {
        let (together, steps) = embed_together(path, &texts);
        // The first had begun before the others were there.
        assert!(steps <= 2, "{path}: {steps} steps for twelve texts");
        for (text, vector) in texts.iter().zip(&together) {
            let (alone, _) = embed_together(path, std::slice::from_ref(text));
            let far = vector.iter().zip(&alone[0]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(far < 1e-2, "{path}: {far}");
        }
    }
}

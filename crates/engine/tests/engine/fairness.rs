//! Fairness: clients share a busy model, and so do the requests of one client.

use std::sync::mpsc::Sender;

use super::progress::hanging;
use super::*;

/// Starts a request that sends `name` when it ends.
fn named(engine: &Engine, request: Request, name: &'static str, ended: &Sender<&'static str>) {
    let ended = ended.clone();
    let sink = move |event| !matches!(event, Event::Done(_)) || ended.send(name).is_ok();
    engine.submit(request, Box::new(sink)).unwrap();
}

fn of(client: u64, tokens: u32) -> Request {
    let sampling = Params { ignore_eos: true, ..greedy() };
    let prompt = (0..tokens).map(|t| 40 + (t * 7 + tokens) % 250).collect();
    Request { client, max_tokens: Some(4), ..Request::new(prompt, sampling) }
}

/// Order in which requests end if all arrive before the first step.
fn order(options: &EngineOptions, requests: Vec<(&'static str, Request)>) -> Vec<&'static str> {
    // Steps wait for the lock, so that the queue is full before the first step.
    let (engine, lock, _) = hanging("tests/data/zoo/llama.gguf", options);
    let (sender, ended) = channel();
    let waits = lock.lock().unwrap();
    let count = requests.len();
    for (name, request) in requests {
        named(&engine, request, name, &sender);
    }
    drop(waits);
    (0..count).map(|_| ended.recv_timeout(Duration::from_secs(20)).unwrap()).collect()
}

#[test]
fn a_client_with_one_request_does_not_wait_for_all_requests_of_another() {
    let options = EngineOptions { max_sequences: Some(2), ..EngineOptions::default() };
    let requests = vec![
        ("a1", of(1, 20)),
        ("a2", of(1, 20)),
        ("a3", of(1, 20)),
        ("a4", of(1, 20)),
        ("a5", of(1, 20)),
        ("b1", of(2, 20)),
    ];
    let ended = order(&options, requests);
    let place = ended.iter().position(|name| *name == "b1").unwrap();
    assert!(place <= 3, "{ended:?}");
}

#[test]
fn short_prompts_pass_long_ones_without_starving_them() {
    let options =
        EngineOptions { num_batch: 32, max_sequences: Some(2), ..EngineOptions::default() };
    let short =
        ["s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "s12", "s13", "s14"];
    let mut requests = vec![("long", of(1, 320))];
    requests.extend(short.iter().zip(30..).map(|(name, tokens)| (*name, of(1, tokens))));
    let ended = order(&options, requests);
    let place = ended.iter().position(|name| *name == "long").unwrap();
    assert!(place >= 1, "the long one held up the first: {ended:?}");
    assert!(place < short.len(), "the short ones held up the long one: {ended:?}");
}

//! Log-probabilities of prompts, against the reference's logits.

use puna_engine::PromptToken;

use super::*;

struct Reference {
    tokens: Vec<u32>,
    /// Positions with the reference's logits.
    rows: Vec<(usize, Vec<f64>)>,
}

fn reference(name: &str) -> Reference {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/data/zoo/{name}.json"));
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let numbers = |value: &serde_json::Value| -> Vec<f64> {
        value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
    };
    let places = numbers(&json["positions"]).into_iter().map(|at| at as usize);
    let rows = json["logits"].as_array().unwrap().iter().map(numbers);
    let tokens = numbers(&json["tokens"]).into_iter().map(|token| token as u32).collect();
    Reference { tokens, rows: places.zip(rows).collect() }
}

/// All reported tokens of the prompt, and the summary.
fn scored(engine: &Engine, request: Request) -> (Vec<PromptToken>, GenerationStats) {
    scores(&start(engine, request))
}

fn scores(events: &Receiver<Event>) -> (Vec<PromptToken>, GenerationStats) {
    let mut all = Vec::new();
    loop {
        match events.recv_timeout(Duration::from_secs(60)).expect("a request ends") {
            Event::Prompt(tokens) => all.extend(tokens),
            Event::Done(summary) => return (all, summary),
            Event::Failed(reason) => panic!("{reason}"),
            _ => {}
        }
    }
}

fn score_job(tokens: &[u32], top: usize, max_tokens: usize) -> Request {
    let request = Request::new(tokens.to_vec(), greedy());
    Request { prompt_logprobs: Some(top), max_tokens: Some(max_tokens), ..request }
}

#[test]
fn log_probabilities_of_a_prompt_are_the_reference_s_however_it_is_cut() {
    for name in ["llama", "qwen3", "gemma3", "phi3"] {
        let Reference { tokens, rows } = reference(name);
        for num_batch in [512, 7] {
            let engine = open(
                &format!("tests/data/zoo/{name}.gguf"),
                &EngineOptions { num_batch, ..Default::default() },
            );
            let (got, summary) = scored(&engine, score_job(&tokens, 5, 1));
            assert_eq!(summary.generated_tokens, 1);
            assert!(
                got.iter().map(|t| t.token).eq(tokens.iter().copied()),
                "{name}: each token once, in order"
            );
            assert_eq!((&got[0].logprobs, got[0].rank), (&None, 0));
            for (at, logits) in rows.iter().filter(|(at, _)| at + 1 < tokens.len()) {
                let sum = logits.iter().map(|l| l.exp()).sum::<f64>().ln();
                let next = tokens[at + 1] as usize;
                let token = &got[at + 1];
                let logprobs = token.logprobs.as_ref().unwrap();
                let (want, have) = (logits[next] - sum, f64::from(logprobs.logprob));
                assert!((want - have).abs() < 0.02, "{name}, {at}: {have} instead of {want}");
                let best =
                    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
                assert_eq!(
                    (logprobs.top.len(), logprobs.top[0].0 as usize),
                    (5, best),
                    "{name}, {at}"
                );
                // Tokens with nearly equal logits may exchange ranks.
                let above = |than: f64| logits.iter().filter(|l| **l > than).count();
                let (min, max) = (above(logits[next] + 0.02) + 1, above(logits[next] - 0.02));
                assert!(
                    (min..=max.max(1)).contains(&(token.rank as usize)),
                    "{name}, {at}: {}",
                    token.rank
                );
            }
        }
    }
}

#[test]
fn cached_prompts_are_scored() {
    let engine = cria(&EngineOptions::default());
    let prompt: Vec<u32> = (0..200).map(|t| 300 + (t * 7) % 900).collect();
    let (fresh, _) = scored(&engine, score_job(&prompt, 2, 1));
    let (again, summary) = scored(&engine, score_job(&prompt, 2, 1));
    assert_eq!((summary.cached_tokens, again.len()), (0, 200));
    for (a, b) in fresh.iter().zip(&again).skip(1) {
        let (a, b) = (a.logprobs.as_ref().unwrap(), b.logprobs.as_ref().unwrap());
        assert!((a.logprob - b.logprob).abs() < 1e-3);
    }
    // A request without prompt log-probabilities uses the cache.
    let plain = Request { prompt_logprobs: None, ..score_job(&prompt, 0, 1) };
    let (none, summary) = scored(&engine, plain);
    assert!(none.is_empty() && summary.cached_tokens > 128);
}

#[test]
fn a_prompt_of_one_token_and_an_answer_of_none_are_scored() {
    let engine = cria(&EngineOptions::default());
    let (one, _) = scored(&engine, score_job(&[300], 3, 1));
    assert_eq!(one, [PromptToken { token: 300, logprobs: None, rank: 0 }]);
    let (two, summary) = scored(&engine, score_job(&[300, 301], 0, 0));
    assert_eq!((two.len(), summary.generated_tokens), (2, 0));
    assert!(two[1].logprobs.as_ref().unwrap().top.is_empty() && two[1].rank > 0);
}

#[test]
fn preempted_prompts_are_scored_once() {
    let options =
        EngineOptions { cache_pages: Some(5), max_sequences: Some(4), ..EngineOptions::default() };
    let engine = cria(&options);
    let prompt = |i: u32| -> Vec<u32> { (0..150).map(|t| 300 + (t * 11 + i * 17) % 900).collect() };
    let alone: Vec<_> =
        (0..4).map(|i| scored(&cria(&options), score_job(&prompt(i), 1, 30)).0).collect();
    let sampling = Params { logit_bias: vec![(4086, -1e9), (4088, -1e9)], ..greedy() };
    let request = |i| Request { sampling: sampling.clone(), ..score_job(&prompt(i), 1, 30) };
    let all: Vec<_> = (0..4).map(|i| start(&engine, request(i))).collect();
    for (events, alone) in all.iter().zip(alone) {
        let (got, _) = scores(events);
        assert_eq!(got.len(), alone.len());
        for (a, b) in got.iter().zip(&alone) {
            assert_eq!(a.token, b.token);
            let of = |t: &PromptToken| t.logprobs.as_ref().map_or(0.0, |l| l.logprob);
            assert!((of(a) - of(b)).abs() < 2e-2, "{} and alone {}", of(a), of(b));
        }
    }
}

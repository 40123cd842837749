//! Models with recurrent states: they share batches, continue from state checkpoints, and keep to
//! their context.
//!
//! The portable level computes a row independently of the other rows of a step, so that texts can
//! be compared token by token.

use puna_engine::{DraftModel, Speculation, plan_memory};

use super::*;

/// Models with states only, and models that have attention, too. The last two also have n-gram
/// embeddings; the last selects blocks of positions.
const MODELS: [&str; 6] = [
    "tests/data/zoo/mamba2.gguf",
    "tests/data/zoo/granitehybrid.gguf",
    "tests/data/zoo/rwkv7.gguf",
    "tests/data/zoo/minimax-01.gguf",
    "tests/data/zoo/qwen4exp.gguf",
    "tests/data/zoo/qwen4exp-blocks.gguf",
];

fn portable(path: &str, options: &EngineOptions) -> Engine {
    open_at(Some("portable"), path, options)
}

fn options(num_ctx: usize) -> EngineOptions {
    EngineOptions { num_ctx: Some(num_ctx), ..EngineOptions::default() }
}

/// A request of client `client` that ends only at its token limit.
fn endless(prompt: Vec<u32>, tokens: usize, client: u64) -> Request {
    let params = Params { temperature: 1.0, seed: 5, ignore_eos: true, ..Params::default() };
    Request { max_tokens: Some(tokens), client, keep: 4, ..Request::new(prompt, params) }
}

/// `shared` tokens that all prompts have, then `own` tokens that only prompt `n` has.
fn nth(n: u32, shared: u32, own: u32) -> Vec<u32> {
    (0..shared + own).map(|t| 40 + if t < shared { t * 7 } else { t * 11 + n * 31 } % 250).collect()
}

fn alone(path: &str, num_ctx: usize, request: &Request) -> Vec<u32> {
    run(&portable(path, &options(num_ctx)), request.clone()).1.tokens
}

fn assert_all_given_back(engine: &Engine) {
    wait_until_idle(engine);
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.pages_pinned), (0, 0, 0));
}

#[test]
fn a_repeated_prompt_is_continued_from_the_state_at_its_end() {
    for path in MODELS {
        for num_batch in [512, 100] {
            let engine = portable(path, &EngineOptions { num_batch, ..options(1024) });
            let request = endless(nth(1, 0, 300), 20, 1);
            let (_, first) = run(&engine, request.clone());
            wait_until_idle(&engine);
            let (_, second) = run(&engine, request.clone());
            assert_eq!((first.cached_tokens, second.cached_tokens), (0, 299), "{path}");
            assert_eq!(first.tokens, second.tokens, "{path}");
            assert_eq!(first.tokens, alone(path, 1024, &request), "{path}");
        }
    }
}

#[test]
fn a_continued_answer_starts_from_its_checkpoint() {
    for path in MODELS {
        let engine = portable(path, &options(1024));
        let (_, first) = run(&engine, endless(nth(1, 0, 100), 50, 1));
        wait_until_idle(&engine);
        let next = endless([first.tokens, nth(2, 0, 30)].concat(), 20, 1);
        let (_, second) = run(&engine, next.clone());
        // All but the last token, which was sampled but not computed.
        assert_eq!(second.cached_tokens, 149, "{path}");
        assert_eq!(second.tokens, alone(path, 1024, &next), "{path}");
    }
}

#[test]
fn checkpoints_are_kept_where_prompts_diverge() {
    for path in MODELS {
        let engine = portable(path, &options(1024));
        let cached = [1, 2, 3].map(|n| {
            let request = endless(nth(n, 200, 50), 20, u64::from(n));
            let (_, summary) = run(&engine, request.clone());
            wait_until_idle(&engine);
            assert_eq!(summary.tokens, alone(path, 1024, &request), "{path}");
            summary.cached_tokens
        });
        assert_eq!(cached, [0, 0, 192], "{path}");
        // A long prompt gets checkpoints on its way, even if no other prompt has branched off
        // there.
        let engine = portable(path, &options(2048));
        let cached = [1, 2].map(|n| {
            let (_, summary) = run(&engine, endless(nth(n, 700, 50), 2, u64::from(n)));
            wait_until_idle(&engine);
            summary.cached_tokens
        });
        assert_eq!(cached, [0, 512], "{path}");
    }
}

#[test]
fn several_answers_to_one_prompt_compute_it_once() {
    for path in MODELS {
        let engine = portable(path, &options(1024));
        let prompt = nth(1, 0, 280);
        let all = [(); 4].map(|()| start(&engine, endless(prompt.clone(), 4, 1)));
        let all = all.map(|events| finish(&events).1);
        wait_until_idle(&engine);
        assert_eq!(engine.stats().prompt_tokens, 280 + 3, "{path}");
        assert!(all.iter().all(|summary| summary.tokens == all[0].tokens), "{path}");
    }
}

#[test]
fn sequences_wait_for_state_slots() {
    for (path, slots) in
        MODELS.into_iter().flat_map(|path| [(path, 1), (path, 2), (path, 3), (path, 9)])
    {
        let engine = portable(path, &EngineOptions { states: Some(slots), ..options(512) });
        let requests: Vec<Request> =
            (0..5).map(|n| endless(nth(n, 70, 30), 40, u64::from(n))).collect();
        let all: Vec<_> = requests.iter().map(|request| start(&engine, request.clone())).collect();
        for (request, events) in requests.iter().zip(&all) {
            assert_eq!(
                finish(events).1.tokens,
                alone(path, 512, request),
                "{path} with {slots} slots"
            );
        }
        assert_all_given_back(&engine);
    }
}

#[test]
fn preempted_sequences_equal_sequences_alone() {
    for path in MODELS {
        let engine = portable(path, &EngineOptions { cache_pages: Some(7), ..options(256) });
        let requests: Vec<Request> =
            (0..4).map(|n| endless(nth(n, 70, 20), 150, u64::from(n))).collect();
        let all: Vec<_> = requests.iter().map(|request| start(&engine, request.clone())).collect();
        for (request, events) in requests.iter().zip(&all) {
            assert_eq!(finish(events).1.tokens, alone(path, 256, request), "{path}");
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
fn a_full_context_shifts_by_computing_the_rest_anew() {
    for path in MODELS {
        let engine = portable(path, &options(128));
        let request = endless(nth(1, 0, 90), 200, 1);
        let (_, summary) = run(&engine, request.clone());
        assert_eq!(
            (&summary.finish, summary.generated_tokens),
            (&FinishReason::Length, 200),
            "{path}"
        );
        assert!(summary.shifted_tokens > 100, "{path}: {summary:?}");
        assert_all_given_back(&engine);
        // After a shift, the answer equals the answer to the remaining tokens as a prompt: states
        // keep nothing of dropped tokens.
        let shifts = Request { max_tokens: Some(39), ..request };
        let (_, full) = run(&engine, shifts.clone());
        assert_eq!((full.tokens.len(), full.shifted_tokens), (129, 0), "{path}");
        let (_, once) = run(&engine, Request { max_tokens: Some(40), ..shifts.clone() });
        let kept: Vec<u32> = [&full.tokens[..4], &full.tokens[66..]].concat();
        assert_eq!(once.tokens[..kept.len()], kept, "{path}");
        let greedy = |prompt: Vec<u32>, tokens| Request {
            max_tokens: Some(tokens),
            keep: 4,
            ..Request::new(prompt, Params { ignore_eos: true, ..greedy() })
        };
        let (_, shifted) = run(&engine, greedy(nth(1, 0, 90), 45));
        let rest = shifted.tokens.len() - 5;
        let fresh = portable(path, &options(128));
        let (_, anew) = run(&fresh, greedy(shifted.tokens[..rest].to_vec(), 5));
        assert_eq!(anew.tokens, shifted.tokens, "{path}");
    }
}

#[test]
fn speculation_is_off_for_states_that_cannot_be_rolled_back() {
    for path in MODELS {
        let engine = portable(path, &options(512));
        let repeating: Vec<u32> = (0..120).map(|t| 40 + t % 6).collect();
        let request = endless(repeating, 30, 1);
        let always = Request {
            speculation: Some(Speculation { always: true, ..Speculation::AUTO }),
            ..request.clone()
        };
        let (_, summary) = run(&engine, always);
        assert_eq!(engine.stats().draft_stats, puna_engine::Stats::default().draft_stats, "{path}");
        assert_eq!(summary.tokens, alone(path, 512, &request), "{path}");
    }
    let config = Config { threads: Some(1), ..Config::default() };
    let backend = || Box::new(CpuBackend::new(&config).unwrap());
    let with_draft = |model, draft| {
        let draft = DraftModel { view: file(draft), backend: backend() };
        Engine::open_with_draft(file(model), backend(), &options(512), draft)
    };
    let plain = "tests/data/zoo/granite.gguf";
    assert_eq!(
        with_draft(MODELS[0], plain).unwrap().memory().draft,
        0,
        "a draft model is not loaded"
    );
    let refused = with_draft(plain, MODELS[0]).map(drop);
    assert_eq!(refused, Err(EngineError::RecurrentDraft { architecture: "mamba2" }));
}

#[test]
fn states_are_in_the_plan() {
    let config = Config { threads: Some(1), ..Config::default() };
    for path in MODELS {
        let plan = |options: &EngineOptions| {
            plan_memory(&file(path), Box::new(CpuBackend::new(&config).unwrap()), options).unwrap()
        };
        let one = plan(&EngineOptions { states: Some(1), ..options(512) });
        let many = plan(&EngineOptions { states: Some(10), ..options(512) });
        assert!(one.states > 0 && many.states == 10 * one.states, "{path}: {one:?} {many:?}");
        assert_eq!(many.total() - one.total(), 9 * one.states, "{path}");
        let open = plan(&EngineOptions { max_sequences: None, ..options(512) });
        assert_eq!(open.states, 64 * one.states, "{path}: small ones");
        assert_eq!(
            portable(path, &options(512)).memory().states,
            20 * one.states,
            "{path}: four and copies"
        );
    }
    let plain = plan_memory(
        &file("tests/data/zoo/llama.gguf"),
        Box::new(CpuBackend::new(&config).unwrap()),
        &options(512),
    );
    assert_eq!(plain.unwrap().states, 0);
}

#[test]
fn texts_are_embedded_in_chunks_and_beside_others() {
    for path in MODELS {
        let embed = |engine: &Engine, texts: Vec<Vec<u32>>| {
            let (sender, result) = channel();
            engine.embed(0, texts, Box::new(move |r| sender.send(r).unwrap())).unwrap();
            result.recv_timeout(Duration::from_secs(20)).unwrap().unwrap()
        };
        let texts: Vec<Vec<u32>> = (0..5).map(|n| nth(n, 0, 20 + 50 * n)).collect();
        let engine =
            portable(path, &EngineOptions { num_batch: 64, states: Some(2), ..options(512) });
        let together = embed(&engine, texts.clone());
        let whole = portable(path, &options(512));
        for (text, vector) in texts.into_iter().zip(together) {
            assert_eq!(embed(&whole, vec![text]), [vector], "{path}");
        }
        wait_until_idle(&engine);
        let again = run(&engine, endless(nth(1, 0, 30), 3, 1)).1.tokens;
        assert_eq!(
            again,
            alone(path, 512, &endless(nth(1, 0, 30), 3, 1)),
            "{path}: all slots came back"
        );
    }
}

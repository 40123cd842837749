//! Models with sliding windows: pages behind the window are released without an effect on results.
//!
//! The portable level computes a row independently of the other rows of a step, so that answers can
//! be compared bit by bit.

use std::sync::atomic::{AtomicUsize, Ordering};

use puna_engine::{DraftModel, MemoryReport, Speculation, Stats, plan_memory};
use puna_gguf::{Value, Writer};

use super::*;

/// Models with windows much shorter than the context: a dense model, layers that read keys of other
/// layers, experts with sinks, recurrent states, and pooled rows of earlier positions.
const MODELS: [(&str, u32); 5] =
    [("gemma3", 150), ("gemma4", 64), ("gpt-oss", 40), ("lfm2", 100), ("deepseek4", 90)];

/// A model of the zoo with another window and a context of `n_ctx` tokens.
fn model((name, window): (&str, u32), n_ctx: u32) -> View {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/data/zoo/{name}.gguf"));
    let source = Gguf::open(&path).unwrap();
    let mut metadata = source.metadata().clone();
    metadata.set(&format!("{name}.attention.sliding_window"), Value::from(window));
    metadata.set(&format!("{name}.context_length"), Value::from(n_ctx));
    let mut writer = Writer::with_metadata(metadata);
    for tensor in source.tensors() {
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape).unwrap();
    }
    let bytes = writer.to_vec(source.tensors().iter().map(|t| source.data(t))).unwrap();
    View::new(Arc::new(Gguf::from_bytes(bytes).unwrap())).unwrap()
}

fn backend() -> Box<CpuBackend> {
    let config = Config { threads: Some(2), kernels: Some("portable".into()), ..Config::default() };
    Box::new(CpuBackend::new(&config).unwrap())
}

fn open_model(of: (&str, u32), options: &EngineOptions) -> Engine {
    Engine::open(model(of, 4096), backend(), options).unwrap()
}

/// Options with a context of `num_ctx` tokens and the least number of window pages.
fn scarce(num_ctx: usize) -> EngineOptions {
    let (num_ctx, window_pages) = (Some(num_ctx), Some(0));
    EngineOptions { num_ctx, window_pages, num_batch: 100, ..EngineOptions::default() }
}

/// The same options with window pages for all positions.
fn plenty(num_ctx: usize) -> EngineOptions {
    EngineOptions { window_pages: Some(usize::MAX), ..scarce(num_ctx) }
}

/// A request of client `client` that ends only at its token limit.
fn endless(prompt: Vec<u32>, tokens: usize, client: u64) -> Request {
    let params = Params { temperature: 1.0, seed: 5, ignore_eos: true, ..Params::default() };
    Request {
        max_tokens: Some(tokens),
        client,
        keep: 4,
        logprobs: Some(3),
        ..Request::new(prompt, params)
    }
}

/// `shared` tokens that all prompts have, then `own` tokens that only prompt `n` has.
fn nth(n: u32, shared: u32, own: u32) -> Vec<u32> {
    (0..shared + own).map(|t| 40 + if t < shared { t * 7 } else { t * 11 + n * 31 } % 200).collect()
}

/// Log-probabilities of all tokens as text with all digits, and the summary.
fn heard(events: &Receiver<Event>) -> (String, GenerationStats) {
    let mut sampled = String::new();
    loop {
        match events.recv_timeout(Duration::from_secs(60)).expect("a request ends") {
            Event::Piece(piece) => sampled += &format!("{:?}\n", piece.logprobs),
            Event::Done(summary) => return (sampled, summary),
            Event::Failed(reason) | Event::Refused(reason) => panic!("{reason}"),
            Event::Prefill { .. } | Event::Prompt(_) => {}
        }
    }
}

fn said(engine: &Engine, request: &Request) -> (String, GenerationStats) {
    let said = heard(&start(engine, request.clone()));
    wait_until_idle(engine);
    said
}

/// The result of a request with all pages and an empty cache.
fn alone(of: (&str, u32), num_ctx: usize, request: &Request) -> (String, GenerationStats) {
    said(&open_model(of, &plenty(num_ctx)), request)
}

fn assert_same(what: &str, got: &(String, GenerationStats), want: &(String, GenerationStats)) {
    assert_eq!(got.1.tokens, want.1.tokens, "{what}");
    assert!(got.0 == want.0, "{what}: other logits");
}

fn assert_all_given_back(engine: &Engine) {
    wait_until_idle(engine);
    let Stats { running, waiting, pages_pinned, window_pages_pinned, .. } = engine.stats();
    assert_eq!([running, waiting, pages_pinned, window_pages_pinned], [0; 4]);
}

/// Largest number of pages of 64 tokens that `rows` rows with this window see.
fn seen(window: u32, rows: usize) -> usize {
    (window as usize + rows).div_ceil(PAGE_TOKENS) + 1
}

#[test]
fn results_far_beyond_the_window_equal_results_with_all_pages() {
    for of in MODELS {
        let engine = open_model(of, &scarce(2048));
        let request = endless(nth(1, 0, 700), 500, 1);
        let max = Arc::new(AtomicUsize::new(0));
        let (sender, events) = channel();
        let (seen_most, watched) = (Arc::clone(&max), engine.clone());
        let sink = move |event| {
            seen_most.fetch_max(watched.stats().window_pages_pinned, Ordering::Relaxed);
            sender.send(event).is_ok()
        };
        engine.submit(request.clone(), Box::new(sink)).unwrap();
        let got = heard(&events);
        assert_same(of.0, &got, &alone(of, 2048, &request));
        assert_all_given_back(&engine);
        let (stats, max) = (engine.stats(), max.load(Ordering::Relaxed));
        assert_eq!(stats.window_pages, seen(of.1, 100) + 1, "{}", of.0);
        // 1200 tokens have 19 pages.
        assert!(max > 0 && max <= seen(of.1, 1), "{}: {max} pages held", of.0);
        assert!(stats.pages_in_use >= 19 && stats.window_pages_in_use <= stats.window_pages);
    }
}

#[test]
fn a_prefix_is_reused_while_its_window_pages_are_cached() {
    for of in MODELS {
        let engine = open_model(
            of,
            &EngineOptions { window_pages: Some(seen(of.1, 100) + 9), ..scarce(2048) },
        );
        let request = endless(nth(1, 0, 500), 40, 1);
        let first = said(&engine, &request);
        // The same prompt; its end is cached.
        let second = said(&engine, &request);
        assert_eq!((first.1.cached_tokens, second.1.cached_tokens), (0, 499), "{}", of.0);
        assert_same(of.0, &second, &first);
        // A request that continues the answer.
        let next = endless([second.1.tokens, nth(2, 0, 30)].concat(), 20, 1);
        let third = said(&engine, &next);
        assert_eq!(third.1.cached_tokens, 539, "{}", of.0);
        assert_same(of.0, &third, &alone(of, 2048, &next));
        // Pages behind the window of another sequence are evicted before the ends of cached texts.
        said(&engine, &endless(nth(3, 0, 1500), 2, 1));
        assert_eq!(said(&engine, &request).1.cached_tokens, 499, "{}", of.0);
        (4..20).for_each(|n| drop(said(&engine, &endless(nth(n, 0, 300), 2, 1))));
        let again = said(&engine, &request);
        assert!(again.1.cached_tokens < 499, "{}: what is gone is computed anew", of.0);
        assert_same(of.0, &again, &first);
        let parted = endless(nth(1, 0, 200), 9, 1);
        let parted_said = said(&engine, &parted);
        assert_same(of.0, &parted_said, &alone(of, 2048, &parted));
        assert_all_given_back(&engine);
    }
}

#[test]
fn window_pages_are_kept_where_prompts_diverge() {
    for of in MODELS {
        let engine = open_model(
            of,
            &EngineOptions { window_pages: Some(seen(of.1, 100) + 7), ..scarce(2048) },
        );
        let cached = [1, 2, 3, 4].map(|n| {
            let request = endless(nth(n, 448, 1000), 5, u64::from(n));
            let got = said(&engine, &request);
            assert_same(of.0, &got, &alone(of, 2048, &request));
            got.1.cached_tokens
        });
        assert_eq!(cached, [0, 0, 448, 448], "{}", of.0);
    }
}

#[test]
fn several_answers_to_one_prompt_compute_it_once() {
    for of in MODELS {
        let options = EngineOptions { max_sequences: Some(4), window_pages: None, ..scarce(1024) };
        let engine = open_model(of, &options);
        let all = [(); 4].map(|()| start(&engine, endless(nth(1, 0, 480), 150, 1)));
        let all = all.map(|events| heard(&events));
        wait_until_idle(&engine);
        assert_eq!(engine.stats().prompt_tokens, 480 + 3, "{}", of.0);
        all.iter().for_each(|one| assert_same(of.0, one, &all[0]));
        assert_same(of.0, &all[0], &alone(of, 1024, &endless(nth(1, 0, 480), 150, 1)));
        assert_all_given_back(&engine);
    }
}

#[test]
fn sequences_that_wait_for_pages_equal_sequences_alone() {
    for (of, more) in MODELS.into_iter().flat_map(|of| [(of, 0), (of, 3), (of, 9)]) {
        let window_pages = Some(seen(of.1, 100) + more);
        let engine = open_model(of, &EngineOptions { window_pages, ..scarce(1024) });
        let requests: Vec<Request> =
            (0..5).map(|n| endless(nth(n, 70, 130), 190, u64::from(n))).collect();
        let all: Vec<_> = requests.iter().map(|request| start(&engine, request.clone())).collect();
        for (request, events) in requests.iter().zip(&all) {
            assert_same(&format!("{}, {more}", of.0), &heard(events), &alone(of, 1024, request));
        }
        assert_all_given_back(&engine);
    }
}

#[test]
fn preempted_sequences_equal_sequences_alone() {
    for of in MODELS {
        let engine = open_model(of, &EngineOptions { cache_pages: Some(7), ..scarce(256) });
        let requests: Vec<Request> =
            (0..4).map(|n| endless(nth(n, 70, 20), 150, u64::from(n))).collect();
        let all: Vec<_> = requests.iter().map(|request| start(&engine, request.clone())).collect();
        for (request, events) in requests.iter().zip(&all) {
            assert_same(of.0, &heard(events), &alone(of, 256, request));
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
fn context_shifts_and_closed_sinks_leak_no_pages() {
    for of in MODELS {
        let engine = open_model(of, &scarce(512));
        let request = endless(nth(1, 0, 300), 600, 1);
        let got = said(&engine, &request);
        assert!(got.1.shifted_tokens > 200, "{}: {:?}", of.0, got.1);
        assert_same(of.0, &got, &alone(of, 512, &request));
        let (sender, events) = channel();
        let sink = move |event| sender.send(event).is_ok();
        engine.submit(endless(nth(2, 0, 300), 100_000, 1), Box::new(sink)).unwrap();
        (0..50).for_each(|_| drop(events.recv_timeout(Duration::from_secs(20)).unwrap()));
        drop(events);
        assert_all_given_back(&engine);
        assert_same(of.0, &said(&engine, &request), &got);
    }
}

#[test]
fn rejected_drafts_are_rolled_back_at_the_edge_of_a_window() {
    for of in &MODELS[..3] {
        let request = endless((0..400).map(|t| 40 + t % 9).collect(), 400, 1);
        let want =
            alone(*of, 1024, &Request { speculation: Some(Speculation::OFF), ..request.clone() });
        let always = Speculation { always: true, ..Speculation::AUTO };
        let request = Request { speculation: Some(always), ..request };
        let engine = open_model(*of, &scarce(1024));
        assert_same(of.0, &said(&engine, &request), &want);
        let guessed = engine.stats().draft_stats.lookup;
        assert!(guessed.drafted > guessed.accepted, "{}: {guessed:?}", of.0);
        assert_all_given_back(&engine);
        // A draft model with its own windows.
        let request =
            Request { speculation: Some(Speculation { lookup: false, ..always }), ..request };
        let drafted = |options: &EngineOptions| {
            let draft = DraftModel { view: model((of.0, 30), 4096), backend: backend() };
            let engine =
                Engine::open_with_draft(model(*of, 4096), backend(), options, draft).unwrap();
            assert_same(of.0, &said(&engine, &request), &want);
            assert_all_given_back(&engine);
            let drafted = engine.stats().draft_stats.model;
            (drafted.drafted, drafted.accepted)
        };
        let scarcely = drafted(&scarce(1024));
        assert!(scarcely.0 > 200, "{}: {scarcely:?}", of.0);
        // The draft model never lacks a page: it drafts the same number of tokens with pages for
        // all positions.
        assert_eq!(scarcely, drafted(&plenty(1024)), "{}", of.0);
    }
}

#[test]
fn long_texts_are_embedded_with_the_pages_of_a_window() {
    for of in MODELS {
        let embed = |engine: &Engine, texts: Vec<Vec<u32>>| {
            let (sender, result) = channel();
            engine.embed(0, texts, Box::new(move |r| sender.send(r).unwrap())).unwrap();
            result.recv_timeout(Duration::from_secs(60)).unwrap().unwrap()
        };
        let texts: Vec<Vec<u32>> = [30, 90, 800, 333].map(|own| nth(own, 0, own)).to_vec();
        let engine = open_model(of, &scarce(1024));
        let together = embed(&engine, texts.clone());
        let whole = open_model(of, &EngineOptions { num_batch: 1024, ..plenty(1024) });
        for (text, vector) in texts.into_iter().zip(together) {
            assert_eq!(embed(&whole, vec![text]), [vector], "{}", of.0);
        }
        assert_all_given_back(&engine);
        let request = endless(nth(1, 0, 300), 9, 1);
        assert_same(of.0, &said(&engine, &request), &alone(of, 1024, &request));
    }
}

/// A chunk of Llama 4 has 8192 positions.
#[test]
fn pages_are_released_where_a_chunk_begins() {
    let open = |options: EngineOptions| {
        let config = Config { threads: Some(2), deterministic: true, ..Config::default() };
        let backend = Box::new(CpuBackend::new(&config).unwrap());
        let options = EngineOptions { num_batch: 512, ..options };
        Engine::open(model(("llama4", 8192), 16384), backend, &options).unwrap()
    };
    let (engine, request) = (open(scarce(16384)), endless(nth(1, 0, 8150), 60, 1));
    let got = said(&engine, &request);
    assert_same("llama4", &got, &said(&open(plenty(16384)), &request));
    assert_all_given_back(&engine);
    let next = endless(got.1.tokens, 9, 1);
    let cached = said(&engine, &next).1.cached_tokens;
    assert_eq!(cached, 8209, "what the new chunk sees is its own");
}

#[test]
fn long_contexts_need_only_window_pages() {
    let plan = |window: u32, num_ctx: usize, window_pages| -> MemoryReport {
        let options =
            EngineOptions { max_sequences: Some(1), window_pages, ..EngineOptions::default() };
        let options = EngineOptions { num_ctx: Some(num_ctx), ..options };
        plan_memory(&model(("gemma3", window), 1 << 17), backend(), &options).unwrap()
    };
    for num_ctx in [1 << 15, 1 << 17] {
        let (all, near) = (plan(512, num_ctx, Some(usize::MAX)), plan(512, num_ctx, None));
        // One layer of seven has no window.
        let pages = (num_ctx / PAGE_TOKENS + 1) as u64;
        let layer = all.cache / 7 / pages;
        assert_eq!(all.cache, 7 * layer * pages);
        // Window pages of one running sequence and 16 cached ones, eleven each, and the pages of a
        // step's chunk.
        assert_eq!(near.cache, layer * pages + 6 * layer * (17 * 11 + 8), "{num_ctx}");
        assert_eq!(MemoryReport { cache: 0, ..near }, MemoryReport { cache: 0, ..all });
        let options = EngineOptions {
            num_ctx: Some(num_ctx),
            max_sequences: Some(1),
            ..EngineOptions::default()
        };
        let engine = Engine::open(model(("gemma3", 512), 1 << 17), backend(), &options);
        assert_eq!(engine.unwrap().memory(), near, "as planned");
    }
    // A window as long as the context needs the same memory as no window.
    assert_eq!(plan(1 << 15, 4096, None), plan(1 << 15, 4096, Some(usize::MAX)));
}

//! Speculative decoding on real steps: any drafts give the results of plain decoding.

mod bit_exactness;
mod companion;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use puna_cpu::{Config, CpuBackend};
use puna_gguf::{Gguf, View};
use puna_graph::Backend;
use puna_sampler::{Params, TokenLogprobs};
use puna_tokenizer::EncodeOptions;

use super::lookup::LookupDrafter;
use super::{Draft, DraftCounts, DraftKind, DraftStats, Drafter, Speculation};
use crate::engine::Drafters;
use crate::kv::PAGE_TOKENS;
use crate::{
    Companions, DraftModel, Engine, EngineError, EngineOptions, Event, FinishReason, Request,
    plan_memory, plan_memory_with_draft,
};

const ALWAYS: Speculation = Speculation { always: true, ..Speculation::AUTO };

/// Guesses that are right, or wrong from some token on: it knows the answer.
struct Prophet {
    text: Vec<u32>,
    /// Tokens of each draft that are right; all others are wrong.
    right: usize,
}

impl Drafter for Prophet {
    fn draft(&mut self, tokens: &[u32], max_tokens: usize) -> Option<Draft> {
        let next = |i: usize| self.text.get(tokens.len() + i).copied().unwrap_or(0);
        let tokens =
            (0..max_tokens).map(|i| if i < self.right { next(i) } else { next(i) ^ 1 }).collect();
        Some(Draft { tokens, kind: DraftKind::Long })
    }

    fn reset(&mut self) {}
}

fn prophets(text: &[u32], right: usize) -> Drafters {
    let text = text.to_vec();
    Arc::new(move || Box::new(Prophet { text: text.clone(), right }))
}

fn lookups() -> Drafters {
    Arc::new(|| Box::<LookupDrafter>::default())
}

fn view(model: &str) -> View {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(model);
    View::new(Arc::new(Gguf::open(&path).unwrap())).unwrap()
}

/// At this level steps of any size have the same bits, so that prompts may come in any pieces, too.
fn backend() -> Box<CpuBackend> {
    Box::new(
        CpuBackend::new(&Config {
            threads: Some(1),
            kernels: Some("portable".into()),
            ..Config::default()
        })
        .unwrap(),
    )
}

fn open(model: &str, options: &EngineOptions, drafters: Drafters) -> Engine {
    Engine::start(view(model), backend(), options, Companions::default(), drafters).unwrap()
}

fn open_with_draft(
    model: &str,
    draft: &str,
    options: &EngineOptions,
) -> Result<Engine, EngineError> {
    let draft = DraftModel { view: view(draft), backend: backend() };
    Engine::open_with_draft(view(model), backend(), options, draft)
}

/// All that a listener hears.
#[derive(Debug, PartialEq)]
struct Heard {
    text: String,
    pieces: Vec<(u32, Option<TokenLogprobs>)>,
    tokens: Vec<u32>,
    finish: FinishReason,
    generated: usize,
}

fn start(engine: &Engine, request: &Request) -> Receiver<Event> {
    let (sender, receiver) = channel();
    engine.submit(request.clone(), Box::new(move |event| sender.send(event).is_ok())).unwrap();
    receiver
}

fn hear(events: &Receiver<Event>) -> (Heard, DraftStats) {
    let (mut text, mut pieces) = (String::new(), Vec::new());
    loop {
        match events.recv_timeout(Duration::from_secs(60)).expect("a request ends") {
            Event::Prefill { .. } | Event::Prompt(_) => {}
            Event::Piece(piece) => {
                text.push_str(&piece.text);
                pieces.push((piece.token, piece.logprobs));
            }
            Event::Done(s) => {
                let heard = Heard {
                    text,
                    pieces,
                    tokens: s.tokens,
                    finish: s.finish,
                    generated: s.generated_tokens,
                };
                return (heard, s.draft_stats);
            }
            Event::Failed(reason) | Event::Refused(reason) => panic!("{reason}"),
        }
    }
}

fn run(engine: &Engine, request: &Request, speculation: Speculation) -> (Heard, DraftStats) {
    hear(&start(engine, &Request { speculation: Some(speculation), ..request.clone() }))
}

const CRIA: &str = "models/cria/cria-q8_0.gguf";

fn cria(options: &EngineOptions) -> Engine {
    open(CRIA, options, lookups())
}

fn request(engine: &Engine, text: &str, sampling: Params) -> Request {
    let text = format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n");
    let prompt =
        engine.tokenizer().encode(&text, EncodeOptions { add_special: true, parse_special: true });
    Request { max_tokens: Some(90), ..Request::new(prompt, sampling) }
}

fn greedy() -> Params {
    Params { temperature: 0.0, ..Params::default() }
}

/// Parameters without an end token; a small model then repeats itself.
fn endless(engine: &Engine, sampling: Params) -> Params {
    let tokenizer = engine.tokenizer();
    let ends = (0..tokenizer.vocab_size() as u32).filter(|&t| tokenizer.is_eog(t));
    Params { logit_bias: ends.map(|t| (t, f32::NEG_INFINITY)).collect(), ..sampling }
}

const QUESTION: &str = "Repeat: one two three four, one two three four, one two three four.";

#[test]
fn prompt_lookup_changes_no_answer_with_any_sampler() {
    let engine = cria(&EngineOptions::default());
    let chains = [
        greedy(),
        Params { seed: 5, temperature: 0.3, ..Params::default() },
        Params { seed: 6, temperature: 1.2, top_k: 0, top_p: 1.0, ..Params::default() },
        Params { seed: 7, mirostat: 2, ..Params::default() },
        Params {
            seed: 8,
            repeat_penalty: 1.3,
            frequency_penalty: 0.2,
            dry_multiplier: 0.8,
            ..Params::default()
        },
        Params { seed: 9, xtc_probability: 0.5, typical_p: 0.9, ..Params::default() },
    ];
    let mut all = (0, 0);
    for sampling in chains {
        let request = Request {
            logprobs: Some(3),
            ..request(&engine, QUESTION, endless(&engine, sampling.clone()))
        };
        let (plain, none) = run(&engine, &request, Speculation::OFF);
        assert_eq!(none, DraftStats::default());
        let (guessed, counts) = run(&engine, &request, ALWAYS);
        assert_eq!(guessed, plain, "{sampling:?}");
        all = (all.0 + counts.lookup.drafted, all.1 + counts.lookup.accepted);
    }
    assert!(all.1 > 20 && all.0 > all.1, "{all:?}: some are to come true, some not");
    // The last event comes a moment before the loop counts.
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    let counted = || engine.stats().draft_stats.lookup;
    while counted() != (DraftCounts { drafted: all.0, accepted: all.1 }) {
        assert!(std::time::Instant::now() < deadline, "{:?}, not {all:?}", counted());
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn drafts_that_are_always_accepted_or_rejected_change_no_answer() {
    let plain_engine = cria(&EngineOptions::default());
    let sampling =
        endless(&plain_engine, Params { seed: 3, temperature: 0.9, ..Params::default() });
    let request = Request { logprobs: Some(2), ..request(&plain_engine, QUESTION, sampling) };
    let (plain, _) = run(&plain_engine, &request, Speculation::OFF);
    let max_tokens = backend().max_bit_exact_rows() - 1;
    for right in [0, 1, 2, max_tokens] {
        let engine = open(CRIA, &EngineOptions::default(), prophets(&plain.tokens, right));
        let (guessed, counts) = run(&engine, &request, ALWAYS);
        assert_eq!(guessed, plain, "{right} tokens right");
        let DraftStats { lookup, steps, .. } = counts;
        match right {
            0 => assert_eq!(lookup.accepted, 0),
            // All but the first token and the last few, for which there is no room to draft.
            _ if right == max_tokens => {
                let enough = 4 + 90 / right as u64;
                assert!(lookup.accepted == lookup.drafted && steps < enough, "{counts:?}");
            }
            _ => assert!(lookup.accepted >= (right as u64) * (steps - 2), "{counts:?}"),
        }
        assert!(lookup.drafted > 60, "{counts:?}");
    }
}

#[test]
fn every_architecture_answers_the_same_with_drafts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo");
    let mut accepted = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if path.extension().is_none_or(|e| e != "gguf") {
            continue;
        }
        let model = format!("tests/data/zoo/{name}.gguf");
        let options = EngineOptions { num_ctx: Some(128), ..EngineOptions::default() };
        if view(&model).metadata().opt_str("tokenizer.ggml.model") == Ok(Some("none")) {
            continue;
        }
        let engine = open(&model, &options, lookups());
        if !engine.info().can_generate || engine.info().unmasking.is_some() {
            continue;
        }
        let n = engine.info().n_vocab as u32;
        let prompt: Vec<u32> = (0..40).map(|i| 5 + (i % 11) * 3 % (n - 5)).collect();
        let request =
            Request { max_tokens: Some(16), ..Request::new(prompt, endless(&engine, greedy())) };
        let (plain, _) = run(&engine, &request, Speculation::OFF);
        let right = open(&model, &options, prophets(&plain.tokens, 2));
        for engine in [&engine, &right] {
            let (guessed, counts) = run(engine, &request, ALWAYS);
            assert_eq!(guessed, plain, "{name}");
            accepted += counts.lookup.accepted;
        }
    }
    assert!(accepted > 100, "{accepted}");
}

#[test]
fn rejected_draft_tokens_are_never_found_by_later_prompts() {
    let options = EngineOptions { num_ctx: Some(6 * PAGE_TOKENS), ..EngineOptions::default() };
    let plain_engine = cria(&options);
    let sampling = endless(&plain_engine, greedy());
    let request = Request {
        max_tokens: Some(3 * PAGE_TOKENS),
        ..request(&plain_engine, QUESTION, sampling.clone())
    };
    let (plain, _) = run(&plain_engine, &request, Speculation::OFF);
    // Every step leaves wrong keys and values behind the right ones, also across the ends of pages.
    let engine = open(CRIA, &options, prophets(&plain.tokens, 1));
    assert_eq!(run(&engine, &request, ALWAYS).0, plain);
    for cut in [PAGE_TOKENS - 1, PAGE_TOKENS, 2 * PAGE_TOKENS + 7, plain.tokens.len() - 1] {
        let next = Request {
            prompt: plain.tokens[..cut].to_vec(),
            max_tokens: Some(30),
            ..request.clone()
        };
        let fresh = cria(&options);
        assert_eq!(run(&engine, &next, Speculation::OFF).0, run(&fresh, &next, Speculation::OFF).0);
    }
}

#[test]
fn limits_stop_strings_and_end_tokens_apply_within_a_draft() {
    let plain_engine = cria(&EngineOptions::default());
    let base = request(&plain_engine, "Count from 1 to 9.", greedy());
    let (whole, _) = run(&plain_engine, &base, Speculation::OFF);
    assert_eq!(whole.finish, FinishReason::End);
    let engine = open(CRIA, &EngineOptions::default(), prophets(&whole.tokens, 3));
    assert_eq!(run(&engine, &base, ALWAYS).0, whole);
    for max in 1..12 {
        let request = Request { max_tokens: Some(max), ..base.clone() };
        let (guessed, _) = run(&engine, &request, ALWAYS);
        assert_eq!(guessed.generated, max.min(whole.generated));
        assert_eq!(guessed, run(&plain_engine, &request, Speculation::OFF).0);
    }
    for at in (0..whole.text.len() - 2).step_by(3) {
        let request = Request { stop: vec![whole.text[at..at + 2].to_owned()], ..base.clone() };
        assert_eq!(
            run(&engine, &request, ALWAYS).0,
            run(&plain_engine, &request, Speculation::OFF).0
        );
    }
}

#[test]
fn a_context_that_fills_up_within_a_draft_ends_or_shifts_as_without_drafts() {
    for shift in [false, true] {
        let options = EngineOptions { num_ctx: Some(70), ..EngineOptions::default() };
        let engine = cria(&options);
        let sampling = endless(&engine, greedy());
        let request = Request {
            shift,
            keep: 4,
            max_tokens: Some(120),
            ..request(&engine, "Go on.", sampling)
        };
        let (plain, _) = run(&engine, &request, Speculation::OFF);
        for right in [1, 3] {
            let engine = open(CRIA, &options, prophets(&plain.tokens, right));
            assert_eq!(run(&engine, &request, ALWAYS).0, plain, "shift {shift}, {right} right");
        }
    }
}

#[test]
fn concurrent_sequences_with_drafts_do_not_change_each_other() {
    let engine = cria(&EngineOptions { max_sequences: Some(2), ..EngineOptions::default() });
    let requests =
        [QUESTION, "Count from 1 to 9."].map(|q| request(&engine, q, endless(&engine, greedy())));
    let alone = requests.each_ref().map(|request| run(&engine, request, Speculation::OFF).0);
    let requests = requests.map(|request| Request { speculation: Some(ALWAYS), ..request });
    let together = requests.each_ref().map(|request| start(&engine, request));
    let together = together.each_ref().map(hear);
    assert!(together.iter().map(|(_, counts)| counts.lookup.accepted).sum::<u64>() > 10);
    assert_eq!(together.map(|(heard, _)| heard), alone);
}

#[test]
fn scarce_pages_shorten_drafts_and_preempt_no_sequence() {
    let options = EngineOptions {
        num_ctx: Some(2 * PAGE_TOKENS),
        max_sequences: Some(2),
        cache_pages: Some(3),
        ..EngineOptions::default()
    };
    let plain_engine = cria(&options);
    let sampling = endless(&plain_engine, greedy());
    let requests = [3u32, 4].map(|k| {
        let prompt = (0..PAGE_TOKENS as u32 - 8).map(|i| 300 + i * k % 500).collect();
        Request { max_tokens: Some(40), ..Request::new(prompt, sampling.clone()) }
    });
    let alone = requests.each_ref().map(|request| run(&plain_engine, request, Speculation::OFF).0);
    let engine =
        open(CRIA, &options, Arc::new(|| Box::new(Prophet { text: Vec::new(), right: 0 })));
    let requests = requests.map(|request| Request { speculation: Some(ALWAYS), ..request });
    let together = requests.each_ref().map(|request| start(&engine, request));
    assert_eq!(together.each_ref().map(|events| hear(events).0), alone);
}

#[test]
fn speculation_is_on_by_default_and_can_be_switched_off() {
    let on = cria(&EngineOptions::default());
    let sampling = endless(&on, greedy());
    // The default watches times, so that a test can only say that it drafts at all, if it is given
    // long enough.
    let request =
        Request { max_tokens: Some(300), speculation: None, ..request(&on, QUESTION, sampling) };
    let (plain, counts) = hear(&start(&on, &request));
    assert!(counts.steps > 0, "{counts:?}");
    let off = cria(&EngineOptions { speculation: Speculation::OFF, ..EngineOptions::default() });
    let (same, counts) = hear(&start(&off, &request));
    assert_eq!((same, counts), (plain, DraftStats::default()));
}

/// Guesses of the draft model alone.
const MODEL: Speculation = Speculation { lookup: false, ..ALWAYS };

#[test]
fn drafts_of_the_target_model_itself_are_all_accepted_with_greedy_sampling() {
    let options = EngineOptions::default();
    let engine = open_with_draft(CRIA, CRIA, &options).unwrap();
    let request = request(&engine, QUESTION, endless(&engine, greedy()));
    let (plain, none) = run(&engine, &request, Speculation::OFF);
    assert_eq!(none, DraftStats::default());
    let (guessed, counts) = run(&engine, &request, MODEL);
    assert_eq!(guessed, plain);
    assert!(
        counts.model.drafted > 40 && counts.model.accepted == counts.model.drafted,
        "{counts:?}"
    );
    assert_eq!(counts.lookup, Default::default());
    // Another turn finds both models' caches warm.
    let next = Request { prompt: plain.tokens.clone(), ..request };
    let (guessed, _) = run(&engine, &next, MODEL);
    assert_eq!(guessed, run(&engine, &next, Speculation::OFF).0);
}

#[test]
fn a_draft_model_changes_no_answer_with_any_sampler_and_any_batch() {
    // The same vocabulary; weights that are not alike.
    let options =
        EngineOptions { max_sequences: Some(2), num_batch: 16, ..EngineOptions::default() };
    let (model, draft) = ("tests/data/zoo/llama-q8_0.gguf", "tests/data/zoo/llama-q4_0.gguf");
    let engine = open_with_draft(model, draft, &options).unwrap();
    let n = engine.info().n_vocab as u32;
    let mut all = DraftStats::default();
    for sampling in [greedy(), Params { seed: 3, temperature: 0.05, ..Params::default() }] {
        let requests = [3u32, 7].map(|k| {
            let prompt: Vec<u32> = (0..50).map(|i| 5 + i * k % (n - 5)).collect();
            Request {
                max_tokens: Some(40),
                ..Request::new(prompt, endless(&engine, sampling.clone()))
            }
        });
        let alone = requests.each_ref().map(|request| run(&engine, request, Speculation::OFF).0);
        for speculation in [MODEL, ALWAYS, Speculation::AUTO] {
            let requests = requests
                .each_ref()
                .map(|request| Request { speculation: Some(speculation), ..request.clone() });
            let together =
                requests.each_ref().map(|request| start(&engine, request)).each_ref().map(hear);
            let counts = together.each_ref().map(|(_, counts)| *counts);
            assert_eq!(together.map(|(heard, _)| heard), alone, "{speculation:?}");
            counts.iter().for_each(|c| all.model.drafted += c.model.drafted);
            counts.iter().for_each(|c| all.model.accepted += c.model.accepted);
        }
    }
    assert!(all.model.accepted > 0, "{all:?}");
}

#[test]
fn a_draft_model_follows_shifts_scarce_pages_and_its_own_smaller_context() {
    for options in [
        EngineOptions { num_ctx: Some(70), ..EngineOptions::default() },
        EngineOptions {
            num_ctx: Some(2 * PAGE_TOKENS),
            cache_pages: Some(3),
            ..EngineOptions::default()
        },
    ] {
        let engine = open_with_draft(CRIA, CRIA, &options).unwrap();
        let request = Request {
            keep: 4,
            max_tokens: Some(150),
            ..request(&engine, "Go on.", endless(&engine, greedy()))
        };
        let (plain, _) = run(&engine, &request, Speculation::OFF);
        let requests = [(); 2]
            .map(|()| start(&engine, &Request { speculation: Some(MODEL), ..request.clone() }));
        for events in &requests {
            assert_eq!(hear(events).0, plain);
        }
        assert!(engine.stats().draft_stats.model.accepted > 50);
    }
}

#[test]
fn a_draft_model_of_another_vocabulary_is_refused_with_both_names() {
    let error = open_with_draft(CRIA, "tests/data/zoo/llama.gguf", &EngineOptions::default())
        .err()
        .unwrap();
    assert!(matches!(error, EngineError::DraftVocabulary { .. }));
    let text = error.to_string();
    assert!(text.contains("cannot be the draft model of") && text.contains("token"), "{text}");
    let encoder = open_with_draft(CRIA, "tests/data/zoo/bert-mean.gguf", &EngineOptions::default());
    assert!(encoder.is_err());
}

#[test]
fn the_memory_plan_includes_the_draft_model() {
    let options = EngineOptions { num_ctx: Some(256), ..EngineOptions::default() };
    let engine = open_with_draft(CRIA, CRIA, &options).unwrap();
    let alone = plan_memory(&view(CRIA), backend(), &options).unwrap();
    let draft = DraftModel { view: view(CRIA), backend: backend() };
    let planned = plan_memory_with_draft(&view(CRIA), backend(), &options, draft).unwrap();
    assert_eq!(planned, engine.memory());
    assert_eq!(planned.total(), alone.total() + planned.draft);
    assert!(planned.draft > alone.weights + alone.cache);
}

#[test]
fn real_models_answer_the_same_with_drafts_at_the_best_kernel_level() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder =
        std::env::var_os("PUNA_TEST_MODELS").map_or_else(|| root.join(".cache/models"), Into::into);
    let name = "SmolLM2-135M-Instruct.Q4_1.gguf";
    let path = folder.join(name);
    if !path.exists() {
        eprintln!("SKIPPED: {name} is not in {}", folder.display());
        return;
    }
    let view = View::new(Arc::new(Gguf::open(&path).unwrap())).unwrap();
    let backend =
        Box::new(CpuBackend::new(&Config { threads: Some(2), ..Config::default() }).unwrap());
    let options = EngineOptions { num_ctx: Some(1024), ..EngineOptions::default() };
    let engine = Engine::open(view, backend, &options).unwrap();
    let text = std::fs::read_to_string(root.join("benches/prompts/free.txt")).unwrap();
    let request = Request { max_tokens: Some(100), ..request(&engine, &text, greedy()) };
    // The first reads the prompt, in a larger step, and continues across the end of a page; the
    // others find both in the cache.
    run(&engine, &Request { max_tokens: Some(40), ..request.clone() }, Speculation::OFF);
    let (plain, _) = run(&engine, &request, Speculation::OFF);
    let (guessed, counts) = run(&engine, &request, ALWAYS);
    assert_eq!(guessed.text, plain.text);
    assert!(counts.lookup.accepted > 5, "{counts:?}");
    assert_eq!(run(&engine, &request, Speculation::AUTO).0.text, plain.text);
}

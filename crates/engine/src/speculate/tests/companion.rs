//! Draft models that draft with parts of their model.

use puna_gguf::{Metadata, Writer};
use puna_graph::{KvType, StepInput};
use puna_models::{Adapter, DraftMethod, StepKind};
use puna_quant::TensorType;
use serde_json::Value;

use super::*;
use crate::executor::ModelExecutor;
use crate::kv::{CacheScope, PagePool, SequencePages};
use crate::request::RequestId;
use crate::speculate::blocks::BlockDrafter;
use crate::speculate::chain::ChainDrafter;
use crate::speculate::draft_source::StepRows;
use crate::speculate::model::DraftRequest;

const GEMMA: &str = "tests/data/zoo/gemma4.gguf";
const ASSISTANT: &str = "tests/data/drafts/gemma4-assistant.gguf";

fn prompt(n_vocab: u32, length: u32, step: u32) -> Vec<u32> {
    (0..length).map(|i| 9 + i * step % (n_vocab - 9)).collect()
}

#[test]
fn no_companion_changes_an_answer_with_any_sampler_and_any_batch() {
    for name in [
        "gemma4-assistant",
        "eagle3",
        "eagle3-shared",
        "dflash",
        "dflash-window",
        "dspark-bonus",
        "dflash2",
    ] {
        changes_no_answer(GEMMA, &format!("tests/data/drafts/{name}.gguf"));
    }
    for name in ["dspark", "dflash-window-causal"] {
        changes_no_answer(QWEN, &format!("tests/data/drafts/{name}.gguf"));
    }
}

fn changes_no_answer(model: &str, draft: &str) {
    let options =
        EngineOptions { max_sequences: Some(3), num_batch: 16, ..EngineOptions::default() };
    let engine = open_with_draft(model, draft, &options).unwrap();
    let n = engine.info().n_vocab as u32;
    let mut all = DraftStats::default();
    for sampling in [greedy(), Params { seed: 3, temperature: 0.6, ..Params::default() }] {
        // Longer than a page with the answer, and than the window; two that share pages, and one of
        // a single token.
        let prompts = [prompt(n, 50, 3), prompt(n, 130, 7), prompt(n, 132, 7), prompt(n, 1, 1)];
        let requests = prompts.map(|prompt| Request {
            max_tokens: Some(40),
            ..Request::new(prompt, endless(&engine, sampling.clone()))
        });
        let alone = requests.each_ref().map(|request| run(&engine, request, Speculation::OFF).0);
        for speculation in [MODEL, ALWAYS, Speculation::AUTO] {
            let requests = requests
                .each_ref()
                .map(|request| Request { speculation: Some(speculation), ..request.clone() });
            let together =
                requests.each_ref().map(|request| start(&engine, request)).each_ref().map(hear);
            together.iter().for_each(|(_, c)| all.model.drafted += c.model.drafted);
            assert_eq!(together.map(|(heard, _)| heard), alone, "{draft}, {speculation:?}");
        }
    }
    assert!(all.model.drafted > 100, "{draft}: {all:?}");
}

#[test]
fn block_drafts_preempt_no_sequence_and_contexts_fill_and_shift_as_without_drafts() {
    for name in ["eagle3", "dflash"] {
        // As many pages as both sequences fill.
        let options = EngineOptions {
            num_ctx: Some(2 * PAGE_TOKENS),
            max_sequences: Some(2),
            cache_pages: Some(4),
            num_batch: 16,
            ..EngineOptions::default()
        };
        let engine =
            open_with_draft(GEMMA, &format!("tests/data/drafts/{name}.gguf"), &options).unwrap();
        let n = engine.info().n_vocab as u32;
        let sampling = endless(&engine, greedy());
        let requests = [3, 7].map(|step| Request {
            max_tokens: Some(2 * PAGE_TOKENS - 31),
            ..Request::new(prompt(n, 30, step), sampling.clone())
        });
        let alone = requests.each_ref().map(|request| run(&engine, request, Speculation::OFF).0);
        let started = requests
            .map(|request| start(&engine, &Request { speculation: Some(MODEL), ..request }));
        assert_eq!(started.each_ref().map(|events| hear(events).0), alone, "{name}");
        assert_eq!(engine.stats().preempted, 0, "{name}");
        let long =
            Request { max_tokens: Some(300), keep: 4, ..Request::new(prompt(n, 60, 5), sampling) };
        let (plain, _) = run(&engine, &long, Speculation::OFF);
        let (guessed, counts) = run(&engine, &long, MODEL);
        assert_eq!(guessed, plain, "{name}");
        assert!(counts.model.drafted > 100, "{name}: {counts:?}");
    }
}

#[test]
fn companions_draft_with_adapters_and_read_the_adapted_hidden_states() {
    let of = "blk.3.attn_output.weight";
    let shape = view(GEMMA).tensor(of).unwrap().shape.to_vec();
    let mut writer = Writer::new();
    writer
        .set("general.architecture", "gemma4")
        .set("general.type", "adapter")
        .set("adapter.type", "lora");
    writer.set("adapter.lora.alpha", 4.0f32);
    writer.tensor(&format!("{of}.lora_a"), TensorType::F32, &[shape[0], 1]).unwrap();
    writer.tensor(&format!("{of}.lora_b"), TensorType::F32, &[1, shape[1]]).unwrap();
    let numbers = |count: u64, step: f32| -> Vec<u8> {
        (0..count).flat_map(|i| (i as f32 * step).sin().to_le_bytes()).collect()
    };
    let data = [numbers(shape[0], 0.3), numbers(shape[1], 0.7)];
    let bytes = writer.to_vec(data.iter().map(|d| &d[..])).unwrap();
    let adapter = Adapter::new("wild", Arc::new(Gguf::from_bytes(bytes).unwrap()));
    let plain = EngineOptions::default();
    let options = EngineOptions { adapters: vec![adapter], ..plain.clone() };
    for name in ["gemma4-assistant", "eagle3", "dflash"] {
        let path = format!("tests/data/drafts/{name}.gguf");
        let engine = open_with_draft(GEMMA, &path, &options).unwrap();
        let n = engine.info().n_vocab as u32;
        let request = Request {
            max_tokens: Some(40),
            ..Request::new(prompt(n, 50, 3), endless(&engine, greedy()))
        };
        let adapted = run(&engine, &request, Speculation::OFF).0;
        let (guessed, counts) = run(&engine, &request, MODEL);
        assert_eq!(guessed, adapted, "{name}");
        assert!(counts.model.drafted > 10, "{name}: {counts:?}");
        let without = open_with_draft(GEMMA, &path, &plain).unwrap();
        assert_ne!(run(&without, &request, MODEL).0, adapted, "the adapter does something");
    }
}

#[test]
fn a_recurrent_model_ignores_its_draft_model_and_plans_no_memory_for_it() {
    let (model, draft) = ("tests/data/zoo/qwen35.gguf", "tests/data/drafts/dflash-mrope.gguf");
    let options =
        EngineOptions { num_ctx: Some(256), max_sequences: Some(1), ..EngineOptions::default() };
    let engine = open_with_draft(model, draft, &options).unwrap();
    assert_eq!(engine.memory(), plan_memory(&view(model), backend(), &options).unwrap());
    let n = engine.info().n_vocab as u32;
    let request = Request {
        max_tokens: Some(20),
        ..Request::new(prompt(n, 30, 3), endless(&engine, greedy()))
    };
    assert_eq!(run(&engine, &request, ALWAYS).1.model, DraftCounts::default());
}

#[test]
fn a_cache_type_that_does_not_fit_the_companions_keys_is_an_error_of_the_companion() {
    let options = EngineOptions { cache_k: KvType::Q8_0, ..EngineOptions::default() };
    let path = "tests/data/drafts/eagle3.gguf";
    let draft = DraftModel { view: view(path), backend: backend() };
    let planned = plan_memory_with_draft(&view(GEMMA), backend(), &options, draft).unwrap_err();
    let opened = open_with_draft(GEMMA, path, &options).err().unwrap();
    assert_eq!(planned, opened);
    let error = opened.to_string();
    assert!(
        error.contains("draft model") && error.contains("has 12") && error.contains("q8_0"),
        "{error}"
    );
}

/// A file with some of its tensors replaced, all of them f32.
fn changed(path: &str, tensor: &dyn Fn(&str, usize) -> Option<Vec<f32>>) -> View {
    let file = view(path);
    let source = file.gguf();
    let mut metadata = Metadata::new();
    source.metadata().iter().for_each(|(key, value)| metadata.set(key, value.clone()));
    let mut writer = Writer::with_metadata(metadata);
    let mut all = Vec::new();
    for info in source.tensors() {
        writer.tensor(&info.name, info.ty, &info.shape).unwrap();
        let count = info.shape.iter().product::<u64>() as usize;
        let bytes =
            |values: Vec<f32>| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let data = tensor(&info.name, count).map_or_else(|| source.data(info).to_vec(), bytes);
        all.push(data);
    }
    let data = writer.to_vec(all.iter().map(Vec::as_slice)).unwrap();
    View::new(Arc::new(Gguf::from_bytes(data).unwrap())).unwrap()
}

/// A model with layers that add nothing to the residual stream, so that each token alone determines
/// the next one.
fn without_layers(name: &str, count: usize) -> Option<Vec<f32>> {
    let parts = ["attn_output", "ffn_down", "proj.weight", "post_norm"];
    (name.starts_with("blk.") && parts.iter().any(|part| name.contains(part)))
        .then(|| vec![0.0; count])
}

/// A companion that drafts the same tokens as that model: its own embeddings hold the model's
/// embeddings in its smaller number of features.
fn knowing(name: &str, count: usize, table: &[f32], norm: &[f32]) -> Option<Vec<f32>> {
    const OWN: usize = 24;
    const WIDTH: usize = 32;
    match name {
        "nextn.pre_projection.weight" => {
            let one = |i: usize| if i / (2 * WIDTH) == i % (2 * WIDTH) { 1.0 } else { 0.0 };
            Some((0..count).map(one).collect())
        }
        "token_embd.weight" => {
            Some(table.chunks_exact(WIDTH).flat_map(|row| &row[..OWN]).copied().collect())
        }
        "output_norm.weight" => Some(norm[..OWN].to_vec()),
        _ => without_layers(name, count),
    }
}

#[test]
fn a_chain_companion_that_predicts_every_token_continues_from_its_own_states() {
    // The last features of embeddings are nought, so that the assistant's fewer ones say all.
    let tensor = |view: &View, name: &str| -> Vec<f32> {
        let bytes = view.tensor(name).unwrap().bytes();
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    let source = view(GEMMA);
    let mut table = tensor(&source, "token_embd.weight");
    table.iter_mut().enumerate().filter(|(i, _)| i % 32 >= 24).for_each(|(_, x)| *x = 0.0);
    let norm = tensor(&source, "output_norm.weight");
    let model = changed(GEMMA, &|name, count| match name {
        "token_embd.weight" => Some(table.clone()),
        _ => without_layers(name, count),
    });
    let draft = changed(ASSISTANT, &|name, count| knowing(name, count, &table, &norm));
    let counts = is_right_all_the_time(model, draft);
    assert!(counts.steps < 40, "{counts:?}");
}

/// Drafts with a companion that predicts every token: across two borders of pages, and beyond the
/// context.
fn is_right_all_the_time(model: View, draft: View) -> DraftStats {
    let draft = DraftModel { view: draft, backend: backend() };
    let options = EngineOptions { num_ctx: Some(200), ..EngineOptions::default() };
    let engine = Engine::open_with_draft(model, backend(), &options, draft).unwrap();
    let n = engine.info().n_vocab as u32;
    let request = Request {
        max_tokens: Some(100),
        ..Request::new(
            prompt(n, 60, 5),
            endless(&engine, Params { repeat_penalty: 1.0, ..greedy() }),
        )
    };
    let (plain, _) = run(&engine, &request, Speculation::OFF);
    let (guessed, counts) = run(&engine, &request, MODEL);
    assert_eq!(guessed, plain);
    assert!(
        counts.model.drafted > 60 && counts.model.accepted == counts.model.drafted,
        "{counts:?}"
    );
    // Beyond the context, and again with a cached prefix.
    let long = Request { max_tokens: Some(300), keep: 4, ..request };
    let (plain, _) = run(&engine, &long, Speculation::OFF);
    assert_eq!(run(&engine, &long, MODEL).0, plain);
    counts
}

/// A DSpark companion that drafts the same tokens as that model: the first features of a token, its
/// short vector, determine the next token.
fn linking(name: &str, count: usize, rows: &dyn Fn(&str) -> Vec<f32>) -> Option<Vec<f32>> {
    match name {
        "output_norm.weight" => Some(rows("output_norm.weight")),
        "markov_w1.weight" => {
            let norm = rows("output_norm.weight");
            let short = |row: &[f32]| {
                row[..SHORT_GRAM].iter().zip(&norm).map(|(x, w)| x * w).collect::<Vec<_>>()
            };
            Some(rows("token_embd.weight").chunks_exact(QWEN_WIDTH).flat_map(short).collect())
        }
        // Far more than what masks say.
        "markov_w2.weight" => {
            let short =
                |row: &[f32]| row[..SHORT_GRAM].iter().map(|x| 1000.0 * x).collect::<Vec<_>>();
            Some(rows("output.weight").chunks_exact(QWEN_WIDTH).flat_map(short).collect())
        }
        "conf_proj.weight" => Some(vec![0.0; count]),
        "conf_proj.bias" => Some(vec![10.0]),
        _ => without_layers(name, count),
    }
}

const QWEN: &str = "tests/data/zoo/qwen3.gguf";
const QWEN_WIDTH: usize = 48;
/// Features of a short vector.
const SHORT_GRAM: usize = 8;

#[test]
fn a_block_companion_that_predicts_every_token_crosses_pages_and_context_shifts() {
    let source = view(QWEN);
    let rows = |name: &str| -> Vec<f32> {
        let tensor = source.tensor(name).or_else(|| source.tensor("token_embd.weight")).unwrap();
        let bytes = tensor.bytes();
        let mut all: Vec<f32> =
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        if name == "token_embd.weight" {
            all.iter_mut()
                .enumerate()
                .filter(|(i, _)| i % QWEN_WIDTH >= SHORT_GRAM)
                .for_each(|(_, x)| *x = 0.0);
        }
        all
    };
    let model = changed(QWEN, &|name, count| match name {
        "token_embd.weight" => Some(rows(name)),
        _ => without_layers(name, count),
    });
    let draft =
        changed("tests/data/drafts/dspark.gguf", &|name, count| linking(name, count, &rows));
    is_right_all_the_time(model, draft);
}

#[test]
fn the_memory_plan_includes_the_cache_of_the_companions_layers() {
    let options =
        EngineOptions { num_ctx: Some(256), max_sequences: Some(1), ..EngineOptions::default() };
    let alone = plan_memory(&view(GEMMA), backend(), &options).unwrap();
    // Layers, heads and head size of the keys and of the values, of two bytes each.
    for (name, layers, heads, dim) in
        [("eagle3", 1, 2, 12), ("dflash", 2, 1, 10), ("dspark-bonus", 2, 1, 10)]
    {
        let path = format!("tests/data/drafts/{name}.gguf");
        let engine = open_with_draft(GEMMA, &path, &options).unwrap();
        let draft = DraftModel { view: view(&path), backend: backend() };
        let planned = plan_memory_with_draft(&view(GEMMA), backend(), &options, draft).unwrap();
        assert_eq!(planned, engine.memory());
        let tokens = (256 / PAGE_TOKENS + 1) * PAGE_TOKENS;
        let own = (2 * 2 * layers * heads * dim * tokens) as u64;
        assert_eq!(planned.cache - alone.cache, own, "{name}");
        assert!(planned.scratch >= alone.scratch && planned.draft > 0, "{name}: {planned:?}");
    }
}

#[test]
fn the_memory_plan_includes_a_companion_without_a_cache() {
    let options = EngineOptions { num_ctx: Some(256), ..EngineOptions::default() };
    let engine = open_with_draft(GEMMA, ASSISTANT, &options).unwrap();
    let draft = DraftModel { view: view(ASSISTANT), backend: backend() };
    let planned = plan_memory_with_draft(&view(GEMMA), backend(), &options, draft).unwrap();
    assert_eq!(planned, engine.memory());
    let alone = plan_memory(&view(GEMMA), backend(), &options).unwrap();
    let weights: u64 = view(ASSISTANT).tensors().map(|tensor| tensor.size()).sum();
    assert_eq!((planned.weights, planned.cache), (alone.weights, alone.cache));
    // Its factors of angles are numbers of a table, not a tensor of a step; so are layers' scales.
    let apart = weights - planned.draft;
    assert!(planned.draft > 0 && apart < 100, "{} of {weights}", planned.draft);
    assert!(planned.scratch >= alone.scratch);
}

#[test]
fn a_companion_of_another_model_or_vocabulary_is_an_error() {
    let refused = |model: &str, draft: &str| {
        open_with_draft(model, draft, &EngineOptions::default()).err().unwrap().to_string()
    };
    let other = refused(CRIA, ASSISTANT);
    assert!(other.contains("cannot be the draft model of"), "{other}");
    let alone =
        crate::Engine::open(view(ASSISTANT), backend(), &EngineOptions::default()).err().unwrap();
    assert!(alone.to_string().contains("--speculate"), "{alone}");
    assert_eq!(crate::check_model(&view(ASSISTANT), &[]), Ok(()));
}

/// A sequence in a real cache, as the loop keeps it.
struct TestSequence {
    id: RequestId,
    pages: SequencePages,
    tokens: Vec<u32>,
    computed: usize,
}

impl TestSequence {
    /// What comes behind the token behind those that are computed.
    fn request(&self, max_tokens: usize) -> DraftRequest<'_> {
        let tokens = &self.tokens[..self.computed + 1];
        DraftRequest { id: self.id, tokens, max_tokens, always: true, pages: &self.pages }
    }
}

/// A model with a draft model, and two sequences: the first crosses the border of a page, the
/// second is the reference.
struct Bench {
    executor: ModelExecutor,
    pages: PagePool,
    chain: Option<ChainDrafter>,
    both: [TestSequence; 2],
}

impl Bench {
    fn open(name: &str, model: &str) -> Self {
        let draft = view(&format!("tests/data/drafts/{name}.gguf"));
        let options = EngineOptions {
            num_ctx: Some(200),
            max_sequences: Some(2),
            ..EngineOptions::default()
        };
        let model = view(&format!("tests/data/zoo/{model}.gguf"));
        let executor =
            ModelExecutor::with_companion(&model, backend(), &options, Some(&draft)).unwrap();
        let pages = PagePool::of(&executor.model, &options);
        let kept = |id| TestSequence {
            id: RequestId(id),
            pages: SequencePages::default(),
            tokens: Vec::new(),
            computed: 0,
        };
        Self { executor, pages, chain: None, both: [kept(1), kept(2)] }
    }

    /// Begins again, with the reference sequence and another one.
    fn begin(&mut self, tokens: &[u32]) {
        self.chain = match self.executor.model.draft_method().unwrap() {
            DraftMethod::Chain { state_dim, cache } => Some(ChainDrafter::new(*state_dim, *cache)),
            DraftMethod::Block(_) => None,
        };
        let other: Vec<u32> = (0..90).map(|i| 9 + i * 7 % 300).collect();
        for (s, tokens) in self.both.iter_mut().zip([&other[..], tokens]) {
            std::mem::take(&mut s.pages).release(&mut self.pages, &[]);
            (s.tokens, s.computed) = (tokens.to_vec(), 0);
            let scope = CacheScope::default();
            (s.pages, _) =
                SequencePages::start_from_cache(&mut self.pages, &scope, &[], [].into_iter());
        }
    }

    /// The next tokens of both in one step, which a draft model follows.
    fn compute(&mut self, counts: [usize; 2]) {
        let mut input = StepInput::default();
        let mut firsts = Vec::new();
        for (s, &count) in self.both.iter_mut().zip(&counts) {
            assert!(s.pages.grow(&mut self.pages, s.computed + count));
            let first = input.tokens.len();
            firsts.push(first);
            input.tokens.extend_from_slice(&s.tokens[s.computed..s.computed + count]);
            input.positions.extend((s.computed..s.computed + count).map(|p| p as u32));
            input.outputs.push((first + count - 1) as u32);
            input.segments.push(s.pages.segment(&self.pages, first, count, s.computed));
        }
        self.executor.run(StepKind::Logits, &input).unwrap();
        for (row, ((s, &count), first)) in self.both.iter_mut().zip(&counts).zip(firsts).enumerate()
        {
            let step = StepRows { cached_tokens: s.computed, first, output: Some(row) };
            s.computed += count;
            if let Some(chain) = &mut self.chain {
                chain.record_step(s.id, s.computed, self.executor.backend.extra_output(0), step);
            }
        }
        let found = |id: RequestId| {
            self.both.iter().find(|s| s.id == id).map(|s| (&s.tokens[..], &s.pages))
        };
        if let Some(chain) = &mut self.chain {
            chain.update_cache(found, (&mut self.executor, &self.pages)).unwrap();
        }
    }

    /// Drafts for both sequences, `max_tokens` tokens for the reference.
    fn ask(&mut self, max_tokens: usize) -> Vec<Vec<u32>> {
        let ahead = self.executor.model.draft_method().unwrap().rows();
        self.both
            .iter_mut()
            .for_each(|s| assert!(s.pages.grow(&mut self.pages, s.computed + ahead)));
        let requests = [self.both[0].request(3), self.both[1].request(max_tokens)];
        let model = (&mut self.executor, &self.pages);
        let result = match (&mut self.chain, model.0.model.draft_method().cloned()) {
            (Some(chain), _) => chain.draft(&requests, model, |_| false),
            (None, Some(DraftMethod::Block(form))) => {
                BlockDrafter::new(form).draft(&requests, model, |_| false)
            }
            (None, _) => panic!("a draft model drafts"),
        };
        result.unwrap().drafts
    }
}

#[test]
fn drafts_in_a_batch_equal_the_drafts_of_the_reference() {
    for name in [
        "gemma4-assistant",
        "eagle3",
        "eagle3-shared",
        "dflash",
        "dflash-window",
        "dspark",
        "dspark-bonus",
        "dflash2",
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("../../tests/data/drafts/{name}.json"));
        let json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let token = |v: &Value| v.as_u64().unwrap() as u32;
        let list = |v: &Value| v.as_array().unwrap().iter().map(token).collect::<Vec<u32>>();
        let tokens = list(&json["tokens"]);
        let mut bench = Bench::open(name, json["model"].as_str().unwrap());
        for check in json["checks"].as_array().unwrap() {
            let known = check["tokens"].as_u64().unwrap() as usize;
            let want: Vec<u32> = match check["guesses"].as_array() {
                // Each reference names the token that the drafter was called after.
                Some(drafts) => drafts[1..].iter().map(|draft| token(&draft["token"])).collect(),
                None => list(&check["blocks"][0]["guess"]),
            };
            bench.begin(&tokens[..known]);
            let half = ((known - 1) / 2).max(1);
            bench.compute([60, half]);
            // Drafts between the steps change nothing.
            bench.ask(2);
            if known - 1 > half {
                bench.compute([20, known - 1 - half]);
            }
            let drafts = bench.ask(want.len());
            assert_eq!(drafts[1], want, "{name} behind {known} tokens");
            assert_eq!(drafts[0].len(), 3);
        }
    }
}

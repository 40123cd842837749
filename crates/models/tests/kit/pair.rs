//! A target model with its companion draft model, in a cache of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use puna_cpu::{Config, CpuBackend};
use puna_gguf::{Gguf, Metadata, View, Writer};
use puna_graph::{
    Backend, CacheSpec, Capacity, KvType, Plan, ProgramId, Segment, SegmentWindowPages, StateSpec,
    StepInput,
};
use puna_models::{LoadOptions, Model, ModelError, StepKind};
use serde_json::Value;

use super::zoo;

const PAGE: usize = 16;
const PAGES: usize = 8;

fn drafts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/drafts")
}

pub fn view(path: &Path) -> View {
    View::new(Arc::new(Gguf::open(path).unwrap())).unwrap()
}

/// The draft model of this name.
pub fn draft(name: &str) -> View {
    view(&drafts().join(format!("{name}.gguf")))
}

/// The reference of a draft model, and its target.
pub fn reference(name: &str) -> (Value, View) {
    let json = std::fs::read(drafts().join(format!("{name}.json"))).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let model = view(&zoo().join(format!("{}.gguf", json["model"].as_str().unwrap())));
    (json, model)
}

/// Tokens of a JSON list.
pub fn tokens_of(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect()
}

/// A target with its draft model, and two sequences with alternating pages.
pub struct Pair {
    pub backend: CpuBackend,
    pub model: Model,
    programs: Vec<(StepKind, ProgramId, usize)>,
}

impl Pair {
    pub fn new(model: &View, draft: &View, level: &str) -> Self {
        let model =
            Model::load_with_draft(model, &[], LoadOptions::default(), Some(draft)).unwrap();
        let config = Config { threads: Some(2), kernels: Some(level.into()), ..Config::default() };
        let mut backend = CpuBackend::new(&config).unwrap();
        backend.load_weights(model.weights().to_vec(), model.ropes().to_vec()).unwrap();
        let layers = model.cache_layers().to_vec();
        let (key_type, value_type, pages) = (KvType::F32, KvType::F32, 2 * PAGES);
        let spec = CacheSpec {
            layers,
            key_type,
            value_type,
            page_tokens: PAGE,
            pages,
            window_pages: pages,
        };
        backend.create_cache(spec).unwrap();
        backend.create_states(StateSpec { states: model.states().to_vec(), slots: 2 }).unwrap();
        let mut programs = Vec::new();
        for want in
            [StepKind::Logits, StepKind::Draft, StepKind::DraftPrefill, StepKind::TransitionLogits]
        {
            let Some(graph) = model.graph(want) else { continue };
            let cols = graph.value(graph.result().unwrap()).cols;
            let plan = Plan::new(graph, Capacity { tokens: 64, outputs: 64 });
            programs.push((want, backend.compile(plan).unwrap(), cols));
        }
        Self { backend, model, programs }
    }

    /// Runs a step; returns the result row by row.
    pub fn run(&mut self, want: StepKind, input: &StepInput) -> Vec<Vec<f32>> {
        let (_, program, cols) = *self.programs.iter().find(|(made, ..)| *made == want).unwrap();
        self.backend.run(program, input);
        if cols == 0 {
            return Vec::new();
        }
        self.backend.result().chunks_exact(cols).map(<[f32]>::to_vec).collect()
    }

    /// Computes tokens of a sequence behind `cached_tokens` others; the step's result is that of
    /// the last token.
    pub fn compute(&mut self, sequence: usize, cached_tokens: usize, tokens: &[u32]) -> StepInput {
        let input = Self::step(sequence, cached_tokens, tokens);
        self.run(StepKind::Logits, &input);
        input
    }

    pub fn segment(
        sequence: usize,
        first_row: usize,
        cached_tokens: usize,
        rows: usize,
    ) -> Segment {
        let pages: Vec<u32> = (0..PAGES).map(|page| (2 * page + sequence) as u32).collect();
        let window_pages = SegmentWindowPages { first: 0, pages: pages.clone() };
        Segment {
            first_row,
            rows,
            cached_tokens,
            pages,
            window_pages,
            state: sequence as u32,
            ..Segment::default()
        }
    }

    pub fn step(sequence: usize, cached_tokens: usize, tokens: &[u32]) -> StepInput {
        StepInput {
            tokens: tokens.to_vec(),
            positions: (cached_tokens..cached_tokens + tokens.len()).map(|p| p as u32).collect(),
            segments: vec![Self::segment(sequence, 0, cached_tokens, tokens.len())],
            outputs: vec![tokens.len() as u32 - 1],
            ..StepInput::default()
        }
    }
}

/// Largest difference from the reference, divided by `std`. Both must have the same entries of the
/// draft vocabulary.
pub fn worst_of(got: &[f32], want: &Value, model: &Model, std: f64) -> f64 {
    let want: Vec<Option<f64>> = want.as_array().unwrap().iter().map(Value::as_f64).collect();
    assert_eq!(want.iter().flatten().count(), got.len());
    let error = |(entry, got): (usize, &f32)| {
        let want =
            want[model.draft_token_id(entry) as usize].expect("the reference says this token, too");
        let error = (f64::from(*got) - want).abs() / std;
        if error.is_nan() { f64::INFINITY } else { error }
    };
    got.iter().enumerate().map(error).fold(0.0, f64::max)
}

/// File of a draft model with changed keys, and without the tensors for which `without` is true.
pub fn changed(name: &str, change: &dyn Fn(&mut Metadata), without: &dyn Fn(&str) -> bool) -> View {
    rewritten(name, change, |tensor, data| (!without(tensor)).then(|| data.to_vec()))
}

/// File of a draft model with other data of a tensor.
pub fn replaced(name: &str, tensor: &str, data: &[u8]) -> View {
    rewritten(name, &|_| {}, |other, own| {
        Some(if other == tensor { data.to_vec() } else { own.to_vec() })
    })
}

fn rewritten(
    name: &str,
    change: &dyn Fn(&mut Metadata),
    data_of: impl Fn(&str, &[u8]) -> Option<Vec<u8>>,
) -> View {
    let source = Gguf::open(&drafts().join(format!("{name}.gguf"))).unwrap();
    let mut metadata = Metadata::new();
    source.metadata().iter().for_each(|(key, value)| metadata.set(key, value.clone()));
    change(&mut metadata);
    let mut writer = Writer::with_metadata(metadata);
    let mut all = Vec::new();
    for tensor in source.tensors() {
        let Some(data) = data_of(&tensor.name, source.data(tensor)) else { continue };
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape).unwrap();
        all.push(data);
    }
    let bytes = writer.to_vec(all.iter().map(Vec::as_slice)).unwrap();
    View::new(Arc::new(Gguf::from_bytes(bytes).unwrap())).unwrap()
}

/// Error of loading a draft model.
pub fn refused(model: &str, draft: &View) -> ModelError {
    let model = view(&zoo().join(format!("{model}.gguf")));
    Model::load_with_draft(&model, &[], LoadOptions::default(), Some(draft)).err().unwrap()
}

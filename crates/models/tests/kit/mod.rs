//! Zoo entries, and models that tests run step by step.
#![allow(dead_code)] // not every test uses all of it

pub mod pair;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use puna_cpu::{Config, CpuBackend};
use puna_gguf::{Gguf, Metadata, Value as Key, View, Writer};
use puna_graph::{
    AdapterScales, Backend, CacheLayer, CacheSpec, Capacity, KvType, Mask, Plan, ProgramId,
    Segment, SegmentWindowPages, StateSpec, StepInput,
};
use puna_models::{Adapter, LoadOptions, Model, StepKind, known_architectures};
use puna_quant::TensorType;
use serde_json::Value;

const PAGE: usize = 64;
/// Tokens per page in tests that release pages behind windows: fewer than the zoo's windows have.
const SMALL_PAGE: usize = 4;
/// Smallest capacity of a sequence, in tokens.
const ROOM: usize = 2 * PAGE;
/// Smallest capacity of a step, in rows.
const ROWS: usize = 256;
const SLOTS: usize = 4;

pub fn zoo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo")
}

/// Folder of the entries: the zoo, or `PUNA_ZOO_DIR`.
fn entries() -> PathBuf {
    std::env::var_os("PUNA_ZOO_DIR").map_or_else(zoo, PathBuf::from)
}

/// Whether the run is restricted to some entries or another folder.
pub fn is_partial() -> bool {
    chosen_names().is_some() || std::env::var_os("PUNA_ZOO_DIR").is_some()
}

pub struct Entry {
    pub name: String,
    pub file: PathBuf,
    pub json: Value,
    pub tokens: Vec<u32>,
    /// Tokens that the encoder reads; empty for most models.
    pub prompt: Vec<u32>,
    pub positions: Vec<usize>,
    pub want: Vec<Vec<f64>>,
    /// Adapters of the model.
    pub adapters: Vec<Adapter>,
}

impl Entry {
    pub fn load(name: &str) -> Self {
        Self::load_from(&zoo(), name)
    }

    fn load_from(folder: &Path, name: &str) -> Self {
        let text = std::fs::read_to_string(folder.join(format!("{name}.json"))).unwrap();
        let entry = Self::new(name, serde_json::from_str(&text).unwrap());
        Self { file: folder.join(format!("{name}.gguf")), ..entry }
    }

    /// An entry from its description.
    pub fn new(name: &str, json: Value) -> Self {
        let ints = |key: &str| {
            json[key].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect()
        };
        let rows = json.get("logits").or_else(|| json.get("token_embeddings")).unwrap();
        let want = rows.as_array().unwrap().iter().map(numbers).collect();
        let tokens: Vec<usize> = ints("tokens");
        let ids = |tokens: Vec<usize>| tokens.into_iter().map(|t| t as u32).collect();
        let prompt =
            json.get("encoder_tokens").map(|_| ids(ints("encoder_tokens"))).unwrap_or_default();
        let (tokens, positions) = (ids(tokens), ints("positions"));
        let file = zoo().join(format!("{name}.gguf"));
        Self {
            name: name.into(),
            file,
            tokens,
            prompt,
            positions,
            want,
            json,
            adapters: Vec::new(),
        }
    }

    pub fn is_embedding(&self) -> bool {
        self.json.get("token_embeddings").is_some()
    }

    /// Whether the text must be fed as a whole: attention is bidirectional, or the result is an
    /// embedding.
    pub fn is_whole(&self) -> bool {
        self.is_embedding() || self.json.get("causal") == Some(&Value::Bool(false))
    }

    pub fn number(&self, key: &str) -> Option<f64> {
        self.json.get(key).and_then(Value::as_f64)
    }

    pub fn all() -> Vec<Self> {
        let known = known_architectures();
        let folder = entries();
        let mut names: Vec<String> = std::fs::read_dir(&folder)
            .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
            .filter_map(|f| {
                f.unwrap()
                    .file_name()
                    .into_string()
                    .unwrap()
                    .strip_suffix(".json")
                    .map(str::to_owned)
            })
            .collect();
        names.sort();
        let entries = names.iter().map(|name| Self::load_from(&folder, name));
        entries.filter(|e| known.contains(&e.json["architecture"].as_str().unwrap())).collect()
    }

    /// All entries, or the entries that `PUNA_ZOO=NAME,NAME` lists.
    pub fn chosen() -> Vec<Self> {
        let Some(names) = chosen_names() else { return Self::all() };
        let entries: Vec<Self> =
            Self::all().into_iter().filter(|e| names.contains(&e.name)).collect();
        assert_eq!(
            entries.len(),
            names.len(),
            "of {names:?} there are entries of known architectures"
        );
        entries
    }
}

/// Names in `PUNA_ZOO`.
pub fn chosen_names() -> Option<Vec<String>> {
    let names = std::env::var("PUNA_ZOO").ok()?;
    Some(names.split(',').map(str::to_owned).collect())
}

/// Name, dimensions and values of a tensor.
pub type Matrix = (String, [usize; 2], Vec<f32>);

/// The entry with its file rewritten for the same or another architecture, with changed keys and
/// with added or replaced matrices. A matrix without values removes the tensor.
pub fn rewritten(
    entry: &Entry,
    name: &str,
    change: &dyn Fn(&mut Metadata),
    matrices: &[Matrix],
) -> Entry {
    let source = Gguf::open(&entry.file).unwrap();
    let old = format!("{}.", source.metadata().architecture().unwrap());
    let mut metadata = Metadata::new();
    for (key, value) in source.metadata().iter() {
        let key = key.strip_prefix(&old).map_or(key.to_owned(), |key| format!("{name}.{key}"));
        metadata.set(&key, value.clone());
    }
    metadata.set("general.architecture", Key::from(name));
    change(&mut metadata);
    let mut writer = Writer::with_metadata(metadata);
    let mut data: Vec<&[u8]> = Vec::new();
    for tensor in source.tensors().iter().filter(|t| !is_replaced(&t.name, matrices)) {
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape).unwrap();
        data.push(source.data(tensor));
    }
    let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let further: Vec<Vec<u8>> = matrices.iter().map(|(_, _, values)| bytes(values)).collect();
    for ((name, shape, _), bytes) in
        matrices.iter().zip(&further).filter(|((.., values), _)| !values.is_empty())
    {
        writer.tensor(name, TensorType::F32, &shape.map(|n| n as u64)).unwrap();
        data.push(bytes);
    }
    let file = std::env::temp_dir().join(format!("puna-zoo-{}-{name}.gguf", std::process::id()));
    std::fs::write(&file, writer.to_vec(data).unwrap()).unwrap();
    Entry { file, ..Entry::load(&entry.name) }
}

/// The entry's file in the older layout of latent attention: keys and values of heads in one
/// tensor, and head sizes under the keys that now hold the cache's sizes.
pub fn older_latent(name: &str, heads: usize) -> Entry {
    let (rank, still, turned, value): (usize, usize, usize, usize) = (32, 16, 8, 16);
    let entry = Entry::load(name);
    let file = Gguf::open(&entry.file).unwrap();
    let matrices: Vec<Matrix> = (0..2)
        .map(|i| {
            let [keys, values] = ["attn_k_b", "attn_v_b"]
                .map(|half| values(&file, &format!("blk.{i}.{half}.weight")).unwrap());
            let rows = (0..heads).flat_map(|head| (0..still + value).map(move |row| (head, row)));
            let both = rows.flat_map(|(head, row)| (0..rank).map(move |r| (head, row, r)));
            let both = both.map(|(head, row, r)| match usize::checked_sub(row, still) {
                None => keys[(head * rank + r) * still + row],
                Some(row) => values[(head * value + row) * rank + r],
            });
            (format!("blk.{i}.attn_kv_b.weight"), [rank, heads * (still + value)], both.collect())
        })
        .collect();
    let change = |metadata: &mut Metadata| {
        for key in ["key_length_mla", "value_length_mla"] {
            assert!(metadata.remove(&format!("deepseek2.attention.{key}")).is_some());
        }
        let sizes =
            [("head_count_kv", heads), ("key_length", still + turned), ("value_length", value)];
        for (key, size) in sizes {
            metadata.set(&format!("deepseek2.attention.{key}"), size as u32);
        }
    };
    rewritten(&entry, "deepseek2", &change, &matrices)
}

/// Values of an F32 tensor.
pub fn values(file: &Gguf, name: &str) -> Option<Vec<f32>> {
    let data = file.data(file.tensor(name)?);
    Some(data.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect())
}

/// Whether a tensor is replaced; keys and values of heads are stored in one tensor or in two.
fn is_replaced(name: &str, matrices: &[Matrix]) -> bool {
    let both = ["attn_k_b", "attn_v_b"].map(|half| name.replace(half, "attn_kv_b"));
    matrices.iter().any(|(new, ..)| new == name || both.contains(new))
}

fn numbers(row: &Value) -> Vec<f64> {
    row.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

/// A model on a backend, which tests run step by step.
pub struct Runner {
    backend: CpuBackend,
    program: ProgramId,
    cols: usize,
    page: usize,
    /// Capacity of a sequence, in tokens.
    room: usize,
    /// Window masks of the model, and the number of pages that each sequence has for each. If these
    /// are fewer than the other pages, they are reused in turn.
    windows: Vec<Mask>,
    window_pages: usize,
    /// Program of the encoder, if the model has one.
    encoder: Option<ProgramId>,
    /// Number of tokens that the encoder has read for each sequence.
    encoder_tokens: [usize; SLOTS],
    /// Adapter scales of each sequence; missing ones are 1.
    pub adapter_scales: Vec<AdapterScales>,
}

impl Runner {
    pub fn new(entry: &Entry, level: &str) -> Self {
        Self::with_pages(entry, level, PAGE, usize::MAX)
    }

    /// [`Self::new`] with another page size, which reuses pages behind windows as if steps had
    /// `rows` rows.
    pub fn with_pages(entry: &Entry, level: &str, page: usize, rows: usize) -> Self {
        let view = View::new(Arc::new(Gguf::open(&entry.file).unwrap())).unwrap();
        let n_ctx = entry.number("n_ctx").map(|n| n as usize);
        let model =
            Model::load_with_adapters(&view, &entry.adapters, LoadOptions { n_ctx }).unwrap();
        let config = Config { threads: Some(2), kernels: Some(level.into()), ..Config::default() };
        let mut backend = CpuBackend::new(&config).unwrap();
        backend.load_weights(model.weights().to_vec(), model.ropes().to_vec()).unwrap();
        let layers = model.cache_layers().to_vec();
        let (key_type, value_type) = (KvType::F32, KvType::F32);
        let windows = windows(&layers);
        let reach = windows.iter().filter_map(|mask| mask.reach()).max().unwrap_or(0);
        let room = entry.tokens.len().next_multiple_of(PAGE).max(ROOM);
        let all = room / page;
        let window_pages = (reach.saturating_add(rows).div_ceil(page) + 1).min(all);
        let (pages, all_window_pages) = (4 * all, 4 * window_pages);
        let spec = CacheSpec {
            layers,
            key_type,
            value_type,
            page_tokens: page,
            pages,
            window_pages: all_window_pages,
        };
        backend.create_cache(spec).unwrap();
        backend.create_states(StateSpec { states: model.states().to_vec(), slots: SLOTS }).unwrap();
        let want = if entry.is_embedding() { StepKind::Hidden } else { StepKind::Logits };
        let graph = model.graph(want).unwrap();
        let cols = graph.value(graph.result().unwrap()).cols;
        let rows = ROWS.max(SLOTS * entry.tokens.len());
        let program =
            backend.compile(Plan::new(graph, Capacity { tokens: rows, outputs: rows })).unwrap();
        let capacity = Capacity { tokens: 512, outputs: 1 };
        let encoder = model
            .graph(StepKind::Encode)
            .map(|graph| backend.compile(Plan::new(graph, capacity)).unwrap());
        let encoder_tokens = [0; SLOTS];
        Self {
            backend,
            program,
            cols,
            page,
            room,
            windows,
            window_pages,
            encoder,
            encoder_tokens,
            adapter_scales: Vec::new(),
        }
    }

    /// Runs the encoder on prompts of sequences in one step.
    pub fn read(&mut self, prompts: &[(usize, &[u32])]) {
        let feeds: Vec<_> =
            prompts.iter().map(|&(sequence, prompt)| (sequence, 0, prompt)).collect();
        prompts.iter().for_each(|(sequence, prompt)| self.encoder_tokens[*sequence] = prompt.len());
        let input = self.input(&feeds, |_| 0);
        self.backend.run(self.encoder.expect("the model has an encoder"), &input);
    }

    /// Runs one step of several sequences, each given by index, cached_tokens and new tokens;
    /// returns a row per token.
    pub fn step(&mut self, sequences: &[(usize, usize, &[u32])]) -> Vec<Vec<f32>> {
        let mut input = self.input(sequences, |sequence| self.encoder_tokens[sequence]);
        input.outputs = (0..input.tokens.len() as u32).collect();
        self.backend.run(self.program, &input);
        self.backend.result().chunks_exact(self.cols).map(<[f32]>::to_vec).collect()
    }

    /// Input of a step. `before` are all tokens of a sequence before the new ones.
    fn input(
        &self,
        sequences: &[(usize, usize, &[u32])],
        before: impl Fn(usize) -> usize,
    ) -> StepInput {
        let mut input = StepInput::default();
        for &(sequence, cached_tokens, tokens) in sequences {
            let cached_tokens = before(sequence) + cached_tokens;
            let first_row = input.tokens.len();
            input.tokens.extend_from_slice(tokens);
            input.positions.extend((cached_tokens..cached_tokens + tokens.len()).map(|p| p as u32));
            // Pages are permuted so that no code relies on consecutive pages.
            let odd = |p: usize| (p * 4 + (sequence + p) % 4) as u32;
            let pages = (0..self.room / self.page).map(odd).collect();
            let seen =
                self.windows.iter().map(|mask| mask.first_seen(cached_tokens)).min().unwrap_or(0);
            let (first, end) =
                (seen / self.page, (cached_tokens + tokens.len()).div_ceil(self.page));
            assert!(end - first <= self.window_pages);
            let window_pages = SegmentWindowPages {
                first,
                pages: (first..end).map(|p| odd(p % self.window_pages)).collect(),
            };
            let (state, encoder_tokens) =
                ((sequence * 3 % SLOTS) as u32, self.encoder_tokens[sequence]);
            input.segments.push(Segment {
                first_row,
                rows: tokens.len(),
                cached_tokens,
                pages,
                window_pages,
                encoder_tokens,
                state,
                ..Segment::default()
            });
            input
                .adapter_scales
                .push(self.adapter_scales.get(sequence).cloned().unwrap_or_default());
        }
        input
    }
}

/// Window masks of cache layers.
fn windows(layers: &[CacheLayer]) -> Vec<Mask> {
    layers.iter().map(|layer| layer.mask).filter(|mask| mask.reach().is_some()).collect()
}

/// Results of an entry's tokens in steps of five, as the second of three sequences, with reuse of
/// pages behind windows; `None` for models without windows.
pub fn feed_where_pages_come_back(entry: &Entry, level: &str) -> Option<Vec<Vec<f32>>> {
    const CHUNK: usize = 5;
    let mut runner = Runner::with_pages(entry, level, SMALL_PAGE, CHUNK);
    let all = entry.tokens.len().div_ceil(SMALL_PAGE);
    if runner.windows.is_empty() || runner.window_pages >= all {
        return None;
    }
    let mut rows = Vec::new();
    let other: Vec<u32> = entry.tokens.iter().rev().copied().collect();
    for (i, chunk) in entry.tokens.chunks(CHUNK).enumerate() {
        let (cached_tokens, theirs) = (i * CHUNK, &other[i * CHUNK..][..chunk.len()]);
        let result = runner.step(&[
            (0, cached_tokens, theirs),
            (1, cached_tokens, chunk),
            (2, cached_tokens, theirs),
        ]);
        rows.extend_from_slice(&result[chunk.len()..2 * chunk.len()]);
    }
    Some(rows)
}

/// Feeds an entry's tokens in one of several ways.
pub fn feed(entry: &Entry, level: &str, how: &str) -> Vec<Vec<f32>> {
    let mut runner = Runner::new(entry, level);
    let tokens = &entry.tokens;
    let chunk = match how {
        "whole" => tokens.len(),
        "sevens" => 7,
        "one" => 1,
        _ => return feed_with_others(entry, &mut runner),
    };
    if !entry.prompt.is_empty() {
        runner.read(&[(0, &entry.prompt)]);
    }
    let mut rows = Vec::new();
    for start in (0..tokens.len()).step_by(chunk) {
        rows.extend(runner.step(&[(0, start, &tokens[start..(start + chunk).min(tokens.len())])]));
    }
    rows
}

/// Runs the entry's sequence as the second of four in a batch, in two steps.
fn feed_with_others(entry: &Entry, runner: &mut Runner) -> Vec<Vec<f32>> {
    let tokens = &entry.tokens;
    let other = |shift: usize| -> Vec<u32> {
        tokens.iter().cycle().skip(shift).take(tokens.len()).copied().collect()
    };
    let others = [other(1), other(5), other(9)];
    if let Some(end) = entry.prompt.len().checked_sub(3) {
        let prompt = &entry.prompt[..];
        runner.read(&[(3, &prompt[2..end]), (1, prompt), (0, &prompt[3..])]);
        runner.read(&[(2, &prompt[1..end])]);
    }
    let middle = if entry.is_whole() { tokens.len() } else { tokens.len() / 3 };
    let mut rows = Vec::new();
    for (from, to) in [(0, middle), (middle, tokens.len())] {
        if from == to {
            continue;
        }
        let (a, b, c) = (&others[0][..], &others[1][..], &others[2][..]);
        let ends = |s| if entry.is_whole() { (0, s) } else { (from, to) };
        let (af, at) = ends(a.len() - 2);
        let result = runner.step(&[
            (0, af, &a[af..at.min(a.len())]),
            (1, from, &tokens[from..to]),
            (2, from, &b[from..to]),
            (3, from, &c[from..to]),
        ]);
        let first = at.min(a.len()) - af;
        rows.extend_from_slice(&result[first..first + to - from]);
    }
    rows
}

/// Describes how `rows` differ from the reference, if they do.
pub fn mismatch(entry: &Entry, rows: &[Vec<f32>], exact: bool) -> Option<String> {
    let std = entry.number("logits_std").or(entry.number("embeddings_std")).unwrap();
    let (mut worst, mut squares, mut count) = (0.0f64, 0.0, 0);
    for (&position, want) in entry.positions.iter().zip(&entry.want) {
        let got = &rows[position];
        if got.len() != want.len() {
            return Some(format!("{} columns, not {}", got.len(), want.len()));
        }
        for (&g, w) in got.iter().zip(want) {
            let error = (f64::from(g) - w).abs() / std;
            worst = if error.is_nan() { f64::INFINITY } else { worst.max(error) };
            squares += error * error;
            count += 1;
        }
    }
    let rounded = entry.number("tolerance_quantised_activations").filter(|_| !exact);
    let limit = rounded.unwrap_or_else(|| entry.number("tolerance").unwrap());
    let rms = (squares / f64::from(count)).sqrt();
    let rms_limit = rounded.and(entry.number("tolerance_quantised_activations_rms"));
    let bad = worst > limit || rms_limit.is_some_and(|limit| rms > limit);
    bad.then(|| {
        format!("error {worst:.2e} (limit {limit:.0e}), rms {rms:.1e} (limit {rms_limit:?})")
    })
}

//! Draft models that guess with parts of their model: their guesses are the reference's, and what does not fit is refused.

mod kit;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kit::zoo;
use puna_cpu::{Config, CpuBackend};
use puna_gguf::{Gguf, Metadata, View, Writer};
use puna_graph::{
    Backend, CacheSpec, Capacity, KvType, Plan, ProgramId, RecentPages, Segment, StateSpec, StepInput,
};
use puna_models::{Guesses, LoadOptions, Model, ModelError, Seen, Want};
use serde_json::Value;

const PAGE: usize = 16;
const PAGES: usize = 8;

fn drafts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/drafts")
}

fn view(path: &Path) -> View {
    View::new(Arc::new(Gguf::open(path).unwrap())).unwrap()
}

/// A model with its draft model, and two sequences that have pages in turns.
struct Pair {
    backend: CpuBackend,
    model: Model,
    programs: [Option<ProgramId>; 3],
    cols: usize,
    /// The state that came with each sequence's newest computed token.
    states: [Vec<f32>; 2],
}

impl Pair {
    fn new(model: &View, draft: &View, level: &str) -> Self {
        let model = Model::load_accompanied(model, &[], LoadOptions::default(), Some(draft)).unwrap();
        let config = Config { threads: Some(2), kernels: Some(level.into()), ..Config::default() };
        let mut backend = CpuBackend::new(&config).unwrap();
        backend.adopt(model.weights().to_vec(), model.ropes().to_vec()).unwrap();
        let layers = model.cache_layers().to_vec();
        let (key_type, value_type, pages) = (KvType::F32, KvType::F32, 2 * PAGES);
        let spec = CacheSpec { layers, key_type, value_type, page_tokens: PAGE, pages, recent_pages: pages };
        backend.create_cache(spec).unwrap();
        backend.create_states(StateSpec { states: model.states().to_vec(), slots: 2 }).unwrap();
        let mut compile = |graph| backend.compile(Plan::new(graph, Capacity { tokens: 64, outputs: 64 }));
        let graphs = [Want::Logits, Want::Guess, Want::Follow].map(|want| model.graph(want));
        let guess = graphs[1].as_ref().unwrap();
        let cols = guess.value(guess.result().unwrap()).cols;
        let programs = graphs.map(|graph| graph.map(|graph| compile(graph).unwrap()));
        Self { backend, model, programs, cols, states: Default::default() }
    }

    fn segment(sequence: usize, first_row: usize, past: usize, rows: usize) -> Segment {
        let pages: Vec<u32> = (0..PAGES).map(|page| (2 * page + sequence) as u32).collect();
        let recent = RecentPages { first: 0, pages: pages.clone() };
        Segment { first_row, rows, past, pages, recent, encoded: 0, state: sequence as u32 }
    }

    fn step(sequence: usize, past: usize, tokens: &[u32]) -> StepInput {
        StepInput {
            tokens: tokens.to_vec(),
            positions: (past..past + tokens.len()).map(|p| p as u32).collect(),
            segments: vec![Self::segment(sequence, 0, past, tokens.len())],
            outputs: vec![tokens.len() as u32 - 1],
            ..StepInput::default()
        }
    }

    /// Features of a state, and whether guesses see keys and values of the draft model.
    fn chain(&self) -> (usize, bool) {
        match self.model.guesses().unwrap() {
            Guesses::Chain { state, sees } => (*state, *sees == Seen::Own),
        }
    }

    /// Computes tokens of a sequence behind so many others; the state of the last is what guesses go on from.
    fn feed(&mut self, sequence: usize, past: usize, tokens: &[u32]) {
        let (width, sees_own) = self.chain();
        let input = Self::step(sequence, past, tokens);
        self.backend.run(self.programs[0].unwrap(), &input);
        let states = self.backend.handed_out(0).to_vec();
        assert_eq!(states.len(), if sees_own { width * tokens.len() } else { width });
        let newest = states[states.len() - width..].to_vec();
        let before = std::mem::replace(&mut self.states[sequence], newest);
        if sees_own {
            let before = if past == 0 { vec![0.0; width] } else { before };
            let given = [&before[..], &states[..states.len() - width]].concat();
            let segments = vec![Segment { encoded: 1, ..input.segments[0].clone() }];
            let input = StepInput { given, segments, outputs: Vec::new(), ..input };
            self.backend.run(self.programs[2].unwrap(), &input);
        }
    }

    /// One step of guesses for sequences of so many computed tokens, the `nth` of each: the logits of each.
    fn guess(&mut self, asked: &[(usize, usize, u32)], nth: usize) -> Vec<Vec<f32>> {
        let (width, sees_own) = self.chain();
        let mut input = StepInput::default();
        for (row, &(sequence, computed, token)) in asked.iter().enumerate() {
            let (place, encoded) = if sees_own { (computed + nth, 1) } else { (computed - 1, 0) };
            input.tokens.push(token);
            input.positions.push((if sees_own { place } else { computed }) as u32);
            input.given.extend_from_slice(&self.states[sequence]);
            input.segments.push(Segment { encoded, ..Self::segment(sequence, row, place, 1) });
            input.outputs.push(row as u32);
        }
        self.backend.run(self.programs[1].unwrap(), &input);
        for ((sequence, ..), state) in asked.iter().zip(self.backend.handed_out(0).chunks_exact(width)) {
            self.states[*sequence] = state.to_vec();
        }
        self.backend.result().chunks_exact(self.cols).map(<[f32]>::to_vec).collect()
    }
}

/// The largest difference of guesses' logits from the reference's, over their standard deviation.
fn worst(name: &str, level: &str) -> f64 {
    let json: Value =
        serde_json::from_str(&std::fs::read_to_string(drafts().join(format!("{name}.json"))).unwrap())
            .unwrap();
    let model = view(&zoo().join(format!("{}.gguf", json["model"].as_str().unwrap())));
    let mut pair = Pair::new(&model, &view(&drafts().join(format!("{name}.gguf"))), level);
    let tokens: Vec<u32> =
        json["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
    let std = json["logits_std"].as_f64().unwrap();
    let mut worst = 0.0f64;
    for check in json["checks"].as_array().unwrap() {
        let computed = check["tokens"].as_u64().unwrap() as usize - 1;
        // In two steps, and beside a sequence of another length.
        let half = computed / 2;
        if half > 0 {
            pair.feed(0, 0, &tokens[..half]);
        }
        pair.feed(1, 0, &tokens[3..7]);
        pair.feed(0, half, &tokens[half..computed]);
        for (nth, guess) in check["guesses"].as_array().unwrap().iter().enumerate() {
            let token = guess["token"].as_u64().unwrap() as u32;
            let rows = pair.guess(&[(1, 4, tokens[7]), (0, computed, token)], nth);
            let want = guess["logits"].as_array().unwrap().iter().map(Value::as_f64);
            let mut said = 0;
            for (entry, got) in rows[1].iter().enumerate() {
                let token = pair.model.guessed_token(entry) as usize;
                let want = want.clone().nth(token).unwrap().expect("the reference says this token, too");
                let error = (f64::from(*got) - want).abs() / std;
                worst = if error.is_nan() { f64::INFINITY } else { worst.max(error) };
                said += 1;
            }
            assert_eq!(said, want.flatten().count(), "{name} says all that the reference says");
        }
    }
    worst
}

#[test]
fn guesses_are_the_references_at_every_level() {
    for name in ["gemma4-assistant", "gemma4-assistant-moe", "eagle3", "eagle3-shared"] {
        for level in puna_cpu::kernels::levels().iter().map(|level| level.name) {
            let worst = worst(name, level);
            eprintln!("{name} at {level}: {worst:.1e}");
            // The reference's GELU is a table of half precision.
            let limit = if level == "portable" { 2e-2 } else { 8e-2 };
            assert!(worst < limit, "{name} at {level}: {worst:.1e}");
        }
    }
}

/// A draft model's file with changed keys, and without the tensors that `without` chooses.
fn changed(name: &str, change: &dyn Fn(&mut Metadata), without: &dyn Fn(&str) -> bool) -> View {
    let source = Gguf::open(&drafts().join(format!("{name}.gguf"))).unwrap();
    let mut metadata = Metadata::new();
    source.metadata().iter().for_each(|(key, value)| metadata.set(key, value.clone()));
    change(&mut metadata);
    let mut writer = Writer::with_metadata(metadata);
    let mut data = Vec::new();
    for tensor in source.tensors().iter().filter(|tensor| !without(&tensor.name)) {
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape).unwrap();
        data.push(source.data(tensor));
    }
    View::new(Arc::new(Gguf::from_bytes(writer.to_vec(data).unwrap()).unwrap())).unwrap()
}

fn refused(model: &str, draft: &View) -> ModelError {
    let model = view(&zoo().join(format!("{model}.gguf")));
    Model::load_accompanied(&model, &[], LoadOptions::default(), Some(draft)).err().unwrap()
}

#[test]
fn a_draft_model_of_another_model_is_refused_with_the_numbers() {
    let own = view(&drafts().join("gemma4-assistant.gguf"));
    let said = |model: &str| match refused(model, &own) {
        ModelError::Companion { draft: "gemma4-assistant", difference, .. } => difference,
        other => panic!("{model}: {other}"),
    };
    let width = said("gemma2");
    assert!(width.contains("32 features") && width.contains("48"), "{width}");
    let vocabulary = said("gemma3");
    assert!(vocabulary.contains("384 entries") && vocabulary.contains("336"), "{vocabulary}");
    let key = "gemma4-assistant.attention.head_count_kv";
    let draft = changed("gemma4-assistant", &|meta| meta.set(key, 2u32), &|_| false);
    let heads = refused("gemma4", &draft).to_string();
    assert!(heads.contains("2 key heads of 8") && heads.contains("1 key heads of 8"), "{heads}");
    let key = "gemma4-assistant.attention.sliding_window";
    let draft = changed("gemma4-assistant", &|meta| meta.set(key, 30u32), &|_| false);
    let window = refused("gemma4", &draft).to_string();
    assert!(window.contains("sees 29 positions") && window.contains("keeps 9"), "{window}");
}

#[test]
fn a_file_that_lacks_something_is_refused_with_its_name() {
    let names: Vec<String> = {
        let file = Gguf::open(&drafts().join("gemma4-assistant.gguf")).unwrap();
        file.tensors().iter().map(|tensor| tensor.name.to_string()).collect()
    };
    assert!(names.len() > 20);
    for name in names.iter().filter(|name| *name != "rope_freqs.weight") {
        let draft = changed("gemma4-assistant", &|_| {}, &|tensor| tensor == name);
        let error = refused("gemma4", &draft).to_string();
        let stem = name.trim_end_matches(".weight");
        // Without its gate a unit's two halves are looked for in one tensor.
        assert!(
            error.contains(stem) || name.contains("ffn_gate") && error.contains("ffn_up"),
            "{name}: {error}"
        );
        assert_eq!(puna_models::check_companion(&draft).unwrap_err().to_string(), error, "{name}");
    }
    for key in ["embedding_length_out", "attention.sliding_window_pattern", "attention.key_length_swa"] {
        let key = format!("gemma4-assistant.{key}");
        let draft = changed("gemma4-assistant", &|meta| drop(meta.remove(&key)), &|_| false);
        let error = refused("gemma4", &draft).to_string();
        assert!(error.contains(&key), "{error}");
    }
}

#[test]
fn numbers_that_make_no_sense_are_refused_or_recorded_and_nothing_panics() {
    let model = view(&zoo().join("gemma4.gguf"));
    let own = Gguf::open(&drafts().join("gemma4-assistant.gguf")).unwrap();
    let keys = own.metadata().iter().filter(|(key, _)| key.starts_with("gemma4-assistant."));
    let keys: Vec<String> = keys.map(|(key, _)| key.to_owned()).collect();
    let (mut refused, mut recorded) = (0, 0);
    for key in &keys {
        for value in [0u32, 1, 3, 7, 1 << 16, u32::MAX] {
            let draft = changed("gemma4-assistant", &|meta| meta.set(key, value), &|_| false);
            match Model::load_accompanied(&model, &[], LoadOptions::default(), Some(&draft)) {
                Err(error) => refused += usize::from(!error.to_string().is_empty()),
                Ok(model) => recorded += usize::from(model.graph(Want::Guess).is_some()),
            }
        }
    }
    assert!(refused > 60 && refused + recorded == 6 * keys.len(), "{refused} and {recorded}");
}

#[test]
fn what_does_not_run_alone_says_what_it_is() {
    let alone = |architecture: &str| {
        let mut file = Writer::new();
        file.set("general.architecture", architecture);
        let view = View::new(Arc::new(Gguf::from_bytes(file.to_vec([]).unwrap()).unwrap())).unwrap();
        Model::load(&view, LoadOptions::default()).err().unwrap().to_string()
    };
    let assistant = alone("gemma4-assistant");
    assert!(assistant.contains("a Gemma 4") && assistant.contains("--speculate"), "{assistant}");
    for sound in ["wavtokenizer-dec", "pockettts", "qwen3tts"] {
        let error = alone(sound);
        assert!(error.contains("model of sound") && !error.contains("unknown"), "{error}");
    }
    for draft in ["eagle3", "dflash"] {
        assert!(
            alone(draft).contains("is a draft model") || alone(draft).contains("guesses"),
            "{}",
            alone(draft)
        );
    }
}

//! Body of the load fuzz target, shared with `crates/engine/tests/engine/loadable.rs`: changes of
//! weights, numbers, lists and vocabulary in a file of `tests/data/zoo` that keep it readable.

use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use puna_cpu::{Config, CpuBackend};
use puna_engine::{Engine, EngineOptions, Event, Request, check_model, plan_memory};
use puna_gguf::{Gguf, Metadata, Value, View, Writer};
use puna_quant::TensorType;
use puna_sampler::Params;
use puna_tokenizer::EncodeOptions;

/// Largest seed file in bytes. Most architectures have a smaller one.
const MAX_SEED_BYTES: u64 = 320 << 10;
/// Largest number of changes of one input.
const MAX_CHANGES: usize = 16;
/// Largest memory plan that is run, in bytes.
const MAX_PLAN_BYTES: u64 = 64 << 20;
/// Time limit for one request on a busy machine.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest error message in bytes.
const MAX_MESSAGE_BYTES: usize = 5000;

/// f32 bit patterns at the borders of the type; their halves are such patterns of f16 and bf16.
const ODD_FLOATS: [u32; 8] = [
    0x7fc0_7e00,
    0x7f80_7c00,
    0xff80_fc00,
    0x0000_0000,
    0x8000_8000,
    0x7f7f_7bff,
    0x0000_0001,
    0xffff_ffff,
];
/// Numbers for entries of lists.
const ODD_ENTRIES: [i32; 10] = [0, 1, 2, 3, 5, 255, 1 << 16, i32::MAX, -1, i32::MIN];

/// A tensor's name, type, shape and data.
type Tensor = (String, TensorType, Vec<u64>, Vec<u8>);

/// A file that can be changed.
#[derive(Clone)]
struct ModelFile {
    metadata: Metadata,
    tensors: Vec<Tensor>,
}

/// The input of the fuzzer, read as numbers. After its end, all numbers are zero.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// A number below `end`, or zero.
    fn below(&mut self, end: usize) -> usize {
        let number = u32::from_le_bytes([self.byte(), self.byte(), self.byte(), 0]);
        number as usize % end.max(1)
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken.to_vec()
    }
}

/// Changes a file as the input says, then loads and runs it. Returns the message of a rejected
/// file.
pub fn run(data: &[u8]) -> Result<(), String> {
    let mut input = Input(data);
    let seeds = seeds();
    let mut file = seeds[input.below(seeds.len())].clone();
    for _ in 0..MAX_CHANGES {
        change(&mut file, &mut input);
        if input.0.is_empty() {
            break;
        }
    }
    // The writer rejects tensors that no reader would accept.
    let Ok(bytes) = written(&file) else { return Ok(()) };
    let result = load_and_run(&bytes, MAX_PLAN_BYTES);
    if let Err(message) = &result {
        assert!(!message.is_empty() && message.len() < MAX_MESSAGE_BYTES, "{message:.500}");
        assert!(!message.contains(char::is_control), "{message:.500}");
    }
    result
}

/// The seed files, in the order of their names.
fn seeds() -> &'static [ModelFile] {
    static SEEDS: OnceLock<Vec<ModelFile>> = OnceLock::new();
    SEEDS.get_or_init(|| {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folders = manifest.ancestors().map(|folder| folder.join("tests/data/zoo"));
        let folder = folders.into_iter().find(|folder| folder.is_dir()).expect("seed files");
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        let is_small = |path: &std::path::PathBuf| {
            let is_model = path.extension().is_some_and(|extension| extension == "gguf");
            is_model && path.metadata().unwrap().len() <= MAX_SEED_BYTES
        };
        let mut files: Vec<_> = files.filter(is_small).collect();
        files.sort();
        files.iter().map(|path| read(&Gguf::open(path).unwrap())).collect()
    })
}

fn read(file: &Gguf) -> ModelFile {
    let tensors = file.tensors().iter().map(|tensor| {
        (tensor.name.to_string(), tensor.ty, tensor.shape.clone(), file.data(tensor).to_vec())
    });
    ModelFile { metadata: file.metadata().clone(), tensors: tensors.collect() }
}

fn written(file: &ModelFile) -> Result<Vec<u8>, puna_gguf::GgufError> {
    let mut writer = Writer::with_metadata(file.metadata.clone());
    for (name, ty, shape, _) in &file.tensors {
        writer.tensor(name, *ty, shape)?;
    }
    writer.to_vec(file.tensors.iter().map(|(.., data)| &data[..]))
}

/// Applies one change.
fn change(file: &mut ModelFile, input: &mut Input<'_>) {
    match input.byte() % 5 {
        0 => fill_weights(file, input),
        1 => set_weight(file, input),
        2 => change_value(file, input, |value| value.as_array().is_none(), other_number),
        3 => change_value(file, input, |value| value.as_array().is_some(), other_entry),
        _ => change_value(file, input, is_text_list, other_text),
    }
}

/// Fills a range of a tensor with one byte.
fn fill_weights(file: &mut ModelFile, input: &mut Input<'_>) {
    let count = file.tensors.len();
    let Some((.., data)) = file.tensors.get_mut(input.below(count)) else { return };
    let start = input.below(data.len());
    let end = (start + 1 + input.below(1 << 12)).min(data.len());
    let byte = input.byte();
    data[start..end].fill(byte);
}

/// Writes a special f32 into a tensor; in blocks it changes scales as well as codes.
fn set_weight(file: &mut ModelFile, input: &mut Input<'_>) {
    let count = file.tensors.len();
    let Some((.., data)) = file.tensors.get_mut(input.below(count)) else { return };
    let words = data.len() / 4;
    let at = 4 * input.below(words);
    let bits = ODD_FLOATS[usize::from(input.byte()) % ODD_FLOATS.len()];
    if let Some(word) = data.get_mut(at..at + 4) {
        word.copy_from_slice(&bits.to_le_bytes());
    }
}

/// Replaces the value of a key of the architecture or of the vocabulary.
fn change_value(
    file: &mut ModelFile,
    input: &mut Input<'_>,
    is_wanted: fn(&Value) -> bool,
    other: fn(&Value, &mut Input<'_>) -> Option<Value>,
) {
    let keys = file
        .metadata
        .iter()
        .filter(|(key, value)| !key.starts_with("general.") && is_wanted(value));
    let keys: Vec<String> = keys.map(|(key, _)| key.to_owned()).collect();
    let Some(key) = keys.get(input.below(keys.len())) else { return };
    if let Some(value) = file.metadata.get(key).and_then(|value| other(value, input)) {
        file.metadata.set(key, value);
    }
}

fn is_text_list(value: &Value) -> bool {
    value.as_array().is_some_and(|list| list.strings().is_some())
}

/// A number near the one of a value, or at a border.
fn other_number(value: &Value, input: &mut Input<'_>) -> Option<Value> {
    if let Value::Bool(flag) = value {
        return Some(Value::Bool(!flag));
    }
    let choice = input.byte();
    if let Some(number) = value.as_int() {
        let others = [number - 1, number + 1, 2 * number, number / 2, 0, 1, number + 32];
        let other = others[usize::from(choice) % others.len()];
        return u32::try_from(other).ok().map(Value::U32);
    }
    let number = value.as_float()? as f32;
    let others = [-number, 0.0, 2.0 * number, number / 1000.0, f32::NAN, f32::INFINITY, 1e38];
    Some(Value::F32(others[usize::from(choice) % others.len()]))
}

/// A list with another entry, or with another length.
fn other_entry(value: &Value, input: &mut Input<'_>) -> Option<Value> {
    let list = value.as_array()?;
    if list.strings().is_some() {
        return Some(Value::Array(list.prefix(input.below(list.len() + 1))));
    }
    let at = input.below(list.len());
    let choice = usize::from(input.byte());
    if let Some(numbers) = list.ints() {
        let mut numbers: Vec<i32> = numbers.map(|number| number as i32).collect();
        *numbers.get_mut(at)? = ODD_ENTRIES[choice % ODD_ENTRIES.len()];
        return Some(numbers.into());
    }
    let mut numbers: Vec<f32> = list.floats()?.collect();
    *numbers.get_mut(at)? = f32::from_bits(ODD_FLOATS[choice % ODD_FLOATS.len()]);
    Some(numbers.into())
}

/// A list of texts with another text, such as a token or a merge.
fn other_text(value: &Value, input: &mut Input<'_>) -> Option<Value> {
    let texts = value.as_array()?.strings()?;
    let mut texts: Vec<Vec<u8>> = texts.map(<[u8]>::to_vec).collect();
    let at = input.below(texts.len());
    let length = usize::from(input.byte() % 24);
    *texts.get_mut(at)? = input.bytes(length);
    Some(Value::strings(&texts))
}

/// Loads a file and generates or embeds a few tokens, unless its plan exceeds `max_plan_bytes`. The
/// error is the message that a user reads.
pub fn load_and_run(bytes: &[u8], max_plan_bytes: u64) -> Result<(), String> {
    let view = || View::new(Arc::new(Gguf::from_bytes(bytes.to_vec())?));
    check_model(&view().map_err(|e| e.to_string())?, &[]).map_err(|e| e.to_string())?;
    let config = Config { threads: Some(1), ..Config::default() };
    let backend = || Box::new(CpuBackend::new(&config).unwrap());
    let (num_ctx, max_sequences) = (Some(128), Some(2));
    let options =
        EngineOptions { num_ctx, num_batch: 32, max_sequences, ..EngineOptions::default() };
    let plan = plan_memory(&view().unwrap(), backend(), &options).map_err(|e| e.to_string())?;
    if plan.total() > max_plan_bytes {
        return Ok(());
    }
    let engine = Engine::open(view().unwrap(), backend(), &options).map_err(|e| e.to_string())?;
    let mut prompt = engine
        .tokenizer()
        .encode("a hello <s>", EncodeOptions { add_special: true, parse_special: true });
    prompt.truncate(6);
    prompt.retain(|token| (*token as usize) < engine.info().n_vocab);
    if engine.info().can_generate {
        let (sender, events) = channel();
        let greedy = Params { temperature: 0.0, ..Params::default() };
        let request = Request { max_tokens: Some(3), ..Request::new(prompt.clone(), greedy) };
        // Invalid requests are rejected by the checks of valid models.
        if engine.submit(request, Box::new(move |event| sender.send(event).is_ok())).is_ok() {
            let ended = |event: &Event| {
                matches!(event, Event::Done(_) | Event::Failed(_) | Event::Refused(_))
            };
            while !ended(&events.recv_timeout(REQUEST_TIMEOUT).expect("a request ends")) {}
        }
    }
    let (sender, vectors) = channel();
    if engine.embed(0, vec![prompt], Box::new(move |result| drop(sender.send(result)))).is_ok() {
        let _ = vectors.recv_timeout(REQUEST_TIMEOUT).expect("an embedding ends");
    }
    Ok(())
}

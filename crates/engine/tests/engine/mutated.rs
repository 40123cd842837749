//! Files of every architecture with one error: a missing key or tensor, or another type, shape,
//! size or value. The engine rejects each file with a message that names the key or tensor, or it
//! runs the model.
//!
//! There are about 300,000 of these files. Each run tests about a thousand, always the same ones.
//! `PUNA_MUTATIONS=1` tests all, and `PUNA_MUTATIONS=N` every Nth.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use puna_gguf::{GgufError, Metadata, Value, Writer};
use puna_quant::TensorType;

use super::*;

/// A tensor's name, type, shape and data.
type Tensor = (String, TensorType, Vec<u64>, Vec<u8>);

/// The error in a file.
enum Change {
    Key(String, Option<Value>),
    Tensor(usize, Option<Tensor>),
}

/// Every `STRIDE`th file is tested.
const STRIDE: usize = 307;
/// Largest memory plan that is run, in bytes.
const MOST_BYTES: u64 = 300 << 20;
/// Time limit for one file on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn zoo() -> Vec<(String, Gguf)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|end| end == "gguf")).collect();
    files.sort();
    let named =
        |path: &std::path::PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
    files.iter().map(|path| (named(path), Gguf::open(path).unwrap())).collect()
}

/// Values of all types, to replace a key's value.
fn other_values(value: &Value) -> Vec<Value> {
    let mut all: Vec<Value> =
        [0u32, 1, 2, 3, 7, 255, 257, 65_537, 1 << 20, 1 << 31, u32::MAX].map(Value::U32).into();
    all.extend([
        Value::I32(-1),
        Value::I64(i64::MIN),
        Value::U64(1 << 63),
        Value::Bool(true),
        Value::Bool(false),
    ]);
    all.extend(
        [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -1.0, 1e-38, 1e38].map(Value::F32),
    );
    all.extend([Value::from(""), Value::from("x"), Value::from("é".repeat(100_000).as_str())]);
    let lists = [Vec::new(), vec![1u32, 2, 3], vec![0; 2], vec![1; 600]];
    all.extend(lists.map(Value::from));
    all.extend([Value::from(vec![f32::NAN; 3]), Value::from(vec![true; 4])]);
    match value {
        Value::Array(list) => all.extend(other_lists(list)),
        whole => all.extend(whole.as_int().into_iter().flat_map(|n| {
            let near = [n - 1, n + 1, 2 * n, n / 2].into_iter();
            near.filter_map(|n| u32::try_from(n).ok().map(Value::U32))
        })),
    }
    all
}

/// Lists of other lengths and entries.
fn other_lists(list: &puna_gguf::Array) -> Vec<Value> {
    let len = list.len();
    let mut all: Vec<Value> =
        [1, len.saturating_sub(1)].map(|n| Value::Array(list.prefix(n))).into();
    if let Some(texts) = list.strings() {
        let texts: Vec<Vec<u8>> = texts.map(<[u8]>::to_vec).collect();
        let with = |change: &dyn Fn(&mut Vec<Vec<u8>>)| {
            let mut changed = texts.clone();
            change(&mut changed);
            Value::strings(&changed)
        };
        all.push(with(&|texts| texts.push(b"more".to_vec())));
        all.push(with(&|texts| texts.reverse()));
        all.push(with(&|texts| texts.iter_mut().for_each(|text| text.clear())));
        all.push(with(&|texts| texts.iter_mut().for_each(|text| *text = vec![0xff, 0xfe])));
        all.push(with(&|texts| texts.iter_mut().for_each(|text| *text = text.repeat(500))));
    } else if let Some(ints) = list.ints() {
        let ints: Vec<i32> = ints.map(|n| n as i32).collect();
        for n in [0, 1, -1, 5, 255, 1 << 16, i32::MAX, i32::MIN] {
            all.push(vec![n; len].into());
            let mut last = ints.clone();
            last.last_mut().into_iter().for_each(|last| *last = n);
            all.push(last.into());
        }
        all.push(vec![1; len + 1].into());
    } else {
        all.extend([f32::NAN, f32::INFINITY, 0.0, -1.0].map(|x| Value::from(vec![x; len])));
    }
    all
}

/// Tensors of other shapes, types and values.
fn other_tensors((name, ty, shape, _): &Tensor) -> Vec<Tensor> {
    let block = |d: usize| if d == 0 { ty.block_values() as u64 } else { 1 };
    let mut shapes: Vec<Vec<u64>> = Vec::new();
    for d in 0..shape.len() {
        for size in [shape[d] + block(d), shape[d].saturating_sub(block(d)), 2 * shape[d], block(d)]
        {
            let mut other = shape.clone();
            other[d] = size;
            shapes.push(other);
        }
    }
    shapes.push(shape.iter().rev().copied().collect());
    shapes.push(vec![shape.iter().product()]);
    shapes.push(shape.iter().copied().chain([2]).take(4).collect());
    let types = [
        TensorType::F32,
        TensorType::F16,
        TensorType::BF16,
        TensorType::Q8_0,
        TensorType::Q4_K,
        TensorType::MXFP4,
        TensorType::I32,
        TensorType::F64,
    ];
    let shaped = shapes.into_iter().map(|shape| (*ty, shape, 1));
    let typed = types.into_iter().map(|ty| (ty, shape.clone(), 0x11));
    let filled = [0, 0x7f, 0xff].map(|byte| (*ty, shape.clone(), byte));
    let made = shaped.chain(typed).chain(filled);
    made.filter_map(|(ty, shape, byte)| {
        let values: u64 = shape.iter().product();
        let whole = shape.first().is_some_and(|row| row.is_multiple_of(ty.block_values() as u64));
        let data = (values > 0 && values < 1 << 22 && whole)
            .then(|| vec![byte; values as usize / ty.block_values() * ty.block_bytes()]);
        data.map(|data| (name.clone(), ty, shape, data))
    })
    .collect()
}

/// All errors of a file, with descriptions. An iterator, because most are not tested.
fn changes<'a>(
    file: &'a Gguf,
    tensors: &'a [Tensor],
) -> impl Iterator<Item = (String, Change)> + 'a {
    let keys = file
        .metadata()
        .iter()
        .filter(|(key, _)| !key.starts_with("general.") || *key == "general.architecture");
    let keys = keys.flat_map(|(key, value)| {
        let values = std::iter::once(None).chain(other_values(value).into_iter().map(Some));
        values.map(move |value| {
            let shown = value.as_ref().map_or("absent".into(), Value::describe);
            (format!("{key} {shown}"), Change::Key(key.into(), value))
        })
    });
    let tensors = tensors.iter().enumerate().flat_map(|(at, tensor)| {
        let others = std::iter::once(None).chain(other_tensors(tensor).into_iter().map(Some));
        others.map(move |other| {
            let shown = other.as_ref().map_or("absent".into(), |(_, ty, shape, data)| {
                format!("of type {ty} and shape {shape:?}, all bytes {:#x}", data[0])
            });
            (format!("{} {shown}", tensor.0), Change::Tensor(at, other))
        })
    });
    keys.chain(tensors)
}

fn written(metadata: &Metadata, tensors: &[Tensor], change: &Change) -> Result<Vec<u8>, GgufError> {
    let mut metadata = metadata.clone();
    match change {
        Change::Key(key, Some(value)) => metadata.set(key, value.clone()),
        Change::Key(key, None) => drop(metadata.remove(key)),
        Change::Tensor(..) => {}
    }
    let mut writer = Writer::with_metadata(metadata);
    let mut data: Vec<&[u8]> = Vec::new();
    for (at, tensor) in tensors.iter().enumerate() {
        let tensor = match change {
            Change::Tensor(changed, other) if *changed == at => other.as_ref(),
            _ => Some(tensor),
        };
        let Some((name, ty, shape, bytes)) = tensor else { continue };
        writer.tensor(name, *ty, shape)?;
        data.push(bytes);
    }
    writer.to_vec(data)
}

/// Whether a message quotes the error: a key or tensor of the file, with or without the
/// architecture's prefix; a missing key or tensor with a prefix that the file has; any missing
/// matrix; or a changed architecture.
fn is_named(message: &str, file: &Gguf, change: &Change) -> bool {
    if matches!(change, Change::Key(key, _) if key == "general.architecture")
        && message.starts_with("unknown architecture `")
    {
        return true;
    }
    let keys = file.metadata().iter().map(|(key, _)| key);
    let names: Vec<&str> = keys.chain(file.tensors().iter().map(|tensor| &*tensor.name)).collect();
    let first = |name: &str| name.split_once('.').map(|(first, _)| first.to_owned());
    let is_of_file = |quoted: &str| {
        let is_matrix = quoted.ends_with(".weight");
        is_matrix
            || names.iter().any(|name| {
                let front = name.strip_suffix(quoted);
                front.is_some_and(|front| front.is_empty() || front.ends_with('.'))
                    || first(quoted).is_some_and(|begin| first(name) == Some(begin))
            })
    };
    message.split('`').skip(1).step_by(2).any(is_of_file)
}

#[test]
fn files_with_one_error_are_refused_by_name_or_run() {
    let stride = std::env::var("PUNA_MUTATIONS").map_or(STRIDE, |n| match n.parse() {
        Ok(stride) if stride > 0 => stride,
        _ => panic!("PUNA_MUTATIONS is `{n}`; it is 1 for all, or N for every Nth"),
    });
    let (mut wrong, mut number, mut refused, mut ran) = (Vec::new(), 0, 0, 0);
    for (name, file) in zoo() {
        let tensor = |t: &puna_gguf::TensorInfo| {
            (t.name.to_string(), t.ty, t.shape.clone(), file.data(t).to_vec())
        };
        let tensors: Vec<Tensor> = file.tensors().iter().map(tensor).collect();
        for (what, change) in changes(&file, &tensors) {
            number += 1;
            if number % stride != 0 {
                continue;
            }
            // The writer rejects this file.
            let Ok(bytes) = written(file.metadata(), &tensors, &change) else { continue };
            let started = Instant::now();
            match catch_unwind(AssertUnwindSafe(|| body::load_and_run(&bytes, MOST_BYTES))) {
                Ok(Ok(())) => ran += 1,
                Ok(Err(message)) if is_named(&message, &file, &change) && message.len() < 5000 => {
                    refused += 1
                }
                Ok(Err(message)) => wrong.push(format!("{name}, {what:.200}: {message:.500}")),
                Err(_) => wrong.push(format!("{name}, {what:.200}: panicked")),
            }
            if started.elapsed() > PATIENCE {
                wrong.push(format!("{name}, {what:.200}: took {:?}", started.elapsed()));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), refused + ran, wrong.join("\n"));
    assert!(refused > ran / 4 && ran > refused / 4, "{refused} were refused, {ran} ran");
}

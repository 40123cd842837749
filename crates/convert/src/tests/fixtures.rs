//! Builders of model folders and safetensors files.

use std::path::Path;

use puna_gguf::{Gguf, TensorInfo};
use puna_quant::dequantize;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::{ConvertError, FolderFile, convert};

/// A model folder that a test writes.
pub(super) struct Folder {
    pub(super) dir: TempDir,
    pub(super) files: Vec<FolderFile>,
}

impl Folder {
    pub(super) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), files: Vec::new() }
    }

    pub(super) fn put(&mut self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        self.files.push(FolderFile { name: name.to_owned(), path });
    }
}

/// Converts a folder. The GGUF file stays in memory.
pub(super) fn convert_files(files: &[FolderFile]) -> Result<Gguf, ConvertError> {
    let mut bytes = Vec::new();
    convert(files, &mut bytes, &mut |_, _, _| {})?;
    Ok(Gguf::from_bytes(bytes).unwrap())
}

/// A tensor of a folder: name, type, dimensions, bytes.
pub(super) type StoredTensor = (String, &'static str, Vec<u64>, Vec<u8>);

pub(super) fn safetensors(tensors: &[StoredTensor]) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let start = data.len();
        data.extend_from_slice(bytes);
        header.insert(
            name.clone(),
            json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]}),
        );
    }
    let header = Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

pub(super) fn zoo(name: &str) -> Gguf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo").join(name);
    Gguf::open(&path.with_extension("gguf")).unwrap()
}

pub(super) fn values(gguf: &Gguf, tensor: &TensorInfo) -> Vec<f32> {
    if tensor.ty == puna_quant::TensorType::I32 {
        let words = gguf.data(tensor).as_chunks::<4>().0.iter();
        return words.map(|word| i32::from_le_bytes(*word) as f32).collect();
    }
    let mut values = vec![0.0; tensor.elements() as usize];
    dequantize(tensor.ty, gguf.data(tensor), &mut values).unwrap();
    values
}

pub(super) fn bytes(values: &[f32], dtype: &str) -> Vec<u8> {
    match dtype {
        "F32" => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        "F16" => values.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect(),
    }
}

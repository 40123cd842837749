//! Writes GGUF files, version 3: first the header from keys and tensor descriptions, then the data
//! as it arrives. The model does not need to fit in memory.

use std::io::Write;

use puna_quant::TensorType;

use crate::bytes::SharedBytes;
use crate::error::GgufError;
use crate::metadata::Metadata;
use crate::parse::{alignment, check_header, type_and_size};
use crate::tensor::{TensorInfo, pad, sort_by_name};
use crate::value::Value;

/// A file to write: keys, values and tensor descriptions. [`start`](Writer::start) writes them.
///
/// The alignment is `general.alignment`, or else 32.
///
/// ```
/// # fn main() -> Result<(), puna_gguf::GgufError> {
/// use puna_gguf::{Gguf, Writer};
/// let mut writer = Writer::new();
/// writer.set("general.architecture", "llama").set("llama.block_count", 1u32);
/// writer.tensor("output_norm.weight", puna_quant::TensorType::F32, &[2])?;
/// let mut data = writer.start(Vec::new())?;
/// data.write(&1.0f32.to_le_bytes())?;
/// data.write(&2.0f32.to_le_bytes())?;
/// let gguf = Gguf::from_bytes(data.finish()?)?;
/// assert_eq!(gguf.tensor("output_norm.weight").unwrap().shape, [2]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Writer {
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
}

impl Writer {
    /// Makes an empty file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a file with these keys and values, in their order.
    pub fn with_metadata(metadata: Metadata) -> Self {
        Writer { metadata, ..Self::default() }
    }

    /// Sets a key in its place, or appends it.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> &mut Self {
        self.metadata.set(key, value);
        self
    }

    /// The current keys and values.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Adds a tensor description. `shape` is fastest first. The name is checked when writing
    /// starts.
    pub fn tensor(
        &mut self,
        name: &str,
        ty: TensorType,
        shape: &[u64],
    ) -> Result<&mut Self, GgufError> {
        // Readers accept a tensor without dimensions. Writers write one dimension of length 1.
        let shape = if shape.is_empty() { &[1] } else { shape };
        let (_, size) = type_and_size(name, shape, ty.id())?;
        let shape = shape.to_vec();
        self.tensors.push(TensorInfo { name: name.into(), ty, shape, offset: 0, size, part: 0 });
        Ok(self)
    }

    /// The tensors added so far. Their offsets are set when writing starts.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Writes the header. The caller then passes the tensors' data, in their order, to the
    /// [`DataWriter`].
    ///
    /// If a reader would reject the header, returns the reader's error and writes nothing.
    pub fn start<W: Write>(mut self, mut out: W) -> Result<DataWriter<W>, GgufError> {
        sort_by_name(&self.tensors)?;
        let alignment = alignment(&self.metadata)?;
        let mut end = 0u64;
        for tensor in &mut self.tensors {
            tensor.offset = end;
            let overflow = || GgufError::DataSizeOverflow { name: tensor.name.to_string() };
            end = pad(tensor.size, alignment)
                .and_then(|size| end.checked_add(size))
                .ok_or_else(overflow)?;
        }
        let header = SharedBytes::from(self.header());
        check_header(&header)?;
        out.write_all(&header).map_err(|e| GgufError::output(&e))?;
        let mut writer = DataWriter { out, tensors: self.tensors, alignment, next: 0, written: 0 };
        if !writer.tensors.is_empty() {
            writer.pad_from(header.len() as u64)?;
        }
        Ok(writer)
    }

    /// Writes the whole file to memory, from the data of each tensor.
    pub fn to_vec<'a>(
        self,
        data: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Vec<u8>, GgufError> {
        let mut writer = self.start(Vec::new())?;
        data.into_iter().try_for_each(|data| writer.write(data))?;
        writer.finish()
    }

    /// Header without padding.
    fn header(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(b"GGUF");
        out.extend_from_slice(&3u32.to_le_bytes());
        out.extend_from_slice(&(self.tensors.len() as u64).to_le_bytes());
        out.extend_from_slice(&(self.metadata.len() as u64).to_le_bytes());
        for (key, value) in self.metadata.iter() {
            put_string(&mut out, key.as_bytes());
            out.extend_from_slice(&value.ty().id().to_le_bytes());
            put_value(&mut out, value);
        }
        for tensor in &self.tensors {
            put_string(&mut out, tensor.name.as_bytes());
            out.extend_from_slice(&(tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().for_each(|dim| out.extend_from_slice(&dim.to_le_bytes()));
            out.extend_from_slice(&tensor.ty.id().to_le_bytes());
            out.extend_from_slice(&tensor.offset.to_le_bytes());
        }
        out
    }
}

fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.push(*v),
        Value::I8(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::Bool(v) => out.push((*v).into()),
        Value::String(text) => put_string(out, text.as_bytes()),
        Value::Array(array) => {
            out.extend_from_slice(&array.element_type().id().to_le_bytes());
            out.extend_from_slice(&(array.len() as u64).to_le_bytes());
            out.extend_from_slice(array.as_bytes());
        }
        Value::U64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F64(v) => out.extend_from_slice(&v.to_le_bytes()),
    }
}

/// Writes the data section of a file: takes the data of the tensors, in order and in pieces of any
/// size, and pads them.
#[derive(Debug)]
#[must_use = "the file is whole only after `finish`"]
pub struct DataWriter<W: Write> {
    out: W,
    tensors: Vec<TensorInfo>,
    alignment: u64,
    /// Index of the current tensor.
    next: usize,
    /// Bytes of the current tensor written so far.
    written: u64,
}

impl<W: Write> DataWriter<W> {
    /// The tensor to which the next data belongs. `None` after the last one.
    pub fn current(&self) -> Option<&TensorInfo> {
        self.tensors.get(self.next)
    }

    /// Writes all or part of the current tensor's data. Must not extend into the next tensor.
    pub fn write(&mut self, data: &[u8]) -> Result<(), GgufError> {
        let Some(tensor) = self.tensors.get(self.next) else {
            return Err(GgufError::WriteNothingLeft { count: self.tensors.len() });
        };
        let (found, want) = (self.written + data.len() as u64, tensor.size);
        if found > want {
            return Err(GgufError::WriteSize { name: tensor.name.to_string(), found, want });
        }
        self.out.write_all(data).map_err(|e| GgufError::output(&e))?;
        self.written = found;
        if found == want {
            self.pad_from(want)?;
            (self.next, self.written) = (self.next + 1, 0);
        }
        Ok(())
    }

    /// Flushes and returns the output. An error if data is missing.
    pub fn finish(mut self) -> Result<W, GgufError> {
        if let Some(tensor) = self.current() {
            return Err(GgufError::WriteIncomplete { name: tensor.name.to_string() });
        }
        self.out.flush().map_err(|e| GgufError::output(&e))?;
        Ok(self.out)
    }

    /// Writes zeros from position `len` to the next multiple of the alignment.
    fn pad_from(&mut self, len: u64) -> Result<(), GgufError> {
        let zeros = pad(len, self.alignment).expect("checked when the offsets were computed") - len;
        self.out.write_all(&vec![0; zeros as usize]).map_err(|e| GgufError::output(&e))
    }
}

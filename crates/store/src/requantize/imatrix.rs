//! Importance matrices in llama.cpp's GGUF format: for each tensor the sums of squares of its
//! inputs, and the numbers of tokens. The older binary format is read, too:
//!
//! ```text
//! i32 entries, then for each: i32 length, name; i32 calls; i32 values, each f32: a mean times the
//!                             calls
//! ```

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use puna_gguf::{Gguf, Metadata, TensorInfo, Value, Writer};
use puna_quant::TensorType;

use super::fallback::short_names;
use super::{FileType, rules};
use crate::error::StoreError;
use crate::files::read_limited;

/// Largest size of a file in the older format, in bytes.
const MAX_LEGACY_BYTES: u64 = 1 << 30;

/// Tensors that most matrices omit: token embeddings and the output layer.
const SELDOM_MEASURED: [&str; 3] =
    ["token_embd.weight", "per_layer_token_embd.weight", "output.weight"];

/// Sums of squares of a tensor's inputs; one row for each matrix of a stack of experts.
#[derive(Debug, Clone, PartialEq)]
pub struct ImatrixRow {
    /// The tensor's name.
    pub tensor: String,
    /// The sums.
    pub squares: Vec<f32>,
    /// Number of tokens for each matrix.
    pub counts: Vec<u64>,
}

/// Writes an importance matrix that was computed on `chunks` chunks of `chunk_tokens` tokens.
///
/// # Errors
/// The output cannot be written.
pub fn write_imatrix(
    out: &mut dyn Write,
    rows: &[ImatrixRow],
    dataset: &str,
    (chunks, chunk_tokens): (u32, u32),
) -> Result<(), StoreError> {
    let mut rows: Vec<&ImatrixRow> = rows.iter().filter(|row| !row.counts.is_empty()).collect();
    rows.sort_by(|a, b| a.tensor.cmp(&b.tensor));
    let mut writer = Writer::new();
    writer.set("general.type", "imatrix").set("imatrix.datasets", Value::strings([dataset]));
    writer.set("imatrix.chunk_count", chunks).set("imatrix.chunk_size", chunk_tokens);
    for row in &rows {
        let (values, matrices) = (row.squares.len() as u64, row.counts.len() as u64);
        writer.tensor(
            &format!("{}.in_sum2", row.tensor),
            TensorType::F32,
            &[values / matrices, matrices],
        )?;
        writer.tensor(&format!("{}.counts", row.tensor), TensorType::F32, &[1, matrices])?;
    }
    let mut body = writer.start(out)?;
    let bytes = |values: &mut dyn Iterator<Item = f32>| {
        values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>()
    };
    for row in rows {
        body.write(&bytes(&mut row.squares.iter().copied()))?;
        body.write(&bytes(&mut row.counts.iter().map(|&count| count as f32)))?;
    }
    body.finish()?;
    Ok(())
}

/// Weights of the columns of tensors.
pub struct Imatrix {
    /// The file's name, for messages and for the metadata of quantized files.
    name: String,
    weights: HashMap<String, Vec<f32>>,
    /// Name and number of chunks of the text.
    dataset: Option<String>,
    chunks: Option<u32>,
}

impl Imatrix {
    /// Reads a file.
    ///
    /// # Errors
    /// The file is no importance matrix.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let bad =
            |reason: &str| StoreError::Imatrix { name: name.clone(), reason: reason.to_owned() };
        if !is_gguf(path)? {
            let len = std::fs::metadata(path).map_err(|e| StoreError::io("read", path, &e))?.len();
            let bytes = if len > MAX_LEGACY_BYTES {
                Vec::new()
            } else {
                read_limited(path, MAX_LEGACY_BYTES)?
            };
            let weights =
                parse_legacy(&bytes).ok_or_else(|| bad("it is truncated or in another format"))?;
            return Ok(Self { name, weights, dataset: None, chunks: None });
        }
        let gguf =
            Gguf::open(path).map_err(|error| StoreError::BadFile { file: name.clone(), error })?;
        let mut weights = HashMap::new();
        for sums in gguf.tensors() {
            let Some(name) = sums.name.strip_suffix(".in_sum2") else { continue };
            let counts = gguf
                .tensor(&format!("{name}.counts"))
                .ok_or_else(|| bad("it has sums without counts"))?;
            if sums.ty != TensorType::F32 || counts.ty != TensorType::F32 {
                return Err(bad("its tensors are not F32"));
            }
            let floats = |tensor| -> Vec<f32> {
                let words = gguf.data(tensor).chunks_exact(4);
                words.map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
            };
            let (mut sums, counts) = (floats(sums), floats(counts));
            // One row and one count for each expert.
            let each = sums.len() / counts.len().max(1);
            for (row, count) in sums.chunks_mut(each.max(1)).zip(&counts) {
                // All columns of an unused expert weigh the same.
                row.iter_mut().for_each(|sum| *sum = if *count > 0.0 { *sum / count } else { 1.0 });
            }
            weights.insert(name.to_owned(), sums);
        }
        if weights.is_empty() {
            return Err(bad("it has no tensors named …in_sum2"));
        }
        let meta = gguf.metadata();
        let mut datasets = meta.strings("imatrix.datasets").ok().flatten();
        let dataset = datasets.as_mut().and_then(|list| list.next());
        let dataset = dataset.map(|text| String::from_utf8_lossy(text).into_owned());
        Ok(Self {
            name,
            weights,
            dataset,
            chunks: meta.opt_u32("imatrix.chunk_count").ok().flatten(),
        })
    }

    /// The column weights of a tensor; for a stack of experts one row after the other.
    ///
    /// # Errors
    /// The number of columns differs.
    pub(super) fn of(&self, tensor: &TensorInfo) -> Result<Option<&[f32]>, StoreError> {
        let Some(found) = self.weights.get(&*tensor.name) else { return Ok(None) };
        let want =
            tensor.shape.first().unwrap_or(&1) * tensor.shape.iter().skip(2).product::<u64>();
        match found.len() as u64 == want {
            true => Ok(Some(found)),
            // Token embeddings are looked up, not multiplied: the weights may be those of the tied
            // output layer.
            false if &*tensor.name == "token_embd.weight" => Ok(None),
            false => {
                let (name, tensor, found) =
                    (self.name.clone(), tensor.name.to_string(), found.len());
                Err(StoreError::ImatrixSize { name, tensor, found, want })
            }
        }
    }

    /// Rejects a matrix without weights for any of the quantized tensors.
    pub(super) fn check(
        &self,
        tensors: &[TensorInfo],
        types: &[TensorType],
    ) -> Result<(), StoreError> {
        let unmatched = self.unmatched_tensors(tensors, types);
        match unmatched.filter(|unmatched| unmatched.tensors.len() == unmatched.quantized) {
            None => Ok(()),
            Some(_) => Err(StoreError::ImatrixMismatch { name: self.name.clone() }),
        }
    }

    /// The quantized tensors without weights in the matrix.
    fn unmatched_tensors(
        &self,
        tensors: &[TensorInfo],
        types: &[TensorType],
    ) -> Option<UnmatchedTensors> {
        let is_meant = |tensor: &TensorInfo, ty: TensorType| {
            ty.is_quantized() && tensor.ty != ty && !SELDOM_MEASURED.contains(&&*tensor.name)
        };
        let meant = tensors.iter().zip(types).filter(|(tensor, ty)| is_meant(tensor, **ty));
        let (known, unknown): (Vec<&str>, Vec<&str>) = meant
            .map(|(tensor, _)| &*tensor.name)
            .partition(|name| self.weights.contains_key(*name));
        let tensors: Vec<_> = unknown.into_iter().map(str::to_owned).collect();
        let quantized = known.len() + tensors.len();
        (!tensors.is_empty()).then(|| UnmatchedTensors {
            matrix: self.name.clone(),
            quantized,
            tensors,
        })
    }

    /// Adds the metadata about the matrix that llama-quantize writes.
    pub(super) fn describe(&self, metadata: &mut Metadata) {
        metadata.set("quantize.imatrix.file", self.name.as_str());
        if let Some(dataset) = &self.dataset {
            metadata.set("quantize.imatrix.dataset", dataset.as_str());
        }
        metadata.set(
            "quantize.imatrix.entries_count",
            u32::try_from(self.weights.len()).unwrap_or(u32::MAX),
        );
        if let Some(chunks) = self.chunks {
            metadata.set("quantize.imatrix.chunks_count", chunks);
        }
    }
}

/// Tensors that are quantized without weights from the importance matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmatchedTensors {
    /// The matrix's file name.
    pub matrix: String,
    /// Number of all quantized tensors.
    pub quantized: usize,
    /// Names of the tensors without weights.
    pub tensors: Vec<String>,
}

/// The tensors that are to be quantized and have no weights in the matrix; `None` if all have
/// weights.
pub fn unmatched_tensors(
    gguf: &Gguf,
    target: FileType,
    matrix: &Imatrix,
) -> Option<UnmatchedTensors> {
    let types: Vec<_> =
        rules::choose_types(gguf, target, true).into_iter().map(|choice| choice.ty).collect();
    matrix.unmatched_tensors(gguf.tensors(), &types)
}

impl fmt::Display for UnmatchedTensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { matrix, quantized, tensors } = self;
        let names = short_names(tensors.iter().map(String::as_str)).join(", ");
        write!(
            f,
            "warning: the importance matrix {matrix} lacks {} of {quantized} tensors, which are quantized without it \
             ({names}): it may be for another model",
            tensors.len()
        )
    }
}

fn is_gguf(path: &Path) -> Result<bool, StoreError> {
    let mut magic = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read(&mut magic));
    read.map_err(|e| StoreError::io("read", path, &e))?;
    Ok(magic == *b"GGUF")
}

fn parse_legacy(mut rest: &[u8]) -> Option<HashMap<String, Vec<f32>>> {
    fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
        let (bytes, left) = rest.split_at_checked(len)?;
        *rest = left;
        Some(bytes)
    }
    let number = |rest: &mut &[u8]| -> Option<usize> {
        let word = take(rest, 4)?.try_into().ok()?;
        usize::try_from(i32::from_le_bytes(word)).ok()
    };
    let entries = number(&mut rest)?;
    let mut weights = HashMap::new();
    for _ in 0..entries {
        let len = number(&mut rest)?;
        let name = std::str::from_utf8(take(&mut rest, len)?).ok()?.to_owned();
        let calls = number(&mut rest)?.max(1) as f32;
        let values = number(&mut rest)?.checked_mul(4)?;
        let words = take(&mut rest, values)?.as_chunks::<4>().0;
        weights.insert(name, words.iter().map(|word| f32::from_le_bytes(*word) / calls).collect());
    }
    (!weights.is_empty()).then_some(weights)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_squares_are_read_back_as_means() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("imatrix.gguf");
        let row = |tensor: &str, squares: Vec<f32>, counts: Vec<u64>| ImatrixRow {
            tensor: tensor.into(),
            squares,
            counts,
        };
        let rows =
            [row("b", vec![4.0, 8.0], vec![4]), row("a", vec![2.0, 4.0, 0.0, 0.0], vec![2, 0])];
        let mut file = Vec::new();
        write_imatrix(&mut file, &rows, "text.txt", (1, 4)).unwrap();
        std::fs::write(&path, file).unwrap();
        let matrix = Imatrix::open(&path).unwrap();
        assert_eq!(matrix.of(&tensor("b", &[2, 5])).unwrap(), Some(&[1.0, 2.0][..]));
        // All columns of an unused expert weigh the same.
        assert_eq!(matrix.of(&tensor("a", &[2, 5, 2])).unwrap(), Some(&[1.0, 2.0, 1.0, 1.0][..]));
        assert_eq!(matrix.of(&tensor("c", &[2, 5])).unwrap(), None);
        let mut made = Metadata::new();
        matrix.describe(&mut made);
        assert_eq!(made.str("quantize.imatrix.file"), Ok("imatrix.gguf"));
        assert_eq!(made.str("quantize.imatrix.dataset"), Ok("text.txt"));
        assert_eq!(made.u32("quantize.imatrix.entries_count"), Ok(2));
        assert_eq!(made.u32("quantize.imatrix.chunks_count"), Ok(1));
    }

    fn tensor(name: &str, shape: &[u64]) -> TensorInfo {
        let mut writer = Writer::new();
        writer.tensor(name, TensorType::F32, shape).unwrap();
        writer.tensors()[0].clone()
    }

    #[test]
    fn an_importance_matrix_of_another_model_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("imatrix.gguf");
        let mut file = Vec::new();
        let row = |name: &str| ImatrixRow {
            tensor: name.into(),
            squares: vec![4.0, 8.0],
            counts: vec![4],
        };
        write_imatrix(&mut file, &[row("a"), row("token_embd.weight")], "text.txt", (1, 4))
            .unwrap();
        std::fs::write(&path, file).unwrap();
        let matrix = Imatrix::open(&path).unwrap();
        let (a, b) = (tensor("a", &[3, 2]), tensor("b", &[2, 2]));
        let error = matrix.of(&a).unwrap_err().to_string();
        assert_eq!(
            error,
            "the importance matrix imatrix.gguf has 2 values for the tensor a, expected 3: it is for another model"
        );
        assert_eq!(matrix.of(&tensor("token_embd.weight", &[3, 2])), Ok(None));
        let check = |tensors: &[TensorInfo], ty| matrix.check(tensors, &vec![ty; tensors.len()]);
        let other = Err(StoreError::ImatrixMismatch { name: "imatrix.gguf".into() });
        assert_eq!(check(&[a.clone(), b.clone()], TensorType::Q8_0), Ok(()));
        assert_eq!(check(&[], TensorType::Q8_0), Ok(()));
        assert_eq!(check(std::slice::from_ref(&b), TensorType::Q8_0), other);
        // Token embeddings exist in every model, so their weights prove nothing.
        let table = tensor("token_embd.weight", &[2, 2]);
        assert_eq!(check(&[b.clone(), table], TensorType::Q8_0), other);
        assert_eq!(check(std::slice::from_ref(&b), TensorType::F16), Ok(()));
        let types = [TensorType::Q8_0; 2];
        let told = matrix.unmatched_tensors(&[a, b], &types).unwrap().to_string();
        assert!(told.contains("lacks 1 of 2 tensors") && told.contains("(b)"), "{told}");
    }

    #[test]
    fn the_older_imatrix_format_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("imatrix.dat");
        let mut file: Vec<u8> = Vec::new();
        file.extend([1i32, 1].map(i32::to_le_bytes).concat());
        file.extend(b"b");
        file.extend([2i32, 2].map(i32::to_le_bytes).concat());
        file.extend([3.0f32, 5.0].map(f32::to_le_bytes).concat());
        std::fs::write(&path, &file).unwrap();
        assert_eq!(
            Imatrix::open(&path).unwrap().of(&tensor("b", &[2])).unwrap(),
            Some(&[1.5, 2.5][..])
        );
        for bytes in [&file[..file.len() - 1], b"no matrix", b""] {
            std::fs::write(&path, bytes).unwrap();
            assert!(Imatrix::open(&path).is_err_and(|e| e.to_string().contains("truncated")));
        }
    }
}

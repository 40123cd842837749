//! Importance matrices, in the GGUF form of llama.cpp: for each tensor the sums of squares of its inputs, and over how
//! many tokens they are. The form that it had before is read, too:
//!
//! ```text
//! i32 entries, then for each: i32 length, name; i32 calls; i32 values, each f32: a mean times the calls
//! ```

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use puna_gguf::{Gguf, Value, Writer};
use puna_quant::TensorType;

use crate::error::StoreError;
use crate::files::read_limited;

/// More than any file of the old form has.
const LEGACY_LIMIT: u64 = 1 << 30;

/// Sums of squares of a tensor's inputs, for each matrix of a stack one row.
#[derive(Debug, Clone, PartialEq)]
pub struct ImatrixRow {
    /// The tensor's name.
    pub tensor: String,
    /// The sums.
    pub squares: Vec<f32>,
    /// Over how many tokens, for each matrix.
    pub counts: Vec<u64>,
}

/// Writes an importance matrix that was made of so many chunks of so many tokens of a text.
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
        writer.tensor(&format!("{}.in_sum2", row.tensor), TensorType::F32, &[values / matrices, matrices])?;
        writer.tensor(&format!("{}.counts", row.tensor), TensorType::F32, &[1, matrices])?;
    }
    let mut body = writer.start(out)?;
    let bytes =
        |values: &mut dyn Iterator<Item = f32>| values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
    for row in rows {
        body.write(&bytes(&mut row.squares.iter().copied()))?;
        body.write(&bytes(&mut row.counts.iter().map(|&count| count as f32)))?;
    }
    body.finish()?;
    Ok(())
}

/// How much the columns of tensors matter.
pub struct Imatrix {
    weights: HashMap<String, Vec<f32>>,
}

impl Imatrix {
    /// Reads a file.
    ///
    /// # Errors
    /// It is no importance matrix.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let bad = |reason: &str| StoreError::Imatrix { path: path.to_owned(), reason: reason.to_owned() };
        if let Some(weights) = legacy(path)? {
            return Ok(Self { weights });
        }
        let gguf = Gguf::open(path)
            .map_err(|error| StoreError::GgufFile { file: path.display().to_string(), error })?;
        let mut weights = HashMap::new();
        for sums in gguf.tensors() {
            let Some(name) = sums.name.strip_suffix(".in_sum2") else { continue };
            let counts = gguf.tensor(&format!("{name}.counts")).ok_or_else(|| bad("sums without counts"))?;
            if sums.ty != TensorType::F32 || counts.ty != TensorType::F32 {
                return Err(bad("its tensors are not F32"));
            }
            let floats = |tensor| -> Vec<f32> {
                let words = gguf.data(tensor).chunks_exact(4);
                words.map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
            };
            let (mut sums, counts) = (floats(sums), floats(counts));
            // A row for each expert, with a count of its own.
            let each = sums.len() / counts.len().max(1);
            for (row, count) in sums.chunks_mut(each.max(1)).zip(&counts) {
                // An expert that was never used matters as much in every column.
                row.iter_mut().for_each(|sum| *sum = if *count > 0.0 { *sum / count } else { 1.0 });
            }
            weights.insert(name.to_owned(), sums);
        }
        if weights.is_empty() { Err(bad("it has no tensors named …in_sum2")) } else { Ok(Self { weights }) }
    }

    /// The weights of a tensor's columns, for stacks one row after the other.
    pub(super) fn of(&self, tensor: &str) -> Option<&[f32]> {
        self.weights.get(tensor).map(Vec::as_slice)
    }
}

/// The weights of a file of the old form; nothing for any other file.
fn legacy(path: &Path) -> Result<Option<HashMap<String, Vec<f32>>>, StoreError> {
    let is_legacy = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("dat"));
    let len = std::fs::metadata(path).map_err(|e| StoreError::io("read", path, &e))?.len();
    if !is_legacy || len > LEGACY_LIMIT {
        return Ok(None);
    }
    let bytes = read_limited(path, LEGACY_LIMIT)?;
    if bytes.starts_with(b"GGUF") {
        return Ok(None);
    }
    let bad =
        || StoreError::Imatrix { path: path.to_owned(), reason: "it is cut short or of another form".into() };
    parse_legacy(&bytes).map(Some).ok_or_else(bad)
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
    fn what_is_written_is_read_as_means() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("imatrix.gguf");
        let row = |tensor: &str, squares: Vec<f32>, counts: Vec<u64>| ImatrixRow {
            tensor: tensor.into(),
            squares,
            counts,
        };
        let rows = [row("b", vec![4.0, 8.0], vec![4]), row("a", vec![2.0, 4.0, 0.0, 0.0], vec![2, 0])];
        let mut file = Vec::new();
        write_imatrix(&mut file, &rows, "text.txt", (1, 4)).unwrap();
        std::fs::write(&path, file).unwrap();
        let matrix = Imatrix::open(&path).unwrap();
        assert_eq!(matrix.of("b"), Some(&[1.0, 2.0][..]));
        // An expert that no token took counts every column alike.
        assert_eq!(matrix.of("a"), Some(&[1.0, 2.0, 1.0, 1.0][..]));
    }

    #[test]
    fn the_old_form_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("imatrix.dat");
        let mut file: Vec<u8> = Vec::new();
        file.extend([1i32, 1].map(i32::to_le_bytes).concat());
        file.extend(b"b");
        file.extend([2i32, 2].map(i32::to_le_bytes).concat());
        file.extend([3.0f32, 5.0].map(f32::to_le_bytes).concat());
        std::fs::write(&path, &file).unwrap();
        assert_eq!(Imatrix::open(&path).unwrap().of("b"), Some(&[1.5, 2.5][..]));
        std::fs::write(&path, &file[..file.len() - 1]).unwrap();
        assert!(Imatrix::open(&path).is_err_and(|e| e.to_string().contains("cut short")));
    }
}

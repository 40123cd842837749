//! Quantizes GGUF files to the file types of llama-quantize, tensor by tensor, on all cores.

mod fallback;
mod file_type;
mod imatrix;
mod rules;

use std::borrow::Cow;
use std::io::Write;
use std::ops::Range;

use puna_gguf::{Gguf, Metadata, TensorInfo, Writer, ordered_tasks};
use puna_quant::{TensorType, dequantize, quantize};

pub use fallback::{TypeFallback, fallbacks};
pub use file_type::FileType;
pub use imatrix::{Imatrix, ImatrixRow, UnmatchedTensors, unmatched_tensors, write_imatrix};

use crate::error::StoreError;

/// Values in a task.
const PIECE_VALUES: u64 = 1 << 18;

/// Options of [`requantize`].
#[derive(Default)]
pub struct QuantizeOptions<'a> {
    /// Number of threads; 0 means one for each core.
    pub threads: usize,
    /// Importance matrix.
    pub imatrix: Option<&'a Imatrix>,
}

/// Writes a model in another file type. `progress` receives the processed and the total bytes of
/// the source.
///
/// # Errors
/// A type needs an importance matrix, a value cannot be represented, or the output cannot be
/// written.
pub fn requantize(
    gguf: &Gguf,
    target: FileType,
    options: &QuantizeOptions<'_>,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), StoreError> {
    let mut metadata = quantized_metadata(gguf, target, options);
    for key in SPLIT_KEYS {
        metadata.remove(key);
    }
    let types = types(gguf, target, options)?;
    let tensors: Vec<_> = gguf.tensors().iter().zip(types).collect();
    let total = gguf.tensor_bytes();
    write(gguf, metadata, &tensors, options, out, &mut |done| progress(done, total))
}

/// Writes one part of a split model in another file type, with the tensors of this part of the
/// source. `part` counts from 0. `progress` counts the bytes of the part.
///
/// # Errors
/// Those of [`requantize`].
pub fn requantize_part(
    gguf: &Gguf,
    part: usize,
    target: FileType,
    options: &QuantizeOptions<'_>,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), StoreError> {
    let mut metadata =
        if part == 0 { quantized_metadata(gguf, target, options) } else { Metadata::new() };
    let as_split = |error: std::num::TryFromIntError| StoreError::Split(error.to_string());
    metadata.set(SPLIT_KEYS[0], u16::try_from(part).map_err(as_split)?);
    metadata.set(SPLIT_KEYS[1], u16::try_from(gguf.part_count()).map_err(as_split)?);
    metadata.set(SPLIT_KEYS[2], i32::try_from(gguf.tensors().len()).map_err(as_split)?);
    // The type of a tensor depends on all tensors of the model.
    let types = types(gguf, target, options)?;
    let tensors: Vec<_> = gguf
        .tensors()
        .iter()
        .zip(types)
        .filter(|(tensor, _)| gguf.part_of(tensor) == part)
        .collect();
    let total = tensors.iter().map(|(tensor, _)| tensor.size).sum();
    write(gguf, metadata, &tensors, options, out, &mut |done| progress(done, total))
}

/// The type of each tensor.
fn types(
    gguf: &Gguf,
    target: FileType,
    options: &QuantizeOptions<'_>,
) -> Result<Vec<TensorType>, StoreError> {
    let choices = rules::choose_types(gguf, target, options.imatrix.is_some());
    let types: Vec<_> = choices.into_iter().map(|choice| choice.ty).collect();
    if let Some(matrix) = options.imatrix {
        matrix.check(gguf.tensors(), &types)?;
    }
    Ok(types)
}

/// Metadata keys: number of the part, number of parts, number of tensors in all parts.
const SPLIT_KEYS: [&str; 3] = ["split.no", "split.count", "split.tensors.count"];

/// The metadata of the quantized file.
fn quantized_metadata(gguf: &Gguf, target: FileType, options: &QuantizeOptions<'_>) -> Metadata {
    let mut metadata = gguf.metadata().clone();
    if let Some(matrix) = options.imatrix {
        matrix.describe(&mut metadata);
    }
    metadata.set("general.quantization_version", 2u32);
    metadata.set("general.file_type", target.id());
    metadata
}

fn write(
    gguf: &Gguf,
    metadata: Metadata,
    tensors: &[(&TensorInfo, TensorType)],
    options: &QuantizeOptions<'_>,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64),
) -> Result<(), StoreError> {
    let mut writer = Writer::with_metadata(metadata);
    for (tensor, ty) in tensors {
        writer.tensor(&tensor.name, *ty, &tensor.shape)?;
    }
    let mut jobs = Vec::with_capacity(tensors.len());
    for &(tensor, ty) in tensors {
        let importance = match options.imatrix.filter(|_| tensor.ty != ty) {
            Some(matrix) => matrix.of(tensor)?,
            None => None,
        };
        jobs.push(TensorJob { tensor, data: gguf.data(tensor), ty, importance });
    }
    let pieces: Vec<(&TensorJob<'_>, Range<u64>)> =
        jobs.iter().flat_map(|job| job.pieces().map(move |rows| (job, rows))).collect();
    let mut body = writer.start(out)?;
    let mut done = 0;
    let make = |at: usize| {
        let (job, rows) = &pieces[at];
        job.rows(rows.clone())
    };
    ordered_tasks::run_in_order(
        ordered_tasks::thread_count(options.threads),
        pieces.len(),
        make,
        |at, bytes| {
            let (job, rows) = &pieces[at];
            body.write(&bytes)?;
            done += job.source_bytes(rows);
            progress(done);
            Ok(())
        },
    )?;
    body.finish()?;
    Ok(())
}

/// Conversion of one tensor.
struct TensorJob<'a> {
    tensor: &'a TensorInfo,
    data: &'a [u8],
    ty: TensorType,
    importance: Option<&'a [f32]>,
}

impl<'a> TensorJob<'a> {
    fn columns(&self) -> u64 {
        self.tensor.shape.first().copied().unwrap_or(1)
    }

    /// Ranges of rows of about equal size.
    fn pieces(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let rows = self.tensor.rows();
        let step = (PIECE_VALUES / self.columns().max(1)).max(1);
        // A tensor without rows is written, too.
        (0..rows.max(1))
            .step_by(usize::try_from(step).unwrap_or(usize::MAX))
            .map(move |from| from..(from + step).min(rows))
    }

    /// Bytes of some rows in the source.
    fn source_bytes(&self, rows: &Range<u64>) -> u64 {
        self.tensor.size / self.tensor.rows().max(1) * (rows.end - rows.start)
    }

    /// Converts rows. Each expert of a stack has its own column weights.
    fn rows(&self, rows: Range<u64>) -> Result<Cow<'a, [u8]>, StoreError> {
        if self.tensor.ty == self.ty || self.tensor.size == 0 {
            let start = self.source_bytes(&(0..rows.start)) as usize;
            return Ok(self.data[start..start + self.source_bytes(&rows) as usize].into());
        }
        let fail = |error: puna_quant::QuantError| StoreError::Quantize {
            tensor: self.tensor.name.to_string(),
            reason: error.to_string(),
        };
        let too_wide = || StoreError::Quantize {
            tensor: self.tensor.name.to_string(),
            reason: format!(
                "rows of {} values do not fit the blocks of {}",
                self.columns(),
                self.ty
            ),
        };
        let columns = usize::try_from(self.columns()).map_err(|_| too_wide())?;
        let row_in = self.tensor.ty.row_bytes(columns).ok_or_else(too_wide)?;
        let row_out = self.ty.row_bytes(columns).ok_or_else(too_wide)?;
        let (from, to) = (rows.start as usize, rows.end as usize);
        let mut values = vec![0.0; (to - from) * columns];
        dequantize(self.tensor.ty, &self.data[from * row_in..to * row_in], &mut values)
            .map_err(fail)?;
        let mut out = vec![0; (to - from) * row_out];
        let rows_each = self.tensor.shape.get(1).map_or(usize::MAX, |n| *n as usize).max(1);
        let rows = values.chunks_exact(columns).zip(out.chunks_exact_mut(row_out));
        for (number, (row, packed)) in (from..to).zip(rows) {
            let importance = self.importance.map(|all| {
                let start = number / rows_each * columns;
                all.get(start..start + columns).or(all.get(..columns)).unwrap_or(all)
            });
            quantize(self.ty, row, columns, importance, packed).map_err(fail)?;
        }
        Ok(out.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_quantized_file_reads_back_close_to_its_source() {
        let zoo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo");
        let source = Gguf::open(&zoo.join("llama-q8_0.gguf")).unwrap();
        let mut bytes = Vec::new();
        let mut last = (0, 0);
        let target = FileType::from_name("q4_K_M").unwrap();
        let options = QuantizeOptions { threads: 3, imatrix: None };
        requantize(&source, target, &options, &mut bytes, &mut |done, all| last = (done, all))
            .unwrap();
        assert_eq!(last.0, last.1);
        let made = Gguf::from_bytes(bytes).unwrap();
        assert_eq!(made.metadata().u32("general.file_type"), Ok(15));
        assert_eq!(made.tensors().len(), source.tensors().len());
        let values = |gguf: &Gguf, name: &str| {
            let tensor = gguf.tensor(name).unwrap().clone();
            let mut values = vec![0.0; tensor.elements() as usize];
            dequantize(tensor.ty, gguf.data(&tensor), &mut values).unwrap();
            values
        };
        for tensor in made.tensors() {
            let (a, b) = (values(&source, &tensor.name), values(&made, &tensor.name));
            let norm: f64 = a.iter().map(|x| f64::from(*x).powi(2)).sum();
            let error: f64 = a.iter().zip(&b).map(|(x, y)| f64::from(x - y).powi(2)).sum();
            assert!(error <= norm * 0.02, "{}: {error} of {norm}", tensor.name);
        }
    }
}

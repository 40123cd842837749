//! Tensors of the GGUF file: each names the source rows that it consists of. Values are converted
//! while the file is written, in chunks, so that memory use does not depend on the model's size.

use std::collections::BTreeSet;
use std::io::Write;
use std::ops::Range;

use puna_gguf::Writer;
use puna_quant::{TensorType, quantize};

use super::safetensors::Dtype;
use super::weights::SourceTensor;
use super::{CONVERTING_STATUS, ImportError, ProgressReport};
use crate::error::StoreError;
use crate::ordered_tasks;

/// Values that a thread converts at a time.
const CHUNK_VALUES: u64 = 1 << 20;
/// Largest number of values in a row.
const MAX_ROW_VALUES: u64 = 1 << 26;
/// Smallest magnitude that F16 rounds to infinity.
const F16_OVERFLOW: f32 = 65520.0;

/// A tensor of the file.
pub(super) struct OutputTensor<'a> {
    pub(super) name: String,
    pub(super) ty: TensorType,
    /// Dimensions, slowest first.
    pub(super) shape: Vec<u64>,
    pub(super) content: TensorContent<'a>,
}

/// The source of a tensor's values.
pub(super) enum TensorContent<'a> {
    /// Rows of source tensors, concatenated and transformed. Rows that the sources lack are zero.
    Rows { parts: Vec<TensorRows<'a>>, columns: u64, transform: ValueTransform },
    /// `zero_rows` rows of zeros, then rows of a tensor.
    ZerosThenRows { zero_rows: u64, rows: TensorRows<'a>, columns: u64 },
    /// A stack of transposed matrices: `columns_taken` columns of each source matrix, in
    /// `column_order`, become rows. A source matrix begins every `source_rows` rows; the matrices
    /// are taken in `matrix_order`.
    Transposed {
        tensor: SourceTensor<'a>,
        source_rows: u64,
        columns_taken: u64,
        column_order: RowOrder,
        matrix_order: RowOrder,
        transform: ValueTransform,
    },
    /// A matrix with its columns in another order.
    PermutedColumns { tensor: SourceTensor<'a>, order: RowOrder },
    /// MXFP4: pairs of four-bit codes and block exponents, concatenated; each pair has
    /// `rows_per_part` rows.
    Mxfp4 { parts: Vec<[SourceTensor<'a>; 2]>, rows_per_part: u64, order: RowOrder },
    /// Integers, stored as I32.
    Integers(SourceTensor<'a>),
    /// Values that follow from the configuration.
    Constant(Vec<f32>),
}

/// Rows of one source tensor.
pub(super) struct TensorRows<'a> {
    pub(super) tensor: SourceTensor<'a>,
    /// Number of rows.
    pub(super) rows: u64,
    pub(super) order: RowOrder,
}

/// Function applied to each value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ValueTransform {
    None,
    Add(f32),
    Scale(f32),
    /// `-exp(x)`: folders store a decay rate as the logarithm of its magnitude.
    NegativeExp,
    /// `exp(x)`.
    Exp,
    /// Multiplies each band of rows by its own factor.
    ScaleBands(RowBands),
    /// Negates the second half of the rows of each head.
    NegateSecondHalves {
        head_dim: u64,
    },
    /// Rounds to the nearest of `-scale`, 0 and `scale`.
    RoundToTernary(f32),
}

/// Factors of five consecutive bands of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RowBands {
    /// First row behind each band except the last.
    pub(super) ends: [u64; 4],
    pub(super) factors: [f32; 5],
}

impl RowBands {
    fn factor(&self, row: u64) -> f32 {
        self.factors[self.ends.iter().filter(|&&end| end <= row).count()]
    }
}

impl ValueTransform {
    /// Applies the function to rows of `columns` values; `first_row` is the number of the first.
    fn apply(self, values: &mut [f32], first_row: u64, columns: u64) {
        match self {
            ValueTransform::None => {}
            ValueTransform::Add(number) => values.iter_mut().for_each(|x| *x += number),
            ValueTransform::Scale(factor) => values.iter_mut().for_each(|x| *x *= factor),
            ValueTransform::NegativeExp => values.iter_mut().for_each(|x| *x = -x.exp()),
            ValueTransform::Exp => values.iter_mut().for_each(|x| *x = x.exp()),
            ValueTransform::ScaleBands(bands) => {
                scale_rows(values, first_row, columns, |row| bands.factor(row));
            }
            ValueTransform::NegateSecondHalves { head_dim } => {
                let sign = |row| if row % head_dim.max(1) < head_dim / 2 { 1.0 } else { -1.0 };
                scale_rows(values, first_row, columns, sign);
            }
            // Divides by the reciprocal, as the training code does, to get the same rounding.
            ValueTransform::RoundToTernary(scale) => {
                let inverse = 1.0 / scale;
                values.iter_mut().for_each(|x| {
                    *x = (*x * inverse).round_ties_even().clamp(-1.0, 1.0) / inverse;
                });
            }
        }
    }
}

/// Multiplies each row by a factor that depends on its number.
fn scale_rows(values: &mut [f32], first_row: u64, columns: u64, factor: impl Fn(u64) -> f32) {
    let rows = values.chunks_mut(usize::try_from(columns.max(1)).unwrap_or(usize::MAX));
    for (row, values) in (first_row..).zip(rows) {
        let factor = factor(row);
        values.iter_mut().for_each(|x| *x *= factor);
    }
}

/// Maps a row of the output to a row of the source, by two mappings in sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RowOrder {
    first: RowMapping,
    second: RowMapping,
}

/// Maps a row of the output to a row of the source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum RowMapping {
    Identity,
    /// Interleaves the two halves of each head, so that the two rows of a rotary pair are adjacent.
    InterleaveHalves {
        head_dim: u64,
    },
    /// Skips the first `rows` rows.
    Offset {
        rows: u64,
    },
    /// Every `step`-th row, beginning at `first`.
    Strided {
        step: u64,
        first: u64,
    },
    /// Of each `period` rows, `count` rows beginning at `offset`.
    Window {
        period: u64,
        offset: u64,
        count: u64,
    },
    /// Makes the heads of a group adjacent; in the source, heads of the `groups` groups alternate.
    GroupHeads {
        groups: u64,
        heads_per_group: u64,
        head_dim: u64,
    },
    /// Swaps two blocks of `block_rows` rows, given by their numbers.
    SwapBlocks {
        block_rows: u64,
        first: u64,
        second: u64,
    },
}

impl RowMapping {
    /// The source row of an output row.
    fn source_row(self, row: u64) -> u64 {
        match self {
            RowMapping::Identity => row,
            RowMapping::Offset { rows } => row + rows,
            RowMapping::InterleaveHalves { head_dim } => {
                let (start, at) = (row / head_dim * head_dim, row % head_dim);
                start + at % 2 * (head_dim / 2) + at / 2
            }
            RowMapping::Strided { step, first } => row * step + first,
            RowMapping::Window { period, offset, count } => {
                row / count * period + offset + row % count
            }
            RowMapping::GroupHeads { groups, heads_per_group, head_dim } => {
                let all = groups * heads_per_group * head_dim;
                let (start, at) = (row - row % all, row % all);
                let (group, head) =
                    (at / (heads_per_group * head_dim), at / head_dim % heads_per_group);
                start + (head * groups + group) * head_dim + at % head_dim
            }
            RowMapping::SwapBlocks { block_rows, first, second } => {
                let block = match row / block_rows {
                    block if block == first => second,
                    block if block == second => first,
                    block => block,
                };
                block * block_rows + row % block_rows
            }
        }
    }
}

impl RowOrder {
    pub(super) const SAME: Self = Self::of(RowMapping::Identity);

    pub(super) const fn of(mapping: RowMapping) -> Self {
        Self { first: mapping, second: RowMapping::Identity }
    }

    /// Adds a mapping that is applied to output rows before this order. An order holds at most two
    /// mappings.
    pub(super) fn preceded_by(self, mapping: RowMapping) -> Self {
        match self.first {
            RowMapping::Identity => Self { first: mapping, ..self },
            first => Self { first: mapping, second: first },
        }
    }

    fn source_row(self, row: u64) -> u64 {
        self.second.source_row(self.first.source_row(row))
    }
}

impl<'a> OutputTensor<'a> {
    /// Rows of a tensor in some order. A vector in another order than its own has rows of one
    /// value.
    pub(super) fn rows(
        name: String,
        ty: TensorType,
        shape: Vec<u64>,
        tensor: SourceTensor<'a>,
        order: RowOrder,
    ) -> Self {
        let columns = match shape[..] {
            [_] if order != RowOrder::SAME => 1,
            _ => shape.last().copied().unwrap_or(1),
        };
        let rows = shape.iter().product::<u64>() / columns.max(1);
        let parts = vec![TensorRows { tensor, rows, order }];
        Self {
            name,
            ty,
            shape,
            content: TensorContent::Rows { parts, columns, transform: ValueTransform::None },
        }
    }

    fn columns(&self) -> u64 {
        match &self.content {
            TensorContent::Rows { columns, .. } | TensorContent::ZerosThenRows { columns, .. } => {
                *columns
            }
            _ => self.shape.last().copied().unwrap_or(1),
        }
    }

    /// Whether the tensor is F16 and its sources may have values beyond the range of F16.
    fn may_overflow(&self) -> bool {
        let TensorContent::Rows { parts, .. } = &self.content else { return false };
        self.ty == TensorType::F16 && parts.iter().any(|part| part.tensor.entry.dtype != Dtype::F16)
    }

    /// Size in bytes of the source of some rows.
    fn source_bytes(&self, rows: &Range<u64>) -> u64 {
        let TensorContent::Rows { parts, .. } = &self.content else { return 0 };
        let size = parts.first().map_or(0, |part| part.tensor.entry.dtype.size());
        (rows.end - rows.start) * self.columns() * size
    }

    /// Splits the rows into ranges of similar size.
    fn chunks(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        // A transposed matrix is read in short runs of columns: larger chunks make longer runs.
        let values = if let TensorContent::Transposed { .. } = self.content {
            8 * CHUNK_VALUES
        } else {
            CHUNK_VALUES
        };
        let (rows, step) = (self.row_count(), (values / self.columns().max(1)).max(1));
        let starts = (0..rows).step_by(usize::try_from(step).unwrap_or(usize::MAX));
        starts.map(move |from| from..(from + step).min(rows))
    }

    fn check_width(&self) -> Result<(), ImportError> {
        check_width(&self.name, &self.shape, self.columns())
    }

    fn row_count(&self) -> u64 {
        self.shape.iter().product::<u64>() / self.columns().max(1)
    }

    /// The encoded bytes of a range of rows.
    fn encode(&self, from: u64, to: u64) -> Result<Vec<u8>, StoreError> {
        let columns = self.columns();
        if let TensorContent::Mxfp4 { parts, rows_per_part, order } = &self.content {
            return Ok(repack_mxfp4(parts, *rows_per_part, *order, from..to, columns)?);
        }
        if let TensorContent::Integers(tensor) = &self.content {
            return Ok(int32_bytes(tensor, from * columns..to * columns)?);
        }
        if let Some(bytes) = self.copy_unchanged(from, to, columns)? {
            return Ok(bytes);
        }
        let values = self.values(from, to, columns)?;
        let mut out = vec![0; values.len() / self.ty.block_values() * self.ty.block_bytes()];
        quantize(self.ty, &values, values.len().max(1), None, &mut out).map_err(|e| {
            StoreError::Quantize { tensor: self.name.clone(), reason: e.to_string() }
        })?;
        Ok(out)
    }

    /// The bytes of a range of rows if the source has them in the target's type and order.
    fn copy_unchanged(
        &self,
        from: u64,
        to: u64,
        columns: u64,
    ) -> Result<Option<Vec<u8>>, ImportError> {
        let TensorContent::Rows { parts, transform: ValueTransform::None, .. } = &self.content
        else {
            return Ok(None);
        };
        let dtype = match self.ty {
            TensorType::F16 => Dtype::F16,
            TensorType::BF16 => Dtype::BF16,
            TensorType::F32 => Dtype::F32,
            _ => return Ok(None),
        };
        let [TensorRows { tensor, order: RowOrder::SAME, rows }] = &parts[..] else {
            return Ok(None);
        };
        if !tensor.is_stored_as(dtype) || to > *rows {
            return Ok(None);
        }
        let mut bytes = vec![0; ((to - from) * columns * dtype.size()) as usize];
        tensor.bytes(from * columns, &mut bytes)?;
        Ok(Some(bytes))
    }

    fn values(&self, from: u64, to: u64, columns: u64) -> Result<Vec<f32>, ImportError> {
        match &self.content {
            TensorContent::Constant(values) => {
                Ok(values[(from * columns) as usize..(to * columns) as usize].to_vec())
            }
            TensorContent::Transposed {
                tensor,
                source_rows,
                columns_taken,
                column_order,
                matrix_order,
                transform,
            } => {
                let mut values = read_transposed(
                    tensor,
                    [*source_rows, *columns_taken],
                    [*column_order, *matrix_order],
                    from..to,
                    columns,
                )?;
                transform.apply(&mut values, from, columns);
                Ok(values)
            }
            TensorContent::PermutedColumns { tensor, order } => {
                let values = tensor.rows(from, to - from, columns)?;
                let rows = values.chunks_exact(columns.max(1) as usize);
                Ok(rows
                    .flat_map(|row| (0..columns).map(|at| row[order.source_row(at) as usize]))
                    .collect())
            }
            TensorContent::Mxfp4 { .. } | TensorContent::Integers(_) => Ok(Vec::new()),
            TensorContent::ZerosThenRows { zero_rows, rows, .. } => {
                let mut values =
                    vec![0.0; ((*zero_rows.min(&to)).saturating_sub(from) * columns) as usize];
                rows.read(
                    from.max(*zero_rows) - zero_rows..to.max(*zero_rows) - zero_rows,
                    columns,
                    &mut values,
                )?;
                Ok(values)
            }
            TensorContent::Rows { parts, transform, .. } => {
                let mut values = Vec::with_capacity(((to - from) * columns) as usize);
                let mut start = 0;
                for part in parts {
                    let rows =
                        from.clamp(start, start + part.rows)..to.clamp(start, start + part.rows);
                    part.read(rows.start - start..rows.end - start, columns, &mut values)?;
                    start += part.rows;
                }
                values.resize(((to - from) * columns) as usize, 0.0);
                transform.apply(&mut values, from, columns);
                Ok(values)
            }
        }
    }
}

/// Rejects rows with more values than [`MAX_ROW_VALUES`], because threads hold several whole rows
/// in memory.
pub(super) fn check_width(name: &str, shape: &[u64], columns: u64) -> Result<(), ImportError> {
    if columns <= MAX_ROW_VALUES {
        return Ok(());
    }
    let (name, found) = (name.to_owned(), shape.to_vec());
    Err(ImportError::TensorShape { name, found, want: vec![MAX_ROW_VALUES] })
}

impl TensorRows<'_> {
    fn read(&self, rows: Range<u64>, columns: u64, out: &mut Vec<f32>) -> Result<(), ImportError> {
        if self.order == RowOrder::SAME {
            out.extend(self.tensor.rows(rows.start, rows.end - rows.start, columns)?);
            return Ok(());
        }
        if rows.is_empty() {
            return Ok(());
        }
        let sources: Vec<u64> = rows.map(|row| self.order.source_row(row)).collect();
        // Reads the whole span of the rows if it is less than four times their number, else each
        // run of consecutive rows.
        let (low, high) =
            sources.iter().fold((u64::MAX, 0), |(low, high), &at| (low.min(at), high.max(at)));
        if high - low >= 4 * sources.len() as u64 {
            for run in sources.chunk_by(|a, b| a + 1 == *b) {
                out.extend(self.tensor.rows(run[0], run.len() as u64, columns)?);
            }
            return Ok(());
        }
        let all = self.tensor.rows(low, high + 1 - low, columns)?;
        for at in sources {
            let start = ((at - low) * columns) as usize;
            out.extend_from_slice(&all[start..start + columns as usize]);
        }
        Ok(())
    }
}

/// Reads output rows of transposed matrices. Of each source row, it reads the span of columns that
/// become these rows.
fn read_transposed(
    tensor: &SourceTensor<'_>,
    [source_rows, columns_taken]: [u64; 2],
    [column_order, matrix_order]: [RowOrder; 2],
    rows: Range<u64>,
    columns: u64,
) -> Result<Vec<f32>, ImportError> {
    let (columns_taken, width) = (columns_taken.max(1), columns as usize);
    let mut out = vec![0.0; ((rows.end - rows.start) * columns) as usize];
    let mut start = rows.start;
    while start < rows.end {
        let matrix = start / columns_taken;
        let end = rows.end.min((matrix + 1) * columns_taken);
        let first_row = matrix_order.source_row(matrix) * source_rows;
        let sources: Vec<u64> =
            (start..end).map(|row| column_order.source_row(row % columns_taken)).collect();
        let (low, high) =
            sources.iter().fold((u64::MAX, 0), |(low, high), &at| (low.min(at), high.max(at)));
        let target = &mut out[((start - rows.start) * columns) as usize..];
        for k in 0..width {
            let values = tensor.row_values(first_row + k as u64, low, high + 1 - low)?;
            for (row, at) in target.chunks_mut(width).zip(&sources) {
                row[k] = values[(at - low) as usize];
            }
        }
        start = end;
    }
    Ok(out)
}

/// Converts MXFP4 blocks to GGUF's layout: an exponent, then values 0 to 15 in the low halves of 16
/// bytes and values 16 to 31 in the high halves. In the source, adjacent values share a byte.
fn repack_mxfp4(
    parts: &[[SourceTensor<'_>; 2]],
    rows_per_part: u64,
    order: RowOrder,
    rows: Range<u64>,
    columns: u64,
) -> Result<Vec<u8>, ImportError> {
    let count = (columns / 32) as usize;
    let (mut codes, mut exponents) = (vec![0; count * 16], vec![0; count]);
    let mut out = Vec::with_capacity((rows.end - rows.start) as usize * count * 17);
    for row in rows {
        let [blocks, scales] = &parts[(row / rows_per_part) as usize];
        let at = order.source_row(row % rows_per_part) * count as u64;
        blocks.bytes(at * 16, &mut codes)?;
        scales.bytes(at, &mut exponents)?;
        for (codes, exponent) in codes.as_chunks::<16>().0.iter().zip(&exponents) {
            out.push(*exponent);
            let code = |i: usize| codes[i / 2] >> (4 * (i % 2)) & 15;
            out.extend((0..16).map(|i| code(i) | code(i + 16) << 4));
        }
    }
    Ok(out)
}

/// Converts integers of 32 or 64 bits to I32.
fn int32_bytes(tensor: &SourceTensor<'_>, range: Range<u64>) -> Result<Vec<u8>, ImportError> {
    let size = tensor.entry.dtype.size();
    let mut bytes = vec![0; ((range.end - range.start) * size) as usize];
    tensor.bytes(range.start, &mut bytes)?;
    match tensor.entry.dtype {
        Dtype::I32 => Ok(bytes),
        Dtype::I64 => {
            let numbers = bytes
                .as_chunks::<8>()
                .0
                .iter()
                .map(|word| i32::try_from(i64::from_le_bytes(*word)));
            let words =
                numbers.map(|number| number.map(i32::to_le_bytes)).collect::<Result<Vec<_>, _>>();
            words.map(|words| words.concat()).map_err(|_| tensor.bad_type())
        }
        _ => Err(tensor.bad_type()),
    }
}

/// Sorts by layer number; tensors outside of layers come first.
pub(super) fn sort_by_layer(outputs: &mut [OutputTensor<'_>]) {
    outputs.sort_by_key(|output| {
        let number =
            output.name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok());
        (number.map_or(0, |n: u32| u64::from(n) + 1), output.name.clone())
    });
}

/// Changes F16 tensors with values beyond the range of F16 to F32.
pub(super) fn widen_overflowing(
    outputs: &mut [OutputTensor<'_>],
    report: ProgressReport<'_>,
) -> Result<(), StoreError> {
    outputs.iter().try_for_each(OutputTensor::check_width)?;
    let candidates = outputs.iter().enumerate().filter(|(_, output)| output.may_overflow());
    let chunks: Vec<(usize, Range<u64>)> = candidates
        .flat_map(|(number, output)| output.chunks().map(move |rows| (number, rows)))
        .collect();
    let total = chunks.iter().map(|(number, rows)| outputs[*number].source_bytes(rows)).sum();
    let (mut done, mut large) = (0, BTreeSet::new());
    let is_large = |at: usize| -> Result<bool, StoreError> {
        let (number, rows) = &chunks[at];
        let output = &outputs[*number];
        let values = output.values(rows.start, rows.end, output.columns())?;
        Ok(values.iter().any(|x| x.abs() >= F16_OVERFLOW))
    };
    ordered_tasks::run_in_order(
        ordered_tasks::thread_count(0),
        chunks.len(),
        is_large,
        |at, is_large| {
            let (number, rows) = &chunks[at];
            large.extend(is_large.then_some(*number));
            done += outputs[*number].source_bytes(rows);
            report("reading weights", done, total);
            Ok(())
        },
    )?;
    for number in large {
        outputs[number].ty = TensorType::F32;
    }
    Ok(())
}

/// Writes the file: metadata, then all tensors in their order.
pub(super) fn write_file(
    mut writer: Writer,
    outputs: &[OutputTensor<'_>],
    out: &mut dyn Write,
    report: ProgressReport<'_>,
) -> Result<(), StoreError> {
    for output in outputs {
        output.check_width()?;
        let shape: Vec<u64> = output.shape.iter().rev().copied().collect();
        writer.tensor(&output.name, output.ty, &shape)?;
    }
    let total = writer.tensors().iter().map(|tensor| tensor.size).sum();
    let chunks: Vec<(&OutputTensor<'_>, Range<u64>)> =
        outputs.iter().flat_map(|output| output.chunks().map(move |rows| (output, rows))).collect();
    let mut body = writer.start(out)?;
    let mut done = 0;
    let make = |at: usize| {
        let (output, rows) = &chunks[at];
        output.encode(rows.start, rows.end)
    };
    ordered_tasks::run_in_order(ordered_tasks::thread_count(0), chunks.len(), make, |_, bytes| {
        body.write(&bytes)?;
        done += bytes.len() as u64;
        report(CONVERTING_STATUS, done, total);
        Ok(())
    })?;
    body.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_map_output_rows_to_source_rows() {
        let source_rows =
            |order: RowOrder, rows| (0..rows).map(|row| order.source_row(row)).collect::<Vec<_>>();
        assert_eq!(
            source_rows(RowOrder::of(RowMapping::InterleaveHalves { head_dim: 4 }), 8),
            [0, 2, 1, 3, 4, 6, 5, 7]
        );
        assert_eq!(
            source_rows(RowOrder::of(RowMapping::Strided { step: 2, first: 1 }), 3),
            [1, 3, 5]
        );
        let window = RowOrder::of(RowMapping::Window { period: 6, offset: 2, count: 4 });
        assert_eq!(source_rows(window, 6), [2, 3, 4, 5, 8, 9]);
        assert_eq!(
            source_rows(window.preceded_by(RowMapping::InterleaveHalves { head_dim: 4 }), 6),
            [2, 4, 3, 5, 8, 10]
        );
        let grouped =
            RowOrder::of(RowMapping::GroupHeads { groups: 2, heads_per_group: 3, head_dim: 1 });
        assert_eq!(source_rows(grouped, 8), [0, 2, 4, 1, 3, 5, 6, 8]);
        assert_eq!(
            source_rows(RowOrder::SAME.preceded_by(RowMapping::Offset { rows: 3 }), 2),
            [3, 4]
        );
        let swapped = RowOrder::of(RowMapping::SwapBlocks { block_rows: 2, first: 0, second: 2 });
        assert_eq!(source_rows(swapped, 8), [4, 5, 2, 3, 0, 1, 6, 7]);
    }

    #[test]
    fn transforms_change_values() {
        let bands = RowBands { ends: [1, 2, 2, 4], factors: [1.0, 10.0, 0.0, 100.0, 1000.0] };
        let mut values = [1.0; 8];
        ValueTransform::ScaleBands(bands).apply(&mut values, 1, 2);
        assert_eq!(values, [10.0, 10.0, 100.0, 100.0, 100.0, 100.0, 1000.0, 1000.0]);
        let mut values = [0.0, 1.0];
        ValueTransform::NegativeExp.apply(&mut values, 0, 1);
        assert_eq!(values, [-1.0, -std::f32::consts::E]);
        let mut values = [1.0; 5];
        ValueTransform::NegateSecondHalves { head_dim: 4 }.apply(&mut values, 1, 1);
        assert_eq!(values, [1.0, -1.0, -1.0, 1.0, 1.0]);
        let mut values = [0.0, 0.7, -0.8, 5.0, -5.0, 0.25];
        ValueTransform::RoundToTernary(0.5).apply(&mut values, 0, 6);
        assert_eq!(values, [0.0, 0.5, -0.5, 0.5, -0.5, 0.0]);
    }
}

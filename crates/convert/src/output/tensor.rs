//! Tensors of the GGUF file: each names the source rows that it consists of. Values are converted
//! while the file is written, in chunks, so that memory use does not depend on the model's size.

use std::ops::Range;

use puna_quant::{TensorType, quantize};

use super::row_order::RowOrder;
use super::value_transform::ValueTransform;
use crate::error::ConvertError;
use crate::source::{Dtype, SourceTensor};

/// Values that a thread converts at a time.
const CHUNK_VALUES: u64 = 1 << 20;
/// Largest number of values in a row.
const MAX_ROW_VALUES: u64 = 1 << 26;

/// A tensor of the file.
pub(crate) struct OutputTensor<'a> {
    pub(crate) name: String,
    pub(crate) ty: TensorType,
    /// Dimensions, slowest first.
    pub(crate) shape: Vec<u64>,
    pub(crate) content: TensorContent<'a>,
}

/// The source of a tensor's values.
pub(crate) enum TensorContent<'a> {
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
pub(crate) struct TensorRows<'a> {
    pub(crate) tensor: SourceTensor<'a>,
    /// Number of rows.
    pub(crate) rows: u64,
    pub(crate) order: RowOrder,
}

impl<'a> OutputTensor<'a> {
    /// Rows of a tensor in some order. A vector in another order than its own has rows of one
    /// value.
    pub(crate) fn rows(
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

    pub(super) fn columns(&self) -> u64 {
        match &self.content {
            TensorContent::Rows { columns, .. } | TensorContent::ZerosThenRows { columns, .. } => {
                *columns
            }
            _ => self.shape.last().copied().unwrap_or(1),
        }
    }

    /// Whether the tensor is F16 and its sources may have values beyond the range of F16.
    pub(super) fn may_overflow(&self) -> bool {
        let TensorContent::Rows { parts, .. } = &self.content else { return false };
        self.ty == TensorType::F16 && parts.iter().any(|part| part.tensor.entry.dtype != Dtype::F16)
    }

    /// Size in bytes of the source of some rows.
    pub(super) fn source_bytes(&self, rows: &Range<u64>) -> u64 {
        let TensorContent::Rows { parts, .. } = &self.content else { return 0 };
        let size = parts.first().map_or(0, |part| part.tensor.entry.dtype.size());
        (rows.end - rows.start) * self.columns() * size
    }

    /// Splits the rows into ranges of similar size.
    pub(super) fn chunks(&self) -> impl Iterator<Item = Range<u64>> + use<> {
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

    pub(super) fn check_width(&self) -> Result<(), ConvertError> {
        check_width(&self.name, &self.shape, self.columns())
    }

    fn row_count(&self) -> u64 {
        self.shape.iter().product::<u64>() / self.columns().max(1)
    }

    /// The encoded bytes of a range of rows.
    pub(super) fn encode(&self, from: u64, to: u64) -> Result<Vec<u8>, ConvertError> {
        let columns = self.columns();
        if let TensorContent::Mxfp4 { parts, rows_per_part, order } = &self.content {
            return repack_mxfp4(parts, *rows_per_part, *order, from..to, columns);
        }
        if let TensorContent::Integers(tensor) = &self.content {
            return int32_bytes(tensor, from * columns..to * columns);
        }
        if let Some(bytes) = self.copy_unchanged(from, to, columns)? {
            return Ok(bytes);
        }
        let values = self.values(from, to, columns)?;
        let mut out = vec![0; values.len() / self.ty.block_values() * self.ty.block_bytes()];
        quantize(self.ty, &values, values.len().max(1), None, &mut out).map_err(|e| {
            ConvertError::Quantize { tensor: self.name.clone(), reason: e.to_string() }
        })?;
        Ok(out)
    }

    /// The bytes of a range of rows if the source has them in the target's type and order.
    fn copy_unchanged(
        &self,
        from: u64,
        to: u64,
        columns: u64,
    ) -> Result<Option<Vec<u8>>, ConvertError> {
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

    pub(super) fn values(
        &self,
        from: u64,
        to: u64,
        columns: u64,
    ) -> Result<Vec<f32>, ConvertError> {
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
pub(crate) fn check_width(name: &str, shape: &[u64], columns: u64) -> Result<(), ConvertError> {
    if columns <= MAX_ROW_VALUES {
        return Ok(());
    }
    let (name, found) = (name.to_owned(), shape.to_vec());
    Err(ConvertError::TensorShape { name, found, want: vec![MAX_ROW_VALUES] })
}

impl TensorRows<'_> {
    fn read(&self, rows: Range<u64>, columns: u64, out: &mut Vec<f32>) -> Result<(), ConvertError> {
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
) -> Result<Vec<f32>, ConvertError> {
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
) -> Result<Vec<u8>, ConvertError> {
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
fn int32_bytes(tensor: &SourceTensor<'_>, range: Range<u64>) -> Result<Vec<u8>, ConvertError> {
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

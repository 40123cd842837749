//! What is written: tensors of the GGUF file, each with the rows of other tensors that it is made of. They are converted
//! while they are written, a few pieces at a time, so that memory does not grow with the model.

use std::collections::BTreeSet;
use std::io::Write;
use std::ops::Range;

use puna_gguf::Writer;
use puna_quant::{TensorType, quantize};

use super::safetensors::Dtype;
use super::weights::Tensor;
use super::{CONVERTING, ImportError, Report};
use crate::error::StoreError;
use crate::inorder;

/// Values that a thread converts at a time.
const PIECE_VALUES: u64 = 1 << 20;
/// No row is wider.
const WIDTH_LIMIT: u64 = 1 << 26;
/// The largest size that F16 rounds to something finite.
const F16_LIMIT: f32 = 65520.0;

/// A tensor of the file.
pub(super) struct Output<'a> {
    pub(super) name: String,
    pub(super) ty: TensorType,
    /// Dimensions, slowest first.
    pub(super) shape: Vec<u64>,
    pub(super) content: Content<'a>,
}

/// Where its values come from.
pub(super) enum Content<'a> {
    /// Rows of so many values of tensors, one behind the other, with a change of each value. What the tensors have too few
    /// of is zero.
    Rows { parts: Vec<Part<'a>>, columns: u64, change: Change },
    /// Rows of zeros, and those of a tensor behind them.
    Behind { zeros: u64, part: Part<'a>, columns: u64 },
    /// Matrices with rows and columns exchanged, so many columns of each in some order, and they in another. In the source
    /// one begins so many rows behind the other.
    Transposed {
        tensor: Tensor<'a>,
        each: u64,
        take: u64,
        order: Order,
        matrices: Order,
        change: Change,
    },
    /// A matrix whose columns are in some order.
    Columns { tensor: Tensor<'a>, order: Order },
    /// Blocks of 32 four-bit numbers, and their exponents: of tensors that come one behind the other, with so many rows each.
    Mxfp4 { parts: Vec<[Tensor<'a>; 2]>, rows: u64, order: Order },
    /// Whole numbers.
    Whole(Tensor<'a>),
    /// Numbers that the configuration gives.
    Given(Vec<f32>),
}

/// Rows of one tensor.
pub(super) struct Part<'a> {
    pub(super) tensor: Tensor<'a>,
    /// How many there are.
    pub(super) rows: u64,
    pub(super) order: Order,
}

/// What becomes of each value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Change {
    None,
    Add(f32),
    Times(f32),
    /// A rate of decay is stored as the logarithm of its size.
    Rate,
    /// The same, of which the size is wanted.
    Exp,
    /// Bands of rows have numbers of their own.
    Bands(Bands),
    /// Of each head of so many rows the second half changes its sign.
    Opposed {
        head: u64,
    },
    /// The nearest of this number, zero and its opposite.
    Thirds(f32),
}

/// Numbers that bands of rows are multiplied by, and where the bands but the last one end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bands {
    pub(super) ends: [u64; 4],
    pub(super) times: [f32; 5],
}

impl Bands {
    fn of(&self, row: u64) -> f32 {
        self.times[self.ends.iter().filter(|&&end| end <= row).count()]
    }
}

impl Change {
    /// Changes the values of rows from one on.
    fn apply(self, values: &mut [f32], from: u64, columns: u64) {
        match self {
            Change::None => {}
            Change::Add(number) => values.iter_mut().for_each(|x| *x += number),
            Change::Times(number) => values.iter_mut().for_each(|x| *x *= number),
            Change::Rate => values.iter_mut().for_each(|x| *x = -x.exp()),
            Change::Exp => values.iter_mut().for_each(|x| *x = x.exp()),
            Change::Bands(bands) => by_row(values, from, columns, |row| bands.of(row)),
            Change::Opposed { head } => {
                let sign = |row| if row % head.max(1) < head / 2 { 1.0 } else { -1.0 };
                by_row(values, from, columns, sign);
            }
            // Divided by what one is divided by, as those who train such weights do.
            Change::Thirds(size) => {
                let times = 1.0 / size;
                values
                    .iter_mut()
                    .for_each(|x| *x = (*x * times).round_ties_even().clamp(-1.0, 1.0) / times);
            }
        }
    }
}

/// Multiplies the values of each row, from one on, by its number.
fn by_row(values: &mut [f32], from: u64, columns: u64, number: impl Fn(u64) -> f32) {
    let rows = values.chunks_mut(usize::try_from(columns.max(1)).unwrap_or(usize::MAX));
    for (row, values) in (from..).zip(rows) {
        let number = number(row);
        values.iter_mut().for_each(|x| *x *= number);
    }
}

/// Which row of the source is a row: what the first step answers is what the second is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Order {
    first: Step,
    then: Step,
}

/// Where a row comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Step {
    Same,
    /// Within a head of so many rows the two halves in turns: pairs that turn together stand side by side.
    Paired {
        head: u64,
    },
    /// The rows from one on.
    From {
        first: u64,
    },
    /// Every so many-eth row, from the first.
    Every {
        step: u64,
        first: u64,
    },
    /// Of each so many rows those from one on.
    Window {
        each: u64,
        from: u64,
        take: u64,
    },
    /// Of so many groups of heads those of each side by side, which come in turns in the source.
    Crossed {
        groups: u64,
        each: u64,
        head: u64,
    },
    /// Two blocks of so many rows stand in each other's place.
    Exchanged {
        block: u64,
        one: u64,
        other: u64,
    },
}

impl Step {
    fn source(self, row: u64) -> u64 {
        match self {
            Step::Same => row,
            Step::From { first } => row + first,
            Step::Paired { head } => {
                let (start, at) = (row / head * head, row % head);
                start + at % 2 * (head / 2) + at / 2
            }
            Step::Every { step, first } => row * step + first,
            Step::Window { each, from, take } => row / take * each + from + row % take,
            Step::Crossed { groups, each, head } => {
                let (start, at) =
                    (row - row % (groups * each * head), row % (groups * each * head));
                let (group, within) = (at / (each * head), at / head % each);
                start + (within * groups + group) * head + at % head
            }
            Step::Exchanged { block, one, other } => {
                let at = match row / block {
                    at if at == one => other,
                    at if at == other => one,
                    at => at,
                };
                at * block + row % block
            }
        }
    }
}

impl Order {
    pub(super) const SAME: Self = Self::of(Step::Same);

    pub(super) const fn of(step: Step) -> Self {
        Self { first: step, then: Step::Same }
    }

    /// The rows of this order by those of a step before it.
    pub(super) fn after(self, step: Step) -> Self {
        match self.first {
            Step::Same => Self { first: step, ..self },
            first => Self { first: step, then: first },
        }
    }

    fn source(self, row: u64) -> u64 {
        self.then.source(self.first.source(row))
    }
}

impl<'a> Output<'a> {
    /// Rows of a tensor in some order; a vector that changes places has rows of one.
    pub(super) fn rows(
        name: String,
        ty: TensorType,
        shape: Vec<u64>,
        tensor: Tensor<'a>,
        order: Order,
    ) -> Self {
        let columns = match shape[..] {
            [_] if order != Order::SAME => 1,
            _ => shape.last().copied().unwrap_or(1),
        };
        let rows = shape.iter().product::<u64>() / columns.max(1);
        let parts = vec![Part { tensor, rows, order }];
        Self { name, ty, shape, content: Content::Rows { parts, columns, change: Change::None } }
    }

    fn columns(&self) -> u64 {
        match &self.content {
            Content::Rows { columns, .. } | Content::Behind { columns, .. } => *columns,
            _ => self.shape.last().copied().unwrap_or(1),
        }
    }

    /// Whether it is to be F16, and values of its source may be too large for that.
    fn may_overflow(&self) -> bool {
        let Content::Rows { parts, .. } = &self.content else { return false };
        self.ty == TensorType::F16 && parts.iter().any(|part| part.tensor.entry.dtype != Dtype::F16)
    }

    /// Bytes of the source of so many rows.
    fn source_bytes(&self, rows: &Range<u64>) -> u64 {
        let Content::Rows { parts, .. } = &self.content else { return 0 };
        let size = parts.first().map_or(0, |part| part.tensor.entry.dtype.size());
        (rows.end - rows.start) * self.columns() * size
    }

    /// Ranges of rows to work on, of about one size.
    fn pieces(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        // Columns are read in short runs: the longer the fewer.
        let values = if let Content::Transposed { .. } = self.content {
            8 * PIECE_VALUES
        } else {
            PIECE_VALUES
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

    /// The bytes of rows.
    fn bytes(&self, from: u64, to: u64) -> Result<Vec<u8>, StoreError> {
        let columns = self.columns();
        if let Content::Mxfp4 { parts, rows, order } = &self.content {
            return Ok(repacked(parts, *rows, *order, from..to, columns)?);
        }
        if let Content::Whole(tensor) = &self.content {
            return Ok(whole(tensor, from * columns..to * columns)?);
        }
        if let Some(bytes) = self.copied(from, to, columns)? {
            return Ok(bytes);
        }
        let values = self.values(from, to, columns)?;
        let mut out = vec![0; values.len() / self.ty.block_values() * self.ty.block_bytes()];
        quantize(self.ty, &values, values.len().max(1), None, &mut out).map_err(|e| {
            StoreError::Quantize { tensor: self.name.clone(), reason: e.to_string() }
        })?;
        Ok(out)
    }

    /// The bytes of rows that need no change.
    fn copied(&self, from: u64, to: u64, columns: u64) -> Result<Option<Vec<u8>>, ImportError> {
        let Content::Rows { parts, change: Change::None, .. } = &self.content else {
            return Ok(None);
        };
        let dtype = match self.ty {
            TensorType::F16 => Dtype::F16,
            TensorType::BF16 => Dtype::BF16,
            TensorType::F32 => Dtype::F32,
            _ => return Ok(None),
        };
        let [Part { tensor, order: Order::SAME, rows }] = &parts[..] else { return Ok(None) };
        if !tensor.is_plain(dtype) || to > *rows {
            return Ok(None);
        }
        let mut bytes = vec![0; ((to - from) * columns * dtype.size()) as usize];
        tensor.bytes(from * columns, &mut bytes)?;
        Ok(Some(bytes))
    }

    fn values(&self, from: u64, to: u64, columns: u64) -> Result<Vec<f32>, ImportError> {
        match &self.content {
            Content::Given(values) => {
                Ok(values[(from * columns) as usize..(to * columns) as usize].to_vec())
            }
            Content::Transposed { tensor, each, take, order, matrices, change } => {
                let mut values =
                    transposed(tensor, [*each, *take], [*order, *matrices], from..to, columns)?;
                change.apply(&mut values, from, columns);
                Ok(values)
            }
            Content::Columns { tensor, order } => {
                let values = tensor.rows(from, to - from, columns)?;
                let rows = values.chunks_exact(columns.max(1) as usize);
                Ok(rows
                    .flat_map(|row| (0..columns).map(|at| row[order.source(at) as usize]))
                    .collect())
            }
            Content::Mxfp4 { .. } | Content::Whole(_) => Ok(Vec::new()),
            Content::Behind { zeros, part, .. } => {
                let mut values =
                    vec![0.0; ((*zeros.min(&to)).saturating_sub(from) * columns) as usize];
                part.read(from.max(*zeros) - zeros..to.max(*zeros) - zeros, columns, &mut values)?;
                Ok(values)
            }
            Content::Rows { parts, change, .. } => {
                let mut values = Vec::with_capacity(((to - from) * columns) as usize);
                let mut start = 0;
                for part in parts {
                    let rows =
                        from.clamp(start, start + part.rows)..to.clamp(start, start + part.rows);
                    part.read(rows.start - start..rows.end - start, columns, &mut values)?;
                    start += part.rows;
                }
                values.resize(((to - from) * columns) as usize, 0.0);
                change.apply(&mut values, from, columns);
                Ok(values)
            }
        }
    }
}

/// Rows are worked on as a whole, several at a time, so those of a tensor may not have more values than these.
pub(super) fn check_width(name: &str, shape: &[u64], columns: u64) -> Result<(), ImportError> {
    if columns <= WIDTH_LIMIT {
        return Ok(());
    }
    let (name, found) = (name.to_owned(), shape.to_vec());
    Err(ImportError::TensorShape { name, found, want: vec![WIDTH_LIMIT] })
}

impl Part<'_> {
    fn read(&self, rows: Range<u64>, columns: u64, out: &mut Vec<f32>) -> Result<(), ImportError> {
        if self.order == Order::SAME {
            out.extend(self.tensor.rows(rows.start, rows.end - rows.start, columns)?);
            return Ok(());
        }
        if rows.is_empty() {
            return Ok(());
        }
        let sources: Vec<u64> = rows.map(|row| self.order.source(row)).collect();
        // What the rows lie within is read at once where they are near each other, else what lies side by side.
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

/// Rows of exchanged matrices, `take` of each: of every row of the source the columns that they lie within are read.
fn transposed(
    tensor: &Tensor<'_>,
    [each, take]: [u64; 2],
    [order, matrices]: [Order; 2],
    rows: Range<u64>,
    columns: u64,
) -> Result<Vec<f32>, ImportError> {
    let (take, width) = (take.max(1), columns as usize);
    let mut out = vec![0.0; ((rows.end - rows.start) * columns) as usize];
    let mut start = rows.start;
    while start < rows.end {
        let matrix = start / take;
        let end = rows.end.min((matrix + 1) * take);
        let source = matrices.source(matrix) * each;
        let sources: Vec<u64> = (start..end).map(|row| order.source(row % take)).collect();
        let (low, high) =
            sources.iter().fold((u64::MAX, 0), |(low, high), &at| (low.min(at), high.max(at)));
        let here = &mut out[((start - rows.start) * columns) as usize..];
        for k in 0..width {
            let values = tensor.span(source + k as u64, low, high + 1 - low)?;
            for (row, at) in here.chunks_mut(width).zip(&sources) {
                row[k] = values[(at - low) as usize];
            }
        }
        start = end;
    }
    Ok(out)
}

/// The blocks of GGUF: an exponent, then the first 16 numbers in the low halves of bytes and the other 16 in the high
/// ones. In the source neighbours share a byte.
fn repacked(
    parts: &[[Tensor<'_>; 2]],
    each: u64,
    order: Order,
    rows: Range<u64>,
    columns: u64,
) -> Result<Vec<u8>, ImportError> {
    let count = (columns / 32) as usize;
    let (mut codes, mut exponents) = (vec![0; count * 16], vec![0; count]);
    let mut out = Vec::with_capacity((rows.end - rows.start) as usize * count * 17);
    for row in rows {
        let [blocks, scales] = &parts[(row / each) as usize];
        let at = order.source(row % each) * count as u64;
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

/// Numbers of 32 bits that a tensor holds in as many or in 64.
fn whole(tensor: &Tensor<'_>, range: Range<u64>) -> Result<Vec<u8>, ImportError> {
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

/// Layers in the order of their numbers, what stands before and behind them first.
pub(super) fn sort(outputs: &mut [Output<'_>]) {
    outputs.sort_by_key(|output| {
        let number =
            output.name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok());
        (number.map_or(0, |n: u32| u64::from(n) + 1), output.name.clone())
    });
}

/// Makes F32 what was to be F16 and has a value that is too large for it.
pub(super) fn settle(outputs: &mut [Output<'_>], report: Report<'_>) -> Result<(), StoreError> {
    outputs.iter().try_for_each(Output::check_width)?;
    let doubtful = outputs.iter().enumerate().filter(|(_, output)| output.may_overflow());
    let pieces: Vec<(usize, Range<u64>)> = doubtful
        .flat_map(|(number, output)| output.pieces().map(move |rows| (number, rows)))
        .collect();
    let total = pieces.iter().map(|(number, rows)| outputs[*number].source_bytes(rows)).sum();
    let (mut done, mut large) = (0, BTreeSet::new());
    let is_large = |at: usize| -> Result<bool, StoreError> {
        let (number, rows) = &pieces[at];
        let output = &outputs[*number];
        let values = output.values(rows.start, rows.end, output.columns())?;
        Ok(values.iter().any(|x| x.abs() >= F16_LIMIT))
    };
    inorder::each(inorder::threads(0), pieces.len(), is_large, |at, is_large| {
        let (number, rows) = &pieces[at];
        large.extend(is_large.then_some(*number));
        done += outputs[*number].source_bytes(rows);
        report("reading weights", done, total);
        Ok(())
    })?;
    for number in large {
        outputs[number].ty = TensorType::F32;
    }
    Ok(())
}

/// Writes the file: keys, then all tensors in their order.
pub(super) fn write(
    mut writer: Writer,
    outputs: &[Output<'_>],
    out: &mut dyn Write,
    report: Report<'_>,
) -> Result<(), StoreError> {
    for output in outputs {
        output.check_width()?;
        let shape: Vec<u64> = output.shape.iter().rev().copied().collect();
        writer.tensor(&output.name, output.ty, &shape)?;
    }
    let total = writer.tensors().iter().map(|tensor| tensor.size).sum();
    let pieces: Vec<(&Output<'_>, Range<u64>)> =
        outputs.iter().flat_map(|output| output.pieces().map(move |rows| (output, rows))).collect();
    let mut body = writer.start(out)?;
    let mut done = 0;
    let make = |at: usize| {
        let (output, rows) = &pieces[at];
        output.bytes(rows.start, rows.end)
    };
    inorder::each(inorder::threads(0), pieces.len(), make, |_, bytes| {
        body.write(&bytes)?;
        done += bytes.len() as u64;
        report(CONVERTING, done, total);
        Ok(())
    })?;
    body.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_name_the_rows_of_their_sources() {
        let of = |order: Order, rows| (0..rows).map(|row| order.source(row)).collect::<Vec<_>>();
        assert_eq!(of(Order::of(Step::Paired { head: 4 }), 8), [0, 2, 1, 3, 4, 6, 5, 7]);
        assert_eq!(of(Order::of(Step::Every { step: 2, first: 1 }), 3), [1, 3, 5]);
        let window = Order::of(Step::Window { each: 6, from: 2, take: 4 });
        assert_eq!(of(window, 6), [2, 3, 4, 5, 8, 9]);
        assert_eq!(of(window.after(Step::Paired { head: 4 }), 6), [2, 4, 3, 5, 8, 10]);
        let crossed = Order::of(Step::Crossed { groups: 2, each: 3, head: 1 });
        assert_eq!(of(crossed, 8), [0, 2, 4, 1, 3, 5, 6, 8]);
        assert_eq!(of(Order::SAME.after(Step::From { first: 3 }), 2), [3, 4]);
        let exchanged = Order::of(Step::Exchanged { block: 2, one: 0, other: 2 });
        assert_eq!(of(exchanged, 8), [4, 5, 2, 3, 0, 1, 6, 7]);
    }

    #[test]
    fn bands_have_numbers_of_their_own() {
        let bands = Bands { ends: [1, 2, 2, 4], times: [1.0, 10.0, 0.0, 100.0, 1000.0] };
        let mut values = [1.0; 8];
        Change::Bands(bands).apply(&mut values, 1, 2);
        assert_eq!(values, [10.0, 10.0, 100.0, 100.0, 100.0, 100.0, 1000.0, 1000.0]);
        let mut values = [0.0, 1.0];
        Change::Rate.apply(&mut values, 0, 1);
        assert_eq!(values, [-1.0, -std::f32::consts::E]);
        let mut values = [1.0; 5];
        Change::Opposed { head: 4 }.apply(&mut values, 1, 1);
        assert_eq!(values, [1.0, -1.0, -1.0, 1.0, 1.0]);
        let mut values = [0.0, 0.7, -0.8, 5.0, -5.0, 0.25];
        Change::Thirds(0.5).apply(&mut values, 0, 6);
        assert_eq!(values, [0.0, 0.5, -0.5, 0.5, -0.5, 0.0]);
    }
}

//! Products with weight matrices. A task multiplies consecutive weight rows with all activation
//! rows.

use puna_graph::ArenaRange;
use puna_kernels::{Acts, LinearKernel, OutMut, STREAM_ROWS, Scratch, WeightRows};
use puna_quant::TensorType;

use crate::ops::norm::TiledInput;
use crate::step::{Instruction, Step, ThreadScratch};

/// Bytes of weights per task if weights are streamed: large enough for the prefetcher, small enough
/// that a slow thread does not delay the step.
const STREAM_BYTES: usize = 48 << 10;

/// Weight rows per streaming task are a multiple of this: whole cache lines of results.
const STREAM_UNIT: usize = 16;

/// One weight matrix and its result.
pub struct Matrix {
    pub w: usize,
    pub ty: TensorType,
    pub kernel: LinearKernel,
    /// Rows of the matrix, which are columns of the result.
    pub n: usize,
    pub row_bytes: usize,
    pub scale: f32,
    pub bias: Vec<f32>,
    pub out: ArenaRange,
}

impl Matrix {
    /// Weight rows per task for `rows` activation rows.
    pub fn rows_per_task(&self, rows: usize, threads: usize) -> usize {
        let streams = rows <= self.kernel.stream_rows;
        let unit = if streams { STREAM_UNIT } else { self.kernel.panel_rows.max(1) };
        let rows = if streams {
            // Each call reorders the activations for the format, so more activation rows need more
            // weight rows per call.
            let min = STREAM_BYTES / self.row_bytes.max(1);
            (min * rows).min((self.n / (threads * 4)).max(min))
        } else {
            // Enough tasks that threads finish together, but enough rows per task to amortise the
            // packing of activations, which each call repeats. Tiles are packed once for all calls,
            // so tasks can be smaller.
            let min = if self.kernel.tiles.is_some() { unit } else { 4 * unit };
            (self.n / (threads * 4)).clamp(min, 16 * unit)
        };
        rows.next_multiple_of(unit).max(unit)
    }
}

/// Several weight matrices with the same input.
pub struct LinearGroup {
    pub matrices: Vec<Matrix>,
    pub x: ArenaRange,
    pub k: usize,
    /// Buffer of the input quantized to 8 bits, if the kernels take that.
    pub q8: Option<usize>,
    /// The input in tiles, if the kernels for many rows take that.
    pub tiles: Option<TiledInput>,
}

impl LinearGroup {
    /// The input in the form that the kernels take.
    fn acts<'a>(&self, step: &'a Step<'_>) -> Acts<'a> {
        let rows = step.rows(self.x.rows);
        if let Some(tiled) = self.tiles.filter(|_| rows > STREAM_ROWS) {
            // SAFETY: an earlier instruction wrote it, behind a barrier; no task writes it.
            return Acts::Tiles(unsafe {
                step.tiles[tiled.buffer].rows(0, rows, self.k, tiled.form.parts)
            });
        }
        match self.q8 {
            // SAFETY: an earlier instruction wrote it, behind a barrier; no task writes it.
            Some(buffer) => Acts::Q8(unsafe { step.q8[buffer].rows(0, rows, self.k) }),
            None => {
                // SAFETY: an earlier instruction computed it, behind a barrier; the planner keeps
                // results apart from it.
                let x = unsafe { step.arena.slice(self.x.start, rows * self.k) };
                Acts::F32 { rows, k: self.k, x }
            }
        }
    }
}

// SAFETY: a task writes its own columns of the results.
unsafe impl Instruction for LinearGroup {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        let rows = step.rows(self.x.rows);
        if rows == 0 {
            return 0;
        }
        self.matrices.iter().map(|m| m.n.div_ceil(m.rows_per_task(rows, step.threads))).sum()
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, scratch: &mut ThreadScratch) {
        let rows = step.rows(self.x.rows);
        let mut task = task;
        for m in &self.matrices {
            let each = m.rows_per_task(rows, step.threads);
            let tasks = m.n.div_ceil(each);
            if task < tasks {
                let first = task * each;
                return multiply(
                    m,
                    first,
                    each.min(m.n - first),
                    rows,
                    self.acts(step),
                    step,
                    &mut scratch.kernel,
                );
            }
            task -= tasks;
        }
    }

    fn work(&self, step: &Step<'_>) -> (u64, u64) {
        let rows = step.rows(self.x.rows) as u64;
        let bytes = self.matrices.iter().map(|m| (m.n * m.row_bytes) as u64).sum();
        let macs = self.matrices.iter().map(|m| (m.n * self.k) as u64 * rows).sum();
        (bytes, macs)
    }
}

/// Multiplies weight rows `first .. first + count` with all rows of `acts`.
fn multiply(
    m: &Matrix,
    first: usize,
    count: usize,
    rows: usize,
    acts: Acts<'_>,
    step: &Step<'_>,
    scratch: &mut Scratch,
) {
    let data = &step.weight(m.w)[first * m.row_bytes..][..count * m.row_bytes];
    let w = WeightRows { ty: m.ty, rows: count, k: acts.k(), data };
    let start = |row: usize| m.out.start + first + row * m.out.stride;
    let base = step.arena.address(start(0), (rows - 1) * m.out.stride + count);
    // SAFETY: the window is in bounds, and tasks write disjoint columns of the result.
    let out = unsafe { OutMut::from_raw(base, m.out.stride, rows, count) };
    (m.kernel.for_rows(rows))(w, acts, out, scratch);
    if m.scale == 1.0 && m.bias.is_empty() {
        return;
    }
    for row in 0..rows {
        // SAFETY: as above.
        let out = unsafe { step.arena.slice_mut(start(row), count) };
        if m.scale != 1.0 {
            out.iter_mut().for_each(|x| *x *= m.scale);
        }
        if !m.bias.is_empty() {
            (step.level.vector.add)(out, &m.bias[first..first + count]);
        }
    }
}

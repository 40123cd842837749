//! Products with weight matrices: weight rows are dealt out in runs, all activation rows at once.

use puna_graph::Place;
use puna_kernels::{Acts, LinearKernel, OutMut, STREAM_ROWS, Scratch, WeightRows};
use puna_quant::TensorType;

use crate::ops::norm::Tiled;
use crate::step::{Instruction, Local, Step};

/// Bytes of weights that a task reads when weights are streamed: large enough for the prefetcher, small enough that a slow
/// thread holds nobody up.
const STREAM_BYTES: usize = 48 << 10;

/// Weight rows that streaming tasks take a multiple of: whole cache lines of results.
const STREAM_UNIT: usize = 16;

/// One matrix.
pub struct Matrix {
    pub w: usize,
    pub ty: TensorType,
    pub kernel: LinearKernel,
    /// Rows of the matrix: columns of the result.
    pub n: usize,
    pub row_bytes: usize,
    pub scale: f32,
    pub bias: Vec<f32>,
    pub out: Place,
}

impl Matrix {
    /// Weight rows a task takes with `rows` rows of activations.
    pub fn rows_a_task(&self, rows: usize, threads: usize) -> usize {
        let streams = rows <= self.kernel.stream_rows;
        let unit = if streams { STREAM_UNIT } else { self.kernel.panel_rows.max(1) };
        let rows = if streams {
            // Each call brings the activations into the order of the format: the more there are, the more weights it is to take.
            let least = STREAM_BYTES / self.row_bytes.max(1);
            (least * rows).min((self.n / (threads * 4)).max(least))
        } else {
            // Enough tasks that threads finish together, and enough rows that the activations, which each call
            // packs for itself, are packed rarely.
            // Tiles are packed once for all: there more threads count for more.
            let least = if self.kernel.tiles.is_some() { unit } else { 4 * unit };
            (self.n / (threads * 4)).clamp(least, 16 * unit)
        };
        rows.next_multiple_of(unit).max(unit)
    }
}

/// Several matrices with the same input.
pub struct LinearGroup {
    pub matrices: Vec<Matrix>,
    pub x: Place,
    pub k: usize,
    /// The rounded input, where the kernels want it so.
    pub q8: Option<usize>,
    /// The input in tiles, where the kernels for many rows want it so.
    pub tiles: Option<Tiled>,
}

impl LinearGroup {
    /// The input in the form that the kernels take.
    fn acts<'a>(&self, step: &'a Step<'_>) -> Acts<'a> {
        let rows = step.rows(self.x.rows);
        if let Some(tiled) = self.tiles.filter(|_| rows > STREAM_ROWS) {
            // SAFETY: interleaved before a barrier; nobody writes it now.
            return Acts::Tiles(unsafe { step.tiles[tiled.buffer].rows(0, rows, self.k, tiled.form.parts) });
        }
        match self.q8 {
            // SAFETY: rounded before a barrier; nobody writes it now.
            Some(buffer) => Acts::Q8(unsafe { step.q8[buffer].rows(0, rows, self.k) }),
            None => {
                // SAFETY: the input was computed before a barrier and the planner keeps results apart from it.
                let x = unsafe { step.arena.slice(self.x.start, rows * self.k) };
                Acts::F32 { rows, k: self.k, x }
            }
        }
    }
}

// SAFETY: a task writes columns of the results that are its own.
unsafe impl Instruction for LinearGroup {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        let rows = step.rows(self.x.rows);
        if rows == 0 {
            return 0;
        }
        self.matrices.iter().map(|m| m.n.div_ceil(m.rows_a_task(rows, step.threads))).sum()
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, local: &mut Local) {
        let rows = step.rows(self.x.rows);
        let mut task = task;
        for m in &self.matrices {
            let each = m.rows_a_task(rows, step.threads);
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
                    &mut local.scratch,
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

/// Weight rows `first .. first + count` times all rows of `acts`.
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

//! Norms over rows or heads, and rounding of activations for the products that follow.

use puna_graph::ArenaRange;
use puna_kernels::{AMX_SLICE, STREAM_ROWS, TILE_ROWS, TileForm, slice_len};

use crate::step::{Instruction, Step, ThreadScratch, row_tasks, task_rows};

/// RMS norm or layer norm over groups of columns.
pub struct NormRows {
    pub x: ArenaRange,
    pub out: ArenaRange,
    /// Values of one group or of the whole row; empty means ones.
    pub w: Vec<f32>,
    /// Bias of layer norms, as `w`.
    pub b: Vec<f32>,
    pub eps: f32,
    /// Columns that are normalized together.
    pub group: usize,
    pub kind: NormKind,
}

impl NormRows {
    /// The values of `all` for the i-th group of a row.
    fn of_group<'a>(&self, all: &'a [f32], i: usize) -> &'a [f32] {
        all.chunks_exact(self.group).cycle().nth(i).unwrap_or_default()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    Rms,
    Layer,
}

// SAFETY: a task writes its own rows of the result.
unsafe impl Instruction for NormRows {
    fn name(&self) -> &'static str {
        match self.kind {
            NormKind::Rms => "rms_norm",
            NormKind::Layer => "layer_norm",
        }
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, scratch: &mut ThreadScratch) {
        let vector = &step.level.vector;
        scratch.floats.resize(self.x.cols, 0.0);
        let input = &mut scratch.floats[..];
        for row in task_rows(task, &self.out, step) {
            // The result may lie where the input does, so the input is copied first.
            // SAFETY: each row belongs to one task, and the two borrows do not overlap in time.
            input.copy_from_slice(unsafe { step.arena.row(&self.x, row) });
            // SAFETY: as above.
            let out = unsafe { step.arena.row_mut(&self.out, row) };
            let groups = input.chunks_exact(self.group).zip(out.chunks_exact_mut(self.group));
            for (i, (x, y)) in groups.enumerate() {
                let (w, b) = (self.of_group(&self.w, i), self.of_group(&self.b, i));
                match self.kind {
                    NormKind::Rms => (vector.rms_norm)(x, w, self.eps, y),
                    NormKind::Layer => (vector.layer_norm)(x, w, b, self.eps, y),
                }
            }
        }
    }
}

/// Quantizes rows for the products that read them: to 8 bits for few rows, or to tiles for many
/// rows if kernels take them.
pub struct Quantize {
    pub x: ArenaRange,
    pub q8: Option<QuantizedInput>,
    pub tiles: Option<TiledInput>,
}

/// Buffer of rows quantized to 8 bits.
#[derive(Clone, Copy)]
pub struct QuantizedInput {
    /// Index of the buffer.
    pub buffer: usize,
    /// Whether some products read them also in steps of many rows.
    pub always: bool,
}

/// Buffer of rows in tiles, in steps of many rows.
#[derive(Clone, Copy)]
pub struct TiledInput {
    /// Index of the buffer.
    pub buffer: usize,
    pub form: TileForm,
}

/// Number of slices of K that a task interleaves, for 16 rows.
const SLICES_A_TASK: usize = 8;

impl Quantize {
    /// Tasks that round to 8 bits, and that interleave.
    fn parts(&self, step: &Step<'_>) -> (usize, usize) {
        let rows = step.rows(self.x.rows);
        let rounds = self.q8.is_some_and(|q8| q8.always || rows <= STREAM_ROWS);
        let interleaves = self.tiles.is_some() && rows > STREAM_ROWS;
        let runs = self.x.cols.div_ceil(AMX_SLICE * SLICES_A_TASK);
        (
            if rounds { row_tasks(&self.x, step) } else { 0 },
            if interleaves { rows.div_ceil(TILE_ROWS) * runs } else { 0 },
        )
    }

    /// Interleaves 16 rows over some slices.
    ///
    /// # Safety
    /// As for [`Instruction::run`].
    unsafe fn interleave(&self, tiled: TiledInput, task: usize, step: &Step<'_>) {
        let (rows, k) = (step.rows(self.x.rows), self.x.cols);
        let slices = k.div_ceil(AMX_SLICE);
        let runs = slices.div_ceil(SLICES_A_TASK);
        let (tile, run) = (task / runs, task % runs * SLICES_A_TASK);
        let count = (rows - tile * TILE_ROWS).min(TILE_ROWS);
        for slice in run..(run + SLICES_A_TASK).min(slices) {
            let len = slice_len(k, slice);
            let start = self.x.start + tile * TILE_ROWS * self.x.stride + slice * AMX_SLICE;
            // SAFETY: the input was computed before a barrier; pieces do not overlap and each
            // belongs to one task.
            unsafe {
                let x = step.arena.slice(start, (count - 1) * self.x.stride + len);
                let to = &step.tiles[tiled.buffer];
                let [high, low] = to.piece(0, (rows, k, tiled.form.parts), tile, slice);
                (tiled.form.interleave)(x, self.x.stride, count, len, high, low);
            }
        }
    }
}

// SAFETY: a task writes its own rows of the result.
unsafe impl Instruction for Quantize {
    fn name(&self) -> &'static str {
        "quantize"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        let (rounds, interleaves) = self.parts(step);
        rounds + interleaves
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        let (rounds, _) = self.parts(step);
        match (self.q8, self.tiles) {
            (Some(q8), _) if task < rounds => {
                for row in task_rows(task, &self.x, step) {
                    // SAFETY: each row belongs to one task.
                    unsafe {
                        step.q8[q8.buffer].quantize(step.level, row, step.arena.row(&self.x, row))
                    }
                }
            }
            // SAFETY: the caller keeps the same contract.
            (_, Some(tiled)) => unsafe { self.interleave(tiled, task - rounds, step) },
            _ => {}
        }
    }
}

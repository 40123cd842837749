//! Per-head products: each head has its own matrix, such as `W_UK` and `W_UV` of latent attention.

use puna_graph::ArenaRange;
use puna_kernels::{Acts, OutMut, WeightRows};

use crate::ops::moe::ExpertMatrix;
use crate::step::{Instruction, Step, ThreadScratch};

/// Activation rows per task: enough to amortise expanding a head's matrix, few enough to stay in
/// the processor cache.
const ROWS_PER_TASK: usize = 128;

/// For each head: the first columns times the matrix of the head, followed by the other columns
/// unchanged.
pub struct PerHeadLinear {
    /// The matrices of all heads. If all heads share one matrix, `each` is 0.
    pub matrix: ExpertMatrix,
    pub heads: usize,
    pub x: ArenaRange,
    pub out: ArenaRange,
    /// Buffer of the inputs quantized to 8 bits, head after head, if the kernel takes that.
    pub q8: Option<usize>,
}

impl PerHeadLinear {
    /// Converts rows `first .. first + count` of a head's input to the form that the kernel takes,
    /// and copies the other columns.
    ///
    /// # Safety
    /// As for [`Instruction::run`].
    unsafe fn gather<'a>(
        &self,
        (head, first, count): (usize, usize, usize),
        step: &'a Step<'_>,
        floats: &'a mut Vec<f32>,
    ) -> Acts<'a> {
        let (k, n, rows) = (self.matrix.k, self.matrix.n, step.rows(self.x.rows));
        let (dim, out_dim) = (self.x.cols / self.heads, self.out.cols / self.heads);
        floats.clear();
        for row in first..first + count {
            let behind = self.out.start + row * self.out.stride + head * out_dim + n;
            // SAFETY: the input was computed before a barrier; a row of a head belongs to one task.
            unsafe {
                let (x, rest) = step.arena.row(&self.x, row)[head * dim..][..dim].split_at(k);
                step.arena.slice_mut(behind, rest.len()).copy_from_slice(rest);
                match self.q8 {
                    Some(buffer) => step.q8[buffer].quantize(step.level, head * rows + row, x),
                    None => floats.extend_from_slice(x),
                }
            }
        }
        match self.q8 {
            Some(buffer) => {
                // SAFETY: this task has just written these rows.
                Acts::Q8(unsafe { step.q8[buffer].rows(head * rows + first, count, k) })
            }
            None => Acts::F32 { rows: count, k, x: floats },
        }
    }
}

// SAFETY: a task writes rows of one head, in the result and in the quantized input; they belong to
// this task.
unsafe impl Instruction for PerHeadLinear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        self.heads * step.rows(self.x.rows).div_ceil(ROWS_PER_TASK)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, scratch: &mut ThreadScratch) {
        let (m, rows) = (&self.matrix, step.rows(self.x.rows));
        let each = rows.div_ceil(ROWS_PER_TASK);
        let (head, first) = (task / each, task % each * ROWS_PER_TASK);
        let count = ROWS_PER_TASK.min(rows - first);
        // SAFETY: the caller keeps the same contract.
        let acts = unsafe { self.gather((head, first, count), step, &mut scratch.floats) };
        let data = &step.weight(m.w)[head * m.rows_per_expert * m.row_bytes..][..m.n * m.row_bytes];
        let w = WeightRows { ty: m.ty, rows: m.n, k: m.k, data };
        let start = self.out.start + first * self.out.stride + head * (self.out.cols / self.heads);
        let base = step.arena.address(start, (count - 1) * self.out.stride + m.n);
        // SAFETY: the window is in bounds, and tasks write disjoint rows and heads of the result.
        let out = unsafe { OutMut::from_raw(base, self.out.stride, count, m.n) };
        // All tasks of a step take the same path, the last with its few rows too.
        (m.kernel.for_rows(rows))(w, acts, out, &mut scratch.kernel);
    }

    fn work(&self, step: &Step<'_>) -> (u64, u64) {
        let (m, heads) = (&self.matrix, self.heads as u64);
        let macs = (m.n * m.k * step.rows(self.x.rows)) as u64;
        let matrices = if m.rows_per_expert == 0 { 1 } else { heads };
        (matrices * (m.n * m.row_bytes) as u64, heads * macs)
    }
}

//! Dynamic convolution over the tokens of a step, with taps that partly depend on the token.

use puna_graph::ArenaRange;

use crate::step::{Instruction, Step, ThreadScratch, row_tasks, task_rows};

/// See [`puna_graph::Op::DynamicConv`].
pub struct DynamicConv {
    pub x: ArenaRange,
    /// For each tap, one column per group.
    pub own: ArenaRange,
    pub out: ArenaRange,
    /// For each tap, one value per column of `x`.
    pub constant: Vec<f32>,
}

// SAFETY: a task writes its own rows of the result.
unsafe impl Instruction for DynamicConv {
    fn name(&self) -> &'static str {
        "dynamic_conv"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        let taps = self.constant.len() / self.x.cols;
        let groups = self.own.cols / taps;
        for row in task_rows(task, &self.out, step) {
            let segment = step.segment_of(row);
            // SAFETY: each row belongs to one task; the planner keeps inputs and `out` apart.
            let (own, out) =
                unsafe { (step.arena.row(&self.own, row), step.arena.row_mut(&self.out, row)) };
            out.fill(0.0);
            let rows = (segment.first_row..=row).rev();
            let taps = self.constant.chunks_exact(self.x.cols).zip(own.chunks_exact(groups));
            for (from, (constant, own)) in rows.zip(taps) {
                // SAFETY: an earlier instruction computed it, behind a barrier.
                let x = unsafe { step.arena.row(&self.x, from) };
                let each = x.len() / groups;
                let pairs = x.chunks_exact(each).zip(constant.chunks_exact(each)).zip(own);
                for (out, ((x, constant), own)) in out.chunks_exact_mut(each).zip(pairs) {
                    let parts = out.iter_mut().zip(x).zip(constant);
                    parts.for_each(|((out, x), constant)| *out += (constant + own) * x);
                }
            }
        }
    }
}

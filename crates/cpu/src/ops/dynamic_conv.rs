//! Dynamic convolution over the tokens of a step, with taps that partly depend on the token.

use puna_graph::ArenaRange;

use crate::step::{Instruction, Step, ThreadScratch, row_tasks, task_rows};

/// See [`puna_graph::Op::DynamicConv`].
pub struct DynamicConv {
    pub x: ArenaRange,
    /// For each tap, one column per group.
    pub dynamic_taps: ArenaRange,
    pub out: ArenaRange,
    /// For each tap, one value per column of `x`.
    pub fixed_taps: Vec<f32>,
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
        let taps = self.fixed_taps.len() / self.x.cols;
        let groups = self.dynamic_taps.cols / taps;
        for row in task_rows(task, &self.out, step) {
            let segment = step.segment_of(row);
            // SAFETY: each row belongs to one task; the planner keeps inputs and `out` apart.
            let (dynamic, out) = unsafe {
                (step.arena.row(&self.dynamic_taps, row), step.arena.row_mut(&self.out, row))
            };
            out.fill(0.0);
            let rows = (segment.first_row..=row).rev();
            let taps = self.fixed_taps.chunks_exact(self.x.cols).zip(dynamic.chunks_exact(groups));
            for (from, (fixed, dynamic)) in rows.zip(taps) {
                // SAFETY: an earlier instruction computed it, behind a barrier.
                let x = unsafe { step.arena.row(&self.x, from) };
                let each = x.len() / groups;
                let pairs = x.chunks_exact(each).zip(fixed.chunks_exact(each)).zip(dynamic);
                for (out, ((x, fixed), dynamic)) in out.chunks_exact_mut(each).zip(pairs) {
                    let parts = out.iter_mut().zip(x).zip(fixed);
                    parts.for_each(|((out, x), fixed)| *out += (fixed + dynamic) * x);
                }
            }
        }
    }
}

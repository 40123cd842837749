//! Unfold (im2col): the neighbours of each token, for convolutions as matrix products.

use puna_graph::ArenaRange;

use crate::step::{Instruction, Step, ThreadScratch, row_tasks, task_rows};

/// See [`puna_graph::Op::Unfold`].
pub struct Unfold {
    pub x: ArenaRange,
    pub out: ArenaRange,
    /// Number of taps; the token itself is in the middle.
    pub taps: usize,
}

// SAFETY: a task writes its own rows of the result.
unsafe impl Instruction for Unfold {
    fn name(&self) -> &'static str {
        "unfold"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        for row in task_rows(task, &self.out, step) {
            let s = step.segment_of(row);
            let rows = s.first_row..s.first_row + s.rows;
            // SAFETY: each row belongs to one task; the planner keeps `x` and `out` apart.
            let out = unsafe { step.arena.row_mut(&self.out, row) };
            for tap in 0..self.taps {
                let from =
                    (row + tap).checked_sub(self.taps / 2).filter(|from| rows.contains(from));
                let columns = out[tap..].iter_mut().step_by(self.taps);
                // SAFETY: an earlier instruction computed it, behind a barrier.
                match from.map(|from| unsafe { step.arena.row(&self.x, from) }) {
                    Some(x) => columns.zip(x).for_each(|(out, x)| *out = *x),
                    None => columns.for_each(|out| *out = 0.0),
                }
            }
        }
    }
}

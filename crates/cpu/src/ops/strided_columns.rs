//! Some columns of each period of columns, side by side.

use puna_graph::ArenaRange;

use crate::step::{Instruction, Step, ThreadScratch, row_tasks, task_rows};

/// Copies columns.
pub struct StridedColumns {
    pub x: ArenaRange,
    pub out: ArenaRange,
    /// First column within a period.
    pub start: usize,
    /// Number of columns of a period.
    pub width: usize,
    /// Length of a period in columns.
    pub period: usize,
}

// SAFETY: a task writes its own rows of the result.
unsafe impl Instruction for StridedColumns {
    fn name(&self) -> &'static str {
        "strided_columns"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        for row in task_rows(task, &self.out, step) {
            // SAFETY: each row belongs to one task; the planner keeps `x` and `out` apart.
            let (x, out) =
                unsafe { (step.arena.row(&self.x, row), step.arena.row_mut(&self.out, row)) };
            for (from, to) in x.chunks_exact(self.period).zip(out.chunks_exact_mut(self.width)) {
                to.copy_from_slice(&from[self.start..self.start + self.width]);
            }
        }
    }
}

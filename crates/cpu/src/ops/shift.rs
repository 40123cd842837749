//! Rows of earlier tokens of the step.

use puna_graph::Place;

use crate::step::{Instruction, Local, Step, row_tasks, task_rows};

/// Copies for each token the row of one before it.
pub struct Shift {
    pub x: Place,
    pub out: Place,
    /// How many places before.
    pub by: usize,
}

// SAFETY: a task writes rows of the result that are its own.
unsafe impl Instruction for Shift {
    fn name(&self) -> &'static str {
        "shift"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut Local) {
        let segments = &step.input.segments;
        for row in task_rows(task, &self.out, step) {
            let own = segments.partition_point(|s| s.first_row + s.rows <= row);
            let first = segments[own].first_row;
            // SAFETY: each row belongs to one task; the planner keeps `x` and `out` apart.
            let out = unsafe { step.arena.row_mut(&self.out, row) };
            match row.checked_sub(self.by).filter(|&from| from >= first) {
                // SAFETY: computed before a barrier.
                Some(from) => out.copy_from_slice(unsafe { step.arena.row(&self.x, from) }),
                None => out.fill(0.0),
            }
        }
    }
}

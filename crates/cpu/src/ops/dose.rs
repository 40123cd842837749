//! What adapters change for some sequences of a step and not, or otherwise, for others.

use puna_graph::Place;

use super::elementwise::own_row;
use crate::step::{Instruction, Step, ThreadScratch, row_tasks, task_rows};

/// `dose · x`.
pub struct Dose {
    pub x: Place,
    pub out: Place,
    pub adapter: usize,
}

// SAFETY: a task writes rows of the result that are its own, and reads the same rows of the input.
unsafe impl Instruction for Dose {
    fn name(&self) -> &'static str {
        "dose"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        for row in task_rows(task, &self.out, step) {
            // SAFETY: rows belong to one task.
            let out = unsafe { own_row(step, &self.x, &self.out, row) };
            let dose = step.input.dose(self.adapter, self.x.rows, row);
            out.iter_mut().for_each(|x| *x *= dose);
        }
    }
}

/// `x + dose · vector`, for each of the streams that lie side by side in `x`.
pub struct Steer {
    pub x: Place,
    pub out: Place,
    pub vector: Vec<f32>,
    pub adapter: usize,
}

// SAFETY: a task writes rows of the result that are its own, and reads the same rows of the input.
unsafe impl Instruction for Steer {
    fn name(&self) -> &'static str {
        "steer"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        for row in task_rows(task, &self.out, step) {
            // SAFETY: rows belong to one task.
            let out = unsafe { own_row(step, &self.x, &self.out, row) };
            let dose = step.input.dose(self.adapter, self.x.rows, row);
            for stream in out.chunks_exact_mut(self.vector.len()) {
                stream.iter_mut().zip(&self.vector).for_each(|(x, towards)| *x += dose * towards);
            }
        }
    }
}

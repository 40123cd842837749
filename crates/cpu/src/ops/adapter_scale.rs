//! Per-sequence adapter scales: sequences of one step can use the same adapters with different
//! scales.

use puna_graph::ArenaRange;

use super::elementwise::own_row;
use crate::step::{Instruction, Step, ThreadScratch, row_tasks, task_rows};

/// `scale · x`, with the adapter scale of the sequence of each row.
pub struct ScaleAdapter {
    pub x: ArenaRange,
    pub out: ArenaRange,
    pub adapter: usize,
}

// SAFETY: a task writes its own rows of the result and reads the same rows of the input.
unsafe impl Instruction for ScaleAdapter {
    fn name(&self) -> &'static str {
        "scale_adapter"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        for row in task_rows(task, &self.out, step) {
            // SAFETY: each row belongs to one task.
            let out = unsafe { own_row(step, &self.x, &self.out, row) };
            let scale = step.input.adapter_scale(self.adapter, self.x.rows, row);
            out.iter_mut().for_each(|x| *x *= scale);
        }
    }
}

/// `x + scale · vector`, for each residual stream in `x`, with the adapter scale of the sequence of
/// each row.
pub struct AddControlVector {
    pub x: ArenaRange,
    pub out: ArenaRange,
    pub vector: Vec<f32>,
    pub adapter: usize,
}

// SAFETY: a task writes its own rows of the result and reads the same rows of the input.
unsafe impl Instruction for AddControlVector {
    fn name(&self) -> &'static str {
        "add_control_vector"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        for row in task_rows(task, &self.out, step) {
            // SAFETY: each row belongs to one task.
            let out = unsafe { own_row(step, &self.x, &self.out, row) };
            let scale = step.input.adapter_scale(self.adapter, self.x.rows, row);
            for stream in out.chunks_exact_mut(self.vector.len()) {
                stream.iter_mut().zip(&self.vector).for_each(|(x, towards)| *x += scale * towards);
            }
        }
    }
}

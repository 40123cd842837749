//! Norms over rows or heads, and rounding of activations for the products that follow.

use puna_graph::Place;

use crate::step::{Instruction, Local, Step, row_tasks, task_rows};

/// RMS norm over groups of columns, or layer norm over rows.
pub struct NormRows {
    pub x: Place,
    pub out: Place,
    pub w: Vec<f32>,
    /// Layer norms only.
    pub b: Vec<f32>,
    pub eps: f32,
    pub kind: NormKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    Rms,
    Layer,
}

// SAFETY: a task writes rows of the result that are its own.
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

    unsafe fn run(&self, task: usize, step: &Step<'_>, local: &mut Local) {
        let vector = &step.level.vector;
        let group = self.w.len();
        local.floats.resize(self.x.cols, 0.0);
        let input = &mut local.floats[..];
        for row in task_rows(task, &self.out, step) {
            // The result may lie where the input does, so the input is copied first.
            // SAFETY: each row belongs to one task, and the two borrows do not overlap in time.
            input.copy_from_slice(unsafe { step.arena.row(&self.x, row) });
            // SAFETY: as above.
            let out = unsafe { step.arena.row_mut(&self.out, row) };
            for (x, y) in input.chunks_exact(group).zip(out.chunks_exact_mut(group)) {
                match self.kind {
                    NormKind::Rms => (vector.rms_norm)(x, &self.w, self.eps, y),
                    NormKind::Layer => (vector.layer_norm)(x, &self.w, &self.b, self.eps, y),
                }
            }
        }
    }
}

/// Rounds rows to 8 bits.
pub struct Quantize {
    pub x: Place,
    /// Index of the buffer.
    pub buffer: usize,
}

// SAFETY: a task writes rows of the result that are its own.
unsafe impl Instruction for Quantize {
    fn name(&self) -> &'static str {
        "quantize"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.x, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut Local) {
        for row in task_rows(task, &self.x, step) {
            // SAFETY: each row belongs to one task.
            unsafe { step.q8[self.buffer].quantize(step.level, row, step.arena.row(&self.x, row)) }
        }
    }
}

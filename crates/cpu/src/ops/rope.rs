//! Rotary embedding. Sines and cosines are computed once a step for each table and shared by all
//! layers and heads.

use std::sync::Arc;

use puna_graph::{AXES, ArenaRange, RopeKind};

use crate::memory::SharedBuffer;
use crate::ops::elementwise::own_row;
use crate::step::{Instruction, Step, ThreadScratch, row_tasks, rows_per_task, task_rows};

/// Cosines and sines of a step's positions: a row per token, cosines first.
pub type Angles = Arc<SharedBuffer<f32>>;

/// Fills [`Angles`].
pub struct RopeTable {
    pub rope: usize,
    pub pairs: usize,
    pub angles: Angles,
}

// SAFETY: a task writes rows of the result that are its own, and reads the same rows of the input.
unsafe impl Instruction for RopeTable {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        step.input.tokens.len().div_ceil(rows_per_task(self.pairs * 16))
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        let rope = &step.ropes[self.rope];
        let each = rows_per_task(self.pairs * 16);
        for row in task * each..((task + 1) * each).min(step.input.tokens.len()) {
            let position = step.input.positions[row];
            let coordinates = step.input.axis_positions.get(row).copied();
            let coordinates = coordinates.unwrap_or([position; AXES]).map(|at| rope.moved(at));
            let position = rope.moved(position);
            let sign = if rope.is_inverse { -rope.magnitude } else { rope.magnitude };
            // SAFETY: each row belongs to one task.
            let out = unsafe { self.angles.slice_mut(row * 2 * self.pairs, 2 * self.pairs) };
            let (cos, sin) = out.split_at_mut(self.pairs);
            for (pair, ((c, s), &f)) in cos.iter_mut().zip(sin).zip(&rope.frequencies).enumerate() {
                let axis = rope.axes.get(pair).map(|&axis| coordinates[usize::from(axis)]);
                let position = axis.unwrap_or(position);
                // In f64: at positions of 100,000 an f32 product is off by a hundredth of a turn.
                let angle = (position * f64::from(f)) % std::f64::consts::TAU;
                let (sin, cos) = (angle as f32).sin_cos();
                (*c, *s) = (cos * rope.magnitude, sin * sign);
            }
        }
    }
}

/// Rotates heads.
pub struct RopeRows {
    pub x: ArenaRange,
    pub out: ArenaRange,
    pub head_dim: usize,
    /// First rotated dimension of a head.
    pub start: usize,
    pub kind: RopeKind,
    pub pairs: usize,
    pub angles: Angles,
}

// SAFETY: a task writes rows of the result that are its own, and reads the same rows of the input.
unsafe impl Instruction for RopeRows {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        for row in task_rows(task, &self.out, step) {
            // SAFETY: rows belong to one task; the table was filled before a barrier.
            let (out, angles) = unsafe {
                (
                    own_row(step, &self.x, &self.out, row),
                    self.angles.slice(row * 2 * self.pairs, 2 * self.pairs),
                )
            };
            let (cos, sin) = angles.split_at(self.pairs);
            for head in out.chunks_exact_mut(self.head_dim) {
                rotate(self.kind, &mut head[self.start..][..2 * self.pairs], cos, sin);
            }
        }
    }
}

fn rotate(kind: RopeKind, head: &mut [f32], cos: &[f32], sin: &[f32]) {
    match kind {
        RopeKind::Norm => {
            for ((pair, &c), &s) in head.chunks_exact_mut(2).zip(cos).zip(sin) {
                (pair[0], pair[1]) = (pair[0] * c - pair[1] * s, pair[0] * s + pair[1] * c);
            }
        }
        RopeKind::Neox => {
            let (a, b) = head.split_at_mut(cos.len());
            for (((a, b), &c), &s) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
            }
        }
    }
}

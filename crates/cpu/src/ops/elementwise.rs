//! Sums, scales, activations and gated units.

use puna_graph::{Activation, Glu, Place};

use crate::kernels::Level;
use crate::step::{Instruction, Local, Step, row_tasks, task_rows};

/// What is done to each element.
pub enum Unary {
    Activate(Activation),
    Scale(f32),
    Softcap(f32),
}

/// An element-wise function of one value.
pub struct Map {
    pub f: Unary,
    pub x: Place,
    pub out: Place,
}

// SAFETY: a task writes rows of the result that are its own, and reads the same rows of the inputs.
unsafe impl Instruction for Map {
    fn name(&self) -> &'static str {
        match self.f {
            Unary::Activate(_) => "activate",
            Unary::Scale(_) => "scale",
            Unary::Softcap(_) => "softcap",
        }
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut Local) {
        for row in task_rows(task, &self.out, step) {
            // SAFETY: rows belong to one task.
            let out = unsafe { own_row(step, &self.x, &self.out, row) };
            match self.f {
                Unary::Activate(Activation::Silu) => out.iter_mut().for_each(|x| *x /= 1.0 + (-*x).exp()),
                Unary::Activate(Activation::GeluTanh) => (step.level.vector.gelu)(out),
                Unary::Activate(Activation::GeluErf) => (step.level.vector.gelu_erf)(out),
                Unary::Activate(Activation::Tanh) => out.iter_mut().for_each(|x| *x = x.tanh()),
                Unary::Scale(by) => out.iter_mut().for_each(|x| *x *= by),
                Unary::Softcap(cap) => out.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh()),
            }
        }
    }
}

/// The row of the result, holding the row of the input.
///
/// # Safety
/// The row of the result belongs to the caller's task, and nobody writes that of the input.
#[allow(clippy::mut_from_ref)] // memory shared by the threads of a step
pub unsafe fn own_row<'a>(step: &'a Step<'_>, x: &Place, out: &Place, row: usize) -> &'a mut [f32] {
    if x.start != out.start || x.stride != out.stride {
        // SAFETY: passed on; values that differ in place do not overlap.
        unsafe { step.arena.row_mut(out, row).copy_from_slice(step.arena.row(x, row)) }
    }
    // SAFETY: passed on.
    unsafe { step.arena.row_mut(out, row) }
}

/// `a + b`.
pub struct Add {
    pub a: Place,
    pub b: Place,
    pub out: Place,
}

// SAFETY: a task writes rows of the result that are its own, and reads the same rows of the inputs.
unsafe impl Instruction for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut Local) {
        for row in task_rows(task, &self.out, step) {
            // SAFETY: rows belong to one task.
            let out = unsafe { own_row(step, &self.a, &self.out, row) };
            // SAFETY: each row belongs to one task; the planner keeps `b` apart from the result.
            (step.level.vector.add)(out, unsafe { step.arena.row(&self.b, row) });
        }
    }
}

/// A gated unit.
pub struct GluRows {
    pub kind: Glu,
    pub gate: Place,
    pub up: Place,
    pub out: Place,
}

// SAFETY: a task writes rows of the result that are its own, and reads the same rows of the inputs.
unsafe impl Instruction for GluRows {
    fn name(&self) -> &'static str {
        "glu"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut Local) {
        for row in task_rows(task, &self.out, step) {
            // SAFETY: rows belong to one task.
            let out = unsafe { own_row(step, &self.gate, &self.out, row) };
            // SAFETY: each row belongs to one task; `up` is another value or other columns of the same.
            gate(step.level, self.kind, out, unsafe { step.arena.row(&self.up, row) });
        }
    }
}

/// `x = unit(x, up)`.
pub fn gate(level: &Level, kind: Glu, x: &mut [f32], up: &[f32]) {
    match kind {
        Glu::Silu => (level.vector.swiglu)(x, up),
        Glu::Gelu => (level.vector.geglu)(x, up),
        Glu::Clamped { alpha, limit } => {
            for (x, &up) in x.iter_mut().zip(up) {
                let (g, u) = (x.min(limit), up.clamp(-limit, limit));
                *x = (u + 1.0) * g / (1.0 + (-alpha * g).exp());
            }
        }
    }
}

//! Sums, scales, activations and gated units.

use puna_graph::{Activation, ArenaRange, AttnTemperatureSpec, Glu};
use puna_kernels::Level;

use crate::step::{Instruction, Step, ThreadScratch, row_tasks, task_rows};

/// Element-wise functions.
pub enum Unary {
    Activate(Activation),
    AttnTemperature(AttnTemperatureSpec),
    Scale(f32),
    Softcap(f32),
    /// Gaussian top-k: the excess over the mean plus this number of standard deviations, at least
    /// zero.
    GaussianTopK(f32),
}

/// An element-wise function of one value.
pub struct Map {
    pub f: Unary,
    pub x: ArenaRange,
    pub out: ArenaRange,
}

// SAFETY: a task writes rows of the result that are its own, and reads the same rows of the inputs.
unsafe impl Instruction for Map {
    fn name(&self) -> &'static str {
        match self.f {
            Unary::Activate(_) => "activate",
            Unary::AttnTemperature(_) => "attn_temperature",
            Unary::Scale(_) => "scale",
            Unary::Softcap(_) => "softcap",
            Unary::GaussianTopK(_) => "gaussian_top_k",
        }
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        for row in task_rows(task, &self.out, step) {
            // SAFETY: rows belong to one task.
            let out = unsafe { own_row(step, &self.x, &self.out, row) };
            match self.f {
                Unary::Activate(kind) => activate(step.level, kind, out),
                Unary::AttnTemperature(by) => {
                    let by = temperature(by, step.input.positions[row]);
                    out.iter_mut().for_each(|x| *x *= by);
                }
                Unary::Scale(by) => out.iter_mut().for_each(|x| *x *= by),
                Unary::Softcap(cap) => out.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh()),
                Unary::GaussianTopK(deviations) => gaussian_top_k(out, deviations),
            }
        }
    }
}

/// `x = f(x)`.
fn activate(level: &Level, kind: Activation, x: &mut [f32]) {
    let each = |x: &mut [f32], f: &dyn Fn(f32) -> f32| x.iter_mut().for_each(|x| *x = f(*x));
    match kind {
        Activation::Silu => each(x, &|x| x / (1.0 + (-x).exp())),
        Activation::GeluTanh => (level.vector.gelu)(x),
        Activation::GeluErf => (level.vector.gelu_erf)(x),
        Activation::Tanh => each(x, &f32::tanh),
        Activation::Sigmoid => each(x, &|x| 1.0 / (1.0 + (-x).exp())),
        Activation::Softplus => each(x, &|x| x.max(0.0) + (-x.abs()).exp().ln_1p()),
        Activation::Relu => each(x, &|x| x.max(0.0)),
        Activation::ReluSquared => each(x, &|x| x.max(0.0) * x.max(0.0)),
        Activation::Clamp { min, max } => each(x, &|x| x.clamp(min, max)),
        Activation::Xielu { alpha_p, alpha_n, beta, eps } => each(x, &|x| {
            let curve = if x > 0.0 { alpha_p * x * x } else { alpha_n * (x.min(eps).exp_m1() - x) };
            curve + beta * x
        }),
    }
}

/// Attention temperature at `position`.
fn temperature(by: AttnTemperatureSpec, position: u32) -> f32 {
    let stair = position.saturating_add(by.offset) / by.floor.max(1);
    1.0 + by.scale * (stair as f32).ln_1p()
}

/// Gaussian top-k of a row. The variance is the sample's: divided by one less than the number of
/// values.
fn gaussian_top_k(x: &mut [f32], deviations: f32) {
    let n = x.len() as f64;
    let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let squares = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>();
    let min = (mean + f64::from(deviations) * (squares / (n - 1.0).max(1.0)).sqrt()) as f32;
    x.iter_mut().for_each(|x| *x = (*x - min).max(0.0));
}

/// `x` scaled to the norm of `like`.
pub struct MatchNorm {
    pub x: ArenaRange,
    pub like: ArenaRange,
    pub out: ArenaRange,
}

// SAFETY: a task writes rows of the result that are its own, and reads the same rows of the inputs.
unsafe impl Instruction for MatchNorm {
    fn name(&self) -> &'static str {
        "match_norm"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        let squares = |row: &[f32]| row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
        for row in task_rows(task, &self.out, step) {
            // SAFETY: rows belong to one task.
            let out = unsafe { own_row(step, &self.x, &self.out, row) };
            // SAFETY: each row belongs to one task; the planner keeps `like` apart from the result.
            let like = squares(unsafe { step.arena.row(&self.like, row) });
            let by = (like / squares(out).max(f64::MIN_POSITIVE)).sqrt() as f32;
            out.iter_mut().for_each(|x| *x *= by);
        }
    }
}

/// The columns of `a`, then the columns of `b`.
pub struct Concat {
    pub a: ArenaRange,
    pub b: ArenaRange,
    pub out: ArenaRange,
}

// SAFETY: a task writes its own rows of the result.
unsafe impl Instruction for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        for row in task_rows(task, &self.out, step) {
            // SAFETY: each row belongs to one task; the planner keeps inputs apart from the result.
            unsafe {
                let (a, b) = step.arena.row_mut(&self.out, row).split_at_mut(self.a.cols);
                a.copy_from_slice(step.arena.row(&self.a, row));
                b.copy_from_slice(step.arena.row(&self.b, row));
            }
        }
    }
}

/// `x · by`.
pub struct Mul {
    pub x: ArenaRange,
    /// As wide as `x`, or one column for each group of consecutive columns of `x`.
    pub by: ArenaRange,
    pub out: ArenaRange,
}

// SAFETY: a task writes rows of the result that are its own, and reads the same rows of the inputs.
unsafe impl Instruction for Mul {
    fn name(&self) -> &'static str {
        "mul"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        for row in task_rows(task, &self.out, step) {
            // SAFETY: rows belong to one task.
            let out = unsafe { own_row(step, &self.x, &self.out, row) };
            // SAFETY: each row belongs to one task; the planner keeps `by` apart from the result.
            let by = unsafe { step.arena.row(&self.by, row) };
            if by.len() == out.len() {
                out.iter_mut().zip(by).for_each(|(x, by)| *x *= by);
            } else {
                let heads = out.chunks_exact_mut(out.len() / by.len());
                heads.zip(by).for_each(|(head, by)| head.iter_mut().for_each(|x| *x *= by));
            }
        }
    }
}

/// The row of the result, holding the row of the input.
///
/// # Safety
/// The row of the result belongs to the caller's task, and no task writes the row of the input.
#[allow(clippy::mut_from_ref)] // memory shared by the threads of a step
pub unsafe fn own_row<'a>(
    step: &'a Step<'_>,
    x: &ArenaRange,
    out: &ArenaRange,
    row: usize,
) -> &'a mut [f32] {
    if x.start != out.start || x.stride != out.stride {
        // SAFETY: passed on; values that differ in place do not overlap.
        unsafe { step.arena.row_mut(out, row).copy_from_slice(step.arena.row(x, row)) }
    }
    // SAFETY: the caller keeps the same contract.
    unsafe { step.arena.row_mut(out, row) }
}

/// `a + b`.
pub struct Add {
    pub a: ArenaRange,
    pub b: ArenaRange,
    pub out: ArenaRange,
}

// SAFETY: a task writes rows of the result that are its own, and reads the same rows of the inputs.
unsafe impl Instruction for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
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
    pub gate: ArenaRange,
    pub up: ArenaRange,
    pub out: ArenaRange,
}

// SAFETY: a task writes rows of the result that are its own, and reads the same rows of the inputs.
unsafe impl Instruction for GluRows {
    fn name(&self) -> &'static str {
        "glu"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        for row in task_rows(task, &self.out, step) {
            // SAFETY: rows belong to one task.
            let out = unsafe { own_row(step, &self.gate, &self.out, row) };
            // SAFETY: each row belongs to one task; `up` is another value or other columns of the
            // same.
            gate(step.level, self.kind, out, unsafe { step.arena.row(&self.up, row) });
        }
    }
}

/// `x = unit(x, up)`.
pub fn gate(level: &Level, kind: Glu, x: &mut [f32], up: &[f32]) {
    match kind {
        Glu::Silu => (level.vector.swiglu)(x, up),
        Glu::Gelu => (level.vector.geglu)(x, up),
        Glu::UngatedGelu => (level.vector.gelu_erf)(x),
        Glu::Relu => x.iter_mut().zip(up).for_each(|(x, &up)| *x = x.max(0.0) * up),
        Glu::GatedReluSquared => {
            x.iter_mut().zip(up).for_each(|(x, &up)| *x = x.max(0.0) * x.max(0.0) * up);
        }
        Glu::ReluSquared => x.iter_mut().for_each(|x| *x = x.max(0.0) * x.max(0.0)),
        Glu::Identity => {}
        Glu::Clamped { alpha, limit } => {
            for (x, &up) in x.iter_mut().zip(up) {
                let (g, u) = (x.min(limit), up.clamp(-limit, limit));
                *x = (u + 1.0) * g / (1.0 + (-alpha * g).exp());
            }
        }
        Glu::SiluOfClamped { limit } => {
            x.iter_mut()
                .zip(up)
                .for_each(|(x, &up)| *x = silu(x.min(limit)) * up.clamp(-limit, limit));
        }
        Glu::ClampedSilu { limit } => {
            x.iter_mut()
                .zip(up)
                .for_each(|(x, &up)| *x = silu(*x).min(limit) * up.clamp(-limit, limit));
        }
        Glu::BoundedSilu { bound, limit } => {
            let within = |x: f32, bound: f32| bound * (x / bound).tanh();
            for (x, &up) in x.iter_mut().zip(up) {
                let up = limit.map_or(up, |limit| within(up, limit));
                *x = within(*x, bound) / (1.0 + (-*x).exp()) * up;
            }
        }
    }
}

fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `kind` of one number, at the portable level.
    fn of(kind: Activation, x: f32) -> f32 {
        let mut x = [x];
        activate(puna_kernels::levels()[0], kind, &mut x);
        x[0]
    }

    #[test]
    fn functions_have_the_values_of_their_definitions() {
        assert_eq!([-3.0, 0.0, 1.5].map(|x| of(Activation::Relu, x)), [0.0, 0.0, 1.5]);
        assert_eq!([-3.0, 0.0, 1.5].map(|x| of(Activation::ReluSquared, x)), [0.0, 0.0, 2.25]);
        assert_eq!(
            [-3.0, 0.5, 9.0].map(|x| of(Activation::Clamp { min: -2.0, max: 2.0 }, x)),
            [-2.0, 0.5, 2.0]
        );
        assert_eq!(
            [f32::NEG_INFINITY, 0.0, 90.0].map(|x| of(Activation::Sigmoid, x)),
            [0.0, 0.5, 1.0]
        );
        assert_eq!(
            [-200.0, 0.0, 90.0].map(|x| of(Activation::Softplus, x)),
            [0.0, 2f32.ln(), 90.0]
        );
        let xielu = Activation::Xielu { alpha_p: 0.8, alpha_n: 1.2, beta: 0.5, eps: -1e-6 };
        assert!((of(xielu, 2.0) - (0.8 * 4.0 + 0.5 * 2.0)).abs() < 1e-6);
        assert!((of(xielu, -2.0) - (1.2 * ((-2.0f32).exp() - 1.0 + 2.0) - 1.0)).abs() < 1e-6);
    }

    #[test]
    fn bounded_silu_equals_silu_near_zero_and_stays_within_its_bounds() {
        let of = |x: f32, up: f32, limit| {
            let mut x = [x];
            gate(puna_kernels::levels()[0], Glu::BoundedSilu { bound: 4.0, limit }, &mut x, &[up]);
            x[0]
        };
        let silu = |x: f32| x / (1.0 + (-x).exp());
        assert!((of(0.02, 0.03, Some(2.0)) - silu(0.02) * 0.03).abs() < 1e-6);
        assert_eq!((of(90.0, 90.0, Some(2.0)), of(90.0, 90.0, None)), (8.0, 360.0));
        assert_eq!(of(-90.0, -90.0, Some(2.0)), 0.0);
    }

    #[test]
    fn sparsifying_a_row_keeps_only_values_above_the_cutoff() {
        // Mean 0; the squares sum up to 18.
        let mut row = [-2.0, -2.0, 0.0, 0.0, 1.0, 3.0];
        let deviation = (18.0f32 / 5.0).sqrt();
        gaussian_top_k(&mut row, 1.0);
        assert_eq!(row[..5], [0.0; 5]);
        assert!((row[5] - (3.0 - deviation)).abs() < 1e-6, "{}", row[5]);
    }

    #[test]
    fn attention_temperature_rises_in_steps_with_the_position() {
        let by = AttnTemperatureSpec { scale: 0.1, floor: 100, offset: 1 };
        let at = |position| temperature(by, position);
        assert_eq!((at(0), at(98)), (1.0, 1.0));
        assert_eq!((at(99), at(198)), (1.0 + 0.1 * 2f32.ln(), 1.0 + 0.1 * 2f32.ln()));
        assert_eq!(at(199), 1.0 + 0.1 * 3f32.ln());
        assert!(at(u32::MAX).is_finite());
    }
}

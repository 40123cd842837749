//! Norms over the tokens of a sequence.

use puna_graph::ArenaRange;

use crate::step::{Instruction, Step, ThreadScratch};

/// Normalizes groups of columns over all tokens of a sequence.
pub struct GroupNorm {
    pub x: ArenaRange,
    pub out: ArenaRange,
    /// One value per column.
    pub w: Vec<f32>,
    /// One value per column.
    pub b: Vec<f32>,
    pub eps: f32,
    pub groups: usize,
}

// SAFETY: a task writes columns of a sequence's rows that are its own.
unsafe impl Instruction for GroupNorm {
    fn name(&self) -> &'static str {
        "group_norm"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        step.input.segments.len() * self.groups
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        let s = &step.input.segments[task / self.groups];
        let each = self.x.cols / self.groups;
        let first = task % self.groups * each;
        let columns = first..first + each;
        let rows = s.first_row..s.first_row + s.rows;
        // SAFETY: an earlier instruction computed it, behind a barrier.
        let of = |row| unsafe { &step.arena.row(&self.x, row)[columns.clone()] };
        let count = (s.rows * each) as f64;
        let sum = |f: &dyn Fn(f64) -> f64| {
            rows.clone().flat_map(of).map(|&x| f(f64::from(x))).sum::<f64>() / count
        };
        let mean = sum(&|x| x);
        let variance = sum(&|x| (x - mean) * (x - mean));
        let scale = (1.0 / (variance + f64::from(self.eps)).sqrt()) as f32;
        let (w, b) = (&self.w[columns.clone()], &self.b[columns.clone()]);
        for row in rows.clone() {
            let start = self.out.start + row * self.out.stride + first;
            // SAFETY: these columns of the row belong to this task.
            let out = unsafe { step.arena.slice_mut(start, each) };
            for (((out, x), w), b) in out.iter_mut().zip(of(row)).zip(w).zip(b) {
                *out = (x - mean as f32) * scale * w + b;
            }
        }
    }
}

//! Sums of squares of every input column of matrix products, for importance matrices. If the
//! backend observes, these instructions stand before the products; results do not change.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use puna_graph::ArenaRange;

use crate::ops::moe::MoeLayer;
use crate::step::{Instruction, Step, ThreadScratch};

/// Sums by the number of a weight.
#[derive(Default)]
pub struct Observations(Mutex<BTreeMap<usize, Sums>>);

/// A row of sums and a count for each matrix of a weight.
#[derive(Clone)]
pub struct Sums {
    pub squares: Vec<f64>,
    pub counts: Vec<u64>,
}

impl Observations {
    /// All sums so far.
    pub fn all(&self) -> BTreeMap<usize, Sums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds rows to the sums of weights with `matrices` matrices each.
    fn add<'a>(
        &self,
        weights: &[usize],
        matrices: usize,
        rows: impl Iterator<Item = (usize, &'a [f32])> + Clone,
    ) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for &weight in weights {
            for (matrix, row) in rows.clone() {
                let sums = all.entry(weight).or_insert_with(|| Sums {
                    squares: vec![0.0; row.len() * matrices],
                    counts: vec![0; matrices],
                });
                let squares = &mut sums.squares[matrix * row.len()..][..row.len()];
                squares
                    .iter_mut()
                    .zip(row)
                    .for_each(|(sum, x)| *sum += f64::from(*x) * f64::from(*x));
                sums.counts[matrix] += 1;
            }
        }
    }
}

/// Observes the input of products.
pub struct Observe {
    pub x: ArenaRange,
    pub weights: Vec<usize>,
    pub into: Arc<Observations>,
}

// SAFETY: there is one task, which reads what was written before a barrier and writes behind a
// lock.
unsafe impl Instruction for Observe {
    fn name(&self) -> &'static str {
        "observe"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        usize::from(step.rows(self.x.rows) > 0)
    }

    unsafe fn run(&self, _: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        // SAFETY: the value was written before a barrier, and nothing else runs.
        let rows =
            (0..step.rows(self.x.rows)).map(|row| (0, unsafe { step.arena.row(&self.x, row) }));
        self.into.add(&self.weights, 1, rows);
    }
}

/// Observes the inputs of per-head products.
pub struct ObserveHeads {
    pub x: ArenaRange,
    pub heads: usize,
    /// Columns of a head that its matrix reads.
    pub k: usize,
    pub weight: usize,
    pub into: Arc<Observations>,
}

// SAFETY: as above.
unsafe impl Instruction for ObserveHeads {
    fn name(&self) -> &'static str {
        "observe"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        usize::from(step.rows(self.x.rows) > 0)
    }

    unsafe fn run(&self, _: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        let dim = self.x.cols / self.heads;
        let rows = (0..step.rows(self.x.rows)).flat_map(|row| {
            // SAFETY: the value was written before a barrier, and nothing else runs.
            let row = unsafe { step.arena.row(&self.x, row) };
            row.chunks_exact(dim).map(|head| &head[..self.k]).enumerate()
        });
        self.into.add(&[self.weight], self.heads, rows);
    }
}

/// Observes the inputs of experts: of gate and up, or of down.
pub struct ObserveExperts {
    pub moe: Arc<MoeLayer>,
    /// Whether the inputs are hidden values, which down reads.
    pub is_hidden: bool,
    pub into: Arc<Observations>,
}

// SAFETY: as above.
unsafe impl Instruction for ObserveExperts {
    fn name(&self) -> &'static str {
        "observe"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        usize::from(self.moe.slots(step) > 0)
    }

    unsafe fn run(&self, _: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        let m = &*self.moe;
        let (matrices, hidden) = (m.spec.experts / m.spec.experts_per_matrix, m.spec.hidden);
        let rows = (0..m.slots(step)).map(|slot| {
            // SAFETY: routes, inputs and hidden values were written before a barrier, and nothing
            // else runs.
            let row = unsafe {
                if self.is_hidden {
                    m.buffers.gate.slice(slot * hidden, hidden)
                } else {
                    step.arena.row(&m.x, m.buffers.tokens.slice(slot, 1)[0] as usize)
                }
            };
            (m.matrix_of(m.expert_of(slot)), row)
        });
        let weights = if self.is_hidden { vec![m.down.w] } else { vec![m.gate.w, m.up.w] };
        self.into.add(&weights, matrices, rows);
    }
}

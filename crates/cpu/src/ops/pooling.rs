//! Blocks of tokens that become one row each: a task takes some columns of a sequence through all
//! its tokens of the step.

use std::sync::Arc;

use puna_graph::{ArenaRange, PoolSpec};
use puna_kernels::PoolStep;

use crate::ops::recurrent::{begun, columns, columns_mut, segment, state_work};
use crate::step::{Instruction, Step, ThreadScratch};

/// Columns of a row that a task takes.
const COLUMNS: usize = 128;
/// Gates and biases of blocks without gates or biases.
static ZEROS: [f32; COLUMNS] = [0.0; COLUMNS];

/// Pools blocks of tokens. The state holds the largest gates, sums of weights and weighted sums of
/// the unfinished block; if blocks overlap, the same for the next block behind them.
pub struct Pool {
    pub x: ArenaRange,
    pub gate: Option<ArenaRange>,
    pub out: ArenaRange,
    pub spec: PoolSpec,
    /// Biases of the gates, `[columns, block]`: a row per position in the block; empty without.
    pub bias: Arc<[f32]>,
}

/// The task's part of the state of one block.
struct Pooled<'a>([&'a mut [f32]; 3]);

impl Pooled<'_> {
    /// Resets to a block without tokens.
    fn clear(&mut self) {
        let [max, sum, acc] = &mut self.0;
        max.fill(f32::MIN);
        sum.fill(0.0);
        acc.fill(0.0);
    }

    fn copy_from(&mut self, other: &Pooled<'_>) {
        self.0.iter_mut().zip(&other.0).for_each(|(to, from)| to.copy_from_slice(from));
    }
}

impl Pool {
    fn blocks(&self) -> usize {
        self.spec.dim.div_ceil(COLUMNS)
    }
}

// SAFETY: a task writes columns of the result and a part of the state that are its own.
unsafe impl Instruction for Pool {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        step.input.segments.len() * self.blocks()
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        let PoolSpec { state, block, dim, overlaps, .. } = self.spec;
        let (s, part) = segment(step, task, self.blocks());
        let first = part * COLUMNS;
        let n = COLUMNS.min(dim - first);
        // SAFETY: the columns belong to this task, here and in the state; inputs were computed
        // before a barrier.
        unsafe {
            let of = |kind: usize| begun(step, s, state, kind * dim + first, n);
            let mut own = Pooled([of(0), of(1), of(2)]);
            let mut next = overlaps.then(|| Pooled([of(3), of(4), of(5)]));
            for row in 0..s.rows {
                let (position, at) = (s.cached_tokens + row, s.first_row + row);
                let place = position % block;
                let take = |pooled: &mut Pooled<'_>, column: usize| {
                    let [max, sum, acc] = &mut pooled.0;
                    let x = columns(step, &self.x, at, column, n);
                    let gate = self.gate.as_ref().map(|gate| columns(step, gate, at, column, n));
                    let gate = gate.unwrap_or(&ZEROS[..n]);
                    let column = place * self.spec.cols() + column;
                    let bias = match self.bias.is_empty() {
                        true => &ZEROS[..n],
                        false => &self.bias[column..column + n],
                    };
                    (step.level.vector.recurrent.pool)(PoolStep { max, sum, acc, x, gate, bias });
                };
                if place == 0 {
                    match &next {
                        Some(next) if position > 0 => own.copy_from(next),
                        _ => own.clear(),
                    }
                    next.iter_mut().for_each(Pooled::clear);
                }
                take(&mut own, if overlaps { dim + first } else { first });
                next.iter_mut().for_each(|next| take(next, first));
                let out = columns_mut(step, &self.out, at, first, n);
                if place + 1 < block {
                    out.fill(0.0);
                    continue;
                }
                let [_, sum, acc] = &own.0;
                out.iter_mut()
                    .zip(acc.iter().zip(sum.iter()))
                    .for_each(|(out, (acc, sum))| *out = acc / sum);
            }
        }
    }

    fn work(&self, step: &Step<'_>) -> (u64, u64) {
        state_work(step, self.spec.values(), 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pooled row of a block of one column with these gates and values, computed token by token
    /// as in [`Pool`].
    fn row(tokens: &[(f32, f32)]) -> f32 {
        let (mut max, mut sum, mut acc) = ([f32::MIN], [0.0], [0.0]);
        for &(gate, x) in tokens {
            let (max, sum, acc) = (&mut max, &mut sum, &mut acc);
            let step = PoolStep { max, sum, acc, x: &[x], gate: &[gate], bias: &[0.5] };
            (puna_kernels::levels()[0].vector.recurrent.pool)(step);
        }
        acc[0] / sum[0]
    }

    #[test]
    fn a_pooled_row_is_the_sum_of_its_tokens_weighted_by_the_softmax_of_their_gates() {
        assert_eq!(row(&[(3.0, 7.0)]), 7.0);
        let tokens = [(1.0f32, 2.0), (-2.0, 8.0), (4.0, -1.0), (3.0, 5.0)];
        let weights = tokens.map(|(gate, _)| gate.exp());
        let sum: f32 = tokens.iter().zip(weights).map(|((_, x), w)| x * w).sum();
        let want = sum / weights.iter().sum::<f32>();
        assert!((row(&tokens) - want).abs() < 1e-6);
        // Gates that far apart have the weights one and zero.
        assert_eq!(row(&[(-1e30, 2.0), (1e30, 3.0), (0.0, 9.0)]), 3.0);
    }
}

//! Depth attention (Kimi K3): softmax-weighted sum of a token's values at several depths of the
//! network.

use puna_graph::ArenaRange;

use crate::step::{Instruction, Step, ThreadScratch, row_tasks, task_rows};

/// See [`puna_graph::Op::DepthAttention`].
pub struct DepthAttention {
    pub depths: Vec<ArenaRange>,
    pub out: ArenaRange,
    /// Score weight of each feature of a normalized value.
    pub w: Vec<f32>,
    pub eps: f32,
}

// SAFETY: a task writes its own rows of the result.
unsafe impl Instruction for DepthAttention {
    fn name(&self) -> &'static str {
        "depth_attention"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, scratch: &mut ThreadScratch) {
        let weights = &mut scratch.floats;
        for row in task_rows(task, &self.out, step) {
            weights.clear();
            // SAFETY: each row belongs to one task; the planner keeps inputs apart from the result.
            let (depths, out) = unsafe {
                let depths = self.depths.iter().map(|depth| step.arena.row(depth, row));
                (depths, step.arena.row_mut(&self.out, row))
            };
            weights.extend(depths.clone().map(|x| score(x, &self.w, self.eps)));
            softmax(weights);
            out.fill(0.0);
            for (x, &weight) in depths.zip(&*weights) {
                out.iter_mut().zip(x).for_each(|(out, x)| *out += weight * x);
            }
        }
    }
}

/// `Σ w · x / √(mean(x²) + eps)`. Sums are kept in lanes, so that the compiler vectorizes them.
fn score(x: &[f32], w: &[f32], eps: f32) -> f32 {
    // Independent sums.
    const LANES: usize = 8;
    let (mut squares, mut product) = ([0.0f32; LANES], [0.0f32; LANES]);
    for (x, w) in x.chunks(LANES).zip(w.chunks(LANES)) {
        for (i, (x, w)) in x.iter().zip(w).enumerate() {
            squares[i] += x * x;
            product[i] += x * w;
        }
    }
    let [squares, product] = [squares, product].map(|lanes| lanes.iter().sum::<f32>());
    product / (squares / x.len() as f32 + eps).sqrt()
}

/// Softmax in place.
fn softmax(x: &mut [f32]) {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    x.iter_mut().for_each(|x| *x = (*x - max).exp());
    let sum: f32 = x.iter().sum();
    x.iter_mut().for_each(|x| *x /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_depend_on_the_direction_of_a_vector_and_not_on_its_length() {
        let w: Vec<f32> = (0..11).map(|i| (i % 5) as f32 - 1.5).collect();
        let x: Vec<f32> = (0..11).map(|i| (i * 7 % 11) as f32 - 4.0).collect();
        let root = (x.iter().map(|x| x * x).sum::<f32>() / 11.0).sqrt();
        let want = x.iter().zip(&w).map(|(x, w)| x * w).sum::<f32>() / root;
        let longer: Vec<f32> = x.iter().map(|x| 100.0 * x).collect();
        for x in [x, longer] {
            assert!(
                (score(&x, &w, 0.0) - want).abs() < 1e-4,
                "{} is not {want}",
                score(&x, &w, 0.0)
            );
        }
        assert_eq!(score(&[0.0; 11], &w, 1e-5), 0.0);
    }

    #[test]
    fn softmax_weights_sum_to_one_for_large_scores() {
        let mut shares = [200.0, 199.0, -1e30];
        softmax(&mut shares);
        assert_eq!((shares.iter().sum::<f32>(), shares[2]), (1.0, 0.0));
        assert!((shares[0] / shares[1] - 1f32.exp()).abs() < 1e-4);
    }
}

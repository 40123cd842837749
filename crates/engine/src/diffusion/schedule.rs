//! Unmasking schedule: number of positions that each step unmasks.

use std::ops::Range;

/// Noise level at the end of the schedule, from Dream's reference implementation.
const LAST_NOISE: f32 = 1e-3;

/// Iterates over the blocks of an answer.
#[derive(Debug, Clone)]
pub struct Blocks {
    /// Number of tokens of the answer.
    length: usize,
    /// Length of each block except the last.
    each: usize,
    /// Number of steps of all blocks.
    steps: usize,
    pace: StepDistribution,
    /// Start of the next block.
    next: usize,
}

/// Distribution of a block's positions over its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepDistribution {
    /// The same number in each step (LLaDA).
    Even,
    /// A share of 1 − s/t of the masked positions in the step from time t to s; times fall linearly
    /// from 1 to almost 0 (Dream).
    Noise,
}

/// A block during its steps.
#[derive(Debug, Clone)]
pub struct Block {
    /// Positions in the answer.
    pub positions: Range<usize>,
    steps: usize,
    /// Number of completed steps.
    step: usize,
    pace: StepDistribution,
}

impl Blocks {
    /// Blocks of `each` positions with the same number in each step.
    pub fn even(length: usize, each: usize, steps: usize) -> Self {
        Self { length, each, steps, pace: StepDistribution::Even, next: 0 }
    }

    /// The whole answer as one block, or as few blocks of equal size as `longest` allows.
    pub fn whole(length: usize, longest: usize, steps: usize) -> Self {
        let count = length.div_ceil(longest.max(1)).max(1);
        Self {
            length,
            each: length.div_ceil(count).max(1),
            steps,
            pace: StepDistribution::Noise,
            next: 0,
        }
    }
}

impl Iterator for Blocks {
    type Item = Block;

    /// Next block with its share of the steps.
    fn next(&mut self) -> Option<Block> {
        let positions = self.next..self.length.min(self.next.saturating_add(self.each));
        if positions.is_empty() {
            return None;
        }
        self.next = positions.end;
        let until = |place: usize| self.steps * place / self.length;
        let steps = (until(positions.end) - until(positions.start)).max(1);
        Some(Block { positions, steps, step: 0, pace: self.pace })
    }
}

impl Block {
    /// Number of the `masked` positions that the next step unmasks. Steps that unmask none are
    /// skipped, since they change nothing.
    pub fn unmask_count(&mut self, masked: usize) -> usize {
        loop {
            let (step, last) = (self.step, self.step + 1 >= self.steps);
            self.step += 1;
            let due = match self.pace {
                _ if last => masked,
                StepDistribution::Even => {
                    self.positions.len() / self.steps
                        + usize::from(step < self.positions.len() % self.steps)
                }
                StepDistribution::Noise => self.step_count(step, masked),
            };
            if due > 0 || masked == 0 {
                return due.min(masked);
            }
        }
    }

    /// Number of `masked` positions that a step unmasks. In single precision like the reference,
    /// since the rounding matters.
    fn step_count(&self, step: usize, masked: usize) -> usize {
        let time = |step: usize| 1.0 - step as f32 / self.steps as f32 * (1.0 - LAST_NOISE);
        (masked as f32 * (1.0 - time(step + 1) / time(step))) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of positions that each step unmasks, by block.
    fn schedule(blocks: Blocks) -> Vec<Vec<usize>> {
        let all = |mut block: Block| {
            let mut masked = block.positions.len();
            let mut dues = Vec::new();
            while masked > 0 {
                dues.push(block.unmask_count(masked));
                masked -= dues[dues.len() - 1];
            }
            dues
        };
        blocks.map(all).collect()
    }

    #[test]
    fn even_blocks_share_steps_and_the_first_get_the_remainder() {
        assert_eq!(schedule(Blocks::even(8, 4, 6)), [vec![2, 1, 1], vec![2, 1, 1]]);
        assert_eq!(schedule(Blocks::even(10, 4, 5)), [vec![2, 2], vec![2, 2], vec![2]]);
        // Further steps than positions have no effect.
        assert_eq!(schedule(Blocks::even(3, 8, 100)), [vec![1, 1, 1]]);
        assert_eq!(schedule(Blocks::even(9, 3, 1)), [vec![3], vec![3], vec![3]]);
    }

    /// Values of the reference formula: the first of eight steps of eight positions gives 0.999.
    #[test]
    fn noise_decreases_linearly_and_the_last_step_unmasks_the_rest() {
        assert_eq!(schedule(Blocks::whole(8, 512, 8)), [vec![1, 1, 1, 1, 1, 1, 2]]);
        assert_eq!(schedule(Blocks::whole(64, 512, 4)), [vec![15, 16, 16, 17]]);
        assert_eq!(schedule(Blocks::whole(5, 512, 1)), [vec![5]]);
        let hostile = schedule(Blocks::whole(40, 512, 1 << 16));
        assert_eq!(hostile[0].iter().sum::<usize>(), 40);
    }

    #[test]
    fn an_answer_longer_than_the_largest_block_is_split_into_equal_blocks() {
        let positions: Vec<_> = Blocks::whole(100, 40, 100).map(|block| block.positions).collect();
        assert_eq!(positions, [0..34, 34..68, 68..100]);
        assert_eq!(Blocks::whole(0, 40, 1).count(), 0);
        assert_eq!(Blocks::even(usize::MAX / (1 << 16), usize::MAX, 1 << 16).count(), 1);
    }
}

//! How many places of an answer become tokens in which step.

use std::ops::Range;

/// The part of the noise that is left at the end of time, as Dream's authors have it.
const LAST_NOISE: f32 = 1e-3;

/// The blocks of an answer, one after the other.
#[derive(Debug, Clone)]
pub struct Blocks {
    /// Tokens of the answer.
    length: usize,
    /// Places of each block but the last.
    each: usize,
    /// Steps for all of them.
    steps: usize,
    pace: Pace,
    /// Where the next one begins.
    next: usize,
}

/// How the places of a block are spread over its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// The same number in each, as LLaDA's authors do it.
    Even,
    /// As noise goes with time: the part of those that are left is (1 − s/t), from t to s on a line from 1 to almost none.
    Noise,
}

/// A block, while it is filled.
#[derive(Debug, Clone)]
pub struct Block {
    /// Its places in the answer.
    pub places: Range<usize>,
    steps: usize,
    /// Those that are over.
    step: usize,
    pace: Pace,
}

impl Blocks {
    /// Blocks of `each` places, filled at the same pace.
    pub fn even(length: usize, each: usize, steps: usize) -> Self {
        Self { length, each, steps, pace: Pace::Even, next: 0 }
    }

    /// The whole answer as one block, or as few of one size where it is longer than `longest`.
    pub fn whole(length: usize, longest: usize, steps: usize) -> Self {
        let count = length.div_ceil(longest.max(1)).max(1);
        Self { length, each: length.div_ceil(count).max(1), steps, pace: Pace::Noise, next: 0 }
    }
}

impl Iterator for Blocks {
    type Item = Block;

    /// The next block, with its share of the steps.
    fn next(&mut self) -> Option<Block> {
        let places = self.next..self.length.min(self.next.saturating_add(self.each));
        if places.is_empty() {
            return None;
        }
        self.next = places.end;
        let until = |place: usize| self.steps * place / self.length;
        let steps = (until(places.end) - until(places.start)).max(1);
        Some(Block { places, steps, step: 0, pace: self.pace })
    }
}

impl Block {
    /// How many of the `masked` places that are left become tokens now. Steps in which none would are passed over: nothing
    /// changes, and the next one sees the same text.
    pub fn due(&mut self, masked: usize) -> usize {
        loop {
            let (step, last) = (self.step, self.step + 1 >= self.steps);
            self.step += 1;
            let due = match self.pace {
                _ if last => masked,
                Pace::Even => {
                    self.places.len() / self.steps
                        + usize::from(step < self.places.len() % self.steps)
                }
                Pace::Noise => self.passes(step, masked),
            };
            if due > 0 || masked == 0 {
                return due.min(masked);
            }
        }
    }

    /// How many of so many lose their noise in a step. Single precision, as the reference has it: a part may come to just less
    /// than a whole.
    fn passes(&self, step: usize, masked: usize) -> usize {
        let time = |step: usize| 1.0 - step as f32 / self.steps as f32 * (1.0 - LAST_NOISE);
        (masked as f32 * (1.0 - time(step + 1) / time(step))) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each step of an answer fills, block by block.
    fn fills(blocks: Blocks) -> Vec<Vec<usize>> {
        let all = |mut block: Block| {
            let mut masked = block.places.len();
            let mut dues = Vec::new();
            while masked > 0 {
                dues.push(block.due(masked));
                masked -= dues[dues.len() - 1];
            }
            dues
        };
        blocks.map(all).collect()
    }

    #[test]
    fn even_blocks_share_steps_and_fill_what_is_over_first() {
        assert_eq!(fills(Blocks::even(8, 4, 6)), [vec![2, 1, 1], vec![2, 1, 1]]);
        assert_eq!(fills(Blocks::even(10, 4, 5)), [vec![2, 2], vec![2, 2], vec![2]]);
        // More steps than places are no more than places.
        assert_eq!(fills(Blocks::even(3, 8, 100)), [vec![1, 1, 1]]);
        assert_eq!(fills(Blocks::even(9, 3, 1)), [vec![3], vec![3], vec![3]]);
    }

    /// Of the reference's formula, computed elsewhere: the first of eight steps of eight places comes to 0.999 of one.
    #[test]
    fn noise_falls_on_a_line_and_the_last_step_takes_the_rest() {
        assert_eq!(fills(Blocks::whole(8, 512, 8)), [vec![1, 1, 1, 1, 1, 1, 2]]);
        assert_eq!(fills(Blocks::whole(64, 512, 4)), [vec![15, 16, 16, 17]]);
        assert_eq!(fills(Blocks::whole(5, 512, 1)), [vec![5]]);
        let hostile = fills(Blocks::whole(40, 512, 1 << 16));
        assert_eq!(hostile[0].iter().sum::<usize>(), 40);
    }

    #[test]
    fn what_is_longer_than_a_block_may_be_comes_in_blocks_of_one_size() {
        let places: Vec<_> = Blocks::whole(100, 40, 100).map(|block| block.places).collect();
        assert_eq!(places, [0..34, 34..68, 68..100]);
        assert_eq!(Blocks::whole(0, 40, 1).count(), 0);
        assert_eq!(Blocks::even(usize::MAX / (1 << 16), usize::MAX, 1 << 16).count(), 1);
    }
}

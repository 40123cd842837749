//! Top-k positions for sparse attention: the indexer scores all positions of a token, and the
//! largest scores are selected.
//!
//! A task scores and selects for one token. With few tokens per thread, the positions of a token
//! are split among tasks, and the task that finishes last selects. Scores do not depend on the
//! split, so the selection does not either.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicUsize, Ordering};

use puna_graph::{ArenaRange, SelectedPositions, TopKPositionsSpec};
use puna_kernels::{KV_TILE, ScoreTile, Scratch};

use crate::cache::KeyOrValue;
use crate::ops::attention::is_stored_rotated;
use crate::ops::hadamard::rotate;
use crate::step::{Instruction, Step, ThreadScratch};

/// Positions of a split. A multiple of [`KV_TILE`].
const SPLIT_LEN: usize = 2048;
/// With fewer tokens per thread than this, the positions of a token are split.
const MIN_ROWS_PER_THREAD: usize = 2;

/// Selects the top-k positions of each token.
pub struct TopKPositions {
    pub q: ArenaRange,
    pub weights: Option<ArenaRange>,
    pub out: ArenaRange,
    pub layer: usize,
    pub spec: TopKPositionsSpec,
    pub tasks: Tasks,
}

/// The tasks of a step.
#[derive(Default)]
pub struct Tasks {
    tasks: Vec<Task>,
    merges: Vec<Merge>,
    scores_len: usize,
}

/// Positions `from .. to` of a token.
#[derive(Clone, Copy)]
struct Task {
    segment: usize,
    /// Row of the token, relative to the segment, and number of positions that it sees.
    row: usize,
    seen: usize,
    from: usize,
    to: usize,
    /// Index of the merge, if the token has several tasks.
    merge: Option<usize>,
}

/// A token with several tasks.
struct Merge {
    /// Offset of its scores in the split scratch.
    scores: usize,
    /// Number of unfinished tasks.
    unfinished: AtomicUsize,
}

impl TopKPositions {
    /// Tasks of the tokens that see more positions than are selected.
    fn plan(&self, step: &Step<'_>) -> Tasks {
        let TopKPositionsSpec { selected, .. } = self.spec;
        let mut all = Tasks::default();
        let rows = step.input.segments.iter().enumerate().flat_map(|(segment, s)| {
            let each = self.spec.mask.pooled();
            let rows =
                (0..s.rows).map(move |row| (segment, row, (s.cached_tokens + row + 1) / each));
            rows.filter(move |&(.., seen)| seen > selected.capacity())
        });
        let scores: usize = rows.clone().map(|(.., seen)| selected.lists * seen).sum();
        let split_positions = step.threads > 1
            && rows.clone().count() < step.threads * MIN_ROWS_PER_THREAD
            && scores <= step.split_scratch.len();
        for (segment, row, seen) in rows {
            let len = if split_positions { SPLIT_LEN } else { seen };
            let merge = (len < seen).then_some(all.merges.len());
            let splits = (0..seen).step_by(len).map(|from| (from, seen.min(from + len)));
            all.tasks.extend(splits.clone().map(|(from, to)| Task {
                segment,
                row,
                seen,
                from,
                to,
                merge,
            }));
            if merge.is_some() {
                all.merges.push(Merge {
                    scores: all.scores_len,
                    unfinished: AtomicUsize::new(splits.count()),
                });
                all.scores_len += selected.lists * seen;
            }
        }
        all
    }

    /// Computes the scores of the positions of a task, KV tile by KV tile: calls
    /// `to(list, first position, scores)`.
    fn score(
        &self,
        task: Task,
        step: &Step<'_>,
        (scratch, gathered): (&mut Scratch, &mut Vec<u8>),
        mut to: impl FnMut(usize, usize, &[f32]),
    ) {
        let cache = step.cache.expect("a program with cached attention runs with a cache");
        let TopKPositionsSpec { relu, selected, dim, .. } = self.spec;
        let s = &step.input.segments[task.segment];
        let row = s.first_row + task.row;
        // SAFETY: an earlier instruction computed it, behind a barrier.
        let (q, weights) = unsafe {
            let weights = self.weights.as_ref().map(|weights| step.arena.row(weights, row));
            (step.arena.row(&self.q, row), weights.unwrap_or_default())
        };
        let mut q = q.to_vec();
        if is_stored_rotated(&self.spec.keys(), KeyOrValue::Key, cache) {
            q.chunks_exact_mut(dim).for_each(rotate);
        }
        let mut sums = vec![0.0; selected.lists * KV_TILE];
        let mut at = task.from;
        while at < task.to {
            let rows = KV_TILE.min(task.to - at);
            let slots: Vec<_> =
                (at..at + rows).map(|row| cache.cache_slot_of(self.layer, s, row)).collect();
            // SAFETY: an earlier instruction wrote them, behind a barrier; no task writes them.
            let keys = unsafe { cache.gathered(self.layer, KeyOrValue::Key, 0, &slots, gathered) };
            let tile =
                ScoreTile { q: &q, keys, weights, heads_per_sum: self.spec.heads_of_list(), relu };
            (step.level.vector.score)(&tile, &mut sums, scratch);
            sums.chunks_exact(KV_TILE)
                .enumerate()
                .for_each(|(list, sums)| to(list, at, &sums[..rows]));
            at += rows;
        }
    }

    /// Selects the positions of a token from its scores, list by list, and writes the lists.
    fn select(&self, task: Task, step: &Step<'_>, scores: &mut [f32], keys: &mut Vec<u32>) {
        let TopKPositionsSpec { selected, near, .. } = self.spec;
        let s = &step.input.segments[task.segment];
        // SAFETY: one task writes the lists of a token.
        let lists = unsafe { step.arena.row_mut(&self.out, s.first_row + task.row) };
        for (scores, list) in
            scores.chunks_exact_mut(task.seen).zip(lists.chunks_exact_mut(selected.count))
        {
            let scores = block_maxima(scores, selected.block);
            let far = scores.len().saturating_sub(near);
            scores[far..].fill(f32::INFINITY);
            let mut numbers = top_k(scores, selected.count, keys);
            list.fill_with(|| {
                SelectedPositions::entry(numbers.next().unwrap_or(SelectedPositions::NONE))
            });
        }
    }
}

// SAFETY: a task writes its own scores, and the lists of a token only if it finishes last.
unsafe impl Instruction for TopKPositions {
    fn name(&self) -> &'static str {
        "top_k_positions"
    }

    fn prepare(&mut self, step: &Step<'_>) {
        self.tasks = self.plan(step);
    }

    fn tasks(&self, _: &Step<'_>) -> usize {
        self.tasks.tasks.len()
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, scratch: &mut ThreadScratch) {
        let task = self.tasks.tasks[task];
        let len = self.spec.selected.lists * task.seen;
        let Some(merge) = task.merge.map(|merge| &self.tasks.merges[merge]) else {
            let scores = &mut scratch.floats;
            scores.resize(len, 0.0);
            self.score(
                task,
                step,
                (&mut scratch.kernel, &mut scratch.gathered[0]),
                |list, at, sums| {
                    scores[list * task.seen + at..][..sums.len()].copy_from_slice(sums);
                },
            );
            return self.select(task, step, scores, &mut scratch.numbers);
        };
        self.score(
            task,
            step,
            (&mut scratch.kernel, &mut scratch.gathered[0]),
            |list, at, sums| {
                // SAFETY: each position of a token belongs to one task.
                let scores = unsafe {
                    step.split_scratch.slice_mut(merge.scores + list * task.seen + at, sums.len())
                };
                scores.copy_from_slice(sums);
            },
        );
        // AcqRel: the last task sees the scores of the others.
        if merge.unfinished.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: all splits are written, and only this task uses them now.
            let scores = unsafe { step.split_scratch.slice_mut(merge.scores, len) };
            self.select(task, step, scores, &mut scratch.numbers);
        }
    }

    fn work(&self, step: &Step<'_>) -> (u64, u64) {
        let Some(cache) = step.cache else { return (0, 0) };
        let positions: usize = self.tasks.tasks.iter().map(|task| task.to - task.from).sum();
        let each = self.spec.heads * self.spec.dim;
        ((positions * cache.row_bytes(self.layer)) as u64, (positions * each) as u64)
    }
}

/// Reduces scores to the largest of each block of positions, in place.
fn block_maxima(scores: &mut [f32], block: usize) -> &mut [f32] {
    let count = scores.len().div_ceil(block);
    for i in 0..if block > 1 { count } else { 0 } {
        let end = scores.len().min((i + 1) * block);
        scores[i] = scores[i * block..end].iter().copied().fold(f32::NEG_INFINITY, f32::max);
    }
    &mut scores[..count]
}

/// Indices of the `count` largest scores (at least one), in ascending order; of equal scores the
/// first ones. Uses partial selection.
fn top_k<'a>(
    scores: &'a [f32],
    count: usize,
    keys: &mut Vec<u32>,
) -> impl Iterator<Item = u32> + use<'a> {
    keys.clear();
    keys.extend(scores.iter().map(|&score| key(score)));
    let (mut min, mut ties) = (0, scores.len());
    if count < scores.len() {
        let (above, last, _) = keys.select_nth_unstable_by_key(count - 1, |&key| Reverse(key));
        min = *last;
        ties = count - above.iter().filter(|&&key| key > min).count();
    }
    let taken = move |&(_, &score): &(usize, &f32)| match key(score).cmp(&min) {
        std::cmp::Ordering::Equal if ties > 0 => {
            ties -= 1;
            true
        }
        order => order.is_gt(),
    };
    scores.iter().enumerate().filter(taken).map(|(number, _)| number as u32)
}

/// Integer with the order of scores; NaN comes first.
fn key(score: f32) -> u32 {
    // Zeros have one sign.
    let bits = (score + 0.0).to_bits();
    match (score.is_nan(), bits >> 31) {
        (true, _) => 0,
        (false, 0) => bits | 1 << 31,
        (false, _) => !bits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(scores: &[f32], count: usize) -> Vec<u32> {
        top_k(scores, count, &mut Vec::new()).collect()
    }

    #[test]
    fn the_largest_scores_are_selected_and_ties_go_to_the_first_position() {
        let scores =
            [0.5, -1.0, 2.0, 0.0, -0.0, 0.5, f32::NAN, f32::NEG_INFINITY, 0.5, f32::INFINITY];
        assert_eq!(selected(&scores, 1), [9]);
        assert_eq!(selected(&scores, 2), [2, 9]);
        assert_eq!(selected(&scores, 3), [0, 2, 9]);
        assert_eq!(selected(&scores, 4), [0, 2, 5, 9]);
        assert_eq!(selected(&scores, 6), [0, 2, 3, 5, 8, 9]);
        assert_eq!(selected(&scores, 7), [0, 2, 3, 4, 5, 8, 9]);
        // NaN is selected last.
        assert_eq!(selected(&scores, 9), [0, 1, 2, 3, 4, 5, 7, 8, 9]);
        assert_eq!(selected(&scores, 20), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(selected(&[0.0; 5], 3), [0, 1, 2]);
    }

    #[test]
    fn the_selection_equals_that_of_a_full_sort() {
        for n in [1, 7, 64, 1000] {
            let scores: Vec<f32> = (0..n).map(|i| ((i * 7919 % 97) as f32 - 48.0) / 7.0).collect();
            let mut sorted: Vec<u32> = (0..n as u32).collect();
            sorted.sort_by(|&a, &b| scores[b as usize].total_cmp(&scores[a as usize]));
            for count in [1, 3, n / 2, n - 1, n].map(|count| count.clamp(1, n)) {
                let mut want = sorted[..count].to_vec();
                want.sort();
                assert_eq!(selected(&scores, count), want, "{count} of {n}");
            }
        }
    }

    #[test]
    fn the_score_of_a_block_is_that_of_its_best_position() {
        let mut scores = [1.0, -2.0, f32::NAN, -5.0, -4.0, -6.0, 0.5];
        assert_eq!(block_maxima(&mut scores, 3), [1.0, -4.0, 0.5]);
        let mut scores = [1.0, -2.0];
        assert_eq!(block_maxima(&mut scores, 1), [1.0, -2.0]);
        assert_eq!(block_maxima(&mut scores, 9), [1.0]);
    }
}

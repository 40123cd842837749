//! Which positions each token is given to attend to: scores of a small attention, of which the largest are taken.
//!
//! A task scores and chooses for one token. Where there are few tokens to choose for, each one's positions are cut into spans that have
//! tasks of their own, and whoever finishes last chooses. A score is the same either way, and so is the choice.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicUsize, Ordering};

use puna_graph::{ChoiceSpec, Chosen, Place};
use puna_kernels::{RUN, ScoreRun, Scratch};

use crate::cache::Kind;
use crate::ops::attention::is_stored_rotated;
use crate::ops::rotate::rotate;
use crate::step::{Instruction, Local, Step};

/// Positions of a span, where there are several tasks a token. A multiple of [`RUN`].
const SPAN: usize = 2048;
/// Tokens a thread from which on each is one task.
const ROWS_A_THREAD: usize = 2;

/// Chooses.
pub struct Choose {
    pub q: Place,
    pub weights: Option<Place>,
    pub out: Place,
    pub layer: usize,
    pub spec: ChoiceSpec,
    pub work: Work,
}

/// The tasks of a step.
#[derive(Default)]
pub struct Work {
    tasks: Vec<Task>,
    merges: Vec<Merge>,
    scores_len: usize,
}

/// Positions `from .. to` of a token.
#[derive(Clone, Copy)]
struct Task {
    segment: usize,
    /// The token's row in the segment, and how many positions it sees.
    row: usize,
    seen: usize,
    from: usize,
    to: usize,
    /// Of a token with several tasks.
    merge: Option<usize>,
}

/// A token with several tasks.
struct Merge {
    /// Where its scores begin.
    scores: usize,
    /// Tasks that are not finished.
    left: AtomicUsize,
}

impl Choose {
    /// Tasks of those tokens for which something must be chosen.
    fn plan(&self, step: &Step<'_>) -> Work {
        let ChoiceSpec { chosen, .. } = self.spec;
        let mut work = Work::default();
        let rows = step.input.segments.iter().enumerate().flat_map(|(segment, s)| {
            let each = self.spec.mask.pooled();
            let rows = (0..s.rows).map(move |row| (segment, row, (s.past + row + 1) / each));
            rows.filter(move |&(.., seen)| seen > chosen.room())
        });
        let scores: usize = rows.clone().map(|(.., seen)| chosen.lists * seen).sum();
        let cut = step.threads > 1
            && rows.clone().count() < step.threads * ROWS_A_THREAD
            && scores <= step.aside.len();
        for (segment, row, seen) in rows {
            let span = if cut { SPAN } else { seen };
            let merge = (span < seen).then_some(work.merges.len());
            let spans = (0..seen).step_by(span).map(|from| (from, seen.min(from + span)));
            work.tasks.extend(spans.clone().map(|(from, to)| Task { segment, row, seen, from, to, merge }));
            if merge.is_some() {
                work.merges.push(Merge { scores: work.scores_len, left: AtomicUsize::new(spans.count()) });
                work.scores_len += chosen.lists * seen;
            }
        }
        work
    }

    /// Scores of a task's positions, `to[list · seen + position]` counted from the first of them.
    fn score(
        &self,
        task: Task,
        step: &Step<'_>,
        (scratch, gathered): (&mut Scratch, &mut Vec<u8>),
        mut to: impl FnMut(usize, usize, &[f32]),
    ) {
        let cache = step.cache.expect("a program with cached attention runs with a cache");
        let ChoiceSpec { rectified, chosen, dim, .. } = self.spec;
        let s = &step.input.segments[task.segment];
        let row = s.first_row + task.row;
        // SAFETY: computed before a barrier.
        let (q, weights) = unsafe {
            let weights = self.weights.as_ref().map(|weights| step.arena.row(weights, row));
            (step.arena.row(&self.q, row), weights.unwrap_or_default())
        };
        let mut q = q.to_vec();
        if is_stored_rotated(&self.spec.keys(), Kind::Key, cache) {
            q.chunks_exact_mut(dim).for_each(rotate);
        }
        let mut sums = vec![0.0; chosen.lists * RUN];
        let mut at = task.from;
        while at < task.to {
            let rows = RUN.min(task.to - at);
            let places: Vec<_> = (at..at + rows).map(|row| cache.place_of(self.layer, s, row)).collect();
            // SAFETY: written before a barrier; nobody writes these positions now.
            let keys = unsafe { cache.gathered(self.layer, Kind::Key, 0, &places, gathered) };
            let run = ScoreRun { q: &q, keys, weights, summed: self.spec.heads_of_list(), rectified };
            (step.level.vector.score)(&run, &mut sums, scratch);
            sums.chunks_exact(RUN).enumerate().for_each(|(list, sums)| to(list, at, &sums[..rows]));
            at += rows;
        }
    }

    /// The lists of a task's token, of its scores list by list.
    fn choose(&self, task: Task, step: &Step<'_>, scores: &mut [f32], keys: &mut Vec<u32>) {
        let ChoiceSpec { chosen, near, .. } = self.spec;
        let s = &step.input.segments[task.segment];
        // SAFETY: a token's lists are written once.
        let lists = unsafe { step.arena.row_mut(&self.out, s.first_row + task.row) };
        for (scores, list) in scores.chunks_exact_mut(task.seen).zip(lists.chunks_exact_mut(chosen.count)) {
            let scores = of_blocks(scores, chosen.block);
            let far = scores.len().saturating_sub(near);
            scores[far..].fill(f32::INFINITY);
            let mut numbers = largest(scores, chosen.count, keys);
            list.fill_with(|| Chosen::entry(numbers.next().unwrap_or(Chosen::NONE)));
        }
    }
}

// SAFETY: a task writes scores that are its own; a token's lists are written by whoever finishes last.
unsafe impl Instruction for Choose {
    fn name(&self) -> &'static str {
        "choose"
    }

    fn prepare(&mut self, step: &Step<'_>) {
        self.work = self.plan(step);
    }

    fn tasks(&self, _: &Step<'_>) -> usize {
        self.work.tasks.len()
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, local: &mut Local) {
        let task = self.work.tasks[task];
        let len = self.spec.chosen.lists * task.seen;
        let Some(merge) = task.merge.map(|merge| &self.work.merges[merge]) else {
            let scores = &mut local.floats;
            scores.resize(len, 0.0);
            self.score(task, step, (&mut local.scratch, &mut local.gathered[0]), |list, at, sums| {
                scores[list * task.seen + at..][..sums.len()].copy_from_slice(sums);
            });
            return self.choose(task, step, scores, &mut local.numbers);
        };
        self.score(task, step, (&mut local.scratch, &mut local.gathered[0]), |list, at, sums| {
            // SAFETY: positions of a token belong to one task.
            let scores = unsafe { step.aside.slice_mut(merge.scores + list * task.seen + at, sums.len()) };
            scores.copy_from_slice(sums);
        });
        // Whoever finishes last sees what the others wrote.
        if merge.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: every span is written, and this is the only task that goes on with them.
            let scores = unsafe { step.aside.slice_mut(merge.scores, len) };
            self.choose(task, step, scores, &mut local.numbers);
        }
    }

    fn work(&self, step: &Step<'_>) -> (u64, u64) {
        let Some(cache) = step.cache else { return (0, 0) };
        let positions: usize = self.work.tasks.iter().map(|task| task.to - task.from).sum();
        let each = self.spec.heads * self.spec.dim;
        ((positions * cache.row_bytes(self.layer)) as u64, (positions * each) as u64)
    }
}

/// The largest score of each block of positions, in the place of the first ones.
fn of_blocks(scores: &mut [f32], block: usize) -> &mut [f32] {
    let count = scores.len().div_ceil(block);
    for i in 0..if block > 1 { count } else { 0 } {
        let end = scores.len().min((i + 1) * block);
        scores[i] = scores[i * block..end].iter().copied().fold(f32::NEG_INFINITY, f32::max);
    }
    &mut scores[..count]
}

/// Numbers of the `count` largest scores (one or more), ascending; of equal ones the first. They are found without sorting all.
fn largest<'a>(scores: &'a [f32], count: usize, keys: &mut Vec<u32>) -> impl Iterator<Item = u32> + use<'a> {
    keys.clear();
    keys.extend(scores.iter().map(|&score| key(score)));
    let (mut least, mut ties) = (0, scores.len());
    if count < scores.len() {
        let (above, last, _) = keys.select_nth_unstable_by_key(count - 1, |&key| Reverse(key));
        least = *last;
        ties = count - above.iter().filter(|&&key| key > least).count();
    }
    let taken = move |&(_, &score): &(usize, &f32)| match key(score).cmp(&least) {
        std::cmp::Ordering::Equal if ties > 0 => {
            ties -= 1;
            true
        }
        order => order.is_gt(),
    };
    scores.iter().enumerate().filter(taken).map(|(number, _)| number as u32)
}

/// What is ordered as scores are, no number first.
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

    fn chosen(scores: &[f32], count: usize) -> Vec<u32> {
        largest(scores, count, &mut Vec::new()).collect()
    }

    #[test]
    fn the_largest_are_chosen_and_of_equal_ones_the_first() {
        let scores = [0.5, -1.0, 2.0, 0.0, -0.0, 0.5, f32::NAN, f32::NEG_INFINITY, 0.5, f32::INFINITY];
        assert_eq!(chosen(&scores, 1), [9]);
        assert_eq!(chosen(&scores, 2), [2, 9]);
        assert_eq!(chosen(&scores, 3), [0, 2, 9]);
        assert_eq!(chosen(&scores, 4), [0, 2, 5, 9]);
        assert_eq!(chosen(&scores, 6), [0, 2, 3, 5, 8, 9]);
        assert_eq!(chosen(&scores, 7), [0, 2, 3, 4, 5, 8, 9]);
        // What is no number comes last of all.
        assert_eq!(chosen(&scores, 9), [0, 1, 2, 3, 4, 5, 7, 8, 9]);
        assert_eq!(chosen(&scores, 20), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(chosen(&[0.0; 5], 3), [0, 1, 2]);
    }

    #[test]
    fn as_many_are_chosen_as_sorting_all_would() {
        for n in [1, 7, 64, 1000] {
            let scores: Vec<f32> = (0..n).map(|i| ((i * 7919 % 97) as f32 - 48.0) / 7.0).collect();
            let mut sorted: Vec<u32> = (0..n as u32).collect();
            sorted.sort_by(|&a, &b| scores[b as usize].total_cmp(&scores[a as usize]));
            for count in [1, 3, n / 2, n - 1, n].map(|count| count.clamp(1, n)) {
                let mut want = sorted[..count].to_vec();
                want.sort();
                assert_eq!(chosen(&scores, count), want, "{count} of {n}");
            }
        }
    }

    #[test]
    fn a_block_is_as_good_as_its_best_position() {
        let mut scores = [1.0, -2.0, f32::NAN, -5.0, -4.0, -6.0, 0.5];
        assert_eq!(of_blocks(&mut scores, 3), [1.0, -4.0, 0.5]);
        let mut scores = [1.0, -2.0];
        assert_eq!(of_blocks(&mut scores, 1), [1.0, -2.0]);
        assert_eq!(of_blocks(&mut scores, 9), [1.0]);
    }
}

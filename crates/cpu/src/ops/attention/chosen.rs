//! Attention of a token to what was chosen for it: those positions are brought together, and met as if they were all there are.
//! So a token that was given all positions gets the very bits of one for which nothing was chosen.

use puna_graph::Chosen;
use puna_kernels::{AttendRun, RUN};

use super::work::{Block, row_visible};
use super::{Attend, results};
use crate::cache::Kind;
use crate::step::{Local, Step};

/// A page, and a position in it.
type InCache = (u32, usize);

impl Attend {
    /// Takes the places of a span of each key head's list into the running softmax of its queries.
    pub(super) fn walk_chosen(
        &self,
        block: Block,
        step: &Step<'_>,
        (from, to): (usize, usize),
        [q, running]: [&mut [f32]; 2],
        local: &mut Local,
    ) {
        let cache = step.cache.expect("a program with cached attention runs with a cache");
        let s = &step.input.segments[block.segment];
        let rows = block.queries();
        let place = |&position: &usize| cache.place_of(self.layer, s, position);
        for head in 0..block.kv_heads {
            let seen = self.seen(step, block, block.kv_head + head);
            let span = &seen[from.min(seen.len())..to.min(seen.len())];
            for positions in span.chunks(RUN) {
                let places: Vec<InCache> = positions.iter().map(place).collect();
                let visible = vec![(0, positions.len()); rows];
                self.meet(step, block, head, (&places, &visible), [&mut *q, &mut *running], local);
            }
        }
    }

    /// Takes a span of pooled rows into the running softmax of each key head's queries: few of them lie in a page, so that they
    /// are brought together, too.
    pub(super) fn walk_pooled(
        &self,
        block: Block,
        step: &Step<'_>,
        (from, to): (usize, usize),
        [q, running]: [&mut [f32]; 2],
        local: &mut Local,
    ) {
        let cache = step.cache.expect("a program with cached attention runs with a cache");
        let s = &step.input.segments[block.segment];
        let mut visible = vec![(0, 0); block.queries()];
        for at in (from..to).step_by(RUN) {
            let len = RUN.min(to - at);
            let places: Vec<_> = (at..at + len).map(|row| cache.place_of(self.layer, s, row)).collect();
            for (row, visible) in visible.chunks_exact_mut(block.heads).enumerate() {
                let (_, end) = row_visible(&self.spec, s, s.past + block.row + row);
                visible.fill((0, end.saturating_sub(at).min(len)));
            }
            for head in 0..block.kv_heads {
                self.meet(step, block, head, (&places, &visible), [&mut *q, &mut *running], local);
            }
        }
    }

    /// Brings the keys and values of places together and takes them into the running softmax of a block's queries of a key head, the
    /// `head`th of the block.
    fn meet(
        &self,
        step: &Step<'_>,
        block: Block,
        head: usize,
        (places, visible): (&[InCache], &[(usize, usize)]),
        [q, running]: [&mut [f32]; 2],
        local: &mut Local,
    ) {
        let cache = step.cache.expect("a program with cached attention runs with a cache");
        let rows = block.queries();
        let (queries, each) = (rows * self.spec.key_dim, block.state_len(&self.spec));
        let [of_keys, of_values] = &mut local.gathered;
        // SAFETY: written before a barrier; nobody writes these rows now.
        let half =
            |kind, into| unsafe { cache.gathered(self.layer, kind, block.kv_head + head, places, into) };
        let keys = half(Kind::Key, of_keys);
        let values = self.values_in(keys).unwrap_or_else(|| half(Kind::Value, of_values));
        let q = &q[head * queries..][..queries];
        let (falls, shifts, next, softcap) = (&[][..], &[][..], &[][..], self.spec.softcap);
        let run = AttendRun { q, keys, values, visible, falls, shifts, next, softcap };
        let mut state = results(&mut running[head * each..][..each], rows);
        (step.level.vector.attend)(&run, &mut state, &mut local.scratch);
    }

    /// Positions that a block's token sees in a key head, ascending.
    fn seen(&self, step: &Step<'_>, block: Block, kv_head: usize) -> Vec<usize> {
        let (Some(form), Some(place)) = (self.spec.chosen, &self.chosen) else { return Vec::new() };
        let s = &step.input.segments[block.segment];
        let (_, end) = row_visible(&self.spec, s, s.past + block.row);
        let list = if form.lists == 1 { 0 } else { kv_head };
        // SAFETY: computed before a barrier.
        let lists = unsafe { step.arena.row(place, s.first_row + block.row) };
        let entries = lists[list * form.count..][..form.count].iter().map(|entry| entry.to_bits());
        let blocks = entries.take_while(|&number| number != Chosen::NONE).map(|number| number as usize);
        let positions = blocks.flat_map(|number| number * form.block..(number + 1) * form.block);
        let tail = if self.spec.sees_tail { end / form.block * form.block } else { end };
        positions.take_while(|&seen| seen < end).chain(tail..end).collect()
    }
}

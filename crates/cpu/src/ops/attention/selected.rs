//! Sparse attention: attention of a token to the positions that the indexer selected. The keys and
//! values are gathered into contiguous KV tiles and attended to as usual. So a token for which all
//! positions are selected gets the bits of dense attention.

use puna_graph::SelectedPositions;
use puna_kernels::{AttendTile, KV_TILE};

use super::tasks::{Block, visible_range_of_row};
use super::{Attend, running_softmax};
use crate::cache::KeyOrValue;
use crate::step::{Step, ThreadScratch};

/// Location of a position in the cache: page, and row in the page.
type CacheSlot = (u32, usize);

impl Attend {
    /// Adds the selected positions of a split to the running softmax of each KV head's queries.
    /// `from .. to` are entries of the list of selected positions.
    pub(super) fn walk_selected(
        &self,
        block: Block,
        step: &Step<'_>,
        (from, to): (usize, usize),
        [q, running]: [&mut [f32]; 2],
        scratch: &mut ThreadScratch,
    ) {
        let cache = step.cache.expect("a program with cached attention runs with a cache");
        let s = &step.input.segments[block.segment];
        let rows = block.queries();
        let slot = |&position: &usize| cache.cache_slot_of(self.layer, s, position);
        for head in 0..block.kv_heads {
            let selected = self.selected(step, block, block.kv_head + head);
            let split = &selected[from.min(selected.len())..to.min(selected.len())];
            for positions in split.chunks(KV_TILE) {
                let slots: Vec<CacheSlot> = positions.iter().map(slot).collect();
                let visible = vec![(0, positions.len()); rows];
                self.attend_gathered(
                    step,
                    block,
                    head,
                    (&slots, &visible),
                    [&mut *q, &mut *running],
                    scratch,
                );
            }
        }
    }

    /// Adds the pooled rows of a split to the running softmax of each KV head's queries. A page
    /// has few pooled rows, so they are gathered, too.
    pub(super) fn walk_pooled(
        &self,
        block: Block,
        step: &Step<'_>,
        (from, to): (usize, usize),
        [q, running]: [&mut [f32]; 2],
        scratch: &mut ThreadScratch,
    ) {
        let cache = step.cache.expect("a program with cached attention runs with a cache");
        let s = &step.input.segments[block.segment];
        let mut visible = vec![(0, 0); block.queries()];
        for at in (from..to).step_by(KV_TILE) {
            let len = KV_TILE.min(to - at);
            let slots: Vec<_> =
                (at..at + len).map(|row| cache.cache_slot_of(self.layer, s, row)).collect();
            for (row, visible) in visible.chunks_exact_mut(block.heads).enumerate() {
                let (_, end) =
                    visible_range_of_row(&self.spec, s, s.cached_tokens + block.row + row);
                visible.fill((0, end.saturating_sub(at).min(len)));
            }
            for head in 0..block.kv_heads {
                self.attend_gathered(
                    step,
                    block,
                    head,
                    (&slots, &visible),
                    [&mut *q, &mut *running],
                    scratch,
                );
            }
        }
    }

    /// Gathers the keys and values of `slots` and adds them to the running softmax of the queries
    /// of the block's KV head `head`.
    fn attend_gathered(
        &self,
        step: &Step<'_>,
        block: Block,
        head: usize,
        (slots, visible): (&[CacheSlot], &[(usize, usize)]),
        [q, running]: [&mut [f32]; 2],
        scratch: &mut ThreadScratch,
    ) {
        let cache = step.cache.expect("a program with cached attention runs with a cache");
        let rows = block.queries();
        let (query_len, state_len) = (rows * self.spec.key_dim, block.state_len(&self.spec));
        let [of_keys, of_values] = &mut scratch.gathered;
        // SAFETY: an earlier instruction wrote them, behind a barrier; no task writes them.
        let half = |kind, into| unsafe {
            cache.gathered(self.layer, kind, block.kv_head + head, slots, into)
        };
        let keys = half(KeyOrValue::Key, of_keys);
        let values = self.values_in(keys).unwrap_or_else(|| half(KeyOrValue::Value, of_values));
        let q = &q[head * query_len..][..query_len];
        let (alibi, position_bias, next, softcap) = (&[][..], &[][..], &[][..], self.spec.softcap);
        let tile = AttendTile { q, keys, values, visible, alibi, position_bias, next, softcap };
        let mut state = running_softmax(&mut running[head * state_len..][..state_len], rows);
        (step.level.vector.attend)(&tile, &mut state, &mut scratch.kernel);
    }

    /// Positions that are selected for the block's token in a KV head, in ascending order.
    fn selected(&self, step: &Step<'_>, block: Block, kv_head: usize) -> Vec<usize> {
        let (Some(selection), Some(range)) = (self.spec.selected, &self.selected) else {
            return Vec::new();
        };
        let s = &step.input.segments[block.segment];
        let (_, end) = visible_range_of_row(&self.spec, s, s.cached_tokens + block.row);
        let list = if selection.lists == 1 { 0 } else { kv_head };
        // SAFETY: an earlier instruction computed it, behind a barrier.
        let lists = unsafe { step.arena.row(range, s.first_row + block.row) };
        let entries =
            lists[list * selection.count..][..selection.count].iter().map(|entry| entry.to_bits());
        let blocks = entries
            .take_while(|&number| number != SelectedPositions::NONE)
            .map(|number| number as usize);
        let positions =
            blocks.flat_map(|number| number * selection.block..(number + 1) * selection.block);
        let tail = if self.spec.sees_tail { end / selection.block * selection.block } else { end };
        positions.take_while(|&seen| seen < end).chain(tail..end).collect()
    }
}

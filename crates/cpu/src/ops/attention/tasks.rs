//! Divides the attention of a step into tasks.
//!
//! A task computes a block: some tokens of one sequence, some heads, and a range of positions. If a
//! step has too few tasks for the threads, contexts are split (split-KV attention): each split of
//! [`SPLIT_LEN`] positions becomes a task with a partial result, and the task that finishes last
//! merges the partial results.

use std::sync::atomic::AtomicUsize;

use puna_graph::{AttentionSpec, Mask, Segment};
use puna_kernels::KV_TILE;

/// Largest number of query rows (tokens × heads) of a task.
const BLOCK_ROWS: usize = 64;
/// Positions of a split; for sparse attention, entries of the list of selected positions. Every
/// task restarts its running softmax after each split and merges splits in order. So results have
/// the same bits whether one task computes the whole context or each split has its own task. A
/// multiple of [`KV_TILE`].
const SPLIT_LEN: usize = 512;
/// Largest number of query rows per KV head for which a task takes several KV heads.
const MAX_ROWS_FOR_SEVERAL_HEADS: usize = 16;
/// Smallest number of query rows per task for which it pays that several tasks load the same keys.
const MIN_ROWS_PER_KEY_LOAD: usize = 8;
/// Tasks per thread that balance threads of different speed. With fewer, contexts are split; with
/// more, tasks of few rows take several KV heads.
const TASKS_PER_THREAD: usize = 8;

/// The tokens, heads and positions of one task.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub segment: usize,
    /// First row, relative to the segment.
    pub row: usize,
    pub rows: usize,
    /// First KV head and number of KV heads.
    pub kv_head: usize,
    pub kv_heads: usize,
    /// First query head within each KV head's group, and number of query heads.
    pub head: usize,
    pub heads: usize,
    /// Whether the block is one token with sparse attention.
    pub is_sparse: bool,
    /// Range of positions; for sparse attention, of entries of the list of selected positions,
    /// which may be shorter.
    pub from: usize,
    pub to: usize,
    /// If the context is split: offset of the partial result in the split scratch, and index of the
    /// merge.
    pub partial: Option<(usize, usize)>,
}

/// A block with splits, which the last finished task merges.
#[derive(Debug)]
pub(super) struct SplitMerge {
    pub block: Block,
    /// Offset of the first partial result, and number of splits.
    pub partial: usize,
    pub splits: usize,
    /// Number of unfinished splits.
    pub unfinished: AtomicUsize,
}

/// The tasks of one attention in one step.
#[derive(Debug, Default)]
pub struct AttentionTasks {
    pub(super) blocks: Vec<Block>,
    pub(super) merges: Vec<SplitMerge>,
    pub(super) partial_len: usize,
}

impl Block {
    /// Query rows per KV head.
    pub fn queries(&self) -> usize {
        self.rows * self.heads
    }

    /// Length in f32 of the running softmax of one KV head's queries.
    pub fn state_len(&self, spec: &AttentionSpec) -> usize {
        self.queries() * (spec.value_dim + 2)
    }
}

impl AttentionTasks {
    /// Divides the attention of `segments` for `threads` threads. Contexts are not split if the
    /// partial results need more than `scratch_len` f32. `page_tokens` is the page size of the
    /// cache, 0 without a cache.
    pub(super) fn plan(
        spec: &AttentionSpec,
        segments: &[Segment],
        (threads, scratch_len): (usize, usize),
        page_tokens: usize,
    ) -> Self {
        let group = spec.heads / spec.kv_heads;
        let block_rows = (BLOCK_ROWS / group).max(1);
        let mut tasks = Self::default();
        let blocks_of = |s: &Segment| {
            let whole = dense_rows(spec, s);
            let whole_blocks =
                (0..whole).step_by(block_rows).map(move |row| (row, block_rows.min(whole - row)));
            whole_blocks.chain((whole..s.rows).map(|row| (row, 1)))
        };
        let blocks: usize = segments.iter().map(|s| blocks_of(s).count()).sum();
        let positions_read =
            |s: &Segment, row, rows| positions_read(spec, s, (row, rows), page_tokens);
        let partials = || -> usize {
            let splits_of = |s: &Segment| -> usize {
                let each = blocks_of(s).map(|(row, rows)| {
                    let (from, to) = positions_read(s, row, rows);
                    rows * splits(from, to).count()
                });
                each.sum()
            };
            segments.iter().map(splits_of).sum::<usize>() * spec.partial_cols()
        };
        let split_contexts = threads > 1
            && blocks * spec.kv_heads < threads * TASKS_PER_THREAD
            && partials() <= scratch_len;
        for (segment, s) in segments.iter().enumerate() {
            for (row, rows) in blocks_of(s) {
                let is_sparse = row >= dense_rows(spec, s);
                let (from, to) = positions_read(s, row, rows);
                let splits = if split_contexts { splits(from, to).count() } else { 1 };
                let each = kv_heads_per_task(spec.kv_heads, rows * group, blocks * splits, threads);
                let part =
                    query_heads_per_task(group, rows, blocks * splits * spec.kv_heads, threads);
                for kv_head in (0..spec.kv_heads).step_by(each) {
                    let (kv_heads, partial) = (each.min(spec.kv_heads - kv_head), None);
                    for head in (0..group).step_by(part) {
                        let heads = part.min(group - head);
                        let block = Block {
                            segment,
                            row,
                            rows,
                            kv_head,
                            kv_heads,
                            head,
                            heads,
                            is_sparse,
                            from,
                            to,
                            partial,
                        };
                        tasks.push(block, split_contexts, kv_heads * block.state_len(spec));
                    }
                }
            }
        }
        tasks
    }

    /// Adds a block, or one block for each split. A partial result has `len` f32.
    fn push(&mut self, block: Block, split_contexts: bool, len: usize) {
        let splits: Vec<_> = splits(block.from, block.to).collect();
        if !split_contexts || splits.len() == 1 {
            return self.blocks.push(block);
        }
        let first = self.partial_len;
        for &(from, to) in &splits {
            let partial = Some((self.partial_len, self.merges.len()));
            self.blocks.push(Block { from, to, partial, ..block });
            self.partial_len += len;
        }
        let unfinished = AtomicUsize::new(splits.len());
        self.merges.push(SplitMerge { block, partial: first, splits: splits.len(), unfinished });
    }

    /// For tests of the instruction: KV heads of each block, and whether it is one of several
    /// splits.
    #[cfg(test)]
    pub fn heads_of_blocks(
        spec: &AttentionSpec,
        segments: &[Segment],
        threads: usize,
    ) -> Vec<(usize, bool)> {
        let tasks = Self::plan(spec, segments, (threads, usize::MAX), KV_TILE);
        tasks.blocks.iter().map(|block| (block.kv_heads, block.partial.is_some())).collect()
    }
}

/// Number of KV heads per task, if `tasks` tasks of all `kv_heads` KV heads would exist. The few
/// query rows of all heads fit into the processor cache, and the task reads a layer's part of a
/// page from the first byte to the last.
fn kv_heads_per_task(kv_heads: usize, query_rows: usize, tasks: usize, threads: usize) -> usize {
    if query_rows > MAX_ROWS_FOR_SEVERAL_HEADS {
        return 1;
    }
    let parts = (threads * TASKS_PER_THREAD).div_ceil(tasks).min(kv_heads);
    kv_heads.div_ceil(parts)
}

/// Number of query heads of a KV head per task, if `tasks` tasks of all query heads would exist.
/// With fewer tasks than threads, several tasks read the same keys, each for at least
/// [`MIN_ROWS_PER_KEY_LOAD`] query rows.
fn query_heads_per_task(group: usize, rows: usize, tasks: usize, threads: usize) -> usize {
    let parts = threads.div_ceil(tasks).min(rows * group / MIN_ROWS_PER_KEY_LOAD).clamp(1, group);
    group.div_ceil(parts)
}

/// Number of first rows of a segment that see all earlier positions, because sparse attention would
/// select all of them.
fn dense_rows(spec: &AttentionSpec, s: &Segment) -> usize {
    let Some(max_positions) = spec.max_attended_positions() else { return s.rows };
    // The first position that sees more positions than sparse attention selects.
    let first = (max_positions + 1).saturating_mul(spec.mask.pooled()) - 1;
    first.saturating_sub(s.cached_tokens).min(s.rows)
}

/// The positions that rows of a segment read: from the start of a KV tile, so that a position is
/// always in the same KV tile, but not before the first page that is kept, since pages can be
/// smaller than a KV tile.
fn positions_read(
    spec: &AttentionSpec,
    s: &Segment,
    (row, rows): (usize, usize),
    page_tokens: usize,
) -> (usize, usize) {
    let (from, to) = match spec.max_attended_positions().filter(|_| row >= dense_rows(spec, s)) {
        Some(max_positions) => (0, max_positions),
        None => visible_range(spec, s, row, rows),
    };
    ((from / KV_TILE * KV_TILE).max(from.min(first_cached(spec.mask, s, page_tokens))), to)
}

/// The splits of the positions `from .. to`.
pub(super) fn splits(from: usize, to: usize) -> impl Iterator<Item = (usize, usize)> {
    let first = from / SPLIT_LEN;
    (first..to.div_ceil(SPLIT_LEN).max(first + 1))
        .map(move |i| (from.max(i * SPLIT_LEN), to.min((i + 1) * SPLIT_LEN)))
}

/// The first position that the cache still has for layers with this mask.
fn first_cached(mask: Mask, s: &Segment, page_tokens: usize) -> usize {
    mask.reach().map_or(0, |_| s.window_pages.first * page_tokens)
}

/// Positions that at least one row of a block sees.
fn visible_range(spec: &AttentionSpec, s: &Segment, row: usize, rows: usize) -> (usize, usize) {
    let (first, last) = (s.cached_tokens + row, s.cached_tokens + row + rows - 1);
    let mask = spec.mask;
    match mask {
        Mask::Full => (0, s.rows),
        Mask::CrossAttention => (0, s.encoder_tokens),
        Mask::DecoderCausal => (s.encoder_tokens.min(first), visible_end(spec, s, last)),
        Mask::SymmetricWindow(n) => {
            (first.saturating_sub(n as usize), s.rows.min(last + 1 + n as usize))
        }
        Mask::RowWindow => {
            let windows = (row..row + rows).map(|row| s.row_window(row));
            let all = windows.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
            all.map_or((0, 0), |all| (all.start, all.end))
        }
        Mask::Pooled(_) => (0, (last + 1) / mask.pooled()),
        Mask::Causal | Mask::Window(_) | Mask::Chunk(_) => {
            (mask.first_seen(first), visible_end(spec, s, last))
        }
    }
}

/// Positions that the row at `position` sees.
pub(super) fn visible_range_of_row(
    spec: &AttentionSpec,
    s: &Segment,
    position: usize,
) -> (usize, usize) {
    let mask = spec.mask;
    match mask {
        Mask::Full => (0, s.rows),
        Mask::CrossAttention => (0, s.encoder_tokens),
        Mask::DecoderCausal => (s.encoder_tokens.min(position), visible_end(spec, s, position)),
        Mask::SymmetricWindow(n) => {
            (position.saturating_sub(n as usize), s.rows.min(position + 1 + n as usize))
        }
        Mask::RowWindow => {
            let window = s.row_window(position);
            (window.start, window.end)
        }
        Mask::Pooled(_) => (0, (position + 1) / mask.pooled()),
        Mask::Causal | Mask::Window(_) | Mask::Chunk(_) => {
            (mask.first_seen(position), visible_end(spec, s, position))
        }
    }
}

/// End of the positions that the row at `position` sees.
fn visible_end(spec: &AttentionSpec, s: &Segment, position: usize) -> usize {
    match (spec.sees_ahead, spec.sees_media_span) {
        (true, _) => s.cached_tokens + s.rows,
        (false, true) => s.media_span_end(position),
        (false, false) => position + 1,
    }
}

#[cfg(test)]
mod tests {
    use puna_graph::RowWindow;

    use super::*;

    #[test]
    fn a_block_of_rows_reads_the_positions_visible_to_any_row() {
        let s = Segment { first_row: 0, rows: 12, cached_tokens: 9, ..Segment::default() };
        for mask in [Mask::Causal, Mask::Window(4), Mask::Chunk(5), Mask::Chunk(1), Mask::Pooled(4)]
        {
            for sees_ahead in [false, true] {
                let spec = AttentionSpec { sees_ahead, ..spec(mask) };
                for (row, rows) in [(0, 1), (3, 4), (0, 12)] {
                    let each = (row..row + rows)
                        .map(|row| visible_range_of_row(&spec, &s, s.cached_tokens + row));
                    let all = each.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
                    assert_eq!(
                        Some(visible_range(&spec, &s, row, rows)),
                        all,
                        "{mask:?}, {rows} rows from {row}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_row_sees_the_rows_of_its_window_and_without_a_window_all_rows() {
        let windows = [(0..4, 0..4), (4..6, 0..99), (8..9, 3..5)];
        let row_windows = windows.map(|(rows, sees)| RowWindow { rows, sees }).to_vec();
        let s = Segment { rows: 10, row_windows, ..Segment::default() };
        let seen =
            [0, 3, 4, 7, 8, 9].map(|row| visible_range_of_row(&spec(Mask::RowWindow), &s, row));
        assert_eq!(seen, [(0, 4), (0, 4), (0, 10), (0, 10), (3, 5), (0, 10)]);
        assert_eq!(visible_range(&spec(Mask::RowWindow), &s, 1, 3), (0, 4));
        assert_eq!(visible_range(&spec(Mask::RowWindow), &s, 8, 1), (3, 5));
    }

    fn spec(mask: Mask) -> AttentionSpec {
        AttentionSpec { mask, ..AttentionSpec::causal(1, 1, 4, 4) }
    }

    #[test]
    fn attention_with_look_ahead_sees_the_whole_step() {
        let s = Segment { first_row: 0, rows: 6, cached_tokens: 9, ..Segment::default() };
        let seen = |mask, position| {
            visible_range_of_row(&AttentionSpec { sees_ahead: true, ..spec(mask) }, &s, position)
        };
        assert_eq!([9, 14].map(|p| seen(Mask::Causal, p)), [(0, 15); 2]);
        assert_eq!([9, 14].map(|p| seen(Mask::Window(4), p)), [(6, 15), (11, 15)]);
    }

    #[test]
    fn rows_of_a_media_span_see_its_end() {
        let (media_spans, cached_tokens) = (vec![10..13, 13..15], 9);
        let s = Segment { rows: 8, cached_tokens, media_spans, ..Segment::default() };
        let spec = AttentionSpec { sees_media_span: true, ..spec(Mask::Window(4)) };
        let seen = (9..17).map(|position| visible_range_of_row(&spec, &s, position));
        let expected = [(6, 10), (7, 13), (8, 13), (9, 13), (10, 15), (11, 15), (12, 16), (13, 17)];
        assert_eq!(seen.collect::<Vec<_>>(), expected);
        assert_eq!(visible_range(&spec, &s, 1, 2), (7, 13));
        assert_eq!(visible_range(&spec, &s, 0, 8), (6, 17));
    }

    #[test]
    fn chunk_masks_begin_at_multiples_and_encoder_masks_look_both_ways() {
        let s = Segment { first_row: 0, rows: 10, ..Segment::default() };
        let seen = |mask, position| visible_range_of_row(&spec(mask), &s, position);
        assert_eq!([3, 4, 7, 8].map(|p| seen(Mask::Chunk(4), p)), [(0, 4), (4, 5), (4, 8), (8, 9)]);
        assert_eq!([0, 5, 9].map(|p| seen(Mask::SymmetricWindow(2), p)), [(0, 3), (3, 8), (7, 10)]);
        assert!(Mask::Chunk(4).is_cached() && !Mask::SymmetricWindow(2).is_cached());
    }
}

//! How an attention of a step is cut into tasks.

use std::sync::atomic::AtomicUsize;

use puna_graph::{AttentionSpec, Mask, Segment};
use puna_kernels::RUN;

/// Query rows (tokens × heads) of a task, at most.
const BLOCK_ROWS: usize = 64;
/// Positions (or of those that were chosen, so many) after which a running softmax is put aside and begun anew. Results are merged in
/// order, so that it makes no difference whether one task walks the whole context or each span has a task of its own. A multiple of
/// [`RUN`].
const SPAN: usize = 512;
/// Query rows of a key head up to which a task takes several key heads.
const FEW_ROWS: usize = 16;
/// Query rows of a key head that are worth bringing its keys near once more.
const WORTH_ROWS: usize = 8;
/// Tasks a thread that even out what threads differ in speed: with fewer, contexts are cut into spans; beyond that, tasks
/// of few rows take several key heads.
const TASKS_A_THREAD: usize = 8;

/// A block of tokens of one sequence and the positions that a task looks at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub segment: usize,
    /// First row in the segment.
    pub row: usize,
    pub rows: usize,
    /// First key head, and how many.
    pub kv_head: usize,
    pub kv_heads: usize,
    /// First query head of each key head, and how many.
    pub head: usize,
    pub heads: usize,
    /// Whether it is one token that sees what was chosen for it, and no more.
    pub is_chosen: bool,
    /// Positions seen by this task; places in the list of them where they were chosen, which may be shorter.
    pub from: usize,
    pub to: usize,
    /// If the block is cut into spans: where this one's results go, and which merge awaits it.
    pub partial: Option<(usize, usize)>,
}

/// A block whose spans are to be merged by the task that finishes last.
#[derive(Debug)]
pub(super) struct Merge {
    pub block: Block,
    /// Offset of the first span's results, and their number.
    pub partial: usize,
    pub spans: usize,
    /// Spans that are not finished.
    pub left: AtomicUsize,
}

/// The tasks of a step; the same for all layers of the same form.
#[derive(Debug, Default)]
pub struct Work {
    pub(super) blocks: Vec<Block>,
    pub(super) merges: Vec<Merge>,
    pub(super) partial_len: usize,
}

impl Block {
    /// Query rows of a key head.
    pub fn queries(&self) -> usize {
        self.rows * self.heads
    }

    /// Floats of the running softmax of a key head's queries.
    pub fn state_len(&self, spec: &AttentionSpec) -> usize {
        self.queries() * (spec.value_dim + 2)
    }
}

impl Work {
    /// `page_tokens` are the cache's, where keys and values are kept. Contexts whose partial results take more than `room` floats are
    /// not cut.
    pub(super) fn plan(
        spec: &AttentionSpec,
        segments: &[Segment],
        (threads, room): (usize, usize),
        page_tokens: usize,
    ) -> Self {
        let group = spec.heads / spec.kv_heads;
        let block_rows = (BLOCK_ROWS / group).max(1);
        let mut work = Self::default();
        let blocks_of = |s: &Segment| {
            let whole = rows_that_see_all(spec, s);
            let whole_blocks =
                (0..whole).step_by(block_rows).map(move |row| (row, block_rows.min(whole - row)));
            whole_blocks.chain((whole..s.rows).map(|row| (row, 1)))
        };
        let blocks: usize = segments.iter().map(|s| blocks_of(s).count()).sum();
        let seen = |s: &Segment, row, rows| seen(spec, s, (row, rows), page_tokens);
        let partials = || -> usize {
            let spans_of = |s: &Segment| -> usize {
                let each = blocks_of(s).map(|(row, rows)| {
                    let (from, to) = seen(s, row, rows);
                    rows * spans(from, to).count()
                });
                each.sum()
            };
            segments.iter().map(spans_of).sum::<usize>() * spec.part_cols()
        };
        let cut = threads > 1 && blocks * spec.kv_heads < threads * TASKS_A_THREAD && partials() <= room;
        for (segment, s) in segments.iter().enumerate() {
            for (row, rows) in blocks_of(s) {
                let is_chosen = row >= rows_that_see_all(spec, s);
                let (from, to) = seen(s, row, rows);
                let spans = if cut { spans(from, to).count() } else { 1 };
                let each = heads_a_task(spec.kv_heads, rows * group, blocks * spans, threads);
                let part = queries_a_task(group, rows, blocks * spans * spec.kv_heads, threads);
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
                            is_chosen,
                            from,
                            to,
                            partial,
                        };
                        work.push(block, cut, kv_heads * block.state_len(spec));
                    }
                }
            }
        }
        work
    }

    /// Adds a block, cut into spans if it has several; each span's results take `len` floats.
    fn push(&mut self, block: Block, cut: bool, len: usize) {
        let spans: Vec<_> = spans(block.from, block.to).collect();
        if !cut || spans.len() == 1 {
            return self.blocks.push(block);
        }
        let first = self.partial_len;
        for &(from, to) in &spans {
            let partial = Some((self.partial_len, self.merges.len()));
            self.blocks.push(Block { from, to, partial, ..block });
            self.partial_len += len;
        }
        let left = AtomicUsize::new(spans.len());
        self.merges.push(Merge { block, partial: first, spans: spans.len(), left });
    }

    /// For tests of what runs them: the key heads of each block, and whether it is one of several spans.
    #[cfg(test)]
    pub fn heads_of_blocks(spec: &AttentionSpec, segments: &[Segment], threads: usize) -> Vec<(usize, bool)> {
        let work = Self::plan(spec, segments, (threads, usize::MAX), RUN);
        work.blocks.iter().map(|block| (block.kv_heads, block.partial.is_some())).collect()
    }
}

/// Of `kv_heads` key heads how many a task takes, if there were so many tasks with all of them. The few query rows of all
/// heads fit into the cache, and the task reads whole pages of a layer from the first byte to the last.
fn heads_a_task(kv_heads: usize, query_rows: usize, tasks: usize, threads: usize) -> usize {
    if query_rows > FEW_ROWS {
        return 1;
    }
    let parts = (threads * TASKS_A_THREAD).div_ceil(tasks).min(kv_heads);
    kv_heads.div_ceil(parts)
}

/// Of the query heads of a key head how many a task takes, if there were so many tasks with all of them: where these are fewer than
/// threads, several tasks read the same keys, each for heads enough to make that worth while.
fn queries_a_task(group: usize, rows: usize, tasks: usize, threads: usize) -> usize {
    let parts = threads.div_ceil(tasks).min(rows * group / WORTH_ROWS).clamp(1, group);
    group.div_ceil(parts)
}

/// Rows of a sequence for which nothing need be chosen: they come first.
fn rows_that_see_all(spec: &AttentionSpec, s: &Segment) -> usize {
    let Some(room) = spec.room() else { return s.rows };
    // The first position that sees more than a list has room for.
    let first = (room + 1).saturating_mul(spec.mask.pooled()) - 1;
    first.saturating_sub(s.past).min(s.rows)
}

/// The positions that rows of a segment look at: whole runs, so that a position always takes part in the same one; but nothing before
/// the first page that is still there, where pages are smaller than a run.
fn seen(
    spec: &AttentionSpec,
    s: &Segment,
    (row, rows): (usize, usize),
    page_tokens: usize,
) -> (usize, usize) {
    let (from, to) = match spec.room().filter(|_| row >= rows_that_see_all(spec, s)) {
        Some(room) => (0, room),
        None => visible(spec, s, row, rows),
    };
    ((from / RUN * RUN).max(from.min(first_kept(spec.mask, s, page_tokens))), to)
}

/// The spans of the positions `from .. to`.
pub(super) fn spans(from: usize, to: usize) -> impl Iterator<Item = (usize, usize)> {
    let first = from / SPAN;
    (first..to.div_ceil(SPAN).max(first + 1)).map(move |i| (from.max(i * SPAN), to.min((i + 1) * SPAN)))
}

/// The first position that is still there of what layers of this form keep.
fn first_kept(mask: Mask, s: &Segment, page_tokens: usize) -> usize {
    mask.reach().map_or(0, |_| s.recent.first * page_tokens)
}

/// Positions that any row of a block sees.
fn visible(spec: &AttentionSpec, s: &Segment, row: usize, rows: usize) -> (usize, usize) {
    let (first, last) = (s.past + row, s.past + row + rows - 1);
    let mask = spec.mask;
    match mask {
        Mask::Full => (0, s.rows),
        Mask::Encoded => (0, s.encoded),
        Mask::Decoded => (s.encoded.min(first), end(spec, s, last)),
        Mask::Around(n) => (first.saturating_sub(n as usize), s.rows.min(last + 1 + n as usize)),
        Mask::Pooled(_) => (0, (last + 1) / mask.pooled()),
        Mask::Causal | Mask::Window(_) | Mask::Chunk(_) => (mask.first_seen(first), end(spec, s, last)),
    }
}

/// Positions that the row at `position` sees.
pub(super) fn row_visible(spec: &AttentionSpec, s: &Segment, position: usize) -> (usize, usize) {
    let mask = spec.mask;
    match mask {
        Mask::Full => (0, s.rows),
        Mask::Encoded => (0, s.encoded),
        Mask::Decoded => (s.encoded.min(position), end(spec, s, position)),
        Mask::Around(n) => (position.saturating_sub(n as usize), s.rows.min(position + 1 + n as usize)),
        Mask::Pooled(_) => (0, (position + 1) / mask.pooled()),
        Mask::Causal | Mask::Window(_) | Mask::Chunk(_) => {
            (mask.first_seen(position), end(spec, s, position))
        }
    }
}

/// Where what the row at `position` sees ends.
fn end(spec: &AttentionSpec, s: &Segment, position: usize) -> usize {
    if spec.sees_ahead { s.past + s.rows } else { position + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_looks_at_what_any_of_its_rows_sees() {
        let s = Segment { first_row: 0, rows: 12, past: 9, ..Segment::default() };
        for mask in [Mask::Causal, Mask::Window(4), Mask::Chunk(5), Mask::Chunk(1), Mask::Pooled(4)] {
            for sees_ahead in [false, true] {
                let spec = AttentionSpec { sees_ahead, ..spec(mask) };
                for (row, rows) in [(0, 1), (3, 4), (0, 12)] {
                    let each = (row..row + rows).map(|row| row_visible(&spec, &s, s.past + row));
                    let all = each.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
                    assert_eq!(Some(visible(&spec, &s, row, rows)), all, "{mask:?}, {rows} rows from {row}");
                }
            }
        }
    }

    fn spec(mask: Mask) -> AttentionSpec {
        AttentionSpec { mask, ..AttentionSpec::causal(1, 1, 4, 4) }
    }

    #[test]
    fn who_sees_ahead_sees_the_whole_step_and_no_farther_back_than_others() {
        let s = Segment { first_row: 0, rows: 6, past: 9, ..Segment::default() };
        let seen =
            |mask, position| row_visible(&AttentionSpec { sees_ahead: true, ..spec(mask) }, &s, position);
        assert_eq!([9, 14].map(|p| seen(Mask::Causal, p)), [(0, 15); 2]);
        assert_eq!([9, 14].map(|p| seen(Mask::Window(4), p)), [(6, 15), (11, 15)]);
    }

    #[test]
    fn a_chunk_begins_at_a_multiple_and_an_encoder_sees_both_sides() {
        let s = Segment { first_row: 0, rows: 10, ..Segment::default() };
        let seen = |mask, position| row_visible(&spec(mask), &s, position);
        assert_eq!([3, 4, 7, 8].map(|p| seen(Mask::Chunk(4), p)), [(0, 4), (4, 5), (4, 8), (8, 9)]);
        assert_eq!([0, 5, 9].map(|p| seen(Mask::Around(2), p)), [(0, 3), (3, 8), (7, 10)]);
        assert!(Mask::Chunk(4).is_cached() && !Mask::Around(2).is_cached());
    }
}

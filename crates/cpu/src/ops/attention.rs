//! Attention over the paged cache (or over the step's own rows, for encoders).
//!
//! A task takes the query heads of one key head for a block of tokens, walks the visible pages once with a running
//! softmax, and so reads each key and value once for all its queries. When there are fewer such tasks than threads
//! can use, long contexts are cut into spans whose results are merged afterwards.

use std::sync::atomic::{AtomicUsize, Ordering};

use puna_graph::{AttentionSpec, Mask, Place, Segment};

use crate::cache::Kind;
use crate::kernels::{KvRows, KvType, Scratch};
use crate::memory::Shared;
use crate::step::{Instruction, Local, Step};

/// Query rows (tokens × heads) of a task, at most.
const BLOCK_ROWS: usize = 64;
/// Shorter spans are not worth merging.
const MIN_SPAN: usize = 256;
/// Rows of keys looked at together when they are not cached.
const RUN: usize = 64;

/// Writes keys and values of the step to the cache.
pub struct StoreKv {
    pub k: Place,
    pub v: Place,
    pub layer: usize,
    pub spec: AttentionSpec,
}

// SAFETY: a task writes the cached rows of its own tokens and heads.
unsafe impl Instruction for StoreKv {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        step.input.tokens.len().div_ceil(ROWS_A_STORE)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut Local) {
        let cache = step.cache.expect("a program with cached attention runs with a cache");
        let rows = task * ROWS_A_STORE..((task + 1) * ROWS_A_STORE).min(step.input.tokens.len());
        let mut segments = step.input.segments.iter();
        let mut segment = segments.next();
        for row in rows {
            while segment.is_some_and(|s| row >= s.first_row + s.rows) {
                segment = segments.next();
            }
            let s = segment.expect("segments cover all rows");
            let position = s.past + row - s.first_row;
            let (page, token) = (s.pages[position / cache.page_tokens()], position % cache.page_tokens());
            for (kind, place, dim) in
                [(Kind::Key, &self.k, self.spec.key_dim), (Kind::Value, &self.v, self.spec.value_dim)]
            {
                // SAFETY: computed before a barrier.
                let values = unsafe { step.arena.row(place, row) };
                for (head, values) in values.chunks_exact(dim).enumerate() {
                    // SAFETY: each token's rows belong to one task; pages being written belong to one sequence.
                    let out = unsafe { cache.row_mut(self.layer, kind, page, head, token) };
                    (step.level.vector.store_kv)(cache.ty(kind), values, out);
                }
            }
        }
    }
}

/// Tokens that a task of [`StoreKv`] writes.
const ROWS_A_STORE: usize = 8;

/// A block of tokens of one sequence and the positions that a task looks at.
#[derive(Debug, Clone, Copy)]
struct Block {
    segment: usize,
    /// First row in the segment.
    row: usize,
    rows: usize,
    kv_head: usize,
    /// Positions seen by this task.
    from: usize,
    to: usize,
    /// If the block is cut into spans: where this one's results go, and which merge awaits it.
    partial: Option<(usize, usize)>,
}

/// A block whose spans are to be merged by the task that finishes last.
#[derive(Debug)]
struct Merge {
    block: Block,
    /// Offset of the first span's results, and their number.
    partial: usize,
    spans: usize,
    /// Spans that are not finished.
    left: AtomicUsize,
}

/// The tasks of a step; the same for all layers of the same form.
#[derive(Debug, Default)]
pub struct Work {
    blocks: Vec<Block>,
    merges: Vec<Merge>,
    partial_len: usize,
}

/// Attends.
pub struct Attend {
    pub q: Place,
    pub k: Place,
    pub v: Place,
    pub out: Place,
    pub layer: usize,
    pub spec: AttentionSpec,
    pub sinks: Vec<f32>,
    pub work: Work,
    pub partials: Shared<f32>,
}

impl Attend {
    fn group(&self) -> usize {
        self.spec.heads / self.spec.kv_heads
    }

    fn plan(&self, step: &Step<'_>) -> Work {
        let group = self.group();
        let block_rows = (BLOCK_ROWS / group).max(1);
        let mut work = Work::default();
        let blocks: usize = step.input.segments.iter().map(|s| s.rows.div_ceil(block_rows)).sum();
        let wanted = (step.threads * 4).div_ceil((blocks * self.spec.kv_heads).max(1));
        for (index, s) in step.input.segments.iter().enumerate() {
            for row in (0..s.rows).step_by(block_rows) {
                let rows = block_rows.min(s.rows - row);
                let (from, to) = visible(self.spec.mask, s, row, rows);
                let spans = if wanted > 1 && step.threads > 1 {
                    wanted.min((to - from) / MIN_SPAN).max(1)
                } else {
                    1
                };
                for kv_head in 0..self.spec.kv_heads {
                    let block = Block { segment: index, row, rows, kv_head, from, to, partial: None };
                    work.push(block, spans, rows * group * (self.spec.value_dim + 2));
                }
            }
        }
        work
    }
}

impl Work {
    /// Adds a block, cut into spans; each span's results take `len` floats.
    fn push(&mut self, block: Block, spans: usize, len: usize) {
        if spans == 1 {
            return self.blocks.push(block);
        }
        let each = (block.to - block.from).div_ceil(spans).next_multiple_of(RUN);
        let first = self.partial_len;
        let mut count = 0;
        for from in (block.from..block.to).step_by(each) {
            let to = (from + each).min(block.to);
            self.blocks.push(Block {
                from,
                to,
                partial: Some((self.partial_len, self.merges.len())),
                ..block
            });
            self.partial_len += len;
            count += 1;
        }
        self.merges.push(Merge { block, partial: first, spans: count, left: AtomicUsize::new(count) });
    }
}

/// Positions that any row of a block sees.
fn visible(mask: Mask, s: &Segment, row: usize, rows: usize) -> (usize, usize) {
    let (first, last) = (s.past + row, s.past + row + rows - 1);
    match mask {
        Mask::Full => (0, s.rows),
        Mask::Causal => (0, last + 1),
        Mask::Window(w) => ((first + 1).saturating_sub(w as usize), last + 1),
    }
}

/// Positions that the row at `position` sees.
fn row_visible(mask: Mask, s: &Segment, position: usize) -> (usize, usize) {
    match mask {
        Mask::Full => (0, s.rows),
        Mask::Causal => (0, position + 1),
        Mask::Window(w) => ((position + 1).saturating_sub(w as usize), position + 1),
    }
}

// SAFETY: a task writes rows and heads of the result, or a partial result, that are its own; partial results are
// merged by whoever finishes last.
unsafe impl Instruction for Attend {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn prepare(&mut self, step: &Step<'_>) {
        self.work = self.plan(step);
        self.partials.grow(self.work.partial_len);
    }

    fn tasks(&self, _: &Step<'_>) -> usize {
        self.work.blocks.len()
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, local: &mut Local) {
        let block = self.work.blocks[task];
        let mut memory = std::mem::take(&mut local.floats);
        self.attend(block, step, &mut memory, &mut local.scratch);
        local.floats = memory;
        if let Some((_, merge)) = block.partial {
            let merge = &self.work.merges[merge];
            // Whoever finishes last sees what the others wrote.
            if merge.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.merge(merge, step);
            }
        }
    }

    fn work(&self, step: &Step<'_>) -> (u64, u64) {
        let Some(cache) = step.cache else { return (0, 0) };
        let (kt, vt) = (cache.ty(Kind::Key), cache.ty(Kind::Value));
        let bytes = (kt.row_bytes(self.spec.key_dim) + vt.row_bytes(self.spec.value_dim)) as u64;
        let values = (self.spec.key_dim + self.spec.value_dim) as u64;
        self.work.blocks.iter().fold((0, 0), |(b, m), block| {
            let positions = (block.to - block.from) as u64;
            (b + positions * bytes, m + positions * values * (block.rows * self.group()) as u64)
        })
    }
}

/// A running softmax over `rows` rows.
struct Running<'a> {
    /// Largest score so far, a row.
    max: &'a mut [f32],
    /// Sum of exponentials, a row.
    sum: &'a mut [f32],
    /// Weighted values, `value_dim` a row.
    acc: &'a mut [f32],
}

impl Attend {
    fn attend(&self, block: Block, step: &Step<'_>, memory: &mut Vec<f32>, scratch: &mut Scratch) {
        let AttentionSpec { key_dim, value_dim, scale, .. } = self.spec;
        let group = self.group();
        let s = &step.input.segments[block.segment];
        let rows = block.rows * group;
        // Query rows, scores, running maximum, sum and values, then the kernels' own scratch.
        memory.resize(rows * (key_dim + RUN + 2 + value_dim), 0.0);
        let (q, rest) = memory.split_at_mut(rows * key_dim);
        let (scores, rest) = rest.split_at_mut(rows * RUN);
        let (max, rest) = rest.split_at_mut(rows);
        let (sum, acc) = rest.split_at_mut(rows);
        let mut running = Running { max, sum, acc };
        running.max.fill(f32::NEG_INFINITY);
        running.sum.fill(0.0);
        running.acc.fill(0.0);
        for (i, q) in q.chunks_exact_mut(group * key_dim).enumerate() {
            // SAFETY: computed before a barrier.
            let row = unsafe { step.arena.row(&self.q, s.first_row + block.row + i) };
            let heads = &row[block.kv_head * group * key_dim..][..group * key_dim];
            q.iter_mut().zip(heads).for_each(|(q, x)| *q = x * scale);
        }
        let mut at = block.from;
        while at < block.to {
            let (keys, values) = self.run_at(step, s, block.kv_head, at, block.to);
            self.fold(block, s, at, keys, values, (q, scores), &mut running, step, scratch);
            at += keys.rows;
        }
        match block.partial {
            Some((offset, _)) => self.keep_partial(offset, &running),
            None => {
                for r in 0..rows {
                    let (token, head) = (block.row + r / group, block.kv_head * group + r % group);
                    let acc = &mut running.acc[r * value_dim..][..value_dim];
                    let factor = self.finish(running.max[r], running.sum[r], head);
                    // SAFETY: a token's head belongs to one task.
                    let out = unsafe { step.arena.slice_mut(self.out_at(s, token, head), value_dim) };
                    out.iter_mut().zip(acc).for_each(|(o, a)| *o = *a * factor);
                }
            }
        }
    }

    /// Keys and values from position `at`, as far as they lie together (at most [`RUN`] and not past `to`).
    fn run_at<'a>(
        &self,
        step: &'a Step<'_>,
        s: &Segment,
        kv_head: usize,
        at: usize,
        to: usize,
    ) -> (KvRows<'a>, KvRows<'a>) {
        if self.spec.mask == Mask::Full {
            let rows = RUN.min(to - at);
            let own = |place: &Place, dim: usize| {
                let start = place.start + (s.first_row + at) * place.stride + kv_head * dim;
                // SAFETY: computed before a barrier; nobody writes keys and values now.
                let data = unsafe { step.arena.slice(start, (rows - 1) * place.stride + dim) };
                KvRows {
                    ty: KvType::F32,
                    rows,
                    stride: place.stride * 4,
                    dim,
                    data: bytemuck::cast_slice(data),
                }
            };
            return (own(&self.k, self.spec.key_dim), own(&self.v, self.spec.value_dim));
        }
        let cache = step.cache.expect("a program with cached attention runs with a cache");
        let (page, token) = (s.pages[at / cache.page_tokens()], at % cache.page_tokens());
        let rows = (cache.page_tokens() - token).min(to - at).min(RUN);
        // SAFETY: written before a barrier; nobody writes these positions now.
        let half = |kind| unsafe { cache.rows(self.layer, kind, page, kv_head, token, rows) };
        (half(Kind::Key), half(Kind::Value))
    }

    /// Takes a run of keys and values into the running softmax.
    #[allow(clippy::too_many_arguments)] // the state of one loop, split so that it can be read
    fn fold(
        &self,
        block: Block,
        s: &Segment,
        at: usize,
        keys: KvRows<'_>,
        values: KvRows<'_>,
        (q, scores): (&[f32], &mut [f32]),
        running: &mut Running<'_>,
        step: &Step<'_>,
        scratch: &mut Scratch,
    ) {
        let (vector, group, n, dim) = (&step.level.vector, self.group(), keys.rows, self.spec.value_dim);
        let rows = block.rows * group;
        (vector.scores)(q, rows, keys, scores, RUN, scratch);
        for r in 0..rows {
            let row = &mut scores[r * RUN..][..n];
            if let Some(cap) = self.spec.softcap {
                row.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
            }
            let (from, to) = row_visible(self.spec.mask, s, s.past + block.row + r / group);
            row[..from.saturating_sub(at).min(n)].fill(f32::NEG_INFINITY);
            row[to.saturating_sub(at).min(n)..].fill(f32::NEG_INFINITY);
            let max = running.max[r].max((vector.max)(row));
            if max == f32::NEG_INFINITY {
                row.fill(0.0);
                continue;
            }
            if max > running.max[r] {
                let shrink = (running.max[r] - max).exp();
                running.sum[r] *= shrink;
                running.acc[r * dim..][..dim].iter_mut().for_each(|a| *a *= shrink);
                running.max[r] = max;
            }
            running.sum[r] += (vector.exp_sum)(row, max);
        }
        (vector.accumulate)(scores, RUN, rows, values, running.acc, scratch);
    }

    /// What the weighted values of a head are multiplied by at the end.
    fn finish(&self, max: f32, sum: f32, head: usize) -> f32 {
        let Some(&sink) = self.sinks.get(head) else { return 1.0 / sum };
        // The sink joins the sum: shift everything to the larger maximum.
        let top = max.max(sink);
        let shrink = (max - top).exp();
        shrink / (sum * shrink + (sink - top).exp())
    }

    fn out_at(&self, s: &Segment, token: usize, head: usize) -> usize {
        self.out.start + (s.first_row + token) * self.out.stride + head * self.spec.value_dim
    }

    fn keep_partial(&self, offset: usize, running: &Running<'_>) {
        let rows = running.max.len();
        // SAFETY: each span has its own part.
        let out = unsafe { self.partials.slice_mut(offset, rows * (self.spec.value_dim + 2)) };
        out[..rows].copy_from_slice(running.max);
        out[rows..2 * rows].copy_from_slice(running.sum);
        out[2 * rows..].copy_from_slice(running.acc);
    }

    /// Merges the spans of a block.
    fn merge(&self, m: &Merge, step: &Step<'_>) {
        let (group, dim) = (self.group(), self.spec.value_dim);
        let s = &step.input.segments[m.block.segment];
        let rows = m.block.rows * group;
        let len = rows * (dim + 2);
        // SAFETY: every span is written, and this is the only task that goes on with them.
        let partials = unsafe { self.partials.slice(m.partial, m.spans * len) };
        for r in 0..rows {
            let max = partials.chunks_exact(len).map(|p| p[r]).fold(f32::NEG_INFINITY, f32::max);
            let (token, head) = (m.block.row + r / group, m.block.kv_head * group + r % group);
            // SAFETY: a token's head belongs to one block.
            let out = unsafe { step.arena.slice_mut(self.out_at(s, token, head), dim) };
            out.fill(0.0);
            let mut sum = 0.0;
            for p in partials.chunks_exact(len).filter(|p| p[r] > f32::NEG_INFINITY) {
                let shrink = (p[r] - max).exp();
                sum += p[rows + r] * shrink;
                let acc = &p[2 * rows + r * dim..][..dim];
                out.iter_mut().zip(acc).for_each(|(o, a)| *o += a * shrink);
            }
            let factor = self.finish(max, sum, head);
            out.iter_mut().for_each(|o| *o *= factor);
        }
    }
}

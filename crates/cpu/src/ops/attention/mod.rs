//! Attention over the paged cache (or over the step's own rows, for encoders).
//!
//! A task computes a block of tokens with all query heads of one KV head, or of several KV heads
//! if those are few rows. A page holds the keys and values of one head together, head after head,
//! so that the task reads a layer's part of a page from the first byte to the last. A task walks
//! the visible pages once with a running softmax, and so reads each key and value once for all its
//! queries. With fewer than eight tasks per thread, long contexts are split: each split is a task
//! with a partial result, and the task that finishes last merges them ([`tasks`]).

mod partial;
mod scratch;
mod selected;
mod tasks;

use std::sync::atomic::Ordering;

use puna_graph::{ArenaRange, AttentionSpec, Mask, RelativePositionBias, Segment};
use puna_kernels::{
    AlibiBias, AttendTile, KV_TILE, KvLayout, KvRows, KvType, RunningSoftmax, Scratch,
};

use crate::cache::{Cache, KeyOrValue};
use crate::ops::hadamard::{is_rotated, rotate};
use crate::step::{Instruction, Step, ThreadScratch};

pub use scratch::split_scratch_len;
pub use tasks::AttentionTasks;
use tasks::{Block, SplitMerge, splits, visible_range_of_row};

/// Writes keys and values of the step to the cache.
pub struct StoreKv {
    pub k: ArenaRange,
    pub v: ArenaRange,
    pub layer: usize,
    pub spec: AttentionSpec,
}

// SAFETY: a task writes the cached rows of its own tokens and heads.
unsafe impl Instruction for StoreKv {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        step.input.tokens.len().div_ceil(ROWS_PER_STORE)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, scratch: &mut ThreadScratch) {
        let cache = step.cache.expect("a program with cached attention runs with a cache");
        let rows =
            task * ROWS_PER_STORE..((task + 1) * ROWS_PER_STORE).min(step.input.tokens.len());
        let mut segments = step.input.segments.iter();
        let mut segment = segments.next();
        for row in rows {
            while segment.is_some_and(|s| row >= s.first_row + s.rows) {
                segment = segments.next();
            }
            let s = segment.expect("segments cover all rows");
            let position = s.cached_tokens + row - s.first_row;
            let Some((number, token)) = cache.cache_slot(self.layer, position) else { continue };
            let page = s.page(cache.has_window(self.layer), number);
            let halves = [
                (KeyOrValue::Key, &self.k, self.spec.key_dim),
                (KeyOrValue::Value, &self.v, self.spec.value_dim),
            ];
            let halves = halves.into_iter().take(if self.spec.values_in_keys { 1 } else { 2 });
            // Keys of an indexer have no values.
            for (kind, range, dim) in halves.filter(|(.., dim)| *dim > 0) {
                // SAFETY: an earlier instruction computed it, behind a barrier.
                let mut values = unsafe { step.arena.row(range, row) };
                if is_stored_rotated(&self.spec, kind, cache) {
                    scratch.floats.clear();
                    scratch.floats.extend_from_slice(values);
                    rotate(&mut scratch.floats);
                    values = &scratch.floats;
                }
                for (head, values) in values.chunks_exact(dim).enumerate() {
                    // SAFETY: the rows of a token belong to one task, and a page that is written
                    // belongs to one sequence.
                    unsafe { cache.store(step.level, self.layer, kind, page, head, token, values) };
                }
            }
        }
    }
}

/// Whether the cache holds keys or values after a Hadamard rotation. Values that are part of the
/// keys are rotated with them, if they are whole rotation blocks.
pub fn is_stored_rotated(spec: &AttentionSpec, kind: KeyOrValue, cache: &Cache) -> bool {
    let rotated = |kind, dim| is_rotated(dim, cache.ty(kind).block_values());
    match (kind, spec.values_in_keys) {
        (_, true) => {
            rotated(KeyOrValue::Key, spec.key_dim) && rotated(KeyOrValue::Key, spec.value_dim)
        }
        (KeyOrValue::Key, false) => rotated(KeyOrValue::Key, spec.key_dim),
        (KeyOrValue::Value, false) => rotated(KeyOrValue::Value, spec.value_dim),
    }
}

/// Tokens per task of [`StoreKv`].
const ROWS_PER_STORE: usize = 8;

/// Attention: softmax-weighted sums of values.
pub struct Attend {
    pub q: ArenaRange,
    pub k: ArenaRange,
    pub v: ArenaRange,
    /// Lists of selected positions, for sparse attention.
    pub selected: Option<ArenaRange>,
    /// Partial result of an earlier attention of the same queries over other positions.
    pub partial_input: Option<ArenaRange>,
    pub out: ArenaRange,
    pub layer: usize,
    pub spec: AttentionSpec,
    pub sinks: Vec<f32>,
    /// ALiBi slope of each query head; empty without ALiBi.
    pub slopes: Vec<f32>,
    /// Relative position bias of each query head, from the farthest key before the query to the
    /// farthest behind it; empty without.
    pub position_bias: Vec<f32>,
    pub tasks: AttentionTasks,
}

impl Attend {
    fn group(&self) -> usize {
        self.spec.heads / self.spec.kv_heads
    }
}

// SAFETY: a task writes its own rows and heads of the result, or its own partial result. Only the
// task that finishes last reads partial results.
unsafe impl Instruction for Attend {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn prepare(&mut self, step: &Step<'_>) {
        let cache = step.cache.filter(|_| self.spec.mask.is_cached());
        cache.iter().for_each(|cache| cache.check_mask(self.layer, self.spec.mask));
        let page_tokens = cache.map_or(0, Cache::page_tokens);
        let bounds = (step.threads, step.split_scratch.len());
        self.tasks = AttentionTasks::plan(&self.spec, &step.input.segments, bounds, page_tokens);
    }

    fn tasks(&self, _: &Step<'_>) -> usize {
        self.tasks.blocks.len()
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, scratch: &mut ThreadScratch) {
        let block = self.tasks.blocks[task];
        let mut memory = std::mem::take(&mut scratch.floats);
        self.attend(block, step, &mut memory, scratch);
        scratch.floats = memory;
        if let Some((_, merge)) = block.partial {
            let merge = &self.tasks.merges[merge];
            // AcqRel: the last task sees the partial results of the others.
            if merge.unfinished.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.merge(merge, step);
            }
        }
    }

    fn work(&self, step: &Step<'_>) -> (u64, u64) {
        let Some(cache) = step.cache else { return (0, 0) };
        let bytes = cache.row_bytes(self.layer) as u64;
        let values = (self.spec.key_dim + self.spec.value_dim) as u64;
        self.tasks.blocks.iter().fold((0, 0), |(b, m), block| {
            let positions = (block.to - block.from) as u64;
            let positions = positions * block.kv_heads as u64;
            (b + positions * bytes, m + positions * values * block.queries() as u64)
        })
    }
}

/// Views `memory` as a running softmax of `rows` rows: largest scores, sums of exponentials,
/// weighted sums of values.
fn running_softmax(memory: &mut [f32], rows: usize) -> RunningSoftmax<'_> {
    let (max, rest) = memory.split_at_mut(rows);
    let (sum, acc) = rest.split_at_mut(rows);
    RunningSoftmax { max, sum, acc }
}

fn reset(state: &mut RunningSoftmax<'_>) {
    state.max.fill(f32::NEG_INFINITY);
    state.sum.fill(0.0);
    state.acc.fill(0.0);
}

/// Merges the running softmax of the next split into `total`.
fn merge_split(total: &mut RunningSoftmax<'_>, split: &RunningSoftmax<'_>, dim: usize) {
    for r in 0..total.max.len() {
        if split.max[r] == f32::NEG_INFINITY {
            continue;
        }
        let max = total.max[r].max(split.max[r]);
        // One of the two factors is 1.
        let shrink = |from: f32| if from == max { 1.0 } else { (from - max).exp() };
        let (before, new) = (shrink(total.max[r]), shrink(split.max[r]));
        total.max[r] = max;
        total.sum[r] = total.sum[r] * before + split.sum[r] * new;
        let acc = &mut total.acc[r * dim..][..dim];
        acc.iter_mut()
            .zip(&split.acc[r * dim..][..dim])
            .for_each(|(a, x)| *a = *a * before + x * new);
    }
}

impl Attend {
    fn attend(
        &self,
        block: Block,
        step: &Step<'_>,
        memory: &mut Vec<f32>,
        scratch: &mut ThreadScratch,
    ) {
        let rows = block.queries();
        let (query_len, state_len) = (rows * self.spec.key_dim, block.state_len(&self.spec));
        // Per KV head: query rows, running softmax of a split, running softmax of all splits.
        memory.resize(block.kv_heads * (query_len + 2 * state_len), 0.0);
        let (q, rest) = memory.split_at_mut(block.kv_heads * query_len);
        let (running, total) = rest.split_at_mut(block.kv_heads * state_len);
        self.scaled_queries(block, step, q);
        total.chunks_exact_mut(state_len).for_each(|head| reset(&mut running_softmax(head, rows)));
        for split in splits(block.from, block.to) {
            running
                .chunks_exact_mut(state_len)
                .for_each(|head| reset(&mut running_softmax(head, rows)));
            match (block.is_sparse, self.spec.mask) {
                (true, _) => self.walk_selected(block, step, split, [q, running], scratch),
                (false, Mask::Pooled(_)) => {
                    self.walk_pooled(block, step, split, [q, running], scratch)
                }
                (false, _) => self.walk(block, step, split, [q, running], &mut scratch.kernel),
            }
            match block.partial {
                Some((offset, _)) => {
                    // SAFETY: each split has its own part of the scratch.
                    unsafe { step.split_scratch.slice_mut(offset, running.len()) }
                        .copy_from_slice(running);
                }
                None => self.merge_heads(total, running, rows),
            }
        }
        if block.partial.is_none() {
            self.finish(block, total, step);
        }
    }

    /// Adds the positions of a split to the running softmax of each KV head's queries.
    fn walk(
        &self,
        block: Block,
        step: &Step<'_>,
        (from, to): (usize, usize),
        [q, running]: [&mut [f32]; 2],
        scratch: &mut Scratch,
    ) {
        let s = &step.input.segments[block.segment];
        let rows = block.queries();
        let (query_len, state_len) = (rows * self.spec.key_dim, block.state_len(&self.spec));
        let mut visible = vec![(0, 0); rows];
        let (mut alibi, mut position_bias) = (Vec::new(), Vec::new());
        let mut at = from;
        let mut current = self.kv_tile_at(step, s, block.kv_head, at, to);
        while at < to {
            let len = current.0.rows;
            for (row, visible) in visible.chunks_exact_mut(block.heads).enumerate() {
                let (from, to) =
                    visible_range_of_row(&self.spec, s, s.cached_tokens + block.row + row);
                visible.fill((from.saturating_sub(at).min(len), to.saturating_sub(at).min(len)));
            }
            for head in 0..block.kv_heads {
                let (keys, values) = current;
                // Next: the next head of the same KV tile, or the first head of the next KV tile.
                let (next_position, next_head) =
                    if head + 1 < block.kv_heads { (at, head + 1) } else { (at + len, 0) };
                let has_next = next_position < to;
                if has_next {
                    current =
                        self.kv_tile_at(step, s, block.kv_head + next_head, next_position, to);
                }
                let next = if has_next { current.0.data } else { &[] };
                self.alibi_biases(block, s, head, at, &mut alibi);
                self.position_bias(block, s, head, at, &mut position_bias);
                let q = &q[head * query_len..][..query_len];
                let (visible, alibi, position_bias) =
                    (&visible[..], &alibi[..], &position_bias[..]);
                let tile = AttendTile {
                    q,
                    keys,
                    values,
                    visible,
                    alibi,
                    position_bias,
                    next,
                    softcap: self.spec.softcap,
                };
                let mut state =
                    running_softmax(&mut running[head * state_len..][..state_len], rows);
                (step.level.vector.attend)(&tile, &mut state, scratch);
            }
            at += len;
        }
    }

    /// ALiBi biases of a KV head's query rows, for the tile of positions that begins at `at`.
    fn alibi_biases(
        &self,
        block: Block,
        s: &Segment,
        head: usize,
        at: usize,
        alibi: &mut Vec<AlibiBias>,
    ) {
        alibi.clear();
        let first = (block.kv_head + head) * self.group() + block.head;
        let Some(slopes) = self.slopes.get(first..) else { return };
        for row in 0..block.rows {
            let from = (s.cached_tokens + block.row + row) as f32 - at as f32;
            alibi.extend(slopes.iter().take(block.heads).map(|&slope| AlibiBias { slope, from }));
        }
    }

    /// Relative position biases of a KV head's query rows, for the tile of positions that begins
    /// at `at`.
    fn position_bias(
        &self,
        block: Block,
        s: &Segment,
        head: usize,
        at: usize,
        position_bias: &mut Vec<f32>,
    ) {
        position_bias.clear();
        let (first, far) =
            ((block.kv_head + head) * self.group() + block.head, RelativePositionBias::FAR);
        let distances = 2 * far + 1;
        let Some(all) = self.position_bias.get(first * distances..) else { return };
        for row in 0..block.rows {
            let query = s.cached_tokens + block.row + row;
            let index = |key: usize| (key + far).saturating_sub(query).min(2 * far);
            for head in all.chunks_exact(distances).take(block.heads) {
                position_bias.extend((at..at + KV_TILE).map(|key| head[index(key)]));
            }
        }
    }

    /// Whether keys or values are read rotated; rows of an encoder never are.
    fn is_rotated(&self, step: &Step<'_>, kind: KeyOrValue) -> bool {
        self.spec.mask.is_cached()
            && step.cache.is_some_and(|cache| is_stored_rotated(&self.spec, kind, cache))
    }

    /// Scales the query rows of a block; the rows of a KV head are contiguous.
    fn scaled_queries(&self, block: Block, step: &Step<'_>, q: &mut [f32]) {
        let (group, dim) = (self.group(), self.spec.key_dim);
        let first_row = step.input.segments[block.segment].first_row + block.row;
        for row in 0..block.rows {
            // SAFETY: an earlier instruction computed it, behind a barrier.
            let all = unsafe { step.arena.row(&self.q, first_row + row) };
            for head in 0..block.kv_heads {
                let first = (block.kv_head + head) * group + block.head;
                let heads = &all[first * dim..][..block.heads * dim];
                let q =
                    &mut q[(head * block.rows + row) * block.heads * dim..][..block.heads * dim];
                q.iter_mut().zip(heads).for_each(|(q, x)| *q = x * self.spec.scale);
                if self.is_rotated(step, KeyOrValue::Key) {
                    rotate(q);
                }
            }
        }
    }

    /// Merges the running softmax of the next split into `total`, for each KV head.
    fn merge_heads(&self, total: &mut [f32], split: &mut [f32], rows: usize) {
        let dim = self.spec.value_dim;
        let each = rows * (dim + 2);
        for (total, split) in total.chunks_exact_mut(each).zip(split.chunks_exact_mut(each)) {
            merge_split(&mut running_softmax(total, rows), &running_softmax(split, rows), dim);
        }
    }

    /// Keys and values of the KV tile that begins at position `at` and ends at `to`, or at the end
    /// of the page.
    fn kv_tile_at<'a>(
        &self,
        step: &'a Step<'_>,
        s: &Segment,
        kv_head: usize,
        at: usize,
        to: usize,
    ) -> (KvRows<'a>, KvRows<'a>) {
        let rows = KV_TILE.min(to - at);
        if !self.spec.mask.is_cached() {
            let own = |range: &ArenaRange, dim: usize| {
                let start = range.start + (s.first_row + at) * range.stride + kv_head * dim;
                // SAFETY: an earlier instruction computed them, behind a barrier; no task writes
                // them.
                let data = unsafe { step.arena.slice(start, (rows - 1) * range.stride + dim) };
                let data = bytemuck::cast_slice(data);
                let (ty, layout, stride) = (KvType::F32, KvLayout::Rows, range.stride * 4);
                KvRows { ty, layout, rows, stride, dim, data }
            };
            let keys = own(&self.k, self.spec.key_dim);
            let values = || own(&self.v, self.spec.value_dim);
            return (keys, self.values_in(keys).unwrap_or_else(values));
        }
        let cache = step.cache.expect("a program with cached attention runs with a cache");
        let (number, token) = (at / cache.page_tokens(), at % cache.page_tokens());
        let page = s.page(cache.has_window(self.layer), number);
        let rows = rows.min(cache.page_tokens() - token);
        // SAFETY: an earlier instruction wrote them, behind a barrier; no task writes them.
        let half = |kind| unsafe { cache.rows(self.layer, kind, page, kv_head, token, rows) };
        let keys = half(KeyOrValue::Key);
        (keys, self.values_in(keys).unwrap_or_else(|| half(KeyOrValue::Value)))
    }

    /// The values, if they are the first columns of the keys, as in latent attention.
    fn values_in<'a>(&self, keys: KvRows<'a>) -> Option<KvRows<'a>> {
        self.spec.values_in_keys.then_some(KvRows { dim: self.spec.value_dim, ..keys })
    }

    /// Writes the result of a block: weighted sum of values over sum of weights, or the partial
    /// result for a later attention.
    fn finish(&self, block: Block, total: &mut [f32], step: &Step<'_>) {
        let (group, dim) = (self.group(), self.spec.value_dim);
        let s = &step.input.segments[block.segment];
        let rows = block.queries();
        for (kv_head, total) in
            (block.kv_head..).zip(total.chunks_exact_mut(block.state_len(&self.spec)))
        {
            let mut total = running_softmax(total, rows);
            for r in 0..rows {
                let row = s.first_row + block.row + r / block.heads;
                let head = kv_head * group + block.head + r % block.heads;
                self.merge_previous(&mut total, r, step, (row, head));
                if self.spec.returns_partial {
                    self.store_partial(&total, r, step, (row, head));
                    continue;
                }
                let factor = self.factor(total.max[r], total.sum[r], head);
                let start = self.out.start + row * self.out.stride + head * dim;
                // SAFETY: a token's head belongs to one block.
                let out = unsafe { step.arena.slice_mut(start, dim) };
                out.iter_mut().zip(&total.acc[r * dim..]).for_each(|(o, a)| *o = *a * factor);
                if self.is_rotated(step, KeyOrValue::Value) {
                    rotate(out);
                }
            }
        }
    }

    /// Normalization factor of the weighted values of a head.
    fn factor(&self, max: f32, sum: f32, head: usize) -> f32 {
        // No visible position, such as cross-attention to an empty input.
        if sum == 0.0 && self.sinks.is_empty() {
            return 0.0;
        }
        let Some(&sink) = self.sinks.get(head) else { return 1.0 / sum };
        // The attention sink adds its weight to the sum, relative to the larger maximum.
        let top = max.max(sink);
        let shrink = (max - top).exp();
        shrink / (sum * shrink + (sink - top).exp())
    }

    /// Merges the splits of a block, in order, and writes the result.
    fn merge(&self, m: &SplitMerge, step: &Step<'_>) {
        let rows = m.block.queries();
        let len = m.block.kv_heads * m.block.state_len(&self.spec);
        // SAFETY: all splits are written, and only this task uses them now.
        let partials = unsafe { step.split_scratch.slice_mut(m.partial, m.splits * len) };
        let (total, others) = partials.split_at_mut(len);
        others.chunks_exact_mut(len).for_each(|split| self.merge_heads(total, split, rows));
        self.finish(m.block, total, step);
    }
}

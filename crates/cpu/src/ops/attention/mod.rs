//! Attention over the paged cache (or over the step's own rows, for encoders).
//!
//! A task takes a block of tokens with all query heads of a key head, or where these are few rows with those of several
//! key heads: keys and values of a head lie together in a page, head after head, so that it reads a page's layer from one
//! end to the other. It walks the visible pages once with a running softmax, and so reads each key and value once for all
//! its queries. Where there are fewer than eight tasks a thread, long contexts are cut into spans that have tasks of their
//! own and are merged by whoever finishes last.

mod chosen;
mod part;
mod work;

use std::sync::atomic::Ordering;

use puna_graph::{AttentionSpec, Mask, Place, Segment, Shifts};
use puna_kernels::{AttendRun, Fall, KvLayout, KvRows, KvType, RUN, RunningSoftmax, Scratch};

use crate::cache::{Cache, Kind};
use crate::ops::rotate::{is_rotated, rotate};
use crate::step::{Instruction, Local, Step};

pub use work::Work;
use work::{Block, Merge, row_visible, spans};

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

    unsafe fn run(&self, task: usize, step: &Step<'_>, local: &mut Local) {
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
            let Some((number, token)) = cache.place(self.layer, position) else { continue };
            let page = s.page(cache.is_recent(self.layer), number);
            let halves =
                [(Kind::Key, &self.k, self.spec.key_dim), (Kind::Value, &self.v, self.spec.value_dim)];
            let halves = halves.into_iter().take(if self.spec.values_in_keys { 1 } else { 2 });
            // What is only chosen among has no values.
            for (kind, place, dim) in halves.filter(|(.., dim)| *dim > 0) {
                // SAFETY: computed before a barrier.
                let mut values = unsafe { step.arena.row(place, row) };
                if is_stored_rotated(&self.spec, kind, cache) {
                    local.floats.clear();
                    local.floats.extend_from_slice(values);
                    rotate(&mut local.floats);
                    values = &local.floats;
                }
                for (head, values) in values.chunks_exact(dim).enumerate() {
                    // SAFETY: each token's rows belong to one task; pages being written belong to one sequence.
                    unsafe { cache.store(step.level, self.layer, kind, page, head, token, values) };
                }
            }
        }
    }
}

/// Whether keys or values are rotated in the cache. Values that lie in keys are so with them, where they are whole pieces.
pub fn is_stored_rotated(spec: &AttentionSpec, kind: Kind, cache: &Cache) -> bool {
    let rotated = |kind, dim| is_rotated(dim, cache.ty(kind).block_values());
    match (kind, spec.values_in_keys) {
        (_, true) => rotated(Kind::Key, spec.key_dim) && rotated(Kind::Key, spec.value_dim),
        (Kind::Key, false) => rotated(Kind::Key, spec.key_dim),
        (Kind::Value, false) => rotated(Kind::Value, spec.value_dim),
    }
}

/// Tokens that a task of [`StoreKv`] writes.
const ROWS_A_STORE: usize = 8;

/// Attends.
pub struct Attend {
    pub q: Place,
    pub k: Place,
    pub v: Place,
    /// Lists of what is seen, where the form says so.
    pub chosen: Option<Place>,
    /// What attention to other positions made of the same queries.
    pub before: Option<Place>,
    pub out: Place,
    pub layer: usize,
    pub spec: AttentionSpec,
    pub sinks: Vec<f32>,
    /// By how much scores fall with each position of distance, a query head; or nothing.
    pub slopes: Vec<f32>,
    /// What is added to scores, a query head: from the farthest key before the query to the farthest behind it; or nothing.
    pub shifts: Vec<f32>,
    pub work: Work,
}

impl Attend {
    fn group(&self) -> usize {
        self.spec.heads / self.spec.kv_heads
    }
}

// SAFETY: a task writes rows and heads of the result, or a partial result, that are its own; partial results are
// merged by whoever finishes last.
unsafe impl Instruction for Attend {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn prepare(&mut self, step: &Step<'_>) {
        let cache = step.cache.filter(|_| self.spec.mask.is_cached());
        cache.iter().for_each(|cache| cache.check_mask(self.layer, self.spec.mask));
        let page_tokens = cache.map_or(0, Cache::page_tokens);
        let bounds = (step.threads, step.aside.len());
        self.work = Work::plan(&self.spec, &step.input.segments, bounds, page_tokens);
    }

    fn tasks(&self, _: &Step<'_>) -> usize {
        self.work.blocks.len()
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, local: &mut Local) {
        let block = self.work.blocks[task];
        let mut memory = std::mem::take(&mut local.floats);
        self.attend(block, step, &mut memory, local);
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
        let bytes = cache.row_bytes(self.layer) as u64;
        let values = (self.spec.key_dim + self.spec.value_dim) as u64;
        self.work.blocks.iter().fold((0, 0), |(b, m), block| {
            let positions = (block.to - block.from) as u64;
            let positions = positions * block.kv_heads as u64;
            (b + positions * bytes, m + positions * values * block.queries() as u64)
        })
    }
}

/// The results of a task or a span: for each row the largest score, the sum of exponentials, and the weighted values.
fn results(memory: &mut [f32], rows: usize) -> RunningSoftmax<'_> {
    let (max, rest) = memory.split_at_mut(rows);
    let (sum, acc) = rest.split_at_mut(rows);
    RunningSoftmax { max, sum, acc }
}

fn restart(state: &mut RunningSoftmax<'_>) {
    state.max.fill(f32::NEG_INFINITY);
    state.sum.fill(0.0);
    state.acc.fill(0.0);
}

/// Adds the results of the next span of positions.
fn combine(total: &mut RunningSoftmax<'_>, span: &RunningSoftmax<'_>, dim: usize) {
    for r in 0..total.max.len() {
        if span.max[r] == f32::NEG_INFINITY {
            continue;
        }
        let max = total.max[r].max(span.max[r]);
        // One of both is 1.
        let shrink = |from: f32| if from == max { 1.0 } else { (from - max).exp() };
        let (before, new) = (shrink(total.max[r]), shrink(span.max[r]));
        total.max[r] = max;
        total.sum[r] = total.sum[r] * before + span.sum[r] * new;
        let acc = &mut total.acc[r * dim..][..dim];
        acc.iter_mut().zip(&span.acc[r * dim..][..dim]).for_each(|(a, x)| *a = *a * before + x * new);
    }
}

impl Attend {
    fn attend(&self, block: Block, step: &Step<'_>, memory: &mut Vec<f32>, local: &mut Local) {
        let rows = block.queries();
        let (queries, each) = (rows * self.spec.key_dim, block.state_len(&self.spec));
        // For each key head its query rows; the results of a span; those of all spans.
        memory.resize(block.kv_heads * (queries + 2 * each), 0.0);
        let (q, rest) = memory.split_at_mut(block.kv_heads * queries);
        let (running, total) = rest.split_at_mut(block.kv_heads * each);
        self.scaled_queries(block, step, q);
        total.chunks_exact_mut(each).for_each(|head| restart(&mut results(head, rows)));
        for span in spans(block.from, block.to) {
            running.chunks_exact_mut(each).for_each(|head| restart(&mut results(head, rows)));
            match (block.is_chosen, self.spec.mask) {
                (true, _) => self.walk_chosen(block, step, span, [q, running], local),
                (false, Mask::Pooled(_)) => self.walk_pooled(block, step, span, [q, running], local),
                (false, _) => self.walk(block, step, span, [q, running], &mut local.scratch),
            }
            match block.partial {
                Some((offset, _)) => {
                    // SAFETY: each span has its own part.
                    unsafe { step.aside.slice_mut(offset, running.len()) }.copy_from_slice(running);
                }
                None => self.combine_heads(total, running, rows),
            }
        }
        if block.partial.is_none() {
            self.finish(block, total, step);
        }
    }

    /// Takes the positions of a span into the running softmax of each key head's queries.
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
        let (queries, each) = (rows * self.spec.key_dim, block.state_len(&self.spec));
        let mut visible = vec![(0, 0); rows];
        let (mut falls, mut shifts) = (Vec::new(), Vec::new());
        let mut at = from;
        let mut now = self.run_at(step, s, block.kv_head, at, to);
        while at < to {
            let len = now.0.rows;
            for (row, visible) in visible.chunks_exact_mut(block.heads).enumerate() {
                let (from, to) = row_visible(&self.spec, s, s.past + block.row + row);
                visible.fill((from.saturating_sub(at).min(len), to.saturating_sub(at).min(len)));
            }
            for head in 0..block.kv_heads {
                let (keys, values) = now;
                // Of one run head after head, then the next run.
                let (ahead, next_head) =
                    if head + 1 < block.kv_heads { (at, head + 1) } else { (at + len, 0) };
                let more = ahead < to;
                if more {
                    now = self.run_at(step, s, block.kv_head + next_head, ahead, to);
                }
                let next = if more { now.0.data } else { &[] };
                self.falls(block, s, head, at, &mut falls);
                self.shifts(block, s, head, at, &mut shifts);
                let q = &q[head * queries..][..queries];
                let (visible, falls, shifts) = (&visible[..], &falls[..], &shifts[..]);
                let run =
                    AttendRun { q, keys, values, visible, falls, shifts, next, softcap: self.spec.softcap };
                let mut state = results(&mut running[head * each..][..each], rows);
                (step.level.vector.attend)(&run, &mut state, scratch);
            }
            at += len;
        }
    }

    /// How scores of a key head's query rows fall, in the run of positions from `at` on.
    fn falls(&self, block: Block, s: &Segment, head: usize, at: usize, falls: &mut Vec<Fall>) {
        falls.clear();
        let first = (block.kv_head + head) * self.group() + block.head;
        let Some(slopes) = self.slopes.get(first..) else { return };
        for row in 0..block.rows {
            let from = (s.past + block.row + row) as f32 - at as f32;
            falls.extend(slopes.iter().take(block.heads).map(|&slope| Fall { slope, from }));
        }
    }

    /// What is added to scores of a key head's query rows, in the run of positions from `at` on.
    fn shifts(&self, block: Block, s: &Segment, head: usize, at: usize, shifts: &mut Vec<f32>) {
        shifts.clear();
        let (first, far) = ((block.kv_head + head) * self.group() + block.head, Shifts::FAR);
        let distances = 2 * far + 1;
        let Some(all) = self.shifts.get(first * distances..) else { return };
        for row in 0..block.rows {
            let query = s.past + block.row + row;
            let index = |key: usize| (key + far).saturating_sub(query).min(2 * far);
            for head in all.chunks_exact(distances).take(block.heads) {
                shifts.extend((at..at + RUN).map(|key| head[index(key)]));
            }
        }
    }

    /// Whether what is read was stored rotated; an encoder's own rows never are.
    fn is_rotated(&self, step: &Step<'_>, kind: Kind) -> bool {
        self.spec.mask.is_cached()
            && step.cache.is_some_and(|cache| is_stored_rotated(&self.spec, kind, cache))
    }

    /// Query rows of each key head of a block, rows of a head together.
    fn scaled_queries(&self, block: Block, step: &Step<'_>, q: &mut [f32]) {
        let (group, dim) = (self.group(), self.spec.key_dim);
        let first_row = step.input.segments[block.segment].first_row + block.row;
        for row in 0..block.rows {
            // SAFETY: computed before a barrier.
            let all = unsafe { step.arena.row(&self.q, first_row + row) };
            for head in 0..block.kv_heads {
                let first = (block.kv_head + head) * group + block.head;
                let heads = &all[first * dim..][..block.heads * dim];
                let q = &mut q[(head * block.rows + row) * block.heads * dim..][..block.heads * dim];
                q.iter_mut().zip(heads).for_each(|(q, x)| *q = x * self.spec.scale);
                if self.is_rotated(step, Kind::Key) {
                    rotate(q);
                }
            }
        }
    }

    /// Adds the results of the next span of positions, for each key head.
    fn combine_heads(&self, total: &mut [f32], span: &mut [f32], rows: usize) {
        let dim = self.spec.value_dim;
        let each = rows * (dim + 2);
        for (total, span) in total.chunks_exact_mut(each).zip(span.chunks_exact_mut(each)) {
            combine(&mut results(total, rows), &results(span, rows), dim);
        }
    }

    /// Keys and values of the run at position `at`, not past `to` or the end of a page.
    fn run_at<'a>(
        &self,
        step: &'a Step<'_>,
        s: &Segment,
        kv_head: usize,
        at: usize,
        to: usize,
    ) -> (KvRows<'a>, KvRows<'a>) {
        let rows = RUN.min(to - at);
        if !self.spec.mask.is_cached() {
            let own = |place: &Place, dim: usize| {
                let start = place.start + (s.first_row + at) * place.stride + kv_head * dim;
                // SAFETY: computed before a barrier; nobody writes keys and values now.
                let data = unsafe { step.arena.slice(start, (rows - 1) * place.stride + dim) };
                let data = bytemuck::cast_slice(data);
                let (ty, layout, stride) = (KvType::F32, KvLayout::Rows, place.stride * 4);
                KvRows { ty, layout, rows, stride, dim, data }
            };
            let keys = own(&self.k, self.spec.key_dim);
            let values = || own(&self.v, self.spec.value_dim);
            return (keys, self.values_in(keys).unwrap_or_else(values));
        }
        let cache = step.cache.expect("a program with cached attention runs with a cache");
        let (number, token) = (at / cache.page_tokens(), at % cache.page_tokens());
        let page = s.page(cache.is_recent(self.layer), number);
        let rows = rows.min(cache.page_tokens() - token);
        // SAFETY: written before a barrier; nobody writes these positions now.
        let half = |kind| unsafe { cache.rows(self.layer, kind, page, kv_head, token, rows) };
        let keys = half(Kind::Key);
        (keys, self.values_in(keys).unwrap_or_else(|| half(Kind::Value)))
    }

    /// The values, where they lie in keys, which then lie in rows.
    fn values_in<'a>(&self, keys: KvRows<'a>) -> Option<KvRows<'a>> {
        self.spec.values_in_keys.then_some(KvRows { dim: self.spec.value_dim, ..keys })
    }

    /// Writes the rows of a block: the weighted values over the sum of weights, or all three for a further attention.
    fn finish(&self, block: Block, total: &mut [f32], step: &Step<'_>) {
        let (group, dim) = (self.group(), self.spec.value_dim);
        let s = &step.input.segments[block.segment];
        let rows = block.queries();
        for (kv_head, total) in (block.kv_head..).zip(total.chunks_exact_mut(block.state_len(&self.spec))) {
            let mut total = results(total, rows);
            for r in 0..rows {
                let row = s.first_row + block.row + r / block.heads;
                let head = kv_head * group + block.head + r % block.heads;
                self.go_on(&mut total, r, step, (row, head));
                if self.spec.is_part {
                    self.put_aside(&total, r, step, (row, head));
                    continue;
                }
                let factor = self.factor(total.max[r], total.sum[r], head);
                let start = self.out.start + row * self.out.stride + head * dim;
                // SAFETY: a token's head belongs to one block.
                let out = unsafe { step.arena.slice_mut(start, dim) };
                out.iter_mut().zip(&total.acc[r * dim..]).for_each(|(o, a)| *o = *a * factor);
                if self.is_rotated(step, Kind::Value) {
                    rotate(out);
                }
            }
        }
    }

    /// What the weighted values of a head are multiplied by at the end.
    fn factor(&self, max: f32, sum: f32, head: usize) -> f32 {
        // Nothing was seen: an encoder has read nothing.
        if sum == 0.0 && self.sinks.is_empty() {
            return 0.0;
        }
        let Some(&sink) = self.sinks.get(head) else { return 1.0 / sum };
        // The sink joins the sum: shift everything to the larger maximum.
        let top = max.max(sink);
        let shrink = (max - top).exp();
        shrink / (sum * shrink + (sink - top).exp())
    }

    /// Merges the spans of a block into the first one's results.
    fn merge(&self, m: &Merge, step: &Step<'_>) {
        let rows = m.block.queries();
        let len = m.block.kv_heads * m.block.state_len(&self.spec);
        // SAFETY: every span is written, and this is the only task that goes on with them.
        let partials = unsafe { step.aside.slice_mut(m.partial, m.spans * len) };
        let (total, others) = partials.split_at_mut(len);
        others.chunks_exact_mut(len).for_each(|span| self.combine_heads(total, span, rows));
        self.finish(m.block, total, step);
    }
}

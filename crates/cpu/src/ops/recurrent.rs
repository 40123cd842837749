//! Recurrent layers: a task takes some columns of a sequence through all its tokens of the step.
//! Their part of the state stays in the cache of one core, and no other task accesses it.

use std::sync::Arc;

use puna_graph::{
    ArenaRange, ConvSpec, DecayKind, DeltaSpec, RetentionSpec, ScanSpec, Segment, Wkv7Spec, WkvSpec,
};
use puna_kernels::{DeltaStep, ScanStep, Tap, Wkv7Step, WkvStep};

use crate::states::States;
use crate::step::{Instruction, Step, ThreadScratch};

/// Columns of a convolution that a task takes.
const CONV_COLUMNS: usize = 256;
/// Columns of a scan that a task takes, if each column has its own step size.
const SCAN_COLUMNS: usize = 64;

/// `cols` columns of row `row` of a value, from `first` on.
///
/// # Safety
/// As for [`crate::memory::SharedBuffer::slice`].
pub(super) unsafe fn columns<'a>(
    step: &'a Step<'_>,
    x: &ArenaRange,
    row: usize,
    first: usize,
    cols: usize,
) -> &'a [f32] {
    // SAFETY: the caller keeps the same contract.
    unsafe { step.arena.slice(x.start + row * x.stride + first, cols) }
}

/// The same, for writing.
///
/// # Safety
/// As for [`crate::memory::SharedBuffer::slice_mut`].
#[allow(clippy::mut_from_ref)] // memory shared by the threads of a step
pub(super) unsafe fn columns_mut<'a>(
    step: &'a Step<'_>,
    x: &ArenaRange,
    row: usize,
    first: usize,
    cols: usize,
) -> &'a mut [f32] {
    // SAFETY: the caller keeps the same contract.
    unsafe { step.arena.slice_mut(x.start + row * x.stride + first, cols) }
}

fn states<'a>(step: &'a Step<'_>) -> &'a States {
    step.states.expect("a step of a recurrent model has states")
}

/// A task's sequence and the number of its block of columns, if each sequence has `blocks` blocks.
pub(super) fn segment<'a>(step: &'a Step<'_>, task: usize, blocks: usize) -> (&'a Segment, usize) {
    (&step.input.segments[task / blocks], task % blocks)
}

/// Part of a sequence's state before the step; zeros at the start of a sequence.
///
/// # Safety
/// No other thread reads or writes it at the same time.
#[allow(clippy::mut_from_ref)] // memory shared by the threads of a step
pub(super) unsafe fn begun<'a>(
    step: &'a Step<'_>,
    s: &Segment,
    state: usize,
    start: usize,
    len: usize,
) -> &'a mut [f32] {
    // SAFETY: the caller keeps the same contract.
    let part = unsafe { states(step).part(s.state, state, start, len) };
    if s.cached_tokens == 0 {
        part.fill(0.0);
    }
    part
}

/// Bytes of all sequences' states, and `each` multiply-adds per value.
pub(super) fn state_work(step: &Step<'_>, values: usize, each: usize) -> (u64, u64) {
    let (sequences, rows) = (step.input.segments.len(), step.input.tokens.len());
    ((4 * sequences * values) as u64, (rows * values * each) as u64)
}

/// `1 / (1 + e^-x)`.
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `ln(1 + e^x)`.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// A causal convolution. The state has the previous rows, the oldest first.
pub struct Conv {
    pub x: ArenaRange,
    pub out: ArenaRange,
    pub spec: ConvSpec,
    /// Weights of each tap in turn; empty if the result is the oldest row.
    pub w: Arc<[f32]>,
    pub bias: Vec<f32>,
}

impl Conv {
    fn blocks(&self) -> usize {
        self.x.cols.div_ceil(CONV_COLUMNS)
    }
}

// SAFETY: a task writes columns of the result and of the state that are its own, and reads the same
// columns of the input.
unsafe impl Instruction for Conv {
    fn name(&self) -> &'static str {
        "conv"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        step.input.segments.len() * self.blocks()
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        let (s, block) = segment(step, task, self.blocks());
        let (all, before) = (self.x.cols, self.spec.before());
        let first = block * CONV_COLUMNS;
        let n = CONV_COLUMNS.min(all - first);
        // SAFETY: the columns belong to this task, here and in the state; the input was computed
        // before a barrier.
        unsafe {
            let mut history: Vec<&mut [f32]> =
                (0..before).map(|j| begun(step, s, self.spec.state, j * all + first, n)).collect();
            let input = |row: usize| columns(step, &self.x, s.first_row + row, first, n);
            // None if the result is the oldest row.
            let weights = self.w.chunks_exact(all).map(|w| &w[first..first + n]);
            let mut taps: Vec<Tap<'_>> = weights.map(|w| Tap { x: &[], w }).collect();
            for row in 0..s.rows {
                let tap = |k: usize| {
                    let at = row + k * self.spec.stride;
                    match at.checked_sub(before) {
                        Some(row) => input(row),
                        None => &*history[at],
                    }
                };
                let out = columns_mut(step, &self.out, s.first_row + row, first, n);
                if taps.is_empty() {
                    out.copy_from_slice(tap(0));
                    continue;
                }
                taps.iter_mut().enumerate().for_each(|(k, to)| to.x = tap(k));
                let bias = self.bias.get(first..first + n).unwrap_or_default();
                (step.level.vector.recurrent.conv)(&taps, bias, self.spec.silu, out);
            }
            for j in 0..before {
                match (s.rows + j).checked_sub(before) {
                    Some(row) => history[j].copy_from_slice(input(row)),
                    None => {
                        let (to, from) = history.split_at_mut(j + 1);
                        to[j].copy_from_slice(from[s.rows - 1]);
                    }
                }
            }
        }
    }

    fn work(&self, step: &Step<'_>) -> (u64, u64) {
        state_work(step, self.spec.values(self.x.cols), 1)
    }
}

/// A selective scan. For each block of columns, the state has a row per value of `b`.
pub struct Scan {
    pub x: ArenaRange,
    pub dt: ArenaRange,
    pub b: ArenaRange,
    pub c: ArenaRange,
    pub out: ArenaRange,
    pub spec: ScanSpec,
    /// One value per head; one per value of the state, in its order, if each column has its own
    /// step size.
    pub a: Arc<[f32]>,
    pub d: Vec<f32>,
    pub dt_bias: Vec<f32>,
}

impl Scan {
    /// Whether each column has its own step size and values of `a`.
    fn is_by_column(spec: &ScanSpec, a: usize) -> bool {
        spec.head_dim == 1 && a == spec.heads * spec.state_dim && spec.state_dim > 1
    }

    /// `a` in the order of the state.
    pub fn ordered(spec: &ScanSpec, a: Vec<f32>) -> Vec<f32> {
        if !Self::is_by_column(spec, a.len()) {
            return a;
        }
        let (heads, n) = (spec.heads, spec.state_dim);
        let of_block = |first: usize| {
            let columns = first..(first + SCAN_COLUMNS).min(heads);
            (0..n).flat_map(move |row| columns.clone().map(move |column| column * n + row))
        };
        (0..heads).step_by(SCAN_COLUMNS).flat_map(of_block).map(|at| a[at]).collect()
    }

    /// Columns of a block; the last one may have fewer.
    fn block(&self) -> usize {
        if Self::is_by_column(&self.spec, self.a.len()) { SCAN_COLUMNS } else { self.spec.head_dim }
    }

    fn blocks(&self) -> usize {
        self.x.cols.div_ceil(self.block())
    }
}

// SAFETY: a task writes columns of the result and a part of the state that are its own.
unsafe impl Instruction for Scan {
    fn name(&self) -> &'static str {
        "scan"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        step.input.segments.len() * self.blocks()
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, scratch: &mut ThreadScratch) {
        let (s, block) = segment(step, task, self.blocks());
        let (spec, rows) = (&self.spec, self.spec.state_dim);
        let first = block * self.block();
        let n = self.block().min(self.x.cols - first);
        // The heads of these columns, each with a step.
        let heads = first / spec.head_dim..(first + n).div_ceil(spec.head_dim);
        let group = heads.start / (spec.heads / spec.groups) * rows;
        let by_column = Self::is_by_column(spec, self.a.len());
        let a =
            if by_column { &self.a[first * rows..][..n * rows] } else { &self.a[heads.clone()] };
        let bias = self.dt_bias.get(heads.clone()).unwrap_or_default();
        scratch.floats.resize(heads.len(), 0.0);
        let dt = &mut scratch.floats[..];
        // SAFETY: the columns belong to this task, here and in the state; inputs were computed
        // before a barrier.
        unsafe {
            let state = begun(step, s, spec.state, first * rows, n * rows);
            for row in s.first_row..s.first_row + s.rows {
                dt.copy_from_slice(columns(step, &self.dt, row, heads.start, heads.len()));
                for (i, dt) in dt.iter_mut().enumerate() {
                    *dt = softplus(*dt + bias.get(i).copied().unwrap_or(0.0));
                }
                (step.level.vector.recurrent.scan)(ScanStep {
                    state,
                    x: columns(step, &self.x, row, first, n),
                    dt,
                    a,
                    b: columns(step, &self.b, row, group, rows),
                    c: columns(step, &self.c, row, group, rows),
                    d: &self.d[heads.clone()],
                    y: columns_mut(step, &self.out, row, first, n),
                });
            }
        }
    }

    fn work(&self, step: &Step<'_>) -> (u64, u64) {
        state_work(step, self.spec.values(), 3)
    }
}

/// The gated delta rule. For each head, the state has a row per key dimension.
pub struct Delta {
    pub q: ArenaRange,
    pub k: ArenaRange,
    pub v: ArenaRange,
    pub decay: ArenaRange,
    pub beta: ArenaRange,
    pub out: ArenaRange,
    pub spec: DeltaSpec,
    pub a: Vec<f32>,
    pub dt_bias: Vec<f32>,
}

// SAFETY: a task writes columns of the result and a part of the state that are its own.
unsafe impl Instruction for Delta {
    fn name(&self) -> &'static str {
        "delta"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        step.input.segments.len() * self.spec.value_heads
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, scratch: &mut ThreadScratch) {
        let spec = &self.spec;
        let (s, head) = segment(step, task, spec.value_heads);
        let (rows, n) = (spec.key_dim, spec.value_dim);
        let (key, column) = (spec.key_head(head) * rows, spec.column(head));
        let each = self.decay.cols == spec.value_heads * rows && rows > 1;
        let (at, count, bias) =
            if each { (head * rows, rows, head * rows) } else { (column, 1, head) };
        let bias = &self.dt_bias[bias..bias + count];
        scratch.floats.resize(2 * rows + count, 0.0);
        let (qk, decay) = scratch.floats.split_at_mut(2 * rows);
        let (q, k) = qk.split_at_mut(rows);
        // SAFETY: the head belongs to this task, here and in the state; inputs were computed before
        // a barrier.
        unsafe {
            let state = begun(step, s, spec.state, head * rows * n, rows * n);
            for row in s.first_row..s.first_row + s.rows {
                for ((to, from), scale) in
                    [(&mut *q, &self.q), (&mut *k, &self.k)].into_iter().zip(spec.scales)
                {
                    to.copy_from_slice(columns(step, from, row, key, rows));
                    to.iter_mut().for_each(|x| *x *= scale);
                }
                decay.copy_from_slice(columns(step, &self.decay, row, at, count));
                for (decay, bias) in decay.iter_mut().zip(bias) {
                    *decay = fade(spec.decay_kind, self.a[head], *decay + bias);
                }
                let beta = columns(step, &self.beta, row, column, 1)[0];
                (step.level.vector.recurrent.delta)(DeltaStep {
                    state,
                    decay,
                    q,
                    k,
                    v: columns(step, &self.v, row, head * n, n),
                    beta: sigmoid(beta),
                    y: columns_mut(step, &self.out, row, head * n, n),
                });
            }
        }
    }

    fn work(&self, step: &Step<'_>) -> (u64, u64) {
        state_work(step, self.spec.values(), 4)
    }
}

/// Decay factor of a state.
fn fade(decay_kind: DecayKind, a: f32, x: f32) -> f32 {
    match decay_kind {
        DecayKind::Unbounded => (a * softplus(x)).exp(),
        DecayKind::Bounded { min, sign } => (min * sigmoid(sign * a * x)).exp(),
    }
}

/// The state of RWKV 5 and 6. For each head, it has a row per key dimension.
pub struct Wkv {
    pub r: ArenaRange,
    pub k: ArenaRange,
    pub v: ArenaRange,
    pub decay: ArenaRange,
    pub out: ArenaRange,
    pub spec: WkvSpec,
    /// Bonus of the current token; empty for gated linear attention.
    pub bonus: Vec<f32>,
}

// SAFETY: a task writes columns of the result and a part of the state that are its own.
unsafe impl Instruction for Wkv {
    fn name(&self) -> &'static str {
        "wkv"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        step.input.segments.len() * self.spec.heads
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, scratch: &mut ThreadScratch) {
        let (s, head) = segment(step, task, self.spec.heads);
        let n = self.spec.dim;
        let (at, shared) = (head * n, head * self.spec.kv_heads / self.spec.heads * n);
        let bonus = self.bonus.get(at..at + n);
        scratch.floats.resize(3 * n, 0.0);
        let (decay, rk) = scratch.floats.split_at_mut(n);
        let (r, k) = rk.split_at_mut(n);
        let scale = 1.0 / (n as f32).sqrt();
        // SAFETY: the head belongs to this task, here and in the state; inputs were computed before
        // a barrier.
        unsafe {
            let state = begun(step, s, self.spec.state, at * n, n * n);
            for row in s.first_row..s.first_row + s.rows {
                decay.copy_from_slice(columns(step, &self.decay, row, at, n));
                decay.iter_mut().for_each(|w| *w = (-w.exp()).exp());
                r.copy_from_slice(columns(step, &self.r, row, at, n));
                k.copy_from_slice(columns(step, &self.k, row, shared, n));
                let own = match bonus {
                    Some(bonus) => dot(r, k, |i| bonus[i]),
                    None => {
                        // The result is read after the update: the past has already decayed.
                        k.iter_mut().zip(&*decay).for_each(|(k, w)| *k -= *k * w);
                        let own = dot(r, k, |_| scale);
                        r.iter_mut().zip(&*decay).for_each(|(r, w)| *r *= w * scale);
                        own
                    }
                };
                (step.level.vector.recurrent.wkv)(WkvStep {
                    state,
                    decay,
                    r,
                    own,
                    k,
                    v: columns(step, &self.v, row, shared, n),
                    y: columns_mut(step, &self.out, row, at, n),
                });
            }
        }
    }

    fn work(&self, step: &Step<'_>) -> (u64, u64) {
        state_work(step, self.spec.values(), 3)
    }
}

/// `Σ a b by`.
fn dot(a: &[f32], b: &[f32], by: impl Fn(usize) -> f32) -> f32 {
    a.iter().zip(b).enumerate().map(|(i, (a, b))| a * b * by(i)).sum()
}

/// The state of RWKV 7. For each head, it has a row per key dimension.
pub struct Wkv7 {
    pub r: ArenaRange,
    pub k: ArenaRange,
    pub v: ArenaRange,
    pub decay: ArenaRange,
    pub removal_key: ArenaRange,
    pub iclr: ArenaRange,
    pub out: ArenaRange,
    pub spec: Wkv7Spec,
    pub bonus: Vec<f32>,
}

// SAFETY: a task writes columns of the result and a part of the state that are its own.
unsafe impl Instruction for Wkv7 {
    fn name(&self) -> &'static str {
        "wkv7"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        step.input.segments.len() * self.spec.heads
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, scratch: &mut ThreadScratch) {
        let (s, head) = segment(step, task, self.spec.heads);
        let n = self.spec.dim;
        let (at, all) = (head * n, self.spec.heads * n);
        let bonus = &self.bonus[at..at + n];
        scratch.floats.resize(3 * n, 0.0);
        let (decay, keys) = scratch.floats.split_at_mut(n);
        let (removal_key, forget) = keys.split_at_mut(n);
        // SAFETY: the head belongs to this task, here and in the state; inputs were computed before
        // a barrier.
        unsafe {
            let state = begun(step, s, self.spec.state, at * n, n * n);
            for row in s.first_row..s.first_row + s.rows {
                let [r, k, v, iclr] =
                    [&self.r, &self.k, &self.v, &self.iclr].map(|x| columns(step, x, row, at, n));
                decay.copy_from_slice(columns(step, &self.decay, row, at, n));
                decay.iter_mut().for_each(|w| *w = (-LEAST_DECAY / (1.0 + (-*w).exp())).exp());
                removal_key.copy_from_slice(columns(step, &self.removal_key, row, at, n));
                let length = dot(removal_key, removal_key, |_| 1.0).sqrt().max(1e-12);
                removal_key.iter_mut().for_each(|x| *x /= length);
                forget
                    .iter_mut()
                    .zip(&*removal_key)
                    .zip(iclr)
                    .for_each(|((x, removal_key), iclr)| *x = removal_key * iclr);
                let y = columns_mut(step, &self.out, row, at, n);
                (step.level.vector.recurrent.wkv7)(Wkv7Step {
                    state,
                    decay,
                    removal_key,
                    forget,
                    r,
                    k,
                    v,
                    y,
                });
                let own = dot(r, k, |i| bonus[i]);
                let of_itself = columns_mut(step, &self.out, row, all + at, n);
                of_itself.iter_mut().zip(v).for_each(|(y, v)| *y = own * v);
            }
        }
    }

    fn work(&self, step: &Step<'_>) -> (u64, u64) {
        state_work(step, self.spec.values(), 4)
    }
}

/// `1 / √e`: the negative logarithm of the strongest decay.
const LEAST_DECAY: f32 = 0.606_530_66;

/// Linear attention with decay (retention). For each head, the state has a row per key dimension.
pub struct Retention {
    pub q: ArenaRange,
    pub k: ArenaRange,
    pub v: ArenaRange,
    pub out: ArenaRange,
    pub spec: RetentionSpec,
}

// SAFETY: a task writes columns of the result and a part of the state that are its own.
unsafe impl Instruction for Retention {
    fn name(&self) -> &'static str {
        "retention"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        step.input.segments.len() * self.spec.heads
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        let (s, head) = segment(step, task, self.spec.heads);
        let n = self.spec.dim;
        let (at, rate) = (head * n, self.spec.rate_of(head));
        // SAFETY: the head belongs to this task, here and in the state; inputs were computed before
        // a barrier.
        unsafe {
            let state = begun(step, s, self.spec.state, at * n, n * n);
            for row in s.first_row..s.first_row + s.rows {
                // A scan of the values with step size one and without a direct term.
                (step.level.vector.recurrent.scan)(ScanStep {
                    state,
                    x: columns(step, &self.v, row, at, n),
                    dt: &[1.0],
                    a: &[-rate],
                    b: columns(step, &self.k, row, at, n),
                    c: columns(step, &self.q, row, at, n),
                    d: &[0.0],
                    y: columns_mut(step, &self.out, row, at, n),
                });
            }
        }
    }

    fn work(&self, step: &Step<'_>) -> (u64, u64) {
        state_work(step, self.spec.values(), 3)
    }
}

//! Mixture of experts. Rows are grouped by expert, so that a step reads the weights of each
//! selected expert once.
//!
//! Instructions: [`Route`], [`Gather`], [`GateUpProjection`], [`ExpertActivation`],
//! [`DownProjection`], [`Combine`].

use std::sync::Arc;

use puna_graph::{ArenaRange, MoeSpec, Rows};
use puna_kernels::{Acts, LinearKernel, OutMut, Scratch, WeightRows};
use puna_quant::TensorType;

use crate::memory::SharedBuffer;
use crate::ops::elementwise::gate;
use crate::ops::expert_tiles::ExpertInput;
use crate::ops::routing::RouterScores;
use crate::step::{Instruction, Q8Buffer, Step, ThreadScratch, TileBuffer};

/// Tasks per thread in a product over all experts: enough that threads finish together although
/// experts differ in rows.
const TASKS_PER_THREAD: usize = 16;

/// One of the three matrices (gate, up, down) of all experts.
pub struct ExpertMatrix {
    pub w: usize,
    pub ty: TensorType,
    pub kernel: LinearKernel,
    /// Columns of the input, and of the result.
    pub k: usize,
    pub n: usize,
    /// Rows per expert in the tensor, and first row of this matrix among them.
    pub rows_per_expert: usize,
    pub first_row: usize,
    pub row_bytes: usize,
    /// `n` values per expert; empty without bias.
    pub bias: Vec<f32>,
}

/// Data that the instructions of one mixture-of-experts layer share.
pub struct MoeLayer {
    pub spec: MoeSpec,
    pub gate: ExpertMatrix,
    pub up: ExpertMatrix,
    pub down: ExpertMatrix,
    /// Bias of each expert for the selection only (`exp_probs_b`); empty without.
    pub selection_bias: Vec<f32>,
    /// Factor of each expert's weight; empty without.
    pub factors: Vec<f32>,
    pub x: ArenaRange,
    pub router: ArenaRange,
    pub out: ArenaRange,
    /// Buffer of the input quantized to 8 bits, a row per token, if the kernels take that.
    pub q8: Option<usize>,
    /// Buffers, shared with the other MoE layers of the same shape in the program, which run
    /// one after the other.
    pub buffers: Arc<MoeBuffers>,
}

/// Buffers of an MoE layer, sized for the largest step. A *slot* is one use of an expert by a
/// token; slots are ordered by expert.
pub struct MoeBuffers {
    /// First slot of each expert, and the number of slots.
    pub starts: SharedBuffer<u32>,
    /// The token of each slot.
    pub tokens: SharedBuffer<u32>,
    /// The slot of the i-th expert of each token.
    pub slots: SharedBuffer<u32>,
    /// The weight of the i-th expert of each token.
    pub weights: SharedBuffer<f32>,
    /// Inputs in slot order, as f32 or 8 bits.
    pub input: SharedBuffer<f32>,
    pub input_q8: Q8Buffer,
    pub gate: SharedBuffer<f32>,
    pub up: SharedBuffer<f32>,
    pub hidden_q8: Q8Buffer,
    pub down: SharedBuffer<f32>,
    /// Inputs and hidden values in tiles, if the kernels take that.
    pub input_tiles: TileBuffer,
    pub hidden_tiles: TileBuffer,
}

impl MoeLayer {
    /// Whether experts have a gate matrix; without, `gate` and `up` are the same matrix.
    fn is_gated(&self) -> bool {
        self.spec.glu.has_gate()
    }

    fn tokens(&self, step: &Step<'_>) -> usize {
        step.rows(self.x.rows)
    }

    pub(super) fn slots(&self, step: &Step<'_>) -> usize {
        self.tokens(step) * self.spec.top_k
    }

    /// Slots of an expert.
    pub(super) fn slots_of(&self, expert: usize) -> std::ops::Range<usize> {
        // SAFETY: an earlier instruction wrote it, behind a barrier.
        let starts = unsafe { self.buffers.starts.slice(expert, 2) };
        starts[0] as usize..starts[1] as usize
    }

    /// The expert of a slot.
    pub(super) fn expert_of(&self, slot: usize) -> usize {
        // SAFETY: an earlier instruction wrote it, behind a barrier.
        let starts = unsafe { self.buffers.starts.slice(0, self.spec.experts + 1) };
        starts.partition_point(|&start| start as usize <= slot) - 1
    }

    /// Index of the matrix that an expert uses; experts can share one.
    pub(super) fn matrix_of(&self, expert: usize) -> usize {
        expert / self.spec.experts_per_matrix
    }

    /// The weight of a slot's expert for its token.
    fn weight_of(&self, slot: usize) -> f32 {
        let top_k = self.spec.top_k;
        // SAFETY: an earlier instruction wrote it, behind a barrier.
        unsafe {
            let token = self.buffers.tokens.slice(slot, 1)[0] as usize;
            let slots = self.buffers.slots.slice(token * top_k, top_k);
            let at = slots
                .iter()
                .position(|&s| s as usize == slot)
                .expect("each slot is one of its token's");
            self.buffers.weights.slice(token * top_k + at, 1)[0]
        }
    }

    /// The experts of the token id of a row, if a table gives them.
    fn experts_by_token_id<'a>(
        &self,
        row: usize,
        step: &'a Step<'_>,
    ) -> Option<impl Iterator<Item = u32> + use<'a>> {
        let table: &[[u8; 4]] =
            bytemuck::cast_slice(step.weight(self.spec.experts_by_token?.index()));
        let row = match self.x.rows {
            Rows::Tokens => row,
            Rows::Outputs => step.input.outputs[row] as usize,
        };
        let top_k = self.spec.top_k;
        let token = (step.input.tokens[row] as usize).min(table.len() / top_k - 1);
        let last = self.spec.experts as u32 - 1;
        Some(
            table[token * top_k..][..top_k].iter().map(move |&id| u32::from_le_bytes(id).min(last)),
        )
    }

    fn active(&self) -> impl Iterator<Item = usize> {
        (0..self.spec.experts).filter(|&e| !self.slots_of(e).is_empty())
    }

    /// Weight rows of `m` per task: whole matrices if there are many experts, since each task packs
    /// the activations again.
    fn rows_per_task(&self, m: &ExpertMatrix, step: &Step<'_>) -> usize {
        let unit = m.kernel.panel_rows.max(1);
        let all = m.n * self.active().count();
        (all / (step.threads * TASKS_PER_THREAD)).clamp(unit, m.n.max(unit)).next_multiple_of(unit)
    }

    /// The expert and first row of a task.
    fn locate(&self, task: usize, m: &ExpertMatrix, step: &Step<'_>) -> Option<(usize, usize)> {
        let tasks = m.n.div_ceil(self.rows_per_task(m, step));
        Some((self.active().nth(task / tasks)?, task % tasks * self.rows_per_task(m, step)))
    }

    fn expert_tasks(&self, m: &ExpertMatrix, step: &Step<'_>) -> usize {
        self.active().count() * m.n.div_ceil(self.rows_per_task(m, step))
    }

    /// Multiplies weight rows `first ..` of an expert's matrix with the inputs of its slots.
    fn multiply(
        &self,
        m: &ExpertMatrix,
        (expert, first): (usize, usize),
        acts: Acts<'_>,
        out: &SharedBuffer<f32>,
        step: &Step<'_>,
        scratch: &mut Scratch,
    ) {
        let count = self.rows_per_task(m, step).min(m.n - first);
        let slots = self.slots_of(expert);
        let matrix = self.matrix_of(expert);
        let row = matrix * m.rows_per_expert + m.first_row + first;
        let data = &step.weight(m.w)[row * m.row_bytes..][..count * m.row_bytes];
        let w = WeightRows { ty: m.ty, rows: count, k: m.k, data };
        let start = slots.start * m.n + first;
        let base = out.address(start, (slots.len() - 1) * m.n + count);
        // SAFETY: the window is in bounds; tasks write disjoint columns or rows.
        let window = unsafe { OutMut::from_raw(base, m.n, slots.len(), count) };
        (m.kernel.for_rows(slots.len()))(w, acts, window, scratch);
        if !m.bias.is_empty() {
            let bias = &m.bias[matrix * m.n + first..][..count];
            for slot in 0..slots.len() {
                // SAFETY: as above.
                (step.level.vector.add)(unsafe { out.slice_mut(start + slot * m.n, count) }, bias);
            }
        }
    }
}

/// Router: selects the experts of each token and orders slots by expert.
pub struct Route(pub Arc<MoeLayer>);

// SAFETY: there is one task.
unsafe impl Instruction for Route {
    fn name(&self) -> &'static str {
        "moe"
    }

    fn tasks(&self, _: &Step<'_>) -> usize {
        1
    }

    unsafe fn run(&self, _: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        let (m, n) = (&*self.0, self.0.tokens(step));
        let top_k = m.spec.top_k;
        // SAFETY: routing is one task, and later instructions wait at its barrier.
        let (starts, tokens, slots, weights) = unsafe {
            (
                m.buffers.starts.slice_mut(0, m.spec.experts + 1),
                m.buffers.tokens.slice_mut(0, n * top_k),
                m.buffers.slots.slice_mut(0, n * top_k),
                m.buffers.weights.slice_mut(0, n * top_k),
            )
        };
        // `slots` holds expert ids until the counting sort replaces them.
        let mut scores = RouterScores::default();
        for token in 0..n {
            // SAFETY: an earlier instruction computed it, behind a barrier.
            let logits = unsafe { step.arena.row(&m.router, token) };
            let (slots, weights) =
                (&mut slots[token * top_k..][..top_k], &mut weights[token * top_k..][..top_k]);
            match m.experts_by_token_id(token, step) {
                Some(experts) => {
                    slots.iter_mut().zip(experts).for_each(|(slot, expert)| *slot = expert);
                    scores.weights_of_fixed_experts(&m.spec, logits, slots, weights);
                }
                None => scores.select(&m.spec, &m.selection_bias, logits, slots, weights),
            }
            if !m.factors.is_empty() {
                slots.iter().zip(weights).for_each(|(&e, weight)| *weight *= m.factors[e as usize]);
            }
        }
        // Counting sort: number of slots of each expert, then first slots, then each use takes the
        // next slot of its expert.
        starts.fill(0);
        slots.iter().for_each(|&e| starts[e as usize + 1] += 1);
        for e in 0..m.spec.experts {
            starts[e + 1] += starts[e];
        }
        let mut next = starts.to_vec();
        for (i, slot) in slots.iter_mut().enumerate() {
            let place = &mut next[*slot as usize];
            tokens[*place as usize] = (i / top_k) as u32;
            *slot = *place;
            *place += 1;
        }
    }
}

/// Copies inputs into slot order.
pub struct Gather(pub Arc<MoeLayer>);

// SAFETY: a task writes its own slots of the inputs.
unsafe impl Instruction for Gather {
    fn name(&self) -> &'static str {
        "moe"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        self.0.slots(step).div_ceil(ROWS_PER_TASK)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        let m = &*self.0;
        for slot in task * ROWS_PER_TASK..((task + 1) * ROWS_PER_TASK).min(m.slots(step)) {
            // SAFETY: earlier instructions wrote slots and input, behind a barrier; each slot
            // belongs to one task.
            unsafe {
                let token = m.buffers.tokens.slice(slot, 1)[0] as usize;
                match m.q8 {
                    Some(buffer) => {
                        m.buffers.input_q8.copy_row(slot, &step.q8[buffer], token, m.x.cols)
                    }
                    None => {
                        let row = step.arena.row(&m.x, token);
                        m.buffers.input.slice_mut(slot * m.x.cols, m.x.cols).copy_from_slice(row);
                    }
                }
            }
        }
    }
}

/// Slots, or tokens, per task of an element-wise instruction.
pub(super) const ROWS_PER_TASK: usize = 8;

/// Gate and up products of the selected experts.
pub struct GateUpProjection(pub Arc<MoeLayer>);

// SAFETY: a task writes its own columns in the slots of one expert.
unsafe impl Instruction for GateUpProjection {
    fn name(&self) -> &'static str {
        "moe"
    }

    fn is_static(&self) -> bool {
        false
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        let m = &*self.0;
        m.expert_tasks(&m.gate, step) + if m.is_gated() { m.expert_tasks(&m.up, step) } else { 0 }
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, scratch: &mut ThreadScratch) {
        let m = &*self.0;
        let gates = m.expert_tasks(&m.gate, step);
        let (matrix, out, task) = if task < gates {
            (&m.gate, &m.buffers.gate, task)
        } else {
            (&m.up, &m.buffers.up, task - gates)
        };
        let Some(at) = m.locate(task, matrix, step) else { return };
        let (slots, k) = (m.slots_of(at.0), m.x.cols);
        // SAFETY: an earlier instruction wrote it, behind a barrier.
        let acts = unsafe {
            match m.q8 {
                _ if let Some(tiles) = m.tiles(ExpertInput::GateUp, at.0, &matrix.kernel) => tiles,
                Some(_) => Acts::Q8(m.buffers.input_q8.rows(slots.start, slots.len(), k)),
                None => Acts::F32 {
                    rows: slots.len(),
                    k,
                    x: m.buffers.input.slice(slots.start * k, slots.len() * k),
                },
            }
        };
        m.multiply(matrix, at, acts, out, step, &mut scratch.kernel);
    }

    fn work(&self, step: &Step<'_>) -> (u64, u64) {
        let m = &*self.0;
        let experts = self.0.slots(step).min(m.spec.experts);
        let matrices =
            if m.is_gated() { &[&m.gate, &m.up, &m.down][..] } else { &[&m.up, &m.down] };
        let bytes = matrices.iter().map(|x| (experts * x.n * x.row_bytes) as u64).sum();
        (bytes, matrices.iter().map(|x| (m.slots(step) * x.n * x.k) as u64).sum())
    }
}

/// Activation function of the experts, and quantization of its result for the down product.
pub struct ExpertActivation(pub Arc<MoeLayer>);

// SAFETY: a task writes its own slots.
unsafe impl Instruction for ExpertActivation {
    fn name(&self) -> &'static str {
        "moe"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        self.0.slots(step).div_ceil(ROWS_PER_TASK)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        let m = &*self.0;
        let h = m.spec.hidden;
        for slot in task * ROWS_PER_TASK..((task + 1) * ROWS_PER_TASK).min(m.slots(step)) {
            // SAFETY: earlier instructions wrote the products, behind a barrier; each slot belongs
            // to one task.
            unsafe {
                let hidden = m.buffers.gate.slice_mut(slot * h, h);
                if m.spec.weighs_input {
                    // Weighting the input equals weighting both products.
                    let weight = m.weight_of(slot);
                    hidden.iter_mut().for_each(|x| *x *= weight);
                    m.buffers.up.slice_mut(slot * h, h).iter_mut().for_each(|x| *x *= weight);
                }
                gate(step.level, m.spec.glu, hidden, m.buffers.up.slice(slot * h, h));
                if m.down.kernel.acts == puna_kernels::ActKind::Q8 {
                    m.buffers.hidden_q8.quantize(step.level, slot, hidden);
                }
            }
        }
    }
}

/// Down products of the selected experts.
pub struct DownProjection(pub Arc<MoeLayer>);

// SAFETY: a task writes its own columns in the slots of one expert.
unsafe impl Instruction for DownProjection {
    fn name(&self) -> &'static str {
        "moe"
    }

    fn is_static(&self) -> bool {
        false
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        self.0.expert_tasks(&self.0.down, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, scratch: &mut ThreadScratch) {
        let m = &*self.0;
        let Some(at) = m.locate(task, &m.down, step) else { return };
        let (slots, k) = (m.slots_of(at.0), m.spec.hidden);
        // SAFETY: an earlier instruction wrote it, behind a barrier.
        let acts = unsafe {
            match m.down.kernel.acts {
                _ if let Some(tiles) = m.tiles(ExpertInput::Down, at.0, &m.down.kernel) => tiles,
                puna_kernels::ActKind::Q8 => {
                    Acts::Q8(m.buffers.hidden_q8.rows(slots.start, slots.len(), k))
                }
                puna_kernels::ActKind::F32 => Acts::F32 {
                    rows: slots.len(),
                    k,
                    x: m.buffers.gate.slice(slots.start * k, slots.len() * k),
                },
            }
        };
        m.multiply(&m.down, at, acts, &m.buffers.down, step, &mut scratch.kernel);
    }
}

/// Weighted sum of the results of a token's experts.
pub struct Combine(pub Arc<MoeLayer>);

// SAFETY: a task writes its own rows of the result.
unsafe impl Instruction for Combine {
    fn name(&self) -> &'static str {
        "moe"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        self.0.tokens(step).div_ceil(ROWS_PER_TASK)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        let m = &*self.0;
        let (top_k, n) = (m.spec.top_k, m.out.cols);
        for token in task * ROWS_PER_TASK..((task + 1) * ROWS_PER_TASK).min(m.tokens(step)) {
            // SAFETY: earlier instructions wrote the products, behind a barrier; each token belongs
            // to one task.
            unsafe {
                let out = step.arena.row_mut(&m.out, token);
                out.fill(0.0);
                for i in token * top_k..(token + 1) * top_k {
                    let (slot, weight) =
                        (m.buffers.slots.slice(i, 1)[0] as usize, m.buffers.weights.slice(i, 1)[0]);
                    let weight = if m.spec.weighs_input { 1.0 } else { weight };
                    let row = m.buffers.down.slice(slot * n, n);
                    out.iter_mut().zip(row).for_each(|(o, x)| *o += weight * x);
                }
            }
        }
    }
}

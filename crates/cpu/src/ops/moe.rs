//! Mixtures of experts: rows are grouped by expert, so that each chosen expert's weights are read once.

use std::sync::Arc;

use puna_graph::{MoeSpec, Place, Rows};
use puna_kernels::{Acts, LinearKernel, OutMut, Scratch, WeightRows};
use puna_quant::TensorType;

use crate::memory::Shared;
use crate::ops::elementwise::gate;
use crate::ops::expert_tiles::Side;
use crate::ops::routing::Scores;
use crate::step::{Instruction, Local, Q8Buffer, Step, TileBuffer};

/// Tasks for each thread in a product over all experts: enough that threads finish together, though experts differ in rows.
const TASKS_A_THREAD: usize = 16;

/// One of the three matrices of every expert.
pub struct ExpertMatrix {
    pub w: usize,
    pub ty: TensorType,
    pub kernel: LinearKernel,
    /// Columns of the input and of the result.
    pub k: usize,
    pub n: usize,
    /// Rows of an expert in the tensor, and the first of this matrix.
    pub each: usize,
    pub first: usize,
    pub row_bytes: usize,
    /// `n` for each expert, or nothing.
    pub bias: Vec<f32>,
}

/// What the instructions of one mixture share.
pub struct Mixture {
    pub spec: MoeSpec,
    pub gate: ExpertMatrix,
    pub up: ExpertMatrix,
    pub down: ExpertMatrix,
    /// Added to each expert's weight for choosing, or nothing.
    pub favour: Vec<f32>,
    /// Multiplies each expert's weight, or nothing.
    pub factors: Vec<f32>,
    pub x: Place,
    pub router: Place,
    pub out: Place,
    /// The rounded input, a row a token, where the kernels want it so.
    pub q8: Option<usize>,
    /// Shared with the program's other mixtures of the same form: they run one after the other.
    pub state: Arc<State>,
}

/// Sized for the largest step; a *slot* is one token's use of one expert, ordered by expert.
pub struct State {
    /// First slot of each expert, and one past the last.
    pub starts: Shared<u32>,
    /// The token of each slot.
    pub tokens: Shared<u32>,
    /// The slot of each token's i-th expert.
    pub slots: Shared<u32>,
    /// Its weight.
    pub weights: Shared<f32>,
    /// Inputs in slot order, in one of two forms.
    pub input: Shared<f32>,
    pub input_q8: Q8Buffer,
    pub gate: Shared<f32>,
    pub up: Shared<f32>,
    pub hidden_q8: Q8Buffer,
    pub down: Shared<f32>,
    /// Inputs and hidden values in tiles, where kernels want that.
    pub input_tiles: TileBuffer,
    pub hidden_tiles: TileBuffer,
}

impl Mixture {
    /// Whether experts have a gate beside what goes up: without one they name one matrix as both.
    fn is_gated(&self) -> bool {
        self.spec.glu.has_gate()
    }

    fn tokens(&self, step: &Step<'_>) -> usize {
        step.rows(self.x.rows)
    }

    pub(super) fn slots(&self, step: &Step<'_>) -> usize {
        self.tokens(step) * self.spec.used
    }

    /// Slots of an expert.
    pub(super) fn slots_of(&self, expert: usize) -> std::ops::Range<usize> {
        // SAFETY: written before a barrier.
        let starts = unsafe { self.state.starts.slice(expert, 2) };
        starts[0] as usize..starts[1] as usize
    }

    /// The expert of a slot.
    pub(super) fn expert_of(&self, slot: usize) -> usize {
        // SAFETY: written before a barrier.
        let starts = unsafe { self.state.starts.slice(0, self.spec.experts + 1) };
        starts.partition_point(|&start| start as usize <= slot) - 1
    }

    /// Which of the matrices of a kind an expert has.
    pub(super) fn matrix_of(&self, expert: usize) -> usize {
        expert / self.spec.sharing
    }

    /// The weight of a slot's expert for its token.
    fn weight_of(&self, slot: usize) -> f32 {
        let used = self.spec.used;
        // SAFETY: written before a barrier.
        unsafe {
            let token = self.state.tokens.slice(slot, 1)[0] as usize;
            let slots = self.state.slots.slice(token * used, used);
            let at = slots.iter().position(|&s| s as usize == slot).expect("each slot is one of its token's");
            self.state.weights.slice(token * used + at, 1)[0]
        }
    }

    /// The experts of a row's token id, where these are fixed.
    fn experts_of<'a>(&self, row: usize, step: &'a Step<'_>) -> Option<impl Iterator<Item = u32> + use<'a>> {
        let table: &[[u8; 4]] = bytemuck::cast_slice(step.weight(self.spec.by_token?.index()));
        let row = match self.x.rows {
            Rows::Tokens => row,
            Rows::Outputs => step.input.outputs[row] as usize,
        };
        let used = self.spec.used;
        let token = (step.input.tokens[row] as usize).min(table.len() / used - 1);
        let last = self.spec.experts as u32 - 1;
        Some(table[token * used..][..used].iter().map(move |&id| u32::from_le_bytes(id).min(last)))
    }

    fn active(&self) -> impl Iterator<Item = usize> {
        (0..self.spec.experts).filter(|&e| !self.slots_of(e).is_empty())
    }

    /// Rows of `m` a task takes: of many experts whole matrices, since each task packs the activations for itself.
    fn rows_a_task(&self, m: &ExpertMatrix, step: &Step<'_>) -> usize {
        let unit = m.kernel.panel_rows.max(1);
        let all = m.n * self.active().count();
        (all / (step.threads * TASKS_A_THREAD)).clamp(unit, m.n.max(unit)).next_multiple_of(unit)
    }

    /// The expert and first row of a task.
    fn locate(&self, task: usize, m: &ExpertMatrix, step: &Step<'_>) -> Option<(usize, usize)> {
        let tasks = m.n.div_ceil(self.rows_a_task(m, step));
        Some((self.active().nth(task / tasks)?, task % tasks * self.rows_a_task(m, step)))
    }

    fn expert_tasks(&self, m: &ExpertMatrix, step: &Step<'_>) -> usize {
        self.active().count() * m.n.div_ceil(self.rows_a_task(m, step))
    }

    /// Rows `first ..` of an expert's matrix times its slots.
    fn multiply(
        &self,
        m: &ExpertMatrix,
        (expert, first): (usize, usize),
        acts: Acts<'_>,
        out: &Shared<f32>,
        step: &Step<'_>,
        scratch: &mut Scratch,
    ) {
        let count = self.rows_a_task(m, step).min(m.n - first);
        let slots = self.slots_of(expert);
        let matrix = self.matrix_of(expert);
        let row = matrix * m.each + m.first + first;
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

/// Chooses experts, groups tokens by expert, gathers their inputs.
pub struct Route(pub Arc<Mixture>);

// SAFETY: there is one task.
unsafe impl Instruction for Route {
    fn name(&self) -> &'static str {
        "moe"
    }

    fn tasks(&self, _: &Step<'_>) -> usize {
        1
    }

    unsafe fn run(&self, _: usize, step: &Step<'_>, _: &mut Local) {
        let (m, n) = (&*self.0, self.0.tokens(step));
        let used = m.spec.used;
        // SAFETY: routing is one task, and everything else waits for it.
        let (starts, tokens, slots, weights) = unsafe {
            (
                m.state.starts.slice_mut(0, m.spec.experts + 1),
                m.state.tokens.slice_mut(0, n * used),
                m.state.slots.slice_mut(0, n * used),
                m.state.weights.slice_mut(0, n * used),
            )
        };
        let mut scores = Scores::default();
        for token in 0..n {
            // SAFETY: computed before a barrier.
            let logits = unsafe { step.arena.row(&m.router, token) };
            let (slots, weights) = (&mut slots[token * used..][..used], &mut weights[token * used..][..used]);
            match m.experts_of(token, step) {
                Some(experts) => {
                    slots.iter_mut().zip(experts).for_each(|(slot, expert)| *slot = expert);
                    scores.take(&m.spec, logits, slots, weights);
                }
                None => scores.choose(&m.spec, &m.favour, logits, slots, weights),
            }
            if !m.factors.is_empty() {
                slots.iter().zip(weights).for_each(|(&e, weight)| *weight *= m.factors[e as usize]);
            }
        }
        // Counting sort: experts' sizes, then their starts, then each use takes the next place of its expert.
        starts.fill(0);
        slots.iter().for_each(|&e| starts[e as usize + 1] += 1);
        for e in 0..m.spec.experts {
            starts[e + 1] += starts[e];
        }
        let mut next = starts.to_vec();
        for (i, slot) in slots.iter_mut().enumerate() {
            let place = &mut next[*slot as usize];
            tokens[*place as usize] = (i / used) as u32;
            *slot = *place;
            *place += 1;
        }
    }
}

/// Puts inputs in slot order.
pub struct Gather(pub Arc<Mixture>);

// SAFETY: a task writes slots of the inputs that are its own.
unsafe impl Instruction for Gather {
    fn name(&self) -> &'static str {
        "moe"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        self.0.slots(step).div_ceil(SLOTS_A_TASK)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut Local) {
        let m = &*self.0;
        for slot in task * SLOTS_A_TASK..((task + 1) * SLOTS_A_TASK).min(m.slots(step)) {
            // SAFETY: the route and the input were written before a barrier; each slot belongs to one task.
            unsafe {
                let token = m.state.tokens.slice(slot, 1)[0] as usize;
                match m.q8 {
                    Some(buffer) => m.state.input_q8.copy_row(slot, &step.q8[buffer], token, m.x.cols),
                    None => {
                        let row = step.arena.row(&m.x, token);
                        m.state.input.slice_mut(slot * m.x.cols, m.x.cols).copy_from_slice(row);
                    }
                }
            }
        }
    }
}

/// Slots that an element-wise task handles.
pub(super) const SLOTS_A_TASK: usize = 8;

/// Gate and up products of the chosen experts.
pub struct GateUp(pub Arc<Mixture>);

// SAFETY: a task writes columns, in the slots of one expert, that are its own.
unsafe impl Instruction for GateUp {
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

    unsafe fn run(&self, task: usize, step: &Step<'_>, local: &mut Local) {
        let m = &*self.0;
        let gates = m.expert_tasks(&m.gate, step);
        let (matrix, out, task) =
            if task < gates { (&m.gate, &m.state.gate, task) } else { (&m.up, &m.state.up, task - gates) };
        let Some(at) = m.locate(task, matrix, step) else { return };
        let (slots, k) = (m.slots_of(at.0), m.x.cols);
        // SAFETY: written before a barrier.
        let acts = unsafe {
            match m.q8 {
                _ if let Some(tiles) = m.tiles(Side::Input, at.0, &matrix.kernel) => tiles,
                Some(_) => Acts::Q8(m.state.input_q8.rows(slots.start, slots.len(), k)),
                None => Acts::F32 {
                    rows: slots.len(),
                    k,
                    x: m.state.input.slice(slots.start * k, slots.len() * k),
                },
            }
        };
        m.multiply(matrix, at, acts, out, step, &mut local.scratch);
    }

    fn work(&self, step: &Step<'_>) -> (u64, u64) {
        let m = &*self.0;
        let experts = self.0.slots(step).min(m.spec.experts);
        let matrices = if m.is_gated() { &[&m.gate, &m.up, &m.down][..] } else { &[&m.up, &m.down] };
        let bytes = matrices.iter().map(|x| (experts * x.n * x.row_bytes) as u64).sum();
        (bytes, matrices.iter().map(|x| (m.slots(step) * x.n * x.k) as u64).sum())
    }
}

/// The experts' unit, and rounding of its result.
pub struct Unit(pub Arc<Mixture>);

// SAFETY: a task writes slots that are its own.
unsafe impl Instruction for Unit {
    fn name(&self) -> &'static str {
        "moe"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        self.0.slots(step).div_ceil(SLOTS_A_TASK)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut Local) {
        let m = &*self.0;
        let h = m.spec.hidden;
        for slot in task * SLOTS_A_TASK..((task + 1) * SLOTS_A_TASK).min(m.slots(step)) {
            // SAFETY: products were written before a barrier; each slot belongs to one task.
            unsafe {
                let hidden = m.state.gate.slice_mut(slot * h, h);
                if m.spec.weighs_input {
                    // The weight of the input is that of both products.
                    let weight = m.weight_of(slot);
                    hidden.iter_mut().for_each(|x| *x *= weight);
                    m.state.up.slice_mut(slot * h, h).iter_mut().for_each(|x| *x *= weight);
                }
                gate(step.level, m.spec.glu, hidden, m.state.up.slice(slot * h, h));
                if m.down.kernel.acts == puna_kernels::ActKind::Q8 {
                    m.state.hidden_q8.quantize(step.level, slot, hidden);
                }
            }
        }
    }
}

/// Down products of the chosen experts.
pub struct Down(pub Arc<Mixture>);

// SAFETY: a task writes columns, in the slots of one expert, that are its own.
unsafe impl Instruction for Down {
    fn name(&self) -> &'static str {
        "moe"
    }

    fn is_static(&self) -> bool {
        false
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        self.0.expert_tasks(&self.0.down, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, local: &mut Local) {
        let m = &*self.0;
        let Some(at) = m.locate(task, &m.down, step) else { return };
        let (slots, k) = (m.slots_of(at.0), m.spec.hidden);
        // SAFETY: written before a barrier.
        let acts = unsafe {
            match m.down.kernel.acts {
                _ if let Some(tiles) = m.tiles(Side::Hidden, at.0, &m.down.kernel) => tiles,
                puna_kernels::ActKind::Q8 => Acts::Q8(m.state.hidden_q8.rows(slots.start, slots.len(), k)),
                puna_kernels::ActKind::F32 => Acts::F32 {
                    rows: slots.len(),
                    k,
                    x: m.state.gate.slice(slots.start * k, slots.len() * k),
                },
            }
        };
        m.multiply(&m.down, at, acts, &m.state.down, step, &mut local.scratch);
    }
}

/// The weighted sum of a token's experts.
pub struct Combine(pub Arc<Mixture>);

// SAFETY: a task writes rows of the result that are its own.
unsafe impl Instruction for Combine {
    fn name(&self) -> &'static str {
        "moe"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        self.0.tokens(step).div_ceil(SLOTS_A_TASK)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut Local) {
        let m = &*self.0;
        let (used, n) = (m.spec.used, m.out.cols);
        for token in task * SLOTS_A_TASK..((task + 1) * SLOTS_A_TASK).min(m.tokens(step)) {
            // SAFETY: products were written before a barrier; each token belongs to one task.
            unsafe {
                let out = step.arena.row_mut(&m.out, token);
                out.fill(0.0);
                for i in token * used..(token + 1) * used {
                    let (slot, weight) =
                        (m.state.slots.slice(i, 1)[0] as usize, m.state.weights.slice(i, 1)[0]);
                    let weight = if m.spec.weighs_input { 1.0 } else { weight };
                    let row = m.state.down.slice(slot * n, n);
                    out.iter_mut().zip(row).for_each(|(o, x)| *o += weight * x);
                }
            }
        }
    }
}

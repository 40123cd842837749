//! Low-rank updates of experts' matrices: `y += adapter scale · scale · up (down x)` in every slot.

use std::sync::Arc;

use puna_kernels::{Acts, OutMut, Scratch, WeightRows};

use super::moe::{ExpertMatrix, MoeLayer, ROWS_PER_TASK};
use crate::memory::SharedBuffer;
use crate::step::{Instruction, Step, ThreadScratch};

/// A low-rank update of all experts.
pub struct ExpertLora {
    pub down: ExpertMatrix,
    pub up: ExpertMatrix,
    pub scale: f32,
    /// Number of the adapter; its scale multiplies the update, too.
    pub adapter: usize,
}

/// The products of an expert.
#[derive(Clone, Copy, PartialEq)]
pub enum ExpertProduct {
    Gate,
    Up,
    Down,
}

/// Adds the low-rank updates of one product of the experts. Each slot is computed alone, since the
/// matrices are thin, and so has the same bits in every step.
pub struct AddExpertLora {
    pub moe: Arc<MoeLayer>,
    pub product: ExpertProduct,
    pub updates: Vec<ExpertLora>,
}

impl AddExpertLora {
    fn products(&self) -> &SharedBuffer<f32> {
        let buffers = &self.moe.buffers;
        match self.product {
            ExpertProduct::Gate => &buffers.gate,
            ExpertProduct::Up => &buffers.up,
            ExpertProduct::Down => &buffers.down,
        }
    }

    /// Input of the products of a slot.
    ///
    /// # Safety
    /// The input was written before a barrier, and no thread writes it now.
    unsafe fn input<'a>(&'a self, slot: usize, step: &'a Step<'_>) -> &'a [f32] {
        let m = &*self.moe;
        // SAFETY: the caller keeps the same contract.
        unsafe {
            match self.product {
                ExpertProduct::Gate | ExpertProduct::Up => {
                    step.arena.row(&m.x, m.buffers.tokens.slice(slot, 1)[0] as usize)
                }
                ExpertProduct::Down => m.buffers.gate.slice(slot * m.spec.hidden, m.spec.hidden),
            }
        }
    }
}

// SAFETY: a task writes slots of the products that are its own.
unsafe impl Instruction for AddExpertLora {
    fn name(&self) -> &'static str {
        "moe"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        self.moe.slots(step).div_ceil(ROWS_PER_TASK)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, scratch: &mut ThreadScratch) {
        let (m, ThreadScratch { kernel, floats, .. }) = (&*self.moe, scratch);
        for slot in task * ROWS_PER_TASK..((task + 1) * ROWS_PER_TASK).min(m.slots(step)) {
            let expert = m.matrix_of(m.expert_of(slot));
            // SAFETY: an earlier instruction wrote it, behind a barrier.
            let token = unsafe { m.buffers.tokens.slice(slot, 1)[0] as usize };
            for ExpertLora { down, up, scale, adapter } in &self.updates {
                let by = scale * step.input.adapter_scale(*adapter, m.x.rows, token);
                floats.resize(down.n + up.n, 0.0);
                let (thin, wide) = floats.split_at_mut(down.n);
                // SAFETY: inputs and products were written before a barrier; each slot belongs to
                // one task.
                let (x, out) = unsafe {
                    (self.input(slot, step), self.products().slice_mut(slot * up.n, up.n))
                };
                multiply(down, expert, x, thin, step, kernel);
                multiply(up, expert, thin, wide, step, kernel);
                out.iter_mut().zip(wide).for_each(|(y, update)| *y += by * *update);
            }
        }
    }

    fn work(&self, step: &Step<'_>) -> (u64, u64) {
        let slots = self.moe.slots(step);
        let halves = self.updates.iter().flat_map(|update| [&update.down, &update.up]);
        let experts = slots.min(self.moe.spec.experts);
        let bytes = halves.clone().map(|x| (experts * x.n * x.row_bytes) as u64).sum();
        (bytes, halves.map(|x| (slots * x.n * x.k) as u64).sum())
    }
}

/// An expert's matrix times one row.
fn multiply(
    m: &ExpertMatrix,
    expert: usize,
    x: &[f32],
    out: &mut [f32],
    step: &Step<'_>,
    scratch: &mut Scratch,
) {
    let row = expert * m.rows_per_expert + m.first_row;
    let data = &step.weight(m.w)[row * m.row_bytes..][..m.n * m.row_bytes];
    let w = WeightRows { ty: m.ty, rows: m.n, k: m.k, data };
    let out = OutMut::new(out, m.n, 1, m.n);
    (m.kernel.stream)(w, Acts::F32 { rows: 1, k: m.k, x }, out, scratch);
}

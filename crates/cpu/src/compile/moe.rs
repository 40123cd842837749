//! Mixture of experts: its instructions, and the buffers that layers of the same shape share.

use std::sync::Arc;

use puna_graph::{ArenaRange, BackendError, LowRank, Op, WeightId};
use puna_kernels::{ActKind, STREAM_ROWS, TileForm};

use super::{Compiler, unsupported};
use crate::memory::SharedBuffer;
use crate::ops::expert_lora::{AddExpertLora, ExpertLora, ExpertProduct};
use crate::ops::expert_tiles::{ExpertInput, TileSlots, tile_buffer_len};
use crate::ops::moe::{
    Combine, DownProjection, ExpertActivation, ExpertMatrix, GateUpProjection, Gather, MoeBuffers,
    MoeLayer, Route,
};
use crate::ops::observe::ObserveExperts;
use crate::step::{Q8Buffer, TileBuffer};

/// Sizes of the buffers of a mixture-of-experts layer, in elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct MoeBufferSizes {
    experts: usize,
    slots: usize,
    /// Gathered inputs, as f32 and as 8 bits.
    input: usize,
    input_q8: usize,
    gate: usize,
    up: usize,
    hidden_q8: usize,
    down: usize,
    input_tiles: usize,
    hidden_tiles: usize,
}

impl Compiler<'_> {
    pub(super) fn moe(&mut self, op: &Op, out: ArenaRange) -> Result<(), BackendError> {
        let Op::Moe { x: input, router, spec } = op else { return Ok(()) };
        let (x, router) = (self.arena_range(*input), self.arena_range(*router));
        let spec = (**spec).clone();
        let mut gate = self.experts(spec.gate, spec.gate_bias)?;
        let mut up = self.experts(spec.up, spec.up_bias)?;
        if spec.is_joined {
            (gate.n, up.n, up.first_row) = (spec.hidden, spec.hidden, spec.hidden);
        }
        let down = self.experts(spec.down, spec.down_bias)?;
        let (selection_bias, factors) =
            (self.floats(spec.selection_bias)?, self.floats(spec.factors)?);
        let slots = self.plan.capacity.rows(x.rows) * spec.top_k;
        let quantized =
            |m: &ExpertMatrix| if m.kernel.acts == ActKind::Q8 { slots * m.k } else { 0 };
        let plain = |m: &ExpertMatrix| if m.kernel.acts == ActKind::F32 { slots * m.k } else { 0 };
        if gate.kernel.acts != up.kernel.acts {
            // Both read one gathered input; no published file mixes float and quantized experts
            // here.
            let [gate, up] = [gate.w, up.w].map(|w| &self.weights[w]);
            return Err(BackendError::MixedExperts {
                gate: gate.name.clone(),
                gate_ty: gate.ty,
                up: up.name.clone(),
                up_ty: up.ty,
                backend: "cpu",
            });
        }
        let [hidden, result] = [slots * spec.hidden, slots * out.cols];
        let tiles = |k, form| match slots / spec.top_k.max(1) {
            0..=STREAM_ROWS => 0,
            _ => tile_buffer_len(slots, spec.experts, k, form),
        };
        let input_form = TileForm::common(gate.kernel.tiles, up.kernel.tiles);
        let input_tiles = tiles(x.cols, input_form);
        let hidden_tiles = tiles(spec.hidden, down.kernel.tiles);
        let sizes = MoeBufferSizes {
            experts: spec.experts,
            slots,
            input: plain(&gate),
            input_q8: quantized(&gate),
            gate: hidden,
            up: hidden,
            hidden_q8: quantized(&down),
            down: result,
            input_tiles,
            hidden_tiles,
        };
        let buffers = self.moe_buffers(sizes)?;
        let q8 = self
            .quantize_input(*input)?
            .q8
            .map(|q8| q8.buffer)
            .filter(|_| gate.kernel.acts == ActKind::Q8);
        let moe = Arc::new(MoeLayer {
            spec,
            gate,
            up,
            down,
            selection_bias,
            factors,
            x,
            router,
            out,
            q8,
            buffers,
        });
        self.push(Route(Arc::clone(&moe)));
        self.push(Gather(Arc::clone(&moe)));
        self.observe_experts(&moe, false);
        if input_tiles > 0 {
            self.push(TileSlots(Arc::clone(&moe), ExpertInput::GateUp));
        }
        self.push(GateUpProjection(Arc::clone(&moe)));
        self.add_expert_lora(&moe, ExpertProduct::Gate)?;
        self.add_expert_lora(&moe, ExpertProduct::Up)?;
        self.push(ExpertActivation(Arc::clone(&moe)));
        self.observe_experts(&moe, true);
        if hidden_tiles > 0 {
            self.push(TileSlots(Arc::clone(&moe), ExpertInput::Down));
        }
        self.push(DownProjection(Arc::clone(&moe)));
        self.add_expert_lora(&moe, ExpertProduct::Down)?;
        self.push(Combine(moe));
        Ok(())
    }

    fn observe_experts(&mut self, moe: &Arc<MoeLayer>, is_hidden: bool) {
        if let Some(into) = self.observations {
            self.push(ObserveExperts { moe: Arc::clone(moe), is_hidden, into: Arc::clone(into) });
        }
    }

    /// Adds the low-rank updates of one product of an MoE layer.
    fn add_expert_lora(
        &mut self,
        moe: &Arc<MoeLayer>,
        product: ExpertProduct,
    ) -> Result<(), BackendError> {
        let updates = &moe.spec.lora_updates;
        let (list, of) = match product {
            ExpertProduct::Gate => (&updates.gate, &moe.gate),
            ExpertProduct::Up => (&updates.up, &moe.up),
            ExpertProduct::Down => (&updates.down, &moe.down),
        };
        let load = |update: &LowRank| -> Result<ExpertLora, BackendError> {
            let [down, up] = [update.down, update.up].map(|w| self.thin_experts(w));
            let up = ExpertMatrix { n: of.n, first_row: of.first_row, ..up? };
            Ok(ExpertLora { down: down?, up, scale: update.scale, adapter: update.adapter })
        };
        let updates = list.iter().map(load).collect::<Result<Vec<_>, _>>()?;
        if !updates.is_empty() {
            self.push(AddExpertLora { moe: Arc::clone(moe), product, updates });
        }
        Ok(())
    }

    /// LoRA matrices of experts, which multiply f32 activations.
    fn thin_experts(&self, w: WeightId) -> Result<ExpertMatrix, BackendError> {
        let matrix = self.experts(w, None)?;
        let is_plain = matrix.kernel.acts == ActKind::F32;
        if is_plain { Ok(matrix) } else { Err(unsupported(&self.weights[w.index()])) }
    }

    /// Buffers of these sizes, shared with other layers of the same sizes.
    fn moe_buffers(&mut self, sizes: MoeBufferSizes) -> Result<Arc<MoeBuffers>, BackendError> {
        if let Some(buffers) = self.moe_buffers.get(&sizes) {
            return Ok(Arc::clone(buffers));
        }
        let MoeBufferSizes { experts, slots, input, input_q8, gate, up, hidden_q8, down, .. } =
            sizes;
        let MoeBufferSizes { input_tiles, hidden_tiles, .. } = sizes;
        self.own_bytes += 4 * (experts + 1 + 3 * slots + input + gate + up + down);
        self.own_bytes += (input_q8 + hidden_q8) * 5 / 4 + 2 * (input_tiles + hidden_tiles);
        const WHAT: &str = "the experts' values";
        let buffers = Arc::new(MoeBuffers {
            starts: SharedBuffer::zeroed(experts + 1, WHAT)?,
            tokens: SharedBuffer::zeroed(slots, WHAT)?,
            slots: SharedBuffer::zeroed(slots, WHAT)?,
            weights: SharedBuffer::zeroed(slots, WHAT)?,
            input: SharedBuffer::zeroed(input, WHAT)?,
            input_q8: Q8Buffer::new(input_q8)?,
            gate: SharedBuffer::zeroed(gate, WHAT)?,
            up: SharedBuffer::zeroed(up, WHAT)?,
            hidden_q8: Q8Buffer::new(hidden_q8)?,
            down: SharedBuffer::zeroed(down, WHAT)?,
            input_tiles: TileBuffer::new(input_tiles)?,
            hidden_tiles: TileBuffer::new(hidden_tiles)?,
        });
        self.moe_buffers.insert(sizes, Arc::clone(&buffers));
        Ok(buffers)
    }

    /// Experts' matrices, or heads'.
    pub(super) fn experts(
        &self,
        w: WeightId,
        bias: Option<WeightId>,
    ) -> Result<ExpertMatrix, BackendError> {
        let weight = &self.weights[w.index()];
        let (k, n) = (weight.shape[0], weight.shape[1]);
        let row_bytes = weight.ty.row_bytes(k).ok_or_else(|| unsupported(weight))?;
        let (kernel, bias) = (self.kernel(weight)?, self.floats(bias)?);
        Ok(ExpertMatrix {
            w: w.index(),
            ty: weight.ty,
            kernel,
            k,
            n,
            rows_per_expert: n,
            first_row: 0,
            row_bytes,
            bias,
        })
    }
}

//! Mixtures of experts: their instructions, and the buffers that mixtures of the same shape share.

use std::sync::Arc;

use puna_graph::{ArenaRange, BackendError, LowRank, Op, WeightId};
use puna_kernels::{ActKind, STREAM_ROWS, TileForm};

use super::{Compiler, unsupported};
use crate::memory::Shared;
use crate::ops::expert_lora::{AddExpertLora, ExpertLora, ExpertProduct};
use crate::ops::expert_tiles::{Side, TileSlots, room};
use crate::ops::moe::{
    Combine, Down, ExpertMatrix, GateUp, Gather, Mixture, MixtureBuffers, Route, Unit,
};
use crate::ops::observe::ObserveExperts;
use crate::step::{Q8Buffer, TileBuffer};

impl Compiler<'_> {
    pub(super) fn moe(&mut self, op: &Op, out: ArenaRange) -> Result<(), BackendError> {
        let Op::Moe { x: input, router, spec } = op else { return Ok(()) };
        let (x, router) = (self.place(*input), self.place(*router));
        let spec = (**spec).clone();
        let mut gate = self.experts(spec.gate, spec.gate_bias)?;
        let mut up = self.experts(spec.up, spec.up_bias)?;
        if spec.is_joined {
            (gate.n, up.n, up.first) = (spec.hidden, spec.hidden, spec.hidden);
        }
        let down = self.experts(spec.down, spec.down_bias)?;
        let (selection_bias, factors) =
            (self.floats(spec.selection_bias)?, self.floats(spec.factors)?);
        let slots = self.plan.capacity.rows(x.rows) * spec.top_k;
        let rounded = |m: &ExpertMatrix| if m.kernel.acts == ActKind::Q8 { slots * m.k } else { 0 };
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
            _ => room(slots, spec.experts, k, form),
        };
        let input_form = TileForm::common(gate.kernel.tiles, up.kernel.tiles);
        let input_tiles = tiles(x.cols, input_form);
        let hidden_tiles = tiles(spec.hidden, down.kernel.tiles);
        let lengths = [
            plain(&gate),
            rounded(&gate),
            hidden,
            hidden,
            rounded(&down),
            result,
            input_tiles,
            hidden_tiles,
        ];
        let state = self.state(spec.experts, slots, lengths)?;
        let q8 =
            self.round(*input)?.q8.map(|q8| q8.buffer).filter(|_| gate.kernel.acts == ActKind::Q8);
        let mixture = Arc::new(Mixture {
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
            state,
        });
        self.push(Route(Arc::clone(&mixture)));
        self.push(Gather(Arc::clone(&mixture)));
        self.observe_experts(&mixture, false);
        if input_tiles > 0 {
            self.push(TileSlots(Arc::clone(&mixture), Side::Input));
        }
        self.push(GateUp(Arc::clone(&mixture)));
        self.add_expert_lora(&mixture, ExpertProduct::Gate)?;
        self.add_expert_lora(&mixture, ExpertProduct::Up)?;
        self.push(Unit(Arc::clone(&mixture)));
        self.observe_experts(&mixture, true);
        if hidden_tiles > 0 {
            self.push(TileSlots(Arc::clone(&mixture), Side::Hidden));
        }
        self.push(Down(Arc::clone(&mixture)));
        self.add_expert_lora(&mixture, ExpertProduct::Down)?;
        self.push(Combine(mixture));
        Ok(())
    }

    fn observe_experts(&mut self, mixture: &Arc<Mixture>, is_hidden: bool) {
        if let Some(into) = self.observations {
            self.push(ObserveExperts {
                mixture: Arc::clone(mixture),
                is_hidden,
                into: Arc::clone(into),
            });
        }
    }

    /// Adds the low-rank updates of one product of a mixture.
    fn add_expert_lora(
        &mut self,
        mixture: &Arc<Mixture>,
        product: ExpertProduct,
    ) -> Result<(), BackendError> {
        let updates = &mixture.spec.lora_updates;
        let (list, of) = match product {
            ExpertProduct::Gate => (&updates.gate, &mixture.gate),
            ExpertProduct::Up => (&updates.up, &mixture.up),
            ExpertProduct::Down => (&updates.down, &mixture.down),
        };
        let load = |update: &LowRank| -> Result<ExpertLora, BackendError> {
            let [down, up] = [update.down, update.up].map(|w| self.thin_experts(w));
            let up = ExpertMatrix { n: of.n, first: of.first, ..up? };
            Ok(ExpertLora { down: down?, up, scale: update.scale, adapter: update.adapter })
        };
        let updates = list.iter().map(load).collect::<Result<Vec<_>, _>>()?;
        if !updates.is_empty() {
            self.push(AddExpertLora { mixture: Arc::clone(mixture), product, updates });
        }
        Ok(())
    }

    /// LoRA matrices of experts, which multiply f32 activations.
    fn thin_experts(&self, w: WeightId) -> Result<ExpertMatrix, BackendError> {
        let matrix = self.experts(w, None)?;
        let is_plain = matrix.kernel.acts == ActKind::F32;
        if is_plain { Ok(matrix) } else { Err(unsupported(&self.weights[w.index()])) }
    }

    /// Buffers for a mixture. Lengths in order: inputs plain and rounded, gate, up, hidden values
    /// rounded, down, inputs and hidden values in tiles.
    fn state(
        &mut self,
        experts: usize,
        slots: usize,
        lengths: [usize; 8],
    ) -> Result<Arc<MixtureBuffers>, BackendError> {
        let [input, input_q8, gate, up, hidden_q8, down, input_tiles, hidden_tiles] = lengths;
        let key =
            [experts, slots, input, input_q8, gate, up, hidden_q8, down, input_tiles, hidden_tiles];
        if let Some(state) = self.states.get(&key) {
            return Ok(Arc::clone(state));
        }
        self.own_bytes += 4 * (experts + 1 + 3 * slots + input + gate + up + down);
        self.own_bytes += (input_q8 + hidden_q8) * 5 / 4 + 2 * (input_tiles + hidden_tiles);
        const WHAT: &str = "the experts' values";
        let state = Arc::new(MixtureBuffers {
            starts: Shared::named(experts + 1, WHAT)?,
            tokens: Shared::named(slots, WHAT)?,
            slots: Shared::named(slots, WHAT)?,
            weights: Shared::named(slots, WHAT)?,
            input: Shared::named(input, WHAT)?,
            input_q8: Q8Buffer::new(input_q8)?,
            gate: Shared::named(gate, WHAT)?,
            up: Shared::named(up, WHAT)?,
            hidden_q8: Q8Buffer::new(hidden_q8)?,
            down: Shared::named(down, WHAT)?,
            input_tiles: TileBuffer::new(input_tiles)?,
            hidden_tiles: TileBuffer::new(hidden_tiles)?,
        });
        self.states.insert(key, Arc::clone(&state));
        Ok(state)
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
            each: n,
            first: 0,
            row_bytes,
            bias,
        })
    }
}

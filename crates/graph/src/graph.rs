//! The graph of one step and its builder.

mod attention;
mod recurrent;
mod sparse_attention;
mod streams;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::adapter_updates::*;
use crate::ops::*;
use crate::values::*;

/// Shape of a value and its columns in a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    /// Meaning of the rows.
    pub rows: Rows,
    /// Number of columns.
    pub cols: usize,
    /// The storage that holds it.
    pub storage: usize,
    /// First column within the storage.
    pub offset: usize,
}

/// Memory of one or several values: a matrix with `cols` columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Storage {
    /// Meaning of the rows.
    pub rows: Rows,
    /// Number of columns.
    pub cols: usize,
}

/// One operation of a graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The operation.
    pub op: Op,
    /// The result.
    pub out: ValueId,
    /// Name as in llama.cpp, for comparison node by node.
    pub name: &'static str,
    /// Layer of the model, if the node belongs to one.
    pub layer: Option<usize>,
}

/// The operations of one step in order, with the shapes of all values.
///
/// Building a graph computes nothing. The number of rows is symbolic, so one graph serves steps of
/// any size; a [`crate::Plan`] sets the largest size.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Graph {
    nodes: Vec<Node>,
    values: Vec<Value>,
    storages: Vec<Storage>,
    layer: Option<usize>,
    result: Option<ValueId>,
    extra_outputs: Vec<ValueId>,
    updates: Arc<AdapterUpdates>,
    is_bidirectional: bool,
    /// Layers with recorded inputs (feature taps), and these inputs.
    feature_taps: Vec<(usize, Option<ValueId>)>,
    media: Option<MediaInput>,
}

/// Rows of media in a step: an input with the rows of all layers side by side.
#[derive(Debug, Clone, Copy, PartialEq)]
struct MediaInput {
    /// Number of layers that add rows of their own to the residual stream.
    deepstack_layers: usize,
    /// The input, once the graph has it.
    rows: Option<ValueId>,
}

/// A matrix with its optional bias.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Linear {
    /// `[in, out]`.
    pub w: WeightId,
    /// Scale of the tensor; 1 for formats without.
    pub scale: f32,
    /// `[out]`.
    pub bias: Option<WeightId>,
    /// Columns of the result.
    pub out: usize,
}

/// A matrix for each head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PerHeadLinear {
    /// `[input, out, heads]`.
    pub w: WeightId,
    /// Columns of a head that are multiplied.
    pub input: usize,
    /// Columns of the result per head.
    pub out: usize,
    /// Number of heads.
    pub heads: usize,
}

/// The weight of a norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// Length of a group, or of a row; 1 if absent.
    pub w: Option<WeightId>,
    /// Bias of layer norms.
    pub b: Option<WeightId>,
    /// Columns per group.
    pub dim: usize,
    /// Added to the mean square or the variance.
    pub eps: f32,
}

impl Graph {
    /// A graph without operations.
    pub fn new() -> Self {
        Self::default()
    }

    /// A graph in which embeddings, products and mixtures of experts apply adapters.
    pub fn with_adapter_updates(updates: Arc<AdapterUpdates>) -> Self {
        Self { updates, ..Self::default() }
    }

    /// Makes causal attention bidirectional.
    pub fn bidirectional(self) -> Self {
        Self { is_bidirectional: true, ..self }
    }

    /// Adds rows of media to the residual stream: before the first layer, and behind each of the
    /// first `deepstack_layers` layers (DeepStack; Meng et al., 2024). The step has an input with
    /// zeros for tokens.
    pub fn with_media(self, deepstack_layers: usize) -> Self {
        Self { media: Some(MediaInput { deepstack_layers, rows: None }), ..self }
    }

    /// Whether the graph adds rows of media.
    pub fn takes_media(&self) -> bool {
        self.media.is_some_and(|media| media.rows.is_some())
    }

    /// Adds the rows of media to the embeddings of the tokens, which are zeros for media.
    pub fn add_media(&mut self, x: ValueId) -> ValueId {
        let Some(media) = self.media else { return x };
        let cols = self.value(x).cols;
        let rows = self.input_rows("inp_media", cols * (1 + media.deepstack_layers));
        self.media = Some(MediaInput { rows: Some(rows), ..media });
        let first = self.slice(rows, 0, cols);
        self.add("inp_with_media", x, first)
    }

    /// Adds the rows of media behind a layer.
    pub fn add_deepstack(&mut self, layer: usize, x: ValueId) -> ValueId {
        let Some(MediaInput { deepstack_layers, rows: Some(rows) }) = self.media else { return x };
        if layer >= deepstack_layers {
            return x;
        }
        let Value { cols, rows: kind, .. } = self.value(x);
        let mut own = self.slice(rows, cols * (layer + 1), cols);
        if kind == Rows::Outputs {
            own = self.gather_outputs(own);
        }
        self.add("l_out_deepstack", x, own)
    }

    /// Records the inputs of these layers (feature taps).
    pub fn with_feature_taps(self, layers: &[usize]) -> Self {
        Self { feature_taps: layers.iter().map(|&layer| (layer, None)).collect(), ..self }
    }

    /// Recorded inputs of layers, in order: the result of [`Self::add_control_vectors`] for the
    /// layer before. `None` for the first layer and for layers without nodes.
    pub fn feature_taps(&self) -> impl Iterator<Item = Option<ValueId>> {
        self.feature_taps.iter().map(|(_, input)| *input)
    }

    /// Operations in order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The shape of a value.
    pub fn value(&self, id: ValueId) -> Value {
        self.values[id.index()]
    }

    /// All storages.
    pub fn storages(&self) -> &[Storage] {
        &self.storages
    }

    /// Result of the step.
    pub fn result(&self) -> Option<ValueId> {
        self.result
    }

    /// Sets the result of the step.
    pub fn set_result(&mut self, value: ValueId) {
        self.result = Some(value);
    }

    /// Further values that the caller can read after the step.
    pub fn extra_outputs(&self) -> &[ValueId] {
        &self.extra_outputs
    }

    /// Adds a value that the caller can read after the step.
    pub fn add_extra_output(&mut self, value: ValueId) {
        self.extra_outputs.push(value);
    }

    /// Whether a storage holds a result or an extra output; `owner` maps storages to the storage
    /// with their memory.
    pub(crate) fn is_kept(&self, storage: usize, owner: &[usize]) -> bool {
        let mut kept = self.result.iter().chain(&self.extra_outputs);
        kept.any(|&value| owner[self.value(value).storage] == owner[storage])
    }

    /// Sets the layer of the following nodes.
    pub fn set_layer(&mut self, layer: Option<usize>) {
        self.layer = layer;
    }

    pub(crate) fn push(&mut self, name: &'static str, op: Op, rows: Rows, cols: usize) -> ValueId {
        self.storages.push(Storage { rows, cols });
        let out = ValueId(self.values.len() as u32);
        self.values.push(Value { rows, cols, storage: self.storages.len() - 1, offset: 0 });
        self.nodes.push(Node { op, out, name, layer: self.layer });
        out
    }

    /// A result of the shape of `like`.
    pub(crate) fn push_like(&mut self, name: &'static str, op: Op, like: ValueId) -> ValueId {
        let Value { rows, cols, .. } = self.value(like);
        self.push(name, op, rows, cols)
    }

    /// `cols` columns of `x` from `start` on, without copying.
    pub fn slice(&mut self, x: ValueId, start: usize, cols: usize) -> ValueId {
        let of = self.value(x);
        assert!(
            start + cols <= of.cols,
            "columns {start}..{} of a value with {}",
            start + cols,
            of.cols
        );
        self.values.push(Value { cols, offset: of.offset + start, ..of });
        ValueId(self.values.len() as u32 - 1)
    }

    /// Rows of a table with `cols` columns.
    pub fn embed(
        &mut self,
        name: &'static str,
        table: WeightId,
        cols: usize,
        index: Index,
    ) -> ValueId {
        let mut rows = self.push(name, Op::Embed { table, index }, Rows::Tokens, cols);
        for update in self.lora_updates_of(table) {
            let Some(back) = update.back else { continue };
            let thin = Op::Embed { table: update.up, index };
            let thin = self.push("lora_up", thin, Rows::Tokens, update.rank);
            let thin = self.scale_adapter(thin, update.adapter);
            let wide = Linear { w: back, scale: update.scale, bias: None, out: cols };
            let wide = self.product("lora_back", &wide, thin);
            rows = self.add(name, rows, wide);
        }
        rows
    }

    /// The rows of a table with `cols` columns that each token's numbers name, side by side.
    pub fn embed_rows(
        &mut self,
        name: &'static str,
        table: WeightId,
        cols: usize,
        numbers: ValueId,
    ) -> ValueId {
        let of = self.value(numbers);
        self.push(name, Op::EmbedRows { table, numbers }, of.rows, of.cols * cols)
    }

    /// The next input of the step, with a row of `cols` columns for each token.
    pub fn input_rows(&mut self, name: &'static str, cols: usize) -> ValueId {
        let is_input = |node: &&Node| matches!(node.op, Op::InputRows { .. });
        let input = InputId(self.nodes.iter().filter(is_input).count() as u32);
        self.push(name, Op::InputRows { input }, Rows::Tokens, cols)
    }

    /// `scale · x · wᵀ + bias`.
    pub fn linear(&mut self, name: &'static str, l: &Linear, x: ValueId) -> ValueId {
        let mut y = self.product(name, l, x);
        for LowRank { down, up, rank, scale, adapter, .. } in self.lora_updates_of(l.w) {
            let down = Linear { w: down, scale: 1.0, bias: None, out: rank };
            let thin = self.product("lora_down", &down, x);
            let thin = self.scale_adapter(thin, adapter);
            let wide =
                self.product("lora_up", &Linear { w: up, scale, bias: None, out: l.out }, thin);
            y = self.add(name, y, wide);
        }
        y
    }

    fn product(&mut self, name: &'static str, l: &Linear, x: ValueId) -> ValueId {
        let rows = self.value(x).rows;
        self.push(name, Op::Linear { w: l.w, scale: l.scale, bias: l.bias, x }, rows, l.out)
    }

    /// For each head its first columns times the head's own matrix, and behind that the rest of the
    /// head as it is.
    pub fn per_head_linear(
        &mut self,
        name: &'static str,
        l: &PerHeadLinear,
        x: ValueId,
    ) -> ValueId {
        let mut y = self.product_of_heads(name, l, x);
        let (dim, out) = (self.value(x).cols / l.heads, self.value(y).cols / l.heads);
        for LowRank { down, up, rank, scale, adapter, .. } in self.lora_updates_of(l.w) {
            let multiplied =
                if dim > l.input { self.strided_columns("lora_in", x, 0, l.input, dim) } else { x };
            let thin = PerHeadLinear { w: down, out: rank, ..*l };
            let thin = self.product_of_heads("lora_down", &thin, multiplied);
            let thin = self.scale_adapter(thin, adapter);
            let wide = self.product_of_heads(
                "lora_up",
                &PerHeadLinear { w: up, input: rank, out, ..*l },
                thin,
            );
            let wide = self.scale("lora_up", wide, scale);
            y = self.add(name, y, wide);
        }
        y
    }

    fn product_of_heads(&mut self, name: &'static str, l: &PerHeadLinear, x: ValueId) -> ValueId {
        let Value { rows, cols, .. } = self.value(x);
        assert!(cols.is_multiple_of(l.heads) && cols / l.heads >= l.input);
        let out = cols - l.heads * l.input + l.heads * l.out;
        self.push(name, Op::PerHeadLinear { w: l.w, x, heads: l.heads }, rows, out)
    }

    fn lora_updates_of(&self, w: WeightId) -> Vec<LowRank> {
        self.updates.products.get(&w).cloned().unwrap_or_default()
    }

    fn scale_adapter(&mut self, x: ValueId, adapter: usize) -> ValueId {
        self.push_like("lora_scaled", Op::ScaleAdapter { x, adapter }, x)
    }

    /// Adds the control vectors of a layer to the residual stream behind it.
    pub fn add_control_vectors(&mut self, layer: usize, x: ValueId) -> ValueId {
        let control_vectors = self.updates.control_vectors.get(&layer).cloned().unwrap_or_default();
        let steered = control_vectors.into_iter().fold(x, |x, control_vector| {
            self.push_like("l_out_steered", Op::AddControlVector { x, control_vector }, x)
        });
        let next = self.feature_taps.iter_mut().filter(|(tapped, _)| *tapped == layer + 1);
        next.for_each(|(_, input)| _ = input.get_or_insert(steered));
        steered
    }

    /// RMS norm over groups of columns: the whole row, or each head.
    pub fn rms_norm(&mut self, name: &'static str, n: &Norm, x: ValueId) -> ValueId {
        assert!(self.value(x).cols.is_multiple_of(n.dim));
        self.push_like(name, Op::RmsNorm { x, w: n.w, eps: n.eps, group: n.dim }, x)
    }

    /// Layer norm over groups of columns: the whole row, or each head.
    pub fn layer_norm(&mut self, name: &'static str, n: &Norm, x: ValueId) -> ValueId {
        assert!(self.value(x).cols.is_multiple_of(n.dim));
        self.push_like(name, Op::LayerNorm { x, w: n.w, b: n.b, eps: n.eps, group: n.dim }, x)
    }

    /// Rotates heads of `head_dim` features.
    pub fn rope(
        &mut self,
        name: &'static str,
        x: ValueId,
        head_dim: usize,
        rope: RopeId,
    ) -> ValueId {
        self.rope_from(name, x, (head_dim, 0), rope)
    }

    /// Like [`Graph::rope`], for the features of each head from a given one on.
    pub fn rope_from(
        &mut self,
        name: &'static str,
        x: ValueId,
        (head_dim, start): (usize, usize),
        rope: RopeId,
    ) -> ValueId {
        assert!(self.value(x).cols.is_multiple_of(head_dim) && start < head_dim);
        self.push_like(name, Op::Rope { x, head_dim, start, rope }, x)
    }

    /// A gated unit.
    pub fn glu(&mut self, name: &'static str, kind: Glu, gate: ValueId, up: ValueId) -> ValueId {
        assert_eq!(self.value(gate).cols, self.value(up).cols);
        self.push_like(name, Op::Glu { kind, gate, up }, gate)
    }

    /// An element-wise function.
    pub fn activate(&mut self, name: &'static str, kind: Activation, x: ValueId) -> ValueId {
        self.push_like(name, Op::Activate { kind, x }, x)
    }

    /// A mixture of experts over the router's logits.
    pub fn moe(
        &mut self,
        name: &'static str,
        mut spec: MoeSpec,
        x: ValueId,
        router: ValueId,
    ) -> ValueId {
        assert_eq!(self.value(router).cols, spec.experts);
        let up = if spec.glu.has_gate() { self.lora_updates_of(spec.up) } else { Vec::new() };
        spec.lora_updates = ExpertLoraUpdates {
            gate: self.lora_updates_of(spec.gate),
            up,
            down: self.lora_updates_of(spec.down),
        };
        let (rows, out) = (self.value(x).rows, spec.out);
        self.push(name, Op::Moe { x, router, spec: Box::new(spec) }, rows, out)
    }

    /// `a + b`.
    pub fn add(&mut self, name: &'static str, a: ValueId, b: ValueId) -> ValueId {
        assert_eq!(self.value(a).cols, self.value(b).cols);
        self.push_like(name, Op::Add { a, b }, a)
    }

    /// `width` columns from `start` on of each `period` columns of `x`, side by side.
    pub fn strided_columns(
        &mut self,
        name: &'static str,
        x: ValueId,
        start: usize,
        width: usize,
        period: usize,
    ) -> ValueId {
        let value = self.value(x);
        assert!(value.cols.is_multiple_of(period) && start + width <= period);
        let cols = value.cols / period * width;
        self.push(name, Op::StridedColumns { x, start, width, period }, value.rows, cols)
    }

    /// The columns of `a`, then the columns of `b`.
    pub fn concat(&mut self, name: &'static str, a: ValueId, b: ValueId) -> ValueId {
        let (Value { rows, cols, .. }, other) = (self.value(a), self.value(b));
        assert_eq!(rows, other.rows);
        self.push(name, Op::Concat { a, b }, rows, cols + other.cols)
    }

    /// `x · by`; `by` may have a column for the whole row, or for each head.
    pub fn mul(&mut self, name: &'static str, x: ValueId, by: ValueId) -> ValueId {
        let cols = self.value(by).cols;
        assert!(self.value(x).cols.is_multiple_of(cols));
        self.push_like(name, Op::Mul { x, by }, x)
    }

    /// `x` mixed with earlier tokens of the step and the same sequence, see [`Op::DynamicConv`]:
    /// `constant` is `[features, taps]`, and `own` has for each tap a column a group.
    pub fn dynamic_conv(
        &mut self,
        name: &'static str,
        x: ValueId,
        dynamic_taps: ValueId,
        (fixed_taps, taps): (WeightId, usize),
    ) -> ValueId {
        let (of, groups) = (self.value(x), self.value(dynamic_taps).cols / taps);
        assert!(
            of.rows == Rows::Tokens
                && self.value(dynamic_taps).cols == taps * groups
                && of.cols.is_multiple_of(groups)
        );
        self.push_like(name, Op::DynamicConv { x, dynamic_taps, fixed_taps, taps }, x)
    }

    /// Neighbours of each token in `cols · taps` columns, for a convolution as a matrix product;
    /// see [`Op::Unfold`].
    pub fn unfold(&mut self, name: &'static str, x: ValueId, taps: usize) -> ValueId {
        let Value { rows, cols, .. } = self.value(x);
        assert!(rows == Rows::Tokens && taps % 2 == 1);
        self.push(name, Op::Unfold { x, taps }, rows, cols * taps)
    }

    /// Norm over the tokens of a sequence and each of `groups` groups of columns.
    pub fn group_norm(
        &mut self,
        name: &'static str,
        x: ValueId,
        [w, b]: [WeightId; 2],
        (groups, eps): (usize, f32),
    ) -> ValueId {
        let Value { rows, cols, .. } = self.value(x);
        assert!(rows == Rows::Tokens && cols.is_multiple_of(groups));
        self.push_like(name, Op::GroupNorm { x, w, b, eps, groups }, x)
    }

    /// Attention temperature, see [`Op::AttnTemperature`].
    pub fn attn_temperature(
        &mut self,
        name: &'static str,
        x: ValueId,
        by: AttnTemperatureSpec,
    ) -> ValueId {
        self.push_like(name, Op::AttnTemperature { x, by }, x)
    }

    /// `by · x`.
    pub fn scale(&mut self, name: &'static str, x: ValueId, by: f32) -> ValueId {
        self.push_like(name, Op::Scale { x, by }, x)
    }

    /// `cap · tanh(x / cap)`.
    pub fn softcap(&mut self, name: &'static str, x: ValueId, cap: f32) -> ValueId {
        self.push_like(name, Op::Softcap { x, cap }, x)
    }

    /// `x` scaled to the norm of `like`, row by row.
    pub fn match_norm(&mut self, name: &'static str, x: ValueId, like: ValueId) -> ValueId {
        assert_eq!(self.value(x).rows, self.value(like).rows);
        self.push_like(name, Op::MatchNorm { x, like }, x)
    }

    /// Depth attention, see [`Op::DepthAttention`]; `norm`: `w` and `eps`.
    pub fn depth_attention(
        &mut self,
        name: &'static str,
        norm: (WeightId, f32),
        depths: &[ValueId],
    ) -> ValueId {
        let (first, (w, eps)) = (self.value(depths[0]), norm);
        assert!(
            depths
                .iter()
                .all(|&x| self.value(x).cols == first.cols && self.value(x).rows == first.rows)
        );
        self.push(
            name,
            Op::DepthAttention { depths: depths.to_vec(), w, eps },
            first.rows,
            first.cols,
        )
    }

    /// Gaussian top-k, see [`Op::GaussianTopK`].
    pub fn gaussian_top_k(&mut self, name: &'static str, x: ValueId, deviations: f32) -> ValueId {
        self.push_like(name, Op::GaussianTopK { x, deviations }, x)
    }

    /// The rows of the tokens for which the step returns logits.
    pub fn gather_outputs(&mut self, x: ValueId) -> ValueId {
        let cols = self.value(x).cols;
        self.push("outputs", Op::GatherOutputs { x }, Rows::Outputs, cols)
    }

    /// For each output row the columns of the `rows` rows up to it, see [`Op::ConcatRows`].
    pub fn concat_rows(&mut self, name: &'static str, x: ValueId, rows: usize) -> ValueId {
        let cols = self.columns_of_token_rows(x) * rows;
        self.push(name, Op::ConcatRows { x, rows }, Rows::Outputs, cols)
    }

    /// For each output row the mean of the `rows` rows up to it, see [`Op::MeanRows`].
    pub fn mean_rows(&mut self, name: &'static str, x: ValueId, rows: usize) -> ValueId {
        let cols = self.columns_of_token_rows(x);
        self.push(name, Op::MeanRows { x, rows }, Rows::Outputs, cols)
    }

    fn columns_of_token_rows(&self, x: ValueId) -> usize {
        let value = self.value(x);
        assert_eq!(value.rows, Rows::Tokens, "output rows are not reduced again");
        value.cols
    }

    /// Moves each linear operation directly after the first one with the same input, so that
    /// backends compute them together. LoRA operations separate linear operations that the graph
    /// recorded consecutively.
    pub fn group_linears_by_input(&mut self) {
        let mut first: BTreeMap<ValueId, usize> = BTreeMap::new();
        let mut groups: Vec<Vec<Node>> = Vec::with_capacity(self.nodes.len());
        for node in self.nodes.drain(..) {
            let known = match node.op {
                // A product reads nothing else, so it can come as early as any other reader of its
                // input.
                Op::Linear { x, .. } => first.get(&x).copied().or_else(|| {
                    first.insert(x, groups.len());
                    None
                }),
                _ => None,
            };
            match known {
                Some(group) => groups[group].push(node),
                None => groups.push(vec![node]),
            }
        }
        self.nodes = groups.into_iter().flatten().collect();
    }
}

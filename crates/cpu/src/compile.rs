//! Compiles a plan to a program: selects kernels, quantizes each input once for all products that
//! read it, and joins products with the same input.

mod moe;

use std::collections::HashMap;
use std::sync::Arc;

use puna_graph::{
    ArenaRange, AttentionSpec, BackendError, Capacity, Node, Op, Plan, Recurrence,
    RelativePositionBias, Rope, Rows, ValueId, Weight, WeightId,
};
use puna_kernels::{ActKind, Level, LinearKernel, STREAM_ROWS, TileForm, TileRows};

use self::moe::MoeBufferSizes;
use crate::memory::SharedBuffer;
use crate::ops::adapter_scale::{AddControlVector, ScaleAdapter};
use crate::ops::attention::{Attend, AttentionTasks, StoreKv};
use crate::ops::depth_attention::DepthAttention;
use crate::ops::dynamic_conv::DynamicConv;
use crate::ops::elementwise::{Add, Concat, GluRows, Map, MatchNorm, Mul, Unary};
use crate::ops::embed::{Embed, EmbedRows, GatherOutputs, InputRows, ReduceRows, Table};
use crate::ops::group_norm::GroupNorm;
use crate::ops::linear::{LinearGroup, Matrix};
use crate::ops::moe::MoeBuffers;
use crate::ops::ngram_embedding::NgramRows;
use crate::ops::norm::{NormKind, NormRows, Quantize, QuantizedInput, TiledInput};
use crate::ops::observe::{Observations, Observe, ObserveHeads};
use crate::ops::per_head_linear::PerHeadLinear;
use crate::ops::pooling::Pool;
use crate::ops::recurrent::{Conv, Delta, Retention, Scan, Wkv, Wkv7};
use crate::ops::rope::{Angles, RopeRows, RopeTable};
use crate::ops::streams::{ReadStreams, StreamSimilarityGate, StreamWeights, WriteStreams};
use crate::ops::strided_columns::StridedColumns;
use crate::ops::top_k_positions::{self, TopKPositions};
use crate::ops::unfold::Unfold;
use crate::step::Instruction;

/// Small weights as f32, with elements in the order in which their instruction reads them, shared
/// by the programs of all size classes.
#[derive(Default)]
pub struct Constants(HashMap<WeightId, Arc<[f32]>>);

impl Constants {
    /// Size of all constants in bytes.
    pub fn bytes(&self) -> usize {
        self.0.values().map(|numbers| 4 * numbers.len()).sum()
    }
}

/// A compiled plan.
pub struct Program {
    pub instructions: Vec<Box<dyn Instruction>>,
    /// Size of the arena in f32.
    pub arena: usize,
    /// Capacity of each quantization buffer, in values.
    pub q8: Vec<usize>,
    /// Capacity of each tile buffer, in values.
    pub tiles: Vec<usize>,
    pub result: ArenaRange,
    /// Extra outputs ([`puna_graph::Graph::extra_outputs`]).
    pub extra_outputs: Vec<ArenaRange>,
    /// Columns of each input of a step ([`Op::InputRows`]).
    pub input_cols: Vec<usize>,
    /// Largest number of rows up to an output row that become one row.
    pub rows_per_output: usize,
    /// Whether the program writes to the cache.
    pub stores: bool,
    /// Largest step.
    pub capacity: Capacity,
    /// Bytes of the program's own buffers.
    pub own_bytes: usize,
}

/// Compiles `plan` for `level`. With `deterministic`, products add in one order for any number of
/// rows. `observations` collects the sums of squares of the inputs of products.
pub fn compile(
    plan: &Plan,
    weights: &[Weight],
    ropes: &[Rope],
    level: &'static Level,
    deterministic: bool,
    observations: Option<&Arc<Observations>>,
    constants: &mut Constants,
) -> Result<Program, BackendError> {
    let mut c = Compiler {
        plan,
        weights,
        level,
        deterministic,
        observations,
        constants,
        ropes,
        out: Vec::new(),
        angles: HashMap::new(),
        input_buffers: HashMap::new(),
        q8: Vec::new(),
        tiles: Vec::new(),
        moe_buffers: HashMap::new(),
        own_bytes: 0,
    };
    let nodes = plan.graph.nodes();
    let mut at = 0;
    while at < nodes.len() {
        at += c.node(&nodes[at..])?;
    }
    let result = plan.graph.result().expect("a planned graph has a result");
    Ok(Program {
        instructions: c.out,
        arena: plan.arena,
        q8: c.q8.into_iter().map(|buffer| buffer.values).collect(),
        tiles: c.tiles.into_iter().map(|buffer| buffer.values).collect(),
        result: plan.arena_range(result),
        extra_outputs: plan
            .graph
            .extra_outputs()
            .iter()
            .map(|&value| plan.arena_range(value))
            .collect(),
        input_cols: nodes
            .iter()
            .filter(|node| matches!(node.op, Op::InputRows { .. }))
            .map(|node| plan.arena_range(node.out).cols)
            .collect(),
        rows_per_output: nodes.iter().map(|node| rows_per_output(&node.op)).max().unwrap_or(1),
        stores: nodes.iter().any(|node| node.op.stores()),
        capacity: plan.capacity,
        own_bytes: c.own_bytes,
    })
}

/// Number of rows up to an output row that an operation reads.
fn rows_per_output(op: &Op) -> usize {
    match *op {
        Op::ConcatRows { rows, .. } | Op::MeanRows { rows, .. } => rows,
        _ => 1,
    }
}

/// A quantization buffer while the program is made.
struct Buffer {
    values: usize,
    /// The node that reads it last.
    last: usize,
}

/// Takes a buffer that no node from `now` on reads, for `values` values that are read until `last`.
fn take(buffers: &mut Vec<Buffer>, values: usize, now: usize, last: usize) -> usize {
    let buffer = buffers.iter().position(|b| b.last < now).unwrap_or_else(|| {
        buffers.push(Buffer { values: 0, last: 0 });
        buffers.len() - 1
    });
    buffers[buffer] = Buffer { values: buffers[buffer].values.max(values), last };
    buffer
}

/// Quantized and tiled copies of a value, which products read.
#[derive(Clone, Copy)]
struct InputBuffers {
    q8: Option<QuantizedInput>,
    tiles: Option<TiledInput>,
}

struct Compiler<'a> {
    plan: &'a Plan,
    weights: &'a [Weight],
    ropes: &'a [Rope],
    level: &'static Level,
    deterministic: bool,
    observations: Option<&'a Arc<Observations>>,
    constants: &'a mut Constants,
    out: Vec<Box<dyn Instruction>>,
    angles: HashMap<u32, Angles>,
    /// Buffers of the values that are already quantized or tiled.
    input_buffers: HashMap<ValueId, InputBuffers>,
    q8: Vec<Buffer>,
    tiles: Vec<Buffer>,
    /// Buffers of mixture-of-experts layers, shared by all layers of the same shape.
    moe_buffers: HashMap<MoeBufferSizes, Arc<MoeBuffers>>,
    own_bytes: usize,
}

impl Compiler<'_> {
    fn arena_range(&self, id: ValueId) -> ArenaRange {
        self.plan.arena_range(id)
    }

    fn push(&mut self, instruction: impl Instruction + 'static) {
        self.out.push(Box::new(instruction));
    }

    /// Compiles the first node, possibly together with following nodes. Returns the number of
    /// compiled nodes.
    fn node(&mut self, nodes: &[Node]) -> Result<usize, BackendError> {
        let Node { op, out, .. } = &nodes[0];
        let out = self.arena_range(*out);
        match *op {
            Op::Embed { table, index } => {
                let table = self.table(table)?;
                self.push(Embed { table, index, out });
            }
            Op::EmbedRows { table, numbers } => {
                let (table, numbers) = (self.table(table)?, self.arena_range(numbers));
                self.push(EmbedRows { table, numbers, out });
            }
            Op::InputRows { input } => self.push(InputRows { input, out }),
            Op::Linear { x, .. } => return self.linears(nodes, x),
            Op::RmsNorm { x, w, eps, group } => {
                let (w, x) = (self.floats(w)?, self.arena_range(x));
                self.push(NormRows { x, out, w, b: Vec::new(), eps, group, kind: NormKind::Rms });
            }
            Op::LayerNorm { x, w, b, eps, group } => {
                let (w, b, x) = (self.floats(w)?, self.floats(b)?, self.arena_range(x));
                self.push(NormRows { x, out, w, b, eps, group, kind: NormKind::Layer });
            }
            Op::PerHeadLinear { w, x, heads } => self.per_head_linear(nodes, w, x, heads)?,
            Op::Rope { x, head_dim, start, rope } => {
                let (x, table) = (self.arena_range(x), &self.ropes[rope.0 as usize]);
                let (kind, pairs) = (table.kind, table.frequencies.len());
                let angles = self.angles(rope.0, pairs)?;
                self.push(RopeRows { x, out, head_dim, start, kind, pairs, angles });
            }
            Op::Attention { q, k, v, layer, selected, partial_input, spec } => {
                let [q, k, v] = [q, k, v].map(|id| self.arena_range(id));
                if op.stores() {
                    self.push(StoreKv { k, v, layer, spec });
                }
                let sinks = self.floats(spec.sinks)?;
                let tasks = AttentionTasks::default();
                let (slopes, position_bias) = (spec.slopes(), self.position_bias(&spec)?);
                let [selected, partial_input] =
                    [selected, partial_input].map(|id| id.map(|id| self.arena_range(id)));
                self.push(Attend {
                    q,
                    k,
                    v,
                    selected,
                    partial_input,
                    out,
                    layer,
                    spec,
                    sinks,
                    slopes,
                    position_bias,
                    tasks,
                });
            }
            Op::TopKPositions { q, k, weights, layer, spec } => {
                let [q, k] = [q, k].map(|id| self.arena_range(id));
                let weights = weights.map(|weights| self.arena_range(weights));
                self.push(StoreKv { k, v: k, layer, spec: spec.keys() });
                let tasks = top_k_positions::Tasks::default();
                self.push(TopKPositions { q, weights, out, layer, spec, tasks });
            }
            Op::StoreKv { k, v, layer, spec } => {
                let [k, v] = [k, v].map(|id| self.arena_range(id));
                self.push(StoreKv { k, v, layer, spec });
            }
            Op::Glu { kind, gate, up } => {
                let (gate, up) = (self.arena_range(gate), self.arena_range(up));
                self.push(GluRows { kind, gate, up, out });
            }
            Op::Mul { x, by } => {
                let (x, by) = (self.arena_range(x), self.arena_range(by));
                self.push(Mul { x, by, out });
            }
            Op::AttnTemperature { x, by } => self.map(Unary::AttnTemperature(by), x, out),
            Op::Activate { kind, x } => self.map(Unary::Activate(kind), x, out),
            Op::Scale { x, by } => self.map(Unary::Scale(by), x, out),
            Op::Softcap { x, cap } => self.map(Unary::Softcap(cap), x, out),
            Op::ScaleAdapter { x, adapter } => {
                let x = self.arena_range(x);
                self.push(ScaleAdapter { x, out, adapter });
            }
            Op::AddControlVector { x, control_vector } => {
                let (x, vector) = (self.arena_range(x), self.floats(Some(control_vector.vector))?);
                self.push(AddControlVector { x, out, vector, adapter: control_vector.adapter });
            }
            Op::GaussianTopK { x, deviations } => self.map(Unary::GaussianTopK(deviations), x, out),
            Op::MatchNorm { x, like } => {
                let (x, like) = (self.arena_range(x), self.arena_range(like));
                self.push(MatchNorm { x, like, out });
            }
            Op::DepthAttention { ref depths, w, eps } => {
                let depths = depths.iter().map(|&id| self.arena_range(id)).collect();
                let w = self.floats(Some(w))?;
                self.push(DepthAttention { depths, out, w, eps });
            }
            Op::Add { a, b } => {
                let (a, b) = (self.arena_range(a), self.arena_range(b));
                self.push(Add { a, b, out });
            }
            Op::Concat { a, b } => {
                let (a, b) = (self.arena_range(a), self.arena_range(b));
                self.push(Concat { a, b, out });
            }
            Op::StridedColumns { x, start, width, period } => {
                let x = self.arena_range(x);
                self.push(StridedColumns { x, out, start, width, period });
            }
            Op::Unfold { x, taps } => {
                let x = self.arena_range(x);
                self.push(Unfold { x, out, taps });
            }
            Op::GroupNorm { x, w, b, eps, groups } => {
                let (x, w, b) = (self.arena_range(x), self.floats(Some(w))?, self.floats(Some(b))?);
                self.push(GroupNorm { x, out, w, b, eps, groups });
            }
            Op::DynamicConv { x, dynamic_taps, fixed_taps, .. } => {
                let (x, dynamic_taps, fixed_taps) = (
                    self.arena_range(x),
                    self.arena_range(dynamic_taps),
                    self.floats(Some(fixed_taps))?,
                );
                self.push(DynamicConv { x, dynamic_taps, out, fixed_taps });
            }
            Op::StreamWeights { x, ref spec } => {
                let (x, spec) = (self.arena_range(x), (**spec).clone());
                self.push(StreamWeights { x, out, spec });
            }
            Op::ReadStreams { streams, weights } => {
                let (streams, weights) = (self.arena_range(streams), self.arena_range(weights));
                self.push(ReadStreams { streams, weights, out });
            }
            Op::WriteStreams { streams, x, weights, mix } => {
                let [streams, x, weights] = [streams, x, weights].map(|id| self.arena_range(id));
                let mix = mix.map(|mix| self.arena_range(mix));
                self.push(WriteStreams { streams, x, weights, mix, out });
            }
            Op::StreamSimilarityGate { a, b, .. } => {
                let (a, b) = (self.arena_range(a), self.arena_range(b));
                self.push(StreamSimilarityGate { a, b, out });
            }
            Op::Recur(ref recurrence) => self.recur(recurrence, out)?,
            Op::ConcatRows { x, rows } | Op::MeanRows { x, rows } => {
                let (x, is_mean) = (self.arena_range(x), matches!(op, Op::MeanRows { .. }));
                self.push(ReduceRows { x, out, rows, is_mean });
            }
            Op::GatherOutputs { x } => {
                let x = self.arena_range(x);
                self.push(GatherOutputs { x, out });
            }
            Op::Moe { .. } => self.moe(op, out)?,
        }
        Ok(1)
    }

    fn recur(&mut self, recurrence: &Recurrence, out: ArenaRange) -> Result<(), BackendError> {
        match *recurrence {
            Recurrence::Conv { x, spec } => {
                let (x, bias) = (self.arena_range(x), self.floats(spec.bias)?);
                let w = match spec.w {
                    Some(w) => self.constant(w, |by_column| tap_by_tap(&by_column, spec.taps))?,
                    None => Arc::default(),
                };
                self.push(Conv { x, out, spec, w, bias });
            }
            Recurrence::Scan { x, dt, b, c, spec } => {
                let [x, dt, b, c] = [x, dt, b, c].map(|id| self.arena_range(id));
                let a = self.constant(spec.a, |a| Scan::ordered(&spec, a))?;
                let (d, dt_bias) = (self.floats(Some(spec.d))?, self.floats(spec.dt_bias)?);
                self.push(Scan { x, dt, b, c, out, spec, a, d, dt_bias });
            }
            Recurrence::Delta { q, k, v, decay, beta, spec } => {
                let [q, k, v, decay, beta] = [q, k, v, decay, beta].map(|id| self.arena_range(id));
                let (a, dt_bias) = (self.floats(Some(spec.a))?, self.floats(Some(spec.dt_bias))?);
                self.push(Delta { q, k, v, decay, beta, out, spec, a, dt_bias });
            }
            Recurrence::Wkv { r, k, v, decay, spec } => {
                let [r, k, v, decay] = [r, k, v, decay].map(|id| self.arena_range(id));
                let bonus = self.floats(spec.bonus)?;
                self.push(Wkv { r, k, v, decay, out, spec, bonus });
            }
            Recurrence::Wkv7 { r, k, v, decay, removal_key, iclr, spec } => {
                let [r, k, v, decay, removal_key, iclr] =
                    [r, k, v, decay, removal_key, iclr].map(|id| self.arena_range(id));
                let bonus = self.floats(Some(spec.bonus))?;
                self.push(Wkv7 { r, k, v, decay, removal_key, iclr, out, spec, bonus });
            }
            Recurrence::Retention { q, k, v, spec } => {
                let [q, k, v] = [q, k, v].map(|id| self.arena_range(id));
                self.push(Retention { q, k, v, out, spec });
            }
            Recurrence::Pool { x, gate, spec } => {
                let (x, gate) = (self.arena_range(x), gate.map(|gate| self.arena_range(gate)));
                let bias = match spec.bias {
                    Some(bias) => self.constant(bias, |bias| bias)?,
                    None => Arc::default(),
                };
                self.push(Pool { x, gate, out, spec, bias });
            }
            Recurrence::NgramRows { ref spec } => {
                self.push(NgramRows { out, spec: Arc::clone(spec) })
            }
        }
        Ok(())
    }

    fn map(&mut self, f: Unary, x: ValueId, out: ArenaRange) {
        let x = self.arena_range(x);
        self.push(Map { f, x, out });
    }

    fn table(&self, table: WeightId) -> Result<Table, BackendError> {
        let weight = &self.weights[table.index()];
        Table::of(table.index(), weight).ok_or_else(|| unsupported(weight))
    }

    /// Products that follow each other and read the same value become one instruction.
    ///
    /// Nothing else lies between them, so writing all results at the first one's turn overwrites no
    /// live value.
    fn linears(&mut self, nodes: &[Node], input: ValueId) -> Result<usize, BackendError> {
        let reads = |node: &Node| matches!(node.op, Op::Linear { x, .. } if x == input);
        let count = nodes.iter().take_while(|node| reads(node)).count();
        // Indexed by whether kernels take 8 bits, and whether they take tiles.
        let mut groups: [[Vec<Matrix>; 2]; 2] = Default::default();
        let x = self.arena_range(input);
        for node in &nodes[..count] {
            let Op::Linear { w, scale, bias, .. } = node.op else { continue };
            let matrix = self.matrix(w, scale, bias, self.arena_range(node.out))?;
            let kernel = &matrix.kernel;
            groups[usize::from(kernel.acts == ActKind::Q8)][usize::from(kernel.tiles.is_some())]
                .push(matrix);
        }
        assert!(x.is_contiguous(), "products read whole values");
        if let Some(into) = self.observations {
            let weights = groups.iter().flatten().flatten().map(|matrix| matrix.w).collect();
            self.push(Observe { x, weights, into: Arc::clone(into) });
        }
        let buffers = self.quantize_input(input)?;
        for (quantized, groups) in groups.into_iter().enumerate() {
            for (tiled, matrices) in
                groups.into_iter().enumerate().filter(|(_, group)| !group.is_empty())
            {
                let q8 = buffers.q8.filter(|_| quantized == 1).map(|q8| q8.buffer);
                let tiles = buffers.tiles.filter(|_| tiled == 1);
                self.push(LinearGroup { matrices, x, k: x.cols, q8, tiles });
            }
        }
        Ok(count)
    }

    fn per_head_linear(
        &mut self,
        nodes: &[Node],
        w: WeightId,
        x: ValueId,
        heads: usize,
    ) -> Result<(), BackendError> {
        let (x, out) = (self.arena_range(x), self.arena_range(nodes[0].out));
        let mut matrix = self.experts(w, None)?;
        if self.weights[w.index()].shape.len() < 3 {
            matrix.rows_per_expert = 0;
        }
        if let Some(into) = self.observations {
            self.push(ObserveHeads {
                x,
                heads,
                k: matrix.k,
                weight: matrix.w,
                into: Arc::clone(into),
            });
        }
        let now = self.plan.graph.nodes().len() - nodes.len();
        let values = self.plan.capacity.rows(x.rows) * heads * matrix.k;
        let q8 = (matrix.kernel.acts == ActKind::Q8).then(|| take(&mut self.q8, values, now, now));
        self.push(PerHeadLinear { matrix, heads, x, out, q8 });
        Ok(())
    }

    fn kernel(&self, weight: &Weight) -> Result<LinearKernel, BackendError> {
        let kernel = (self.level.linear)(weight.ty).ok_or_else(|| unsupported(weight))?;
        Ok(if self.deterministic { kernel.deterministic() } else { kernel })
    }

    fn matrix(
        &self,
        w: WeightId,
        scale: f32,
        bias: Option<WeightId>,
        out: ArenaRange,
    ) -> Result<Matrix, BackendError> {
        let weight = &self.weights[w.index()];
        let row_bytes = weight.ty.row_bytes(weight.shape[0]).ok_or_else(|| unsupported(weight))?;
        let (kernel, n) = (self.kernel(weight)?, weight.shape.get(1).copied().unwrap_or(1));
        let bias = self.floats(bias)?;
        Ok(Matrix { w: w.index(), ty: weight.ty, kernel, n, row_bytes, scale, bias, out })
    }

    /// A small tensor as f32; empty for `None`.
    fn floats(&self, id: Option<WeightId>) -> Result<Vec<f32>, BackendError> {
        let Some(id) = id else { return Ok(Vec::new()) };
        let weight = &self.weights[id.index()];
        let mut floats = vec![0.0; weight.shape.iter().product()];
        let done = puna_quant::dequantize(weight.ty, weight.data.bytes(), &mut floats);
        done.map_err(|_| unsupported(weight))?;
        Ok(floats)
    }

    /// A tensor as f32 in another order, converted once.
    fn constant(
        &mut self,
        id: WeightId,
        order: impl FnOnce(Vec<f32>) -> Vec<f32>,
    ) -> Result<Arc<[f32]>, BackendError> {
        if let Some(known) = self.constants.0.get(&id) {
            return Ok(Arc::clone(known));
        }
        let made: Arc<[f32]> = order(self.floats(Some(id))?).into();
        self.constants.0.insert(id, Arc::clone(&made));
        Ok(made)
    }

    /// Relative position biases of each query head, from the farthest key before the query to the
    /// farthest behind it.
    fn position_bias(&self, spec: &AttentionSpec) -> Result<Vec<f32>, BackendError> {
        let Some(position_bias) = spec.position_bias else { return Ok(Vec::new()) };
        let table = &self.floats(Some(position_bias.table))?;
        let far = RelativePositionBias::FAR as i64;
        let of_head = |head| {
            (-far..=far).map(move |behind| table[position_bias.bucket(behind) * spec.heads + head])
        };
        Ok((0..spec.heads).flat_map(of_head).collect())
    }

    /// Adds the quantization of `value` to the program before its first reader, in the formats that
    /// its readers take.
    fn quantize_input(&mut self, value: ValueId) -> Result<InputBuffers, BackendError> {
        if let Some(&buffers) = self.input_buffers.get(&value) {
            return Ok(buffers);
        }
        let x = self.arena_range(value);
        let rows = self.plan.capacity.rows(x.rows);
        let (mut few, mut always, mut form) = (false, false, None::<TileForm>);
        let (mut first, mut last) = (usize::MAX, 0);
        for (at, node) in self.plan.graph.nodes().iter().enumerate() {
            if !node.op.inputs().any(|input| input == value) {
                continue;
            }
            (first, last) = (first.min(at), at);
            let (kernel, alone) = match &node.op {
                Op::Linear { w, .. } => (self.kernel(&self.weights[w.index()])?, false),
                Op::Moe { x, spec, .. } if *x == value => {
                    (self.kernel(&self.weights[spec.gate.index()])?, true)
                }
                _ => continue,
            };
            // An expert has few rows, so it takes the input of the kernel for few rows.
            let tiles = kernel.tiles.filter(|_| !alone && rows > STREAM_ROWS);
            if kernel.acts == ActKind::Q8 {
                few = true;
                always |= tiles.is_none();
            }
            form = TileForm::common(form, tiles);
        }
        let q8 = few.then(|| {
            let values = if always { rows } else { rows.min(STREAM_ROWS) } * x.cols;
            QuantizedInput { buffer: take(&mut self.q8, values, first, last), always }
        });
        let tiles = form.map(|form| {
            let values = form.parts * TileRows::part(rows, x.cols);
            TiledInput { buffer: take(&mut self.tiles, values, first, last), form }
        });
        let buffers = InputBuffers { q8, tiles };
        if q8.is_some() || tiles.is_some() {
            self.push(Quantize { x, q8, tiles });
        }
        self.input_buffers.insert(value, buffers);
        Ok(buffers)
    }

    /// The table of angles of a rotary embedding, filled at its first use.
    fn angles(&mut self, rope: u32, pairs: usize) -> Result<Angles, BackendError> {
        if let Some(angles) = self.angles.get(&rope) {
            return Ok(Arc::clone(angles));
        }
        let len = self.plan.capacity.rows(Rows::Tokens) * 2 * pairs;
        self.own_bytes += len * 4;
        let angles: Angles = Arc::new(SharedBuffer::zeroed(len, "the rotary position angles")?);
        self.angles.insert(rope, Arc::clone(&angles));
        self.push(RopeTable { rope: rope as usize, pairs, angles: Arc::clone(&angles) });
        Ok(angles)
    }
}

/// Transposes the weights of a convolution, which a file stores column by column.
fn tap_by_tap(w: &[f32], taps: usize) -> Vec<f32> {
    (0..taps).flat_map(|tap| w.iter().skip(tap).step_by(taps)).copied().collect()
}

fn unsupported(weight: &Weight) -> BackendError {
    BackendError::UnsupportedType { name: weight.name.clone(), ty: weight.ty, backend: "cpu" }
}

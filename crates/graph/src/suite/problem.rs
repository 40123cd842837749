//! A small model around one operation: its graph, weights, cache and steps, with the results that a
//! reference computes.

use std::ops::Range;
use std::sync::Arc;

use puna_quant::TensorType;

use super::compare::Expected;
use super::random::Random;
use super::schedule::{Action, Schedule, Span};
use crate::adapter_scales::AdapterScales;
use crate::backend::{AXES, CacheSpec, Segment, SegmentWindowPages, StateSpec, StepInput, Weight};
use crate::graph::Graph;
use crate::kv::{CacheLayer, KvType};
use crate::values::{Index, Rope, RopeId, Rows, ValueId, WeightId};

/// Columns before and behind an input with [`Placement::Slice`].
const MARGIN: usize = 16;

/// Where an input lies in the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    /// In memory of its own, which the result may take over.
    Whole,
    /// In some columns of a wider value.
    Slice,
    /// In memory of its own, which keeps its values until the end of the step.
    Kept,
}

impl Placement {
    /// Every placement.
    pub const ALL: [Placement; 3] = [Placement::Whole, Placement::Slice, Placement::Kept];

    /// Name in the name of a case.
    pub fn name(self) -> &'static str {
        match self {
            Placement::Whole => "whole",
            Placement::Slice => "slice",
            Placement::Kept => "kept",
        }
    }
}

/// Rows of `cols` values.
#[derive(Debug, Clone)]
pub(super) struct Matrix {
    /// Number of columns.
    pub cols: usize,
    /// The values, row after row.
    pub values: Vec<f32>,
}

impl Matrix {
    /// The row with this number.
    pub fn row(&self, number: usize) -> &[f32] {
        &self.values[number * self.cols..][..self.cols]
    }
}

/// An input value of the graph.
#[derive(Debug, Clone)]
pub(super) struct Input {
    /// The value.
    pub id: ValueId,
    /// Its row for each token id.
    pub rows: Matrix,
}

impl Input {
    /// The row of a token id.
    pub fn row(&self, token: usize) -> &[f32] {
        self.rows.row(token)
    }
}

/// A weight with the values that its bytes decode to.
#[derive(Debug, Clone)]
pub(super) struct Tensor {
    /// The weight.
    pub id: WeightId,
    /// Its values, fastest dimension first.
    pub values: Vec<f32>,
}

/// A case while it is built.
pub(super) struct Problem {
    /// The graph. Inputs and the operations of the case are its nodes.
    pub graph: Graph,
    /// The steps.
    pub schedule: Schedule,
    /// Source of inputs and weights.
    pub random: Random,
    /// Storage of keys and of values.
    pub kv_types: [KvType; 2],
    /// Tokens per page of the cache.
    pub page_tokens: usize,
    /// Adapter scales of each sequence; empty if all scales are 1.
    pub adapter_scales: Vec<AdapterScales>,
    /// Distance between output rows, in rows: 1 returns the logits of every row.
    pub output_stride: usize,
    /// Token id that the steps give as [`StepInput::NO_TOKEN`].
    pub no_token: Option<usize>,
    weights: Vec<Weight>,
    ropes: Vec<Rope>,
    layers: Vec<CacheLayer>,
    states: Vec<usize>,
    inputs: Vec<Matrix>,
    /// Positions on the axes, from the position in the sequence.
    pub axis_positions: Option<fn(u32) -> [u32; AXES]>,
    expected: Vec<Expected>,
    kept: Vec<Matrix>,
}

/// A finished case.
pub(super) struct Model {
    /// The graph with its result.
    pub graph: Graph,
    /// Weights in the order of their ids.
    pub weights: Vec<Weight>,
    /// Rotary tables in the order of their ids.
    pub ropes: Vec<Rope>,
    /// The cache, if an operation uses one.
    pub cache: Option<CacheSpec>,
    /// The recurrent states, of which there may be none.
    pub states: StateSpec,
    /// What the backend does, in order.
    pub commands: Vec<Command>,
}

/// One call of the backend.
pub(super) enum Command {
    /// A step with its result and its extra outputs.
    Run { input: Box<StepInput>, expected: Expected, extra: Vec<Expected> },
    /// Copies a page.
    CopyPage { from: u32, to: u32 },
    /// Copies a window page.
    CopyWindowPage { from: u32, to: u32 },
    /// Copies a state slot.
    CopyState { from: u32, to: u32 },
}

impl Problem {
    /// A case of these steps without operations.
    pub fn new(schedule: Schedule) -> Self {
        Self {
            graph: Graph::new(),
            schedule,
            random: Random::new(1),
            kv_types: [KvType::F32; 2],
            page_tokens: 64,
            adapter_scales: Vec::new(),
            output_stride: 1,
            no_token: None,
            weights: Vec::new(),
            ropes: Vec::new(),
            layers: Vec::new(),
            states: Vec::new(),
            inputs: Vec::new(),
            axis_positions: None,
            expected: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// A tensor of type `ty` that holds `values` as exactly as its type allows.
    pub fn tensor(&mut self, ty: TensorType, shape: &[usize], values: &[f32]) -> Tensor {
        let row_bytes = ty.row_bytes(shape[0]).expect("whole blocks");
        let mut data = vec![0; row_bytes * (values.len() / shape[0])];
        let importance = vec![1.0; shape[0]];
        let importance = puna_quant::requires_importance(ty).then_some(&importance[..]);
        puna_quant::quantize(ty, values, shape[0], importance, &mut data).expect("finite values");
        let mut decoded = vec![0.0; values.len()];
        puna_quant::dequantize(ty, &data, &mut decoded).expect("whole blocks");
        Tensor { id: self.push_weight(ty, shape, data), values: decoded }
    }

    /// A tensor of random values from -1 to 1.
    pub fn random_tensor(&mut self, ty: TensorType, shape: &[usize]) -> Tensor {
        let values = self.random.numbers(shape.iter().product());
        self.tensor(ty, shape, &values)
    }

    /// An F32 tensor of random values from -1 to 1.
    pub fn floats(&mut self, shape: &[usize]) -> Tensor {
        self.random_tensor(TensorType::F32, shape)
    }

    /// A tensor of 32-bit integers.
    pub fn integers(&mut self, shape: &[usize], values: &[u32]) -> WeightId {
        let data = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.push_weight(TensorType::I32, shape, data)
    }

    fn push_weight(&mut self, ty: TensorType, shape: &[usize], data: Vec<u8>) -> WeightId {
        let name = format!("weight {}", self.weights.len());
        self.weights.push(Weight { name, ty, shape: shape.to_vec(), data: Arc::new(data) });
        WeightId(self.weights.len() as u32 - 1)
    }

    /// A rotary table.
    pub fn rope(&mut self, rope: Rope) -> RopeId {
        self.ropes.push(rope);
        RopeId(self.ropes.len() as u32 - 1)
    }

    /// Index of a new layer of the cache.
    pub fn cache_layer(&mut self, layer: CacheLayer) -> usize {
        self.layers.push(layer);
        self.layers.len() - 1
    }

    /// Index of a new recurrent state of `len` values.
    pub fn state(&mut self, len: usize) -> usize {
        self.states.push(len);
        self.states.len() - 1
    }

    /// An input of random values from -1 to 1.
    pub fn input(&mut self, cols: usize) -> Input {
        self.input_in(Placement::Whole, cols, |x| x)
    }

    /// An input of random values from -`bound` to `bound`.
    pub fn wide_input(&mut self, cols: usize, bound: f32) -> Input {
        self.input_in(Placement::Whole, cols, |x| bound * x)
    }

    /// An input whose values are a function of random values from -1 to 1.
    pub fn input_in(
        &mut self,
        placement: Placement,
        cols: usize,
        value: impl Fn(f32) -> f32,
    ) -> Input {
        let margin = if placement == Placement::Slice { MARGIN } else { 0 };
        let (rows, width) = (self.schedule.vocabulary(), cols + 2 * margin);
        let values: Vec<f32> = self.random.numbers(rows * width).into_iter().map(value).collect();
        let wide = self.input_of(&Matrix { cols: width, values });
        match placement {
            Placement::Whole => wide,
            Placement::Kept => {
                self.graph.add_extra_output(wide.id);
                self.kept.push(wide.rows.clone());
                wide
            }
            Placement::Slice => {
                let row = |token| wide.row(token)[margin..][..cols].to_vec();
                let values = (0..rows).flat_map(row).collect();
                let id = self.graph.slice(wide.id, margin, cols);
                Input { id, rows: Matrix { cols, values } }
            }
        }
    }

    /// An input with these rows, one for each token id.
    pub fn input_of(&mut self, rows: &Matrix) -> Input {
        let shape = [rows.cols, rows.values.len() / rows.cols];
        // The values are copied as bits: they can be numbers of rows, which are no floats.
        let data = rows.values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let table = self.push_weight(TensorType::F32, &shape, data);
        let id = self.graph.embed("input", table, rows.cols, Index::Token);
        Input { id, rows: rows.clone() }
    }

    /// The rows that the step brings with it.
    pub fn input_rows(&mut self, cols: usize) -> Input {
        let values = self.random.numbers(self.schedule.vocabulary() * cols);
        let rows = Matrix { cols, values };
        self.inputs.push(rows.clone());
        Input { id: self.graph.input_rows("input_rows", cols), rows }
    }

    /// Sets the result, and its rows as a function of the token id.
    pub fn expect_rows(&mut self, out: ValueId, reference: impl Fn(usize) -> Vec<f64>) {
        self.expect(out, |span| span.rows().iter().map(|&token| reference(token)).collect());
    }

    /// Sets the result, and its rows as a function of the rows of a sequence in a step.
    pub fn expect(&mut self, out: ValueId, reference: impl Fn(&Span) -> Vec<Vec<f64>>) {
        let rows = self.rows_of_steps(out, reference);
        self.expected = rows.into_iter().map(Expected::Values).collect();
    }

    /// Sets the result, and the bits of its rows as a function of the rows of a sequence in a step.
    pub fn expect_bits(
        &mut self,
        out: ValueId,
        reference: impl Fn(&Span) -> Vec<Vec<Option<u32>>>,
    ) {
        let rows = self.rows_of_steps(out, reference);
        self.expected = rows.into_iter().map(Expected::Bits).collect();
    }

    fn rows_of_steps<T: Clone>(
        &mut self,
        out: ValueId,
        reference: impl Fn(&Span) -> Vec<Vec<T>>,
    ) -> Vec<Vec<T>> {
        self.graph.set_result(out);
        let (value, stride) = (self.graph.value(out), self.output_stride);
        let rows = move |spans: Vec<Span>| {
            let rows: Vec<Vec<T>> = spans.iter().flat_map(&reference).collect();
            assert!(
                rows.iter().all(|row| row.len() == value.cols),
                "the reference has all columns"
            );
            match value.rows {
                Rows::Tokens => rows.concat(),
                Rows::Outputs => {
                    output_rows(rows.len(), stride).flat_map(|i| rows[i].clone()).collect()
                }
            }
        };
        let steps = self.schedule.actions().into_iter().filter_map(|action| match action {
            Action::Step(spans) => Some(rows(spans)),
            Action::Fork { .. } => None,
        });
        steps.collect()
    }

    /// The finished case.
    pub fn finish(mut self) -> Model {
        let mut expected = std::mem::take(&mut self.expected).into_iter();
        let mut commands = Vec::new();
        for action in self.schedule.actions() {
            match action {
                Action::Step(spans) => {
                    let expected = expected.next().expect("each step has a reference");
                    let extra = self.kept.iter().map(|rows| kept_rows(rows, &spans)).collect();
                    commands.push(Command::Run {
                        input: Box::new(self.step(&spans)),
                        expected,
                        extra,
                    });
                }
                Action::Fork { from, to, tokens } => commands.extend(self.copies(from, to, tokens)),
            }
        }
        let (cache, states) = (self.cache(), self.state_spec());
        let Self { graph, weights, ropes, .. } = self;
        Model { graph, weights, ropes, cache, states, commands }
    }

    fn cache(&self) -> Option<CacheSpec> {
        let pages = self.pages_per_sequence() * self.schedule.sequences();
        let [key_type, value_type] = self.kv_types;
        let cache = CacheSpec {
            layers: self.layers.clone(),
            key_type,
            value_type,
            page_tokens: self.page_tokens,
            pages,
            window_pages: if self.has_windows() { pages } else { 0 },
        };
        (!self.layers.is_empty()).then_some(cache)
    }

    fn state_spec(&self) -> StateSpec {
        StateSpec { states: self.states.clone(), slots: self.schedule.sequences() }
    }

    fn has_windows(&self) -> bool {
        self.layers.iter().any(CacheLayer::has_window)
    }

    fn pages_per_sequence(&self) -> usize {
        self.schedule.longest().div_ceil(self.page_tokens)
    }

    /// Page number `number` of a sequence: pages of sequences alternate, the last page first.
    fn page(&self, sequence: usize, number: usize) -> u32 {
        let sequences = self.schedule.sequences();
        (self.pages_per_sequence() * sequences - 1 - number * sequences - sequence) as u32
    }

    /// Slot of the states of a sequence.
    fn slot(&self, sequence: usize) -> u32 {
        (self.schedule.sequences() - 1 - sequence) as u32
    }

    /// What copies the pages and states of the first `tokens` tokens of a sequence.
    fn copies(&self, from: usize, to: usize, tokens: usize) -> Vec<Command> {
        let pages = (0..tokens.div_ceil(self.page_tokens))
            .map(|number| (self.page(from, number), self.page(to, number)));
        let mut commands = Vec::new();
        if self.layers.iter().any(|layer| !layer.has_window()) {
            commands.extend(pages.clone().map(|(from, to)| Command::CopyPage { from, to }));
        }
        if self.has_windows() {
            commands.extend(pages.map(|(from, to)| Command::CopyWindowPage { from, to }));
        }
        if !self.states.is_empty() {
            commands.push(Command::CopyState { from: self.slot(from), to: self.slot(to) });
        }
        commands
    }

    fn step(&self, spans: &[Span]) -> StepInput {
        let mut input = StepInput::default();
        for span in spans {
            let first_row = input.tokens.len();
            input.segments.push(self.segment(span, first_row));
            let id = |&token: &usize| match self.no_token {
                Some(no_token) if token == no_token => StepInput::NO_TOKEN,
                _ => token as u32,
            };
            input.tokens.extend(span.rows().iter().map(id));
            input.positions.extend(span.indices().map(|i| (span.first_position + i) as u32));
            if let Some(axis_positions) = self.axis_positions {
                let positions = span.indices().map(|i| (span.first_position + i) as u32);
                input.axis_positions.extend(positions.map(axis_positions));
            }
            input.inputs.resize_with(self.inputs.len(), Vec::new);
            for (rows, input) in self.inputs.iter().zip(&mut input.inputs) {
                input.extend(span.rows().iter().flat_map(|&token| rows.row(token)));
            }
            if let Some(scales) = self.adapter_scales.get(span.sequence) {
                input.adapter_scales.push(scales.clone());
            }
        }
        input.outputs =
            output_rows(input.tokens.len(), self.output_stride).map(|row| row as u32).collect();
        input
    }

    fn segment(&self, span: &Span, first_row: usize) -> Segment {
        let state = self.slot(span.sequence);
        let (rows, cached_tokens) = (span.rows().len(), span.cached_tokens);
        if self.layers.is_empty() {
            let row_windows = span.row_windows.clone();
            let rest = Segment::default();
            return Segment { first_row, rows, cached_tokens, state, row_windows, ..rest };
        }
        let count = span.tokens.len().div_ceil(self.page_tokens);
        let page = |number| self.page(span.sequence, number);
        let windows = self.layers.iter().filter(|layer| layer.has_window());
        let first =
            windows.map(|layer| layer.mask.first_seen(cached_tokens) / self.page_tokens).min();
        let window_pages = first
            .map(|first| SegmentWindowPages { first, pages: (first..count).map(page).collect() });
        let is_in_step = |media: &Range<usize>| {
            !media.is_empty() && span.cached_tokens <= media.start && media.end <= span.tokens.len()
        };
        let media_span = Some(span.media_span.clone()).filter(is_in_step);
        Segment {
            first_row,
            rows,
            cached_tokens,
            pages: (0..count).map(page).collect(),
            window_pages: window_pages.unwrap_or_default(),
            media_spans: media_span.into_iter().collect(),
            row_windows: span.row_windows.clone(),
            encoder_tokens: span.encoder_tokens,
            state,
        }
    }
}

/// Rows whose logits a step of `rows` rows returns.
fn output_rows(rows: usize, stride: usize) -> impl Iterator<Item = usize> {
    (stride - 1..rows).step_by(stride)
}

fn kept_rows(rows: &Matrix, spans: &[Span]) -> Expected {
    let tokens = spans.iter().flat_map(Span::rows);
    Expected::Values(tokens.flat_map(|&t| rows.row(t)).map(|&x| f64::from(x)).collect())
}

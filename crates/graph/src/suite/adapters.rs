//! Adapters: adapter scales, control vectors, and low-rank updates of matrices, tables and heads.

use std::collections::BTreeMap;
use std::sync::Arc;

use puna_quant::TensorType;

use super::elementwise::{doubles, shapes};
use super::matmul::{product, product_tolerance, type_name};
use super::problem::{Placement, Problem, Tensor};
use super::schedule::{Schedule, Span};
use super::{Case, Tolerance};
use crate::adapter_scales::AdapterScales;
use crate::adapter_updates::{AdapterUpdates, ControlVector, LowRank};
use crate::graph::{Graph, Linear, PerHeadLinear};
use crate::ops::Op;
use crate::values::{Index, WeightId};

/// Scales of two adapters in each of two sequences.
const SCALES: [[f32; 2]; 2] = [[0.5, -2.0], [1.0, 0.0]];
/// Rank of low-rank updates.
const RANK: usize = 8;

/// Adapter scales, control vectors and low-rank updates.
pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> =
        shapes().map(|(shape, placement)| scale_adapter(shape, placement)).collect();
    cases.extend([1, 3].map(scale_of_outputs));
    cases.extend([(1, 1), (9, 1), (9, 4)].map(steer));
    for ty in [TensorType::F32, TensorType::F16, TensorType::Q4_0, TensorType::Q8_0] {
        cases.extend([1, 9, 40].map(|rows| low_rank_linear(ty, rows)));
        cases.extend([low_rank_embed(ty, 9), low_rank_heads(ty, 9)]);
    }
    cases
}

/// A case of these steps, with [`SCALES`].
pub(super) fn scaled_problem(rows: usize) -> Problem {
    let mut p = Problem::new(Schedule::one_step(rows));
    let sequences = p.schedule.sequences();
    p.adapter_scales =
        SCALES[..sequences].iter().map(|scales| AdapterScales::new(scales)).collect();
    p
}

/// The scale of an adapter in the sequence of these rows.
pub(super) fn scale_of(span: &Span, adapter: usize) -> f64 {
    f64::from(SCALES[span.sequence][adapter])
}

fn scale_adapter((rows, cols): (usize, usize), placement: Placement) -> Case {
    let name = format!("scale_adapter rows={rows} width={cols} input={}", placement.name());
    Case::new(name, Tolerance::F32, move || {
        let mut p = scaled_problem(rows);
        let x = p.input_in(placement, cols, |x| x);
        let out = p.graph.push_like("out", Op::ScaleAdapter { x: x.id, adapter: 1 }, x.id);
        p.expect(out, |span| {
            let row = |&token: &usize| {
                doubles(x.row(token)).iter().map(|x| scale_of(span, 1) * x).collect()
            };
            span.rows().iter().map(row).collect()
        });
        p
    })
}

/// Scales of rows whose logits are returned.
fn scale_of_outputs(stride: usize) -> Case {
    let name = format!("scale_adapter rows=10 width=40 value=outputs stride={stride}");
    Case::new(name, Tolerance::F32, move || {
        let mut p = scaled_problem(10);
        p.output_stride = stride;
        let x = p.input(40);
        let gathered = p.graph.gather_outputs(x.id);
        let op = Op::ScaleAdapter { x: gathered, adapter: 0 };
        let out = p.graph.push_like("out", op, gathered);
        p.expect(out, |span| {
            let row = |&token: &usize| {
                doubles(x.row(token)).iter().map(|x| scale_of(span, 0) * x).collect()
            };
            span.rows().iter().map(row).collect()
        });
        p
    })
}

/// Two control vectors behind a layer, for each of some residual streams.
fn steer((rows, streams): (usize, usize)) -> Case {
    let (layer, features) = (3, 70);
    let name = format!("steer rows={rows} width={features} streams={streams}");
    Case::new(name, Tolerance::F32, move || {
        let mut p = scaled_problem(rows);
        let vectors = [p.floats(&[features]), p.floats(&[features])];
        let control_vector =
            |adapter: usize| ControlVector { vector: vectors[adapter].id, adapter };
        let control_vectors = BTreeMap::from([(layer, vec![control_vector(0), control_vector(1)])]);
        p.graph = Graph::with_adapter_updates(Arc::new(AdapterUpdates {
            control_vectors,
            ..AdapterUpdates::default()
        }));
        let x = p.input(streams * features);
        let out = p.graph.add_control_vectors(layer, x.id);
        p.expect(out, |span| {
            let value = |(i, x): (usize, f64)| {
                let vector = |adapter: usize| f64::from(vectors[adapter].values[i % features]);
                x + scale_of(span, 0) * vector(0) + scale_of(span, 1) * vector(1)
            };
            let row =
                |&token: &usize| doubles(x.row(token)).into_iter().enumerate().map(value).collect();
            span.rows().iter().map(row).collect()
        });
        p
    })
}

/// A graph that applies low-rank updates to weights.
pub(super) fn updated_graph(products: impl IntoIterator<Item = (WeightId, Vec<LowRank>)>) -> Graph {
    let products = products.into_iter().collect();
    Graph::with_adapter_updates(Arc::new(AdapterUpdates { products, ..AdapterUpdates::default() }))
}

/// LoRA A and B of two adapters.
pub(super) struct Updates {
    scales: [f32; 2],
    down: Vec<Tensor>,
    up: Vec<Tensor>,
}

impl Updates {
    /// Updates of a matrix from `input` to `out` columns; `matrices` of them if it has several.
    pub fn new(p: &mut Problem, input: usize, out: usize, matrices: &[usize]) -> Self {
        let types = [TensorType::F32, TensorType::F16];
        let mut tensors = |shape: [usize; 2]| {
            let shape = [&shape[..], matrices].concat();
            types.iter().map(|&ty| p.random_tensor(ty, &shape)).collect()
        };
        Self { scales: [0.25, 0.5], down: tensors([input, RANK]), up: tensors([RANK, out]) }
    }

    /// Their entries for a graph.
    pub fn entries(&self, back: Option<&[Tensor]>) -> Vec<LowRank> {
        let update = |adapter: usize| LowRank {
            down: self.down[adapter].id,
            up: self.up[adapter].id,
            back: back.map(|back| back[adapter].id),
            rank: RANK,
            scale: self.scales[adapter],
            adapter,
        };
        vec![update(0), update(1)]
    }

    /// Adds `scale · B (A x)` of matrix number `matrix` to `y`.
    pub fn add(&self, span: &Span, matrix: usize, x: &[f64], y: &mut [f64]) {
        for adapter in 0..2 {
            let (down, up) = (&self.down[adapter].values, &self.up[adapter].values);
            let down = &down[matrix * x.len() * RANK..][..x.len() * RANK];
            let up = &up[matrix * RANK * y.len()..][..RANK * y.len()];
            let update = product(up, RANK, &product(down, x.len(), x));
            let scale = f64::from(self.scales[adapter]) * scale_of(span, adapter);
            y.iter_mut().zip(update).for_each(|(y, update)| *y += scale * update);
        }
    }
}

/// Error of products with a weight of a type and with updates, one of which is F16.
fn update_tolerance(ty: TensorType) -> Tolerance {
    let [own, update] = [ty, TensorType::F16].map(product_tolerance);
    Tolerance { reduced: own.reduced.max(update.reduced), ..own }
}

fn low_rank_linear(ty: TensorType, rows: usize) -> Case {
    let (width, out_dim) = (96, 21);
    let name = format!("low_rank type={} rows={rows} width={width} out={out_dim}", type_name(ty));
    Case::new(name, update_tolerance(ty), move || {
        let mut p = scaled_problem(rows);
        let w = p.random_tensor(ty, &[width, out_dim]);
        let updates = Updates::new(&mut p, width, out_dim, &[]);
        p.graph = updated_graph([(w.id, updates.entries(None))]);
        let x = p.input(width);
        let linear = Linear { w: w.id, scale: 1.0, bias: None, out: out_dim };
        let out = p.graph.linear("out", &linear, x.id);
        p.expect(out, |span| {
            let row = |&token: &usize| {
                let x = doubles(x.row(token));
                let mut y = product(&w.values, width, &x);
                updates.add(span, 0, &x, &mut y);
                y
            };
            span.rows().iter().map(row).collect()
        });
        p
    })
}

fn low_rank_embed(ty: TensorType, rows: usize) -> Case {
    let width = 64;
    let name = format!("low_rank_embed type={} rows={rows} width={width}", type_name(ty));
    Case::new(name, update_tolerance(TensorType::F32), move || {
        let mut p = scaled_problem(rows);
        let table = p.random_tensor(ty, &[width, rows]);
        let updates = Updates::new(&mut p, width, rows, &[]);
        // LoRA A transposed, as an embedding reads it.
        let back: Vec<Tensor> = (0..2)
            .map(|adapter| {
                let down = &updates.down[adapter].values;
                let transposed = |i: usize| down[i % RANK * width + i / RANK];
                let values: Vec<f32> = (0..RANK * width).map(transposed).collect();
                p.tensor(TensorType::F32, &[RANK, width], &values)
            })
            .collect();
        p.graph = updated_graph([(table.id, updates.entries(Some(&back)))]);
        let out = p.graph.embed("out", table.id, width, Index::Token);
        p.expect(out, |span| {
            let value = |token: usize, i: usize| {
                let update = |adapter: usize| {
                    let up = &updates.up[adapter].values[token * RANK..][..RANK];
                    let sum =
                        product(up, RANK, &doubles(&back[adapter].values[i * RANK..][..RANK]));
                    f64::from(updates.scales[adapter]) * scale_of(span, adapter) * sum[0]
                };
                f64::from(table.values[token * width + i]) + update(0) + update(1)
            };
            let row = |&token: &usize| (0..width).map(|i| value(token, i)).collect();
            span.rows().iter().map(row).collect()
        });
        p
    })
}

fn low_rank_heads(ty: TensorType, rows: usize) -> Case {
    let (input, out_dim, heads) = (64, 24, 3);
    let name =
        format!("low_rank_heads type={} rows={rows} width={input} heads={heads}", type_name(ty));
    Case::new(name, update_tolerance(ty), move || {
        let mut p = scaled_problem(rows);
        let w = p.random_tensor(ty, &[input, out_dim, heads]);
        let updates = Updates::new(&mut p, input, out_dim, &[heads]);
        p.graph = updated_graph([(w.id, updates.entries(None))]);
        let x = p.input(heads * input);
        let linear = PerHeadLinear { w: w.id, input, out: out_dim, heads };
        let out = p.graph.per_head_linear("out", &linear, x.id);
        p.expect(out, |span| {
            let of_head = |(head, x): (usize, &[f32])| {
                let x = doubles(x);
                let matrix = &w.values[head * input * out_dim..][..input * out_dim];
                let mut y = product(matrix, input, &x);
                updates.add(span, head, &x, &mut y);
                y
            };
            let row = |&token: &usize| {
                x.row(token).chunks_exact(input).enumerate().flat_map(of_head).collect()
            };
            span.rows().iter().map(row).collect()
        });
        p
    })
}

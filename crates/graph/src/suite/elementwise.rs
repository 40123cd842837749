//! Element-wise operations, and operations that move columns.

use super::problem::{Placement, Problem};
use super::schedule::Schedule;
use super::{Case, Tolerance};
use crate::graph::Graph;
use crate::ops::{Activation, AttnTemperatureSpec, Glu};
use crate::values::ValueId;

/// Rows and columns: one row, odd widths, and widths beyond vectors of 256 and 512 bits.
pub(super) const SHAPES: [(usize, usize); 4] = [(1, 64), (7, 33), (3, 257), (65, 96)];

/// Activations, gated units and other cases of this file.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = activations();
    cases.extend(gated_units());
    cases.extend(binary());
    cases.extend(unary());
    cases.extend(columns());
    cases.extend(temperatures());
    cases
}

/// Shapes, each with every placement of inputs.
pub(super) fn shapes() -> impl Iterator<Item = ((usize, usize), Placement)> {
    SHAPES.into_iter().flat_map(|shape| Placement::ALL.map(|placement| (shape, placement)))
}

/// Adds an operation with one input to a graph.
type BuildUnary = Box<dyn Fn(&mut Graph, ValueId) -> ValueId + Send + Sync>;
/// Computes a row from a row.
type RowFunction = Box<dyn Fn(&[f64]) -> Vec<f64> + Send + Sync>;

/// An operation with one input and as many columns.
pub(super) struct Unary {
    /// Name and parameters of the case.
    pub name: String,
    /// Bound of the inputs.
    pub bound: f32,
    /// Adds the operation to a graph.
    pub build: BuildUnary,
    /// Computes a row of the result from a row of the input.
    pub reference: RowFunction,
}

/// A case of a unary operation.
pub(super) fn unary_case(unary: Unary, (rows, cols): (usize, usize), placement: Placement) -> Case {
    let Unary { name, bound, build, reference } = unary;
    let name = format!("{name} rows={rows} width={cols} input={}", placement.name());
    Case::new(name, Tolerance::F32, move || {
        let mut p = Problem::new(Schedule::one_step(rows));
        let x = p.input_in(placement, cols, |x| bound * x);
        let out = build(&mut p.graph, x.id);
        p.expect_rows(out, |token| reference(&doubles(x.row(token))));
        p
    })
}

/// Values as f64.
pub(super) fn doubles(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

/// `1 / (1 + e⁻ˣ)`.
pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x · σ(x)`.
pub(super) fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// `ln(1 + eˣ)`.
pub(super) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// The error function, by its Taylor series up to 4 and as ±1 beyond, where it differs from that by
/// 2·10⁻⁸.
fn erf(z: f64) -> f64 {
    if z.abs() > 4.0 {
        return z.signum();
    }
    let (mut power, mut sum) = (z, z);
    for n in 1..120 {
        power *= -z * z / f64::from(n);
        sum += power / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

fn gelu_erf(x: f64) -> f64 {
    x / 2.0 * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2))
}

fn gelu_tanh(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    x / 2.0 * (1.0 + inner.tanh())
}

/// An activation by its definition.
fn activation(kind: Activation, x: f64) -> f64 {
    match kind {
        Activation::Silu => silu(x),
        Activation::GeluTanh => gelu_tanh(x),
        Activation::GeluErf => gelu_erf(x),
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => sigmoid(x),
        Activation::Softplus => softplus(x),
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::Clamp { min, max } => x.clamp(f64::from(min), f64::from(max)),
        Activation::Xielu { alpha_p, alpha_n, beta, eps } => {
            let [alpha_p, alpha_n, beta, eps] = [alpha_p, alpha_n, beta, eps].map(f64::from);
            let positive = alpha_p * x * x;
            let negative = (x.min(eps).exp() - 1.0 - x) * alpha_n;
            beta * x + if x > 0.0 { positive } else { negative }
        }
    }
}

fn activations() -> Vec<Case> {
    let kinds = [
        ("silu", Activation::Silu),
        ("gelu_tanh", Activation::GeluTanh),
        ("gelu_erf", Activation::GeluErf),
        ("tanh", Activation::Tanh),
        ("sigmoid", Activation::Sigmoid),
        ("softplus", Activation::Softplus),
        ("relu", Activation::Relu),
        ("relu_squared", Activation::ReluSquared),
        ("clamp", Activation::Clamp { min: -0.75, max: 1.5 }),
        ("xielu", Activation::Xielu { alpha_p: 0.8, alpha_n: 1.2, beta: 0.5, eps: -1e-6 }),
    ];
    let unary = |(name, kind): (&str, Activation)| Unary {
        name: format!("activate kind={name}"),
        bound: 6.0,
        build: Box::new(move |g, x| g.activate("out", kind, x)),
        reference: Box::new(move |x| x.iter().map(|&x| activation(kind, x)).collect()),
    };
    let of_kind =
        |kind| shapes().map(move |(shape, placement)| unary_case(unary(kind), shape, placement));
    kinds.into_iter().flat_map(of_kind).collect()
}

/// A gated unit by its definition.
pub(super) fn gated(kind: Glu, gate: f64, up: f64) -> f64 {
    match kind {
        Glu::Silu => silu(gate) * up,
        Glu::Gelu => gelu_tanh(gate) * up,
        Glu::Relu => gate.max(0.0) * up,
        Glu::GatedReluSquared => gate.max(0.0).powi(2) * up,
        Glu::UngatedGelu => gelu_erf(gate),
        Glu::ReluSquared => gate.max(0.0).powi(2),
        Glu::Identity => gate,
        Glu::Clamped { alpha, limit } => {
            let (alpha, limit) = (f64::from(alpha), f64::from(limit));
            let g = gate.min(limit);
            (up.clamp(-limit, limit) + 1.0) * g * sigmoid(alpha * g)
        }
        Glu::SiluOfClamped { limit } => {
            let limit = f64::from(limit);
            silu(gate.min(limit)) * up.clamp(-limit, limit)
        }
        Glu::ClampedSilu { limit } => {
            let limit = f64::from(limit);
            silu(gate).min(limit) * up.clamp(-limit, limit)
        }
        Glu::BoundedSilu { bound, limit } => {
            let bound = f64::from(bound);
            let up = limit.map(f64::from).map_or(up, |limit| limit * (up / limit).tanh());
            bound * (gate / bound).tanh() * sigmoid(gate) * up
        }
    }
}

/// Every gated unit with its name.
pub(super) const GLUS: [(&str, Glu); 12] = [
    ("silu", Glu::Silu),
    ("gelu", Glu::Gelu),
    ("relu", Glu::Relu),
    ("gated_relu_squared", Glu::GatedReluSquared),
    ("gelu_alone", Glu::UngatedGelu),
    ("relu_squared", Glu::ReluSquared),
    ("alone", Glu::Identity),
    ("clamped", Glu::Clamped { alpha: 1.702, limit: 2.0 }),
    ("silu_of_clamped", Glu::SiluOfClamped { limit: 1.5 }),
    ("clamped_silu", Glu::ClampedSilu { limit: 1.5 }),
    ("bounded_silu", Glu::BoundedSilu { bound: 2.0, limit: None }),
    ("bounded_silu_and_up", Glu::BoundedSilu { bound: 2.0, limit: Some(1.5) }),
];

fn gated_units() -> Vec<Case> {
    let case = |(name, kind): (&str, Glu), (rows, cols): (usize, usize), placement: Placement| {
        let name = format!("glu kind={name} rows={rows} width={cols} input={}", placement.name());
        Case::new(name, Tolerance::F32, move || {
            let mut p = Problem::new(Schedule::one_step(rows));
            let gate = p.input_in(placement, cols, |x| 5.0 * x);
            let up = p.input_in(placement, cols, |x| 4.0 * x);
            let out = p.graph.glu("out", kind, gate.id, up.id);
            p.expect_rows(out, |token| {
                let pairs = doubles(gate.row(token)).into_iter().zip(doubles(up.row(token)));
                pairs.map(|(gate, up)| gated(kind, gate, up)).collect()
            });
            p
        })
    };
    let of_kind = |kind| shapes().map(move |(shape, placement)| case(kind, shape, placement));
    GLUS.into_iter().flat_map(of_kind).collect()
}

/// Sums, products with as many columns, and products with a column for a group of columns or for
/// the whole row.
fn binary() -> Vec<Case> {
    let add = |((rows, cols), placement): ((usize, usize), Placement)| {
        let name = format!("add rows={rows} width={cols} input={}", placement.name());
        Case::new(name, Tolerance::F32, move || {
            let mut p = Problem::new(Schedule::one_step(rows));
            let (a, b) = (p.input_in(placement, cols, |x| x), p.input_in(placement, cols, |x| x));
            let out = p.graph.add("out", a.id, b.id);
            p.expect_rows(out, |token| {
                let pairs = doubles(a.row(token)).into_iter().zip(doubles(b.row(token)));
                pairs.map(|(a, b)| a + b).collect()
            });
            p
        })
    };
    let mul = |((rows, cols), placement): ((usize, usize), Placement), columns: usize| {
        let name = format!("mul rows={rows} width={cols} by={columns} input={}", placement.name());
        Case::new(name, Tolerance::F32, move || {
            let mut p = Problem::new(Schedule::one_step(rows));
            let x = p.input_in(placement, cols, |x| x);
            let by = p.input_in(placement, columns, |x| x);
            let out = p.graph.mul("out", x.id, by.id);
            p.expect_rows(out, |token| {
                let (x, by) = (doubles(x.row(token)), doubles(by.row(token)));
                x.iter().enumerate().map(|(i, x)| x * by[i * columns / cols]).collect()
            });
            p
        })
    };
    let mut cases: Vec<Case> = shapes().map(add).collect();
    for shape in shapes() {
        let cols = shape.0.1;
        let group = (2..cols).find(|group| cols.is_multiple_of(*group)).unwrap_or(cols);
        let mut columns = vec![1, cols / group, cols];
        columns.dedup();
        cases.extend(columns.into_iter().map(|columns| mul(shape, columns)));
    }
    cases
}

fn unary() -> Vec<Case> {
    let scale = || Unary {
        name: "scale".into(),
        bound: 1.0,
        build: Box::new(|g, x| g.scale("out", x, -0.37)),
        reference: Box::new(|x| x.iter().map(|x| f64::from(-0.37f32) * x).collect()),
    };
    let softcap = || Unary {
        name: "softcap".into(),
        bound: 40.0,
        build: Box::new(|g, x| g.softcap("out", x, 15.0)),
        reference: Box::new(|x| x.iter().map(|x| 15.0 * (x / 15.0).tanh()).collect()),
    };
    let sparsify = || Unary {
        name: "gaussian_top_k".into(),
        bound: 2.0,
        build: Box::new(|g, x| g.gaussian_top_k("out", x, 0.5)),
        reference: Box::new(|x| {
            let n = x.len() as f64;
            let mean = x.iter().sum::<f64>() / n;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
            x.iter().map(|x| (x - mean - 0.5 * variance.sqrt()).max(0.0)).collect()
        }),
    };
    let all = |(shape, placement): ((usize, usize), Placement)| {
        [scale(), softcap(), sparsify()].map(|unary| unary_case(unary, shape, placement))
    };
    shapes().flat_map(all).collect()
}

/// Operations that only move columns: their results are exact.
fn columns() -> Vec<Case> {
    let concat = |((rows, cols), placement): ((usize, usize), Placement)| {
        let name = format!("concat rows={rows} width={cols} input={}", placement.name());
        Case::new(name, Tolerance::EXACT, move || {
            let mut p = Problem::new(Schedule::one_step(rows));
            let (a, b) = (p.input_in(placement, cols, |x| x), p.input_in(placement, 19, |x| x));
            let out = p.graph.concat("out", a.id, b.id);
            p.expect_rows(out, |token| doubles(&[a.row(token), b.row(token)].concat()));
            p
        })
    };
    let pick = |((rows, periods), placement): ((usize, usize), Placement)| {
        let name = format!("pick rows={rows} periods={periods} input={}", placement.name());
        let (start, width, period) = (3, 4, 9);
        Case::new(name, Tolerance::EXACT, move || {
            let mut p = Problem::new(Schedule::one_step(rows));
            let x = p.input_in(placement, periods * period, |x| x);
            let out = p.graph.strided_columns("out", x.id, start, width, period);
            p.expect_rows(out, |token| {
                x.row(token)
                    .chunks(period)
                    .flat_map(|x| doubles(&x[start..start + width]))
                    .collect()
            });
            p
        })
    };
    shapes().flat_map(|shape| [concat(shape), pick(shape)]).collect()
}

fn temperatures() -> Vec<Case> {
    let case = |first_position: usize, rows: usize| {
        let name = format!("attn_temperature rows={rows} width=70 first_position={first_position}");
        let by = AttnTemperatureSpec { scale: 0.1, floor: 8, offset: 1 };
        Case::new(name, Tolerance::F32, move || {
            let schedule = Schedule::one_step(rows).with_first_position(first_position);
            let mut p = Problem::new(schedule);
            let x = p.input(70);
            let out = p.graph.attn_temperature("out", x.id, by);
            p.expect(out, |span| {
                let row = |i: usize| {
                    let steps = (span.first_position + i + by.offset as usize) / by.floor as usize;
                    let factor = 1.0 + f64::from(by.scale) * (1.0 + steps as f64).ln();
                    doubles(x.row(span.tokens[i])).into_iter().map(|x| x * factor).collect()
                };
                span.indices().map(row).collect()
            });
            p
        })
    };
    [(0, 1), (0, 40), (8191, 9)].map(|(first, rows)| case(first, rows)).into()
}

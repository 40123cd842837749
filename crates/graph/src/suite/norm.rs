//! Norms over rows, groups of columns, and tokens of a sequence.

use super::elementwise::{doubles, shapes};
use super::problem::{Placement, Problem};
use super::schedule::Schedule;
use super::{Case, Tolerance};
use crate::graph::Norm;

/// Weights of a norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NormWeights {
    /// No weight and no bias.
    None,
    /// As many values as a group has columns.
    PerGroup,
    /// As many values as a row has columns.
    PerRow,
}

/// RMS norm or layer norm of one shape.
#[derive(Debug, Clone, Copy)]
struct NormShape {
    rows: usize,
    /// Number of groups of columns.
    groups: usize,
    /// Columns per group.
    dim: usize,
    weights: NormWeights,
    eps: f32,
    /// Added to each input.
    mean: f32,
    placement: Placement,
}

/// RMS norms, layer norms, group norms and matched norms.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (rows, groups, dim) in [(1, 1, 64), (7, 1, 33), (3, 1, 2048), (65, 3, 80), (5, 4, 128)] {
        for weights in [NormWeights::None, NormWeights::PerGroup, NormWeights::PerRow] {
            for placement in Placement::ALL {
                let (eps, mean) = (1e-5, 0.0);
                let shape = NormShape { rows, groups, dim, weights, eps, mean, placement };
                cases.extend([rms_norm(shape), layer_norm(shape)]);
            }
        }
    }
    let shape = NormShape {
        rows: 4,
        groups: 1,
        dim: 96,
        weights: NormWeights::PerRow,
        eps: 0.5,
        mean: 3.0,
        placement: Placement::Whole,
    };
    cases.extend([rms_norm(shape), layer_norm(shape)]);
    cases.extend(shapes().map(|(shape, placement)| match_norm(shape, placement)));
    cases.extend([(1, 1, 40), (9, 4, 96), (70, 2, 34)].map(group_norm));
    cases
}

impl NormShape {
    fn name(&self, operation: &str) -> String {
        let Self { rows, groups, dim, weights, eps, mean, placement } = self;
        let (width, input) = (groups * dim, placement.name());
        let weights = match weights {
            NormWeights::None => "none",
            NormWeights::PerGroup => "group",
            NormWeights::PerRow => "row",
        };
        let shape = format!("rows={rows} width={width} groups={groups} weights={weights}");
        format!("{operation} {shape} eps={eps:e} mean={mean} input={input}")
    }

    fn weight_len(&self) -> Option<usize> {
        match self.weights {
            NormWeights::None => None,
            NormWeights::PerGroup => Some(self.dim),
            NormWeights::PerRow => Some(self.groups * self.dim),
        }
    }
}

fn rms_norm(shape: NormShape) -> Case {
    Case::new(shape.name("rms_norm"), Tolerance::F32, move || {
        let NormShape { rows, groups, dim, eps, mean, placement, .. } = shape;
        let mut p = Problem::new(Schedule::one_step(rows));
        let w = shape.weight_len().map(|len| p.floats(&[len]));
        let x = p.input_in(placement, groups * dim, |x| x + mean);
        let norm = Norm { w: w.as_ref().map(|w| w.id), b: None, dim, eps };
        let out = p.graph.rms_norm("out", &norm, x.id);
        p.expect_rows(out, |token| {
            let x = doubles(x.row(token));
            let scale = |group: &[f64]| {
                let mean = group.iter().map(|x| x * x).sum::<f64>() / dim as f64;
                1.0 / (mean + f64::from(eps)).sqrt()
            };
            let scales: Vec<f64> = x.chunks(dim).map(scale).collect();
            let weight =
                |i: usize| w.as_ref().map_or(1.0, |w| f64::from(w.values[i % w.values.len()]));
            x.iter().enumerate().map(|(i, x)| x * scales[i / dim] * weight(i)).collect()
        });
        p
    })
}

/// Mean of values, and `1 / √(variance + eps)`.
fn moments(x: &[f64], eps: f32) -> (f64, f64) {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
    (mean, 1.0 / (variance + f64::from(eps)).sqrt())
}

fn layer_norm(shape: NormShape) -> Case {
    Case::new(shape.name("layer_norm"), Tolerance::F32, move || {
        let NormShape { rows, groups, dim, eps, mean, placement, .. } = shape;
        let mut p = Problem::new(Schedule::one_step(rows));
        let w = shape.weight_len().map(|len| [p.floats(&[len]), p.floats(&[len])]);
        let x = p.input_in(placement, groups * dim, |x| x + mean);
        let [weight, bias] = [0, 1].map(|i| w.as_ref().map(|w| w[i].id));
        let out = p.graph.layer_norm("out", &Norm { w: weight, b: bias, dim, eps }, x.id);
        p.expect_rows(out, |token| {
            let x = doubles(x.row(token));
            let moments: Vec<_> = x.chunks(dim).map(|group| moments(group, eps)).collect();
            let affine = |i: usize| match &w {
                None => (1.0, 0.0),
                Some([w, b]) => {
                    let i = i % w.values.len();
                    (f64::from(w.values[i]), f64::from(b.values[i]))
                }
            };
            let value = |(i, x): (usize, &f64)| {
                let ((mean, scale), (w, b)) = (moments[i / dim], affine(i));
                (x - mean) * scale * w + b
            };
            x.iter().enumerate().map(value).collect()
        });
        p
    })
}

fn match_norm((rows, cols): (usize, usize), placement: Placement) -> Case {
    let name = format!("match_norm rows={rows} width={cols} input={}", placement.name());
    Case::new(name, Tolerance::F32, move || {
        let mut p = Problem::new(Schedule::one_step(rows));
        let x = p.input_in(placement, cols, |x| x);
        let like = p.input_in(placement, cols, |x| 7.0 * x);
        let out = p.graph.match_norm("out", x.id, like.id);
        p.expect_rows(out, |token| {
            let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
            let (x, like) = (doubles(x.row(token)), doubles(like.row(token)));
            let factor = norm(&like) / norm(&x);
            x.iter().map(|x| x * factor).collect()
        });
        p
    })
}

fn group_norm((rows, groups, cols): (usize, usize, usize)) -> Case {
    let name = format!("group_norm rows={rows} width={cols} groups={groups}");
    Case::new(name, Tolerance::F32, move || {
        let mut p = Problem::new(Schedule::one_step(rows));
        let (w, b) = (p.floats(&[cols]), p.floats(&[cols]));
        let x = p.input(cols);
        let (eps, each) = (1e-5, cols / groups);
        let out = p.graph.group_norm("out", x.id, [w.id, b.id], (groups, eps));
        p.expect(out, |span| {
            let of_group = |group: usize| {
                let columns = group * each..(group + 1) * each;
                let rows = span.rows().iter().map(|&token| &x.row(token)[columns.clone()]);
                moments(&doubles(&rows.collect::<Vec<_>>().concat()), eps)
            };
            let moments: Vec<_> = (0..groups).map(of_group).collect();
            let value = |(i, x): (usize, f64)| {
                let (mean, scale) = moments[i / each];
                (x - mean) * scale * f64::from(w.values[i]) + f64::from(b.values[i])
            };
            let row =
                |&token: &usize| doubles(x.row(token)).into_iter().enumerate().map(value).collect();
            span.rows().iter().map(row).collect()
        });
        p
    })
}

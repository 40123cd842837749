//! Convolutions over the tokens of a sequence.

use super::elementwise::{doubles, silu};
use super::problem::Problem;
use super::recurrent::Steps;
use super::schedule::{Schedule, Span};
use super::{Case, Tolerance};
use crate::recurrent::{ConvSpec, Recurrence};

/// Causal convolutions with a state, dynamic convolutions, and unfolding for convolutions by
/// products.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for steps in Steps::ALL {
        for (cols, taps, stride) in [(33, 4, 1), (600, 4, 1), (64, 2, 1), (40, 3, 5), (48, 2, 20)] {
            for kind in [ConvKind::Plain, ConvKind::BiasAndSilu, ConvKind::OldestRow] {
                cases.push(causal(steps, (cols, taps, stride), kind));
            }
        }
    }
    for rows in [1, 7, 70] {
        cases.extend([(40, 1, 3), (96, 6, 4), (33, 33, 2)].map(|shape| dynamic(rows, shape)));
        cases.extend([(17, 1), (40, 3), (33, 7)].map(|shape| unfold(rows, shape)));
    }
    cases
}

/// Weights of a causal convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConvKind {
    Plain,
    BiasAndSilu,
    /// No weights: the result is the oldest row.
    OldestRow,
}

fn causal(steps: Steps, (cols, taps, stride): (usize, usize, usize), kind: ConvKind) -> Case {
    let kind_name = match kind {
        ConvKind::Plain => "plain",
        ConvKind::BiasAndSilu => "bias_and_silu",
        ConvKind::OldestRow => "oldest_row",
    };
    let shape = format!("width={cols} taps={taps} stride={stride} kind={kind_name}");
    let name = format!("conv steps={} {shape}", steps.name());
    Case::new(name, Tolerance::F32, move || {
        let mut p = Problem::new(steps.schedule());
        let silu_result = kind == ConvKind::BiasAndSilu;
        let w = (kind != ConvKind::OldestRow).then(|| p.floats(&[taps, cols]));
        let bias = silu_result.then(|| p.floats(&[cols]));
        let x = p.input(cols);
        let (weight, bias_id) = (w.as_ref().map(|w| w.id), bias.as_ref().map(|bias| bias.id));
        let mut spec =
            ConvSpec { state: 0, taps, stride, w: weight, bias: bias_id, silu: silu_result };
        spec.state = p.state(spec.values(cols));
        let out = p.graph.recur("out", Recurrence::Conv { x: x.id, spec });
        p.expect(out, |span| {
            // The row `age` tokens before the token at index `i`; zeros before the sequence.
            let value = |i: usize, age: usize, col: usize| {
                i.checked_sub(age).map_or(0.0, |j| f64::from(x.row(span.tokens[j])[col]))
            };
            let result = |i: usize, col: usize| {
                let Some(w) = &w else { return value(i, (taps - 1) * stride, col) };
                let tap = |tap: usize| {
                    let weight = f64::from(w.values[col * taps + tap]);
                    weight * value(i, (taps - 1 - tap) * stride, col)
                };
                let sum: f64 = (0..taps).map(tap).sum();
                let sum = sum + bias.as_ref().map_or(0.0, |bias| f64::from(bias.values[col]));
                if silu_result { silu(sum) } else { sum }
            };
            span.indices().map(|i| (0..cols).map(|col| result(i, col)).collect()).collect()
        });
        p
    })
}

/// A convolution of `cols` columns in `groups` groups over the tokens of a step.
fn dynamic(rows: usize, (cols, groups, taps): (usize, usize, usize)) -> Case {
    let name = format!("dynamic_conv rows={rows} width={cols} groups={groups} taps={taps}");
    Case::new(name, Tolerance::F32, move || {
        let mut p = Problem::new(Schedule::one_step(rows));
        let constant = p.floats(&[cols, taps]);
        let (x, own) = (p.input(cols), p.input(taps * groups));
        let out = p.graph.dynamic_conv("out", x.id, own.id, (constant.id, taps));
        p.expect(out, |span: &Span| {
            let value = |i: usize, col: usize| {
                let own = doubles(own.row(span.tokens[i]));
                let tap = |tap: usize| {
                    let Some(j) = i.checked_sub(tap) else { return 0.0 };
                    let group = col / (cols / groups);
                    let weight =
                        f64::from(constant.values[tap * cols + col]) + own[tap * groups + group];
                    weight * f64::from(x.row(span.tokens[j])[col])
                };
                (0..taps).map(tap).sum()
            };
            span.indices().map(|i| (0..cols).map(|col| value(i, col)).collect()).collect()
        });
        p
    })
}

fn unfold(rows: usize, (cols, taps): (usize, usize)) -> Case {
    let name = format!("unfold rows={rows} width={cols} taps={taps}");
    Case::new(name, Tolerance::EXACT, move || {
        let mut p = Problem::new(Schedule::one_step(rows));
        let x = p.input(cols);
        let out = p.graph.unfold("out", x.id, taps);
        p.expect(out, |span| {
            let value = |i: usize, col: usize, tap: usize| {
                let j = (i + tap).checked_sub(taps / 2);
                let token = j.and_then(|j| span.tokens.get(j));
                token.map_or(0.0, |&token| f64::from(x.row(token)[col]))
            };
            let row =
                |i: usize| (0..cols * taps).map(|at| value(i, at / taps, at % taps)).collect();
            span.indices().map(row).collect()
        });
        p
    })
}

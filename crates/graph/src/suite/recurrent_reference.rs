//! Recurrences by their definitions: each computes a sequence from its first token and keeps the
//! state as a plain matrix.

use super::elementwise::{doubles, sigmoid, softplus};
use super::problem::{Input, Tensor};
use super::schedule::Span;
use crate::recurrent::{
    DecayKind, DeltaSpec, NgramEmbeddingSpec, PoolSpec, RetentionSpec, ScanSpec, Wkv7Spec, WkvSpec,
};

/// A recurrent state: one row for each key feature, one column for each value feature.
type StateMatrix = Vec<Vec<f64>>;

fn zeros(rows: usize, cols: usize) -> StateMatrix {
    vec![vec![0.0; cols]; rows]
}

/// Rows of the result for the step of `span`, from a function of each token of the sequence in
/// order.
fn run(span: &Span, mut token: impl FnMut(usize) -> Vec<f64>) -> Vec<Vec<f64>> {
    let mut rows: Vec<Vec<f64>> = span.tokens.iter().map(|&id| token(id)).collect();
    rows.split_off(span.cached_tokens)
}

/// `len` columns of the row of a token, from `first` on.
fn columns(input: &Input, token: usize, first: usize, len: usize) -> Vec<f64> {
    doubles(&input.row(token)[first..first + len])
}

/// `Sᵀ x`.
fn read(state: &StateMatrix, x: &[f64]) -> Vec<f64> {
    let column = |j: usize| state.iter().zip(x).map(|(row, x)| row[j] * x).sum();
    (0..state[0].len()).map(column).collect()
}

/// `S ← diag(decay) S + k vᵀ`.
fn update(state: &mut StateMatrix, decay: impl Fn(usize) -> f64, k: &[f64], v: &[f64]) {
    for (i, (row, k)) in state.iter_mut().zip(k).enumerate() {
        row.iter_mut().zip(v).for_each(|(s, v)| *s = decay(i) * *s + k * v);
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Selective scan of `x, dt, b, c` with the weights `a, d, dt_bias`.
pub(super) fn scan(
    spec: &ScanSpec,
    span: &Span,
    [x, dt, b, c]: [&Input; 4],
    [a, d, dt_bias]: [&Tensor; 3],
) -> Vec<Vec<f64>> {
    let ScanSpec { heads, head_dim, state_dim, groups, .. } = *spec;
    let is_by_value = a.values.len() > heads;
    // A row for each column of the input.
    let mut states: Vec<StateMatrix> = (0..heads).map(|_| zeros(head_dim, state_dim)).collect();
    run(span, |token| {
        let of_head = |(head, state): (usize, &mut StateMatrix)| {
            let first = head * groups / heads * state_dim;
            let [b, c] = [b, c].map(|input| columns(input, token, first, state_dim));
            let x = columns(x, token, head * head_dim, head_dim);
            let step = softplus(f64::from(dt.row(token)[head]) + f64::from(dt_bias.values[head]));
            let rate = |n: usize| a.values[if is_by_value { head * state_dim + n } else { head }];
            for (row, x) in state.iter_mut().zip(&x) {
                for (n, s) in row.iter_mut().enumerate() {
                    *s = (step * f64::from(rate(n))).exp() * *s + step * x * b[n];
                }
            }
            let skip = f64::from(d.values[head]);
            state.iter().zip(x).map(|(row, x)| dot(row, &c) + skip * x).collect::<Vec<f64>>()
        };
        states.iter_mut().enumerate().flat_map(of_head).collect()
    })
}

/// Gated delta rule of `q, k, v, decay, beta` with the weights `a, dt_bias`.
pub(super) fn delta(
    spec: &DeltaSpec,
    span: &Span,
    [q, k, v, decay, beta]: [&Input; 5],
    [a, dt_bias]: [&Tensor; 2],
) -> Vec<Vec<f64>> {
    let DeltaSpec { key_heads, value_heads, key_dim, value_dim, tiled, runs, .. } = *spec;
    let is_by_row = decay.rows.cols == value_heads * key_dim;
    let mut states: Vec<StateMatrix> =
        (0..value_heads).map(|_| zeros(key_dim, value_dim)).collect();
    run(span, |token| {
        let of_head = |(head, state): (usize, &mut StateMatrix)| {
            let key_head = if tiled { head % key_heads } else { head * key_heads / value_heads };
            let column = head / runs.0 * runs.1 + head % runs.0;
            let [q, k] = [(q, spec.scales[0]), (k, spec.scales[1])].map(|(input, scale)| {
                let all = columns(input, token, key_head * key_dim, key_dim);
                all.iter().map(|x| x * f64::from(scale)).collect::<Vec<f64>>()
            });
            let v = columns(v, token, head * value_dim, value_dim);
            let log_decay = |row: usize| {
                let (at, bias) = if is_by_row {
                    (head * key_dim + row, head * key_dim + row)
                } else {
                    (column, head)
                };
                let x = f64::from(decay.row(token)[at]) + f64::from(dt_bias.values[bias]);
                log_decay(spec.decay_kind, f64::from(a.values[head]), x)
            };
            for (row, values) in state.iter_mut().enumerate() {
                values.iter_mut().for_each(|s| *s *= log_decay(row).exp());
            }
            let rate = sigmoid(f64::from(beta.row(token)[column]));
            let known = read(state, &k);
            let error: Vec<f64> =
                v.iter().zip(known).map(|(v, known)| rate * (v - known)).collect();
            update(state, |_| 1.0, &k, &error);
            read(state, &q)
        };
        states.iter_mut().enumerate().flat_map(of_head).collect()
    })
}

/// Logarithm of the decay of a delta rule.
fn log_decay(kind: DecayKind, a: f64, x: f64) -> f64 {
    match kind {
        DecayKind::Unbounded => a * softplus(x),
        DecayKind::Bounded { min, sign } => f64::from(min) * sigmoid(f64::from(sign) * a * x),
    }
}

/// RWKV 6 of `r, k, v, decay` with its bonus, or gated linear attention without.
pub(super) fn wkv(
    spec: &WkvSpec,
    span: &Span,
    [r, k, v, decay]: [&Input; 4],
    bonus: Option<&Tensor>,
) -> Vec<Vec<f64>> {
    let WkvSpec { heads, kv_heads, dim, .. } = *spec;
    let mut states: Vec<StateMatrix> = (0..heads).map(|_| zeros(dim, dim)).collect();
    run(span, |token| {
        let of_head = |(head, state): (usize, &mut StateMatrix)| {
            let shared = head * kv_heads / heads * dim;
            let [k, v] = [k, v].map(|input| columns(input, token, shared, dim));
            let r = columns(r, token, head * dim, dim);
            let decay: Vec<f64> =
                columns(decay, token, head * dim, dim).iter().map(|x| (-x.exp()).exp()).collect();
            match bonus {
                Some(bonus) => {
                    let u = doubles(&bonus.values[head * dim..][..dim]);
                    let mut seen = state.clone();
                    let key: Vec<f64> = u.iter().zip(&k).map(|(u, k)| u * k).collect();
                    update(&mut seen, |_| 1.0, &key, &v);
                    update(state, |i| decay[i], &k, &v);
                    read(&seen, &r)
                }
                None => {
                    let key: Vec<f64> = decay.iter().zip(&k).map(|(w, k)| (1.0 - w) * k).collect();
                    update(state, |i| decay[i], &key, &v);
                    read(state, &r).iter().map(|y| y / (dim as f64).sqrt()).collect()
                }
            }
        };
        states.iter_mut().enumerate().flat_map(of_head).collect()
    })
}

/// RWKV 7 of `r, k, v, decay, removal_key, iclr`: the results of all heads, then the bonus of the
/// token itself.
pub(super) fn wkv7(
    spec: &Wkv7Spec,
    span: &Span,
    inputs: [&Input; 6],
    bonus: &Tensor,
) -> Vec<Vec<f64>> {
    let Wkv7Spec { heads, dim, .. } = *spec;
    let mut states: Vec<StateMatrix> = (0..heads).map(|_| zeros(dim, dim)).collect();
    run(span, |token| {
        let (mut results, mut own) = (Vec::new(), Vec::new());
        for (head, state) in states.iter_mut().enumerate() {
            let [r, k, v, decay, removal_key, iclr] =
                inputs.map(|input| columns(input, token, head * dim, dim));
            let norm = dot(&removal_key, &removal_key).sqrt();
            let removal: Vec<f64> = removal_key.iter().map(|x| x / norm).collect();
            let known = read(state, &removal);
            let decay = |i: usize| (-sigmoid(decay[i]) / 0.5f64.exp()).exp();
            for (i, row) in state.iter_mut().enumerate() {
                let forgotten = iclr[i] * removal[i];
                let values = row.iter_mut().zip(&known).zip(&v);
                values
                    .for_each(|((s, known), v)| *s = decay(i) * *s - forgotten * known + k[i] * v);
            }
            results.extend(read(state, &r));
            let u = doubles(&bonus.values[head * dim..][..dim]);
            let weight: f64 = (0..dim).map(|i| r[i] * u[i] * k[i]).sum();
            own.extend(v.iter().map(|v| weight * v));
        }
        [results, own].concat()
    })
}

/// Retention of `q, k, v`.
pub(super) fn retention(
    spec: &RetentionSpec,
    span: &Span,
    [q, k, v]: [&Input; 3],
) -> Vec<Vec<f64>> {
    let RetentionSpec { heads, dim, rate, .. } = *spec;
    let mut states: Vec<StateMatrix> = (0..heads).map(|_| zeros(dim, dim)).collect();
    run(span, |token| {
        let of_head = |(head, state): (usize, &mut StateMatrix)| {
            let [q, k, v] = [q, k, v].map(|input| columns(input, token, head * dim, dim));
            let rate = f64::from(rate) * (-8.0 * (head + 1) as f64 / heads as f64).exp2();
            update(state, |_| (-rate).exp(), &k, &v);
            read(state, &q)
        };
        states.iter_mut().enumerate().flat_map(of_head).collect()
    })
}

/// Pooled rows at the last tokens of blocks, zeros at others.
pub(super) fn pool(
    spec: &PoolSpec,
    span: &Span,
    x: &Input,
    gate: Option<&Input>,
    bias: Option<&Tensor>,
) -> Vec<Vec<f64>> {
    let PoolSpec { block, dim, overlaps, .. } = *spec;
    // Weight exponent and value of a column of the token at index `i`.
    let entry = |i: usize, column: usize| {
        let token = span.tokens[i];
        let gate = gate.map_or(0.0, |gate| f64::from(gate.row(token)[column]));
        let at = i % block * spec.cols() + column;
        let bias = bias.map_or(0.0, |bias| f64::from(bias.values[at]));
        (gate + bias, f64::from(x.row(token)[column]))
    };
    let value = |i: usize, column: usize| {
        let first = i + 1 - block;
        let own = (first..=i).map(|i| entry(i, if overlaps { dim + column } else { column }));
        let before = if overlaps { first.saturating_sub(block)..first } else { 0..0 };
        let entries: Vec<(f64, f64)> = before.map(|i| entry(i, column)).chain(own).collect();
        let weights: Vec<f64> = entries.iter().map(|entry| entry.0.exp()).collect();
        let sum = entries.iter().zip(&weights).map(|((_, x), w)| x * w).sum::<f64>();
        sum / weights.iter().sum::<f64>()
    };
    let row = |i: usize| match (i + 1) % block {
        0 => (0..dim).map(|column| value(i, column)).collect(),
        _ => vec![0.0; dim],
    };
    span.indices().map(row).collect()
}

/// Bits of the table rows of the n-grams that end with each token.
pub(super) fn ngram_rows(spec: &NgramEmbeddingSpec, span: &Span) -> Vec<Vec<Option<u32>>> {
    let lengths = spec.multipliers.len() - 1;
    let each = spec.heads.len() / lengths;
    let row = |i: usize| {
        // Ids from the token's own backwards. A text ends before the sequence and at each end id.
        let mut ids = vec![span.tokens[i] as u32];
        for back in 1..=lengths {
            let before = i.checked_sub(back).map(|j| span.tokens[j] as u32);
            let is_over = ids[1..].contains(&spec.end);
            ids.push(before.filter(|_| !is_over).unwrap_or(spec.end));
        }
        let number = |len: usize| {
            let terms = ids[..len].iter().zip(&spec.multipliers);
            terms.fold(0u64, |number, (&id, by)| number ^ u64::from(id).wrapping_mul(*by))
        };
        let head = |h: usize| {
            let head = spec.heads[h];
            Some(head.first + (number(2 + h / each) % u64::from(head.rows)) as u32)
        };
        (0..spec.heads.len()).map(head).collect()
    };
    span.indices().map(row).collect()
}

//! Mixtures of experts by their definition: selection of the experts of a token, then the weighted
//! sum of their results.

use super::adapters::Updates;
use super::elementwise::{doubles, gated, sigmoid, softplus};
use super::matmul::product;
use super::problem::Tensor;
use super::schedule::Span;
use crate::ops::{Gating, MoeSpec};

/// Smallest sum of weights that normalization divides by.
const MIN_WEIGHT_SUM: f64 = 6.1e-5;

/// Weights of a mixture.
pub(super) struct Experts {
    /// Specification.
    pub spec: MoeSpec,
    /// Columns of the input.
    pub input: usize,
    /// Gate matrices, or gate and up matrices if they are joined.
    pub gate: Tensor,
    /// Up matrices; unused if they are joined.
    pub up: Tensor,
    /// Down matrices.
    pub down: Tensor,
    /// Biases of gate, up and down.
    pub biases: Option<[Tensor; 3]>,
    /// Bias of the selection.
    pub selection_bias: Option<Tensor>,
    /// Factor of each expert's weight.
    pub factors: Option<Tensor>,
    /// Experts of each token id.
    pub experts_by_token: Option<Vec<u32>>,
    /// Low-rank updates of gate, up and down.
    pub updates: Option<[Updates; 3]>,
}

/// Index of the largest value that is not `taken`, the first of equal ones.
fn best(values: &[f64], taken: &[usize]) -> usize {
    let free = (0..values.len()).filter(|i| !taken.contains(i));
    free.reduce(|a, b| if values[b] > values[a] { b } else { a }).expect("a free value")
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exp: Vec<f64> = x.iter().map(|x| (x - max).exp()).collect();
    let sum: f64 = exp.iter().sum();
    exp.iter().map(|x| x / sum).collect()
}

impl Experts {
    /// The result for one token of a sequence.
    pub fn row(&self, span: &Span, token: usize, x: &[f32], logits: &[f32]) -> Vec<f64> {
        let (x, logits) = (doubles(x), doubles(logits));
        let mut out = vec![0.0; self.spec.out];
        for (expert, weight) in self.selected(token, &logits) {
            let result = match self.spec.weighs_input {
                true => {
                    self.expert(span, expert, &x.iter().map(|x| x * weight).collect::<Vec<_>>())
                }
                false => self.expert(span, expert, &x).iter().map(|y| y * weight).collect(),
            };
            out.iter_mut().zip(result).for_each(|(out, y)| *out += y);
        }
        out
    }

    /// The experts of a token with their weights.
    fn selected(&self, token: usize, logits: &[f64]) -> Vec<(usize, f64)> {
        let spec = &self.spec;
        let scores = self.scores(logits);
        let experts: Vec<usize> = match &self.experts_by_token {
            Some(table) => {
                let experts = &table[token * spec.top_k..][..spec.top_k];
                experts.iter().map(|&expert| expert as usize).collect()
            }
            None => self.best_experts(&scores),
        };
        let mut weights: Vec<f64> = experts.iter().map(|&expert| scores[expert]).collect();
        match spec.gating {
            Gating::SoftmaxOfSelected => weights = softmax(&weights),
            Gating::SparseMixer => {
                let weight = |i: usize| sparse_mixer_weight(logits, &experts[..=i]);
                weights = (0..experts.len()).map(weight).collect();
            }
            Gating::Softmax | Gating::Sigmoid | Gating::SqrtSoftplus => {}
        }
        if spec.normalize {
            let sum = weights.iter().sum::<f64>().max(MIN_WEIGHT_SUM);
            weights.iter_mut().for_each(|weight| *weight /= sum);
        }
        let factor = |expert: usize| {
            let own =
                self.factors.as_ref().map_or(1.0, |factors| f64::from(factors.values[expert]));
            f64::from(spec.scale) * own
        };
        experts
            .iter()
            .zip(weights)
            .map(|(&expert, weight)| (expert, weight * factor(expert)))
            .collect()
    }

    /// The gating function of each logit.
    fn scores(&self, logits: &[f64]) -> Vec<f64> {
        match self.spec.gating {
            Gating::Softmax => softmax(logits),
            Gating::SoftmaxOfSelected | Gating::SparseMixer => logits.to_vec(),
            Gating::Sigmoid => logits.iter().map(|&x| sigmoid(x)).collect(),
            Gating::SqrtSoftplus => logits.iter().map(|&x| softplus(x).sqrt()).collect(),
        }
    }

    /// The experts with the best scores, the best first, within the best groups.
    fn best_experts(&self, scores: &[f64]) -> Vec<usize> {
        let spec = &self.spec;
        let bias = |expert: usize| {
            self.selection_bias.as_ref().map_or(0.0, |bias| f64::from(bias.values[expert]))
        };
        let mut biased: Vec<f64> =
            scores.iter().enumerate().map(|(expert, score)| score + bias(expert)).collect();
        if let Some(groups) = spec.groups {
            let each = spec.experts / groups.count;
            let score = |group: &[f64]| {
                let first = best(group, &[]);
                let is_sum = spec.gating != Gating::Softmax && each > 1;
                group[first] + if is_sum { group[best(group, &[first])] } else { 0.0 }
            };
            let scores: Vec<f64> = biased.chunks(each).map(score).collect();
            let mut kept = Vec::new();
            (0..groups.top_k).for_each(|_| kept.push(best(&scores, &kept)));
            let is_kept = |expert: usize| kept.contains(&(expert / each));
            (0..spec.experts).filter(|&expert| !is_kept(expert)).for_each(|expert| {
                biased[expert] = f64::NEG_INFINITY;
            });
        }
        let mut experts = Vec::new();
        (0..spec.top_k).for_each(|_| experts.push(best(&biased, &experts)));
        experts
    }

    /// `down(glu(gate x, up x))` of one expert.
    fn expert(&self, span: &Span, expert: usize, x: &[f64]) -> Vec<f64> {
        let MoeSpec { hidden, out, experts_per_matrix, is_joined, glu, .. } = self.spec;
        let matrix = expert / experts_per_matrix;
        let bias = |part: usize, len: usize, y: Vec<f64>| -> Vec<f64> {
            let Some(biases) = &self.biases else { return y };
            let bias = &biases[part].values[matrix * len..][..len];
            y.iter().zip(bias).map(|(y, &bias)| y + f64::from(bias)).collect()
        };
        let matrix_of = |tensor: &Tensor, first: usize, rows: usize, input: usize| {
            tensor.values[first * input..][..rows * input].to_vec()
        };
        let [gate, up] = if is_joined {
            let first = matrix * 2 * hidden;
            [first, first + hidden].map(|first| matrix_of(&self.gate, first, hidden, self.input))
        } else {
            let first = matrix * hidden;
            [&self.gate, &self.up].map(|tensor| matrix_of(tensor, first, hidden, self.input))
        };
        let updated = |part: usize, x: &[f64], mut y: Vec<f64>| {
            let updates = self.updates.iter().map(|updates| &updates[part]);
            updates.for_each(|updates| updates.add(span, matrix, x, &mut y));
            y
        };
        let gate = bias(0, hidden, updated(0, x, product(&gate, self.input, x)));
        let up = bias(1, hidden, updated(1, x, product(&up, self.input, x)));
        let activated: Vec<f64> =
            gate.iter().zip(&up).map(|(&gate, &up)| gated(glu, gate, up)).collect();
        let down = matrix_of(&self.down, matrix * out, out, hidden);
        bias(2, out, updated(2, &activated, product(&down, hidden, &activated)))
    }
}

/// Weight of the last of `experts`: the softmax of its logit over the logits that are not selected
/// before and near it.
fn sparse_mixer_weight(logits: &[f64], experts: &[usize]) -> f64 {
    let (&own, before) = experts.split_last().expect("an expert");
    let top = logits[own];
    let is_near = |x: f64| (top - x) / x.abs().max(top) <= 0.02;
    let near = (0..logits.len()).filter(|e| !before.contains(e) && is_near(logits[*e]));
    1.0 / near.map(|e| (logits[e] - top).exp()).sum::<f64>()
}

//! Expert selection: from the router logits of a token to its experts and their weights.

use puna_graph::{Gating, Groups, MoeSpec};

/// Scores of all experts for one token; kept between tokens to avoid allocations.
#[derive(Default)]
pub(super) struct RouterScores {
    /// Score of each expert, from which its weight follows.
    weights: Vec<f32>,
    /// Score plus selection bias, by which experts are selected.
    biased: Vec<f32>,
}

impl RouterScores {
    /// Selects the experts of a token: writes their numbers to `selected` and their weights to
    /// `weights`.
    pub fn select(
        &mut self,
        spec: &MoeSpec,
        selection_bias: &[f32],
        logits: &[f32],
        selected: &mut [u32],
        weights: &mut [f32],
    ) {
        self.score(spec, logits);
        let Self { weights: all, biased } = self;
        biased.clear();
        biased.extend_from_slice(all);
        biased.iter_mut().zip(selection_bias).for_each(|(score, bias)| *score += bias);
        if let Some(groups) = spec.groups {
            mask_groups(biased, groups, if spec.gating == Gating::Softmax { 1 } else { 2 });
        }
        for (i, weight) in weights.iter_mut().enumerate() {
            let before = |e: usize| selected[..i].contains(&(e as u32));
            let best = best(biased, before);
            *weight = if spec.gating == Gating::SparseMixer {
                sparse_mixer_weight(all, best, before)
            } else {
                all[best]
            };
            selected[i] = best as u32;
        }
        scale_weights(spec, weights);
    }

    /// Computes the weights of experts that a table selects by token id.
    pub fn weights_of_fixed_experts(
        &mut self,
        spec: &MoeSpec,
        logits: &[f32],
        experts: &[u32],
        weights: &mut [f32],
    ) {
        self.score(spec, logits);
        weights.iter_mut().zip(experts).for_each(|(weight, &e)| *weight = self.weights[e as usize]);
        scale_weights(spec, weights);
    }

    /// Applies the gating function to the logits.
    fn score(&mut self, spec: &MoeSpec, logits: &[f32]) {
        let all = &mut self.weights;
        all.clear();
        all.extend_from_slice(logits);
        match spec.gating {
            Gating::Softmax => softmax(all),
            Gating::SoftmaxOfSelected | Gating::SparseMixer => {}
            Gating::Sigmoid => all.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp())),
            Gating::SqrtSoftplus => {
                all.iter_mut().for_each(|x| *x = (x.max(0.0) + (-x.abs()).exp().ln_1p()).sqrt());
            }
        }
    }
}

/// Normalizes and scales the weights of the selected experts.
fn scale_weights(spec: &MoeSpec, weights: &mut [f32]) {
    if spec.gating == Gating::SoftmaxOfSelected {
        softmax(weights);
    }
    if spec.normalize {
        let sum = weights.iter().sum::<f32>().max(6.1e-5);
        weights.iter_mut().for_each(|w| *w /= sum);
    }
    weights.iter_mut().for_each(|w| *w *= spec.scale);
}

/// Index of the largest score that is not `taken`; of equal scores the first.
fn best(scores: &[f32], taken: impl Fn(usize) -> bool) -> usize {
    let free = (0..scores.len()).filter(|&e| !taken(e));
    free.reduce(|a, b| if scores[b] > scores[a] { b } else { a })
        .expect("fewer experts are selected than exist")
}

/// Softmax of the `best` logit over the logits that are not `taken` and near it; see
/// [`Gating::SparseMixer`].
fn sparse_mixer_weight(logits: &[f32], best: usize, taken: impl Fn(usize) -> bool) -> f32 {
    // Largest relative distance of a near logit.
    const NEAR: f32 = 0.02;
    let max = logits[best];
    let near = logits
        .iter()
        .enumerate()
        .filter(|&(e, &x)| !taken(e) && max - x <= NEAR * x.abs().max(max));
    1.0 / near.map(|(_, x)| (x - max).exp()).sum::<f32>()
}

/// Masks the experts of all but the best groups. The score of a group is the sum of its `top` best
/// experts, 1 or 2.
fn mask_groups(scores: &mut [f32], groups: Groups, top: usize) {
    let each = scores.len() / groups.count;
    let group_score = |group: &[f32]| {
        let first = best(group, |_| false);
        group[first] + if each.min(top) > 1 { group[best(group, |e| e == first)] } else { 0.0 }
    };
    let group_scores: Vec<f32> = scores.chunks_exact(each).map(group_score).collect();
    let mut kept = Vec::with_capacity(groups.top_k);
    for _ in 0..groups.top_k {
        kept.push(best(&group_scores, |group| kept.contains(&group)));
    }
    for (group, experts) in scores.chunks_exact_mut(each).enumerate() {
        if !kept.contains(&group) {
            experts.fill(f32::NEG_INFINITY);
        }
    }
}

fn softmax(x: &mut [f32]) {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    x.iter_mut().for_each(|x| *x = (*x - max).exp());
    let sum: f32 = x.iter().sum();
    x.iter_mut().for_each(|x| *x /= sum);
}

#[cfg(test)]
mod tests {
    use puna_graph::{ExpertLoraUpdates, Glu, WeightId};

    use super::*;

    fn spec(experts: usize, top_k: usize, gating: Gating) -> MoeSpec {
        let (gate, up, down) = (WeightId(0), WeightId(1), WeightId(2));
        let (gate_bias, up_bias, down_bias, selection_bias, factors) =
            (None, None, None, None, None);
        let (normalize, scale, groups, experts_by_token, weighs_input) =
            (false, 1.0, None, None, false);
        let (glu, hidden, out, experts_per_matrix, lora_updates) =
            (Glu::Silu, 1, 1, 1, ExpertLoraUpdates::default());
        MoeSpec {
            experts,
            top_k,
            gating,
            normalize,
            scale,
            factors,
            selection_bias,
            groups,
            experts_by_token,
            weighs_input,
            glu,
            hidden,
            out,
            experts_per_matrix,
            gate,
            up,
            is_joined: false,
            down,
            gate_bias,
            up_bias,
            down_bias,
            lora_updates,
        }
    }

    fn selected(spec: &MoeSpec, selection_bias: &[f32], logits: &[f32]) -> (Vec<u32>, Vec<f32>) {
        let (mut selected, mut weights) = (vec![0; spec.top_k], vec![0.0; spec.top_k]);
        RouterScores::default().select(spec, selection_bias, logits, &mut selected, &mut weights);
        (selected, weights)
    }

    #[test]
    fn the_selection_bias_changes_the_selected_experts_but_not_their_weights() {
        let plain = spec(3, 1, Gating::Sigmoid);
        assert_eq!(selected(&plain, &[], &[0.0, 1.0, -1.0]).0, [1]);
        assert_eq!(selected(&plain, &[0.5, 0.0, 0.0], &[0.0, 1.0, -1.0]), (vec![0], vec![0.5]));
    }

    #[test]
    fn expert_weights_are_normalized_before_they_are_scaled() {
        let sum = MoeSpec { normalize: true, scale: 2.5, ..spec(3, 2, Gating::Sigmoid) };
        let (experts, weights) = selected(&sum, &[], &[0.0, 0.0, -9.0]);
        assert_eq!((experts, weights), (vec![0, 1], vec![1.25, 1.25]));
        let (_, weights) = selected(&spec(3, 2, Gating::SoftmaxOfSelected), &[], &[3.0, 1.0, 3.0]);
        assert_eq!(weights, [0.5, 0.5]);
    }

    #[test]
    fn preselected_experts_get_the_weights_of_their_logits() {
        let plain = spec(3, 2, Gating::SqrtSoftplus);
        let (logits, mut weights) = ([5.0, 0.0, 1.0], [0.0; 2]);
        RouterScores::default().weights_of_fixed_experts(&plain, &logits, &[1, 2], &mut weights);
        let near = |x: f32, square: f32| (x * x - square).abs() < 1e-6;
        assert!(near(weights[0], 2f32.ln()) && near(weights[1], 1f32.exp().ln_1p()), "{weights:?}");
        assert_eq!(selected(&plain, &[], &logits).0, [0, 2]);
    }

    #[test]
    fn sparse_mixer_weights_are_a_softmax_over_nearby_logits() {
        let mixer = spec(4, 2, Gating::SparseMixer);
        let share = |other: f32| 1.0 / (1.0 + other.exp());
        // 0.99 is near 1 and second; no logit is near 0.99.
        assert_eq!(
            selected(&mixer, &[], &[0.5, 1.0, 0.99, -2.0]),
            (vec![1, 2], vec![share(-0.01), 1.0])
        );
        assert_eq!(selected(&mixer, &[], &[0.5, 1.0, 0.9, -2.0]), (vec![1, 2], vec![1.0, 1.0]));
    }

    #[test]
    fn sigmoid_expert_groups_are_ranked_by_their_two_best_experts() {
        let logits = [4.0, -9.0, 1.0, 1.5, 3.0, -9.0];
        let free = spec(6, 2, Gating::Sigmoid);
        assert_eq!(selected(&free, &[], &logits).0, [0, 4]);
        let limited = MoeSpec { groups: Some(Groups { count: 3, top_k: 1 }), ..free };
        assert_eq!(selected(&limited, &[], &logits).0, [3, 2]);
    }

    #[test]
    fn softmax_expert_groups_are_ranked_by_their_best_expert() {
        let logits = [4.0, -9.0, 3.5, 3.0, 3.0, -9.0];
        let limited =
            MoeSpec { groups: Some(Groups { count: 3, top_k: 1 }), ..spec(6, 2, Gating::Softmax) };
        assert_eq!(selected(&limited, &[], &logits).0, [0, 1]);
    }
}

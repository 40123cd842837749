//! Confidence of masked positions, which determines the order of unmasking.

use puna_models::UnmaskOrder;
use puna_sampler::{Mt19937, log_probs};

/// Confidence of a position with these logits and the sampled `token`; larger is more confident. It
/// uses the model's own distribution, regardless of sampling parameters.
pub fn confidence(order: UnmaskOrder, logits: &[f32], token: u32, chances: &mut Mt19937) -> f64 {
    match order {
        UnmaskOrder::Confidence => log_probs(logits, token, 0).logprob.into(),
        UnmaskOrder::Entropy => -entropy(logits),
        UnmaskOrder::Margin => match *log_probs(logits, token, 2).top {
            [(_, first), (_, second)] => f64::from(first).exp() - f64::from(second).exp(),
            _ => 1.0,
        },
        UnmaskOrder::Random => chances.next_f32().into(),
        // Random order.
        UnmaskOrder::Origin => 0.0,
    }
}

/// −Σ p ln p, which is ln Σ e^x − Σ p x.
fn entropy(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let (mut sum, mut weighed) = (0.0, 0.0);
    for x in logits.iter().map(|logit| logit - max).filter(|x| x.is_finite()) {
        let weight = f64::from(x.exp());
        sum += weight;
        weighed += weight * f64::from(x);
    }
    sum.ln() - weighed / sum
}

/// Indices of the `count` most confident positions in the order of the text; the earlier of equal
/// ones.
pub fn most_confident(confidence: &[f64], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..confidence.len()).collect();
    order.sort_by(|&a, &b| confidence[b].total_cmp(&confidence[a]));
    order.truncate(count);
    order.sort_unstable();
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEAK: [f32; 4] = [9.0, 0.0, 0.0, 0.0];
    const PAIR: [f32; 4] = [5.0, 5.0, -9.0, -9.0];
    const FLAT: [f32; 4] = [1.5, 1.0, 1.0, 1.0];

    fn of(order: UnmaskOrder, logits: &[f32]) -> f64 {
        confidence(order, logits, 0, &mut Mt19937::new(1))
    }

    #[test]
    fn two_likely_tokens_beat_a_flat_distribution_by_entropy_and_probability_but_not_by_margin() {
        for order in [UnmaskOrder::Entropy, UnmaskOrder::Confidence] {
            assert!(
                of(order, &PEAK) > of(order, &PAIR) && of(order, &PAIR) > of(order, &FLAT),
                "{order:?}"
            );
        }
        assert!(of(UnmaskOrder::Margin, &PEAK) > of(UnmaskOrder::Margin, &FLAT));
        assert!(of(UnmaskOrder::Margin, &FLAT) > of(UnmaskOrder::Margin, &PAIR));
        assert!((of(UnmaskOrder::Entropy, &PAIR) + std::f64::consts::LN_2).abs() < 1e-4);
    }

    #[test]
    fn the_sampled_token_counts_and_not_the_most_probable() {
        let unlikely = confidence(UnmaskOrder::Confidence, &PEAK, 2, &mut Mt19937::new(1));
        assert!(unlikely < of(UnmaskOrder::Confidence, &FLAT));
    }

    #[test]
    fn the_most_confident_come_first_and_the_earlier_of_two() {
        assert_eq!(most_confident(&[0.1, 0.7, 0.3, 0.7, 0.7], 3), [1, 3, 4]);
        assert_eq!(most_confident(&[0.5, 0.5, 0.5], 2), [0, 1]);
        assert_eq!(most_confident(&[f64::NEG_INFINITY, 0.0], 9), [0, 1]);
    }
}

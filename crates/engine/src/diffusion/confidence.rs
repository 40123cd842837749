//! Which masked places become tokens first: how sure the model is of each.

use puna_models::Order;
use puna_sampler::{Mt19937, log_probs};

/// How sure the model is of a place with these logits for which `token` was drawn; larger is surer. It is the model's own
/// distribution that counts, whatever the draw was made from.
pub fn sureness(order: Order, logits: &[f32], token: u32, chances: &mut Mt19937) -> f64 {
    match order {
        Order::Confidence => log_probs(logits, token, 0).logprob.into(),
        Order::Entropy => -entropy(logits),
        Order::Margin => match *log_probs(logits, token, 2).top {
            [(_, first), (_, second)] => f64::from(first).exp() - f64::from(second).exp(),
            _ => 1.0,
        },
        Order::Random => chances.next_f32().into(),
        // Each place has its chance, and whoever has it is as good as others.
        Order::Origin => 0.0,
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

/// The numbers of the `due` surest, the earlier one where two are as sure, in the order of the text.
pub fn surest(sureness: &[f64], due: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..sureness.len()).collect();
    order.sort_by(|&a, &b| sureness[b].total_cmp(&sureness[a]));
    order.truncate(due);
    order.sort_unstable();
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEAK: [f32; 4] = [9.0, 0.0, 0.0, 0.0];
    const PAIR: [f32; 4] = [5.0, 5.0, -9.0, -9.0];
    const FLAT: [f32; 4] = [1.5, 1.0, 1.0, 1.0];

    fn of(order: Order, logits: &[f32]) -> f64 {
        sureness(order, logits, 0, &mut Mt19937::new(1))
    }

    #[test]
    fn a_pair_is_clearer_than_a_plain_by_entropy_and_confidence_but_not_by_its_margin() {
        for order in [Order::Entropy, Order::Confidence] {
            assert!(
                of(order, &PEAK) > of(order, &PAIR) && of(order, &PAIR) > of(order, &FLAT),
                "{order:?}"
            );
        }
        assert!(of(Order::Margin, &PEAK) > of(Order::Margin, &FLAT));
        assert!(of(Order::Margin, &FLAT) > of(Order::Margin, &PAIR));
        assert!((of(Order::Entropy, &PAIR) + std::f64::consts::LN_2).abs() < 1e-4);
    }

    #[test]
    fn what_was_drawn_counts_and_not_what_is_likeliest() {
        let unlikely = sureness(Order::Confidence, &PEAK, 2, &mut Mt19937::new(1));
        assert!(unlikely < of(Order::Confidence, &FLAT));
    }

    #[test]
    fn the_surest_come_first_and_the_earlier_of_two() {
        assert_eq!(surest(&[0.1, 0.7, 0.3, 0.7, 0.7], 3), [1, 3, 4]);
        assert_eq!(surest(&[0.5, 0.5, 0.5], 2), [0, 1]);
        assert_eq!(surest(&[f64::NEG_INFINITY, 0.0], 9), [0, 1]);
    }
}

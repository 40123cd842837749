//! Log-probabilities of a step.

use crate::candidates::top_candidates;

/// Log-probabilities of one position, as `logprobs` reports them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLogprobs {
    /// Natural logarithm of the chosen token's probability.
    pub logprob: f32,
    /// Most likely tokens with their log-probabilities, descending, with ties by ascending id.
    pub top: Vec<(u32, f32)>,
}

/// Computes the log-probability of the chosen token and of the `top` most likely ones from the raw
/// logits. Call it before the sampler, which changes the logits. Impossible tokens have
/// [`f32::MIN`], since JSON has no −∞.
pub fn log_probs(logits: &[f32], chosen: u32, top: usize) -> TokenLogprobs {
    let mut best = Vec::new();
    top_candidates(logits, top.clamp(1, logits.len().max(1)), &mut best);
    let max = best.first().map_or(f32::NEG_INFINITY, |c| c.logit);
    let log_sum = log_sum_exp(logits, max);
    let of = |logit: f32| match f64::from(logit) - log_sum {
        p if p.is_finite() => p as f32,
        _ => f32::MIN,
    };
    let top = best.iter().take(top).map(|c| (c.id, of(c.logit))).collect();
    TokenLogprobs { logprob: logits.get(chosen as usize).map_or(f32::MIN, |&l| of(l)), top }
}

/// `ln Σ e^logit` over the whole vocabulary. The sum runs in lanes, so that it compiles to vector
/// instructions. With the standard library's exponential it would cost more than the whole sampler
/// chain.
fn log_sum_exp(logits: &[f32], max: f32) -> f64 {
    // Independent sums.
    const LANES: usize = 16;
    let mut sum = 0.0_f64;
    for chunk in logits.chunks(4 * LANES) {
        let mut lanes = [0.0_f32; LANES];
        let blocks = chunk.chunks_exact(LANES);
        let rest = blocks.remainder();
        for block in blocks {
            for (lane, &l) in lanes.iter_mut().zip(block) {
                *lane += exp(l - max);
            }
        }
        sum += f64::from(lanes.iter().sum::<f32>());
        sum += rest.iter().map(|&l| f64::from(exp(l - max))).sum::<f64>();
    }
    f64::from(max) + sum.ln()
}

/// `e^x` for x ≤ 0, within 2 units in the last place. 0 below −87 and for NaN. `e^x = 2^n · e^r`
/// with |r| ≤ ½ ln 2 and a polynomial for `e^r`.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // 1.5 · 2^23: adding it leaves the nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN2_HIGH - n * LN2_LOW;
    let poly = [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 0.5];
    let tail = poly.iter().fold(1.987_569_1e-4, |sum, c| sum * r + c);
    let e_r = 1.0 + r + r * r * tail;
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x >= -87.0 { e_r * scale } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_are_those_of_the_raw_softmax() {
        // Probabilities of the worked example: .2225 .0819 .0496 .0111 .6048 .0301
        let logits = [2.0, 1.0, 0.5, -1.0, 3.0, 0.0];
        let got = log_probs(&logits, 1, 3);
        assert!((got.logprob.exp() - 0.0819).abs() < 5e-5);
        assert_eq!(got.top.iter().map(|t| t.0).collect::<Vec<_>>(), [4, 0, 1]);
        assert!((got.top[0].1.exp() - 0.6048).abs() < 5e-5);
        assert!((got.top[1].1 - got.top[0].1 + 1.0).abs() < 1e-6, "differences of logits stay");
        assert_eq!(got.top[2].1, got.logprob);
    }

    #[test]
    fn impossible_tokens_have_a_finite_value_and_ties_are_ordered_by_id() {
        let logits = [f32::NEG_INFINITY, 1.0, 1.0, f32::NAN];
        let got = log_probs(&logits, 0, 9);
        assert_eq!(got.logprob, f32::MIN);
        let half = -std::f32::consts::LN_2;
        assert_eq!(got.top, [(1, half), (2, half), (0, f32::MIN), (3, f32::MIN)]);
        assert_eq!(log_probs(&logits, 77, 0), TokenLogprobs { logprob: f32::MIN, top: vec![] });
        assert_eq!(log_probs(&[], 0, 5), TokenLogprobs { logprob: f32::MIN, top: vec![] });
    }

    #[test]
    fn the_fast_exponential_agrees_with_the_library() {
        for i in 0..=870_000 {
            let x = i as f32 * -1e-4;
            let (got, want) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((got - want).abs() <= 2.5e-7 * want, "e^{x} is {got}, expected {want}");
        }
        assert_eq!(
            [exp(0.0), exp(-200.0), exp(f32::NEG_INFINITY), exp(f32::NAN)],
            [1.0, 0.0, 0.0, 0.0]
        );
    }

    #[test]
    fn a_large_vocabulary_sums_to_one() {
        let logits: Vec<f32> = (0..100_003).map(|i| ((i * 7919) % 1000) as f32 / 50.0).collect();
        let total: f64 =
            (0..1000).map(|i| f64::from(log_probs(&logits, i, 0).logprob).exp() * 100.0).sum();
        assert!((total - 1.0).abs() < 1e-3, "{total}");
    }
}

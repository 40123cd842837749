//! Last stage of a sampler chain: draws one candidate.

use crate::candidates::{Candidate, Candidates, weight};
use crate::rng::Mt19937;

/// Draws in proportion to `e^logit`, in candidate order, and sets the probabilities. Takes exactly
/// one random number, even if only one candidate is left.
pub(crate) fn sample_by_logits(cands: &mut Candidates, rng: &mut Mt19937) -> Option<usize> {
    let u = rng.next_f64();
    let max = cands.max();
    let list = cands.list_mut_keeping_order();
    let mut sum = 0.0_f64;
    for c in list.iter_mut() {
        c.p = weight(c.logit, max);
        sum += f64::from(c.p);
    }
    let target = u * sum;
    let mut running = 0.0_f64;
    let mut chosen = None;
    for (i, c) in list.iter_mut().enumerate() {
        running += f64::from(c.p);
        if chosen.is_none() && running >= target {
            chosen = Some(i);
        }
        c.p = (f64::from(c.p) / sum) as f32;
    }
    chosen.or(list.len().checked_sub(1))
}

/// Draws in proportion to the probabilities, as C++ `std::discrete_distribution` does. A single
/// candidate takes no random number.
fn sample_by_probability(list: &[Candidate], rng: &mut Mt19937) -> Option<usize> {
    if list.len() < 2 {
        return list.len().checked_sub(1);
    }
    let u = rng.next_f64();
    let sum: f64 = list.iter().map(|c| f64::from(c.p)).sum();
    let mut running = 0.0_f64;
    let reached = list.iter().position(|c| {
        running += f64::from(c.p) / sum;
        running >= u
    });
    Some(reached.unwrap_or(list.len() - 1))
}

/// Mirostat: truncates the list so that the surprise of drawn tokens stays near a target.
#[derive(Clone)]
pub(crate) struct Mirostat {
    /// Target surprise τ in bits, and learning rate η.
    tau: f32,
    eta: f32,
    /// Version 1 truncates to an estimated k, version 2 by surprise.
    version: MirostatVersion,
    /// State: largest allowed surprise in bits.
    mu: f32,
    rng: Mt19937,
}

#[derive(Clone, Copy)]
pub(crate) enum MirostatVersion {
    /// Estimates the exponent of Zipf's law from the `m` most likely tokens of a vocabulary of
    /// `n_vocab`.
    One {
        n_vocab: usize,
        m: usize,
    },
    Two,
}

impl Mirostat {
    pub(crate) fn new(version: MirostatVersion, tau: f32, eta: f32, seed: u32) -> Self {
        Self { tau, eta, version, mu: 2.0 * tau, rng: Mt19937::new(seed) }
    }

    pub(crate) fn apply(&mut self, cands: &mut Candidates) -> Option<usize> {
        cands.softmax();
        match self.version {
            MirostatVersion::One { n_vocab, m } => self.truncate_to_k(cands, n_vocab, m),
            MirostatVersion::Two => {
                cands.keep_descending(|rank, c| rank == 0 || -c.p.log2() <= self.mu)
            }
        }
        cands.softmax();
        let chosen = sample_by_probability(cands.list(), &mut self.rng)?;
        let surprise = -cands.list()[chosen].p.log2();
        self.mu -= self.eta * (surprise - self.tau);
        Some(chosen)
    }

    #[cfg(test)]
    pub(crate) fn state(&self) -> f32 {
        self.mu
    }

    fn truncate_to_k(&self, cands: &mut Candidates, n_vocab: usize, m: usize) {
        let n = cands.len();
        let (mut sum_tb, mut sum_tt) = (0.0_f32, 0.0_f32);
        let (mut previous, mut k) = (0.0_f32, n);
        let last = m.min(n);
        cands.keep_descending(|rank, c| {
            // Candidates without probability say nothing about the exponent.
            if (1..last).contains(&rank) && c.p > 0.0 {
                let t = ((rank as f32 + 1.0) / rank as f32).ln();
                sum_tb += t * (previous / c.p).ln();
                sum_tt += t * t;
            }
            previous = c.p;
            if rank + 1 == last {
                k = self.estimate_k(sum_tb, sum_tt, n_vocab).clamp(1, n);
            }
            rank < last || rank < k
        });
        cands.keep_descending(|rank, _| rank < k);
    }

    /// `k = (ε · 2^μ / (1 − n_vocab^−ε))^(1/ŝ)` with ε = ŝ − 1.
    fn estimate_k(&self, sum_tb: f32, sum_tt: f32, n_vocab: usize) -> usize {
        if sum_tt == 0.0 {
            return 1;
        }
        let s = sum_tb / sum_tt;
        let (epsilon, n_vocab) = (s - 1.0, n_vocab as f32);
        let ratio = match epsilon.abs() < 1e-6 {
            true => n_vocab.ln().recip(), // the limit at ε = 0
            false => epsilon / (1.0 - n_vocab.powf(-epsilon)),
        };
        // The cast saturates, and NaN becomes 0.
        (ratio * self.mu.exp2()).powf(1.0 / s) as usize
    }
}

/// Adaptive-p: prefers tokens with a probability near a target, which adapts to the tokens drawn
/// before.
#[derive(Clone)]
pub(crate) struct AdaptiveP {
    target: f32,
    decay: f32,
    /// Decaying sums over the drawn tokens: their probabilities, and their weights.
    weighted_sum: f32,
    total_weight: f32,
    /// Drawn token and its probability before the transform, until the token is accepted.
    pending: Option<(u32, f32)>,
    original: Vec<f32>,
    rng: Mt19937,
}

impl AdaptiveP {
    /// Logit of a token at the target.
    const PEAK: f32 = 5.0;
    const SHARPNESS: f32 = 10.0;
    const WIDTH: f32 = 0.3;

    pub(crate) fn new(target: f32, decay: f32, seed: u32) -> Self {
        let decay = decay.clamp(0.0, 0.99);
        let total_weight = 1.0 / (1.0 - decay);
        let weighted_sum = target / (1.0 - decay);
        let rng = Mt19937::new(seed);
        Self { target, decay, weighted_sum, total_weight, pending: None, original: Vec::new(), rng }
    }

    pub(crate) fn apply(&mut self, cands: &mut Candidates) -> Option<usize> {
        cands.softmax();
        if self.target < 0.0 {
            return sample_by_probability(cands.list(), &mut self.rng);
        }
        self.original.clear();
        self.original.extend(cands.list().iter().map(|c| c.p));
        let wanted = 2.0 * self.target.clamp(0.0, 1.0) - self.weighted_sum / self.total_weight;
        let wanted = wanted.clamp(0.0, 1.0);
        for c in cands.list_mut().iter_mut().filter(|c| c.logit > f32::NEG_INFINITY) {
            let d = (c.p - wanted).abs() / Self::WIDTH;
            c.logit = Self::PEAK - Self::SHARPNESS * d * d / (1.0 + d);
        }
        cands.softmax();
        let chosen = sample_by_probability(cands.list(), &mut self.rng)?;
        self.pending = Some((cands.list()[chosen].id, self.original[chosen]));
        Some(chosen)
    }

    pub(crate) fn accept(&mut self, token: u32) {
        if let Some((id, p)) = self.pending.take()
            && id == token
        {
            self.weighted_sum = p + self.decay * self.weighted_sum;
            self.total_weight = 1.0 + self.decay * self.total_weight;
        }
    }

    #[cfg(test)]
    pub(crate) fn state(&self) -> [f32; 2] {
        [self.weighted_sum, self.total_weight]
    }
}

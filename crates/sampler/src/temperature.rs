//! Temperature, fixed and dynamic.

use crate::candidates::Candidates;

/// Divides logits by a temperature. 0 keeps only the first maximum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Temperature {
    pub(crate) value: f32,
    /// Above 0: the temperature lies in `value ± range` and grows with the entropy.
    pub(crate) range: f32,
    pub(crate) exponent: f32,
}

impl Temperature {
    /// Whether this stage always leaves only the largest logit.
    pub(crate) fn is_greedy(&self) -> bool {
        self.value <= 0.0 && !self.is_dynamic()
    }

    pub(crate) fn is_dynamic(&self) -> bool {
        self.range > 0.0
    }

    pub(crate) fn apply(&self, cands: &mut Candidates) {
        if !self.is_dynamic() {
            scale(cands, self.value);
        } else if cands.len() > 1 {
            cands.softmax();
            cands.sort();
            let temperature = self.temperature_for_entropy(cands);
            scale(cands, temperature);
        }
    }

    /// `min + (max − min) · (H / ln n)^exponent`
    fn temperature_for_entropy(&self, cands: &Candidates) -> f32 {
        let (min, max) = ((self.value - self.range).max(0.0), self.value + self.range);
        let probs = cands.list().iter().map(|c| f64::from(c.p)).filter(|&p| p > 0.0);
        let entropy: f64 = probs.map(|p| -p * p.ln()).sum();
        let share = entropy / (cands.len() as f64).ln();
        min + (max - min) * (share as f32).powf(self.exponent)
    }
}

fn scale(cands: &mut Candidates, temperature: f32) {
    if temperature > 0.0 {
        for c in cands.list_mut_keeping_order() {
            c.logit /= temperature;
        }
    } else if let Some(best) = cands.argmax() {
        for (i, c) in cands.list_mut_keeping_order().iter_mut().enumerate() {
            if i != best {
                c.logit = f32::NEG_INFINITY;
            }
        }
    }
}

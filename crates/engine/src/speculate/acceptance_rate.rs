//! Acceptance rates of draft tokens, estimated from recent drafts.

use super::DraftKind;

/// Assumed acceptance rate of each kind before the first draft.
const INITIAL_RATES: [f64; DraftKind::COUNT] = [0.3, 0.5, 0.8, 0.6];
/// Weight of the prior rate, in draft tokens.
const PRIOR_TOKENS: f64 = 3.0;
/// Decay of counts with each draft: a sequence averages over about 10 drafts, the engine over about
/// 100.
const SEQUENCE_DECAY: f64 = 0.9;
const ENGINE_DECAY: f64 = 0.99;

/// Verified and accepted draft tokens, with exponential decay.
#[derive(Debug, Clone, Copy, Default)]
struct AcceptanceCounts {
    verified: f64,
    accepted: f64,
}

/// Acceptance counts by kind of draft.
#[derive(Debug, Clone, Copy)]
pub struct AcceptanceRates {
    counts: [AcceptanceCounts; DraftKind::COUNT],
    decay: f64,
}

impl AcceptanceRates {
    /// Rates of one sequence.
    pub fn of_sequence() -> Self {
        Self { counts: Default::default(), decay: SEQUENCE_DECAY }
    }

    /// Rates of all sequences of an engine, the prior of each sequence.
    pub fn of_engine() -> Self {
        Self { counts: Default::default(), decay: ENGINE_DECAY }
    }

    /// Records a draft of `drafted` tokens of which the first `accepted` were accepted. Tokens
    /// behind the first rejected one do not count, since they continue another text.
    pub fn record(&mut self, kind: DraftKind, drafted: usize, accepted: usize) {
        let counts = &mut self.counts[kind as usize];
        let verified = accepted + usize::from(accepted < drafted);
        counts.verified = counts.verified * self.decay + verified as f64;
        counts.accepted = counts.accepted * self.decay + accepted as f64;
    }

    /// Probability that a draft token is accepted after all draft tokens before it were. `engine`
    /// is the prior.
    pub fn rate(&self, kind: DraftKind, engine: &AcceptanceRates) -> f64 {
        let prior = engine.with_prior(kind, INITIAL_RATES[kind as usize]);
        self.with_prior(kind, prior)
    }

    fn with_prior(&self, kind: DraftKind, prior: f64) -> f64 {
        let counts = self.counts[kind as usize];
        (counts.accepted + PRIOR_TOKENS * prior) / (counts.verified + PRIOR_TOKENS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_follow_the_recorded_drafts() {
        let all = AcceptanceRates::of_engine();
        let mut own = AcceptanceRates::of_sequence();
        let start = own.rate(DraftKind::Short, &all);
        (0..30).for_each(|_| own.record(DraftKind::Short, 3, 3));
        assert!(own.rate(DraftKind::Short, &all) > 0.9 && start < 0.5);
        (0..30).for_each(|_| own.record(DraftKind::Short, 3, 0));
        assert!(own.rate(DraftKind::Short, &all) < 0.2);
        let other = own.rate(DraftKind::Long, &all);
        assert!((other - INITIAL_RATES[DraftKind::Long as usize]).abs() < 1e-9, "kinds are apart");
    }

    #[test]
    fn the_rates_of_the_engine_are_the_prior_of_a_new_sequence() {
        let mut all = AcceptanceRates::of_engine();
        (0..100).for_each(|_| all.record(DraftKind::Model, 3, 0));
        assert!(AcceptanceRates::of_sequence().rate(DraftKind::Model, &all) < 0.1);
    }

    #[test]
    fn tokens_after_the_first_rejected_one_do_not_count() {
        let all = AcceptanceRates::of_engine();
        let (mut one, mut ten) = (AcceptanceRates::of_sequence(), AcceptanceRates::of_sequence());
        one.record(DraftKind::Long, 1, 0);
        ten.record(DraftKind::Long, 10, 0);
        assert_eq!(one.rate(DraftKind::Long, &all), ten.rate(DraftKind::Long, &all));
    }
}

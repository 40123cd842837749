//! Speculative decoding of one sequence: lookup index, acceptance rates, latest draft.

use super::acceptance_rate::AcceptanceRates;
use super::{Draft, DraftKind, DraftStats, Drafter, Speculation};

/// A draft that no step verifies. The tokens that are generated show whether it would have been
/// accepted.
#[derive(Debug)]
struct UnverifiedDraft {
    draft: Draft,
    /// Number of tokens before the draft.
    position: usize,
}

/// Speculation state of a sequence.
pub struct SequenceSpeculation {
    pub settings: Speculation,
    lookup: Box<dyn Drafter>,
    pub rates: AcceptanceRates,
    unverified: Option<UnverifiedDraft>,
    pub counts: DraftStats,
}

impl SequenceSpeculation {
    pub fn new(settings: Speculation, lookup: Box<dyn Drafter>) -> Self {
        let (rates, counts) = (AcceptanceRates::of_sequence(), DraftStats::default());
        Self { settings, lookup, rates, unverified: None, counts }
    }

    /// Drafts at max_tokens `max_tokens` tokens by prompt lookup. The draft ends before an end
    /// token.
    pub fn look_up(
        &mut self,
        tokens: &[u32],
        max_tokens: usize,
        is_end: impl Fn(u32) -> bool,
    ) -> Option<Draft> {
        if !self.settings.lookup || max_tokens == 0 {
            return None;
        }
        let mut draft = self.lookup.draft(tokens, max_tokens)?;
        let len =
            draft.tokens.iter().position(|&token| is_end(token)).unwrap_or(draft.tokens.len());
        draft.tokens.truncate(len.min(max_tokens));
        (!draft.tokens.is_empty()).then_some(draft)
    }

    /// Keeps a draft that no step verifies.
    pub fn keep_unverified(&mut self, draft: Draft, tokens: &[u32]) {
        // A draft that is kept already covers more tokens.
        if self.unverified.is_none() {
            self.unverified = Some(UnverifiedDraft { draft, position: tokens.len() });
        }
    }

    /// Compares the kept draft with the generated tokens, and records the result once it is clear.
    pub fn compare_unverified(&mut self, tokens: &[u32], engine: &mut AcceptanceRates) {
        let Some(UnverifiedDraft { draft, position }) = &self.unverified else { return };
        let generated = &tokens[(*position).min(tokens.len())..];
        let equal = draft.tokens.iter().zip(generated).take_while(|(a, b)| a == b).count();
        if equal == draft.tokens.len() || equal < generated.len() {
            let (kind, drafted) = (draft.kind, draft.tokens.len());
            self.unverified = None;
            self.record(kind, drafted, equal, engine);
        }
    }

    /// Records how many of a draft's tokens a step accepted.
    pub fn record_verified(
        &mut self,
        kind: DraftKind,
        drafted: usize,
        accepted: usize,
        engine: &mut AcceptanceRates,
    ) {
        self.unverified = None;
        self.record(kind, drafted, accepted, engine);
    }

    fn record(
        &mut self,
        kind: DraftKind,
        drafted: usize,
        accepted: usize,
        engine: &mut AcceptanceRates,
    ) {
        self.rates.record(kind, drafted, accepted);
        engine.record(kind, drafted, accepted);
    }

    /// Discards index and draft, since earlier tokens have changed.
    pub fn reset(&mut self) {
        self.lookup.reset();
        self.unverified = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speculate::lookup::LookupDrafter;

    fn sequence(speculation: Speculation) -> SequenceSpeculation {
        SequenceSpeculation::new(speculation, Box::new(LookupDrafter::default()))
    }

    #[test]
    fn a_draft_ends_before_an_end_token() {
        let text = [1, 2, 3, 99, 4, 5, 1, 2];
        let draft = sequence(Speculation::AUTO).look_up(&text, 4, |t| t == 99).unwrap();
        assert_eq!(draft.tokens, [3]);
        assert_eq!(sequence(Speculation::AUTO).look_up(&text, 4, |t| t == 3), None);
    }

    #[test]
    fn disabled_lookup_drafts_nothing() {
        assert_eq!(sequence(Speculation::OFF).look_up(&[1, 2, 3, 1, 2], 4, |_| false), None);
    }

    #[test]
    fn unverified_drafts_are_compared_with_the_generated_tokens() {
        let mut engine = AcceptanceRates::of_engine();
        let mut s = sequence(Speculation::AUTO);
        let before = s.rates.rate(DraftKind::Short, &engine);
        let draft = Draft { tokens: vec![5, 6], kind: DraftKind::Short };
        s.keep_unverified(draft.clone(), &[1]);
        s.compare_unverified(&[1, 5], &mut engine);
        assert_eq!(s.rates.rate(DraftKind::Short, &engine), before, "still open");
        s.compare_unverified(&[1, 5, 6], &mut engine);
        let good = s.rates.rate(DraftKind::Short, &engine);
        assert!(good > before);
        s.keep_unverified(draft, &[1]);
        s.compare_unverified(&[1, 9], &mut engine);
        assert!(s.rates.rate(DraftKind::Short, &engine) < good);
        assert_eq!(s.counts, DraftStats::default(), "no step verified them");
    }
}

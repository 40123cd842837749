//! Sharing of the time between steps that generate and steps that embed.

use std::collections::HashSet;
use std::time::Duration;

/// Time that the generation of other clients gets before the next step of embeddings.
#[derive(Debug, Default)]
pub struct EmbedPacing {
    left: Duration,
}

impl EmbedPacing {
    /// Whether embeddings may take a step now.
    pub fn is_due(&self) -> bool {
        self.left.is_zero()
    }

    /// Counts the time of a step that generated.
    pub fn record_generation(&mut self, time: Duration) {
        self.left = self.left.saturating_sub(time);
    }

    /// Sets the time of generation after a step of embeddings. It is as long as the step, for each
    /// client that only generates, divided by the clients that embed. Alternating steps suffice for
    /// a client that does both.
    pub fn record_embedding(
        &mut self,
        time: Duration,
        generating: &HashSet<u64>,
        embedding: &HashSet<u64>,
    ) {
        let others = generating.difference(embedding).count() as u32;
        self.left = time * others / embedding.len().max(1) as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time of a step of embeddings.
    const STEP: Duration = Duration::from_millis(60);

    /// Time of generation between two steps of embeddings.
    fn between(generating: &[u64], embedding: &[u64]) -> Duration {
        let set = |clients: &[u64]| clients.iter().copied().collect();
        let mut turn = EmbedPacing::default();
        assert!(turn.is_due());
        turn.record_embedding(STEP, &set(generating), &set(embedding));
        let mut time = Duration::ZERO;
        while !turn.is_due() {
            turn.record_generation(Duration::from_millis(10));
            time += Duration::from_millis(10);
        }
        time
    }

    #[test]
    fn clients_that_generate_get_as_much_time_as_those_that_embed() {
        assert_eq!(between(&[1], &[2]), STEP);
        assert_eq!(between(&[1, 3, 4], &[2]), 3 * STEP);
        assert_eq!(between(&[1], &[2, 3]), STEP / 2);
        assert_eq!(between(&[1, 2], &[2]), STEP);
    }

    #[test]
    fn steps_alternate_for_one_client() {
        assert_eq!(between(&[1], &[1]), Duration::ZERO);
        assert_eq!(between(&[], &[1]), Duration::ZERO);
    }
}

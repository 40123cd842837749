//! Sharing of the time between steps that generate and steps that embed.

use std::collections::HashSet;
use std::time::Duration;

/// Share of the embeddings of a client that also generates, relative to a client that only embeds.
const EMBED_SHARE_OF_BOTH: f64 = 0.125;
/// Least share of a step of embeddings.
const MIN_SHARE: f64 = 0.01;

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

    /// Sets the time of generation after a step of embeddings, so that each client that only
    /// generates has its share of the whole time. A client that also embeds has its share of the
    /// generation, too, so its embeddings have a part of a share. Without clients that only
    /// generate, steps alternate.
    pub fn record_embedding(
        &mut self,
        time: Duration,
        generating: &HashSet<u64>,
        embedding: &HashSet<u64>,
    ) {
        let both = generating.intersection(embedding).count();
        if both == generating.len() {
            self.left = Duration::ZERO;
            return;
        }
        let clients = (generating.len() + embedding.len() - both) as f64;
        let only_embed = (embedding.len() - both) as f64;
        let share = ((only_embed + both as f64 * EMBED_SHARE_OF_BOTH) / clients).max(MIN_SHARE);
        self.left = time.mul_f64((1.0 - share) / share);
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
    }

    #[test]
    fn clients_that_do_both_leave_others_their_share() {
        // An eighth of a half of the time.
        assert_eq!(between(&[1, 2], &[2]), 15 * STEP);
        // Client 4 has a quarter, and clients 2 and 3 an eighth of a quarter each.
        let time = between(&[1, 2, 3], &[2, 3, 4]).as_secs_f64() / STEP.as_secs_f64();
        assert!((2.1..2.4).contains(&time), "{time}");
    }

    #[test]
    fn steps_alternate_for_one_client() {
        assert_eq!(between(&[1], &[1]), Duration::ZERO);
        assert_eq!(between(&[], &[1]), Duration::ZERO);
    }
}

//! Number of connections of a download: adds connections as long as they increase the throughput.

use std::time::{Duration, Instant};

/// Connections at the start of a download.
pub(crate) const INITIAL_CONNECTIONS: usize = 4;
/// Connections that are added in one step.
const CONNECTIONS_PER_STEP: usize = 2;
/// Time between two steps.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);
/// A step must increase the throughput by at least one part in this many, or it was the last one.
const MIN_GAIN_DIVISOR: u64 = 8;

/// Decides about further connections of a download.
pub(crate) struct ConnectionScaling {
    max_connections: usize,
    /// Time of the next decision.
    pub(crate) next_check: Instant,
    /// Received bytes at the last decision, and the most bytes received in one interval.
    bytes: u64,
    best_interval_bytes: u64,
    is_finished: bool,
}

impl ConnectionScaling {
    /// For a download with at most `max_connections`.
    pub(crate) fn new(max_connections: usize) -> Self {
        Self {
            max_connections,
            next_check: Instant::now() + MEASURE_INTERVAL,
            bytes: 0,
            best_interval_bytes: 0,
            is_finished: max_connections <= INITIAL_CONNECTIONS,
        }
    }

    pub(crate) fn is_active(&self) -> bool {
        !self.is_finished
    }

    /// The number of connections to add, given the received bytes and the current connections.
    pub(crate) fn connections_to_add(&mut self, bytes: u64, connections: usize) -> usize {
        let interval_bytes = bytes.saturating_sub(self.bytes);
        (self.next_check, self.bytes) = (Instant::now() + MEASURE_INTERVAL, bytes);
        if self.best_interval_bytes > 0
            && interval_bytes
                < self.best_interval_bytes + self.best_interval_bytes / MIN_GAIN_DIVISOR
        {
            self.is_finished = true;
            return 0;
        }
        self.best_interval_bytes = interval_bytes;
        let more = CONNECTIONS_PER_STEP.min(self.max_connections.saturating_sub(connections));
        self.is_finished = more == 0;
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_added_while_throughput_grows() {
        let mut scaling = ConnectionScaling::new(12);
        assert_eq!(
            scaling.connections_to_add(100, 4),
            2,
            "the first look is what later ones are compared with"
        );
        assert_eq!(scaling.connections_to_add(250, 6), 2, "half as much again");
        assert_eq!(scaling.connections_to_add(410, 8), 0, "hardly more");
        assert!(!scaling.is_active());
        let mut scaling = ConnectionScaling::new(7);
        assert_eq!(
            (scaling.connections_to_add(100, 4), scaling.connections_to_add(300, 6)),
            (2, 1)
        );
        assert_eq!((scaling.connections_to_add(900, 7), scaling.is_active()), (0, false));
        assert!(
            !ConnectionScaling::new(4).is_active(),
            "as many as there may be from the beginning"
        );
    }
}

//! Detects connections that deliver almost nothing.

use std::time::Duration;

/// A connection with fewer bytes per second counts as stalled.
const MIN_BYTES_PER_SECOND: u64 = 100;

/// Measures the throughput of one connection over each stall timeout.
pub(crate) struct ThroughputMonitor {
    stall_timeout: Duration,
    waited: Duration,
    bytes: u64,
}

impl ThroughputMonitor {
    pub(crate) fn new(stall_timeout: Duration) -> Self {
        Self { stall_timeout, waited: Duration::ZERO, bytes: 0 }
    }

    /// Adds bytes that arrived after a wait. Returns the bytes of the whole period if it has lasted
    /// for the stall timeout and its throughput was too low.
    pub(crate) fn too_slow(&mut self, waited: Duration, bytes: u64) -> Option<u64> {
        self.waited += waited;
        self.bytes += bytes;
        if self.waited < self.stall_timeout {
            return None;
        }
        let (time, received) = (std::mem::take(&mut self.waited), std::mem::take(&mut self.bytes));
        (u128::from(received) * 1000 < u128::from(MIN_BYTES_PER_SECOND) * time.as_millis())
            .then_some(received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalled_connections_are_detected_and_slow_ones_continue() {
        let second = Duration::from_secs(1);
        let after = |bytes, seconds| {
            let mut monitor = ThroughputMonitor::new(30 * second);
            (1..=seconds)
                .find_map(|n| monitor.too_slow(second, bytes).map(|received| (n, received)))
        };
        assert_eq!(after(1, 100), Some((30, 30)));
        assert_eq!(after(99, 100), Some((30, 2970)));
        assert_eq!(after(100, 1000), None);
        // A connection that becomes slow is detected too.
        let mut monitor = ThroughputMonitor::new(30 * second);
        assert_eq!(monitor.too_slow(30 * second, 1 << 20), None);
        assert_eq!(monitor.too_slow(29 * second, 1), None);
        assert_eq!(monitor.too_slow(second, 1), Some(2));
    }
}

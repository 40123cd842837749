//! Rate limits in bytes per second.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::lock::lock;

/// Unused time that is credited after an idle period.
const MAX_BURST: Duration = Duration::from_millis(100);

/// Rate limit shared by several connections.
#[derive(Debug)]
pub(crate) struct RateLimit {
    bytes_per_second: u64,
    /// Time up to which transferred bytes use the rate.
    paid_until: Mutex<Option<Instant>>,
}

impl RateLimit {
    pub(crate) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), paid_until: Mutex::default() }
    }

    /// Accounts for transferred bytes and waits until they are within the limit.
    pub(crate) async fn throttle(&self, bytes: u64) {
        let next_free = {
            let mut paid_until = lock(&self.paid_until);
            let now = Instant::now();
            let start = paid_until.map_or(now, |paid_until| {
                paid_until.max(now.checked_sub(MAX_BURST).unwrap_or(now))
            });
            let next_free =
                start + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
            *paid_until = Some(next_free);
            next_free
        };
        tokio::time::sleep_until(next_free).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connections_share_a_limit() {
        let limit = RateLimit::new(1000);
        let started = Instant::now();
        let first = async {
            for _ in 0..10 {
                limit.throttle(100).await;
            }
        };
        let second = async { limit.throttle(1000).await };
        tokio::join!(first, second);
        let elapsed = started.elapsed().as_secs_f64();
        assert!((1.9..=2.1).contains(&elapsed), "{elapsed}");
        // An idle hour does not allow a burst.
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let started = Instant::now();
        limit.throttle(5000).await;
        assert!(started.elapsed().as_secs_f64() > 4.8);
    }
}

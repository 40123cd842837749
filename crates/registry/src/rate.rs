//! Limits of speed: bytes are paid for, and who has none left waits.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::lock::lock;

/// What may be saved up while nothing is asked for.
const SAVED: Duration = Duration::from_millis(100);

/// A limit that connections share.
#[derive(Debug)]
pub(crate) struct Limit {
    bytes_per_second: u64,
    /// When all bytes so far are paid for.
    paid: Mutex<Option<Instant>>,
}

impl Limit {
    pub(crate) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), paid: Mutex::default() }
    }

    /// Waits until bytes that have moved are within the limit.
    pub(crate) async fn pay(&self, bytes: u64) {
        let until = {
            let mut paid = lock(&self.paid);
            let now = Instant::now();
            let from = paid.map_or(now, |paid| paid.max(now.checked_sub(SAVED).unwrap_or(now)));
            let until = from + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
            *paid = Some(until);
            until
        };
        tokio::time::sleep_until(until).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connections_share_a_limit() {
        let limit = Limit::new(1000);
        let begun = Instant::now();
        let one = async {
            for _ in 0..10 {
                limit.pay(100).await;
            }
        };
        let two = async { limit.pay(1000).await };
        tokio::join!(one, two);
        let took = begun.elapsed().as_secs_f64();
        assert!((1.9..=2.1).contains(&took), "{took}");
        // An idle hour buys no burst.
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let begun = Instant::now();
        limit.pay(5000).await;
        assert!(begun.elapsed().as_secs_f64() > 4.8);
    }
}

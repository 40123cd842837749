//! Whether the bytes of an answer come at a pace that is worth waiting for.

use std::time::Duration;

/// Bytes a second below which a connection counts as one that stands still.
const LEAST: u64 = 100;

/// What comes over one connection, as often as the patience with one that stands still is over.
pub(crate) struct Pace {
    patience: Duration,
    waited: Duration,
    bytes: u64,
}

impl Pace {
    pub(crate) fn new(patience: Duration) -> Self {
        Self { patience, waited: Duration::ZERO, bytes: 0 }
    }

    /// Counts bytes that came after a wait, in which nothing else was done. Those of the whole time, if that was as long as
    /// the patience and they are next to nothing.
    pub(crate) fn too_slow(&mut self, waited: Duration, bytes: u64) -> Option<u64> {
        self.waited += waited;
        self.bytes += bytes;
        if self.waited < self.patience {
            return None;
        }
        let (time, came) = (std::mem::take(&mut self.waited), std::mem::take(&mut self.bytes));
        (u128::from(came) * 1000 < u128::from(LEAST) * time.as_millis()).then_some(came)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_drips_is_found_out_when_the_patience_is_over_and_what_is_slow_goes_on() {
        let second = Duration::from_secs(1);
        let after = |bytes, seconds| {
            let mut pace = Pace::new(30 * second);
            (1..=seconds).find_map(|n| pace.too_slow(second, bytes).map(|came| (n, came)))
        };
        assert_eq!(after(1, 100), Some((30, 30)));
        assert_eq!(after(99, 100), Some((30, 2970)));
        assert_eq!(after(100, 1000), None);
        // One that has stopped being fast is found out, too.
        let mut pace = Pace::new(30 * second);
        assert_eq!(pace.too_slow(30 * second, 1 << 20), None);
        assert_eq!(pace.too_slow(29 * second, 1), None);
        assert_eq!(pace.too_slow(second, 1), Some(2));
    }
}

//! How many connections a download has: as many as make it faster.

use std::time::{Duration, Instant};

/// Connections that a download begins with.
pub(crate) const FIRST_STREAMS: usize = 4;
/// Connections that are added at once, as long as that is worth it…
const STEP: usize = 2;
/// … after this long, …
const LOOK: Duration = Duration::from_secs(1);
/// … which it is where a part of this more comes.
const WORTH: u64 = 8;

/// Looks whether further connections make a download faster, until they do not.
pub(crate) struct Growth {
    most: usize,
    /// When to look.
    pub(crate) at: Instant,
    /// Bytes until the last look, and how many came in the time before it.
    bytes: u64,
    best: u64,
    over: bool,
}

impl Growth {
    /// For at most so many connections.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, at: Instant::now() + LOOK, bytes: 0, best: 0, over: most <= FIRST_STREAMS }
    }

    pub(crate) fn goes_on(&self) -> bool {
        !self.over
    }

    /// How many connections to add to those there are, now that so many bytes have come.
    pub(crate) fn more(&mut self, bytes: u64, connections: usize) -> usize {
        let got = bytes.saturating_sub(self.bytes);
        (self.at, self.bytes) = (Instant::now() + LOOK, bytes);
        if self.best > 0 && got < self.best + self.best / WORTH {
            self.over = true;
            return 0;
        }
        self.best = got;
        let more = STEP.min(self.most.saturating_sub(connections));
        self.over = more == 0;
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_added_as_long_as_that_helps() {
        let mut growth = Growth::new(12);
        assert_eq!(growth.more(100, 4), 2, "the first look is what later ones are compared with");
        assert_eq!(growth.more(250, 6), 2, "half as much again");
        assert_eq!(growth.more(410, 8), 0, "hardly more");
        assert!(!growth.goes_on());
        let mut growth = Growth::new(7);
        assert_eq!((growth.more(100, 4), growth.more(300, 6)), (2, 1));
        assert_eq!((growth.more(900, 7), growth.goes_on()), (0, false));
        assert!(!Growth::new(4).goes_on(), "as many as there may be from the beginning");
    }
}

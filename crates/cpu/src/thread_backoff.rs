//! Thread back-off: runs steps on fewer threads while other processes occupy the processors.
//!
//! All threads wait at each barrier for the last one. A thread that was descheduled arrives a time
//! slice late, some milliseconds, however short the work between two barriers is. Fewer threads are
//! descheduled less often; a single thread never waits.

use std::time::{Duration, Instant};

/// A wait at a barrier above this time means that a thread was descheduled, not that it had more
/// work.
pub const DESCHEDULED_WAIT: Duration = Duration::from_millis(1);

/// Step time over which waits are summed before each decision.
const DECISION_INTERVAL: Duration = Duration::from_millis(100);

/// Time on fewer threads before all threads are tried again. It doubles with each failed try, from
/// the first to the second value.
const RETRY_DELAY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(16)];

/// Decides how often the number of threads is halved, from the time of steps and the time that they
/// waited for descheduled threads.
pub struct ThreadBackoff {
    halvings: u32,
    interval: Interval,
    retry_delay: Duration,
    /// When the number of threads last changed.
    changed: Instant,
}

/// Sums since the last decision.
#[derive(Default)]
struct Interval {
    step_time: Duration,
    wait_time: Duration,
}

impl ThreadBackoff {
    /// Starts with all threads.
    pub fn new(now: Instant) -> Self {
        Self {
            halvings: 0,
            interval: Interval::default(),
            retry_delay: RETRY_DELAY[0],
            changed: now,
        }
    }

    /// Number of threads to use of `all`, at least one.
    pub fn threads(&self, all: usize) -> usize {
        (all >> self.halvings.min(usize::BITS - 1)).max(1)
    }

    /// Records a step that ended `now`: its time, and how long its first thread waited for
    /// descheduled ones. Returns whether the number of threads changes.
    pub fn record_step(
        &mut self,
        all: usize,
        step_time: Duration,
        wait_time: Duration,
        now: Instant,
    ) -> bool {
        let threads = self.threads(all);
        let since = now.saturating_duration_since(self.changed);
        if self.halvings > 0 && since >= self.retry_delay {
            // If the processors are still busy, the next try comes later.
            self.retry_delay = (2 * self.retry_delay).min(RETRY_DELAY[1]);
            self.set_halvings(0, now);
            return true;
        }
        self.interval.step_time += step_time;
        self.interval.wait_time += wait_time;
        if self.interval.step_time < DECISION_INTERVAL {
            return false;
        }
        let mostly_waits = 2 * self.interval.wait_time > self.interval.step_time;
        self.interval = Interval::default();
        if mostly_waits && threads > 1 {
            self.set_halvings(self.halvings + 1, now);
            return true;
        }
        if self.halvings == 0 && since >= RETRY_DELAY[1] {
            self.retry_delay = RETRY_DELAY[0];
        }
        false
    }

    fn set_halvings(&mut self, halvings: u32, now: Instant) {
        (self.halvings, self.changed, self.interval) = (halvings, now, Interval::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Duration of a step.
    const STEP: Duration = Duration::from_millis(20);

    /// Threads after each of `steps` steps of an 8-thread layout that wait for `share` percent of
    /// their time.
    fn run(backoff: &mut ThreadBackoff, now: &mut Instant, steps: usize, share: u32) -> Vec<usize> {
        let mut step = || {
            *now += STEP;
            backoff.record_step(8, STEP, STEP * share / 100, *now);
            backoff.threads(8)
        };
        (0..steps).map(|_| step()).collect()
    }

    #[test]
    fn threads_are_halved_while_most_of_the_time_is_waiting() {
        let mut now = Instant::now();
        let mut backoff = ThreadBackoff::new(now);
        let threads = run(&mut backoff, &mut now, 20, 80);
        assert_eq!(threads, [vec![8; 4], vec![4; 5], vec![2; 5], vec![1; 6]].concat());
    }

    #[test]
    fn waiting_for_less_than_half_of_the_time_changes_nothing() {
        let mut now = Instant::now();
        let mut backoff = ThreadBackoff::new(now);
        assert_eq!(run(&mut backoff, &mut now, 200, 45), vec![8; 200]);
    }

    #[test]
    fn all_threads_are_tried_again_after_growing_delays() {
        let mut now = Instant::now();
        let start = now;
        let mut backoff = ThreadBackoff::new(now);
        let mut tries = Vec::new();
        let mut before = 8;
        while now < start + Duration::from_secs(60) {
            let threads = run(&mut backoff, &mut now, 1, 80)[0];
            if threads == 8 && before < 8 {
                tries.push((now - start).as_secs());
            }
            before = threads;
        }
        // Delays of 1, 2, 4, 8, 16 and 16 s; each halving down from 8 threads takes 0.3 s.
        assert_eq!(tries, [1, 3, 7, 16, 32, 48]);
    }

    #[test]
    fn the_retry_delay_is_reset_once_all_threads_run_again() {
        let mut now = Instant::now();
        let mut backoff = ThreadBackoff::new(now);
        run(&mut backoff, &mut now, 2000, 80);
        assert_eq!(backoff.retry_delay, RETRY_DELAY[1]);
        // The next try succeeds.
        let threads = run(&mut backoff, &mut now, 2000, 0);
        assert_eq!(threads[1000..], [8; 1000]);
        assert_eq!(backoff.retry_delay, RETRY_DELAY[0]);
    }
}

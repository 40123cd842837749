//! Gives way to neighbours: where other processes take the cores, many threads are slower than few.
//!
//! At a barrier all wait for the last. A thread whose core is taken comes a time slice late, some milliseconds, at one
//! barrier after the other, however short the work between them. Fewer threads wait for fewer; one waits for nobody.

use std::time::{Duration, Instant};

/// A wait that is longer is not for work: some thread did not run.
pub const LATE: Duration = Duration::from_millis(1);

/// Time of steps that is looked at together.
const WINDOW: Duration = Duration::from_millis(100);

/// How long fewer threads run before more are tried again: at first, and at most.
const HOLD: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(16)];

/// Decides, from how long steps take and how much of that is waiting for late threads, how often the number of threads is halved.
pub struct Ease {
    halved: u32,
    window: Window,
    hold: Duration,
    /// When the number last changed.
    since: Instant,
}

#[derive(Default)]
struct Window {
    ran: Duration,
    waited: Duration,
}

impl Ease {
    /// All threads, at first.
    pub fn new(now: Instant) -> Self {
        Self { halved: 0, window: Window::default(), hold: HOLD[0], since: now }
    }

    /// Of `all` threads those that should run.
    pub fn threads(&self, all: usize) -> usize {
        (all >> self.halved.min(usize::BITS - 1)).max(1)
    }

    /// Notes a step of `all` threads' layout that ended `now`: how long it took, and how long its first thread waited for late
    /// ones. Says whether the number of threads changes.
    pub fn note(&mut self, all: usize, ran: Duration, waited: Duration, now: Instant) -> bool {
        let threads = self.threads(all);
        let since = now.saturating_duration_since(self.since);
        if self.halved > 0 && since >= self.hold {
            // Perhaps the neighbour is gone; if not, the next try is later.
            self.hold = (2 * self.hold).min(HOLD[1]);
            self.change(0, now);
            return true;
        }
        self.window.ran += ran;
        self.window.waited += waited;
        if self.window.ran < WINDOW {
            return false;
        }
        let late = 2 * self.window.waited > self.window.ran;
        self.window = Window::default();
        if late && threads > 1 {
            self.change(self.halved + 1, now);
            return true;
        }
        if self.halved == 0 && since >= HOLD[1] {
            self.hold = HOLD[0];
        }
        false
    }

    fn change(&mut self, halved: u32, now: Instant) {
        (self.halved, self.since, self.window) = (halved, now, Window::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(20);

    /// Threads after each of some steps of 8 threads' layout, of which `share` hundredths are waiting.
    fn run(ease: &mut Ease, now: &mut Instant, steps: usize, share: u32) -> Vec<usize> {
        let mut step = || {
            *now += STEP;
            ease.note(8, STEP, STEP * share / 100, *now);
            ease.threads(8)
        };
        (0..steps).map(|_| step()).collect()
    }

    #[test]
    fn threads_are_halved_while_most_of_the_time_is_waiting() {
        let mut now = Instant::now();
        let mut ease = Ease::new(now);
        let threads = run(&mut ease, &mut now, 20, 80);
        assert_eq!(threads, [vec![8; 4], vec![4; 5], vec![2; 5], vec![1; 6]].concat());
    }

    #[test]
    fn waiting_for_less_than_half_of_the_time_changes_nothing() {
        let mut now = Instant::now();
        let mut ease = Ease::new(now);
        assert_eq!(run(&mut ease, &mut now, 200, 45), vec![8; 200]);
    }

    #[test]
    fn all_threads_are_tried_again_after_longer_and_longer_times() {
        let mut now = Instant::now();
        let start = now;
        let mut ease = Ease::new(now);
        let mut tries = Vec::new();
        let mut before = 8;
        while now < start + Duration::from_secs(60) {
            let threads = run(&mut ease, &mut now, 1, 80)[0];
            if threads == 8 && before < 8 {
                tries.push((now - start).as_secs());
            }
            before = threads;
        }
        // After 1, 2, 4, 8, 16 and 16 seconds, and before each 0.3 seconds of becoming fewer.
        assert_eq!(tries, [1, 3, 7, 16, 32, 48]);
    }

    #[test]
    fn a_neighbour_that_goes_away_is_forgotten() {
        let mut now = Instant::now();
        let mut ease = Ease::new(now);
        run(&mut ease, &mut now, 2000, 80);
        assert_eq!(ease.hold, HOLD[1]);
        // The next try succeeds, and lasts.
        let threads = run(&mut ease, &mut now, 2000, 0);
        assert_eq!(threads[1000..], [8; 1000]);
        assert_eq!(ease.hold, HOLD[0]);
    }
}

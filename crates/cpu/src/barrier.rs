//! A counter and a barrier on which the threads of the pool wait.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p puna-cpu --lib loom` explores every interleaving
//! of their threads.

use std::time::{Duration, Instant};

use crate::sync::{
    AtomicU32, AtomicUsize, Condvar, Mutex, Ordering, order_seq_cst, spin_loop, yield_now,
};

/// Yields of a waiting thread before it sleeps. The model checker needs none, since yields change
/// nothing.
const YIELDS: u32 = if cfg!(loom) { 0 } else { 100 };

/// Event count: a counter of events that threads wait on.
pub struct EventCount {
    value: AtomicU32,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

impl EventCount {
    /// Makes an event count with value 0.
    pub fn new() -> Self {
        Self {
            value: AtomicU32::new(0),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// Adds one and wakes all waiting threads.
    pub fn advance(&self) {
        // SeqCst pairs with `wait_past`: either the sleeper sees the new value, or this thread sees
        // the sleeper.
        self.value.fetch_add(1, Ordering::SeqCst);
        order_seq_cst();
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock());
            self.wake.notify_all();
        }
    }

    /// Waits until the value differs from `seen`. Checks `spins` times, then yields, then sleeps.
    /// Returns the value and the time since the first yield.
    pub fn wait_past(&self, seen: u32, spins: u32) -> (u32, Duration) {
        let mut yielding = None;
        for i in 0..spins + YIELDS {
            let value = self.value.load(Ordering::Acquire);
            if value != seen {
                return (value, yielding.map_or(Duration::ZERO, |start: Instant| start.elapsed()));
            }
            if i < spins {
                spin_loop();
            } else {
                // A yield may return a time slice later.
                yielding.get_or_insert_with(Instant::now);
                yield_now();
            }
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        order_seq_cst();
        let mut guard = self.lock.lock().expect("no thread panics while it waits");
        let value = loop {
            let value = self.value.load(Ordering::SeqCst);
            if value != seen {
                break value;
            }
            guard = self.wake.wait(guard).expect("no thread panics while it waits");
        };
        drop(guard);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        (value, yielding.map_or(Duration::ZERO, |start| start.elapsed()))
    }
}

/// A barrier that can be used repeatedly.
pub struct Barrier {
    arrived: AtomicUsize,
    rounds: EventCount,
}

impl Barrier {
    /// Makes a barrier that no thread has reached.
    pub fn new() -> Self {
        Self { arrived: AtomicUsize::new(0), rounds: EventCount::new() }
    }

    /// Waits for the other threads. Returns the time since the first yield.
    pub fn wait(&self, threads: usize, spins: u32) -> Duration {
        if threads == 1 {
            return Duration::ZERO;
        }
        let round = self.rounds.value.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.rounds.advance();
            Duration::ZERO
        } else {
            self.rounds.wait_past(round, spins).1
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn loom_a_waiting_thread_is_woken() {
        for spins in [0, 1] {
            loom::model(move || {
                let count = Arc::new(EventCount::new());
                let other = Arc::clone(&count);
                let waiting = loom::thread::spawn(move || other.wait_past(0, spins).0);
                count.advance();
                assert_eq!(waiting.join().unwrap(), 1);
            });
        }
    }

    #[test]
    fn loom_writes_before_a_barrier_are_visible_after_it_in_every_round() {
        // All interleavings with at most two preemptions; without a bound they take hours.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let shared = Arc::new((Barrier::new(), [AtomicUsize::new(0), AtomicUsize::new(0)]));
            let run = |shared: &(Barrier, [AtomicUsize; 2]), thread: usize| {
                let (barrier, cells) = shared;
                for round in 1..=2 {
                    cells[thread].store(round, Ordering::Relaxed);
                    barrier.wait(2, 0);
                    assert_eq!(cells[1 - thread].load(Ordering::Relaxed), round);
                    barrier.wait(2, 0);
                }
            };
            let other = Arc::clone(&shared);
            let thread = loom::thread::spawn(move || run(&other, 1));
            run(&shared, 0);
            thread.join().unwrap();
        });
    }
}

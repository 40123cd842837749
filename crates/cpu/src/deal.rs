//! Which thread does which task of an instruction.
//!
//! Each thread has a share of consecutive tasks: it reads memory in one direction, as prefetchers want it. A thread that
//! has done its share takes the next tasks of the others' shares, so that one that lost its core holds nobody up.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many tasks of a thread's share are taken; on its own cache line.
#[repr(align(64))]
#[derive(Default)]
struct Taken(AtomicUsize);

/// Counters of the shares of all threads, for two rounds in turn: while threads work on a round, they clear the counters
/// of the round before, which becomes the next one. Between rounds all threads meet.
pub struct Deal {
    threads: usize,
    taken: Vec<Taken>,
}

impl Deal {
    pub fn new(threads: usize) -> Self {
        Self { threads, taken: (0..2 * threads).map(|_| Taken::default()).collect() }
    }

    /// Back to round 0.
    pub fn reset(&mut self) {
        self.taken.iter_mut().for_each(|taken| *taken.0.get_mut() = 0);
    }

    /// Does tasks of a round of `tasks` until none is left. Every thread calls this, or [`Deal::first`], once a round.
    pub fn work(&self, round: usize, thread: usize, tasks: usize, mut work: impl FnMut(usize)) {
        self.clear(round + 1, thread);
        for owner in (thread..self.threads).chain(0..thread) {
            let share = self.share(owner, tasks);
            let taken = self.taken(round, owner);
            loop {
                let task = share.start + taken.fetch_add(1, Ordering::Relaxed);
                if task >= share.end {
                    break;
                }
                work(task);
            }
        }
    }

    /// Whether this thread comes first to a round, which it then does alone.
    pub fn first(&self, round: usize, thread: usize) -> bool {
        self.clear(round + 1, thread);
        self.taken(round, 0).fetch_add(1, Ordering::Relaxed) == 0
    }

    fn share(&self, owner: usize, tasks: usize) -> Range<usize> {
        owner * tasks / self.threads..(owner + 1) * tasks / self.threads
    }

    fn taken(&self, round: usize, owner: usize) -> &AtomicUsize {
        &self.taken[round % 2 * self.threads + owner].0
    }

    fn clear(&self, round: usize, owner: usize) {
        // The barrier between rounds orders this with the other threads.
        self.taken(round, owner).store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;

    #[test]
    fn every_task_of_every_round_is_done_once() {
        for threads in [1, 2, 3, 7] {
            let deal = Deal::new(threads);
            let done: Vec<Vec<AtomicUsize>> =
                (0..60).map(|tasks| (0..tasks).map(|_| AtomicUsize::new(0)).collect()).collect();
            let firsts = AtomicUsize::new(0);
            Pool::new(threads).unwrap().run(&|worker| {
                for (i, tasks) in done.iter().enumerate() {
                    deal.work(2 * i, worker.index(), tasks.len(), |task| {
                        tasks[task].fetch_add(1, Ordering::Relaxed);
                    });
                    worker.barrier();
                    if deal.first(2 * i + 1, worker.index()) {
                        firsts.fetch_add(1, Ordering::Relaxed);
                    }
                    worker.barrier();
                }
            });
            assert!(done.iter().flatten().all(|count| count.load(Ordering::Relaxed) == 1));
            assert_eq!(firsts.load(Ordering::Relaxed), done.len());
        }
    }

    #[test]
    fn a_thread_alone_does_its_own_share_in_order_and_then_the_others() {
        let deal = Deal::new(3);
        let mut order = Vec::new();
        deal.work(0, 1, 9, |task| order.push(task));
        assert_eq!(order, [3, 4, 5, 6, 7, 8, 0, 1, 2]);
    }
}

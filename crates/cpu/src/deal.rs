//! Which thread does which task of an instruction.
//!
//! Each thread has a share of consecutive tasks: it reads memory in one direction, as prefetchers want it. A thread that
//! has done its share takes the next tasks of the others' shares, so that one that lost its core holds nobody up.
//!
//! Where there are several memory nodes, threads that are near the same memory follow each other, so their shares do too: in
//! every step the same node reads the same rows of a weight, and those stay in its caches and, when it was the first to read
//! them, in its memory. Tasks are taken from threads of the same node first.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::topology::Layout;

/// How many tasks of a thread's share are taken; on its own cache line.
#[repr(align(64))]
#[derive(Default)]
struct Taken(AtomicUsize);

/// Counters of the shares of all threads, for two rounds in turn: while threads work on a round, they clear the counters
/// of the round before, which becomes the next one. Between rounds all threads meet.
pub struct Deal {
    /// For each thread those that are near the same memory, itself among them.
    near: Vec<Range<usize>>,
    taken: Vec<Taken>,
}

impl Deal {
    /// Counters for the threads of a layout.
    pub fn new(layout: &Layout) -> Self {
        let mut near = Vec::new();
        for group in &layout.groups {
            let first = near.len();
            near.extend((0..group.threads).map(|_| first..first + group.threads));
        }
        let taken = (0..2 * near.len()).map(|_| Taken::default()).collect();
        Self { near, taken }
    }

    fn threads(&self) -> usize {
        self.near.len()
    }

    /// Whose shares a thread works on, in this order: its own, those of its node, all others. Each goes round, so that threads
    /// do not all fall upon the same share.
    fn order(&self, thread: usize) -> impl Iterator<Item = usize> + use<> {
        let Range { start, end } = self.near[thread];
        (thread..end).chain(start..thread).chain(end..self.threads()).chain(0..start)
    }

    /// Back to round 0.
    pub fn reset(&mut self) {
        self.taken.iter_mut().for_each(|taken| *taken.0.get_mut() = 0);
    }

    /// Does tasks of a round of `tasks` until none is left. Every thread calls this, or [`Deal::first`], once a round.
    pub fn work(&self, round: usize, thread: usize, tasks: usize, mut work: impl FnMut(usize)) {
        self.clear(round + 1, thread);
        for owner in self.order(thread) {
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
        owner * tasks / self.threads()..(owner + 1) * tasks / self.threads()
    }

    fn taken(&self, round: usize, owner: usize) -> &AtomicUsize {
        &self.taken[round % 2 * self.threads() + owner].0
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
            let layout = Layout::of(&[threads]);
            let deal = Deal::new(&layout);
            let done: Vec<Vec<AtomicUsize>> =
                (0..60).map(|tasks| (0..tasks).map(|_| AtomicUsize::new(0)).collect()).collect();
            let firsts = AtomicUsize::new(0);
            Pool::new(&layout).unwrap().run(&|worker| {
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
        let deal = Deal::new(&Layout::of(&[3]));
        let mut order = Vec::new();
        deal.work(0, 1, 9, |task| order.push(task));
        assert_eq!(order, [3, 4, 5, 6, 7, 8, 0, 1, 2]);
    }
    #[test]
    fn tasks_are_taken_from_the_own_node_first() {
        let deal = Deal::new(&Layout::of(&[2, 3, 1]));
        let orders: Vec<Vec<usize>> = (0..6).map(|thread| deal.order(thread).collect()).collect();
        assert_eq!(orders[0], [0, 1, 2, 3, 4, 5]);
        assert_eq!(orders[1], [1, 0, 2, 3, 4, 5]);
        assert_eq!(orders[3], [3, 4, 2, 5, 0, 1]);
        assert_eq!(orders[4], [4, 2, 3, 5, 0, 1]);
        assert_eq!(orders[5], [5, 0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_node_has_consecutive_tasks() {
        let deal = Deal::new(&Layout::of(&[2, 2]));
        let shares: Vec<_> = (0..4).map(|thread| deal.share(thread, 10)).collect();
        assert_eq!(shares, [0..2, 2..5, 5..7, 7..10]);
    }

    #[test]
    fn others_do_the_tasks_of_a_thread_that_is_held_up() {
        const TASKS: usize = 90;
        let layout = Layout::of(&[2, 1]);
        let deal = Deal::new(&layout);
        let done = AtomicUsize::new(0);
        let by: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
        Pool::new(&layout).unwrap().run(&|worker| {
            deal.work(0, worker.index(), TASKS, |_| {
                by[worker.index()].fetch_add(1, Ordering::Relaxed);
                // The last thread loses its core in its first task, until the others have done everything else.
                let start = std::time::Instant::now();
                while worker.index() == 2 && done.load(Ordering::Relaxed) < TASKS - 1 {
                    assert!(
                        start.elapsed().as_secs() < 60,
                        "nobody does the tasks of a thread that is held up"
                    );
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                done.fetch_add(1, Ordering::Relaxed);
            });
            worker.barrier();
            assert_eq!(done.load(Ordering::Relaxed), TASKS);
        });
        assert!(by[2].load(Ordering::Relaxed) <= 1);
    }
}

//! Distributes the tasks of an instruction among threads, with work stealing.
//!
//! Each thread owns a range of consecutive tasks, so that it reads memory in one direction, which
//! suits hardware prefetchers. A thread that finishes its own range takes tasks from the ranges of
//! other threads: a thread that lost its core delays only the task that it runs.
//!
//! On a machine with several NUMA nodes, threads of one node have consecutive numbers and therefore
//! consecutive ranges. Every step, a node reads the same rows of a weight, which stay in its caches
//! and, after first touch, in its memory. A thread steals from its own node first.

use crate::sync::{AtomicUsize, Ordering};
use crate::topology::Layout;
use std::ops::Range;

/// Number of tasks claimed from one thread's range, on its own cache line.
#[repr(align(64))]
struct ClaimCounter(AtomicUsize);

/// Claim counters of all threads' ranges, for two rounds. While threads work on one round, they
/// reset the counters of the other, which serve the next round. All threads pass a barrier between
/// rounds.
pub struct WorkQueue {
    /// For each thread, the threads of its NUMA node, itself included.
    node_threads: Vec<Range<usize>>,
    counters: Vec<ClaimCounter>,
}

impl WorkQueue {
    /// Makes a queue for the threads of a layout.
    pub fn new(layout: &Layout) -> Self {
        let mut node_threads = Vec::new();
        for group in &layout.groups {
            let first = node_threads.len();
            node_threads.extend((0..group.threads).map(|_| first..first + group.threads));
        }
        let counters = 2 * node_threads.len();
        let counters = (0..counters).map(|_| ClaimCounter(AtomicUsize::new(0))).collect();
        Self { node_threads, counters }
    }

    fn threads(&self) -> usize {
        self.node_threads.len()
    }

    /// The order in which a thread works on ranges: its own, the ranges of its node, all others.
    /// Each part starts at the thread's own number, so that idle threads do not all steal from the
    /// same range.
    fn steal_order(&self, thread: usize) -> impl Iterator<Item = usize> + use<> {
        let Range { start, end } = self.node_threads[thread];
        (thread..end).chain(start..thread).chain(end..self.threads()).chain(0..start)
    }

    /// Prepares for round 0.
    pub fn reset(&mut self) {
        self.counters.iter_mut().for_each(|counter| counter.0.store(0, Ordering::Relaxed));
    }

    /// Runs tasks of a round of `tasks` tasks until none is left. Every thread calls this method or
    /// [`WorkQueue::claim_round`] exactly once a round.
    pub fn run_tasks(&self, round: usize, thread: usize, tasks: usize, mut run: impl FnMut(usize)) {
        self.reset_counter(round + 1, thread);
        for owner in self.steal_order(thread) {
            let range = self.range(owner, tasks);
            let claimed = self.counter(round, owner);
            loop {
                let task = range.start + claimed.fetch_add(1, Ordering::Relaxed);
                if task >= range.end {
                    break;
                }
                run(task);
            }
        }
    }

    /// Returns true for the first thread that calls it in a round: that thread runs the round
    /// alone.
    pub fn claim_round(&self, round: usize, thread: usize) -> bool {
        self.reset_counter(round + 1, thread);
        self.counter(round, 0).fetch_add(1, Ordering::Relaxed) == 0
    }

    /// The tasks that a thread owns.
    fn range(&self, owner: usize, tasks: usize) -> Range<usize> {
        owner * tasks / self.threads()..(owner + 1) * tasks / self.threads()
    }

    fn counter(&self, round: usize, owner: usize) -> &AtomicUsize {
        &self.counters[round % 2 * self.threads() + owner].0
    }

    fn reset_counter(&self, round: usize, owner: usize) {
        // The barrier between rounds orders this store before the claims of the next round.
        self.counter(round, owner).store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use super::*;
    use crate::barrier::Barrier;

    /// Rounds of two tasks, with a barrier between rounds, as the threads of the pool run them.
    #[test]
    fn loom_every_task_of_every_round_runs_once() {
        // Counters of a round are used again two rounds later.
        const ROUNDS: usize = 3;
        // All interleavings with at most two preemptions.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let queue = WorkQueue::new(&Layout::of(&[2]));
            let runs = (0..ROUNDS).map(|_| [AtomicUsize::new(0), AtomicUsize::new(0)]);
            let shared = Arc::new((queue, Barrier::new(), runs.collect::<Vec<_>>()));
            let run = |shared: &(WorkQueue, Barrier, Vec<[AtomicUsize; 2]>), thread: usize| {
                let (queue, barrier, runs) = shared;
                for (round, tasks) in runs.iter().enumerate() {
                    queue.run_tasks(round, thread, tasks.len(), |task| {
                        tasks[task].fetch_add(1, Ordering::Relaxed);
                    });
                    barrier.wait(2, 0);
                    assert!(tasks.iter().all(|task| task.load(Ordering::Relaxed) == 1));
                }
            };
            let other = Arc::clone(&shared);
            let thread = loom::thread::spawn(move || run(&other, 1));
            run(&shared, 0);
            thread.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::pool::Pool;

    #[test]
    fn every_task_of_every_round_runs_once() {
        for threads in [1, 2, 3, 7] {
            let layout = Layout::of(&[threads]);
            let queue = WorkQueue::new(&layout);
            let done: Vec<Vec<AtomicUsize>> =
                (0..60).map(|tasks| (0..tasks).map(|_| AtomicUsize::new(0)).collect()).collect();
            let firsts = AtomicUsize::new(0);
            Pool::new(&layout).unwrap().run(&|worker| {
                for (i, tasks) in done.iter().enumerate() {
                    queue.run_tasks(2 * i, worker.index(), tasks.len(), |task| {
                        tasks[task].fetch_add(1, Ordering::Relaxed);
                    });
                    worker.barrier();
                    if queue.claim_round(2 * i + 1, worker.index()) {
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
    fn a_single_thread_runs_its_own_range_first_and_then_steals_in_order() {
        let queue = WorkQueue::new(&Layout::of(&[3]));
        let mut order = Vec::new();
        queue.run_tasks(0, 1, 9, |task| order.push(task));
        assert_eq!(order, [3, 4, 5, 6, 7, 8, 0, 1, 2]);
    }

    #[test]
    fn threads_steal_from_their_own_node_first() {
        let queue = WorkQueue::new(&Layout::of(&[2, 3, 1]));
        let orders: Vec<Vec<usize>> =
            (0..6).map(|thread| queue.steal_order(thread).collect()).collect();
        assert_eq!(orders[0], [0, 1, 2, 3, 4, 5]);
        assert_eq!(orders[1], [1, 0, 2, 3, 4, 5]);
        assert_eq!(orders[3], [3, 4, 2, 5, 0, 1]);
        assert_eq!(orders[4], [4, 2, 3, 5, 0, 1]);
        assert_eq!(orders[5], [5, 0, 1, 2, 3, 4]);
    }

    #[test]
    fn threads_own_consecutive_ranges() {
        let queue = WorkQueue::new(&Layout::of(&[2, 2]));
        let ranges: Vec<_> = (0..4).map(|thread| queue.range(thread, 10)).collect();
        assert_eq!(ranges, [0..2, 2..5, 5..7, 7..10]);
    }

    #[test]
    fn other_threads_steal_the_tasks_of_a_delayed_thread() {
        // Tasks of the round.
        const TASKS: usize = 90;
        let layout = Layout::of(&[2, 1]);
        let queue = WorkQueue::new(&layout);
        let done = AtomicUsize::new(0);
        let by: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
        Pool::new(&layout).unwrap().run(&|worker| {
            queue.run_tasks(0, worker.index(), TASKS, |_| {
                by[worker.index()].fetch_add(1, Ordering::Relaxed);
                // The last thread stalls in its first task until the others have run all other
                // tasks.
                let start = std::time::Instant::now();
                while worker.index() == 2 && done.load(Ordering::Relaxed) < TASKS - 1 {
                    assert!(
                        start.elapsed().as_secs() < 60,
                        "no thread steals the tasks of a delayed thread"
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

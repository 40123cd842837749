//! The thread pool: one parallel region a step, barriers inside.
//!
//! A step of a small model consists of hundreds of operations of a few microseconds each, so
//! threads enter the pool once a step and meet at barriers between operations. A waiting thread
//! spins for a few microseconds, then yields its core, then sleeps. So when another process
//! occupies a core, the other threads do not burn theirs. With more threads than processors, or a
//! quota below them, threads do not spin at all.
//!
//! On machines with several NUMA nodes, each thread is pinned to the processors of its node; the
//! caller only during a run. A thread touches its own memory first, so that memory lies in its
//! node.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::affinity;
use crate::barrier::{Barrier, EventCount};
use crate::thread_backoff::DESCHEDULED_WAIT;
use crate::topology::Layout;

/// Time that a waiting thread spins before it yields. A longer time gains nothing on an idle
/// machine, where a yield returns at once; on a busy machine it takes time from the thread that is
/// waited for.
const SPIN_TIME: Duration = Duration::from_micros(4);
/// Threads that run one closure together.
pub struct Pool {
    shared: Arc<PoolState>,
    handles: Vec<JoinHandle<()>>,
    /// Processors that the calling thread is pinned to during a run; empty if it may run anywhere.
    caller_cpus: Vec<usize>,
}

/// The job of a step; each thread calls it once with its [`Worker`].
type Job<'a> = &'a (dyn Fn(&Worker<'_>) + Sync);

struct PoolState {
    threads: usize,
    /// Number of checks in [`SPIN_TIME`].
    spins: u32,
    /// Number of the current job, of which only the parity counts. Workers wait for it to change.
    epoch: EventCount,
    /// The current job; valid from the change of `epoch` until the last worker arrives at `done`.
    job: Mutex<Option<Job<'static>>>,
    barrier: Barrier,
    done: Barrier,
    stop: AtomicBool,
    /// Nanoseconds that the caller has waited for descheduled threads.
    wait_nanos: AtomicU64,
}

/// One thread of the pool during a job.
pub struct Worker<'a> {
    index: usize,
    shared: &'a PoolState,
}

impl Worker<'_> {
    /// Number of the thread, below [`Pool::threads`].
    pub fn index(&self) -> usize {
        self.index
    }

    /// Waits until all threads have arrived. Their writes before the barrier are visible after it.
    pub fn barrier(&self) {
        let slept = self.shared.barrier.wait(self.shared.threads, self.shared.spins);
        if self.index == 0 {
            self.shared.record_wait(slept);
        }
    }
}

impl Pool {
    /// Starts the threads of a layout but the first, which is the caller of [`Pool::run`].
    ///
    /// # Errors
    /// If the system refuses a thread; the threads that have been started end.
    pub fn new(layout: &Layout) -> std::io::Result<Self> {
        let threads = layout.threads();
        let shared = Arc::new(PoolState {
            threads,
            spins: if layout.oversubscribed { 0 } else { spins() },
            epoch: EventCount::new(),
            job: Mutex::new(None),
            barrier: Barrier::new(),
            done: Barrier::new(),
            stop: AtomicBool::new(false),
            wait_nanos: AtomicU64::new(0),
        });
        let mut places =
            layout.groups.iter().flat_map(|group| (0..group.threads).map(|_| group.cpus.clone()));
        let caller_cpus = places.next().unwrap_or_default();
        let mut pool = Self { shared, handles: Vec::new(), caller_cpus };
        for (index, cpus) in (1..).zip(places) {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new().name(format!("puna-cpu-{index}"));
            let body = move || {
                if !cpus.is_empty() {
                    affinity::set(&cpus);
                }
                run_worker(&shared, index);
            };
            // On an error, dropping the pool stops the threads that have been started.
            pool.handles.push(thread.spawn(body)?);
        }
        Ok(pool)
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Runs `job` on every thread and returns when all have finished.
    ///
    /// If the pool has several threads, a panic in `job` aborts the process: the other threads
    /// would wait at the next barrier for ever.
    pub fn run(&mut self, job: &(dyn Fn(&Worker<'_>) + Sync)) {
        let shared = &*self.shared;
        if shared.threads == 1 {
            return job(&Worker { index: 0, shared });
        }
        // Unpinned after each run, since the limits watcher reads the caller's affinity between
        // runs.
        let _pinned =
            (!self.caller_cpus.is_empty()).then(|| affinity::PinnedThread::to(&self.caller_cpus));
        // SAFETY: only the lifetime changes. Every worker drops the reference before it arrives at
        // `done`, and this function returns only after all have arrived; a panic in the caller's
        // part aborts.
        let job: Job<'static> = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(job) };
        *shared.job.lock().expect("no thread panics while it holds the job") = Some(job);
        shared.epoch.advance();
        let guard = AbortOnUnwind;
        job(&Worker { index: 0, shared });
        shared.record_wait(shared.done.wait(shared.threads, shared.spins));
        std::mem::forget(guard);
    }

    /// Returns and resets the time that the caller has waited for descheduled threads
    /// ([`DESCHEDULED_WAIT`]).
    pub fn take_wait_time(&mut self) -> Duration {
        Duration::from_nanos(self.shared.wait_nanos.swap(0, Ordering::Relaxed))
    }
}

impl PoolState {
    fn record_wait(&self, slept: Duration) {
        if slept >= DESCHEDULED_WAIT {
            let nanos = u64::try_from(slept.as_nanos()).unwrap_or(u64::MAX);
            self.wait_nanos.fetch_add(nanos, Ordering::Relaxed);
        }
    }
}

/// Aborts the process on unwind, so that no thread is left with a dangling job.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.advance();
        for handle in self.handles.drain(..) {
            // A worker aborts instead of panicking.
            let _ = handle.join();
        }
    }
}

fn run_worker(shared: &PoolState, index: usize) {
    let mut seen = 0;
    loop {
        seen = shared.epoch.wait_past(seen, shared.spins).0;
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let job = *shared.job.lock().expect("no thread panics while it holds the job");
        let guard = AbortOnUnwind;
        job.expect("an epoch starts after its job is set")(&Worker { index, shared });
        std::mem::forget(guard);
        shared.done.wait(shared.threads, shared.spins);
    }
}

/// Number of checks that take [`SPIN_TIME`]. A pause instruction takes 10 to 150 cycles, depending
/// on the processor.
fn spins() -> u32 {
    static SPINS: OnceLock<u32> = OnceLock::new();
    *SPINS.get_or_init(|| {
        // Checks per measurement.
        const CHECKS: u32 = 200;
        let value = AtomicU32::new(0);
        let measure = || {
            let start = Instant::now();
            for _ in 0..CHECKS {
                std::hint::black_box(value.load(Ordering::Acquire));
                std::hint::spin_loop();
            }
            start.elapsed().as_nanos().max(1)
        };
        // The minimum, since a descheduled thread measures too much.
        let fastest = (0..8).map(|_| measure()).min().unwrap_or(1);
        let spins = SPIN_TIME.as_nanos() * u128::from(CHECKS) / fastest;
        u32::try_from(spins).unwrap_or(u32::MAX).clamp(10, 10 * CHECKS)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::topology::Group;

    fn pool(threads: usize) -> Pool {
        Pool::new(&Layout::of(&[threads])).unwrap()
    }

    #[test]
    fn every_thread_runs_the_job_once() {
        for threads in [1, 2, 5] {
            let mut pool = pool(threads);
            for _ in 0..50 {
                let seen = AtomicUsize::new(0);
                pool.run(&|w| {
                    seen.fetch_add(1 << (8 * w.index()), Ordering::Relaxed);
                });
                let want = (0..threads).map(|i| 1 << (8 * i)).sum::<usize>();
                assert_eq!(seen.load(Ordering::Relaxed), want);
            }
        }
    }

    #[test]
    fn writes_before_a_barrier_are_visible_after_it() {
        let mut pool = pool(4);
        let cells: Vec<AtomicUsize> = (0..4).map(|_| AtomicUsize::new(0)).collect();
        pool.run(&|w| {
            for round in 1..2000 {
                cells[w.index()].store(round, Ordering::Relaxed);
                w.barrier();
                assert!(cells.iter().all(|c| c.load(Ordering::Relaxed) == round));
                w.barrier();
            }
        });
    }

    #[test]
    fn sleeping_workers_wake_up() {
        let mut pool = pool(3);
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(30));
            let ran = AtomicUsize::new(0);
            pool.run(&|_| {
                ran.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(ran.load(Ordering::Relaxed), 3);
        }
    }

    #[test]
    fn oversubscribed_threads_pass_barriers() {
        let mut layout = Layout::of(&[3]);
        layout.oversubscribed = true;
        let mut pool = Pool::new(&layout).unwrap();
        let met = AtomicUsize::new(0);
        pool.run(&|w| {
            for round in 1..200 {
                met.fetch_add(1, Ordering::Relaxed);
                w.barrier();
                assert_eq!(met.load(Ordering::Relaxed), 3 * round);
                w.barrier();
            }
        });
    }

    #[test]
    fn time_spent_waiting_for_a_descheduled_thread_is_recorded() {
        let mut pool = pool(2);
        let here = AtomicBool::new(false);
        pool.run(&|w| {
            if w.index() == 0 {
                here.store(true, Ordering::Release);
            } else {
                while !here.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                std::thread::sleep(100 * DESCHEDULED_WAIT);
            }
            w.barrier();
        });
        assert!(pool.take_wait_time() >= DESCHEDULED_WAIT);
        assert_eq!(pool.take_wait_time(), Duration::ZERO);
    }

    #[test]
    fn spinning_takes_about_the_configured_time() {
        let value = AtomicU32::new(0);
        let wait = || {
            let start = Instant::now();
            for _ in 0..spins() {
                std::hint::black_box(value.load(Ordering::Acquire));
                std::hint::spin_loop();
            }
            start.elapsed()
        };
        // The shortest of many waits, since a thread may lose its core.
        let shortest = (0..50).map(|_| wait()).min().unwrap();
        assert!(
            shortest > SPIN_TIME / 5 && shortest < SPIN_TIME * 5,
            "{} checks take {shortest:?}",
            spins()
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn threads_run_on_the_processors_of_their_node_and_the_caller_keeps_its_affinity() {
        let before = affinity::get().unwrap();
        let (first, last) = (before[0], before[before.len() - 1]);
        let group = |threads, cpu| Group { threads, cpus: vec![cpu] };
        let layout = Layout { groups: vec![group(2, first), group(1, last)], oversubscribed: true };
        let mut pool = Pool::new(&layout).unwrap();
        let seen: Vec<Mutex<Vec<usize>>> = (0..3).map(|_| Mutex::default()).collect();
        pool.run(&|w| *seen[w.index()].lock().unwrap() = affinity::get().unwrap());
        let seen: Vec<_> = seen.into_iter().map(|s| s.into_inner().unwrap()).collect();
        assert_eq!(seen, [vec![first], vec![first], vec![last]]);
        assert_eq!(affinity::get().unwrap(), before);
    }
}

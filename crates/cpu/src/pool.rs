//! The thread pool: one parallel region a step, barriers inside.
//!
//! A step of a small model is hundreds of operations of a few microseconds, so threads enter the pool once a step and
//! meet at barriers between operations. A thread that waits spins for a few microseconds, then offers its core to
//! others, then sleeps: when another process takes a core, nobody burns the other one waiting for it. Where there are more
//! threads than processors or time for them, nobody spins at all.
//!
//! On machines with several memory nodes each thread is kept on the processors of its node, the caller during a run. Memory
//! that is a thread's own is first touched by it, so it lies in its node.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::affinity;
use crate::ease::LATE;
use crate::topology::Layout;

/// How long a thread looks for what it waits for before it offers its core to others. Looking for longer gains nothing on
/// a free machine, where an offer comes back at once, and takes time from whoever is waited for on a busy one.
const SPIN: Duration = Duration::from_micros(4);
/// Offers before the thread sleeps.
const YIELDS: u32 = 100;

/// Threads that run one closure together.
pub struct Pool {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    /// Processors that the caller is kept on during a run; none where it may run anywhere.
    first: Vec<usize>,
}

/// The job of a step: called once a thread with its [`Worker`].
type Job<'a> = &'a (dyn Fn(&Worker<'_>) + Sync);

struct Shared {
    threads: usize,
    /// How often a waiting thread looks before it offers its core.
    spins: u32,
    /// Odd or even: which job is current. Workers wait for it to change.
    epoch: Gate,
    /// The current job; valid between the change of `epoch` and the last arrival at `done`.
    job: Mutex<Option<Job<'static>>>,
    barrier: Barrier,
    done: Barrier,
    stop: AtomicBool,
    /// Nanoseconds that the caller of the current run has waited for late threads.
    late: AtomicU64,
}

/// One thread's place in a job.
pub struct Worker<'a> {
    index: usize,
    shared: &'a Shared,
}

impl Worker<'_> {
    /// From 0 to one less than the pool's threads.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Waits until all threads have come here; what they wrote before is visible after.
    pub fn barrier(&self) {
        let slept = self.shared.barrier.wait(self.shared.threads, self.shared.spins);
        if self.index == 0 {
            self.shared.note(slept);
        }
    }
}

impl Pool {
    /// A pool of the threads of a layout, of which the caller of [`Pool::run`] is the first.
    ///
    /// # Errors
    /// If the system refuses a thread; those that were started end.
    pub fn new(layout: &Layout) -> std::io::Result<Self> {
        let threads = layout.threads();
        let shared = Arc::new(Shared {
            threads,
            spins: if layout.crowded { 0 } else { spins() },
            epoch: Gate::default(),
            job: Mutex::new(None),
            barrier: Barrier::default(),
            done: Barrier::default(),
            stop: AtomicBool::new(false),
            late: AtomicU64::new(0),
        });
        let mut places =
            layout.groups.iter().flat_map(|group| (0..group.threads).map(|_| group.cpus.clone()));
        let first = places.next().unwrap_or_default();
        let mut pool = Self { shared, handles: Vec::new(), first };
        for (index, cpus) in (1..).zip(places) {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new().name(format!("puna-cpu-{index}"));
            let body = move || {
                if !cpus.is_empty() {
                    affinity::set(&cpus);
                }
                work(&shared, index);
            };
            // A pool that is dropped half-made stops what it has.
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
    /// A job that panics ends the process where there are other threads: they would wait for it at the next barrier.
    pub fn run(&mut self, job: &(dyn Fn(&Worker<'_>) + Sync)) {
        let shared = &*self.shared;
        if shared.threads == 1 {
            return job(&Worker { index: 0, shared });
        }
        // Given back after each run: what the process may use is read from the caller's own set between runs.
        let _kept = (!self.first.is_empty()).then(|| affinity::Kept::on(&self.first));
        // SAFETY: only the lifetime changes. The reference is dropped by every worker before it arrives at `done`, and
        // this function returns only after all have arrived there; a panic of the caller's own part aborts.
        let job: Job<'static> = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(job) };
        *shared.job.lock().expect("no thread panics while it holds the job") = Some(job);
        shared.epoch.advance();
        let guard = AbortOnUnwind;
        job(&Worker { index: 0, shared });
        shared.note(shared.done.wait(shared.threads, shared.spins));
        std::mem::forget(guard);
    }

    /// How long the caller has waited for late threads in runs since this was last asked for, see [`LATE`].
    pub fn take_late(&mut self) -> Duration {
        Duration::from_nanos(self.shared.late.swap(0, Ordering::Relaxed))
    }
}

impl Shared {
    fn note(&self, slept: Duration) {
        if slept >= LATE {
            let nanos = u64::try_from(slept.as_nanos()).unwrap_or(u64::MAX);
            self.late.fetch_add(nanos, Ordering::Relaxed);
        }
    }
}

/// Ends the process rather than leaving other threads with a dangling job.
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
            // Workers do not panic: they abort.
            let _ = handle.join();
        }
    }
}

fn work(shared: &Shared, index: usize) {
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

/// How many looks take [`SPIN`]: a pause is 10 to 150 cycles, by the processor.
fn spins() -> u32 {
    static SPINS: OnceLock<u32> = OnceLock::new();
    *SPINS.get_or_init(|| {
        const LOOKS: u32 = 200;
        let gate = Gate::default();
        let look = || {
            let start = Instant::now();
            for _ in 0..LOOKS {
                std::hint::black_box(gate.value.load(Ordering::Acquire));
                std::hint::spin_loop();
            }
            start.elapsed().as_nanos().max(1)
        };
        // The fastest: a thread that loses its core meanwhile seems slow.
        let fastest = (0..8).map(|_| look()).min().unwrap_or(1);
        let spins = SPIN.as_nanos() * u128::from(LOOKS) / fastest;
        u32::try_from(spins).unwrap_or(u32::MAX).clamp(10, 10 * LOOKS)
    })
}

/// A counter that threads wait on.
#[derive(Default)]
struct Gate {
    value: AtomicU32,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Gate {
    /// Adds one and wakes whoever waits.
    fn advance(&self) {
        // SeqCst pairs with `wait_past`: either the sleeper sees the new value, or we see the sleeper.
        self.value.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock());
            self.wake.notify_all();
        }
    }

    /// Waits until the value differs from `seen` and returns it, and how long that took once looking was given up. Looks
    /// `spins` times before it lets others run.
    fn wait_past(&self, seen: u32, spins: u32) -> (u32, Duration) {
        let mut offered = None;
        for i in 0..spins + YIELDS {
            let value = self.value.load(Ordering::Acquire);
            if value != seen {
                return (value, offered.map_or(Duration::ZERO, |start: Instant| start.elapsed()));
            }
            if i < spins {
                std::hint::spin_loop();
            } else {
                // An offer that is taken up may come back a time slice later.
                offered.get_or_insert_with(Instant::now);
                std::thread::yield_now();
            }
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut guard = self.lock.lock().expect("nobody panics while waiting");
        let value = loop {
            let value = self.value.load(Ordering::SeqCst);
            if value != seen {
                break value;
            }
            guard = self.wake.wait(guard).expect("nobody panics while waiting");
        };
        drop(guard);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        (value, offered.map_or(Duration::ZERO, |start| start.elapsed()))
    }
}

/// A meeting point that can be used again and again.
#[derive(Default)]
struct Barrier {
    arrived: AtomicUsize,
    gate: Gate,
}

impl Barrier {
    /// Meets the others; says how long that took once looking was given up.
    fn wait(&self, threads: usize, spins: u32) -> Duration {
        if threads == 1 {
            return Duration::ZERO;
        }
        let round = self.gate.value.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.gate.advance();
            Duration::ZERO
        } else {
            self.gate.wait_past(round, spins).1
        }
    }
}

#[cfg(test)]
mod tests {
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
    fn what_is_written_before_a_barrier_is_read_after_it() {
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
    fn threads_that_have_no_time_to_spin_meet_too() {
        let mut layout = Layout::of(&[3]);
        layout.crowded = true;
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
    fn waiting_for_a_thread_that_does_not_run_is_noted() {
        let mut pool = pool(2);
        let here = AtomicBool::new(false);
        pool.run(&|w| {
            if w.index() == 0 {
                here.store(true, Ordering::Release);
            } else {
                while !here.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                std::thread::sleep(100 * LATE);
            }
            w.barrier();
        });
        assert!(pool.take_late() >= LATE);
        assert_eq!(pool.take_late(), Duration::ZERO);
    }

    #[test]
    fn looking_takes_some_microseconds() {
        let gate = Gate::default();
        let wait = || {
            let start = Instant::now();
            for _ in 0..spins() {
                std::hint::black_box(gate.value.load(Ordering::Acquire));
                std::hint::spin_loop();
            }
            start.elapsed()
        };
        // The shortest of many: losing the core makes one seem long.
        let shortest = (0..50).map(|_| wait()).min().unwrap();
        assert!(shortest > SPIN / 5 && shortest < SPIN * 5, "{} looks take {shortest:?}", spins());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn threads_of_a_node_run_on_its_processors_and_the_caller_is_set_free() {
        let before = affinity::get().unwrap();
        let (first, last) = (before[0], before[before.len() - 1]);
        let group = |threads, cpu| Group { threads, cpus: vec![cpu] };
        let layout = Layout { groups: vec![group(2, first), group(1, last)], crowded: true };
        let mut pool = Pool::new(&layout).unwrap();
        let seen: Vec<Mutex<Vec<usize>>> = (0..3).map(|_| Mutex::default()).collect();
        pool.run(&|w| *seen[w.index()].lock().unwrap() = affinity::get().unwrap());
        let seen: Vec<_> = seen.into_iter().map(|s| s.into_inner().unwrap()).collect();
        assert_eq!(seen, [vec![first], vec![first], vec![last]]);
        assert_eq!(affinity::get().unwrap(), before);
    }
}

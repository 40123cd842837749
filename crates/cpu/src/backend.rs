//! The CPU as a backend: uses mapped weights as they are, compiles plans, runs steps on the pool.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use puna_graph::{
    ActivationStats, ArenaRange, Backend, BackendError, CacheSpec, Description, OpTime, Plan,
    ProgramId, Rope, Rows, StateSpec, StepInput, Weight,
};
use puna_kernels::{KernelError, Level, STREAM_ROWS};

use crate::cache::Cache;
use crate::compile::{Constants, Program, compile};
use crate::cpu_limits_watcher::{CpuLimitsWatcher, ThreadCount};
use crate::memory::{Arena, SharedBuffer};
use crate::ops::attention::split_scratch_len;
use crate::ops::observe::Observations;
use crate::pool::Pool;
use crate::states::States;
use crate::step::{Q8Buffer, Step, ThreadScratch, TileBuffer, run};
use crate::thread_backoff::ThreadBackoff;
use crate::topology::{self, System};
use crate::work_queue::WorkQueue;

/// Configuration of the CPU backend.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Number of threads, at most 512. `None`: one per physical core within affinity and quota,
    /// adjusted when these change.
    pub threads: Option<usize>,
    /// Whether `threads` is reduced to the number of usable processors, adjusted when it changes.
    pub capped: bool,
    /// Name of the kernel level; `None` for the best.
    pub kernels: Option<String>,
    /// Whether the bits of a row are independent of the other rows of a step. Prompts then take
    /// about twice the time.
    pub deterministic: bool,
}

/// The CPU backend.
pub struct CpuBackend {
    level: &'static Level,
    deterministic: bool,
    limits: CpuLimitsWatcher,
    backoff: ThreadBackoff,
    pool: Pool,
    thread_scratch: Vec<Mutex<ThreadScratch>>,
    weights: Vec<Weight>,
    ropes: Vec<Rope>,
    cache: Option<Cache>,
    states: Option<States>,
    programs: Vec<Program>,
    constants: Constants,
    queue: WorkQueue,
    arena: Arena,
    q8: Vec<Q8Buffer>,
    tiles: Vec<TileBuffer>,
    split_scratch: SharedBuffer<f32>,
    /// Range of the last result, and its number of rows.
    result: (Option<ArenaRange>, usize),
    gathered: Vec<f32>,
    /// Extra outputs of the last step.
    extra_outputs: Vec<Vec<f32>>,
    measuring: bool,
    measured: Vec<OpTime>,
    observations: Option<Arc<Observations>>,
}

/// Error of making a CPU backend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CpuError {
    /// The kernel level is not available.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The system refuses to start threads.
    #[error(
        "cannot start {threads} threads: {reason}; ask for fewer with num_thread or PUNA_THREADS"
    )]
    Threads {
        /// Number of requested threads.
        threads: usize,
        /// The system's error.
        reason: String,
    },
}

impl Config {
    fn level(&self) -> Result<&'static Level, CpuError> {
        Ok(match &self.kernels {
            Some(name) => puna_kernels::level(name)?,
            None => puna_kernels::best(),
        })
    }

    fn thread_count(&self) -> ThreadCount {
        match self.threads.filter(|&n| n > 0) {
            None => ThreadCount::Automatic,
            Some(threads) if self.capped => ThreadCount::AtMost(threads),
            Some(threads) => ThreadCount::Exactly(threads),
        }
    }
}

/// Describes the backend of a configuration without starting its threads.
///
/// # Errors
/// If the kernel level is unknown or not available on this machine.
pub fn describe(config: &Config) -> Result<Description, CpuError> {
    let level = config.level()?;
    let limits = CpuLimitsWatcher::new(System::real(), config.thread_count(), Instant::now());
    Ok(description(level, &limits))
}

fn description(level: &Level, limits: &CpuLimitsWatcher) -> Description {
    Description {
        name: "cpu".into(),
        device: topology::cpu_name(),
        kernels: level.name.into(),
        threads: limits.layout().threads(),
    }
}

impl CpuBackend {
    /// Makes a backend and starts its threads.
    ///
    /// # Errors
    /// If the kernel level is unknown or not available on this machine, or threads cannot be
    /// started.
    pub fn new(config: &Config) -> Result<Self, CpuError> {
        let backend = Self::on(System::real(), config.thread_count(), config.level()?)?;
        Ok(Self { deterministic: config.deterministic, ..backend })
    }

    fn on(system: System, count: ThreadCount, level: &'static Level) -> Result<Self, CpuError> {
        let limits = CpuLimitsWatcher::new(system, count, Instant::now());
        let threads = limits.layout().threads();
        let pool = Pool::new(limits.layout())
            .map_err(|error| CpuError::Threads { threads, reason: error.to_string() })?;
        Ok(Self {
            level,
            deterministic: false,
            pool,
            thread_scratch: thread_scratch(threads),
            weights: Vec::new(),
            ropes: Vec::new(),
            cache: None,
            states: None,
            programs: Vec::new(),
            constants: Constants::default(),
            queue: WorkQueue::new(limits.layout()),
            limits,
            backoff: ThreadBackoff::new(Instant::now()),
            arena: Arena::new(0),
            q8: Vec::new(),
            tiles: Vec::new(),
            split_scratch: SharedBuffer::new(0),
            result: (None, 0),
            gathered: Vec::new(),
            extra_outputs: Vec::new(),
            measuring: false,
            measured: Vec::new(),
            observations: None,
        })
    }

    /// Makes the backend observe the inputs of products ([`Backend::activation_stats`]), which
    /// costs some time.
    #[must_use]
    pub fn observing(self) -> Self {
        Self { observations: Some(Arc::default()), ..self }
    }

    /// Rebuilds the pool if the processor limits of the process have changed.
    fn update_limits(&mut self, now: Instant) {
        if self.limits.poll(now).is_some() {
            self.backoff = ThreadBackoff::new(now);
            self.rebuild_pool();
        }
    }

    /// Rebuilds the pool if the step that began at `start` makes the back-off change the number of
    /// threads.
    fn apply_backoff(&mut self, start: Instant) {
        let (now, wait_time) = (Instant::now(), self.pool.take_wait_time());
        let all = self.limits.layout().threads();
        if all > 1 && self.backoff.record_step(all, now - start, wait_time, now) {
            self.rebuild_pool();
        }
    }

    /// Makes a pool of the threads that limits and back-off ask for.
    fn rebuild_pool(&mut self) {
        let all = self.limits.layout();
        let layout = all.with(self.backoff.threads(all.threads()));
        // If the system refuses to start threads, the old pool stays.
        let Ok(pool) = Pool::new(&layout) else { return };
        self.pool = pool;
        self.queue = WorkQueue::new(&layout);
        self.thread_scratch = thread_scratch(layout.threads());
    }

    fn note(&mut self, op: &'static str, seconds: f64, (bytes, macs): (u64, u64)) {
        let at = self.measured.iter().position(|t| t.op == op).unwrap_or_else(|| {
            self.measured.push(OpTime { op, seconds: 0.0, bytes: 0, macs: 0 });
            self.measured.len() - 1
        });
        let total = &mut self.measured[at];
        total.seconds += seconds;
        total.bytes += bytes;
        total.macs += macs;
    }
}

impl Backend for CpuBackend {
    fn describe(&self) -> Description {
        description(self.level, &self.limits)
    }

    fn load_weights(&mut self, weights: Vec<Weight>, ropes: Vec<Rope>) -> Result<(), BackendError> {
        for w in &weights {
            let rows = w.shape.get(1..).unwrap_or_default().iter().product::<usize>();
            let bytes = w.ty.row_bytes(w.shape[0]).and_then(|row| row.checked_mul(rows));
            let found = w.data.size();
            if bytes != Some(found) {
                let (name, expected) = (w.name.clone(), bytes.unwrap_or(0));
                return Err(BackendError::WeightSize { name, found, expected });
            }
        }
        (self.weights, self.ropes) = (weights, ropes);
        self.programs.clear();
        self.constants = Constants::default();
        Ok(())
    }

    fn create_cache(&mut self, spec: CacheSpec) -> Result<(), BackendError> {
        self.cache = None;
        self.cache = Some(Cache::new(spec)?);
        Ok(())
    }

    fn create_states(&mut self, spec: StateSpec) -> Result<(), BackendError> {
        self.states = None;
        self.states = Some(States::new(spec)?);
        Ok(())
    }

    fn compile(&mut self, plan: Plan) -> Result<ProgramId, BackendError> {
        let program = compile(
            &plan,
            &self.weights,
            &self.ropes,
            self.level,
            self.deterministic,
            self.observations.as_ref(),
            &mut self.constants,
        )?;
        let scratch = split_scratch_len(&plan);
        if self.split_scratch.len() < scratch {
            self.split_scratch = SharedBuffer::zeroed(scratch, "partial attention results")?;
        }
        if self.arena.len() < program.arena {
            self.arena = Arena::zeroed(program.arena, "the activations of a step")?;
        }
        for (i, &wanted) in program.q8.iter().enumerate() {
            match self.q8.get_mut(i) {
                None => self.q8.push(Q8Buffer::new(wanted)?),
                Some(buffer) if buffer.values() < wanted => *buffer = Q8Buffer::new(wanted)?,
                Some(_) => {}
            }
        }
        for (i, &wanted) in program.tiles.iter().enumerate() {
            match self.tiles.get_mut(i) {
                None => self.tiles.push(TileBuffer::new(wanted)?),
                Some(buffer) if buffer.values() < wanted => *buffer = TileBuffer::new(wanted)?,
                Some(_) => {}
            }
        }
        self.programs.push(program);
        Ok(ProgramId(self.programs.len() - 1))
    }

    fn run(&mut self, program: ProgramId, input: &StepInput) {
        let start = Instant::now();
        self.update_limits(start);
        let mut programs = std::mem::take(&mut self.programs);
        let program = &mut programs[program.0];
        check(input, program, self.cache.as_ref(), self.states.as_ref());
        let step = Step {
            level: self.level,
            threads: self.pool.threads(),
            weights: &self.weights,
            ropes: &self.ropes,
            input,
            arena: &self.arena,
            q8: &self.q8,
            tiles: &self.tiles,
            split_scratch: &self.split_scratch,
            cache: self.cache.as_ref(),
            states: self.states.as_ref(),
        };
        program.instructions.iter_mut().for_each(|i| i.prepare(&step));
        let rows = |range: &ArenaRange| step.rows(range.rows);
        let extra_outputs: Vec<_> =
            program.extra_outputs.iter().map(|range| (*range, rows(range))).collect();
        self.result = (Some(program.result), rows(&program.result));
        let mut times = Vec::new();
        if self.measuring {
            // One instruction per job, so that the time includes the barrier.
            for i in 0..program.instructions.len() {
                let one = &program.instructions[i..=i];
                let start = Instant::now();
                self.queue.reset();
                let (queue, thread_scratch) = (&self.queue, &self.thread_scratch);
                self.pool.run(&|w| {
                    run(
                        one,
                        queue,
                        &step,
                        w,
                        &mut thread_scratch[w.index()].lock().expect("own lock"),
                    )
                });
                times.push((one[0].name(), start.elapsed().as_secs_f64(), one[0].work(&step)));
            }
        } else {
            self.queue.reset();
            let (all, queue, thread_scratch) =
                (&program.instructions[..], &self.queue, &self.thread_scratch);
            self.pool.run(&|w| {
                run(all, queue, &step, w, &mut thread_scratch[w.index()].lock().expect("own lock"))
            });
        }
        times.into_iter().for_each(|(op, seconds, work)| self.note(op, seconds, work));
        self.programs = programs;
        self.gather_result();
        self.extra_outputs.resize_with(extra_outputs.len(), Vec::new);
        for (into, (range, rows)) in self.extra_outputs.iter_mut().zip(extra_outputs) {
            gather(self.arena.get_mut(), range, rows, into);
        }
        self.apply_backoff(start);
    }

    fn result(&self) -> &[f32] {
        &self.gathered
    }

    fn extra_output(&self, at: usize) -> &[f32] {
        self.extra_outputs.get(at).map_or(&[], Vec::as_slice)
    }

    fn copy_page(&mut self, from: u32, to: u32) {
        if let Some(cache) = &mut self.cache {
            cache.copy_page(from, to);
        }
    }

    fn copy_window_page(&mut self, from: u32, to: u32) {
        if let Some(cache) = &mut self.cache {
            cache.copy_window_page(from, to);
        }
    }

    fn copy_state(&mut self, from: u32, to: u32) {
        if let Some(states) = &mut self.states {
            states.copy(from, to);
        }
    }

    fn max_bit_exact_rows(&self) -> usize {
        // Attention and all other operations compute each row independently.
        STREAM_ROWS
    }

    fn scratch_bytes(&self) -> usize {
        let q8 = self.q8.iter().map(|buffer| buffer.values() * 5 / 4).sum::<usize>();
        let tiles = self.tiles.iter().map(|buffer| buffer.values() * 2).sum::<usize>();
        let own = self.programs.iter().map(|p| p.own_bytes).sum::<usize>();
        let shared = self.constants.bytes() + self.split_scratch.len() * 4;
        let handed =
            self.extra_outputs.iter().map(Vec::capacity).sum::<usize>() + self.gathered.capacity();
        self.arena.len() * 4 + q8 + tiles + own + shared + handed * 4
    }

    fn measure(&mut self, on: bool) {
        self.measuring = on;
        self.measured.clear();
    }

    fn op_times(&self) -> Vec<OpTime> {
        self.measured.clone()
    }

    fn activation_stats(&self) -> Vec<ActivationStats> {
        let all =
            self.observations.as_ref().map(|observations| observations.all()).unwrap_or_default();
        let one = |(weight, sums): (usize, crate::ops::observe::Sums)| ActivationStats {
            name: self.weights[weight].name.clone(),
            squares: sums.squares.iter().map(|&sum| sum as f32).collect(),
            counts: sums.counts,
        };
        all.into_iter().map(one).collect()
    }
}

/// Empty scratch memory for each thread. A thread touches its memory first, so that the system
/// places it in the thread's NUMA node.
fn thread_scratch(threads: usize) -> Vec<Mutex<ThreadScratch>> {
    (0..threads).map(|_| Mutex::default()).collect()
}

impl CpuBackend {
    fn gather_result(&mut self) {
        let (Some(range), rows) = self.result else { return };
        gather(self.arena.get_mut(), range, rows, &mut self.gathered);
    }
}

/// The rows of a value.
fn gather(arena: &[f32], range: ArenaRange, rows: usize, into: &mut Vec<f32>) {
    into.clear();
    for row in 0..rows {
        into.extend_from_slice(&arena[range.start + row * range.stride..][..range.cols]);
    }
}

/// Panics if threads would write the same memory in a step: more rows than the program was compiled
/// for, segments that do not follow each other, a page or a state that two sequences write.
fn check(input: &StepInput, program: &Program, cache: Option<&Cache>, states: Option<&States>) {
    let (tokens, outputs) = (input.tokens.len(), input.outputs.len());
    // A program with a result row per token has no value with a row per output.
    let fits = program.result.rows == Rows::Tokens || outputs <= program.capacity.outputs;
    assert!(tokens <= program.capacity.tokens && fits, "the step fits its program");
    assert!(
        input.inputs.iter().map(Vec::len).eq(program.input_cols.iter().map(|cols| tokens * cols)),
        "the step has all rows of its inputs"
    );
    let axes = input.axis_positions.len();
    assert!(axes == 0 || axes == tokens, "all rows have positions on the axes, or none has");
    let has_rows = |&row: &u32| (program.rows_per_output - 1..tokens).contains(&(row as usize));
    assert!(input.positions.len() == tokens && input.outputs.iter().all(has_rows));
    let distinct = |mut all: Vec<u32>| {
        all.sort_unstable();
        all.windows(2).all(|pair| pair[0] != pair[1])
    };
    let mut written = [Vec::new(), Vec::new()];
    let mut next = 0;
    for segment in &input.segments {
        assert_eq!(segment.first_row, next, "segments follow each other");
        next += segment.rows;
        let Some(cache) = cache.filter(|_| program.stores) else { continue };
        let (each, [window, full]) = (cache.page_tokens(), cache.page_kinds());
        let pages =
            segment.cached_tokens / each..(segment.cached_tokens + segment.rows).div_ceil(each);
        if full && !segment.pages.is_empty() {
            written[0].extend(pages.clone().map(|number| segment.page(false, number)));
        }
        if window && !segment.window_pages.pages.is_empty() {
            written[1].extend(pages.map(|number| segment.page(true, number)));
        }
    }
    assert_eq!(next, tokens, "segments cover all rows");
    assert!(written.map(distinct) == [true; 2], "a page is written for one sequence");
    if let Some(states) = states {
        let slots: Vec<u32> = input.segments.iter().map(|segment| segment.state).collect();
        assert!(slots.iter().all(|&slot| (slot as usize) < states.slots()), "states have slots");
        assert!(distinct(slots), "a state is written for one sequence");
    }
}

#[cfg(test)]
mod tests;

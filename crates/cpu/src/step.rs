//! What instructions see of a step, and how threads share one.

use puna_graph::{BackendError, Place, Rope, Rows, Segment, StepInput, Weight};
use puna_kernels::{Level, Q8Rows, Scratch, TileRows};

use crate::cache::Cache;
use crate::deal::Deal;
use crate::memory::{Arena, Shared};
use crate::pool::Worker;
use crate::states::States;

/// Activations rounded to 8 bits, with room for the largest step.
pub struct Q8Buffer {
    pub codes: Shared<i8>,
    pub scales: Shared<f32>,
    pub sums: Shared<i16>,
}

impl Q8Buffer {
    /// Room for `rows × k` values; `k` is a multiple of 32.
    pub fn new(values: usize) -> Result<Self, BackendError> {
        const WHAT: &str = "rounded activations";
        Ok(Self {
            codes: Shared::named(values, WHAT)?,
            scales: Shared::named(values / 32, WHAT)?,
            sums: Shared::named(values / 16, WHAT)?,
        })
    }

    /// Values that it has room for.
    pub fn values(&self) -> usize {
        self.codes.len()
    }

    /// Rows `first .. first + rows` of length `k`.
    ///
    /// # Safety
    /// Nobody writes them while the view lives.
    pub unsafe fn rows(&self, first: usize, rows: usize, k: usize) -> Q8Rows<'_> {
        // SAFETY: passed on.
        unsafe {
            Q8Rows {
                rows,
                k,
                codes: self.codes.slice(first * k, rows * k),
                scales: self.scales.slice(first * k / 32, rows * k / 32),
                sums: self.sums.slice(first * k / 16, rows * k / 16),
            }
        }
    }

    /// Rounds `x` to row `row`.
    ///
    /// # Safety
    /// Nobody else reads or writes that row meanwhile.
    pub unsafe fn quantize(&self, level: &Level, row: usize, x: &[f32]) {
        let k = x.len();
        // SAFETY: passed on.
        unsafe {
            (level.vector.quantize_q8)(
                x,
                self.codes.slice_mut(row * k, k),
                self.scales.slice_mut(row * k / 32, k / 32),
                self.sums.slice_mut(row * k / 16, k / 16),
            );
        }
    }

    /// Copies a row from another buffer.
    ///
    /// # Safety
    /// As for [`Q8Buffer::rows`] and [`Q8Buffer::quantize`].
    pub unsafe fn copy_row(&self, row: usize, from: &Q8Buffer, from_row: usize, k: usize) {
        // SAFETY: passed on.
        unsafe {
            let source = from.rows(from_row, 1, k);
            self.codes.slice_mut(row * k, k).copy_from_slice(source.codes);
            self.scales.slice_mut(row * k / 32, k / 32).copy_from_slice(source.scales);
            self.sums.slice_mut(row * k / 16, k / 16).copy_from_slice(source.sums);
        }
    }
}

/// Activations in tiles, with room for the largest step.
pub struct TileBuffer(pub Shared<u16>);

impl TileBuffer {
    /// Room for `values` bf16.
    pub fn new(values: usize) -> Result<Self, BackendError> {
        Ok(Self(Shared::named(values, "activations in tiles")?))
    }

    /// Values that it has room for.
    pub fn values(&self) -> usize {
        self.0.len()
    }

    /// All of `rows` rows of `k` values that begin at `at`.
    ///
    /// # Safety
    /// Nobody writes them while the view lives.
    pub unsafe fn rows(&self, at: usize, rows: usize, k: usize, parts: usize) -> TileRows<'_> {
        // SAFETY: passed on.
        TileRows { rows, k, parts, data: unsafe { self.0.slice(at, parts * TileRows::part(rows, k)) } }
    }

    /// The two parts of a piece (see [`TileRows::piece`]) of rows that begin at `at`: so many of so many values in so many
    /// parts. The second is empty where there is one.
    ///
    /// # Safety
    /// Nobody else reads or writes that piece meanwhile.
    #[allow(clippy::mut_from_ref)] // as for [`Shared::slice_mut`]
    pub unsafe fn piece(
        &self,
        at: usize,
        (rows, k, parts): (usize, usize, usize),
        tile: usize,
        slice: usize,
    ) -> [&mut [u16]; 2] {
        let piece = TileRows::piece(rows, k, tile, slice);
        let low = if parts > 1 { piece.len() } else { 0 };
        // SAFETY: passed on; parts lie apart.
        unsafe {
            [
                self.0.slice_mut(at + piece.start, piece.len()),
                self.0.slice_mut(at + (parts - 1) * TileRows::part(rows, k) + piece.start, low),
            ]
        }
    }
}

/// One step: everything that instructions read and write.
pub struct Step<'a> {
    pub level: &'static Level,
    pub threads: usize,
    pub weights: &'a [Weight],
    pub ropes: &'a [Rope],
    pub input: &'a StepInput,
    pub arena: &'a Arena,
    pub q8: &'a [Q8Buffer],
    pub tiles: &'a [TileBuffer],
    /// What tasks of an instruction put aside for the one that finishes last. All instructions have it, one after the other.
    pub aside: &'a Shared<f32>,
    pub cache: Option<&'a Cache>,
    pub states: Option<&'a States>,
}

impl Step<'_> {
    /// The sequence's part of the step that a row belongs to.
    pub fn segment_of(&self, row: usize) -> &Segment {
        let segments = &self.input.segments;
        &segments[segments.partition_point(|s| s.first_row + s.rows <= row)]
    }

    /// Rows of a value in this step.
    pub fn rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Tokens => self.input.tokens.len(),
            Rows::Outputs => self.input.outputs.len(),
        }
    }

    /// Bytes of a weight.
    pub fn weight(&self, index: usize) -> &[u8] {
        self.weights[index].data.bytes()
    }
}

/// What a thread keeps for itself.
#[derive(Default)]
pub struct Local {
    /// For kernels.
    pub scratch: Scratch,
    /// For instructions.
    pub floats: Vec<f32>,
    /// The same.
    pub numbers: Vec<u32>,
    /// Cached keys and values that lie apart.
    pub gathered: [Vec<u8>; 2],
}

/// Part of a program, done by all threads together in independent tasks.
///
/// # Safety
/// Tasks of one instruction run at the same time on different threads: they must write disjoint memory and read nothing
/// that another task of the instruction writes. Instructions run one after the other with a barrier between.
pub unsafe trait Instruction: Send + Sync {
    /// The operation, for measurements.
    fn name(&self) -> &'static str;

    /// Number of tasks in this step.
    fn tasks(&self, step: &Step<'_>) -> usize;

    /// Does one task.
    ///
    /// # Safety
    /// `task` is below [`Instruction::tasks`] and done once in the step, after all earlier instructions.
    unsafe fn run(&self, task: usize, step: &Step<'_>, local: &mut Local);

    /// Whether the number of tasks is known before earlier instructions of the step have run.
    fn is_static(&self) -> bool {
        true
    }

    /// Called once a step, before any instruction, by one thread.
    fn prepare(&mut self, _step: &Step<'_>) {}

    /// Bytes of weights or cache that a step reads, and multiply-adds, for measurements.
    fn work(&self, _step: &Step<'_>) -> (u64, u64) {
        (0, 0)
    }
}

/// Runs a program's instructions on one of the pool's threads. `deal` was reset.
pub fn run(
    program: &[Box<dyn Instruction>],
    deal: &Deal,
    step: &Step<'_>,
    worker: &Worker<'_>,
    local: &mut Local,
) {
    let (mut at, mut round) = (0, 0);
    while at < program.len() {
        let tasks = program[at].tasks(step);
        if tasks == 0 && program[at].is_static() {
            // Every thread sees the same: nothing to do, nothing to wait for.
            at += 1;
            continue;
        }
        if tasks <= 1 {
            // A run of small instructions: one thread does them all, for one barrier. An instruction whose tasks are not
            // known before is a run alone: a thread that comes late still asks for them while the run goes on.
            let few = |i: &dyn Instruction| i.is_static() && i.tasks(step) <= 1;
            let more = program[at + 1..].iter().take_while(|i| few(i.as_ref())).count();
            let more = if program[at].is_static() { more } else { 0 };
            let end = at + 1 + more;
            if deal.first(round, worker.index()) {
                for instruction in &program[at..end] {
                    for task in 0..instruction.tasks(step) {
                        // SAFETY: one thread does the run, in order; barriers keep earlier instructions before it.
                        unsafe { instruction.run(task, step, local) };
                    }
                }
            }
            at = end;
        } else {
            deal.work(round, worker.index(), tasks, |task| {
                // SAFETY: the deal gives each task to one thread; barriers keep earlier instructions before it.
                unsafe { program[at].run(task, step, local) };
            });
            at += 1;
        }
        round += 1;
        worker.barrier();
    }
}

/// Rows a task of an element-wise instruction handles, so that tasks are worth the claim.
pub fn rows_a_task(cols: usize) -> usize {
    (16384 / cols.max(1)).max(1)
}

/// The rows of a task, when a value's rows are dealt out in runs of [`rows_a_task`].
pub fn task_rows(task: usize, place: &Place, step: &Step<'_>) -> std::ops::Range<usize> {
    let each = rows_a_task(place.cols);
    task * each..((task + 1) * each).min(step.rows(place.rows))
}

/// Number of tasks to go with [`task_rows`].
pub fn row_tasks(place: &Place, step: &Step<'_>) -> usize {
    step.rows(place.rows).div_ceil(rows_a_task(place.cols))
}

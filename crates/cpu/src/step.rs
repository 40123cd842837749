//! The data of one step, the [`Instruction`] trait, and the loop in which a thread runs a program.

use puna_graph::{ArenaRange, BackendError, Rope, Rows, Segment, StepInput, Weight};
use puna_kernels::{Level, Q8Rows, Scratch, TileRows};

use crate::cache::Cache;
use crate::memory::{Arena, SharedBuffer};
use crate::pool::Worker;
use crate::states::States;
use crate::work_queue::WorkQueue;

/// Buffer for activations quantized to 8 bits, sized for the largest step.
pub struct Q8Buffer {
    pub codes: SharedBuffer<i8>,
    pub scales: SharedBuffer<f32>,
    pub sums: SharedBuffer<i16>,
}

impl Q8Buffer {
    /// Makes a buffer for `values` activations, a multiple of 32.
    pub fn new(values: usize) -> Result<Self, BackendError> {
        const WHAT: &str = "quantized activations";
        Ok(Self {
            codes: SharedBuffer::zeroed(values, WHAT)?,
            scales: SharedBuffer::zeroed(values / 32, WHAT)?,
            sums: SharedBuffer::zeroed(values / 16, WHAT)?,
        })
    }

    /// Capacity in values.
    pub fn values(&self) -> usize {
        self.codes.len()
    }

    /// Rows `first .. first + rows` of length `k`.
    ///
    /// # Safety
    /// No thread writes them while the view lives.
    pub unsafe fn rows(&self, first: usize, rows: usize, k: usize) -> Q8Rows<'_> {
        // SAFETY: the caller keeps the same contract.
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

    /// Quantizes `x` into row `row`.
    ///
    /// # Safety
    /// No other thread reads or writes the row at the same time.
    pub unsafe fn quantize(&self, level: &Level, row: usize, x: &[f32]) {
        let k = x.len();
        // SAFETY: the caller keeps the same contract.
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
        // SAFETY: the caller keeps the same contract.
        unsafe {
            let source = from.rows(from_row, 1, k);
            self.codes.slice_mut(row * k, k).copy_from_slice(source.codes);
            self.scales.slice_mut(row * k / 32, k / 32).copy_from_slice(source.scales);
            self.sums.slice_mut(row * k / 16, k / 16).copy_from_slice(source.sums);
        }
    }
}

/// Buffer for activations in tiles ([`TileRows`]), sized for the largest step.
pub struct TileBuffer(pub SharedBuffer<u16>);

impl TileBuffer {
    /// Makes a buffer for `values` bf16.
    pub fn new(values: usize) -> Result<Self, BackendError> {
        Ok(Self(SharedBuffer::zeroed(values, "activations in tiles")?))
    }

    /// Capacity in values.
    pub fn values(&self) -> usize {
        self.0.len()
    }

    /// A matrix of `rows × k` values that begins at index `at`.
    ///
    /// # Safety
    /// No thread writes them while the view lives.
    pub unsafe fn rows(&self, at: usize, rows: usize, k: usize, parts: usize) -> TileRows<'_> {
        // SAFETY: the caller keeps the same contract.
        let data = unsafe { self.0.slice(at, parts * TileRows::part(rows, k)) };
        TileRows { rows, k, parts, data }
    }

    /// The high and low parts of a piece ([`TileRows::piece`]) of the matrix `(rows, k, parts)`
    /// that begins at index `at`. The low part is empty if `parts` is 1.
    ///
    /// # Safety
    /// No other thread reads or writes the piece at the same time.
    #[allow(clippy::mut_from_ref)] // as for [`SharedBuffer::slice_mut`]
    pub unsafe fn piece(
        &self,
        at: usize,
        (rows, k, parts): (usize, usize, usize),
        tile: usize,
        slice: usize,
    ) -> [&mut [u16]; 2] {
        let piece = TileRows::piece(rows, k, tile, slice);
        let low = if parts > 1 { piece.len() } else { 0 };
        // SAFETY: the caller keeps the same contract; the parts are disjoint.
        unsafe {
            [
                self.0.slice_mut(at + piece.start, piece.len()),
                self.0.slice_mut(at + (parts - 1) * TileRows::part(rows, k) + piece.start, low),
            ]
        }
    }
}

/// Everything that the instructions of one step read and write.
pub struct Step<'a> {
    pub level: &'static Level,
    pub threads: usize,
    pub weights: &'a [Weight],
    pub ropes: &'a [Rope],
    pub input: &'a StepInput,
    pub arena: &'a Arena,
    pub q8: &'a [Q8Buffer],
    pub tiles: &'a [TileBuffer],
    /// Partial results of the tasks of one instruction, which the last task merges. All
    /// instructions share it.
    pub split_scratch: &'a SharedBuffer<f32>,
    pub cache: Option<&'a Cache>,
    pub states: Option<&'a States>,
}

impl Step<'_> {
    /// The segment (rows of one sequence) that contains `row`.
    pub fn segment_of(&self, row: usize) -> &Segment {
        let segments = &self.input.segments;
        &segments[segments.partition_point(|s| s.first_row + s.rows <= row)]
    }

    /// Number of rows of a value in this step.
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

/// Temporary memory of one thread; instructions may use it within a task.
#[derive(Default)]
pub struct ThreadScratch {
    /// Memory of kernels.
    pub kernel: Scratch,
    /// Any f32.
    pub floats: Vec<f32>,
    /// Any u32.
    pub numbers: Vec<u32>,
    /// Keys and values of the positions that sparse attention has selected, copied together.
    pub gathered: [Vec<u8>; 2],
}

/// One instruction of a program, divided into independent tasks.
///
/// # Safety
/// Tasks of one instruction run concurrently. They must write disjoint memory and read nothing that
/// another task of the instruction writes. Instructions run one after the other with a barrier
/// between them.
pub unsafe trait Instruction: Send + Sync {
    /// Name of the operation in measurements.
    fn name(&self) -> &'static str;

    /// Number of tasks in this step.
    fn tasks(&self, step: &Step<'_>) -> usize;

    /// Runs one task.
    ///
    /// # Safety
    /// `task` is below [`Instruction::tasks`] and runs once in the step, after all earlier
    /// instructions.
    unsafe fn run(&self, task: usize, step: &Step<'_>, scratch: &mut ThreadScratch);

    /// Whether the number of tasks is known before the earlier instructions of the step have run.
    fn is_static(&self) -> bool {
        true
    }

    /// One thread calls it once a step, before any instruction runs.
    fn prepare(&mut self, _step: &Step<'_>) {}

    /// Bytes of weights or cache that the step reads, and its multiply-adds, for measurements.
    fn work(&self, _step: &Step<'_>) -> (u64, u64) {
        (0, 0)
    }
}

/// Runs a program's instructions on one thread of the pool. The caller has reset `queue`.
pub fn run(
    program: &[Box<dyn Instruction>],
    queue: &WorkQueue,
    step: &Step<'_>,
    worker: &Worker<'_>,
    scratch: &mut ThreadScratch,
) {
    let (mut at, mut round) = (0, 0);
    while at < program.len() {
        let tasks = program[at].tasks(step);
        if tasks == 0 && program[at].is_static() {
            // No tasks. All threads decide the same, so no barrier is needed.
            at += 1;
            continue;
        }
        if tasks <= 1 {
            // One thread runs a group of small instructions, so that they share one barrier. If the
            // number of tasks is not static, the instruction forms a group alone: a late thread
            // still asks for the number while the group runs.
            let few = |i: &dyn Instruction| i.is_static() && i.tasks(step) <= 1;
            let more = program[at + 1..].iter().take_while(|i| few(i.as_ref())).count();
            let more = if program[at].is_static() { more } else { 0 };
            let end = at + 1 + more;
            if queue.claim_round(round, worker.index()) {
                for instruction in &program[at..end] {
                    for task in 0..instruction.tasks(step) {
                        // SAFETY: one thread runs the group in order, behind the barrier of the
                        // earlier instructions.
                        unsafe { instruction.run(task, step, scratch) };
                    }
                }
            }
            at = end;
        } else {
            queue.run_tasks(round, worker.index(), tasks, |task| {
                // SAFETY: the queue gives each task to one thread, behind the barrier of the
                // earlier instructions.
                unsafe { program[at].run(task, step, scratch) };
            });
            at += 1;
        }
        round += 1;
        worker.barrier();
    }
}

/// Rows of one task of an element-wise instruction; large enough that claiming a task costs little.
pub fn rows_per_task(cols: usize) -> usize {
    (16384 / cols.max(1)).max(1)
}

/// The rows of a task, if each task has [`rows_per_task`] rows.
pub fn task_rows(task: usize, range: &ArenaRange, step: &Step<'_>) -> std::ops::Range<usize> {
    let each = rows_per_task(range.cols);
    task * each..((task + 1) * each).min(step.rows(range.rows))
}

/// Number of tasks, if each has the rows of [`task_rows`].
pub fn row_tasks(range: &ArenaRange, step: &Step<'_>) -> usize {
    step.rows(range.rows).div_ceil(rows_per_task(range.cols))
}

//! Rows of embedding tables, and the rows for which the step returns logits.

use puna_graph::{ArenaRange, Index, InputId, StepInput, Weight};

use crate::step::{Instruction, Step, ThreadScratch, row_tasks, task_rows};

/// An embedding table with a function that dequantizes its rows.
pub struct Table {
    weight: usize,
    /// Number of rows.
    entries: usize,
    row_bytes: usize,
    dequantize: fn(&[u8], &mut [f32]),
}

impl Table {
    /// This weight as a table; `None` if its type cannot be dequantized.
    pub fn of(at: usize, weight: &Weight) -> Option<Self> {
        let dequantize = puna_quant::dequantizer(weight.ty)?;
        let (k, entries) = (weight.shape[0], weight.shape.get(1).copied().unwrap_or(1));
        Some(Self { weight: at, entries, row_bytes: weight.ty.row_bytes(k)?, dequantize })
    }

    fn read(&self, bytes: &[u8], entry: u32, out: &mut [f32]) {
        let entry = (entry as usize).min(self.entries - 1);
        (self.dequantize)(&bytes[entry * self.row_bytes..][..self.row_bytes], out);
    }
}

/// Looks up a row of a table for each token.
pub struct Embed {
    pub table: Table,
    pub index: Index,
    pub out: ArenaRange,
}

// SAFETY: a task writes its own rows of the result.
unsafe impl Instruction for Embed {
    fn name(&self) -> &'static str {
        "embed"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        let table = step.weight(self.table.weight);
        for row in task_rows(task, &self.out, step) {
            let token = step.input.tokens[row];
            let entry = match self.index {
                Index::Token | Index::Remapped(_) if token == StepInput::NO_TOKEN => {
                    // SAFETY: each row belongs to one task.
                    unsafe { step.arena.row_mut(&self.out, row) }.fill(0.0);
                    continue;
                }
                Index::TokenOr(row) if token == StepInput::NO_TOKEN => row,
                Index::Token | Index::TokenOr(_) => token,
                Index::Remapped(list) => listed(step.weight(list.index()), token),
                Index::Position => step.input.positions[row],
                Index::Fixed(entry) => entry,
            };
            // SAFETY: each row belongs to one task.
            self.table.read(table, entry, unsafe { step.arena.row_mut(&self.out, row) });
        }
    }
}

/// Looks up several rows of a table for each token, by numbers in columns of a value.
pub struct EmbedRows {
    pub table: Table,
    pub numbers: ArenaRange,
    pub out: ArenaRange,
}

// SAFETY: a task writes its own rows of the result.
unsafe impl Instruction for EmbedRows {
    fn name(&self) -> &'static str {
        "embed"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        let table = step.weight(self.table.weight);
        for row in task_rows(task, &self.out, step) {
            // SAFETY: each row belongs to one task; the planner keeps numbers and result apart.
            let (numbers, out) =
                unsafe { (step.arena.row(&self.numbers, row), step.arena.row_mut(&self.out, row)) };
            let each = out.len() / numbers.len();
            for (number, out) in numbers.iter().zip(out.chunks_exact_mut(each)) {
                self.table.read(table, number.to_bits(), out);
            }
        }
    }
}

/// Entry of an I32 list for a token; the token itself if the list is shorter.
fn listed(list: &[u8], token: u32) -> u32 {
    let at = (token as usize).saturating_mul(4);
    let entry = list.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    entry.map_or(token, u32::from_le_bytes)
}

/// Copies the rows of an input of the step.
pub struct InputRows {
    pub input: InputId,
    pub out: ArenaRange,
}

// SAFETY: a task writes its own rows of the result.
unsafe impl Instruction for InputRows {
    fn name(&self) -> &'static str {
        "input_rows"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        let (rows, cols) = (&step.input.inputs[self.input.index()], self.out.cols);
        for row in task_rows(task, &self.out, step) {
            // SAFETY: each row belongs to one task.
            let out = unsafe { step.arena.row_mut(&self.out, row) };
            out.copy_from_slice(&rows[row * cols..][..cols]);
        }
    }
}

/// Makes one row of several consecutive rows: puts them side by side, or takes their mean.
pub struct ReduceRows {
    pub x: ArenaRange,
    pub out: ArenaRange,
    /// Number of rows that become one.
    pub rows: usize,
    /// Whether the result is the mean.
    pub is_mean: bool,
}

// SAFETY: a task writes its own rows of the result.
unsafe impl Instruction for ReduceRows {
    fn name(&self) -> &'static str {
        if self.is_mean { "mean_rows" } else { "concat_rows" }
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        for row in task_rows(task, &self.out, step) {
            let end = step.input.outputs[row] as usize + 1;
            // SAFETY: each row belongs to one task; the planner keeps `x` and `out` apart.
            let out = unsafe { step.arena.row_mut(&self.out, row) };
            // SAFETY: an earlier instruction computed the rows, behind a barrier.
            let rows = (end - self.rows..end).map(|at| unsafe { step.arena.row(&self.x, at) });
            if !self.is_mean {
                rows.zip(out.chunks_exact_mut(self.x.cols))
                    .for_each(|(x, out)| out.copy_from_slice(x));
                continue;
            }
            out.fill(0.0);
            rows.for_each(|x| out.iter_mut().zip(x).for_each(|(sum, x)| *sum += x));
            let factor = 1.0 / self.rows as f32;
            out.iter_mut().for_each(|sum| *sum *= factor);
        }
    }
}

/// Copies the rows for which the step returns logits.
pub struct GatherOutputs {
    pub x: ArenaRange,
    pub out: ArenaRange,
}

// SAFETY: a task writes its own rows of the result.
unsafe impl Instruction for GatherOutputs {
    fn name(&self) -> &'static str {
        "gather_outputs"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        for row in task_rows(task, &self.out, step) {
            let from = step.input.outputs[row] as usize;
            // SAFETY: each row belongs to one task; the planner keeps `x` and `out` apart.
            unsafe {
                step.arena.row_mut(&self.out, row).copy_from_slice(step.arena.row(&self.x, from))
            }
        }
    }
}

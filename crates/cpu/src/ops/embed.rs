//! Rows of tables, and the rows whose results are wanted.

use puna_graph::{Index, Place};

use crate::step::{Instruction, Local, Step, row_tasks, task_rows};

/// Dequantizes rows of a table.
pub struct Embed {
    pub table: usize,
    pub index: Index,
    pub out: Place,
    /// The table's number of rows.
    pub entries: usize,
    pub row_bytes: usize,
    pub dequantize: fn(&[u8], &mut [f32]),
}

// SAFETY: a task writes rows of the result that are its own.
unsafe impl Instruction for Embed {
    fn name(&self) -> &'static str {
        "embed"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut Local) {
        let table = step.weight(self.table);
        for row in task_rows(task, &self.out, step) {
            let entry = match self.index {
                Index::Token => step.input.tokens[row],
                Index::Instead(list) => listed(step.weight(list.index()), step.input.tokens[row]),
                Index::Position => step.input.positions[row],
                Index::Fixed(entry) => entry,
            };
            let entry = (entry as usize).min(self.entries - 1);
            // SAFETY: each row belongs to one task.
            let out = unsafe { step.arena.row_mut(&self.out, row) };
            (self.dequantize)(&table[entry * self.row_bytes..][..self.row_bytes], out);
        }
    }
}

/// What a list of I32 has for a token, or the token itself behind its end.
fn listed(list: &[u8], token: u32) -> u32 {
    let at = (token as usize).saturating_mul(4);
    let entry = list.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    entry.map_or(token, u32::from_le_bytes)
}

/// Copies the rows whose results are wanted.
pub struct GatherOutputs {
    pub x: Place,
    pub out: Place,
}

// SAFETY: a task writes rows of the result that are its own.
unsafe impl Instruction for GatherOutputs {
    fn name(&self) -> &'static str {
        "gather_outputs"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut Local) {
        for row in task_rows(task, &self.out, step) {
            let from = step.input.outputs[row] as usize;
            // SAFETY: each row belongs to one task; the planner keeps `x` and `out` apart.
            unsafe { step.arena.row_mut(&self.out, row).copy_from_slice(step.arena.row(&self.x, from)) }
        }
    }
}

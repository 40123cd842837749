//! Experts' inputs in tiles, for levels with matrix units.
//!
//! Each expert with more rows than [`STREAM_ROWS`] has its rows in tiles, one expert after the
//! other.

use std::sync::Arc;

use puna_kernels::{
    AMX_SLICE, Acts, LinearKernel, STREAM_ROWS, TILE_ROWS, TileForm, TileRows, slice_len,
};

use crate::ops::moe::MoeLayer;
use crate::step::{Instruction, Step, ThreadScratch, TileBuffer};

/// Input of an expert's products.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ExpertInput {
    /// Input of gate and up.
    GateUp,
    /// Input of down.
    Down,
}

/// Values that a buffer needs for up to `slots` rows of `k` values of up to `experts` experts.
pub fn tile_buffer_len(slots: usize, experts: usize, k: usize, form: Option<TileForm>) -> usize {
    form.map_or(0, |form| form.parts * TileRows::part(tiles_at_most(slots, experts) * TILE_ROWS, k))
}

/// Largest number of tiles: each expert's last tile may be part full.
fn tiles_at_most(slots: usize, experts: usize) -> usize {
    slots.div_ceil(TILE_ROWS) + experts.min(slots)
}

impl MoeLayer {
    fn tile_form(&self, input: ExpertInput) -> Option<TileForm> {
        match input {
            ExpertInput::GateUp => TileForm::common(self.gate.kernel.tiles, self.up.kernel.tiles),
            ExpertInput::Down => self.down.kernel.tiles,
        }
    }

    fn tile_buffer(&self, input: ExpertInput) -> &TileBuffer {
        match input {
            ExpertInput::GateUp => &self.buffers.input_tiles,
            ExpertInput::Down => &self.buffers.hidden_tiles,
        }
    }

    fn tiles_of(&self, expert: usize) -> usize {
        let rows = self.slots_of(expert).len();
        if rows > STREAM_ROWS { rows.div_ceil(TILE_ROWS) } else { 0 }
    }

    /// Columns of an input, and the index where the tiles of an expert begin behind `before` tiles
    /// of earlier experts.
    fn tile_start(&self, input: ExpertInput, before: usize, parts: usize) -> (usize, usize) {
        let k = if input == ExpertInput::GateUp { self.x.cols } else { self.spec.hidden };
        (k, parts * TileRows::part(before * TILE_ROWS, k))
    }

    /// The tiles of an expert, if `kernel` multiplies them.
    ///
    /// # Safety
    /// They were made in this step, before a barrier.
    pub(super) unsafe fn tiles(
        &self,
        input: ExpertInput,
        expert: usize,
        kernel: &LinearKernel,
    ) -> Option<Acts<'_>> {
        let rows = self.slots_of(expert).len();
        let form = self
            .tile_form(input)
            .filter(|_| kernel.tiles.is_some() && rows > kernel.stream_rows)?;
        let before = (0..expert).map(|e| self.tiles_of(e)).sum();
        let (k, at) = self.tile_start(input, before, form.parts);
        // SAFETY: the caller keeps the same contract.
        Some(Acts::Tiles(unsafe { self.tile_buffer(input).rows(at, rows, k, form.parts) }))
    }
}

/// Interleaves the rows of an input into tiles.
pub struct TileSlots(pub Arc<MoeLayer>, pub ExpertInput);

impl TileSlots {
    /// The expert of a task, the number of tiles of earlier experts, and the tile of the expert.
    fn locate(&self, task: usize) -> Option<(usize, usize, usize)> {
        let mut before = 0;
        for expert in 0..self.0.spec.experts {
            let tiles = self.0.tiles_of(expert);
            if task < before + tiles {
                return Some((expert, before, task - before));
            }
            before += tiles;
        }
        None
    }
}

// SAFETY: a task writes a tile that is its own.
unsafe impl Instruction for TileSlots {
    fn name(&self) -> &'static str {
        "moe"
    }

    /// The largest possible number: routing determines the actual number, and an empty task is
    /// cheap.
    fn tasks(&self, step: &Step<'_>) -> usize {
        let tokens = step.rows(self.0.x.rows);
        if tokens <= STREAM_ROWS {
            0
        } else {
            tiles_at_most(tokens * self.0.spec.top_k, self.0.spec.experts)
        }
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, scratch: &mut ThreadScratch) {
        let m = &*self.0;
        let Some(form) = m.tile_form(self.1) else { return };
        let Some((expert, before, tile)) = self.locate(task) else { return };
        let slots = m.slots_of(expert);
        let first = slots.start + tile * TILE_ROWS;
        let count = (slots.end - first).min(TILE_ROWS);
        let (k, at) = m.tile_start(self.1, before, form.parts);
        scratch.floats.resize(TILE_ROWS * AMX_SLICE, 0.0);
        for slice in 0..k.div_ceil(AMX_SLICE) {
            let len = slice_len(k, slice);
            // SAFETY: inputs were computed before a barrier; tiles do not overlap and each belongs
            // to one task.
            unsafe {
                for (row, to) in scratch.floats.chunks_exact_mut(AMX_SLICE).enumerate().take(count)
                {
                    let from = match self.1 {
                        ExpertInput::GateUp => {
                            let token = m.buffers.tokens.slice(first + row, 1)[0] as usize;
                            &step.arena.row(&m.x, token)[slice * AMX_SLICE..]
                        }
                        ExpertInput::Down => {
                            m.buffers.gate.slice((first + row) * k + slice * AMX_SLICE, len)
                        }
                    };
                    to[..len].copy_from_slice(&from[..len]);
                }
                let to = m.tile_buffer(self.1);
                let [high, low] = to.piece(at, (slots.len(), k, form.parts), tile, slice);
                (form.interleave)(&scratch.floats, AMX_SLICE, count, len, high, low);
            }
        }
    }
}

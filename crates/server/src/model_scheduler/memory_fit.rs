//! Decides whether a planned model fits in memory and with how much context.

use super::{LoadOptions, Memory, MemoryNeed};

/// Memory available to one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemorySpace {
    /// Bytes that the model may take now.
    pub(super) room: u64,
    /// Bytes that it may take if no other model is loaded.
    pub(super) total: u64,
    /// Whether no other model is loaded.
    pub(super) alone: bool,
}

/// Next action for a planned model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FitStep {
    /// Plan again with half of the context.
    HalveContext,
    /// Load the model.
    Load,
    /// Unload other models.
    EvictOthers,
    /// Plan again with less memory, or reject the model if that is impossible.
    ReduceMemory,
}

/// Decides the next step of a model with its options and planned memory.
pub(super) fn next_step(options: &LoadOptions, need: MemoryNeed, space: MemorySpace) -> FitStep {
    // A context longer than most requests need evicts no other model and leaves half of the free
    // memory.
    let for_contexts = space.room.saturating_sub(need.total.saturating_sub(need.cache));
    if options.has_long_context() && need.cache > for_contexts / 2 {
        return FitStep::HalveContext;
    }
    match (need.total <= space.room, !space.alone && need.total <= space.total) {
        (true, _) => FitStep::Load,
        (false, true) => FitStep::EvictOthers,
        (false, false) => FitStep::ReduceMemory,
    }
}

/// Context with which a model would be loaded now. Other models take `others` bytes and are
/// unloaded if the memory is not enough for all. `plan` returns the bytes needed with some options.
/// `None` if it cannot be planned or does not fit.
pub fn planned_context(
    mut options: LoadOptions,
    Memory { total, available }: Memory,
    others: u64,
    mut plan: impl FnMut(&LoadOptions) -> Option<MemoryNeed>,
) -> Option<u32> {
    let mut space = match others {
        0 => MemorySpace { room: total.min(available), total, alone: true },
        others => MemorySpace { room: total.saturating_sub(others), total, alone: false },
    };
    loop {
        match next_step(&options, plan(&options)?, space) {
            FitStep::HalveContext => options.halve_context(),
            FitStep::Load => return Some(options.num_ctx),
            FitStep::EvictOthers => {
                let room = total.min(available.saturating_add(others));
                space = MemorySpace { room, alone: true, ..space };
            }
            FitStep::ReduceMemory if options.reduce() => {}
            FitStep::ReduceMemory => return None,
        }
    }
}

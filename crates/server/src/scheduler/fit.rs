//! How much context a planned model gets in the memory that there is.

use super::{LoadOptions, Memory, Need};

/// Memory for one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Space {
    /// Bytes that the model may take now.
    pub(super) room: u64,
    /// Bytes that it may take when no other model is loaded.
    pub(super) total: u64,
    /// Whether no other model is loaded.
    pub(super) alone: bool,
}

/// The next step with a planned model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Plan again with half of the context.
    HalveContext,
    /// Load it.
    Load,
    /// Unload other models.
    MakeRoom,
    /// Plan again with less memory, or refuse the model where that is not possible.
    Reduce,
}

/// The next step with a model that was planned with these options and needs these bytes.
pub(super) fn next_step(options: &LoadOptions, need: Need, space: Space) -> Step {
    // No other model is unloaded for a context longer than most requests need, and such a context leaves half of the free memory.
    let for_contexts = space.room.saturating_sub(need.total.saturating_sub(need.cache));
    if options.is_generous() && need.cache > for_contexts / 2 {
        return Step::HalveContext;
    }
    match (need.total <= space.room, !space.alone && need.total <= space.total) {
        (true, _) => Step::Load,
        (false, true) => Step::MakeRoom,
        (false, false) => Step::Reduce,
    }
}

/// The context with which a model would be loaded now beside loaded models of `others` bytes, which are unloaded where it does not fit
/// beside them. `plan` returns the bytes that the model needs with some options. `None`: it cannot be planned, or it does not fit.
pub fn planned_context(
    mut options: LoadOptions,
    Memory { total, available }: Memory,
    others: u64,
    mut plan: impl FnMut(&LoadOptions) -> Option<Need>,
) -> Option<u32> {
    let mut space = match others {
        0 => Space { room: total.min(available), total, alone: true },
        others => Space { room: total.saturating_sub(others), total, alone: false },
    };
    loop {
        match next_step(&options, plan(&options)?, space) {
            Step::HalveContext => options.halve_context(),
            Step::Load => return Some(options.num_ctx),
            Step::MakeRoom => {
                let room = total.min(available.saturating_add(others));
                space = Space { room, alone: true, ..space };
            }
            Step::Reduce if options.reduce() => {}
            Step::Reduce => return None,
        }
    }
}

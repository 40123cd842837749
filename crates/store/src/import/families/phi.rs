//! Phi.

use super::super::keys::Keys;
use super::super::rules::{Rule, one};
use super::names::{ATTENTION, BEFORE};
use super::{Family, PLAIN};
use crate::error::StoreError;

/// Gate and up stay in one.
const FUSED: [Rule; 2] = [one("mlp.gate_up_proj", "ffn_up"), one("mlp.down_proj", "ffn_down")];

pub(super) const PHI3: Family = Family {
    architecture: "phi3",
    classes: &["Phi3ForCausalLM"],
    layer: &[&ATTENTION, &FUSED, &BEFORE],
    keys: phi3,
    ..PLAIN
};

fn phi3(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    keys.usual()?;
    // None is a window of none, which tells Phi 4 from the others.
    keys.set("attention.sliding_window", keys.config.opt_count("sliding_window")?.unwrap_or(0));
    let turning = keys.turning(1.0)?;
    keys.set("rope.dimension_count", turning);
    // The key is there with and without scaling.
    let original = keys.original_context()?;
    keys.set("rope.scaling.original_context_length", original);
    Ok(())
}

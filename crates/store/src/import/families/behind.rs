//! Families with norms behind their parts alone.

use super::super::keys::Keys;
use super::names::{ATTENTION, BEHIND, GATED};
use super::{Family, PLAIN};
use crate::error::StoreError;

const BASE: Family = Family { layer: &[&ATTENTION, &GATED, &BEHIND], ..PLAIN };

pub(super) const OLMO2: Family = Family {
    architecture: "olmo2",
    classes: &["Olmo2ForCausalLM", "Olmo3ForCausalLM"],
    keys: |keys| {
        keys.usual()?;
        window(keys)
    },
    ..BASE
};

pub(super) const EXAONE4: Family = Family {
    architecture: "exaone4",
    classes: &["Exaone4ForCausalLM", "Exaone4_5_ForConditionalGeneration"],
    keys: |keys| {
        keys.usual()?;
        window(keys)
    },
    ..BASE
};

/// The window, where there is one, and which layers have it: unless something is said, the fourth one sees all.
fn window(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    let Some(window) = keys.config.opt_count("sliding_window")? else { return Ok(()) };
    keys.set("attention.sliding_window", window);
    let slides = keys.sliding_layers(4)?;
    keys.set("attention.sliding_window_pattern", slides);
    Ok(())
}

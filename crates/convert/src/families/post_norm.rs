//! Families with norms only behind attention and feed-forward network: OLMo 2 and 3, EXAONE 4.

use super::common_rules::{ATTENTION, GATED_FFN, POST_NORMS};
use super::default_family::DEFAULT;
use crate::error::ConvertError;
use crate::family::Family;
use crate::metadata::MetadataWriter;

const BASE: Family = Family { layer_rules: &[&ATTENTION, &GATED_FFN, &POST_NORMS], ..DEFAULT };

pub(super) const OLMO2: Family = Family {
    architecture: "olmo2",
    classes: &["Olmo2ForCausalLM", "Olmo3ForCausalLM"],
    write_metadata: |metadata| {
        metadata.write_common()?;
        write_window(metadata)
    },
    ..BASE
};

pub(super) const EXAONE4: Family = Family {
    architecture: "exaone4",
    classes: &["Exaone4ForCausalLM", "Exaone4_5_ForConditionalGeneration"],
    write_metadata: |metadata| {
        metadata.write_common()?;
        write_window(metadata)
    },
    ..BASE
};

/// Writes the window, if there is one, and its layers. By default every fourth layer has full
/// attention.
fn write_window(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    let Some(window) = metadata.config.opt_count("sliding_window")? else { return Ok(()) };
    metadata.set("attention.sliding_window", window);
    let is_sliding = metadata.sliding_layers(4)?;
    metadata.set("attention.sliding_window_pattern", is_sliding);
    Ok(())
}

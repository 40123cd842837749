//! Command R: layer norms without bias, parallel parts, a scale of the output.

use super::super::keys::{Keys, Shape};
use super::{Family, PLAIN};
use crate::error::StoreError;

pub(super) const COMMAND_R: Family = Family {
    architecture: "command-r",
    classes: &["CohereForCausalLM"],
    tied: true,
    // It was trained for more than it says at the usual place.
    shape: |config| {
        let mut shape = Shape::usual(config)?;
        shape.context = config.opt_count("model_max_length")?.unwrap_or(shape.context);
        Ok(shape)
    },
    keys: cohere,
    ..PLAIN
};

pub(super) const COHERE2: Family = Family {
    architecture: "cohere2",
    classes: &["Cohere2ForCausalLM"],
    tied: true,
    keys: |keys| {
        cohere(keys)?;
        keys.set("vocab_size", keys.rows());
        let share = keys.config.float("rotary_pct", 1.0)?;
        keys.set("rope.dimension_count", (share * keys.head() as f32) as u32);
        keys.count("attention.sliding_window", &["sliding_window"])
    },
    ..PLAIN
};

fn cohere(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    keys.usual()?;
    keys.set("attention.layer_norm_epsilon", keys.config.float("layer_norm_eps", 1e-5)?);
    keys.set("logit_scale", keys.config.float("logit_scale", 0.0625)?);
    keys.set("rope.scaling.type", "none");
    Ok(())
}

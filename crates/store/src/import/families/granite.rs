//! Granite: scales of embeddings, residuals, attention and output.

use super::super::keys::Keys;
use super::{Family, PLAIN};
use crate::error::StoreError;

pub(super) const GRANITE: Family =
    Family { architecture: "granite", classes: &["GraniteForCausalLM"], pairs: true, keys: granite, ..PLAIN };

fn granite(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    keys.sizes()?;
    keys.experts()?;
    keys.norms()?;
    keys.rope()?;
    keys.set("vocab_size", keys.rows());
    keys.set("rope.dimension_count", keys.head());
    for (there, here) in [
        ("attention_multiplier", "attention.scale"),
        ("embedding_multiplier", "embedding_scale"),
        ("residual_multiplier", "residual_scale"),
        ("logits_scaling", "logit_scale"),
    ] {
        if let Some(scale) = keys.config.opt_float(there)?.filter(|scale| *scale != 0.0) {
            keys.set(here, scale);
        }
    }
    Ok(())
}

//! Gemma: norms are stored as what differs from one, and the output is the table of tokens.

use super::super::keys::{Keys, Shape, Usual};
use super::super::rules::{Rule, one};
use super::names::{ATTENTION, BEHIND, GATED};
use super::{Family, PLAIN, from_one};
use crate::error::StoreError;

/// Norms before and behind both parts.
pub(super) const NORMS: [Rule; 1] = [one("pre_feedforward_layernorm", "ffn_norm")];

const BASE: Family = Family {
    layer: &[&ATTENTION, &GATED, &NORMS, &BEHIND],
    tied: true,
    bare_start: true,
    change: from_one,
    keys: |keys| gemma(keys, None),
    ..PLAIN
};

pub(super) const GEMMA: Family =
    Family { architecture: "gemma", classes: &["GemmaForCausalLM"], layer: PLAIN.layer, ..BASE };

pub(super) const GEMMA2: Family = Family {
    architecture: "gemma2",
    classes: &["Gemma2ForCausalLM"],
    keys: |keys| {
        gemma(keys, None)?;
        keys.count("attention.sliding_window", &["sliding_window"])
    },
    ..BASE
};

pub(super) const GEMMA3: Family = Family {
    architecture: "gemma3",
    classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    // The configuration leaves out what is usual there.
    shape: |config| {
        let inner = config.count("intermediate_size")?;
        let usual = Usual { heads: 8, kv_heads: 4, head: 256, context: 131_072, inner };
        Shape::with(config, &usual)
    },
    keys: |keys| {
        gemma(keys, Some(1e6))?;
        if keys.config.opt_count("sliding_window_pattern")? == Some(1) {
            return Ok(());
        }
        keys.count("attention.sliding_window", &["sliding_window"])
    },
    ..BASE
};

fn gemma(keys: &mut Keys<'_>, base: Option<f32>) -> Result<(), StoreError> {
    keys.sizes();
    keys.head_sizes();
    keys.experts()?;
    keys.set("attention.layer_norm_rms_epsilon", keys.config.float("rms_norm_eps", 1e-6)?);
    keys.float_if("attn_logit_softcapping", &["attn_logit_softcapping"])?;
    keys.float_if("final_logit_softcapping", &["final_logit_softcapping"])?;
    keys.rope_of(base)
}

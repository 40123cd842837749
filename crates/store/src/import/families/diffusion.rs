//! Diffusion models: decoders of other families whose tokens see all of a text, with a token that masks others.

use super::super::config::Json;
use super::super::keys::{Keys, Shape};
use super::super::rules::{Rule, one};
use super::names::{ATTENTION, BEFORE, EXPERTS};
use super::{Alike, Family, PLAIN, qwen};
use crate::error::StoreError;

/// The mask of LLaDA-MoE, of which its folder has no word.
const LLADA_MOE_MASK: u32 = 156_895;

pub(super) const DREAM: Family = Family {
    architecture: "dream",
    classes: &["DreamModel"],
    keys: |keys| {
        keys.usual()?;
        sees_all(keys);
        Ok(())
    },
    ..PLAIN
};

pub(super) const RND1: Family = Family {
    architecture: "rnd1",
    classes: &["RND1"],
    keys: |keys| {
        (qwen::QWEN3MOE.keys)(keys)?;
        sees_all(keys);
        Ok(())
    },
    ..qwen::QWEN3MOE
};

const LLADA_WHOLE: [Rule; 3] =
    [one("wte", "token_embd"), one("ln_f", "output_norm"), one("ff_out", "output")];
const LLADA_LAYER: [Rule; 9] = [
    one("attn_norm", "attn_norm"),
    one("q_proj", "attn_q"),
    one("k_proj", "attn_k"),
    one("v_proj", "attn_v"),
    one("attn_out", "attn_output"),
    one("ff_norm", "ffn_norm"),
    one("ff_proj", "ffn_gate"),
    one("up_proj", "ffn_up"),
    one("ff_out", "ffn_down"),
];

/// A Llama with the names of OLMo's first code.
pub(super) const LLADA: Family = Family {
    architecture: "llada",
    classes: &["LLaDAModelLM"],
    root: "model.transformer.",
    layers: "blocks.",
    whole: &[&LLADA_WHOLE],
    layer: &[&LLADA_LAYER],
    pairs: true,
    shape: |config| wide_as(config, "mlp_hidden_size", "max_sequence_length"),
    keys: |keys| {
        keys.usual()?;
        keys.turns_whole();
        keys.set_whole("tokenizer.ggml.add_bos_token", true);
        tells_own(keys);
        Ok(())
    },
    ..PLAIN
};

/// Experts as Qwen 3 names them.
pub(super) const LLADA_MOE: Family = Family {
    architecture: "llada-moe",
    classes: &["LLaDAMoEModel", "LLaDAMoEModelLM"],
    layer: &[&ATTENTION, &BEFORE, &EXPERTS],
    alike: Alike::Kinds,
    shape: |config| wide_as(config, "dense_intermediate_size", "max_position_embeddings"),
    keys: |keys| {
        keys.usual()?;
        keys.count_if("expert_feed_forward_length", &["expert_intermediate_size"])?;
        tells_own(keys);
        if keys.config.opt_count("mask_token_id")?.is_none() {
            keys.set_whole("tokenizer.ggml.mask_token_id", LLADA_MOE_MASK);
        }
        Ok(())
    },
    ..PLAIN
};

/// The usual shape with its inside and its context under these names.
fn wide_as(config: &Json, inner: &'static str, context: &'static str) -> Result<Shape, StoreError> {
    Shape::of(config, config.one_of(&[context])?, config.one_of(&[inner])?)
}

fn sees_all(keys: &mut Keys<'_>) {
    keys.set("attention.causal", false);
}

/// A token's own row says what it is, rather than that of the token before.
fn tells_own(keys: &mut Keys<'_>) {
    sees_all(keys);
    keys.set_whole("diffusion.shift_logits", false);
}

//! Llama and those that differ from it in little.

use super::super::keys::Keys;
use super::super::rules::{Cut, Rule, one, pieces};
use super::names::{ATTENTION, BEFORE, GATED};
use super::{Family, PLAIN};
use crate::error::StoreError;

/// Mixtral's experts, with the names of later versions.
const MIXTRAL: [Rule; 7] = [
    one("block_sparse_moe.gate", "ffn_gate_inp"),
    one("block_sparse_moe.experts.{}.w1", "ffn_gate_exps"),
    one("block_sparse_moe.experts.{}.w3", "ffn_up_exps"),
    one("block_sparse_moe.experts.{}.w2", "ffn_down_exps"),
    one("mlp.gate", "ffn_gate_inp"),
    pieces("mlp.experts.gate_up_proj", Cut::Behind, &["ffn_gate_exps", "ffn_up_exps"]),
    one("mlp.experts.down_proj", "ffn_down_exps"),
];

pub(super) const LLAMA: Family = Family {
    architecture: "llama",
    classes: &[
        "LlamaForCausalLM",
        "LLaMAForCausalLM",
        "LlamaModel",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "IQuestCoderForCausalLM",
    ],
    layer: &[&ATTENTION, &GATED, &BEFORE, &MIXTRAL],
    pairs: true,
    keys: turning,
    ..PLAIN
};

pub(super) const SMOLLM3: Family = Family {
    architecture: "smollm3",
    classes: &["SmolLM3ForCausalLM"],
    pairs: true,
    keys: |keys| {
        turning(keys)?;
        // Files have no word for it.
        match keys.config.opt_count("no_rope_layer_interval")? {
            Some(every) if every != 4 => {
                let found = format!("{every}: in a GGUF file it is 4");
                Err(keys.config.wrong_value("no_rope_layer_interval", found).into())
            }
            _ => Ok(()),
        }
    },
    ..PLAIN
};

pub(super) const ARCEE: Family =
    Family { architecture: "arcee", classes: &["ArceeForCausalLM"], pairs: true, keys: turning, ..PLAIN };

pub(super) const SEED_OSS: Family = Family {
    architecture: "seed_oss",
    classes: &["SeedOssForCausalLM"],
    layer: &[&ATTENTION, &GATED, &super::names::BEHIND],
    ..PLAIN
};

pub(super) const ERNIE4_5: Family =
    Family { architecture: "ernie4_5", classes: &["Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"], ..PLAIN };

/// The usual keys, the number of tokens, and that all of a head turns.
pub(super) fn turning(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    keys.usual()?;
    keys.set("vocab_size", keys.rows());
    keys.set("rope.dimension_count", keys.head());
    Ok(())
}

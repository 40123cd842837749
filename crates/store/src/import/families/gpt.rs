//! Decoders after GPT-2: layer norms, biases, networks without a gate, learnt positions or none.

use super::super::config::Json;
use super::super::keys::{Keys, Shape};
use super::super::plan::Change;
use super::super::rules::{Cut, Form, Rule, aside, gathered, one, pieces};
use super::names::{ATTENTION, BEFORE, OLD_NORMS, OLD_WHOLE};
use super::{Family, PLAIN};
use crate::error::StoreError;

const BASE: Family = Family {
    root: "transformer.",
    layers: "h.",
    whole: &[&OLD_WHOLE],
    shape: Shape::four,
    ..PLAIN
};

/// Matrices have inputs before outputs.
const GPT2_PARTS: [Rule; 5] = [
    one("attn.c_attn", "attn_qkv").form(Form::Turned),
    one("attn.c_proj", "attn_output").form(Form::Turned),
    one("mlp.c_fc", "ffn_up").form(Form::Turned),
    one("mlp.c_proj", "ffn_down").form(Form::Turned),
    // What hides later tokens.
    aside("attn"),
];

pub(super) const GPT2: Family = Family {
    architecture: "gpt2",
    classes: &["GPT2LMHeadModel"],
    layer: &[&OLD_NORMS, &GPT2_PARTS],
    tied: true,
    ..BASE
};

const STARCODER_PARTS: [Rule; 5] = [
    one("attn.c_attn", "attn_qkv"),
    one("attn.c_proj", "attn_output"),
    one("mlp.c_fc", "ffn_up"),
    one("mlp.c_proj", "ffn_down"),
    aside("attn"),
];

/// One head of keys for all.
pub(super) const STARCODER: Family = Family {
    architecture: "starcoder",
    classes: &["GPTBigCodeForCausalLM"],
    layer: &[&OLD_NORMS, &STARCODER_PARTS],
    tied: true,
    keys: |keys| {
        if keys.config.flag("multi_query") == Some(false) {
            let found =
                "false, and a GGUF file of this architecture has one head of keys".to_owned();
            return Err(keys.config.wrong_value("multi_query", found).into());
        }
        keys.usual()?;
        keys.set("attention.head_count_kv", 1u32);
        Ok(())
    },
    ..BASE
};

const STARCODER2_PARTS: [Rule; 2] = [one("mlp.c_fc", "ffn_up"), one("mlp.c_proj", "ffn_down")];

pub(super) const STARCODER2: Family = Family {
    architecture: "starcoder2",
    classes: &["Starcoder2ForCausalLM"],
    layer: &[&ATTENTION, &BEFORE, &STARCODER2_PARTS],
    ..PLAIN
};

const CODESHELL_PARTS: [Rule; 5] = [
    one("attn.c_attn", "attn_qkv"),
    one("attn.c_proj", "attn_output"),
    one("mlp.c_fc", "ffn_up"),
    one("mlp.c_proj", "ffn_down"),
    aside("attn.rotary_emb.inv_freq"),
];

pub(super) const CODESHELL: Family = Family {
    architecture: "codeshell",
    classes: &["CodeShellForCausalLM"],
    layer: &[&OLD_NORMS, &CODESHELL_PARTS],
    keys: |keys| {
        keys.sizes();
        keys.norms()?;
        keys.set("rope.freq_base", keys.config.float("rope_theta", 10_000.0)?);
        keys.set("rope.scaling.type", "linear");
        keys.set("rope.scaling.factor", 1.0f32);
        Ok(())
    },
    ..BASE
};

/// Names of BLOOM, Falcon and GPT-NeoX.
const NEOX_MLP: [Rule; 2] =
    [one("mlp.dense_h_to_4h", "ffn_up"), one("mlp.dense_4h_to_h", "ffn_down")];

const NEOX_WHOLE: [Rule; 3] = [
    one("embed_in", "token_embd"),
    one("final_layer_norm", "output_norm"),
    one("embed_out", "output"),
];

const NEOX_PARTS: [Rule; 4] = [
    one("input_layernorm", "attn_norm"),
    gathered("attention.query_key_value", Cut::Grouped, "attn_qkv"),
    one("attention.dense", "attn_output"),
    one("post_attention_layernorm", "ffn_norm"),
];

pub(super) const GPTNEOX: Family = Family {
    architecture: "gptneox",
    classes: &["GPTNeoXForCausalLM"],
    root: "gpt_neox.",
    whole: &[&NEOX_WHOLE],
    layer: &[&NEOX_PARTS, &NEOX_MLP],
    keys: |keys| {
        keys.usual()?;
        let turning = keys.turning(0.25)?;
        keys.set("rope.dimension_count", turning);
        let is_parallel = keys.config.flag("use_parallel_residual").unwrap_or(true);
        keys.set("use_parallel_residual", is_parallel);
        Ok(())
    },
    ..PLAIN
};

const WORDS: [Rule; 4] = [
    one("word_embeddings", "token_embd"),
    one("word_embeddings_layernorm", "token_embd_norm"),
    one("ln_f", "output_norm"),
    one("lm_head", "output"),
];

const SELF_ATTENTION: [Rule; 4] = [
    one("input_layernorm", "attn_norm"),
    gathered("self_attention.query_key_value", Cut::Grouped, "attn_qkv"),
    one("self_attention.dense", "attn_output"),
    one("post_attention_layernorm", "ffn_norm"),
];

/// Positions are told by slopes, which have no end.
pub(super) const BLOOM: Family = Family {
    architecture: "bloom",
    classes: &["BloomForCausalLM", "BloomModel"],
    whole: &[&WORDS],
    layer: &[&SELF_ATTENTION, &NEOX_MLP],
    tied: true,
    shape: |config| Shape::endless(config, 2048),
    ..BASE
};

/// The large Falcon's two norms.
const FALCON_NORMS: [Rule; 2] = [one("ln_mlp", "attn_norm"), one("ln_attn", "attn_norm_2")];

pub(super) const FALCON: Family = Family {
    architecture: "falcon",
    classes: &["FalconForCausalLM", "RWForCausalLM"],
    whole: &[&WORDS],
    layer: &[&FALCON_NORMS, &SELF_ATTENTION, &NEOX_MLP],
    shape: falcon_shape,
    keys: |keys| {
        if keys.config.flag("alibi") == Some(true) {
            let found = "true, and in a GGUF file of this architecture positions turn".to_owned();
            return Err(keys.config.wrong_value("alibi", found).into());
        }
        keys.usual()?;
        keys.set("tensor_data_layout", "jploski");
        Ok(())
    },
    ..BASE
};

/// Heads of keys: one, unless groups of heads have their own.
fn falcon_shape(config: &Json) -> Result<Shape, StoreError> {
    let mut shape = Shape::endless(config, 2048)?;
    let is_new = config.flag("new_decoder_architecture").unwrap_or(false);
    let many = config.first_count(&["num_kv_heads", "n_head_kv"])?;
    shape.sizes.kv_heads = match (is_new, config.flag("multi_query").unwrap_or(true)) {
        (false, true) => 1,
        (true, _) => many.unwrap_or(shape.sizes.heads),
        (false, false) => shape.sizes.heads,
    };
    Ok(shape)
}

const MPT_WHOLE: [Rule; 4] = [
    one("wte", "token_embd"),
    one("wpe", "position_embd"),
    one("norm_f", "output_norm"),
    one("lm_head", "output"),
];

const MPT_PARTS: [Rule; 8] = [
    one("norm_1", "attn_norm"),
    one("attn.Wqkv", "attn_qkv"),
    one("attn.out_proj", "attn_output"),
    one("attn.q_ln", "attn_q_norm"),
    one("attn.k_ln", "attn_k_norm"),
    one("norm_2", "ffn_norm"),
    one("ffn.up_proj", "ffn_up"),
    one("ffn.down_proj", "ffn_down"),
];

pub(super) const MPT: Family = Family {
    architecture: "mpt",
    classes: &["MPTForCausalLM", "MptForCausalLM"],
    layers: "blocks.",
    whole: &[&MPT_WHOLE],
    layer: &[&MPT_PARTS],
    tied: true,
    shape: |config| {
        let mut shape = Shape::four(config)?;
        let keys = config.section("attn_config").opt_count("kv_n_heads")?;
        shape.sizes.kv_heads = keys.unwrap_or(shape.sizes.heads);
        Ok(shape)
    },
    keys: |keys| {
        keys.sizes();
        keys.set("attention.layer_norm_epsilon", keys.config.float("layer_norm_epsilon", 1e-5)?);
        let attention = keys.config.section("attn_config");
        if let Some(most) = attention.opt_float("clip_qkv")? {
            keys.set("attention.clamp_kqv", most);
        }
        let slopes = attention.float("alibi_bias_max", 8.0)?;
        keys.set(
            "attention.max_alibi_bias",
            if attention.flag("alibi") == Some(true) { slopes } else { 0.0 },
        );
        Ok(())
    },
    ..BASE
};

const JAIS_PARTS: [Rule; 5] = [
    one("attn.c_attn", "attn_qkv").form(Form::Turned),
    one("attn.c_proj", "attn_output").form(Form::Turned),
    one("mlp.c_fc", "ffn_up").form(Form::Turned),
    one("mlp.c_fc2", "ffn_gate").form(Form::Turned),
    one("mlp.c_proj", "ffn_down").form(Form::Turned),
];

/// A gate, slopes for positions, and factors that become part of the first and the last matrix.
pub(super) const JAIS: Family = Family {
    architecture: "jais",
    classes: &["JAISLMHeadModel"],
    whole: &[&OLD_WHOLE, &[aside("relative_pe.slopes")]],
    layer: &[&OLD_NORMS, &JAIS_PARTS, &[aside("attn")]],
    change: |config, name| {
        let scale = match name {
            "token_embd.weight" => {
                config.first_float(&["mup_embeddings_scale", "embeddings_scale"])?
            }
            "output.weight" => match config.opt_float("mup_output_alpha")? {
                Some(alpha) => Some(alpha * config.float("mup_width_scale", 1.0)?),
                None => config.opt_float("width_scale")?,
            },
            _ => None,
        };
        Ok(scale.filter(|scale| *scale != 1.0).map_or(Change::None, Change::Times))
    },
    keys: |keys| {
        keys.sizes();
        keys.norms()?;
        keys.set("attention.max_alibi_bias", 8.0f32);
        Ok(())
    },
    ..BASE
};

const REFACT_PARTS: [Rule; 5] = [
    one("attn.q", "attn_q"),
    pieces("attn.kv", Cut::Behind, &["attn_k", "attn_v"]),
    one("attn.c_proj", "attn_output"),
    pieces("mlp.gate_up_proj", Cut::Behind, &["ffn_gate", "ffn_up"]),
    one("mlp.c_proj", "ffn_down"),
];

/// RMS norms, a gate, one head of keys, slopes for positions.
pub(super) const REFACT: Family = Family {
    architecture: "refact",
    classes: &["GPTRefactForCausalLM"],
    layer: &[&OLD_NORMS, &REFACT_PARTS],
    keys: refact,
    ..BASE
};

fn refact(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    keys.sizes();
    // Two thirds of four times the width, up to the next multiple of 256.
    let inner = keys.shape.width.saturating_mul(8) / 3;
    keys.set("feed_forward_length", inner.next_multiple_of(256));
    keys.set("attention.head_count_kv", 1u32);
    keys.set("attention.layer_norm_rms_epsilon", keys.config.float("layer_norm_epsilon", 1e-5)?);
    Ok(())
}

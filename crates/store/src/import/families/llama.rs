//! Llama and those that differ from it in little.

use super::super::keys::{Keys, Shape};
use super::super::rules::{Cut, Form, Rule, aside, one, pieces};
use super::names::{ATTENTION, BEFORE, BEHIND, EXPERTS, GATED, MIXTRAL};
use super::{Alike, Family, PLAIN};
use crate::error::StoreError;

pub(super) const LLAMA: Family = Family {
    architecture: "llama",
    classes: &[
        "LlamaForCausalLM",
        "LLaMAForCausalLM",
        "LlamaModel",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "IQuestCoderForCausalLM",
        "InternLM3ForCausalLM",
    ],
    layer: &[&ATTENTION, &GATED, &BEFORE, &MIXTRAL, &EXPERTS],
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

pub(super) const ARCEE: Family = Family {
    architecture: "arcee",
    classes: &["ArceeForCausalLM"],
    pairs: true,
    keys: turning,
    ..PLAIN
};

pub(super) const SEED_OSS: Family = Family {
    architecture: "seed_oss",
    classes: &["SeedOssForCausalLM"],
    layer: &[&ATTENTION, &GATED, &BEHIND],
    ..PLAIN
};

pub(super) const ERNIE4_5: Family = Family {
    architecture: "ernie4_5",
    classes: &["Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"],
    ..PLAIN
};

/// The language model of PaddleOCR-VL.
pub(super) const PADDLE_OCR: Family = Family {
    architecture: "paddleocr",
    classes: &["PaddleOCRVLForConditionalGeneration"],
    odd: Some(|_, weights, _| {
        weights.leave(|name| name.starts_with("mlp_AR."));
        Ok(())
    }),
    ..PLAIN
};

/// Norms of heads by mean and variance, with weights of each.
const CHAMELEON_NORMS: [Rule; 2] = [
    one("self_attn.q_norm", "attn_q_norm").form(Form::Across),
    one("self_attn.k_norm", "attn_k_norm").form(Form::Across),
];

pub(super) const CHAMELEON: Family = Family {
    architecture: "chameleon",
    classes: &["ChameleonForConditionalGeneration", "ChameleonForCausalLM"],
    layer: &[&CHAMELEON_NORMS, &ATTENTION, &GATED, &BEFORE],
    pairs: true,
    odd: Some(|_, weights, _| {
        weights.leave(|name| name.starts_with("vqmodel."));
        Ok(())
    }),
    keys: |keys| {
        turning(keys)?;
        keys.set("swin_norm", keys.config.flag("swin_norm").unwrap_or(false));
        Ok(())
    },
    ..PLAIN
};

/// Beside each matrix there is another for what images say, which is left aside as all of images is.
const COGVLM_LAYER: [Rule; 6] = [
    one("input_layernorm", "attn_norm"),
    one("self_attn.language_expert_query_key_value", "attn_qkv"),
    one("self_attn.language_expert_dense", "attn_output"),
    one("mlp.language_mlp.gate_proj", "ffn_gate"),
    one("mlp.language_mlp.up_proj", "ffn_up"),
    one("mlp.language_mlp.down_proj", "ffn_down"),
];

pub(super) const COGVLM: Family = Family {
    architecture: "cogvlm",
    classes: &["CogVLMForCausalLM"],
    layer: &[&COGVLM_LAYER, &BEFORE],
    shape: |config| {
        let mut shape = Shape::usual(config)?;
        shape.sizes.kv_heads =
            config.opt_count("num_multi_query_heads")?.unwrap_or(shape.sizes.kv_heads);
        Ok(shape)
    },
    keys: turning,
    ..PLAIN
};

/// All layers are gone through several times.
pub(super) const NANBEIGE: Family = Family {
    architecture: "nanbeige",
    classes: &["NanbeigeForCausalLM"],
    pairs: true,
    keys: |keys| {
        turning(keys)?;
        keys.set("num_loops", keys.config.opt_count("num_loops")?.unwrap_or(1));
        keys.set("skip_loop_final_norm", keys.config.flag("skip_loop_final_norm").unwrap_or(false));
        Ok(())
    },
    ..PLAIN
};

/// Ministral and Mistral Small 3: positions by YaRN, scores that grow with the position.
pub(super) const MISTRAL3: Family = Family {
    architecture: "mistral3",
    classes: &["Mistral3ForConditionalGeneration", "Ministral3ForCausalLM"],
    fits: |config| config.text("model_type") != Some("mistral4"),
    pairs: true,
    keys: |keys| {
        turning(keys)?;
        let rope = keys.config.rope();
        for (there, here) in [
            ("mscale_all_dim", "rope.scaling.yarn_log_multiplier"),
            ("llama_4_scaling_beta", "attention.temperature_scale"),
        ] {
            if let Some(number) = rope.opt_float(there)? {
                keys.set(here, number);
            }
        }
        Ok(())
    },
    ..PLAIN
};

/// Llama 4's networks and experts, which come all in one, inputs before outputs.
const LLAMA4_PARTS: [Rule; 9] = [
    one("feed_forward.gate_proj", "ffn_gate"),
    one("feed_forward.up_proj", "ffn_up"),
    one("feed_forward.down_proj", "ffn_down"),
    one("feed_forward.router", "ffn_gate_inp"),
    pieces("feed_forward.experts.gate_up_proj", Cut::Behind, &["ffn_gate_exps", "ffn_up_exps"])
        .form(Form::Turned),
    one("feed_forward.experts.down_proj", "ffn_down_exps").form(Form::Turned),
    one("feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"),
    one("feed_forward.shared_expert.up_proj", "ffn_up_shexp"),
    one("feed_forward.shared_expert.down_proj", "ffn_down_shexp"),
];

pub(super) const LLAMA4: Family = Family {
    architecture: "llama4",
    classes: &["Llama4ForConditionalGeneration", "Llama4ForCausalLM"],
    layer: &[&ATTENTION, &BEFORE, &LLAMA4_PARTS],
    alike: Alike::Kinds,
    keys: |keys| {
        turning(keys)?;
        keys.count("feed_forward_length", &["intermediate_size_mlp"])?;
        keys.count("expert_feed_forward_length", &["intermediate_size"])?;
        keys.count("interleave_moe_layer_step", &["interleave_moe_layer_step"])?;
        // Where all layers see everything no window is meant.
        let kinds = keys.config.strings("layer_types");
        if kinds.is_some_and(|kinds| kinds.iter().all(|kind| kind == "full_attention")) {
            keys.set("attention.sliding_window", 0u32);
        }
        Ok(())
    },
    ..PLAIN
};

pub(super) const XVERSE: Family = Family {
    architecture: "xverse",
    classes: &["XverseForCausalLM"],
    pairs: true,
    keys: turning,
    ..PLAIN
};

pub(super) const BAICHUAN: Family = Family {
    architecture: "baichuan",
    classes: &["BaichuanForCausalLM", "BaiChuanForCausalLM"],
    layer: &[
        &[pieces("self_attn.W_pack", Cut::Behind, &["attn_q", "attn_k", "attn_v"])],
        &ATTENTION,
        &GATED,
        &BEFORE,
    ],
    pairs: true,
    keys: turning,
    ..PLAIN
};

const INTERNLM2_WHOLE: [Rule; 3] =
    [one("tok_embeddings", "token_embd"), one("norm", "output_norm"), one("output", "output")];

const INTERNLM2_PARTS: [Rule; 7] = [
    one("attention_norm", "attn_norm"),
    pieces("attention.wqkv", Cut::Grouped, &["attn_q", "attn_k", "attn_v"]),
    one("attention.wo", "attn_output"),
    one("ffn_norm", "ffn_norm"),
    one("feed_forward.w1", "ffn_gate"),
    one("feed_forward.w3", "ffn_up"),
    one("feed_forward.w2", "ffn_down"),
];

pub(super) const INTERNLM2: Family = Family {
    architecture: "internlm2",
    classes: &["InternLM2ForCausalLM"],
    whole: &[&INTERNLM2_WHOLE],
    layer: &[&INTERNLM2_PARTS],
    pairs: true,
    ..PLAIN
};

/// Layer norms, whose epsilon is said to be another's.
pub(super) const ORION: Family = Family {
    architecture: "orion",
    classes: &["OrionForCausalLM"],
    keys: |keys| {
        keys.usual()?;
        keys.count_if("context_length", &["max_sequence_length"])?;
        keys.set("attention.layer_norm_epsilon", keys.config.float("rms_norm_eps", 1e-5)?);
        Ok(())
    },
    ..PLAIN
};

/// Norms without weights.
pub(super) const OLMO: Family = Family {
    architecture: "olmo",
    classes: &["OlmoForCausalLM", "OLMoForCausalLM"],
    whole: &[&[one("embed_tokens", "token_embd"), one("lm_head", "output")]],
    pairs: true,
    keys: |keys| {
        keys.sizes();
        if keys.config.opt_count("head_dim")?.is_some() {
            keys.head_sizes();
        }
        keys.rope()?;
        keys.set("attention.layer_norm_epsilon", 1e-5f32);
        keys.float_if("attention.clamp_kqv", &["clip_qkv"])
    },
    ..PLAIN
};

/// What is multiplied is said by other numbers.
pub(super) const MINICPM: Family = Family {
    architecture: "minicpm",
    classes: &["MiniCPMForCausalLM"],
    pairs: true,
    keys: |keys| {
        turning(keys)?;
        keys.float_if("embedding_scale", &["scale_emb"])?;
        let (layers, width) = (keys.shape.sizes.layers as f32, keys.shape.width as f32);
        if let Some(depth) = keys.config.opt_float("scale_depth")? {
            keys.set("residual_scale", depth / layers.sqrt());
        }
        let base = keys.config.opt_float("dim_model_base")?.filter(|base| *base > 0.0);
        if let Some(base) = base {
            keys.set("logit_scale", width / base);
        }
        Ok(())
    },
    ..PLAIN
};

pub(super) const PANGU: Family = Family {
    architecture: "pangu-embedded",
    classes: &["PanguEmbeddedForCausalLM"],
    keys: |keys| {
        turning(keys)?;
        keys.head_sizes();
        Ok(())
    },
    ..PLAIN
};

pub(super) const MAINCODER: Family = Family {
    architecture: "maincoder",
    classes: &["MaincoderForCausalLM"],
    keys: turning,
    ..PLAIN
};

const EXAONE_PARTS: [Rule; 9] = [
    one("ln_1", "attn_norm"),
    one("attn.attention.q_proj", "attn_q"),
    one("attn.attention.k_proj", "attn_k"),
    one("attn.attention.v_proj", "attn_v"),
    one("attn.attention.out_proj", "attn_output"),
    one("ln_2", "ffn_norm"),
    one("mlp.c_fc_0", "ffn_gate"),
    one("mlp.c_fc_1", "ffn_up"),
    one("mlp.c_proj", "ffn_down"),
];

pub(super) const EXAONE: Family = Family {
    architecture: "exaone",
    classes: &["ExaoneForCausalLM"],
    root: "transformer.",
    layers: "h.",
    whole: &[&[one("wte", "token_embd"), one("ln_f", "output_norm"), one("lm_head", "output")]],
    layer: &[&EXAONE_PARTS, &[aside("attn.attention.rotary.inv_freq")]],
    keys: |keys| {
        keys.usual()?;
        keys.set(
            "attention.layer_norm_rms_epsilon",
            keys.config.float("layer_norm_epsilon", 1e-5)?,
        );
        let turning = keys.turning(1.0)?;
        keys.set("rope.dimension_count", turning);
        Ok(())
    },
    ..PLAIN
};

/// Layer norms around a network without a gate.
pub(super) const NEMOTRON: Family = Family {
    architecture: "nemotron",
    classes: &["NemotronForCausalLM"],
    change: super::from_one,
    keys: |keys| {
        keys.usual()?;
        let eps = keys.config.first_float(&["layer_norm_eps", "norm_eps"])?;
        keys.set("attention.layer_norm_epsilon", eps.unwrap_or(1e-5));
        let turning = keys.turning(0.5)?;
        keys.set("rope.dimension_count", turning);
        let factor = keys.config.opt_float("factor")?.or(keys.config.rope().opt_float("factor")?);
        keys.set("rope.scaling.type", if factor.is_some() { "linear" } else { "none" });
        if let Some(factor) = factor {
            keys.set("rope.scaling.factor", factor);
        }
        Ok(())
    },
    ..PLAIN
};

pub(super) const JAIS2: Family =
    Family { architecture: "jais2", classes: &["Jais2ForCausalLM"], keys: turning, ..PLAIN };

/// The norms of single heads, of which one tensor is made.
const HEAD_NORMS: [Rule; 2] = [
    one("self_attn.q_layernorm.norms.{}", "attn_q_norm"),
    one("self_attn.k_layernorm.norms.{}", "attn_k_norm"),
];

pub(super) const STABLELM: Family = Family {
    architecture: "stablelm",
    classes: &["StableLmForCausalLM", "StableLMEpochForCausalLM"],
    layer: &[&ATTENTION, &GATED, &BEFORE, &HEAD_NORMS],
    keys: |keys| {
        keys.usual()?;
        let eps = keys.config.first_float(&["layer_norm_eps", "norm_eps"])?;
        keys.set("attention.layer_norm_epsilon", eps.unwrap_or(1e-5));
        let turning = keys.turning(0.25)?;
        keys.set("rope.dimension_count", turning);
        let is_parallel = keys.config.flag("use_parallel_residual").unwrap_or(false);
        keys.set("use_parallel_residual", is_parallel);
        Ok(())
    },
    ..PLAIN
};

const APERTUS_PARTS: [Rule; 4] = [
    one("attention_layernorm", "attn_norm"),
    one("feedforward_layernorm", "ffn_norm"),
    one("attention.query_layernorm", "attn_q_norm"),
    one("attention.key_layernorm", "attn_k_norm"),
];

/// An activation with numbers that were learnt.
pub(super) const APERTUS: Family = Family {
    architecture: "apertus",
    classes: &["ApertusForCausalLM"],
    layer: &[&APERTUS_PARTS, &ATTENTION, &GATED],
    scalars: &[
        ("mlp.act_fn.alpha_p", "xielu.alpha_p"),
        ("mlp.act_fn.alpha_n", "xielu.alpha_n"),
        ("mlp.act_fn.beta", "xielu.beta"),
        ("mlp.act_fn.eps", "xielu.eps"),
    ],
    keys: turning,
    ..PLAIN
};

/// The usual keys, and that all of a head turns.
pub(super) fn turning(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    keys.usual()?;
    keys.turns_whole();
    Ok(())
}

//! Llama and families with small differences from it.

use super::common_rules::{
    ATTENTION, EXPERTS, GATED_FFN, MIXTRAL, POST_NORMS, PRE_FFN_NORM, add_one_to_norms,
};
use super::default_family::DEFAULT;
use crate::error::ConvertError;
use crate::family::{Family, LayerUniformity};
use crate::metadata::{HyperParameters, MetadataWriter};
use crate::rules::{RowSplit, SourceLayout, TensorRule, ignore, rename, split};

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
    layer_rules: &[&ATTENTION, &GATED_FFN, &PRE_FFN_NORM, &MIXTRAL, &EXPERTS],
    interleaves_rope_pairs: true,
    write_metadata: write_with_full_rope,
    ..DEFAULT
};

pub(super) const SMOLLM3: Family = Family {
    architecture: "smollm3",
    classes: &["SmolLM3ForCausalLM"],
    interleaves_rope_pairs: true,
    write_metadata: |metadata| {
        write_with_full_rope(metadata)?;
        // GGUF files have no key for it.
        match metadata.config.opt_count("no_rope_layer_interval")? {
            Some(every) if every != 4 => {
                let found = format!("{every}, but GGUF files support only 4");
                Err(metadata.config.invalid_value("no_rope_layer_interval", found))
            }
            _ => Ok(()),
        }
    },
    ..DEFAULT
};

pub(super) const ARCEE: Family = Family {
    architecture: "arcee",
    classes: &["ArceeForCausalLM"],
    interleaves_rope_pairs: true,
    write_metadata: write_with_full_rope,
    ..DEFAULT
};

pub(super) const SEED_OSS: Family = Family {
    architecture: "seed_oss",
    classes: &["SeedOssForCausalLM"],
    layer_rules: &[&ATTENTION, &GATED_FFN, &POST_NORMS],
    ..DEFAULT
};

pub(super) const ERNIE4_5: Family = Family {
    architecture: "ernie4_5",
    classes: &["Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"],
    ..DEFAULT
};

/// Text model of PaddleOCR-VL.
pub(super) const PADDLE_OCR: Family = Family {
    architecture: "paddleocr",
    classes: &["PaddleOCRVLForConditionalGeneration"],
    custom_tensors: Some(|_, weights, _| {
        weights.discard(|name| name.starts_with("mlp_AR."));
        Ok(())
    }),
    ..DEFAULT
};

/// Layer norms of heads, with separate weights for each head.
const CHAMELEON_NORMS: [TensorRule; 2] = [
    rename("self_attn.q_norm", "attn_q_norm").with_layout(SourceLayout::ColumnWise),
    rename("self_attn.k_norm", "attn_k_norm").with_layout(SourceLayout::ColumnWise),
];

pub(super) const CHAMELEON: Family = Family {
    architecture: "chameleon",
    classes: &["ChameleonForConditionalGeneration", "ChameleonForCausalLM"],
    layer_rules: &[&CHAMELEON_NORMS, &ATTENTION, &GATED_FFN, &PRE_FFN_NORM],
    interleaves_rope_pairs: true,
    custom_tensors: Some(|_, weights, _| {
        weights.discard(|name| name.starts_with("vqmodel."));
        Ok(())
    }),
    write_metadata: |metadata| {
        write_with_full_rope(metadata)?;
        metadata.set("swin_norm", metadata.config.flag("swin_norm").unwrap_or(false));
        Ok(())
    },
    ..DEFAULT
};

/// The language matrices. The image matrices beside them are ignored.
const COGVLM_LAYER: [TensorRule; 6] = [
    rename("input_layernorm", "attn_norm"),
    rename("self_attn.language_expert_query_key_value", "attn_qkv"),
    rename("self_attn.language_expert_dense", "attn_output"),
    rename("mlp.language_mlp.gate_proj", "ffn_gate"),
    rename("mlp.language_mlp.up_proj", "ffn_up"),
    rename("mlp.language_mlp.down_proj", "ffn_down"),
];

pub(super) const COGVLM: Family = Family {
    architecture: "cogvlm",
    classes: &["CogVLMForCausalLM"],
    layer_rules: &[&COGVLM_LAYER, &PRE_FFN_NORM],
    hyper_parameters: |config| {
        let mut params = HyperParameters::from_config(config)?;
        params.dims.kv_heads =
            config.opt_count("num_multi_query_heads")?.unwrap_or(params.dims.kv_heads);
        Ok(params)
    },
    write_metadata: write_with_full_rope,
    ..DEFAULT
};

/// The model runs all layers several times.
pub(super) const NANBEIGE: Family = Family {
    architecture: "nanbeige",
    classes: &["NanbeigeForCausalLM"],
    interleaves_rope_pairs: true,
    write_metadata: |metadata| {
        write_with_full_rope(metadata)?;
        metadata.set("num_loops", metadata.config.opt_count("num_loops")?.unwrap_or(1));
        metadata.set(
            "skip_loop_final_norm",
            metadata.config.flag("skip_loop_final_norm").unwrap_or(false),
        );
        Ok(())
    },
    ..DEFAULT
};

/// Ministral and Mistral Small 3: YaRN, and an attention temperature that depends on the position.
pub(super) const MISTRAL3: Family = Family {
    architecture: "mistral3",
    classes: &["Mistral3ForConditionalGeneration", "Ministral3ForCausalLM"],
    matches: |config| config.text("model_type") != Some("mistral4"),
    interleaves_rope_pairs: true,
    write_metadata: |metadata| {
        write_with_full_rope(metadata)?;
        let rope = metadata.config.rope_parameters();
        for (source, target) in [
            ("mscale_all_dim", "rope.scaling.yarn_log_multiplier"),
            ("llama_4_scaling_beta", "attention.temperature_scale"),
        ] {
            if let Some(number) = rope.opt_float(source)? {
                metadata.set(target, number);
            }
        }
        Ok(())
    },
    ..DEFAULT
};

/// Llama 4's networks and stacked experts with dimensions inputs, outputs.
const LLAMA4_LAYER: [TensorRule; 9] = [
    rename("feed_forward.gate_proj", "ffn_gate"),
    rename("feed_forward.up_proj", "ffn_up"),
    rename("feed_forward.down_proj", "ffn_down"),
    rename("feed_forward.router", "ffn_gate_inp"),
    split(
        "feed_forward.experts.gate_up_proj",
        RowSplit::EqualParts,
        &["ffn_gate_exps", "ffn_up_exps"],
    )
    .with_layout(SourceLayout::Transposed),
    rename("feed_forward.experts.down_proj", "ffn_down_exps").with_layout(SourceLayout::Transposed),
    rename("feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"),
    rename("feed_forward.shared_expert.up_proj", "ffn_up_shexp"),
    rename("feed_forward.shared_expert.down_proj", "ffn_down_shexp"),
];

pub(super) const LLAMA4: Family = Family {
    architecture: "llama4",
    classes: &["Llama4ForConditionalGeneration", "Llama4ForCausalLM"],
    layer_rules: &[&ATTENTION, &PRE_FFN_NORM, &LLAMA4_LAYER],
    layer_uniformity: LayerUniformity::SeveralKinds,
    write_metadata: |metadata| {
        write_with_full_rope(metadata)?;
        metadata.set_count("feed_forward_length", &["intermediate_size_mlp"])?;
        metadata.set_count("expert_feed_forward_length", &["intermediate_size"])?;
        metadata.set_count("interleave_moe_layer_step", &["interleave_moe_layer_step"])?;
        // If all layers have full attention, there is no window.
        let kinds = metadata.config.strings("layer_types");
        if kinds.is_some_and(|kinds| kinds.iter().all(|kind| kind == "full_attention")) {
            metadata.set("attention.sliding_window", 0u32);
        }
        Ok(())
    },
    ..DEFAULT
};

pub(super) const XVERSE: Family = Family {
    architecture: "xverse",
    classes: &["XverseForCausalLM"],
    interleaves_rope_pairs: true,
    write_metadata: write_with_full_rope,
    ..DEFAULT
};

pub(super) const BAICHUAN: Family = Family {
    architecture: "baichuan",
    classes: &["BaichuanForCausalLM", "BaiChuanForCausalLM"],
    layer_rules: &[
        &[split("self_attn.W_pack", RowSplit::EqualParts, &["attn_q", "attn_k", "attn_v"])],
        &ATTENTION,
        &GATED_FFN,
        &PRE_FFN_NORM,
    ],
    interleaves_rope_pairs: true,
    write_metadata: write_with_full_rope,
    ..DEFAULT
};

const INTERNLM2_GLOBAL: [TensorRule; 3] = [
    rename("tok_embeddings", "token_embd"),
    rename("norm", "output_norm"),
    rename("output", "output"),
];

const INTERNLM2_LAYER: [TensorRule; 7] = [
    rename("attention_norm", "attn_norm"),
    split("attention.wqkv", RowSplit::QkvPerKvHead, &["attn_q", "attn_k", "attn_v"]),
    rename("attention.wo", "attn_output"),
    rename("ffn_norm", "ffn_norm"),
    rename("feed_forward.w1", "ffn_gate"),
    rename("feed_forward.w3", "ffn_up"),
    rename("feed_forward.w2", "ffn_down"),
];

pub(super) const INTERNLM2: Family = Family {
    architecture: "internlm2",
    classes: &["InternLM2ForCausalLM"],
    global_rules: &[&INTERNLM2_GLOBAL],
    layer_rules: &[&INTERNLM2_LAYER],
    interleaves_rope_pairs: true,
    ..DEFAULT
};

/// Layer norms; their epsilon has the key of RMS norms.
pub(super) const ORION: Family = Family {
    architecture: "orion",
    classes: &["OrionForCausalLM"],
    write_metadata: |metadata| {
        metadata.write_common()?;
        metadata.set_opt_count("context_length", &["max_sequence_length"])?;
        metadata
            .set("attention.layer_norm_epsilon", metadata.config.float_or("rms_norm_eps", 1e-5)?);
        Ok(())
    },
    ..DEFAULT
};

/// Norms without weights.
pub(super) const OLMO: Family = Family {
    architecture: "olmo",
    classes: &["OlmoForCausalLM", "OLMoForCausalLM"],
    global_rules: &[&[rename("embed_tokens", "token_embd"), rename("lm_head", "output")]],
    interleaves_rope_pairs: true,
    write_metadata: |metadata| {
        metadata.write_sizes();
        if metadata.config.opt_count("head_dim")?.is_some() {
            metadata.write_head_sizes();
        }
        metadata.write_rope()?;
        metadata.set("attention.layer_norm_epsilon", 1e-5f32);
        metadata.set_opt_float("attention.clamp_kqv", &["clip_qkv"])
    },
    ..DEFAULT
};

/// Scales are computed from other parameters.
pub(super) const MINICPM: Family = Family {
    architecture: "minicpm",
    classes: &["MiniCPMForCausalLM"],
    interleaves_rope_pairs: true,
    write_metadata: |metadata| {
        write_with_full_rope(metadata)?;
        metadata.set_opt_float("embedding_scale", &["scale_emb"])?;
        let (layers, width) =
            (metadata.params.dims.layers as f32, metadata.params.hidden_size as f32);
        if let Some(depth) = metadata.config.opt_float("scale_depth")? {
            metadata.set("residual_scale", depth / layers.sqrt());
        }
        let base = metadata.config.opt_float("dim_model_base")?.filter(|base| *base > 0.0);
        if let Some(base) = base {
            metadata.set("logit_scale", width / base);
        }
        Ok(())
    },
    ..DEFAULT
};

pub(super) const PANGU: Family = Family {
    architecture: "pangu-embedded",
    classes: &["PanguEmbeddedForCausalLM"],
    write_metadata: |metadata| {
        write_with_full_rope(metadata)?;
        metadata.write_head_sizes();
        Ok(())
    },
    ..DEFAULT
};

pub(super) const MAINCODER: Family = Family {
    architecture: "maincoder",
    classes: &["MaincoderForCausalLM"],
    write_metadata: write_with_full_rope,
    ..DEFAULT
};

const EXAONE_LAYER: [TensorRule; 9] = [
    rename("ln_1", "attn_norm"),
    rename("attn.attention.q_proj", "attn_q"),
    rename("attn.attention.k_proj", "attn_k"),
    rename("attn.attention.v_proj", "attn_v"),
    rename("attn.attention.out_proj", "attn_output"),
    rename("ln_2", "ffn_norm"),
    rename("mlp.c_fc_0", "ffn_gate"),
    rename("mlp.c_fc_1", "ffn_up"),
    rename("mlp.c_proj", "ffn_down"),
];

pub(super) const EXAONE: Family = Family {
    architecture: "exaone",
    classes: &["ExaoneForCausalLM"],
    root_prefix: "transformer.",
    layer_prefix: "h.",
    global_rules: &[&[
        rename("wte", "token_embd"),
        rename("ln_f", "output_norm"),
        rename("lm_head", "output"),
    ]],
    layer_rules: &[&EXAONE_LAYER, &[ignore("attn.attention.rotary.inv_freq")]],
    write_metadata: |metadata| {
        metadata.write_common()?;
        metadata.set(
            "attention.layer_norm_rms_epsilon",
            metadata.config.float_or("layer_norm_epsilon", 1e-5)?,
        );
        let rope_dim = metadata.rope_dim(1.0)?;
        metadata.set("rope.dimension_count", rope_dim);
        Ok(())
    },
    ..DEFAULT
};

/// Layer norms and an ungated network.
pub(super) const NEMOTRON: Family = Family {
    architecture: "nemotron",
    classes: &["NemotronForCausalLM"],
    value_transform: add_one_to_norms,
    write_metadata: |metadata| {
        metadata.write_common()?;
        let eps = metadata.config.first_float(&["layer_norm_eps", "norm_eps"])?;
        metadata.set("attention.layer_norm_epsilon", eps.unwrap_or(1e-5));
        let rope_dim = metadata.rope_dim(0.5)?;
        metadata.set("rope.dimension_count", rope_dim);
        let factor = metadata
            .config
            .opt_float("factor")?
            .or(metadata.config.rope_parameters().opt_float("factor")?);
        metadata.set("rope.scaling.type", if factor.is_some() { "linear" } else { "none" });
        if let Some(factor) = factor {
            metadata.set("rope.scaling.factor", factor);
        }
        Ok(())
    },
    ..DEFAULT
};

pub(super) const JAIS2: Family = Family {
    architecture: "jais2",
    classes: &["Jais2ForCausalLM"],
    write_metadata: write_with_full_rope,
    ..DEFAULT
};

/// Norms of single heads, which become one tensor.
const HEAD_NORMS: [TensorRule; 2] = [
    rename("self_attn.q_layernorm.norms.{}", "attn_q_norm"),
    rename("self_attn.k_layernorm.norms.{}", "attn_k_norm"),
];

pub(super) const STABLELM: Family = Family {
    architecture: "stablelm",
    classes: &["StableLmForCausalLM", "StableLMEpochForCausalLM"],
    layer_rules: &[&ATTENTION, &GATED_FFN, &PRE_FFN_NORM, &HEAD_NORMS],
    write_metadata: |metadata| {
        metadata.write_common()?;
        let eps = metadata.config.first_float(&["layer_norm_eps", "norm_eps"])?;
        metadata.set("attention.layer_norm_epsilon", eps.unwrap_or(1e-5));
        let rope_dim = metadata.rope_dim(0.25)?;
        metadata.set("rope.dimension_count", rope_dim);
        let is_parallel = metadata.config.flag("use_parallel_residual").unwrap_or(false);
        metadata.set("use_parallel_residual", is_parallel);
        Ok(())
    },
    ..DEFAULT
};

const APERTUS_LAYER: [TensorRule; 4] = [
    rename("attention_layernorm", "attn_norm"),
    rename("feedforward_layernorm", "ffn_norm"),
    rename("attention.query_layernorm", "attn_q_norm"),
    rename("attention.key_layernorm", "attn_k_norm"),
];

/// An activation with learned parameters.
pub(super) const APERTUS: Family = Family {
    architecture: "apertus",
    classes: &["ApertusForCausalLM"],
    layer_rules: &[&APERTUS_LAYER, &ATTENTION, &GATED_FFN],
    layer_scalars: &[
        ("mlp.act_fn.alpha_p", "xielu.alpha_p"),
        ("mlp.act_fn.alpha_n", "xielu.alpha_n"),
        ("mlp.act_fn.beta", "xielu.beta"),
        ("mlp.act_fn.eps", "xielu.eps"),
    ],
    write_metadata: write_with_full_rope,
    ..DEFAULT
};

/// Writes the common keys, and rotates the whole head.
pub(super) fn write_with_full_rope(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    metadata.write_common()?;
    metadata.set_full_rope_dim();
    Ok(())
}

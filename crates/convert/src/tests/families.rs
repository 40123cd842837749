//! Families with their own configuration keys.

use puna_gguf::{Gguf, Value as Key};
use serde_json::{Value, json};

use super::config::folder_config;
use super::fixtures::zoo;
use super::folder_tensors::tensors;
use super::latent_attention::{hy_v4, merged};
use super::{compare, convert_tensors, folder_of};

/// A zoo file and the folder that is made from it.
pub(super) struct Case {
    name: &'static str,
    class: &'static str,
    /// Configuration keys and the metadata keys that they come from.
    keys: Vec<(&'static str, &'static str)>,
    /// Further configuration; `null` removes a key.
    extra_config: Value,
    /// Suffixes of keys and tensor names that are not compared.
    ignored: &'static [&'static str],
}

pub(super) fn case(name: &'static str, class: &'static str) -> Case {
    Case { name, class, keys: Vec::new(), extra_config: json!({}), ignored: &[] }
}

impl Case {
    pub(super) fn keys(self, keys: &[(&'static str, &'static str)]) -> Self {
        Self { keys: keys.to_vec(), ..self }
    }

    pub(super) fn config(self, extra_config: Value) -> Self {
        Self { extra_config, ..self }
    }

    pub(super) fn ignoring(self, ignored: &'static [&'static str]) -> Self {
        Self { ignored, ..self }
    }

    /// Adds configuration to that of previous calls.
    pub(super) fn with_config(self, more: Value) -> Self {
        Self { extra_config: merged(self.extra_config, more), ..self }
    }

    pub(super) fn check(self) {
        let want = zoo(self.name);
        let folder = folder_of(&want, &tensors(&want), self.folder_config(&want));
        compare(self.name, &want, &folder, self.ignored);
    }

    /// Converts the folder.
    pub(super) fn convert(&self) -> Result<Gguf, String> {
        let want = zoo(self.name);
        convert_tensors(self.name, &tensors(&want), self.folder_config(&want))
    }

    fn folder_config(&self, want: &Gguf) -> Value {
        let mut config = folder_config(want, self.class, None);
        for (source, target) in &self.keys {
            let key = format!("{}.{target}", want.metadata().architecture().unwrap());
            config[*source] = number(want, &key);
        }
        for (key, value) in self.extra_config.as_object().unwrap() {
            match value {
                Value::Null => drop(config.as_object_mut().unwrap().remove(key)),
                value => config[key] = value.clone(),
            }
        }
        config
    }
}

/// A metadata value as JSON.
pub(super) fn number(gguf: &Gguf, key: &str) -> Value {
    let meta = gguf.metadata();
    let value = meta.get(key).unwrap_or_else(|| panic!("{key}"));
    match value {
        Key::Bool(flag) => (*flag).into(),
        Key::F32(number) => f64::from(*number).into(),
        Key::U32(number) => (*number).into(),
        Key::String(_) => meta.str(key).unwrap().into(),
        _ => meta.u32s(key).unwrap().unwrap().into(),
    }
}

/// Expert parameters under the most common keys.
pub(super) const ROUTED: &[(&str, &str)] = &[
    ("n_routed_experts", "expert_count"),
    ("n_shared_experts", "expert_shared_count"),
    ("first_k_dense_replace", "leading_dense_block_count"),
];

/// Scaling of expert weights.
pub(super) const WEIGHTED: &[(&str, &str)] =
    &[("routed_scaling_factor", "expert_weights_scale"), ("norm_topk_prob", "expert_weights_norm")];

/// Expert groups.
pub(super) const GROUPED: &[(&str, &str)] =
    &[("n_group", "expert_group_count"), ("topk_group", "expert_group_used_count")];

#[test]
fn glm_converts_to_the_file_of_llama_cpp() {
    // llama.cpp writes the hidden size as context length if the training length is missing.
    case("chatglm", "GlmForCausalLM")
        .config(json!({"seq_length": 48, "partial_rotary_factor": 0.5}))
        .check();
    case("glm4", "Glm4ForCausalLM").config(json!({"partial_rotary_factor": 0.5})).check();
    let keys = &[ROUTED, WEIGHTED, GROUPED].concat();
    case("glm4moe", "Glm4MoeForCausalLM")
        .keys(keys)
        .config(json!({"partial_rotary_factor": 0.5}))
        .check();
}

#[test]
fn families_like_llama_convert_to_the_files_of_llama_cpp() {
    case("stablelm", "StableLmForCausalLM")
        .config(json!({"partial_rotary_factor": 0.5, "use_parallel_residual": false}))
        .check();
    case("starcoder2", "Starcoder2ForCausalLM")
        .config(json!({"layer_norm_eps": null, "norm_epsilon": 1e-5}))
        .check();
    case("phi2", "PhiForCausalLM").config(json!({"partial_rotary_factor": 0.5})).check();
    case("nemotron", "NemotronForCausalLM")
        .config(json!({"layer_norm_eps": null, "rms_norm_eps": null, "norm_eps": 1e-5, "partial_rotary_factor": 0.5}))
        .check();
    case("ministral3", "Ministral3ForCausalLM").config(ministral()).check();
    case("minicpm", "MiniCPMForCausalLM")
        .config(json!({"scale_emb": 12, "scale_depth": 0.4 * 2f64.sqrt(), "dim_model_base": 192}))
        .check();
    case("qwen2vl", "Qwen2VLForConditionalGeneration").config(sections("mrope", 1e6)).check();
    case("qwen3vl", "Qwen3VLForConditionalGeneration").config(sections("default", 5e6)).check();
    // The end token has its own configuration key.
    case("hunyuan-dense", "HunYuanDenseV1ForCausalLM")
        .config(json!({"eos_token_id": 316, "eod_token_id": 3}))
        .check();
    case("hunyuan_vl", "HunYuanVLForConditionalGeneration")
        .config(
            json!({"rope_scaling": {"type": "xdrope", "alpha": 1.0, "xdrope_section": [2, 2, 2]},
            "rope_theta": 10000.0, "rope_parameters": null}),
        )
        .check();
    case("baichuan-13b", "BaichuanForCausalLM").check();
    case("maincoder", "MaincoderForCausalLM").check();
    case("pangu-embedded", "PanguEmbeddedForCausalLM").check();
    case("jais2", "Jais2ForCausalLM").check();
    let llama3 = json!({"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64});
    case("apertus", "ApertusForCausalLM").config(json!({"rope_parameters": llama3})).check();
}

/// YaRN with Ministral's additions.
fn ministral() -> Value {
    json!({"model_type": "ministral3", "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0,
        "original_max_position_embeddings": 16, "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1}})
}

/// Sections of rotary embedding by three kinds of positions.
fn sections(kind: &str, base: f64) -> Value {
    json!({"rope_parameters": {"rope_type": kind, "rope_theta": base, "mrope_section": [2, 2, 2]}})
}

#[test]
fn granite_and_cohere_convert_to_the_files_of_llama_cpp() {
    case("granitemoe", "GraniteMoeForCausalLM").check();
    case("cohere2moe", "Cohere2MoeForCausalLM")
        .config(json!({"intermediate_size": 24, "prefix_dense_intermediate_size": 96, "num_shared_experts": 1,
            "norm_topk_prob": true, "first_k_dense_replace": 1, "layer_types": ["sliding_attention",
            "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]}))
        // The file has a period, the folder a list.
        .ignoring(&["sliding_window_pattern"])
        .check();
    case("granite_swa", "GraniteSWAForCausalLM")
        .keys(&[("no_rope_layers", "attention.rope_pattern")])
        .check();
}

#[test]
fn moe_models_convert_to_the_files_of_llama_cpp() {
    case("deepseek", "DeepseekForCausalLM").keys(ROUTED).check();
    case("deepseek2-ocr", "DeepseekOCRForCausalLM")
        .keys(ROUTED)
        .config(json!({"routed_scaling_factor": 1.0, "num_local_experts": null}))
        .check();
    let keys = &[ROUTED, WEIGHTED, GROUPED].concat();
    case("dots1", "Dots1ForCausalLM").keys(keys).config(json!({"scoring_func": "sigmoid"})).check();
    case("ernie4_5-moe", "Ernie4_5_MoeForCausalLM")
        .keys(&[
            ("moe_num_experts", "expert_count"),
            ("moe_k", "expert_used_count"),
            ("moe_num_shared_experts", "expert_shared_count"),
            ("moe_layer_start_index", "leading_dense_block_count"),
            ("moe_layer_interval", "interleave_moe_layer_step"),
        ])
        .config(json!({"num_local_experts": null, "num_experts_per_tok": null}))
        .check();
    case("bailingmoe2", "BailingMoeV2ForCausalLM")
        .keys(&[WEIGHTED, GROUPED].concat())
        .config(json!({"num_shared_experts": 1, "first_k_dense_replace": 1, "partial_rotary_factor": 0.5,
            "score_function": "sigmoid"}))
        .check();
    case("minimax-01", "MiniMaxM1ForCausalLM")
        .keys(&[
            ("layernorm_full_attention_alpha", "residual_scale"),
            ("layernorm_linear_attention_alpha", "residual_scale"),
            ("layernorm_mlp_alpha", "residual_scale"),
        ])
        .config(json!({"rotary_dim": 8, "attn_type_list": [0, 1, 0, 1], "layernorm_full_attention_beta": 1.0,
            "layernorm_linear_attention_beta": 1.0, "layernorm_mlp_beta": 1.0, "postnorm": true}))
        .check();
    case("minimax-m2", "MiniMaxM2ForCausalLM")
        .config(json!({"rotary_dim": 8, "scoring_func": "sigmoid"}))
        .check();
    minimax_m3().check();
    case("afmoe", "AfmoeForCausalLM")
        .keys(GROUPED)
        .config(json!({"num_shared_experts": 1, "num_dense_layers": 1, "route_norm": true, "route_scale": 1.5,
            "score_func": "sigmoid"}))
        .ignoring(&["tokenizer.ggml.pre"])
        .check();
    case("llama4", "Llama4ForCausalLM")
        .keys(&[
            ("intermediate_size_mlp", "feed_forward_length"),
            ("intermediate_size", "expert_feed_forward_length"),
            ("interleave_moe_layer_step", "interleave_moe_layer_step"),
        ])
        .check();
    case("hunyuan-moe", "HunYuanMoEV1ForCausalLM")
        .config(json!({"moe_intermediate_size": [24, 24], "moe_topk": [2, 2], "num_shared_expert": [1, 1],
            "num_experts": 4, "num_local_experts": null}))
        // The file's width of the shared expert differs from what llama.cpp writes.
        .ignoring(&["expert_shared_feed_forward_length"])
        .check();
}

fn minimax_m3() -> Case {
    let sparse = json!({"use_sparse_attention": true, "sparse_num_index_heads": 2, "sparse_index_dim": 12,
        "sparse_topk_blocks": 3, "sparse_block_size": 5, "sparse_local_block": 1});
    case("minimax-m3", "MiniMaxM3SparseForConditionalGeneration")
        .keys(&[
            ("dense_intermediate_size", "feed_forward_length"),
            ("intermediate_size", "expert_feed_forward_length"),
            ("n_shared_experts", "expert_shared_count"),
            ("routed_scaling_factor", "expert_weights_scale"),
        ])
        .config(json!({"rotary_dim": 8, "scoring_func": "sigmoid", "moe_layer_freq": [0, 1, 1], "moe_intermediate_size": null,
            "sparse_attention_config": sparse}))
}

/// A family's default gating function must not replace that of the configuration.
#[test]
fn gating_function_of_the_configuration_takes_precedence() {
    for case in [minimax_m3(), hy_v4()] {
        let case = case.with_config(json!({"scoring_func": "softmax"}));
        let made = case.convert().unwrap();
        let key = format!("{}.expert_gating_func", made.metadata().architecture().unwrap());
        assert_eq!(made.metadata().u32(&key), Ok(1), "{key}");
    }
}

#[test]
fn further_moe_models_round_trip() {
    case("mellum", "MellumForCausalLM").config(json!({"layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]})).check();
    case("exaone-moe", "ExaoneMoEForCausalLM")
        .keys(WEIGHTED)
        .config(
            json!({"num_shared_experts": 1, "first_k_dense_replace": 1, "layer_types": ["sliding_attention",
            "sliding_attention", "sliding_attention", "full_attention"]}),
        )
        .check();
    case("smallthinker", "SmallThinkerForCausalLM")
        .config(json!({"moe_num_primary_experts": 4, "moe_num_active_primary_experts": 2, "moe_ffn_hidden_size": 24,
            "sliding_window_layout": [0, 1, 1, 1, 0], "sliding_window_size": 4096}))
        .check();
    case("laguna", "LagunaForCausalLM")
        .keys(&[("num_attention_heads_per_layer", "attention.head_count")])
        .config(json!({"num_attention_heads": 4, "moe_routed_scaling_factor": 2.5,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse", "sparse"],
            "rope_parameters": {
                "full_attention": {"rope_type": "yarn", "rope_theta": 50000.0, "factor": 4.0,
                    "original_max_position_embeddings": 64, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}))
        .check();
    case("dbrx", "DbrxForCausalLM")
        .config(json!({"d_model": 48, "n_layers": 2, "n_heads": 4, "max_seq_len": 512,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.8, "rope_theta": 10000.0},
            "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2},
            "hidden_size": null, "num_hidden_layers": null, "num_attention_heads": null, "num_key_value_heads": null,
            "rope_parameters": null, "num_local_experts": null, "num_experts_per_tok": null,
            "intermediate_size": null, "max_position_embeddings": null}))
        .ignoring(&["vocab_size"])
        .check();
    case("grok-2", "Grok1ForCausalLM")
        .keys(&[
            ("attn_output_multiplier", "attention.output_scale"),
            ("embedding_multiplier_scale", "embedding_scale"),
            ("output_multiplier_scale", "logit_scale"),
            ("router_logit_softcapping", "router_logit_softcapping"),
        ])
        .ignoring(&["vocab_size"])
        .check();
}

#[test]
fn newer_families_round_trip() {
    case("phimoe", "PhiMoEForCausalLM").config(json!({"layer_norm_eps": null})).check();
    case("nanbeige", "NanbeigeForCausalLM").keys(&[("num_loops", "num_loops")]).check();
    case("arctic", "ArcticForCausalLM").check();
    case("hy_v3", "HYV3ForCausalLM")
        .keys(&[
            ("router_scaling_factor", "expert_weights_scale"),
            ("route_norm", "expert_weights_norm"),
        ])
        .config(json!({"num_shared_experts": 1}))
        // The file's width of the shared expert differs from that of an expert.
        .ignoring(&["expert_shared_feed_forward_length"])
        .check();
    let rope = json!({"full_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}});
    case("spark2_5", "Spark2_5ForCausalLM")
        .config(
            json!({"rope_parameters": rope, "gate_attn_act_mode": "sigmoid", "hidden_act": "gelu"}),
        )
        .check();
    case("maple", "MapleForCausalLM")
        // Folders have the same limit for all layers.
        .ignoring(&["swiglu_clamp_exp"])
        .check();
    case("muse-glimmer", "MuseGlimmerForConditionalGeneration")
        .keys(&[("output_multiplier", "logit_scale")])
        .config(json!({"qk_scale_factor": 1.5, "head_dim": 12}))
        // In folders, the configuration has one number; the zoo's norms vary.
        .ignoring(&["attn_q_norm.weight", "attn_k_norm.weight"])
        .check();
    case("step35", "Step3p5ForCausalLM")
        .keys(&[("share_expert_dim", "expert_shared_feed_forward_length"), ("norm_expert_weight", "expert_weights_norm"),
            ("moe_router_scaling_factor", "expert_weights_scale")])
        .config(json!({"num_attention_heads": 4, "num_attention_groups": 2, "moe_num_experts": 6, "moe_top_k": 2,
            "num_local_experts": null, "num_experts_per_tok": null, "rope_theta": [10000.0, 500.0],
            "rope_parameters": null, "rope_scaling": {"rope_type": "llama3", "original_max_position_embeddings": 64},
            "attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 2},
            "swiglu_limits": [null, 0.3, null], "swiglu_limits_shared": [0.25, null, 0.3]}))
        // The zoo's heads and rotary factors follow no rule. Clamp limits are compared by
        // `swiglu_clamp_shexp`.
        .ignoring(&["attention.head_count", "attention.head_count_kv", "rope_freqs.weight", "swiglu_clamp_exp"])
        .check();
    case("plamo3", "Plamo3ForCausalLM")
        .keys(&[
            ("sliding_window_pattern", "attention.sliding_window_pattern"),
            ("head_dim", "attention.key_length"),
        ])
        // Published models have values as wide as keys.
        .ignoring(&["attention.value_length", "rope.dimension_count"])
        .check();
    case("mimo2", "MiMoV2FlashForCausalLM")
        .keys(&[("v_head_dim", "attention.value_length"), ("attention_value_scale", "attention.value_scale")])
        .config(
            json!({"hybrid_layer_pattern": [0, 1, 1], "num_key_value_heads": 2, "swa_num_key_value_heads": 1,
            "layernorm_epsilon": 1e-5, "partial_rotary_factor": 0.4}),
        )
        .ignoring(&["attention.head_count_kv"])
        .check();
}

#[test]
fn gpt_style_decoders_convert_to_the_files_of_llama_cpp() {
    let gpt2 = json!({"n_embd": 48, "n_layer": 2, "n_head": 4, "n_ctx": 128, "n_positions": 128, "n_inner": null,
        "layer_norm_epsilon": 1e-5, "hidden_size": null, "num_hidden_layers": null, "num_attention_heads": null,
        "intermediate_size": null, "max_position_embeddings": null, "layer_norm_eps": null});
    case("gpt2", "GPT2LMHeadModel").config(gpt2).check();
    case("gptneox", "GPTNeoXForCausalLM")
        .config(json!({"rotary_pct": 0.5, "use_parallel_residual": true, "rope_parameters": null}))
        .check();
    case("bloom", "BloomForCausalLM")
        .config(json!({"n_layer": 2, "n_head": 4, "seq_length": 48, "layer_norm_epsilon": 1e-5, "layer_norm_eps": null,
            "num_hidden_layers": null, "num_attention_heads": null, "num_key_value_heads": null,
            "max_position_embeddings": null, "intermediate_size": null}))
        .check();
    case("falcon", "FalconForCausalLM")
        .config(
            json!({"multi_query": true, "new_decoder_architecture": false, "alibi": false, "num_kv_heads": 4,
            "layer_norm_epsilon": 1e-5, "layer_norm_eps": null, "num_key_value_heads": null,
            "max_position_embeddings": null, "intermediate_size": null}),
        )
        .check();
    case("codeshell", "CodeShellForCausalLM")
        .config(json!({"num_query_groups": 2, "num_key_value_heads": null, "n_inner": 96, "intermediate_size": null}))
        .ignoring(&["vocab_size"])
        .check();
    case("jais", "JAISLMHeadModel")
        .config(json!({"n_inner": 96, "intermediate_size": null, "mup_embeddings_scale": 2.0, "mup_output_alpha": 0.5,
            "mup_width_scale": 0.5}))
        .ignoring(&["vocab_size"])
        .check();
    case("refact", "GPTRefactForCausalLM")
        .config(json!({"layer_norm_epsilon": 1e-5, "rms_norm_eps": null}))
        // The width is always a multiple of 256 in folders, but not in the zoo.
        .ignoring(&["vocab_size", "feed_forward_length"])
        .check();
    case("plamo", "PlamoForCausalLM")
        .config(json!({"n_shared_head": 2}))
        .ignoring(&["vocab_size"])
        .check();
}

#[test]
fn families_with_per_layer_sizes_round_trip() {
    case("openelm", "OpenELMForCausalLM")
        .keys(&[("num_query_heads", "attention.head_count"), ("num_kv_heads", "attention.head_count_kv")])
        .config(json!({"model_dim": 48, "num_transformer_layers": 2, "head_dim": 8, "max_context_length": 512,
            "ffn_multipliers": [1.35, 2.0], "ffn_dim_divisor": 32, "rope_freq_constant": 10000}))
        .ignoring(&["vocab_size", "layer_norm_rms_epsilon"])
        .check();
    let block = |group: Value, linear: bool, inner: Value| json!({"attention": {"n_heads_in_group": group, "replace_with_linear": linear}, "ffn": {"ffn_mult": inner}});
    let (two, none) = (json!(2), Value::Null);
    let blocks = json!([
        block(two.clone(), false, json!(2.0)),
        block(none.clone(), false, json!(2.0)),
        block(none.clone(), true, json!(2.0)),
        block(none.clone(), false, none.clone()),
        block(two, false, json!(2.0))
    ]);
    case("deci", "DeciLMForCausalLM")
        .config(json!({"block_configs": blocks, "num_attention_heads": 4}))
        // The widths are always multiples of 256 in folders, but not in the zoo.
        .ignoring(&["feed_forward_length"])
        .check();
}

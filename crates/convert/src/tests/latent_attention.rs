//! Folders of models with latent attention, of later Gemma models and of encoders, made from zoo
//! files, and their conversion.

use serde_json::{Value, json};

use super::families::{Case, GROUPED, ROUTED, WEIGHTED, case};
use super::fixtures::StoredTensor;
use super::kda;
use super::zoo_model::{ZooModel, transposed};

pub(super) type Names<'a> = &'a [(&'a str, &'a str)];

pub(super) const STANDARD_GLOBAL: Names<'_> =
    &[("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];
pub(super) const LAYERS: &str = "model.layers.";

pub(super) const LATENT: Names<'_> = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];
pub(super) const DEEPSEEK: Names<'_> = &[
    ("ffn_gate_inp", "mlp.gate"),
    ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
];
pub(super) const INDEXER: Names<'_> = &[
    ("indexer.attn_q_b", "self_attn.indexer.wq_b"),
    ("indexer.attn_k", "self_attn.indexer.wk"),
    ("indexer.k_norm", "self_attn.indexer.k_norm"),
    ("indexer.proj", "self_attn.indexer.weights_proj"),
];
const HYPER_CONNECTIONS: Names<'_> = &[
    ("attn_sinks.weight", "self_attn.learnable_sink_param"),
    ("attn_gate", "self_attn.linear_gate"),
    ("hc_attn_fn.weight", "hc_attn_layer.hc_pre.hc_fn"),
    ("hc_attn_base.weight", "hc_attn_layer.hc_pre.hc_base"),
    ("hc_attn_scale.weight", "hc_attn_layer.hc_pre.hc_scale"),
    ("hc_ffn_fn.weight", "hc_mlp_layer.hc_pre.hc_fn"),
    ("hc_ffn_base.weight", "hc_mlp_layer.hc_pre.hc_base"),
    ("hc_ffn_scale.weight", "hc_mlp_layer.hc_pre.hc_scale"),
];
pub(super) const KIMI: Names<'_> = &[
    ("ffn_gate_inp", "block_sparse_moe.gate"),
    ("exp_probs_b.bias", "block_sparse_moe.gate.e_score_correction_bias"),
    ("ffn_gate_shexp", "block_sparse_moe.shared_experts.gate_proj"),
    ("ffn_up_shexp", "block_sparse_moe.shared_experts.up_proj"),
    ("ffn_down_shexp", "block_sparse_moe.shared_experts.down_proj"),
    ("ssm_a", "self_attn.A_log"),
    ("ssm_dt.bias", "self_attn.dt_bias"),
    ("ssm_beta", "self_attn.b_proj"),
    ("ssm_f_a", "self_attn.f_a_proj"),
    ("ssm_f_b", "self_attn.f_b_proj"),
    ("ssm_g_a", "self_attn.g_a_proj"),
    ("ssm_g_b", "self_attn.g_b_proj"),
    ("ssm_norm", "self_attn.o_norm"),
    ("ssm_conv1d_q", "self_attn.q_conv1d"),
    ("ssm_conv1d_k", "self_attn.k_conv1d"),
    ("ssm_conv1d_v", "self_attn.v_conv1d"),
];

/// The tensors of a zoo file under the names of a folder.
pub(super) fn tensors(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    match &*model.arch.clone() {
        "deepseek2" | "deepseek32" | "glm-dsa" => {
            join_kv_b(&mut model);
            let names = ["gate", "up", "down"]
                .map(|part| (format!("ffn_{part}_exps"), format!("mlp.experts.{{}}.{part}_proj")));
            let names: Vec<(&str, &str)> =
                names.iter().map(|(target, source)| (&**target, &**source)).collect();
            model.experts(LAYERS, &names);
            // Multi-token prediction is in a layer behind all others.
            let beyond = format!("{LAYERS}{}.enorm.weight", model.layers);
            model.put(beyond, (vec![1], vec![1.0]));
            model.into_folder_tensors(
                STANDARD_GLOBAL,
                LAYERS,
                &[LATENT, DEEPSEEK, INDEXER].concat(),
            )
        }
        "dots3note" => {
            join_kv_b(&mut model);
            let names = ["gate", "up", "down"]
                .map(|part| (format!("ffn_{part}_exps"), format!("mlp.experts.{{}}.{part}_proj")));
            let names: Vec<(&str, &str)> =
                names.iter().map(|(target, source)| (&**target, &**source)).collect();
            model.experts(LAYERS, &names);
            // The scale is the square root of 48 features over rank 12, also in layers with a
            // window.
            model.for_all(&|name, (_, numbers)| {
                let is_short = name.ends_with("attn_q_a_norm.weight")
                    || ["blk.0.attn_kv_a_norm.weight", "blk.2.attn_kv_a_norm.weight"]
                        .contains(&name);
                numbers.iter_mut().filter(|_| is_short).for_each(|x| *x /= 2.0);
            });
            model.put("vision_encoder.patch_embed.weight".to_owned(), (vec![1], vec![1.0]));
            model.put("model.mtp.embed_tokens.weight".to_owned(), (vec![1], vec![1.0]));
            let own = [
                ("attn_gate", "self_attn.g_proj"),
                ("attn_k_norm", "self_attn.k_rope_only_layernorm"),
            ];
            let latent: Vec<_> =
                LATENT.iter().filter(|(target, _)| *target != "attn_k").copied().collect();
            model.into_folder_tensors(
                STANDARD_GLOBAL,
                LAYERS,
                &[&latent[..], DEEPSEEK, INDEXER, &own].concat(),
            )
        }
        "hy_v4" => {
            join_kv_b(&mut model);
            model.experts(
                LAYERS,
                &[
                    ("ffn_gate_exps", "mlp.experts.{}.gate_proj"),
                    ("ffn_up_exps", "mlp.experts.{}.up_proj"),
                    ("ffn_down_exps", "mlp.experts.{}.down_proj"),
                ],
            );
            let whole = [
                ("output_hc_fn.weight", "model.hc_head.hc_head_fn"),
                ("output_hc_base.weight", "model.hc_head.hc_head_base"),
                ("output_hc_scale.weight", "model.hc_head.hc_head_scale"),
            ];
            // Multi-token prediction.
            model.put("model.mtp_layers.0.enorm.weight".to_owned(), (vec![1], vec![1.0]));
            let layer = [LATENT, DEEPSEEK, INDEXER, HYPER_CONNECTIONS].concat();
            model.into_folder_tensors(&[STANDARD_GLOBAL, &whole].concat(), LAYERS, &layer)
        }
        "mistral4" => {
            join_kv_b(&mut model);
            let whole = [
                ("token_embd", "language_model.model.embed_tokens"),
                ("output_norm", "language_model.model.norm"),
                ("output", "language_model.lm_head"),
            ];
            let own = [
                ("ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"),
                ("ffn_down_exps.weight", "mlp.experts.down_proj"),
            ];
            // An image encoder.
            model.put("vision_tower.patch_conv.weight".to_owned(), (vec![1], vec![1.0]));
            model.into_folder_tensors(
                &whole,
                "language_model.model.layers.",
                &[&own, LATENT, DEEPSEEK].concat(),
            )
        }
        "neo-bert" => {
            model.put("decoder.bias".to_owned(), (vec![1], vec![1.0]));
            model.into_folder_tensors(
                &[("token_embd", "model.encoder"), ("enc.output_norm", "model.layer_norm")],
                "model.transformer_encoder.",
                &[
                    ("attn_norm", "attention_norm"),
                    ("attn_qkv", "qkv"),
                    ("attn_output", "wo"),
                    ("ffn_norm", "ffn_norm"),
                    ("ffn_up", "ffn.w12"),
                    ("ffn_down", "ffn.w3"),
                ],
            )
        }
        "bert" => roberta(model),
        "minicpm3" | "plm" => model.into_folder_tensors(STANDARD_GLOBAL, LAYERS, LATENT),
        "kimi-linear" | "kimi-k3" => {
            join_kv_b(&mut model);
            let is_third = model.arch == "kimi-k3";
            let names = [("ffn_gate_exps", "w1"), ("ffn_down_exps", "w2"), ("ffn_up_exps", "w3")]
                .map(|(target, source)| {
                    (target, format!("block_sparse_moe.experts.{{}}.{source}"))
                });
            let names: Vec<(&str, &str)> =
                names.iter().map(|(target, source)| (*target, &**source)).collect();
            model.experts(LAYERS, &names);
            model.for_all(&|name, (shape, numbers)| {
                if name.ends_with("ssm_a") {
                    numbers.iter_mut().for_each(|x| *x = (-*x).ln());
                    *shape = if is_third {
                        vec![numbers.len() as u64]
                    } else {
                        vec![1, 1, numbers.len() as u64, 1]
                    };
                } else if name.contains("ssm_conv1d") {
                    let sizes: Vec<u64> = shape.iter().copied().filter(|&n| n != 1).collect();
                    *shape = vec![sizes[0], 1, sizes[1]];
                }
            });
            if is_third {
                return super::kda::kimi_3(model);
            }
            model.into_folder_tensors(STANDARD_GLOBAL, LAYERS, &[LATENT, KIMI].concat())
        }
        "bailingmoe3" => super::kda::ling_3(model),
        "glm5-next" => super::kda::glm_5_next(model),
        "gemma4" => model.into_folder_tensors(GEMMA_GLOBAL, LAYERS, &[GEMMA, LATENT].concat()),
        "gemma-embedding" => {
            model.for_all(&|name, (_, numbers)| {
                if name.ends_with("norm.weight") {
                    numbers.iter_mut().for_each(|x| *x -= 1.0);
                }
            });
            model.into_folder_tensors(
                &[("token_embd", "embed_tokens"), ("output_norm", "norm")],
                "layers.",
                &[GEMMA, LATENT].concat(),
            )
        }
        "modern-bert" => model.into_folder_tensors(
            &[
                ("token_embd", "model.embeddings.tok_embeddings"),
                ("token_embd_norm", "model.embeddings.norm"),
                ("output_norm", "model.final_norm"),
            ],
            LAYERS,
            &[
                ("attn_norm", "attn_norm"),
                ("attn_qkv", "attn.Wqkv"),
                ("attn_output", "attn.Wo"),
                ("ffn_norm", "mlp_norm"),
                ("ffn_up", "mlp.Wi"),
                ("ffn_down", "mlp.Wo"),
            ],
        ),
        "eurobert" => model.into_folder_tensors(
            &[("token_embd", "embed_tokens"), ("output_norm", "norm")],
            "layers.",
            LATENT,
        ),
        _ => nomic(model),
    }
}

/// Joins the matrices of keys and of values of each head to one.
pub(super) fn join_kv_b(model: &mut ZooModel<'_>) {
    for layer in 0..model.layers {
        let Some(keys) = model.take(layer, "attn_k_b.weight") else { continue };
        let values = model.take(layer, "attn_v_b.weight").unwrap();
        model.put_back(layer, "k.weight", transposed(keys));
        model.put_back(layer, "v.weight", values);
    }
    model.join_rows(&["k", "v"], "attn_kv_b");
    model.for_parts(&["attn_kv_b"], &|(shape, numbers)| {
        (vec![shape[0] * shape[1], shape[2]], numbers)
    });
}

const GEMMA_GLOBAL: Names<'_> = &[
    ("token_embd", "model.language_model.embed_tokens"),
    ("output_norm", "model.language_model.norm"),
    ("per_layer_token_embd", "model.language_model.embed_tokens_per_layer"),
    ("per_layer_model_proj", "model.language_model.per_layer_model_projection"),
    ("per_layer_proj_norm", "model.language_model.per_layer_projection_norm"),
];
const GEMMA: Names<'_> = &[
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
    ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
    ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
    ("inp_gate", "per_layer_input_gate"),
    ("proj", "per_layer_projection"),
    ("post_norm", "post_per_layer_input_norm"),
    ("layer_output_scale.weight", "layer_scalar"),
    ("ffn_gate_inp.scale", "router.scale"),
    ("ffn_gate_inp", "router.proj"),
    ("ffn_down_exps.scale", "router.per_expert_scale"),
    ("ffn_gate_up_exps.weight", "experts.gate_up_proj"),
    ("ffn_down_exps.weight", "experts.down_proj"),
];

fn nomic(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    model.put("pooler.dense.weight".to_owned(), (vec![1], vec![1.0]));
    model.into_folder_tensors(
        &[
            ("token_embd", "embeddings.word_embeddings"),
            ("token_types", "embeddings.token_type_embeddings"),
            ("token_embd_norm", "emb_ln"),
        ],
        "encoder.layers.",
        &[
            ("attn_qkv", "attn.Wqkv"),
            ("attn_output", "attn.out_proj"),
            ("attn_output_norm", "norm1"),
            ("layer_output_norm", "norm2"),
            ("ffn_up", "mlp.fc11"),
            ("ffn_gate", "mlp.fc12"),
            ("ffn_down", "mlp.fc2"),
        ],
    )
}

/// RoBERTa's positions begin behind that of the padding token.
fn roberta(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    model.for_all(&|name, (shape, numbers)| {
        if name == "position_embd.weight" {
            shape[0] += 2;
            numbers.splice(0..0, vec![9.0; 2 * shape[1] as usize]);
        }
    });
    model.into_folder_tensors(
        &[
            ("token_embd", "roberta.embeddings.word_embeddings"),
            ("position_embd", "roberta.embeddings.position_embeddings"),
            ("token_types", "roberta.embeddings.token_type_embeddings"),
            ("token_embd_norm", "roberta.embeddings.LayerNorm"),
            ("cls", "classifier.dense"),
            ("cls.output", "classifier.out_proj"),
        ],
        "roberta.encoder.layer.",
        &[
            ("attn_q", "attention.self.query"),
            ("attn_k", "attention.self.key"),
            ("attn_v", "attention.self.value"),
            ("attn_output", "attention.output.dense"),
            ("attn_output_norm", "attention.output.LayerNorm"),
            ("ffn_up", "intermediate.dense"),
            ("ffn_down", "output.dense"),
            ("layer_output_norm", "output.LayerNorm"),
        ],
    )
}

pub(super) const SIZES: &[(&str, &str)] = &[
    ("kv_lora_rank", "attention.kv_lora_rank"),
    ("v_head_dim", "attention.value_length_mla"),
    ("qk_rope_head_dim", "rope.dimension_count"),
];

const INDEXED: &[(&str, &str)] = &[
    ("index_n_heads", "attention.indexer.head_count"),
    ("index_head_dim", "attention.indexer.key_length"),
    ("index_topk", "attention.indexer.top_k"),
];

/// The first object with the entries of the second.
pub(super) fn merged(mut config: Value, more: Value) -> Value {
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

pub(super) fn hy_v4() -> Case {
    let own = [
        ("q_lora_rank", "attention.q_lora_rank"),
        ("hc_mult", "hyper_connection.count"),
        ("hc_eps", "hyper_connection.epsilon"),
        ("hc_magnitude", "hyper_connection.magnitude"),
    ];
    // The configuration's number of KV heads is not used.
    case("hy_v4-indexer", "HYV4ForCausalLM").keys(&[SIZES, ROUTED, WEIGHTED, INDEXED, &own].concat()).config(
        json!({"num_key_value_heads": 2, "qk_nope_head_dim": 12, "head_dim": null, "swiglu_limit": 0.35,
        "first_k_dense_replace": null, "mlp_layer_types": ["dense", "sparse", "sparse"],
        "indexer_types": ["full", "shared", "full"]}),
    )
}

/// Indexer types other than the two known words are rejected.
#[test]
fn unknown_indexer_types_are_rejected() {
    let keys =
        [SIZES, ROUTED, WEIGHTED, GROUPED, INDEXED, &[("q_lora_rank", "attention.q_lora_rank")]];
    let glm_dsa = || {
        case("glm-dsa", "GlmMoeDsaForCausalLM")
            .keys(&keys.concat())
            .config(json!({"num_key_value_heads": 3,
            "qk_nope_head_dim": 18, "head_dim": null, "scoring_func": "sigmoid"}))
    };
    for case in [&hy_v4 as &dyn Fn() -> Case, &glm_dsa, &kda::glm_5] {
        for unknown in [json!(["full", "partial", "full"]), json!(["full", 1]), json!("full")] {
            let error =
                case().with_config(json!({"indexer_types": unknown})).convert().err().unwrap();
            assert!(
                error.contains("`indexer_types` must be `full` or `shared` for each layer"),
                "{error}"
            );
        }
    }
    let error =
        glm_dsa().with_config(json!({"index_topk_pattern": "FSXS"})).convert().err().unwrap();
    assert!(error.contains("`index_topk_pattern` must be `F` or `S` for each layer"), "{error}");
}

#[test]
fn latent_attention_converts_to_the_files_of_llama_cpp() {
    let fixed = |heads: u32| json!({"num_key_value_heads": heads, "qk_nope_head_dim": 16, "head_dim": null});
    let merged = |heads: u32, more: Value| merged(fixed(heads), more);
    let keys = [SIZES, ROUTED, &WEIGHTED[..1]].concat();
    // The zoo's file has rank 0, which the converter omits.
    case("deepseek2-lite", "DeepseekV2ForCausalLM")
        .keys(&keys)
        .config(merged(4, json!({"scoring_func": "softmax"})))
        .ignoring(&["q_lora_rank"])
        .check();
    let keys =
        [SIZES, ROUTED, WEIGHTED, GROUPED, &[("q_lora_rank", "attention.q_lora_rank")]].concat();
    let rope = json!({"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "beta_fast": 32, "beta_slow": 1,
        "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 1.0});
    case("deepseek3", "DeepseekV3ForCausalLM")
        .keys(&keys)
        .config(merged(2, json!({"scoring_func": "sigmoid", "rope_parameters": rope})))
        .check();
    case("glm4-moe-lite", "Glm4MoeLiteForCausalLM")
        .keys(&keys)
        .config(merged(2, json!({"scoring_func": "sigmoid"})))
        .ignoring(&["unknown_token_id"])
        .check();
    let rope = json!({"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 32, "beta_slow": 1,
        "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 1.0});
    let indexed = [&keys[..], INDEXED].concat();
    let sizes = |more: serde_json::Value| {
        let mut fixed = merged(3, more);
        fixed["qk_nope_head_dim"] = json!(18);
        fixed
    };
    case("deepseek32", "DeepseekV32ForCausalLM")
        .keys(&indexed)
        .config(sizes(json!({"rope_parameters": rope})))
        .check();
    // The file has a list; the configuration can express it in several ways.
    case("glm-dsa", "GlmMoeDsaForCausalLM")
        .keys(&indexed)
        .config(sizes(
            json!({"scoring_func": "sigmoid", "index_topk_freq": 3, "index_skip_topk_offset": 1}),
        ))
        .ignoring(&["unknown_token_id"])
        .check();
    let rope = json!({"full_attention": {"rope_type": "default", "rope_theta": 8e4},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}});
    let windows = |more: serde_json::Value| {
        let mut fixed = sizes(more);
        let own = json!({"num_attention_heads": 3, "sliding_window_size": 9, "rope_parameters": rope,
            "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]});
        fixed.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        fixed
    };
    let local = json!({"num_attention_heads": 2, "q_lora_rank": 12, "kv_lora_rank": 48, "qk_nope_head_dim": 22,
        "qk_rope_head_dim": 8, "v_head_dim": 20});
    let named =
        local.as_object().unwrap().iter().map(|(key, value)| (format!("swa_{key}"), value.clone()));
    case("dots3note", "Dots3NoteForCausalLM")
        .keys(&indexed)
        .config(windows(named.collect()))
        .check();
    // The same configuration as transformers writes it.
    let listed = json!({"per_layer_config": {"1": local, "3": local}});
    case("dots3note", "Dots3NoteForCausalLM").keys(&indexed).config(windows(listed)).check();
    hy_v4().check();
    let rope = json!({"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 16,
        "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1});
    case("mistral4", "Mistral3ForConditionalGeneration")
        .keys(&[SIZES, ROUTED, WEIGHTED, &[("q_lora_rank", "attention.q_lora_rank")]].concat())
        .config(merged(
            4,
            json!({"model_type": "mistral4", "scoring_func": "softmax", "rope_parameters": rope}),
        ))
        .check();
    // The zoo's file has keys that the converter does not write.
    case("minicpm3", "MiniCPM3ForCausalLM")
        .keys(&[
            ("kv_lora_rank", "attention.kv_lora_rank"),
            ("q_lora_rank", "attention.q_lora_rank"),
            ("qk_rope_head_dim", "rope.dimension_count"),
        ])
        .config(merged(4, json!({"v_head_dim": 16})))
        .ignoring(&[
            "freq_base",
            "value_length",
            "scaling.attn_factor",
            "original_context_length",
            "scaling.type",
        ])
        .check();
    case("plm", "PLMForCausalLM")
        .keys(&[
            ("kv_lora_rank", "attention.kv_lora_rank"),
            ("v_head_dim", "attention.value_length"),
            ("qk_rope_head_dim", "rope.dimension_count"),
        ])
        .config(fixed(4))
        .check();
    case("kimi-linear", "KimiLinearForCausalLM")
        .keys(&[SIZES, &[
            ("num_shared_experts", "expert_shared_count"),
            ("first_k_dense_replace", "leading_dense_block_count"),
            ("routed_scaling_factor", "expert_weights_scale"),
        ]].concat())
        .config(merged(2, json!({"moe_router_activation_func": "sigmoid",
            "linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1], "head_dim": 16, "num_heads": 2, "short_conv_kernel_size": 4}})))
        .ignoring(&["tokenizer.ggml.pre", "attention.value_length", "attention.key_length"])
        .check();
}

#[test]
fn later_gemma_models_convert_to_the_files_of_llama_cpp() {
    let rope = json!({"full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}});
    let keys = [
        ("global_head_dim", "attention.key_length"),
        ("head_dim", "attention.key_length_swa"),
        ("num_kv_shared_layers", "attention.shared_kv_layers"),
        ("hidden_size_per_layer_input", "embedding_length_per_layer_input"),
    ];
    case("gemma4", "Gemma4ForCausalLM")
        .keys(&keys)
        .config(json!({"rope_parameters": rope}))
        .check();
    case("gemma4-moe", "Gemma4ForConditionalGeneration")
        .keys(
            &[
                &keys[..],
                &[("top_k_experts", "expert_used_count"), ("num_experts", "expert_count")],
            ]
            .concat(),
        )
        .config(json!({"rope_parameters": rope, "num_local_experts": null}))
        .check();
    case("gemma-embedding", "Gemma3TextModel").ignoring(&["pooling_type"]).check();
}

#[test]
fn encoders_convert_to_the_files_of_llama_cpp() {
    case("modern-bert", "ModernBertForMaskedLM")
        .keys(&[
            ("local_attention", "attention.sliding_window"),
            ("global_attn_every_n_layers", "attention.sliding_window_pattern"),
            ("hidden_activation", "hidden_activation"),
        ])
        .config(json!({"classifier_pooling": "mean", "sliding_window": null, "norm_eps": 1e-5, "rms_norm_eps": null}))
        // The zoo's file has the pooling of another file, and a token without definition.
        .ignoring(&["general.type", ".modern-bert.pooling_type", "modern-bert.pooling_type", "seperator_token_id"])
        .check();
    case("neo-bert", "NeoBERT")
        .config(json!({"intermediate_size": 144, "norm_eps": 1e-5}))
        .ignoring(&["head_count_kv", "vocab_size"])
        .check();
    case("bert-rank", "RobertaForSequenceClassification")
        .config(
            json!({"max_position_embeddings": 64, "pad_token_id": 1, "type_vocab_size": 1, "vocab_size": 320,
            "id2label": {"0": "LABEL_0"}}),
        )
        .ignoring(&["padding_token_id"])
        .check();
    case("eurobert", "EuroBertModel").ignoring(&["pooling_type"]).check();
    case("nomic-bert", "NomicBertModel")
        .config(json!({"n_embd": 48, "n_head": 4, "n_layer": 2, "n_inner": 96, "n_positions": 128, "rotary_emb_base": 1000,
            "layer_norm_epsilon": 1e-5, "type_vocab_size": 2}))
        .ignoring(&["pooling_type", "vocab_size", "tokenizer.ggml.pre", "bos_token_id", "eos_token_id"])
        .check();
}

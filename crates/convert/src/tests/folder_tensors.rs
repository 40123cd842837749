//! Folder tensors of all families, made from zoo files, with the names of published folders.

use puna_gguf::Gguf;

use super::fixtures::StoredTensor;
use super::zoo_model::{ZooModel, transposed};

type Names<'a> = &'a [(&'a str, &'a str)];

const GLOBAL: Names<'_> =
    &[("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

pub(super) const LLAMA: Names<'_> = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_sinks.weight", "self_attn.sinks"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
];

const SHARED: Names<'_> = &[
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
];

const EXPERTS: Names<'_> = &[
    ("ffn_gate_exps", "mlp.experts.{}.gate_proj"),
    ("ffn_up_exps", "mlp.experts.{}.up_proj"),
    ("ffn_down_exps", "mlp.experts.{}.down_proj"),
];

const MIXTRAL: Names<'_> = &[
    ("ffn_gate_exps", "block_sparse_moe.experts.{}.w1"),
    ("ffn_up_exps", "block_sparse_moe.experts.{}.w3"),
    ("ffn_down_exps", "block_sparse_moe.experts.{}.w2"),
];

const LAYERS: &str = "model.layers.";

/// Names of the family, then those of Llama.
pub(super) fn llama_names(model: ZooModel<'_>, own: Names<'_>) -> Vec<StoredTensor> {
    model.into_folder_tensors(GLOBAL, LAYERS, &[own, LLAMA].concat())
}

/// The same with experts as separate tensors.
pub(super) fn llama_names_with_experts(
    mut model: ZooModel<'_>,
    own: Names<'_>,
) -> Vec<StoredTensor> {
    model.experts(LAYERS, EXPERTS);
    llama_names(model, &[own, SHARED].concat())
}

/// The tensors of a zoo file under the names of a folder.
pub(super) fn tensors(gguf: &Gguf) -> Vec<StoredTensor> {
    dense(ZooModel::of(gguf))
}

/// Families without experts.
fn dense(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    match &*model.arch.clone() {
        "chatglm" => llama_names(model, &[("ffn_up", "mlp.gate_up_proj")]),
        "glm4" => llama_names(
            model,
            &[
                ("ffn_up", "mlp.gate_up_proj"),
                ("post_attention_norm", "post_self_attn_layernorm"),
                ("post_ffw_norm", "post_mlp_layernorm"),
            ],
        ),
        "starcoder2" => llama_names(model, &[("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")]),
        "phi2" => model.into_folder_tensors(
            &[
                ("token_embd", "model.embed_tokens"),
                ("output_norm", "model.final_layernorm"),
                ("output", "lm_head"),
            ],
            LAYERS,
            &[
                &[
                    ("attn_output", "self_attn.dense"),
                    ("ffn_up", "mlp.fc1"),
                    ("ffn_down", "mlp.fc2"),
                ],
                LLAMA,
            ]
            .concat(),
        ),
        "stablelm" | "qwen2vl" | "qwen3vl" | "maincoder" | "pangu-embedded" | "jais2"
        | "exaone4" => llama_names(model, &[]),
        "mistral3" | "minicpm" => {
            model.deinterleave_rope_pairs();
            llama_names(model, &[])
        }
        "nemotron" => {
            subtract_one_from_norms(&mut model);
            llama_names(model, &[])
        }
        "baichuan" => {
            let heads = 3 * model.heads();
            // The zoo file is of the 13B model, whose queries and keys are not interleaved. The
            // folder gets deinterleaved rows, so that the conversion restores the file's.
            model.for_parts(&["attn_qkv"], &|(shape, numbers)| {
                let rows = shape[0] as usize;
                let apart = super::llama_like::deinterleaved(&numbers, rows, heads);
                let values = numbers.len() / 3 * 2;
                (shape, [&apart[..values], &numbers[values..]].concat())
            });
            llama_names(model, &[("attn_qkv", "self_attn.W_pack")])
        }
        "apertus" => apertus(model),
        "nanbeige" => {
            model.deinterleave_rope_pairs();
            llama_names(model, &[])
        }
        "spark2_5" => {
            model.join_rows(&["attn_q", "attn_k", "attn_v"], "all");
            llama_names(
                model,
                &[("all", "self_attn.q_k_v_proj"), ("attn_gate", "self_attn.g_proj")],
            )
        }
        "muse-glimmer" => muse(model),
        "plamo3" => plamo3(model),
        "deci" => {
            let head = model.number("attention.key_length");
            model.for_parts(&["attn_q", "attn_k"], &|(shape, numbers)| {
                let rows = shape[0] as usize;
                (shape, super::llama_like::deinterleaved(&numbers, rows, rows / head))
            });
            // A layer without keys is a linear layer.
            model.rename_in_layers_without("attn_output", "attn_v", "linear");
            llama_names(model, &[("linear", "self_attn.linear_attn")])
        }
        "dream" | "llada" | "llada-moe" | "rnd1" => super::diffusion::tensors(model),
        _ => moe_with_qwen_expert_names(model),
    }
}

/// Mixture-of-experts families with Qwen's names for experts.
fn moe_with_qwen_expert_names(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    match &*model.arch.clone() {
        "glm4moe" => {
            llama_names_with_experts(model, &[("post_attention_norm", "post_attention_layernorm")])
        }
        "deepseek" => {
            model.deinterleave_rope_pairs();
            llama_names_with_experts(model, &[])
        }
        "dots1" => llama_names_with_experts(model, &[]),
        "exaone-moe" => {
            llama_names_with_experts(model, &[("exp_probs_b.bias", "mlp.e_score_correction_bias")])
        }
        "ernie4_5-moe" => llama_names_with_experts(
            model,
            &[("exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias")],
        ),
        "mellum" => llama_names_with_experts(model, &[]),
        "afmoe" => llama_names_with_experts(
            model,
            &[
                ("attn_gate", "self_attn.gate_proj"),
                ("post_attention_norm", "post_attention_layernorm"),
                ("ffn_norm", "pre_mlp_layernorm"),
                ("post_ffw_norm", "post_mlp_layernorm"),
                ("ffn_gate_inp", "mlp.router.gate"),
                ("exp_probs_b.bias", "mlp.expert_bias"),
            ],
        ),
        "laguna" => llama_names_with_experts(
            model,
            &[
                ("attn_gate", "self_attn.g_proj"),
                ("exp_probs_b.bias", "mlp.experts.e_score_correction_bias"),
                ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
                ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
                ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
            ],
        ),
        "deepseek2-ocr" => {
            // An image encoder, which the conversion must ignore.
            model.put("model.sam_model.neck.0.weight".into(), (vec![1], vec![0.0]));
            model.put("model.view_seperator".into(), (vec![1], vec![0.0]));
            model.split_fused_experts("ffn_gate_up_exps", ["ffn_gate_exps", "ffn_up_exps"]);
            llama_names_with_experts(model, &[])
        }
        "cohere2moe" => {
            model.split_fused_experts("ffn_gate_up_exps", ["ffn_gate_exps", "ffn_up_exps"]);
            llama_names_with_experts(model, &[])
        }
        "hunyuan-dense" | "hunyuan-moe" | "hunyuan_vl" => llama_names_with_experts(
            model,
            &[
                ("attn_q_norm", "self_attn.query_layernorm"),
                ("attn_k_norm", "self_attn.key_layernorm"),
                ("ffn_gate_inp", "mlp.gate.wg"),
                ("ffn_gate_shexp", "mlp.shared_mlp.gate_proj"),
                ("ffn_up_shexp", "mlp.shared_mlp.up_proj"),
                ("ffn_down_shexp", "mlp.shared_mlp.down_proj"),
            ],
        ),
        "hy_v3" => {
            model.split_fused_experts("ffn_gate_up_exps", ["ffn_gate_exps", "ffn_up_exps"]);
            llama_names_with_experts(
                model,
                &[
                    ("ffn_gate_inp", "mlp.router.gate"),
                    ("exp_probs_b", "mlp.expert_bias"),
                    ("ffn_gate_shexp", "mlp.shared_mlp.gate_proj"),
                    ("ffn_up_shexp", "mlp.shared_mlp.up_proj"),
                    ("ffn_down_shexp", "mlp.shared_mlp.down_proj"),
                ],
            )
        }
        "mimo2" => llama_names_with_experts(
            model,
            &[("attn_sinks.weight", "self_attn.attention_sink_bias")],
        ),
        "maple" => llama_names_with_experts(model, &[]),
        _ => moe_with_other_expert_names(model),
    }
}

/// Mixture-of-experts families with other names for experts.
fn moe_with_other_expert_names(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    match &*model.arch.clone() {
        "granitemoe" | "granite_swa" => granite(model),
        "minimax-01" => {
            model.experts(LAYERS, MIXTRAL);
            model.rename_in_layers_without("attn_output", "attn_q", "lightning_output");
            model.put(format!("{LAYERS}0.self_attn.slope_rate"), (vec![3, 1, 1], vec![0.5; 3]));
            llama_names(
                model,
                &[
                    ("attn_qkv", "self_attn.qkv_proj"),
                    ("attn_norm_2", "self_attn.norm"),
                    ("attn_gate", "self_attn.output_gate"),
                    ("lightning_output", "self_attn.out_proj"),
                    ("ffn_gate_inp", "block_sparse_moe.gate"),
                ],
            )
        }
        "minimax-m2" => {
            model.experts(LAYERS, MIXTRAL);
            llama_names(
                model,
                &[
                    ("ffn_gate_inp", "block_sparse_moe.gate"),
                    ("exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias"),
                ],
            )
        }
        "minimax-m3" => {
            subtract_one_from_norms(&mut model);
            model.experts(LAYERS, MIXTRAL);
            // An image encoder, which the conversion must ignore.
            model.put("model.vision_tower.layers.0.norm1.weight".into(), (vec![1], vec![0.0]));
            model.put("patch_merge_mlp.linear_1.bias".into(), (vec![1], vec![0.0]));
            llama_names(
                model,
                &[
                    ("indexer.q_proj", "self_attn.index_q_proj"),
                    ("indexer.k_proj", "self_attn.index_k_proj"),
                    ("indexer.q_norm", "self_attn.index_q_norm"),
                    ("indexer.k_norm", "self_attn.index_k_norm"),
                    ("ffn_gate_inp", "block_sparse_moe.gate"),
                    ("exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias"),
                    ("ffn_gate_shexp", "block_sparse_moe.shared_experts.gate_proj"),
                    ("ffn_up_shexp", "block_sparse_moe.shared_experts.up_proj"),
                    ("ffn_down_shexp", "block_sparse_moe.shared_experts.down_proj"),
                ],
            )
        }
        "smallthinker" => {
            let names = [
                ("ffn_gate_exps", "block_sparse_moe.experts.{}.gate"),
                ("ffn_up_exps", "block_sparse_moe.experts.{}.up"),
                ("ffn_down_exps", "block_sparse_moe.experts.{}.down"),
            ];
            model.experts(LAYERS, &names);
            llama_names(model, &[("ffn_gate_inp", "block_sparse_moe.primary_router")])
        }
        "phimoe" => {
            model.experts(LAYERS, MIXTRAL);
            llama_names(model, &[("ffn_gate_inp", "block_sparse_moe.gate")])
        }
        "arctic" => {
            model.deinterleave_rope_pairs();
            model.experts(LAYERS, MIXTRAL);
            llama_names(
                model,
                &[
                    ("ffn_norm", "residual_layernorm"),
                    ("ffn_norm_exps", "post_attention_layernorm"),
                    ("ffn_gate", "residual_mlp.w1"),
                    ("ffn_up", "residual_mlp.w3"),
                    ("ffn_down", "residual_mlp.w2"),
                    ("ffn_gate_inp", "block_sparse_moe.gate"),
                ],
            )
        }
        "step35" => {
            subtract_one_from_norms(&mut model);
            llama_names(model, STEP)
        }
        "llama4" => llama4(model),
        "bailingmoe2" => bailing(model),
        "grok" => {
            model.experts(LAYERS, MIXTRAL);
            llama_names(
                model,
                &[
                    ("attn_norm", "pre_attn_norm"),
                    ("attn_output_norm", "post_attn_norm"),
                    ("ffn_norm", "pre_moe_norm"),
                    ("post_ffw_norm", "post_moe_norm"),
                    ("ffn_gate_inp", "block_sparse_moe.gate"),
                ],
            )
        }
        "mamba" | "mamba2" | "jamba" | "falcon-h1" | "granitehybrid" | "nemotron_h"
        | "nemotron_h_moe" | "lfm2" | "lfm2moe" | "qwen3next" | "qwen35" | "qwen35moe" => {
            super::mamba_and_hybrids::tensors(model)
        }
        "deepseek4" => super::deepseek4::tensors(model),
        "qwen4exp" => super::qwen4::tensors(model),
        "deepseek2" | "hy_v4" | "deepseek32" | "glm-dsa" | "dots3note" | "minicpm3"
        | "kimi-linear" | "kimi-k3" | "bailingmoe3" | "glm5-next" | "gemma4"
        | "gemma-embedding" | "modern-bert" | "eurobert" | "nomic-bert" | "neo-bert" | "plm"
        | "bert" | "mistral4" => super::latent_attention::tensors(model),
        "arwkv7" | "rwkv6qwen2" => super::rwkv::tensors(model),
        "paddleocr" | "chameleon" | "grovemoe" => super::t5_grovemoe_cogvlm::tensors(model),
        "llama-embed" | "jina-bert-v3" | "talkie" | "hrm_text" | "plamo2" => {
            super::talkie_bitnet_hrm::tensors(model)
        }
        _ => super::gpt_style::tensors(model),
    }
}

/// Stores weights of norms as the difference from one.
fn subtract_one_from_norms(model: &mut ZooModel<'_>) {
    model.for_all(&|name, numbers| {
        if name.ends_with("norm.weight") {
            numbers.1.iter_mut().for_each(|x| *x -= 1.0);
        }
    });
}

fn granite(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    model.deinterleave_rope_pairs();
    model.join_rows(&["ffn_gate_exps", "ffn_up_exps"], "both");
    model.join_rows(&["ffn_gate_shexp", "ffn_up_shexp"], "both_shared");
    llama_names(
        model,
        &[
            ("both", "block_sparse_moe.input_linear"),
            ("ffn_down_exps", "block_sparse_moe.output_linear"),
            ("ffn_gate_inp", "block_sparse_moe.router.layer"),
            ("both_shared", "shared_mlp.input_linear"),
            ("ffn_down_shexp", "shared_mlp.output_linear"),
        ],
    )
}

/// Parameters of the activation are tensors in the folder.
fn apertus(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    for part in ["alpha_p", "alpha_n", "beta", "eps"] {
        let numbers = model.gguf.metadata().f32s(&format!("xielu.{part}")).unwrap().unwrap();
        for (layer, number) in numbers.into_iter().enumerate() {
            model.put(format!("{LAYERS}{layer}.mlp.act_fn.{part}"), (vec![1], vec![number]));
        }
    }
    llama_names(
        model,
        &[("attn_norm", "attention_layernorm"), ("ffn_norm", "feedforward_layernorm")],
    )
}

const STEP: Names<'_> = &[
    ("attn_gate", "self_attn.g_proj"),
    ("ffn_gate_inp", "moe.gate"),
    ("exp_probs_b.bias", "moe.router_bias"),
    ("ffn_gate_exps", "moe.gate_proj"),
    ("ffn_up_exps", "moe.up_proj"),
    ("ffn_down_exps", "moe.down_proj"),
    ("ffn_gate_shexp", "share_expert.gate_proj"),
    ("ffn_up_shexp", "share_expert.up_proj"),
    ("ffn_down_shexp", "share_expert.down_proj"),
];

/// Stores norms as the difference from 1, from 1/5, or from 1/5^1.5.
fn plamo3(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    model.for_all(&|name, numbers| {
        let from = match name.rsplit('.').next().unwrap() {
            "post_attention_norm" => 1.0 / 5.0,
            "post_ffw_norm" => 1.0 / 5f32.powf(1.5),
            _ if name.ends_with("norm.weight") => 1.0,
            _ => 0.0,
        };
        numbers.1.iter_mut().for_each(|x| *x -= from);
    });
    let own = [
        ("attn_norm", "pre_mixer_norm"),
        ("attn_qkv", "mixer.qkv_proj"),
        ("attn_q_norm", "mixer.q_norm"),
        ("attn_k_norm", "mixer.k_norm"),
        ("attn_output", "mixer.o_proj"),
        ("post_attention_norm", "post_mixer_norm.weight"),
        ("ffn_norm", "pre_mlp_norm"),
        ("ffn_up", "mlp.gate_up_proj"),
        ("ffn_down", "mlp.down_proj"),
        ("post_ffw_norm", "post_mlp_norm.weight"),
    ];
    model.into_folder_tensors(GLOBAL, "model.layers.layers.", &own)
}

/// Stores norms of layers as the difference from one. Norms of heads are a number in the
/// configuration.
fn muse(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    model.deinterleave_rope_pairs();
    for layer in 0..model.layers {
        model.take(layer, "attn_q_norm.weight").unwrap();
        model.take(layer, "attn_k_norm.weight").unwrap();
    }
    model.for_all(&|name, numbers| {
        if name.ends_with("norm.weight") && name != "output_norm.weight" {
            numbers.1.iter_mut().for_each(|x| *x -= 1.0);
        }
    });
    llama_names(
        model,
        &[
            ("attn_gate", "self_attn.gate_proj"),
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ],
    )
}

/// Stacked experts with dimensions inputs, outputs.
fn llama4(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    model.join_rows(&["ffn_gate_exps", "ffn_up_exps"], "both");
    model.for_parts(&["both", "ffn_down_exps"], &transposed);
    llama_names(
        model,
        &[
            ("both.weight", "feed_forward.experts.gate_up_proj"),
            ("ffn_down_exps.weight", "feed_forward.experts.down_proj"),
            ("ffn_gate_inp", "feed_forward.router"),
            ("ffn_gate_shexp", "feed_forward.shared_expert.gate_proj"),
            ("ffn_up_shexp", "feed_forward.shared_expert.up_proj"),
            ("ffn_down_shexp", "feed_forward.shared_expert.down_proj"),
            ("ffn_gate", "feed_forward.gate_proj"),
            ("ffn_up", "feed_forward.up_proj"),
            ("ffn_down", "feed_forward.down_proj"),
        ],
    )
}

fn bailing(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    model.experts(LAYERS, EXPERTS);
    let whole = [
        ("token_embd", "model.word_embeddings"),
        ("output_norm", "model.norm"),
        ("output", "lm_head"),
    ];
    let own = [
        ("attn_qkv", "attention.query_key_value"),
        ("attn_output", "attention.dense"),
        ("attn_q_norm", "attention.query_layernorm"),
        ("attn_k_norm", "attention.key_layernorm"),
        ("exp_probs_b.bias", "mlp.gate.expert_bias"),
    ];
    model.into_folder_tensors(&whole, LAYERS, &[&own, SHARED, LLAMA].concat())
}

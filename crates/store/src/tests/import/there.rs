//! The way back to folders of all other families, with the names that published folders have.

use puna_gguf::Gguf;

use super::kit::Stored;
use super::model::{Model, turned};

type Names<'a> = &'a [(&'a str, &'a str)];

const WHOLE: Names<'_> =
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

/// Names of Llama with those of a family before them.
pub(super) fn like_llama(model: Model<'_>, own: Names<'_>) -> Vec<Stored> {
    model.named(WHOLE, LAYERS, &[own, LLAMA].concat())
}

/// The same with experts.
pub(super) fn with_experts(mut model: Model<'_>, own: Names<'_>) -> Vec<Stored> {
    model.experts(LAYERS, EXPERTS);
    like_llama(model, &[own, SHARED].concat())
}

/// The tensors of a zoo file as the folder of its family has them.
pub(super) fn tensors(gguf: &Gguf) -> Vec<Stored> {
    dense(Model::of(gguf))
}

/// Families without experts.
fn dense(mut model: Model<'_>) -> Vec<Stored> {
    match &*model.arch.clone() {
        "chatglm" => like_llama(model, &[("ffn_up", "mlp.gate_up_proj")]),
        "glm4" => like_llama(
            model,
            &[
                ("ffn_up", "mlp.gate_up_proj"),
                ("post_attention_norm", "post_self_attn_layernorm"),
                ("post_ffw_norm", "post_mlp_layernorm"),
            ],
        ),
        "starcoder2" => like_llama(model, &[("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")]),
        "phi2" => model.named(
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
        | "exaone4" => like_llama(model, &[]),
        "mistral3" | "minicpm" => {
            model.unpair();
            like_llama(model, &[])
        }
        "nemotron" => {
            from_one(&mut model);
            like_llama(model, &[])
        }
        "baichuan" => {
            let heads = 3 * model.heads();
            // The file has queries and keys as they are in the folder of the model of 13 billions; halves of pairs
            // are put apart, so that bringing them together makes the same file again.
            model.each(&["attn_qkv"], &|(shape, numbers)| {
                let rows = shape[0] as usize;
                let apart = super::plain::halves(&numbers, rows, heads);
                let values = numbers.len() / 3 * 2;
                (shape, [&apart[..values], &numbers[values..]].concat())
            });
            like_llama(model, &[("attn_qkv", "self_attn.W_pack")])
        }
        "apertus" => apertus(model),
        "nanbeige" => {
            model.unpair();
            like_llama(model, &[])
        }
        "spark2_5" => {
            model.join(&["attn_q", "attn_k", "attn_v"], "all");
            like_llama(model, &[("all", "self_attn.q_k_v_proj"), ("attn_gate", "self_attn.g_proj")])
        }
        "muse-glimmer" => muse(model),
        "plamo3" => plamo3(model),
        "deci" => {
            let head = model.number("attention.key_length");
            model.each(&["attn_q", "attn_k"], &|(shape, numbers)| {
                let rows = shape[0] as usize;
                (shape, super::plain::halves(&numbers, rows, rows / head))
            });
            // A layer without keys is a matrix.
            model.move_where("attn_output", "attn_v", "linear");
            like_llama(model, &[("linear", "self_attn.linear_attn")])
        }
        "dream" | "llada" | "llada-moe" | "rnd1" => super::diffusion::tensors(model),
        _ => mixture(model),
    }
}

/// Mixtures whose experts have Qwen's names.
fn mixture(mut model: Model<'_>) -> Vec<Stored> {
    match &*model.arch.clone() {
        "glm4moe" => with_experts(model, &[("post_attention_norm", "post_attention_layernorm")]),
        "deepseek" => {
            model.unpair();
            with_experts(model, &[])
        }
        "dots1" => with_experts(model, &[]),
        "exaone-moe" => with_experts(model, &[("exp_probs_b.bias", "mlp.e_score_correction_bias")]),
        "ernie4_5-moe" => {
            with_experts(model, &[("exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias")])
        }
        "mellum" => with_experts(model, &[]),
        "afmoe" => with_experts(
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
        "laguna" => with_experts(
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
            // What it sees with.
            model.put("model.sam_model.neck.0.weight".into(), (vec![1], vec![0.0]));
            model.put("model.view_seperator".into(), (vec![1], vec![0.0]));
            model.experts_of_both("ffn_gate_up_exps", ["ffn_gate_exps", "ffn_up_exps"]);
            with_experts(model, &[])
        }
        "cohere2moe" => {
            model.experts_of_both("ffn_gate_up_exps", ["ffn_gate_exps", "ffn_up_exps"]);
            with_experts(model, &[])
        }
        "hunyuan-dense" | "hunyuan-moe" | "hunyuan_vl" => with_experts(
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
            model.experts_of_both("ffn_gate_up_exps", ["ffn_gate_exps", "ffn_up_exps"]);
            with_experts(
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
        "mimo2" => with_experts(model, &[("attn_sinks.weight", "self_attn.attention_sink_bias")]),
        "maple" => with_experts(model, &[]),
        _ => mixture_apart(model),
    }
}

/// Mixtures whose experts have other names.
fn mixture_apart(mut model: Model<'_>) -> Vec<Stored> {
    match &*model.arch.clone() {
        "granitemoe" | "granite_swa" => granite(model),
        "minimax-01" => {
            model.experts(LAYERS, MIXTRAL);
            model.move_where("attn_output", "attn_q", "lightning_output");
            model.put(format!("{LAYERS}0.self_attn.slope_rate"), (vec![3, 1, 1], vec![0.5; 3]));
            like_llama(
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
            like_llama(
                model,
                &[
                    ("ffn_gate_inp", "block_sparse_moe.gate"),
                    ("exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias"),
                ],
            )
        }
        "minimax-m3" => {
            from_one(&mut model);
            model.experts(LAYERS, MIXTRAL);
            // What it sees with.
            model.put("model.vision_tower.layers.0.norm1.weight".into(), (vec![1], vec![0.0]));
            model.put("patch_merge_mlp.linear_1.bias".into(), (vec![1], vec![0.0]));
            like_llama(
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
            like_llama(model, &[("ffn_gate_inp", "block_sparse_moe.primary_router")])
        }
        "phimoe" => {
            model.experts(LAYERS, MIXTRAL);
            like_llama(model, &[("ffn_gate_inp", "block_sparse_moe.gate")])
        }
        "arctic" => {
            model.unpair();
            model.experts(LAYERS, MIXTRAL);
            like_llama(
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
            from_one(&mut model);
            like_llama(model, STEP)
        }
        "llama4" => llama4(model),
        "bailingmoe2" => bailing(model),
        "grok" => {
            model.experts(LAYERS, MIXTRAL);
            like_llama(
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
            super::states::tensors(model)
        }
        "deepseek4" => super::hyper::tensors(model),
        "qwen4exp" => super::qwen4::tensors(model),
        "deepseek2" | "hy_v4" | "deepseek32" | "glm-dsa" | "dots3note" | "minicpm3"
        | "kimi-linear" | "kimi-k3" | "bailingmoe3" | "glm5-next" | "gemma4"
        | "gemma-embedding" | "modern-bert" | "eurobert" | "nomic-bert" | "neo-bert" | "plm"
        | "bert" | "mistral4" => super::latent::tensors(model),
        "arwkv7" | "rwkv6qwen2" => super::memory::tensors(model),
        "paddleocr" | "chameleon" | "grovemoe" => super::newest::tensors(model),
        "llama-embed" | "jina-bert-v3" | "talkie" | "hrm_text" | "plamo2" => {
            super::late::tensors(model)
        }
        _ => super::old::tensors(model),
    }
}

/// Weights of norms as what differs from one.
fn from_one(model: &mut Model<'_>) {
    model.all(&|name, numbers| {
        if name.ends_with("norm.weight") {
            numbers.1.iter_mut().for_each(|x| *x -= 1.0);
        }
    });
}

fn granite(mut model: Model<'_>) -> Vec<Stored> {
    model.unpair();
    model.join(&["ffn_gate_exps", "ffn_up_exps"], "both");
    model.join(&["ffn_gate_shexp", "ffn_up_shexp"], "both_shared");
    like_llama(
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

/// The numbers of the activation are tensors.
fn apertus(mut model: Model<'_>) -> Vec<Stored> {
    for part in ["alpha_p", "alpha_n", "beta", "eps"] {
        let numbers = model.gguf.metadata().f32s(&format!("xielu.{part}")).unwrap().unwrap();
        for (layer, number) in numbers.into_iter().enumerate() {
            model.put(format!("{LAYERS}{layer}.mlp.act_fn.{part}"), (vec![1], vec![number]));
        }
    }
    like_llama(
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

/// Norms as what differs from one, a fifth, or one through five to the power of three halves.
fn plamo3(mut model: Model<'_>) -> Vec<Stored> {
    model.all(&|name, numbers| {
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
    model.named(WHOLE, "model.layers.layers.", &own)
}

/// Norms of layers as what differs from one; those of heads are numbers of the configuration.
fn muse(mut model: Model<'_>) -> Vec<Stored> {
    model.unpair();
    for layer in 0..model.layers {
        model.take(layer, "attn_q_norm.weight").unwrap();
        model.take(layer, "attn_k_norm.weight").unwrap();
    }
    model.all(&|name, numbers| {
        if name.ends_with("norm.weight") && name != "output_norm.weight" {
            numbers.1.iter_mut().for_each(|x| *x -= 1.0);
        }
    });
    like_llama(
        model,
        &[
            ("attn_gate", "self_attn.gate_proj"),
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ],
    )
}

/// Experts come all in one, inputs before outputs.
fn llama4(mut model: Model<'_>) -> Vec<Stored> {
    model.join(&["ffn_gate_exps", "ffn_up_exps"], "both");
    model.each(&["both", "ffn_down_exps"], &turned);
    like_llama(
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

fn bailing(mut model: Model<'_>) -> Vec<Stored> {
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
    model.named(&whole, LAYERS, &[&own, SHARED, LLAMA].concat())
}

//! Folders of Mamba models and hybrids, made from zoo files, and their conversion.

use serde_json::json;

use super::families::case;
use super::fixtures::StoredTensor;
use super::zoo_model::{TensorValues, ZooModel};

type Names<'a> = &'a [(&'a str, &'a str)];

const BACKBONE: Names<'_> = &[
    ("token_embd", "backbone.embeddings"),
    ("output_norm", "backbone.norm_f"),
    ("output", "lm_head"),
];
const FINAL: Names<'_> = &[
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.final_layernorm"),
    ("output", "lm_head"),
];
const STANDARD_GLOBAL: Names<'_> =
    &[("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];
const LFM2: Names<'_> =
    &[("token_embd", "model.embed_tokens"), ("token_embd_norm", "model.embedding_norm")];
const LAYERS: &str = "model.layers.";
const BLOCKS: &str = "backbone.layers.";

/// Source names of mixers under a module prefix.
fn mixer(within: &str) -> Vec<(&'static str, String)> {
    [
        ("ssm_in", "in_proj"),
        ("ssm_conv1d", "conv1d"),
        ("ssm_x", "x_proj"),
        ("ssm_dt.bias", "dt_bias"),
        ("ssm_dt", "dt_proj"),
        ("ssm_a", "A_log"),
        ("ssm_d", "D"),
        ("ssm_norm", "norm"),
        ("ssm_dt_norm", "dt_layernorm"),
        ("ssm_b_norm", "b_layernorm"),
        ("ssm_c_norm", "c_layernorm"),
        ("ssm_out", "out_proj"),
    ]
    .into_iter()
    .map(|(target, source)| (target, format!("{within}.{source}")))
    .collect()
}

const ATTENTION: Names<'_> = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
];

fn named(
    model: ZooModel<'_>,
    whole: Names<'_>,
    root: &str,
    within: &str,
    names: Names<'_>,
) -> Vec<StoredTensor> {
    let mut mixer = mixer(within);
    // Mamba 1 has a matrix for time steps, whose bias has the usual name.
    if model.gguf.tensor("blk.0.ssm_x.weight").is_some() {
        mixer.retain(|(target, _)| *target != "ssm_dt.bias");
    }
    let mixer: Vec<(&str, &str)> =
        mixer.iter().map(|(target, source)| (*target, &**source)).collect();
    model.into_folder_tensors(whole, root, &[names, &mixer].concat())
}

/// Reverses the conversion's transforms: logarithms of decay rates, a dimension of one in
/// convolution kernels, vectors instead of columns or groups.
pub(super) fn undo_mamba_transforms(model: &mut ZooModel<'_>) {
    model.for_all(&|name, (shape, numbers)| {
        let part = name.rsplit_once("ssm_").map(|(_, part)| part).unwrap_or_default();
        if part == "a" {
            numbers.iter_mut().for_each(|x| *x = (-*x).ln());
        }
        match part {
            "a" | "d" if shape.last() == Some(&1) && shape.len() == 2 => drop(shape.pop()),
            "conv1d.weight" => shape.insert(1, 1),
            "norm.weight" if shape.len() == 2 => *shape = vec![numbers.len() as u64],
            _ => {}
        }
    });
}

/// The tensors of a zoo file under the names of a folder.
pub(super) fn tensors(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    undo_mamba_transforms(&mut model);
    match &*model.arch.clone() {
        "mamba" | "mamba2" => named(model, BACKBONE, BLOCKS, "mixer", &[("attn_norm", "norm")]),
        "jamba" => {
            let part = |part: &str| format!("feed_forward.experts.{{}}.{part}_proj");
            let (gate, up, down) = (part("gate"), part("up"), part("down"));
            let experts =
                [("ffn_gate_exps", &*gate), ("ffn_up_exps", &*up), ("ffn_down_exps", &*down)];
            model.experts(LAYERS, &experts);
            named(model, FINAL, LAYERS, "mamba", &[ATTENTION, FEED_FORWARD].concat())
        }
        "falcon-h1" => {
            divide_by_multipliers(&mut model);
            // The GGUF name has no suffix.
            for layer in 0..model.layers {
                let norm = model.take(layer, "ffn_norm").unwrap();
                model.put_back(layer, "ffn_norm.weight", norm);
            }
            named(model, FINAL, LAYERS, "mamba", &[ATTENTION, FEED_FORWARD].concat())
        }
        "granitehybrid" => {
            deinterleave_rope_pairs(&mut model, 2);
            model.join_rows(&["ffn_gate_exps", "ffn_up_exps"], "both");
            model.join_rows(&["ffn_gate_shexp", "ffn_up_shexp"], "both_shared");
            let own = [
                ("ffn_norm", "post_attention_layernorm"),
                ("both", "block_sparse_moe.input_linear"),
                ("ffn_down_exps", "block_sparse_moe.output_linear"),
                ("ffn_gate_inp", "block_sparse_moe.router.layer"),
                ("both_shared", "shared_mlp.input_linear"),
                ("ffn_down_shexp", "shared_mlp.output_linear"),
            ];
            named(model, STANDARD_GLOBAL, LAYERS, "mamba", &[&own, ATTENTION].concat())
        }
        "nemotron_h" | "nemotron_h_moe" => nemotron(model),
        "lfm2" | "lfm2moe" => lfm2(model),
        _ => delta(model),
    }
}

const FEED_FORWARD: Names<'_> = &[
    ("ffn_norm", "pre_ff_layernorm"),
    ("ffn_gate", "feed_forward.gate_proj"),
    ("ffn_up", "feed_forward.up_proj"),
    ("ffn_down", "feed_forward.down_proj"),
    ("ffn_gate_inp", "feed_forward.router"),
];

/// Moves the rows of rotary pairs half a head apart, with the given number of key heads.
fn deinterleave_rope_pairs(model: &mut ZooModel<'_>, kv_heads: usize) {
    for (part, heads) in [("attn_q", model.heads()), ("attn_k", kv_heads)] {
        model.for_parts(&[part], &|(shape, numbers)| {
            let rows = shape[0] as usize;
            (shape, super::llama_like::deinterleaved(&numbers, rows, heads))
        });
    }
}

/// Divides by Falcon-H1's multipliers, which are powers of two so that nothing is rounded.
fn divide_by_multipliers(model: &mut ZooModel<'_>) {
    let (inner, state) = (model.number("ssm.inner_size"), model.number("ssm.state_size"));
    let bands = [(inner, 4.0), (inner, 0.5), (state, 2.0), (state, 8.0), (usize::MAX, 0.25)];
    model.for_all(&|name, (shape, numbers)| {
        let part =
            name.rsplit_once(".").and_then(|(stem, _)| stem.rsplit('.').next()).unwrap_or_default();
        let times = match part {
            "token_embd" => 0.5,
            "output" => 4.0,
            "attn_q" | "attn_v" => 2.0,
            "attn_k" => 2.0 * 0.125,
            "attn_output" => 0.25,
            "ssm_out" => 8.0,
            "ffn_gate" => 0.5,
            "ffn_down" => 16.0,
            "ssm_in" => {
                let columns = shape[1] as usize;
                let mut rows = numbers.chunks_exact_mut(columns);
                for (count, times) in bands {
                    rows.by_ref().take(count).flatten().for_each(|x| *x /= times * 2.0);
                }
                return;
            }
            _ => return,
        };
        numbers.iter_mut().for_each(|x| *x /= times);
    });
}

fn nemotron(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    deinterleave_rope_pairs(&mut model, 2);
    let experts = [
        ("ffn_up_exps", "mixer.experts.{}.up_proj"),
        ("ffn_down_exps", "mixer.experts.{}.down_proj"),
    ];
    model.experts(BLOCKS, &experts);
    let names = [
        ("attn_norm", "norm"),
        ("attn_q", "mixer.q_proj"),
        ("attn_k", "mixer.k_proj"),
        ("attn_v", "mixer.v_proj"),
        ("attn_output", "mixer.o_proj"),
        ("ffn_up", "mixer.up_proj"),
        ("ffn_down", "mixer.down_proj"),
        ("ffn_gate_inp", "mixer.gate"),
        ("exp_probs_b.bias", "mixer.gate.e_score_correction_bias"),
        ("ffn_up_shexp", "mixer.shared_experts.up_proj"),
        ("ffn_down_shexp", "mixer.shared_experts.down_proj"),
    ];
    model.put("mtp.layers.0.norm.weight".to_owned(), (vec![1], vec![1.0]));
    named(model, BACKBONE, BLOCKS, "mixer", &names)
}

fn lfm2(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    model.for_all(&|name, (shape, _)| {
        if name.ends_with("shortconv.conv.weight") {
            shape.insert(1, 1);
        }
    });
    let experts = [
        ("ffn_gate_exps", "feed_forward.experts.{}.w1"),
        ("ffn_down_exps", "feed_forward.experts.{}.w2"),
        ("ffn_up_exps", "feed_forward.experts.{}.w3"),
    ];
    model.experts(LAYERS, &experts);
    let names = [
        ("attn_norm", "operator_norm"),
        ("ffn_norm", "ffn_norm"),
        ("shortconv.conv", "conv.conv"),
        ("shortconv.in_proj", "conv.in_proj"),
        ("shortconv.out_proj", "conv.out_proj"),
        ("attn_output", "self_attn.out_proj"),
        ("attn_q_norm", "self_attn.q_layernorm"),
        ("attn_k_norm", "self_attn.k_layernorm"),
        ("ffn_gate", "feed_forward.w1"),
        ("ffn_down", "feed_forward.w2"),
        ("ffn_up", "feed_forward.w3"),
        ("ffn_gate_inp", "feed_forward.gate"),
        ("exp_probs_b.bias", "feed_forward.expert_bias"),
    ];
    model.into_folder_tensors(LFM2, LAYERS, &[&names, ATTENTION].concat())
}

/// Makes the row blocks of a key head adjacent; the first `skip` rows keep their place.
fn grouped_by_key_head(
    (shape, numbers): TensorValues,
    skip: usize,
    groups: usize,
    block: usize,
) -> TensorValues {
    let columns = numbers.len() / shape[0] as usize;
    let blocks: Vec<&[f32]> = numbers[skip * columns..].chunks_exact(block * columns).collect();
    let each = blocks.len() / groups;
    let order = (0..groups).flat_map(|group| (0..each).map(move |at| at * groups + group));
    let rest = order.flat_map(|at| blocks[at].iter().copied());
    let out = numbers[..skip * columns].iter().copied().chain(rest).collect();
    (shape, out)
}

/// Qwen3-Next and Qwen 3.5.
fn delta(model: ZooModel<'_>) -> Vec<StoredTensor> {
    delta_with(model, STANDARD_GLOBAL, &[])
}

/// The same with further names of global and layer tensors.
pub(super) fn delta_with(
    mut model: ZooModel<'_>,
    whole: Names<'_>,
    own: Names<'_>,
) -> Vec<StoredTensor> {
    let is_next = model.arch == "qwen3next";
    let (groups, state) = (model.number("ssm.group_count"), model.number("ssm.state_size"));
    let value = model.number("ssm.inner_size") / model.number("ssm.time_step_rank");
    let both = 2 * groups * state;
    model.for_all(&|name, (_, numbers)| {
        if name.ends_with("norm.weight") && !name.ends_with("ssm_norm.weight") {
            numbers.iter_mut().for_each(|x| *x -= 1.0);
        }
    });
    for layer in 0..model.layers {
        if is_next {
            join_qkvz(&mut model, layer, groups, state);
            continue;
        }
        for (part, skip, block) in [
            ("attn_qkv.weight", both, value),
            ("ssm_conv1d.weight", both, value),
            ("attn_gate.weight", 0, value),
            ("ssm_alpha.weight", 0, 1),
            ("ssm_beta.weight", 0, 1),
            ("ssm_a", 0, 1),
            ("ssm_dt.bias", 0, 1),
        ] {
            if let Some(numbers) = model.take(layer, part) {
                model.put_back(layer, part, grouped_by_key_head(numbers, skip, groups, block));
            }
        }
        if let Some(numbers) = model.take(layer, "ssm_out.weight") {
            let back = super::zoo_model::transposed(grouped_by_key_head(
                super::zoo_model::transposed(numbers),
                0,
                groups,
                value,
            ));
            model.put_back(layer, "ssm_out.weight", back);
        }
    }
    let parts = ["gate", "up", "down"];
    let source =
        parts.map(|part| (format!("ffn_{part}_exps"), format!("mlp.experts.{{}}.{part}_proj")));
    if is_next {
        let names: Vec<(&str, &str)> =
            source.iter().map(|(target, source)| (&**target, &**source)).collect();
        model.experts(LAYERS, &names);
    }
    // Later folders have gate and up projections of all experts in one tensor.
    model.join_rows(&["ffn_gate_exps", "ffn_up_exps"], "both");
    let names = [
        ("both.weight", "mlp.experts.gate_up_proj"),
        ("ffn_down_exps.weight", "mlp.experts.down_proj"),
        ("post_attention_norm", "post_attention_layernorm"),
        ("mixed", "linear_attn.in_proj_qkvz"),
        ("ssm_ba", "linear_attn.in_proj_ba"),
        ("attn_qkv", "linear_attn.in_proj_qkv"),
        ("attn_gate", "linear_attn.in_proj_z"),
        ("ssm_alpha", "linear_attn.in_proj_a"),
        ("ssm_beta", "linear_attn.in_proj_b"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
        ("ffn_gate_inp", "mlp.gate"),
        ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
        ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
        ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ];
    model.put("mtp.norm.weight".to_owned(), (vec![1], vec![1.0]));
    named(model, whole, LAYERS, "linear_attn", &[own, &names, ATTENTION].concat())
}

/// Joins, for each key head, its query, its key, its values and its gates to one matrix.
fn join_qkvz(model: &mut ZooModel<'_>, layer: usize, groups: usize, state: usize) {
    let Some((shape, qkv)) = model.take(layer, "attn_qkv.weight") else { return };
    let (_, gate) = model.take(layer, "attn_gate.weight").unwrap();
    let columns = shape[1] as usize;
    let values = gate.len() / columns / groups;
    let rows = |numbers: &[f32], from: usize, count: usize| {
        numbers[from * columns..][..count * columns].to_vec()
    };
    let mut out = Vec::new();
    for group in 0..groups {
        out.extend(rows(&qkv, group * state, state));
        out.extend(rows(&qkv, (groups + group) * state, state));
        out.extend(rows(&qkv, 2 * groups * state + group * values, values));
        out.extend(rows(&gate, group * values, values));
    }
    let shape = vec![(out.len() / columns) as u64, shape[1]];
    model.put_back(layer, "mixed.weight", (shape, out));
}

#[test]
fn mamba_converts_to_the_files_of_llama_cpp() {
    let sizes = [("state_size", "ssm.state_size"), ("conv_kernel", "ssm.conv_kernel")];
    case("mamba", "MambaForCausalLM")
        .keys(&[&sizes[..], &[("time_step_rank", "ssm.time_step_rank")]].concat())
        .config(json!({"rms_norm_eps": null, "layer_norm_epsilon": 1e-5, "intermediate_size": 96, "num_attention_heads": null}))
        .check();
    case("mamba2", "Mamba2ForCausalLM")
        .keys(&[&sizes[..], &[("n_groups", "ssm.group_count")]].concat())
        .config(json!({"rms_norm_eps": null, "layer_norm_epsilon": 1e-5, "intermediate_size": null, "head_dim": 24, "expand": 2}))
        .check();
}

#[test]
fn mamba_hybrids_convert_to_the_files_of_llama_cpp() {
    case("jamba", "JambaForCausalLM")
        .keys(&[("mamba_d_state", "ssm.state_size"), ("mamba_dt_rank", "ssm.time_step_rank")])
        .config(json!({"num_key_value_heads": 2, "attn_layer_period": 4, "attn_layer_offset": 2,
            "expert_layer_period": 2, "expert_layer_offset": 1, "mamba_d_conv": 4, "mamba_expand": 2}))
        .check();
    let states = [
        ("mamba_d_state", "ssm.state_size"),
        ("mamba_n_groups", "ssm.group_count"),
        ("mamba_d_conv", "ssm.conv_kernel"),
        ("mamba_n_heads", "ssm.time_step_rank"),
    ];
    case("falcon-h1", "FalconH1ForCausalLM")
        .keys(&[&states[..], &[("mamba_d_ssm", "ssm.inner_size")]].concat())
        .config(json!({"mamba_d_head": 12, "ssm_multipliers": [4.0, 0.5, 2.0, 8.0, 0.25], "ssm_in_multiplier": 2.0,
            "ssm_out_multiplier": 8.0, "attention_in_multiplier": 2.0, "attention_out_multiplier": 0.25,
            "key_multiplier": 0.125, "lm_head_multiplier": 4.0, "embedding_multiplier": 0.5, "mlp_multipliers": [0.5, 16.0]}))
        .check();
    case("granitehybrid", "GraniteMoeHybridForCausalLM")
        .keys(&[&states[..], &[("shared_intermediate_size", "expert_shared_feed_forward_length")]].concat())
        .config(json!({"num_key_value_heads": 2, "layer_types": ["mamba", "attention", "mamba"], "mamba_expand": 2}))
        .check();
    let nemotron = [
        ("ssm_state_size", "ssm.state_size"),
        ("n_groups", "ssm.group_count"),
        ("conv_kernel", "ssm.conv_kernel"),
        ("mamba_num_heads", "ssm.time_step_rank"),
    ];
    // No file has the rotated fraction: nothing is rotated.
    case("nemotron-h", "NemotronHForCausalLM")
        .keys(&nemotron)
        .config(json!({"num_key_value_heads": 2, "hybrid_override_pattern": "M*-M", "intermediate_size": 64, "mamba_head_dim": 16,
            "num_experts_per_tok": null}))
        .ignoring(&["rope.dimension_count"])
        .check();
    let routed = [
        ("n_routed_experts", "expert_count"),
        ("n_shared_experts", "expert_shared_count"),
        ("moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
        ("n_group", "expert_group_count"),
        ("topk_group", "expert_group_used_count"),
        ("norm_topk_prob", "expert_weights_norm"),
        ("routed_scaling_factor", "expert_weights_scale"),
    ];
    case("nemotron-h-moe", "NemotronHForCausalLM")
        .keys(&[&nemotron[..], &routed].concat())
        .config(json!({"num_key_value_heads": 2, "layers_block_type": ["mamba", "moe", "attention", "moe"], "mamba_head_dim": 16}))
        .ignoring(&["rope.dimension_count"])
        .check();
}

#[test]
fn lfm2_and_delta_rule_convert_to_the_files_of_llama_cpp() {
    let kinds = json!(["conv", "full_attention", "conv"]);
    case("lfm2", "Lfm2ForCausalLM")
        .keys(&[("conv_L_cache", "shortconv.l_cache")])
        .config(json!({"num_key_value_heads": 2, "layer_types": kinds, "norm_eps": 1e-5, "rms_norm_eps": null,
            "intermediate_size": 96, "block_auto_adjust_ff_dim": true, "block_multiple_of": 16}))
        .check();
    case("lfm2moe", "Lfm2MoeForCausalLM")
        .keys(&[
            ("conv_L_cache", "shortconv.l_cache"),
            ("num_dense_layers", "leading_dense_block_count"),
        ])
        .config(json!({"num_key_value_heads": 2, "layer_types": kinds, "norm_eps": 1e-5}))
        .check();
    let linear = [
        ("linear_conv_kernel_dim", "ssm.conv_kernel"),
        ("linear_key_head_dim", "ssm.state_size"),
        ("linear_num_key_heads", "ssm.group_count"),
        ("linear_num_value_heads", "ssm.time_step_rank"),
    ];
    let kinds =
        json!(["linear_attention", "linear_attention", "linear_attention", "full_attention"]);
    let rope = |share: f64| json!({"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": share, "mrope_section": [2, 1, 1]});
    case("qwen3next", "Qwen3NextForCausalLM")
        .keys(&linear)
        .config(json!({"layer_types": kinds, "linear_value_head_dim": 16, "partial_rotary_factor": 0.25}))
        .check();
    let fixed =
        json!({"layer_types": kinds, "linear_value_head_dim": 16, "rope_parameters": rope(0.5)});
    case("qwen35", "Qwen3_5ForCausalLM").keys(&linear).config(fixed.clone()).check();
    case("qwen35moe", "Qwen3_5MoeForCausalLM").keys(&linear).config(fixed).check();
}

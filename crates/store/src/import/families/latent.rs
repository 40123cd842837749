//! Attention through a latent vector: DeepSeek 2 and 3, GLM 4.7 Flash and 5, Mistral 4, MiniCPM 3, and Kimi Linear, whose other layers have a
//! delta rule.

use std::collections::BTreeSet;

use super::super::ImportError;
use super::super::config::Json;
use super::super::keys::Keys;
use super::super::pieces::Cutter;
use super::super::plan::{Change, Content, Order, Output, Step};
use super::super::rules::{Form, Rule, one};
use super::super::weights::Weights;
use super::names::{ATTENTION, BEFORE, EXPERTS, GATED, MIXTRAL, SHARED};
use super::state::rates;
use super::{Alike, Family, PLAIN, glm};
use crate::error::StoreError;

pub(super) const LATENT: [Rule; 6] = [
    one("self_attn.q_a_proj", "attn_q_a"),
    one("self_attn.q_a_layernorm", "attn_q_a_norm"),
    one("self_attn.q_b_proj", "attn_q_b"),
    one("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    one("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
    one("self_attn.kv_b_proj", "attn_kv_b"),
];

pub(super) const DEEPSEEK2: Family = Family {
    architecture: "deepseek2",
    classes: &["DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "YoutuForCausalLM"],
    layer: &[&ATTENTION, &LATENT, &GATED, &BEFORE, &EXPERTS, &SHARED],
    alike: Alike::Kinds,
    odd: Some(split),
    keys: deepseek2,
    ..PLAIN
};

/// GLM 4.7 Flash, with the tokenizer of its family.
pub(super) const GLM4_MOE_LITE: Family = Family {
    classes: &["Glm4MoeLiteForCausalLM"],
    pre: glm::GLM4.pre,
    ends: glm::GLM4.ends,
    ..DEEPSEEK2
};

/// What chooses the positions that a token sees.
pub(super) const INDEXER: [Rule; 5] = [
    one("self_attn.indexer.wq_b", "indexer.attn_q_b.weight"),
    one("self_attn.indexer.wk", "indexer.attn_k.weight"),
    one("self_attn.indexer.k_norm.bias", "indexer.k_norm.bias"),
    one("self_attn.indexer.k_norm", "indexer.k_norm.weight"),
    one("self_attn.indexer.weights_proj", "indexer.proj.weight"),
];

/// The third with an indexer in each layer.
pub(super) const DEEPSEEK32: Family = Family {
    architecture: "deepseek32",
    classes: &["DeepseekV32ForCausalLM"],
    layer: &[&ATTENTION, &LATENT, &INDEXER, &GATED, &BEFORE, &EXPERTS, &SHARED],
    keys: deepseek32,
    ..DEEPSEEK2
};

/// GLM 5, whose later versions have layers that share what an earlier one has chosen.
pub(super) const GLM_DSA: Family = Family {
    architecture: "glm-dsa",
    classes: &["GlmMoeDsaForCausalLM"],
    pre: glm::GLM4.pre,
    ends: glm::GLM4.ends,
    keys: |keys| {
        deepseek32(keys)?;
        let owners = match owners(keys.config)? {
            None => patterned_owners(keys)?,
            named => named,
        };
        owners.map_or(Ok(()), |owners| keys.list("attention.indexer.types", owners))
    },
    ..DEEPSEEK32
};

pub(super) fn deepseek32(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    // What configurations of one form leave out.
    keys.sigmoid();
    deepseek2(keys)?;
    keys.indexer()
}

impl Keys<'_> {
    /// How many heads an indexer has, how large they are, and how many positions it chooses.
    pub(super) fn indexer(&mut self) -> Result<(), StoreError> {
        self.count("attention.indexer.head_count", &["index_n_heads"])?;
        self.count("attention.indexer.key_length", &["index_head_dim"])?;
        self.count("attention.indexer.top_k", &["index_topk"])
    }
}

/// Which layers have an indexer of their own, by the words that configurations have for it; nothing where they have none.
pub(super) fn owners(config: &Json) -> Result<Option<Vec<bool>>, StoreError> {
    const KEY: &str = "indexer_types";
    if config.value(KEY).is_none_or(|types| types.is_null()) {
        return Ok(None);
    }
    let of = |kind: String| match kind.as_str() {
        "full" => Some(true),
        "shared" => Some(false),
        _ => None,
    };
    let owners: Option<Vec<bool>> =
        config.strings(KEY).and_then(|types| types.into_iter().map(of).collect());
    owners.map(Some).ok_or_else(|| config.wrong(KEY, "`full` or `shared` for each layer").into())
}

/// The same by letter, or one of so many layers from an offset on.
fn patterned_owners(keys: &Keys<'_>) -> Result<Option<Vec<bool>>, StoreError> {
    let config = keys.config;
    if let Some(letters) = config.text("index_topk_pattern") {
        if letters.bytes().any(|letter| !b"FS".contains(&letter)) {
            return Err(config.wrong("index_topk_pattern", "`F` or `S` for each layer").into());
        }
        return Ok(Some(letters.bytes().map(|letter| letter == b'F').collect()));
    }
    let Some(every) = config.opt_count("index_topk_freq")? else { return Ok(None) };
    let offset = config.opt_number("index_skip_topk_offset")?.unwrap_or(2);
    let chooses = |layer: u32| (layer + 1).saturating_sub(offset).is_multiple_of(every);
    Ok(Some((0..keys.shape.sizes.layers).map(chooses).collect()))
}

/// Halves that stay together.
const BOTH: [Rule; 1] = [one("mlp.experts.gate_up_proj", "ffn_gate_up_exps")];

/// Mistral's models of this form, whose scores grow with the position.
pub(super) const MISTRAL4: Family = Family {
    architecture: "mistral4",
    classes: &["Mistral3ForConditionalGeneration", "Mistral4ForCausalLM"],
    fits: |config| config.text("model_type") == Some("mistral4"),
    layer: &[&BOTH, &ATTENTION, &LATENT, &GATED, &BEFORE, &EXPERTS, &SHARED],
    keys: |keys| {
        deepseek2(keys)?;
        if let Some(beta) = keys.config.rope().opt_float("llama_4_scaling_beta")? {
            let original = keys.original_context()?;
            keys.set("attention.temperature_scale", beta);
            keys.set("attention.temperature_length", original);
        }
        Ok(())
    },
    ..DEEPSEEK2
};

/// What the latent vector becomes is here one matrix for keys, the inputs of which come behind its outputs, and one for
/// values.
pub(super) fn split<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    let heads = u64::from(cutter.sizes.kv_heads);
    let [nope, value] =
        ["qk_nope_head_dim", "v_head_dim"].map(|key| cutter.config.count(key).map(u64::from));
    let sizes = [heads, nope?, value?];
    (0..cutter.sizes.layers)
        .try_for_each(|layer| split_layer(cutter, weights, layer, sizes, outputs))
}

/// The same in a layer with so many heads, features of a key that do not turn, and features of a value.
pub(super) fn split_layer<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    layer: u32,
    [heads, nope, value]: [u64; 3],
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    let each = nope + value;
    let name = format!("layers.{layer}.self_attn.kv_b_proj.weight");
    let Some(tensor) = weights.take(&name) else { return Ok(()) };
    let rank = match tensor.entry.shape[..] {
        [rows, rank] if rows == heads * each => rank,
        _ => {
            let (found, want) = (tensor.entry.shape.clone(), vec![heads * each]);
            return Err(
                ImportError::TensorShape { name: tensor.entry.name.clone(), found, want }.into()
            );
        }
    };
    let (name, shape) = (cutter.full(Some(layer), "attn_k_b.weight"), vec![heads, rank, nope]);
    let (order, matrices, change) = (Order::SAME, Order::SAME, Change::None);
    let content =
        Content::Transposed { tensor: tensor.clone(), each, take: rank, order, matrices, change };
    outputs.push(Output { name, ty: cutter.matrices, shape, content });
    let (name, shape) = (cutter.full(Some(layer), "attn_v_b.weight"), vec![heads, value, rank]);
    let order = Order::of(Step::Window { each, from: nope, take: value });
    outputs.push(Output::rows(name, cutter.matrices, shape, tensor, order));
    Ok(())
}

/// Sizes of what is computed through the latent vector, as one head of keys.
pub(super) fn latent(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    let config = keys.config;
    let rank = config.opt_count("kv_lora_rank")?.unwrap_or(512);
    let missing = || config.wrong("qk_rope_head_dim", "a number");
    let turning = config.opt_number("qk_rope_head_dim")?.ok_or_else(missing)?;
    keys.count_if("attention.q_lora_rank", &["q_lora_rank"])?;
    keys.set("attention.kv_lora_rank", rank);
    keys.set("attention.key_length", rank.saturating_add(turning));
    keys.set("attention.key_length_mla", config.count("qk_nope_head_dim")?.saturating_add(turning));
    keys.count("attention.value_length_mla", &["v_head_dim"])?;
    keys.set("rope.dimension_count", turning);
    Ok(())
}

pub(super) fn deepseek2(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    let config = keys.config;
    keys.sizes();
    keys.set("attention.head_count_kv", 1u32);
    keys.rope()?;
    keys.set("attention.layer_norm_rms_epsilon", config.float("rms_norm_eps", 1e-6)?);
    keys.experts()?;
    latent(keys)?;
    let rank = config.opt_count("kv_lora_rank")?.unwrap_or(512);
    keys.set("attention.value_length", rank);
    let has_experts = keys.shape.sizes.experts > 0;
    let dense = config.opt_number("first_k_dense_replace")?;
    let usual = if has_experts { 0 } else { keys.shape.sizes.layers };
    keys.set("leading_dense_block_count", dense.unwrap_or(usual));
    keys.count("expert_feed_forward_length", &["moe_intermediate_size", "intermediate_size"])?;
    keys.set("expert_shared_count", config.opt_number("n_shared_experts")?.unwrap_or(0));
    keys.float_if("expert_weights_scale", &["routed_scaling_factor"])?;
    if config.flag("norm_topk_prob") == Some(true) {
        keys.set("expert_weights_norm", true);
    }
    if let Some(scale) = config.rope().opt_float("mscale_all_dim")? {
        keys.set("rope.scaling.yarn_log_multiplier", 0.1 * scale);
    }
    Ok(())
}

pub(super) const MINICPM3: Family = Family {
    architecture: "minicpm3",
    classes: &["MiniCPM3ForCausalLM"],
    layer: &[&ATTENTION, &LATENT, &GATED, &BEFORE],
    keys: |keys| {
        let config = keys.config;
        keys.sizes();
        keys.norms()?;
        keys.count_if("attention.q_lora_rank", &["q_lora_rank"])?;
        keys.count("attention.kv_lora_rank", &["kv_lora_rank"])?;
        let turning = config.count("qk_rope_head_dim")?;
        keys.set("attention.key_length", config.count("qk_nope_head_dim")?.saturating_add(turning));
        keys.set("rope.dimension_count", turning);
        let rope = config.rope();
        match ["long_factor", "short_factor"].map(|key| rope.value(key).is_some()) {
            [false, false] => Ok(()),
            _ => keys.factors(&rope, turning),
        }
    },
    ..PLAIN
};

pub(super) const PLM: Family = Family {
    architecture: "plm",
    classes: &["PLMForCausalLM"],
    layer: &[&ATTENTION, &LATENT, &GATED, &BEFORE],
    keys: |keys| {
        keys.sizes();
        keys.norms()?;
        keys.rope()?;
        keys.count("attention.kv_lora_rank", &["kv_lora_rank"])?;
        let turning = keys.config.count("qk_rope_head_dim")?;
        keys.set(
            "attention.key_length",
            keys.config.count("qk_nope_head_dim")?.saturating_add(turning),
        );
        keys.count("attention.value_length", &["v_head_dim"])?;
        keys.set("rope.dimension_count", turning);
        Ok(())
    },
    ..PLAIN
};

/// Layers of delta attention.
pub(super) const KIMI_PARTS: [Rule; 11] = [
    one("self_attn.A_log", "ssm_a."),
    one("self_attn.dt_bias", "ssm_dt.bias"),
    one("self_attn.b_proj", "ssm_beta"),
    one("self_attn.f_a_proj", "ssm_f_a"),
    one("self_attn.f_b_proj", "ssm_f_b"),
    one("self_attn.g_a_proj", "ssm_g_a"),
    one("self_attn.g_b_proj", "ssm_g_b"),
    one("self_attn.o_norm", "ssm_norm"),
    one("self_attn.q_conv1d", "ssm_conv1d_q").form(Form::Lifted),
    one("self_attn.k_conv1d", "ssm_conv1d_k").form(Form::Lifted),
    one("self_attn.v_conv1d", "ssm_conv1d_v").form(Form::Lifted),
];

/// What is beside experts.
pub(super) const KIMI_SHARED: [Rule; 4] = [
    one("block_sparse_moe.gate.e_score_correction_bias", "exp_probs_b.bias"),
    one("block_sparse_moe.shared_experts.gate_proj", "ffn_gate_shexp"),
    one("block_sparse_moe.shared_experts.up_proj", "ffn_up_shexp"),
    one("block_sparse_moe.shared_experts.down_proj", "ffn_down_shexp"),
];

pub(super) const KIMI_LINEAR: Family = Family {
    architecture: "kimi-linear",
    classes: &["KimiLinearForCausalLM", "KimiLinearModel"],
    layer: &[&ATTENTION, &LATENT, &GATED, &BEFORE, &KIMI_PARTS, &KIMI_SHARED, &MIXTRAL, &SHARED],
    alike: Alike::Nothing,
    change: rates,
    odd: Some(split),
    keys: |keys| {
        let config = keys.config;
        let linear = config.section("linear_attn_config");
        let attends: BTreeSet<u32> = linear.numbers("full_attn_layers")?.into_iter().collect();
        keys.sizes();
        // Layers are counted from one.
        keys.by_layer("attention.head_count_kv", |layer| u32::from(attends.contains(&(layer + 1))));
        keys.rope()?;
        keys.norms()?;
        keys.experts()?;
        keys.head_sizes();
        latent(keys)?;
        keys.float_if("expert_weights_scale", &["routed_scaling_factor"])?;
        keys.set("ssm.conv_kernel", linear.opt_count("short_conv_kernel_size")?.unwrap_or(4));
        keys.set("kda.head_dim", linear.count("head_dim")?);
        keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
        keys.count("expert_shared_count", &["num_shared_experts"])?;
        keys.set(
            "leading_dense_block_count",
            config.opt_number("first_k_dense_replace")?.unwrap_or(0),
        );
        Ok(())
    },
    ..PLAIN
};

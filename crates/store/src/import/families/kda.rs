//! Delta attention whose fading has a bound, beside attention through a latent vector: Kimi K3, Ling 3 and
//! GLM 5 Next.

use std::collections::BTreeSet;

use puna_quant::TensorType;

use super::super::ImportError;
use super::super::config::Json;
use super::super::keys::{Keys, Shape};
use super::super::pieces::Cutter;
use super::super::plan::{Change, Content, Output, check_width};
use super::super::rules::{Form, Rule, one};
use super::super::weights::{Tensor, Weights};
use super::latent::{INDEXER, KIMI_PARTS, KIMI_SHARED, LATENT, latent, owners, split};
use super::mixture::BAILING_WHOLE;
use super::names::{ATTENTION, BEFORE, EXPERTS, GATED, MIXTRAL, SHARED};
use super::state::rates;
use super::{Alike, Family, PLAIN, glm};
use crate::error::StoreError;

/// What Kimi K3 has that Kimi Linear lacks. Gates are of one name there, whatever they weigh.
const KIMI_3: [Rule; 6] = [
    one("self_attn.A_log", "ssm_a.").form(Form::Flat),
    one("self_attn.delta_gate", "ssm_g"),
    one("self_attn.g_proj", "attn_gate"),
    one("block_sparse_moe.routed_expert_down_proj", "ffn_routed_down"),
    one("block_sparse_moe.routed_expert_up_proj", "ffn_routed_up"),
    one("block_sparse_moe.routed_expert_norm", "ffn_routed_norm"),
];

/// The text model.
pub(super) const KIMI_K3: Family = Family {
    architecture: "kimi-k3",
    classes: &["KimiK3ForConditionalGeneration"],
    layer: &[
        &ATTENTION,
        &LATENT,
        &GATED,
        &BEFORE,
        &KIMI_3,
        &KIMI_PARTS,
        &KIMI_SHARED,
        &MIXTRAL,
        &SHARED,
    ],
    alike: Alike::Nothing,
    change: rates,
    odd: Some(gates_and_heeds),
    keys: |keys| {
        let config = keys.config;
        let linear = config.section("linear_attn_config");
        let attends: BTreeSet<u32> = linear.numbers("full_attn_layers")?.into_iter().collect();
        keys.sizes();
        // Layers are counted from one.
        keys.by_layer("attention.head_count_kv", |layer| u32::from(attends.contains(&(layer + 1))));
        keys.rope()?;
        keys.norms()?;
        keys.sigmoid();
        keys.experts()?;
        latent(keys)?;
        keys.set("attention.value_length", config.opt_count("kv_lora_rank")?.unwrap_or(512));
        keys.routed()?;
        keys.flag_if("expert_weights_norm", "moe_renormalize");
        keys.count_if("expert_latent_length", &["routed_expert_hidden_size"])?;
        keys.delta(&linear, &["gate_lower_bound"])?;
        if config.text("hidden_act").is_some_and(|unit| unit != "situ") {
            let found = config.text("hidden_act").unwrap_or_default().to_owned();
            return Err(config.wrong_value("hidden_act", format!("{found}, and not situ")).into());
        }
        for key in ["situ_beta", "situ_linear_beta"] {
            let bound = config.opt_float(&format!("activation_{key}"))?;
            let missing = || config.wrong(&format!("activation_{key}"), "a number");
            keys.set(&format!("activation.{key}"), bound.ok_or_else(missing)?);
        }
        keys.number_if("attn_res.block_size", &["attn_res_block_size"])?;
        Ok(())
    },
    ..PLAIN
};

impl Keys<'_> {
    /// Sizes of delta attention, and the bound of its fading under the first of these names.
    fn delta(&mut self, linear: &Json, bound: &[&str]) -> Result<(), StoreError> {
        self.set("ssm.conv_kernel", linear.opt_count("short_conv_kernel_size")?.unwrap_or(4));
        self.set("kda.head_dim", linear.count("head_dim")?);
        if let Some(least) = linear.first_float(bound)? {
            self.set("kda.gate_lower_bound", least);
        }
        Ok(())
    }
}

/// Gates of layers that do not attend, and what parts heed of the stream: the product of a norm's weights with others.
fn gates_and_heeds<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    let attends = cutter.config.section("linear_attn_config").numbers("full_attn_layers")?;
    let (attends, layers): (BTreeSet<u32>, u32) =
        (attends.into_iter().collect(), cutter.sizes.layers);
    weights.rename(|name| match gated(name, layers) {
        Some(layer) if !attends.contains(&(layer + 1)) => name.replace("g_proj", "delta_gate"),
        _ => name.to_owned(),
    })?;
    let width = u64::from(cutter.config.count("hidden_size")?);
    for layer in 0..cutter.sizes.layers {
        for (there, here) in
            [("self_attention_res", "attn_res_score"), ("mlp_res", "ffn_res_score")]
        {
            let name = cutter.full(Some(layer), &format!("{here}.weight"));
            outputs.extend(heeds(weights, &format!("layers.{layer}.{there}"), name, width)?);
        }
    }
    outputs.extend(heeds(weights, "output_attn_res", "output_res_score.weight".to_owned(), width)?);
    split(cutter, weights, outputs)
}

/// The layer whose gate a tensor of such a name is, of so many: names can have any number.
fn gated(name: &str, layers: u32) -> Option<u32> {
    let layer =
        name.strip_prefix("layers.")?.strip_suffix(".self_attn.g_proj.weight")?.parse().ok()?;
    (layer < layers).then_some(layer)
}

/// The product of `NAME_norm` and `NAME_proj`, of so many numbers, where they are there.
fn heeds(
    weights: &mut Weights<'_>,
    there: &str,
    name: String,
    width: u64,
) -> Result<Option<Output<'static>>, StoreError> {
    let [norm, proj] = ["norm", "proj"].map(|part| format!("{there}_{part}.weight"));
    let Some(of_norm) = weights.take(&norm) else { return Ok(None) };
    let of_proj = weights.take(&proj).ok_or(ImportError::TensorMissing { name: proj })?;
    let numbers = |tensor: &Tensor<'_>| {
        let (name, found, want) =
            (tensor.entry.name.clone(), tensor.entry.shape.clone(), vec![width]);
        check_width(&name, &found, width)?;
        match tensor.entry.elements() == width {
            true => tensor.rows(0, 1, width),
            false => Err(ImportError::TensorShape { name, found, want }),
        }
    };
    let product = numbers(&of_norm)?.iter().zip(numbers(&of_proj)?).map(|(a, b)| a * b).collect();
    Ok(Some(Output {
        name,
        ty: TensorType::F32,
        shape: vec![width],
        content: Content::Given(product),
    }))
}

/// Ling 3 calls attention otherwise than others; its gates are of one name, whatever they weigh.
const LING: [Rule; 6] = [
    one("self_attn.A_log", "ssm_a.").form(Form::Column),
    one("self_attn.dense", "attn_output"),
    one("self_attn.f_proj", "ssm_f_a"),
    one("self_attn.delta_gate", "ssm_g_a"),
    one("self_attn.g_proj", "attn_gate"),
    one("mlp.gate.expert_bias", "exp_probs_b.bias"),
];

/// Also the text model of those that see.
pub(super) const BAILINGMOE3: Family = Family {
    architecture: "bailingmoe3",
    classes: &["BailingMoeV3ForCausalLM", "BailingMoeV3VLForConditionalGeneration"],
    whole: &[&BAILING_WHOLE],
    layer: &[&LING, &ATTENTION, &LATENT, &GATED, &BEFORE, &KIMI_PARTS, &EXPERTS, &SHARED],
    alike: Alike::Nothing,
    change: |_, name| Ok(if name == "ssm_a" { Change::Exp } else { Change::None }),
    odd: Some(|cutter, weights, outputs| {
        let (every, layers) = (cutter.config.count("layer_group_size")?, cutter.sizes.layers);
        weights.leave(|name| name.starts_with("linear_proj"));
        weights.rename(|name| {
            let name = name.replace(".attention.", ".self_attn.");
            match gated(&name, layers) {
                Some(layer) if !attends(layer, every, layers) => {
                    name.replace("g_proj", "delta_gate")
                }
                _ => name,
            }
        })?;
        split(cutter, weights, outputs)
    }),
    shape: |config| {
        let mut shape = Shape::usual(config)?;
        shape.sizes.kv_heads = shape.sizes.heads;
        Ok(shape)
    },
    keys: |keys| {
        let config = keys.config;
        for (key, want) in [("no_kda_lora", true), ("kda_safe_gate", true)] {
            if config.flag(key) != Some(want) {
                let found = "not true: other layers than these are not known".to_owned();
                return Err(config.wrong_value(key, found).into());
            }
        }
        let (every, layers) = (config.count("layer_group_size")?, keys.shape.sizes.layers);
        keys.sizes();
        keys.by_layer("attention.head_count_kv", |layer| u32::from(attends(layer, every, layers)));
        keys.rope()?;
        keys.sections(config, &["mrope_section"])?;
        keys.norms()?;
        keys.experts()?;
        latent(keys)?;
        keys.routed()?;
        keys.count_if(
            "expert_shared_feed_forward_length",
            &["moe_shared_expert_intermediate_size"],
        )?;
        keys.delta(config, &["kda_lower_bound"])?;
        keys.set("kda.safe_gate", true);
        for (there, key) in [
            ("expert_swiglu_limit_list", "swiglu_clamp_exp"),
            ("share_expert_swiglu_limit_list", "swiglu_clamp_shexp"),
        ] {
            if let Some(list) = config.value(there).and_then(|list| list.as_array()) {
                let limits = list.iter().map(|limit| limit.as_f64().unwrap_or(0.0) as f32);
                let limits = limits
                    .chain(std::iter::repeat(0.0))
                    .take(layers as usize)
                    .collect::<Vec<f32>>();
                keys.set(key, limits);
            }
        }
        Ok(())
    },
    ..PLAIN
};

/// Whether a layer attends: the last of each group, and all behind the last whole group.
fn attends(layer: u32, every: u32, layers: u32) -> bool {
    (layer + 1).is_multiple_of(every) || layer >= layers / every * every
}

/// How layers are connected to the streams, and what an indexer pools by.
const GLM_5_NEXT: [Rule; 9] = [
    one("self_attn.A_log", "ssm_a.").form(Form::Flat),
    one("hc_attn_fn", "hc_attn_fn"),
    one("hc_attn_base", "hc_attn_base"),
    one("hc_attn_scale", "hc_attn_scale"),
    one("hc_ffn_fn", "hc_ffn_fn"),
    one("hc_ffn_base", "hc_ffn_base"),
    one("hc_ffn_scale", "hc_ffn_scale"),
    one("self_attn.indexer.index_kpool_compress_gate", "indexer_compressor_gate"),
    one("self_attn.indexer.index_kpool_compress_ape", "indexer_compressor_ape"),
];

/// The text model.
pub(super) const GLM5_NEXT: Family = Family {
    architecture: "glm5-next",
    classes: &["Glm5NextForConditionalGeneration"],
    layer: &[
        &GLM_5_NEXT,
        &ATTENTION,
        &LATENT,
        &INDEXER,
        &GATED,
        &BEFORE,
        &KIMI_PARTS,
        &EXPERTS,
        &SHARED,
    ],
    alike: Alike::Nothing,
    pre: glm::GLM4.pre,
    ends: glm::GLM4.ends,
    change: rates,
    odd: Some(split),
    keys: |keys| {
        let config = keys.config;
        let linear = config.section("linear_attn_config");
        keys.sizes();
        let attends: Vec<i32> = match config.strings("layer_types") {
            Some(types) => types.iter().map(|kind| i32::from(kind != "linear_attention")).collect(),
            None => {
                return Err(config
                    .wrong("layer_types", "a list with a word for each layer")
                    .into());
            }
        };
        keys.list("attention.head_count_kv", attends)?;
        keys.rope()?;
        keys.norms()?;
        // Of the norm of an indexer's keys.
        keys.set("attention.layer_norm_epsilon", 1e-6f32);
        keys.experts()?;
        latent(keys)?;
        keys.set("attention.value_length", config.opt_count("kv_lora_rank")?.unwrap_or(512));
        keys.routed()?;
        keys.delta(&linear, &["gate_lower_bound"])?;
        keys.indexer()?;
        keys.count("attention.indexer.kpool", &["index_kpool"])?;
        let tail = config.flag("index_kpool_always_select_tail").unwrap_or(true);
        keys.set("attention.indexer.kpool_select_tail", tail);
        if let Some(owners) = owners(config)? {
            keys.list("attention.indexer.types", owners)?;
        }
        keys.count("hyper_connection.count", &["hc_mult"])?;
        keys.count("hyper_connection.sinkhorn_iterations", &["hc_sinkhorn_iters"])?;
        keys.float_if("hyper_connection.epsilon", &["hc_eps"])?;
        if let Some(limit) = config.opt_float("swiglu_limit")? {
            let limits = vec![limit; keys.shape.sizes.layers as usize];
            keys.set("swiglu_clamp_exp", limits.clone());
            keys.set("swiglu_clamp_shexp", limits);
        }
        Ok(())
    },
    ..PLAIN
};

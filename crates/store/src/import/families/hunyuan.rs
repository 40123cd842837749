//! Hunyuan: norms of queries and keys behind their turning.

use super::super::config::Json;
use super::super::keys::{Keys, Shape};
use super::super::rules::{Rule, one};
use super::names::{ATTENTION, BEFORE, EXPERTS, GATED, SHARED};
use super::{Alike, Family, PLAIN};
use crate::error::StoreError;

const NORMS: [Rule; 2] = [
    one("self_attn.query_layernorm", "attn_q_norm"),
    one("self_attn.key_layernorm", "attn_k_norm"),
];

const MOE: [Rule; 4] = [
    one("mlp.gate.wg", "ffn_gate_inp"),
    one("mlp.shared_mlp.gate_proj", "ffn_gate_shexp"),
    one("mlp.shared_mlp.up_proj", "ffn_up_shexp"),
    one("mlp.shared_mlp.down_proj", "ffn_down_shexp"),
];

/// What the context becomes where frequencies are stretched.
const CONTEXT: u32 = 256 * 1024;

pub(super) const DENSE: Family = Family {
    architecture: "hunyuan-dense",
    classes: &["HunYuanDenseV1ForCausalLM"],
    end_key: Some("eod_token_id"),
    layer: &[&NORMS, &ATTENTION, &GATED, &BEFORE],
    shape: |config| {
        let mut shape = Shape::usual(config)?;
        // One expert is none.
        shape.sizes.experts = 0;
        Ok(shape)
    },
    keys: |keys| {
        keys.usual()?;
        stretched(keys, 50.0)
    },
    ..PLAIN
};

pub(super) const MOE_V1: Family = Family {
    architecture: "hunyuan-moe",
    classes: &["HunYuanMoEV1ForCausalLM"],
    layer: &[&NORMS, &MOE, &ATTENTION, &GATED, &BEFORE, &EXPERTS],
    keys: |keys| {
        keys.sizes();
        keys.norms()?;
        keys.rope()?;
        if keys.config.opt_count("head_dim")?.is_some() {
            keys.head_sizes();
        }
        keys.set("expert_count", keys.shape.sizes.experts);
        keys.set("expert_shared_feed_forward_length", keys.shape.inner);
        for (there, here) in [
            ("moe_topk", "expert_used_count"),
            ("moe_intermediate_size", "expert_feed_forward_length"),
            ("num_shared_expert", "expert_shared_count"),
        ] {
            if let Some(number) = same_everywhere(keys, there)? {
                keys.set(here, number);
            }
        }
        stretched(keys, 1000.0)
    },
    ..PLAIN
};

/// Texts of a model that also sees: positions of several kinds.
pub(super) const VL: Family = Family {
    architecture: "hunyuan_vl",
    classes: &["HunYuanVLForConditionalGeneration"],
    keys: |keys| {
        keys.usual()?;
        let rope = keys.config.rope();
        if rope.value("xdrope_section").is_some() || rope.value("mrope_section").is_some() {
            keys.sections(&rope, &["xdrope_section", "mrope_section"])?;
            // The base is stretched, not the context.
            keys.set("rope.freq_base", stretched_base(keys, &rope, 1.0)?);
            return Ok(());
        }
        stretched(keys, 50.0)
    },
    ..DENSE
};

/// The third version's names, of its own and of later files.
const HY3: [Rule; 7] = [
    one("mlp.router.gate", "ffn_gate_inp"),
    one("mlp.gate", "ffn_gate_inp"),
    one("mlp.expert_bias", "exp_probs_b."),
    one("mlp.e_score_correction_bias", "exp_probs_b."),
    one("mlp.shared_mlp.gate_proj", "ffn_gate_shexp"),
    one("mlp.shared_mlp.up_proj", "ffn_up_shexp"),
    one("mlp.shared_mlp.down_proj", "ffn_down_shexp"),
];

pub(super) const HY_V3: Family = Family {
    architecture: "hy_v3",
    classes: &["HYV3ForCausalLM"],
    layer: &[&HY3, &ATTENTION, &GATED, &BEFORE, &EXPERTS, &SHARED],
    alike: Alike::Kinds,
    keys: |keys| {
        keys.sigmoid();
        keys.usual()?;
        let config = keys.config;
        let hidden = config.count("moe_intermediate_size")?;
        keys.set("expert_feed_forward_length", hidden);
        let shared = config.opt_count("num_shared_experts")?.unwrap_or(1);
        keys.set("expert_shared_feed_forward_length", hidden.saturating_mul(shared));
        keys.set("expert_weights_norm", config.flag("route_norm").unwrap_or(true));
        keys.set("expert_weights_scale", config.float("router_scaling_factor", 1.0)?);
        Ok(())
    },
    ..PLAIN
};

/// A number, or a list of the same number for each layer.
fn same_everywhere(keys: &Keys<'_>, key: &str) -> Result<Option<u32>, StoreError> {
    let config = keys.config;
    if !config.value(key).is_some_and(|value| value.is_array()) {
        return Ok(config.opt_number(key)?);
    }
    let list = config.numbers(key)?;
    match list.first() {
        Some(first) if list.iter().all(|number| number == first) => Ok(Some(*first)),
        _ => Err(config
            .wrong(key, "the same number for each layer: a GGUF file has one for all")
            .into()),
    }
}

/// Frequencies that a factor stretches once for all lengths: the base is another one.
fn stretched(keys: &mut Keys<'_>, usual: f32) -> Result<(), StoreError> {
    let rope = keys.config.rope();
    if rope.text("rope_type").or(rope.text("type")) != Some("dynamic") {
        return Ok(());
    }
    keys.set("rope.freq_base", stretched_base(keys, &rope, usual)?);
    keys.set("rope.scaling.type", "none");
    keys.set("rope.scaling.factor", 1.0f32);
    keys.set("rope.scaling.original_context_length", CONTEXT);
    keys.set("context_length", CONTEXT);
    Ok(())
}

fn stretched_base(keys: &Keys<'_>, rope: &Json, usual: f32) -> Result<f32, StoreError> {
    let (alpha, head) = (rope.float("alpha", usual)?, keys.head() as f32);
    let base =
        rope.opt_float("rope_theta")?.or(keys.config.opt_float("rope_theta")?).unwrap_or(10_000.0);
    Ok(base * alpha.powf(head / (head - 2.0)))
}

//! dots3-note's language model: latent attention with a gate for each head, whose layers with a window have sizes of their own. What comes
//! of the two short vectors is multiplied by a number, which their norms take over.

use puna_quant::TensorType;

use super::super::config::Json;
use super::super::keys::Keys;
use super::super::pieces::Cutter;
use super::super::plan::{Change, Content, Order, Output, Part};
use super::super::rules::{Rule, one};
use super::super::weights::Weights;
use super::latent::{DEEPSEEK2, INDEXER, LATENT, deepseek32, split_layer};
use super::names::{ATTENTION, BEFORE, EXPERTS, GATED, SHARED};
use super::{Alike, Family};
use crate::error::StoreError;

const OWN: [Rule; 2] =
    [one("self_attn.g_proj", "attn_gate"), one("self_attn.k_rope_only_layernorm", "attn_k_norm")];

pub(super) const DOTS3_NOTE: Family = Family {
    architecture: "dots3note",
    classes: &[
        "Dots3NoteForCausalLM",
        "Dots3NoteForConditionalGeneration",
        "Dots3NoteTextForCausalLM",
    ],
    layer: &[&ATTENTION, &LATENT, &INDEXER, &OWN, &GATED, &BEFORE, &EXPERTS, &SHARED],
    alike: Alike::Nothing,
    ends: &[("eot", "<|endofassistant|>")],
    odd: Some(by_layer),
    keys: dots3_note,
    ..DEEPSEEK2
};

/// A size of layers with a window: configurations name it apart, or list it for each of these layers.
fn local(config: &Json, slides: &[bool], key: &str) -> Result<u32, StoreError> {
    if let Some(size) = config.opt_count(&format!("swa_{key}"))? {
        return Ok(size);
    }
    let first = slides.iter().position(|&slides| slides).unwrap_or(0).to_string();
    let listed = config.section_if("per_layer_config").and_then(|list| list.section_if(&first));
    match listed {
        Some(layer) => Ok(layer.count(key)?),
        None => Ok(config.count(&format!("swa_{key}"))?),
    }
}

/// Which layers have a window.
fn slides(config: &Json, layers: u32) -> Result<Vec<bool>, StoreError> {
    let types = config.strings("layer_types").filter(|types| types.len() == layers as usize);
    let types =
        types.ok_or_else(|| config.wrong("layer_types", "a list with a word for each layer"))?;
    Ok(types.iter().map(|kind| kind == "sliding_attention").collect())
}

fn dots3_note(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    deepseek32(keys)?;
    let (config, all) = (keys.config, keys.shape.sizes.heads);
    let slides = slides(config, keys.shape.sizes.layers)?;
    let size = |key: &str| local(config, &slides, key);
    let (heads, rank, nope) =
        (size("num_attention_heads")?, size("kv_lora_rank")?, size("qk_nope_head_dim")?);
    let (value, turning) = (size("v_head_dim")?, config.count("qk_rope_head_dim")?);
    if size("q_lora_rank")? != config.count("q_lora_rank")? || size("qk_rope_head_dim")? != turning
    {
        let want =
            "the same as without swa_ in front: files have one of q_lora_rank and qk_rope_head_dim";
        return Err(config.wrong("swa_q_lora_rank", want).into());
    }
    keys.list(
        "attention.head_count",
        slides.iter().map(|&slides| if slides { heads } else { all }).collect(),
    )?;
    keys.count("attention.sliding_window", &["sliding_window_size", "sliding_window"])?;
    keys.set("attention.kv_lora_rank_swa", rank);
    keys.set("attention.key_length_swa", rank.saturating_add(turning));
    keys.set("attention.value_length_swa", rank);
    keys.set("attention.key_length_mla_swa", nope.saturating_add(turning));
    keys.set("attention.value_length_mla_swa", value);
    // Both kinds of layers are known by the same list.
    keys.list("attention.indexer.types", slides.iter().map(|slides| !slides).collect())?;
    keys.list("attention.sliding_window_pattern", slides)
}

/// What layers of both kinds have in other sizes, or multiplied.
fn by_layer<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    let config = cutter.config;
    let slides = slides(config, cutter.sizes.layers)?;
    let size = |slides_here: bool, key: &str| match slides_here {
        true => local(config, &slides, key),
        false => Ok(config.count(key)?),
    };
    for (layer, &here) in (0..).zip(&slides) {
        let sizes =
            ["num_attention_heads", "qk_nope_head_dim", "v_head_dim"].map(|key| size(here, key));
        let [heads, nope, value] = sizes;
        let sizes = [heads?, nope?, value?].map(u64::from);
        split_layer(cutter, weights, layer, sizes, outputs)?;
        if config.flag("apply_mla_qkv_lora_rescale") == Some(false) {
            continue;
        }
        for (there, here, rank) in [
            ("q_a_layernorm", "attn_q_a_norm", config.count("q_lora_rank")?),
            ("kv_a_layernorm", "attn_kv_a_norm", size(here, "kv_lora_rank")?),
        ] {
            let name = format!("layers.{layer}.self_attn.{there}.weight");
            let Some(tensor) = weights.take(&name) else { continue };
            let times = (config.count("hidden_size")? as f32 / rank as f32).sqrt();
            let (name, columns) =
                (cutter.full(Some(layer), &format!("{here}.weight")), tensor.entry.elements());
            let parts = vec![Part { tensor, rows: 1, order: Order::SAME }];
            let content = Content::Rows { parts, columns, change: Change::Times(times) };
            outputs.push(Output { name, ty: TensorType::F32, shape: vec![columns], content });
        }
    }
    Ok(())
}

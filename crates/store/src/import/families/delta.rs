//! Qwen3-Next and Qwen 3.5: layers with a gated delta rule, every fourth with gated attention.

use super::super::ImportError;
use super::super::config::Json;
use super::super::keys::{Keys, Shape};
use super::super::pieces::Cutter;
use super::super::plan::{Change, Content, Order, Output, Step};
use super::super::rules::{Form, Rule, one};
use super::super::weights::{Tensor, Weights};
use super::names::{ATTENTION, EXPERTS, GATED};
use super::qwen::SHARED;
use super::{Alike, Family, PLAIN};
use crate::error::StoreError;

pub(super) const LINEAR: [Rule; 6] = [
    one("linear_attn.conv1d", "ssm_conv1d").form(Form::Squeezed),
    one("linear_attn.A_log", "ssm_a."),
    one("linear_attn.dt_bias", "ssm_dt.bias"),
    one("linear_attn.in_proj_ba", "ssm_ba"),
    one("linear_attn.norm", "ssm_norm"),
    one("post_attention_layernorm", "post_attention_norm"),
];

/// The way back, and the one of Qwen 3.5, whose columns change places with the heads.
const OUT: [Rule; 1] = [one("linear_attn.out_proj", "ssm_out")];
pub(super) const TILED_OUT: [Rule; 1] = [one("linear_attn.out_proj", "ssm_out").form(Form::Across)];

/// Heads of the delta rule.
struct Heads {
    keys: u64,
    values: u64,
    /// Values of a key's head and of a value's.
    key: u64,
    value: u64,
}

impl Heads {
    fn read(config: &Json) -> Result<Self, StoreError> {
        let count = |key: &str| config.count(key).map(u64::from);
        let heads = Self {
            keys: count("linear_num_key_heads")?,
            values: count("linear_num_value_heads")?,
            key: count("linear_key_head_dim")?,
            value: count("linear_value_head_dim")?,
        };
        match heads.values.is_multiple_of(heads.keys) {
            true => Ok(heads),
            false => Err(config
                .wrong("linear_num_value_heads", "a multiple of linear_num_key_heads")
                .into()),
        }
    }

    /// Heads of values stand by the head of keys that they belong to; here the first of each comes first.
    fn tiled(&self, block: u64) -> Step {
        let each = self.values / self.keys;
        if each == 1 {
            Step::Same
        } else {
            Step::Crossed { groups: each, each: self.keys, head: block }
        }
    }
}

pub(super) const QWEN3NEXT: Family = Family {
    architecture: "qwen3next",
    classes: &["Qwen3NextForCausalLM"],
    layer: &[&ATTENTION, &GATED, &LINEAR, &OUT, &EXPERTS, &SHARED],
    alike: Alike::Kinds,
    change,
    odd: Some(split),
    keys: |keys| {
        keys.usual()?;
        experts(keys)?;
        linear(keys)
    },
    ..PLAIN
};

pub(super) const QWEN35: Family = Family {
    architecture: "qwen35",
    classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    layer: &[&ATTENTION, &GATED, &LINEAR, &TILED_OUT],
    odd: Some(tile),
    keys: |keys| {
        keys.usual()?;
        linear(keys)?;
        sections(keys)
    },
    ..QWEN3NEXT
};

pub(super) const QWEN35MOE: Family = Family {
    architecture: "qwen35moe",
    classes: &["Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"],
    layer: &[&ATTENTION, &GATED, &LINEAR, &TILED_OUT, &EXPERTS, &SHARED],
    odd: Some(tile),
    // All layers have experts.
    shape: |config| Shape::of(config, config.count("max_position_embeddings")?, 0),
    keys: qwen35moe,
    ..QWEN3NEXT
};

pub(super) fn qwen35moe(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    if keys.config.opt_count("head_dim")?.is_some() {
        keys.head_sizes();
    }
    keys.sizes_without_inner();
    keys.count_if("feed_forward_length", &["intermediate_size"])?;
    keys.experts()?;
    keys.norms()?;
    keys.rope()?;
    experts(keys)?;
    linear(keys)?;
    sections(keys)
}

/// Norms are stored as what differs from one, but for the one of the delta rule.
pub(super) fn change(_: &Json, name: &str) -> Result<Change, StoreError> {
    Ok(match name {
        "ssm_a" => Change::Rate,
        "ssm_norm.weight" => Change::None,
        name if name.ends_with("norm.weight") => Change::Add(1.0),
        _ => Change::None,
    })
}

fn experts(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    keys.count("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"])
}

fn linear(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    let heads = Heads::read(keys.config)?;
    keys.count("ssm.conv_kernel", &["linear_conv_kernel_dim"])?;
    keys.count("ssm.state_size", &["linear_key_head_dim"])?;
    keys.count("ssm.group_count", &["linear_num_key_heads"])?;
    keys.count("ssm.time_step_rank", &["linear_num_value_heads"])?;
    keys.set("ssm.inner_size", u32::try_from(heads.values * heads.value).unwrap_or(u32::MAX));
    if let Some(kinds) = keys.config.strings("layer_types") {
        if kinds.len() != keys.shape.sizes.layers as usize {
            return Err(keys
                .config
                .wrong("layer_types", "a list with a word for each layer")
                .into());
        }
        let recurrent: Vec<bool> = kinds.iter().map(|kind| kind == "linear_attention").collect();
        keys.set("attention.recurrent_layers", recurrent);
    }
    keys.set(
        "full_attention_interval",
        keys.config.opt_count("full_attention_interval")?.unwrap_or(4),
    );
    let turning = keys.turning(0.25)?;
    keys.set("rope.dimension_count", turning);
    Ok(())
}

/// Which values of a head turn with which of three numbers of a place, where it is not said.
fn sections(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    if keys.config.rope().value("mrope_section").is_none() {
        keys.set("rope.dimension_sections", vec![11, 11, 10, 0]);
    }
    Ok(())
}

/// A tensor of a layer whose rows and columns are what the heads make of them.
fn take<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    layer: u32,
    part: &str,
    rows: u64,
) -> Result<Option<Tensor<'a>>, StoreError> {
    let name = format!("layers.{layer}.linear_attn.{part}");
    let Some(tensor) = weights.take(&name) else { return Ok(None) };
    let mut want = tensor.entry.shape.clone();
    if let Some(first) = want.first_mut() {
        *first = rows;
    }
    match want == tensor.entry.shape && !want.is_empty() {
        true => Ok(Some(tensor)),
        false => {
            let name = format!("{}{name}", cutter.family.root);
            Err(ImportError::TensorShape { name, found: tensor.entry.shape.clone(), want }.into())
        }
    }
}

/// What guesses further tokens is left out.
fn leave_guesses(weights: &mut Weights<'_>) {
    weights.leave(|name| name.starts_with("mtp."));
}

/// Qwen3-Next's one matrix, for each head of keys its query, its key, its values and its gates.
fn split<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    leave_guesses(weights);
    let heads = Heads::read(cutter.config)?;
    let values = heads.values / heads.keys * heads.value;
    let each = 2 * heads.key + 2 * values;
    for layer in 0..cutter.sizes.layers {
        let part = "in_proj_qkvz.weight";
        let Some(tensor) = take(cutter, weights, layer, part, heads.keys * each)? else { continue };
        let window = |from, take| (heads.keys * take, Order::of(Step::Window { each, from, take }));
        let parts =
            [window(0, heads.key), window(heads.key, heads.key), window(2 * heads.key, values)];
        let gates = [window(2 * heads.key + values, values)];
        outputs.push(cutter.gathered(layer, "attn_qkv.weight", &tensor, &parts)?);
        outputs.push(cutter.gathered(layer, "attn_gate.weight", &tensor, &gates)?);
    }
    Ok(())
}

/// Qwen 3.5's matrices, with heads of values by turns.
pub(super) fn tile<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    leave_guesses(weights);
    let heads = Heads::read(cutter.config)?;
    let (both, values) = (2 * heads.keys * heads.key, heads.values * heads.value);
    let width = u64::from(cutter.config.count("hidden_size")?);
    let of = |block| Order::of(heads.tiled(block));
    // Queries and keys stay in front of the values.
    let mixed = [
        (both, Order::SAME),
        (values, Order::of(Step::From { first: both }).after(heads.tiled(heads.value))),
    ];
    let (by_value, by_head) = ([(values, of(heads.value))], [(heads.values, of(1))]);
    for layer in 0..cutter.sizes.layers {
        for (part, here, parts) in [
            ("in_proj_qkv.weight", "attn_qkv.weight", &mixed[..]),
            ("conv1d.weight", "ssm_conv1d.weight", &mixed),
            ("in_proj_z.weight", "attn_gate.weight", &by_value),
            ("in_proj_a.weight", "ssm_alpha.weight", &by_head),
            ("in_proj_b.weight", "ssm_beta.weight", &by_head),
            ("A_log", "ssm_a", &by_head),
            ("dt_bias", "ssm_dt.bias", &by_head),
        ] {
            let rows = parts.iter().map(|(rows, _)| rows).sum();
            let Some(tensor) = take(cutter, weights, layer, part, rows)? else { continue };
            outputs.push(cutter.gathered(layer, here, &tensor, parts)?);
        }
        let Some(tensor) = take(cutter, weights, layer, "out_proj.weight", width)? else {
            continue;
        };
        if tensor.entry.shape[1..] != [values] {
            let (name, found) = (tensor.entry.name.clone(), tensor.entry.shape.clone());
            return Err(ImportError::TensorShape { name, found, want: vec![width, values] }.into());
        }
        let shape = tensor.entry.shape.clone();
        let content = Content::Columns { tensor, order: of(heads.value) };
        let name = cutter.full(Some(layer), "ssm_out.weight");
        outputs.push(Output { name, ty: cutter.matrices, shape, content });
    }
    Ok(())
}

//! Granite Switch: a granite with adapters in it, each with a token that switches to it.

use super::super::ImportError;
use super::super::keys::{Keys, Shape};
use super::super::pieces::Cutter;
use super::super::plan::{Content, Order, Output, Part, Step};
use super::super::rules::{Cut, Rule, aside, one, pieces};
use super::super::weights::{Tensor, Weights};
use super::granite::granite;
use super::names::{BEFORE, WHOLE};
use super::{Family, PLAIN};
use crate::error::StoreError;

/// What is a matrix of the model itself.
const LAYER: [Rule; 4] = [
    one("input_layernorm", "attn_norm"),
    one("self_attn.o_proj.base_layer", "attn_output"),
    pieces("shared_mlp.input_linear.base_layer", Cut::Behind, &["ffn_gate", "ffn_up"]),
    one("shared_mlp.output_linear.base_layer", "ffn_down"),
];

/// Lists that follow from the configuration.
const LISTS: [Rule; 2] = [aside("adapter_token_ids"), aside("control_to_substitute_lut")];

/// The module with adapters, what stands behind `lora_A` and `lora_B`, and what they are of.
const ADAPTED: [(&str, &str, &str); 7] = [
    ("self_attn.qkv_proj", "_slices.0", "attn_q"),
    ("self_attn.qkv_proj", "_slices.1", "attn_k"),
    ("self_attn.qkv_proj", "_slices.2", "attn_v"),
    ("self_attn.o_proj", "", "attn_output"),
    ("shared_mlp.input_linear", "_slices.0", "ffn_gate"),
    ("shared_mlp.input_linear", "_slices.1", "ffn_up"),
    ("shared_mlp.output_linear", "", "ffn_down"),
];

pub(super) const GRANITE_SWITCH: Family = Family {
    architecture: "graniteswitch",
    classes: &["GraniteSwitchForCausalLM"],
    whole: &[&WHOLE, &LISTS],
    layer: &[&LAYER, &BEFORE],
    // The output is the table of tokens.
    tied: true,
    pairs: true,
    takes_adapters: false,
    odd: Some(adapters),
    shape: |config| {
        let mut shape = Shape::usual(config)?;
        // One of its layers only finds out which adapter a token has.
        shape.sizes.layers = shape.sizes.layers.saturating_sub(1);
        shape.sizes.head = config.opt_count("projection_head_dim")?.unwrap_or(shape.sizes.head);
        shape.inner = config.count("shared_intermediate_size")?;
        Ok(shape)
    },
    keys: switched,
    ..PLAIN
};

fn switched(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    granite(keys)?;
    let config = keys.config;
    keys.head_sizes();
    let count = config.count("num_adapters")?;
    keys.set("adapters.count", count);
    keys.count("adapters.lora_rank", &["max_lora_rank"])?;
    for (key, there) in [
        ("adapters.token_ids_activate", "adapter_token_ids"),
        ("adapters.token_ids_substitute", "adapter_substitute_token_ids"),
    ] {
        let ids = config.numbers(there)?;
        if ids.len() != count as usize {
            return Err(config
                .wrong(there, "a list with a token for each of `num_adapters`")
                .into());
        }
        keys.set(key, ids);
    }
    keys.set("adapters.router_gain", config.float("control_token_gain", 15.0)?);
    Ok(())
}

/// Matrices of adapters, behind those of none; and the matrix of queries, keys and values, the rows of which stay in one while those that
/// turn together come side by side.
fn adapters<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    weights.leave(|name| name.starts_with("switch."));
    let sizes = cutter.sizes;
    let head = u64::from(sizes.head);
    if head == 0 || !head.is_multiple_of(2) {
        return Err(cutter.config.wrong("head_dim", "an even number").into());
    }
    let [queries, keys] = [sizes.heads, sizes.kv_heads].map(|heads| u64::from(heads) * head);
    for layer in 0..sizes.layers {
        let prefix = format!("{}{layer}.", cutter.family.layers);
        let mut take = |name: String| {
            let tensor = weights.take(&name);
            tensor.ok_or_else(|| StoreError::from(ImportError::TensorMissing { name }))
        };
        let fused = take(format!("{prefix}self_attn.qkv_proj.base_layer.weight"))?;
        let all = queries + 2 * keys;
        if fused.entry.shape.first() != Some(&all) {
            let (name, found) = (fused.entry.name.clone(), fused.entry.shape.clone());
            return Err(ImportError::TensorShape { name, found, want: vec![all] }.into());
        }
        let window = |from, take| Order::of(Step::Window { each: all, from, take });
        let parts = [
            (queries, window(0, queries).after(Step::Paired { head })),
            (keys, window(queries, keys).after(Step::Paired { head })),
            (keys, window(queries + keys, keys)),
        ];
        outputs.push(cutter.gathered(layer, "attn_qkv.weight", &fused, &parts)?);
        for (module, slice, here) in ADAPTED {
            for (there, end) in [("lora_A", "lora_a"), ("lora_B", "lora_b")] {
                let turns = end == "lora_b" && matches!(here, "attn_q" | "attn_k");
                let order = if turns { Order::of(Step::Paired { head }) } else { Order::SAME };
                let tensor = take(format!("{prefix}{module}.{there}{slice}"))?;
                outputs.push(behind_none(
                    cutter,
                    (layer, &format!("{here}.{end}")),
                    tensor,
                    order,
                )?);
            }
        }
    }
    Ok(())
}

/// The matrices of all adapters, behind one of zeros.
fn behind_none<'a>(
    cutter: &Cutter<'_>,
    (layer, name): (u32, &str),
    tensor: Tensor<'a>,
    order: Order,
) -> Result<Output<'a>, StoreError> {
    let (found, adapters) =
        (tensor.entry.shape.clone(), u64::from(cutter.config.count("num_adapters")?));
    let (rows, columns) = match found[..] {
        [count, 1, rows, columns] if count == adapters => (rows, columns),
        _ => {
            let (name, want) = (tensor.entry.name.clone(), vec![adapters, 1, 0, 0]);
            return Err(ImportError::TensorShape { name, found, want }.into());
        }
    };
    let part = Part { tensor, rows: adapters * rows, order };
    let content = Content::Behind { zeros: rows, part, columns };
    let shape = vec![adapters + 1, rows, columns];
    Ok(Output { name: cutter.full(Some(layer), name), ty: cutter.matrices, shape, content })
}

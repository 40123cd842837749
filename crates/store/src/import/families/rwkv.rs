//! RWKV 6: no attention at all, but numbers of each channel that mix and decay; and Qwen 2 with such a memory.

use super::super::ImportError;
use super::super::keys::{Keys, Shape};
use super::super::pieces::Cutter;
use super::super::plan::{Change, Content, Order, Output, Part, Step};
use super::super::rules::{Form, Rule, Sizes, one};
use super::super::weights::Weights;
use super::names::{BEFORE, GATED};
use super::{Alike, Family, PLAIN, Words};
use crate::error::StoreError;

/// A memory has no end.
pub(super) const ENDLESS: u32 = 1 << 20;

const WHOLE: [Rule; 4] = [
    one("embeddings", "token_embd"),
    one("pre_ln", "token_embd_norm"),
    one("ln_out", "output_norm"),
    one("head", "output"),
];
const LAYER: [Rule; 20] = [
    one("ln1", "attn_norm"),
    one("ln2", "attn_norm_2"),
    one("attention.time_maa_x", "time_mix_lerp_x").form(Form::Squeezed),
    one("attention.time_maa_w1", "time_mix_w1").form(Form::Turned),
    one("attention.time_maa_w2", "time_mix_w2").form(Form::Turned),
    one("attention.time_decay", "time_mix_decay").form(Form::Squeezed),
    one("attention.time_decay_w1", "time_mix_decay_w1").form(Form::Turned),
    one("attention.time_decay_w2", "time_mix_decay_w2").form(Form::Turned),
    one("attention.time_faaaa", "time_mix_first"),
    one("attention.receptance", "time_mix_receptance"),
    one("attention.key", "time_mix_key"),
    one("attention.value", "time_mix_value"),
    one("attention.gate", "time_mix_gate"),
    one("attention.ln_x", "time_mix_ln"),
    one("attention.output", "time_mix_output"),
    one("feed_forward.time_maa_k", "channel_mix_lerp_k").form(Form::Squeezed),
    one("feed_forward.time_maa_r", "channel_mix_lerp_r").form(Form::Squeezed),
    one("feed_forward.key", "channel_mix_key"),
    one("feed_forward.receptance", "channel_mix_receptance"),
    one("feed_forward.value", "channel_mix_value"),
];

/// What each channel mixes for, in a file's order.
const LETTERS: [&str; 5] = ["w", "k", "v", "r", "g"];

pub(super) const RWKV6: Family = Family {
    architecture: "rwkv6",
    classes: &["Rwkv6ForCausalLM"],
    root: "rwkv.",
    layers: "blocks.",
    whole: &[&WHOLE],
    layer: &[&LAYER],
    alike: Alike::Nothing,
    words: Words::Bytes,
    // What is added to weights would have to become smaller with them.
    takes_adapters: false,
    odd: Some(odd),
    shape: |config| {
        let sizes = Sizes { layers: config.count("num_hidden_layers")?, ..Sizes::default() };
        Ok(Shape { sizes, width: config.count("hidden_size")?, context: ENDLESS, inner: 0 })
    },
    keys: |keys| {
        let (config, width) = (keys.config, keys.shape.width);
        keys.endless();
        keys.set("attention.layer_norm_epsilon", config.float("layer_norm_epsilon", 1e-5)?);
        keys.set("rescale_every_n_layers", config.opt_number("rescale_every")?.unwrap_or(0));
        keys.count("wkv.head_size", &["head_size"])?;
        let is_large = width == 4096;
        keys.set("time_mix_extra_dim", if is_large { 64u32 } else { 32 });
        keys.set("time_decay_extra_dim", if is_large { 128u32 } else { 64 });
        let inner = config.opt_count("intermediate_size")?;
        keys.set(
            "feed_forward_length",
            inner.unwrap_or(((f64::from(width) * 3.5) as u32) / 32 * 32),
        );
        Ok(())
    },
    ..PLAIN
};

impl Keys<'_> {
    /// What is written of networks with a memory that has no end.
    pub(super) fn endless(&mut self) {
        self.set("context_length", ENDLESS);
        self.set("embedding_length", self.shape.width);
        self.set("block_count", self.shape.sizes.layers);
        self.set("attention.head_count", 0u32);
    }
}

const QWEN2_LAYER: [Rule; 10] = [
    one("input_layernorm", "attn_norm"),
    one("self_attn.time_maa_x", "time_mix_lerp_x").form(Form::Squeezed),
    one("self_attn.time_decay", "time_mix_decay").form(Form::Squeezed),
    one("self_attn.time_decay_w1", "time_mix_decay_w1").form(Form::Turned),
    one("self_attn.time_decay_w2", "time_mix_decay_w2").form(Form::Turned),
    one("self_attn.q_proj", "time_mix_receptance"),
    one("self_attn.k_proj", "time_mix_key"),
    one("self_attn.v_proj", "time_mix_value"),
    one("self_attn.gate", "time_mix_gate"),
    one("self_attn.o_proj", "time_mix_output"),
];

pub(super) const RWKV6_QWEN2: Family = Family {
    architecture: "rwkv6qwen2",
    classes: &["RWKV6Qwen2ForCausalLM"],
    layer: &[&QWEN2_LAYER, &BEFORE, &GATED],
    odd: Some(|cutter, weights, outputs| {
        for layer in 0..cutter.sizes.layers {
            mixed(cutter, weights, layer, "self_attn.time_maa_", &LETTERS, outputs)?;
            corrections(cutter, weights, layer, outputs)?;
        }
        Ok(())
    }),
    keys: |keys| {
        let (config, width) = (keys.config, keys.shape.width);
        keys.endless();
        keys.norms()?;
        keys.set("wkv.head_size", width / keys.shape.sizes.heads);
        let [mix, decay] = if width >= 4096 { [64, 128] } else { [32, 64] };
        keys.set("time_mix_extra_dim", config.opt_count("lora_rank_tokenshift")?.unwrap_or(mix));
        keys.set("time_decay_extra_dim", config.opt_count("lora_rank_decay")?.unwrap_or(decay));
        keys.set("feed_forward_length", keys.shape.inner);
        keys.set("token_shift_count", 1u32);
        keys.set("attention.head_count_kv", keys.shape.sizes.kv_heads);
        Ok(())
    },
    ..PLAIN
};

/// The matrices of the five corrections, which begin with receptance there and with decay here.
fn corrections<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    layer: u32,
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    let exchanged = |block| Order::of(Step::Exchanged { block, one: 0, other: 3 });
    for (part, here) in [("w1", "time_mix_w1.weight"), ("w2", "time_mix_w2.weight")] {
        let name = format!("{}{layer}.self_attn.time_maa_{part}", cutter.family.layers);
        let tensor = weights.take(&name).ok_or(ImportError::TensorMissing { name })?;
        // One matrix to all five, columns of each side by side; then one matrix from each.
        let (shape, [each, take], [order, matrices]) = match tensor.entry.shape[..] {
            [width, all] if part == "w1" && all.is_multiple_of(5) => {
                (vec![all, width], [width, all], [exchanged(all / 5), Order::SAME])
            }
            [5, rank, width] if part == "w2" => {
                (vec![5, width, rank], [rank, width], [Order::SAME, exchanged(1)])
            }
            _ => {
                let (name, found) = (tensor.entry.name.clone(), tensor.entry.shape.clone());
                let width = cutter.config.count("hidden_size")?.into();
                let want = if part == "w1" { vec![width, 5] } else { vec![5, 1, width] };
                return Err(ImportError::TensorShape { name, found, want }.into());
            }
        };
        let content =
            Content::Transposed { tensor, each, take, order, matrices, change: Change::None };
        let ty = cutter.type_of(here, &shape);
        outputs.push(Output { name: cutter.full(Some(layer), here), ty, shape, content });
    }
    Ok(())
}

/// The five numbers by which a channel mixes are one tensor, and what layers add becomes smaller the further behind they
/// are: a half every so many layers.
fn odd<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    // Of all layers the first one alone has it, before everything else.
    weights.rename(|name| {
        name.strip_prefix("blocks.0.pre_ln").map_or(name.to_owned(), |end| format!("pre_ln{end}"))
    })?;
    let rescale = cutter.config.opt_number("rescale_every")?.unwrap_or(0);
    for layer in 0..cutter.sizes.layers {
        mixed(cutter, weights, layer, "attention.time_maa_", &LETTERS, outputs)?;
        let halvings = layer.checked_div(rescale).unwrap_or(0);
        if halvings == 0 {
            continue;
        }
        for (part, here) in
            [("attention.output", "time_mix_output"), ("feed_forward.value", "channel_mix_value")]
        {
            let Some(tensor) = weights.take(&format!("blocks.{layer}.{part}.weight")) else {
                continue;
            };
            let (name, shape) = (format!("{here}.weight"), tensor.entry.shape.clone());
            let columns = tensor.columns();
            let rows = tensor.entry.elements() / columns.max(1);
            let change = Change::Times(0.5f32.powi(halvings as i32));
            let parts = vec![Part { tensor, rows, order: Order::SAME }];
            let content = Content::Rows { parts, columns, change };
            let ty = cutter.type_of(&name, &shape);
            outputs.push(Output { name: cutter.full(Some(layer), &name), ty, shape, content });
        }
    }
    Ok(())
}

/// Takes the numbers by which a channel mixes, each tensor with a letter, as one.
pub(super) fn mixed<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    layer: u32,
    stem: &str,
    letters: &[&str],
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    let mut parts = Vec::new();
    let mut width = 0;
    for letter in letters {
        let name = format!("{}{layer}.{stem}{letter}", cutter.family.layers);
        let tensor = weights.take(&name).ok_or(ImportError::TensorMissing { name })?;
        let count = tensor.entry.elements();
        if !parts.is_empty() && count != width {
            let (name, found) = (tensor.entry.name.clone(), tensor.entry.shape.clone());
            return Err(ImportError::TensorShape { name, found, want: vec![1, 1, width] }.into());
        }
        width = count;
        parts.push(Part { tensor, rows: 1, order: Order::SAME });
    }
    fused(cutter, layer, parts, width, outputs);
    Ok(())
}

/// The tensor of all of them, of so many channels.
pub(super) fn fused<'a>(
    cutter: &Cutter<'_>,
    layer: u32,
    parts: Vec<Part<'a>>,
    width: u64,
    outputs: &mut Vec<Output<'a>>,
) {
    let count = parts.iter().map(|part| part.rows).sum();
    let (name, shape) = ("time_mix_lerp_fused.weight", vec![count, 1, 1, width]);
    let content = Content::Rows { parts, columns: width, change: Change::None };
    let ty = cutter.type_of(name, &shape);
    outputs.push(Output { name: cutter.full(Some(layer), name), ty, shape, content });
}

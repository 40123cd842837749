//! T5 with both of its stacks: an encoder that reads prompts, and a decoder that writes answers.

use std::collections::{BTreeMap, BTreeSet};

use super::super::ImportError;
use super::super::decoder::rule_for;
use super::super::keys::Keys;
use super::super::pieces::Cutter;
use super::super::plan::{Content, Order, Output, Part};
use super::super::rules::{Rule, aside, one};
use super::super::weights::Weights;
use super::encoders::{T5_ENCODER, t5_keys, t5_shape};
use super::{Family, PLAIN, Words};
use crate::error::StoreError;

/// The table of tokens has one of several names, or all of them.
const TABLES: [&str; 3] = ["shared", "encoder.embed_tokens", "decoder.embed_tokens"];

const WHOLE: [Rule; 6] = [
    one(TABLES[0], "token_embd"),
    one(TABLES[1], "token_embd"),
    one(TABLES[2], "token_embd"),
    one("encoder.final_layer_norm", "enc.output_norm.weight"),
    one("decoder.final_layer_norm", "dec.output_norm.weight"),
    one("lm_head", "output"),
];

const LAYER: [Rule; 17] = [
    one("layer.0.SelfAttention.q", "attn_q"),
    one("layer.0.SelfAttention.k", "attn_k"),
    one("layer.0.SelfAttention.v", "attn_v"),
    one("layer.0.SelfAttention.o", "attn_o"),
    one("layer.0.SelfAttention.relative_attention_bias", "attn_rel_b"),
    one("layer.0.layer_norm", "attn_norm"),
    one("layer.1.EncDecAttention.q", "cross_attn_q"),
    one("layer.1.EncDecAttention.k", "cross_attn_k"),
    one("layer.1.EncDecAttention.v", "cross_attn_v"),
    one("layer.1.EncDecAttention.o", "cross_attn_o"),
    // Old folders have it, and nobody has read it.
    aside("layer.1.EncDecAttention.relative_attention_bias"),
    one("layer.1.layer_norm", "cross_attn_norm"),
    one("layer.2.DenseReluDense.wi_0", "ffn_gate"),
    one("layer.2.DenseReluDense.wi_1", "ffn_up"),
    one("layer.2.DenseReluDense.wi", "ffn_up"),
    one("layer.2.DenseReluDense.wo", "ffn_down"),
    one("layer.2.layer_norm", "ffn_norm"),
];

pub(super) const T5: Family = Family {
    architecture: "t5",
    classes: &[
        "T5ForConditionalGeneration",
        "T5WithLMHeadModel",
        "MT5ForConditionalGeneration",
        "UMT5ForConditionalGeneration",
    ],
    root: "",
    layers: "decoder.block.",
    blocks: "dec.blk.",
    whole: &[&WHOLE],
    layer: &[&LAYER],
    words: Words::Encoder,
    takes_adapters: false,
    odd: Some(both_stacks),
    shape: |config| {
        let mut shape = t5_shape(config)?;
        shape.sizes.layers = config.opt_count("num_decoder_layers")?.unwrap_or(shape.sizes.layers);
        Ok(shape)
    },
    keys,
    ..PLAIN
};

fn keys(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    t5_keys(keys)?;
    let config = keys.config;
    // By the tensor that a gate is, files say whether there is one, and then it is this one.
    if let Some(function @ ("gated-silu" | "silu" | "gelu" | "gated-relu")) =
        config.text("feed_forward_proj")
    {
        let found = format!("{function}: in a GGUF file of t5 it is relu, or gated-gelu");
        return Err(config.wrong_value("feed_forward_proj", found).into());
    }
    keys.set("decoder_block_count", keys.shape.sizes.layers);
    let start = config.first_number(&["decoder_start_token_id", "pad_token_id"])?.unwrap_or(0);
    keys.set("decoder_start_token_id", start);
    Ok(())
}

/// Takes the encoder as if it were alone, leaves all tables of tokens but one, and settles what the output is.
fn both_stacks<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    encoder(cutter, weights, outputs)?;
    let full = |table: &str| format!("{table}.weight");
    let Some(table) = TABLES.into_iter().map(full).find(|name| weights.get(name).is_some()) else {
        return Ok(());
    };
    weights.leave(|name| *name != table && TABLES.iter().any(|other| *name == full(other)));
    let (head, is_tied) =
        ("lm_head.weight", cutter.config.flag("tie_word_embeddings") != Some(false));
    if is_tied {
        weights.leave(|name| name == head);
    } else if let (None, Some(tensor)) = (weights.get(head), weights.get(&table).cloned()) {
        // The same matrix, but its hidden states are not as much smaller as where a file has it once.
        let (name, shape) = ("output.weight".to_owned(), tensor.entry.shape.clone());
        let [rows, columns] = shape[..] else {
            let (name, found) = (tensor.entry.name.clone(), shape);
            return Err(ImportError::TensorShape { name, found, want: vec![0, 0] }.into());
        };
        let ty = cutter.type_of(&name, &shape);
        let parts = vec![Part { tensor, rows, order: Order::SAME }];
        let change = (cutter.family.change)(cutter.config, &name)?;
        outputs.push(Output { name, ty, shape, content: Content::Rows { parts, columns, change } });
    }
    Ok(())
}

/// The layers of the encoder.
fn encoder<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    let alone = Cutter { family: &T5_ENCODER, ..*cutter };
    let is_own = |name: &&String| name.starts_with(T5_ENCODER.layers);
    let names: Vec<String> = weights.names().filter(is_own).cloned().collect();
    let first = outputs.len();
    for name in names {
        let Some(tensor) = weights.take(&name) else { continue };
        let Some((rule, layer, end)) = rule_for(&T5_ENCODER, &name) else {
            return Err(ImportError::TensorUnknown {
                name: crate::name::shown(&tensor.entry.name),
            }
            .into());
        };
        alone.cut(rule, layer, end, &tensor, outputs)?;
    }
    // Every layer has what the first has, but for the amounts by distance that all may share.
    let mut layers: BTreeMap<u32, BTreeSet<&str>> = BTreeMap::new();
    for output in &outputs[first..] {
        let part =
            output.name.strip_prefix(T5_ENCODER.blocks).and_then(|rest| rest.split_once('.'));
        let part = part.filter(|(_, part)| !part.starts_with("attn_rel_b"));
        if let Some((Ok(layer), part)) = part.map(|(number, part)| (number.parse(), part)) {
            layers.entry(layer).or_default().insert(part);
        }
    }
    let none = BTreeSet::new();
    let parts_of = |layer: u32| layers.get(&layer).unwrap_or(&none);
    let of_first = parts_of(0);
    for layer in 0..cutter.config.count("num_layers")? {
        let parts = parts_of(layer);
        if parts.is_empty() || parts != of_first {
            let lost = of_first.symmetric_difference(parts).next().copied().unwrap_or("*");
            let name = format!("{}{layer}.{lost}", T5_ENCODER.blocks);
            return Err(ImportError::TensorMissing { name }.into());
        }
    }
    Ok(())
}

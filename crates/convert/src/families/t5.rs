//! T5 with encoder and decoder.

use std::collections::{BTreeMap, BTreeSet};

use puna_gguf::escape_for_message;

use super::default_family::DEFAULT;
use super::encoders::{T5_ENCODER, t5_parameters, write_t5_encoder};
use crate::error::ConvertError;
use crate::family::{Family, TensorMapper, VocabularyKind};
use crate::metadata::MetadataWriter;
use crate::output::{OutputTensor, RowOrder, TensorContent, TensorRows};
use crate::rules::{TensorRule, ignore, rename};
use crate::source::Weights;

/// Names of the token embedding; folders have one or several.
const TABLES: [&str; 3] = ["shared", "encoder.embed_tokens", "decoder.embed_tokens"];

const GLOBAL: [TensorRule; 6] = [
    rename(TABLES[0], "token_embd"),
    rename(TABLES[1], "token_embd"),
    rename(TABLES[2], "token_embd"),
    rename("encoder.final_layer_norm", "enc.output_norm.weight"),
    rename("decoder.final_layer_norm", "dec.output_norm.weight"),
    rename("lm_head", "output"),
];

const LAYER: [TensorRule; 17] = [
    rename("layer.0.SelfAttention.q", "attn_q"),
    rename("layer.0.SelfAttention.k", "attn_k"),
    rename("layer.0.SelfAttention.v", "attn_v"),
    rename("layer.0.SelfAttention.o", "attn_o"),
    rename("layer.0.SelfAttention.relative_attention_bias", "attn_rel_b"),
    rename("layer.0.layer_norm", "attn_norm"),
    rename("layer.1.EncDecAttention.q", "cross_attn_q"),
    rename("layer.1.EncDecAttention.k", "cross_attn_k"),
    rename("layer.1.EncDecAttention.v", "cross_attn_v"),
    rename("layer.1.EncDecAttention.o", "cross_attn_o"),
    // Old folders have it; no implementation uses it.
    ignore("layer.1.EncDecAttention.relative_attention_bias"),
    rename("layer.1.layer_norm", "cross_attn_norm"),
    rename("layer.2.DenseReluDense.wi_0", "ffn_gate"),
    rename("layer.2.DenseReluDense.wi_1", "ffn_up"),
    rename("layer.2.DenseReluDense.wi", "ffn_up"),
    rename("layer.2.DenseReluDense.wo", "ffn_down"),
    rename("layer.2.layer_norm", "ffn_norm"),
];

pub(super) const T5: Family = Family {
    architecture: "t5",
    classes: &[
        "T5ForConditionalGeneration",
        "T5WithLMHeadModel",
        "MT5ForConditionalGeneration",
        "UMT5ForConditionalGeneration",
    ],
    root_prefix: "",
    layer_prefix: "decoder.block.",
    gguf_layer_prefix: "dec.blk.",
    global_rules: &[&GLOBAL],
    layer_rules: &[&LAYER],
    vocabulary: VocabularyKind::Encoder,
    supports_adapters: false,
    custom_tensors: Some(map_both_stacks),
    hyper_parameters: |config| {
        let mut params = t5_parameters(config)?;
        params.dims.layers = config.opt_count("num_decoder_layers")?.unwrap_or(params.dims.layers);
        Ok(params)
    },
    write_metadata,
    ..DEFAULT
};

fn write_metadata(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    write_t5_encoder(metadata)?;
    let config = metadata.config;
    // The presence of a gate tensor implies `gated-gelu` in GGUF files, its absence `relu`.
    if let Some(function @ ("gated-silu" | "silu" | "gelu" | "gated-relu")) =
        config.text("feed_forward_proj")
    {
        let found = format!("{function}, but GGUF files of t5 support only relu and gated-gelu");
        return Err(config.invalid_value("feed_forward_proj", found));
    }
    metadata.set("decoder_block_count", metadata.params.dims.layers);
    let start =
        config.first_count_or_zero(&["decoder_start_token_id", "pad_token_id"])?.unwrap_or(0);
    metadata.set("decoder_start_token_id", start);
    Ok(())
}

/// Maps the encoder by its own family, ignores all token embeddings except one, and decides on the
/// output matrix.
fn map_both_stacks<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    map_encoder(mapper, weights, outputs)?;
    let full = |table: &str| format!("{table}.weight");
    let Some(table) = TABLES.into_iter().map(full).find(|name| weights.get(name).is_some()) else {
        return Ok(());
    };
    weights.discard(|name| *name != table && TABLES.iter().any(|other| *name == full(other)));
    let (head, is_tied) =
        ("lm_head.weight", mapper.config.flag("tie_word_embeddings") != Some(false));
    if is_tied {
        weights.discard(|name| name == head);
    } else if let (None, Some(tensor)) = (weights.get(head), weights.get(&table).cloned()) {
        // The same matrix as the embedding, but stored separately: a file with a tied output also
        // scales the hidden states.
        let (name, shape) = ("output.weight".to_owned(), tensor.entry.shape.clone());
        let [rows, columns] = shape[..] else {
            let (name, found) = (tensor.entry.name.clone(), shape);
            return Err(ConvertError::TensorShape { name, found, want: vec![0, 0] });
        };
        let ty = mapper.tensor_type(&name, &shape);
        let parts = vec![TensorRows { tensor, rows, order: RowOrder::SAME }];
        let transform = (mapper.family.value_transform)(mapper.config, &name)?;
        outputs.push(OutputTensor {
            name,
            ty,
            shape,
            content: TensorContent::Rows { parts, columns, transform },
        });
    }
    Ok(())
}

/// Maps the layers of the encoder.
fn map_encoder<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    let encoder_mapper = TensorMapper { family: &T5_ENCODER, ..*mapper };
    let is_own = |name: &&String| name.starts_with(T5_ENCODER.layer_prefix);
    let names: Vec<String> = weights.names().filter(is_own).cloned().collect();
    let first = outputs.len();
    for name in names {
        let Some(tensor) = weights.take(&name) else { continue };
        let Some((rule, layer, end)) = T5_ENCODER.rule_for(&name) else {
            return Err(ConvertError::TensorUnknown {
                name: escape_for_message(&tensor.entry.name),
            });
        };
        encoder_mapper.map_tensor(rule, layer, end, &tensor, outputs)?;
    }
    // All layers have the tensors of the first, except relative position biases, which all layers
    // may share.
    let mut layers: BTreeMap<u32, BTreeSet<&str>> = BTreeMap::new();
    for output in &outputs[first..] {
        let part = output
            .name
            .strip_prefix(T5_ENCODER.gguf_layer_prefix)
            .and_then(|rest| rest.split_once('.'));
        let part = part.filter(|(_, part)| !part.starts_with("attn_rel_b"));
        if let Some((Ok(layer), part)) = part.map(|(number, part)| (number.parse(), part)) {
            layers.entry(layer).or_default().insert(part);
        }
    }
    let none = BTreeSet::new();
    let parts_of = |layer: u32| layers.get(&layer).unwrap_or(&none);
    let of_first = parts_of(0);
    for layer in 0..mapper.config.count("num_layers")? {
        let parts = parts_of(layer);
        if parts.is_empty() || parts != of_first {
            let missing_name = of_first.symmetric_difference(parts).next().copied().unwrap_or("*");
            let name = format!("{}{layer}.{missing_name}", T5_ENCODER.gguf_layer_prefix);
            return Err(ConvertError::TensorMissing { name });
        }
    }
    Ok(())
}

//! Qwen 4 Exp: layers of Qwen 3.5 with experts, hyper-connections, block-sparse attention with an
//! indexer, and an n-gram embedding in one layer, whose table is sharded.

use puna_gguf::escape_for_message;

use super::common_rules::{ATTENTION, EXPERTS};
use super::gated_delta::{self, DELTA_RULE, QWEN35MOE, TILED_OUT_PROJECTION};
use super::qwen::SHARED_EXPERT;
use crate::error::ConvertError;
use crate::family::{Family, TensorMapper};
use crate::metadata::MetadataWriter;
use crate::output::{
    OutputTensor, RowMapping, RowOrder, TensorContent, TensorRows, ValueTransform,
};
use crate::rules::{SourceLayout, TensorRule, rename};
use crate::source::{Config, Dtype, SourceTensor, Weights};

const GLOBAL: [TensorRule; 5] = [
    rename("embed_tokens", "token_embd"),
    rename("lm_head", "output"),
    rename("hyper_connection_mixer.hc_norm", "output_hc_norm"),
    rename("hyper_connection_mixer.input_mix_weight_down", "output_hc_down"),
    rename("hyper_connection_mixer.input_mix_weight_up", "output_hc_up"),
];

/// Hyper-connections of a layer.
const HYPER_CONNECTIONS: [TensorRule; 8] = [
    rename("attn_hyper_connection.hc_norm", "hc_attn_norm"),
    rename("attn_hyper_connection.input_mix_weight_down", "hc_attn_down"),
    rename("attn_hyper_connection.input_mix_weight_up", "hc_attn_up"),
    rename("attn_hyper_connection.block_inject_weight", "hc_attn_inject"),
    rename("mlp_hyper_connection.hc_norm", "hc_ffn_norm"),
    rename("mlp_hyper_connection.input_mix_weight_down", "hc_ffn_down"),
    rename("mlp_hyper_connection.input_mix_weight_up", "hc_ffn_up"),
    rename("mlp_hyper_connection.block_inject_weight", "hc_ffn_inject"),
];

const INDEXER: [TensorRule; 2] = [
    rename("self_attn.indexer.q_layernorm", "indexer.q_norm.weight"),
    rename("self_attn.indexer.k_layernorm", "indexer.k_norm.weight"),
];

/// The n-gram embedding of a layer.
const NGRAM_EMBEDDING: [TensorRule; 6] = [
    rename("ple.key_proj", "ple_key"),
    rename("ple.value_proj", "ple_value"),
    rename("ple.norm_key", "ple_norm_key"),
    rename("ple.norm_query", "ple_norm_query"),
    rename("ple.norm_conv", "ple_norm_conv"),
    rename("ple.conv1d", "ple_conv1d").with_layout(SourceLayout::Squeezed),
];

pub(super) const QWEN4EXP: Family = Family {
    architecture: "qwen4exp",
    classes: &["Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration"],
    global_rules: &[&GLOBAL],
    layer_rules: &[
        &ATTENTION,
        &DELTA_RULE,
        &TILED_OUT_PROJECTION,
        &HYPER_CONNECTIONS,
        &INDEXER,
        &NGRAM_EMBEDDING,
        &EXPERTS,
        &SHARED_EXPERT,
    ],
    metadata_from_tensors: write_hash_parameters,
    custom_tensors: Some(custom_tensors),
    value_transform: |config, name| match name {
        "ple_norm_key.weight" | "ple_norm_query.weight" | "ple_norm_conv.weight" => {
            Ok(ValueTransform::Add(1.0))
        }
        name => gated_delta::transform(config, name),
    },
    write_metadata: |metadata| {
        gated_delta::qwen35moe(metadata)?;
        metadata.set_count("hyper_connection.count", &["hc_count"])?;
        metadata.set_count("hyper_connection.low_rank", &["hc_lowrank"])?;
        check_gates(metadata.config)?;
        write_block_indexer(metadata)?;
        write_ngrams(metadata)
    },
    ..QWEN35MOE
};

/// Checks that the gates of the delta rule are sigmoids.
fn check_gates(config: &Config) -> Result<(), ConvertError> {
    const KEY: &str = "output_gate_type";
    let gate_type = [KEY, "hidden_act"].into_iter().find_map(|key| Some((key, config.text(key)?)));
    match gate_type.unwrap_or((KEY, "absent")) {
        (_, "sigmoid") => Ok(()),
        (key, gate) => {
            let gate = escape_for_message(gate);
            let found = format!("{gate}, but GGUF files of qwen4exp support only sigmoid");
            Err(config.invalid_value(key, found))
        }
    }
}

/// Writes the parameters of the indexers in attention layers.
fn write_block_indexer(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    metadata.set_count("attention.indexer.head_count", &["indexer_n_heads"])?;
    metadata.set_count("attention.indexer.key_length", &["indexer_head_dim"])?;
    metadata.set_count("attention.indexer.top_k", &["indexer_budget"])?;
    let block = metadata.config.count("indexer_compress_ratio")?;
    let kinds = metadata.config.strings("layer_types");
    let kinds = kinds.ok_or_else(|| {
        metadata.config.invalid("layer_types", "a list with a string for each layer")
    })?;
    // Transformers has another name for layers with an indexer.
    let has_attention = |kind: &str| ["full_attention", "indexed_attention"].contains(&kind);
    let ratios: Vec<u32> =
        kinds.iter().map(|kind| if has_attention(kind) { block } else { 0 }).collect();
    metadata.set("attention.compress_ratios", ratios);
    Ok(())
}

/// The layer with the n-gram embedding, if there is one. The configuration counts from one.
fn ngram_layer(config: &Config) -> Result<Option<u32>, ConvertError> {
    const KEY: &str = "ple_layer_ids";
    if config.value(KEY).is_none_or(serde_json::Value::is_null) {
        return Ok(None);
    }
    let layers = config.opt_count("num_hidden_layers")?.unwrap_or(0);
    match config.numbers(KEY)?[..] {
        [] => Ok(None),
        [layer] if (1..=layers).contains(&layer) => Ok(Some(layer - 1)),
        _ => Err(config.invalid(KEY, "a list of one layer at most, counted from one")),
    }
}

fn write_ngrams(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    let config = metadata.config;
    let Some(layer) = ngram_layer(config)? else { return Ok(()) };
    metadata.set("ple.layers", vec![layer]);
    metadata.set_count("ple.ngram_size", &["ngram_size"])?;
    metadata.set_count("ple.heads_per_ngram", &["heads_per_ngram"])?;
    metadata.set_count("ple.conv_kernel", &["ple_conv_kernel_size"])?;
    metadata.set_opt_count_or_zero("ple.image_token_id", &["image_token_id"])?;
    // If several tokens end a text, n-grams end at the last of them.
    const END: &str = "eos_token_id";
    let end = match config.value(END) {
        Some(value) if value.is_array() => config.numbers(END)?.last().copied(),
        _ => config.opt_count_or_zero(END)?,
    };
    let end = end.ok_or_else(|| config.invalid(END, "present: n-grams end at this token"))?;
    metadata.set("ple.eos_token_id", end);
    Ok(())
}

/// Writes the hash parameters, which are I64 tensors, and the width of the table's rows.
fn write_hash_parameters(
    metadata: &mut MetadataWriter<'_>,
    weights: &mut Weights<'_>,
) -> Result<(), ConvertError> {
    let config = metadata.config;
    let Some(layer) = ngram_layer(config)? else { return Ok(()) };
    let (longest, each) =
        (u64::from(config.count("ngram_size")?), u64::from(config.count("heads_per_ngram")?));
    let heads = (longest - 1) * each;
    for (source, key, want) in [
        ("layer_multipliers", "ple.layer_multipliers", longest),
        ("ngram_heads_offsets", "ple.head_offsets", heads),
        ("ngram_heads_vocab_sizes", "ple.head_vocab_sizes", heads),
    ] {
        let name = format!("layers.{layer}.ple.ple_embedding.{source}");
        let tensor = weights.take(&name).ok_or(ConvertError::TensorMissing { name })?;
        metadata.set(key, read_u64s(&tensor, want)?);
    }
    let name = table_shard_name(layer, 0);
    let first = weights.get(&name).ok_or(ConvertError::TensorMissing { name })?;
    metadata.set(
        "embedding_length_per_layer_input",
        u32::try_from(first.columns()).unwrap_or(u32::MAX),
    );
    Ok(())
}

/// Reads `count` non-negative I64 numbers.
fn read_u64s(tensor: &SourceTensor<'_>, count: u64) -> Result<Vec<u64>, ConvertError> {
    if tensor.entry.shape != [count] {
        let (name, found) = (tensor.entry.name.clone(), tensor.entry.shape.clone());
        return Err(ConvertError::TensorShape { name, found, want: vec![count] });
    }
    if !tensor.is_stored_as(Dtype::I64) {
        return Err(tensor.bad_type());
    }
    let mut bytes = vec![0; (8 * count) as usize];
    tensor.bytes(0, &mut bytes)?;
    let numbers =
        bytes.as_chunks::<8>().0.iter().map(|word| u64::try_from(i64::from_le_bytes(*word)));
    numbers.collect::<Result<_, _>>().map_err(|_| tensor.bad_type())
}

/// Name of a shard of the table.
fn table_shard_name(layer: u32, number: u32) -> String {
    format!("layers.{layer}.ple.ple_embedding.ngram_embedding.shard_{number}.weight")
}

fn custom_tensors<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    gated_delta::tile_heads(mapper, weights, outputs)?;
    split_indexer_qk(mapper, weights, outputs)?;
    let Some(layer) = ngram_layer(mapper.config)? else { return Ok(()) };
    for rule in &NGRAM_EMBEDDING {
        let name = format!("layers.{layer}.{}.weight", rule.source);
        if weights.get(&name).is_none() {
            return Err(ConvertError::TensorMissing { name });
        }
    }
    outputs.push(ngram_table(mapper, weights, layer)?);
    Ok(())
}

/// Splits the matrix of the indexer's queries and its one key.
fn split_indexer_qk<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    let config = mapper.config;
    let key = u64::from(config.count("indexer_head_dim")?);
    let queries = u64::from(config.count("indexer_n_heads")?) * key;
    for layer in 0..mapper.dims.layers {
        let source = format!("layers.{layer}.self_attn.indexer.index_qk_proj.weight");
        let Some(both) = weights.take(&source) else { continue };
        let want = vec![queries + key, u64::from(config.count("hidden_size")?)];
        if both.entry.shape != want {
            let (name, found) = (both.entry.name.clone(), both.entry.shape.clone());
            return Err(ConvertError::TensorShape { name, found, want });
        }
        let keys = RowOrder::of(RowMapping::Offset { rows: queries });
        outputs.push(mapper.gather_rows(
            layer,
            "indexer.q_proj.weight",
            &both,
            &[(queries, RowOrder::SAME)],
        )?);
        outputs.push(mapper.gather_rows(layer, "indexer.k_proj.weight", &both, &[(key, keys)])?);
    }
    Ok(())
}

/// Concatenates the shards of the n-gram table.
fn ngram_table<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    layer: u32,
) -> Result<OutputTensor<'a>, ConvertError> {
    const NAME: &str = "per_layer_token_embd.weight";
    let mut parts: Vec<TensorRows<'a>> = Vec::new();
    let mut columns = 0;
    for number in 0..mapper.config.count("split_ngram_parts")? {
        let name = table_shard_name(layer, number);
        let tensor = weights.take(&name).ok_or(ConvertError::TensorMissing { name })?;
        columns = parts.first().map_or(tensor.columns(), |first| first.tensor.columns());
        let rows = match tensor.entry.shape[..] {
            [rows, target] if target == columns => rows,
            ref found => {
                let (name, found) = (tensor.entry.name.clone(), found.to_vec());
                let want = vec![found.first().copied().unwrap_or(1), columns];
                return Err(ConvertError::TensorShape { name, found, want });
            }
        };
        parts.push(TensorRows { tensor, rows, order: RowOrder::SAME });
    }
    let shape = vec![parts.iter().map(|part| part.rows).sum(), columns];
    let ty = mapper.tensor_type(NAME, &shape);
    Ok(OutputTensor {
        name: NAME.to_owned(),
        ty,
        shape,
        content: TensorContent::Rows { parts, columns, transform: ValueTransform::None },
    })
}

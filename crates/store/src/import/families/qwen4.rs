//! Qwen 4 Exp: the layers of Qwen 3.5 with experts, between several residual streams, with blocks of tokens that an indexer chooses, and with
//! n-grams before one of them, whose table comes in many parts.

use super::super::ImportError;
use super::super::config::Json;
use super::super::keys::Keys;
use super::super::pieces::Cutter;
use super::super::plan::{Change, Content, Order, Output, Part, Step};
use super::super::rules::{Form, Rule, one};
use super::super::safetensors::Dtype;
use super::super::weights::{Tensor, Weights};
use super::Family;
use super::delta::{self, LINEAR, QWEN35MOE, TILED_OUT};
use super::names::{ATTENTION, EXPERTS};
use super::qwen::SHARED;
use crate::error::StoreError;

const WHOLE: [Rule; 5] = [
    one("embed_tokens", "token_embd"),
    one("lm_head", "output"),
    one("hyper_connection_mixer.hc_norm", "output_hc_norm"),
    one("hyper_connection_mixer.input_mix_weight_down", "output_hc_down"),
    one("hyper_connection_mixer.input_mix_weight_up", "output_hc_up"),
];

/// How layers are connected to the streams.
const LINKS: [Rule; 8] = [
    one("attn_hyper_connection.hc_norm", "hc_attn_norm"),
    one("attn_hyper_connection.input_mix_weight_down", "hc_attn_down"),
    one("attn_hyper_connection.input_mix_weight_up", "hc_attn_up"),
    one("attn_hyper_connection.block_inject_weight", "hc_attn_inject"),
    one("mlp_hyper_connection.hc_norm", "hc_ffn_norm"),
    one("mlp_hyper_connection.input_mix_weight_down", "hc_ffn_down"),
    one("mlp_hyper_connection.input_mix_weight_up", "hc_ffn_up"),
    one("mlp_hyper_connection.block_inject_weight", "hc_ffn_inject"),
];

const INDEXER: [Rule; 2] = [
    one("self_attn.indexer.q_layernorm", "indexer.q_norm.weight"),
    one("self_attn.indexer.k_layernorm", "indexer.k_norm.weight"),
];

/// What n-grams say to a layer.
const GRAMS: [Rule; 6] = [
    one("ple.key_proj", "ple_key"),
    one("ple.value_proj", "ple_value"),
    one("ple.norm_key", "ple_norm_key"),
    one("ple.norm_query", "ple_norm_query"),
    one("ple.norm_conv", "ple_norm_conv"),
    one("ple.conv1d", "ple_conv1d").form(Form::Squeezed),
];

pub(super) const QWEN4EXP: Family = Family {
    architecture: "qwen4exp",
    classes: &["Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration"],
    whole: &[&WHOLE],
    layer: &[&ATTENTION, &LINEAR, &TILED_OUT, &LINKS, &INDEXER, &GRAMS, &EXPERTS, &SHARED],
    told: hashes,
    odd: Some(odd),
    change: |config, name| match name {
        "ple_norm_key.weight" | "ple_norm_query.weight" | "ple_norm_conv.weight" => {
            Ok(Change::Add(1.0))
        }
        name => delta::change(config, name),
    },
    keys: |keys| {
        delta::qwen35moe(keys)?;
        keys.count("hyper_connection.count", &["hc_count"])?;
        keys.count("hyper_connection.low_rank", &["hc_lowrank"])?;
        check_gates(keys.config)?;
        blocks(keys)?;
        grams(keys)
    },
    ..QWEN35MOE
};

/// Gates of the delta rule are sigmoids.
fn check_gates(config: &Json) -> Result<(), ImportError> {
    const KEY: &str = "output_gate_type";
    let said = [KEY, "hidden_act"].into_iter().find_map(|key| Some((key, config.text(key)?)));
    match said.unwrap_or((KEY, "absent")) {
        (_, "sigmoid") => Ok(()),
        (key, gate) => {
            let gate = crate::name::shown(gate);
            let found = format!("{gate}, and in a GGUF file of qwen4exp gates are sigmoids");
            Err(config.wrong_value(key, found))
        }
    }
}

/// What the indexer of each layer that attends chooses.
fn blocks(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    keys.count("attention.indexer.head_count", &["indexer_n_heads"])?;
    keys.count("attention.indexer.key_length", &["indexer_head_dim"])?;
    keys.count("attention.indexer.top_k", &["indexer_budget"])?;
    let block = keys.config.count("indexer_compress_ratio")?;
    let kinds = keys.config.strings("layer_types");
    let kinds = kinds
        .ok_or_else(|| keys.config.wrong("layer_types", "a list with a word for each layer"))?;
    // Transformers calls layers with an indexer by a name of their own.
    let attends = |kind: &str| ["full_attention", "indexed_attention"].contains(&kind);
    let blocks: Vec<u32> = kinds.iter().map(|kind| if attends(kind) { block } else { 0 }).collect();
    keys.set("attention.compress_ratios", blocks);
    Ok(())
}

/// The layer that n-grams speak to, if there is one: configurations count from one.
fn layer(config: &Json) -> Result<Option<u32>, ImportError> {
    const KEY: &str = "ple_layer_ids";
    if config.value(KEY).is_none_or(serde_json::Value::is_null) {
        return Ok(None);
    }
    let layers = config.opt_count("num_hidden_layers")?.unwrap_or(0);
    match config.numbers(KEY)?[..] {
        [] => Ok(None),
        [layer] if (1..=layers).contains(&layer) => Ok(Some(layer - 1)),
        _ => Err(config.wrong(KEY, "a list of one layer at most, counted from one")),
    }
}

fn grams(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    let config = keys.config;
    let Some(layer) = layer(config)? else { return Ok(()) };
    keys.set("ple.layers", vec![layer]);
    keys.count("ple.ngram_size", &["ngram_size"])?;
    keys.count("ple.heads_per_ngram", &["heads_per_ngram"])?;
    keys.count("ple.conv_kernel", &["ple_conv_kernel_size"])?;
    keys.number_if("ple.image_token_id", &["image_token_id"])?;
    // Of several that end a text the last one.
    const END: &str = "eos_token_id";
    let end = match config.value(END) {
        Some(value) if value.is_array() => config.numbers(END)?.last().copied(),
        _ => config.opt_number(END)?,
    };
    let end = end.ok_or_else(|| config.wrong(END, "there: n-grams end at this token"))?;
    keys.set("ple.eos_token_id", end);
    Ok(())
}

/// Numbers of 64 bits that tensors hold, and how wide the rows of the table are.
fn hashes(keys: &mut Keys<'_>, weights: &mut Weights<'_>) -> Result<(), StoreError> {
    let config = keys.config;
    let Some(layer) = layer(config)? else { return Ok(()) };
    let (longest, each) =
        (u64::from(config.count("ngram_size")?), u64::from(config.count("heads_per_ngram")?));
    let heads = (longest - 1) * each;
    for (there, key, want) in [
        ("layer_multipliers", "ple.layer_multipliers", longest),
        ("ngram_heads_offsets", "ple.head_offsets", heads),
        ("ngram_heads_vocab_sizes", "ple.head_vocab_sizes", heads),
    ] {
        let name = format!("layers.{layer}.ple.ple_embedding.{there}");
        let tensor = weights.take(&name).ok_or(ImportError::TensorMissing { name })?;
        keys.set(key, numbers(&tensor, want)?);
    }
    let name = part(layer, 0);
    let first = weights.get(&name).ok_or(ImportError::TensorMissing { name })?;
    keys.set(
        "embedding_length_per_layer_input",
        u32::try_from(first.columns()).unwrap_or(u32::MAX),
    );
    Ok(())
}

/// So many numbers that are not negative.
fn numbers(tensor: &Tensor<'_>, count: u64) -> Result<Vec<u64>, ImportError> {
    if tensor.entry.shape != [count] {
        let (name, found) = (tensor.entry.name.clone(), tensor.entry.shape.clone());
        return Err(ImportError::TensorShape { name, found, want: vec![count] });
    }
    if !tensor.is_plain(Dtype::I64) {
        return Err(tensor.bad_type());
    }
    let mut bytes = vec![0; (8 * count) as usize];
    tensor.bytes(0, &mut bytes)?;
    let numbers =
        bytes.as_chunks::<8>().0.iter().map(|word| u64::try_from(i64::from_le_bytes(*word)));
    numbers.collect::<Result<_, _>>().map_err(|_| tensor.bad_type())
}

/// The name of a part of the table.
fn part(layer: u32, number: u32) -> String {
    format!("layers.{layer}.ple.ple_embedding.ngram_embedding.shard_{number}.weight")
}

fn odd<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    delta::tile(cutter, weights, outputs)?;
    queries_and_keys(cutter, weights, outputs)?;
    let Some(layer) = layer(cutter.config)? else { return Ok(()) };
    for rule in &GRAMS {
        let name = format!("layers.{layer}.{}.weight", rule.there);
        if weights.get(&name).is_none() {
            return Err(ImportError::TensorMissing { name }.into());
        }
    }
    outputs.push(table(cutter, weights, layer)?);
    Ok(())
}

/// The indexer's queries, and the one key behind them.
fn queries_and_keys<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    let config = cutter.config;
    let key = u64::from(config.count("indexer_head_dim")?);
    let queries = u64::from(config.count("indexer_n_heads")?) * key;
    for layer in 0..cutter.sizes.layers {
        let there = format!("layers.{layer}.self_attn.indexer.index_qk_proj.weight");
        let Some(both) = weights.take(&there) else { continue };
        let want = vec![queries + key, u64::from(config.count("hidden_size")?)];
        if both.entry.shape != want {
            let (name, found) = (both.entry.name.clone(), both.entry.shape.clone());
            return Err(ImportError::TensorShape { name, found, want }.into());
        }
        let keys = Order::of(Step::From { first: queries });
        outputs.push(cutter.gathered(
            layer,
            "indexer.q_proj.weight",
            &both,
            &[(queries, Order::SAME)],
        )?);
        outputs.push(cutter.gathered(layer, "indexer.k_proj.weight", &both, &[(key, keys)])?);
    }
    Ok(())
}

/// The table of n-grams, whose parts come one behind the other.
fn table<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    layer: u32,
) -> Result<Output<'a>, StoreError> {
    const NAME: &str = "per_layer_token_embd.weight";
    let mut parts: Vec<Part<'a>> = Vec::new();
    let mut columns = 0;
    for number in 0..cutter.config.count("split_ngram_parts")? {
        let name = part(layer, number);
        let tensor = weights.take(&name).ok_or(ImportError::TensorMissing { name })?;
        columns = parts.first().map_or(tensor.columns(), |first| first.tensor.columns());
        let rows = match tensor.entry.shape[..] {
            [rows, here] if here == columns => rows,
            ref found => {
                let (name, found) = (tensor.entry.name.clone(), found.to_vec());
                let want = vec![found.first().copied().unwrap_or(1), columns];
                return Err(ImportError::TensorShape { name, found, want }.into());
            }
        };
        parts.push(Part { tensor, rows, order: Order::SAME });
    }
    let shape = vec![parts.iter().map(|part| part.rows).sum(), columns];
    let ty = cutter.type_of(NAME, &shape);
    Ok(Output {
        name: NAME.to_owned(),
        ty,
        shape,
        content: Content::Rows { parts, columns, change: Change::None },
    })
}

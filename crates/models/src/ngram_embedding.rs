//! N-gram embeddings (Qwen, 2026). The ids of a token and of those before it are hashed to rows of
//! a large table. A layer adds the value of these rows to its residual streams, weighted by a gate.
//! The gate measures the similarity of the key to the stream. A short convolution adds the values
//! of earlier tokens.

use std::sync::Arc;

use puna_gguf::GgufError;
use puna_graph::*;

use crate::decoder::LayerLoader;
use crate::error::ModelError;
use crate::gated_streams::StreamGateSizes;
use crate::hparams::Keys;
use crate::hybrid::taps;
use crate::hyper;

const TABLE: &str = "per_layer_token_embd.weight";
/// Largest accepted length of an n-gram.
const MAX_NGRAM: usize = 8;
/// Largest accepted number of table rows per token.
const MAX_HEADS: usize = 64;

/// Reasons of rejecting a list of another length.
const HEAD_COUNT_REASON: &str = "must have ple.heads_per_ngram × (ple.ngram_size - 1) entries";
const ID_COUNT_REASON: &str = "must have ple.ngram_size entries";

/// Keys of the n-gram embedding.
pub struct NgramKeys {
    /// Layer before which the embedding is added.
    pub layer: usize,
    /// Columns of the table.
    width: usize,
    /// Rows of the convolution kernel.
    taps: usize,
    multipliers: Vec<u64>,
    /// First row and number of rows of each hash head.
    heads: Vec<(u64, u64)>,
    end: u32,
}

impl NgramKeys {
    /// Reads `ple.*` and `embedding_length_per_layer_input`; `None` if no layer has n-grams.
    pub fn read(keys: &Keys<'_>, layers: usize) -> Result<Option<Self>, ModelError> {
        let listed = keys.meta().u32s(&keys.name("ple.layers"))?.unwrap_or_default();
        let layer = match listed[..] {
            [] => return Ok(None),
            [layer] if (layer as usize) < layers => layer as usize,
            [layer] => return Err(wrong(keys, "ple.layers", layer, "the model has no such layer")),
            [..] => {
                let value = format!("a list of {} entries", listed.len());
                let reason = "only one layer can have n-grams";
                return Err(wrong(keys, "ple.layers", value, reason));
            }
        };
        let ngram_size = keys.count("ple.ngram_size")?;
        if !(2..=MAX_NGRAM).contains(&ngram_size) {
            return Err(wrong(keys, "ple.ngram_size", ngram_size, "must be between 2 and 8"));
        }
        let each = keys.count("ple.heads_per_ngram")?;
        let count = each.saturating_mul(ngram_size - 1);
        if count > MAX_HEADS {
            let reason = "ple.heads_per_ngram × (ple.ngram_size - 1) must be at most 64";
            return Err(wrong(keys, "ple.heads_per_ngram", each, reason));
        }
        let firsts = list(keys, "ple.head_offsets", count, HEAD_COUNT_REASON)?;
        let sizes = list(keys, "ple.head_vocab_sizes", count, HEAD_COUNT_REASON)?;
        if sizes.contains(&0) {
            return Err(wrong(keys, "ple.head_vocab_sizes", 0, "must be positive"));
        }
        Ok(Some(Self {
            layer,
            width: keys.count("embedding_length_per_layer_input")?,
            taps: taps(keys, "ple.conv_kernel")?,
            multipliers: list(keys, "ple.layer_multipliers", ngram_size, ID_COUNT_REASON)?,
            heads: firsts.into_iter().zip(sizes).collect(),
            end: keys.meta().u32(&keys.name("ple.eos_token_id"))?,
        }))
    }

    /// Hash heads of a table with `rows` rows.
    fn heads(&self, keys: &Keys<'_>, rows: usize) -> Result<Vec<NgramHead>, ModelError> {
        let rows = (rows as u64).min(u64::from(u32::MAX));
        let head = |&(first, count): &(u64, u64)| {
            if count > rows {
                let reason = "the table has fewer rows";
                return Err(wrong(keys, "ple.head_vocab_sizes", count, reason));
            }
            if first > rows - count {
                let value = format!("{first}, for {count} rows of {rows}");
                return Err(wrong(keys, "ple.head_offsets", value, "must be within the table"));
            }
            Ok(NgramHead { first: first as u32, rows: count as u32 })
        };
        self.heads.iter().map(head).collect()
    }
}

fn wrong(keys: &Keys<'_>, key: &str, value: impl ToString, reason: &'static str) -> ModelError {
    ModelError::KeyValue { key: keys.name(key), value: value.to_string(), reason }
}

/// List of exactly `len` numbers.
fn list(
    keys: &Keys<'_>,
    key: &str,
    len: usize,
    reason: &'static str,
) -> Result<Vec<u64>, ModelError> {
    let name = keys.name(key);
    let numbers = keys.meta().u64s(&name)?.ok_or(GgufError::KeyMissing { key: name })?;
    match numbers.len() == len {
        true => Ok(numbers),
        false => Err(wrong(keys, key, format!("a list of {} entries", numbers.len()), reason)),
    }
}

/// N-gram embedding of a layer.
pub struct NgramEmbedding {
    table: WeightId,
    width: usize,
    spec: Arc<NgramEmbeddingSpec>,
    /// Keys for each stream and value for all streams.
    key: Linear,
    value: Linear,
    /// Norms of the keys, of the streams, and of the gated value before the convolution.
    key_norm: Norm,
    query_norm: Norm,
    value_norm: Norm,
    conv: ConvSpec,
    streams: usize,
}

impl NgramEmbedding {
    /// Loads `per_layer_token_embd`, and `ple_{key,value,norm_key,norm_query,norm_conv,conv1d}` of
    /// the layer.
    pub fn load(
        b: &mut LayerLoader<'_, '_>,
        keys: &Keys<'_>,
        config: &NgramKeys,
        sizes: StreamGateSizes,
    ) -> Result<Self, ModelError> {
        const CONV: &str = "ple_conv1d.weight";
        let missing = || ModelError::MissingTensor { name: TABLE.into() };
        let rows = b.w.rows(TABLE).ok_or_else(missing)?;
        let heads = config.heads(keys, rows)?;
        let (ngram_size, cols) =
            (config.multipliers.len(), config.width.saturating_mul(heads.len()));
        let mut norm = |of: &str| sizes.norm(b.w, &format!("{}.ple_norm_{of}", b.name));
        let [key_norm, query_norm, value_norm] = [norm("key")?, norm("query")?, norm("conv")?];
        let conv = ConvSpec {
            state: b.state(CONV, (config.taps - 1) * ngram_size, sizes.width())?,
            taps: config.taps,
            stride: ngram_size,
            w: Some(b.tensor(CONV, &[config.taps, sizes.width()])?),
            bias: None,
            silu: true,
        };
        let state = b.state("ple_key.weight", ngram_size - 1, 1)?;
        let spec = NgramEmbeddingSpec {
            state,
            multipliers: config.multipliers.clone(),
            heads,
            end: config.end,
        };
        Ok(Self {
            table: b.w.tensor(TABLE, &[config.width, rows])?,
            width: config.width,
            spec: Arc::new(spec),
            key: b.linear("ple_key", cols, sizes.width())?,
            value: b.linear("ple_value", cols, sizes.n_embd)?,
            key_norm,
            query_norm,
            value_norm,
            conv,
            streams: sizes.streams,
        })
    }

    /// Adds the embedding to the streams.
    pub fn add_to_streams(&self, g: &mut Graph, streams: ValueId) -> ValueId {
        let rows = g.recur("ple_rows", Recurrence::NgramRows { spec: Arc::clone(&self.spec) });
        let embd = g.embed_rows("ple_embd", self.table, self.width, rows);
        let (key, value) =
            (g.linear("ple_key", &self.key, embd), g.linear("ple_value", &self.value, embd));
        let key = g.rms_norm("ple_key_normed", &self.key_norm, key);
        let query = g.rms_norm("ple_query", &self.query_norm, streams);
        let gate = g.stream_similarity_gate("ple_gate", key, query, self.streams);
        let gated = hyper::repeat(g, value, self.streams);
        let gated = g.mul("ple_gated_value", gated, gate);
        let normed = g.rms_norm("ple_gated_normed", &self.value_norm, gated);
        let convolved = g.recur("ple_conv_out", Recurrence::Conv { x: normed, spec: self.conv });
        let gated = g.add("ple_said", gated, convolved);
        g.add("ple_out", streams, gated)
    }
}

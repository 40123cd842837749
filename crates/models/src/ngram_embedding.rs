//! Embeddings of n-grams (Qwen, 2026): the ids of a token and of some before it are hashed to rows of one large table; a layer's streams take
//! as much of what these say as they agree with it, and of what earlier n-grams said by way of a short convolution.

use std::sync::Arc;

use puna_gguf::GgufError;
use puna_graph::*;

use crate::decoder::Block;
use crate::error::ModelError;
use crate::gated_streams::GateForm;
use crate::hparams::Keys;
use crate::hybrid::taps;
use crate::hyper;

const TABLE: &str = "per_layer_token_embd.weight";
/// Ids of an n-gram at most.
const LONGEST: usize = 8;
/// Rows of a token at most.
const MAX_HEADS: usize = 64;

/// How long lists must be.
const OF_HEADS: &str =
    "as many are needed as ple.heads_per_ngram says, for each length from two to ple.ngram_size";
const OF_IDS: &str = "as many are needed as an n-gram has ids, ple.ngram_size";

/// What keys say of n-grams.
pub struct GramKeys {
    /// The layer that they speak to.
    pub layer: usize,
    /// Features of a row.
    width: usize,
    /// Rows that the convolution weighs.
    taps: usize,
    multipliers: Vec<u64>,
    /// The first row of each head, and how many it has.
    heads: Vec<(u64, u64)>,
    end: u32,
}

impl GramKeys {
    /// `ple.*` and `embedding_length_per_layer_input`; nothing where no layer has n-grams.
    pub fn read(keys: &Keys<'_>, layers: usize) -> Result<Option<Self>, ModelError> {
        let listed = keys.meta().u32s(&keys.name("ple.layers"))?.unwrap_or_default();
        let layer = match listed[..] {
            [] => return Ok(None),
            [layer] if (layer as usize) < layers => layer as usize,
            [layer] => return Err(wrong(keys, "ple.layers", layer, "there is no such layer")),
            [..] => {
                let value = format!("a list of {}", listed.len());
                let reason = "one layer alone can have n-grams: a file has the numbers of one";
                return Err(wrong(keys, "ple.layers", value, reason));
            }
        };
        let longest = keys.count("ple.ngram_size")?;
        if !(2..=LONGEST).contains(&longest) {
            return Err(wrong(keys, "ple.ngram_size", longest, "must be between 2 and 8"));
        }
        let each = keys.count("ple.heads_per_ngram")?;
        let count = each.saturating_mul(longest - 1);
        if count > MAX_HEADS {
            let reason = "a token has at most 64 rows, of all lengths of n-grams together";
            return Err(wrong(keys, "ple.heads_per_ngram", each, reason));
        }
        let firsts = list(keys, "ple.head_offsets", count, OF_HEADS)?;
        let sizes = list(keys, "ple.head_vocab_sizes", count, OF_HEADS)?;
        if sizes.contains(&0) {
            return Err(wrong(keys, "ple.head_vocab_sizes", 0, "no head can do without rows"));
        }
        Ok(Some(Self {
            layer,
            width: keys.count("embedding_length_per_layer_input")?,
            taps: taps(keys, "ple.conv_kernel")?,
            multipliers: list(keys, "ple.layer_multipliers", longest, OF_IDS)?,
            heads: firsts.into_iter().zip(sizes).collect(),
            end: keys.meta().u32(&keys.name("ple.eos_token_id"))?,
        }))
    }

    /// The heads of a table of so many rows.
    fn heads(&self, keys: &Keys<'_>, rows: usize) -> Result<Vec<GramHead>, ModelError> {
        let rows = (rows as u64).min(u64::from(u32::MAX));
        let head = |&(first, count): &(u64, u64)| {
            if count > rows {
                let reason = "the table has fewer rows";
                return Err(wrong(keys, "ple.head_vocab_sizes", count, reason));
            }
            if first > rows - count {
                let value = format!("{first}, for {count} rows of {rows}");
                return Err(wrong(
                    keys,
                    "ple.head_offsets",
                    value,
                    "the table does not reach so far",
                ));
            }
            Ok(GramHead { first: first as u32, rows: count as u32 })
        };
        self.heads.iter().map(head).collect()
    }
}

fn wrong(keys: &Keys<'_>, key: &str, value: impl ToString, reason: &'static str) -> ModelError {
    ModelError::KeyValue { key: keys.name(key), value: value.to_string(), reason }
}

/// A list of exactly so many numbers.
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
        false => Err(wrong(keys, key, format!("a list of {}", numbers.len()), reason)),
    }
}

/// What n-grams say to a layer.
pub struct Grams {
    table: WeightId,
    width: usize,
    spec: Arc<GramSpec>,
    /// What streams are asked about, for each of them, and what is said to all.
    key: Linear,
    value: Linear,
    /// Of the keys and of the streams, and of what is said before it is remembered.
    key_norm: Norm,
    query_norm: Norm,
    said_norm: Norm,
    conv: ConvSpec,
    streams: usize,
}

impl Grams {
    /// `per_layer_token_embd`, and `ple_{key,value,norm_key,norm_query,norm_conv,conv1d}` of the layer.
    pub fn load(
        b: &mut Block<'_, '_>,
        keys: &Keys<'_>,
        said: &GramKeys,
        form: GateForm,
    ) -> Result<Self, ModelError> {
        const CONV: &str = "ple_conv1d.weight";
        let missing = || ModelError::MissingTensor { name: TABLE.into() };
        let rows = b.w.rows(TABLE).ok_or_else(missing)?;
        let heads = said.heads(keys, rows)?;
        let (longest, cols) = (said.multipliers.len(), said.width.saturating_mul(heads.len()));
        let mut norm = |of: &str| form.norm(b.w, &format!("{}.ple_norm_{of}", b.name));
        let [key_norm, query_norm, said_norm] = [norm("key")?, norm("query")?, norm("conv")?];
        let conv = ConvSpec {
            state: b.state(CONV, (said.taps - 1) * longest, form.width())?,
            taps: said.taps,
            stride: longest,
            w: Some(b.tensor(CONV, &[said.taps, form.width()])?),
            bias: None,
            silu: true,
        };
        let state = b.state("ple_key.weight", longest - 1, 1)?;
        let spec = GramSpec { state, multipliers: said.multipliers.clone(), heads, end: said.end };
        Ok(Self {
            table: b.w.tensor(TABLE, &[said.width, rows])?,
            width: said.width,
            spec: Arc::new(spec),
            key: b.linear("ple_key", cols, form.width())?,
            value: b.linear("ple_value", cols, form.n_embd)?,
            key_norm,
            query_norm,
            said_norm,
            conv,
            streams: form.streams,
        })
    }

    /// The streams with what is said to them.
    pub fn tell(&self, g: &mut Graph, streams: ValueId) -> ValueId {
        let rows = g.recur("ple_rows", Recurrence::Grams { spec: Arc::clone(&self.spec) });
        let embd = g.embed_listed("ple_embd", self.table, self.width, rows);
        let (key, value) =
            (g.linear("ple_key", &self.key, embd), g.linear("ple_value", &self.value, embd));
        let key = g.rms_norm("ple_key_normed", &self.key_norm, key);
        let query = g.rms_norm("ple_query", &self.query_norm, streams);
        let gate = g.stream_similarity_gate("ple_gate", key, query, self.streams);
        let said = hyper::copies(g, value, self.streams);
        let said = g.mul("ple_gated_value", said, gate);
        let normed = g.rms_norm("ple_gated_normed", &self.said_norm, said);
        let remembered = g.recur("ple_conv_out", Recurrence::Conv { x: normed, spec: self.conv });
        let said = g.add("ple_said", said, remembered);
        g.add("ple_out", streams, said)
    }
}

//! Hyper-parameters: the keys that most architectures read.

use puna_gguf::{Metadata, Value};
use puna_graph::AttentionSpec;

use crate::error::ModelError;

/// More layers than any model has, to bound what a file can ask for.
pub(crate) const MAX_LAYERS: u32 = 512;
/// More features than any model has.
const MAX_WIDTH: usize = 1 << 20;

/// Keys under the architecture's name, read with their defaults.
#[derive(Debug, Clone)]
pub struct Hparams {
    /// Context that the model was trained with.
    pub n_ctx: usize,
    /// Features of the residual stream.
    pub n_embd: usize,
    /// Layers that take part in a step (blocks for multi-token prediction are not counted).
    pub n_layer: usize,
    /// Query heads of each layer.
    pub heads: Vec<usize>,
    /// Key and value heads of each layer.
    pub kv_heads: Vec<usize>,
    /// Features of a query or key head.
    pub key_dim: usize,
    /// Features of a value head.
    pub value_dim: usize,
    /// Width of the feed-forward part of each layer.
    pub ff: Vec<usize>,
    /// Entries of the vocabulary.
    pub n_vocab: usize,
}

/// Reads keys by their name without the architecture.
#[derive(Clone, Copy)]
pub struct Keys<'a> {
    meta: &'a Metadata,
    arch: &'a str,
}

impl<'a> Keys<'a> {
    /// Keys of the file's architecture.
    pub fn new(meta: &'a Metadata) -> Result<Self, ModelError> {
        Ok(Self { meta, arch: meta.architecture()? })
    }

    /// The full name of a key.
    pub fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    /// The file's keys.
    pub fn meta(&self) -> &'a Metadata {
        self.meta
    }

    /// A count that must be there and be more than zero.
    pub fn count(&self, key: &str) -> Result<usize, ModelError> {
        let name = self.name(key);
        let value = self.meta.u32(&name)?;
        self.positive(name, value)
    }

    /// A count with a default; zero is an error.
    pub fn count_or(&self, key: &str, default: usize) -> Result<usize, ModelError> {
        match self.opt_count(key)? {
            Some(value) => self.positive(self.name(key), value as u32),
            None => Ok(default),
        }
    }

    /// A count that may be absent.
    pub fn opt_count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        Ok(self.meta.opt_u32(&self.name(key))?.map(|v| v as usize))
    }

    /// A number of layers.
    pub fn layers(&self, key: &str) -> Result<usize, ModelError> {
        let layers = self.count(key)?;
        if layers > MAX_LAYERS as usize {
            let (key, value) = (self.name(key), layers.to_string());
            return Err(ModelError::KeyValue { key, value, reason: "must be at most 512" });
        }
        Ok(layers)
    }

    /// Entries of the vocabulary: the key, else the length of the token list.
    pub fn vocabulary(&self) -> Result<usize, ModelError> {
        let listed = self.meta.array("tokenizer.ggml.tokens")?.map(|tokens| tokens.len());
        match (listed, self.opt_count("vocab_size")?) {
            (Some(n), _) | (None, Some(n)) => Ok(n),
            (None, None) => Err(ModelError::KeyValue {
                key: "tokenizer.ggml.tokens".into(),
                value: "absent".into(),
                reason: "the vocabulary is needed",
            }),
        }
    }

    /// A number of features that the file names.
    pub fn hidden_size(&self, key: &str) -> Result<usize, ModelError> {
        let width = self.count(key)?;
        if width > MAX_WIDTH {
            let (key, value) = (self.name(key), width.to_string());
            return Err(ModelError::KeyValue { key, value, reason: "must be at most 1048576" });
        }
        Ok(width)
    }

    /// Layers of that model whose inputs are read.
    pub fn target_layers(&self) -> Result<Vec<usize>, ModelError> {
        let key = self.name("target_layers");
        let layers = self.meta.u32s(&key)?.unwrap_or_default();
        let wrong =
            |value: String, reason| Err(ModelError::KeyValue { key: key.clone(), value, reason });
        match layers.as_slice() {
            [] => wrong("absent or empty".into(), "the model's layers that are read are needed"),
            all if all.len() > MAX_LAYERS as usize => {
                wrong(format!("{} entries", all.len()), "no model has so many layers")
            }
            all => Ok(all.iter().map(|&layer| layer as usize).collect()),
        }
    }

    fn positive(&self, key: String, value: u32) -> Result<usize, ModelError> {
        if value == 0 {
            return Err(ModelError::KeyValue {
                key,
                value: "0".into(),
                reason: "must be positive",
            });
        }
        Ok(value as usize)
    }

    /// A number that may be absent. What is no number, or has no end, would make all that a model computes so.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, ModelError> {
        let number = self.meta.opt_f32(&self.name(key))?;
        number.map(|number| finite(self.name(key), number)).transpose()
    }

    /// A number that must be there.
    pub fn f32(&self, key: &str) -> Result<f32, ModelError> {
        finite(self.name(key), self.meta.f32(&self.name(key))?)
    }

    /// A number that may be absent, where zero says the same.
    pub fn factor(&self, key: &str) -> Result<Option<f32>, ModelError> {
        Ok(self.opt_f32(key)?.filter(|&factor| factor != 0.0))
    }

    /// A bound of both signs that may be absent, where zero and less say the same.
    pub fn bound(&self, key: &str) -> Result<Option<f32>, ModelError> {
        Ok(self.opt_f32(key)?.filter(|&bound| bound > 0.0))
    }

    /// Yes or no; absent means no.
    pub fn flag(&self, key: &str) -> Result<bool, ModelError> {
        Ok(self.opt_bool(key)?.unwrap_or(false))
    }

    /// Yes or no, which may be absent.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, ModelError> {
        Ok(self.meta.opt_bool(&self.name(key))?)
    }

    /// Width of the experts that every token uses together, from the key or their number and the width of one; zero for none.
    pub fn shared_width(&self, hidden: usize) -> Result<usize, ModelError> {
        let count = self.opt_count("expert_shared_count")?.unwrap_or(0);
        let width = self.opt_count("expert_shared_feed_forward_length")?.filter(|&width| width > 0);
        Ok(width.unwrap_or(count.saturating_mul(hidden)))
    }

    /// One bound a layer, from a scalar or an array that may be absent; zero and less mean none.
    pub fn bounds(&self, key: &str, layers: usize) -> Result<Vec<Option<f32>>, ModelError> {
        let key = self.name(key);
        if self.meta.get(&key).is_none() {
            return Ok(vec![None; layers]);
        }
        let numbers = self.numbers_per_layer(&key, layers)?;
        Ok(numbers.into_iter().map(|bound| Some(bound).filter(|&bound| bound > 1e-6)).collect())
    }

    /// Bounds of the units of each layer's experts, and of the part that every token uses; where the file has none for these, those
    /// of the experts.
    pub fn bounds_of_units(&self, layers: usize) -> Result<[Vec<Option<f32>>; 2], ModelError> {
        let of_experts = self.bounds("swiglu_clamp_exp", layers)?;
        let has_own = self.meta.get(&self.name("swiglu_clamp_shexp")).is_some();
        let of_shared =
            if has_own { self.bounds("swiglu_clamp_shexp", layers)? } else { of_experts.clone() };
        Ok([of_experts, of_shared])
    }

    /// One number a layer, from a scalar or an array, of a key without the architecture's name.
    pub fn numbers_per_layer(&self, key: &str, layers: usize) -> Result<Vec<f32>, ModelError> {
        let numbers = match self.meta.get(key).and_then(Value::as_array) {
            Some(_) => self.meta.f32s(key)?.unwrap_or_default(),
            None => vec![self.meta.f32(key)?; layers],
        };
        if let Some(layer) = numbers.iter().position(|number| number.is_nan()) {
            let (key, value) = (key.to_owned(), format!("NaN in layer {layer}"));
            return Err(ModelError::KeyValue { key, value, reason: NO_NUMBER });
        }
        if numbers.len() < layers {
            let (key, value) = (key.to_owned(), format!("{} entries", numbers.len()));
            return Err(ModelError::KeyValue { key, value, reason: "fewer entries than layers" });
        }
        Ok(numbers)
    }

    /// A text that may be absent.
    pub fn opt_str(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        Ok(self.meta.opt_str(&self.name(key))?)
    }

    /// One count a layer, from a scalar or an array of at least that length.
    pub fn per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<usize>>, ModelError> {
        let key = self.name(key);
        // Blocks of prediction, which are not counted, have entries, too.
        let listed =
            self.meta.get(&key).and_then(Value::as_array).map_or(layers, |values| values.len());
        let values = self.meta.u32_per_layer(&key, listed.max(layers))?;
        Ok(values.map(|v| v.into_iter().take(layers).map(|v| v as usize).collect()))
    }

    /// The epsilon of RMS norms.
    pub fn rms_eps(&self) -> Result<f32, ModelError> {
        self.epsilon("attention.layer_norm_rms_epsilon")
    }

    /// The epsilon of layer norms.
    pub fn layer_eps(&self) -> Result<f32, ModelError> {
        self.epsilon("attention.layer_norm_epsilon")
    }

    /// Labels of a classifier head, one where the file names none.
    pub fn labels(&self) -> Result<usize, ModelError> {
        let listed = self.meta.array(&self.name("classifier.output_labels"))?;
        Ok(listed.map_or(1, |labels| labels.len().max(1)))
    }

    /// A number that is added to a variance.
    pub fn epsilon(&self, key: &str) -> Result<f32, ModelError> {
        let value = self.meta.f32(&self.name(key))?;
        if !value.is_finite() || value <= 0.0 {
            let (key, value) = (self.name(key), value.to_string());
            return Err(ModelError::KeyValue {
                key,
                value,
                reason: "must be a small positive number",
            });
        }
        Ok(value)
    }

    /// Which layers slide: the key (a period or a bool a layer), else `default` as a period, whose last layer does not.
    pub fn sliding(&self, layers: usize, default: usize) -> Result<Vec<bool>, ModelError> {
        self.slides(layers, default, |i, period| i % period < period - 1)
    }

    /// Which layers slide, of files that list it.
    pub fn listed_sliding(&self, layers: usize) -> Result<Vec<bool>, ModelError> {
        const KEY: &str = "attention.sliding_window_pattern";
        self.flags(KEY, layers)?.ok_or_else(|| ModelError::KeyValue {
            key: self.name(KEY),
            value: "absent".into(),
            reason: "a list of yes or no for each layer is needed",
        })
    }

    /// The same where it is the first layer of a period that does not slide.
    pub fn sliding_but_first(
        &self,
        layers: usize,
        default: usize,
    ) -> Result<Vec<bool>, ModelError> {
        self.slides(layers, default, |i, period| i % period > 0)
    }

    /// Yes or no for each layer, where the key is a list.
    pub fn flags(&self, key: &str, layers: usize) -> Result<Option<Vec<bool>>, ModelError> {
        let key = self.name(key);
        if self.meta.get(&key).is_none_or(|value| value.as_array().is_none()) {
            return Ok(None);
        }
        let mut flags = self.meta.bools(&key)?.unwrap_or_default();
        if flags.len() < layers {
            let reason = "fewer entries than layers";
            return Err(ModelError::KeyValue {
                key,
                value: format!("{} entries", flags.len()),
                reason,
            });
        }
        flags.truncate(layers);
        Ok(Some(flags))
    }

    /// Which layers do not attend: the list, or all but the last of each period, which is a key or else `default`.
    pub fn recurrent_layers(&self, layers: usize, default: usize) -> Result<Vec<bool>, ModelError> {
        if let Some(flags) = self.flags("attention.recurrent_layers", layers)? {
            return Ok(flags);
        }
        let period = self.count_or("full_attention_interval", default)?;
        Ok((1..=layers).map(|i| !i.is_multiple_of(period)).collect())
    }

    fn slides(
        &self,
        layers: usize,
        default: usize,
        slides: impl Fn(usize, usize) -> bool,
    ) -> Result<Vec<bool>, ModelError> {
        if let Some(flags) = self.flags("attention.sliding_window_pattern", layers)? {
            return Ok(flags);
        }
        let period = self.opt_count("attention.sliding_window_pattern")?.unwrap_or(default);
        Ok((0..layers).map(|i| period == 0 || slides(i, period)).collect())
    }
}

impl Hparams {
    /// Causal attention with the heads of layer `i`.
    pub fn attention(&self, i: usize) -> AttentionSpec {
        AttentionSpec::causal(self.heads[i], self.kv_heads[i], self.key_dim, self.value_dim)
    }

    /// Refuses that layer `i` reads keys and values of `source` where that has other heads of them.
    pub fn may_read(&self, keys: &Keys<'_>, i: usize, source: usize) -> Result<(), ModelError> {
        if self.kv_heads[i] == self.kv_heads[source] {
            return Ok(());
        }
        let value = format!(
            "{} in layer {i}, {} in layer {source}",
            self.kv_heads[i], self.kv_heads[source]
        );
        let reason =
            "a layer must have as many key heads as the one whose keys and values it reads";
        Err(ModelError::KeyValue { key: keys.name("attention.head_count_kv"), value, reason })
    }

    /// Columns of query, key and value in layer `i`.
    pub fn widths(&self, i: usize) -> [usize; 3] {
        let (heads, kv_heads) = (self.heads[i], self.kv_heads[i]);
        [heads * self.key_dim, kv_heads * self.key_dim, kv_heads * self.value_dim]
    }

    /// Width of the feed-forward part of layer `i`, zero where the file does not say.
    pub fn ff(&self, i: usize) -> usize {
        self.ff.get(i).copied().unwrap_or(0)
    }

    /// Reads the common keys; every layer attends.
    pub fn read(keys: &Keys<'_>) -> Result<Self, ModelError> {
        Self::read_hybrid(keys)?.checked(keys)
    }

    /// The same, if every layer attends.
    fn checked(self, keys: &Keys<'_>) -> Result<Self, ModelError> {
        for (&h, &kv) in self.heads.iter().zip(&self.kv_heads) {
            if h == 0 || kv == 0 || h % kv != 0 {
                let reason = "query heads must be a positive multiple of the key heads";
                let value = format!("{h} beside {kv} key heads");
                return Err(ModelError::KeyValue {
                    key: keys.name("attention.head_count"),
                    value,
                    reason,
                });
            }
        }
        Ok(self)
    }

    /// Reads the common keys where layers without heads of keys, or of both, do something else.
    pub fn read_hybrid(keys: &Keys<'_>) -> Result<Self, ModelError> {
        Self::read_blocks(keys, keys.opt_count("nextn_predict_layers")?.unwrap_or(0))
    }

    /// Reads the common keys of a draft model, whose blocks may all be called blocks of prediction.
    pub fn read_draft(keys: &Keys<'_>) -> Result<Self, ModelError> {
        Self::read_blocks(keys, 0)?.checked(keys)
    }

    /// Reads the common keys where the last `extra` blocks take no part in a step.
    fn read_blocks(keys: &Keys<'_>, extra: usize) -> Result<Self, ModelError> {
        let n_embd = keys.count("embedding_length")?;
        let blocks = keys.count("block_count")?;
        let n_layer = blocks
            .checked_sub(extra)
            .filter(|&n| n > 0 && n <= MAX_LAYERS as usize)
            .ok_or_else(|| {
                let reason = "must be between 1 and 512 after the prediction blocks are taken off";
                ModelError::KeyValue {
                    key: keys.name("block_count"),
                    value: blocks.to_string(),
                    reason,
                }
            })?;
        let heads = keys.per_layer("attention.head_count", n_layer)?.ok_or_else(|| {
            ModelError::KeyValue {
                key: keys.name("attention.head_count"),
                value: "absent".into(),
                reason: "the number of query heads is needed",
            }
        })?;
        let kv_heads =
            keys.per_layer("attention.head_count_kv", n_layer)?.unwrap_or_else(|| heads.clone());
        // Where no layer attends this is of no matter.
        let sharing = heads.iter().copied().find(|&heads| heads > 0).unwrap_or(n_embd);
        let default = n_embd / sharing;
        let key_dim = keys.count_or("attention.key_length", default)?;
        let value_dim = keys.count_or("attention.value_length", default)?;
        for (key, dim) in [("attention.key_length", key_dim), ("attention.value_length", value_dim)]
        {
            if dim == 0 {
                let (key, value) = (keys.name("attention.head_count"), sharing.to_string());
                let reason = "there are more heads than embedding_length has features for";
                return Err(ModelError::KeyValue { key, value, reason });
            }
            if dim > 1 << 16 {
                let reason = "head sizes must be between 1 and 65536";
                return Err(ModelError::KeyValue {
                    key: keys.name(key),
                    value: dim.to_string(),
                    reason,
                });
            }
        }
        Ok(Self {
            n_ctx: keys.count("context_length")?,
            n_embd,
            n_layer,
            heads,
            kv_heads,
            key_dim,
            value_dim,
            ff: keys.per_layer("feed_forward_length", n_layer)?.unwrap_or_default(),
            n_vocab: keys.vocabulary()?,
        })
    }
}

/// Why a number cannot be computed with.
const NO_NUMBER: &str = "must be a number, and not infinite";

fn finite(key: String, number: f32) -> Result<f32, ModelError> {
    if number.is_finite() {
        return Ok(number);
    }
    Err(ModelError::KeyValue { key, value: number.to_string(), reason: NO_NUMBER })
}

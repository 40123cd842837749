//! Hyper-parameters: the metadata keys that most architectures read.

use puna_gguf::{Metadata, Value};
use puna_graph::AttentionSpec;

use crate::error::ModelError;

/// Largest accepted number of layers, against hostile files.
pub(crate) const MAX_LAYERS: u32 = 512;
/// Largest accepted width, against hostile files.
const MAX_WIDTH: usize = 1 << 20;

/// Common hyper-parameters of a file, with defaults for missing keys.
#[derive(Debug, Clone)]
pub struct Hparams {
    /// Context length of the training, in tokens.
    pub n_ctx: usize,
    /// Dimensions of the residual stream.
    pub n_embd: usize,
    /// Number of layers, without blocks for multi-token prediction.
    pub n_layer: usize,
    /// Query heads of each layer.
    pub heads: Vec<usize>,
    /// Key and value heads of each layer.
    pub kv_heads: Vec<usize>,
    /// Dimensions of a query or key head.
    pub key_dim: usize,
    /// Dimensions of a value head.
    pub value_dim: usize,
    /// Hidden dimension of the feed-forward network of each layer.
    pub ff: Vec<usize>,
    /// Size of the vocabulary.
    pub n_vocab: usize,
}

/// Reads keys by their name without the architecture prefix.
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

    /// Mandatory positive count.
    pub fn count(&self, key: &str) -> Result<usize, ModelError> {
        let name = self.name(key);
        let value = self.meta.u32(&name)?;
        self.positive(name, value)
    }

    /// Positive count with a default; zero is an error.
    pub fn count_or(&self, key: &str, default: usize) -> Result<usize, ModelError> {
        match self.opt_count(key)? {
            Some(value) => self.positive(self.name(key), value as u32),
            None => Ok(default),
        }
    }

    /// Optional count.
    pub fn opt_count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        Ok(self.meta.opt_u32(&self.name(key))?.map(|v| v as usize))
    }

    /// Mandatory number of layers.
    pub fn layers(&self, key: &str) -> Result<usize, ModelError> {
        let layers = self.count(key)?;
        if layers > MAX_LAYERS as usize {
            let (key, value) = (self.name(key), layers.to_string());
            return Err(ModelError::KeyValue { key, value, reason: "must be at most 512" });
        }
        Ok(layers)
    }

    /// Size of the vocabulary: length of the token list, or else the key `vocab_size`.
    pub fn vocabulary(&self) -> Result<usize, ModelError> {
        let listed = self.meta.array("tokenizer.ggml.tokens")?.map(|tokens| tokens.len());
        match (listed, self.opt_count("vocab_size")?) {
            (Some(n), _) | (None, Some(n)) => Ok(n),
            (None, None) => Err(ModelError::KeyValue {
                key: "tokenizer.ggml.tokens".into(),
                value: "absent".into(),
                reason: "the file must have a vocabulary",
            }),
        }
    }

    /// Mandatory width of a hidden state.
    pub fn hidden_size(&self, key: &str) -> Result<usize, ModelError> {
        let width = self.count(key)?;
        if width > MAX_WIDTH {
            let (key, value) = (self.name(key), width.to_string());
            return Err(ModelError::KeyValue { key, value, reason: "must be at most 1048576" });
        }
        Ok(width)
    }

    /// Numbers of blocks; empty if the file has no such list.
    pub fn block_indices(&self, key: &str) -> Result<Vec<usize>, ModelError> {
        let indices = self.meta.u32s(&self.name(key))?.unwrap_or_default();
        Ok(indices.into_iter().take(MAX_LAYERS as usize).map(|index| index as usize).collect())
    }

    /// `target_layers`: layers of the target model that a companion taps.
    pub fn target_layers(&self) -> Result<Vec<usize>, ModelError> {
        let key = self.name("target_layers");
        let layers = self.meta.u32s(&key)?.unwrap_or_default();
        let wrong =
            |value: String, reason| Err(ModelError::KeyValue { key: key.clone(), value, reason });
        match layers.as_slice() {
            [] => wrong(
                "absent or empty".into(),
                "it must list the target layers whose inputs the draft model reads",
            ),
            all if all.len() > MAX_LAYERS as usize => {
                wrong(format!("{} entries", all.len()), "must have at most 512")
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

    /// Optional finite number; NaN and infinity would spread to all results.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, ModelError> {
        let number = self.meta.opt_f32(&self.name(key))?;
        number.map(|number| finite(self.name(key), number)).transpose()
    }

    /// Mandatory finite number.
    pub fn f32(&self, key: &str) -> Result<f32, ModelError> {
        finite(self.name(key), self.meta.f32(&self.name(key))?)
    }

    /// Optional factor; zero means absent.
    pub fn factor(&self, key: &str) -> Result<Option<f32>, ModelError> {
        Ok(self.opt_f32(key)?.filter(|&factor| factor != 0.0))
    }

    /// Optional symmetric limit; zero and negative values mean absent.
    pub fn opt_limit(&self, key: &str) -> Result<Option<f32>, ModelError> {
        Ok(self.opt_f32(key)?.filter(|&bound| bound > 0.0))
    }

    /// Boolean, false by default.
    pub fn flag(&self, key: &str) -> Result<bool, ModelError> {
        Ok(self.opt_bool(key)?.unwrap_or(false))
    }

    /// Optional boolean.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, ModelError> {
        Ok(self.meta.opt_bool(&self.name(key))?)
    }

    /// Hidden dimension of all shared experts together, from its key, or their number times
    /// `hidden`; zero for none.
    pub fn shared_width(&self, hidden: usize) -> Result<usize, ModelError> {
        let count = self.opt_count("expert_shared_count")?.unwrap_or(0);
        let width = self.opt_count("expert_shared_feed_forward_length")?.filter(|&width| width > 0);
        Ok(width.unwrap_or(count.saturating_mul(hidden)))
    }

    /// Limit of each layer, from an optional scalar or array; zero and negative values mean none.
    pub fn limits_per_layer(
        &self,
        key: &str,
        layers: usize,
    ) -> Result<Vec<Option<f32>>, ModelError> {
        let key = self.name(key);
        if self.meta.get(&key).is_none() {
            return Ok(vec![None; layers]);
        }
        let numbers = self.numbers_per_layer(&key, layers)?;
        Ok(numbers.into_iter().map(|bound| Some(bound).filter(|&bound| bound > 1e-6)).collect())
    }

    /// Limits of the gated activation in each layer's experts and in its shared expert. Files
    /// without the latter use that of the experts.
    pub fn glu_limits(&self, layers: usize) -> Result<[Vec<Option<f32>>; 2], ModelError> {
        let of_experts = self.limits_per_layer("swiglu_clamp_exp", layers)?;
        let has_own = self.meta.get(&self.name("swiglu_clamp_shexp")).is_some();
        let of_shared = if has_own {
            self.limits_per_layer("swiglu_clamp_shexp", layers)?
        } else {
            of_experts.clone()
        };
        Ok([of_experts, of_shared])
    }

    /// Number of each layer, from a scalar or an array; `key` is the full name.
    pub fn numbers_per_layer(&self, key: &str, layers: usize) -> Result<Vec<f32>, ModelError> {
        let numbers = match self.meta.get(key).and_then(Value::as_array) {
            Some(_) => self.meta.f32s(key)?.unwrap_or_default(),
            None => vec![self.meta.f32(key)?; layers],
        };
        if let Some(layer) = numbers.iter().position(|number| number.is_nan()) {
            let (key, value) = (key.to_owned(), format!("NaN in layer {layer}"));
            return Err(ModelError::KeyValue { key, value, reason: NOT_FINITE });
        }
        if numbers.len() < layers {
            let (key, value) = (key.to_owned(), format!("{} entries", numbers.len()));
            return Err(ModelError::KeyValue { key, value, reason: "fewer entries than layers" });
        }
        Ok(numbers)
    }

    /// Optional string.
    pub fn opt_str(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        Ok(self.meta.opt_str(&self.name(key))?)
    }

    /// Count of each layer, from a scalar or an array of at least `layers` entries.
    pub fn per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<usize>>, ModelError> {
        let key = self.name(key);
        // Blocks for multi-token prediction, which `layers` does not count, have entries as well.
        let listed =
            self.meta.get(&key).and_then(Value::as_array).map_or(layers, |values| values.len());
        let values = self.meta.u32_per_layer(&key, listed.max(layers))?;
        Ok(values.map(|v| v.into_iter().take(layers).map(|v| v as usize).collect()))
    }

    /// Epsilon of RMS norms.
    pub fn rms_eps(&self) -> Result<f32, ModelError> {
        self.epsilon("attention.layer_norm_rms_epsilon")
    }

    /// Epsilon of layer norms.
    pub fn layer_eps(&self) -> Result<f32, ModelError> {
        self.epsilon("attention.layer_norm_epsilon")
    }

    /// Number of labels of a classifier head, 1 by default.
    pub fn labels(&self) -> Result<usize, ModelError> {
        let listed = self.meta.array(&self.name("classifier.output_labels"))?;
        Ok(listed.map_or(1, |labels| labels.len().max(1)))
    }

    /// Positive number that a norm adds to a variance.
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

    /// Which layers have a sliding window: the key (a period, or a boolean per layer), or `default`
    /// as period. The last layer of each period has none.
    pub fn sliding(&self, layers: usize, default: usize) -> Result<Vec<bool>, ModelError> {
        self.slides(layers, default, |i, period| i % period < period - 1)
    }

    /// Which layers have a sliding window, from a mandatory list.
    pub fn listed_sliding(&self, layers: usize) -> Result<Vec<bool>, ModelError> {
        const KEY: &str = "attention.sliding_window_pattern";
        self.flags(KEY, layers)?.ok_or_else(|| ModelError::KeyValue {
            key: self.name(KEY),
            value: "absent".into(),
            reason: "it must have one boolean per layer",
        })
    }

    /// [`Self::sliding`] for patterns in which the first layer of each period has no window.
    pub fn sliding_except_first(
        &self,
        layers: usize,
        default: usize,
    ) -> Result<Vec<bool>, ModelError> {
        self.slides(layers, default, |i, period| i % period > 0)
    }

    /// Boolean of each layer, if the key is a list.
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

    /// Which layers are recurrent: the list, or all except the last of each period. The period is a
    /// key with a default.
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

    /// Checks that layer `i` can read the keys and values of layer `source`: both need the same
    /// number of KV heads.
    pub fn check_shared_kv(
        &self,
        keys: &Keys<'_>,
        i: usize,
        source: usize,
    ) -> Result<(), ModelError> {
        if self.kv_heads[i] == self.kv_heads[source] {
            return Ok(());
        }
        let value = format!(
            "{} in layer {i}, {} in layer {source}",
            self.kv_heads[i], self.kv_heads[source]
        );
        let reason =
            "a layer that shares keys and values needs as many KV heads as the layer that has them";
        Err(ModelError::KeyValue { key: keys.name("attention.head_count_kv"), value, reason })
    }

    /// Columns of query, key and value of layer `i`.
    pub fn qkv_widths(&self, i: usize) -> [usize; 3] {
        let (heads, kv_heads) = (self.heads[i], self.kv_heads[i]);
        [heads * self.key_dim, kv_heads * self.key_dim, kv_heads * self.value_dim]
    }

    /// Hidden dimension of the feed-forward network of layer `i`; zero if the key is absent.
    pub fn ff(&self, i: usize) -> usize {
        self.ff.get(i).copied().unwrap_or(0)
    }

    /// Reads the common keys; every layer has attention.
    pub fn read(keys: &Keys<'_>) -> Result<Self, ModelError> {
        Self::read_hybrid(keys)?.checked(keys)
    }

    /// Checks that every layer has valid head counts.
    fn checked(self, keys: &Keys<'_>) -> Result<Self, ModelError> {
        for (&h, &kv) in self.heads.iter().zip(&self.kv_heads) {
            if h == 0 || kv == 0 || h % kv != 0 {
                let reason = "must be a positive multiple of the number of KV heads";
                let value = format!("{h} with {kv} KV heads");
                return Err(ModelError::KeyValue {
                    key: keys.name("attention.head_count"),
                    value,
                    reason,
                });
            }
        }
        Ok(self)
    }

    /// Reads the common keys of an architecture in which layers may have no heads, or no KV heads.
    pub fn read_hybrid(keys: &Keys<'_>) -> Result<Self, ModelError> {
        Self::read_blocks(keys, keys.opt_count("nextn_predict_layers")?.unwrap_or(0))
    }

    /// Reads the common keys of a draft model. Its blocks count as layers even if the file calls
    /// all of them prediction blocks.
    pub fn read_draft(keys: &Keys<'_>) -> Result<Self, ModelError> {
        Self::read_blocks(keys, 0)?.checked(keys)
    }

    /// Reads the common keys; the last `extra` blocks are not layers.
    fn read_blocks(keys: &Keys<'_>, extra: usize) -> Result<Self, ModelError> {
        let n_embd = keys.count("embedding_length")?;
        let blocks = keys.count("block_count")?;
        let n_layer = blocks
            .checked_sub(extra)
            .filter(|&n| n > 0 && n <= MAX_LAYERS as usize)
            .ok_or_else(|| {
                let reason = "must be between 1 and 512 without the prediction blocks";
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
                reason: "it must have the number of query heads",
            }
        })?;
        let kv_heads =
            keys.per_layer("attention.head_count_kv", n_layer)?.unwrap_or_else(|| heads.clone());
        // If no layer has heads, the value does not matter.
        let sharing = heads.iter().copied().find(|&heads| heads > 0).unwrap_or(n_embd);
        let default = n_embd / sharing;
        let key_dim = keys.count_or("attention.key_length", default)?;
        let value_dim = keys.count_or("attention.value_length", default)?;
        for (key, dim) in [("attention.key_length", key_dim), ("attention.value_length", value_dim)]
        {
            if dim == 0 {
                let (key, value) = (keys.name("attention.head_count"), sharing.to_string());
                let reason = "must be at most embedding_length";
                return Err(ModelError::KeyValue { key, value, reason });
            }
            if dim > 1 << 16 {
                let reason = "must be between 1 and 65536";
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

/// Reason of rejecting NaN and infinity.
const NOT_FINITE: &str = "must be a finite number";

fn finite(key: String, number: f32) -> Result<f32, ModelError> {
    if number.is_finite() {
        return Ok(number);
    }
    Err(ModelError::KeyValue { key, value: number.to_string(), reason: NOT_FINITE })
}

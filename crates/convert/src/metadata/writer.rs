//! GGUF metadata keys that follow from a model's hyperparameters. A family's function writes the
//! common keys, then its own.

use puna_gguf::{Value, Writer, escape_for_message};

use super::hyper_parameters::HyperParameters;
use crate::error::ConvertError;
use crate::output::OutputTensor;
use crate::rules::Dimensions;
use crate::source::Config;

/// Keys that configurations of different families use for the same parameter.
const EXPERTS_USED: [&str; 5] =
    ["num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_k", "moe_top_k"];
const EXPERTS_SHARED: [&str; 3] =
    ["n_shared_experts", "num_shared_experts", "moe_num_shared_experts"];
const LEADING_DENSE_LAYERS: [&str; 4] = [
    "first_k_dense_replace",
    "num_dense_layers",
    "moe_layer_start_index",
    "first_last_k_dense_replace",
];
const EXPERT_WEIGHTS_SCALE: [&str; 3] =
    ["routed_scaling_factor", "route_scale", "moe_routed_scaling_factor"];
const EXPERT_WEIGHTS_NORM: [&str; 2] = ["norm_topk_prob", "route_norm"];
const GATING_FUNCTION_KEYS: [&str; 6] = [
    "scoring_func",
    "score_func",
    "score_function",
    "moe_router_activation",
    "moe_router_activation_func",
    "expert_selection_fn",
];
/// Gating functions of routers, with their GGUF numbers.
const GATING_FUNCTIONS: [(&str, u32); 3] = [("softmax", 1), ("sigmoid", 2), ("sqrtsoftplus", 4)];
const RMS_NORM_EPS: [&str; 2] = ["rms_norm_eps", "norm_eps"];
const LAYER_NORM_EPS: [&str; 3] = ["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"];

/// Writes metadata keys of the GGUF file.
pub(crate) struct MetadataWriter<'a> {
    pub(crate) config: &'a Config,
    pub(crate) params: &'a HyperParameters,
    architecture: &'static str,
    writer: &'a mut Writer,
    /// Rows of the token embedding.
    vocab_size: u32,
    /// Tensors that follow from the configuration alone.
    pub(crate) tensors: Vec<OutputTensor<'static>>,
    /// Whether `attention.causal` has been written.
    has_causal_key: bool,
}

impl<'a> MetadataWriter<'a> {
    /// Starts the metadata of a model with `vocab_size` rows in its token embedding.
    pub(crate) fn new(
        config: &'a Config,
        params: &'a HyperParameters,
        architecture: &'static str,
        writer: &'a mut Writer,
        vocab_size: u64,
    ) -> Self {
        let vocab_size = u32::try_from(vocab_size).unwrap_or(u32::MAX);
        Self {
            config,
            params,
            architecture,
            writer,
            vocab_size,
            tensors: Vec::new(),
            has_causal_key: false,
        }
    }

    /// Fails if the configuration asks for bidirectional attention and the file does not say so.
    pub(crate) fn check_causal(&self) -> Result<(), ConvertError> {
        if self.has_causal_key || self.config.flag("is_causal") != Some(false) {
            return Ok(());
        }
        let found =
            format!("false, but GGUF files of {} support only causal attention", self.architecture);
        Err(self.config.invalid_value("is_causal", found))
    }

    /// Writes the keys that most families have: sizes, experts, norms, rotary embedding.
    pub(crate) fn write_common(&mut self) -> Result<(), ConvertError> {
        self.write_sizes();
        if self.config.opt_count("head_dim")?.is_some() {
            self.write_head_sizes();
        }
        self.write_experts()?;
        self.write_norm_epsilons()?;
        self.write_rope()
    }

    /// Sets a key with the architecture's prefix.
    pub(crate) fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.has_causal_key |= key == "attention.causal";
        self.writer.set(&format!("{}.{key}", self.architecture), value);
    }

    /// Sets a key without prefix.
    pub(crate) fn set_global(&mut self, key: &str, value: impl Into<Value>) {
        self.writer.set(key, value);
    }

    /// Values of an attention head.
    pub(crate) fn head_dim(&self) -> u32 {
        self.params.dims.head_dim
    }

    pub(crate) fn write_sizes(&mut self) {
        self.write_sizes_without_feed_forward();
        self.set("feed_forward_length", self.params.feed_forward_length);
    }

    /// Writes sizes without the feed-forward length, which the family writes in another way.
    pub(crate) fn write_sizes_without_feed_forward(&mut self) {
        let HyperParameters { hidden_size, context_length, .. } = *self.params;
        let Dimensions { layers, heads, kv_heads, .. } = self.params.dims;
        self.set("vocab_size", self.vocab_size);
        self.set("block_count", layers);
        self.set("context_length", context_length);
        self.set("embedding_length", hidden_size);
        self.set("attention.head_count", heads);
        self.set("attention.head_count_kv", kv_heads);
    }

    /// Writes the sizes of an encoder, which has as many KV heads as query heads.
    pub(crate) fn write_encoder_sizes(&mut self) {
        let HyperParameters { hidden_size, context_length, feed_forward_length, .. } = *self.params;
        self.set("block_count", self.params.dims.layers);
        self.set("context_length", context_length);
        self.set("embedding_length", hidden_size);
        self.set("feed_forward_length", feed_forward_length);
        self.set("attention.head_count", self.params.dims.heads);
    }

    /// Writes the number of tokens.
    pub(crate) fn write_vocab_size(&mut self) {
        self.set("vocab_size", self.vocab_size);
    }

    pub(crate) fn write_head_sizes(&mut self) {
        let head_dim = self.head_dim();
        self.set("attention.key_length", head_dim);
        self.set("attention.value_length", head_dim);
    }

    /// Sets whether special tokens are added around a text, regardless of the tokenizer's settings.
    pub(crate) fn set_add_special_tokens(&mut self, enabled: bool) {
        self.writer.set("tokenizer.ggml.add_bos_token", enabled);
        if enabled {
            self.writer
                .set("tokenizer.ggml.add_eos_token", true)
                .set("tokenizer.ggml.add_sep_token", true);
        }
    }

    /// Sets a list that must have one entry for each layer.
    pub(crate) fn set_layer_list<T>(
        &mut self,
        key: &str,
        values: Vec<T>,
    ) -> Result<(), ConvertError>
    where
        Value: From<Vec<T>>,
    {
        if values.len() != self.params.dims.layers as usize {
            let key = key.rsplit('.').next().unwrap_or(key);
            return Err(self.config.invalid(key, "a list with a number for each layer"));
        }
        self.set(key, values);
        Ok(())
    }

    /// Writes number, top-k, groups and gating function of experts, if there are any.
    pub(crate) fn write_experts(&mut self) -> Result<(), ConvertError> {
        if self.params.dims.experts == 0 {
            return Ok(());
        }
        self.set("expert_count", self.params.dims.experts);
        self.set_count("expert_used_count", &EXPERTS_USED)?;
        self.set_opt_count("expert_group_count", &["n_group"])?;
        self.set_opt_count("expert_group_used_count", &["topk_group"])?;
        let scores =
            GATING_FUNCTION_KEYS.iter().find_map(|key| Some((*key, self.config.text(key)?)));
        if let Some((key, scores)) = scores {
            let number = GATING_FUNCTIONS.iter().find(|(name, _)| *name == scores).map(|row| row.1);
            let found = || format!("{}, which is not supported", escape_for_message(scores));
            let number = number.ok_or_else(|| self.config.invalid_value(key, found()))?;
            self.set("expert_gating_func", number);
        }
        Ok(())
    }

    /// Writes the size of experts, the number of shared experts and leading dense layers, and the
    /// scaling of expert weights.
    pub(crate) fn write_expert_routing(&mut self) -> Result<(), ConvertError> {
        self.set_opt_count("expert_feed_forward_length", &["moe_intermediate_size"])?;
        self.set_opt_count_or_zero("expert_shared_count", &EXPERTS_SHARED)?;
        self.set_opt_count_or_zero("leading_dense_block_count", &LEADING_DENSE_LAYERS)?;
        self.set_opt_float("expert_weights_scale", &EXPERT_WEIGHTS_SCALE)?;
        for source in EXPERT_WEIGHTS_NORM {
            self.set_opt_flag("expert_weights_norm", source);
        }
        Ok(())
    }

    /// Sets the gating function to sigmoid.
    pub(crate) fn set_sigmoid_gating(&mut self) {
        self.set("expert_gating_func", GATING_FUNCTIONS[1].1);
    }

    /// Writes the epsilon of norms.
    pub(crate) fn write_norm_epsilons(&mut self) -> Result<(), ConvertError> {
        let layer = self.config.first_float(&LAYER_NORM_EPS)?;
        if let Some(eps) = layer {
            self.set("attention.layer_norm_epsilon", eps);
        }
        let rms = self.config.first_float(&RMS_NORM_EPS)?;
        if let Some(eps) = rms.or(layer.is_none().then_some(1e-5)) {
            self.set("attention.layer_norm_rms_epsilon", eps);
        }
        Ok(())
    }

    /// Sets a required number from the first configuration key that is present.
    pub(crate) fn set_count(
        &mut self,
        key: &str,
        config_keys: &[&str],
    ) -> Result<(), ConvertError> {
        let count = self.config.first_required_count(config_keys)?;
        self.set(key, count);
        Ok(())
    }

    /// Sets a positive number, if one of the configuration keys is present.
    pub(crate) fn set_opt_count(
        &mut self,
        key: &str,
        config_keys: &[&str],
    ) -> Result<(), ConvertError> {
        if let Some(count) = self.config.first_count(config_keys)? {
            self.set(key, count);
        }
        Ok(())
    }

    /// Sets a number that may be zero, if one of the configuration keys is present.
    pub(crate) fn set_opt_count_or_zero(
        &mut self,
        key: &str,
        config_keys: &[&str],
    ) -> Result<(), ConvertError> {
        if let Some(number) = self.config.first_count_or_zero(config_keys)? {
            self.set(key, number);
        }
        Ok(())
    }

    /// Sets a floating-point number, if one of the configuration keys is present.
    pub(crate) fn set_opt_float(
        &mut self,
        key: &str,
        config_keys: &[&str],
    ) -> Result<(), ConvertError> {
        if let Some(number) = self.config.first_float(config_keys)? {
            self.set(key, number);
        }
        Ok(())
    }

    /// Sets a boolean, if the configuration key is present.
    pub(crate) fn set_opt_flag(&mut self, key: &str, config_key: &str) {
        if let Some(flag) = self.config.flag(config_key) {
            self.set(key, flag);
        }
    }

    /// Sets the rotary dimension to the whole head.
    pub(crate) fn set_full_rope_dim(&mut self) {
        self.set("rope.dimension_count", self.head_dim());
    }

    /// Layers with a sliding window: by `layer_types`, else by a pattern of letters or a period in
    /// `sliding_window_pattern`. By period, every `default_period`-th layer has full attention.
    pub(crate) fn sliding_layers(&self, default_period: u32) -> Result<Vec<bool>, ConvertError> {
        let config = self.config;
        let layers = self.params.dims.layers;
        let by_type = config.strings("layer_types").map(|types| {
            types.iter().map(|kind| kind == "sliding_attention").collect::<Vec<bool>>()
        });
        let letters = config.text("sliding_window_pattern").filter(|text| !text.is_empty());
        let by_letter = || {
            letters
                .map(|text| text.bytes().cycle().take(layers as usize).map(|c| c == b'L').collect())
        };
        let period = match config.value("sliding_window_pattern") {
            Some(value) if value.is_number() => config.count("sliding_window_pattern")?,
            _ => default_period,
        };
        let by_number = || (1..=layers).map(|layer| !layer.is_multiple_of(period)).collect();
        let is_sliding: Vec<bool> = by_type.or_else(by_letter).unwrap_or_else(by_number);
        match is_sliding.len() == layers as usize {
            true => Ok(is_sliding),
            false => Err(config.invalid("layer_types", "a list with a string for each layer")),
        }
    }
}

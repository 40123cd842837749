//! Hyperparameters of a model's configuration.

use crate::error::ConvertError;
use crate::rules::Dimensions;
use crate::source::Config;

/// Keys that configurations of different families use for the same parameter.
const HIDDEN_SIZE: [&str; 5] = ["hidden_size", "n_embd", "n_embed", "d_model", "dim"];
const LAYERS: [&str; 4] = ["num_hidden_layers", "n_layer", "n_layers", "num_layers"];
const HEADS: [&str; 3] = ["num_attention_heads", "n_head", "n_heads"];
const KV_HEADS: [&str; 5] =
    ["num_key_value_heads", "n_head_kv", "n_kv_heads", "num_query_groups", "num_attention_groups"];
const FEED_FORWARD: [&str; 4] = ["intermediate_size", "n_inner", "ffn_hidden_size", "hidden_dim"];
const CONTEXT_LENGTH: [&str; 6] = [
    "max_position_embeddings",
    "n_ctx",
    "n_positions",
    "max_sequence_length",
    "model_max_length",
    "max_seq_len",
];
const EXPERTS: [&str; 4] =
    ["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"];

/// Largest number of values in a head: some tensors are created from this number alone.
pub(crate) const MAX_HEAD_DIM: u32 = 1 << 16;
pub(crate) const MAX_HEAD_DIM_TEXT: &str = "at most 65536";

/// Hyperparameters from the configuration.
pub(crate) struct HyperParameters {
    pub(crate) dims: Dimensions,
    pub(crate) hidden_size: u32,
    pub(crate) context_length: u32,
    /// Width of the feed-forward network.
    pub(crate) feed_forward_length: u32,
}

/// Values for parameters that a configuration omits.
pub(crate) struct Defaults {
    pub(crate) heads: u32,
    pub(crate) kv_heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) context_length: u32,
    pub(crate) feed_forward_length: u32,
}

impl HyperParameters {
    /// Reads a configuration that may omit only the number of KV heads and the size of a head.
    pub(crate) fn from_config(config: &Config) -> Result<Self, ConvertError> {
        Self::with_sizes(
            config,
            config.first_required_count(&CONTEXT_LENGTH)?,
            config.first_required_count(&FEED_FORWARD)?,
        )
    }

    /// Like [`HyperParameters::from_config`], but a missing feed-forward length is four times the
    /// hidden size.
    pub(crate) fn with_default_feed_forward(config: &Config) -> Result<Self, ConvertError> {
        Self::with_sizes(
            config,
            config.first_required_count(&CONTEXT_LENGTH)?,
            Self::feed_forward_or_4x(config)?,
        )
    }

    /// Like [`HyperParameters::with_default_feed_forward`], but the context length may be missing,
    /// too.
    pub(crate) fn with_default_context(
        config: &Config,
        default_context: u32,
    ) -> Result<Self, ConvertError> {
        let context_length = config
            .first_count(&["seq_length", "max_position_embeddings"])?
            .unwrap_or(default_context);
        Self::with_sizes(config, context_length, Self::feed_forward_or_4x(config)?)
    }

    fn feed_forward_or_4x(config: &Config) -> Result<u32, ConvertError> {
        Ok(config
            .first_count(&FEED_FORWARD)?
            .unwrap_or(config.first_required_count(&HIDDEN_SIZE)?.saturating_mul(4)))
    }

    /// Reads the other parameters of a configuration; the caller gives context and feed-forward
    /// length.
    pub(crate) fn with_sizes(
        config: &Config,
        context_length: u32,
        feed_forward_length: u32,
    ) -> Result<Self, ConvertError> {
        let (heads, hidden_size) =
            (config.first_required_count(&HEADS)?, config.first_required_count(&HIDDEN_SIZE)?);
        let mut params = Self::with_defaults(
            config,
            &Defaults {
                heads,
                kv_heads: heads,
                head_dim: hidden_size / heads,
                context_length,
                feed_forward_length,
            },
        )?;
        (params.context_length, params.feed_forward_length) = (context_length, feed_forward_length);
        Ok(params)
    }

    /// Reads a configuration whose number of layers the caller has computed. The feed-forward
    /// length is 0.
    pub(crate) fn with_layer_count(config: &Config, layers: u32) -> Result<Self, ConvertError> {
        let (heads, hidden_size) =
            (config.first_required_count(&HEADS)?, config.first_required_count(&HIDDEN_SIZE)?);
        let context_length = config.first_count(&CONTEXT_LENGTH)?.unwrap_or(1 << 20);
        let defaults = Defaults {
            heads,
            kv_heads: heads,
            head_dim: hidden_size / heads,
            context_length,
            feed_forward_length: 0,
        };
        Self::with_defaults_and_layers(config, &defaults, layers)
    }

    /// Reads a configuration and fills in defaults.
    pub(crate) fn with_defaults(
        config: &Config,
        defaults: &Defaults,
    ) -> Result<Self, ConvertError> {
        Self::with_defaults_and_layers(config, defaults, config.first_required_count(&LAYERS)?)
    }

    /// Like [`HyperParameters::with_defaults`], with a given number of layers.
    fn with_defaults_and_layers(
        config: &Config,
        defaults: &Defaults,
        layers: u32,
    ) -> Result<Self, ConvertError> {
        let dims = Dimensions {
            layers,
            heads: config.first_count(&HEADS)?.unwrap_or(defaults.heads),
            kv_heads: config.first_count(&KV_HEADS)?.unwrap_or(defaults.kv_heads),
            head_dim: config.opt_count("head_dim")?.unwrap_or(defaults.head_dim),
            experts: config.first_count_or_zero(&EXPERTS)?.unwrap_or(0),
            groups: 0,
        };
        let context_length =
            config.first_count(&CONTEXT_LENGTH)?.unwrap_or(defaults.context_length);
        Ok(Self {
            dims,
            hidden_size: config.first_required_count(&HIDDEN_SIZE)?,
            context_length,
            feed_forward_length: defaults.feed_forward_length,
        })
    }
}

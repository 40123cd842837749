//! What a configuration says about a network, and the keys that it becomes. A family's function writes the usual ones, then
//! its own.

use puna_gguf::{Value, Writer};

use super::ImportError;
use super::config::Json;
use super::plan::Output;
use super::rules::Sizes;
use crate::error::StoreError;

/// Names of the same thing in the configurations of different families.
const WIDTH: [&str; 4] = ["hidden_size", "n_embd", "d_model", "dim"];
const LAYERS: [&str; 4] = ["num_hidden_layers", "n_layer", "n_layers", "num_layers"];
const HEADS: [&str; 3] = ["num_attention_heads", "n_head", "n_heads"];
const KV_HEADS: [&str; 3] = ["num_key_value_heads", "n_head_kv", "n_kv_heads"];
const INNER: [&str; 4] = ["intermediate_size", "n_inner", "ffn_hidden_size", "hidden_dim"];
const CONTEXT: [&str; 6] = [
    "max_position_embeddings",
    "n_ctx",
    "n_positions",
    "max_sequence_length",
    "model_max_length",
    "max_seq_len",
];
const EXPERTS: [&str; 4] = ["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"];
const EXPERTS_USED: [&str; 4] =
    ["num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_k"];
const RMS_EPS: [&str; 2] = ["rms_norm_eps", "norm_eps"];
const NORM_EPS: [&str; 3] = ["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"];

/// What the configuration says about the network.
pub(super) struct Shape {
    pub(super) sizes: Sizes,
    pub(super) width: u32,
    pub(super) context: u32,
}

/// What is meant where a configuration says nothing.
pub(super) struct Usual {
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) head: u32,
    pub(super) context: u32,
}

impl Shape {
    /// Everything but heads of keys and the size of heads must be said.
    pub(super) fn usual(config: &Json) -> Result<Self, StoreError> {
        let heads = config.one_of(&HEADS)?;
        let context = config.one_of(&CONTEXT)?;
        let width = config.one_of(&WIDTH)?;
        let usual = Usual { heads, kv_heads: heads, head: width / heads, context };
        Self::with(config, &usual)
    }

    /// What is not said is what is usual.
    pub(super) fn with(config: &Json, usual: &Usual) -> Result<Self, StoreError> {
        let sizes = Sizes {
            layers: config.one_of(&LAYERS)?,
            heads: config.first_count(&HEADS)?.unwrap_or(usual.heads),
            kv_heads: config.first_count(&KV_HEADS)?.unwrap_or(usual.kv_heads),
            head: config.opt_count("head_dim")?.unwrap_or(usual.head),
            experts: config.first_count(&EXPERTS)?.unwrap_or(0),
        };
        let context = config.first_count(&CONTEXT)?.unwrap_or(usual.context);
        Ok(Self { sizes, width: config.one_of(&WIDTH)?, context })
    }
}

/// The keys of a file in the making.
pub(super) struct Keys<'a> {
    pub(super) config: &'a Json,
    pub(super) shape: &'a Shape,
    architecture: &'static str,
    writer: &'a mut Writer,
    rows: u32,
    /// Tensors that follow from the configuration.
    pub(super) tensors: Vec<Output<'static>>,
}

impl<'a> Keys<'a> {
    /// Keys of a model whose table of tokens has so many rows.
    pub(super) fn new(
        config: &'a Json,
        shape: &'a Shape,
        architecture: &'static str,
        writer: &'a mut Writer,
        rows: u64,
    ) -> Self {
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        Self { config, shape, architecture, writer, rows, tensors: Vec::new() }
    }

    /// The usual keys: sizes, experts, norms, positions.
    pub(super) fn usual(&mut self) -> Result<(), StoreError> {
        self.sizes()?;
        if self.config.opt_count("head_dim")?.is_some() {
            self.head_sizes();
        }
        self.experts()?;
        self.norms()?;
        self.rope()
    }

    /// Sets a key of the architecture.
    pub(super) fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.writer.set(&format!("{}.{key}", self.architecture), value);
    }

    /// Rows of the table of tokens.
    pub(super) fn rows(&self) -> u32 {
        self.rows
    }

    /// Values of a head.
    pub(super) fn head(&self) -> u32 {
        self.shape.sizes.head
    }

    pub(super) fn sizes(&mut self) -> Result<(), StoreError> {
        let (width, context) = (self.shape.width, self.shape.context);
        let Sizes { layers, heads, kv_heads, .. } = self.shape.sizes;
        self.set("block_count", layers);
        self.set("context_length", context);
        self.set("embedding_length", width);
        self.count("feed_forward_length", &INNER)?;
        self.set("attention.head_count", heads);
        self.set("attention.head_count_kv", kv_heads);
        Ok(())
    }

    pub(super) fn head_sizes(&mut self) {
        let head = self.head();
        self.set("attention.key_length", head);
        self.set("attention.value_length", head);
    }

    /// How many experts there are and how many are asked, where there are some.
    pub(super) fn experts(&mut self) -> Result<(), StoreError> {
        if self.shape.sizes.experts > 0 {
            self.set("expert_count", self.shape.sizes.experts);
            self.count("expert_used_count", &EXPERTS_USED)?;
        }
        Ok(())
    }

    /// What keeps norms from dividing by nothing.
    pub(super) fn norms(&mut self) -> Result<(), StoreError> {
        let layer = self.config.first_float(&NORM_EPS)?;
        if let Some(eps) = layer {
            self.set("attention.layer_norm_epsilon", eps);
        }
        let rms = self.config.first_float(&RMS_EPS)?;
        if let Some(eps) = rms.or(layer.is_none().then_some(1e-5)) {
            self.set("attention.layer_norm_rms_epsilon", eps);
        }
        Ok(())
    }

    /// A number that must be there, under the first of its names.
    pub(super) fn count(&mut self, key: &str, there: &[&str]) -> Result<(), StoreError> {
        let count = self.config.one_of(there)?;
        self.set(key, count);
        Ok(())
    }

    /// A number, where it is there.
    pub(super) fn count_if(&mut self, key: &str, there: &[&str]) -> Result<(), StoreError> {
        if let Some(count) = self.config.first_count(there)? {
            self.set(key, count);
        }
        Ok(())
    }

    /// A number with a point, where it is there.
    pub(super) fn float_if(&mut self, key: &str, there: &[&str]) -> Result<(), StoreError> {
        if let Some(number) = self.config.first_float(there)? {
            self.set(key, number);
        }
        Ok(())
    }

    /// Whether something is so, where it is said.
    pub(super) fn flag_if(&mut self, key: &str, there: &str) {
        if let Some(flag) = self.config.flag(there) {
            self.set(key, flag);
        }
    }

    /// Which layers have a window: by `layer_types`, or a pattern of letters or a number, or all but every so many-eth.
    pub(super) fn sliding_layers(&self, every: u32) -> Result<Vec<bool>, ImportError> {
        let config = self.config;
        let layers = self.shape.sizes.layers;
        let of_type = config
            .strings("layer_types")
            .map(|types| types.iter().map(|kind| kind == "sliding_attention").collect::<Vec<bool>>());
        let letters = config.text("sliding_window_pattern").filter(|text| !text.is_empty());
        let by_letter =
            || letters.map(|text| text.bytes().cycle().take(layers as usize).map(|c| c == b'L').collect());
        let every = match config.value("sliding_window_pattern") {
            Some(value) if value.is_number() => config.count("sliding_window_pattern")?,
            _ => every,
        };
        let by_number = || (1..=layers).map(|layer| !layer.is_multiple_of(every)).collect();
        let slides: Vec<bool> = of_type.or_else(by_letter).unwrap_or_else(by_number);
        match slides.len() == layers as usize {
            true => Ok(slides),
            false => Err(config.wrong("layer_types", "a list with a word for each layer")),
        }
    }
}

//! What a configuration says about a network, and the keys that it becomes. A family's function writes the usual ones, then
//! its own.

use puna_gguf::{Value, Writer};

use super::ImportError;
use super::config::Json;
use super::plan::Output;
use super::rules::Sizes;
use crate::error::StoreError;

/// Names of the same thing in the configurations of different families.
const WIDTH: [&str; 5] = ["hidden_size", "n_embd", "n_embed", "d_model", "dim"];
const LAYERS: [&str; 4] = ["num_hidden_layers", "n_layer", "n_layers", "num_layers"];
const HEADS: [&str; 3] = ["num_attention_heads", "n_head", "n_heads"];
const KV_HEADS: [&str; 5] =
    ["num_key_value_heads", "n_head_kv", "n_kv_heads", "num_query_groups", "num_attention_groups"];
const INNER: [&str; 4] = ["intermediate_size", "n_inner", "ffn_hidden_size", "hidden_dim"];
const CONTEXT: [&str; 6] = [
    "max_position_embeddings",
    "n_ctx",
    "n_positions",
    "max_sequence_length",
    "model_max_length",
    "max_seq_len",
];
const EXPERTS: [&str; 4] =
    ["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"];
const EXPERTS_USED: [&str; 5] =
    ["num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_k", "moe_top_k"];
const EXPERTS_SHARED: [&str; 3] =
    ["n_shared_experts", "num_shared_experts", "moe_num_shared_experts"];
const DENSE_FIRST: [&str; 4] = [
    "first_k_dense_replace",
    "num_dense_layers",
    "moe_layer_start_index",
    "first_last_k_dense_replace",
];
const EXPERT_SCALE: [&str; 3] =
    ["routed_scaling_factor", "route_scale", "moe_routed_scaling_factor"];
const EXPERT_NORM: [&str; 2] = ["norm_topk_prob", "route_norm"];
const EXPERT_SCORES: [&str; 6] = [
    "scoring_func",
    "score_func",
    "score_function",
    "moe_router_activation",
    "moe_router_activation_func",
    "expert_selection_fn",
];
/// Functions that make scores of experts, with their numbers.
const SCORES: [(&str, u32); 3] = [("softmax", 1), ("sigmoid", 2), ("sqrtsoftplus", 4)];
const RMS_EPS: [&str; 2] = ["rms_norm_eps", "norm_eps"];
const NORM_EPS: [&str; 3] = ["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"];

/// What the configuration says about the network.
pub(super) struct Shape {
    pub(super) sizes: Sizes,
    pub(super) width: u32,
    pub(super) context: u32,
    /// Values within a feed-forward network.
    pub(super) inner: u32,
}

/// What is meant where a configuration says nothing.
pub(super) struct Usual {
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) head: u32,
    pub(super) context: u32,
    pub(super) inner: u32,
}

impl Shape {
    /// Everything but heads of keys and the size of heads must be said.
    pub(super) fn usual(config: &Json) -> Result<Self, StoreError> {
        Self::of(config, config.one_of(&CONTEXT)?, config.one_of(&INNER)?)
    }

    /// The inside of feed-forward networks may be unsaid: it is four times as wide as the rest.
    pub(super) fn four(config: &Json) -> Result<Self, StoreError> {
        Self::of(config, config.one_of(&CONTEXT)?, Self::four_times(config)?)
    }

    /// So is the context, which has no end.
    pub(super) fn endless(config: &Json, usual: u32) -> Result<Self, StoreError> {
        let context =
            config.first_count(&["seq_length", "max_position_embeddings"])?.unwrap_or(usual);
        Self::of(config, context, Self::four_times(config)?)
    }

    fn four_times(config: &Json) -> Result<u32, StoreError> {
        Ok(config.first_count(&INNER)?.unwrap_or(config.one_of(&WIDTH)?.saturating_mul(4)))
    }

    /// With a context and an inside that were found elsewhere.
    pub(super) fn of(config: &Json, context: u32, inner: u32) -> Result<Self, StoreError> {
        let (heads, width) = (config.one_of(&HEADS)?, config.one_of(&WIDTH)?);
        let mut shape = Self::with(
            config,
            &Usual { heads, kv_heads: heads, head: width / heads, context, inner },
        )?;
        (shape.context, shape.inner) = (context, inner);
        Ok(shape)
    }

    /// The usual shape of a network whose layers are counted in another way.
    pub(super) fn of_layers(config: &Json, layers: u32) -> Result<Self, StoreError> {
        let (heads, width) = (config.one_of(&HEADS)?, config.one_of(&WIDTH)?);
        let context = config.first_count(&CONTEXT)?.unwrap_or(1 << 20);
        let usual = Usual { heads, kv_heads: heads, head: width / heads, context, inner: 0 };
        Self::with_layers(config, &usual, layers)
    }

    /// What is not said is what is usual.
    pub(super) fn with(config: &Json, usual: &Usual) -> Result<Self, StoreError> {
        Self::with_layers(config, usual, config.one_of(&LAYERS)?)
    }

    /// The same of so many layers.
    fn with_layers(config: &Json, usual: &Usual, layers: u32) -> Result<Self, StoreError> {
        let sizes = Sizes {
            layers,
            heads: config.first_count(&HEADS)?.unwrap_or(usual.heads),
            kv_heads: config.first_count(&KV_HEADS)?.unwrap_or(usual.kv_heads),
            head: config.opt_count("head_dim")?.unwrap_or(usual.head),
            experts: config.first_number(&EXPERTS)?.unwrap_or(0),
            groups: 0,
        };
        let context = config.first_count(&CONTEXT)?.unwrap_or(usual.context);
        Ok(Self { sizes, width: config.one_of(&WIDTH)?, context, inner: usual.inner })
    }
}

/// The keys of a file in the making.
pub(super) struct Keys<'a> {
    pub(super) config: &'a Json,
    pub(super) shape: &'a Shape,
    architecture: &'static str,
    writer: &'a mut Writer,
    /// Rows of the table of tokens.
    rows: u32,
    /// Tensors that follow from the configuration.
    pub(super) tensors: Vec<Output<'static>>,
    /// Whether the file says who sees whom.
    says_causal: bool,
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
        Self { config, shape, architecture, writer, rows, tensors: Vec::new(), says_causal: false }
    }

    /// Where all tokens see all others, the file must say so.
    pub(super) fn check_causal(&self) -> Result<(), ImportError> {
        if self.says_causal || self.config.flag("is_causal") != Some(false) {
            return Ok(());
        }
        let found = format!(
            "false, and in a GGUF file of {} tokens see what came before them alone",
            self.architecture
        );
        Err(self.config.wrong_value("is_causal", found))
    }

    /// The usual keys: sizes, experts, norms, positions.
    pub(super) fn usual(&mut self) -> Result<(), StoreError> {
        self.sizes();
        if self.config.opt_count("head_dim")?.is_some() {
            self.head_sizes();
        }
        self.experts()?;
        self.norms()?;
        self.rope()
    }

    /// Sets a key of the architecture.
    pub(super) fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.says_causal |= key == "attention.causal";
        self.writer.set(&format!("{}.{key}", self.architecture), value);
    }

    /// Sets a key that is of no architecture.
    pub(super) fn set_whole(&mut self, key: &str, value: impl Into<Value>) {
        self.writer.set(key, value);
    }

    /// Values of a head.
    pub(super) fn head(&self) -> u32 {
        self.shape.sizes.head
    }

    pub(super) fn sizes(&mut self) {
        self.sizes_without_inner();
        self.set("feed_forward_length", self.shape.inner);
    }

    /// The sizes of a network whose layers' insides are told in another way.
    pub(super) fn sizes_without_inner(&mut self) {
        let Shape { width, context, .. } = *self.shape;
        let Sizes { layers, heads, kv_heads, .. } = self.shape.sizes;
        self.set("vocab_size", self.rows);
        self.set("block_count", layers);
        self.set("context_length", context);
        self.set("embedding_length", width);
        self.set("attention.head_count", heads);
        self.set("attention.head_count_kv", kv_heads);
    }

    /// The sizes of an encoder, all heads of which have keys of their own.
    pub(super) fn encoder_sizes(&mut self) {
        let Shape { width, context, inner, .. } = *self.shape;
        self.set("block_count", self.shape.sizes.layers);
        self.set("context_length", context);
        self.set("embedding_length", width);
        self.set("feed_forward_length", inner);
        self.set("attention.head_count", self.shape.sizes.heads);
    }

    /// How many tokens there are.
    pub(super) fn set_rows(&mut self) {
        self.set("vocab_size", self.rows);
    }

    pub(super) fn head_sizes(&mut self) {
        let head = self.head();
        self.set("attention.key_length", head);
        self.set("attention.value_length", head);
    }

    /// Whether tokens stand around a text, whatever the tokenizer says.
    pub(super) fn around(&mut self, is_so: bool) {
        self.writer.set("tokenizer.ggml.add_bos_token", is_so);
        if is_so {
            self.writer
                .set("tokenizer.ggml.add_eos_token", true)
                .set("tokenizer.ggml.add_sep_token", true);
        }
    }

    /// A list with something for each layer.
    pub(super) fn list<T>(&mut self, key: &str, values: Vec<T>) -> Result<(), StoreError>
    where
        Value: From<Vec<T>>,
    {
        if values.len() != self.shape.sizes.layers as usize {
            let key = key.rsplit('.').next().unwrap_or(key);
            return Err(self.config.wrong(key, "a list with a number for each layer").into());
        }
        self.set(key, values);
        Ok(())
    }

    /// How many experts there are, how many are asked and how they are chosen, where there are some.
    pub(super) fn experts(&mut self) -> Result<(), StoreError> {
        if self.shape.sizes.experts == 0 {
            return Ok(());
        }
        self.set("expert_count", self.shape.sizes.experts);
        self.count("expert_used_count", &EXPERTS_USED)?;
        self.count_if("expert_group_count", &["n_group"])?;
        self.count_if("expert_group_used_count", &["topk_group"])?;
        let scores = EXPERT_SCORES.iter().find_map(|key| Some((*key, self.config.text(key)?)));
        if let Some((key, scores)) = scores {
            let number = SCORES.iter().find(|(name, _)| *name == scores).map(|row| row.1);
            let found = || format!("{}, which is not known", crate::name::shown(scores));
            let number = number.ok_or_else(|| self.config.wrong_value(key, found()))?;
            self.set("expert_gating_func", number);
        }
        Ok(())
    }

    /// How large experts are, which are shared, from which layer on there are some, and how their answers are weighted.
    pub(super) fn routed(&mut self) -> Result<(), StoreError> {
        self.count_if("expert_feed_forward_length", &["moe_intermediate_size"])?;
        self.number_if("expert_shared_count", &EXPERTS_SHARED)?;
        self.number_if("leading_dense_block_count", &DENSE_FIRST)?;
        self.float_if("expert_weights_scale", &EXPERT_SCALE)?;
        for there in EXPERT_NORM {
            self.flag_if("expert_weights_norm", there);
        }
        Ok(())
    }

    /// Experts are scored by a sigmoid each.
    pub(super) fn sigmoid(&mut self) {
        self.set("expert_gating_func", SCORES[1].1);
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

    /// A number that may be none, where it is there.
    pub(super) fn number_if(&mut self, key: &str, there: &[&str]) -> Result<(), StoreError> {
        if let Some(number) = self.config.first_number(there)? {
            self.set(key, number);
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

    /// That all of a head turns.
    pub(super) fn turns_whole(&mut self) {
        self.set("rope.dimension_count", self.head());
    }

    /// Which layers have a window: by `layer_types`, or a pattern of letters or a number, or all but every so many-eth.
    pub(super) fn sliding_layers(&self, every: u32) -> Result<Vec<bool>, ImportError> {
        let config = self.config;
        let layers = self.shape.sizes.layers;
        let of_type = config.strings("layer_types").map(|types| {
            types.iter().map(|kind| kind == "sliding_attention").collect::<Vec<bool>>()
        });
        let letters = config.text("sliding_window_pattern").filter(|text| !text.is_empty());
        let by_letter = || {
            letters
                .map(|text| text.bytes().cycle().take(layers as usize).map(|c| c == b'L').collect())
        };
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

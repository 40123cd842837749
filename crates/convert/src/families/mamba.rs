//! Mamba 1 and 2, and hybrids of Mamba and attention: Jamba, Falcon-H1, PLaMo 2.

use super::common_rules::ATTENTION;
use super::default_family::DEFAULT;
use super::sliding_window::{PLAMO3, PLAMO3_LAYER};
use crate::error::ConvertError;
use crate::family::{Family, LayerUniformity, TensorMapper};
use crate::metadata::{Defaults, HyperParameters, MetadataWriter};
use crate::output::{OutputTensor, RowBands, ValueTransform};
use crate::rules::{Dimensions, SourceLayout, TensorRule, rename};
use crate::source::{Config, Weights};

/// Context length in metadata: a recurrent state does not limit it.
const UNLIMITED_CONTEXT: u32 = 1 << 20;

/// Configuration keys of Mamba's parameters.
const INNER: [&str; 3] = ["mamba_d_ssm", "intermediate_size", "d_inner"];
const STATE: [&str; 5] =
    ["state_size", "d_state", "mamba_d_state", "ssm_state_size", "mamba_state_dim"];
const KERNEL: [&str; 4] = ["conv_kernel", "d_conv", "mamba_d_conv", "mamba_conv_kernel"];
const RANK: [&str; 3] = ["time_step_rank", "dt_rank", "mamba_dt_rank"];
const EPS: [&str; 2] = ["layer_norm_epsilon", "rms_norm_eps"];
const WIDTH: [&str; 3] = ["hidden_size", "d_model", "dim"];
const LAYERS: [&str; 3] = ["num_hidden_layers", "n_layer", "n_layers"];

/// Rules for Mamba 1 mixers under a module prefix.
macro_rules! mamba1_rules {
    ($within:literal) => {
        [
            rename(concat!($within, "in_proj"), "ssm_in"),
            rename(concat!($within, "conv1d"), "ssm_conv1d").with_layout(SourceLayout::Squeezed),
            rename(concat!($within, "x_proj"), "ssm_x"),
            rename(concat!($within, "dt_proj"), "ssm_dt"),
            rename(concat!($within, "A_log"), "ssm_a."),
            rename(concat!($within, "D"), "ssm_d."),
            rename(concat!($within, "out_proj"), "ssm_out"),
        ]
    };
}

/// Rules for Mamba 2 mixers under a module prefix.
macro_rules! mamba2_rules {
    ($within:literal) => {
        [
            rename(concat!($within, "in_proj"), "ssm_in"),
            rename(concat!($within, "conv1d"), "ssm_conv1d").with_layout(SourceLayout::Squeezed),
            rename(concat!($within, "dt_bias"), "ssm_dt.bias"),
            rename(concat!($within, "A_log"), "ssm_a.").with_layout(SourceLayout::ColumnVector),
            rename(concat!($within, "D"), "ssm_d.").with_layout(SourceLayout::ColumnVector),
            rename(concat!($within, "norm"), "ssm_norm").with_layout(SourceLayout::GroupRows),
            rename(concat!($within, "out_proj"), "ssm_out"),
        ]
    };
}

const MAMBA1_MIXER: [TensorRule; 7] = mamba1_rules!("mixer.");
const JAMBA_MIXER: [TensorRule; 7] = mamba1_rules!("mamba.");
pub(super) const MAMBA2_MIXER: [TensorRule; 7] = mamba2_rules!("mixer.");
pub(super) const MAMBA2_IN_HYBRID: [TensorRule; 7] = mamba2_rules!("mamba.");

/// Tensors outside of layers.
pub(super) const BACKBONE_GLOBAL: [TensorRule; 4] = [
    rename("embeddings", "token_embd"),
    rename("embedding", "token_embd"),
    rename("norm_f", "output_norm"),
    rename("lm_head", "output"),
];
const NORM: [TensorRule; 1] = [rename("norm", "attn_norm")];

/// Decay rates: the folder stores the logarithm of their magnitude.
pub(super) fn negate_exp_of_decay(_: &Config, name: &str) -> Result<ValueTransform, ConvertError> {
    Ok(if name == "ssm_a" { ValueTransform::NegativeExp } else { ValueTransform::None })
}

/// Hyperparameters of a model without attention.
fn attention_free_parameters(config: &Config) -> Result<HyperParameters, ConvertError> {
    let groups = config.opt_count("n_groups")?.unwrap_or(1);
    let dims = Dimensions {
        layers: config.first_required_count(&LAYERS)?,
        groups,
        ..Dimensions::default()
    };
    Ok(HyperParameters {
        dims,
        hidden_size: config.first_required_count(&WIDTH)?,
        context_length: UNLIMITED_CONTEXT,
        feed_forward_length: 0,
    })
}

/// Ignores the output matrix if the configuration does not say whether embeddings are tied: the
/// output then is the token embedding.
fn drop_tied_output<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    _: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    if mapper.config.flag("tie_word_embeddings").is_none() {
        weights.discard(|name| name == "lm_head.weight");
    }
    Ok(())
}

impl MetadataWriter<'_> {
    /// Writes the sizes of a model without attention.
    fn write_attention_free_sizes(&mut self) -> Result<(), ConvertError> {
        self.set("context_length", self.params.context_length);
        self.set("embedding_length", self.params.hidden_size);
        self.set("feed_forward_length", 0u32);
        self.set("attention.head_count", 0u32);
        self.set("block_count", self.params.dims.layers);
        self.set(
            "attention.layer_norm_rms_epsilon",
            self.config.first_float(&EPS)?.unwrap_or(1e-5),
        );
        Ok(())
    }

    /// Writes the sizes of the recurrent state.
    fn write_ssm(
        &mut self,
        inner: u32,
        rank: u32,
        default_state_size: u32,
    ) -> Result<(), ConvertError> {
        self.set("ssm.conv_kernel", self.config.first_count(&KERNEL)?.unwrap_or(4));
        self.set("ssm.inner_size", inner);
        self.set("ssm.state_size", self.config.first_count(&STATE)?.unwrap_or(default_state_size));
        self.set("ssm.time_step_rank", rank);
        Ok(())
    }

    /// Sets a list with a number for each layer.
    pub(super) fn set_by_layer(&mut self, key: &str, number: impl Fn(u32) -> u32) {
        let numbers: Vec<i32> =
            (0..self.params.dims.layers).map(|layer| number(layer) as i32).collect();
        self.set(key, numbers);
    }

    /// Writes the sizes of Mamba 2's state, with `heads` heads in total.
    pub(super) fn write_grouped_ssm(&mut self, inner: u32, heads: u32) -> Result<(), ConvertError> {
        self.write_ssm(inner, heads, 128)?;
        self.set("ssm.group_count", self.params.dims.groups);
        Ok(())
    }
}

pub(super) const MAMBA: Family = Family {
    architecture: "mamba",
    classes: &["MambaForCausalLM", "MambaLMHeadModel", "FalconMambaForCausalLM"],
    root_prefix: "backbone.",
    global_rules: &[&BACKBONE_GLOBAL],
    layer_rules: &[&NORM, &MAMBA1_MIXER],
    value_transform: negate_exp_of_decay,
    hyper_parameters: attention_free_parameters,
    custom_tensors: Some(drop_tied_output),
    write_metadata: |metadata| {
        metadata.write_attention_free_sizes()?;
        let config = metadata.config;
        let width = metadata.params.hidden_size;
        let inner = config.first_count(&INNER[1..])?.unwrap_or(2 * width);
        let rank = config.first_count(&RANK)?.unwrap_or(width.div_ceil(16));
        metadata.write_ssm(inner, rank, 16)?;
        metadata.set("ssm.dt_b_c_rms", config.text("model_type") == Some("falcon_mamba"));
        Ok(())
    },
    ..DEFAULT
};

pub(super) const MAMBA2: Family = Family {
    architecture: "mamba2",
    classes: &["Mamba2ForCausalLM"],
    root_prefix: "backbone.",
    global_rules: &[&BACKBONE_GLOBAL],
    layer_rules: &[&NORM, &MAMBA2_MIXER],
    value_transform: negate_exp_of_decay,
    hyper_parameters: attention_free_parameters,
    custom_tensors: Some(|_, weights, _| {
        // Names of Codestral Mamba have a further prefix.
        weights.rename(|name| {
            let name = name.strip_prefix("model.").unwrap_or(name);
            name.strip_prefix("backbone.").unwrap_or(name).to_owned()
        })?;
        Ok(())
    }),
    write_metadata: |metadata| {
        metadata.write_attention_free_sizes()?;
        let inner = match metadata.config.first_count(&INNER)? {
            Some(inner) => inner,
            None => metadata
                .config
                .opt_count("expand")?
                .unwrap_or(2)
                .saturating_mul(metadata.params.hidden_size),
        };
        let head_dim = metadata.config.first_count(&["mamba_d_head", "head_dim"])?.unwrap_or(64);
        metadata.write_grouped_ssm(inner, inner / head_dim)
    },
    ..DEFAULT
};

const JAMBA_LAYER: [TensorRule; 11] = [
    rename("pre_ff_layernorm", "ffn_norm"),
    rename("mamba.dt_layernorm", "ssm_dt_norm"),
    rename("mamba.b_layernorm", "ssm_b_norm"),
    rename("mamba.c_layernorm", "ssm_c_norm"),
    rename("feed_forward.gate_proj", "ffn_gate"),
    rename("feed_forward.up_proj", "ffn_up"),
    rename("feed_forward.down_proj", "ffn_down"),
    rename("feed_forward.router", "ffn_gate_inp"),
    rename("feed_forward.experts.{}.gate_proj", "ffn_gate_exps"),
    rename("feed_forward.experts.{}.up_proj", "ffn_up_exps"),
    rename("feed_forward.experts.{}.down_proj", "ffn_down_exps"),
];
const FINAL_NORM_GLOBAL: [TensorRule; 3] = [
    rename("embed_tokens", "token_embd"),
    rename("final_layernorm", "output_norm"),
    rename("lm_head", "output"),
];

/// A function that says which layers have experts or attention: one of each period, beginning at an
/// offset.
fn layer_period(config: &Config, what: &str) -> Result<impl Fn(u32) -> bool + use<>, ConvertError> {
    let period = config.count(&format!("{what}_layer_period"))?;
    let key = format!("{what}_layer_offset");
    let offset = config.value(&key).and_then(serde_json::Value::as_u64);
    let offset = offset.ok_or_else(|| config.invalid(&key, "a number"))?;
    Ok(move |layer: u32| {
        u64::from(layer).checked_sub(offset).is_some_and(|at| at.is_multiple_of(period.into()))
    })
}

pub(super) const JAMBA: Family = Family {
    architecture: "jamba",
    classes: &["JambaForCausalLM"],
    global_rules: &[&FINAL_NORM_GLOBAL],
    layer_rules: &[&ATTENTION, &JAMBA_MIXER, &JAMBA_LAYER],
    layer_uniformity: LayerUniformity::Arbitrary,
    value_transform: negate_exp_of_decay,
    custom_tensors: Some(|mapper, weights, _| {
        let has_experts = layer_period(mapper.config, "expert")?;
        weights.rename(|name| {
            let name = name.replace(".moe.", ".feed_forward.");
            let layer =
                name.strip_prefix("layers.").and_then(|rest| rest.split('.').next()?.parse().ok());
            match layer {
                // In old folders, a layer without experts has its network under the name of expert
                // 0.
                Some(layer) if !has_experts(layer) => name.replace(".experts.0.", "."),
                _ => name,
            }
        })?;
        Ok(())
    }),
    write_metadata: |metadata| {
        metadata.write_sizes();
        let (config, width) = (metadata.config, metadata.params.hidden_size);
        let (has_attention, kv_heads) =
            (layer_period(config, "attn")?, metadata.params.dims.kv_heads);
        metadata.set_by_layer("attention.head_count_kv", |layer| {
            if has_attention(layer) { kv_heads } else { 0 }
        });
        let inner = config.opt_count("mamba_expand")?.unwrap_or(2).saturating_mul(width);
        let rank = config.opt_count("mamba_dt_rank")?.unwrap_or(width.div_ceil(16));
        metadata.write_ssm(inner, rank, 16)?;
        metadata.set("attention.layer_norm_rms_epsilon", config.first_float(&EPS)?.unwrap_or(1e-6));
        metadata.write_experts()
    },
    ..DEFAULT
};

const H1_LAYER: [TensorRule; 4] = [
    // llama.cpp's converter omits the suffix.
    rename("pre_ff_layernorm", "ffn_norm."),
    rename("feed_forward.gate_proj", "ffn_gate"),
    rename("feed_forward.up_proj", "ffn_up"),
    rename("feed_forward.down_proj", "ffn_down"),
];

pub(super) const FALCON_H1: Family = Family {
    architecture: "falcon-h1",
    classes: &["FalconH1ForCausalLM"],
    global_rules: &[&FINAL_NORM_GLOBAL],
    layer_rules: &[&ATTENTION, &MAMBA2_IN_HYBRID, &H1_LAYER],
    // An adapter's matrices would have to be scaled as the weights are.
    supports_adapters: false,
    value_transform: multipliers_as_scales,
    hyper_parameters: |config| {
        let mut params = HyperParameters::from_config(config)?;
        params.dims.groups = config.opt_count("mamba_n_groups")?.unwrap_or(1);
        Ok(params)
    },
    write_metadata: |metadata| {
        metadata.write_sizes();
        metadata.write_head_sizes();
        metadata.write_norm_epsilons()?;
        let inner = metadata.config.count("mamba_d_ssm")?;
        let head_dim = metadata.config.opt_count("mamba_d_head")?.unwrap_or(64);
        metadata.write_grouped_ssm(inner, inner / head_dim)?;
        metadata.write_rope()
    },
    ..DEFAULT
};

const PLAMO2_LAYER: [TensorRule; 13] = [
    rename("mixer.q_weight", "attn_q_norm"),
    rename("mixer.k_weight", "attn_k_norm"),
    rename("mixer.in_proj", "ssm_in"),
    rename("mixer.conv1d", "ssm_conv1d").with_layout(SourceLayout::Squeezed),
    rename("mixer.bcdt_proj", "ssm_x"),
    rename("mixer.dt_proj", "ssm_dt"),
    rename("mixer.dt_bias", "ssm_dt.bias"),
    rename("mixer.A_log", "ssm_a."),
    rename("mixer.D", "ssm_d."),
    // llama.cpp's converter omits the suffix.
    rename("mixer.dt_norm_weight", "ssm_dt_norm."),
    rename("mixer.B_norm_weight", "ssm_b_norm."),
    rename("mixer.C_norm_weight", "ssm_c_norm."),
    rename("mixer.out_proj", "ssm_out"),
];

/// Layers of Mamba and of attention, with norms around both as in PLaMo 3.
pub(super) const PLAMO2: Family = Family {
    architecture: "plamo2",
    classes: &["Plamo2ForCausalLM", "PLaMo2ForCausalLM"],
    layer_prefix: PLAMO3.layer_prefix,
    layer_rules: &[&PLAMO3_LAYER, &PLAMO2_LAYER],
    layer_uniformity: LayerUniformity::Arbitrary,
    extra_special_tokens: PLAMO3.extra_special_tokens,
    value_transform: |config, name| match name {
        "ssm_a" => Ok(ValueTransform::NegativeExp),
        "attn_q_norm.weight" | "attn_k_norm.weight" => Ok(ValueTransform::None),
        _ => (PLAMO3.value_transform)(config, name),
    },
    hyper_parameters: |config| {
        let head_dim = config.opt_count("hidden_size_per_head")?.unwrap_or(128);
        let inner = config.opt_count("intermediate_size")?.unwrap_or(13312);
        HyperParameters::with_defaults(
            config,
            &Defaults {
                heads: 32,
                kv_heads: 4,
                head_dim,
                context_length: 2048,
                feed_forward_length: inner,
            },
        )
    },
    write_metadata: |metadata| {
        let config = metadata.config;
        let Dimensions { layers, heads: all, kv_heads, head_dim, .. } = metadata.params.dims;
        metadata.write_sizes();
        let step = config.opt_count("mamba_step")?.unwrap_or(2);
        let has_states = config.flag("mamba_enabled").unwrap_or(true);
        let has_attention = |layer: u32| match has_states {
            true if layers <= step / 2 => layer + 1 == layers,
            true => layer % step == step / 2,
            false => true,
        };
        metadata.set_by_layer(
            "attention.head_count",
            |layer| if has_attention(layer) { all } else { 0 },
        );
        metadata.set_by_layer("attention.head_count_kv", |layer| {
            if has_attention(layer) { kv_heads } else { 0 }
        });
        metadata.write_head_sizes();
        metadata.write_rope_with_base(Some(10000.0))?;
        metadata.set("attention.layer_norm_rms_epsilon", config.float_or("rms_norm_eps", 1e-6)?);
        let heads = config.opt_count("mamba_num_heads")?.unwrap_or(64);
        metadata.write_ssm(heads.saturating_mul(head_dim), heads, 64)?;
        metadata.set("ssm.group_count", 0u32);
        Ok(())
    },
    ..DEFAULT
};

/// Falcon-H1's multipliers, which are multiplied into the weights.
fn multipliers_as_scales(config: &Config, name: &str) -> Result<ValueTransform, ConvertError> {
    let number = |key: &str| config.float_or(key, 1.0);
    let list = |key: &str, at: usize| -> Result<f32, ConvertError> {
        match config.value(key).is_some_and(|value| !value.is_null()) {
            true => config
                .floats(key)?
                .get(at)
                .copied()
                .ok_or_else(|| config.invalid(key, "a longer list of numbers")),
            false => Ok(1.0),
        }
    };
    let times = match name {
        "ssm_a" => return Ok(ValueTransform::NegativeExp),
        "ssm_in.weight" => return ssm_in_bands(config, &list),
        "ffn_gate.weight" => list("mlp_multipliers", 0)?,
        "ffn_down.weight" => list("mlp_multipliers", 1)?,
        "attn_k.weight" => number("key_multiplier")? * number("attention_in_multiplier")?,
        "attn_q.weight" | "attn_v.weight" => number("attention_in_multiplier")?,
        "attn_output.weight" => number("attention_out_multiplier")?,
        "ssm_out.weight" => number("ssm_out_multiplier")?,
        "output.weight" => number("lm_head_multiplier")?,
        "token_embd.weight" => number("embedding_multiplier")?,
        _ => return Ok(ValueTransform::None),
    };
    Ok(ValueTransform::Scale(times))
}

/// Scales of the row bands of the input projection: gate, input, B, C, and time steps.
fn ssm_in_bands(
    config: &Config,
    list: &dyn Fn(&str, usize) -> Result<f32, ConvertError>,
) -> Result<ValueTransform, ConvertError> {
    let inner = u64::from(config.count("mamba_d_ssm")?);
    let groups = config.opt_count("mamba_n_groups")?.unwrap_or(1);
    let state = u64::from(groups) * u64::from(config.first_count(&STATE)?.unwrap_or(128));
    let all = config.float_or("ssm_in_multiplier", 1.0)?;
    let mut factors = [all; 5];
    for (at, number) in factors.iter_mut().enumerate() {
        *number *= list("ssm_multipliers", at)?;
    }
    let ends = [inner, 2 * inner, 2 * inner + state, 2 * inner + 2 * state];
    Ok(ValueTransform::ScaleBands(RowBands { ends, factors }))
}

//! Models with a state: Mamba, and those where only some layers attend.

use super::super::ImportError;
use super::super::config::Json;
use super::super::keys::{Keys, Shape, Usual};
use super::super::pieces::Cutter;
use super::super::plan::{Bands, Change, Output};
use super::super::rules::{Form, Rule, Sizes, one};
use super::super::weights::Weights;
use super::gated::{PLAMO3, PLAMO3_PARTS};
use super::names::ATTENTION;
use super::{Alike, Family, PLAIN};
use crate::error::StoreError;

/// A state has no end.
const ENDLESS: u32 = 1 << 20;

/// What states are configured by, where it goes by several names.
const INNER: [&str; 3] = ["mamba_d_ssm", "intermediate_size", "d_inner"];
const STATE: [&str; 5] =
    ["state_size", "d_state", "mamba_d_state", "ssm_state_size", "mamba_state_dim"];
const KERNEL: [&str; 4] = ["conv_kernel", "d_conv", "mamba_d_conv", "mamba_conv_kernel"];
const RANK: [&str; 3] = ["time_step_rank", "dt_rank", "mamba_dt_rank"];
const EPS: [&str; 2] = ["layer_norm_epsilon", "rms_norm_eps"];
const WIDTH: [&str; 3] = ["hidden_size", "d_model", "dim"];
const LAYERS: [&str; 3] = ["num_hidden_layers", "n_layer", "n_layers"];

/// Mixers of Mamba's first kind.
macro_rules! first_kind {
    ($within:literal) => {
        [
            one(concat!($within, "in_proj"), "ssm_in"),
            one(concat!($within, "conv1d"), "ssm_conv1d").form(Form::Squeezed),
            one(concat!($within, "x_proj"), "ssm_x"),
            one(concat!($within, "dt_proj"), "ssm_dt"),
            one(concat!($within, "A_log"), "ssm_a."),
            one(concat!($within, "D"), "ssm_d."),
            one(concat!($within, "out_proj"), "ssm_out"),
        ]
    };
}

/// Mixers of its second kind.
macro_rules! second_kind {
    ($within:literal) => {
        [
            one(concat!($within, "in_proj"), "ssm_in"),
            one(concat!($within, "conv1d"), "ssm_conv1d").form(Form::Squeezed),
            one(concat!($within, "dt_bias"), "ssm_dt.bias"),
            one(concat!($within, "A_log"), "ssm_a.").form(Form::Column),
            one(concat!($within, "D"), "ssm_d.").form(Form::Column),
            one(concat!($within, "norm"), "ssm_norm").form(Form::Grouped),
            one(concat!($within, "out_proj"), "ssm_out"),
        ]
    };
}

const MIXER: [Rule; 7] = first_kind!("mixer.");
const JAMBA_MIXER: [Rule; 7] = first_kind!("mamba.");
pub(super) const MIXER_2: [Rule; 7] = second_kind!("mixer.");
pub(super) const MAMBA_2: [Rule; 7] = second_kind!("mamba.");

/// Names around the layers.
pub(super) const AROUND: [Rule; 4] = [
    one("embeddings", "token_embd"),
    one("embedding", "token_embd"),
    one("norm_f", "output_norm"),
    one("lm_head", "output"),
];
const NORM: [Rule; 1] = [one("norm", "attn_norm")];

/// Rates of decay.
pub(super) fn rates(_: &Json, name: &str) -> Result<Change, StoreError> {
    Ok(if name == "ssm_a" { Change::Rate } else { Change::None })
}

/// A network without attention.
fn endless(config: &Json) -> Result<Shape, StoreError> {
    let groups = config.opt_count("n_groups")?.unwrap_or(1);
    let sizes = Sizes { layers: config.one_of(&LAYERS)?, groups, ..Sizes::default() };
    Ok(Shape { sizes, width: config.one_of(&WIDTH)?, context: ENDLESS, inner: 0 })
}

/// The output of a model whose configuration does not tell, which then is the table of tokens.
fn untold<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    _: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    if cutter.config.flag("tie_word_embeddings").is_none() {
        weights.leave(|name| name == "lm_head.weight");
    }
    Ok(())
}

impl Keys<'_> {
    /// What is written of networks that do not attend.
    fn without_attention(&mut self) -> Result<(), StoreError> {
        self.set("context_length", self.shape.context);
        self.set("embedding_length", self.shape.width);
        self.set("feed_forward_length", 0u32);
        self.set("attention.head_count", 0u32);
        self.set("block_count", self.shape.sizes.layers);
        self.set(
            "attention.layer_norm_rms_epsilon",
            self.config.first_float(&EPS)?.unwrap_or(1e-5),
        );
        Ok(())
    }

    /// Sizes of the state.
    fn state(&mut self, inner: u32, rank: u32, usual: u32) -> Result<(), StoreError> {
        self.set("ssm.conv_kernel", self.config.first_count(&KERNEL)?.unwrap_or(4));
        self.set("ssm.inner_size", inner);
        self.set("ssm.state_size", self.config.first_count(&STATE)?.unwrap_or(usual));
        self.set("ssm.time_step_rank", rank);
        Ok(())
    }

    /// A number for each layer.
    pub(super) fn by_layer(&mut self, key: &str, number: impl Fn(u32) -> u32) {
        let numbers: Vec<i32> =
            (0..self.shape.sizes.layers).map(|layer| number(layer) as i32).collect();
        self.set(key, numbers);
    }

    /// Sizes of states of the second kind, of so many heads in all.
    pub(super) fn second_state(&mut self, inner: u32, heads: u32) -> Result<(), StoreError> {
        self.state(inner, heads, 128)?;
        self.set("ssm.group_count", self.shape.sizes.groups);
        Ok(())
    }
}

pub(super) const MAMBA: Family = Family {
    architecture: "mamba",
    classes: &["MambaForCausalLM", "MambaLMHeadModel", "FalconMambaForCausalLM"],
    root: "backbone.",
    whole: &[&AROUND],
    layer: &[&NORM, &MIXER],
    change: rates,
    shape: endless,
    odd: Some(untold),
    keys: |keys| {
        keys.without_attention()?;
        let config = keys.config;
        let width = keys.shape.width;
        let inner = config.first_count(&INNER[1..])?.unwrap_or(2 * width);
        let rank = config.first_count(&RANK)?.unwrap_or(width.div_ceil(16));
        keys.state(inner, rank, 16)?;
        keys.set("ssm.dt_b_c_rms", config.text("model_type") == Some("falcon_mamba"));
        Ok(())
    },
    ..PLAIN
};

pub(super) const MAMBA2: Family = Family {
    architecture: "mamba2",
    classes: &["Mamba2ForCausalLM"],
    root: "backbone.",
    whole: &[&AROUND],
    layer: &[&NORM, &MIXER_2],
    change: rates,
    shape: endless,
    odd: Some(|_, weights, _| {
        // Codestral Mamba's names begin with one more word.
        weights.rename(|name| {
            let name = name.strip_prefix("model.").unwrap_or(name);
            name.strip_prefix("backbone.").unwrap_or(name).to_owned()
        })?;
        Ok(())
    }),
    keys: |keys| {
        keys.without_attention()?;
        let inner = match keys.config.first_count(&INNER)? {
            Some(inner) => inner,
            None => keys.config.opt_count("expand")?.unwrap_or(2).saturating_mul(keys.shape.width),
        };
        let head = keys.config.first_count(&["mamba_d_head", "head_dim"])?.unwrap_or(64);
        keys.second_state(inner, inner / head)
    },
    ..PLAIN
};

const JAMBA_LAYER: [Rule; 11] = [
    one("pre_ff_layernorm", "ffn_norm"),
    one("mamba.dt_layernorm", "ssm_dt_norm"),
    one("mamba.b_layernorm", "ssm_b_norm"),
    one("mamba.c_layernorm", "ssm_c_norm"),
    one("feed_forward.gate_proj", "ffn_gate"),
    one("feed_forward.up_proj", "ffn_up"),
    one("feed_forward.down_proj", "ffn_down"),
    one("feed_forward.router", "ffn_gate_inp"),
    one("feed_forward.experts.{}.gate_proj", "ffn_gate_exps"),
    one("feed_forward.experts.{}.up_proj", "ffn_up_exps"),
    one("feed_forward.experts.{}.down_proj", "ffn_down_exps"),
];
const FINAL: [Rule; 3] = [
    one("embed_tokens", "token_embd"),
    one("final_layernorm", "output_norm"),
    one("lm_head", "output"),
];

/// Whether something is so every so many layers, from one on.
fn every(config: &Json, what: &str) -> Result<impl Fn(u32) -> bool + use<>, ImportError> {
    let period = config.count(&format!("{what}_layer_period"))?;
    let key = format!("{what}_layer_offset");
    let offset = config.value(&key).and_then(serde_json::Value::as_u64);
    let offset = offset.ok_or_else(|| config.wrong(&key, "a number"))?;
    Ok(move |layer: u32| {
        u64::from(layer).checked_sub(offset).is_some_and(|at| at.is_multiple_of(period.into()))
    })
}

pub(super) const JAMBA: Family = Family {
    architecture: "jamba",
    classes: &["JambaForCausalLM"],
    whole: &[&FINAL],
    layer: &[&ATTENTION, &JAMBA_MIXER, &JAMBA_LAYER],
    alike: Alike::Nothing,
    change: rates,
    odd: Some(|cutter, weights, _| {
        let has_experts = every(cutter.config, "expert")?;
        weights.rename(|name| {
            let name = name.replace(".moe.", ".feed_forward.");
            let layer =
                name.strip_prefix("layers.").and_then(|rest| rest.split('.').next()?.parse().ok());
            match layer {
                // Old folders call the one network of a layer without experts the first of them.
                Some(layer) if !has_experts(layer) => name.replace(".experts.0.", "."),
                _ => name,
            }
        })?;
        Ok(())
    }),
    keys: |keys| {
        keys.sizes();
        let (config, width) = (keys.config, keys.shape.width);
        let (attends, kv_heads) = (every(config, "attn")?, keys.shape.sizes.kv_heads);
        keys.by_layer("attention.head_count_kv", |layer| if attends(layer) { kv_heads } else { 0 });
        let inner = config.opt_count("mamba_expand")?.unwrap_or(2).saturating_mul(width);
        let rank = config.opt_count("mamba_dt_rank")?.unwrap_or(width.div_ceil(16));
        keys.state(inner, rank, 16)?;
        keys.set("attention.layer_norm_rms_epsilon", config.first_float(&EPS)?.unwrap_or(1e-6));
        keys.experts()
    },
    ..PLAIN
};

const H1_LAYER: [Rule; 4] = [
    // Without an end, as the converter leaves it.
    one("pre_ff_layernorm", "ffn_norm."),
    one("feed_forward.gate_proj", "ffn_gate"),
    one("feed_forward.up_proj", "ffn_up"),
    one("feed_forward.down_proj", "ffn_down"),
];

pub(super) const FALCON_H1: Family = Family {
    architecture: "falcon-h1",
    classes: &["FalconH1ForCausalLM"],
    whole: &[&FINAL],
    layer: &[&ATTENTION, &MAMBA_2, &H1_LAYER],
    // What is added to weights would have to be multiplied as they are.
    takes_adapters: false,
    change: multiplied,
    shape: |config| {
        let mut shape = Shape::usual(config)?;
        shape.sizes.groups = config.opt_count("mamba_n_groups")?.unwrap_or(1);
        Ok(shape)
    },
    keys: |keys| {
        keys.sizes();
        keys.head_sizes();
        keys.norms()?;
        let inner = keys.config.count("mamba_d_ssm")?;
        let head = keys.config.opt_count("mamba_d_head")?.unwrap_or(64);
        keys.second_state(inner, inner / head)?;
        keys.rope()
    },
    ..PLAIN
};

const PLAMO2_PARTS: [Rule; 13] = [
    one("mixer.q_weight", "attn_q_norm"),
    one("mixer.k_weight", "attn_k_norm"),
    one("mixer.in_proj", "ssm_in"),
    one("mixer.conv1d", "ssm_conv1d").form(Form::Squeezed),
    one("mixer.bcdt_proj", "ssm_x"),
    one("mixer.dt_proj", "ssm_dt"),
    one("mixer.dt_bias", "ssm_dt.bias"),
    one("mixer.A_log", "ssm_a."),
    one("mixer.D", "ssm_d."),
    // Without ends, as the converter leaves them.
    one("mixer.dt_norm_weight", "ssm_dt_norm."),
    one("mixer.B_norm_weight", "ssm_b_norm."),
    one("mixer.C_norm_weight", "ssm_c_norm."),
    one("mixer.out_proj", "ssm_out"),
];

/// States in turns with attention, and norms around both as PLaMo 3 has them.
pub(super) const PLAMO2: Family = Family {
    architecture: "plamo2",
    classes: &["Plamo2ForCausalLM", "PLaMo2ForCausalLM"],
    layers: PLAMO3.layers,
    layer: &[&PLAMO3_PARTS, &PLAMO2_PARTS],
    alike: Alike::Nothing,
    ends: PLAMO3.ends,
    change: |config, name| match name {
        "ssm_a" => Ok(Change::Rate),
        "attn_q_norm.weight" | "attn_k_norm.weight" => Ok(Change::None),
        _ => (PLAMO3.change)(config, name),
    },
    shape: |config| {
        let head = config.opt_count("hidden_size_per_head")?.unwrap_or(128);
        let inner = config.opt_count("intermediate_size")?.unwrap_or(13312);
        Shape::with(config, &Usual { heads: 32, kv_heads: 4, head, context: 2048, inner })
    },
    keys: |keys| {
        let config = keys.config;
        let Sizes { layers, heads: all, kv_heads, head, .. } = keys.shape.sizes;
        keys.sizes();
        let step = config.opt_count("mamba_step")?.unwrap_or(2);
        let has_states = config.flag("mamba_enabled").unwrap_or(true);
        let attends = |layer: u32| match has_states {
            true if layers <= step / 2 => layer + 1 == layers,
            true => layer % step == step / 2,
            false => true,
        };
        keys.by_layer("attention.head_count", |layer| if attends(layer) { all } else { 0 });
        keys.by_layer("attention.head_count_kv", |layer| if attends(layer) { kv_heads } else { 0 });
        keys.head_sizes();
        keys.rope_of(Some(10000.0))?;
        keys.set("attention.layer_norm_rms_epsilon", config.float("rms_norm_eps", 1e-6)?);
        let heads = config.opt_count("mamba_num_heads")?.unwrap_or(64);
        keys.state(heads.saturating_mul(head), heads, 64)?;
        keys.set("ssm.group_count", 0u32);
        Ok(())
    },
    ..PLAIN
};

/// The multipliers of Falcon-H1 become part of the weights.
fn multiplied(config: &Json, name: &str) -> Result<Change, StoreError> {
    let number = |key: &str| config.float(key, 1.0);
    let list = |key: &str, at: usize| -> Result<f32, ImportError> {
        match config.value(key).is_some_and(|value| !value.is_null()) {
            true => config
                .floats(key)?
                .get(at)
                .copied()
                .ok_or_else(|| config.wrong(key, "more numbers")),
            false => Ok(1.0),
        }
    };
    let times = match name {
        "ssm_a" => return Ok(Change::Rate),
        "ssm_in.weight" => return bands(config, &list),
        "ffn_gate.weight" => list("mlp_multipliers", 0)?,
        "ffn_down.weight" => list("mlp_multipliers", 1)?,
        "attn_k.weight" => number("key_multiplier")? * number("attention_in_multiplier")?,
        "attn_q.weight" | "attn_v.weight" => number("attention_in_multiplier")?,
        "attn_output.weight" => number("attention_out_multiplier")?,
        "ssm_out.weight" => number("ssm_out_multiplier")?,
        "output.weight" => number("lm_head_multiplier")?,
        "token_embd.weight" => number("embedding_multiplier")?,
        _ => return Ok(Change::None),
    };
    Ok(Change::Times(times))
}

/// The rows of what goes into a state: gate, input, the two projections of the state, and steps.
fn bands(
    config: &Json,
    list: &dyn Fn(&str, usize) -> Result<f32, ImportError>,
) -> Result<Change, StoreError> {
    let inner = u64::from(config.count("mamba_d_ssm")?);
    let groups = config.opt_count("mamba_n_groups")?.unwrap_or(1);
    let state = u64::from(groups) * u64::from(config.first_count(&STATE)?.unwrap_or(128));
    let all = config.float("ssm_in_multiplier", 1.0)?;
    let mut times = [all; 5];
    for (at, number) in times.iter_mut().enumerate() {
        *number *= list("ssm_multipliers", at)?;
    }
    let ends = [inner, 2 * inner, 2 * inner + state, 2 * inner + 2 * state];
    Ok(Change::Bands(Bands { ends, times }))
}

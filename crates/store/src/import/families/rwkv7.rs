//! RWKV 7, and models of other families with its memory in attention's place. Its folders come in two spellings: the matrices
//! of small rank with inputs before outputs, or as modules of two layers.

use super::super::ImportError;
use super::super::config::Json;
use super::super::decoder::rule_for;
use super::super::keys::{Keys, Shape};
use super::super::pieces::Cutter;
use super::super::plan::{Order, Output, Part};
use super::super::rules::{Form, Rule, Sizes, one};
use super::super::weights::Weights;
use super::names::{BEFORE, GATED, WHOLE as USUAL};
use super::rwkv::{ENDLESS, fused, mixed};
use super::{Family, PLAIN, Words};
use crate::error::StoreError;

const WHOLE: [Rule; 6] = [
    one("embeddings", "token_embd"),
    one("pre_ln", "token_embd_norm"),
    one("ln_out", "output_norm"),
    one("norm", "output_norm"),
    one("head", "output"),
    one("lm_head", "output"),
];
/// What a token's decay, rate, share of the first values and gate are computed by.
const THIN: [Rule; 22] = [
    one("attention.w0", "time_mix_w0").form(Form::Flat),
    one("attention.w1", "time_mix_w1").form(Form::Turned),
    one("attention.w2", "time_mix_w2").form(Form::Turned),
    one("attention.w_lora.lora.0", "time_mix_w1"),
    one("attention.w_lora.lora.2.bias", "time_mix_w0.weight"),
    one("attention.w_lora.lora.2", "time_mix_w2"),
    one("attention.a0", "time_mix_a0").form(Form::Flat),
    one("attention.a1", "time_mix_a1").form(Form::Turned),
    one("attention.a2", "time_mix_a2").form(Form::Turned),
    one("attention.a_lora.lora.0", "time_mix_a1"),
    one("attention.a_lora.lora.2.bias", "time_mix_a0.weight"),
    one("attention.a_lora.lora.2", "time_mix_a2"),
    one("attention.v0", "time_mix_v0").form(Form::Flat),
    one("attention.v1", "time_mix_v1").form(Form::Turned),
    one("attention.v2", "time_mix_v2").form(Form::Turned),
    one("attention.v_lora.lora.0", "time_mix_v1"),
    one("attention.v_lora.lora.2.bias", "time_mix_v0.weight"),
    one("attention.v_lora.lora.2", "time_mix_v2"),
    one("attention.g1", "time_mix_g1").form(Form::Turned),
    one("attention.g2", "time_mix_g2").form(Form::Turned),
    one("attention.g_lora.lora.0", "time_mix_g1"),
    one("attention.g_lora.lora.2", "time_mix_g2"),
];
const MEMORY: [Rule; 12] = [
    one("attention.k_k", "time_mix_k_k").form(Form::Flat),
    one("attention.k_a", "time_mix_k_a").form(Form::Flat),
    one("attention.r_k", "time_mix_r_k").form(Form::Flat),
    one("attention.receptance", "time_mix_receptance"),
    one("attention.r_proj", "time_mix_receptance"),
    one("attention.key", "time_mix_key"),
    one("attention.k_proj", "time_mix_key"),
    one("attention.value", "time_mix_value"),
    one("attention.v_proj", "time_mix_value"),
    one("attention.ln_x", "time_mix_ln"),
    one("attention.output", "time_mix_output"),
    one("attention.o_proj", "time_mix_output"),
];
const CHANNEL: [Rule; 6] = [
    one("ln1", "attn_norm"),
    one("attention_norm", "attn_norm"),
    one("ln2", "attn_norm_2"),
    one("feed_forward.x_k", "channel_mix_lerp_k").form(Form::Flat),
    one("feed_forward.key", "channel_mix_key"),
    one("feed_forward.value", "channel_mix_value"),
];
const NORM: [Rule; 1] = [one("input_layernorm", "attn_norm")];

/// What each channel mixes for, in a file's order; the gate may be missing.
const LETTERS: [&str; 6] = ["r", "w", "k", "v", "a", "g"];

pub(super) const RWKV7: Family = Family {
    architecture: "rwkv7",
    classes: &["Rwkv7ForCausalLM", "RWKV7ForCausalLM"],
    whole: &[&WHOLE],
    layer: &[&THIN, &MEMORY, &CHANNEL],
    words: Words::Bytes,
    odd: Some(odd),
    shape: |config| {
        let (layers, width) = (config.count("num_hidden_layers")?, config.count("hidden_size")?);
        let inner = config.opt_count("intermediate_size")?.unwrap_or(width.saturating_mul(4));
        Ok(Shape { sizes: Sizes { layers, ..Sizes::default() }, width, context: ENDLESS, inner })
    },
    keys: |keys| {
        keys.endless();
        let eps = keys.config.first_float(&["layer_norm_epsilon", "norm_eps"])?;
        keys.set("attention.layer_norm_epsilon", eps.unwrap_or(1e-5));
        keys.count("wkv.head_size", &["head_size", "head_dim"])?;
        keys.set("feed_forward_length", keys.shape.inner);
        let width = f64::from(keys.shape.width);
        let rank = |power: f64, times: f64| {
            ((width.powf(power) * times / 32.0).round_ties_even() as u32).max(1).saturating_mul(32)
        };
        ranks(keys, [rank(0.5, 1.8), rank(0.5, 1.8), rank(0.5, 1.3), rank(0.8, 0.6)])
    },
    ..PLAIN
};

/// Qwen 2 with such a memory.
pub(super) const ARWKV7: Family = Family {
    architecture: "arwkv7",
    classes: &["RwkvHybridForCausalLM"],
    whole: &[&USUAL],
    layer: &[&NORM, &BEFORE, &THIN, &MEMORY, &GATED],
    odd: Some(odd),
    keys: |keys| {
        let config = keys.config;
        if let Some(version) = config.opt_number("wkv_version")?.filter(|&version| version != 7) {
            return Err(config
                .wrong_value("wkv_version", format!("{version}, but 7 is known"))
                .into());
        }
        keys.endless();
        keys.norms()?;
        keys.count("wkv.head_size", &["head_size"])?;
        keys.set("feed_forward_length", keys.shape.inner);
        keys.set("token_shift_count", 1u32);
        let gate = if letters(config).len() == LETTERS.len() { 128 } else { 0 };
        ranks(keys, [64, 64, 32, gate])
    },
    ..PLAIN
};

/// Sizes between the matrices of small rank.
fn ranks(keys: &mut Keys<'_>, usual: [u32; 4]) -> Result<(), StoreError> {
    let names = [
        ("decay", ["lora_rank_decay", "decay_low_rank_dim"]),
        ("iclr", ["lora_rank_iclr", "a_low_rank_dim"]),
        ("value_residual_mix", ["lora_rank_value_residual_mix", "v_low_rank_dim"]),
        ("gate", ["lora_rank_gate", "gate_low_rank_dim"]),
    ];
    for ((here, there), usual) in names.into_iter().zip(usual) {
        let rank = keys.config.first_number(&there)?.unwrap_or(usual);
        keys.set(&format!("attention.{here}_lora_rank"), rank);
    }
    Ok(())
}

fn letters(config: &Json) -> &'static [&'static str] {
    let count = if config.flag("wkv_has_gate") == Some(false) { 5 } else { 6 };
    &LETTERS[..count]
}

/// One spelling of the names of all folders.
fn plain(name: &str) -> String {
    let name = name
        .replace("blocks.", "layers.")
        .replace("time_mixer.", "")
        .replace("ffn", "feed_forward");
    let name = name.replace("self_attn", "attention").replace("attn", "attention");
    let name = name.replace("feed_forward_norm", "ln2").replace("g_norm", "ln_x");
    // Of all layers the first one alone has it, before everything else.
    let before =
        ["layers.0.pre_norm", "layers.0.pre_ln"].iter().find_map(|first| name.strip_prefix(first));
    before.map(|end| format!("pre_ln{end}")).unwrap_or(name)
}

/// What a rate's part is called in the place of a share of the first values.
fn twin(here: &str) -> Option<&'static str> {
    Some(match here {
        "time_mix_a0" | "time_mix_a0.weight" => "time_mix_v0.weight",
        "time_mix_a1" => "time_mix_v1",
        "time_mix_a2" => "time_mix_v2",
        _ => return None,
    })
}

/// The numbers by which a channel mixes are one tensor. The first layer has no values of another one to mix with: what
/// folders have there means nothing, and files have the rate's matrices in that place.
fn odd<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    weights.rename(plain)?;
    let first = "layers.0.attention.";
    let of_values =
        |part: &str| ["v0", "v1", "v2", "v_lora."].iter().any(|start| part.starts_with(start));
    weights.leave(|name| name.strip_prefix(first).is_some_and(of_values));
    let rates: Vec<String> =
        weights.names().filter(|name| name.starts_with(first)).cloned().collect();
    for name in rates {
        let Some((rule, layer, end)) = rule_for(cutter.family, &name) else { continue };
        if let (Some(here), Some(tensor)) = (twin(rule.here), weights.get(&name).cloned()) {
            cutter.cut(&Rule { here, ..*rule }, layer, end, &tensor, outputs)?;
        }
    }
    let letters = letters(cutter.config);
    for layer in 0..cutter.sizes.layers {
        // Some folders have them as one, too.
        let Some(tensor) = weights.take(&format!("layers.{layer}.attention.x_x")) else {
            mixed(cutter, weights, layer, "attention.x_", letters, outputs)?;
            continue;
        };
        let (all, count) = (tensor.entry.elements(), letters.len() as u64);
        if !all.is_multiple_of(count) {
            let (name, found) = (tensor.entry.name.clone(), tensor.entry.shape.clone());
            return Err(ImportError::TensorShape {
                name,
                found,
                want: vec![count, 1, 1, all / count],
            }
            .into());
        }
        let parts = vec![Part { tensor, rows: count, order: Order::SAME }];
        fused(cutter, layer, parts, all / count, outputs);
    }
    Ok(())
}

//! Gemma 3n and 4: embeddings of each layer, layers that share keys and values, heads of two sizes.

use super::super::ImportError;
use super::super::config::Json;
use super::super::decoder::{HEAD_LIMIT, HEAD_LIMIT_TOLD};
use super::super::keys::{Keys, Shape};
use super::super::pieces::Cutter;
use super::super::plan::{Change, Content, Order, Output, Part};
use super::super::rope::given;
use super::super::rules::{Rule, one};
use super::super::weights::{Tensor, Weights};
use super::gemma::NORMS;
use super::names::{ATTENTION, BEHIND, GATED};
use super::{Alike, Family, PLAIN, Words};
use crate::error::StoreError;

const WHOLE: [Rule; 6] = [
    one("embed_tokens", "token_embd"),
    one("norm", "output_norm"),
    one("lm_head", "output"),
    one("embed_tokens_per_layer", "per_layer_token_embd"),
    one("per_layer_model_projection", "per_layer_model_proj"),
    one("per_layer_projection_norm", "per_layer_proj_norm"),
];
/// What an embedding of each layer goes through.
const PER_LAYER: [Rule; 3] = [
    one("per_layer_input_gate", "inp_gate"),
    one("per_layer_projection", "proj"),
    one("post_per_layer_input_norm", "post_norm"),
];
const ALTUP: [Rule; 8] = [
    one("altup.correct_output_scale", "altup_correct_scale"),
    one("altup.correction_coefs", "altup_correct_coef"),
    one("altup.modality_router", "altup_router"),
    one("altup.prediction_coefs", "altup_predict_coef"),
    one("altup.router_norm", "altup_router_norm"),
    one("laurel.linear_left", "laurel_l"),
    one("laurel.linear_right", "laurel_r"),
    one("laurel.post_laurel_norm", "laurel_post_norm"),
];
const MOE: [Rule; 9] = [
    one("layer_scalar", "layer_output_scale"),
    one("post_feedforward_layernorm_1", "post_ffw_norm_1"),
    one("post_feedforward_layernorm_2", "post_ffw_norm_2"),
    one("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
    one("router.proj", "ffn_gate_inp"),
    one("router.scale", "ffn_gate_inp.scale"),
    one("router.per_expert_scale", "ffn_down_exps.scale"),
    one("experts.gate_up_proj", "ffn_gate_up_exps"),
    one("experts.down_proj", "ffn_down_exps"),
];

pub(super) const GEMMA3N: Family = Family {
    architecture: "gemma3n",
    classes: &["Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"],
    whole: &[&WHOLE],
    layer: &[&ATTENTION, &GATED, &NORMS, &BEHIND, &PER_LAYER, &ALTUP],
    // Layers that share keys and values of others may still have their own.
    alike: Alike::Nothing,
    tied: true,
    bare_start: true,
    shape: |config| {
        let inner = config.numbers("intermediate_size").ok().and_then(|list| list.first().copied());
        Shape::of(config, config.count("max_position_embeddings")?, inner.unwrap_or(0))
    },
    odd: Some(stack),
    keys: |keys| {
        let config = keys.config;
        later(keys, |keys| {
            let layers = keys.shape.sizes.layers as usize;
            let inner =
                match config.value("intermediate_size").is_some_and(serde_json::Value::is_array) {
                    true => config.numbers("intermediate_size")?,
                    false => vec![config.count("intermediate_size")?; layers],
                };
            keys.list("feed_forward_length", inner)
        })?;
        keys.head_sizes();
        let local = config.rope().section_if("sliding_attention").is_some();
        keys.rope_of(Some(1e6))?;
        if !local {
            keys.set("rope.freq_base_swa", config.float("rope_local_base_freq", 10000.0)?);
        }
        keys.set("altup.active_idx", config.opt_number("altup_active_idx")?.unwrap_or(0));
        keys.count("altup.num_inputs", &["altup_num_inputs"])?;
        // How many deviations from the mean a share of activations that becomes zero lies below.
        let shares = config.floats("activation_sparsity_pattern")?;
        let scales = shares.into_iter().map(|share| quantile(f64::from(share)) as f32).collect();
        keys.list::<f32>("activation_sparsity_scale", scales)
    },
    ..PLAIN
};

pub(super) const GEMMA4: Family = Family {
    architecture: "gemma4",
    classes: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
    whole: &[&WHOLE],
    layer: &[&ATTENTION, &GATED, &NORMS, &BEHIND, &PER_LAYER, &MOE],
    alike: Alike::Nothing,
    tied: true,
    words: Words::Gemma4,
    keys: gemma4,
    ..PLAIN
};

/// What both write: sizes, windows, and which layers share.
fn later(
    keys: &mut Keys<'_>,
    inner: impl FnOnce(&mut Keys<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let config = keys.config;
    keys.sizes_without_inner();
    inner(keys)?;
    keys.set("attention.layer_norm_rms_epsilon", config.float("rms_norm_eps", 1e-6)?);
    keys.float_if("final_logit_softcapping", &["final_logit_softcapping"])?;
    keys.count("attention.sliding_window", &["sliding_window"])?;
    let slides = keys.sliding_layers(6)?;
    keys.set("attention.sliding_window_pattern", slides);
    keys.set("attention.shared_kv_layers", config.opt_number("num_kv_shared_layers")?.unwrap_or(0));
    let width = config.opt_number("hidden_size_per_layer_input")?.unwrap_or(0);
    keys.set("embedding_length_per_layer_input", width);
    Ok(())
}

fn gemma4(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    let config = keys.config;
    let layers = keys.shape.sizes.layers;
    let shared = config.opt_number("num_kv_shared_layers")?.unwrap_or(0);
    later(keys, |keys| {
        let inner = config.count("intermediate_size")?;
        if config.flag("use_double_wide_mlp") == Some(true) {
            let first = layers.saturating_sub(shared);
            keys.by_layer("feed_forward_length", |layer| {
                if layer < first { inner } else { inner.saturating_mul(2) }
            });
        } else {
            keys.set("feed_forward_length", inner);
        }
        Ok(())
    })?;
    let slides = keys.sliding_layers(6)?;
    if let Some(global) =
        of_global(config, &slides, "num_global_key_value_heads", "num_key_value_heads")?
    {
        let local = keys.shape.sizes.kv_heads;
        let slides = |layer: u32| slides.get(layer as usize) == Some(&true);
        keys.by_layer(
            "attention.head_count_kv",
            |layer| if slides(layer) { local } else { global },
        );
    }
    let local = keys.head();
    let global = of_global(config, &slides, "global_head_dim", "head_dim")?.unwrap_or(local);
    if global > HEAD_LIMIT {
        return Err(config.wrong("global_head_dim", HEAD_LIMIT_TOLD).into());
    }
    for part in ["key", "value"] {
        keys.set(&format!("attention.{part}_length"), global);
        keys.set(&format!("attention.{part}_length_swa"), local);
    }
    if keys.shape.sizes.experts > 0 {
        keys.set("expert_count", keys.shape.sizes.experts);
        keys.count("expert_used_count", &["top_k_experts", "num_experts_per_tok"])?;
        keys.count(
            "expert_feed_forward_length",
            &["expert_intermediate_size", "moe_intermediate_size"],
        )?;
    }
    keys.set("rope.dimension_count", global);
    keys.set("rope.dimension_count_swa", local);
    proportional(keys, global)
}

/// A number of the layers that see everything: under a name of its own, or in what is said of one of these layers.
fn of_global(
    config: &Json,
    slides: &[bool],
    whole: &str,
    part: &str,
) -> Result<Option<u32>, StoreError> {
    if let Some(count) = config.opt_count(whole)? {
        return Ok(Some(count));
    }
    let Some(by_layer) = config.section_if("per_layer_config") else { return Ok(None) };
    for layer in (0..slides.len()).filter(|&layer| !slides[layer]) {
        if let Some(layer) = by_layer.section_if(&layer.to_string())
            && let Some(count) = layer.opt_count(part)?
        {
            return Ok(Some(count));
        }
    }
    Ok(None)
}

/// Of a head of so many values only the first pairs turn: the others' frequencies are divided by what leaves nothing.
fn proportional(keys: &mut Keys<'_>, head: u32) -> Result<(), StoreError> {
    let rope = keys.config.rope();
    let (global, local) = (rope.section("full_attention"), rope.section("sliding_attention"));
    keys.set("rope.freq_base", global.float("rope_theta", 1e6)?);
    keys.set("rope.freq_base_swa", local.float("rope_theta", 1e4)?);
    let kind = global.text("rope_type").unwrap_or("proportional");
    if kind != "proportional" {
        let found = format!("of type {}, and proportional is expected", crate::name::shown(kind));
        return Err(keys.config.wrong_value("rope_parameters", found).into());
    }
    let share = global.float("partial_rotary_factor", 0.25)?;
    let turning = (head as f32 * share / 2.0) as usize;
    let values =
        (0..head as usize / 2).map(|pair| if pair < turning { 1.0 } else { 1e30 }).collect();
    keys.tensors.push(given("rope_freqs.weight", values));
    Ok(())
}

/// Gemma 3n's matrices between its copies of a text, as one each; and tables with rows for pictures and sounds, which the
/// folder does not have.
fn stack<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    let copies = cutter.config.count("altup_num_inputs")?.saturating_sub(1);
    for (there, name) in [
        ("altup_projections", "altup_proj.weight"),
        ("altup_unembed_projections", "altup_unembd_proj.weight"),
    ] {
        let mut parts: Vec<Part<'a>> = Vec::new();
        let mut each = Vec::new();
        for copy in 0..copies {
            let full = format!("{there}.{copy}.weight");
            let tensor = weights.take(&full).ok_or(ImportError::TensorMissing { name: full })?;
            if parts.is_empty() {
                each.clone_from(&tensor.entry.shape);
            }
            if tensor.entry.shape != each || each.len() != 2 {
                let (name, found) = (tensor.entry.name.clone(), tensor.entry.shape.clone());
                return Err(ImportError::TensorShape { name, found, want: each }.into());
            }
            parts.push(Part { rows: each[0], tensor, order: Order::SAME });
        }
        let columns = each.last().copied().unwrap_or(1);
        let shape = [&[parts.len() as u64], &each[..]].concat();
        let content = Content::Rows { parts, columns, change: Change::None };
        outputs.push(Output { name: name.to_owned(), ty: cutter.matrices, shape, content });
    }
    let rows =
        weights.get("embed_tokens.weight").and_then(|table| table.entry.shape.first().copied());
    if let Some(rows) = rows
        && let Some(tensor) = weights.take("embed_tokens_per_layer.weight")
    {
        // What is filled up are the few rows of pictures and sounds.
        let [has, columns] = tensor.entry.shape[..] else {
            return Err(wrong_rows(&tensor, rows).into());
        };
        if has < rows / 2 {
            return Err(wrong_rows(&tensor, rows).into());
        }
        let content = Content::Rows {
            parts: vec![Part { tensor, rows: has.min(rows), order: Order::SAME }],
            columns,
            change: Change::None,
        };
        let (name, shape) =
            ("per_layer_token_embd.weight".to_owned(), vec![rows.max(has), columns]);
        outputs.push(Output { name, ty: cutter.matrices, shape, content });
    }
    Ok(())
}

fn wrong_rows(tensor: &Tensor<'_>, rows: u64) -> ImportError {
    let (name, found) = (tensor.entry.name.clone(), tensor.entry.shape.clone());
    ImportError::TensorShape { name, found, want: vec![rows, tensor.columns()] }
}

/// Below how many deviations from the mean such a share of a normal distribution lies (Wichura's AS 241).
fn quantile(share: f64) -> f64 {
    let poly =
        |coefficients: &[f64], x: f64| coefficients.iter().rev().fold(0.0, |sum, c| sum * x + c);
    if share <= 0.0 {
        return f64::NEG_INFINITY;
    }
    if share >= 1.0 {
        return f64::INFINITY;
    }
    let q = share - 0.5;
    if q.abs() <= 0.425 {
        let r = 0.180_625 - q * q;
        return q * poly(&MIDDLE.0, r) / poly(&MIDDLE.1, r);
    }
    let r = (-share.min(1.0 - share).ln()).sqrt();
    let size = match r <= 5.0 {
        true => poly(&NEAR.0, r - 1.6) / poly(&NEAR.1, r - 1.6),
        false => poly(&FAR.0, r - 5.0) / poly(&FAR.1, r - 5.0),
    };
    size.copysign(q)
}

type Fraction = ([f64; 8], [f64; 8]);
const MIDDLE: Fraction = (
    [
        3.387_132_872_796_366_5,
        133.141_667_891_784_38,
        1_971.590_950_306_551_3,
        13_731.693_765_509_46,
        45_921.953_931_549_87,
        67_265.770_927_008_7,
        33_430.575_583_588_13,
        2_509.080_928_730_122_7,
    ],
    [
        1.0,
        42.313_330_701_600_91,
        687.187_007_492_057_9,
        5_394.196_021_424_751,
        21_213.794_301_586_597,
        39_307.895_800_092_71,
        28_729.085_735_721_943,
        5_226.495_278_852_545,
    ],
);
const NEAR: Fraction = (
    [
        1.423_437_110_749_683_5,
        4.630_337_846_156_546,
        5.769_497_221_460_691,
        3.647_848_324_763_204_5,
        1.270_458_252_452_368_4,
        0.241_780_725_177_450_6,
        0.022_723_844_989_269_184,
        0.000_774_545_014_278_341_4,
    ],
    [
        1.0,
        2.053_191_626_637_759,
        1.676_384_830_183_803_8,
        0.689_767_334_985_1,
        0.148_103_976_427_480_08,
        0.015_198_666_563_616_457,
        0.000_547_593_808_499_534_5,
        1.050_750_071_644_416_9e-9,
    ],
);
const FAR: Fraction = (
    [
        6.657_904_643_501_103,
        5.463_784_911_164_114,
        1.784_826_539_917_291_3,
        0.296_560_571_828_504_87,
        0.026_532_189_526_576_124,
        0.001_242_660_947_388_078_4,
        2.711_555_568_743_487_6e-5,
        2.010_334_399_292_288_1e-7,
    ],
    [
        1.0,
        0.599_832_206_555_888,
        0.136_929_880_922_735_8,
        0.014_875_361_290_850_615,
        0.000_786_869_131_145_613_3,
        1.846_318_317_510_054_8e-5,
        1.421_511_758_316_446e-7,
        2.044_263_103_389_939_8e-15,
    ],
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_normal_distribution_lie_below_their_quantiles() {
        for (share, want) in
            [(0.5, 0.0), (0.95, 1.644_853_626_951_472_7), (0.01, -2.326_347_874_040_841)]
        {
            assert!((quantile(share) - want).abs() < 1e-12, "{share}: {}", quantile(share));
        }
        assert!((quantile(1e-20) + 9.262_340_089_798_408).abs() < 1e-9);
        assert_eq!((quantile(0.0), quantile(1.0)), (f64::NEG_INFINITY, f64::INFINITY));
    }
}

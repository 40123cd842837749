//! Gemma 3n and 4: per-layer embeddings, layers that share keys and values, heads of two sizes.

use puna_gguf::escape_for_message;

use super::common_rules::{ATTENTION, GATED_FFN, POST_NORMS};
use super::default_family::DEFAULT;
use super::gemma::NORMS;
use crate::error::ConvertError;
use crate::family::{Family, LayerUniformity, TensorMapper, VocabularyKind};
use crate::metadata::{
    HyperParameters, MAX_HEAD_DIM, MAX_HEAD_DIM_TEXT, MetadataWriter, constant_tensor,
};
use crate::output::{OutputTensor, RowOrder, TensorContent, TensorRows, ValueTransform};
use crate::rules::{TensorRule, rename};
use crate::source::{Config, SourceTensor, Weights};

const GLOBAL: [TensorRule; 6] = [
    rename("embed_tokens", "token_embd"),
    rename("norm", "output_norm"),
    rename("lm_head", "output"),
    rename("embed_tokens_per_layer", "per_layer_token_embd"),
    rename("per_layer_model_projection", "per_layer_model_proj"),
    rename("per_layer_projection_norm", "per_layer_proj_norm"),
];
/// Projections of a per-layer embedding.
const PER_LAYER: [TensorRule; 3] = [
    rename("per_layer_input_gate", "inp_gate"),
    rename("per_layer_projection", "proj"),
    rename("post_per_layer_input_norm", "post_norm"),
];
const ALTUP: [TensorRule; 8] = [
    rename("altup.correct_output_scale", "altup_correct_scale"),
    rename("altup.correction_coefs", "altup_correct_coef"),
    rename("altup.modality_router", "altup_router"),
    rename("altup.prediction_coefs", "altup_predict_coef"),
    rename("altup.router_norm", "altup_router_norm"),
    rename("laurel.linear_left", "laurel_l"),
    rename("laurel.linear_right", "laurel_r"),
    rename("laurel.post_laurel_norm", "laurel_post_norm"),
];
const MOE: [TensorRule; 9] = [
    rename("layer_scalar", "layer_output_scale"),
    rename("post_feedforward_layernorm_1", "post_ffw_norm_1"),
    rename("post_feedforward_layernorm_2", "post_ffw_norm_2"),
    rename("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
    rename("router.proj", "ffn_gate_inp"),
    rename("router.scale", "ffn_gate_inp.scale"),
    rename("router.per_expert_scale", "ffn_down_exps.scale"),
    rename("experts.gate_up_proj", "ffn_gate_up_exps"),
    rename("experts.down_proj", "ffn_down_exps"),
];

pub(super) const GEMMA3N: Family = Family {
    architecture: "gemma3n",
    classes: &["Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"],
    global_rules: &[&GLOBAL],
    layer_rules: &[&ATTENTION, &GATED_FFN, &NORMS, &POST_NORMS, &PER_LAYER, &ALTUP],
    // Layers that share keys and values may still have their own matrices in the folder.
    layer_uniformity: LayerUniformity::Arbitrary,
    ties_output: true,
    omits_space_prefix: true,
    hyper_parameters: |config| {
        let inner = config.numbers("intermediate_size").ok().and_then(|list| list.first().copied());
        HyperParameters::with_sizes(
            config,
            config.count("max_position_embeddings")?,
            inner.unwrap_or(0),
        )
    },
    custom_tensors: Some(stack_projections),
    write_metadata: |metadata| {
        let config = metadata.config;
        write_shared_metadata(metadata, |metadata| {
            let layers = metadata.params.dims.layers as usize;
            let inner =
                match config.value("intermediate_size").is_some_and(serde_json::Value::is_array) {
                    true => config.numbers("intermediate_size")?,
                    false => vec![config.count("intermediate_size")?; layers],
                };
            metadata.set_layer_list("feed_forward_length", inner)
        })?;
        metadata.write_head_sizes();
        let local = config.rope_parameters().opt_section("sliding_attention").is_some();
        metadata.write_rope_with_base(Some(1e6))?;
        if !local {
            metadata.set("rope.freq_base_swa", config.float_or("rope_local_base_freq", 10000.0)?);
        }
        metadata
            .set("altup.active_idx", config.opt_count_or_zero("altup_active_idx")?.unwrap_or(0));
        metadata.set_count("altup.num_inputs", &["altup_num_inputs"])?;
        // Threshold of activation sparsity in standard deviations, from the fraction of activations
        // that become zero.
        let fractions = config.floats("activation_sparsity_pattern")?;
        let scales =
            fractions.into_iter().map(|fraction| quantile(f64::from(fraction)) as f32).collect();
        metadata.set_layer_list::<f32>("activation_sparsity_scale", scales)
    },
    ..DEFAULT
};

pub(super) const GEMMA4: Family = Family {
    architecture: "gemma4",
    classes: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
    global_rules: &[&GLOBAL],
    layer_rules: &[&ATTENTION, &GATED_FFN, &NORMS, &POST_NORMS, &PER_LAYER, &MOE],
    layer_uniformity: LayerUniformity::Arbitrary,
    ties_output: true,
    vocabulary: VocabularyKind::Gemma4,
    write_metadata: gemma4,
    ..DEFAULT
};

/// Writes the common keys of both: sizes, windows, shared layers.
fn write_shared_metadata(
    metadata: &mut MetadataWriter<'_>,
    write_feed_forward: impl FnOnce(&mut MetadataWriter<'_>) -> Result<(), ConvertError>,
) -> Result<(), ConvertError> {
    let config = metadata.config;
    metadata.write_sizes_without_feed_forward();
    write_feed_forward(metadata)?;
    metadata.set("attention.layer_norm_rms_epsilon", config.float_or("rms_norm_eps", 1e-6)?);
    metadata.set_opt_float("final_logit_softcapping", &["final_logit_softcapping"])?;
    metadata.set_count("attention.sliding_window", &["sliding_window"])?;
    let is_sliding = metadata.sliding_layers(6)?;
    metadata.set("attention.sliding_window_pattern", is_sliding);
    metadata.set(
        "attention.shared_kv_layers",
        config.opt_count_or_zero("num_kv_shared_layers")?.unwrap_or(0),
    );
    let width = config.opt_count_or_zero("hidden_size_per_layer_input")?.unwrap_or(0);
    metadata.set("embedding_length_per_layer_input", width);
    Ok(())
}

fn gemma4(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    let config = metadata.config;
    let layers = metadata.params.dims.layers;
    let shared = config.opt_count_or_zero("num_kv_shared_layers")?.unwrap_or(0);
    write_shared_metadata(metadata, |metadata| {
        let inner = config.count("intermediate_size")?;
        if config.flag("use_double_wide_mlp") == Some(true) {
            let first = layers.saturating_sub(shared);
            metadata.set_by_layer("feed_forward_length", |layer| {
                if layer < first { inner } else { inner.saturating_mul(2) }
            });
        } else {
            metadata.set("feed_forward_length", inner);
        }
        Ok(())
    })?;
    let is_sliding = metadata.sliding_layers(6)?;
    if let Some(global) = global_layer_count(
        config,
        &is_sliding,
        "num_global_key_value_heads",
        "num_key_value_heads",
    )? {
        let local = metadata.params.dims.kv_heads;
        let is_sliding = |layer: u32| is_sliding.get(layer as usize) == Some(&true);
        metadata.set_by_layer("attention.head_count_kv", |layer| {
            if is_sliding(layer) { local } else { global }
        });
    }
    let local = metadata.head_dim();
    let global =
        global_layer_count(config, &is_sliding, "global_head_dim", "head_dim")?.unwrap_or(local);
    if global > MAX_HEAD_DIM {
        return Err(config.invalid("global_head_dim", MAX_HEAD_DIM_TEXT));
    }
    for part in ["key", "value"] {
        metadata.set(&format!("attention.{part}_length"), global);
        metadata.set(&format!("attention.{part}_length_swa"), local);
    }
    if metadata.params.dims.experts > 0 {
        metadata.set("expert_count", metadata.params.dims.experts);
        metadata.set_count("expert_used_count", &["top_k_experts", "num_experts_per_tok"])?;
        metadata.set_count(
            "expert_feed_forward_length",
            &["expert_intermediate_size", "moe_intermediate_size"],
        )?;
    }
    metadata.set("rope.dimension_count", global);
    metadata.set("rope.dimension_count_swa", local);
    write_proportional_rope(metadata, global)
}

/// A number of layers with full attention: under its own key, or in the section of one of these
/// layers.
fn global_layer_count(
    config: &Config,
    is_sliding: &[bool],
    config_key: &str,
    layer_key: &str,
) -> Result<Option<u32>, ConvertError> {
    if let Some(count) = config.opt_count(config_key)? {
        return Ok(Some(count));
    }
    let Some(by_layer) = config.opt_section("per_layer_config") else { return Ok(None) };
    for layer in (0..is_sliding.len()).filter(|&layer| !is_sliding[layer]) {
        if let Some(layer) = by_layer.opt_section(&layer.to_string())
            && let Some(count) = layer.opt_count(layer_key)?
        {
            return Ok(Some(count));
        }
    }
    Ok(None)
}

/// Only the first pairs of a head are rotated: the file divides the frequencies of the others by
/// 1e30.
fn write_proportional_rope(
    metadata: &mut MetadataWriter<'_>,
    head_dim: u32,
) -> Result<(), ConvertError> {
    let rope = metadata.config.rope_parameters();
    let (global, local) =
        (rope.section_or_self("full_attention"), rope.section_or_self("sliding_attention"));
    metadata.set("rope.freq_base", global.float_or("rope_theta", 1e6)?);
    metadata.set("rope.freq_base_swa", local.float_or("rope_theta", 1e4)?);
    let kind = global.text("rope_type").unwrap_or("proportional");
    if kind != "proportional" {
        let found = format!("of type {}, expected proportional", escape_for_message(kind));
        return Err(metadata.config.invalid_value("rope_parameters", found));
    }
    let fraction = global.float_or("partial_rotary_factor", 0.25)?;
    let rotated_pairs = (head_dim as f32 * fraction / 2.0) as usize;
    let values = (0..head_dim as usize / 2)
        .map(|pair| if pair < rotated_pairs { 1.0 } else { 1e30 })
        .collect();
    metadata.tensors.push(constant_tensor("rope_freqs.weight", values));
    Ok(())
}

/// Stacks Gemma 3n's AltUp projections, and extends the per-layer embedding by rows for image and
/// audio tokens, which the folder lacks.
fn stack_projections<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    let copies = mapper.config.count("altup_num_inputs")?.saturating_sub(1);
    for (source, name) in [
        ("altup_projections", "altup_proj.weight"),
        ("altup_unembed_projections", "altup_unembd_proj.weight"),
    ] {
        let mut parts: Vec<TensorRows<'a>> = Vec::new();
        let mut each = Vec::new();
        for copy in 0..copies {
            let full = format!("{source}.{copy}.weight");
            let tensor = weights.take(&full).ok_or(ConvertError::TensorMissing { name: full })?;
            if parts.is_empty() {
                each.clone_from(&tensor.entry.shape);
            }
            if tensor.entry.shape != each || each.len() != 2 {
                let (name, found) = (tensor.entry.name.clone(), tensor.entry.shape.clone());
                return Err(ConvertError::TensorShape { name, found, want: each });
            }
            parts.push(TensorRows { rows: each[0], tensor, order: RowOrder::SAME });
        }
        let columns = each.last().copied().unwrap_or(1);
        let shape = [&[parts.len() as u64], &each[..]].concat();
        let content = TensorContent::Rows { parts, columns, transform: ValueTransform::None };
        outputs.push(OutputTensor {
            name: name.to_owned(),
            ty: mapper.matrix_type,
            shape,
            content,
        });
    }
    let rows =
        weights.get("embed_tokens.weight").and_then(|table| table.entry.shape.first().copied());
    if let Some(rows) = rows
        && let Some(tensor) = weights.take("embed_tokens_per_layer.weight")
    {
        // Only the few rows of image and audio tokens may be missing.
        let [has, columns] = tensor.entry.shape[..] else {
            return Err(wrong_rows(&tensor, rows));
        };
        if has < rows / 2 {
            return Err(wrong_rows(&tensor, rows));
        }
        let content = TensorContent::Rows {
            parts: vec![TensorRows { tensor, rows: has.min(rows), order: RowOrder::SAME }],
            columns,
            transform: ValueTransform::None,
        };
        let (name, shape) =
            ("per_layer_token_embd.weight".to_owned(), vec![rows.max(has), columns]);
        outputs.push(OutputTensor { name, ty: mapper.matrix_type, shape, content });
    }
    Ok(())
}

fn wrong_rows(tensor: &SourceTensor<'_>, rows: u64) -> ConvertError {
    let (name, found) = (tensor.entry.name.clone(), tensor.entry.shape.clone());
    ConvertError::TensorShape { name, found, want: vec![rows, tensor.columns()] }
}

/// Quantile function of the normal distribution (Wichura's algorithm AS 241).
fn quantile(fraction: f64) -> f64 {
    let poly =
        |coefficients: &[f64], x: f64| coefficients.iter().rev().fold(0.0, |sum, c| sum * x + c);
    if fraction <= 0.0 {
        return f64::NEG_INFINITY;
    }
    if fraction >= 1.0 {
        return f64::INFINITY;
    }
    let q = fraction - 0.5;
    if q.abs() <= 0.425 {
        let r = 0.180_625 - q * q;
        return q * poly(&CENTRAL.0, r) / poly(&CENTRAL.1, r);
    }
    let r = (-fraction.min(1.0 - fraction).ln()).sqrt();
    let size = match r <= 5.0 {
        true => poly(&NEAR_TAIL.0, r - 1.6) / poly(&NEAR_TAIL.1, r - 1.6),
        false => poly(&FAR_TAIL.0, r - 5.0) / poly(&FAR_TAIL.1, r - 5.0),
    };
    size.copysign(q)
}

type RationalCoefficients = ([f64; 8], [f64; 8]);
const CENTRAL: RationalCoefficients = (
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
const NEAR_TAIL: RationalCoefficients = (
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
const FAR_TAIL: RationalCoefficients = (
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
    fn quantiles_match_known_values() {
        for (fraction, want) in
            [(0.5, 0.0), (0.95, 1.644_853_626_951_472_7), (0.01, -2.326_347_874_040_841)]
        {
            assert!(
                (quantile(fraction) - want).abs() < 1e-12,
                "{fraction}: {}",
                quantile(fraction)
            );
        }
        assert!((quantile(1e-20) + 9.262_340_089_798_408).abs() < 1e-9);
        assert_eq!((quantile(0.0), quantile(1.0)), (f64::NEG_INFINITY, f64::INFINITY));
    }
}

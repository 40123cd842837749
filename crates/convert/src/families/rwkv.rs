//! RWKV 6, which has time mixing instead of attention; and Qwen 2 with RWKV 6's time mixing.

use super::common_rules::{GATED_FFN, PRE_FFN_NORM};
use super::default_family::DEFAULT;
use crate::error::ConvertError;
use crate::family::{Family, LayerUniformity, TensorMapper, VocabularyKind};
use crate::metadata::{HyperParameters, MetadataWriter};
use crate::output::{
    OutputTensor, RowMapping, RowOrder, TensorContent, TensorRows, ValueTransform,
};
use crate::rules::{Dimensions, SourceLayout, TensorRule, rename};
use crate::source::Weights;

/// Context length in metadata: a recurrent state does not limit it.
pub(super) const UNLIMITED_CONTEXT: u32 = 1 << 20;

const GLOBAL: [TensorRule; 4] = [
    rename("embeddings", "token_embd"),
    rename("pre_ln", "token_embd_norm"),
    rename("ln_out", "output_norm"),
    rename("head", "output"),
];
const LAYER: [TensorRule; 20] = [
    rename("ln1", "attn_norm"),
    rename("ln2", "attn_norm_2"),
    rename("attention.time_maa_x", "time_mix_lerp_x").with_layout(SourceLayout::Squeezed),
    rename("attention.time_maa_w1", "time_mix_w1").with_layout(SourceLayout::Transposed),
    rename("attention.time_maa_w2", "time_mix_w2").with_layout(SourceLayout::Transposed),
    rename("attention.time_decay", "time_mix_decay").with_layout(SourceLayout::Squeezed),
    rename("attention.time_decay_w1", "time_mix_decay_w1").with_layout(SourceLayout::Transposed),
    rename("attention.time_decay_w2", "time_mix_decay_w2").with_layout(SourceLayout::Transposed),
    rename("attention.time_faaaa", "time_mix_first"),
    rename("attention.receptance", "time_mix_receptance"),
    rename("attention.key", "time_mix_key"),
    rename("attention.value", "time_mix_value"),
    rename("attention.gate", "time_mix_gate"),
    rename("attention.ln_x", "time_mix_ln"),
    rename("attention.output", "time_mix_output"),
    rename("feed_forward.time_maa_k", "channel_mix_lerp_k").with_layout(SourceLayout::Squeezed),
    rename("feed_forward.time_maa_r", "channel_mix_lerp_r").with_layout(SourceLayout::Squeezed),
    rename("feed_forward.key", "channel_mix_key"),
    rename("feed_forward.receptance", "channel_mix_receptance"),
    rename("feed_forward.value", "channel_mix_value"),
];

/// Interpolation weights in the order of the file.
const LERP_LETTERS: [&str; 5] = ["w", "k", "v", "r", "g"];

pub(super) const RWKV6: Family = Family {
    architecture: "rwkv6",
    classes: &["Rwkv6ForCausalLM"],
    root_prefix: "rwkv.",
    layer_prefix: "blocks.",
    global_rules: &[&GLOBAL],
    layer_rules: &[&LAYER],
    layer_uniformity: LayerUniformity::Arbitrary,
    vocabulary: VocabularyKind::Rwkv,
    // An adapter's update would have to be rescaled with the weights.
    supports_adapters: false,
    custom_tensors: Some(rescale_and_fuse),
    hyper_parameters: |config| {
        let dims =
            Dimensions { layers: config.count("num_hidden_layers")?, ..Dimensions::default() };
        Ok(HyperParameters {
            dims,
            hidden_size: config.count("hidden_size")?,
            context_length: UNLIMITED_CONTEXT,
            feed_forward_length: 0,
        })
    },
    write_metadata: |metadata| {
        let (config, width) = (metadata.config, metadata.params.hidden_size);
        metadata.write_rwkv_sizes();
        metadata.set("attention.layer_norm_epsilon", config.float_or("layer_norm_epsilon", 1e-5)?);
        metadata
            .set("rescale_every_n_layers", config.opt_count_or_zero("rescale_every")?.unwrap_or(0));
        metadata.set_count("wkv.head_size", &["head_size"])?;
        let is_large = width == 4096;
        metadata.set("time_mix_extra_dim", if is_large { 64u32 } else { 32 });
        metadata.set("time_decay_extra_dim", if is_large { 128u32 } else { 64 });
        let inner = config.opt_count("intermediate_size")?;
        metadata.set(
            "feed_forward_length",
            inner.unwrap_or(((f64::from(width) * 3.5) as u32) / 32 * 32),
        );
        Ok(())
    },
    ..DEFAULT
};

impl MetadataWriter<'_> {
    /// Writes the sizes of a model without attention.
    pub(super) fn write_rwkv_sizes(&mut self) {
        self.set("context_length", UNLIMITED_CONTEXT);
        self.set("embedding_length", self.params.hidden_size);
        self.set("block_count", self.params.dims.layers);
        self.set("attention.head_count", 0u32);
    }
}

const QWEN2_LAYER: [TensorRule; 10] = [
    rename("input_layernorm", "attn_norm"),
    rename("self_attn.time_maa_x", "time_mix_lerp_x").with_layout(SourceLayout::Squeezed),
    rename("self_attn.time_decay", "time_mix_decay").with_layout(SourceLayout::Squeezed),
    rename("self_attn.time_decay_w1", "time_mix_decay_w1").with_layout(SourceLayout::Transposed),
    rename("self_attn.time_decay_w2", "time_mix_decay_w2").with_layout(SourceLayout::Transposed),
    rename("self_attn.q_proj", "time_mix_receptance"),
    rename("self_attn.k_proj", "time_mix_key"),
    rename("self_attn.v_proj", "time_mix_value"),
    rename("self_attn.gate", "time_mix_gate"),
    rename("self_attn.o_proj", "time_mix_output"),
];

pub(super) const RWKV6_QWEN2: Family = Family {
    architecture: "rwkv6qwen2",
    classes: &["RWKV6Qwen2ForCausalLM"],
    layer_rules: &[&QWEN2_LAYER, &PRE_FFN_NORM, &GATED_FFN],
    custom_tensors: Some(|mapper, weights, outputs| {
        for layer in 0..mapper.dims.layers {
            fuse_lerp_tensors(
                mapper,
                weights,
                layer,
                "self_attn.time_maa_",
                &LERP_LETTERS,
                outputs,
            )?;
            reorder_lora_matrices(mapper, weights, layer, outputs)?;
        }
        Ok(())
    }),
    write_metadata: |metadata| {
        let (config, width) = (metadata.config, metadata.params.hidden_size);
        metadata.write_rwkv_sizes();
        metadata.write_norm_epsilons()?;
        metadata.set("wkv.head_size", width / metadata.params.dims.heads);
        let [mix, decay] = if width >= 4096 { [64, 128] } else { [32, 64] };
        metadata
            .set("time_mix_extra_dim", config.opt_count("lora_rank_tokenshift")?.unwrap_or(mix));
        metadata.set("time_decay_extra_dim", config.opt_count("lora_rank_decay")?.unwrap_or(decay));
        metadata.set("feed_forward_length", metadata.params.feed_forward_length);
        metadata.set("token_shift_count", 1u32);
        metadata.set("attention.head_count_kv", metadata.params.dims.kv_heads);
        Ok(())
    },
    ..DEFAULT
};

/// The low-rank matrices of the five interpolation weights. The folder begins with receptance, GGUF
/// files with decay.
fn reorder_lora_matrices<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    layer: u32,
    outputs: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    let swapped =
        |block_rows| RowOrder::of(RowMapping::SwapBlocks { block_rows, first: 0, second: 3 });
    for (part, target) in [("w1", "time_mix_w1.weight"), ("w2", "time_mix_w2.weight")] {
        let name = format!("{}{layer}.self_attn.time_maa_{part}", mapper.family.layer_prefix);
        let tensor = weights.take(&name).ok_or(ConvertError::TensorMissing { name })?;
        // `w1` has the columns of all five side by side; `w2` is a stack of five matrices.
        let (shape, [source_rows, columns_taken], [column_order, matrix_order]) =
            match tensor.entry.shape[..] {
                [width, all] if part == "w1" && all.is_multiple_of(5) => {
                    (vec![all, width], [width, all], [swapped(all / 5), RowOrder::SAME])
                }
                [5, rank, width] if part == "w2" => {
                    (vec![5, width, rank], [rank, width], [RowOrder::SAME, swapped(1)])
                }
                _ => {
                    let (name, found) = (tensor.entry.name.clone(), tensor.entry.shape.clone());
                    let width = mapper.config.count("hidden_size")?.into();
                    let want = if part == "w1" { vec![width, 5] } else { vec![5, 1, width] };
                    return Err(ConvertError::TensorShape { name, found, want });
                }
            };
        let content = TensorContent::Transposed {
            tensor,
            source_rows,
            columns_taken,
            column_order,
            matrix_order,
            transform: ValueTransform::None,
        };
        let ty = mapper.tensor_type(target, &shape);
        outputs.push(OutputTensor {
            name: mapper.full_name(Some(layer), target),
            ty,
            shape,
            content,
        });
    }
    Ok(())
}

/// Fuses the five interpolation weights, and rescales the outputs of layers: every `rescale_every`
/// layers by another factor of one half.
fn rescale_and_fuse<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    // Only the first layer has this norm, which precedes all layers.
    weights.rename(|name| {
        name.strip_prefix("blocks.0.pre_ln").map_or(name.to_owned(), |end| format!("pre_ln{end}"))
    })?;
    let rescale = mapper.config.opt_count_or_zero("rescale_every")?.unwrap_or(0);
    for layer in 0..mapper.dims.layers {
        fuse_lerp_tensors(mapper, weights, layer, "attention.time_maa_", &LERP_LETTERS, outputs)?;
        let halvings = layer.checked_div(rescale).unwrap_or(0);
        if halvings == 0 {
            continue;
        }
        for (part, target) in
            [("attention.output", "time_mix_output"), ("feed_forward.value", "channel_mix_value")]
        {
            let Some(tensor) = weights.take(&format!("blocks.{layer}.{part}.weight")) else {
                continue;
            };
            let (name, shape) = (format!("{target}.weight"), tensor.entry.shape.clone());
            let columns = tensor.columns();
            let rows = tensor.entry.elements() / columns.max(1);
            let transform = ValueTransform::Scale(0.5f32.powi(halvings as i32));
            let parts = vec![TensorRows { tensor, rows, order: RowOrder::SAME }];
            let content = TensorContent::Rows { parts, columns, transform };
            let ty = mapper.tensor_type(&name, &shape);
            outputs.push(OutputTensor {
                name: mapper.full_name(Some(layer), &name),
                ty,
                shape,
                content,
            });
        }
    }
    Ok(())
}

/// Fuses the interpolation weights, which are tensors with a letter each.
pub(super) fn fuse_lerp_tensors<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    layer: u32,
    stem: &str,
    letters: &[&str],
    outputs: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    let mut parts = Vec::new();
    let mut width = 0;
    for letter in letters {
        let name = format!("{}{layer}.{stem}{letter}", mapper.family.layer_prefix);
        let tensor = weights.take(&name).ok_or(ConvertError::TensorMissing { name })?;
        let count = tensor.entry.elements();
        if !parts.is_empty() && count != width {
            let (name, found) = (tensor.entry.name.clone(), tensor.entry.shape.clone());
            return Err(ConvertError::TensorShape { name, found, want: vec![1, 1, width] });
        }
        width = count;
        parts.push(TensorRows { tensor, rows: 1, order: RowOrder::SAME });
    }
    push_fused_lerp(mapper, layer, parts, width, outputs);
    Ok(())
}

/// Adds the tensor of fused interpolation weights of `width` channels.
pub(super) fn push_fused_lerp<'a>(
    mapper: &TensorMapper<'_>,
    layer: u32,
    parts: Vec<TensorRows<'a>>,
    width: u64,
    outputs: &mut Vec<OutputTensor<'a>>,
) {
    let count = parts.iter().map(|part| part.rows).sum();
    let (name, shape) = ("time_mix_lerp_fused.weight", vec![count, 1, 1, width]);
    let content = TensorContent::Rows { parts, columns: width, transform: ValueTransform::None };
    let ty = mapper.tensor_type(name, &shape);
    outputs.push(OutputTensor { name: mapper.full_name(Some(layer), name), ty, shape, content });
}

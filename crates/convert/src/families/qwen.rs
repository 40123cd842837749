//! Qwen 1 to 3 and models with similar layers.

use super::common_rules::{ATTENTION, EXPERTS, GATED_FFN, GPT2_GLOBAL, GPT2_NORMS, PRE_FFN_NORM};
use super::default_family::DEFAULT;
use crate::error::ConvertError;
use crate::family::{Family, LayerUniformity, TensorMapper};
use crate::metadata::MetadataWriter;
use crate::output::OutputTensor;
use crate::rules::{RowSplit, SourceLayout, TensorRule, rename, split};
use crate::source::Weights;

/// The shared expert.
pub(super) const SHARED_EXPERT: [TensorRule; 4] = [
    rename("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    rename("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    rename("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    rename("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
];

/// Names of the norms in KORMo.
const KORMO: [TensorRule; 2] =
    [rename("pre_attention_layernorm", "attn_norm"), rename("pre_mlp_layernorm", "ffn_norm")];

pub(super) const QWEN2: Family = Family {
    architecture: "qwen2",
    classes: &["Qwen2ForCausalLM", "Qwen2Model", "KORMoForCausalLM"],
    layer_rules: &[&ATTENTION, &GATED_FFN, &PRE_FFN_NORM, &KORMO],
    ..DEFAULT
};

/// Qwen 1: one matrix of queries, keys and values, with a bias.
pub(super) const QWEN: Family = Family {
    architecture: "qwen",
    classes: &["QWenLMHeadModel"],
    root_prefix: "transformer.",
    layer_prefix: "h.",
    global_rules: &[&GPT2_GLOBAL],
    layer_rules: &[&GPT2_NORMS, &QWEN1_LAYER],
    extra_special_tokens: &[
        ("bos", "<|endoftext|>"),
        ("eos", "<|endoftext|>"),
        ("unknown", "<|endoftext|>"),
    ],
    write_metadata: |metadata| {
        metadata.write_sizes();
        // The configuration has the sum of the widths of gate and up projection.
        metadata.set("feed_forward_length", metadata.params.feed_forward_length / 2);
        metadata.set(
            "attention.layer_norm_rms_epsilon",
            metadata.config.float_or("layer_norm_epsilon", 1e-6)?,
        );
        metadata.write_rope()?;
        metadata.set("rope.dimension_count", metadata.head_dim());
        Ok(())
    },
    ..DEFAULT
};

const QWEN1_LAYER: [TensorRule; 5] = [
    rename("attn.c_attn", "attn_qkv"),
    rename("attn.c_proj", "attn_output"),
    rename("mlp.w2", "ffn_gate"),
    rename("mlp.w1", "ffn_up"),
    rename("mlp.c_proj", "ffn_down"),
];

/// Text model of Qwen 2 VL.
pub(super) const QWEN2VL: Family = Family {
    architecture: "qwen2vl",
    classes: &[
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen2VLModel",
    ],
    ..DEFAULT
};

pub(super) const QWEN3VL: Family = Family {
    architecture: "qwen3vl",
    classes: &["Qwen3VLForConditionalGeneration"],
    write_metadata: |metadata| {
        metadata.write_common()?;
        write_deepstack(metadata);
        Ok(())
    },
    ..DEFAULT
};

/// Stacked experts with dimensions inputs, outputs.
const QWEN3VL_EXPERTS: [TensorRule; 2] = [
    split("mlp.experts.gate_up_proj", RowSplit::EqualParts, &["ffn_gate_exps", "ffn_up_exps"])
        .with_layout(SourceLayout::Transposed),
    rename("mlp.experts.down_proj", "ffn_down_exps").with_layout(SourceLayout::Transposed),
];

/// Later versions of transformers store stacked experts with dimensions outputs, inputs. The shape
/// of the down projection shows which it is.
fn map_untransposed_experts<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    let width = u64::from(mapper.config.count("hidden_size")?);
    let inner = u64::from(mapper.config.count("moe_intermediate_size")?);
    for layer in 0..mapper.dims.layers {
        let name = |part: &str| format!("layers.{layer}.mlp.experts.{part}");
        let down = weights.get(&name("down_proj"));
        if down
            .is_none_or(|down| down.entry.shape.get(1..) != Some(&[width, inner]) || width == inner)
        {
            continue;
        }
        for rule in QWEN3VL_EXPERTS {
            let part = rule.source.trim_start_matches("mlp.experts.");
            let tensor = weights.take(&name(part));
            let tensor = tensor.ok_or_else(|| ConvertError::TensorMissing { name: name(part) })?;
            mapper.map_tensor(
                &rule.with_layout(SourceLayout::Plain),
                Some(layer),
                ".weight",
                &tensor,
                outputs,
            )?;
        }
    }
    Ok(())
}

pub(super) const QWEN3VLMOE: Family = Family {
    architecture: "qwen3vlmoe",
    classes: &["Qwen3VLMoeForConditionalGeneration"],
    layer_rules: &[&ATTENTION, &GATED_FFN, &PRE_FFN_NORM, &QWEN3VL_EXPERTS, &EXPERTS],
    layer_uniformity: LayerUniformity::SeveralKinds,
    custom_tensors: Some(map_untransposed_experts),
    write_metadata: |metadata| {
        metadata.write_common()?;
        write_deepstack(metadata);
        metadata.set_count("expert_feed_forward_length", &["moe_intermediate_size"])
    },
    ..DEFAULT
};

/// Number of layers that receive image features.
fn write_deepstack(metadata: &mut MetadataWriter<'_>) {
    let vision = metadata.config.section_or_self("vision_config");
    let layers = vision
        .value("deepstack_visual_indexes")
        .and_then(|list| list.as_array())
        .map_or(0, Vec::len);
    metadata.set("n_deepstack_layers", u32::try_from(layers).unwrap_or(0));
}

pub(super) const QWEN3: Family =
    Family { architecture: "qwen3", classes: &["Qwen3ForCausalLM", "Qwen3Model"], ..DEFAULT };

pub(super) const QWEN3MOE: Family = Family {
    architecture: "qwen3moe",
    classes: &["Qwen3MoeForCausalLM"],
    layer_rules: &[&ATTENTION, &GATED_FFN, &PRE_FFN_NORM, &EXPERTS],
    // Some layers may have no experts.
    layer_uniformity: LayerUniformity::SeveralKinds,
    write_metadata: |metadata| {
        metadata.write_common()?;
        metadata.set_count("expert_feed_forward_length", &["moe_intermediate_size"])
    },
    ..DEFAULT
};

pub(super) const QWEN2MOE: Family = Family {
    architecture: "qwen2moe",
    classes: &["Qwen2MoeForCausalLM"],
    layer_rules: &[&ATTENTION, &GATED_FFN, &PRE_FFN_NORM, &EXPERTS, &SHARED_EXPERT],
    layer_uniformity: LayerUniformity::SeveralKinds,
    write_metadata: |metadata| {
        metadata.write_common()?;
        metadata.set_count("expert_feed_forward_length", &["moe_intermediate_size"])?;
        metadata
            .set_count("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"])
    },
    ..DEFAULT
};

pub(super) const OLMOE: Family = Family {
    architecture: "olmoe",
    classes: &["OlmoeForCausalLM"],
    layer_rules: &[&ATTENTION, &PRE_FFN_NORM, &EXPERTS],
    ..DEFAULT
};

//! Values of fields that a family does not set.

use super::common_rules::{ATTENTION, GATED_FFN, GLOBAL, PRE_FFN_NORM};
use crate::family::{Family, LayerUniformity, VocabularyKind};
use crate::metadata::HyperParameters;
use crate::output::ValueTransform;

/// Defaults for all fields: a decoder with Llama's tensor names.
pub(super) const DEFAULT: Family = Family {
    architecture: "",
    classes: &[],
    matches: |_| true,
    root_prefix: "model.",
    layer_prefix: "layers.",
    global_rules: &[&GLOBAL],
    layer_rules: &[&ATTENTION, &GATED_FFN, &PRE_FFN_NORM],
    layer_scalars: &[],
    global_scalars: &[],
    metadata_from_tensors: |_, _| Ok(()),
    layer_uniformity: LayerUniformity::Identical,
    interleaves_rope_pairs: false,
    ties_output: false,
    omits_space_prefix: false,
    pretokenizer: |name| name,
    extra_special_tokens: &[],
    eos_key: None,
    tiktoken_pretokenizer: None,
    vocabulary: VocabularyKind::Standard,
    gguf_layer_prefix: "blk.",
    supports_adapters: true,
    custom_tensors: None,
    value_transform: |_, _| Ok(ValueTransform::None),
    hyper_parameters: HyperParameters::from_config,
    write_metadata: |metadata| metadata.write_common(),
};

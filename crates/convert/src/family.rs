//! Definition of a model family for conversion. The folder `families` has a constant for each.

use puna_quant::TensorType;

use crate::error::ConvertError;
use crate::metadata::{HyperParameters, MetadataWriter};
use crate::output::{OutputTensor, ValueTransform};
use crate::rules::{Dimensions, TensorRule};
use crate::source::{Config, Weights};

/// Everything that distinguishes a family from others.
pub(crate) struct Family {
    /// Value of `general.architecture`.
    pub(crate) architecture: &'static str,
    /// Names of its classes in `config.json`.
    pub(crate) classes: &'static [&'static str],
    /// Whether a configuration with one of the classes belongs to the family: several families
    /// share a class.
    pub(crate) matches: fn(&Config) -> bool,
    /// Prefix of all source names except the output's; may be empty.
    pub(crate) root_prefix: &'static str,
    /// Prefix of a layer's number in source names, behind the root prefix.
    pub(crate) layer_prefix: &'static str,
    /// Rules for tensors outside of layers.
    pub(crate) global_rules: &'static [&'static [TensorRule]],
    /// Rules for tensors of a layer.
    pub(crate) layer_rules: &'static [&'static [TensorRule]],
    /// Source tensors of one value in each layer, and the metadata key (without architecture
    /// prefix) of the list of these values.
    pub(crate) layer_scalars: &'static [(&'static str, &'static str)],
    /// Source tensors of one value outside of layers, and their metadata keys.
    pub(crate) global_scalars: &'static [(&'static str, &'static str)],
    /// Writes metadata that follows from the values of tensors, and removes these tensors.
    pub(crate) metadata_from_tensors: MetadataFromTensors,
    /// Which layers must have the same tensors.
    pub(crate) layer_uniformity: LayerUniformity,
    /// Whether the GGUF file has the two features of a rotary pair in adjacent rows of queries and
    /// keys. Folders have them half a head apart.
    pub(crate) interleaves_rope_pairs: bool,
    /// Whether the output matrix is always the token embedding.
    pub(crate) ties_output: bool,
    /// Whether no space is added before a text, regardless of the vocabulary's settings.
    pub(crate) omits_space_prefix: bool,
    /// Maps the name of a pre-tokenizer to the family's name for it. Names with the same splitting
    /// rules differ in the tokens that are added around a text.
    pub(crate) pretokenizer: fn(&'static str) -> &'static str,
    /// Special tokens that the folder's files do not mark, most of which end a generation: role in
    /// GGUF, text.
    pub(crate) extra_special_tokens: &'static [(&'static str, &'static str)],
    /// Configuration key of the end token, if the usual key has another token.
    pub(crate) eos_key: Option<&'static str>,
    /// Name of the pre-tokenizer, if `tokenizer.model` is a tiktoken vocabulary.
    pub(crate) tiktoken_pretokenizer: Option<&'static str>,
    /// Kind of vocabulary.
    pub(crate) vocabulary: VocabularyKind,
    /// Prefix of a layer's number in GGUF names.
    pub(crate) gguf_layer_prefix: &'static str,
    /// Whether LoRA adapters for the family can be converted.
    pub(crate) supports_adapters: bool,
    /// Maps tensors that no rule can describe. It runs before the rules.
    pub(crate) custom_tensors: Option<CustomTensors>,
    /// Function that is applied to the values of a target tensor.
    pub(crate) value_transform: fn(&Config, &str) -> Result<ValueTransform, ConvertError>,
    /// Reads the hyperparameters from the configuration.
    pub(crate) hyper_parameters: fn(&Config) -> Result<HyperParameters, ConvertError>,
    /// Writes the metadata keys.
    pub(crate) write_metadata: fn(&mut MetadataWriter<'_>) -> Result<(), ConvertError>,
}

/// Which layers of a family must have the same tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum LayerUniformity {
    /// All layers have the tensors of the first.
    Identical,
    /// Layers may differ, for example in experts or attention, but each set of tensors must occur
    /// twice or in the last layer.
    SeveralKinds,
    /// Not checked.
    Arbitrary,
}

impl Family {
    /// Whether the model has an embedding of token types.
    pub(crate) fn has_token_types(&self) -> bool {
        self.global_rules.iter().copied().flatten().any(|rule| rule.target == "token_types")
    }

    /// Layer number and the rest of a source name.
    pub(crate) fn layer_of<'n>(&self, name: &'n str) -> Option<(u32, &'n str)> {
        let (number, rest) = name.strip_prefix(self.layer_prefix)?.split_once('.')?;
        // Only the canonical spelling of a number, so that no two names mean one tensor.
        let layer: u32 = number.parse().ok()?;
        (layer.to_string() == number).then_some((layer, rest))
    }

    /// The rule for a source name without root prefix, with the layer number and the suffix of the
    /// name.
    pub(crate) fn rule_for<'n>(
        &self,
        name: &'n str,
    ) -> Option<(&'static TensorRule, Option<u32>, &'n str)> {
        let find = |lists: &'static [&'static [TensorRule]], name: &'n str| {
            lists.iter().copied().flatten().find_map(|rule| Some((rule, rule.suffix(name)?)))
        };
        match self.layer_of(name) {
            Some((layer, rest)) => {
                find(self.layer_rules, rest).map(|(rule, suffix)| (rule, Some(layer), suffix))
            }
            None => find(self.global_rules, name).map(|(rule, suffix)| (rule, None, suffix)),
        }
    }
}

/// Kind of a family's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum VocabularyKind {
    /// The files of the folder decide.
    Standard,
    /// Gemma 4's format: merges of characters, with byte fallback.
    Gemma4,
    /// WordPiece, or Unigram if the file has that.
    Encoder,
    /// RWKV's vocabulary of byte strings.
    Rwkv,
}

/// Writes metadata that follows from the values of tensors.
pub(crate) type MetadataFromTensors =
    fn(&mut MetadataWriter<'_>, &mut Weights<'_>) -> Result<(), ConvertError>;

/// Maps tensors that no rule can describe.
pub(crate) type CustomTensors = for<'a> fn(
    &TensorMapper<'_>,
    &mut Weights<'a>,
    &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError>;

/// Maps the tensors of one model by the rules of its family. The file `tensor_mapper.rs` has the
/// methods.
pub(crate) struct TensorMapper<'a> {
    pub(crate) family: &'a Family,
    pub(crate) config: &'a Config,
    pub(crate) dims: &'a Dimensions,
    /// Type of matrices in the file: F16 or BF16.
    pub(crate) matrix_type: TensorType,
}

//! Families of decoders: what sets one apart from the others, as data. A family is a constant in a file beside this one,
//! with the rules of its tensors and a function for its keys, and a line in [`FAMILIES`].

mod behind;
mod bitnet;
mod cohere;
mod delta;
mod diffusion;
mod dots3_note;
mod encoders;
mod gated;
mod gemma;
mod gemma_late;
mod glm;
mod gpt;
mod gpt_oss;
mod granite;
mod granite_switch;
mod hrm_text;
mod hunyuan;
mod hyper;
mod kda;
mod latent;
mod layered;
mod lfm2;
mod llama;
mod minimax;
mod mixture;
mod names;
mod nemotron_h;
mod phi;
mod qwen;
mod qwen4;
mod rwkv;
mod rwkv7;
mod state;
mod t5;
mod talkie;

use std::collections::BTreeSet;

use super::config::Json;
use super::keys::{Keys, Shape};
use super::pieces::Cutter;
use super::plan::{Change, Output};
use super::rules::Rule;
use super::weights::Weights;
use crate::error::StoreError;

/// What sets a family apart from the others.
pub(super) struct Family {
    /// Its name in a GGUF file.
    pub(super) architecture: &'static str,
    /// The names of its classes in `config.json`.
    pub(super) classes: &'static [&'static str],
    /// Whether a configuration with such a class is of this family: some classes are of several.
    pub(super) fits: fn(&Json) -> bool,
    /// What stands in front of all names but the output's, where anything does.
    pub(super) root: &'static str,
    /// What stands in front of the number of a layer.
    pub(super) layers: &'static str,
    /// Tensors that are of no layer.
    pub(super) whole: &'static [&'static [Rule]],
    /// Tensors of a layer.
    pub(super) layer: &'static [&'static [Rule]],
    /// Tensors of one number in a layer, and the lists that they become under whole keys.
    pub(super) scalars: &'static [(&'static str, &'static str)],
    /// Tensors of one number that are of no layer, and the keys that they become.
    pub(super) numbers: &'static [(&'static str, &'static str)],
    /// Writes keys of what tensors hold, and takes these out.
    pub(super) told: Told,
    /// How much layers have in common.
    pub(super) alike: Alike,
    /// Whether pairs of features that turn together stand side by side, in the rows of queries and keys.
    pub(super) pairs: bool,
    /// Whether the output is the table of tokens, whatever else the folder has.
    pub(super) tied: bool,
    /// Whether an unknown first word gets no space before it, whatever the vocabulary says.
    pub(super) bare_start: bool,
    /// The name of its pre-tokenizer, where one that cuts in the same way has another: tokens around texts differ by it.
    pub(super) pre: fn(&'static str) -> &'static str,
    /// Tokens with a task of which its files do not say so, most of which end an answer: the key, the text.
    pub(super) ends: &'static [(&'static str, &'static str)],
    /// The key of the configuration for the token that ends a text, where the usual one says another.
    pub(super) end_key: Option<&'static str>,
    /// What the way to cut texts of a `tokenizer.model` is called that is tiktoken's, where that is known.
    pub(super) ranks: Option<&'static str>,
    /// What the vocabulary is.
    pub(super) words: Words,
    /// What stands in front of the number of a layer here.
    pub(super) blocks: &'static str,
    /// Whether an adapter's matrices can go where those of the model go.
    pub(super) takes_adapters: bool,
    /// Takes tensors that rules do not tell.
    pub(super) odd: Option<Odd>,
    /// What is added to values, or what they are multiplied by, by the name here.
    pub(super) change: fn(&Json, &str) -> Result<Change, StoreError>,
    /// What the configuration says about the network.
    pub(super) shape: fn(&Json) -> Result<Shape, StoreError>,
    /// Writes its keys.
    pub(super) keys: fn(&mut Keys<'_>) -> Result<(), StoreError>,
}

/// What the layers of a family have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Alike {
    /// All tensors of the first.
    All,
    /// Not all tensors: some have experts, or something else in place of attention.
    Kinds,
    /// Each has what it has, or nothing.
    Nothing,
}

impl Family {
    /// Whether it tells texts apart by a table of their own.
    pub(super) fn has_token_types(&self) -> bool {
        self.whole.iter().copied().flatten().any(|rule| rule.here == "token_types")
    }
}

/// The kind of a family's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Words {
    /// What its files say.
    Usual,
    /// Merges of characters, with bytes to fall back on: Gemma 4's own form.
    Gemma4,
    /// WordPiece, or Unigram if that is what the file has.
    Encoder,
    /// RWKV's list of bytes.
    Bytes,
}

/// Writes keys of what tensors hold.
pub(super) type Told = fn(&mut Keys<'_>, &mut Weights<'_>) -> Result<(), StoreError>;

/// Takes tensors that rules do not tell.
pub(super) type Odd =
    for<'a> fn(&Cutter<'_>, &mut Weights<'a>, &mut Vec<Output<'a>>) -> Result<(), StoreError>;

/// A family like most of them.
const PLAIN: Family = Family {
    architecture: "",
    classes: &[],
    fits: |_| true,
    root: "model.",
    layers: "layers.",
    whole: &[&names::WHOLE],
    layer: &[&names::ATTENTION, &names::GATED, &names::BEFORE],
    scalars: &[],
    numbers: &[],
    told: |_, _| Ok(()),
    alike: Alike::All,
    pairs: false,
    tied: false,
    bare_start: false,
    pre: |name| name,
    ends: &[],
    end_key: None,
    ranks: None,
    words: Words::Usual,
    blocks: "blk.",
    takes_adapters: true,
    odd: None,
    change: |_, _| Ok(Change::None),
    shape: Shape::usual,
    keys: |keys| keys.usual(),
};

/// All families.
pub(super) const FAMILIES: &[&Family] = &[
    &llama::LLAMA,
    &llama::MISTRAL3,
    &llama::LLAMA4,
    &qwen::QWEN,
    &qwen::QWEN2,
    &qwen::QWEN2MOE,
    &qwen::QWEN2VL,
    &qwen::QWEN3,
    &qwen::QWEN3MOE,
    &qwen::QWEN3VL,
    &qwen::QWEN3VLMOE,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &phi::PHI2,
    &phi::PHI3,
    &phi::PHIMOE,
    &gpt_oss::GPT_OSS,
    &glm::CHATGLM,
    &glm::CHATGLM_FIRST,
    &glm::GLM4,
    &glm::GLM4MOE,
    &granite::GRANITE,
    &granite::GRANITEMOE,
    &granite::GRANITE_SWA,
    &granite_switch::GRANITE_SWITCH,
    &llama::SMOLLM3,
    &llama::ARCEE,
    &llama::SEED_OSS,
    &llama::APERTUS,
    &llama::MINICPM,
    &llama::NEMOTRON,
    &llama::STABLELM,
    &llama::EXAONE,
    &behind::EXAONE4,
    &mixture::EXAONE_MOE,
    &llama::OLMO,
    &behind::OLMO2,
    &qwen::OLMOE,
    &cohere::COMMAND_R,
    &cohere::COHERE2,
    &cohere::COHERE2MOE,
    &llama::ERNIE4_5,
    &mixture::ERNIE4_5_MOE,
    &hunyuan::DENSE,
    &hunyuan::MOE_V1,
    &hunyuan::VL,
    &hunyuan::HY_V3,
    &hyper::HY_V4,
    &hyper::DEEPSEEK4,
    &mixture::DEEPSEEK,
    &mixture::DEEPSEEK_OCR,
    &mixture::DOTS1,
    &mixture::GROVEMOE,
    &mixture::BAILINGMOE,
    &mixture::BAILINGMOE2,
    &minimax::MINIMAX_01,
    &minimax::MINIMAX_M2,
    &minimax::MINIMAX_M3,
    &mixture::SMALLTHINKER,
    &mixture::AFMOE,
    &mixture::MELLUM,
    &mixture::LAGUNA,
    &mixture::DBRX,
    &mixture::ARCTIC,
    &gated::SPARK2_5,
    &gated::MAPLE,
    &gated::MUSE_GLIMMER,
    &gated::MIMO2,
    &gated::STEP35,
    &gated::PLAMO3,
    &mixture::GROK,
    &llama::BAICHUAN,
    &llama::INTERNLM2,
    &llama::XVERSE,
    &llama::ORION,
    &llama::PANGU,
    &llama::MAINCODER,
    &llama::NANBEIGE,
    &llama::CHAMELEON,
    &llama::COGVLM,
    &llama::PADDLE_OCR,
    &llama::JAIS2,
    &gpt::GPT2,
    &gpt::STARCODER,
    &gpt::STARCODER2,
    &gpt::CODESHELL,
    &gpt::GPTNEOX,
    &gpt::BLOOM,
    &gpt::FALCON,
    &gpt::MPT,
    &gpt::JAIS,
    &gpt::REFACT,
    &layered::DECI,
    &layered::OPENELM,
    &layered::PLAMO,
    &state::MAMBA,
    &state::MAMBA2,
    &state::JAMBA,
    &state::FALCON_H1,
    &state::PLAMO2,
    &granite::GRANITE_HYBRID,
    &granite::GRANITE_HYBRID_DENSE,
    &granite::GRANITE_4,
    &granite::GRANITE_4_MOE,
    &nemotron_h::NEMOTRON_H,
    &nemotron_h::NEMOTRON_H_MOE,
    &lfm2::LFM2,
    &lfm2::LFM2MOE,
    &delta::QWEN3NEXT,
    &delta::QWEN35,
    &delta::QWEN35MOE,
    &qwen4::QWEN4EXP,
    &latent::DEEPSEEK2,
    &latent::DEEPSEEK32,
    &latent::GLM_DSA,
    &dots3_note::DOTS3_NOTE,
    &latent::GLM4_MOE_LITE,
    &latent::MISTRAL4,
    &latent::MINICPM3,
    &latent::PLM,
    &latent::KIMI_LINEAR,
    &kda::KIMI_K3,
    &kda::BAILINGMOE3,
    &kda::GLM5_NEXT,
    &rwkv::RWKV6,
    &rwkv::RWKV6_QWEN2,
    &rwkv7::RWKV7,
    &rwkv7::ARWKV7,
    &gemma_late::GEMMA3N,
    &gemma_late::GEMMA4,
    &bitnet::BITNET,
    &bitnet::BITNET_158,
    &talkie::TALKIE,
    &hrm_text::HRM_TEXT,
    &diffusion::DREAM,
    &diffusion::LLADA,
    &diffusion::LLADA_MOE,
    &diffusion::RND1,
    &encoders::GEMMA_EMBEDDING,
    &encoders::LLAMA_EMBED,
    &encoders::NOMIC_BERT,
    &encoders::NOMIC_BERT_MOE,
    &encoders::JINA_BERT_V2,
    &encoders::JINA_BERT_V3,
    &encoders::MODERN_BERT,
    &encoders::EUROBERT,
    &encoders::NEO_BERT,
    &encoders::DISTIL_BERT,
    &encoders::T5_ENCODER,
    &t5::T5,
];

/// The family of a class, with such a configuration.
pub(super) fn of_class(class: &str, config: &Json) -> Option<&'static Family> {
    let is = |family: &&Family| family.classes.contains(&class) && (family.fits)(config);
    FAMILIES.iter().copied().find(is)
}

/// Families whose adapters can be imported.
fn with_adapters() -> impl Iterator<Item = &'static Family> {
    FAMILIES.iter().copied().filter(|family| family.takes_adapters)
}

/// The family of a GGUF architecture whose adapters can be imported.
pub(super) fn of_architecture(architecture: &str) -> Option<&'static Family> {
    with_adapters().find(|family| family.architecture == architecture)
}

/// The architectures whose adapters can be imported, for messages.
pub(super) fn architectures() -> String {
    let names: BTreeSet<&str> = with_adapters().map(|family| family.architecture).collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

/// The architectures of files that are made of folders.
pub(super) fn made() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.architecture).chain(["bert"])
}

/// The classes that can be imported.
pub(super) fn known() -> String {
    let classes = FAMILIES.iter().flat_map(|family| family.classes).copied();
    let mut told = BTreeSet::new();
    let all = super::BERT.iter().copied().chain(classes).filter(|class| told.insert(*class));
    all.collect::<Vec<_>>().join(", ")
}

/// One is added to the weights of norms, which are stored as what differs from it.
fn from_one(_: &Json, name: &str) -> Result<Change, StoreError> {
    Ok(if name.ends_with("norm.weight") { Change::Add(1.0) } else { Change::None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_and_rules_are_told_apart() {
        let always = |family: &&Family| std::ptr::fn_addr_eq(family.fits, PLAIN.fits);
        let sure = FAMILIES.iter().copied().filter(always);
        let classes: Vec<&str> = sure.flat_map(|family| family.classes).copied().collect();
        assert_eq!(classes.iter().collect::<BTreeSet<_>>().len(), classes.len());
        for family in FAMILIES {
            for rules in [family.whole, family.layer] {
                let names: Vec<&str> =
                    rules.iter().copied().flatten().map(|rule| rule.there).collect();
                assert!(!names.is_empty() && !names.contains(&""), "{}", family.architecture);
            }
        }
    }
}

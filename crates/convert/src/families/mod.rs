//! Model families: the differences between families, as data. A family is a constant in a file of
//! this folder, with rules for its tensors and a function for its metadata. [`FAMILIES`] lists all
//! of them.

pub(crate) mod bert;
mod bitnet;
mod cohere;
mod common_rules;
mod default_family;
mod diffusion;
mod dots3_note;
mod encoders;
mod gated_delta;
mod gemma;
mod gemma3n_gemma4;
mod glm;
mod gpt;
mod gpt_oss;
mod granite;
mod granite_switch;
mod hrm_text;
mod hunyuan;
mod hyper_connections;
mod kda;
mod latent_attention;
mod lfm2;
mod llama;
mod mamba;
mod minimax;
mod moe;
mod nemotron_h;
mod per_layer_sizes;
mod phi;
mod post_norm;
mod qwen;
mod qwen4;
mod rwkv;
mod rwkv7;
mod sliding_window;
mod t5;
mod talkie;

use std::collections::BTreeSet;

use crate::family::Family;
use crate::source::Config;

/// All families.
pub(crate) const FAMILIES: &[&Family] = &[
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
    &post_norm::EXAONE4,
    &moe::EXAONE_MOE,
    &llama::OLMO,
    &post_norm::OLMO2,
    &qwen::OLMOE,
    &cohere::COMMAND_R,
    &cohere::COHERE2,
    &cohere::COHERE2MOE,
    &llama::ERNIE4_5,
    &moe::ERNIE4_5_MOE,
    &hunyuan::DENSE,
    &hunyuan::MOE_V1,
    &hunyuan::VL,
    &hunyuan::HY_V3,
    &hyper_connections::HY_V4,
    &hyper_connections::DEEPSEEK4,
    &moe::DEEPSEEK,
    &moe::DEEPSEEK_OCR,
    &moe::DOTS1,
    &moe::GROVEMOE,
    &moe::BAILINGMOE,
    &moe::BAILINGMOE2,
    &minimax::MINIMAX_01,
    &minimax::MINIMAX_M2,
    &minimax::MINIMAX_M3,
    &moe::SMALLTHINKER,
    &moe::AFMOE,
    &moe::MELLUM,
    &moe::LAGUNA,
    &moe::DBRX,
    &moe::ARCTIC,
    &sliding_window::SPARK2_5,
    &sliding_window::MAPLE,
    &sliding_window::MUSE_GLIMMER,
    &sliding_window::MIMO2,
    &sliding_window::STEP35,
    &sliding_window::PLAMO3,
    &moe::GROK,
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
    &per_layer_sizes::DECI,
    &per_layer_sizes::OPENELM,
    &per_layer_sizes::PLAMO,
    &mamba::MAMBA,
    &mamba::MAMBA2,
    &mamba::JAMBA,
    &mamba::FALCON_H1,
    &mamba::PLAMO2,
    &granite::GRANITE_HYBRID,
    &granite::GRANITE_HYBRID_DENSE,
    &granite::GRANITE_4,
    &granite::GRANITE_4_MOE,
    &nemotron_h::NEMOTRON_H,
    &nemotron_h::NEMOTRON_H_MOE,
    &lfm2::LFM2,
    &lfm2::LFM2MOE,
    &gated_delta::QWEN3NEXT,
    &gated_delta::QWEN35,
    &gated_delta::QWEN35MOE,
    &qwen4::QWEN4EXP,
    &latent_attention::DEEPSEEK2,
    &latent_attention::DEEPSEEK32,
    &latent_attention::GLM_DSA,
    &dots3_note::DOTS3_NOTE,
    &latent_attention::GLM4_MOE_LITE,
    &latent_attention::MISTRAL4,
    &latent_attention::MINICPM3,
    &latent_attention::PLM,
    &latent_attention::KIMI_LINEAR,
    &kda::KIMI_K3,
    &kda::BAILINGMOE3,
    &kda::GLM5_NEXT,
    &rwkv::RWKV6,
    &rwkv::RWKV6_QWEN2,
    &rwkv7::RWKV7,
    &rwkv7::ARWKV7,
    &gemma3n_gemma4::GEMMA3N,
    &gemma3n_gemma4::GEMMA4,
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

/// The family of a class with this configuration.
pub(crate) fn find_by_class(class: &str, config: &Config) -> Option<&'static Family> {
    let is = |family: &&Family| family.classes.contains(&class) && (family.matches)(config);
    FAMILIES.iter().copied().find(is)
}

/// Families whose LoRA adapters can be converted.
fn with_adapters() -> impl Iterator<Item = &'static Family> {
    FAMILIES.iter().copied().filter(|family| family.supports_adapters)
}

/// The family of a GGUF architecture, if its LoRA adapters can be converted.
pub(crate) fn find_by_architecture(architecture: &str) -> Option<&'static Family> {
    with_adapters().find(|family| family.architecture == architecture)
}

/// Architectures whose LoRA adapters can be converted, for messages.
pub(crate) fn adapter_architecture_list() -> String {
    let names: BTreeSet<&str> = with_adapters().map(|family| family.architecture).collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

/// Architectures of the GGUF files that folders are converted to.
pub(crate) fn gguf_architectures() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.architecture).chain(["bert"])
}

/// Classes of models that can be converted, for messages.
pub(crate) fn supported_class_list() -> String {
    let classes = FAMILIES.iter().flat_map(|family| family.classes).copied();
    let mut seen = BTreeSet::new();
    let all = bert::CLASSES.iter().copied().chain(classes).filter(|class| seen.insert(*class));
    all.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::default_family::DEFAULT;
    use super::*;

    #[test]
    fn class_names_are_unique_and_every_rule_has_a_source_name() {
        let always = |family: &&Family| std::ptr::fn_addr_eq(family.matches, DEFAULT.matches);
        let unambiguous = FAMILIES.iter().copied().filter(always);
        let classes: Vec<&str> = unambiguous.flat_map(|family| family.classes).copied().collect();
        assert_eq!(classes.iter().collect::<BTreeSet<_>>().len(), classes.len());
        for family in FAMILIES {
            for rules in [family.global_rules, family.layer_rules] {
                let names: Vec<&str> =
                    rules.iter().copied().flatten().map(|rule| rule.source).collect();
                assert!(!names.is_empty() && !names.contains(&""), "{}", family.architecture);
            }
        }
    }
}

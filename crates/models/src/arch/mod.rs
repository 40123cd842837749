//! The list of architectures.

mod afmoe;
mod apertus;
mod arcee;
mod arctic;
mod bailingmoe3;
mod bert;
mod bitnet;
mod bloom;
mod chameleon;
mod cogvlm;
mod cohere;
mod dbrx;
mod deci;
mod deepseek;
mod deepseek2;
mod deepseek32;
mod deepseek4;
mod dflash;
mod diffusion;
mod dots1;
mod dots3note;
mod eagle3;
mod ernie4_5;
mod eurobert;
mod exaone;
mod exaone4;
mod exaone_moe;
mod falcon;
mod falcon_h1;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod gemma4_assistant;
mod gemma_embedding;
mod glm4;
mod glm4moe;
mod glm5_next;
mod gpt2;
mod gpt_oss;
mod gptneox;
mod granite;
mod granite_switch;
mod granitehybrid;
mod grok;
mod hrm_text;
mod hunyuan;
mod hy_v3;
mod hy_v4;
mod jais;
mod jamba;
mod kimi_k3;
mod kimi_linear;
mod laguna;
mod lfm2;
mod llama;
mod llama4;
mod mamba;
mod maple;
mod mellum;
mod mimo2;
mod minicpm3;
mod minimax_01;
mod minimax_m2;
mod minimax_m3;
mod mistral3;
mod modern_bert;
mod mpt;
mod muse_glimmer;
mod nanbeige;
mod nemotron;
mod nemotron_h;
mod olmo;
mod olmo2;
mod olmoe;
mod phi2;
mod phi3;
mod phimoe;
mod plamo;
mod plamo2;
mod plamo3;
mod qwen2;
mod qwen2moe;
mod qwen3;
mod qwen3next;
mod qwen3tts;
mod qwen4exp;
mod refact;
mod rwkv6;
mod rwkv7;
mod seed_oss;
mod smallthinker;
mod smollm3;
mod spark2_5;
mod stablelm;
mod starcoder2;
mod step35;
mod t5;
mod t5encoder;
mod talkie;
mod wavtokenizer;

pub use diffusion::is_diffusion;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::companion::Companion;
use crate::error::ModelError;
use crate::hparams::Keys;
use crate::weights::Weights;

type Load = fn(&Keys<'_>, &mut Weights<'_>, LoadOptions) -> Result<LoadedArchitecture, ModelError>;

/// Value of `general.architecture` and the loader.
pub(crate) struct Entry {
    pub name: &'static str,
    pub load: Load,
}

pub(crate) type LoadCompanion = fn(&Keys<'_>, &mut Weights<'_>) -> Result<Companion, ModelError>;

/// Companion draft model, which cannot run without its target.
pub(crate) struct CompanionEntry {
    pub name: &'static str,
    /// Target models, in words for errors.
    pub of: &'static str,
    pub load: LoadCompanion,
}

/// All companion draft models, sorted by name.
pub(crate) const COMPANIONS: &[CompanionEntry] = &[
    CompanionEntry { name: "dflash", of: "one model", load: dflash::load },
    CompanionEntry { name: "eagle3", of: "one model", load: eagle3::load },
    CompanionEntry { name: "gemma4-assistant", of: "a Gemma 4", load: gemma4_assistant::load },
];

/// All architectures, sorted by name.
pub(crate) const ARCHITECTURES: &[Entry] = &[
    Entry { name: "afmoe", load: afmoe::load },
    Entry { name: "apertus", load: apertus::load },
    Entry { name: "arcee", load: arcee::load },
    Entry { name: "arctic", load: arctic::load },
    Entry { name: "arwkv7", load: rwkv7::load_arwkv7 },
    Entry { name: "baichuan", load: llama::load_baichuan },
    Entry { name: "bailingmoe", load: deepseek::load },
    Entry { name: "bailingmoe2", load: dots1::load },
    Entry { name: "bailingmoe3", load: bailingmoe3::load },
    Entry { name: "bert", load: bert::load },
    Entry { name: "bitnet", load: bitnet::load },
    Entry { name: "bitnet-b1.58", load: bitnet::load_158 },
    Entry { name: "bloom", load: bloom::load },
    Entry { name: "chameleon", load: chameleon::load },
    Entry { name: "chatglm", load: glm4::load },
    Entry { name: "codeshell", load: starcoder2::load },
    Entry { name: "cogvlm", load: cogvlm::load },
    Entry { name: "cohere2", load: cohere::load_2 },
    Entry { name: "cohere2moe", load: cohere::load_2_moe },
    Entry { name: "command-r", load: cohere::load_1 },
    Entry { name: "dbrx", load: dbrx::load },
    Entry { name: "deci", load: deci::load },
    Entry { name: "deepseek", load: deepseek::load },
    Entry { name: "deepseek2", load: deepseek2::load },
    Entry { name: "deepseek2-ocr", load: deepseek::load_ocr },
    Entry { name: "deepseek32", load: deepseek32::load },
    Entry { name: "deepseek4", load: deepseek4::load },
    Entry { name: "dots1", load: dots1::load },
    Entry { name: "dots3note", load: dots3note::load },
    Entry { name: "dream", load: diffusion::load_dream },
    Entry { name: "ernie4_5", load: ernie4_5::load },
    Entry { name: "ernie4_5-moe", load: ernie4_5::load },
    Entry { name: "eurobert", load: eurobert::load },
    Entry { name: "exaone", load: exaone::load },
    Entry { name: "exaone-moe", load: exaone_moe::load },
    Entry { name: "exaone4", load: exaone4::load },
    Entry { name: "falcon", load: falcon::load },
    Entry { name: "falcon-h1", load: falcon_h1::load },
    Entry { name: "gemma", load: gemma::load },
    Entry { name: "gemma-embedding", load: gemma_embedding::load },
    Entry { name: "gemma2", load: gemma2::load },
    Entry { name: "gemma3", load: gemma3::load },
    Entry { name: "gemma3n", load: gemma3n::load },
    Entry { name: "gemma4", load: gemma4::load },
    Entry { name: "glm-dsa", load: deepseek32::load_glm },
    Entry { name: "glm4", load: glm4::load },
    Entry { name: "glm4moe", load: glm4moe::load },
    Entry { name: "glm5-next", load: glm5_next::load },
    Entry { name: "gpt-oss", load: gpt_oss::load },
    Entry { name: "gpt2", load: gpt2::load },
    Entry { name: "gptneox", load: gptneox::load },
    Entry { name: "granite", load: granite::load },
    Entry { name: "granite_swa", load: granite::load },
    Entry { name: "granitehybrid", load: granitehybrid::load },
    Entry { name: "granitemoe", load: granite::load },
    Entry { name: "graniteswitch", load: granite_switch::load },
    Entry { name: "grok", load: grok::load },
    Entry { name: "grovemoe", load: qwen3::load_grove },
    Entry { name: "hrm_text", load: hrm_text::load },
    Entry { name: "hunyuan-dense", load: hunyuan::load },
    Entry { name: "hunyuan-moe", load: hunyuan::load },
    Entry { name: "hunyuan_vl", load: hunyuan::load },
    Entry { name: "hy_v3", load: hy_v3::load },
    Entry { name: "hy_v4", load: hy_v4::load },
    Entry { name: "internlm2", load: llama::load },
    Entry { name: "jais", load: jais::load },
    Entry { name: "jais2", load: nemotron::load },
    Entry { name: "jamba", load: jamba::load },
    Entry { name: "jina-bert-v2", load: bert::load_jina },
    Entry { name: "jina-bert-v3", load: bert::load_jina_3 },
    Entry { name: "kimi-k3", load: kimi_k3::load },
    Entry { name: "kimi-linear", load: kimi_linear::load },
    Entry { name: "laguna", load: laguna::load },
    Entry { name: "lfm2", load: lfm2::load },
    Entry { name: "lfm2moe", load: lfm2::load_moe },
    Entry { name: "llada", load: diffusion::load_llada },
    Entry { name: "llada-moe", load: diffusion::load_llada_moe },
    Entry { name: "llama", load: llama::load },
    Entry { name: "llama-embed", load: eurobert::load_llama },
    Entry { name: "llama4", load: llama4::load },
    Entry { name: "maincoder", load: hunyuan::load_maincoder },
    Entry { name: "mamba", load: mamba::load },
    Entry { name: "mamba2", load: mamba::load_2 },
    Entry { name: "maple", load: maple::load },
    Entry { name: "mellum", load: mellum::load },
    Entry { name: "mimo2", load: mimo2::load },
    Entry { name: "minicpm", load: granite::load_minicpm },
    Entry { name: "minicpm3", load: minicpm3::load },
    Entry { name: "minimax-01", load: minimax_01::load },
    Entry { name: "minimax-m2", load: minimax_m2::load },
    Entry { name: "minimax-m3", load: minimax_m3::load },
    Entry { name: "mistral3", load: mistral3::load },
    Entry { name: "mistral4", load: deepseek2::load },
    Entry { name: "modern-bert", load: modern_bert::load },
    Entry { name: "mpt", load: mpt::load },
    Entry { name: "muse-glimmer", load: muse_glimmer::load },
    Entry { name: "nanbeige", load: nanbeige::load },
    Entry { name: "nemotron", load: nemotron::load },
    Entry { name: "nemotron_h", load: nemotron_h::load },
    Entry { name: "nemotron_h_moe", load: nemotron_h::load },
    Entry { name: "neo-bert", load: eurobert::load_neo },
    Entry { name: "nomic-bert", load: bert::load_nomic },
    Entry { name: "nomic-bert-moe", load: bert::load_nomic_moe },
    Entry { name: "olmo", load: olmo::load },
    Entry { name: "olmo2", load: olmo2::load },
    Entry { name: "olmoe", load: olmoe::load },
    Entry { name: "openelm", load: qwen3::load_dense },
    Entry { name: "orion", load: stablelm::load },
    Entry { name: "paddleocr", load: ernie4_5::load_ocr },
    Entry { name: "pangu-embedded", load: exaone::load },
    Entry { name: "phi2", load: phi2::load },
    Entry { name: "phi3", load: phi3::load },
    Entry { name: "phimoe", load: phimoe::load },
    Entry { name: "plamo", load: plamo::load },
    Entry { name: "plamo2", load: plamo2::load },
    Entry { name: "plamo3", load: plamo3::load },
    Entry { name: "plm", load: minicpm3::load_plm },
    Entry { name: "pockettts", load: starcoder2::load_pocket },
    Entry { name: "qwen", load: exaone::load_qwen },
    Entry { name: "qwen2", load: qwen2::load },
    Entry { name: "qwen2moe", load: qwen2moe::load },
    Entry { name: "qwen2vl", load: qwen2::load_vl },
    Entry { name: "qwen3", load: qwen3::load_dense },
    Entry { name: "qwen35", load: qwen3next::load },
    Entry { name: "qwen35moe", load: qwen3next::load },
    Entry { name: "qwen3moe", load: qwen3::load_moe },
    Entry { name: "qwen3next", load: qwen3next::load },
    Entry { name: "qwen3tts", load: qwen3tts::load },
    Entry { name: "qwen3vl", load: qwen3::load_dense },
    Entry { name: "qwen3vlmoe", load: qwen3::load_moe },
    Entry { name: "qwen4exp", load: qwen4exp::load },
    Entry { name: "refact", load: refact::load },
    Entry { name: "rnd1", load: diffusion::load_rnd1 },
    Entry { name: "rwkv6", load: rwkv6::load },
    Entry { name: "rwkv6qwen2", load: rwkv6::load_qwen2 },
    Entry { name: "rwkv7", load: rwkv7::load },
    Entry { name: "seed_oss", load: seed_oss::load },
    Entry { name: "smallthinker", load: smallthinker::load },
    Entry { name: "smollm3", load: smollm3::load },
    Entry { name: "spark2_5", load: spark2_5::load },
    Entry { name: "stablelm", load: stablelm::load },
    Entry { name: "starcoder", load: gpt2::load },
    Entry { name: "starcoder2", load: starcoder2::load },
    Entry { name: "step35", load: step35::load },
    Entry { name: "t5", load: t5::load },
    Entry { name: "t5encoder", load: t5encoder::load },
    Entry { name: "talkie", load: talkie::load },
    Entry { name: "wavtokenizer-dec", load: wavtokenizer::load },
    Entry { name: "xverse", load: llama::load },
];

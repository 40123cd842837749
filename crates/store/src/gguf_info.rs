//! Metadata of a GGUF file that listings and requests need.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use puna_gguf::{Gguf, Metadata};

use crate::digest::Digest;
use crate::error::StoreError;

/// Properties of a model file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GgufInfo {
    /// `general.architecture`, as the file spells it.
    pub architecture: String,
    /// `general.type`, or `model` if it is absent.
    pub kind: String,
    /// `general.name`.
    pub name: Option<String>,
    /// Number of elements of all tensors.
    pub parameter_count: u64,
    /// Quantization for display, such as `Q4_K_M`.
    pub file_type: String,
    /// Trained context length in tokens, or 0 if unknown.
    pub context_length: u64,
    /// Embedding length, or 0 if unknown.
    pub embedding_length: u64,
    /// How an encoder pools token embeddings: `<arch>.pooling_type`.
    pub pooling: Option<u32>,
    /// Whether the model reads images.
    pub vision: bool,
    /// Whether the model reads audio.
    pub audio: bool,
    /// The Jinja chat template.
    pub chat_template: Option<String>,
}

/// Properties of model files, by the digest of their blob.
#[derive(Default)]
pub(crate) struct GgufInfoCache(Mutex<HashMap<Digest, Arc<GgufInfo>>>);

impl GgufInfoCache {
    /// Properties of a blob's file. The file is read once.
    pub(crate) fn read(&self, digest: &Digest, path: &Path) -> Result<Arc<GgufInfo>, StoreError> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(info) = lock().get(digest) {
            return Ok(info.clone());
        }
        let gguf = Gguf::open(path)
            .map_err(|error| StoreError::GgufFile { file: path.display().to_string(), error })?;
        let info = Arc::new(GgufInfo::of(&gguf));
        lock().insert(*digest, info.clone());
        Ok(info)
    }
}

impl GgufInfo {
    /// The [`GgufInfo::pooling`] of rerankers.
    pub const RANK_POOLING: u32 = 4;

    /// Architectures of companion drafts, which use parts of their target model and cannot run
    /// alone.
    pub const DRAFT_ARCHITECTURES: [&str; 3] = ["dflash", "eagle3", "gemma4-assistant"];

    /// Architectures of audio models, whose results are neither text nor text embeddings.
    pub const AUDIO_ARCHITECTURES: [&str; 3] = ["pockettts", "qwen3tts", "wavtokenizer-dec"];

    /// Whether the architecture is an audio model.
    pub fn is_audio(&self) -> bool {
        Self::AUDIO_ARCHITECTURES.contains(&self.architecture.as_str())
    }

    /// Whether the architecture is a companion draft.
    pub fn is_draft(&self) -> bool {
        Self::DRAFT_ARCHITECTURES.contains(&self.architecture.as_str())
    }

    /// Reads the properties of a file.
    pub fn of(gguf: &Gguf) -> Self {
        let meta = gguf.metadata();
        let architecture = text(meta, "general.architecture").unwrap_or_default();
        let number = |key: &str| meta.opt_u64(&format!("{architecture}.{key}")).ok().flatten();
        let has = |key: &str| meta.contains(&format!("{architecture}.{key}"));
        Self {
            kind: text(meta, "general.type").unwrap_or_else(|| "model".into()),
            name: text(meta, "general.name"),
            parameter_count: gguf.parameter_count(),
            file_type: file_type(gguf),
            context_length: number("context_length")
                .unwrap_or(0)
                .saturating_mul(contexts_per_request(&architecture)),
            embedding_length: number("embedding_length").unwrap_or(0),
            pooling: number("pooling_type").and_then(|n| u32::try_from(n).ok()),
            vision: has("vision.block_count")
                || meta.opt_bool("clip.has_vision_encoder") == Ok(Some(true)),
            audio: has("audio.block_count")
                || meta.opt_bool("clip.has_audio_encoder") == Ok(Some(true)),
            chat_template: text(meta, "tokenizer.chat_template").filter(|t| !t.is_empty()),
            architecture,
        }
    }

    /// Whether the file is a projector for images or audio.
    pub(crate) fn is_projector(&self) -> bool {
        self.architecture == "clip" || matches!(self.kind.as_str(), "projector" | "mmproj")
    }

    /// Whether the file is a control vector.
    pub(crate) fn is_control_vector(&self) -> bool {
        self.architecture == "controlvector"
    }
}

fn text(meta: &Metadata, key: &str) -> Option<String> {
    meta.opt_str(key).ok().flatten().map(str::to_owned)
}

/// The name of `general.file_type`, or else of the type of most weight bytes.
fn file_type(gguf: &Gguf) -> String {
    if let Ok(Some(id)) = gguf.metadata().opt_u32("general.file_type") {
        return file_type_name(id).to_owned();
    }
    let mut bytes = std::collections::BTreeMap::<_, u64>::new();
    for tensor in gguf.tensors() {
        *bytes.entry(tensor.ty).or_default() += tensor.size;
    }
    bytes
        .into_iter()
        .max_by_key(|(_, bytes)| *bytes)
        .map_or("unknown".into(), |(ty, _)| ty.name().to_owned())
}

/// The name of a `general.file_type`, or `unknown`.
pub fn file_type_name(id: u32) -> &'static str {
    match id & !1024 {
        0 => "F32",
        1 => "F16",
        2 => "Q4_0",
        3 => "Q4_1",
        7 => "Q8_0",
        8 => "Q5_0",
        9 => "Q5_1",
        10 => "Q2_K",
        11 => "Q3_K_S",
        12 => "Q3_K_M",
        13 => "Q3_K_L",
        14 => "Q4_K_S",
        15 => "Q4_K_M",
        16 => "Q5_K_S",
        17 => "Q5_K_M",
        18 => "Q6_K",
        19 => "IQ2_XXS",
        20 => "IQ2_XS",
        21 => "Q2_K_S",
        22 => "IQ3_XS",
        23 => "IQ3_XXS",
        24 => "IQ1_S",
        25 => "IQ4_NL",
        26 => "IQ3_S",
        27 => "IQ3_M",
        28 => "IQ2_S",
        29 => "IQ2_M",
        30 => "IQ4_XS",
        31 => "IQ1_M",
        32 => "BF16",
        36 => "TQ1_0",
        37 => "TQ2_0",
        38 => "MXFP4_MOE",
        39 => "NVFP4",
        40 => "Q1_0",
        41 => "Q2_0",
        _ => "unknown",
    }
}

/// A parameter count for display: `134.52M`, `8.0B`, `7B`.
pub fn parameter_size(count: u64) -> String {
    let scaled = |unit: u64, digits: usize, letter: char| {
        if count.is_multiple_of(unit) {
            format!("{}{letter}", count / unit)
        } else {
            format!("{:.digits$}{letter}", count as f64 / unit as f64)
        }
    };
    match count {
        1_000_000_000.. => scaled(1_000_000_000, 1, 'B'),
        1_000_000.. => scaled(1_000_000, 2, 'M'),
        1_000.. => scaled(1_000, 0, 'K'),
        _ => count.to_string(),
    }
}

/// Number of context lengths in a request: T5 has one for the encoder's prompt and one for the
/// answer.
fn contexts_per_request(architecture: &str) -> u64 {
    if architecture == "t5" { 2 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_as_ollama_shows_them() {
        for (count, text) in [
            (134_515_008, "134.52M"),
            (8_030_261_312, "8.0B"),
            (7_000_000_000, "7B"),
            (268_098_176, "268.10M"),
            (1_000_000, "1M"),
            (1_000, "1K"),
            (1_500, "2K"),
            (999, "999"),
            (0, "0"),
        ] {
            assert_eq!(parameter_size(count), text);
        }
    }

    #[test]
    fn facts_are_read_from_metadata() {
        let zoo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo");
        let of = |name: &str| GgufInfo::of(&Gguf::open(&zoo.join(name)).unwrap());
        let llama = of("llama-q4_k_m.gguf");
        assert_eq!((llama.architecture.as_str(), llama.file_type.as_str()), ("llama", "Q4_K_M"));
        assert!(llama.pooling.is_none() && llama.context_length > 0 && llama.embedding_length > 0);
        // T5 counts prompt and answer.
        assert_eq!(
            (of("t5.gguf").context_length, of("t5encoder.gguf").context_length),
            (2 * 96, 512)
        );
        assert_eq!(of("bert-mean.gguf").pooling, Some(1));
        assert_eq!(of("bert-cls.gguf").pooling, Some(2));
        assert_eq!(of("bert-rank.gguf").pooling, Some(GgufInfo::RANK_POOLING));
        assert_eq!(of("bert-rank.gguf").capabilities(), ["rerank"]);
        assert_eq!(of("bert-cls.gguf").capabilities(), ["embedding"]);
    }
}

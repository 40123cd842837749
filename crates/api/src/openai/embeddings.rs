//! Embeddings.

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;

use crate::ollama::is_default;

/// `POST /v1/embeddings`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OpenAiEmbedRequest"))]
#[serde(default)]
pub struct EmbedRequest {
    /// A text, a list of texts, token ids, or a list of lists of token ids.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::TextsOrTokens"))]
    pub input: Value,
    /// Name of the model.
    pub model: String,
    /// Number of leading components to keep; the result is normalized again.
    pub dimensions: i64,
    /// `float` or `base64`.
    pub encoding_format: String,
}

/// Response of `POST /v1/embeddings`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EmbeddingList {
    /// `list`.
    pub object: String,
    /// One vector for each input.
    pub data: Vec<Embedding>,
    /// Name of the model as in the request.
    pub model: String,
    /// Token counts.
    pub usage: EmbeddingUsage,
}

/// Embedding of an input.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Embedding {
    /// `embedding`.
    pub object: String,
    /// Numbers, or base64 over little-endian 32-bit floats.
    pub embedding: EmbeddingData,
    /// Index of the input.
    pub index: usize,
    /// Tokens that were truncated from the input (Puna's addition).
    #[serde(default, skip_serializing_if = "is_default")]
    pub truncated_tokens: u64,
}

/// Vector in one of its two forms.
#[derive(Debug, Clone, PartialEq)]
pub enum EmbeddingData {
    /// Numbers.
    Floats(Vec<f32>),
    /// Base64 over little-endian 32-bit floats.
    Base64(String),
}

impl Default for EmbeddingData {
    fn default() -> Self {
        Self::Floats(Vec::new())
    }
}

impl Serialize for EmbeddingData {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Floats(v) => v.serialize(s),
            Self::Base64(text) => s.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for EmbeddingData {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        match Value::deserialize(d)? {
            Value::String(text) => Ok(Self::Base64(text)),
            list => serde_json::from_value(list).map(Self::Floats).map_err(de::Error::custom),
        }
    }
}

/// Token counts of embeddings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EmbeddingUsage {
    /// Tokens of all inputs.
    pub prompt_tokens: u64,
    /// Equal to `prompt_tokens`.
    pub total_tokens: u64,
    /// Inputs that were truncated (Puna's addition).
    #[serde(default, skip_serializing_if = "is_default")]
    pub truncated_inputs: u64,
    /// Tokens that were truncated from the inputs (Puna's addition).
    #[serde(default, skip_serializing_if = "is_default")]
    pub truncated_tokens: u64,
}

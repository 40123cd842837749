//! Embeddings.

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;

use crate::native::is_default;

/// `POST /v1/embeddings`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OpenAiEmbedRequest"))]
#[serde(default)]
pub struct EmbedRequest {
    /// A text, a list of texts, tokens, or a list of lists of tokens.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::TextsOrTokens"))]
    pub input: Value,
    /// The model's name.
    pub model: String,
    /// Leading components that are kept, and normalised anew.
    pub dimensions: i64,
    /// `float` or `base64`.
    pub encoding_format: String,
}

/// The answer to `POST /v1/embeddings`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EmbeddingList {
    /// `list`.
    pub object: String,
    /// One for each input.
    pub data: Vec<Embedding>,
    /// The model's name as the client wrote it.
    pub model: String,
    /// Token counts.
    pub usage: EmbeddingUsage,
}

/// One vector.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Embedding {
    /// `embedding`.
    pub object: String,
    /// Numbers, or base64 over little-endian 32-bit floats.
    pub embedding: EmbeddingData,
    /// The input's number.
    pub index: usize,
    /// Tokens that were cut off the input because it was too long (Puna's addition).
    #[serde(default, skip_serializing_if = "is_default")]
    pub truncated_tokens: u64,
}

/// A vector in one of its two forms.
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
    /// The same.
    pub total_tokens: u64,
    /// Inputs that were cut because they were too long (Puna's addition).
    #[serde(default, skip_serializing_if = "is_default")]
    pub truncated_inputs: u64,
    /// Tokens that were cut off them (Puna's addition).
    #[serde(default, skip_serializing_if = "is_default")]
    pub truncated_tokens: u64,
}

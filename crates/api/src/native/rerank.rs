//! Documents in the order of how well they answer a query (Puna's addition), in the form that Jina and Cohere share.

use serde::de::{self, Unexpected};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::is_default;
use crate::{KeepAlive, shape};

/// `POST /api/rerank`, `/v1/rerank`, `/v2/rerank` and `/rerank`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RerankRequest {
    /// The model's name.
    pub model: String,
    /// What is asked: a text, or an object with a `text`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<RerankText>,
    /// Texts, or objects with a `text`.
    pub documents: Vec<RerankText>,
    /// So many of the best are told; all unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_n: Option<i64>,
    /// Whether the documents' texts come back with their scores.
    #[serde(skip_serializing_if = "is_default")]
    pub return_documents: bool,
    /// Scores between 0 and 1: the logistic function of what the model gives.
    #[serde(skip_serializing_if = "is_default")]
    pub normalize: bool,
    /// Whether a document that is too long for the context may be cut at its end; an error unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncate: Option<bool>,
    /// Another name of `truncate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncation: Option<bool>,
    /// Documents are cut to this many tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens_per_doc: Option<i64>,
    /// Documents are cut so that each has this many tokens together with the query; -1 is what the context holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncate_prompt_tokens: Option<i64>,
    /// How long the model stays afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<KeepAlive>,
    /// Parameters by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "shape::options")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Options>"))]
    pub options: Option<Map<String, Value>>,
}

/// A text, by itself or in an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum RerankText {
    /// By itself.
    Plain(String),
    /// In an object.
    Object(RerankDocument),
}

impl<'de> Deserialize<'de> for RerankText {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        match shape::rerank_text(d)? {
            Value::String(text) => Ok(Self::Plain(text)),
            value => match value["text"].as_str() {
                Some(text) => Ok(Self::Object(RerankDocument { text: text.to_owned() })),
                None => Err(de::Error::invalid_type(unexpected(&value), &"string")),
            },
        }
    }
}

/// The kind of a value that is no text.
fn unexpected(value: &Value) -> Unexpected<'_> {
    match value {
        Value::Null => Unexpected::Unit,
        Value::Bool(value) => Unexpected::Bool(*value),
        Value::Number(number) => Unexpected::Float(number.as_f64().unwrap_or_default()),
        Value::String(text) => Unexpected::Str(text),
        Value::Array(_) => Unexpected::Seq,
        Value::Object(_) => Unexpected::Map,
    }
}

impl RerankText {
    /// The text.
    pub fn into_text(self) -> String {
        match self {
            Self::Plain(text) | Self::Object(RerankDocument { text }) => text,
        }
    }
}

/// A document.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RerankDocument {
    /// Its text.
    pub text: String,
}

/// The answer to `POST /api/rerank` and its other names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RerankResponse {
    /// A name of this answer.
    pub id: String,
    /// `list`.
    pub object: String,
    /// The model's name as the client wrote it.
    pub model: String,
    /// Documents, the best first.
    pub results: Vec<RerankResult>,
    /// Tokens, in Jina's form.
    pub usage: RerankUsage,
    /// Tokens, in Cohere's form.
    pub meta: RerankMeta,
    /// From the request's arrival to its end, in nanoseconds.
    #[serde(skip_serializing_if = "is_default")]
    pub total_duration: u64,
    /// From the request's arrival until the model was ready, in nanoseconds.
    #[serde(skip_serializing_if = "is_default")]
    pub load_duration: u64,
}

/// A document's score.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RerankResult {
    /// Its place in the request, from 0.
    pub index: usize,
    /// How well it answers the query: the more the better.
    pub relevance_score: f32,
    /// The document, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<RerankDocument>,
    /// Tokens that were cut off it.
    #[serde(skip_serializing_if = "is_default")]
    pub truncated_tokens: u64,
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RerankUsage {
    /// Tokens of all pairs of the query and a document.
    pub prompt_tokens: u64,
    /// The same.
    pub total_tokens: u64,
    /// Documents that were cut.
    #[serde(skip_serializing_if = "is_default")]
    pub truncated_documents: u64,
    /// Tokens that were cut off them.
    #[serde(skip_serializing_if = "is_default")]
    pub truncated_tokens: u64,
}

/// What Cohere's clients read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RerankMeta {
    /// Tokens.
    pub tokens: RerankTokens,
}

/// Tokens in Cohere's form.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RerankTokens {
    /// Tokens of all pairs of the query and a document.
    pub input_tokens: u64,
    /// None: nothing is generated.
    pub output_tokens: u64,
}

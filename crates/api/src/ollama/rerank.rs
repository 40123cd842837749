//! Rerank API (Puna's addition), in the form that Jina and Cohere share.

use serde::de::{self, Unexpected};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::is_default;
use crate::{KeepAlive, json_shape};

/// `POST /api/rerank`, `/v1/rerank`, `/v2/rerank` and `/rerank`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RerankRequest {
    /// Name of the model.
    pub model: String,
    /// Query: a text, or an object with a `text`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<RerankText>,
    /// Documents: texts, or objects with a `text`.
    pub documents: Vec<RerankText>,
    /// Number of best results to return. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_n: Option<i64>,
    /// Whether results contain the documents' texts.
    #[serde(skip_serializing_if = "is_default")]
    pub return_documents: bool,
    /// Return scores between 0 and 1: the logistic function of the model's scores.
    #[serde(skip_serializing_if = "is_default")]
    pub normalize: bool,
    /// Whether a document that is too long may be truncated at its end. Default: an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncate: Option<bool>,
    /// Another name of `truncate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncation: Option<bool>,
    /// Truncate documents to this many tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens_per_doc: Option<i64>,
    /// Truncate documents so that query and document have this many tokens; -1: the context length.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncate_prompt_tokens: Option<i64>,
    /// How long the model stays loaded after the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<KeepAlive>,
    /// Options by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "json_shape::options")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Options>"))]
    pub options: Option<Map<String, Value>>,
}

/// A text, or an object with a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum RerankText {
    /// A text.
    Plain(String),
    /// An object with a text.
    Object(RerankDocument),
}

impl<'de> Deserialize<'de> for RerankText {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        match json_shape::rerank_text(d)? {
            Value::String(text) => Ok(Self::Plain(text)),
            value => match value["text"].as_str() {
                Some(text) => Ok(Self::Object(RerankDocument { text: text.to_owned() })),
                None => Err(de::Error::invalid_type(unexpected(&value), &"string")),
            },
        }
    }
}

/// The type of a JSON value that is not a text.
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
    /// Returns the text.
    pub fn into_text(self) -> String {
        match self {
            Self::Plain(text) | Self::Object(RerankDocument { text }) => text,
        }
    }
}

/// Document.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RerankDocument {
    /// Text of the document.
    pub text: String,
}

/// Response of `POST /api/rerank` and its aliases.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RerankResponse {
    /// Id of the response.
    pub id: String,
    /// `list`.
    pub object: String,
    /// Name of the model as in the request.
    pub model: String,
    /// Results, best first.
    pub results: Vec<RerankResult>,
    /// Token counts in Jina's form.
    pub usage: RerankUsage,
    /// Token counts in Cohere's form.
    pub meta: RerankMeta,
    /// Time from the arrival of the request to its end, in nanoseconds.
    #[serde(skip_serializing_if = "is_default")]
    pub total_duration: u64,
    /// Time from the arrival of the request until the model was ready, in nanoseconds.
    #[serde(skip_serializing_if = "is_default")]
    pub load_duration: u64,
}

/// Score of a document.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RerankResult {
    /// Index of the document in the request, from 0.
    pub index: usize,
    /// Relevance of the document to the query; higher is better.
    pub relevance_score: f32,
    /// The document, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<RerankDocument>,
    /// Tokens that were truncated from the document.
    #[serde(skip_serializing_if = "is_default")]
    pub truncated_tokens: u64,
}

/// Token counts of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RerankUsage {
    /// Tokens of all query–document pairs.
    pub prompt_tokens: u64,
    /// Equal to `prompt_tokens`.
    pub total_tokens: u64,
    /// Documents that were truncated.
    #[serde(skip_serializing_if = "is_default")]
    pub truncated_documents: u64,
    /// Tokens that were truncated from the documents.
    #[serde(skip_serializing_if = "is_default")]
    pub truncated_tokens: u64,
}

/// Metadata in Cohere's form.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RerankMeta {
    /// Token counts.
    pub tokens: RerankTokens,
}

/// Token counts in Cohere's form.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RerankTokens {
    /// Tokens of all query–document pairs.
    pub input_tokens: u64,
    /// Always 0: nothing is generated.
    pub output_tokens: u64,
}

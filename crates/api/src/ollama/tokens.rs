//! Tokenize and detokenize API (Puna's addition).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::is_default;
use crate::{KeepAlive, json_shape};

/// `POST /api/tokenize`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct TokenizeRequest {
    /// Name of the model.
    pub model: String,
    /// Text to tokenize; required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// `text`, as llama.cpp names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Add the model's special tokens around the text (the default).
    pub add_special: bool,
    /// Parse special tokens in the text (the default).
    pub parse_special: bool,
    /// How long the model stays loaded after the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<KeepAlive>,
    /// Options by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "json_shape::options")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Options>"))]
    pub options: Option<Map<String, Value>>,
}

impl Default for TokenizeRequest {
    fn default() -> Self {
        Self {
            model: String::new(),
            text: None,
            content: None,
            add_special: true,
            parse_special: true,
            keep_alive: None,
            options: None,
        }
    }
}

/// Response of `POST /api/tokenize`. Times are in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct TokenizeResponse {
    /// Name of the model as in the request.
    pub model: String,
    /// Token ids of the text.
    pub tokens: Vec<u32>,
    /// Time from the arrival of the request to its end.
    #[serde(skip_serializing_if = "is_default")]
    pub total_duration: u64,
    /// Time from the arrival of the request until the model was ready.
    #[serde(skip_serializing_if = "is_default")]
    pub load_duration: u64,
}

/// `POST /api/detokenize`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DetokenizeRequest {
    /// Name of the model.
    pub model: String,
    /// Token ids; required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Vec<u32>>,
    /// How long the model stays loaded after the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<KeepAlive>,
    /// Options by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "json_shape::options")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Options>"))]
    pub options: Option<Map<String, Value>>,
}

/// Response of `POST /api/detokenize`. Times are in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DetokenizeResponse {
    /// Name of the model as in the request.
    pub model: String,
    /// Text of the tokens, including special tokens.
    pub text: String,
    /// Time from the arrival of the request to its end.
    #[serde(skip_serializing_if = "is_default")]
    pub total_duration: u64,
    /// Time from the arrival of the request until the model was ready.
    #[serde(skip_serializing_if = "is_default")]
    pub load_duration: u64,
}

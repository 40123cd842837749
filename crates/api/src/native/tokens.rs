//! Texts to tokens and back (Puna's addition).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::is_default;
use crate::{KeepAlive, shape};

/// `POST /api/tokenize`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct TokenizeRequest {
    /// The model's name.
    pub model: String,
    /// The text; without it the request is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The same under the name that llama.cpp has for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Add what the model wants around every text (the default).
    pub add_special: bool,
    /// Read special tokens in the text as such (the default).
    pub parse_special: bool,
    /// How long the model stays afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<KeepAlive>,
    /// Parameters by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "shape::options")]
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

/// The answer to `POST /api/tokenize`; times in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct TokenizeResponse {
    /// The model's name as the client wrote it.
    pub model: String,
    /// The text's tokens.
    pub tokens: Vec<u32>,
    /// From the request's arrival to its end.
    #[serde(skip_serializing_if = "is_default")]
    pub total_duration: u64,
    /// From the request's arrival until the model was ready.
    #[serde(skip_serializing_if = "is_default")]
    pub load_duration: u64,
}

/// `POST /api/detokenize`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DetokenizeRequest {
    /// The model's name.
    pub model: String,
    /// The tokens; without them the request is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Vec<u32>>,
    /// How long the model stays afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<KeepAlive>,
    /// Parameters by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "shape::options")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Options>"))]
    pub options: Option<Map<String, Value>>,
}

/// The answer to `POST /api/detokenize`; times in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DetokenizeResponse {
    /// The model's name as the client wrote it.
    pub model: String,
    /// What the tokens stand for, special ones included.
    pub text: String,
    /// From the request's arrival to its end.
    #[serde(skip_serializing_if = "is_default")]
    pub total_duration: u64,
    /// From the request's arrival until the model was ready.
    #[serde(skip_serializing_if = "is_default")]
    pub load_duration: u64,
}

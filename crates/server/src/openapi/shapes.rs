//! Schemas of JSON without a type in the server, or with two variants.

#![allow(dead_code, reason = "these types only describe JSON and have no values")]

use puna_api::{anthropic, openai};
use schemars::JsonSchema;

/// `{"status":"ok"}`
#[derive(JsonSchema)]
pub(super) struct Health {
    /// `ok`.
    status: String,
}

/// State of the cloud features, which Puna lacks.
#[derive(JsonSchema)]
pub(super) struct Cloud {
    /// `disabled` and `source`.
    cloud: serde_json::Map<String, serde_json::Value>,
}

/// Recommended models.
#[derive(JsonSchema)]
pub(super) struct Recommendations {
    /// Always empty.
    recommendations: Vec<serde_json::Value>,
}

/// Models in the format that the request's headers select.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub(super) enum AnyModelList {
    OpenAi(openai::ModelList),
    Anthropic(anthropic::ModelList),
}

/// A model in the format that the request's headers select.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub(super) enum AnyModel {
    OpenAi(openai::Model),
    Anthropic(anthropic::Model),
}

/// Number of prompt tokens of a request.
#[derive(JsonSchema)]
pub(super) struct CountedResponse {
    /// `response.input_tokens`.
    object: String,
    /// Tokens of the prompt.
    input_tokens: u64,
}

/// A deleted response.
#[derive(JsonSchema)]
pub(super) struct DeletedResponse {
    /// `resp_…`.
    id: String,
    /// `response`.
    object: String,
    /// `true`.
    deleted: bool,
}

/// Error of a route of two dialects.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub(super) enum AnyError {
    OpenAi(openai::ErrorBody),
    Anthropic(anthropic::ErrorBody),
}

/// Web search; refused.
#[derive(JsonSchema)]
pub(super) struct WebSearch {}

/// Fetch of a web page; refused.
#[derive(JsonSchema)]
pub(super) struct WebFetch {}

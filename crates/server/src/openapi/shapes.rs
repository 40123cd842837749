//! Schemas of JSON that the server reads or writes without a type of its own, or that has two
//! variants.

#![allow(dead_code, reason = "these types only describe JSON and have no values")]

use puna_api::{anthropic, openai};
use schemars::JsonSchema;

/// `{"status":"ok"}`
#[derive(JsonSchema)]
pub(super) struct Health {
    /// `ok`.
    status: String,
}

/// What is known of ollama.com: nothing.
#[derive(JsonSchema)]
pub(super) struct Cloud {
    /// `disabled` and `source`.
    cloud: serde_json::Map<String, serde_json::Value>,
}

/// Models that are worth having.
#[derive(JsonSchema)]
pub(super) struct Recommendations {
    /// None.
    recommendations: Vec<serde_json::Value>,
}

/// Models in the form that the request's headers ask for.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub(super) enum AnyModelList {
    OpenAi(openai::ModelList),
    Anthropic(anthropic::ModelList),
}

/// A model in the form that the request's headers ask for.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub(super) enum AnyModel {
    OpenAi(openai::Model),
    Anthropic(anthropic::Model),
}

/// Tokens of a response that was not asked for yet.
#[derive(JsonSchema)]
pub(super) struct CountedResponse {
    /// `response.input_tokens`.
    object: String,
    /// Tokens of the prompt.
    input_tokens: u64,
}

/// What was deleted.
#[derive(JsonSchema)]
pub(super) struct DeletedResponse {
    /// `resp_…`.
    id: String,
    /// `response`.
    object: String,
    /// `true`.
    deleted: bool,
}

/// Errors of a route that speaks two dialects.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub(super) enum AnyError {
    OpenAi(openai::ErrorBody),
    Anthropic(anthropic::ErrorBody),
}

/// What the web is to be searched for.
#[derive(JsonSchema)]
pub(super) struct WebSearch {}

/// What is to be fetched from the web.
#[derive(JsonSchema)]
pub(super) struct WebFetch {}

//! OpenAI's Responses API. The server builds its responses as JSON, since they mostly repeat the
//! request.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ollama::ToolChoice;
use crate::{KeepAlive, json_shape};

/// `POST /v1/responses`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::with_options))]
#[serde(default)]
pub struct ResponsesRequest {
    /// Name of the model.
    pub model: String,
    /// A text, or a list of messages, calls and their results.
    #[serde(deserialize_with = "json_shape::responses_input")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::ResponsesInput"))]
    pub input: Value,
    /// System prompt.
    pub instructions: Option<String>,
    /// Id of the stored response to continue.
    pub previous_response_id: Option<String>,
    /// Whether the response is stored so that it can be continued. Default: true.
    pub store: Option<bool>,
    /// Stream the answer as events. Default: one object.
    pub stream: bool,
    /// Largest number of generated tokens.
    pub max_output_tokens: Option<i64>,
    /// Sampling temperature. Default: 1.
    pub temperature: Option<f64>,
    /// Nucleus sampling: total probability of the candidates. Default: the model's.
    pub top_p: Option<f64>,
    /// Reasoning effort.
    pub reasoning: Option<Reasoning>,
    /// Format of the answer.
    pub text: Option<TextOptions>,
    /// Functions that the model may call.
    #[serde(deserialize_with = "json_shape::responses_tools")]
    #[cfg_attr(feature = "schema", schemars(with = "Vec<crate::schema::ResponsesTool>"))]
    pub tools: Vec<Value>,
    /// Which functions the model may or must call.
    pub tool_choice: Option<ToolChoice>,
    /// Whether the model may call several functions at once.
    pub parallel_tool_calls: Option<bool>,
    /// `auto` (the default): input that does not fit into the context is truncated, and `usage`
    /// tells how much. `disabled`: input that does not fit is an error, and the answer ends when
    /// the context is full. The response repeats the value; without one, it has `auto` if something
    /// was truncated, else `disabled`.
    pub truncation: Option<String>,
    /// Repeated in the response.
    pub metadata: Option<Map<String, Value>>,
    /// A conversation that the server stores: refused.
    pub conversation: Option<Value>,
    /// An answer in the background: refused.
    pub background: Option<bool>,
    /// Native options by name (Puna's addition). Options among the request's fields have priority.
    #[serde(deserialize_with = "json_shape::options")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Options>"))]
    pub options: Option<Map<String, Value>>,
    /// How long the model stays loaded after the request (Puna's addition).
    pub keep_alive: Option<KeepAlive>,
    /// Return the rendered prompt instead of generating.
    #[serde(rename = "_debug_render_only")]
    pub debug_render_only: bool,
    /// Separates the prefix cache further within one client; as in vLLM (Puna's addition).
    pub cache_salt: Option<String>,
}

/// Reasoning effort.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "ResponsesReasoning"))]
#[serde(default)]
pub struct Reasoning {
    /// `none`, `minimal`, `low`, `medium`, `high`, `xhigh`, `ultra`, `max`.
    pub effort: Option<String>,
    /// Repeated in the response.
    pub summary: Option<String>,
}

/// Format of an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct TextOptions {
    /// `{"type": "json_schema", "schema": …}`, `{"type": "json_object"}` or `{"type": "text"}`.
    #[serde(deserialize_with = "json_shape::responses_format")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::ResponsesFormat"))]
    pub format: Value,
}

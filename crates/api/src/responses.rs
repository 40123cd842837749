//! OpenAI's newer dialect of responses. Its answers are built from JSON: most of them repeats the request.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::native::ToolChoice;
use crate::{KeepAlive, shape};

/// `POST /v1/responses`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::with_options))]
#[serde(default)]
pub struct ResponsesRequest {
    /// The model's name.
    pub model: String,
    /// A text, or a list of messages, calls and their results.
    #[serde(deserialize_with = "shape::responses_input")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::ResponsesInput"))]
    pub input: Value,
    /// The system text.
    pub instructions: Option<String>,
    /// The stored response that this one goes on from.
    pub previous_response_id: Option<String>,
    /// Whether the response can be gone on from; it can unless this is `false`.
    pub store: Option<bool>,
    /// Piece by piece or in one object (the default).
    pub stream: bool,
    /// Tokens to generate at most.
    pub max_output_tokens: Option<i64>,
    /// Temperature; 1 unless given.
    pub temperature: Option<f64>,
    /// Nucleus; the model's own unless given.
    pub top_p: Option<f64>,
    /// How hard to think.
    pub reasoning: Option<Reasoning>,
    /// The form of the answer.
    pub text: Option<TextOptions>,
    /// Functions that the model may call.
    #[serde(deserialize_with = "shape::responses_tools")]
    #[cfg_attr(feature = "schema", schemars(with = "Vec<crate::schema::ResponsesTool>"))]
    pub tools: Vec<Value>,
    /// Which of them it may or must call.
    pub tool_choice: Option<ToolChoice>,
    /// Whether it may call several at once.
    pub parallel_tool_calls: Option<bool>,
    /// `auto`: what does not fit into the context is cut, as it is where nothing is said, and the answer's `usage` says how much; `disabled`: input that does not fit is refused, and an answer ends where the context is full. Repeated in the answer; where it was not given, `disabled` as long as nothing was cut, and `auto` where something was.
    pub truncation: Option<String>,
    /// Repeated in the answer.
    pub metadata: Option<Map<String, Value>>,
    /// A conversation that the server keeps: refused.
    pub conversation: Option<Value>,
    /// To be answered later: refused.
    pub background: Option<bool>,
    /// Native options by name (Puna's addition). They may stand beside it, too, and then come first.
    #[serde(deserialize_with = "shape::options")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Options>"))]
    pub options: Option<Map<String, Value>>,
    /// How long the model stays afterwards (Puna's addition).
    pub keep_alive: Option<KeepAlive>,
    /// Answer with the rendered prompt instead of generating.
    #[serde(rename = "_debug_render_only")]
    pub debug_render_only: bool,
}

/// How hard to think.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "ResponsesReasoning"))]
#[serde(default)]
pub struct Reasoning {
    /// `none`, `minimal`, `low`, `medium`, `high`, `xhigh`, `ultra`, `max`.
    pub effort: Option<String>,
    /// Repeated in the answer.
    pub summary: Option<String>,
}

/// The form of an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct TextOptions {
    /// `{"type": "json_schema", "schema": …}`, `{"type": "json_object"}` or `{"type": "text"}`.
    #[serde(deserialize_with = "shape::responses_format")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::ResponsesFormat"))]
    pub format: Value,
}

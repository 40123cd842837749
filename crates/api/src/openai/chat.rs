//! Chat completions.

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::{Map, Value};

use super::{PromptLogprobs, Usage};
use crate::native::{Logprob, Tool, ToolChoice, is_default};
use crate::{KeepAlive, shape};

/// `POST /v1/chat/completions`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::with_options))]
#[serde(default)]
pub struct ChatCompletionRequest {
    /// The model's name.
    pub model: String,
    /// The conversation.
    pub messages: Vec<Message>,
    /// Piece by piece or in one object (the default).
    pub stream: bool,
    /// What a stream holds besides the answer.
    pub stream_options: Option<StreamOptions>,
    /// Tokens to generate at most.
    pub max_tokens: Option<i64>,
    /// The same under its newer name.
    pub max_completion_tokens: Option<i64>,
    /// Seed of the draws.
    pub seed: Option<i64>,
    /// A string or a list of strings that end the answer.
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Stop>"))]
    pub stop: Option<Value>,
    /// Temperature; 1 unless given.
    pub temperature: Option<f64>,
    /// Nucleus; 1 unless given.
    pub top_p: Option<f64>,
    /// Penalty by number of occurrences.
    pub frequency_penalty: Option<f64>,
    /// Penalty of occurrence.
    pub presence_penalty: Option<f64>,
    /// Free text, a JSON object, or a JSON schema.
    pub response_format: Option<ResponseFormat>,
    /// Functions that the model may call.
    pub tools: Vec<Tool>,
    /// Which of them it may or must call.
    pub tool_choice: Option<ToolChoice>,
    /// Whether it may call several at once.
    pub parallel_tool_calls: Option<bool>,
    /// How hard to think.
    pub reasoning: Option<Reasoning>,
    /// The same in its older place.
    pub reasoning_effort: Option<String>,
    /// Whether to think, as some servers take it.
    pub enable_thinking: Option<bool>,
    /// Whether to think, in Anthropic's form: `{"type": "enabled"}` or `{"type": "disabled"}`.
    pub thinking: Option<ThinkingSwitch>,
    /// Variables of the chat template, as vLLM, SGLang and llama.cpp take them; `enable_thinking` or `thinking` is whether to think.
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Report log-probabilities.
    pub logprobs: Option<bool>,
    /// With this many alternatives each.
    pub top_logprobs: i64,
    /// Report the log-probabilities of the prompt's tokens, with this many alternatives each, as vLLM does.
    pub prompt_logprobs: Option<i64>,
    /// Number of answers.
    pub n: Option<i64>,
    /// What is added to the logits of tokens, by their number.
    #[cfg_attr(
        feature = "schema",
        schemars(with = "Option<std::collections::BTreeMap<String, f64>>")
    )]
    pub logit_bias: Option<Map<String, Value>>,
    /// Native options by name (Puna's addition). They may stand beside it, too, and then come first.
    #[serde(deserialize_with = "shape::options")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Options>"))]
    pub options: Option<Map<String, Value>>,
    /// How long the model stays afterwards (Puna's addition).
    pub keep_alive: Option<KeepAlive>,
    /// Whether a prompt that is too long may be cut (Puna's addition).
    pub truncate: Option<bool>,
    /// Whether older tokens make room when the context is full (Puna's addition).
    pub shift: Option<bool>,
    /// Answer with the rendered prompt instead of generating.
    #[serde(rename = "_debug_render_only")]
    pub debug_render_only: bool,
}

/// One message of a conversation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OpenAiMessage"))]
#[serde(default)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, `developer`.
    pub role: String,
    /// Text, a list of parts, or nothing beside tool calls.
    #[serde(deserialize_with = "shape::openai_content")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::OpenAiContent"))]
    pub content: Value,
    /// What the model thought.
    pub reasoning: String,
    /// The same by the name that other servers give it.
    pub reasoning_content: String,
    /// In place of the content: why the model would not answer.
    pub refusal: String,
    /// Functions that the model wanted to be called.
    pub tool_calls: Vec<ToolCall>,
    /// In a `tool` message: the function that answered.
    pub name: String,
    /// In a `tool` message: the call that it answers.
    pub tool_call_id: String,
}

/// A function call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OpenAiToolCall"))]
#[serde(default)]
pub struct ToolCall {
    /// The call's id; absent in the pieces of a stream that only go on with a call.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Number of the call within its answer.
    pub index: i64,
    /// `function` or `custom`; absent where the id is.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// What is called.
    #[serde(skip_serializing_if = "is_default")]
    pub function: ToolCallFunction,
    /// The custom tool that is called instead of a function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom: Option<CustomCall>,
}

/// Name and input of a call of a custom tool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CustomCall {
    /// The tool's name.
    pub name: String,
    /// The text that it takes.
    pub input: String,
}

/// Name and arguments of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OpenAiToolCallFunction"))]
#[serde(default)]
pub struct ToolCallFunction {
    /// The function's name; absent where the call's id is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Arguments as JSON text, or the next piece of it. An object is read as its text, and null as an empty one.
    #[serde(deserialize_with = "arguments_text")]
    pub arguments: String,
}

fn arguments_text<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    match Value::deserialize(d)? {
        Value::String(text) => Ok(text),
        Value::Null => Ok(String::new()),
        object @ Value::Object(_) => Ok(object.to_string()),
        _ => Err(de::Error::custom("tool call arguments must be JSON text or an object")),
    }
}

/// Whether to think.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ThinkingSwitch {
    /// `enabled`, `disabled` or `adaptive`.
    #[serde(rename = "type")]
    pub kind: String,
}

/// What a stream holds besides the answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct StreamOptions {
    /// One more chunk with the token counts.
    pub include_usage: bool,
}

/// Form of the answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ResponseFormat {
    /// `text`, `json_object`, `json_schema`; not OpenAI's are `regex`, `gbnf` and `lark`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The schema.
    pub json_schema: Option<JsonSchema>,
    /// The regular expression.
    pub pattern: Option<String>,
    /// The grammar.
    pub grammar: Option<String>,
}

/// A named JSON schema.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct JsonSchema {
    /// A label, which changes nothing.
    pub name: String,
    /// What the schema is for, which changes nothing.
    pub description: Option<String>,
    /// A schema is always kept, whatever this says; `true` also refuses a `oneOf` whose branches a text may fit at once.
    pub strict: Option<bool>,
    /// The schema itself.
    #[cfg_attr(feature = "schema", schemars(with = "Map<String, Value>"))]
    pub schema: Value,
}

/// How hard to think.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OpenAiReasoning"))]
#[serde(default)]
pub struct Reasoning {
    /// `none`, `minimal`, `low`, `medium`, `high`, `xhigh`, `ultra`, `max`.
    pub effort: String,
}

/// Log-probabilities of an answer or a piece.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChoiceLogprobs {
    /// Token by token.
    pub content: Vec<Logprob>,
}

/// The answer to a chat completion.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChatCompletion {
    /// `chatcmpl-…`.
    pub id: String,
    /// `chat.completion`.
    pub object: String,
    /// When, in seconds since 1970.
    pub created: i64,
    /// The model's name as the client wrote it.
    pub model: String,
    /// `fp_ollama`.
    pub system_fingerprint: String,
    /// The answers.
    pub choices: Vec<Choice>,
    /// Token counts; absent where a remote server reports none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// For each token of the prompt, what it and the likeliest tokens in its place have, by number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// The prompt, where it was asked for.
    #[serde(rename = "_debug_info", default, skip_serializing_if = "Option::is_none")]
    pub debug_info: Option<crate::native::DebugInfo>,
}

/// One answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OpenAiChoice"))]
pub struct Choice {
    /// Its number.
    pub index: u32,
    /// The message.
    pub message: AnswerMessage,
    /// `stop`, `length` or `tool_calls`.
    pub finish_reason: Option<String>,
    /// Log-probabilities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<ChoiceLogprobs>,
}

/// The message of an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct AnswerMessage {
    /// `assistant`.
    pub role: String,
    /// Text.
    pub content: String,
    /// What the model thought.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reasoning: String,
    /// Functions that the model wants to be called.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// A chunk of a streamed chat completion.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChatCompletionChunk {
    /// `chatcmpl-…`, the same in all chunks.
    pub id: String,
    /// `chat.completion.chunk`.
    pub object: String,
    /// When the answer began, in seconds since 1970.
    pub created: i64,
    /// The model's name as the client wrote it.
    pub model: String,
    /// `fp_ollama`.
    pub system_fingerprint: String,
    /// One piece; none in the chunk with the token counts.
    pub choices: Vec<ChunkChoice>,
    /// Token counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The prompt, where it was asked for.
    #[serde(rename = "_debug_info", default, skip_serializing_if = "Option::is_none")]
    pub debug_info: Option<crate::native::DebugInfo>,
    /// Checked keywords that the answer does not keep to (Puna's addition); in the last chunk of an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema_violations: Option<Vec<String>>,
}

/// One piece of an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChunkChoice {
    /// The answer's number.
    pub index: u32,
    /// What is new.
    pub delta: Delta,
    /// Why the answer ended; only in its last chunk.
    pub finish_reason: Option<String>,
    /// Log-probabilities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<ChoiceLogprobs>,
}

/// What is new in a chunk.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Delta {
    /// `assistant`; only in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// What the model thinks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// Functions that the model wants to be called.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

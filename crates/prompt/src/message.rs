//! Messages, tool calls, images and the reasoning switch of conversations, in Ollama's JSON format.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// One message of a conversation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or another role of the template. Lower-cased when
    /// decoded.
    #[serde(deserialize_with = "lower_case")]
    pub role: String,
    /// The text. It may contain image tags `[img-N]` or placeholders `[img]`.
    #[serde(deserialize_with = "null_is_default")]
    pub content: String,
    /// Reasoning of the assistant before this answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// Images, in order.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_default")]
    pub images: Vec<Image>,
    /// Tool calls of the assistant.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_default")]
    pub tool_calls: Vec<ToolCall>,
    /// In a `tool` message: name of the called function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// In a `tool` message: id of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

impl Message {
    /// A message with text only.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: content.into(), ..Message::default() }
    }
}

/// An image as the client sent it: base64 text, which this crate does not decode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Image(pub String);

/// A tool call of the model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolCall {
    /// Identifier that a later `tool` message refers to; may be empty.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_is_default")]
    pub id: String,
    /// Name and arguments.
    pub function: FunctionCall,
}

/// Name and arguments of a call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FunctionCall {
    /// Position of the call within its message, from 0.
    pub index: usize,
    /// Name of the tool.
    pub name: String,
    /// Arguments in the order the model wrote them.
    #[serde(deserialize_with = "object")]
    pub arguments: Map<String, Value>,
}

/// The `think` setting of a request: on, off, or a level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Think {
    /// `true` or `false`.
    Switch(bool),
    /// `low`, `medium`, `high` or `max`; implies reasoning.
    Level(String),
}

impl Think {
    /// Returns true if the model is to reason.
    pub fn is_on(&self) -> bool {
        !matches!(self, Think::Switch(false))
    }

    /// The level in Go templates: `medium` for `true`, empty for `false`.
    pub fn level(&self) -> &str {
        match self {
            Think::Switch(true) => "medium",
            Think::Switch(false) => "",
            Think::Level(level) => level,
        }
    }
}

impl Serialize for Think {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Think::Switch(on) => serializer.serialize_bool(*on),
            Think::Level(level) => serializer.serialize_str(level),
        }
    }
}

impl<'de> Deserialize<'de> for Think {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const CHOICES: &str = "\"high\", \"medium\", \"low\", \"max\", true, or false";
        match Value::deserialize(deserializer)? {
            Value::Bool(on) => Ok(Think::Switch(on)),
            Value::String(level) if matches!(level.as_str(), "low" | "medium" | "high" | "max") => {
                Ok(Think::Level(level))
            }
            Value::String(other) => Err(serde::de::Error::custom(format!(
                "invalid think value: {other:?} (must be {CHOICES})"
            ))),
            _ => Err(serde::de::Error::custom(format!(
                "think must be a boolean or string ({CHOICES})"
            ))),
        }
    }
}

fn lower_case<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(String::deserialize(deserializer)?.to_lowercase())
}

fn null_is_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn object<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Map<String, Value>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Object(map) => Ok(map),
        Value::Null => Ok(Map::new()),
        _ => Err(serde::de::Error::custom("tool call arguments must be an object")),
    }
}

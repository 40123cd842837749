//! Messages, tools and tool calls.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::{Map, Value, json};

use super::is_default;
use crate::decode::kind;
use crate::json_shape;

/// Message of a conversation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or another role that the template supports.
    pub role: String,
    /// Text.
    pub content: String,
    /// Reasoning of the model before the answer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub thinking: String,
    /// Images or audio.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<Image>,
    /// Function calls of the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// In a `tool` message: the function that returned the result.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tool_name: String,
    /// In a `tool` message: the id of the call.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tool_call_id: String,
}

/// Image or audio data; base64 in JSON.
#[derive(Debug, Clone)]
pub enum Image {
    /// The bytes.
    Bytes(Vec<u8>),
    /// The client sent invalid data, for this reason; `null` in JSON.
    Unreadable(String),
}

impl Image {
    /// Decodes base64.
    pub fn from_base64(text: &str) -> Self {
        crate::base64_decode(text).map_or_else(Self::illegal, Self::Bytes)
    }

    /// The bytes. Empty if the data is invalid.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Unreadable(_) => &[],
        }
    }

    fn illegal(at: usize) -> Self {
        Self::Unreadable(format!("illegal base64 data at input byte {at}"))
    }
}

/// Invalid images are equal, since JSON does not contain the reason.
impl PartialEq for Image {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Bytes(a), Self::Bytes(b)) => a == b,
            (Self::Unreadable(_), Self::Unreadable(_)) => true,
            (Self::Bytes(_), Self::Unreadable(_)) | (Self::Unreadable(_), Self::Bytes(_)) => false,
        }
    }
}

impl Eq for Image {}

impl Serialize for Image {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Bytes(bytes) => s.serialize_str(&crate::base64_encode(bytes)),
            Self::Unreadable(_) => s.serialize_none(),
        }
    }
}

impl<'de> Deserialize<'de> for Image {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = Option::<String>::deserialize(d)?;
        Ok(text.map_or_else(|| Self::illegal(0), |text| Self::from_base64(&text)))
    }
}

/// Function call of the model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ToolCall {
    /// `call_` and eight characters.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Function and arguments.
    pub function: ToolCallFunction,
}

/// Name and arguments of a call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ToolCallFunction {
    /// Index of the call in the answer, from 0.
    pub index: i64,
    /// Name of the function.
    pub name: String,
    /// Arguments by name, in the order of the model's output.
    #[serde(deserialize_with = "arguments")]
    pub arguments: Map<String, Value>,
}

fn arguments<'de, D: Deserializer<'de>>(d: D) -> Result<Map<String, Value>, D::Error> {
    match Value::deserialize(d)? {
        Value::Object(map) => Ok(map),
        Value::Null => Ok(Map::new()),
        _ => Err(de::Error::custom("tool call arguments must be an object")),
    }
}

/// Function that the model may call, as the client sent it, with all keys in order.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Tool(pub Value);

impl Tool {
    /// The name of the function. Empty if it has none.
    pub fn name(&self) -> &str {
        self.0["function"]["name"].as_str().unwrap_or_default()
    }

    /// JSON Schema of the arguments.
    pub fn parameters(&self) -> &Value {
        &self.0["function"]["parameters"]
    }
}

impl<'de> Deserialize<'de> for Tool {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let tool = Value::deserialize(d)?;
        let wrong = |value: &Value, field: &str, want: &str| {
            de::Error::custom(format_args!(
                "json: cannot unmarshal {} into Go struct field {field} of type {want}",
                kind(value)
            ))
        };
        let object_or_absent = |value: &Value| value.is_object() || value.is_null();
        let string_or_absent = |value: &Value| value.is_string() || value.is_null();
        let (function, parameters) = (&tool["function"], &tool["function"]["parameters"]);
        if !tool.is_object() {
            Err(wrong(&tool, "ChatRequest.tools", "api.Tool"))
        } else if !string_or_absent(&tool["type"]) {
            Err(wrong(&tool["type"], "Tool.tools.type", "string"))
        } else if !object_or_absent(function) {
            Err(wrong(function, "Tool.tools.function", "api.ToolFunction"))
        } else if !string_or_absent(&function["name"]) {
            Err(wrong(&function["name"], "ToolFunction.tools.function.name", "string"))
        } else if !string_or_absent(&function["description"]) {
            Err(wrong(
                &function["description"],
                "ToolFunction.tools.function.description",
                "string",
            ))
        } else if !object_or_absent(parameters) {
            Err(wrong(
                parameters,
                "ToolFunction.tools.function.parameters",
                "api.ToolFunctionParameters",
            ))
        } else if !(parameters["required"].is_array() || parameters["required"].is_null()) {
            Err(wrong(
                &parameters["required"],
                "ToolFunctionParameters.tools.function.parameters.required",
                "[]string",
            ))
        } else if let Some(other) =
            parameters["required"].as_array().and_then(|l| l.iter().find(|v| !v.is_string()))
        {
            Err(wrong(other, "ToolFunctionParameters.tools.function.parameters.required", "string"))
        } else if !object_or_absent(&parameters["properties"]) {
            Err(wrong(
                &parameters["properties"],
                "ToolFunctionParameters.tools.function.parameters.properties",
                "map[string]api.ToolProperty",
            ))
        } else {
            Ok(Self(tool))
        }
    }
}

/// Which of the given functions the model may or must call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// No function.
    None,
    /// At least one function.
    Required,
    /// The function with this name.
    Named(String),
    /// Only the functions with these names; the model decides whether to call one, unless
    /// `required`.
    Allowed {
        /// Whether at least one must be called.
        required: bool,
        /// Names of the allowed functions.
        names: Vec<String>,
        /// Types of allowed tools without a name, which a service runs itself, such as `web_search`
        /// and `mcp`.
        hosted: Vec<String>,
    },
}

impl Serialize for ToolChoice {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => s.serialize_str("auto"),
            Self::None => s.serialize_str("none"),
            Self::Required => s.serialize_str("required"),
            Self::Named(name) => {
                json!({"type": "function", "function": {"name": name}}).serialize(s)
            }
            Self::Allowed { required, names, hosted } => {
                let mode = if *required { "required" } else { "auto" };
                let named = names
                    .iter()
                    .map(|name| json!({"type": "function", "function": {"name": name}}));
                let hosted = hosted.iter().map(|kind| json!({"type": kind}));
                let allowed =
                    json!({"mode": mode, "tools": named.chain(hosted).collect::<Vec<_>>()});
                json!({"type": "allowed_tools", "allowed_tools": allowed}).serialize(s)
            }
        }
    }
}

impl<'de> Deserialize<'de> for ToolChoice {
    /// Accepts the forms of all dialects: a word, an object with the word as `type`, or an object
    /// with a function's name.
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let value = json_shape::tool_choice(d)?;
        let word = value.as_str().or(value["type"].as_str());
        let named = ["function", "custom"].iter().find_map(|kind| value[*kind]["name"].as_str());
        let name = value["name"].as_str().or(named).filter(|name| !name.is_empty());
        let full_name = name.map(|name| full_name(&value, name));
        match (word, full_name) {
            (Some("auto"), _) => Ok(Self::Auto),
            (Some("none"), _) => Ok(Self::None),
            (Some("required" | "any"), _) => Ok(Self::Required),
            (Some("function" | "tool" | "custom"), Some(name)) => Ok(Self::Named(name)),
            (Some(name @ "local_shell"), None) => Ok(Self::Named(name.to_owned())),
            (Some("allowed_tools"), _) => allowed(&value).map_err(de::Error::custom),
            _ => Err(de::Error::custom(format_args!(
                "invalid tool_choice: {value} (must be \"auto\", \"none\", \"required\", \"allowed_tools\" with a list, or name a function)"
            ))),
        }
    }
}

/// Name of a tool, with its namespace if the choice has one.
fn full_name(choice: &Value, name: &str) -> String {
    match choice["namespace"].as_str().filter(|namespace| !namespace.is_empty()) {
        Some(namespace) => format!("{namespace}.{name}"),
        None => name.to_owned(),
    }
}

/// Reads the list in `allowed_tools`. Chat completions have it in an object of that name, responses
/// next to `type`.
fn allowed(choice: &Value) -> Result<ToolChoice, String> {
    let list = if choice["allowed_tools"].is_object() { &choice["allowed_tools"] } else { choice };
    let required = match list["mode"].as_str() {
        None | Some("auto") => false,
        Some("required") => true,
        Some(mode) => {
            return Err(format!(
                "tool_choice: unknown mode {mode:?} of allowed_tools: use auto or required"
            ));
        }
    };
    let tools = list["tools"].as_array().filter(|tools| !tools.is_empty());
    let tools = tools.ok_or("tool_choice: allowed_tools needs a list of tools")?;
    let (mut names, mut hosted) = (Vec::new(), Vec::new());
    for (at, tool) in tools.iter().enumerate() {
        let inner = ["function", "custom"].iter().find_map(|kind| tool[*kind]["name"].as_str());
        let name = tool["name"].as_str().or(inner).filter(|name| !name.is_empty());
        match (tool["type"].as_str().unwrap_or_default(), name) {
            ("" | "function" | "custom", Some(name)) => names.push(full_name(tool, name)),
            (name @ "local_shell", _) => names.push(name.to_owned()),
            ("" | "function" | "custom", None) => {
                return Err(format!("tool_choice: tools[{at}] of allowed_tools has no name"));
            }
            (kind, _) => hosted.push(kind.to_owned()),
        }
    }
    Ok(ToolChoice::Allowed { required, names, hosted })
}

/// Whether the model reasons before it answers, and with which effort.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Think {
    /// No reasoning.
    Off,
    /// The model's default.
    On,
    /// Low effort.
    Low,
    /// Medium effort.
    Medium,
    /// High effort.
    High,
    /// Maximum effort.
    Max,
}

impl Think {
    /// Name of the effort: `medium` for `true`, empty for `false`.
    pub fn level(self) -> &'static str {
        match self {
            Self::Off => "",
            Self::Low => "low",
            Self::On | Self::Medium => "medium",
            Self::High => "high",
            Self::Max => "max",
        }
    }
}

impl Serialize for Think {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => s.serialize_bool(false),
            Self::On => s.serialize_bool(true),
            level => s.serialize_str(level.level()),
        }
    }
}

impl<'de> Deserialize<'de> for Think {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(d)?;
        match value.as_str() {
            Some("low") => Ok(Self::Low),
            Some("medium") => Ok(Self::Medium),
            Some("high") => Ok(Self::High),
            Some("max") => Ok(Self::Max),
            Some(_) => Err(de::Error::custom(format_args!(
                "invalid think value: {value} (must be \"high\", \"medium\", \"low\", \"max\", true, or false)"
            ))),
            None if value == json!(true) => Ok(Self::On),
            None if value == json!(false) => Ok(Self::Off),
            None => Err(de::Error::custom(
                "think must be a boolean or string (\"high\", \"medium\", \"low\", \"max\", true, or false)",
            )),
        }
    }
}

impl Message {
    /// Makes a message with only a text.
    pub fn text(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), ..Self::default() }
    }

    /// Whether the message has nothing but a role.
    pub fn is_empty(&self) -> bool {
        is_default(&self.content)
            && is_default(&self.thinking)
            && self.images.is_empty()
            && self.tool_calls.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_image_is_equal_after_a_round_trip() {
        for json in ["[\"AA\u{e9}\", null, \"QUJD\"]", "[\"!\"]"] {
            let images: Vec<Image> = serde_json::from_str(json).unwrap();
            let written = serde_json::to_string(&images).unwrap();
            assert_eq!(serde_json::from_str::<Vec<Image>>(&written).unwrap(), images);
        }
        assert_ne!(Image::Bytes(Vec::new()), Image::from_base64("!"));
    }
}

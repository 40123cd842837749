//! Messages, tools and their parts.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::{Map, Value, json};

use super::is_default;
use crate::decode::kind;
use crate::shape;

/// One message of a conversation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or whatever the template knows.
    pub role: String,
    /// Text.
    pub content: String,
    /// What the model thought before it answered.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub thinking: String,
    /// Images or sound.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<Image>,
    /// Functions that the model wants to be called.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// In a `tool` message: the function that answered.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tool_name: String,
    /// In a `tool` message: the call that it answers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tool_call_id: String,
}

/// An image or a sound; base64 on the wire.
#[derive(Debug, Clone)]
pub enum Image {
    /// Its bytes.
    Bytes(Vec<u8>),
    /// The client sent something that is no image, for this reason; `null` on the wire.
    Unreadable(String),
}

impl Image {
    /// Decodes base64.
    pub fn from_base64(text: &str) -> Self {
        crate::base64_decode(text).map_or_else(Self::illegal, Self::Bytes)
    }

    /// The bytes; none of an image that could not be read.
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

/// Unreadable images are equal: the reason is not on the wire.
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

/// A function call of the model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ToolCall {
    /// `call_` and eight characters.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// What is called.
    pub function: ToolCallFunction,
}

/// Name and arguments of a call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ToolCallFunction {
    /// Number of the call within its answer, from 0.
    pub index: i64,
    /// The function's name.
    pub name: String,
    /// Arguments by name, in the order in which the model gave them.
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

/// A function that the model may call, as the client described it: keys and their order are kept.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Tool(pub Value);

impl Tool {
    /// The function's name, if it has one.
    pub fn name(&self) -> &str {
        self.0["function"]["name"].as_str().unwrap_or_default()
    }

    /// The JSON schema of the arguments.
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

/// Which of the offered functions the model may or must call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// As it likes.
    #[default]
    Auto,
    /// None of them.
    None,
    /// At least one.
    Required,
    /// This one.
    Named(String),
    /// As the model likes, or at least one (`required`), but only of these.
    Allowed {
        /// At least one must be called.
        required: bool,
        /// The names of those that may be called.
        names: Vec<String>,
        /// The types of those that have no name, since a service runs them itself: `web_search`, `mcp` ….
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
    /// Takes the forms of all dialects: a word, an object with a word as its `type`, or one that names a function.
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let value = shape::tool_choice(d)?;
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

/// The name of a tool with its namespace, if the choice says one.
fn full_name(choice: &Value, name: &str) -> String {
    match choice["namespace"].as_str().filter(|namespace| !namespace.is_empty()) {
        Some(namespace) => format!("{namespace}.{name}"),
        None => name.to_owned(),
    }
}

/// The tools that `allowed_tools` lists: within an object of that name in chats, beside the type in responses.
fn allowed(choice: &Value) -> Result<ToolChoice, String> {
    let list = if choice["allowed_tools"].is_object() { &choice["allowed_tools"] } else { choice };
    let required = match list["mode"].as_str() {
        None | Some("auto") => false,
        Some("required") => true,
        Some(mode) => {
            return Err(format!(
                "tool_choice: there is no mode {mode:?} of allowed_tools: use auto or required"
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

/// Whether, and how hard, the model is to think before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Think {
    /// Not at all.
    Off,
    /// As it is used to.
    On,
    /// Briefly.
    Low,
    /// Some.
    Medium,
    /// Much.
    High,
    /// As much as it can.
    Max,
}

impl Think {
    /// The level's name; `medium` for plain `true`, nothing for `false`.
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
    /// A message with nothing but text.
    pub fn text(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), ..Self::default() }
    }

    /// Whether there is nothing in it besides the role.
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
    fn an_unreadable_image_is_equal_after_a_round_trip() {
        for json in ["[\"AA\u{e9}\", null, \"QUJD\"]", "[\"!\"]"] {
            let images: Vec<Image> = serde_json::from_str(json).unwrap();
            let written = serde_json::to_string(&images).unwrap();
            assert_eq!(serde_json::from_str::<Vec<Image>>(&written).unwrap(), images);
        }
        assert_ne!(Image::Bytes(Vec::new()), Image::from_base64("!"));
    }
}

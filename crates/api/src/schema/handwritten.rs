//! Schemas that are written as JSON, for types that are decoded or encoded by hand.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::{Format, Stop, Texts, TextsOrTokens};
use crate::KeepAlive;
use crate::anthropic::Choice;
use crate::ollama::{Image, License, Think, Tool, ToolChoice};
use crate::openai::EmbeddingData;

/// Implements `JsonSchema` with schemas written as JSON.
macro_rules! schemas {
    ($($type:ty, $name:literal: $schema:tt)*) => {$(
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn schema_id() -> Cow<'static, str> {
                concat!(module_path!(), "::", $name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    )*};
}

/// Schema of `mode` in `allowed_tools`.
fn allowed_mode() -> Value {
    json!({"enum": ["auto", "required"], "description": "`auto` or `required`."})
}

/// Schema of the list in `allowed_tools`, for chat completions and responses.
fn allowed_tools() -> Value {
    let named = |description: &str| {
        let name = json!({"type": "string", "minLength": 1, "description": "Name."});
        json!({"type": "object", "required": ["name"], "description": description, "properties": {"name": name}})
    };
    json!({
        "type": "array", "minItems": 1, "description": "The tools that may be called.",
        "items": {
            "type": "object", "required": ["type"],
            "properties": {
                "type": {"type": "string", "description": "`function`, `custom` or `local_shell`; `web_search`, `image_generation` and `tool_search` are ignored."},
                "function": named("The function."),
                "custom": named("The tool with free-text input."),
                "name": {"type": "string", "minLength": 1, "description": "The name, in responses."},
                "namespace": {"type": "string", "description": "The namespace of the tool, in responses."},
            },
        },
    })
}

schemas! {
    KeepAlive, "KeepAlive": {
        "description": "How long a model stays loaded after its last request: seconds, or a duration such as `1h30m` (units `ns us ms s m h`). 0: unload it when it is idle; negative: forever.",
        "anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^[-+]?(0|([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+)$"}],
        "examples": ["5m", 0, -1],
    }
    Think, "Think": {
        "description": "Whether the model reasons before it answers, or the reasoning effort.",
        "enum": [true, false, "low", "medium", "high", "max"],
    }
    Image, "Image": {
        "description": "Image or audio data in base64.",
        "type": "string", "contentEncoding": "base64", "examples": ["aGk="],
        "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
    }
    License, "License": {
        "description": "A license text, or several.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    Tool, "FunctionTool": {
        "description": "A function that the model may call. The template gets it unchanged, with all its keys.",
        "type": "object",
        "properties": {
            "type": {"type": "string", "description": "`function`; in OpenAI's chat completions also `custom`."},
            "custom": {
                "description": "Instead of `function`: `name`, `description` and `format` of a tool with free-text input.",
            },
            "function": {
                "type": "object",
                "description": "The function.",
                "properties": {
                    "name": {"type": "string", "description": "Name."},
                    "description": {"type": "string", "description": "Purpose of the function."},
                    "parameters": {
                        "type": "object", "description": "JSON Schema of the arguments.",
                        "properties": {
                            "required": {"type": "array", "items": {"type": "string"}, "description": "Required arguments."},
                            "properties": {"type": "object", "description": "JSON Schemas of the arguments by name."},
                        },
                    },
                },
            },
        },
        "additionalProperties": true,
    }
    ToolChoice, "ToolChoice": {
        "description": "Whether the model may or must call a function, and which.",
        "anyOf": [
            {"enum": ["auto", "none", "required"]},
            {
                "type": "object", "required": ["type", "function"],
                "properties": {
                    "type": {"const": "function", "description": "`function`."},
                    "function": {
                        "type": "object", "required": ["name"], "description": "The function.",
                        "properties": {"name": {"type": "string", "minLength": 1, "description": "Name."}},
                    },
                },
            },
            {
                "type": "object", "required": ["type", "custom"],
                "properties": {
                    "type": {"const": "custom", "description": "`custom`."},
                    "custom": {
                        "type": "object", "required": ["name"], "description": "The tool with free-text input.",
                        "properties": {"name": {"type": "string", "minLength": 1, "description": "Name."}},
                    },
                },
            },
            {
                "type": "object", "required": ["type", "name"],
                "properties": {
                    "type": {"enum": ["function", "custom"], "description": "`function` or `custom`."},
                    "name": {"type": "string", "minLength": 1, "description": "Name of the function."},
                    "namespace": {"type": "string", "description": "The namespace of the tool, in responses."},
                },
            },
            {
                "type": "object", "required": ["type"],
                "properties": {"type": {"const": "local_shell", "description": "`local_shell`."}},
            },
            {
                "type": "object", "required": ["type", "allowed_tools"],
                "properties": {
                    "type": {"const": "allowed_tools", "description": "`allowed_tools`."},
                    "allowed_tools": {
                        "type": "object", "required": ["tools"], "description": "The tools that may be called.",
                        "properties": {
                            "mode": allowed_mode(),
                            "tools": allowed_tools(),
                        },
                    },
                },
            },
            {
                "type": "object", "required": ["type", "tools"],
                "properties": {
                    "type": {"const": "allowed_tools", "description": "`allowed_tools`."},
                    "mode": allowed_mode(),
                    "tools": allowed_tools(),
                },
            },
        ],
    }
    Choice, "AnthropicToolChoice": {
        "description": "Whether the model may or must call a function, and which.",
        "type": "object", "required": ["type"],
        "properties": {
            "type": {"enum": ["auto", "any", "none", "tool"], "description": "`any`: at least one function; `tool`: the named function."},
            "name": {"type": "string", "minLength": 1, "description": "Name of the function, if the type is `tool`."},
            "disable_parallel_tool_use": {"type": "boolean", "description": "At most one call."},
        },
    }
    EmbeddingData, "EmbeddingData": {
        "description": "Numbers, or little-endian 32-bit floats in base64.",
        "anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string", "contentEncoding": "base64"}],
    }
    Texts, "Texts": {
        "description": "A text, or a list of texts.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    TextsOrTokens, "TextsOrTokens": {
        "description": "A text, a list of texts, token ids, or a list of lists of token ids.",
        "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}},
            {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 4294967295u32}},
            {"type": "array", "items": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 4294967295u32}}},
        ],
    }
    Stop, "Stop": {
        "description": "One or more strings that end the answer.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    Format, "Format": {
        "description": "Format of the answer: any JSON (`\"json\"`), a JSON Schema, or an expression or a grammar (`{\"type\": \"regex\", \"pattern\": …}`, `{\"type\": \"gbnf\" or \"lark\", \"grammar\": …}`: Puna's addition).",
        "anyOf": [{"enum": ["json", ""]}, {"type": "object"}],
        "examples": ["json"],
    }
}

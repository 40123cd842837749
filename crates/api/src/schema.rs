//! JSON Schemas of what is read or written by hand; those of all other types are derived.
//!
//! Types without a constructor only describe JSON that is read leniently; which of its fields are looked at is said a
//! second time in `shape`, and a test holds the two together.

#![allow(dead_code, missing_docs)]

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value};

use crate::KeepAlive;
use crate::anthropic::Choice;
use crate::native::{Image, License, Think, Tool, ToolChoice};
use crate::openai::EmbeddingData;

/// Schemas in the words of JSON.
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

schemas! {
    KeepAlive, "KeepAlive": {
        "description": "How long a model stays in memory after its last request: seconds, or a duration such as `1h30m` (units `ns us ms s m h`). 0 unloads it when it is idle, negative is for ever.",
        "anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^[-+]?(0|([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+)$"}],
        "examples": ["5m", 0, -1],
    }
    Think, "Think": {
        "description": "Whether, and how hard, the model is to think before it answers.",
        "enum": [true, false, "low", "medium", "high", "max"],
    }
    Image, "Image": {
        "description": "Bytes of an image or a sound in base64.",
        "type": "string", "contentEncoding": "base64", "examples": ["aGk="],
        "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
    }
    License, "License": {
        "description": "A licence text, or several.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    Tool, "FunctionTool": {
        "description": "A function that the model may call. It reaches the template as it is, with all its keys.",
        "type": "object",
        "properties": {
            "type": {"type": "string", "description": "`function`."},
            "function": {
                "type": "object",
                "description": "The function.",
                "properties": {
                    "name": {"type": "string", "description": "Its name."},
                    "description": {"type": "string", "description": "What it does."},
                    "parameters": {
                        "type": "object", "description": "JSON Schema of its arguments.",
                        "properties": {
                            "required": {"type": "array", "items": {"type": "string"}, "description": "Arguments that must be there."},
                            "properties": {"type": "object", "description": "JSON Schemas of the arguments by name."},
                        },
                    },
                },
            },
        },
        "additionalProperties": true,
    }
    ToolChoice, "ToolChoice": {
        "description": "Whether the model may or must call a function, or which.",
        "anyOf": [
            {"enum": ["auto", "none", "required"]},
            {
                "type": "object", "required": ["type", "function"],
                "properties": {
                    "type": {"const": "function", "description": "`function`."},
                    "function": {
                        "type": "object", "required": ["name"], "description": "The function.",
                        "properties": {"name": {"type": "string", "minLength": 1, "description": "Its name."}},
                    },
                },
            },
            {
                "type": "object", "required": ["type", "custom"],
                "properties": {
                    "type": {"const": "custom", "description": "`custom`."},
                    "custom": {
                        "type": "object", "required": ["name"], "description": "The tool that takes free text.",
                        "properties": {"name": {"type": "string", "minLength": 1, "description": "Its name."}},
                    },
                },
            },
            {
                "type": "object", "required": ["type", "name"],
                "properties": {
                    "type": {"enum": ["function", "custom"], "description": "`function` or `custom`."},
                    "name": {"type": "string", "minLength": 1, "description": "The function's name."},
                },
            },
            {
                "type": "object", "required": ["type"],
                "properties": {"type": {"const": "local_shell", "description": "`local_shell`."}},
            },
        ],
    }
    Choice, "AnthropicToolChoice": {
        "description": "Whether the model may or must call a function, or which.",
        "type": "object", "required": ["type"],
        "properties": {
            "type": {"enum": ["auto", "any", "none", "tool"], "description": "`any`: at least one; `tool`: the one with the name."},
            "name": {"type": "string", "minLength": 1, "description": "The function's name, where the type is `tool`."},
            "disable_parallel_tool_use": {"type": "boolean", "description": "One call at most."},
        },
    }
    EmbeddingData, "EmbeddingData": {
        "description": "Numbers, or base64 over little-endian 32-bit floats.",
        "anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string", "contentEncoding": "base64"}],
    }
    Texts, "Texts": {
        "description": "A text, or a list of texts.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    TextsOrTokens, "TextsOrTokens": {
        "description": "A text, a list of texts, the tokens of a text, or a list of lists of tokens.",
        "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}},
            {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 4294967295u32}},
            {"type": "array", "items": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 4294967295u32}}},
        ],
    }
    Stop, "Stop": {
        "description": "A text that ends the answer, or several.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    Format, "Format": {
        "description": "The form of the answer: any JSON (`\"json\"`), a JSON Schema, or an expression or a grammar (`{\"type\": \"regex\", \"pattern\": …}`, `{\"type\": \"gbnf\" or \"lark\", \"grammar\": …}`: Puna's addition).",
        "anyOf": [{"enum": ["json", ""]}, {"type": "object"}],
        "examples": ["json"],
    }
}

/// A text, a list of texts.
pub struct Texts;

/// Texts or tokens.
pub struct TextsOrTokens;

/// Strings that end an answer.
pub struct Stop;

/// The form of an answer.
pub struct Format;

/// Parameters of a model by their names in a Modelfile. A value that is not given is the model's own, else the default.
#[derive(JsonSchema)]
pub struct Options {
    /// Context length in tokens; 4096 unless the server or the model says otherwise. Loads the model anew.
    num_ctx: Option<f64>,
    /// Tokens of a prompt that are read in one step at most. Loads the model anew.
    num_batch: Option<f64>,
    /// Layers on graphics cards; negative is automatic. There is no support for any yet. Loads the model anew.
    num_gpu: Option<f64>,
    /// The main graphics card. Loads the model anew.
    main_gpu: Option<f64>,
    /// Threads; 0 is automatic. Loads the model anew.
    num_thread: Option<f64>,
    /// Whether the file is mapped into memory. Loads the model anew.
    use_mmap: Option<bool>,
    /// Tokens that stay when the context is full and the older half goes; 4 unless given, negative is the whole prompt.
    num_keep: Option<f64>,
    /// Tokens to generate at most; negative is no limit, 0 none.
    num_predict: Option<f64>,
    /// Texts that end the answer, instead of the model's own.
    stop: Option<Vec<String>>,
    /// Seed of the draws; negative is random.
    seed: Option<f64>,
    /// Temperature, 0.8 unless given; 0 takes the likeliest token.
    temperature: Option<f64>,
    /// Candidates, 40 unless given; 0 is all.
    top_k: Option<f64>,
    /// Probability that the candidates have together, 0.9 unless given.
    top_p: Option<f64>,
    /// Probability of a candidate as a share of the likeliest one's.
    min_p: Option<f64>,
    /// Locally typical sampling; 1 is off.
    typical_p: Option<f64>,
    /// Tokens back that penalties look; 64 unless given, 0 none, -1 the whole context.
    repeat_last_n: Option<f64>,
    /// Penalty of repeated tokens, as a divisor; 1 is off.
    repeat_penalty: Option<f64>,
    /// Penalty of occurrence.
    presence_penalty: Option<f64>,
    /// Penalty by number of occurrences.
    frequency_penalty: Option<f64>,
    /// What is added to the logits of tokens, by their number (Puna's addition).
    logit_bias: Option<std::collections::BTreeMap<String, f64>>,
    /// Name of a model that guesses ahead (Puna's addition). Loads the model anew.
    draft_model: Option<String>,
    /// Tokens that are guessed ahead at most; 0 switches guessing off, negative is automatic.
    draft_num_predict: Option<f64>,
    /// How to guess ahead: `auto`, `off`, `ngram`, `always`, or the name of a draft model (Puna's addition).
    #[schemars(with = "Option<BoolOrText>")]
    speculate: Option<Value>,
    /// An answer that depends on nothing else that is done (Puna's addition). Loads the model anew.
    deterministic: Option<bool>,
    /// Tokens that thoughts may have before they are ended; negative is no limit (Puna's addition).
    think_budget: Option<f64>,
    /// Strength of DRY, which penalises repeated runs of tokens; 0 is off (Puna's addition).
    dry_multiplier: Option<f64>,
    /// Base of DRY's penalty (Puna's addition).
    dry_base: Option<f64>,
    /// Tokens of a run that DRY lets pass (Puna's addition).
    dry_allowed_length: Option<f64>,
    /// Tokens back that DRY looks (Puna's addition).
    dry_penalty_last_n: Option<f64>,
    /// Texts that end a run for DRY (Puna's addition).
    dry_sequence_breakers: Option<Vec<String>>,
    /// Probability of leaving out the likeliest candidates (XTC; Puna's addition).
    xtc_probability: Option<f64>,
    /// Probability from which on XTC leaves candidates out (Puna's addition).
    xtc_threshold: Option<f64>,
    /// Standard deviations below the best logit that candidates may lie (Puna's addition).
    top_n_sigma: Option<f64>,
    /// How far the temperature may follow the uncertainty, up and down (Puna's addition).
    dynatemp_range: Option<f64>,
    /// How it follows (Puna's addition).
    dynatemp_exponent: Option<f64>,
    /// Go on behind the end token (Puna's addition).
    ignore_eos: Option<bool>,
}

/// A switch or a text.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum BoolOrText {
    Bool(bool),
    Text(String),
}

/// Facts of a model's file that are told otherwise.
#[derive(JsonSchema)]
pub struct Info {
    /// What the model can do.
    capabilities: Option<Vec<String>>,
    /// Its architecture.
    model_family: Option<String>,
    /// Name of the model that it was made from.
    base_name: Option<String>,
    /// Its format: `Q4_K_M`.
    quantization_level: Option<String>,
    /// Its parameters in words: `134.52M`.
    parameter_size: Option<String>,
    /// Tokens it was trained for.
    context_length: Option<u64>,
    /// Width of its vectors.
    embedding_length: Option<u64>,
}

/// Text, a list of parts, or nothing beside tool calls.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum OpenAiContent {
    Text(String),
    Parts(Vec<OpenAiPart>),
}

/// A part of a message.
#[derive(JsonSchema)]
pub struct OpenAiPart {
    /// `text`, `refusal`, `image_url` or `input_audio`.
    r#type: String,
    /// Of a `text`: the text.
    text: Option<String>,
    /// Of a `refusal`: its text.
    refusal: Option<String>,
    /// Of an `image_url`: the image.
    image_url: Option<OpenAiImage>,
    /// Of an `input_audio`: the sound.
    input_audio: Option<OpenAiAudio>,
}

/// An image.
#[derive(JsonSchema)]
pub struct OpenAiImage {
    /// `data:image/png;base64,…`; addresses of other servers are refused.
    url: String,
}

/// A sound.
#[derive(JsonSchema)]
pub struct OpenAiAudio {
    /// Bytes in base64.
    data: String,
}

/// Text or a list of blocks.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum AnthropicContent {
    Text(String),
    Blocks(Vec<AnthropicPart>),
}

/// A block of a message.
#[derive(JsonSchema)]
pub struct AnthropicPart {
    /// `text`, `image`, `document`, `search_result`, `thinking`, `redacted_thinking`, `tool_use`, `tool_result`, `server_tool_use` or `web_search_tool_result`.
    r#type: String,
    /// Of a `text`: the text.
    text: Option<String>,
    /// Of an `image` or a `document`: what is in it; of a `search_result`: where it was found.
    source: Option<AnthropicOrigin>,
    /// Of a `document` or a `search_result`: its title, for the model.
    title: Option<String>,
    /// Of a `document`: what it is about, for the model.
    context: Option<String>,
    /// Of a `thinking`: the thoughts.
    thinking: Option<String>,
    /// Of a `tool_use`: the call's id.
    id: Option<String>,
    /// Of a `tool_use`: the function's name.
    name: Option<String>,
    /// Of a `tool_use`: the arguments.
    input: Option<Map<String, Value>>,
    /// Of a `tool_result`: the id of the call that it answers.
    tool_use_id: Option<String>,
    /// Of a `tool_result`: text, or a list of blocks of type `text`, `image`, `document` or `search_result`; of a `search_result`: blocks of type `text`.
    content: Option<AnthropicResult>,
    /// Of a `tool_result`: whether the call failed, which the model is told.
    is_error: Option<bool>,
}

/// What came of a call.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum AnthropicResult {
    Text(String),
    Blocks(Vec<AnthropicResultPart>),
    Error(AnthropicSearchError),
}

/// A block of a result.
#[derive(JsonSchema)]
struct AnthropicResultPart {
    /// `text`, `image`, `document` or `search_result`; of a search on the web `web_search_result`.
    r#type: String,
    /// Of a `text`: the text.
    text: Option<String>,
    /// Of an `image` or a `document`: what is in it; of a `search_result`: where it was found.
    source: Option<AnthropicOrigin>,
    /// Its title, for the model.
    title: Option<String>,
    /// Of a `document`: what it is about, for the model.
    context: Option<String>,
    /// Of a `search_result`: blocks of type `text`.
    content: Option<Vec<AnthropicSystemPart>>,
    /// Of a search: the page's address.
    url: Option<String>,
}

/// A search that failed.
#[derive(JsonSchema)]
struct AnthropicSearchError {
    /// `web_search_tool_result_error`.
    r#type: String,
    /// Why.
    error_code: String,
}

/// What is in something, or where it was found.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum AnthropicOrigin {
    Bytes(AnthropicSource),
    Place(String),
}

/// What is in an image or a document.
#[derive(JsonSchema)]
pub struct AnthropicSource {
    /// `base64`, of a document also `text` or `content`; addresses of other servers are refused.
    r#type: String,
    /// Of a document in base64: `text/plain`, or another kind of text.
    media_type: Option<String>,
    /// The bytes in base64, or the text.
    data: Option<String>,
    /// Of a `content`: text, or a list of text blocks.
    content: Option<AnthropicSystem>,
}

/// A system text, or a list of text blocks.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum AnthropicSystem {
    Text(String),
    Blocks(Vec<AnthropicSystemPart>),
}

/// A block of a system text.
#[derive(JsonSchema)]
pub struct AnthropicSystemPart {
    /// `text`.
    r#type: String,
    /// The text.
    text: String,
}

/// A text, or a list of messages, calls and their results.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum ResponsesInput {
    Text(String),
    Items(Vec<ResponsesItem>),
}

/// Something that was said, called or thought.
#[derive(JsonSchema)]
pub struct ResponsesItem {
    /// `message` (also where it is missing), `function_call`, `custom_tool_call`, `local_shell_call`, these with `_output` behind, `reasoning`, `item_reference`, or `web_search_call` and `image_generation_call`, which say nothing to the model.
    r#type: Option<String>,
    /// Of an `item_reference`: the id of an item of a response that is kept.
    id: Option<String>,
    /// Of a `message`: `system`, `developer`, `user` or `assistant`.
    role: Option<String>,
    /// Of a `message`: text or a list of parts.
    content: Option<ResponsesContent>,
    /// Of a call or its output: the call's id.
    call_id: Option<String>,
    /// Of a `function_call` or a `custom_tool_call`: the function's name.
    name: Option<String>,
    /// Of a `function_call`: the arguments as JSON text.
    arguments: Option<String>,
    /// Of a `custom_tool_call`: the text.
    input: Option<String>,
    /// Of a `local_shell_call`: `command` and what else belongs to it.
    action: Option<Map<String, Value>>,
    /// Of an output: text or a list of parts.
    output: Option<ResponsesContent>,
    /// Of a `reasoning`: the thoughts.
    summary: Option<Vec<ResponsesSummary>>,
    /// Of a `reasoning`: the thoughts, where there are none in `content` or `summary`.
    encrypted_content: Option<String>,
}

/// Text or a list of parts.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum ResponsesContent {
    Text(String),
    Parts(Vec<ResponsesPart>),
}

/// A part of a message or a result.
#[derive(JsonSchema)]
pub struct ResponsesPart {
    /// `input_text`, `output_text`, `text`, `refusal` or `input_image`; `input_file` is refused.
    r#type: String,
    /// Of a text: the text.
    text: Option<String>,
    /// Of a `refusal`: its text.
    refusal: Option<String>,
    /// Of an `input_image`: `data:image/png;base64,…`.
    image_url: Option<String>,
}

/// A part of what was thought.
#[derive(JsonSchema)]
pub struct ResponsesSummary {
    /// The text.
    text: String,
}

/// A function that the model may call, or a group of them.
#[derive(JsonSchema)]
pub struct ResponsesTool {
    /// `function`, `namespace`, `custom` or `local_shell`; `web_search`, `image_generation` and `tool_search` are left out, other tools of the service refused.
    r#type: String,
    /// The function's name, or that of the group, which comes before the names of its functions.
    name: Option<String>,
    /// What it does.
    description: Option<String>,
    /// JSON Schema of its arguments.
    parameters: Option<Map<String, Value>>,
    /// Handed to the template.
    strict: Option<bool>,
    /// Of a `custom`: the form of its text; a grammar becomes part of the description.
    format: Option<Map<String, Value>>,
    /// Of a `namespace`: its functions.
    tools: Option<Vec<ResponsesFunction>>,
}

/// A function of a group.
#[derive(JsonSchema)]
pub struct ResponsesFunction {
    /// Its name.
    name: String,
    /// What it does.
    description: Option<String>,
    /// JSON Schema of its arguments.
    parameters: Option<Map<String, Value>>,
    /// Handed to the template.
    strict: Option<bool>,
}

/// The form of a response.
#[derive(JsonSchema)]
pub struct ResponsesFormat {
    /// `text`, `json_object` or `json_schema`; not OpenAI's are `regex`, `gbnf` and `lark`.
    r#type: Option<String>,
    /// A label, repeated in the answer.
    name: Option<String>,
    /// Repeated in the answer.
    description: Option<String>,
    /// Of a `json_schema`: the schema.
    schema: Option<Map<String, Value>>,
    /// Repeated in the answer: a schema is always kept exactly.
    strict: Option<bool>,
    /// Of a `regex`: the expression (Puna's addition).
    pattern: Option<String>,
    /// Of a `gbnf` or `lark`: the grammar (Puna's addition).
    grammar: Option<String>,
}

/// A response of OpenAI's newer dialect: what came of a request, and most of the request.
#[derive(JsonSchema)]
pub struct Response {
    /// `resp_…`.
    id: String,
    /// `response`.
    object: String,
    /// When it was begun, in seconds since 1970.
    created_at: i64,
    /// When it was done.
    completed_at: Option<i64>,
    /// `completed`, `incomplete`, `failed` or `in_progress`.
    status: String,
    /// Why it is incomplete: `{"reason": "max_output_tokens"}`.
    incomplete_details: Option<Map<String, Value>>,
    /// What went wrong: `code` and `message`.
    error: Option<Map<String, Value>>,
    /// The model's name as the client wrote it.
    model: String,
    /// Thoughts (`reasoning`), messages (`message`) and calls (`function_call`, `custom_tool_call`, `local_shell_call`) in their order.
    output: Vec<ResponseItem>,
    /// Token counts.
    usage: Option<ResponseUsage>,
    /// The response that this one goes on from.
    previous_response_id: Option<String>,
    /// Whether it is kept.
    store: bool,
    /// The prompt, where it was asked for.
    #[serde(rename = "_debug_info", default, skip_serializing_if = "Option::is_none")]
    debug_info: Option<crate::native::DebugInfo>,
}

/// A part of a response.
#[derive(JsonSchema)]
pub struct ResponseItem {
    /// Its id.
    id: String,
    /// `reasoning`, `message`, `function_call`, `custom_tool_call` or `local_shell_call`.
    r#type: String,
    /// Of a `message`: parts of type `output_text`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content: Option<Vec<Value>>,
    /// Of a call: its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    call_id: Option<String>,
    /// Of a `function_call` or a `custom_tool_call`: the function's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// Of a `function_call`: arguments as JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    arguments: Option<String>,
    /// Of a `custom_tool_call`: the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    input: Option<String>,
    /// Of a `local_shell_call`: what to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    action: Option<Map<String, Value>>,
    /// Of a `reasoning`: the thoughts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    summary: Option<Vec<Value>>,
}

/// Token counts of a response.
#[derive(JsonSchema)]
pub struct ResponseUsage {
    /// Prompt tokens, those found in the cache included.
    input_tokens: u64,
    /// Generated tokens.
    output_tokens: u64,
    /// Both.
    total_tokens: u64,
    /// `cached_tokens`.
    input_tokens_details: Map<String, Value>,
    /// `reasoning_tokens`.
    output_tokens_details: Map<String, Value>,
}

/// An event of a response: besides these fields those that OpenAI documents for its type.
#[derive(JsonSchema)]
pub struct ResponseEvent {
    /// `response.created`, `response.output_text.delta`, `response.completed`, `response.failed` …
    r#type: String,
    /// Its number, from 0.
    sequence_number: u64,
}

/// An event of a message: besides its type the fields that Anthropic documents for it.
#[derive(JsonSchema)]
pub struct MessageEvent {
    /// `message_start`, `ping`, `content_block_start`, `content_block_delta`, `content_block_stop`, `message_delta`, `message_stop` or `error`.
    r#type: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{self, Shape};

    /// The fields that a schema describes, at any depth, with dots between.
    fn described<T: JsonSchema>() -> Vec<String> {
        let schema = schemars::SchemaGenerator::default().into_root_schema_for::<T>().to_value();
        let mut fields = Vec::new();
        collect(&schema, &schema, "", &mut fields);
        fields.sort();
        fields.dedup();
        fields
    }

    fn collect(schema: &Value, root: &Value, path: &str, fields: &mut Vec<String>) {
        if let Some(name) = schema["$ref"].as_str() {
            collect(&root["$defs"][name.trim_start_matches("#/$defs/")], root, path, fields);
        }
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            fields.push(format!("{path}{name}"));
            collect(field, root, &format!("{path}{name}."), fields);
        }
        for part in ["anyOf", "oneOf"]
            .into_iter()
            .flat_map(|key| schema[key].as_array())
            .flatten()
            .chain([&schema["items"]])
        {
            if !part.is_null() {
                collect(part, root, path, fields);
            }
        }
    }

    fn looked_at(shape: &Shape, path: &str, fields: &mut Vec<String>) {
        for field in shape.fields {
            fields.push(format!("{path}{field}"));
            if let Some((_, inside)) = shape.inside.iter().find(|(name, _)| name == field) {
                looked_at(inside, &format!("{path}{field}."), fields);
            }
        }
    }

    #[test]
    fn what_is_looked_at_in_loose_json_is_what_is_described() {
        let check = |described: Vec<String>, shape: &Shape| {
            let mut fields = Vec::new();
            looked_at(shape, "", &mut fields);
            fields.sort();
            assert_eq!(described, fields);
        };
        check(described::<Options>(), &shape::OPTIONS);
        check(described::<Info>(), &shape::INFO);
        check(described::<OpenAiContent>(), &shape::OPENAI_CONTENT);
        check(described::<AnthropicContent>(), &shape::ANTHROPIC_CONTENT);
        check(described::<AnthropicSystem>(), &shape::ANTHROPIC_SYSTEM);
        check(described::<ResponsesInput>(), &shape::RESPONSES_INPUT);
        check(described::<ResponsesTool>(), &shape::RESPONSES_TOOL);
        check(described::<ResponsesFormat>(), &shape::RESPONSES_FORMAT);
        let mut choices = [described::<ToolChoice>(), described::<Choice>()].concat();
        choices.sort();
        choices.dedup();
        check(choices, &shape::TOOL_CHOICE);
    }
}

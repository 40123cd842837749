//! JSON Schemas of what is read or written by hand; those of all other types are derived.
//!
//! Types without a constructor only describe JSON that is read leniently; which of its fields are looked at is said a
//! second time in `shape`, and a test holds the two together.

#![allow(dead_code, missing_docs, reason = "these types only describe JSON: nobody makes one")]

mod anthropic;
mod openai;
mod responses;

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

pub use anthropic::{
    AnthropicContent, AnthropicPart, AnthropicSource, AnthropicSystem, AnthropicSystemPart,
    MessageEvent,
};
pub use openai::{OpenAiAudio, OpenAiContent, OpenAiImage, OpenAiPart};
pub use responses::{
    Response, ResponseEvent, ResponseItem, ResponseUsage, ResponsesFormat, ResponsesFunction,
    ResponsesInput, ResponsesItem, ResponsesPart, ResponsesSummary, ResponsesTool,
};

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

/// Whether one of the tools that `allowed_tools` lists must be called.
fn allowed_mode() -> Value {
    json!({"enum": ["auto", "required"], "description": "`auto` or `required`."})
}

/// The list of `allowed_tools`, which is the same in chats and in responses.
fn allowed_tools() -> Value {
    let named = |description: &str| {
        let name = json!({"type": "string", "minLength": 1, "description": "Its name."});
        json!({"type": "object", "required": ["name"], "description": description, "properties": {"name": name}})
    };
    json!({
        "type": "array", "minItems": 1, "description": "The tools that may be called.",
        "items": {
            "type": "object", "required": ["type"],
            "properties": {
                "type": {"type": "string", "description": "`function`, `custom` or `local_shell`; `web_search`, `image_generation` and `tool_search` are ignored."},
                "function": named("The function."),
                "custom": named("The tool that takes free text."),
                "name": {"type": "string", "minLength": 1, "description": "The name, in responses."},
                "namespace": {"type": "string", "description": "The namespace that the tool is in, in responses."},
            },
        },
    })
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
            "type": {"type": "string", "description": "`function`; in chats of OpenAI's dialect also `custom`."},
            "custom": {
                "description": "In place of the function: `name`, `description` and `format` of a tool that takes free text.",
            },
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
                    "namespace": {"type": "string", "description": "The namespace that the tool is in, in responses."},
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

/// How much of an adapter there is to be.
#[derive(JsonSchema)]
pub struct AdapterDose {
    /// Its number, from 0 in the order of the model's `ADAPTER` lines as it is shown.
    id: u32,
    /// What its change is multiplied by.
    scale: f64,
}

/// Parameters of a model by their names in a Modelfile. A value that is not given is the model's own, else the default.
#[derive(JsonSchema)]
pub struct Options {
    /// Tokens of context of this request at most; without one, as many as the model has and memory has room for. Loads nothing anew.
    num_ctx: Option<f64>,
    /// Tokens of a prompt that are read in one step at most. Loads the model anew.
    num_batch: Option<f64>,
    /// Accepted; there is nothing to choose here.
    num_gpu: Option<f64>,
    /// Accepted; there is nothing to choose here.
    main_gpu: Option<f64>,
    /// Threads; 0 is automatic. Loads the model anew.
    num_thread: Option<f64>,
    /// Accepted; there is nothing to choose here.
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
    /// How much of the model's adapters there is to be, and nothing of those that are not named (Puna's addition). Without it
    /// all of them are there as they are.
    adapters: Option<Vec<AdapterDose>>,
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
    /// Steps in which a diffusion model fills its answer; unless given, or negative, one for each token (Puna's addition). Refused for
    /// other models.
    diffusion_steps: Option<f64>,
    /// Places that a diffusion model fills before it begins the next ones; 0 is the whole answer, negative the model's habit (Puna's
    /// addition). Refused for other models.
    diffusion_block_length: Option<f64>,
    /// Which places a diffusion model fills first: `confidence`, `entropy`, `margin`, `random` or `origin`; the model's habit unless
    /// given (Puna's addition). Refused for other models.
    diffusion_algorithm: Option<String>,
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

/// Lists native options among the fields of a request that takes them by name.
pub(crate) fn with_options(schema: &mut Schema) {
    let options = SchemaGenerator::default().into_root_schema_for::<Options>().to_value();
    let Some(Value::Object(fields)) = schema.get_mut("properties") else { return };
    for (name, option) in options["properties"].as_object().into_iter().flatten() {
        let mut option = option.clone();
        let about = option["description"].as_str().unwrap_or_default();
        let addition = if about.contains("Puna's addition") { "" } else { " (Puna's addition)" };
        option["description"] = format!("{}{addition}", about.trim_end_matches('.')).into();
        option[OPTION] = true.into();
        fields.entry(name).or_insert(option);
    }
}

/// What marks a field that is an option.
pub const OPTION: &str = "x-puna-option";

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

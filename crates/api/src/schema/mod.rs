//! JSON Schemas of values that are decoded or encoded by hand. Schemas of other types are derived.
//!
//! Types without a constructor only describe JSON that is decoded leniently. `json_shape` lists the
//! fields that are read; a test compares both.

#![allow(dead_code, missing_docs, reason = "these types only describe JSON and have no values")]

mod anthropic;
mod handwritten;
mod openai;
mod responses;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::Value;

pub use anthropic::{
    AnthropicContent, AnthropicPart, AnthropicSource, AnthropicSystem, AnthropicSystemPart,
    MessageEvent,
};
pub use openai::{OpenAiAudio, OpenAiContent, OpenAiImage, OpenAiPart};
pub use responses::{
    Response, ResponseEvent, ResponseItem, ResponseUsage, ResponsesFormat, ResponsesFunction,
    ResponsesInput, ResponsesItem, ResponsesPart, ResponsesSummary, ResponsesTool,
};

/// A text, or a list of texts.
pub struct Texts;

/// Texts or token ids.
pub struct TextsOrTokens;

/// Strings that end an answer.
pub struct Stop;

/// Format of an answer.
pub struct Format;

/// Scale of a LoRA adapter in a request.
#[derive(JsonSchema)]
pub struct AdapterScale {
    /// Number of the adapter, from 0, in the order of the model's `ADAPTER` lines.
    id: u32,
    /// Factor of the adapter's low-rank update.
    scale: f64,
}

/// Options of a model by Modelfile name. A missing value is the model's own, else the default.
#[derive(JsonSchema)]
pub struct Options {
    /// Context length in tokens, at least 4: a smaller one counts as 4. By default the model's,
    /// limited by memory. Does not reload the model.
    num_ctx: Option<f64>,
    /// Largest number of prompt tokens in one step. Reloads the model.
    num_batch: Option<f64>,
    /// Accepted without effect.
    num_gpu: Option<f64>,
    /// Accepted without effect.
    main_gpu: Option<f64>,
    /// Number of threads; 0: automatic. Reloads the model.
    num_thread: Option<f64>,
    /// Accepted without effect.
    use_mmap: Option<bool>,
    /// Tokens that stay when the context shifts. Default: 4; negative: the whole prompt.
    num_keep: Option<f64>,
    /// Largest number of generated tokens; negative: no limit; 0: none.
    num_predict: Option<f64>,
    /// Strings that end the answer, instead of the model's own.
    stop: Option<Vec<String>>,
    /// Seed of sampling; negative: random.
    seed: Option<f64>,
    /// Sampling temperature. Default: 0.8; 0: always the most likely token.
    temperature: Option<f64>,
    /// Number of candidates. Default: 40; 0: all.
    top_k: Option<f64>,
    /// Nucleus sampling: total probability of the candidates. Default: 0.9.
    top_p: Option<f64>,
    /// Smallest probability of a candidate, relative to the most likely one.
    min_p: Option<f64>,
    /// Locally typical sampling; 1: off.
    typical_p: Option<f64>,
    /// Number of last tokens that penalties consider. Default: 64; 0: none; -1: the whole context.
    repeat_last_n: Option<f64>,
    /// Penalty of repeated tokens, as a divisor; 1: off.
    repeat_penalty: Option<f64>,
    /// Penalty of tokens that occurred.
    presence_penalty: Option<f64>,
    /// Penalty per occurrence of a token.
    frequency_penalty: Option<f64>,
    /// Values added to the logits of tokens, by token id (Puna's addition).
    logit_bias: Option<std::collections::BTreeMap<String, f64>>,
    /// LoRA adapter scales; unnamed adapters are off. Default: all at 1 (Puna's addition).
    adapters: Option<Vec<AdapterScale>>,
    /// Name of a draft model (Puna's addition). Reloads the model.
    draft_model: Option<String>,
    /// Largest number of draft tokens; 0: no speculative decoding; negative: automatic.
    draft_num_predict: Option<f64>,
    /// Speculative decoding: `auto`, `off`, `ngram`, `always`, or a draft model (Puna's addition).
    #[schemars(with = "Option<BoolOrText>")]
    speculate: Option<Value>,
    /// The answer does not depend on other requests (Puna's addition). Reloads the model.
    deterministic: Option<bool>,
    /// Largest number of reasoning tokens; negative: no limit (Puna's addition).
    think_budget: Option<f64>,
    /// Denoising steps of a diffusion model; default: one per token (Puna's addition). Other models
    /// refuse it.
    diffusion_steps: Option<f64>,
    /// Positions per block of a diffusion model; 0: all; negative: default (Puna's addition). Other
    /// models refuse it.
    diffusion_block_length: Option<f64>,
    /// Unmasking order of a diffusion model: `confidence`, `entropy`, `margin`, `random` or
    /// `origin`; default: the model's (Puna's addition). Other models refuse it.
    diffusion_algorithm: Option<String>,
    /// Strength of the DRY penalty for repeated sequences; 0: off (Puna's addition).
    dry_multiplier: Option<f64>,
    /// Base of the DRY penalty (Puna's addition).
    dry_base: Option<f64>,
    /// Longest repeated sequence without a DRY penalty, in tokens (Puna's addition).
    dry_allowed_length: Option<f64>,
    /// Number of last tokens that DRY considers (Puna's addition).
    dry_penalty_last_n: Option<f64>,
    /// Strings that end a sequence for DRY (Puna's addition).
    dry_sequence_breakers: Option<Vec<String>>,
    /// Probability of removing the most likely candidates (XTC; Puna's addition).
    xtc_probability: Option<f64>,
    /// Probability from which XTC removes candidates (Puna's addition).
    xtc_threshold: Option<f64>,
    /// Keep logits within this many standard deviations of the largest one (Puna's addition).
    top_n_sigma: Option<f64>,
    /// Range of the entropy-dependent temperature, up and down (Puna's addition).
    dynatemp_range: Option<f64>,
    /// Exponent of the entropy-dependent temperature (Puna's addition).
    dynatemp_exponent: Option<f64>,
    /// Continue after the end token (Puna's addition).
    ignore_eos: Option<bool>,
}

/// Adds the native options to the fields of a request that accepts them by name.
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

/// Marks a field as a native option.
pub const OPTION: &str = "x-puna-option";

/// A boolean or a text.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum BoolOrText {
    Bool(bool),
    Text(String),
}

/// Values that replace properties of a model file.
#[derive(JsonSchema)]
pub struct Info {
    /// Capabilities of the model.
    capabilities: Option<Vec<String>>,
    /// Architecture.
    model_family: Option<String>,
    /// Name of the parent model.
    base_name: Option<String>,
    /// Quantization: `Q4_K_M`.
    quantization_level: Option<String>,
    /// Number of parameters as text: `134.52M`.
    parameter_size: Option<String>,
    /// Context length of the training in tokens.
    context_length: Option<u64>,
    /// Width of the embeddings.
    embedding_length: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::anthropic::Choice;
    use crate::json_shape::{self, JsonShape};
    use crate::ollama::ToolChoice;

    /// The fields of a schema at any depth, as dotted paths.
    fn schema_fields<T: JsonSchema>() -> Vec<String> {
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

    fn read_fields(shape: &JsonShape, path: &str, fields: &mut Vec<String>) {
        for field in shape.fields {
            fields.push(format!("{path}{field}"));
            if let Some((_, nested)) = shape.nested.iter().find(|(name, _)| name == field) {
                read_fields(nested, &format!("{path}{field}."), fields);
            }
        }
    }

    #[test]
    fn schemas_describe_the_fields_that_are_read() {
        let check = |schema_fields: Vec<String>, shape: &JsonShape| {
            let mut fields = Vec::new();
            read_fields(shape, "", &mut fields);
            fields.sort();
            assert_eq!(schema_fields, fields);
        };
        check(schema_fields::<Options>(), &json_shape::OPTIONS);
        check(schema_fields::<Info>(), &json_shape::INFO);
        check(schema_fields::<OpenAiContent>(), &json_shape::OPENAI_CONTENT);
        check(schema_fields::<AnthropicContent>(), &json_shape::ANTHROPIC_CONTENT);
        check(schema_fields::<AnthropicSystem>(), &json_shape::ANTHROPIC_SYSTEM);
        check(schema_fields::<ResponsesInput>(), &json_shape::RESPONSES_INPUT);
        check(schema_fields::<ResponsesTool>(), &json_shape::RESPONSES_TOOL);
        check(schema_fields::<ResponsesFormat>(), &json_shape::RESPONSES_FORMAT);
        let mut choices = [schema_fields::<ToolChoice>(), schema_fields::<Choice>()].concat();
        choices.sort();
        choices.dedup();
        check(choices, &json_shape::TOOL_CHOICE);
    }
}

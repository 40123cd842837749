//! Translates requests and responses for OpenAI-compatible servers: vLLM, SGLang, llama.cpp's
//! server and OpenAI.

mod reader;

use std::sync::OnceLock;

use puna_api::base64_encode;
use puna_api::ollama::{Image, Message, Think, ToolCall, ToolChoice};
use puna_sampler::Constraint;
use serde_json::{Value, json};

pub(super) use reader::read;

use super::adapt::adapted;
use super::conversation::{conversation, unsupported};
use super::upstream::RemoteResponse;
use crate::canonical::{
    ApiError, EmbedResult, EmbedTask, EmbedText, GenerateTask, Input, Prompt, RunOptions,
};

/// Options with the same name in OpenAI's dialect. `top_k` and the options after it are additions
/// of vLLM, SGLang and llama.cpp; other servers may refuse them.
const SAME_NAME_OPTIONS: [&str; 9] = [
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "top_k",
    "min_p",
    "typical_p",
    "ignore_eos",
];

/// Options with another name in OpenAI's dialect.
const RENAMED_OPTIONS: [&str; 4] = ["repeat_penalty", "seed", "stop", "num_predict"];

/// Whether an option is sent to OpenAI-compatible servers.
pub(crate) fn has_option(name: &str) -> bool {
    SAME_NAME_OPTIONS.contains(&name) || RENAMED_OPTIONS.contains(&name)
}

/// The conversation of a generation, adapted so that every server accepts it. It is adapted once,
/// when the first server of this dialect is asked.
pub(super) struct AdaptedChat<'a> {
    generate: &'a GenerateTask,
    adapted: OnceLock<(Vec<Message>, Vec<String>)>,
}

impl<'a> AdaptedChat<'a> {
    pub(super) fn new(generate: &'a GenerateTask) -> Self {
        Self { generate, adapted: OnceLock::new() }
    }

    /// Returns the adapted messages and the kinds of changes.
    fn get(&self) -> &(Vec<Message>, Vec<String>) {
        self.adapted.get_or_init(|| match &self.generate.input {
            Input::Chat { messages, .. } => adapted(&conversation(self.generate, None, messages)),
            Input::Prompt(_) => Default::default(),
        })
    }

    /// Returns the kinds of changes to the conversation.
    pub(super) fn kinds(&self) -> Vec<String> {
        self.get().1.clone()
    }
}

/// Returns path and body of the request for a generation.
pub(super) fn generation(
    chat: &AdaptedChat<'_>,
    model: &str,
) -> Result<(&'static str, Value), ApiError> {
    let generate = chat.generate;
    let mut body =
        json!({"model": model, "stream": true, "stream_options": {"include_usage": true}});
    set_options(&mut body, &generate.options);
    let prompt = match &generate.input {
        Input::Chat { tools, .. } => {
            let (messages, _) = chat.get();
            body["messages"] = chat_messages(messages);
            if messages
                .last()
                .is_some_and(|last| last.role == "assistant" && last.tool_calls.is_empty())
            {
                // These fields make vLLM and SGLang continue the message instead of answering it.
                body["add_generation_prompt"] = false.into();
                body["continue_final_message"] = true.into();
            }
            if !tools.is_empty() {
                body["tools"] = json!(tools);
                if generate.tool_choice != ToolChoice::Auto {
                    body["tool_choice"] = json!(generate.tool_choice);
                }
                if !generate.parallel_tool_calls {
                    body["parallel_tool_calls"] = false.into();
                }
            }
            None
        }
        Input::Prompt(prompt)
            if prompt.raw || !prompt.suffix.is_empty() || prompt.tokens.is_some() =>
        {
            body["prompt"] = match &prompt.tokens {
                Some(tokens) => json!(tokens),
                None => prompt.text.as_str().into(),
            };
            Some(prompt)
        }
        Input::Prompt(Prompt { template: Some(_), .. }) => {
            return Err(unsupported("template is not supported"));
        }
        Input::Prompt(Prompt { context: Some(_), .. }) => {
            return Err(unsupported("`context` is not supported: use /api/chat"));
        }
        Input::Prompt(prompt) => {
            let message =
                Message { images: prompt.images.clone(), ..Message::text("user", &prompt.text) };
            body["messages"] =
                chat_messages(&conversation(generate, prompt.system.as_deref(), &[message]));
            None
        }
    };
    set_response_format(&mut body, generate)?;
    if let Some(prompt) = prompt {
        if !prompt.suffix.is_empty() {
            body["suffix"] = prompt.suffix.as_str().into();
        }
        if let Some(count) = generate.logprobs {
            body["logprobs"] = count.into();
        }
        return Ok(("/completions", body));
    }
    if let Some(count) = generate.logprobs {
        (body["logprobs"], body["top_logprobs"]) = (true.into(), count.into());
    }
    set_reasoning(&mut body, generate);
    Ok(("/chat/completions", body))
}

/// Sets the reasoning effort and the variables of the chat template.
fn set_reasoning(body: &mut Value, generate: &GenerateTask) {
    let mut variables = generate.variables.clone();
    match generate.think {
        None => {}
        Some(think @ (Think::On | Think::Off)) => {
            let on = think == Think::On;
            // Templates use one of these two names for the switch.
            variables
                .extend(["enable_thinking", "thinking"].map(|name| (name.to_owned(), on.into())));
        }
        Some(level) => body["reasoning_effort"] = level.level().into(),
    }
    if !variables.is_empty() {
        body["chat_template_kwargs"] = variables.into();
    }
}

/// Adds the options that the request or the model states; the other server chooses the rest.
fn set_options(body: &mut Value, options: &RunOptions) {
    let explicit = &options.explicit_parameters;
    for name in SAME_NAME_OPTIONS.into_iter().filter(|name| explicit.contains_key(*name)) {
        body[name] = explicit[name].clone();
    }
    let is_explicit = |name: &str| explicit.contains_key(name);
    if is_explicit("repeat_penalty") {
        body["repetition_penalty"] = explicit["repeat_penalty"].clone();
    }
    if is_explicit("seed") && options.sampling.seed >= 0 {
        body["seed"] = options.sampling.seed.into();
    }
    if is_explicit("stop") {
        body["stop"] = json!(options.stop);
    }
    if options.num_predict > 0 {
        body["max_tokens"] = options.num_predict.into();
    }
}

/// Adds the response format, with the client's name and strictness. Servers require a name.
fn set_response_format(body: &mut Value, generate: &GenerateTask) -> Result<(), ApiError> {
    body["response_format"] = match &generate.format {
        None => return Ok(()),
        Some(Constraint::Json) => json!({"type": "json_object"}),
        Some(Constraint::Schema(schema)) => {
            let label = &generate.schema_label;
            let name = label.name.as_deref().unwrap_or("answer");
            let mut form = json!({"name": name, "schema": schema});
            if let Some(strict) = label.strict {
                form["strict"] = strict.into();
            }
            if let Some(description) = &label.description {
                form["description"] = description.as_str().into();
            }
            json!({"type": "json_schema", "json_schema": form})
        }
        Some(Constraint::Regex(_) | Constraint::Lark(_) | Constraint::Gbnf(_)) => {
            return Err(unsupported("only JSON and JSON Schema are supported as output formats"));
        }
    };
    Ok(())
}

/// Converts messages to OpenAI's form. A call without an id gets one, and tool results refer to
/// their calls by id.
fn chat_messages(messages: &[Message]) -> Value {
    let mut open: Vec<(String, String)> = Vec::new();
    let message = |(at, message): (usize, &Message)| {
        let mut out = json!({"role": message.role, "content": content_parts(message)});
        if !message.tool_calls.is_empty() {
            let call = |(i, call): (usize, &ToolCall)| {
                let id =
                    if call.id.is_empty() { format!("call_{at}_{i}") } else { call.id.clone() };
                let arguments = Value::Object(call.function.arguments.clone()).to_string();
                open.push((id.clone(), call.function.name.clone()));
                json!({"id": id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}})
            };
            out["tool_calls"] = message.tool_calls.iter().enumerate().map(call).collect();
        }
        if message.role == "tool" {
            let known = |(id, name): &(String, String)| match message.tool_call_id.is_empty() {
                true => message.tool_name.is_empty() || *name == message.tool_name,
                false => *id == message.tool_call_id,
            };
            let answered = open.iter().position(known).map(|at| open.remove(at).0);
            out["tool_call_id"] = answered.unwrap_or_else(|| message.tool_call_id.clone()).into();
        }
        out
    };
    messages.iter().enumerate().map(message).collect()
}

fn content_parts(message: &Message) -> Value {
    if message.images.is_empty() {
        return message.content.as_str().into();
    }
    let image = |image: &Image| {
        let bytes = image.bytes();
        let kind = match bytes {
            [0xff, 0xd8, ..] => "image/jpeg",
            [b'R', b'I', b'F', b'F', ..] => "image/webp",
            _ => "image/png",
        };
        json!({"type": "image_url", "image_url": {"url": format!("data:{kind};base64,{}", base64_encode(bytes))}})
    };
    let text = json!({"type": "text", "text": message.content});
    let text = (!message.content.is_empty()).then_some(text);
    text.into_iter().chain(message.images.iter().map(image)).collect()
}

/// Returns path and body of the request for embeddings.
pub(super) fn embedding(embed: &EmbedTask, model: &str) -> Result<(&'static str, Value), ApiError> {
    let input = |text: &EmbedText| match text {
        EmbedText::Text(text) => Value::from(text.as_str()),
        EmbedText::Tokens(tokens) => json!(tokens),
    };
    let inputs: Vec<Value> = embed.inputs.iter().map(input).collect();
    Ok(("/embeddings", json!({"model": model, "input": inputs, "encoding_format": "float"})))
}

/// Reads the response to a request for embeddings; the vectors may come in any order.
pub(super) async fn vectors(answer: RemoteResponse, count: usize) -> Result<EmbedResult, ApiError> {
    let body = answer.lines.into_json().await?;
    let mut vectors = vec![Vec::new(); count];
    for (at, one) in body["data"].as_array().into_iter().flatten().enumerate() {
        let at = one["index"].as_u64().map_or(at, |index| index as usize);
        if let (Some(place), Some(numbers)) = (vectors.get_mut(at), one["embedding"].as_array()) {
            *place = numbers.iter().map(|x| x.as_f64().unwrap_or(f64::NAN) as f32).collect();
        }
    }
    let tokens = body["usage"]["prompt_tokens"].as_u64().unwrap_or(0);
    check_vectors(EmbedResult { vectors, tokens, cut: Vec::new() })
}

/// Refuses vectors that are empty or not finite.
pub(super) fn check_vectors(embedded: EmbedResult) -> Result<EmbedResult, ApiError> {
    let is_vector = |vector: &Vec<f32>| !vector.is_empty() && vector.iter().all(|x| x.is_finite());
    match embedded.vectors.iter().all(is_vector) {
        true => Ok(embedded),
        false => {
            Err(ApiError::new(502, "the remote server sent no embedding for some of the texts"))
        }
    }
}

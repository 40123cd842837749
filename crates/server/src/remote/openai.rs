//! OpenAI's dialect as other servers speak it: vLLM, SGLang, llama.cpp's server, OpenAI itself.

mod reader;

use std::sync::OnceLock;

use puna_api::base64_encode;
use puna_api::native::{Image, Message, Think, ToolCall, ToolChoice};
use puna_sampler::Constraint;
use serde_json::{Value, json};

pub(super) use reader::read;

use super::adapt::adapted;
use super::ask::Answer;
use super::{cannot, conversation};
use crate::canonical::{
    ApiError, Embed, EmbedResult, EmbedText, Generate, Input, Prompt, RunOptions,
};

/// Options that have the same name there. `top_k` and those behind it are additions of vLLM, SGLang and llama.cpp; a server
/// that does not know them may say so.
const SAME: [&str; 9] = [
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

/// Options that it has under other names.
const RENAMED: [&str; 4] = ["repeat_penalty", "seed", "stop", "num_predict"];

/// Whether a server with this dialect is told of an option.
pub(crate) fn has_option(name: &str) -> bool {
    SAME.contains(&name) || RENAMED.contains(&name)
}

/// The conversation of a generation as every server accepts it. It is adapted when the first server of this dialect is asked,
/// and once for all of them.
pub(super) struct AdaptedChat<'a> {
    generate: &'a Generate,
    adapted: OnceLock<(Vec<Message>, Vec<String>)>,
}

impl<'a> AdaptedChat<'a> {
    pub(super) fn new(generate: &'a Generate) -> Self {
        Self { generate, adapted: OnceLock::new() }
    }

    /// The messages, and the ways in which they were changed.
    fn get(&self) -> &(Vec<Message>, Vec<String>) {
        self.adapted.get_or_init(|| match &self.generate.input {
            Input::Chat { messages, .. } => adapted(&conversation(self.generate, None, messages)),
            Input::Prompt(_) => Default::default(),
        })
    }

    /// The ways in which the conversation was changed.
    pub(super) fn kinds(&self) -> Vec<String> {
        self.get().1.clone()
    }
}

/// Path and body of a generation.
pub(super) fn generation(
    given: &AdaptedChat<'_>,
    model: &str,
) -> Result<(&'static str, Value), ApiError> {
    let generate = given.generate;
    let mut body =
        json!({"model": model, "stream": true, "stream_options": {"include_usage": true}});
    options(&mut body, &generate.options);
    let prompt = match &generate.input {
        Input::Chat { tools, .. } => {
            let (messages, _) = given.get();
            body["messages"] = chat(messages);
            if messages
                .last()
                .is_some_and(|last| last.role == "assistant" && last.tool_calls.is_empty())
            {
                // As vLLM and SGLang are asked to go on with a message instead of answering it.
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
            return Err(cannot("a template cannot be sent along"));
        }
        Input::Prompt(Prompt { context: Some(_), .. }) => {
            return Err(cannot(
                "`context` has tokens of no vocabulary that is here; use /api/chat",
            ));
        }
        Input::Prompt(prompt) => {
            let message =
                Message { images: prompt.images.clone(), ..Message::text("user", &prompt.text) };
            body["messages"] = chat(&conversation(generate, prompt.system.as_deref(), &[message]));
            None
        }
    };
    form(&mut body, generate)?;
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
    thinking(&mut body, generate);
    Ok(("/chat/completions", body))
}

/// Whether and how hard to think, and what else the template is told.
fn thinking(body: &mut Value, generate: &Generate) {
    let mut variables = generate.variables.clone();
    match generate.think {
        None => {}
        Some(think @ (Think::On | Think::Off)) => {
            let on = think == Think::On;
            // Templates call the switch one or the other.
            variables
                .extend(["enable_thinking", "thinking"].map(|name| (name.to_owned(), on.into())));
        }
        Some(level) => body["reasoning_effort"] = level.level().into(),
    }
    if !variables.is_empty() {
        body["chat_template_kwargs"] = variables.into();
    }
}

/// The options that somebody gave; all others are the other server's to choose.
fn options(body: &mut Value, options: &RunOptions) {
    let given = &options.given;
    for name in SAME.into_iter().filter(|name| given.contains_key(*name)) {
        body[name] = given[name].clone();
    }
    let is_given = |name: &str| given.contains_key(name);
    if is_given("repeat_penalty") {
        body["repetition_penalty"] = given["repeat_penalty"].clone();
    }
    if is_given("seed") && options.sampling.seed >= 0 {
        body["seed"] = options.sampling.seed.into();
    }
    if is_given("stop") {
        body["stop"] = json!(options.stop);
    }
    if options.num_predict > 0 {
        body["max_tokens"] = options.num_predict.into();
    }
}

/// The form of the answer, with name and strictness as the client gave them. Servers demand a name.
fn form(body: &mut Value, generate: &Generate) -> Result<(), ApiError> {
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
            return Err(cannot(
                "OpenAI's dialect knows JSON and JSON Schema as forms of an answer, no other",
            ));
        }
    };
    Ok(())
}

/// Messages in the form of chats. A call without a name of its own gets one, and the answers to calls are told by it.
fn chat(messages: &[Message]) -> Value {
    let mut open: Vec<(String, String)> = Vec::new();
    let message = |(at, message): (usize, &Message)| {
        let mut out = json!({"role": message.role, "content": content(message)});
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

fn content(message: &Message) -> Value {
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

/// Path and body of a request for vectors.
pub(super) fn embedding(embed: &Embed, model: &str) -> Result<(&'static str, Value), ApiError> {
    let input = |text: &EmbedText| match text {
        EmbedText::Text(text) => Value::from(text.as_str()),
        EmbedText::Tokens(tokens) => json!(tokens),
    };
    let inputs: Vec<Value> = embed.inputs.iter().map(input).collect();
    Ok(("/embeddings", json!({"model": model, "input": inputs, "encoding_format": "float"})))
}

/// Reads vectors, which may come in any order.
pub(super) async fn vectors(answer: Answer, count: usize) -> Result<EmbedResult, ApiError> {
    let body = answer.lines.whole().await?;
    let mut vectors = vec![Vec::new(); count];
    for (at, one) in body["data"].as_array().into_iter().flatten().enumerate() {
        let at = one["index"].as_u64().map_or(at, |index| index as usize);
        if let (Some(place), Some(numbers)) = (vectors.get_mut(at), one["embedding"].as_array()) {
            *place = numbers.iter().map(|x| x.as_f64().unwrap_or(f64::NAN) as f32).collect();
        }
    }
    let tokens = body["usage"]["prompt_tokens"].as_u64().unwrap_or(0);
    checked(EmbedResult { vectors, tokens, cut: Vec::new() })
}

/// Refuses vectors that are none.
pub(super) fn checked(embedded: EmbedResult) -> Result<EmbedResult, ApiError> {
    let is_vector = |vector: &Vec<f32>| !vector.is_empty() && vector.iter().all(|x| x.is_finite());
    match embedded.vectors.iter().all(is_vector) {
        true => Ok(embedded),
        false => Err(ApiError::new(502, "the remote server sent no vector for some of the texts")),
    }
}

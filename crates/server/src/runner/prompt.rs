//! Renders the conversation or the text of a task to a prompt: chooses the template, truncates, and
//! tokenizes.

use std::sync::Arc;

use puna_api::ollama::{self, Tool, ToolChoice};
use puna_prompt::{
    Adaptations, Chat, FunctionCall, Message, PromptError, Template, TemplateFormat, Think,
    ToolCall, check_results, conversation, fit, fit_turns, generate_conversation, is_marked,
    mark_untrusted, prefer_jinja, render, render_adapted, render_insert, split_at_marks,
    strip_past_reasoning, without_marks,
};
use serde_json::Value;

use super::forced;
use super::preparer::Preparer;
use super::task_handle::{TaskHandle, check_connected};
use super::templates::PLAIN_TEMPLATE;
use crate::canonical::{
    ApiError, GenerateTask, Input, Overflow, Prompt, PromptConfig, json_bytes, object_bytes,
};

/// Prompt as text, and the number of parts that were left out.
pub(super) struct PromptText {
    pub(super) prompt: String,
    /// Prompt with marks around the users' text, if that text contains control tokens and must be
    /// distinguished from the template's own text.
    pub(super) marked: Option<String>,
    pub(super) template: Option<Arc<Template>>,
    /// Whether the template is part of the request.
    pub(super) is_request_template: bool,
    /// Tools that the prompt offers.
    pub(super) tools: Vec<Value>,
    /// The last message, which the model may have to continue.
    pub(super) last: Option<Message>,
    pub(super) dropped_messages: usize,
    /// Number of tokens cut from messages that remain.
    pub(super) dropped_tokens: usize,
    /// Changes of the conversation that the template required.
    pub(super) adaptations: Adaptations,
}

/// Prompt as tokens.
pub(super) struct PromptTokens {
    pub(super) tokens: Vec<u32>,
    /// Number of tokens that were cut.
    pub(super) cut_tokens: usize,
    /// Number of tokens at the start that survive a context shift.
    pub(super) keep: usize,
}

impl PromptText {
    fn new(prompt: String, template: Option<Arc<Template>>) -> Self {
        let (marked, is_request_template, tools, last) = (None, false, Vec::new(), None);
        let adaptations = Adaptations::new();
        let (dropped_messages, dropped_tokens) = (0, 0);
        Self {
            prompt,
            marked,
            template,
            is_request_template,
            tools,
            last,
            dropped_messages,
            dropped_tokens,
            adaptations,
        }
    }
}

impl Preparer {
    pub(super) fn prompt_text(
        &self,
        handle: &TaskHandle,
        task: &GenerateTask,
    ) -> Result<PromptText, ApiError> {
        let num_ctx = task.options.num_ctx;
        match &task.input {
            Input::Chat { messages, tools } => {
                let offered =
                    if task.tool_choice == ToolChoice::None { &[] } else { tools.as_slice() };
                forced::check_tools_named(offered)?;
                self.check_text_bytes("the conversation", chat_bytes(messages, offered), num_ctx)?;
                self.chat_prompt(handle, task, messages, offered)
            }
            Input::Prompt(prompt) => self.plain_prompt(handle, task, prompt),
        }
    }

    /// Renders a conversation: the model's stored messages and the request's messages.
    fn chat_prompt(
        &self,
        handle: &TaskHandle,
        task: &GenerateTask,
        messages: &[ollama::Message],
        tools: &[Tool],
    ) -> Result<PromptText, ApiError> {
        let template = self.template(&task.model)?;
        let (stored, messages) = (prompt_messages(&task.model.messages), prompt_messages(messages));
        let mut all = conversation(task.model.system.as_deref(), &stored, &messages);
        if task.model.strip_thoughts {
            strip_past_reasoning(&mut all);
        }
        let mut tools: Vec<_> = tools.iter().map(|tool| tool.0.clone()).collect();
        let mut variables = task.variables.clone();
        let other_values = tools.iter_mut().chain(variables.values_mut());
        let controls_in =
            |text: &str| self.model.controls_in(text, handle.cancelled()).unwrap_or_default();
        mark_untrusted(&mut all, other_values, controls_in);
        // No text of users may pass unmarked.
        check_connected(handle)?;
        let rules = Some(self.templates.rules(&template));
        let chat = Chat { tools: &tools, variables, rules, ..Chat::new(&all) };
        // Ollama's dialect accepts results without their calls, because its clients drop the oldest
        // messages themselves.
        let checked = match task.overflow {
            Overflow::DropMessages => Ok(()),
            Overflow::Refuse | Overflow::DropTurns => check_results(&all),
        };
        // Errors refer to positions in the request's messages.
        let before = all.len() - messages.len();
        checked.map_err(|error| to_api_error(error.without_leading_messages(before)))?;
        self.render_fitting(handle, task, template, &chat, "")
            .map_err(|error| error.into_api(before))
    }

    /// Renders a single text.
    fn plain_prompt(
        &self,
        handle: &TaskHandle,
        task: &GenerateTask,
        prompt: &Prompt,
    ) -> Result<PromptText, ApiError> {
        if let Some(tokens) = &prompt.tokens {
            self.check_tokens(tokens)?;
            return Ok(PromptText::new(self.model.decode(tokens), None));
        }
        if prompt.raw {
            return Ok(PromptText::new(prompt.text.clone(), None));
        }
        // Not cached, because clients could push the models' own templates out of the cache.
        let own =
            prompt.template.as_deref().map(|source| Template::parse(TemplateFormat::Go, source));
        let own = own.transpose().map_err(to_api_error)?.map(Arc::new);
        let template = match &own {
            Some(own) => own.clone(),
            None if !prompt.suffix.is_empty() => self.insert_template(&task.model)?,
            None => self.template(&task.model)?,
        };
        let before = self.context_text(prompt.context.as_deref())?;
        if !prompt.suffix.is_empty() {
            let think = think(task);
            let text = render_insert(&template, &prompt.text, &prompt.suffix, think.as_ref())
                .map_err(to_api_error)?;
            return Ok(PromptText {
                is_request_template: own.is_some(),
                ..PromptText::new(before + &text, Some(template))
            });
        }
        // The context of an earlier answer already contains the stored messages.
        let stored = if prompt.context.is_some() {
            Vec::new()
        } else {
            prompt_messages(&task.model.messages)
        };
        let system = prompt.system.as_deref().or(task.model.system.as_deref());
        let messages = generate_conversation(system, &stored, &prompt.text, &[]);
        let chat = Chat { variables: task.variables.clone(), ..Chat::new(&messages) };
        if own.is_some() {
            let chat = self.template_input(task, &chat);
            let text = render(&template, &chat).map_err(to_api_error)?;
            return Ok(PromptText {
                is_request_template: true,
                ..PromptText::new(before + &text, Some(template))
            });
        }
        self.render_fitting(handle, task, template, &chat, &before).map_err(|e| e.into_api(0))
    }

    /// Returns the text of an earlier answer's tokens.
    fn context_text(&self, context: Option<&[u32]>) -> Result<String, ApiError> {
        let Some(tokens) = context else { return Ok(String::new()) };
        self.check_tokens(tokens)
            .map_err(|e| ApiError::bad_request(format!("context: {}", e.message)))?;
        Ok(self.model.decode(tokens))
    }

    /// Renders messages, and drops the oldest until they fit if the request allows that.
    fn render_fitting(
        &self,
        handle: &TaskHandle,
        task: &GenerateTask,
        template: Arc<Template>,
        chat: &Chat<'_>,
        before: &str,
    ) -> Result<PromptText, RenderError> {
        let chat = self.template_input(task, chat);
        let (prompt, dropped_messages, dropped_tokens, adaptations) =
            if task.overflow != Overflow::Refuse {
                let limit = self.context(task.options.num_ctx) as usize;
                let mut failure = None;
                let mut count = |text: &str| {
                    // Every attempt costs as much as the first, so a disconnected client ends them.
                    let text = format!("{before}{text}");
                    let tokens = self.encode(handle, task, &text, Some(&template));
                    let error =
                        |error: ApiError| PromptError::Count(failure.insert(error).message.clone());
                    Ok(tokens.map_err(error)?.len())
                };
                let fitted = match task.overflow {
                    Overflow::DropTurns => {
                        // A prompt that must be cut anyway leaves room for an answer.
                        let room = u64::try_from(task.options.num_predict).unwrap_or(u64::MAX);
                        let room = room.min(limit as u64 / 8) as usize;
                        let max = limit.saturating_sub(1);
                        fit_turns(&template, &chat, max, max - room, &mut count)
                    }
                    _ => fit(&template, &chat, limit, &mut count),
                };
                let fitted = fitted.map_err(|error| match (error, failure) {
                    (PromptError::Count(_), Some(failure)) => RenderError::Count(failure),
                    (error, _) => RenderError::Prompt(error),
                })?;
                (fitted.prompt, fitted.dropped_messages, fitted.dropped_tokens, fitted.adaptations)
            } else {
                let rendered = render_adapted(&template, &chat).map_err(RenderError::Prompt)?;
                (rendered.prompt, 0, 0, rendered.adaptations)
            };
        let (tools, last) = (chat.tools.to_vec(), chat.messages.last().cloned());
        let mut text = PromptText::new(format!("{before}{prompt}"), Some(template));
        if may_be_marked(task) && is_marked(&text.prompt) {
            let prompt = without_marks(&text.prompt);
            text.marked = Some(std::mem::replace(&mut text.prompt, prompt));
        }
        Ok(PromptText { tools, last, dropped_messages, dropped_tokens, adaptations, ..text })
    }

    fn template_input<'a>(&'a self, task: &GenerateTask, chat: &Chat<'a>) -> Chat<'a> {
        let model_info = self.model.model_info();
        Chat { think: think(task), bos: &model_info.bos, eos: &model_info.eos, ..chat.clone() }
    }

    /// Returns the template of a model: its renderer, its Go template, or the Jinja template of its
    /// file.
    fn template(&self, model: &PromptConfig) -> Result<Arc<Template>, ApiError> {
        if let Some(renderer) = &model.renderer {
            return self.parsed_template(TemplateFormat::BuiltIn, renderer);
        }
        let jinja = self.model.model_info().chat_template.as_deref();
        match (model.template.as_deref(), jinja) {
            (None, None) => self.parsed_template(TemplateFormat::Go, PLAIN_TEMPLATE),
            (Some(go), None) => self.parsed_template(TemplateFormat::Go, go),
            (None, Some(jinja)) => self.parsed_template(TemplateFormat::Jinja, jinja),
            (Some(go), Some(_)) if model.go_template == Some(true) => {
                self.parsed_template(TemplateFormat::Go, go)
            }
            (Some(_), Some(jinja)) if model.go_template == Some(false) => {
                self.parsed_template(TemplateFormat::Jinja, jinja)
            }
            (Some(go), Some(jinja)) => {
                let go = self.parsed_template(TemplateFormat::Go, go)?;
                match self.parsed_template(TemplateFormat::Jinja, jinja) {
                    Ok(jinja) if prefer_jinja(&jinja, &go) => Ok(jinja),
                    _ => Ok(go),
                }
            }
        }
    }

    /// Returns the template for fill-in-the-middle. Only a Go template supports that, even if
    /// another template renders conversations.
    fn insert_template(&self, model: &PromptConfig) -> Result<Arc<Template>, ApiError> {
        match &model.template {
            Some(go) => self.parsed_template(TemplateFormat::Go, go),
            None => self.template(model),
        }
    }

    fn parsed_template(
        &self,
        kind: TemplateFormat,
        source: &str,
    ) -> Result<Arc<Template>, ApiError> {
        self.templates.get(kind, source).map_err(to_api_error)
    }

    /// Returns the tokens of a prompt; a request may have brought its own.
    pub(super) fn prompt_tokens(
        &self,
        handle: &TaskHandle,
        text: &PromptText,
        task: &GenerateTask,
    ) -> Result<Vec<u32>, ApiError> {
        match &task.input {
            Input::Prompt(Prompt { tokens: Some(tokens), .. }) => Ok(tokens.clone()),
            _ => self.encode(
                handle,
                task,
                text.marked.as_ref().unwrap_or(&text.prompt),
                text.template.as_deref(),
            ),
        }
    }

    /// Tokenizes a text that a template wrote.
    fn encode(
        &self,
        handle: &TaskHandle,
        task: &GenerateTask,
        text: &str,
        template: Option<&Template>,
    ) -> Result<Vec<u32>, ApiError> {
        check_connected(handle)?;
        self.check_text_bytes("the prompt", text.len(), task.options.num_ctx)?;
        let parts = if may_be_marked(task) { split_at_marks(text) } else { vec![(text, true)] };
        let leading_bos = template.map_or("", Template::leading_bos);
        Ok(self.model.encode_prompt(&parts, leading_bos, handle.cancelled())?)
    }

    /// Truncates a prompt that exceeds the context in the middle, or rejects it.
    pub(super) fn truncate_tokens(
        &self,
        mut tokens: Vec<u32>,
        task: &GenerateTask,
    ) -> Result<PromptTokens, ApiError> {
        let (length, num_ctx) = (tokens.len(), self.context(task.options.num_ctx) as usize);
        let bos = usize::from(tokens.first().is_some_and(|t| self.model.is_bos(*t)));
        let keep = usize::try_from(task.options.num_keep)
            .map_or(length, |n| n.saturating_add(bos))
            .min(length);
        if length == 0 {
            return Err(ApiError::bad_request("the prompt is empty"));
        }
        if length < num_ctx {
            return Ok(PromptTokens { tokens, cut_tokens: 0, keep });
        }
        if num_ctx < 2 {
            return Err(ApiError::bad_request(
                "the context of the model has 1 token, but a prompt and its answer need at least 2: set a larger num_ctx, or use another model",
            ));
        }
        if refuses_long_prompts(task) {
            return Err(too_long_error(task, &length.to_string(), length, num_ctx));
        }
        let keep = keep.min(num_ctx.saturating_sub(2));
        let left = num_ctx - ((num_ctx - keep) / 2).max(1);
        let cut = length - left;
        tokens.drain(keep..keep + cut);
        Ok(PromptTokens { tokens, cut_tokens: cut, keep })
    }
}

/// Bytes of the texts of a conversation and its tools.
pub(super) fn chat_bytes(messages: &[ollama::Message], tools: &[Tool]) -> usize {
    let call = |call: &ollama::ToolCall| object_bytes(&call.function.arguments);
    let message = |m: &ollama::Message| {
        m.content.len() + m.thinking.len() + m.tool_calls.iter().map(call).sum::<usize>()
    };
    messages.iter().map(message).sum::<usize>()
        + tools.iter().map(|tool| json_bytes(&tool.0)).sum::<usize>()
}

/// Whether a prompt that exceeds the context is an error, whatever its tokens.
pub(super) fn refuses_long_prompts(task: &GenerateTask) -> bool {
    matches!(task.overflow, Overflow::Refuse | Overflow::DropTurns) || !task.shift
}

/// Error for a prompt of `length` tokens, which `shown` describes.
pub(super) fn too_long_error(
    task: &GenerateTask,
    shown: &str,
    length: usize,
    num_ctx: usize,
) -> ApiError {
    let lengths = Some((length as u64, num_ctx as u64));
    let message = match task.overflow {
        Overflow::Refuse | Overflow::DropTurns => {
            format!("prompt is too long: {shown} tokens, context is {num_ctx}")
        }
        Overflow::DropMessages => {
            "the prompt is longer than the context length currently available to the model; shorten the \
             prompt, adjust the context length in settings, or use a model with a longer context length"
                .into()
        }
    };
    ApiError { lengths, ..ApiError::bad_request(message) }
}

/// Whether a prompt may contain marks around the users' text. In a raw prompt, the same characters
/// are plain text.
fn may_be_marked(task: &GenerateTask) -> bool {
    matches!(task.input, Input::Chat { .. })
}

/// Returns the thinking option for the template. A thinking model thinks unless the request says
/// otherwise.
pub(super) fn think(task: &GenerateTask) -> Option<Think> {
    match task.think {
        None => task.model.thinking.then_some(Think::Switch(true)),
        Some(ollama::Think::Off) => Some(Think::Switch(false)),
        Some(ollama::Think::On) => Some(Think::Switch(true)),
        Some(level) => Some(Think::Level(level.level().to_owned())),
    }
}

fn prompt_messages(messages: &[ollama::Message]) -> Vec<Message> {
    messages.iter().map(prompt_message).collect()
}

/// Converts a message for templates, without its images.
pub(crate) fn prompt_message(message: &ollama::Message) -> Message {
    let text = |text: &String| Some(text.clone()).filter(|t| !t.is_empty());
    let call = |call: &ollama::ToolCall| ToolCall {
        id: call.id.clone(),
        function: FunctionCall {
            index: usize::try_from(call.function.index).unwrap_or(0),
            name: call.function.name.clone(),
            arguments: call.function.arguments.clone(),
        },
    };
    Message {
        thinking: text(&message.thinking),
        tool_calls: message.tool_calls.iter().map(call).collect(),
        tool_name: text(&message.tool_name),
        tool_call_id: text(&message.tool_call_id),
        ..Message::new(message.role.to_lowercase(), &message.content)
    }
}

/// Error of rendering a prompt that must fit the context.
enum RenderError {
    /// The template failed or refuses the conversation.
    Prompt(PromptError),
    /// The tokens of the prompt cannot be counted: it is too long, or the client disconnected.
    Count(ApiError),
}

impl RenderError {
    /// Converts the error. Its position does not count the first `leading` messages.
    fn into_api(self, leading: usize) -> ApiError {
        match self {
            Self::Prompt(error) => to_api_error(error.without_leading_messages(leading)),
            Self::Count(error) => error,
        }
    }
}

/// Converts the error of a template. A conversation that a template rejects is a fault of the
/// request.
fn to_api_error(error: PromptError) -> ApiError {
    ApiError::bad_request(error.to_string())
}

//! A generation request, as every dialect produces it before the model is known.

use std::collections::HashSet;

use puna_api::KeepAlive;
use puna_api::ollama::{Message, Think, Tool, ToolChoice};
use puna_sampler::Constraint;
use puna_store::Model;
use serde_json::{Map, Value};

use crate::api::openai::hosted;
use crate::api::{
    check_capability, check_completion, check_images, check_think, has, hide_old_images, model_text,
};
use crate::canonical::{ApiError, GenerateTask, Input, Overflow, RunOptions, SchemaLabel};
use crate::config::Config;
use crate::http::record_ignored_field;
use crate::models::names::Name;
use crate::options::RequestOptions;

/// A generation request. [`GenerationRequest::for_model`] converts it to a runner's task.
#[derive(Debug, Clone)]
pub(crate) struct GenerationRequest {
    /// The model's name as the client wrote it.
    pub(crate) model: String,
    /// The conversation or the prompt.
    pub(crate) input: Input,
    /// Generation options.
    pub(crate) options: RequestOptions,
    /// Whether and how much to reason.
    pub(crate) think: Option<Think>,
    /// Variables for the model's chat template.
    pub(crate) variables: Map<String, Value>,
    /// Constraint on the answer.
    pub(crate) format: Option<Constraint>,
    /// Metadata of the answer's schema.
    pub(crate) schema_label: SchemaLabel,
    /// Which tools the model may or must call.
    pub(crate) tool_choice: ToolChoice,
    /// Whether the answer may contain several parallel tool calls.
    pub(crate) parallel_tool_calls: bool,
    /// How long the model stays loaded afterwards.
    pub(crate) keep_alive: Option<KeepAlive>,
    /// How to treat a prompt that is too long.
    pub(crate) overflow: Overflow,
    /// Whether the client sets `overflow` explicitly.
    pub(crate) names_overflow: bool,
    /// Whether a context shift drops older tokens when the context is full.
    pub(crate) shift: Option<bool>,
    /// Number of alternatives to report with each token's log-probability.
    pub(crate) logprobs: Option<usize>,
    /// Number of alternatives to report with the log-probability of each prompt token.
    pub(crate) prompt_logprobs: Option<usize>,
    /// Whether to stream the arguments of tool calls.
    pub(crate) stream_calls: bool,
    /// Whether to return the rendered prompt instead of generating.
    pub(crate) render_only: bool,
    /// Separates cached prefixes further than clients do.
    pub(crate) cache_salt: Option<String>,
}

impl GenerationRequest {
    /// A request with default settings.
    pub(crate) fn new(model: String, input: Input) -> Self {
        Self {
            model,
            input,
            options: RequestOptions::default(),
            think: None,
            variables: Map::new(),
            format: None,
            schema_label: SchemaLabel::default(),
            tool_choice: ToolChoice::Auto,
            parallel_tool_calls: true,
            keep_alive: None,
            overflow: Overflow::Refuse,
            names_overflow: false,
            shift: None,
            logprobs: None,
            prompt_logprobs: None,
            stream_calls: false,
            render_only: false,
            cache_salt: None,
        }
    }

    /// A conversation of a dialect under `/v1`. A prompt that is too long is rejected unless
    /// `truncate` is true.
    pub(crate) fn chat(model: String, messages: Vec<Message>, truncate: Option<bool>) -> Self {
        let overflow = if truncate == Some(true) { Overflow::DropTurns } else { Overflow::Refuse };
        Self {
            overflow,
            names_overflow: truncate.is_some(),
            stream_calls: true,
            ..Self::new(model, Input::Chat { messages, tools: Vec::new() })
        }
    }

    /// Messages of the conversation; empty for a prompt.
    pub(crate) fn messages(&self) -> &[Message] {
        match &self.input {
            Input::Chat { messages, .. } => messages,
            Input::Prompt(_) => &[],
        }
    }

    /// Tools of the conversation; empty for a prompt.
    pub(crate) fn tools(&self) -> &[Tool] {
        match &self.input {
            Input::Chat { tools, .. } => tools,
            Input::Prompt(_) => &[],
        }
    }

    /// Sets the tools. If `choice` allows only some of them, the others are removed.
    pub(crate) fn set_tools(
        &mut self,
        offered: Vec<Tool>,
        choice: ToolChoice,
    ) -> Result<(), ApiError> {
        let (mut offered, mut choice) = (offered, choice);
        if let ToolChoice::Allowed { required, names, hosted } = choice {
            ignore_hosted(&hosted)?;
            if names.is_empty() && required {
                return Err(ApiError::bad_request(format!(
                    "tool_choice allows only hosted tools ({}), which are not supported: allow a function",
                    hosted.join(", ")
                )));
            }
            let known: HashSet<&str> = offered.iter().map(Tool::name).collect();
            if let Some(name) = names.iter().find(|name| !known.contains(name.as_str())) {
                return Err(ApiError::bad_request(format!(
                    "tool_choice allows the function {name:?}, which is not among the tools"
                )));
            }
            let names: HashSet<&str> = names.iter().map(String::as_str).collect();
            offered.retain(|tool| names.contains(tool.name()));
            choice = if required { ToolChoice::Required } else { ToolChoice::Auto };
        }
        if let Input::Chat { tools, .. } = &mut self.input {
            *tools = offered;
        }
        self.tool_choice = choice;
        Ok(())
    }

    /// Rejects prompt options that exclude each other or that the model does not support.
    pub(crate) fn check_prompt(&self, model: &Model, name: &Name) -> Result<(), ApiError> {
        let Input::Prompt(prompt) = &self.input else { return Ok(()) };
        let has_template =
            prompt.template.is_some() || prompt.system.is_some() || prompt.context.is_some();
        if prompt.raw && has_template {
            return Err(ApiError::bad_request(
                "raw mode does not support template, system, or context",
            ));
        }
        if prompt.raw && !prompt.suffix.is_empty() {
            // A raw prompt has no gap to fill.
            record_ignored_field("suffix".into());
        }
        check_completion(model, name, "generate")?;
        check_think(model, name, self.think)?;
        check_capability(model, !prompt.suffix.is_empty() && !prompt.raw, "insert")?;
        check_images(model, prompt.images.len())
    }

    /// Rejects chat options that the model does not support.
    pub(crate) fn check_chat(&self, model: &Model, name: &Name) -> Result<(), ApiError> {
        check_completion(model, name, "chat")?;
        check_think(model, name, self.think)?;
        check_capability(model, !self.tools().is_empty(), "tools")
    }

    /// Converts the request to a runner's task.
    ///
    /// # Errors
    /// Options exclude each other, or the newest turn has images that the model cannot read.
    pub(crate) fn for_model(
        self,
        model: &Model,
        options: RunOptions,
        config: &Config,
    ) -> Result<GenerateTask, ApiError> {
        check_tool_choice(&self.tool_choice, self.tools())?;
        let (mut input, mut variables) = (self.input, self.variables);
        if let Input::Chat { messages, .. } = &mut input {
            hide_old_images(model, messages)?;
        }
        let switch = take_switch(&mut variables, model);
        Ok(GenerateTask {
            model: model_text(model, config),
            input,
            options,
            think: self.think.or(switch),
            variables,
            format: self.format,
            schema_label: self.schema_label,
            tool_choice: self.tool_choice,
            parallel_tool_calls: self.parallel_tool_calls,
            overflow: self.overflow,
            shift: shift(self.shift, model),
            logprobs: self.logprobs,
            prompt_logprobs: self.prompt_logprobs,
            stream_calls: self.stream_calls,
            render_only: self.render_only,
            cache_salt: self.cache_salt.filter(|salt| !salt.is_empty()),
            cache_namespace: 0,
        })
    }
}

/// Removes hosted tools from a choice, as they are removed from the tools, and reports them as
/// ignored.
fn ignore_hosted(kinds: &[String]) -> Result<(), ApiError> {
    if let Some(kind) = kinds.iter().find(|kind| !hosted::is_ignored(kind)) {
        return Err(ApiError::bad_request(format!(
            "tool_choice allows tools of type {kind:?}, which are not supported: allow functions"
        )));
    }
    kinds.iter().for_each(|kind| record_ignored_field(format!("tool_choice.{kind}")));
    Ok(())
}

/// Removes the reasoning switch from the template variables of a reasoning model and returns it, so
/// that there is one setting. Other models keep the variable, because some clients send it to every
/// model.
fn take_switch(variables: &mut Map<String, Value>, model: &Model) -> Option<Think> {
    if !has(model, "thinking") {
        return None;
    }
    let values = ["enable_thinking", "thinking"].map(|name| {
        let value = variables.get(name)?.as_bool()?;
        variables.shift_remove(name);
        Some(value)
    });
    values.into_iter().flatten().next().map(|on| if on { Think::On } else { Think::Off })
}

/// Rejects a tool choice without a matching tool.
fn check_tool_choice(choice: &ToolChoice, tools: &[Tool]) -> Result<(), ApiError> {
    match choice {
        ToolChoice::Required if tools.is_empty() => {
            Err(ApiError::bad_request("tool_choice requires a call, but there are no tools"))
        }
        ToolChoice::Named(name) if !tools.iter().any(|tool| tool.name() == name) => {
            Err(ApiError::bad_request(format!(
                "tool_choice names the function {name:?}, which is not among the tools"
            )))
        }
        _ => Ok(()),
    }
}

/// Whether to shift the context: as requested, else if the model's family supports it.
fn shift(asked: Option<bool>, model: &Model) -> bool {
    let details = model.details();
    let cannot = |family: &str| family == "deepseek2";
    let cannot = cannot(&model.gguf_info.architecture)
        || cannot(&details.family)
        || details.families.iter().flatten().any(|family| cannot(family));
    asked.unwrap_or(!cannot)
}

#[cfg(test)]
mod tests {
    use puna_store::Store;

    use super::*;

    #[test]
    fn only_a_boolean_is_a_reasoning_switch() {
        let folder = tempfile::tempdir().unwrap();
        let model = Store::open(folder.path()).unwrap().resolve(&"cria".parse().unwrap()).unwrap();
        let mut variables = Map::from_iter([("thinking".to_owned(), "high".into())]);
        assert_eq!((take_switch(&mut variables, &model), variables.len()), (None, 1));
        variables.insert("enable_thinking".into(), false.into());
        assert_eq!((take_switch(&mut variables, &model), variables.len()), (Some(Think::Off), 1));
    }

    #[test]
    fn context_shift_is_as_requested_or_as_the_family_supports() {
        let folder = tempfile::tempdir().unwrap();
        let model = Store::open(folder.path()).unwrap().resolve(&"cria".parse().unwrap()).unwrap();
        let of = |family: &str, families: Option<&[&str]>| {
            let mut model = model.clone();
            model.config.model_family = family.into();
            let families = families.map(|all| all.iter().map(|name| (*name).to_owned()).collect());
            model.config.model_families = families;
            model
        };
        for (model, unset) in [
            (model.clone(), true),
            (of("deepseek2", None), false),
            (of("llama", Some(&["llama", "deepseek2"])), false),
            (of("deepseek3", Some(&["deepseek3"])), true),
        ] {
            let family = model.details();
            assert_eq!(shift(None, &model), unset, "{family:?}");
            assert!(shift(Some(true), &model) && !shift(Some(false), &model), "{family:?}");
        }
    }
}

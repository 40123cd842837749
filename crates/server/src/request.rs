//! A request for a generation, as every dialect writes it before its model is known.

use std::collections::HashSet;

use puna_api::KeepAlive;
use puna_api::native::{Message, Think, Tool, ToolChoice};
use puna_sampler::Constraint;
use puna_store::Model;
use serde_json::{Map, Value};

use crate::canonical::{Failure, Generate, Input, Overflow, RunOptions, SchemaLabel};
use crate::config::Config;
use crate::dialect::openai::hosted;
use crate::dialect::{
    check_capability, check_completion, check_images, check_think, has, hide_old_images, model_text,
};
use crate::http::note_ignored;
use crate::names::Name;
use crate::options::RequestOptions;

/// What a client asks to be generated. [`GenerationRequest::for_model`] makes a runner's task of it.
#[derive(Debug, Clone)]
pub(crate) struct GenerationRequest {
    /// The model's name as the client wrote it.
    pub(crate) model: String,
    /// The conversation or the prompt.
    pub(crate) input: Input,
    /// Generation options.
    pub(crate) options: RequestOptions,
    /// Whether and how hard to think.
    pub(crate) think: Option<Think>,
    /// Variables for the model's template.
    pub(crate) variables: Map<String, Value>,
    /// The form of the answer.
    pub(crate) format: Option<Constraint>,
    /// What the client says about its schema besides the schema.
    pub(crate) schema_label: SchemaLabel,
    /// Which tools may or must be called.
    pub(crate) tool_choice: ToolChoice,
    /// Whether several tools may be called at once.
    pub(crate) parallel_tool_calls: bool,
    /// How long the model stays in memory afterwards.
    pub(crate) keep_alive: Option<KeepAlive>,
    /// What happens to a prompt that is too long.
    pub(crate) overflow: Overflow,
    /// Whether the client said what happens to a prompt that is too long.
    pub(crate) names_overflow: bool,
    /// Whether older tokens make room when the context is full.
    pub(crate) shift: Option<bool>,
    /// Alternatives to report with each token's log-probability.
    pub(crate) logprobs: Option<usize>,
    /// The same for the tokens of the prompt.
    pub(crate) prompt_logprobs: Option<usize>,
    /// Whether tool calls are sent while their arguments are generated.
    pub(crate) stream_calls: bool,
    /// Whether the rendered prompt is the answer.
    pub(crate) render_only: bool,
}

impl GenerationRequest {
    /// A request that leaves everything but the input to the model.
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
        }
    }

    /// A conversation of one of the dialects under `/v1`. A prompt that is too long is refused unless `truncate` allows to
    /// cut it.
    pub(crate) fn chat(model: String, messages: Vec<Message>, truncate: Option<bool>) -> Self {
        let overflow = if truncate == Some(true) { Overflow::DropTurns } else { Overflow::Refuse };
        Self {
            overflow,
            names_overflow: truncate.is_some(),
            stream_calls: true,
            ..Self::new(model, Input::Chat { messages, tools: Vec::new() })
        }
    }

    /// The messages of a conversation; none of a prompt.
    pub(crate) fn messages(&self) -> &[Message] {
        match &self.input {
            Input::Chat { messages, .. } => messages,
            Input::Prompt(_) => &[],
        }
    }

    /// The tools of a conversation; none of a prompt.
    pub(crate) fn tools(&self) -> &[Tool] {
        match &self.input {
            Input::Chat { tools, .. } => tools,
            Input::Prompt(_) => &[],
        }
    }

    /// Offers tools. A choice among some of them leaves the others out.
    pub(crate) fn set_tools(
        &mut self,
        offered: Vec<Tool>,
        choice: ToolChoice,
    ) -> Result<(), Failure> {
        let (mut offered, mut choice) = (offered, choice);
        if let ToolChoice::Allowed { required, names, hosted } = choice {
            ignore_hosted(&hosted)?;
            if names.is_empty() && required {
                return Err(Failure::bad_request(format!(
                    "tool_choice allows only tools of other services ({}), which are not offered here: allow a function",
                    hosted.join(", ")
                )));
            }
            let known: HashSet<&str> = offered.iter().map(Tool::name).collect();
            if let Some(name) = names.iter().find(|name| !known.contains(name.as_str())) {
                return Err(Failure::bad_request(format!(
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

    /// Refuses what the request of a prompt may not combine, or its model cannot do.
    pub(crate) fn check_prompt(&self, model: &Model, name: &Name) -> Result<(), Failure> {
        let Input::Prompt(prompt) = &self.input else { return Ok(()) };
        let has_template =
            prompt.template.is_some() || prompt.system.is_some() || prompt.context.is_some();
        if prompt.raw && has_template {
            return Err(Failure::bad_request(
                "raw mode does not support template, system, or context",
            ));
        }
        if prompt.raw && !prompt.suffix.is_empty() {
            // As it stands, a prompt has no gap to fill.
            note_ignored("suffix".into());
        }
        check_completion(model, name, "generate")?;
        check_think(model, name, self.think)?;
        check_capability(model, !prompt.suffix.is_empty() && !prompt.raw, "insert")?;
        check_images(model, prompt.images.len())
    }

    /// Refuses what the model of a chat cannot do.
    pub(crate) fn check_chat(&self, model: &Model, name: &Name) -> Result<(), Failure> {
        check_completion(model, name, "chat")?;
        check_think(model, name, self.think)?;
        check_capability(model, !self.tools().is_empty(), "tools")
    }

    /// The runner's task.
    ///
    /// # Errors
    /// The request combines what cannot be combined, or its newest turn has images that the model cannot see.
    pub(crate) fn for_model(
        self,
        model: &Model,
        options: RunOptions,
        config: &Config,
    ) -> Result<Generate, Failure> {
        check_tool_choice(&self.tool_choice, self.tools())?;
        let (mut input, mut variables) = (self.input, self.variables);
        if let Input::Chat { messages, .. } = &mut input {
            hide_old_images(model, messages)?;
        }
        let switch = take_switch(&mut variables, model);
        Ok(Generate {
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
        })
    }
}

/// Leaves tools of other services out of a choice, as they are left out of the tools, and names them in the answer's header.
fn ignore_hosted(kinds: &[String]) -> Result<(), Failure> {
    if let Some(kind) = kinds.iter().find(|kind| !hosted::is_ignored(kind)) {
        return Err(Failure::bad_request(format!(
            "tool_choice allows tools of type {kind:?}, which are not supported: allow functions"
        )));
    }
    kinds.iter().for_each(|kind| note_ignored(format!("tool_choice.{kind}")));
    Ok(())
}

/// Takes the switch for thinking out of the variables of a template, where the model can think, so that there is one answer to
/// the question. Models that cannot think are left the variable, since some clients send it to every model.
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

/// Refuses a call that cannot be made.
fn check_tool_choice(choice: &ToolChoice, tools: &[Tool]) -> Result<(), Failure> {
    match choice {
        ToolChoice::Required if tools.is_empty() => {
            Err(Failure::bad_request("tool_choice requires a call, but there are no tools"))
        }
        ToolChoice::Named(name) if !tools.iter().any(|tool| tool.name() == name) => {
            Err(Failure::bad_request(format!(
                "tool_choice names the function {name:?}, which is not among the tools"
            )))
        }
        _ => Ok(()),
    }
}

/// Whether older tokens make room: as asked, else as the model's family can.
fn shift(asked: Option<bool>, model: &Model) -> bool {
    let details = model.details();
    let cannot = |family: &str| family == "deepseek2";
    let cannot = cannot(&model.facts.architecture)
        || cannot(&details.family)
        || details.families.iter().flatten().any(|family| cannot(family));
    asked.unwrap_or(!cannot)
}

#[cfg(test)]
mod tests {
    use puna_store::Store;

    use super::*;

    #[test]
    fn only_a_boolean_is_a_switch_for_thinking() {
        let folder = tempfile::tempdir().unwrap();
        let model = Store::open(folder.path()).unwrap().resolve(&"cria".parse().unwrap()).unwrap();
        let mut variables = Map::from_iter([("thinking".to_owned(), "high".into())]);
        assert_eq!((take_switch(&mut variables, &model), variables.len()), (None, 1));
        variables.insert("enable_thinking".into(), false.into());
        assert_eq!((take_switch(&mut variables, &model), variables.len()), (Some(Think::Off), 1));
    }

    #[test]
    fn older_tokens_make_room_as_asked_or_as_the_family_can() {
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

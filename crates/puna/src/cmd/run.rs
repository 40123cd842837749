//! `puna run`: one answer, or an interactive session.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use puna_api::KeepAlive;
use puna_api::ollama::{
    ChatRequest, CreateRequest, EmbedRequest, GenerateRequest, Metrics, ShowRequest, ShowResponse,
    Think,
};
use puna_server::speculate::SpeculateSetting;
use puna_store::{ModelRef, StoreError, Weights, parse_parameter};
use serde_json::{Map, Value};

use super::copy_remove_stop::is_not_found;
use super::transfer::fetch;
use super::{list, show};
use crate::chat::{
    AnswerPrinter, Backend, BackendError, ChatEvent, Interrupt, Options, Screen, take_attachments,
    warn_truncated, write_stats,
};
use crate::cli::RunArgs;
use crate::local::is_path;
use crate::service::{Service, draft_name};
use crate::{out, usage};

pub fn run(args: &RunArgs) -> Result<()> {
    let think = args.think.as_deref().map(parse_think).transpose()?;
    let keep_alive = args.keepalive.as_deref().map(puna_api::parse_duration).transpose();
    let keep_alive =
        keep_alive.map_err(|error| usage::error(error.to_string()))?.map(KeepAlive::from_nanos);
    let format = args.format.as_deref().map(parse_format).transpose()?;
    let piped = piped_input()?;
    let interactive = piped.is_none() && args.prompt.is_empty() && std::io::stdout().is_terminal();
    let words = args.prompt.join(" ");
    let prompt = [piped.unwrap_or_default(), words]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ");

    let path = Path::new(&args.model);
    let draft = args
        .speculate
        .as_deref()
        .filter(|how| matches!(SpeculateSetting::parse(how), SpeculateSetting::Model(_)));
    let parameters = parameters(args, draft)?;
    let (service, model) = match (is_path(&args.model), draft) {
        (true, draft) => {
            Service::for_file(path, draft.map(draft_file).transpose()?.flatten().as_deref())?
        }
        (false, Some(draft)) if is_path(draft) => bail!(
            "--speculate {draft}: a stored model needs a stored draft model; store it with `puna create`, or use DRAFT {draft} in a Modelfile"
        ),
        (false, _) => (Service::connect_or_start()?, args.model.clone()),
    };
    let info = show_or_pull(&service, &model, args.insecure)?;
    let can = |capability: &str| info.capabilities.iter().any(|c| c == capability);
    // A remote model may report every capability.
    if can("embedding") && !can("completion") {
        return embed(&service, &model, &prompt, args, keep_alive);
    }
    if can("image") {
        bail!("image generation models are not currently supported");
    }
    let interrupt = Interrupt::at_ctrl_c(service.runtime().handle());
    if interactive {
        let config = puna_server::Config::from_env()?;
        let options = Options {
            model,
            think,
            hide_thinking: args.hidethinking,
            format,
            keep_alive,
            word_wrap: !args.nowordwrap,
            verbose: args.verbose,
            history_file: crate::env::home().map(|home| home.join(".ollama").join("history")),
            save_history: !config.no_history,
            editor: config.editor,
            parameters,
        };
        return crate::chat::run(options, &mut HttpBackend { service: &service }, &interrupt);
    }
    let think = think.or_else(|| can("thinking").then_some(Think::On));
    let options = Some(parameters).filter(|parameters| !parameters.is_empty());
    let request = GenerateRequest {
        model,
        prompt,
        format,
        keep_alive,
        think,
        options,
        ..GenerateRequest::default()
    };
    answer_once(&service, request, can("vision") || can("audio"), args, &interrupt)
}

/// File of a draft model for a model given as a file; `None` for the embedded model, which every
/// store has.
fn draft_file(draft: &str) -> Result<Option<PathBuf>> {
    if is_path(draft) {
        return Ok(Some(PathBuf::from(draft)));
    }
    let store = crate::env::store()?;
    let found = ModelRef::parse(draft)
        .map_err(StoreError::from)
        .and_then(|model| store.resolve_for(&model.name, model.runner.as_deref()));
    let unknown = || {
        format!(
            "--speculate {draft}: use one of {}, or the name of a draft model",
            SpeculateSetting::MODES
        )
    };
    match found.with_context(unknown)?.weights {
        Weights::File(path) => Ok(Some(path)),
        Weights::Embedded => Ok(None),
        Weights::Remote => {
            bail!("--speculate {draft}: a remote model cannot be a draft model")
        }
    }
}

/// Model options of the command line. A draft model is combined with the speculation setting, if
/// that is given.
fn parameters(args: &RunArgs, draft: Option<&str>) -> Result<Map<String, Value>> {
    let mut parameters = named_parameters(&args.parameter)?;
    let Some(how) = args.speculate.as_deref() else { return Ok(parameters) };
    let how = match draft.map(Path::new) {
        // In the temporary store of a single file, the draft model has its own name.
        Some(file) if is_path(&args.model) => match draft_file(how)? {
            Some(_) => draft_name(Path::new(&args.model), file).to_string(),
            None => how.to_owned(),
        },
        _ => how.to_owned(),
    };
    let option = match draft {
        Some(_) if parameters.contains_key("speculate") => "draft_model",
        _ => "speculate",
    };
    parameters.insert(option.to_owned(), Value::from(how));
    Ok(parameters)
}

/// Options of `--parameter NAME=VALUE`. Values of one name are parsed together, as in a Modelfile.
fn named_parameters(given: &[String]) -> Result<Map<String, Value>> {
    let mut values: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for text in given {
        let (name, value) = text.split_once('=').ok_or_else(|| {
            usage::error(format!("--parameter {text:?} must be NAME=VALUE, such as temperature=0"))
        })?;
        values.entry(name.trim()).or_default().push(value);
    }
    let mut parameters = Map::new();
    for (name, values) in values {
        match parse_parameter(name, &values) {
            Ok(Some(value)) => {
                parameters.insert(name.to_owned(), value);
            }
            Ok(None) => out::note(format_args!("warning: parameter {name} is deprecated")),
            Err(error) => return Err(usage::error(format!("--parameter {name}: {error}"))),
        }
    }
    Ok(parameters)
}

/// Input from a pipe or file; `None` if standard input is a terminal or empty.
fn piped_input() -> Result<Option<String>> {
    let mut stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    stdin.read_to_end(&mut bytes).context("cannot read standard input")?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(Some(text).filter(|text| !text.is_empty()))
}

fn parse_think(value: &str) -> Result<Think> {
    Ok(match value {
        "true" => Think::On,
        "false" => Think::Off,
        "high" => Think::High,
        "medium" => Think::Medium,
        "low" => Think::Low,
        "max" => Think::Max,
        _ => {
            let known = "must be true, false, high, medium, low, or max";
            return Err(usage::error(format!("invalid value for --think: {value:?} ({known})")));
        }
    })
}

fn parse_format(value: &str) -> Result<Value> {
    if value == "json" {
        return Ok(Value::from(value));
    }
    let schema = serde_json::from_str::<Value>(value).ok().filter(Value::is_object);
    schema.ok_or_else(|| {
        usage::error(format!("--format must be json or a JSON schema, not {value:?}"))
    })
}

/// Details of a model; a model that is not stored is pulled first.
fn show_or_pull(service: &Service, model: &str, insecure: bool) -> Result<ShowResponse> {
    let request = ShowRequest { model: model.to_owned(), ..ShowRequest::default() };
    let missing = match service.wait(service.client().show(&request)) {
        Err(error) if is_not_found(&error) => error,
        other => return other,
    };
    match fetch(service, model, insecure) {
        Ok(()) => service.wait(service.client().show(&request)),
        Err(error) => Err(missing.context(error.to_string())),
    }
}

fn embed(
    service: &Service,
    model: &str,
    prompt: &str,
    args: &RunArgs,
    keep_alive: Option<KeepAlive>,
) -> Result<()> {
    if prompt.is_empty() {
        bail!(
            "embedding models require input text. Usage: puna run {} \"your text here\"",
            args.model
        );
    }
    let request = EmbedRequest {
        model: model.to_owned(),
        input: Value::from(prompt),
        truncate: args.truncate,
        dimensions: args.dimensions.unwrap_or(0),
        keep_alive,
        ..EmbedRequest::default()
    };
    let answer = service.wait(service.client().embed(&request))?;
    match answer.embeddings.first() {
        Some(vector) => out::json(vector),
        None => bail!("no embeddings returned"),
    }
}

/// Streams one answer to standard output. Without a prompt, the model is only loaded.
fn answer_once(
    service: &Service,
    mut request: GenerateRequest,
    takes_files: bool,
    args: &RunArgs,
    interrupt: &Interrupt,
) -> Result<()> {
    let mut screen = Screen::terminal();
    if takes_files {
        let attached = take_attachments(&request.prompt, &mut screen.err)?;
        (request.prompt, request.images) = (attached.text, attached.images);
    }
    let on_terminal = std::io::stdout().is_terminal();
    let has_prompt = !request.prompt.is_empty();
    let mut printer = AnswerPrinter::new(on_terminal, args.hidethinking);
    let mut metrics = Metrics::default();
    let mut spinner = screen.spinner();
    let mut has_begun = false;
    let outcome: Result<()> = service.runtime().block_on(async {
        let mut lines = tokio::select! {
            lines = service.client().generate(&request) => lines?,
            () = interrupt.raised() => return Ok(()),
        };
        loop {
            let line = tokio::select! {
                line = lines.next() => line,
                // Dropping the stream cancels the request.
                () = interrupt.raised() => return Ok(()),
            };
            let Some(line) = line.transpose()? else { return Ok(()) };
            let columns = screen.columns().filter(|_| on_terminal && !args.nowordwrap);
            let thought = ChatEvent::Thinking(line.thinking);
            for event in [thought, ChatEvent::Content(line.response)] {
                if printer.shows(&event) {
                    spinner.stop();
                    has_begun = true;
                }
                printer.event(&event, columns, &mut screen.out).context(out::WRITE_ERROR)?;
            }
            if line.done {
                metrics = line.metrics;
            }
        }
    });
    spinner.stop();
    printer.break_off(&mut screen.out).context(out::WRITE_ERROR)?;
    let end: &[u8] = match &outcome {
        // The error stands on a line of its own.
        Err(_) if has_begun => b"\n",
        Ok(()) if has_prompt => b"\n\n",
        _ => b"",
    };
    let ended = screen.out.write_all(end).and_then(|()| screen.out.flush());
    outcome?;
    ended.context(out::WRITE_ERROR)?;
    let remedy = "OLLAMA_CONTEXT_LENGTH of `puna serve`, or `PARAMETER num_ctx` in a Modelfile";
    warn_truncated(&metrics, remedy, &mut screen.err)?;
    if args.verbose {
        write_stats(&metrics, &mut screen.err)?;
    }
    Ok(())
}

/// Implements the session's [`Backend`] over HTTP.
struct HttpBackend<'a> {
    service: &'a Service,
}

impl Backend for HttpBackend<'_> {
    fn chat(
        &mut self,
        request: ChatRequest,
        interrupt: &Interrupt,
        on_event: &mut dyn FnMut(ChatEvent) -> ControlFlow<()>,
    ) -> Result<(), BackendError> {
        self.service.runtime().block_on(async {
            let mut lines = tokio::select! {
                lines = self.service.client().chat(&request) => lines?,
                () = interrupt.raised() => return Err(BackendError::Interrupted),
            };
            loop {
                let line = tokio::select! {
                    line = lines.next() => line,
                    () = interrupt.raised() => return Err(BackendError::Interrupted),
                };
                let Some(line) = line.transpose()? else { return Ok(()) };
                let mut events = vec![
                    ChatEvent::Thinking(line.message.thinking),
                    ChatEvent::Content(line.message.content),
                ];
                events.extend(line.message.tool_calls.into_iter().map(ChatEvent::ToolCall));
                if line.done {
                    events.push(ChatEvent::Done(line.metrics));
                }
                for event in events {
                    if on_event(event).is_break() {
                        return Ok(());
                    }
                }
            }
        })
    }

    fn load(
        &mut self,
        model: &str,
        think: Option<Think>,
        interrupt: &Interrupt,
    ) -> Result<(), BackendError> {
        let request = GenerateRequest {
            model: model.to_owned(),
            think,
            stream: Some(false),
            ..GenerateRequest::default()
        };
        self.service.runtime().block_on(async {
            let load = async {
                Ok(self.service.client().generate(&request).await?.last().await.map(drop)?)
            };
            tokio::select! {
                loaded = load => loaded,
                () = interrupt.raised() => Err(BackendError::Interrupted),
            }
        })
    }

    fn show(&mut self, request: ShowRequest) -> Result<ShowResponse, BackendError> {
        Ok(self.service.runtime().block_on(self.service.client().show(&request))?)
    }

    fn create(&mut self, request: CreateRequest) -> Result<(), BackendError> {
        self.service.runtime().block_on(async {
            Ok(self.service.client().create(&request).await?.last().await.map(drop)?)
        })
    }

    fn list_table(&mut self, prefix: Option<&str>) -> Result<String, BackendError> {
        let mut models = self.service.runtime().block_on(self.service.client().list())?;
        let prefix = prefix.unwrap_or_default().to_lowercase();
        models.models.retain(|model| model.name.to_lowercase().starts_with(&prefix));
        Ok(list::table(&models))
    }

    fn describe(&self, info: &ShowResponse) -> String {
        show::describe(info, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_checked_before_any_work() {
        assert_eq!(parse_think("max").unwrap(), Think::Max);
        let error = parse_think("hard").unwrap_err().to_string();
        assert_eq!(
            error,
            "invalid value for --think: \"hard\" (must be true, false, high, medium, low, or max)"
        );
        assert_eq!(parse_format("json").unwrap(), "json");
        assert!(parse_format(r#"{"type":"object"}"#).unwrap().is_object());
        assert!(parse_format("xml").is_err() && parse_format("[1]").is_err());
        let error = puna_api::parse_duration("5").unwrap_err().to_string();
        assert_eq!(error, "time: missing unit in duration \"5\"");
    }
}

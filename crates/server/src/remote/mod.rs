//! Models that other servers run: a name stands for a model on an OpenAI-compatible server, on another Puna or on an Ollama.
//! Such a model has no runner. Its tasks become requests to one of its hosts, and what comes back becomes the events that a
//! runner would send, so that all dialects work on top.
//!
//! - `hosts` finds where a model may be asked, and with which key;
//! - `ask` sends requests, chooses between hosts, and says what went wrong;
//! - `describe` asks servers for the sizes of their models;
//! - `lines` reads streams with bounds;
//! - `remote_error` reads their errors;
//! - `openai` and `native` translate.
//!
//! A request goes only to hosts that the configuration names (`remotes`): a manifest from a stranger must not choose where
//! prompts go. Keys stand in the configuration alone, are sent to no other host, and redirects are not followed.

mod adapt;
mod ask;
mod describe;
mod hosts;
mod lines;
mod native;
mod openai;
mod remote_error;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use puna_api::KeepAlive;
use puna_api::native::Message;
use puna_prompt::{PromptError, ROLES, check_results};
use puna_store::Model;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

pub(crate) use ask::Remotes;
pub(crate) use describe::Description;
pub(crate) use openai::has_option;

use crate::canonical::{ApiError, Event, Generate, Input, Overflow, Task};
use crate::http::body_budget::BodyReservation;
use crate::http::note_ignored;
use hosts::{Host, Protocol};

/// Events that wait for a slow client.
const WINDOW: usize = 64;

/// A model somewhere else.
pub(crate) struct Upstream {
    remotes: Arc<Remotes>,
    hosts: Vec<Host>,
    /// What it is called there.
    model: String,
    /// The servers that the request came through.
    via: Vec<String>,
    /// How long the model is to stay in memory there, if the request says so.
    keep_alive: Option<KeepAlive>,
}

impl Remotes {
    /// Where a model is; `None` for one of this server's own.
    ///
    /// # Errors
    /// The configuration allows none of its hosts, or the request came through this server before.
    pub(crate) fn upstream(
        self: &Arc<Self>,
        model: &Model,
        via: Vec<String>,
        keep_alive: Option<KeepAlive>,
    ) -> Result<Option<Upstream>, ApiError> {
        let config = &model.config;
        if config.remote_host.is_empty() {
            return Ok(None);
        }
        hosts::check_loop(&via, &model.name.to_string())?;
        let hosts = self.hosts(&config.remote_host)?;
        let (remotes, model) = (self.clone(), config.remote_model.clone());
        Ok(Some(Upstream { remotes, hosts, model, via, keep_alive }))
    }

    /// Names what a request says and a host with OpenAI's dialect will not hear, should the model have one: `fields` that
    /// are there, and options that do not `pass`.
    pub(crate) fn note_lost(
        &self,
        model: &Model,
        fields: &[(&str, bool)],
        options: &Map<String, Value>,
        pass: impl Fn(&str) -> bool,
    ) {
        let hosts = self.hosts(&model.config.remote_host).unwrap_or_default();
        if hosts.iter().all(|host| host.protocol == Protocol::Native) {
            return;
        }
        let fields = fields.iter().filter(|(_, said)| *said).map(|(field, _)| (*field).to_owned());
        let options = options.iter().filter(|(name, value)| !value.is_null() && !pass(name));
        fields.chain(options.map(|(name, _)| format!("options.{name}"))).for_each(note_ignored);
    }
}

impl Upstream {
    /// Has a task done, and holds its memory meanwhile. Dropping the receiver cancels it, there too.
    pub(crate) fn submit(
        self: &Arc<Self>,
        task: Task,
        share: Option<Arc<BodyReservation>>,
    ) -> mpsc::Receiver<Event> {
        let (to, events) = mpsc::channel(WINDOW);
        let upstream = self.clone();
        puna_tasks::spawn(async move {
            let _held = share;
            let last = tokio::select! {
                () = to.closed() => return,
                end = upstream.answer(task, &to) => end.unwrap_or_else(Event::Error),
                failure = upstream.remotes.end.wait() => Event::Error(failure),
            };
            let _ = to.send(last).await;
        });
        events
    }

    async fn answer(&self, task: Task, to: &mpsc::Sender<Event>) -> Result<Event, ApiError> {
        match task {
            Task::Generate(generate) => {
                check(&generate)?;
                let adapted = openai::AdaptedChat::new(&generate);
                let form = |protocol| match protocol {
                    Protocol::OpenAi => openai::generation(&adapted, &self.model),
                    Protocol::Native => {
                        native::generation(&generate, &self.model).map(|form| self.staying(form))
                    }
                };
                let answer = self.ask(form).await?;
                match answer.protocol {
                    Protocol::OpenAi => {
                        let kinds = adapted.kinds();
                        if !kinds.is_empty() {
                            let _ = to.send(Event::Adapted(kinds)).await;
                        }
                        openai::read(answer, &generate, to).await
                    }
                    Protocol::Native => native::read(answer, to).await,
                }
            }
            Task::Embed(embed) => {
                let form = |protocol| match protocol {
                    Protocol::OpenAi => openai::embedding(&embed, &self.model),
                    Protocol::Native => {
                        native::embedding(&embed, &self.model).map(|form| self.staying(form))
                    }
                };
                let answer = self.ask(form).await?;
                let vectors = match answer.protocol {
                    Protocol::OpenAi => openai::vectors(answer, embed.inputs.len()).await,
                    Protocol::Native => native::vectors(answer, embed.inputs.len()).await,
                };
                vectors.map(Event::Embedded)
            }
            Task::Count(_) | Task::Tokenize(_) | Task::Detokenize(_) => {
                Err(cannot("its vocabulary is not here, so tokens cannot be counted or made"))
            }
            Task::Rank(_) => Err(cannot("documents cannot be ranked by it")),
        }
    }
}

impl Upstream {
    /// Path and body of a native request, with how long the model is to stay.
    fn staying(&self, (path, mut body): (&'static str, Value)) -> (&'static str, Value) {
        if let Some(keep_alive) = self.keep_alive {
            body["keep_alive"] = json!(keep_alive);
        }
        (path, body)
    }
}

/// Names a wish for how long a model stays, where nothing is asked of the server that has it.
pub(crate) fn note_unheard(model: &Model, keep_alive: Option<KeepAlive>) {
    if keep_alive.is_some() && !model.config.remote_host.is_empty() {
        note_ignored("keep_alive".into());
    }
}

/// What a remote model cannot be asked for.
fn cannot(what: &str) -> ApiError {
    ApiError::bad_request(format!("the model is on another server: {what}"))
}

/// Refuses what needs the model at hand.
fn check(generate: &Generate) -> Result<(), ApiError> {
    match generate {
        Generate { render_only: true, .. } => Err(cannot("its prompts are rendered there")),
        Generate { prompt_logprobs: Some(_), .. } => {
            Err(cannot("prompt_logprobs cannot be asked for"))
        }
        Generate { options, .. } if options.num_predict == 0 => {
            Err(cannot("an answer of no tokens (num_predict: 0) cannot be asked for"))
        }
        _ => check_messages(generate),
    }
}

/// Refuses a message with an unknown role and a result whose call is not in the conversation, as for local models. Ollama's
/// dialect takes both: its clients leave out the oldest messages themselves.
fn check_messages(generate: &Generate) -> Result<(), ApiError> {
    let Input::Chat { messages, .. } = &generate.input else { return Ok(()) };
    if generate.overflow == Overflow::DropMessages {
        return Ok(());
    }
    let stored = &generate.model.messages;
    let all: Vec<_> = stored.iter().chain(messages).map(crate::runner::prompt_message).collect();
    let unknown =
        all.iter().enumerate().skip(stored.len()).find(|(_, m)| !ROLES.contains(&m.role.as_str()));
    let roles = unknown.map_or(Ok(()), |(index, message)| {
        let error =
            Box::new(PromptError::UnknownRole { role: message.role.chars().take(40).collect() });
        Err(PromptError::Message { index, error })
    });
    let checked = roles.and_then(|()| check_results(&all));
    // The place is that in the request.
    checked.map_err(|error| {
        ApiError::bad_request(error.without_leading_messages(stored.len()).to_string())
    })
}

/// A conversation with what the manifest says before it: stored messages, and the system message where there is none.
fn conversation(generate: &Generate, system: Option<&str>, messages: &[Message]) -> Vec<Message> {
    let mut all: Vec<Message> = generate.model.messages.iter().chain(messages).cloned().collect();
    let system = system.or(generate.model.system.as_deref()).filter(|text| !text.is_empty());
    if let Some(text) = system
        && all.first().is_none_or(|first| first.role != "system")
    {
        all.insert(0, Message::text("system", text));
    }
    all
}

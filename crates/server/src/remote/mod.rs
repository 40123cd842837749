//! Remote models: a name stands for a model on an OpenAI-compatible server, another Puna or an
//! Ollama. A remote model has no runner. Its tasks become requests to one of its hosts, and the
//! responses become the events that a runner would send, so that all dialects work.
//!
//! - `hosts` finds the addresses and the keys of a model's servers;
//! - `client` sends requests, chooses between hosts, and reports errors;
//! - `describe` asks servers for the sizes of their models;
//! - `lines` reads streams with limits on length and silence;
//! - `remote_error` reads the servers' error objects;
//! - `openai` and `native` translate requests and responses.
//!
//! A request goes only to hosts that the configuration names (`remotes`): a manifest from a
//! stranger must not choose where prompts go. Keys exist only in the configuration and are sent to
//! no other host. Redirects are not followed.

mod adapt;
mod client;
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

pub(crate) use client::Remotes;
pub(crate) use describe::Description;
pub(crate) use openai::has_option;

use crate::canonical::{ApiError, Event, Generate, Input, Overflow, Task};
use crate::http::body_budget::BodyReservation;
use crate::http::note_ignored;
use hosts::{Host, Protocol};

/// Capacity, in events, of the channel to a slow client.
const EVENT_CHANNEL_CAPACITY: usize = 64;

/// A model on another server.
pub(crate) struct Upstream {
    remotes: Arc<Remotes>,
    hosts: Vec<Host>,
    /// Name of the model on the other server.
    model: String,
    /// Servers that the request has passed through, from its `Via` header.
    via: Vec<String>,
    /// How long the other server keeps the model loaded, if the request says so.
    keep_alive: Option<KeepAlive>,
}

impl Remotes {
    /// Returns the servers of a model; `None` for a local model.
    ///
    /// # Errors
    /// Fails if the configuration allows none of its hosts, or if the request has passed through
    /// this server before.
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

    /// Reports the parts of a request that an OpenAI-compatible host ignores, if the model has such
    /// a host: the `fields` that are present, and the options for which `pass` is false.
    pub(crate) fn report_ignored_fields(
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
    /// Runs a task and holds its memory reservation until it ends. Dropping the receiver cancels
    /// the task, also on the other server.
    pub(crate) fn submit(
        self: &Arc<Self>,
        task: Task,
        reservation: Option<Arc<BodyReservation>>,
    ) -> mpsc::Receiver<Event> {
        let (to, events) = mpsc::channel(EVENT_CHANNEL_CAPACITY);
        let upstream = self.clone();
        puna_tasks::spawn(async move {
            let _reservation = reservation;
            let last = tokio::select! {
                () = to.closed() => return,
                end = upstream.run_task(task, &to) => end.unwrap_or_else(Event::Error),
                failure = upstream.remotes.end.wait() => Event::Error(failure),
            };
            let _ = to.send(last).await;
        });
        events
    }

    async fn run_task(&self, task: Task, to: &mpsc::Sender<Event>) -> Result<Event, ApiError> {
        match task {
            Task::Generate(generate) => {
                check_supported(&generate)?;
                let adapted = openai::AdaptedChat::new(&generate);
                let form = |protocol| match protocol {
                    Protocol::OpenAi => openai::generation(&adapted, &self.model),
                    Protocol::Native => native::generation(&generate, &self.model)
                        .map(|form| self.with_keep_alive(form)),
                };
                let answer = self.send_request(form).await?;
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
                    Protocol::Native => native::embedding(&embed, &self.model)
                        .map(|form| self.with_keep_alive(form)),
                };
                let answer = self.send_request(form).await?;
                let vectors = match answer.protocol {
                    Protocol::OpenAi => openai::vectors(answer, embed.inputs.len()).await,
                    Protocol::Native => native::vectors(answer, embed.inputs.len()).await,
                };
                vectors.map(Event::Embedded)
            }
            Task::Count(_) | Task::Tokenize(_) | Task::Detokenize(_) => {
                Err(unsupported("its vocabulary is not here, so tokens cannot be counted or made"))
            }
            Task::Rank(_) => Err(unsupported("documents cannot be ranked by it")),
        }
    }
}

impl Upstream {
    /// Adds the request's `keep_alive` to the body of a native request.
    fn with_keep_alive(&self, (path, mut body): (&'static str, Value)) -> (&'static str, Value) {
        if let Some(keep_alive) = self.keep_alive {
            body["keep_alive"] = json!(keep_alive);
        }
        (path, body)
    }
}

/// Reports `keep_alive` as ignored for a remote model, where the request sends nothing to the
/// model's server.
pub(crate) fn report_ignored_keep_alive(model: &Model, keep_alive: Option<KeepAlive>) {
    if keep_alive.is_some() && !model.config.remote_host.is_empty() {
        note_ignored("keep_alive".into());
    }
}

/// Error for a request that a remote model cannot serve.
fn unsupported(what: &str) -> ApiError {
    ApiError::bad_request(format!("the model is on another server: {what}"))
}

/// Refuses requests that need the model's vocabulary or weights on this server.
fn check_supported(generate: &Generate) -> Result<(), ApiError> {
    match generate {
        Generate { render_only: true, .. } => Err(unsupported("its prompts are rendered there")),
        Generate { prompt_logprobs: Some(_), .. } => {
            Err(unsupported("prompt_logprobs cannot be asked for"))
        }
        Generate { options, .. } if options.num_predict == 0 => {
            Err(unsupported("an answer of no tokens (num_predict: 0) cannot be asked for"))
        }
        _ => check_messages(generate),
    }
}

/// Refuses a message with an unknown role, and a tool result without its call in the conversation,
/// as for local models. Ollama's dialect accepts both: its clients drop the oldest messages
/// themselves.
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
    // The error states the message's index in the request, without the stored messages.
    checked.map_err(|error| {
        ApiError::bad_request(error.without_leading_messages(stored.len()).to_string())
    })
}

/// Puts the messages of the manifest before the conversation: the stored messages, and the system
/// message if the conversation has none.
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

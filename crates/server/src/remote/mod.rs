//! Remote models: a name stands for a model on an OpenAI-compatible server, another Puna or an
//! Ollama. A remote model has no runner. Its tasks become requests to one of its hosts, and the
//! responses become the events that a runner would send, so that all dialects work.
//!
//! - `hosts` finds the addresses and the keys of a model's servers;
//! - `client` has the state of all servers: the HTTP client and the load of each host;
//! - `upstream` sends requests, chooses between hosts, and reports errors;
//! - `conversation` checks requests and assembles their conversations;
//! - `describe` asks servers for the sizes of their models, and `description_cache` stores them;
//! - `lines` reads streams with limits on length and silence;
//! - `remote_error` reads the servers' error objects;
//! - `openai` and `ollama` translate requests and responses.
//!
//! A request goes only to hosts that the configuration names (`remotes`): a manifest from a
//! stranger must not choose where prompts go. Keys exist only in the configuration and are sent to
//! no other host. Redirects are not followed.

mod adapt;
mod client;
mod conversation;
mod describe;
pub(crate) mod description_cache;
mod hosts;
mod lines;
mod ollama;
mod openai;
mod remote_error;
#[cfg(test)]
mod tests;
mod upstream;

use std::sync::Arc;

use puna_api::KeepAlive;
use puna_store::Model;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

pub(crate) use client::Remotes;
pub(crate) use description_cache::Description;
pub(crate) use openai::has_option;
pub(crate) use upstream::Upstream;

use crate::canonical::{ApiError, Event, Task};
use crate::http::body_budget::BodyReservation;
use crate::http::record_ignored_field;
use conversation::{check_supported, unsupported};
use hosts::Protocol;

/// Capacity, in events, of the channel to a slow client.
const EVENT_CHANNEL_CAPACITY: usize = 64;

impl Remotes {
    /// Reports the parts of a request that an OpenAI-compatible host of the model ignores: the
    /// `fields` that are present, and the options for which `pass` is false.
    pub(crate) fn report_ignored_fields(
        &self,
        model: &Model,
        fields: &[(&str, bool)],
        options: &Map<String, Value>,
        pass: impl Fn(&str) -> bool,
    ) {
        let hosts = self.hosts(&model.config.remote_host).unwrap_or_default();
        if hosts.iter().all(|host| host.protocol == Protocol::Ollama) {
            return;
        }
        let fields = fields.iter().filter(|(_, said)| *said).map(|(field, _)| (*field).to_owned());
        let options = options.iter().filter(|(name, value)| !value.is_null() && !pass(name));
        fields
            .chain(options.map(|(name, _)| format!("options.{name}")))
            .for_each(record_ignored_field);
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
                    Protocol::Ollama => ollama::generation(&generate, &self.model)
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
                    Protocol::Ollama => ollama::read(answer, to).await,
                }
            }
            Task::Embed(embed) => {
                let form = |protocol| match protocol {
                    Protocol::OpenAi => openai::embedding(&embed, &self.model),
                    Protocol::Ollama => ollama::embedding(&embed, &self.model)
                        .map(|form| self.with_keep_alive(form)),
                };
                let answer = self.send_request(form).await?;
                let vectors = match answer.protocol {
                    Protocol::OpenAi => openai::vectors(answer, embed.inputs.len()).await,
                    Protocol::Ollama => ollama::vectors(answer, embed.inputs.len()).await,
                };
                vectors.map(Event::Embedded)
            }
            Task::Count(_) | Task::Tokenize(_) | Task::Detokenize(_) => {
                Err(unsupported("tokens cannot be counted here without its vocabulary"))
            }
            Task::Rerank(_) => Err(unsupported("reranking is not supported")),
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
        record_ignored_field("keep_alive".into());
    }
}

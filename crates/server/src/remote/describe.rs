//! Sizes of remote models, from their servers: from `GET /v1/models`, and from `POST /api/show` of
//! an Ollama or a Puna.
//!
//! Responses are cached for some minutes, and a listing waits only a short time for servers that do
//! not answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::iter;
use reqwest::RequestBuilder;
use reqwest::header::ACCEPT_ENCODING;
use serde_json::{Value, json};
use tokio::time::timeout_at;

use super::client::Remotes;
use super::description_cache::{Description, ModelDescriptions};
use super::hosts::{Host, Protocol, check_loop, server_id};
use super::lines::ResponseLines;
use crate::http::{VIA_HEADER, current_via};

/// Time limit for asking all servers.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Number of servers that are asked concurrently.
const MAX_CONCURRENT_SERVERS: usize = 8;

/// Largest number of servers of one model that are asked, each if the ones before do not answer.
const MAX_HOSTS_ASKED: usize = 4;

/// Largest response in bytes.
const MAX_RESPONSE_BYTES: usize = 8 << 20;

/// Largest context, in tokens, that is accepted as valid.
const MAX_CONTEXT_TOKENS: u64 = u32::MAX as u64;

impl Remotes {
    /// Asks the servers of models for their descriptions and returns them in the same order. Each
    /// model is `remote_host` and `remote_model` of a config.
    pub(crate) async fn describe_all(
        &self,
        models: Vec<Option<(String, String)>>,
    ) -> Vec<Option<Description>> {
        let until = Instant::now() + TOTAL_TIMEOUT;
        let via = current_via();
        let allowed = |(hosts, model): (String, String)| {
            check_loop(&via, &model).ok()?;
            let hosts = self.hosts(&hosts).ok()?;
            let first: Vec<Host> =
                self.order(&hosts).into_iter().take(MAX_HOSTS_ASKED).cloned().collect();
            Some((first, model))
        };
        let targets: Vec<Option<(Vec<Host>, String)>> =
            models.into_iter().map(|model| model.and_then(&allowed)).collect();
        let first = targets.iter().flatten().filter_map(|(hosts, _)| hosts.first());
        let first: BTreeMap<&str, &Host> = first.map(|host| (host.base.as_str(), host)).collect();
        let lists =
            first.into_values().map(|host| timeout_at(until.into(), self.fetch_list(host, &via)));
        iter(lists.collect::<Vec<_>>())
            .buffer_unordered(MAX_CONCURRENT_SERVERS)
            .collect::<Vec<_>>()
            .await;
        let via = &via;
        let descriptions = targets.iter().map(|target| async move {
            let (hosts, model) = target.as_ref()?;
            timeout_at(until.into(), self.describe(hosts, model, via)).await.ok()
        });
        iter(descriptions.collect::<Vec<_>>()).buffered(MAX_CONCURRENT_SERVERS).collect().await
    }

    /// Asks the servers of one model for its description.
    pub(crate) async fn describe_one(&self, hosts: &str, model: &str) -> Description {
        let one = vec![Some((hosts.to_owned(), model.to_owned()))];
        self.describe_all(one).await.pop().flatten().unwrap_or_default()
    }

    /// Returns the description from the first server that lists models.
    async fn describe(&self, hosts: &[Host], model: &str, via: &[String]) -> Description {
        for host in hosts {
            let listed = self.fetch_list(host, via).await;
            if !listed.is_empty() {
                return self.describe_at(host, &listed, model, via).await;
            }
        }
        Description::default()
    }

    async fn describe_at(
        &self,
        host: &Host,
        listed: &ModelDescriptions,
        model: &str,
        via: &[String],
    ) -> Description {
        let listed = listed.get(model).or_else(|| listed.get(&format!("{model}:latest"))).cloned();
        let listed = listed.unwrap_or_default();
        match host.protocol {
            Protocol::OpenAi => listed,
            Protocol::Ollama => {
                let shown = self.fetch_show(host, model, via).await;
                Description {
                    n_ctx: listed.n_ctx.or(shown.n_ctx),
                    n_ctx_train: shown.n_ctx_train.or(listed.n_ctx_train),
                    n_embd: shown.n_embd.or(listed.n_embd),
                    n_params: shown.n_params.or(listed.n_params),
                    architecture: shown.architecture,
                    takes_limit: true,
                }
            }
        }
    }

    /// Returns the models that a server lists.
    async fn fetch_list(&self, host: &Host, via: &[String]) -> Arc<ModelDescriptions> {
        let address = match host.protocol {
            Protocol::OpenAi => format!("{}/models", host.base),
            Protocol::Ollama => format!("{}/v1/models", host.base),
        };
        if let Some(cached) = self.descriptions.get(&address) {
            return cached;
        }
        // Caching a failure first has this effect: if the time limit cancels this request, the next
        // listing does not wait for the server again.
        let sent_at = Instant::now();
        self.descriptions.insert(address.clone(), sent_at, None);
        let answer = match self.http() {
            Some(http) => self.fetch(host, http.get(&address), via).await,
            None => None,
        };
        self.descriptions.insert(
            address.clone(),
            sent_at,
            answer.map(|answer| parse_model_list(&answer)),
        );
        self.descriptions.get(&address).unwrap_or_default()
    }

    /// Returns the description of a model from `POST /api/show` of an Ollama or a Puna.
    async fn fetch_show(&self, host: &Host, model: &str, via: &[String]) -> Description {
        let address = format!("{}/api/show", host.base);
        let cache_key = format!("{address} {model}");
        if let Some(cached) = self.descriptions.get(&cache_key) {
            return cached.get(model).cloned().unwrap_or_default();
        }
        let sent_at = Instant::now();
        self.descriptions.insert(cache_key.clone(), sent_at, None);
        let answer = match self.http() {
            Some(http) => {
                self.fetch(host, http.post(&address).json(&json!({"model": model})), via).await
            }
            None => None,
        };
        let description = answer.map(|answer| parse_show_response(&answer));
        let cached = description
            .clone()
            .map(|description| BTreeMap::from([(model.to_owned(), description)]));
        self.descriptions.insert(cache_key, sent_at, cached);
        description.unwrap_or_default()
    }

    async fn fetch(&self, host: &Host, request: RequestBuilder, via: &[String]) -> Option<Value> {
        let via_header =
            via.iter().map(String::as_str).chain([server_id()]).collect::<Vec<_>>().join(",");
        let mut request =
            request.header(ACCEPT_ENCODING, "identity").header(VIA_HEADER, via_header);
        if let Some(key) = &host.key {
            request = request.bearer_auth(key);
        }
        let response =
            request.send().await.ok().filter(|response| response.status().is_success())?;
        serde_json::from_str(
            &ResponseLines::new(response, Some(TOTAL_TIMEOUT)).into_text(MAX_RESPONSE_BYTES).await,
        )
        .ok()
    }
}

/// Reads a response of `GET /v1/models` of Puna, vLLM, SGLang, llama.cpp or a hosted service.
fn parse_model_list(answer: &Value) -> ModelDescriptions {
    let models = answer["data"].as_array().map(Vec::as_slice).unwrap_or_default();
    let one = |model: &Value| {
        let number = |value: &Value| tokens(value);
        let meta = &model["meta"];
        let windows = [&meta["n_ctx"], &model["max_model_len"], &model["context_length"]];
        let description = Description {
            n_ctx: windows.into_iter().find_map(number),
            n_ctx_train: number(&meta["n_ctx_train"]),
            n_embd: number(&meta["n_embd"]),
            n_params: meta["n_params"].as_u64().filter(|n| *n > 0),
            ..Description::default()
        };
        Some((model["id"].as_str()?.to_owned(), description))
    };
    models.iter().filter_map(one).collect()
}

/// Reads a response of `POST /api/show`. The trained context is not the context window, which only
/// the parameter `num_ctx` states.
fn parse_show_response(answer: &Value) -> Description {
    let info = &answer["model_info"];
    let architecture = info["general.architecture"].as_str().filter(|name| !name.is_empty());
    let of_architecture =
        |key: &str| tokens(&info[format!("{}.{key}", architecture.unwrap_or_default())]);
    let parameters = answer["parameters"].as_str().unwrap_or_default();
    let limit = parameters
        .lines()
        .find_map(|line| line.trim().strip_prefix("num_ctx")?.trim().parse().ok());
    Description {
        n_ctx: limit.filter(|n| (1..=MAX_CONTEXT_TOKENS).contains(n)),
        n_ctx_train: of_architecture("context_length"),
        n_embd: of_architecture("embedding_length"),
        n_params: info["general.parameter_count"].as_u64().filter(|n| *n > 0),
        architecture: architecture.map(str::to_owned),
        takes_limit: true,
    }
}

fn tokens(value: &Value) -> Option<u64> {
    value.as_u64().filter(|n| (1..=MAX_CONTEXT_TOKENS).contains(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_lists_of_all_servers_are_parsed() {
        let answer = json!({"data": [
            {"id": "vllm", "max_model_len": 32768},
            {"id": "llama.cpp", "meta": {"n_ctx": 8192, "n_ctx_train": 131072, "n_embd": 1024, "n_params": 7}},
            {"id": "puna", "context_length": 4096, "max_model_len": 4096, "meta": {"n_ctx": 4096}},
            {"id": "service", "context_length": 200000},
            {"id": "plain"},
            {"id": "nonsense", "context_length": -1, "max_model_len": "8192", "meta": [1]},
            {"context_length": 5}, null,
        ]});
        let listed = parse_model_list(&answer);
        let windows: Vec<_> = listed.iter().map(|(id, of)| (id.as_str(), of.n_ctx)).collect();
        assert_eq!(
            windows,
            [
                ("llama.cpp", Some(8192)),
                ("nonsense", None),
                ("plain", None),
                ("puna", Some(4096)),
                ("service", Some(200_000)),
                ("vllm", Some(32768)),
            ]
        );
        assert_eq!(
            (listed["llama.cpp"].n_ctx_train, listed["llama.cpp"].n_embd),
            (Some(131_072), Some(1024))
        );
        assert!(
            super::parse_model_list(&json!([])).is_empty()
                && super::parse_model_list(&json!({"data": 5})).is_empty()
        );
    }

    #[test]
    fn the_trained_context_is_not_used_as_the_window() {
        let mut answer = json!({"parameters": "stop   \"x\"\nnum_ctx                        16384", "model_info": {
            "general.architecture": "qwen3", "qwen3.context_length": 40960, "qwen3.embedding_length": 1024,
        }});
        let description = parse_show_response(&answer);
        assert_eq!(description.architecture.as_deref(), Some("qwen3"));
        assert_eq!((description.n_ctx, description.n_ctx_train), (Some(16384), Some(40960)));
        assert_eq!(description.n_embd, Some(1024));
        answer["parameters"] = Value::Null;
        assert_eq!(parse_show_response(&answer).n_ctx, None);
        assert_eq!(
            parse_show_response(&json!({})),
            Description { takes_limit: true, ..Description::default() }
        );
    }
}

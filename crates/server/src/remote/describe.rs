//! Sizes of remote models, from their servers: from `GET /v1/models`, and from `POST /api/show` of
//! an Ollama or a Puna.
//!
//! Responses are cached for some minutes, and a listing waits only a short time for servers that do
//! not answer.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::iter;
use reqwest::RequestBuilder;
use reqwest::header::ACCEPT_ENCODING;
use serde_json::{Value, json};
use tokio::time::timeout_at;

use super::client::Remotes;
use super::hosts::{Host, Protocol, check_loop, server_id};
use super::lines::ResponseLines;
use crate::http::{VIA_HEADER, current_via};
use crate::lock::lock;

/// Time limit for asking all servers.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Lifetime of a cached response.
const CACHE_LIFETIME: Duration = Duration::from_secs(300);

/// Time before a server that did not answer is asked again.
const RETRY_DELAY: Duration = Duration::from_secs(30);

/// Number of servers that are asked concurrently.
const MAX_CONCURRENT_SERVERS: usize = 8;

/// Largest number of servers of one model that are asked, each if the ones before do not answer.
const MAX_HOSTS_ASKED: usize = 4;

/// Largest response in bytes.
const MAX_RESPONSE_BYTES: usize = 8 << 20;

/// Largest number of cached responses.
const MAX_CACHED_RESPONSES: usize = 4096;

/// Memory limit for all cached responses, in bytes.
const MAX_CACHE_BYTES: usize = 32 << 20;

/// Memory limit for one cached response, in bytes. A larger one is treated as no response.
const MAX_CACHED_RESPONSE_BYTES: usize = MAX_CACHE_BYTES / 4;

/// Largest context, in tokens, that is accepted as valid.
const MAX_CONTEXT_TOKENS: u64 = u32::MAX as u64;

/// Sizes of a model, as its server states them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Description {
    /// Context window of a request without options, in tokens.
    pub(crate) n_ctx: Option<u64>,
    /// Context that the model was trained for, in tokens.
    pub(crate) n_ctx_train: Option<u64>,
    /// Width of the hidden states.
    pub(crate) n_embd: Option<u64>,
    /// Number of parameters: elements of all tensors.
    pub(crate) n_params: Option<u64>,
    /// `general.architecture`.
    pub(crate) architecture: Option<String>,
    /// Whether the server accepts `num_ctx` in a request.
    pub(crate) takes_limit: bool,
}

/// Descriptions of a server's models by name.
type ModelDescriptions = BTreeMap<String, Description>;

/// Cached responses by the requested address; for `/api/show` the model's name is appended.
#[derive(Default)]
pub(super) struct Descriptions(Mutex<Cache>);

#[derive(Default)]
struct Cache {
    responses: HashMap<String, CachedResponse>,
    /// Memory of all responses in bytes.
    bytes: usize,
}

struct CachedResponse {
    /// When the request was sent.
    sent_at: Instant,
    until: Instant,
    bytes: usize,
    models: Arc<ModelDescriptions>,
}

impl Descriptions {
    fn get(&self, address: &str) -> Option<Arc<ModelDescriptions>> {
        let cache = lock(&self.0);
        let cached = cache.responses.get(address).filter(|cached| cached.until > Instant::now());
        cached.map(|cached| cached.models.clone())
    }

    /// Caches the response to a request sent at `sent_at`, unless the cache has one to a later
    /// request.
    fn insert(&self, address: String, sent_at: Instant, answer: Option<ModelDescriptions>) {
        let answer =
            answer.filter(|models| memory_bytes(&address, models) <= MAX_CACHED_RESPONSE_BYTES);
        let now = Instant::now();
        let until = now + if answer.is_some() { CACHE_LIFETIME } else { RETRY_DELAY };
        let models = Arc::new(answer.unwrap_or_default());
        let mut cache = lock(&self.0);
        if cache.responses.get(&address).is_some_and(|cached| cached.sent_at > sent_at) {
            return;
        }
        cache.remove(&address);
        let bytes = memory_bytes(&address, &models);
        cache.evict_for(bytes, now);
        cache.bytes += bytes;
        cache.responses.insert(address, CachedResponse { sent_at, until, bytes, models });
    }
}

impl Cache {
    fn remove(&mut self, address: &str) {
        let removed = self.responses.remove(address);
        self.bytes -= removed.map_or(0, |cached| cached.bytes);
    }

    fn has_space(&self, bytes: usize) -> bool {
        self.responses.len() < MAX_CACHED_RESPONSES && self.bytes + bytes <= MAX_CACHE_BYTES
    }

    /// Evicts responses until `bytes` more fit: first expired ones, then those that expire first.
    fn evict_for(&mut self, bytes: usize, now: Instant) {
        if self.has_space(bytes) {
            return;
        }
        self.responses.retain(|_, cached| cached.until > now);
        self.bytes = self.responses.values().map(|cached| cached.bytes).sum();
        while !self.has_space(bytes) {
            let next = self.responses.iter().min_by_key(|(_, cached)| cached.until);
            let Some(address) = next.map(|(address, _)| address.clone()) else { return };
            self.remove(&address);
        }
    }
}

/// Estimates the memory of a response in bytes.
fn memory_bytes(address: &str, models: &ModelDescriptions) -> usize {
    let texts = models
        .iter()
        .map(|(name, of)| name.len() + of.architecture.as_ref().map_or(0, String::len));
    let texts: usize = texts.sum();
    size_of::<CachedResponse>()
        + address.len()
        + texts
        + models.len() * size_of::<(String, Description)>()
}

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
            Protocol::Native => {
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
            Protocol::Native => format!("{}/v1/models", host.base),
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

    fn models(name: &str, n_ctx: u64) -> ModelDescriptions {
        ModelDescriptions::from([(
            name.to_owned(),
            Description { n_ctx: Some(n_ctx), ..Description::default() },
        )])
    }

    #[test]
    fn a_late_answer_does_not_replace_one_to_a_later_request() {
        let (descriptions, first) = (Descriptions::default(), Instant::now());
        let second = first + Duration::from_millis(1);
        descriptions.insert("a".into(), first, None);
        descriptions.insert("a".into(), second, None);
        descriptions.insert("a".into(), second, Some(models("m", 2)));
        descriptions.insert("a".into(), first, Some(models("m", 1)));
        assert_eq!(descriptions.get("a").unwrap()["m"].n_ctx, Some(2));
    }

    #[test]
    fn answers_are_limited_in_number_and_in_bytes() {
        let (descriptions, now) = (Descriptions::default(), Instant::now());
        let large = || Some(models(&"x".repeat(MAX_CACHED_RESPONSE_BYTES - 1024), 1));
        for i in 0..9 {
            descriptions.insert(i.to_string(), now, large());
            assert!(lock(&descriptions.0).bytes <= MAX_CACHE_BYTES);
        }
        assert!(descriptions.get("8").is_some() && descriptions.get("0").is_none());
        descriptions.insert("8".into(), now, Some(models("m", 1)));
        descriptions.insert(
            "huge".into(),
            now,
            Some(models(&"x".repeat(MAX_CACHED_RESPONSE_BYTES), 1)),
        );
        assert!(descriptions.get("huge").unwrap().is_empty(), "it counts as no answer");
        for i in 0..=MAX_CACHED_RESPONSES {
            descriptions.insert(format!("a{i}"), now, None);
        }
        let cache = lock(&descriptions.0);
        assert!(
            cache.responses.len() <= MAX_CACHED_RESPONSES
                && cache.responses.contains_key(&format!("a{MAX_CACHED_RESPONSES}"))
        );
        assert_eq!(cache.bytes, cache.responses.values().map(|cached| cached.bytes).sum::<usize>());
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

//! What other servers say of the sizes of their models: in `GET /v1/models`, and an Ollama or a Puna in `POST /api/show`. Answers are
//! kept for some minutes, and no listing waits long for a server that does not answer.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::iter;
use reqwest::RequestBuilder;
use reqwest::header::ACCEPT_ENCODING;
use serde_json::{Value, json};
use tokio::time::timeout_at;

use super::ask::Remotes;
use super::hosts::{Host, Protocol, check_loop, instance};
use super::lines::Lines;
use crate::http::{VIA_HEADER, current_via};
use crate::lock::lock;

/// Time for all servers together.
const TIME: Duration = Duration::from_secs(2);

/// How long an answer is kept.
const KEPT: Duration = Duration::from_secs(300);

/// How long a server that did not answer is left alone.
const RETRY: Duration = Duration::from_secs(30);

/// Servers that are asked at once.
const AT_ONCE: usize = 8;

/// Servers of one model that are asked, each if the ones before do not answer.
const HOSTS: usize = 4;

/// Bytes of an answer at most.
const MOST: usize = 8 << 20;

/// Answers that are kept.
const ANSWERS: usize = 4096;

/// Bytes of memory of all answers that are kept.
const BYTES: usize = 32 << 20;

/// Bytes of memory of one answer that is kept. A larger one counts as none.
const ANSWER_BYTES: usize = BYTES / 4;

/// The largest context that is believed.
const LARGEST: u64 = u32::MAX as u64;

/// What a server says of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Description {
    /// The context window of a request without options.
    pub(crate) n_ctx: Option<u64>,
    /// Tokens of the context that the model was trained for.
    pub(crate) n_ctx_train: Option<u64>,
    /// Width of the hidden states.
    pub(crate) n_embd: Option<u64>,
    /// Elements of all tensors.
    pub(crate) n_params: Option<u64>,
    /// `general.architecture`.
    pub(crate) architecture: Option<String>,
    /// Whether the server takes `num_ctx` of a request.
    pub(crate) takes_limit: bool,
}

/// What a server says of its models, by their names.
type Models = BTreeMap<String, Description>;

/// Descriptions by the address that was asked and the model's name there.
#[derive(Default)]
pub(super) struct Descriptions(Mutex<Cache>);

#[derive(Default)]
struct Cache {
    answers: HashMap<String, Kept>,
    /// Bytes of all answers.
    bytes: usize,
}

struct Kept {
    /// When the server was asked.
    asked: Instant,
    until: Instant,
    bytes: usize,
    models: Arc<Models>,
}

impl Descriptions {
    fn get(&self, address: &str) -> Option<Arc<Models>> {
        let cache = lock(&self.0);
        let kept = cache.answers.get(address).filter(|kept| kept.until > Instant::now());
        kept.map(|kept| kept.models.clone())
    }

    /// Keeps the answer to a request that was sent at a time, unless there is an answer to a later one.
    fn keep(&self, address: String, asked: Instant, answer: Option<Models>) {
        let answer = answer.filter(|models| size(&address, models) <= ANSWER_BYTES);
        let now = Instant::now();
        let until = now + if answer.is_some() { KEPT } else { RETRY };
        let models = Arc::new(answer.unwrap_or_default());
        let mut cache = lock(&self.0);
        if cache.answers.get(&address).is_some_and(|kept| kept.asked > asked) {
            return;
        }
        cache.remove(&address);
        let bytes = size(&address, &models);
        cache.make_room(bytes, now);
        cache.bytes += bytes;
        cache.answers.insert(address, Kept { asked, until, bytes, models });
    }
}

impl Cache {
    fn remove(&mut self, address: &str) {
        let removed = self.answers.remove(address);
        self.bytes -= removed.map_or(0, |kept| kept.bytes);
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.answers.len() < ANSWERS && self.bytes + bytes <= BYTES
    }

    /// Makes room for an answer: expired answers go first, then those that expire next.
    fn make_room(&mut self, bytes: usize, now: Instant) {
        if self.has_room(bytes) {
            return;
        }
        self.answers.retain(|_, kept| kept.until > now);
        self.bytes = self.answers.values().map(|kept| kept.bytes).sum();
        while !self.has_room(bytes) {
            let next = self.answers.iter().min_by_key(|(_, kept)| kept.until);
            let Some(address) = next.map(|(address, _)| address.clone()) else { return };
            self.remove(&address);
        }
    }
}

/// Bytes of memory that an answer takes, roughly.
fn size(address: &str, models: &Models) -> usize {
    let texts = models
        .iter()
        .map(|(name, of)| name.len() + of.architecture.as_ref().map_or(0, String::len));
    let texts: usize = texts.sum();
    size_of::<Kept>() + address.len() + texts + models.len() * size_of::<(String, Description)>()
}

impl Remotes {
    /// What the servers of models say of them, in their order: each is `remote_host` and `remote_model` of a config.
    pub(crate) async fn describe_all(
        &self,
        models: Vec<Option<(String, String)>>,
    ) -> Vec<Option<Description>> {
        let until = Instant::now() + TIME;
        let via = current_via();
        let allowed = |(hosts, model): (String, String)| {
            check_loop(&via, &model).ok()?;
            let hosts = self.hosts(&hosts).ok()?;
            let first: Vec<Host> = self.order(&hosts).into_iter().take(HOSTS).cloned().collect();
            Some((first, model))
        };
        let asked: Vec<Option<(Vec<Host>, String)>> =
            models.into_iter().map(|model| model.and_then(&allowed)).collect();
        let first = asked.iter().flatten().filter_map(|(hosts, _)| hosts.first());
        let first: BTreeMap<&str, &Host> = first.map(|host| (host.base.as_str(), host)).collect();
        let lists = first.into_values().map(|host| timeout_at(until.into(), self.list(host, &via)));
        iter(lists.collect::<Vec<_>>()).buffer_unordered(AT_ONCE).collect::<Vec<_>>().await;
        let via = &via;
        let descriptions = asked.iter().map(|asked| async move {
            let (hosts, model) = asked.as_ref()?;
            timeout_at(until.into(), self.describe(hosts, model, via)).await.ok()
        });
        iter(descriptions.collect::<Vec<_>>()).buffered(AT_ONCE).collect().await
    }

    /// What the server of one model says of it.
    pub(crate) async fn describe_one(&self, hosts: &str, model: &str) -> Description {
        let one = vec![Some((hosts.to_owned(), model.to_owned()))];
        self.describe_all(one).await.pop().flatten().unwrap_or_default()
    }

    /// What the first of some servers that lists models says of one.
    async fn describe(&self, hosts: &[Host], model: &str, via: &[String]) -> Description {
        for host in hosts {
            let listed = self.list(host, via).await;
            if !listed.is_empty() {
                return self.describe_at(host, &listed, model, via).await;
            }
        }
        Description::default()
    }

    async fn describe_at(
        &self,
        host: &Host,
        listed: &Models,
        model: &str,
        via: &[String],
    ) -> Description {
        let listed = listed.get(model).or_else(|| listed.get(&format!("{model}:latest"))).cloned();
        let listed = listed.unwrap_or_default();
        match host.protocol {
            Protocol::OpenAi => listed,
            Protocol::Native => {
                let shown = self.shown(host, model, via).await;
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

    /// The models that a server lists.
    async fn list(&self, host: &Host, via: &[String]) -> Arc<Models> {
        let address = match host.protocol {
            Protocol::OpenAi => format!("{}/models", host.base),
            Protocol::Native => format!("{}/v1/models", host.base),
        };
        if let Some(kept) = self.descriptions.get(&address) {
            return kept;
        }
        // Where the time is over before there is an answer, the next listing does not wait for this server again.
        let asked = Instant::now();
        self.descriptions.keep(address.clone(), asked, None);
        let answer = match self.http() {
            Some(http) => self.fetch(host, http.get(&address), via).await,
            None => None,
        };
        self.descriptions.keep(address.clone(), asked, answer.map(|answer| listed(&answer)));
        self.descriptions.get(&address).unwrap_or_default()
    }

    /// What an Ollama or a Puna shows of a model.
    async fn shown(&self, host: &Host, model: &str, via: &[String]) -> Description {
        let address = format!("{}/api/show", host.base);
        let kept_as = format!("{address} {model}");
        if let Some(kept) = self.descriptions.get(&kept_as) {
            return kept.get(model).cloned().unwrap_or_default();
        }
        let asked = Instant::now();
        self.descriptions.keep(kept_as.clone(), asked, None);
        let answer = match self.http() {
            Some(http) => {
                self.fetch(host, http.post(&address).json(&json!({"model": model})), via).await
            }
            None => None,
        };
        let description = answer.map(|answer| shown(&answer));
        let kept = description
            .clone()
            .map(|description| BTreeMap::from([(model.to_owned(), description)]));
        self.descriptions.keep(kept_as, asked, kept);
        description.unwrap_or_default()
    }

    async fn fetch(&self, host: &Host, request: RequestBuilder, via: &[String]) -> Option<Value> {
        let trail =
            via.iter().map(String::as_str).chain([instance()]).collect::<Vec<_>>().join(",");
        let mut request = request.header(ACCEPT_ENCODING, "identity").header(VIA_HEADER, trail);
        if let Some(key) = &host.key {
            request = request.bearer_auth(key);
        }
        let response =
            request.send().await.ok().filter(|response| response.status().is_success())?;
        serde_json::from_str(&Lines::new(response, Some(TIME)).text(MOST).await).ok()
    }
}

/// The models of an answer of `GET /v1/models`: of Puna, vLLM, SGLang, llama.cpp or a service.
fn listed(answer: &Value) -> Models {
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

/// The model of an answer of `POST /api/show`. The context that it was trained for is not the window, which only a parameter states.
fn shown(answer: &Value) -> Description {
    let info = &answer["model_info"];
    let architecture = info["general.architecture"].as_str().filter(|name| !name.is_empty());
    let of_architecture =
        |key: &str| tokens(&info[format!("{}.{key}", architecture.unwrap_or_default())]);
    let parameters = answer["parameters"].as_str().unwrap_or_default();
    let limit = parameters
        .lines()
        .find_map(|line| line.trim().strip_prefix("num_ctx")?.trim().parse().ok());
    Description {
        n_ctx: limit.filter(|n| (1..=LARGEST).contains(n)),
        n_ctx_train: of_architecture("context_length"),
        n_embd: of_architecture("embedding_length"),
        n_params: info["general.parameter_count"].as_u64().filter(|n| *n > 0),
        architecture: architecture.map(str::to_owned),
        takes_limit: true,
    }
}

fn tokens(value: &Value) -> Option<u64> {
    value.as_u64().filter(|n| (1..=LARGEST).contains(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_all_servers_are_read() {
        let answer = json!({"data": [
            {"id": "vllm", "max_model_len": 32768},
            {"id": "llama.cpp", "meta": {"n_ctx": 8192, "n_ctx_train": 131072, "n_embd": 1024, "n_params": 7}},
            {"id": "puna", "context_length": 4096, "max_model_len": 4096, "meta": {"n_ctx": 4096}},
            {"id": "service", "context_length": 200000},
            {"id": "plain"},
            {"id": "nonsense", "context_length": -1, "max_model_len": "8192", "meta": [1]},
            {"context_length": 5}, null,
        ]});
        let listed = listed(&answer);
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
            super::listed(&json!([])).is_empty() && super::listed(&json!({"data": 5})).is_empty()
        );
    }

    fn models(name: &str, n_ctx: u64) -> Models {
        Models::from([(
            name.to_owned(),
            Description { n_ctx: Some(n_ctx), ..Description::default() },
        )])
    }

    #[test]
    fn a_late_answer_does_not_replace_one_to_a_later_request() {
        let (descriptions, first) = (Descriptions::default(), Instant::now());
        let second = first + Duration::from_millis(1);
        descriptions.keep("a".into(), first, None);
        descriptions.keep("a".into(), second, None);
        descriptions.keep("a".into(), second, Some(models("m", 2)));
        descriptions.keep("a".into(), first, Some(models("m", 1)));
        assert_eq!(descriptions.get("a").unwrap()["m"].n_ctx, Some(2));
    }

    #[test]
    fn answers_are_limited_in_number_and_in_bytes() {
        let (descriptions, now) = (Descriptions::default(), Instant::now());
        let large = || Some(models(&"x".repeat(ANSWER_BYTES - 1024), 1));
        for i in 0..9 {
            descriptions.keep(i.to_string(), now, large());
            assert!(lock(&descriptions.0).bytes <= BYTES);
        }
        assert!(descriptions.get("8").is_some() && descriptions.get("0").is_none());
        descriptions.keep("8".into(), now, Some(models("m", 1)));
        descriptions.keep("huge".into(), now, Some(models(&"x".repeat(ANSWER_BYTES), 1)));
        assert!(descriptions.get("huge").unwrap().is_empty(), "it counts as no answer");
        for i in 0..=ANSWERS {
            descriptions.keep(format!("a{i}"), now, None);
        }
        let cache = lock(&descriptions.0);
        assert!(
            cache.answers.len() <= ANSWERS && cache.answers.contains_key(&format!("a{ANSWERS}"))
        );
        assert_eq!(cache.bytes, cache.answers.values().map(|kept| kept.bytes).sum::<usize>());
    }

    #[test]
    fn the_trained_context_that_is_shown_is_not_taken_for_the_window() {
        let mut answer = json!({"parameters": "stop   \"x\"\nnum_ctx                        16384", "model_info": {
            "general.architecture": "qwen3", "qwen3.context_length": 40960, "qwen3.embedding_length": 1024,
        }});
        let description = shown(&answer);
        assert_eq!(description.architecture.as_deref(), Some("qwen3"));
        assert_eq!((description.n_ctx, description.n_ctx_train), (Some(16384), Some(40960)));
        assert_eq!(description.n_embd, Some(1024));
        answer["parameters"] = Value::Null;
        assert_eq!(shown(&answer).n_ctx, None);
        assert_eq!(shown(&json!({})), Description { takes_limit: true, ..Description::default() });
    }
}

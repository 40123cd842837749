//! Cache of descriptions of remote models, with limits on age, number and memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use puna_mirror::{SharedTable, TableLimit};

use crate::util::lock::lock;

/// Lifetime of a cached response.
const CACHE_LIFETIME: Duration = Duration::from_secs(300);

/// Time before a server that did not answer is asked again.
const RETRY_DELAY: Duration = Duration::from_secs(30);

/// Largest number of cached responses.
const MAX_CACHED_RESPONSES: usize = 4096;

/// Memory limit for all cached responses, in bytes.
const MAX_CACHE_BYTES: usize = 32 << 20;

/// Memory limit for one cached response, in bytes. A larger one is treated as no response.
const MAX_CACHED_RESPONSE_BYTES: usize = MAX_CACHE_BYTES / 4;

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
pub(super) type ModelDescriptions = BTreeMap<String, Description>;

/// Description of [`Descriptions`].
pub(crate) static REMOTE_DESCRIPTIONS: SharedTable = SharedTable {
    name: "descriptions of remote models",
    holders: &["puna_server::remote::description_cache::Descriptions"],
    limits: &[TableLimit::Entries(MAX_CACHED_RESPONSES), TableLimit::Bytes(MAX_CACHE_BYTES)],
    shares: &[TableLimit::Rule("none: what is missing is requested again")],
    when_full: "those that expire first are dropped",
    test: "a_client_with_many_models_does_not_hide_the_description_of_another",
};

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
    pub(super) fn get(&self, address: &str) -> Option<Arc<ModelDescriptions>> {
        let cache = lock(&self.0);
        let cached = cache.responses.get(address).filter(|cached| cached.until > Instant::now());
        cached.map(|cached| cached.models.clone())
    }

    /// Caches the response to a request sent at `sent_at`, unless the cache has the response to a
    /// later request.
    pub(super) fn insert(
        &self,
        address: String,
        sent_at: Instant,
        answer: Option<ModelDescriptions>,
    ) {
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_client_with_many_models_does_not_hide_the_description_of_another() {
        let (descriptions, now) = (Descriptions::default(), Instant::now());
        descriptions.insert("other".into(), now, Some(models("m", 1)));
        for i in 0..2 * MAX_CACHED_RESPONSES {
            descriptions.insert(i.to_string(), now, Some(models("m", 1)));
        }
        // It is requested again, and then found.
        assert!(descriptions.get("other").is_none());
        descriptions.insert("other".into(), now, Some(models("m", 1)));
        assert!(descriptions.get("other").is_some());
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
}

//! Configuration of upstreams, and limits on fetches.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use puna_store::{DEFAULT_HOST, ModelName};

use super::fetch_slots::{FetchLimiter, FetchSlot};
use crate::auth::ClientId;
use crate::error::{Denial, LimitReached, MirrorError};
use crate::types::name_pattern::{matches_pattern, repository_matches};
use crate::types::repository::Repository;

/// Upstreams and limits.
#[derive(Debug, Clone, Default)]
pub struct Upstreams {
    /// Hosts whose models are fetched on demand.
    pub hosts: Vec<String>,
    /// Private namespaces of the default host, which are never fetched: `name` or `name*`.
    pub private: Vec<String>,
    /// How long a tag is served without asking the upstream again.
    pub fresh: Duration,
    /// Allow-list of namespaces or repositories to fetch: `name` or `name*`. If empty, everything
    /// is allowed.
    pub fetch: Vec<String>,
    /// Largest size in bytes of a model that is fetched for anonymous requests.
    pub fetch_limit: Option<u64>,
    /// Largest number of concurrent fetches.
    pub fetch_parallel: Option<usize>,
}

/// Who makes a request, which decides what may be fetched for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requester {
    /// A client with a key, or on this machine.
    Trusted,
    /// Any other client.
    Anonymous,
}

impl Upstreams {
    /// Returns the upstream model of a tag; `None` if the repository is not mirrored.
    pub(super) fn model(&self, name: &Repository, tag: &str) -> Option<ModelName> {
        let model = name.model(tag)?;
        let asked = self.hosts.iter().any(|host| host.eq_ignore_ascii_case(model.host()));
        let is_default = model.host().eq_ignore_ascii_case(DEFAULT_HOST);
        let own =
            is_default && self.private.iter().any(|own| matches_pattern(model.namespace(), own));
        (asked && !own).then_some(model)
    }

    /// Whether the allow-list permits to fetch a repository.
    pub(super) fn may_fetch(&self, name: &Repository) -> bool {
        self.fetch.is_empty() || self.fetch.iter().any(|pattern| repository_matches(name, pattern))
    }
}

/// Applies the limits on fetches.
pub(super) struct FetchRules {
    limit: Option<u64>,
    slots: Option<FetchLimiter>,
    refused: AtomicU64,
}

/// Held during a fetch.
pub(super) struct FetchPermit {
    _slot: Option<FetchSlot>,
}

impl FetchRules {
    pub(super) fn new(upstreams: &Upstreams) -> Self {
        let slots = upstreams.fetch_parallel.map(FetchLimiter::new);
        Self { limit: upstreams.fetch_limit, slots, refused: AtomicU64::new(0) }
    }

    /// Number of requests that a limit rejected.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Error for a repository that the allow-list does not contain.
    pub(super) fn not_allowed_error(&self, name: &Repository) -> MirrorError {
        self.count_refusal(Denial::FetchNotAllowed(name.clone()))
    }

    /// Whether a size exceeds the limit of this requester.
    pub(super) fn is_too_large(&self, bytes: u64, requester: Requester) -> bool {
        requester == Requester::Anonymous && self.limit.is_some_and(|limit| bytes > limit)
    }

    /// Error for a model that is too large for an anonymous request.
    pub(super) fn too_large_error(&self, model: &ModelName, bytes: u64) -> MirrorError {
        let (model, limit) = (Box::new(model.clone()), self.limit.unwrap_or(u64::MAX));
        self.count_refusal(Denial::FetchTooLarge { model, bytes, limit })
    }

    /// Starts a fetch for the client of the request; `None` if a limit of concurrent fetches is
    /// reached.
    pub(super) fn try_begin(&self) -> Option<FetchPermit> {
        let Some(slots) = &self.slots else { return Some(FetchPermit { _slot: None }) };
        let slot = slots.try_take(&ClientId::current(), Instant::now())?;
        Some(FetchPermit { _slot: Some(slot) })
    }

    /// Whether no fetch can start now for the client of the request.
    pub(super) fn is_full(&self) -> bool {
        let slots = self.slots.as_ref();
        slots.is_some_and(|slots| slots.is_full(&ClientId::current(), Instant::now()))
    }

    /// Error while the limit of concurrent fetches is reached. The client gets a later slot before
    /// others.
    pub(super) fn limit_error(&self, model: &ModelName) -> MirrorError {
        if let Some(slots) = &self.slots {
            slots.record_refusal(&ClientId::current(), Instant::now());
        }
        self.count_refusal(LimitReached::Fetches(Box::new(model.clone())))
    }

    fn count_refusal(&self, reason: impl Into<MirrorError>) -> MirrorError {
        let error = reason.into();
        self.refused.fetch_add(1, Relaxed);
        tracing::warn!(%error, "fetch rejected");
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Repository {
        Repository::parse(name).unwrap()
    }

    #[test]
    fn private_namespaces_are_never_fetched() {
        let upstreams = Upstreams {
            hosts: vec!["registry.ollama.ai".into(), "hf.co".into(), "hub:5000".into()],
            private: vec!["team-*".into(), "me".into()],
            ..Upstreams::default()
        };
        let asked = |name: &str| upstreams.model(&named(name), "latest").is_some();
        for name in
            ["library/llama3", "mean/m", "hf.co/user/repo", "hf.co/me/repo", "Hub:5000/me/repo"]
        {
            assert!(asked(name), "{name}");
        }
        for name in ["me/m", "ME/m", "team-a/m", "ghcr.io/a/b", "one", "a/b/c/d", "hub:5001/a/b"] {
            assert!(!asked(name), "{name}");
        }
    }

    #[test]
    fn the_allow_list_limits_fetches() {
        let mut upstreams = Upstreams::default();
        assert!(upstreams.may_fetch(&named("library/m")));
        upstreams.fetch = ["library", "hf.co/user/*", "me/one"].map(str::to_owned).to_vec();
        for name in ["library/m", "LIBRARY/m", "hf.co/user/repo", "me/one"] {
            assert!(upstreams.may_fetch(&named(name)), "{name}");
        }
        for name in ["librarya/m", "hf.co/users/repo", "hf.co/user2/x", "me/oned", "me/two"] {
            assert!(!upstreams.may_fetch(&named(name)), "{name}");
        }
    }

    #[test]
    fn the_gate_limits_size_and_concurrency() {
        let model = ModelName::parse("m").unwrap();
        let upstreams =
            Upstreams { fetch_limit: Some(100), fetch_parallel: Some(2), ..Upstreams::default() };
        let gate = FetchRules::new(&upstreams);
        assert!(
            !gate.is_too_large(100, Requester::Anonymous)
                && !gate.is_too_large(101, Requester::Trusted)
        );
        assert!(gate.is_too_large(101, Requester::Anonymous));
        assert_eq!(gate.too_large_error(&model, 101).code(), (403, "DENIED"));
        let (one, two) = (gate.try_begin().unwrap(), gate.try_begin().unwrap());
        assert!(gate.is_full() && gate.try_begin().is_none());
        assert_eq!(gate.limit_error(&model).code(), (429, "TOOMANYREQUESTS"));
        drop(one);
        assert!(!gate.is_full() && gate.try_begin().is_some());
        drop(two);
        assert_eq!(gate.refused(), 2);
        let open = FetchRules::new(&Upstreams::default());
        assert!(
            !open.is_too_large(u64::MAX, Requester::Anonymous)
                && !open.is_full()
                && open.try_begin().is_some()
        );
    }
}

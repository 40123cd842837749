//! From where a library fetches what it does not have, and what it may be made to fetch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use puna_store::{DEFAULT_HOST, ModelName};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::MirrorError;
use crate::name::Repository;
use crate::pattern::{fits, is_in};

/// From where, and what not.
#[derive(Debug, Clone, Default)]
pub struct Upstreams {
    /// Hosts whose models are fetched when somebody asks for them.
    pub hosts: Vec<String>,
    /// Namespaces of the default host that are this library's own: `name`, or `name*`.
    pub private: Vec<String>,
    /// How long a tag is served without asking whether it has moved.
    pub fresh: Duration,
    /// What alone is fetched: namespaces or repositories, `name` or `name*`. None means everything.
    pub fetch: Vec<String>,
    /// Bytes that a model may have which is fetched for somebody unknown.
    pub fetch_limit: Option<u64>,
    /// Models that are fetched at once.
    pub fetch_parallel: Option<usize>,
}

/// Who asks for something that may have to be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    /// Somebody with a key, or on this machine.
    Known,
    /// Anybody.
    Anybody,
}

impl Upstreams {
    /// The model that is fetched for a tag, if it is one of somebody else's.
    pub(super) fn model(&self, name: &Repository, tag: &str) -> Option<ModelName> {
        let model = name.model(tag)?;
        let asked = self.hosts.iter().any(|host| host.eq_ignore_ascii_case(model.host()));
        let is_default = model.host().eq_ignore_ascii_case(DEFAULT_HOST);
        let own = is_default && self.private.iter().any(|own| is_in(model.namespace(), own));
        (asked && !own).then_some(model)
    }

    /// Whether a repository is one of those that are fetched.
    pub(super) fn may_fetch(&self, name: &Repository) -> bool {
        self.fetch.is_empty() || self.fetch.iter().any(|pattern| fits(name, pattern))
    }
}

/// Lets fetches begin, or refuses them.
pub(super) struct Gate {
    limit: Option<u64>,
    permits: Option<Arc<Semaphore>>,
    refused: AtomicU64,
}

/// Held as long as something is fetched.
pub(super) struct Permit {
    _held: Option<OwnedSemaphorePermit>,
}

impl Gate {
    pub(super) fn new(upstreams: &Upstreams) -> Self {
        let permits = upstreams
            .fetch_parallel
            .map(|n| Arc::new(Semaphore::new(n.min(Semaphore::MAX_PERMITS))));
        Self { limit: upstreams.fetch_limit, permits, refused: AtomicU64::new(0) }
    }

    /// What was refused.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Of a repository that is not to be fetched.
    pub(super) fn closed(&self, name: &Repository) -> MirrorError {
        self.refuse(MirrorError::Denied(format!(
            "{name} is not here, and this mirror fetches nothing that mirror.fetch does not name"
        )))
    }

    /// Whether so many bytes are more than what is fetched for the one who asks.
    pub(super) fn is_too_large(&self, bytes: u64, asker: Asker) -> bool {
        asker == Asker::Anybody && self.limit.is_some_and(|limit| bytes > limit)
    }

    /// Of a model that is too large for somebody unknown.
    pub(super) fn too_large(&self, model: &ModelName, bytes: u64) -> MirrorError {
        let limit = self.limit.unwrap_or(u64::MAX);
        self.refuse(MirrorError::Denied(format!(
            "{model} has {bytes} bytes, and without a key nobody has this mirror fetch more than {limit} (mirror.fetch_limit): pull it with a key"
        )))
    }

    /// Begins to fetch something; `None`: as many models are being fetched as may be.
    pub(super) fn enter(&self) -> Option<Permit> {
        let held = self.permits.as_ref().map(|permits| permits.clone().try_acquire_owned());
        Some(Permit { _held: held.transpose().ok()? })
    }

    /// Whether nothing can begin now.
    pub(super) fn is_full(&self) -> bool {
        self.permits.as_ref().is_some_and(|permits| permits.available_permits() == 0)
    }

    /// Of a model that has to wait.
    pub(super) fn full(&self, model: &ModelName) -> MirrorError {
        self.refuse(MirrorError::TooMany(format!(
            "{model} is not here, and as many models are being fetched as may be (mirror.fetch_parallel): ask again in a while"
        )))
    }

    fn refuse(&self, error: MirrorError) -> MirrorError {
        self.refused.fetch_add(1, Relaxed);
        tracing::warn!(%error, "nothing is fetched");
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
    fn what_is_private_is_never_asked_for_elsewhere() {
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
    fn what_is_not_named_is_not_fetched() {
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
    fn a_gate_counts_those_inside_and_weighs_for_strangers() {
        let model = ModelName::parse("m").unwrap();
        let upstreams =
            Upstreams { fetch_limit: Some(100), fetch_parallel: Some(2), ..Upstreams::default() };
        let gate = Gate::new(&upstreams);
        assert!(!gate.is_too_large(100, Asker::Anybody) && !gate.is_too_large(101, Asker::Known));
        assert!(gate.is_too_large(101, Asker::Anybody));
        assert_eq!(gate.too_large(&model, 101).code(), (403, "DENIED"));
        let (one, two) = (gate.enter().unwrap(), gate.enter().unwrap());
        assert!(gate.is_full() && gate.enter().is_none());
        assert_eq!(gate.full(&model).code(), (429, "TOOMANYREQUESTS"));
        drop(one);
        assert!(!gate.is_full() && gate.enter().is_some());
        drop(two);
        assert_eq!(gate.refused(), 2);
        let open = Gate::new(&Upstreams::default());
        assert!(
            !open.is_too_large(u64::MAX, Asker::Anybody)
                && !open.is_full()
                && open.enter().is_some()
        );
    }
}

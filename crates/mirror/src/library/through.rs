//! A library that asks elsewhere for what it does not have, and hands it on while it arrives.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use puna_registry::{Found, Options, Registry, RegistryError};
use puna_store::{DEFAULT_HOST, Digest, ModelName, ModelRef, Source, Store};
use tokio::sync::{mpsc, watch};

use super::arriving::Arriving;
use super::folder::blocking;
use super::{Answer, Blob, Holding, Library, Part, Shown, UploadId};
use crate::access::is_in;
use crate::error::MirrorError;
use crate::figures::Fetches;
use crate::lock::lock;
use crate::manifest::{Descriptor, Kind, Manifest};
use crate::name::{Reference, Repository};
use crate::via;

/// How long nobody is asked again who did not answer, or did not have something.
const REST: Duration = Duration::from_secs(if cfg!(test) { 0 } else { 20 });
/// Tags of which it is known when they were asked for last.
const MAX_KNOWN: usize = 100_000;
/// How long a request waits for a model that is being made of several files.
const MAKING: Duration = Duration::from_secs(20);

/// From where, and what not.
#[derive(Debug, Clone, Default)]
pub struct Upstreams {
    /// Hosts whose models are fetched when somebody asks for them.
    pub hosts: Vec<String>,
    /// Namespaces of the default host that are this library's own: `name`, or `name*`.
    pub private: Vec<String>,
    /// How long a tag is served without asking whether it has moved.
    pub fresh: Duration,
}

impl Upstreams {
    /// The model that is fetched for a tag, if it is one of somebody else's.
    fn model(&self, name: &Repository, tag: &str) -> Option<ModelName> {
        let model = name.model(tag)?;
        let asked = self.hosts.iter().any(|host| host.eq_ignore_ascii_case(model.host()));
        let is_default = model.host().eq_ignore_ascii_case(DEFAULT_HOST);
        let own = is_default && self.private.iter().any(|own| is_in(model.namespace(), own));
        (asked && !own).then_some(model)
    }
}

/// A library before which registries stand that have more.
pub struct Through(Arc<Inner>);

struct Inner {
    library: Arc<dyn Library>,
    store: Arc<Store>,
    registry: Registry,
    upstreams: Upstreams,
    tags: Mutex<HashMap<ModelName, Arc<Tag>>>,
    /// Of downloads that have ended.
    fetches: Mutex<Fetches>,
}

/// What is known of a tag.
#[derive(Default)]
struct Tag {
    /// Held by the one who asks; the others wait for what comes of it.
    asking: tokio::sync::Mutex<()>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// When somebody said what it stands for, and how many blobs had been lost here by then.
    said: Option<(Instant, u64)>,
    /// When nobody did, or nobody had it, and why nobody did.
    missed: Option<(Instant, Option<MirrorError>)>,
    /// What is being fetched.
    pending: Option<Arc<Pending>>,
    /// What is being made of several files.
    making: Option<Making>,
}

/// The end of making a model of files: why it failed, if it did.
type Making = watch::Receiver<Option<Result<(), MirrorError>>>;

/// A model that is being fetched.
struct Pending {
    found: Found,
    manifest: Manifest,
    /// Bytes of it that were here before.
    first: u64,
}

impl Through {
    /// A library with what others have.
    pub fn new(
        library: Arc<dyn Library>,
        store: Arc<Store>,
        registry: Registry,
        upstreams: Upstreams,
    ) -> Self {
        Self(Arc::new(Inner {
            library,
            store,
            registry,
            upstreams,
            tags: Mutex::default(),
            fetches: Mutex::default(),
        }))
    }

    /// Refuses to take what is somebody else's to say.
    fn own(&self, name: &Repository) -> Result<(), MirrorError> {
        match self.0.upstreams.model(name, "latest") {
            None => Ok(()),
            Some(model) => Err(MirrorError::Denied(format!(
                "{name} is mirrored from {}, and only what is there is here: push to a namespace of mirror.private",
                model.host()
            ))),
        }
    }
}

impl Inner {
    fn tag(&self, model: &ModelName) -> Arc<Tag> {
        let mut tags = lock(&self.tags);
        if tags.len() >= MAX_KNOWN {
            tags.retain(|_, tag| lock(&tag.known).pending.is_some());
        }
        tags.entry(model.clone()).or_default().clone()
    }

    /// What a tag stands for.
    async fn tagged(self: &Arc<Self>, name: &Repository, tag: &str) -> Result<Option<Manifest>, MirrorError> {
        let of = Reference::Tag(tag.to_owned());
        let Some(model) = self.upstreams.model(name, tag) else {
            return self.library.manifest(name, &of).await;
        };
        let state = self.tag(&model);
        let asking = state.asking.lock().await;
        let stored = self.library.manifest(name, &of).await?;
        {
            let known = lock(&state.known);
            if let Some(pending) = &known.pending {
                lock(&self.fetches).hits += 1;
                return Ok(Some(pending.manifest.clone()));
            }
            // What has been lost since then is fetched again.
            let is_fresh = known
                .said
                .is_some_and(|(at, lost)| at.elapsed() < self.upstreams.fresh && lost == self.library.lost());
            let missed = known.missed.as_ref().filter(|(at, _)| at.elapsed() < REST);
            match (&stored, missed) {
                // That it cannot be had is not that there is none.
                (None, Some((_, Some(why)))) => return Err(why.clone()),
                (_, Some(_)) => {
                    lock(&self.fetches).hits += u64::from(stored.is_some());
                    return Ok(stored);
                }
                (Some(_), None) if is_fresh => {
                    lock(&self.fetches).hits += 1;
                    return Ok(stored);
                }
                _ => {}
            }
        }
        let reference = ModelRef { name: model.clone(), http: false, source: Source::Any };
        let making = lock(&state.known).making.clone();
        if let Some(making) = making {
            drop(asking);
            return self.made(name, &model, making, stored).await;
        }
        let options = Options { via: via::told(), ..Options::default() };
        match self.registry.look(&reference, &options).await {
            Ok(found) => self.take(&state, name, model, found, stored).await.map(Some),
            Err(RegistryError::Listed) => {
                let making = self.make(&state, reference, options);
                drop(asking);
                self.made(name, &model, making, stored).await
            }
            Err(error) => {
                let absent = is_absence(&error);
                if stored.is_some() {
                    tracing::warn!(%model, %error, absent, "the upstream does not have it now: serving what is here");
                }
                let why = (!absent).then(|| of_model(&model, broken(error)));
                lock(&state.known).missed = Some((Instant::now(), why.clone()));
                match (stored, why) {
                    (None, Some(why)) => Err(why),
                    (stored, _) => Ok(stored),
                }
            }
        }
    }

    /// Begins to fetch what was found, unless it is here.
    async fn take(
        self: &Arc<Self>,
        state: &Arc<Tag>,
        name: &Repository,
        model: ModelName,
        found: Found,
        stored: Option<Manifest>,
    ) -> Result<Manifest, MirrorError> {
        // A model of Ollama's need not say what it is; other packagings do.
        let manifest = Manifest::parse(found.bytes().clone(), Some(puna_store::media::MANIFEST))
            .or_else(|_| Manifest::parse(found.bytes().clone(), None))
            .map_err(|error| MirrorError::Upstream(format!("{model}: {error}")))?;
        lock(&state.known).said = Some((Instant::now(), self.library.lost()));
        if stored.is_some_and(|stored| stored.digest == manifest.digest) && self.has_all(&manifest).await? {
            lock(&self.fetches).hits += 1;
            return Ok(manifest);
        }
        lock(&self.fetches).misses += 1;
        tracing::info!(%model, digest = %manifest.digest, "fetching");
        let pending =
            Arc::new(Pending { first: found.completed(&self.store), found, manifest: manifest.clone() });
        lock(&state.known).pending = Some(pending.clone());
        let (inner, state, name) = (self.clone(), state.clone(), name.clone());
        tokio::spawn(async move {
            let fetched = inner.fetch(&name, &model, &pending);
            let fetched = std::panic::AssertUnwindSafe(fetched).catch_unwind().await;
            let arrived = inner.arrived(&pending, fetched.as_ref().is_ok_and(Result::is_ok));
            let mut known = lock(&state.known);
            known.pending = None;
            lock(&inner.fetches).bytes += arrived;
            match fetched {
                Ok(Ok(())) => tracing::info!(%model, "fetched"),
                failed => {
                    known.said = None;
                    lock(&inner.fetches).failures += 1;
                    let error = failed.map(|fetched| fetched.err().map(|error| error.to_string()));
                    tracing::warn!(%model, error = ?error.ok().flatten(), "fetching failed");
                }
            }
        });
        Ok(manifest)
    }

    /// Whether nothing of a model has been lost.
    async fn has_all(&self, manifest: &Manifest) -> Result<bool, MirrorError> {
        for blob in &manifest.blobs {
            if self.library.blob(blob.digest).await?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Bytes of a model that a download has brought, which may be on their way out of the store by now.
    fn arrived(&self, pending: &Pending, is_whole: bool) -> u64 {
        let here = if is_whole { pending.manifest.size() } else { pending.found.completed(&self.store) };
        here.saturating_sub(pending.first)
    }

    /// Fetches a model to where it stays. Another packaging than Ollama's is kept as it came, where no Ollama looks: whoever asks for
    /// it reads it as it is, and our own client makes a model of it.
    async fn fetch(
        &self,
        name: &Repository,
        model: &ModelName,
        pending: &Pending,
    ) -> Result<(), MirrorError> {
        if pending.manifest.kind == Kind::Model {
            pending.found.fetch(&self.store).await.map_err(broken)?;
            return self.hand_over(model, pending.manifest.clone()).await;
        }
        let kept = pending.found.fetch_blobs(&self.store).await.map_err(broken)?;
        if self.library.land(name, model.tag(), pending.manifest.clone(), &self.store).await? {
            drop(kept);
            let blobs: Vec<Digest> = pending.manifest.blobs.iter().map(|blob| blob.digest).collect();
            let store = self.store.clone();
            return blocking(move || Ok(store.remove_blobs(&blobs)?)).await;
        }
        let tag = Reference::Tag(model.tag().to_owned());
        self.library.put_manifest(name, &tag, pending.manifest.clone()).await
    }

    /// Hands a model of the store to where the library keeps it, if that is elsewhere.
    async fn hand_over(&self, model: &ModelName, manifest: Manifest) -> Result<(), MirrorError> {
        let Some(name) = Repository::of_model(model) else { return Ok(()) };
        if self.library.land(&name, model.tag(), manifest, &self.store).await? {
            let (store, model) = (self.store.clone(), model.clone());
            blocking(move || Ok(store.delete(&model).map(drop)?)).await?;
        }
        Ok(())
    }

    /// Has the store make a model of files, and hands it over.
    async fn pull(&self, reference: &ModelRef, options: Options) -> Result<(), MirrorError> {
        // Nobody listens.
        let (report, _) = mpsc::channel(1);
        let options = Options { keep_unused: true, ..options };
        self.registry.pull(&self.store, reference, &options, report).await.map_err(broken)?;
        let (store, name) = (self.store.clone(), reference.name.clone());
        let (_, bytes) = blocking(move || Ok(store.manifest_bytes(&name)?)).await?;
        let manifest = Manifest::parse(bytes.into(), Some(puna_store::media::MANIFEST))?;
        self.hand_over(&reference.name, manifest).await
    }

    /// Begins to make a model of the files that a hub lists, which takes all of them.
    fn make(self: &Arc<Self>, state: &Arc<Tag>, reference: ModelRef, options: Options) -> Making {
        let (say, making) = watch::channel(None);
        lock(&state.known).making = Some(making.clone());
        let (inner, state) = (self.clone(), state.clone());
        tracing::info!(model = %reference.name, "fetching files, of which one model is made");
        tokio::spawn(async move {
            let lost = inner.library.lost();
            let made = std::panic::AssertUnwindSafe(inner.pull(&reference, options)).catch_unwind().await;
            let made = made.unwrap_or_else(|_| Err(MirrorError::Internal("making it panicked".into())));
            let made = made.map_err(|error| of_model(&reference.name, error));
            if let Err(error) = &made {
                tracing::warn!(model = %reference.name, %error, "fetching failed");
            }
            let mut known = lock(&state.known);
            known.making = None;
            match &made {
                Ok(()) => known.said = Some((Instant::now(), lost)),
                Err(error) => known.missed = Some((Instant::now(), Some(error.clone()))),
            }
            say.send_replace(Some(made));
        });
        making
    }

    /// What was made, as soon as it is; whoever has waited for a while has to come again, or gets what is here.
    async fn made(
        &self,
        name: &Repository,
        model: &ModelName,
        mut making: Making,
        stored: Option<Manifest>,
    ) -> Result<Option<Manifest>, MirrorError> {
        let end = tokio::time::timeout(MAKING, making.wait_for(Option::is_some)).await;
        let given_up = || Some(Err(MirrorError::Internal(format!("making {model} was given up"))));
        let end = end.map(|end| end.map_or_else(|_| given_up(), |end| end.clone()));
        match (end, stored) {
            (Ok(Some(Ok(()))), _) => {
                self.library.manifest(name, &Reference::Tag(model.tag().to_owned())).await
            }
            (_, Some(stored)) => Ok(Some(stored)),
            (Ok(Some(Err(error))), None) => Err(error),
            (Ok(None) | Err(_), None) => Err(MirrorError::Later(format!(
                "{model} comes in several files, which are being fetched and made into one model: ask again in a while"
            ))),
        }
    }

    /// What is being fetched and has something.
    fn pending(&self, has: impl Fn(&Pending) -> bool) -> Option<Arc<Pending>> {
        let tags: Vec<_> = lock(&self.tags).values().cloned().collect();
        tags.iter().find_map(|tag| lock(&tag.known).pending.clone().filter(|pending| has(pending)))
    }

    /// All that is being fetched.
    fn all_pending(&self) -> Vec<(ModelName, Arc<Pending>)> {
        let tags: Vec<_> = lock(&self.tags).iter().map(|(model, tag)| (model.clone(), tag.clone())).collect();
        let pending = |(model, tag): (ModelName, Arc<Tag>)| Some((model, lock(&tag.known).pending.clone()?));
        tags.into_iter().filter_map(pending).collect()
    }

    fn arriving(&self, digest: Digest) -> Option<Box<dyn Blob>> {
        let pending = self.pending(|pending| pending.found.size(&digest).is_some())?;
        let size = pending.found.size(&digest)?;
        let running = pending.found.running(&self.store, digest)?;
        Some(Box::new(Arriving { size, running }))
    }
}

fn is_absence(error: &RegistryError) -> bool {
    matches!(error, RegistryError::NotFound) || matches!(error, RegistryError::Status { code: 404, .. })
}

/// An error of fetching. What is amiss here is no upstream's fault.
pub(super) fn broken(error: RegistryError) -> MirrorError {
    match error {
        RegistryError::Store(error) => error.into(),
        RegistryError::Space { .. } => MirrorError::Full(error.to_string()),
        error if error.is_ours() => MirrorError::Internal(error.to_string()),
        error if error.is_loop() => MirrorError::Loop(error.to_string()),
        error => MirrorError::Upstream(error.to_string()),
    }
}

/// The same, with the name of the model, which others are to know.
fn of_model(model: &ModelName, error: MirrorError) -> MirrorError {
    match error {
        MirrorError::Upstream(said) => MirrorError::Upstream(format!("{model}: {said}")),
        MirrorError::Loop(said) => MirrorError::Loop(format!("{model}: {said}")),
        error => error,
    }
}

impl Library for Through {
    fn manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
    ) -> Answer<'a, Option<Manifest>> {
        Box::pin(async move {
            match reference {
                Reference::Tag(tag) => self.0.tagged(name, tag).await,
                Reference::Digest(digest) => match self.0.library.manifest(name, reference).await? {
                    Some(manifest) => Ok(Some(manifest)),
                    None => {
                        let pending = self.0.pending(|pending| pending.manifest.digest == *digest);
                        Ok(pending.map(|pending| pending.manifest.clone()))
                    }
                },
            }
        })
    }

    fn blob(&self, digest: Digest) -> Answer<'_, Option<Box<dyn Blob>>> {
        Box::pin(async move {
            match self.0.library.blob(digest).await? {
                Some(blob) => Ok(Some(blob)),
                None => match self.0.arriving(digest) {
                    Some(blob) => Ok(Some(blob)),
                    // It may have become whole between the two.
                    None => self.0.library.blob(digest).await,
                },
            }
        })
    }

    fn put_manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
        manifest: Manifest,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            self.own(name)?;
            self.0.library.put_manifest(name, reference, manifest).await
        })
    }

    fn land<'a>(
        &'a self,
        name: &'a Repository,
        tag: &'a str,
        manifest: Manifest,
        store: &'a Store,
    ) -> Answer<'a, bool> {
        self.0.library.land(name, tag, manifest, store)
    }

    fn begin<'a>(&'a self, name: &'a Repository) -> Answer<'a, UploadId> {
        Box::pin(async move {
            self.own(name)?;
            self.0.library.begin(name).await
        })
    }

    fn remove_manifest<'a>(&'a self, name: &'a Repository, reference: &'a Reference) -> Answer<'a, bool> {
        self.0.library.remove_manifest(name, reference)
    }

    fn shown(&self) -> Answer<'_, Vec<Shown>> {
        Box::pin(async move {
            let mut shown = self.0.library.shown().await?;
            for (model, pending) in self.0.all_pending() {
                let Some(name) = Repository::of_model(&model) else { continue };
                let (tag, manifest) = (model.tag().to_owned(), &pending.manifest);
                let completed = Some(pending.found.completed(&self.0.store));
                shown.push(Shown { name, tag, digest: manifest.digest, size: manifest.size(), completed });
            }
            Ok(shown)
        })
    }

    fn tidy(&self) -> Answer<'_, ()> {
        self.0.library.tidy()
    }

    fn lost(&self) -> u64 {
        self.0.library.lost()
    }

    fn tags<'a>(&'a self, name: &'a Repository) -> Answer<'a, Option<Vec<String>>> {
        self.0.library.tags(name)
    }

    fn fetches(&self) -> Fetches {
        let pending = self.0.all_pending();
        let mut fetches = *lock(&self.0.fetches);
        fetches.running = pending.len() as u64;
        let arrived =
            |pending: &Pending| pending.found.completed(&self.0.store).saturating_sub(pending.first);
        fetches.bytes += pending.iter().map(|(_, pending)| arrived(pending)).sum::<u64>();
        fetches
    }

    fn holdings(&self) -> Answer<'_, Vec<Holding>> {
        Box::pin(async move {
            let mut holdings = self.0.library.holdings().await?;
            for (model, pending) in self.0.all_pending() {
                let name = Repository::of_model(&model);
                holdings.extend(name.map(|name| Holding::of_manifest(name, &pending.manifest)));
            }
            Ok(holdings)
        })
    }

    fn repositories(&self) -> Answer<'_, Vec<Repository>> {
        self.0.library.repositories()
    }

    fn referrers<'a>(&'a self, name: &'a Repository, subject: Digest) -> Answer<'a, Vec<Descriptor>> {
        self.0.library.referrers(name, subject)
    }

    fn remove_blob(&self, digest: Digest) -> Answer<'_, bool> {
        self.0.library.remove_blob(digest)
    }

    fn uploaded<'a>(&'a self, name: &'a Repository, id: &'a UploadId) -> Answer<'a, u64> {
        self.0.library.uploaded(name, id)
    }

    fn append<'a>(&'a self, name: &'a Repository, id: &'a UploadId, part: Part) -> Answer<'a, u64> {
        self.0.library.append(name, id, part)
    }

    fn finish<'a>(&'a self, name: &'a Repository, id: &'a UploadId, digest: Digest) -> Answer<'a, ()> {
        self.0.library.finish(name, id, digest)
    }

    fn cancel<'a>(&'a self, name: &'a Repository, id: &'a UploadId) -> Answer<'a, ()> {
        self.0.library.cancel(name, id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_private_is_never_asked_for_elsewhere() {
        let upstreams = Upstreams {
            hosts: vec!["registry.ollama.ai".into(), "hf.co".into(), "hub:5000".into()],
            private: vec!["team-*".into(), "me".into()],
            fresh: Duration::ZERO,
        };
        let asked = |name: &str| upstreams.model(&Repository::parse(name).unwrap(), "latest").is_some();
        for name in ["library/llama3", "mean/m", "hf.co/user/repo", "hf.co/me/repo", "Hub:5000/me/repo"] {
            assert!(asked(name), "{name}");
        }
        for name in ["me/m", "ME/m", "team-a/m", "ghcr.io/a/b", "one", "a/b/c/d", "hub:5001/a/b"] {
            assert!(!asked(name), "{name}");
        }
    }
}

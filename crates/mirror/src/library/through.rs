//! A library that asks elsewhere for what it does not have, and hands it on while it arrives.

mod making;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use puna_registry::{Found, Options, Registry, RegistryError};
use puna_store::{Digest, ModelName, ModelRef, Source, Store};

use super::arriving::Arriving;
use super::folder::blocking;
use super::notes::Notes;
use super::upstreams::{Asker, Gate, Permit, Upstreams};
use super::{Answer, Blob, Holding, Library, Part, Shown, UploadId, Whose};
use crate::error::MirrorError;
use crate::figures::Fetches;
use crate::history::{By, History};
use crate::lock::lock;
use crate::manifest::{Descriptor, Kind, Manifest};
use crate::name::{Reference, Repository};
use crate::via;
use making::Making;

/// How long nobody is asked again who did not answer, or did not have something.
const REST: Duration = Duration::from_secs(if cfg!(test) { 0 } else { 20 });
/// How long a manifest waits for blobs that are being fetched.
const ARRIVAL: Duration = Duration::from_secs(20);
/// How often it is looked whether they are here.
const LOOK: Duration = Duration::from_millis(50);
/// Tags of which it is known when they were asked for last.
const MAX_KNOWN: usize = 100_000;

/// A library before which registries stand that have more.
pub struct Through(Arc<Inner>);

struct Inner {
    library: Arc<dyn Library>,
    store: Arc<Store>,
    registry: Registry,
    upstreams: Upstreams,
    gate: Gate,
    history: Arc<History>,
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
    /// When it was found to be larger than what strangers may have fetched, and how large.
    large: Option<(Instant, u64)>,
}

/// What is to be fetched, for whom, and what of it is here.
struct Wish<'a> {
    name: &'a Repository,
    model: ModelName,
    asker: Asker,
    stored: Option<Manifest>,
}

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
        history: Arc<History>,
    ) -> Self {
        Self(Arc::new(Inner {
            library,
            store,
            registry,
            gate: Gate::new(&upstreams),
            upstreams,
            history,
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
    async fn tagged(
        self: &Arc<Self>,
        name: &Repository,
        tag: &str,
        asker: Asker,
    ) -> Result<Option<Manifest>, MirrorError> {
        let of = Reference::Tag(tag.to_owned());
        let Some(model) = self.upstreams.model(name, tag) else {
            return self.library.manifest(name, &of).await;
        };
        if !self.upstreams.may_fetch(name) {
            let stored = self.library.manifest(name, &of).await?;
            return stored.map(Some).ok_or_else(|| self.gate.closed(name));
        }
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
        let wish = Wish { name, model, asker, stored };
        let making = lock(&state.known).making.clone();
        if let Some(making) = making {
            drop(asking);
            return self.made(wish, making).await;
        }
        self.look(&state, wish, asking).await
    }

    /// Asks the upstream what a tag stands for, and begins to fetch that.
    async fn look(
        self: &Arc<Self>,
        state: &Arc<Tag>,
        wish: Wish<'_>,
        asking: tokio::sync::MutexGuard<'_, ()>,
    ) -> Result<Option<Manifest>, MirrorError> {
        if wish.stored.is_none() {
            // Nobody is asked for what would be refused.
            let large = lock(&state.known).large.filter(|(at, _)| at.elapsed() < REST);
            large.map_or(Ok(()), |(_, bytes)| self.gate.weigh(&wish.model, bytes, wish.asker))?;
            if self.gate.is_full() {
                return Err(self.gate.full(&wish.model));
            }
        }
        let reference = ModelRef { name: wish.model.clone(), http: false, source: Source::Any };
        let options = Options { via: via::told(), ..Options::default() };
        match self.registry.look(&reference, &options).await {
            Ok(found) => self.take(state, wish, found).await.map(Some),
            Err(RegistryError::Listed { bytes }) => match self.admit(state, &wish, bytes) {
                Ok(permit) => {
                    let making = self.make(state, reference, options, &wish, permit);
                    drop(asking);
                    self.made(wish, making).await
                }
                Err(refused) => wish.stored.map(Some).ok_or(refused),
            },
            Err(error) => {
                let (model, stored) = (wish.model, wish.stored);
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

    /// Whether so many bytes may be fetched now, for the one who asks.
    fn admit(&self, state: &Tag, wish: &Wish<'_>, bytes: u64) -> Result<Permit, MirrorError> {
        if let Err(refused) = self.gate.weigh(&wish.model, bytes, wish.asker) {
            lock(&state.known).large = Some((Instant::now(), bytes));
            return Err(refused);
        }
        self.gate.enter(&wish.model)
    }

    /// Begins to fetch what was found, unless it is here.
    async fn take(
        self: &Arc<Self>,
        state: &Arc<Tag>,
        wish: Wish<'_>,
        found: Found,
    ) -> Result<Manifest, MirrorError> {
        // A model of Ollama's need not say what it is; other packagings do.
        let manifest = Manifest::parse(found.bytes().clone(), Some(puna_store::media::MANIFEST))
            .or_else(|_| Manifest::parse(found.bytes().clone(), None))
            .map_err(|error| MirrorError::Upstream(format!("{}: {error}", wish.model)))?;
        let is_same = wish.stored.as_ref().is_some_and(|stored| stored.digest == manifest.digest);
        if is_same && self.has_all(&manifest).await? {
            lock(&state.known).said = Some((Instant::now(), self.library.lost()));
            lock(&self.fetches).hits += 1;
            return Ok(manifest);
        }
        let permit = match self.admit(state, &wish, manifest.size()) {
            Ok(permit) => permit,
            Err(refused) => return wish.stored.ok_or(refused),
        };
        lock(&state.known).said = Some((Instant::now(), self.library.lost()));
        lock(&self.fetches).misses += 1;
        tracing::info!(model = %wish.model, digest = %manifest.digest, "fetching");
        let first = found.completed(&self.store);
        let pending = Arc::new(Pending { first, found, manifest: manifest.clone() });
        lock(&state.known).pending = Some(pending.clone());
        let replaced = wish.stored.map(|stored| stored.digest);
        tokio::spawn(self.clone().bring(
            state.clone(),
            wish.name.clone(),
            wish.model,
            pending,
            replaced,
            permit,
        ));
        Ok(manifest)
    }

    /// Fetches what is pending.
    async fn bring(
        self: Arc<Self>,
        state: Arc<Tag>,
        name: Repository,
        model: ModelName,
        pending: Arc<Pending>,
        replaced: Option<Digest>,
        _permit: Permit,
    ) {
        let fetched = std::panic::AssertUnwindSafe(self.fetch(&name, &model, &pending)).catch_unwind().await;
        let is_whole = fetched.as_ref().is_ok_and(Result::is_ok);
        if is_whole {
            self.history.arrived(&name, model.tag(), pending.manifest.digest, By::Fetch, replaced);
        }
        let arrived = self.arrived(&pending, is_whole);
        let mut known = lock(&state.known);
        known.pending = None;
        lock(&self.fetches).bytes += arrived;
        match fetched {
            Ok(Ok(())) => tracing::info!(%model, "fetched"),
            failed => {
                known.said = None;
                lock(&self.fetches).failures += 1;
                let error = failed.map(|fetched| fetched.err().map(|error| error.to_string()));
                tracing::warn!(%model, error = ?error.ok().flatten(), "fetching failed");
            }
        }
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

    /// Waits as long as blobs of a manifest are being fetched: who asked for them was told that they are here, and did not push them.
    async fn arrived_all(&self, manifest: &Manifest) -> Result<(), MirrorError> {
        let arrived = async {
            for blob in &manifest.blobs {
                let is_fetched =
                    || self.pending(|pending| pending.found.size(&blob.digest).is_some()).is_some();
                while self.library.blob(blob.digest).await?.is_none() && is_fetched() {
                    tokio::time::sleep(LOOK).await;
                }
            }
            Ok(())
        };
        let late = "blobs of this manifest are still being fetched from an upstream: ask again in a while";
        let arrived = tokio::time::timeout(ARRIVAL, arrived).await;
        arrived.unwrap_or_else(|_| Err(MirrorError::Later(late.into())))
    }

    /// What is being fetched and has something.
    fn pending(&self, has: impl Fn(&Pending) -> bool) -> Option<Arc<Pending>> {
        let tags: Vec<_> = lock(&self.tags).values().cloned().collect();
        tags.iter().find_map(|tag| lock(&tag.known).pending.clone().filter(|pending| has(pending)))
    }

    /// Whether a model is being fetched.
    fn is_coming(&self, model: &ModelName) -> bool {
        let tag = lock(&self.tags).get(model).cloned();
        tag.is_some_and(|tag| {
            let known = lock(&tag.known);
            known.pending.is_some() || known.making.is_some()
        })
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
        error if error.is_of_this_machine() => MirrorError::Internal(error.to_string()),
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
        self.manifest_for(name, reference, Asker::Known)
    }

    fn manifest_for<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
        asker: Asker,
    ) -> Answer<'a, Option<Manifest>> {
        Box::pin(async move {
            match reference {
                Reference::Tag(tag) => self.0.tagged(name, tag, asker).await,
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
            self.0.arrived_all(&manifest).await?;
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

    fn retire<'a>(&'a self, name: &'a Repository, tag: Option<&'a str>, digest: Digest) -> Answer<'a, bool> {
        Box::pin(async move {
            match tag.and_then(|tag| self.0.upstreams.model(name, tag)) {
                Some(model) if self.0.is_coming(&model) => Ok(false),
                _ => self.0.library.retire(name, tag, digest).await,
            }
        })
    }

    fn notes(&self) -> &dyn Notes {
        self.0.library.notes()
    }

    fn shown(&self) -> Answer<'_, Vec<Shown>> {
        Box::pin(async move {
            let mut shown = self.0.library.shown().await?;
            for (model, pending) in self.0.all_pending() {
                let Some(name) = Repository::of_model(&model) else { continue };
                let (tag, manifest) = (model.tag().to_owned(), &pending.manifest);
                let completed = Some(pending.found.completed(&self.0.store));
                let (digest, size, whose) = (manifest.digest, manifest.size(), Whose::Registry);
                shown.push(Shown { name, tag, digest, size, completed, whose, written: None });
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
        fetches.refused = self.0.gate.refused();
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

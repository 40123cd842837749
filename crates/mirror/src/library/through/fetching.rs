//! Models of registries: their blobs come to where they stay, and are handed on meanwhile.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use puna_registry::{Found, Running};
use puna_store::{Digest, Entry, ModelName};

use super::asking::Wish;
use super::coming::{Coming, Of, Pending};
use super::sizes::Said;
use super::tags::{State, Tag, Why};
use super::{Inner, broken, of_model};
use crate::error::MirrorError;
use crate::history::By;
use crate::library::arriving::Arriving;
use crate::library::upstreams::Permit;
use crate::lock::lock;
use crate::manifest::{Kind, Manifest};
use crate::name::{Reference, Repository};
use crate::waiting::blocking;

/// How long a manifest waits for blobs that are being fetched.
const ARRIVAL: Duration = Duration::from_secs(20);
/// How often it is looked whether they are here.
const LOOK: Duration = Duration::from_millis(50);

impl Inner {
    /// Begins to fetch what was found, unless it is here.
    pub(super) async fn take(
        self: &Arc<Self>,
        tag: &Arc<Tag>,
        wish: Wish<'_>,
        found: Found,
    ) -> Result<Option<Manifest>, MirrorError> {
        // A model of Ollama's need not say what it is; other packagings do.
        let manifest = Manifest::parse(found.bytes().clone(), Some(puna_store::media::MANIFEST))
            .or_else(|_| Manifest::parse(found.bytes().clone(), None));
        let manifest = match manifest {
            Ok(manifest) => manifest,
            Err(error) => {
                let error = of_model(&wish.model, MirrorError::Upstream(error.to_string()));
                return self.give_up(tag, wish, Why::Failed(error));
            }
        };
        let said = self.said();
        let is_same = wish.stored.as_ref().is_some_and(|stored| stored.digest == manifest.digest);
        if is_same && self.has_all(&manifest).await? {
            tag.set(State::Said(said));
            return Ok(self.hit(Some(manifest)));
        }
        let permit = match self.admit(&wish, manifest.size()) {
            Ok(permit) => permit,
            Err(why) => return self.give_up(tag, wish, why),
        };
        let noted = self.sizes.note(&*self.library, wish.name, &manifest);
        let (noted, elsewhere) = tokio::join!(noted, self.elsewhere(&manifest));
        if let Err(error) = noted {
            // Nobody is given it: nothing would say how large its blobs are.
            return self.give_up(tag, wish, Why::Failed(error));
        }
        let found = found.without(elsewhere?);
        tracing::info!(model = %wish.model, digest = %manifest.digest, "fetching");
        let of = Of::new(&wish, said, found.completed(&self.store).await);
        let pending = Arc::new(Pending { of, found, manifest: manifest.clone() });
        self.begin(Coming::Blobs(pending.clone()));
        puna_tasks::spawn(self.clone().bring(tag.clone(), pending, permit));
        Ok(Some(manifest))
    }

    /// Something is on its way.
    pub(super) fn begin(&self, coming: Coming) {
        lock(&self.fetches).misses += 1;
        self.tags.begin(coming);
        self.moves.fetch_add(1, Relaxed);
    }

    /// Notes that it has come, and which model of the store it has replaced, if one.
    pub(super) async fn came(&self, of: &Of, digest: Digest, replaced: Option<Entry>) {
        let (tag, notes) = (Reference::Tag(of.model.tag().to_owned()), self.library.notes());
        self.history.came(notes, &of.name, &tag, digest, By::Fetch, replaced.as_ref()).await;
    }

    /// It is here, or does not come: then nobody tries that again for a while.
    pub(super) async fn end(&self, tag: &Tag, coming: &Coming, fetched: Result<(), MirrorError>) {
        let Of { model, said, .. } = coming.of();
        let state = match fetched {
            Ok(()) => {
                tracing::info!(%model, "fetched");
                coming.all_came();
                State::Said(*said)
            }
            Err(error) => {
                tracing::warn!(%model, %error, "fetching failed");
                State::Rests(Instant::now(), Why::Failed(error))
            }
        };
        let arrived = coming.arrived(&self.registry, &self.store).await;
        // Whoever counts sees all of it or nothing.
        let mut fetches = lock(&self.fetches);
        fetches.bytes += arrived;
        fetches.failures += u64::from(matches!(state, State::Rests(..)));
        tag.set(state);
        self.tags.end(model);
        self.moves.fetch_add(1, Relaxed);
    }

    /// Fetches what is pending.
    async fn bring(self: Arc<Self>, tag: Arc<Tag>, pending: Arc<Pending>, _permit: Permit) {
        let fetched = AssertUnwindSafe(async {
            let replaced = self.fetch(&pending).await?;
            self.came(&pending.of, pending.manifest.digest, replaced).await;
            Ok(())
        });
        let fetched = fetched.catch_unwind().await;
        let fetched = fetched.unwrap_or_else(|panic| Err(MirrorError::of_panic(&*panic)));
        let fetched = fetched.map_err(|error| of_model(&pending.of.model, error));
        self.end(&tag, &Coming::Blobs(pending), fetched).await;
    }

    /// Fetches a model to where it stays, and says which one of the store it replaced. Another packaging than Ollama's is kept as it came,
    /// where no Ollama looks: whoever asks for it reads it as it is, and our own client makes a model of it.
    async fn fetch(&self, pending: &Pending) -> Result<Option<Entry>, MirrorError> {
        let Pending { of: Of { name, model, .. }, found, manifest } = pending;
        let tag = Reference::Tag(model.tag().to_owned());
        if manifest.kind == Kind::Model && !self.library.is_elsewhere() {
            let replaced = found.fetch(&self.store).await.map_err(broken)?;
            let served = self.library.manifest(name, &tag).await?;
            if served.is_some_and(|served| served.digest != manifest.digest) {
                // The tag stands for a list or an image, which would hide the model.
                self.library.put_manifest(name, &tag, manifest.clone()).await?;
            }
            return Ok(replaced);
        }
        let kept = found.fetch_blobs(&self.store).await.map_err(broken)?;
        if self.library.land(name, &tag, manifest.clone(), &self.store).await? {
            drop(kept);
            let blobs: Vec<Digest> = manifest.blobs.iter().map(|blob| blob.digest).collect();
            let store = self.store.clone();
            blocking(move || Ok(store.discard_blobs(&blobs)?)).await?;
            return Ok(None);
        }
        self.library.put_manifest(name, &tag, manifest.clone()).await
    }

    /// The blobs of a manifest that need not be fetched, because a library elsewhere has them.
    async fn elsewhere(&self, manifest: &Manifest) -> Result<HashSet<Digest>, MirrorError> {
        let mut there = HashSet::new();
        if self.library.is_elsewhere() {
            for blob in &manifest.blobs {
                let kept = self.library.blob(blob.digest).await?;
                there.extend(kept.filter(|kept| kept.size() == blob.size).map(|_| blob.digest));
            }
        }
        Ok(there)
    }

    /// Hands a model of the store to where the library keeps it, if that is elsewhere.
    pub(super) async fn hand_over(
        &self,
        model: &ModelName,
        manifest: Manifest,
    ) -> Result<(), MirrorError> {
        let Some(name) = Repository::of_model(model) else { return Ok(()) };
        let tag = Reference::Tag(model.tag().to_owned());
        if self.library.land(&name, &tag, manifest, &self.store).await? {
            let (store, model) = (self.store.clone(), model.clone());
            blocking(move || Ok(store.delete(&model).map(drop)?)).await?;
        }
        Ok(())
    }

    /// Waits as long as blobs of a manifest are being fetched: who asked for them was told that they are here, and did not push them.
    pub(super) async fn arrived_all(&self, manifest: &Manifest) -> Result<(), MirrorError> {
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
        let late =
            "blobs of this manifest are still being fetched from an upstream: ask again in a while";
        let arrived = tokio::time::timeout(ARRIVAL, arrived).await;
        arrived.unwrap_or_else(|_| Err(MirrorError::Later(late.into())))
    }

    /// What is being fetched and has something.
    pub(super) fn pending(&self, has: impl Fn(&Pending) -> bool) -> Option<Arc<Pending>> {
        self.tags.all_coming().into_iter().find_map(|coming| match coming {
            Coming::Blobs(pending) => Some(pending).filter(|pending| has(pending)),
            Coming::Files(_) => None,
        })
    }

    /// The manifest of what is being fetched, for somebody who asks for it in a repository: one of another repository is not of this one.
    pub(super) async fn pending_manifest(
        &self,
        name: &Repository,
        digest: Digest,
    ) -> Result<Option<Manifest>, MirrorError> {
        let is_of =
            |of: &Of| self.upstreams.model(name, of.model.tag()).as_ref() == Some(&of.model);
        let pending =
            self.pending(|pending| pending.manifest.digest == digest && is_of(&pending.of));
        let Some(pending) = pending else { return Ok(None) };
        self.sizes.note(&*self.library, name, &pending.manifest).await?;
        Ok(Some(pending.manifest.clone()))
    }

    /// A blob that is being fetched, for somebody who asks for it in a repository: what another one says of it does not count there.
    pub(super) async fn arriving(
        &self,
        name: Option<&Repository>,
        digest: Digest,
    ) -> Result<Option<Arriving>, MirrorError> {
        let Some((size, running)) = self.coming_blob(name, digest) else { return Ok(None) };
        let said = match name {
            Some(name) => self.said_of(name, digest).await,
            None => None,
        };
        Ok(Some(self.arriving_of(digest, size, running, said == Some(Said::Bytes(size)))))
    }

    /// What the manifests of a repository say of a blob. What cannot be read says nothing: fetching goes on, and the blob is given when it
    /// is right.
    pub(super) async fn said_of(&self, name: &Repository, digest: Digest) -> Option<Said> {
        self.sizes.of(&*self.library, name, digest).await.unwrap_or_else(|error| {
            tracing::warn!(repository = %name, %digest, %error, "how large blobs are cannot be read: this one is given when it is here");
            Some(Said::Anything)
        })
    }

    /// A blob that arrives.
    pub(super) fn arriving_of(
        &self,
        digest: Digest,
        size: u64,
        running: Running,
        is_vouched: bool,
    ) -> Arriving {
        Arriving { library: self.library.clone(), digest, size, running, is_vouched }
    }

    /// The download of a blob, and how large it is.
    fn coming_blob(&self, name: Option<&Repository>, digest: Digest) -> Option<(u64, Running)> {
        let has = |pending: &Pending| pending.found.size(&digest).is_some();
        let own = self.pending(|pending| name == Some(&pending.of.name) && has(pending));
        let pending = own.or_else(|| self.pending(has))?;
        let size = pending.found.size(&digest)?;
        Some((size, pending.found.running(&self.store, digest)?))
    }
}

//! Manifest lists of upstreams: the library keeps the list as it came, and fetches a child when a client asks for it.

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use puna_registry::{Found, Options, Registry, RegistryError, TagContent};
use puna_store::{Digest, ModelName, ModelRef, media};

use super::asking::{Wish, is_absence};
use super::tags::{State, Tag, Why};
use super::{Inner, broken, of_model};
use crate::error::MirrorError;
use crate::history::By;
use crate::library::upstreams::{Asker, Permit};
use crate::lock::{Turns, lock};
use crate::manifest::{Kind, Manifest};
use crate::name::{Reference, Repository};
use crate::via;
use crate::waiting::blocking;

/// The tag of the model by which the upstream of a repository is found.
const ANY_TAG: &str = "latest";
/// The largest number of failed, and of kept, children that are remembered.
const MAX_REMEMBERED: usize = 10_000;

/// What an upstream has under a tag.
pub enum UpstreamManifest {
    /// A model.
    Model(Box<Found>),
    /// A manifest list, as it came.
    List(Bytes),
}

/// Asks upstream registries for manifests.
pub trait UpstreamLookup: Send + Sync + 'static {
    /// Looks for what a tag stands for.
    fn look_up_tag<'a>(
        &'a self,
        reference: &'a ModelRef,
        options: &'a Options,
    ) -> BoxFuture<'a, Result<UpstreamManifest, RegistryError>>;

    /// Fetches a manifest of the model's repository by its digest.
    fn fetch_manifest<'a>(
        &'a self,
        reference: &'a ModelRef,
        digest: Digest,
        options: &'a Options,
    ) -> BoxFuture<'a, Result<Bytes, RegistryError>>;
}

impl UpstreamLookup for Registry {
    fn look_up_tag<'a>(
        &'a self,
        reference: &'a ModelRef,
        options: &'a Options,
    ) -> BoxFuture<'a, Result<UpstreamManifest, RegistryError>> {
        Box::pin(async {
            Ok(match Registry::look_up_tag(self, reference, options).await? {
                TagContent::Model(found) => UpstreamManifest::Model(found),
                TagContent::List(bytes) => UpstreamManifest::List(bytes),
            })
        })
    }

    fn fetch_manifest<'a>(
        &'a self,
        reference: &'a ModelRef,
        digest: Digest,
        options: &'a Options,
    ) -> BoxFuture<'a, Result<Bytes, RegistryError>> {
        Box::pin(Registry::fetch_manifest(self, reference, digest, options))
    }
}

/// A child of a list in the repository of a model.
type Key = (ModelName, Digest);

/// Children that are being fetched, or that could not be a short while ago.
#[derive(Default)]
pub(super) struct Children {
    /// Held while a client asks for a child; the others wait.
    asking: Turns<Key>,
    running: Mutex<HashMap<Key, Manifest>>,
    failed: Mutex<HashMap<Key, (Instant, Option<MirrorError>)>>,
    /// Children that the library keeps by themselves.
    adopted: Mutex<HashSet<Key>>,
}

impl Children {
    /// How many are being fetched.
    pub(super) fn running(&self) -> u64 {
        lock(&self.running).len() as u64
    }

    fn manifest(&self, key: &Key) -> Option<Manifest> {
        lock(&self.running).get(key).cloned()
    }

    fn is_adopted(&self, key: &Key) -> bool {
        lock(&self.adopted).contains(key)
    }

    fn mark_adopted(&self, key: Key) {
        let mut adopted = lock(&self.adopted);
        if adopted.len() >= MAX_REMEMBERED {
            adopted.clear();
        }
        adopted.insert(key);
    }

    /// Remembers that a child cannot be had; without an error the upstream has none.
    fn fail(&self, key: Key, error: Option<MirrorError>) {
        let mut failed = lock(&self.failed);
        if failed.len() >= MAX_REMEMBERED {
            failed.clear();
        }
        failed.insert(key, (Instant::now(), error));
    }
}

impl Inner {
    /// Keeps a list that an upstream has under a tag.
    pub(super) async fn take_list(
        &self,
        tag: &Arc<Tag>,
        wish: Wish<'_>,
        bytes: Bytes,
    ) -> Result<Option<Manifest>, MirrorError> {
        let said = self.said();
        let list = match Manifest::parse(bytes, None) {
            Ok(list) => list,
            Err(error) => {
                let error = of_model(&wish.model, MirrorError::Upstream(error.to_string()));
                return self.give_up(tag, wish, Why::Failed(error));
            }
        };
        if wish.stored.as_ref().is_some_and(|stored| stored.digest == list.digest) {
            tag.set(State::Said(said));
            return Ok(self.hit(wish.stored));
        }
        // Before a client gets it, as it says how large blobs are.
        let noted = self.sizes.note(&*self.library, wish.name, &list).await;
        let kept = match noted {
            Ok(()) => {
                self.library.put_upstream_list(wish.name, wish.model.tag(), list.clone()).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = kept {
            return self.give_up(tag, wish, Why::Failed(error));
        }
        tracing::info!(model = %wish.model, digest = %list.digest, "kept a manifest list");
        let (notes, of) = (self.library.notes(), Reference::Tag(wish.model.tag().to_owned()));
        self.history.came(notes, wish.name, &of, list.digest, By::Fetch, None).await;
        lock(&self.fetches).misses += 1;
        self.moves.fetch_add(1, Relaxed);
        tag.set(State::Said(said));
        Ok(Some(list))
    }

    /// Returns a manifest by its digest, and begins to fetch what is missing of a child of an upstream's list.
    pub(super) async fn complete_child(
        self: &Arc<Self>,
        name: &Repository,
        digest: Digest,
        here: Option<Manifest>,
        asker: Asker,
    ) -> Result<Option<Manifest>, MirrorError> {
        let upstream =
            self.upstreams.model(name, ANY_TAG).filter(|_| self.upstreams.may_fetch(name));
        let Some(model) = upstream else { return Ok(here) };
        if self.library.lists_with(name, digest).await?.is_empty() {
            return Ok(here);
        }
        let key = (model, digest);
        let _asking = self.children.asking.wait(key.clone()).await;
        if let Some(running) = self.children.manifest(&key) {
            return Ok(Some(running));
        }
        if let Some(here) = &here
            && self.has_all(here).await?
        {
            self.adopt(key, name, here).await;
            return Ok(Some(here.clone()));
        }
        let failed = lock(&self.children.failed).get(&key).cloned();
        if let Some((_, error)) = failed.filter(|(since, _)| since.elapsed() < self.rest) {
            return error.filter(|_| here.is_none()).map_or(Ok(here), Err);
        }
        let fetched = match here {
            Some(here) => Ok(Some(here)),
            None => self.fetch_child(&key).await,
        };
        let Some(child) =
            fetched.inspect_err(|error| self.children.fail(key.clone(), Some(error.clone())))?
        else {
            self.children.fail(key, None);
            return Ok(None);
        };
        if self.gate.is_too_large(child.size(), asker) {
            return Err(self.gate.too_large(&key.0, child.size()));
        }
        let permit = self.gate.enter().ok_or_else(|| self.gate.full(&key.0))?;
        self.sizes.note(&*self.library, name, &child).await?;
        tracing::info!(model = %key.0, %digest, "fetching a child of a manifest list");
        lock(&self.children.running).insert(key.clone(), child.clone());
        lock(&self.fetches).misses += 1;
        self.moves.fetch_add(1, Relaxed);
        let options = Options { via: via::told(), ..Options::default() };
        puna_tasks::spawn(self.clone().bring_child(
            key,
            name.clone(),
            child.clone(),
            options,
            permit,
        ));
        Ok(Some(child))
    }

    /// Fetches the manifest of a child; `None` if the upstream does not have it.
    async fn fetch_child(&self, (model, digest): &Key) -> Result<Option<Manifest>, MirrorError> {
        let reference = ModelRef::of(model.clone());
        let options = Options { via: via::told(), ..Options::default() };
        let wrong = |why: String| {
            of_model(model, MirrorError::Upstream(format!("the child {digest} {why}")))
        };
        let bytes = match self.lookup.fetch_manifest(&reference, *digest, &options).await {
            Ok(bytes) => bytes,
            Err(error) if is_absence(&error) => return Ok(None),
            Err(error) => return Err(of_model(model, broken(error))),
        };
        let child = Manifest::parse(bytes.clone(), Some(media::MANIFEST))
            .or_else(|_| Manifest::parse(bytes, None))
            .map_err(|error| wrong(format!("is {error}")))?;
        if child.digest != *digest {
            return Err(wrong(format!("has the digest {}", child.digest)));
        }
        match child.kind {
            Kind::List | Kind::Index => Err(wrong("is a list itself".into())),
            _ => Ok(Some(child)),
        }
    }

    /// Keeps a child by itself whose blobs are all here, so that they stay.
    async fn adopt(&self, key: Key, name: &Repository, child: &Manifest) {
        if self.children.is_adopted(&key) {
            return;
        }
        let of = Reference::Digest(child.digest);
        match self.library.put_manifest(name, &of, child.clone()).await {
            Ok(_) => self.children.mark_adopted(key),
            Err(error) => {
                tracing::warn!(repository = %name, digest = %child.digest, %error, "a child of a manifest list is not kept")
            }
        }
    }

    async fn bring_child(
        self: Arc<Self>,
        key: Key,
        name: Repository,
        child: Manifest,
        options: Options,
        permit: Permit,
    ) {
        let (model, digest) = (&key.0, key.1);
        let fetched =
            AssertUnwindSafe(self.fetch_blobs(model, &name, &child, &options)).catch_unwind().await;
        let fetched = fetched.unwrap_or_else(|panic| Err(MirrorError::of_panic(&*panic)));
        drop(permit);
        match &fetched {
            Ok(()) => tracing::info!(%model, %digest, "fetched"),
            Err(error) => tracing::warn!(%model, %digest, %error, "fetching failed"),
        }
        lock(&self.fetches).failures += u64::from(fetched.is_err());
        lock(&self.children.running).remove(&key);
        if let Err(error) = fetched {
            let error = of_model(&key.0, error);
            self.children.fail(key, Some(error));
        }
        self.moves.fetch_add(1, Relaxed);
    }

    /// Fetches the blobs of a child, the small ones first, and keeps the child.
    async fn fetch_blobs(
        &self,
        model: &ModelName,
        name: &Repository,
        child: &Manifest,
        options: &Options,
    ) -> Result<(), MirrorError> {
        let reference = ModelRef::of(model.clone());
        let mut blobs: Vec<(u64, Digest)> = child
            .blobs
            .iter()
            .map(|blob| (blob.size, blob.digest))
            .collect::<HashSet<_>>()
            .into_iter()
            .collect();
        blobs.sort_unstable();
        let mut held = Vec::new();
        for (size, digest) in blobs {
            if self.library.blob(digest).await?.is_some_and(|blob| blob.size() == size) {
                continue;
            }
            let found =
                self.registry.look_blob(&reference, digest, options).await.map_err(broken)?;
            if found.size() != size {
                return Err(MirrorError::Upstream(format!(
                    "the blob {digest} has {} bytes there, but its manifest says {size}",
                    found.size()
                )));
            }
            let before = found.completed(&self.store).await;
            held.push(found.fetch(&self.store).await.map_err(broken)?);
            lock(&self.fetches).bytes += size.saturating_sub(before);
        }
        let of = Reference::Digest(child.digest);
        if !self.library.land(name, &of, child.clone(), &self.store).await? {
            return self.library.put_manifest(name, &of, child.clone()).await.map(drop);
        }
        drop(held);
        let (store, blobs) =
            (self.store.clone(), child.blobs.iter().map(|blob| blob.digest).collect::<Vec<_>>());
        blocking(move || Ok(store.discard_blobs(&blobs)?)).await
    }
}

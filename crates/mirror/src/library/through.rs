//! A library that asks elsewhere for what it does not have, and hands it on while it arrives.

mod asking;
mod coming;
mod fetching;
mod lists;
mod making;
mod sizes;
mod strays;
mod tags;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use puna_registry::{Registry, RegistryError};
use puna_store::{Digest, Entry, ModelName, Store};

use super::upstreams::{Asker, Gate, Upstreams};
use super::{Blob, Fetches, Library, Part};
use crate::error::MirrorError;
use crate::history::History;
use crate::holding::{Doomed, Holding, Shown, Whose};
use crate::id::UploadId;
use crate::lock::lock;
use crate::manifest::{Descriptor, Manifest};
use crate::name::{Reference, Repository};
use crate::notes::Notes;
use crate::waiting::Answer;
use coming::Coming;
use lists::Children;
use sizes::Sizes;
use strays::Strays;
use tags::{MAX_TAGS, Tags};

pub use lists::{UpstreamLookup, UpstreamManifest};

/// How long nobody is asked again who did not answer, or did not have something, or nothing was fetched of it.
const REST: Duration = Duration::from_secs(20);

/// A library before which registries stand that have more.
pub struct Through(Arc<Inner>);

struct Inner {
    library: Arc<dyn Library>,
    store: Arc<Store>,
    registry: Registry,
    lookup: Arc<dyn UpstreamLookup>,
    upstreams: Upstreams,
    gate: Gate,
    history: History,
    tags: Tags,
    strays: Strays,
    sizes: Sizes,
    children: Children,
    rest: Duration,
    /// Of downloads that have ended.
    fetches: Mutex<Fetches>,
    /// Downloads of models that have begun, and that have ended.
    moves: AtomicU64,
}

impl Through {
    /// A library with what others have.
    pub fn new(
        library: Arc<dyn Library>,
        store: Arc<Store>,
        registry: Registry,
        upstreams: Upstreams,
        history: History,
    ) -> Self {
        Self(Arc::new(Inner {
            library,
            store,
            lookup: Arc::new(registry.clone()),
            registry,
            gate: Gate::new(&upstreams),
            upstreams,
            history,
            tags: Tags::new(MAX_TAGS),
            strays: Strays::default(),
            sizes: Sizes::default(),
            children: Children::default(),
            rest: REST,
            fetches: Mutex::default(),
            moves: AtomicU64::default(),
        }))
    }

    /// Asks upstreams for manifests in another way. Called before anything else has the library.
    #[must_use]
    pub fn with_lookup(mut self, lookup: Arc<dyn UpstreamLookup>) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.lookup = lookup;
        }
        self
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
    /// What is on its way. What is made of files is nobody's to see before it is here.
    fn coming(&self) -> Vec<Holding> {
        let held = |coming| {
            let Coming::Blobs(pending) = coming else { return None };
            let name = Repository::of_model(&pending.of.model)?;
            Some(Holding::of_manifest(name, &pending.manifest, None))
        };
        self.tags.all_coming().into_iter().filter_map(held).collect()
    }
}

impl Inner {
    /// A blob that is here or on its way, for somebody who asks for it in a repository.
    async fn blob(
        &self,
        name: Option<&Repository>,
        digest: Digest,
    ) -> Result<Option<Box<dyn Blob>>, MirrorError> {
        if let Some(blob) = self.library.blob(digest).await? {
            return Ok(Some(blob));
        }
        match self.arriving(name, digest).await? {
            Some(arriving) => Ok(Some(Box::new(arriving) as Box<dyn Blob>)),
            // It may have become whole between the two.
            None => self.library.blob(digest).await,
        }
    }
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
                Reference::Digest(digest) => {
                    let here = match self.0.library.manifest(name, reference).await? {
                        Some(manifest) => Some(manifest),
                        None => self.0.pending_manifest(name, *digest).await?,
                    };
                    self.0.complete_child(name, *digest, here, asker).await
                }
            }
        })
    }

    fn blob(&self, digest: Digest) -> Answer<'_, Option<Box<dyn Blob>>> {
        Box::pin(self.0.blob(None, digest))
    }

    fn blob_for<'a>(
        &'a self,
        name: &'a Repository,
        digest: Digest,
        asker: Asker,
    ) -> Answer<'a, Option<Box<dyn Blob>>> {
        Box::pin(async move {
            if let Some(blob) = self.0.blob(Some(name), digest).await? {
                return Ok(Some(blob));
            }
            let stray = self.0.stray(name, digest, asker).await?;
            Ok(stray.map(|stray| Box::new(stray) as Box<dyn Blob>))
        })
    }

    fn vouches<'a>(&'a self, name: &'a Repository, digest: Digest) -> Answer<'a, bool> {
        Box::pin(self.0.vouched(name, digest))
    }

    fn put_manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
        manifest: Manifest,
    ) -> Answer<'a, Option<Entry>> {
        Box::pin(async move {
            self.own(name)?;
            self.0.arrived_all(&manifest).await?;
            self.0.library.put_manifest(name, reference, manifest).await
        })
    }

    fn put_upstream_list<'a>(
        &'a self,
        name: &'a Repository,
        tag: &'a str,
        manifest: Manifest,
    ) -> Answer<'a, ()> {
        self.0.library.put_upstream_list(name, tag, manifest)
    }

    fn lists_with<'a>(&'a self, name: &'a Repository, child: Digest) -> Answer<'a, Vec<Digest>> {
        self.0.library.lists_with(name, child)
    }

    fn land<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
        manifest: Manifest,
        store: &'a Store,
    ) -> Answer<'a, bool> {
        self.0.library.land(name, reference, manifest, store)
    }

    fn mount<'a>(&'a self, name: &'a Repository, digest: Digest) -> Answer<'a, bool> {
        Box::pin(async move {
            self.own(name)?;
            // What arrives just now is no blob of the library yet: its bytes are to be pushed.
            self.0.library.mount(name, digest).await
        })
    }

    fn begin<'a>(&'a self, name: &'a Repository, owner: &'a str) -> Answer<'a, UploadId> {
        Box::pin(async move {
            self.own(name)?;
            self.0.library.begin(name, owner).await
        })
    }

    fn remove_manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
    ) -> Answer<'a, bool> {
        self.0.library.remove_manifest(name, reference)
    }

    fn retire(&self, doomed: Vec<Doomed>) -> Answer<'_, Vec<Result<bool, MirrorError>>> {
        Box::pin(async move {
            let is_coming = |one: &Doomed| {
                let model = self.0.upstreams.model(&one.name, one.tag.as_deref()?)?;
                Some(self.0.tags.coming(&model).is_some())
            };
            let coming: Vec<bool> =
                doomed.iter().map(|one| is_coming(one).unwrap_or(false)).collect();
            let still =
                doomed.into_iter().zip(&coming).filter(|(_, coming)| !**coming).map(|(one, _)| one);
            let mut done = self.0.library.retire(still.collect()).await?.into_iter();
            let of = |coming| if coming { None } else { done.next() };
            Ok(coming.into_iter().map(of).map(|done| done.unwrap_or(Ok(false))).collect())
        })
    }

    fn notes(&self) -> &dyn Notes {
        self.0.library.notes()
    }

    fn sizes(&self, name: &Repository) -> Box<dyn Notes> {
        self.0.library.sizes(name)
    }

    fn shown(&self) -> Answer<'_, Vec<Shown>> {
        Box::pin(async move {
            let mut shown = self.0.library.shown().await?;
            for coming in self.0.tags.all_coming() {
                let model = &coming.of().model;
                let Some(name) = Repository::of_model(model) else { continue };
                let (tag, whose) = (model.tag().to_owned(), Whose::Registry);
                let (digest, size) = (coming.digest(), coming.size());
                let completed = Some(coming.completed(&self.0.registry, &self.0.store).await);
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

    fn fetches(&self) -> BoxFuture<'_, Fetches> {
        Box::pin(async move {
            let (mut fetches, coming) = {
                let fetches = lock(&self.0.fetches);
                (*fetches, self.0.tags.all_coming())
            };
            fetches.refused = self.0.gate.refused();
            fetches.running = coming.len() as u64 + self.0.children.running();
            for one in &coming {
                fetches.bytes += one.arrived(&self.0.registry, &self.0.store).await;
            }
            fetches
        })
    }

    fn fetches_begun_and_ended(&self) -> u64 {
        self.0.moves.load(Relaxed)
    }

    fn holdings(&self) -> Answer<'_, Vec<Holding>> {
        Box::pin(async move {
            let mut holdings = self.0.library.holdings().await?;
            holdings.extend(self.0.coming());
            Ok(holdings)
        })
    }

    fn holdings_in<'a>(&'a self, namespace: &'a str) -> Answer<'a, Vec<Holding>> {
        Box::pin(async move {
            let mut holdings = self.0.library.holdings_in(namespace).await?;
            holdings.extend(self.0.coming().into_iter().filter(|held| held.name.is_in(namespace)));
            Ok(holdings)
        })
    }

    fn holdings_of<'a>(&'a self, name: &'a Repository) -> Answer<'a, Vec<Holding>> {
        Box::pin(async move {
            let mut holdings = self.0.library.holdings_of(name).await?;
            holdings.extend(self.0.coming().into_iter().filter(|held| held.name == *name));
            Ok(holdings)
        })
    }

    fn needs<'a>(&'a self, name: &'a Repository, digest: Digest) -> Answer<'a, bool> {
        Box::pin(async move {
            let comes =
                || self.0.coming().iter().any(|held| held.name == *name && held.has(&digest));
            Ok(self.0.library.needs(name, digest).await? || comes())
        })
    }

    fn repositories(&self) -> Answer<'_, Vec<Repository>> {
        self.0.library.repositories()
    }

    fn referrers<'a>(
        &'a self,
        name: &'a Repository,
        subject: Digest,
    ) -> Answer<'a, Vec<Descriptor>> {
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

    fn finish<'a>(
        &'a self,
        name: &'a Repository,
        id: &'a UploadId,
        digest: Digest,
    ) -> Answer<'a, ()> {
        self.0.library.finish(name, id, digest)
    }

    fn cancel<'a>(&'a self, name: &'a Repository, id: &'a UploadId) -> Answer<'a, ()> {
        self.0.library.cancel(name, id)
    }
}

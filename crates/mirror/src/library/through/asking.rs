//! What a tag stands for: what is here, as long as that is fresh, and then what an upstream says.

use std::sync::Arc;
use std::time::Instant;

use puna_registry::{Options, RegistryError};
use puna_store::{Digest, ModelName, ModelRef};
use tokio::sync::MutexGuard;

use super::coming::Coming;
use super::lists::UpstreamManifest;
use super::making::Files;
use super::tags::{Said, State, Tag, Why};
use super::{Inner, broken, of_model};
use crate::error::MirrorError;
use crate::library::upstreams::{Asker, Permit};
use crate::lock::lock;
use crate::manifest::{Manifest, OCI_MANIFEST};
use crate::name::{Reference, Repository};
use crate::via;

/// What is to be fetched, for whom, and what of it is here.
pub(super) struct Wish<'a> {
    pub(super) name: &'a Repository,
    pub(super) model: ModelName,
    pub(super) asker: Asker,
    pub(super) stored: Option<Manifest>,
}

impl Wish<'_> {
    /// Whether what is here was made of that.
    pub(super) fn is_made_of(&self, origin: Digest) -> bool {
        let mut blobs = self.stored.iter().flat_map(|stored| &stored.blobs);
        blobs.any(|blob| blob.digest == origin && blob.media_type == OCI_MANIFEST)
    }
}

impl Inner {
    /// What a tag stands for.
    pub(super) async fn tagged(
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
        let tag = self.tags.of(&model);
        let asking = tag.asking.lock().await;
        // Before it is looked what is here: that is written first when it ends.
        let coming = self.tags.coming(&model);
        if let Some(Coming::Blobs(pending)) = coming {
            // A model has more than one name, and nobody need have been given it under this one.
            self.sizes.note(&*self.library, name, &pending.manifest).await?;
            return Ok(self.hit(Some(pending.manifest.clone())));
        }
        let state = tag.state();
        let stored = self.library.manifest(name, &of).await?;
        let wish = Wish { name, model, asker, stored };
        if let Some(Coming::Files(making)) = coming {
            drop(asking);
            let made = self.made(wish, &making).await?;
            return Ok(self.hit(made));
        }
        match state {
            State::Said(said) if wish.stored.is_some() && self.is_fresh(said) => {
                Ok(self.hit(wish.stored))
            }
            State::Rests(since, why) if since.elapsed() < self.rest && self.holds(&why, &wish) => {
                let refused =
                    if wish.stored.is_none() { self.refusal(&wish.model, &why) } else { None };
                self.without(wish.stored, refused)
            }
            _ => self.look(&tag, wish, asking).await,
        }
    }

    /// Whether a tag need not be asked for again. What has been lost since then is.
    fn is_fresh(&self, said: Said) -> bool {
        said.at.elapsed() < self.upstreams.fresh && said.lost == self.library.lost()
    }

    /// Now somebody says what a tag stands for.
    pub(super) fn said(&self) -> Said {
        Said { at: Instant::now(), lost: self.library.lost() }
    }

    /// Whether it is so for this one, too, and now.
    fn holds(&self, why: &Why, wish: &Wish<'_>) -> bool {
        match why {
            Why::Absent | Why::Failed(_) => true,
            Why::Large(bytes) => self.gate.is_too_large(*bytes, wish.asker),
            Why::Full => self.gate.is_full(),
        }
    }

    /// What somebody is told who gets nothing; `None`: there is nothing.
    fn refusal(&self, model: &ModelName, why: &Why) -> Option<MirrorError> {
        match why {
            Why::Absent => None,
            // That it cannot be had is not that there is none.
            Why::Failed(error) => Some(error.clone()),
            Why::Large(bytes) => Some(self.gate.too_large(model, *bytes)),
            Why::Full => Some(self.gate.full(model)),
        }
    }

    /// What is here, which is better than nothing.
    fn without(
        &self,
        stored: Option<Manifest>,
        refused: Option<MirrorError>,
    ) -> Result<Option<Manifest>, MirrorError> {
        match (stored, refused) {
            (None, Some(refused)) => Err(refused),
            (stored, _) => Ok(self.hit(stored)),
        }
    }

    /// What is served as it is here.
    pub(super) fn hit(&self, stored: Option<Manifest>) -> Option<Manifest> {
        lock(&self.fetches).hits += u64::from(stored.is_some());
        stored
    }

    /// Nothing comes of asking, and nobody tries that again for a while.
    pub(super) fn give_up(
        &self,
        tag: &Tag,
        wish: Wish<'_>,
        why: Why,
    ) -> Result<Option<Manifest>, MirrorError> {
        let refused = self.refusal(&wish.model, &why);
        if wish.stored.is_some() && matches!(why, Why::Absent | Why::Failed(_)) {
            let (model, error) = (&wish.model, refused.as_ref().map(ToString::to_string));
            tracing::warn!(%model, error, "the upstream does not have it now: serving what is here");
        }
        tag.set(State::Rests(Instant::now(), why));
        self.without(wish.stored, refused)
    }

    /// Asks the upstream what a tag stands for, and begins to fetch that.
    async fn look(
        self: &Arc<Self>,
        tag: &Arc<Tag>,
        wish: Wish<'_>,
        asking: MutexGuard<'_, ()>,
    ) -> Result<Option<Manifest>, MirrorError> {
        // Nobody is asked for what would be refused.
        if wish.stored.is_none() && self.gate.is_full() {
            return Err(self.gate.full(&wish.model));
        }
        let reference = ModelRef::of(wish.model.clone());
        let options = Options { via: via::told(), ..Options::default() };
        match self.lookup.look_up_tag(&reference, &options).await {
            Ok(UpstreamManifest::Model(found)) => self.take(tag, wish, *found).await,
            Ok(UpstreamManifest::List(bytes)) => self.take_list(tag, wish, bytes).await,
            Err(RegistryError::Listed { origin, files }) => {
                let listed = Files { reference, options, origin, files };
                self.take_files(tag, wish, listed, asking).await
            }
            Err(error) if is_absence(&error) => self.give_up(tag, wish, Why::Absent),
            Err(error) => {
                let error = of_model(&wish.model, broken(error));
                self.give_up(tag, wish, Why::Failed(error))
            }
        }
    }

    /// Whether so many bytes may be fetched now, for the one who asks.
    pub(super) fn admit(&self, wish: &Wish<'_>, bytes: u64) -> Result<Permit, Why> {
        if self.gate.is_too_large(bytes, wish.asker) {
            return Err(Why::Large(bytes));
        }
        self.gate.enter().ok_or(Why::Full)
    }

    /// Whether nothing of a model has been lost.
    pub(super) async fn has_all(&self, manifest: &Manifest) -> Result<bool, MirrorError> {
        for blob in &manifest.blobs {
            if self.library.blob(blob.digest).await?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

pub(super) fn is_absence(error: &RegistryError) -> bool {
    matches!(error, RegistryError::NotFound)
        || matches!(error, RegistryError::Status { code: 404, .. })
}

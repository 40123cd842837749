//! Models that come in several files, of which one is made before anybody gets it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use puna_registry::Options;
use puna_store::{Digest, Entry, ModelRef, Place};
use tokio::sync::{MutexGuard, mpsc, watch};

use super::asking::Wish;
use super::coming::{Coming, Making, Of, sum};
use super::tags::{State, Tag};
use super::{Inner, broken, of_model};
use crate::error::MirrorError;
use crate::library::upstreams::Permit;
use crate::manifest::Manifest;
use crate::name::Reference;
use crate::waiting::blocking;

/// How long a request waits for a model that is being made of several files.
const WAIT: Duration = Duration::from_secs(20);

/// Files that a hub lists in the place of a manifest.
pub(super) struct Files {
    pub(super) reference: ModelRef,
    pub(super) options: Options,
    /// What a model is known by that was made of them.
    pub(super) origin: Digest,
    pub(super) files: Vec<(Digest, u64)>,
}

impl Inner {
    /// Begins to make a model of files, which takes all of them, unless it is here.
    pub(super) async fn take_files(
        self: &Arc<Self>,
        tag: &Arc<Tag>,
        wish: Wish<'_>,
        files: Files,
        asking: MutexGuard<'_, ()>,
    ) -> Result<Option<Manifest>, MirrorError> {
        let said = self.said();
        // A library elsewhere has it, and not the store that it was made in.
        if let Some(stored) = &wish.stored
            && wish.is_made_of(files.origin)
            && self.has_all(stored).await?
        {
            tag.set(State::Said(said));
            return Ok(self.hit(wish.stored));
        }
        let permit = match self.admit(&wish, sum(&files.files)) {
            Ok(permit) => permit,
            Err(why) => return self.give_up(tag, wish, why),
        };
        tracing::info!(model = %wish.model, "fetching files, of which one model is made");
        let here = self.registry.completed(&self.store, &files.files).await;
        let of = Of::new(&wish, said, here);
        let (say, end) = watch::channel(None);
        let Files { reference, options, origin, files } = files;
        let making = Arc::new(Making { of, origin, files, end });
        self.begin(Coming::Files(making.clone()));
        puna_tasks::spawn(self.clone().make(
            tag.clone(),
            making.clone(),
            reference,
            options,
            say,
            permit,
        ));
        drop(asking);
        self.made(wish, &making).await
    }

    /// Makes a model of files, and says when that has come to an end.
    async fn make(
        self: Arc<Self>,
        tag: Arc<Tag>,
        making: Arc<Making>,
        reference: ModelRef,
        options: Options,
        say: watch::Sender<Option<Result<(), MirrorError>>>,
        _permit: Permit,
    ) {
        let made = AssertUnwindSafe(async {
            let (digest, replaced) = self.pull(&reference, options).await?;
            self.came(&making.of, digest, replaced).await;
            Ok(())
        });
        let made = made.catch_unwind().await;
        let made = made.unwrap_or_else(|panic| Err(MirrorError::of_panic(&*panic)));
        let made = made.map_err(|error| of_model(&reference.name, error));
        self.end(&tag, &Coming::Files(making), made.clone()).await;
        say.send_replace(Some(made));
    }

    /// Has the store make a model of files, and hands it over. Says what it has become, and which one of the store it replaced.
    async fn pull(
        &self,
        reference: &ModelRef,
        options: Options,
    ) -> Result<(Digest, Option<Entry>), MirrorError> {
        // Nobody listens.
        let (report, _) = mpsc::channel(1);
        let options = Options { keep_unused: true, ..options };
        let (store, name) = (self.store.clone(), reference.name.clone());
        let replaced = blocking(move || Ok(store.find(&name).ok().flatten())).await?;
        let replaced = replaced.filter(|entry| entry.place == Place::Own);
        self.registry.pull(&self.store, reference, &options, report).await.map_err(broken)?;
        let (store, name) = (self.store.clone(), reference.name.clone());
        let (_, bytes) = blocking(move || Ok(store.manifest_bytes(&name)?)).await?;
        let manifest = Manifest::parse(bytes.into(), Some(puna_store::media::MANIFEST))?;
        let digest = manifest.digest;
        self.hand_over(&reference.name, manifest).await?;
        Ok((digest, replaced))
    }

    /// What is here, if that is whole; else what is being made, as soon as it is. Whoever has waited for a while has to come again.
    pub(super) async fn made(
        &self,
        wish: Wish<'_>,
        making: &Making,
    ) -> Result<Option<Manifest>, MirrorError> {
        let Wish { name, model, stored, .. } = wish;
        if let Some(here) = &stored
            && self.has_all(here).await?
        {
            return Ok(stored);
        }
        let mut end = making.end.clone();
        let end = tokio::time::timeout(WAIT, end.wait_for(Option::is_some)).await;
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
}

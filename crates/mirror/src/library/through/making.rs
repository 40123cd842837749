//! Models that come in several files, of which one is made before anybody gets it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use puna_registry::Options;
use puna_store::{Digest, ModelRef};
use tokio::sync::{mpsc, watch};

use super::{Inner, Tag, Wish, broken, of_model};
use crate::error::MirrorError;
use crate::history::By;
use crate::library::folder::blocking;
use crate::library::upstreams::Permit;
use crate::lock::lock;
use crate::manifest::Manifest;
use crate::name::Reference;

/// How long a request waits for a model that is being made of several files.
const WAIT: Duration = Duration::from_secs(20);

/// The end of making a model of files: why it failed, if it did.
pub(super) type Making = watch::Receiver<Option<Result<(), MirrorError>>>;

impl Inner {
    /// Has the store make a model of files, and hands it over. Says what it has become.
    async fn pull(&self, reference: &ModelRef, options: Options) -> Result<Digest, MirrorError> {
        // Nobody listens.
        let (report, _) = mpsc::channel(1);
        let options = Options { keep_unused: true, ..options };
        self.registry.pull(&self.store, reference, &options, report).await.map_err(broken)?;
        let (store, name) = (self.store.clone(), reference.name.clone());
        let (_, bytes) = blocking(move || Ok(store.manifest_bytes(&name)?)).await?;
        let manifest = Manifest::parse(bytes.into(), Some(puna_store::media::MANIFEST))?;
        let digest = manifest.digest;
        self.hand_over(&reference.name, manifest).await?;
        Ok(digest)
    }

    /// Begins to make a model of the files that a hub lists, which takes all of them.
    pub(super) fn make(
        self: &Arc<Self>,
        state: &Arc<Tag>,
        reference: ModelRef,
        options: Options,
        wish: &Wish<'_>,
        permit: Permit,
    ) -> Making {
        let (say, making) = watch::channel(None);
        lock(&state.known).making = Some(making.clone());
        let (inner, state, name) = (self.clone(), state.clone(), wish.name.clone());
        let replaced = wish.stored.as_ref().map(|stored| stored.digest);
        tracing::info!(model = %reference.name, "fetching files, of which one model is made");
        tokio::spawn(async move {
            let _permit = permit;
            let lost = inner.library.lost();
            let made = std::panic::AssertUnwindSafe(inner.pull(&reference, options)).catch_unwind().await;
            let made = made.unwrap_or_else(|_| Err(MirrorError::Internal("making it panicked".into())));
            let made = made.map_err(|error| of_model(&reference.name, error));
            match &made {
                Ok(digest) => {
                    inner.history.arrived(&name, reference.name.tag(), *digest, By::Fetch, replaced)
                }
                Err(error) => tracing::warn!(model = %reference.name, %error, "fetching failed"),
            }
            let mut known = lock(&state.known);
            known.making = None;
            match &made {
                Ok(_) => known.said = Some((Instant::now(), lost)),
                Err(error) => known.missed = Some((Instant::now(), Some(error.clone()))),
            }
            say.send_replace(Some(made.map(drop)));
        });
        making
    }

    /// What was made, as soon as it is; whoever has waited for a while has to come again, or gets what is here.
    pub(super) async fn made(
        &self,
        wish: Wish<'_>,
        mut making: Making,
    ) -> Result<Option<Manifest>, MirrorError> {
        let end = tokio::time::timeout(WAIT, making.wait_for(Option::is_some)).await;
        let Wish { name, model, stored, .. } = wish;
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

//! Fetches models that a hub lists as several files, and makes one model of them before it is
//! served.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use puna_registry::Options;
use puna_store::{Digest, Entry, ModelRef, StoreLocation};
use tokio::sync::{MutexGuard, mpsc, watch};

use super::Inner;
use super::in_flight::{FetchTarget, FileAssembly, InFlightModel, total_size};
use super::tag_cache::TagCacheEntry;
use super::tag_request::TagRequest;
use super::tag_state::TagState;
use crate::blocking::blocking;
use crate::error::{InternalError, MirrorError, PendingFetch};
use crate::pull_through::upstreams::FetchPermit;
use crate::types::manifest::Manifest;
use crate::types::repository::Reference;

/// Longest wait of a request for the model.
const ASSEMBLY_WAIT: Duration = Duration::from_secs(20);

/// Files that a hub lists instead of a manifest.
pub(super) struct FileListing {
    pub(super) reference: ModelRef,
    pub(super) options: Options,
    /// Digest that identifies this set of files in the model made of them.
    pub(super) origin: Digest,
    pub(super) files: Vec<(Digest, u64)>,
}

impl Inner {
    /// Starts to fetch all files and to make a model of them, unless it is stored.
    pub(super) async fn assemble_files(
        self: &Arc<Self>,
        tag: &Arc<TagCacheEntry>,
        request: TagRequest<'_>,
        files: FileListing,
        lookup_guard: MutexGuard<'_, ()>,
    ) -> Result<Option<Manifest>, MirrorError> {
        let confirmation = self.confirm_now();
        // A bucket has the model, but the store in which it was made does not.
        if let Some(stored) = &request.stored
            && request.is_assembled_from(files.origin)
            && self.has_all_blobs(stored).await?
        {
            tag.set(TagState::Confirmed(confirmation));
            return Ok(self.count_hit(request.stored));
        }
        let permit = match self.admit(&request, total_size(&files.files)) {
            Ok(permit) => permit,
            Err(reason) => return self.cache_miss(tag, request, reason),
        };
        tracing::info!(model = %request.model, "fetching and merging the files of a model");
        let present_bytes = self.registry.completed(&self.store, &files.files).await;
        let target = FetchTarget::new(&request, confirmation, present_bytes);
        let (sender, outcome) = watch::channel(None);
        let FileListing { reference, options, origin, files } = files;
        let assembly = Arc::new(FileAssembly { target, origin, files, outcome });
        self.start(InFlightModel::Files(assembly.clone()));
        puna_tasks::spawn(self.clone().run_assembly(
            tag.clone(),
            assembly.clone(),
            reference,
            options,
            sender,
            permit,
        ));
        drop(lookup_guard);
        self.await_assembly(request, &assembly).await
    }

    /// Task that makes the model and publishes the outcome.
    async fn run_assembly(
        self: Arc<Self>,
        tag: Arc<TagCacheEntry>,
        assembly: Arc<FileAssembly>,
        reference: ModelRef,
        options: Options,
        sender: watch::Sender<Option<Result<(), MirrorError>>>,
        _permit: FetchPermit,
    ) {
        let result = AssertUnwindSafe(async {
            let (digest, replaced) = self.assemble(&reference, options).await?;
            self.record_arrival(&assembly.target, digest, replaced).await;
            Ok(())
        });
        let result = result.catch_unwind().await;
        let result = result.unwrap_or_else(|panic| Err(MirrorError::from_panic(&*panic)));
        let result = result.map_err(|error| error.with_model_name(&reference.name));
        self.finish(&tag, &InFlightModel::Files(assembly), result.clone()).await;
        sender.send_replace(Some(result));
    }

    /// Makes the model in the local store, and moves it to the bucket if there is one. Returns its
    /// digest and the model that it replaced.
    async fn assemble(
        &self,
        reference: &ModelRef,
        options: Options,
    ) -> Result<(Digest, Option<Entry>), MirrorError> {
        // Progress reports are not used.
        let (report, _) = mpsc::channel(1);
        let options = Options { keep_unused: true, ..options };
        let (store, name) = (self.store.clone(), reference.name.clone());
        let replaced = blocking(move || Ok(store.find(&name).ok().flatten())).await?;
        let replaced = replaced.filter(|entry| entry.location == StoreLocation::Own);
        self.registry.pull(&self.store, reference, &options, report).await?;
        let (store, name) = (self.store.clone(), reference.name.clone());
        let (_, bytes) = blocking(move || Ok(store.manifest_bytes(&name)?)).await?;
        let manifest = Manifest::parse(bytes.into(), Some(puna_store::media::MANIFEST))?;
        let digest = manifest.digest;
        self.move_to_bucket(&reference.name, manifest).await?;
        Ok((digest, replaced))
    }

    /// Returns the stored manifest if its blobs are present, else waits for the model. After
    /// [`ASSEMBLY_WAIT`] the client must retry.
    pub(super) async fn await_assembly(
        &self,
        request: TagRequest<'_>,
        assembly: &FileAssembly,
    ) -> Result<Option<Manifest>, MirrorError> {
        let TagRequest { name, model, stored, .. } = request;
        if let Some(manifest) = &stored
            && self.has_all_blobs(manifest).await?
        {
            return Ok(stored);
        }
        let mut outcome = assembly.outcome.clone();
        let outcome = tokio::time::timeout(ASSEMBLY_WAIT, outcome.wait_for(Option::is_some)).await;
        let given_up = || {
            let model = Box::new(model.clone());
            Some(Err(InternalError::AssemblyGivenUp(model).into()))
        };
        let outcome =
            outcome.map(|outcome| outcome.map_or_else(|_| given_up(), |outcome| outcome.clone()));
        match (outcome, stored) {
            (Ok(Some(Ok(()))), _) => {
                let tag = Reference::Tag(model.tag().to_owned());
                self.storage.manifests.manifest(name, &tag).await
            }
            (_, Some(stored)) => Ok(Some(stored)),
            (Ok(Some(Err(error))), None) => Err(error),
            (Ok(None) | Err(_), None) => Err(PendingFetch::Files(Box::new(model)).into()),
        }
    }
}

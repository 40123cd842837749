//! Blobs requested by digest while no manifest that references them is being fetched.
//!
//! This happens if another mirror, or this one before a restart, served the manifest. The upstream
//! says whether the blob belongs to the repository.

use std::sync::Arc;
use std::time::{Duration, Instant};

use puna_registry::{Options, PinGuard, RegistryBlob};
use puna_store::{Digest, ModelName, ModelRef};

use super::Inner;
use super::declared_sizes::DeclaredSize;
use super::tag_state::MissReason;
use super::unreferenced_cache::{LookupState, UnreferencedBlob};
use super::upstream_lookup::is_not_found;
use crate::blocking::blocking;
use crate::error::{MirrorError, UpstreamProblem};
use crate::locks::lock;
use crate::loop_detection;
use crate::pull_through::in_flight_blob::InFlightBlob;
use crate::pull_through::upstreams::{FetchPermit, Requester};
use crate::types::repository::Repository;

/// How long it is cached that an upstream has a blob.
const FOUND_LIFETIME: Duration = Duration::from_secs(60 * 60);
/// How long a blob stays in the local store after its last use, if the storage is a bucket.
const KEEP_AFTER_LAST_USE: Duration = Duration::from_secs(10 * 60);
/// Interval of checks whether it can be removed.
const CLEANUP_POLL_INTERVAL: Duration = Duration::from_secs(30);
/// Placeholder tag: a request for a blob has none, but `Upstreams::model` needs one.
const UPSTREAM_LOOKUP_TAG: &str = "latest";

impl Inner {
    /// Whether the upstream of a repository confirms that a blob belongs to it.
    pub(super) async fn upstream_confirms_blob(
        &self,
        name: &Repository,
        digest: Digest,
    ) -> Result<bool, MirrorError> {
        let Some(model) = self
            .upstreams
            .model(name, UPSTREAM_LOOKUP_TAG)
            .filter(|_| self.upstreams.may_fetch(name))
        else {
            return Ok(false);
        };
        let blob = self.unreferenced.get(&model, digest);
        let _guard = blob.lookup_lock.lock().await;
        Ok(self.look_up(&model, &blob, digest).await?.is_some())
    }

    /// Returns a blob from the upstream of its repository, if it is neither stored nor part of a
    /// model in flight.
    pub(super) async fn unreferenced_blob(
        self: &Arc<Self>,
        name: &Repository,
        digest: Digest,
        requester: Requester,
    ) -> Result<Option<InFlightBlob>, MirrorError> {
        let Some(model) = self.upstreams.model(name, UPSTREAM_LOOKUP_TAG) else { return Ok(None) };
        if !self.upstreams.may_fetch(name) {
            return Err(self.gate.not_allowed_error(name));
        }
        let blob = self.unreferenced.get(&model, digest);
        let _guard = blob.lookup_lock.lock().await;
        let Some(found) = self.look_up(&model, &blob, digest).await? else { return Ok(None) };
        let is_fetching = matches!(blob.state(), LookupState::Fetching(..));
        let is_declared = self.check_declared_size(name, digest, found.size()).await;
        if let Err(error @ MirrorError::Upstream(_)) = &is_declared
            && !is_fetching
        {
            // The upstream may be correct at the next attempt.
            blob.set(LookupState::NegativeCached(
                Instant::now(),
                MissReason::Failed(error.clone()),
            ));
        }
        let is_size_declared = is_declared?;
        if !is_fetching {
            let permit = self.admit_blob(&model, found.size(), requester)?;
            tracing::info!(%model, %digest, "fetching an unreferenced blob");
            // Bytes that are present before the fetch are not counted.
            let initial_bytes = found.completed(&self.store).await;
            blob.set(LookupState::Fetching(Instant::now(), found.clone()));
            let fetch = self.clone().run_blob_fetch(
                model,
                blob.clone(),
                digest,
                (found.clone(), initial_bytes),
                permit,
            );
            puna_tasks::spawn(fetch);
        }
        blob.touch();
        let size = found.size();
        Ok(found
            .download_reader(&self.store)
            .map(|reader| self.in_flight_blob_of(digest, size, reader, is_size_declared)))
    }

    /// Fails if the upstream's size of a blob contradicts the declared one. Returns whether a size
    /// is declared.
    async fn check_declared_size(
        &self,
        name: &Repository,
        digest: Digest,
        size: u64,
    ) -> Result<bool, MirrorError> {
        match self.declared_size(name, digest).await {
            Some(DeclaredSize::Bytes(declared)) if declared != size => {
                let problem = UpstreamProblem::BlobSize { digest, found: size, declared };
                let (name, problem) = (name.clone(), Box::new(problem));
                Err(UpstreamProblem::OfRepository { name, problem }.into())
            }
            declared => Ok(matches!(declared, Some(DeclaredSize::Bytes(_)))),
        }
    }

    /// Returns the blob of an upstream; `None` if the upstream does not have it.
    async fn look_up(
        &self,
        model: &ModelName,
        blob: &UnreferencedBlob,
        digest: Digest,
    ) -> Result<Option<Arc<RegistryBlob>>, MirrorError> {
        match blob.state() {
            LookupState::Fetching(_, found) => return Ok(Some(found)),
            LookupState::Found(since, found) if since.elapsed() < FOUND_LIFETIME => {
                return Ok(Some(found));
            }
            LookupState::NegativeCached(since, MissReason::Failed(error))
                if since.elapsed() < self.negative_cache_time =>
            {
                return Err(error);
            }
            LookupState::NegativeCached(since, _) if since.elapsed() < self.negative_cache_time => {
                return Ok(None);
            }
            _ => {}
        }
        let reference = ModelRef::of(model.clone());
        let options = Options { via: loop_detection::via_header(), ..Options::default() };
        let (state, found) = match self.registry.look_up_blob(&reference, digest, &options).await {
            Ok(found) => {
                let found = Arc::new(found);
                (LookupState::Found(Instant::now(), found.clone()), Ok(Some(found)))
            }
            Err(error) if is_not_found(&error) => {
                (LookupState::NegativeCached(Instant::now(), MissReason::Absent), Ok(None))
            }
            Err(error) => {
                let error = MirrorError::from(error).with_model_name(model);
                (
                    LookupState::NegativeCached(Instant::now(), MissReason::Failed(error.clone())),
                    Err(error),
                )
            }
        };
        blob.set(state);
        found
    }

    /// Checks the limits for fetching a blob of `bytes` bytes for this requester.
    fn admit_blob(
        &self,
        model: &ModelName,
        bytes: u64,
        requester: Requester,
    ) -> Result<Arc<FetchPermit>, MirrorError> {
        if self.gate.is_too_large(bytes, requester) {
            return Err(self.gate.too_large_error(model, bytes));
        }
        if let Some(permit) = self.unreferenced.permit(model) {
            return Ok(permit);
        }
        let permit = self.gate.try_begin().ok_or_else(|| self.gate.limit_error(model))?;
        Ok(self.unreferenced.share_permit(model, permit))
    }

    /// Task that fetches a blob to where its model will look for it.
    async fn run_blob_fetch(
        self: Arc<Self>,
        model: ModelName,
        blob: Arc<UnreferencedBlob>,
        digest: Digest,
        (found, initial_bytes): (Arc<RegistryBlob>, u64),
        permit: Arc<FetchPermit>,
    ) {
        let fetched = found.fetch(&self.store).await;
        let fetched_bytes = found.completed(&self.store).await.saturating_sub(initial_bytes);
        {
            let mut fetch_stats = lock(&self.fetch_stats);
            fetch_stats.bytes += fetched_bytes;
            fetch_stats.failures += u64::from(fetched.is_err());
        }
        drop(permit);
        let state = match fetched {
            Ok(pin) => {
                tracing::info!(%model, %digest, "fetched");
                if self.bucket.is_some() {
                    self.keep_while_used(&blob, digest, pin).await;
                }
                LookupState::Found(Instant::now(), found)
            }
            Err(error) => {
                tracing::warn!(%model, %digest, %error, "fetch failed");
                LookupState::NegativeCached(
                    Instant::now(),
                    MissReason::Failed(MirrorError::from(error).with_model_name(&model)),
                )
            }
        };
        blob.set(state);
    }

    /// Keeps a blob in the local store while it is used and until the bucket has it.
    async fn keep_while_used(&self, blob: &UnreferencedBlob, digest: Digest, pin: PinGuard) {
        loop {
            tokio::time::sleep(CLEANUP_POLL_INTERVAL).await;
            let is_idle = matches!(blob.state(), LookupState::Fetching(last_used, _) if last_used.elapsed() > KEEP_AFTER_LAST_USE);
            if is_idle || matches!(self.storage.blobs.blob(digest).await, Ok(Some(_))) {
                break;
            }
        }
        drop(pin);
        // `discard_blobs` keeps the blob if the fetch of a model has pinned it.
        let store = self.store.clone();
        if let Err(error) = blocking(move || Ok(store.discard_blobs(&[digest])?)).await {
            tracing::warn!(%digest, %error, "cannot remove a temporary copy of a blob");
        }
    }
}

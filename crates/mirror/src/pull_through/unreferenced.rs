//! Blobs requested by digest while no manifest that references them is being fetched.
//!
//! Another mirror has served the manifest, or this one before a restart. The upstream says whether
//! the blob belongs to the repository.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use puna_registry::{Options, PinGuard, RegistryBlob};
use puna_store::{Digest, ModelName, ModelRef};

use super::declared_sizes::DeclaredSize;
use super::tag_cache::MissReason;
use super::tag_lookup::is_not_found;
use super::{Inner, PullThrough, with_model_name};
use crate::blocking::blocking;
use crate::error::{MirrorError, UpstreamProblem};
use crate::locks::lock;
use crate::loop_detection;
use crate::pull_through::in_flight_blob::InFlightBlob;
use crate::pull_through::upstreams::{FetchPermit, Requester};
use crate::types::repository::Repository;

/// Largest number of remembered blobs.
const MAX_REMEMBERED_BLOBS: usize = 10_000;
/// How long the answer counts that an upstream has a blob.
const FOUND_LIFETIME: Duration = Duration::from_secs(60 * 60);
/// How long a blob stays in the local store after its last use, if the storage is a bucket.
const KEEP_AFTER_LAST_USE: Duration = Duration::from_secs(10 * 60);
/// Interval of checks whether it can be removed.
const CLEANUP_POLL_INTERVAL: Duration = Duration::from_secs(30);
/// Any tag, to name the model of a repository of which only a blob is known.
const UPSTREAM_LOOKUP_TAG: &str = "latest";

/// Lookups and fetches of single blobs.
#[derive(Default)]
pub(super) struct UnreferencedBlobs {
    blobs: Mutex<HashMap<(ModelName, Digest), Arc<UnreferencedBlob>>>,
    /// Permits by repository. All blobs of a repository count as one model.
    permits: Mutex<HashMap<ModelName, Weak<FetchPermit>>>,
}

/// A single blob of a repository.
#[derive(Default)]
struct UnreferencedBlob {
    /// Held during a lookup; other requests for the blob wait for its result.
    lookup_lock: tokio::sync::Mutex<()>,
    state: Mutex<LookupState>,
}

#[derive(Clone, Default)]
enum LookupState {
    /// Nothing is known.
    #[default]
    Unknown,
    /// An upstream has the blob, as of that time.
    Found(Instant, Arc<RegistryBlob>),
    /// The blob is being fetched, or was recently, and was last used at that time.
    Fetching(Instant, Arc<RegistryBlob>),
    /// A lookup has failed or found nothing at that time.
    NegativeCached(Instant, MissReason),
}

impl UnreferencedBlobs {
    fn get(&self, model: &ModelName, digest: Digest) -> Arc<UnreferencedBlob> {
        let mut blobs = lock(&self.blobs);
        if blobs.len() >= MAX_REMEMBERED_BLOBS {
            blobs.retain(|_, blob| Arc::strong_count(blob) > 1);
        }
        blobs.entry((model.clone(), digest)).or_default().clone()
    }

    /// Returns the permit under which blobs of a repository are being fetched.
    fn permit(&self, model: &ModelName) -> Option<Arc<FetchPermit>> {
        lock(&self.permits).get(model).and_then(Weak::upgrade)
    }

    fn share_permit(&self, model: &ModelName, permit: FetchPermit) -> Arc<FetchPermit> {
        let mut permits = lock(&self.permits);
        permits.retain(|_, permit| permit.strong_count() > 0);
        let permit = Arc::new(permit);
        permits.insert(model.clone(), Arc::downgrade(&permit));
        permit
    }
}

impl UnreferencedBlob {
    fn state(&self) -> LookupState {
        lock(&self.state).clone()
    }

    fn set(&self, state: LookupState) {
        *lock(&self.state) = state;
    }

    /// Records a use of the blob.
    fn touch(&self) {
        if let LookupState::Fetching(last_used, _) = &mut *lock(&self.state) {
            *last_used = Instant::now();
        }
    }
}

impl PullThrough {
    /// Whether the upstream of a repository confirms that a blob belongs to it.
    pub(crate) async fn upstream_confirms_blob(
        &self,
        name: &Repository,
        digest: Digest,
    ) -> Result<bool, MirrorError> {
        let inner = &self.0;
        let Some(model) = inner
            .upstreams
            .model(name, UPSTREAM_LOOKUP_TAG)
            .filter(|_| inner.upstreams.may_fetch(name))
        else {
            return Ok(false);
        };
        let blob = inner.unreferenced.get(&model, digest);
        let _guard = blob.lookup_lock.lock().await;
        Ok(inner.look_up(&model, &blob, digest).await?.is_some())
    }
}

impl Inner {
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
            // The size is read before the fetch starts.
            let initial_bytes = found.completed(&self.store).await;
            blob.set(LookupState::Fetching(Instant::now(), found.clone()));
            let brought = self.clone().run_blob_fetch(
                model,
                blob.clone(),
                digest,
                (found.clone(), initial_bytes),
                permit,
            );
            puna_tasks::spawn(brought);
        }
        blob.touch();
        let size = found.size();
        Ok(found
            .download_reader(&self.store)
            .map(|running| self.in_flight_blob_of(digest, size, running, is_size_declared)))
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
                let error = with_model_name(model, error.into());
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
            Ok(kept) => {
                tracing::info!(%model, %digest, "fetched");
                if self.bucket.is_some() {
                    self.keep_while_used(&blob, digest, kept).await;
                }
                LookupState::Found(Instant::now(), found)
            }
            Err(error) => {
                tracing::warn!(%model, %digest, %error, "fetch failed");
                LookupState::NegativeCached(
                    Instant::now(),
                    MissReason::Failed(with_model_name(&model, error.into())),
                )
            }
        };
        blob.set(state);
    }

    /// Keeps a blob in the local store while it is used and until the bucket has it.
    async fn keep_while_used(&self, blob: &UnreferencedBlob, digest: Digest, kept: PinGuard) {
        loop {
            tokio::time::sleep(CLEANUP_POLL_INTERVAL).await;
            let is_idle = matches!(blob.state(), LookupState::Fetching(last_used, _) if last_used.elapsed() > KEEP_AFTER_LAST_USE);
            if is_idle || matches!(self.storage.blobs.blob(digest).await, Ok(Some(_))) {
                break;
            }
        }
        drop(kept);
        // A fetch of a model with this blob holds it as well.
        let store = self.store.clone();
        if let Err(error) = blocking(move || Ok(store.discard_blobs(&[digest])?)).await {
            tracing::warn!(%digest, %error, "cannot remove a temporary copy of a blob");
        }
    }
}

//! Index of stored objects by namespace: decides who may read a blob, and accounts quotas.
//!
//! Blobs have no namespace: equal content is stored once. A key that is limited to namespaces must
//! not read blobs of others by their digest. Neither a request through one of its own repositories
//! nor a manifest there may reveal them. So a key can see a blob if a manifest that it may read
//! references the blob, or if the blob was pushed to a repository that it may read.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use puna_store::Digest;

use crate::auth::{Permission, Principal};
use crate::error::MirrorError;
use crate::locks::{KeyGuard, lock};
use crate::metrics::{Metric, families};
use crate::pull_through::PullThrough;
use crate::quota::reservation::{QuotaReservations, UploadReservation};
use crate::quota::{Quota, check_quota};
use crate::storage::{InventoryScope, Storage};
use crate::types::manifest::Manifest;
use crate::types::manifest_error::ManifestProblem;
use crate::types::name_pattern::matches_pattern;
use crate::types::repository::Repository;
use crate::types::stored_object::{StoredObject, TagEntry};
use crate::types::upload_id::UploadId;

/// Largest age of a cached scan for metrics.
const METRICS_MAX_AGE: Duration = Duration::from_secs(10);
/// Largest age of a cached scan for quota checks.
const QUOTA_MAX_AGE: Duration = Duration::from_millis(500);
/// Largest age of cached tags for the web page.
const WEB_UI_MAX_AGE: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 3 });
/// How long a key may read more of a blob without a new check.
const VISIBILITY_CACHE_TIME: Duration = Duration::from_secs(60);
/// Largest number of remembered visible blobs.
const MAX_VISIBLE_BLOBS: usize = 100_000;

/// Usage of a namespace that has a quota, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QuotaUsage {
    pub(crate) namespace: String,
    pub(crate) used: u64,
    pub(crate) quota: u64,
}

/// Cached result of a slow scan. Concurrent callers wait for one scan and share its result.
struct CachedScan<T>(tokio::sync::Mutex<Option<ScanResult<T>>>);

/// Result of a scan.
struct ScanResult<T> {
    at: Instant,
    /// Value of the change counter before the scan.
    change_count: u64,
    value: Arc<T>,
}

impl<T> Default for CachedScan<T> {
    fn default() -> Self {
        Self(tokio::sync::Mutex::default())
    }
}

impl<T> CachedScan<T> {
    /// Returns the cached value if it is younger than `age` and nothing has changed since; else
    /// runs `scan`.
    async fn get<F>(
        &self,
        change_count: impl Fn() -> u64,
        age: Duration,
        scan: impl FnOnce() -> F,
    ) -> Result<Arc<T>, MirrorError>
    where
        F: Future<Output = Result<T, MirrorError>>,
    {
        let mut cached = self.0.lock().await;
        let (now, before) = (Instant::now(), change_count());
        if let Some(scan) = &*cached
            && scan.change_count == before
            && scan.at.elapsed() < age
        {
            return Ok(scan.value.clone());
        }
        let value = Arc::new(scan().await?);
        *cached = Some(ScanResult { at: now, change_count: before, value: value.clone() });
        Ok(value)
    }

    /// Whether the cached value is younger than `age`, or a scan is running.
    fn is_younger(&self, age: Duration) -> bool {
        self.0
            .try_lock()
            .map_or(true, |cached| cached.as_ref().is_some_and(|scan| scan.at.elapsed() < age))
    }
}

/// All stored objects, with an index by blob.
struct StoredObjectIndex {
    all: Vec<StoredObject>,
    /// Positions in `all` of the objects that reference a blob.
    by_blob: HashMap<Digest, Vec<usize>>,
}

impl StoredObjectIndex {
    fn new(all: Vec<StoredObject>) -> Self {
        let mut by_blob: HashMap<Digest, Vec<usize>> = HashMap::new();
        for (n, object) in all.iter().enumerate() {
            object.blobs.iter().for_each(|(blob, _)| by_blob.entry(*blob).or_default().push(n));
        }
        Self { all, by_blob }
    }

    /// Returns the objects that reference a blob.
    fn of_blob(&self, digest: &Digest) -> impl Iterator<Item = &StoredObject> {
        self.by_blob.get(digest).into_iter().flatten().map(|n| &self.all[*n])
    }
}

/// Cached view of the stored objects of all namespaces, and the operations that a quota limits.
pub(crate) struct NamespaceIndex {
    storage: Storage,
    pull_through: Option<PullThrough>,
    quotas: Vec<Quota>,
    /// Number of manifests and blobs that were added or removed.
    change_count: AtomicU64,
    stored_objects: CachedScan<StoredObjectIndex>,
    /// Scans of namespaces that have a quota, so that a quota check does not read all namespaces.
    namespaces: Mutex<HashMap<String, Arc<CachedScan<Vec<StoredObject>>>>>,
    tag_entries: CachedScan<Vec<TagEntry>>,
    /// Blobs that a key may read, and when that was found.
    visible: Mutex<HashMap<(String, Digest), Instant>>,
    pub(crate) reservations: Arc<QuotaReservations>,
}

impl NamespaceIndex {
    pub(crate) fn new(
        quotas: Vec<Quota>,
        storage: Storage,
        pull_through: Option<PullThrough>,
    ) -> Self {
        Self {
            quotas,
            change_count: AtomicU64::default(),
            stored_objects: CachedScan::default(),
            namespaces: Mutex::default(),
            tag_entries: CachedScan::default(),
            visible: Mutex::default(),
            reservations: Arc::new(QuotaReservations::new(storage.uploads.clone())),
            storage,
            pull_through,
        }
    }

    /// Returns all stored objects, at most `age` old.
    async fn stored_objects(&self, age: Duration) -> Result<Arc<StoredObjectIndex>, MirrorError> {
        let inventory = &self.storage.inventory;
        let scan = || async {
            Ok(StoredObjectIndex::new(inventory.stored_objects(InventoryScope::All).await?))
        };
        self.stored_objects.get(|| self.change_count(), age, scan).await
    }

    /// Returns the stored objects of one namespace, recent enough for a quota check.
    async fn stored_objects_in(
        &self,
        namespace: &str,
    ) -> Result<Arc<Vec<StoredObject>>, MirrorError> {
        let cached = {
            let mut namespaces = lock(&self.namespaces);
            namespaces.retain(|_, cached| {
                Arc::strong_count(cached) > 1 || cached.is_younger(METRICS_MAX_AGE)
            });
            namespaces.entry(namespace.to_ascii_lowercase()).or_default().clone()
        };
        let scope = InventoryScope::Namespace(namespace.to_owned());
        let scan = || self.storage.inventory.stored_objects(scope);
        cached.get(|| self.change_count(), QUOTA_MAX_AGE, scan).await
    }

    /// Returns all tags from a short-lived cache, because the web page reloads often.
    pub(crate) async fn tag_entries(&self) -> Result<Arc<Vec<TagEntry>>, MirrorError> {
        let scan = || self.storage.inventory.tag_entries();
        self.tag_entries.get(|| self.change_count(), WEB_UI_MAX_AGE, scan).await
    }

    /// Number of changes by clients and by fetches.
    fn change_count(&self) -> u64 {
        let fetches = self.pull_through.as_ref().map_or(0, PullThrough::fetch_change_count);
        self.change_count.load(Relaxed) + fetches
    }

    /// Invalidates the cached scans after a manifest or blob was added or removed.
    pub(crate) fn record_change(&self) {
        self.change_count.fetch_add(1, Relaxed);
    }

    /// Whether a principal may know that a blob exists. The repository of the request is checked
    /// first, because it most often references the blob; a scan of all repositories is the
    /// fallback.
    pub(crate) async fn can_see_blob(
        &self,
        principal: Option<&Principal>,
        name: &Repository,
        digest: Digest,
    ) -> Result<bool, MirrorError> {
        let Some(principal) = principal.filter(|principal| !principal.namespaces.is_empty()) else {
            return Ok(true);
        };
        let key = (principal.name.clone(), digest);
        if lock(&self.visible).get(&key).is_some_and(|at| at.elapsed() < VISIBILITY_CACHE_TIME) {
            return Ok(true);
        }
        let may = |name: &Repository| principal.is_allowed(Permission::Read, Some(name));
        let mut is_visible = may(name) && self.storage.blobs.references_blob(name, digest).await?;
        // A blob that the older scan does not show may be new, so a recent scan decides before the
        // request fails.
        for age in [METRICS_MAX_AGE, QUOTA_MAX_AGE] {
            if !is_visible {
                is_visible = self
                    .stored_objects(age)
                    .await?
                    .of_blob(&digest)
                    .any(|object| may(&object.name));
            }
        }
        if is_visible {
            let mut visible = lock(&self.visible);
            if visible.len() >= MAX_VISIBLE_BLOBS {
                visible.clear();
            }
            visible.insert(key, Instant::now());
        }
        Ok(is_visible)
    }

    fn quota(&self, namespace: &str) -> Option<u64> {
        let quota = self.quotas.iter().find(|quota| matches_pattern(namespace, &quota.namespaces));
        quota.map(|quota| quota.bytes)
    }

    /// Opens the quota reservation of an upload; `None` if the namespace has no quota. Unreferenced
    /// pushed blobs and other open uploads count as used.
    pub(crate) async fn reserve_upload(
        &self,
        name: &Repository,
        id: &UploadId,
    ) -> Result<Option<UploadReservation>, MirrorError> {
        let namespace = name.namespace();
        let Some(quota) = self.quota(namespace) else { return Ok(None) };
        // This waits for the current request of the same upload before the namespace is locked, so
        // that other uploads need not wait.
        let received = self.storage.uploads.size(name, id).await?;
        let _guard = self.reservations.lock_namespace(namespace).await;
        let used = sum(&self.namespace_blobs(namespace, true).await?);
        Ok(Some(self.reservations.open((name, id), received, quota, used)))
    }

    /// Turns an upload into a blob. If the quota of the namespace is exceeded, the upload is
    /// removed.
    pub(crate) async fn finish(
        &self,
        name: &Repository,
        id: &UploadId,
        digest: Digest,
    ) -> Result<(), MirrorError> {
        let (namespace, uploads) = (name.namespace(), &self.storage.uploads);
        let Some(quota) = self.quota(namespace) else {
            uploads.finish(name, id, digest).await?;
            self.record_change();
            return Ok(());
        };
        let received = uploads.size(name, id).await?;
        // Under this lock, other requests count the bytes as an upload or as a blob, never as both
        // or neither.
        let _guard = self.reservations.lock_namespace(namespace).await;
        let blobs = self.namespace_blobs(namespace, true).await?;
        let reservation = self.reservations.open((name, id), received, quota, sum(&blobs));
        if !blobs.contains_key(&digest)
            && let Err(refused) = reservation.reserve(received).await
        {
            self.reservations.cancel(name, id).await?;
            return Err(refused);
        }
        let made = uploads.finish(name, id, digest).await;
        self.record_change();
        if made.is_err()
            && let Ok(received) = uploads.size(name, id).await
        {
            // The client can retry after a failure of the disk or the object store.
            reservation.complete(received);
        } else {
            self.reservations.forget(name, id);
        }
        made
    }

    /// Makes a stored blob available in a repository if the quota allows it. Returns whether the
    /// blob is stored.
    pub(crate) async fn mount(
        &self,
        name: &Repository,
        digest: Digest,
    ) -> Result<bool, MirrorError> {
        let namespace = name.namespace();
        let mut guard = None;
        if let Some(quota) = self.quota(namespace) {
            let Some(blob) = self.storage.blobs.blob(digest).await? else { return Ok(false) };
            guard = Some(self.reservations.lock_namespace(namespace).await);
            let blobs = self.namespace_blobs(namespace, true).await?;
            if !blobs.contains_key(&digest) {
                check_quota(namespace, quota, sum(&blobs), blob.size())?;
            }
        }
        let mounted = self.storage.blobs.mount(name, digest).await?;
        self.record_change();
        drop(guard);
        Ok(mounted)
    }

    /// Fails if the blobs of a manifest would exceed the quota of its namespace. The caller holds
    /// the returned guard until the manifest is stored; other manifests of the namespace wait for
    /// it.
    pub(crate) async fn check_manifest_quota(
        &self,
        name: &Repository,
        manifest: &Manifest,
    ) -> Result<Option<KeyGuard>, MirrorError> {
        let namespace = name.namespace();
        let Some(quota) = self.quota(namespace) else { return Ok(None) };
        let guard = self.reservations.lock_namespace(namespace).await;
        let blobs = self.namespace_blobs(namespace, false).await?;
        let new = manifest.blobs.iter().filter(|blob| !blobs.contains_key(&blob.digest));
        let new: HashMap<Digest, u64> = new.map(|blob| (blob.digest, blob.size)).collect();
        for (digest, stated) in &new {
            // The stated size is counted, so it must be the real one.
            let actual = self.storage.blobs.blob(*digest).await?.map(|blob| blob.size());
            if let Some(actual) = actual.filter(|actual| actual != stated) {
                let (digest, stated) = (*digest, *stated);
                return Err(ManifestProblem::BlobSize { digest, stated, actual }.into());
            }
        }
        check_quota(namespace, quota, sum(&blobs), sum(&new))?;
        Ok(Some(guard))
    }

    /// Returns the blobs of a namespace with their sizes: those of manifests, and with `pushed`
    /// also recently pushed ones.
    async fn namespace_blobs(
        &self,
        namespace: &str,
        pushed: bool,
    ) -> Result<HashMap<Digest, u64>, MirrorError> {
        let stored_objects = self.stored_objects_in(namespace).await?;
        let counts = |object: &&StoredObject| pushed || object.manifest.is_some();
        Ok(stored_objects
            .iter()
            .filter(counts)
            .flat_map(|object| object.blobs.iter().copied())
            .collect())
    }

    /// Metrics of the stored objects and quotas.
    pub(crate) async fn metrics(&self) -> Result<Vec<Metric>, MirrorError> {
        let stored_objects = self.stored_objects(METRICS_MAX_AGE).await?;
        let manifests = stored_objects.all.iter().filter(|object| object.manifest.is_some());
        let blobs: HashMap<Digest, u64> =
            manifests.clone().flat_map(|object| object.blobs.iter().copied()).collect();
        let mut metrics = vec![
            Metric::new(&families::MANIFESTS, manifests.count() as u64),
            Metric::new(&families::LIBRARY_BYTES, sum(&blobs)),
        ];
        let uses = self.quota_usage().await?;
        let of = |value: fn(&QuotaUsage) -> u64| {
            uses.iter().map(|of| (vec![("namespace", of.namespace.clone())], value(of))).collect()
        };
        metrics.extend([
            Metric { family: &families::QUOTA_USED_BYTES, samples: of(|of| of.used) },
            Metric { family: &families::QUOTA_BYTES, samples: of(|of| of.quota) },
        ]);
        Ok(metrics)
    }

    /// Returns the usage of all namespaces that have a quota.
    pub(crate) async fn quota_usage(&self) -> Result<Vec<QuotaUsage>, MirrorError> {
        if self.quotas.is_empty() {
            return Ok(Vec::new());
        }
        let mut all: HashMap<String, HashMap<Digest, u64>> = HashMap::new();
        let stored_objects = self.stored_objects(METRICS_MAX_AGE).await?;
        for object in stored_objects.all.iter().filter(|object| object.manifest.is_some()) {
            let blobs = all.entry(object.name.namespace().to_ascii_lowercase()).or_default();
            blobs.extend(object.blobs.iter().copied());
        }
        let of = |(namespace, blobs): (String, HashMap<Digest, u64>)| {
            let quota = self.quota(&namespace)?;
            Some(QuotaUsage { namespace, used: sum(&blobs), quota })
        };
        let mut uses: Vec<QuotaUsage> = all.into_iter().filter_map(of).collect();
        uses.sort();
        Ok(uses)
    }
}

/// Sum of blob sizes in bytes.
fn sum(blobs: &HashMap<Digest, u64>) -> u64 {
    blobs.values().fold(0, |sum, size| sum.saturating_add(*size))
}

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
use crate::locks::lock;
use crate::metrics::{Metric, families};
use crate::pull_through::PullThrough;
use crate::quota::Quota;
use crate::quota::namespace_usage::NamespaceContent;
use crate::quota::reservation::QuotaReservations;
use crate::storage::{InventoryScope, Storage};
use crate::types::name_pattern::matches_pattern;
use crate::types::repository::Repository;
use crate::types::shared_table::{SharedTable, TableLimit};
use crate::types::storage_usage::{NamespaceUsages, StorageUsage, StoredUpload, add_usage};
use crate::types::stored_object::{StoredObject, TagEntry};

/// Largest age of a cached scan for metrics.
const METRICS_MAX_AGE: Duration = Duration::from_secs(10);
/// Largest age of a cached scan for quota checks.
const QUOTA_MAX_AGE: Duration = Duration::from_millis(500);
/// Largest age of cached tags for the web page.
const WEB_UI_MAX_AGE: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 3 });
/// How long a key may read more of a blob without a new check.
const VISIBILITY_CACHE_TIME: Duration = Duration::from_secs(60);
/// Largest number of remembered visible blobs of one key.
const MAX_VISIBLE_BLOBS: usize = if cfg!(test) { 10 } else { 10_000 };

/// Description of the bytes and objects of namespaces.
pub(crate) static NAMESPACE_QUOTAS: SharedTable = SharedTable {
    name: "mirror: stored bytes and objects",
    holders: &["puna_mirror::quota::namespace_index::NamespaceIndex"],
    limits: &[TableLimit::Rule("the disk")],
    shares: &[TableLimit::Rule("the quota of the namespace")],
    when_full: "idle uploads are dropped; then 413",
    test: "manifests_count_against_the_quota",
};

/// Description of the blobs that keys may read.
pub(crate) static VISIBLE_BLOBS: SharedTable = SharedTable {
    name: "mirror: visible blobs of keys",
    holders: &["puna_mirror::quota::namespace_index::NamespaceIndex"],
    limits: &[TableLimit::Rule("keys that exist")],
    shares: &[TableLimit::Entries(MAX_VISIBLE_BLOBS)],
    when_full: "the key's own entries are cleared",
    test: "a_key_with_many_visible_blobs_displaces_only_its_own",
};

/// Usage of a namespace that has a quota.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QuotaUsage {
    pub(crate) namespace: String,
    pub(crate) used: StorageUsage,
    pub(crate) limit: StorageUsage,
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
    namespaces: Mutex<HashMap<String, Arc<CachedScan<NamespaceContent>>>>,
    /// Usage of all namespaces by objects other than blobs, for metrics.
    metadata: CachedScan<NamespaceUsages>,
    tag_entries: CachedScan<Vec<TagEntry>>,
    /// Blobs that each key may read, and when that was found.
    visible: Mutex<HashMap<String, HashMap<Digest, Instant>>>,
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
            metadata: CachedScan::default(),
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

    /// Returns the content of one namespace, recent enough for a quota check.
    pub(super) async fn content(
        &self,
        namespace: &str,
    ) -> Result<Arc<NamespaceContent>, MirrorError> {
        let cached = {
            let mut namespaces = lock(&self.namespaces);
            namespaces.retain(|_, cached| {
                Arc::strong_count(cached) > 1 || cached.is_younger(METRICS_MAX_AGE)
            });
            namespaces.entry(namespace.to_ascii_lowercase()).or_default().clone()
        };
        let (scope, inventory) =
            (InventoryScope::Namespace(namespace.to_owned()), &self.storage.inventory);
        let scan = || async {
            let objects = inventory.stored_objects(scope.clone()).await?;
            let pulled = inventory.pulled_blobs(scope.clone()).await?;
            Ok(NamespaceContent::new(objects, &inventory.metadata_usage(scope).await?, pulled))
        };
        cached.get(|| self.change_count(), QUOTA_MAX_AGE, scan).await
    }

    /// Returns the open uploads of one namespace.
    pub(super) async fn open_uploads(
        &self,
        namespace: &str,
    ) -> Result<Vec<StoredUpload>, MirrorError> {
        let scope = InventoryScope::Namespace(namespace.to_owned());
        self.storage.uploads.stored_uploads(scope).await
    }

    pub(super) fn storage(&self) -> &Storage {
        &self.storage
    }

    pub(super) fn pull_through(&self) -> Option<&PullThrough> {
        self.pull_through.as_ref()
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
        if self.is_known_visible(&principal.name, &digest) {
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
            self.record_visible(&principal.name, digest);
        }
        Ok(is_visible)
    }

    /// Whether a key was found to see a blob recently.
    fn is_known_visible(&self, key: &str, digest: &Digest) -> bool {
        let visible = lock(&self.visible);
        let at = visible.get(key).and_then(|blobs| blobs.get(digest));
        at.is_some_and(|at| at.elapsed() < VISIBILITY_CACHE_TIME)
    }

    /// Remembers that a key sees a blob. A key with too many blobs loses only its own.
    fn record_visible(&self, key: &str, digest: Digest) {
        let mut visible = lock(&self.visible);
        let blobs = visible.entry(key.to_owned()).or_default();
        if blobs.len() >= MAX_VISIBLE_BLOBS {
            blobs.clear();
        }
        blobs.insert(digest, Instant::now());
    }

    /// Returns the limits of a namespace; `None` if it has no quota.
    pub(super) fn quota(&self, namespace: &str) -> Option<StorageUsage> {
        let quota = self.quotas.iter().find(|quota| matches_pattern(namespace, &quota.namespaces));
        quota.map(Quota::limit)
    }

    /// Metrics of the stored objects and quotas.
    pub(crate) async fn metrics(&self) -> Result<Vec<Metric>, MirrorError> {
        let stored_objects = self.stored_objects(METRICS_MAX_AGE).await?;
        let manifests = stored_objects.all.iter().filter(|object| object.manifest.is_some());
        let blobs: HashMap<Digest, u64> =
            manifests.clone().flat_map(|object| object.blobs.iter().copied()).collect();
        let mut metrics = vec![
            Metric::new(&families::MANIFESTS, manifests.count() as u64),
            Metric::new(&families::LIBRARY_BYTES, StorageUsage::of_blobs(&blobs).bytes),
        ];
        let uses = self.quota_usage().await?;
        let of = |value: fn(&QuotaUsage) -> u64| {
            uses.iter().map(|of| (vec![("namespace", of.namespace.clone())], value(of))).collect()
        };
        metrics.extend([
            Metric { family: &families::QUOTA_USED_BYTES, samples: of(|of| of.used.bytes) },
            Metric { family: &families::QUOTA_BYTES, samples: of(|of| of.limit.bytes) },
            Metric { family: &families::QUOTA_USED_OBJECTS, samples: of(|of| of.used.objects) },
            Metric { family: &families::QUOTA_OBJECTS, samples: of(|of| of.limit.objects) },
        ]);
        Ok(metrics)
    }

    /// Returns the usage of all namespaces that have a quota.
    pub(crate) async fn quota_usage(&self) -> Result<Vec<QuotaUsage>, MirrorError> {
        if self.quotas.is_empty() {
            return Ok(Vec::new());
        }
        let stored_objects = self.stored_objects(METRICS_MAX_AGE).await?;
        let mut blobs: HashMap<String, HashMap<Digest, u64>> = HashMap::new();
        for object in &stored_objects.all {
            let namespace = object.name.namespace().to_ascii_lowercase();
            blobs.entry(namespace).or_default().extend(object.blobs.iter().copied());
        }
        let scan = || self.scan_metadata();
        let metadata = self.metadata.get(|| self.change_count(), METRICS_MAX_AGE, scan).await?;
        let mut all = NamespaceUsages::clone(&metadata);
        for (namespace, blobs) in blobs {
            let of = all.entry(namespace).or_default();
            *of = of.plus(StorageUsage::of_blobs(&blobs));
        }
        let of = |(namespace, used): (String, StorageUsage)| {
            let limit = self.quota(&namespace)?;
            Some(QuotaUsage { namespace, used, limit })
        };
        let mut uses: Vec<QuotaUsage> = all.into_iter().filter_map(of).collect();
        uses.sort();
        Ok(uses)
    }

    /// Usage of all namespaces by open uploads, and by objects other than blobs.
    async fn scan_metadata(&self) -> Result<NamespaceUsages, MirrorError> {
        let mut usages = self.storage.inventory.metadata_usage(InventoryScope::All).await?;
        for upload in self.storage.uploads.stored_uploads(InventoryScope::All).await? {
            let received = StorageUsage { bytes: upload.bytes, objects: 0 };
            add_usage(&mut usages, &upload.name, upload.overhead().plus(received));
        }
        Ok(usages)
    }
}

#[cfg(test)]
mod tests {
    use puna_store::Store;

    use super::*;
    use crate::storage::FileStorage;

    #[test]
    fn a_key_with_many_visible_blobs_displaces_only_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let storage = FileStorage::new(Arc::new(Store::open(dir.path()).unwrap())).into();
        let index = NamespaceIndex::new(Vec::new(), storage, None);
        let blob = |n: usize| Digest::of(&n.to_le_bytes());
        index.record_visible("b", blob(0));
        (0..=MAX_VISIBLE_BLOBS).for_each(|n| index.record_visible("a", blob(n)));
        let sees = |key: &str, n| index.is_known_visible(key, &blob(n));
        assert!(sees("b", 0) && sees("a", MAX_VISIBLE_BLOBS) && !sees("a", 0));
    }
}

//! Removal of tags and manifests from a bucket during concurrent pushes.
//!
//! A bucket has no locks, and not every service supports conditional deletion. So a mirror that
//! removes items of a repository first writes a marker, and then reads the current state. A mirror
//! that pushes looks for markers after its push. One of them sees the other: either the push is
//! complete before the state is read, and its items stay, or the marker exists before the pushing
//! mirror looks for it. In that case the push waits until the marker is gone, and writes removed
//! items again. The marker of a crashed mirror is valid for a minute.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant, SystemTime};

use object_store::path::Path;
use puna_store::Digest;

use super::bucket::ObjectInfo;
use super::{MAX_CONCURRENT_REQUESTS, S3Storage, map_with_limit};
use crate::error::MirrorError;
use crate::types::manifest::Manifest;
use crate::types::repository::{Reference, Repository};
use crate::types::stored_object::{ConditionalRemoval, StoredObject, removable_manifests};
use crate::types::upload_id::UploadId;

/// Folder of the markers.
pub(super) const REMOVAL_MARKERS_DIR: &str = "retiring";
/// How long a push waits for a marker. After that, the marker's mirror has crashed.
const MARKER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long after its marker a mirror may remove items. The rest is left for the next run.
const REMOVAL_DEADLINE: Duration = Duration::from_secs(30);
/// Interval of checks whether a marker is gone.
const MARKER_POLL_INTERVAL: Duration = Duration::from_millis(if cfg!(test) { 5 } else { 200 });

/// A removal with its position in the request.
type NumberedRemoval = (usize, ConditionalRemoval);

/// A result with the position of its removal.
type NumberedResult = (usize, Result<bool, MirrorError>);

impl S3Storage {
    /// Removes the items that are unchanged.
    pub(super) async fn remove_if_unchanged(
        &self,
        removals: Vec<ConditionalRemoval>,
    ) -> Result<Vec<Result<bool, MirrorError>>, MirrorError> {
        let mut removed: Vec<_> = removals.iter().map(|_| Ok(false)).collect();
        if self.blobs_in_use().await?.is_none() {
            return Ok(removed);
        }
        let mut of: BTreeMap<Repository, Vec<NumberedRemoval>> = BTreeMap::new();
        for (n, removal) in removals.into_iter().enumerate() {
            of.entry(removal.name.clone()).or_default().push((n, removal));
        }
        // The limit applies to all repositories together.
        let at_once = MAX_CONCURRENT_REQUESTS.div_ceil(of.len().max(1));
        let retire = |(name, batch): (Repository, Vec<NumberedRemoval>)| async move {
            let numbers: Vec<usize> = batch.iter().map(|(n, _)| *n).collect();
            Ok(Some(match self.remove_with_marker(&name, batch, at_once).await {
                Ok(results) => results,
                Err(error) => numbers.into_iter().map(|n| (n, Err(error.clone()))).collect(),
            }))
        };
        for (n, results) in
            map_with_limit(of, MAX_CONCURRENT_REQUESTS, retire).await?.into_iter().flatten()
        {
            removed[n] = results;
        }
        Ok(removed)
    }

    async fn remove_with_marker(
        &self,
        name: &Repository,
        batch: Vec<NumberedRemoval>,
        at_once: usize,
    ) -> Result<Vec<NumberedResult>, MirrorError> {
        let marker = self.markers(name).join(UploadId::random()?.as_str());
        let started_at = Instant::now();
        self.bucket.write(&marker, "").await?;
        let results = self.remove_in_repository(name, batch, at_once, started_at).await;
        self.bucket.remove(&marker).await?;
        results
    }

    /// Removes unchanged tags of a repository, then the manifests without remaining tags.
    async fn remove_in_repository(
        &self,
        name: &Repository,
        batch: Vec<NumberedRemoval>,
        at_once: usize,
        started_at: Instant,
    ) -> Result<Vec<NumberedResult>, MirrorError> {
        let tags = self.bucket.list_objects(&self.repository_key(name).join("tags")).await?;
        let mut remaining: HashMap<String, ObjectInfo> =
            tags.into_iter().map(|tag| (tag.name.clone(), tag)).collect();
        let found = |removal: &ConditionalRemoval| {
            removal.tag.as_ref().and_then(|tag| remaining.get(tag)).map(|tag| tag.written)
        };
        let batch =
            batch.into_iter().map(|(n, removal)| (n, found(&removal), removal)).collect::<Vec<_>>();
        let remove = |(n, found, removal): (usize, Option<SystemTime>, ConditionalRemoval)| async move {
            let removed = self.remove_tag(name, &removal, found, started_at).await;
            Ok(Some((n, removal, removed)))
        };
        let tags = map_with_limit(batch, at_once, remove).await?;
        let mut expected = HashMap::new();
        for (_, removal, removed) in &tags {
            if let Some(tag) = removal.tag.as_ref().filter(|_| *removed == Ok(true)) {
                remaining.remove(tag);
            }
            if removal.with_manifest && (removal.tag.is_none() || *removed == Ok(true)) {
                expected.insert(removal.digest, removal.manifest_written);
            }
        }
        let gone = self.remove_manifests(name, &expected, remaining, at_once, started_at).await?;
        let results = |(n, removal, removed): (usize, ConditionalRemoval, _)| match removal.tag {
            Some(_) => (n, removed),
            None => (n, Ok(gone.contains(&removal.digest))),
        };
        Ok(tags.into_iter().map(results).collect())
    }

    /// Removes the manifests of a repository that nothing needs. Returns their digests.
    async fn remove_manifests(
        &self,
        name: &Repository,
        expected: &HashMap<Digest, Option<SystemTime>>,
        tags: HashMap<String, ObjectInfo>,
        at_once: usize,
        started_at: Instant,
    ) -> Result<Vec<Digest>, MirrorError> {
        if expected.is_empty() {
            return Ok(Vec::new());
        }
        let known = |tag: ObjectInfo| async move { self.cached_tag(name, &tag).await };
        let tagged = map_with_limit(tags.into_values(), at_once, known).await?;
        let mut objects = self.repository_objects(name, at_once).await?;
        let removable = removable_manifests(expected, tagged, &objects);
        objects.retain(|object| object.manifest.is_some_and(|digest| removable.contains(&digest)));
        let remove = |object: StoredObject| async move {
            self.remove_object(name, &object, started_at).await
        };
        map_with_limit(objects, at_once, remove).await
    }

    async fn remove_tag(
        &self,
        name: &Repository,
        removal: &ConditionalRemoval,
        found: Option<SystemTime>,
        started_at: Instant,
    ) -> Result<bool, MirrorError> {
        let Some(tag) =
            removal.tag.as_ref().filter(|_| found.is_some() && found == removal.tag_written)
        else {
            return Ok(false);
        };
        if self.tag_digest(name, tag).await? != Some(removal.digest)
            || started_at.elapsed() > REMOVAL_DEADLINE
        {
            return Ok(false);
        }
        self.bucket.remove(&self.tag_key(name, tag)).await?;
        Ok(true)
    }

    async fn remove_object(
        &self,
        name: &Repository,
        object: &StoredObject,
        started_at: Instant,
    ) -> Result<Option<Digest>, MirrorError> {
        let Some(digest) = object.manifest.filter(|_| started_at.elapsed() <= REMOVAL_DEADLINE)
        else {
            return Ok(None);
        };
        let list = match object.children.is_empty() {
            true => None,
            false => self.stored_manifest(name, &digest).await?,
        };
        self.move_to_trash(
            &self.manifest_key(name, &digest),
            &format!("manifest-{}", digest.hex()),
        )
        .await?;
        if let Some(subject) = &object.subject {
            self.bucket.remove(&self.referrer_key(name, subject, &digest)).await?;
        }
        if let Some(list) = list {
            self.forget_children(name, &list).await?;
        }
        Ok(Some(digest))
    }

    /// Returns the manifests of a repository.
    async fn repository_objects(
        &self,
        name: &Repository,
        at_once: usize,
    ) -> Result<Vec<StoredObject>, MirrorError> {
        let listed = self.bucket.list_objects(&self.repository_key(name).join("manifests")).await?;
        let read = |entry: ObjectInfo| async move {
            let manifest = self.manifest_of_object(name, &entry).await?;
            Ok(manifest.map(|manifest| {
                StoredObject::from_manifest(name.clone(), &manifest, Some(entry.written))
            }))
        };
        map_with_limit(listed, at_once, read).await
    }

    fn markers(&self, name: &Repository) -> Path {
        self.bucket.key([REMOVAL_MARKERS_DIR, &name.dir_name()])
    }

    /// Waits for mirrors that may have read the state before a push, and writes again what they
    /// have removed of it.
    pub(super) async fn restore_after_removals(
        &self,
        name: &Repository,
        reference: &Reference,
        manifest: &Manifest,
        manifest_of_object: Vec<Manifest>,
    ) -> Result<(), MirrorError> {
        self.wait_for_markers(name).await?;
        if manifest.list.is_some()
            && self.bucket.age(&self.manifest_key(name, &manifest.digest)).await?.is_none()
        {
            self.note_children(name, manifest).await?;
        }
        for manifest in manifest_of_object.iter().chain([manifest]) {
            let key = self.manifest_key(name, &manifest.digest);
            if self.bucket.age(&key).await?.is_none() {
                self.bucket.write(&key, manifest.bytes.clone()).await?;
            }
            if let Some(subject) = &manifest.subject {
                let key = self.referrer_key(name, subject, &manifest.digest);
                if self.bucket.age(&key).await?.is_none() {
                    self.bucket.write(&key, "").await?;
                }
            }
        }
        if let Reference::Tag(tag) = reference {
            let key = self.tag_key(name, tag);
            if self.bucket.age(&key).await?.is_none() {
                self.bucket.write(&key, manifest.digest.to_string()).await?;
            }
        }
        Ok(())
    }

    /// Waits until the present markers of a repository are gone. Mirrors with later markers see the
    /// push.
    async fn wait_for_markers(&self, name: &Repository) -> Result<(), MirrorError> {
        let markers = self.markers(name);
        let mut waited_for = self.bucket.list_objects(&markers).await?;
        let started_at = Instant::now();
        while !waited_for.is_empty() && started_at.elapsed() < MARKER_TIMEOUT {
            tokio::time::sleep(MARKER_POLL_INTERVAL).await;
            let now = self.bucket.list_objects(&markers).await?;
            waited_for.retain(|marker| now.iter().any(|found| found.name == marker.name));
        }
        for marker in waited_for {
            // Its mirror has crashed, or stopped removing half a minute ago.
            self.bucket.remove(&markers.clone().join(marker.name)).await?;
        }
        Ok(())
    }
}

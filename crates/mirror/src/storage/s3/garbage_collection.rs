//! Garbage collection of the bucket: old blobs that no manifest references, data without a name,
//! push marks, removal markers and size notes.

use std::collections::HashSet;
use std::time::Duration;

use puna_store::Digest;

use super::blob_location::{BlobLocation, blob_key};
use super::bucket::{ObjectInfo, to_json};
use super::removal::REMOVAL_MARKERS_DIR;
use super::{PUSH_MARKS, S3Storage, SIZES, map_concurrently};
use crate::error::MirrorError;
use crate::locks::lock;
use crate::storage::collection_rules::BLOB_GRACE_PERIOD;
use crate::storage::note_store::{SIZE_NOTE_REFRESH, expired_size_notes};
use crate::types::manifest::Manifest;

/// How long data may lack a name. Services date an object by the start of its upload.
const UNNAMED_DATA_GRACE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

impl S3Storage {
    /// Removes blobs that no manifest references, a day after they were pushed or named by a
    /// manifest, and data without a name. Returns the number of removed objects.
    pub(super) async fn sweep(&self) -> Result<usize, MirrorError> {
        // Blobs are listed before manifests are read. A manifest that arrives in between has
        // renewed its blobs.
        let blobs = self.bucket.list_objects(&self.bucket.key(["blobs"])).await?;
        let data = self.bucket.list_objects(&self.bucket.key(["data"])).await?;
        let (old, young): (Vec<_>, Vec<_>) =
            blobs.into_iter().partition(|blob| blob.age() > BLOB_GRACE_PERIOD);
        let Some(needed) = self.blobs_in_use().await? else { return Ok(0) };
        let (mut gone, mut locations) = (Vec::new(), self.empty_trash().await?);
        for (digest, location, age) in
            map_concurrently(old.into_iter().chain(young), |blob| self.sweep_entry(blob)).await?
        {
            locations.insert(location.data.to_string());
            if age > BLOB_GRACE_PERIOD && !needed.contains(&digest) && self.is_old(&digest).await? {
                // Only the name is removed, because another mirror may be writing it again. The
                // next run removes the data.
                self.move_to_trash(&blob_key(&self.bucket, &digest), &digest.file_name()).await?;
                gone.push((digest, location));
            }
        }
        let mut removed = gone.len() - self.restore_needed_blobs(gone).await?;
        removed += self.remove_unnamed_data(data, &locations).await?;
        self.remove_old_marks().await?;
        self.remove_old_size_notes().await?;
        Ok(removed)
    }

    /// Removes data without a name. It must also have lacked a name an hour ago, because another
    /// mirror may be restoring a name. Returns the number of removed objects.
    async fn remove_unnamed_data(
        &self,
        data: Vec<ObjectInfo>,
        locations: &HashSet<String>,
    ) -> Result<usize, MirrorError> {
        let unnamed = data
            .into_iter()
            .filter(|bytes| bytes.age() > UNNAMED_DATA_GRACE && !locations.contains(&bytes.name));
        let unnamed: HashSet<_> = unnamed.map(|bytes| bytes.name).collect();
        let before = std::mem::replace(&mut *lock(&self.unnamed), unnamed.clone());
        let mut removed = 0;
        for name in &unnamed {
            if before.contains(name) {
                self.bucket.remove(&self.bucket.key(["data", name])).await?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Removes push marks and removal markers whose time is over.
    async fn remove_old_marks(&self) -> Result<(), MirrorError> {
        for kind in [PUSH_MARKS, REMOVAL_MARKERS_DIR] {
            for (folder, mark, age) in self.bucket.list_nested(&self.bucket.key([kind])).await? {
                if age > BLOB_GRACE_PERIOD {
                    self.bucket.remove(&self.bucket.key([kind, &folder, &mark])).await?;
                }
            }
        }
        Ok(())
    }

    /// Removes expired size notes.
    async fn remove_old_size_notes(&self) -> Result<(), MirrorError> {
        for (folder, note) in
            expired_size_notes(self.bucket.list_nested(&self.bucket.key([SIZES])).await?)
        {
            let key = self.bucket.key([SIZES, &folder, &note]);
            // The note may have been written again meanwhile.
            if self.bucket.age(&key).await?.is_some_and(|age| age > SIZE_NOTE_REFRESH) {
                self.bucket.remove(&key).await?;
            }
        }
        Ok(())
    }

    /// Restores names of removed blobs that a manifest needs. Such a manifest was pushed between
    /// the check and the removal, and its client saw the blobs. A later push finds the blob missing
    /// and fails. Returns the number of restored names.
    async fn restore_needed_blobs(
        &self,
        gone: Vec<(Digest, BlobLocation)>,
    ) -> Result<usize, MirrorError> {
        if gone.is_empty() {
            return Ok(0);
        }
        let needed = self.referenced_blobs().await?;
        let mut back = 0;
        for (digest, location) in gone.iter().filter(|(digest, _)| needed.contains(digest)) {
            // The blob may have been pushed again, so an existing name stays.
            self.bucket.create(&blob_key(&self.bucket, digest), to_json(location)?).await?;
            back += 1;
        }
        Ok(back)
    }

    /// Returns what garbage collection needs of a blob, mostly from the cache.
    async fn sweep_entry(
        &self,
        blob: ObjectInfo,
    ) -> Result<Option<(Digest, BlobLocation, Duration)>, MirrorError> {
        let Ok(digest) = blob.name.parse::<Digest>() else { return Ok(None) };
        let age = blob.age();
        let key = (blob.name, blob.version);
        let location = match self.locations.get(&key) {
            Some(location) => location,
            None => {
                let Some(location) = self.blob_location(&digest).await? else { return Ok(None) };
                self.locations.put(key, location.clone());
                location
            }
        };
        Ok(Some((digest, location, age)))
    }

    async fn is_old(&self, digest: &Digest) -> Result<bool, MirrorError> {
        let age = self.bucket.age(&blob_key(&self.bucket, digest)).await?;
        Ok(age.is_some_and(|age| age > BLOB_GRACE_PERIOD))
    }

    /// Returns the blobs that all manifests reference.
    async fn referenced_blobs(&self) -> Result<HashSet<Digest>, MirrorError> {
        let blobs = |_, kept: Manifest, _| {
            kept.blobs.into_iter().map(|blob| blob.digest).collect::<Vec<_>>()
        };
        Ok(self.map_manifests(|_| true, blobs).await?.into_iter().flatten().collect())
    }
}

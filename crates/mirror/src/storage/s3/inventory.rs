//! Inventory of the bucket, which garbage collection needs, and the trash.
//!
//! The trash is a folder of small objects: names of blobs, and manifests. The data of a blob stays
//! in place while its name is in the trash. S3 copies no object larger than 5 GB in one request.

use std::collections::HashSet;

use object_store::path::Path;
use puna_store::Digest;

use super::blob_location::read_blob_location;
use super::{S3Storage, map_concurrently};
use crate::error::MirrorError;
use crate::storage::collection_rules::{
    TRASH_LIFETIME, check_type, is_known, read_manifest, shorten,
};
use crate::types::manifest::Manifest;

/// Folder of the trash.
const TRASH: &str = "trash";

impl S3Storage {
    /// Returns the blobs in use; `None` if nothing may be removed, which is logged.
    pub(super) async fn blobs_in_use(&self) -> Result<Option<HashSet<Digest>>, MirrorError> {
        Ok(self.refusal_log.check(self.inventory().await?))
    }

    /// Returns the blobs that manifests in the bucket reference, or why they are not known.
    async fn inventory(&self) -> Result<Result<HashSet<Digest>, String>, MirrorError> {
        let mut manifests = Vec::new();
        for path in self.bucket.list_keys().await? {
            let words: Vec<&str> = path.iter().map(String::as_str).collect();
            if !is_known(&words) {
                let path = shorten(&path.join("/"));
                return Ok(Err(format!("unknown object {path}: move it elsewhere")));
            }
            if let ["repositories", _, "manifests", _] = words[..] {
                manifests.push(path);
            }
        }
        let read = |path: Vec<String>| async move { self.blobs_of_manifest(&path).await };
        let (mut needed, mut reasons) = (HashSet::new(), Vec::new());
        for found in map_concurrently(manifests, read).await? {
            match found {
                Ok(blobs) => needed.extend(blobs),
                Err(reason) => reasons.push(reason),
            }
        }
        // The smallest reason is the same each time, so that it is logged once.
        Ok(reasons.into_iter().min().map_or(Ok(needed), Err))
    }

    /// Returns the blobs that a manifest references, or why they are not known; `None` if it is
    /// gone.
    async fn blobs_of_manifest(
        &self,
        path: &[String],
    ) -> Result<Option<Result<Vec<Digest>, String>>, MirrorError> {
        let hex = path.last().map_or("", String::as_str);
        let known =
            format!("sha256:{hex}").parse().ok().and_then(|digest| self.manifests.get(&digest));
        let manifest = match known {
            Some(known) => check_type(&known).map(|()| known),
            None => {
                let key = self.bucket.key(path.iter().map(String::as_str));
                let Some(bytes) = self.bucket.read(&key).await? else { return Ok(None) };
                read_manifest(hex, bytes)
            }
        };
        let blobs = |manifest: Manifest| {
            self.manifests.put(manifest.digest, manifest.clone());
            manifest.blobs.iter().map(|blob| blob.digest).collect()
        };
        let unknown = |reason| format!("cannot read the manifest {}: {reason}", path.join("/"));
        Ok(Some(manifest.map(blobs).map_err(unknown)))
    }

    /// Moves a small object to the trash under a name.
    pub(super) async fn move_to_trash(&self, key: &Path, name: &str) -> Result<(), MirrorError> {
        if let Some(bytes) = self.bucket.read(key).await? {
            self.bucket.write(&self.bucket.key([TRASH, name]), bytes).await?;
        }
        self.bucket.remove(key).await
    }

    /// Removes items older than a day. Returns the data objects that the remaining ones reference.
    pub(super) async fn empty_trash(&self) -> Result<HashSet<String>, MirrorError> {
        let mut named = HashSet::new();
        for entry in self.bucket.list_objects(&self.bucket.key([TRASH])).await? {
            let key = self.bucket.key([TRASH, &entry.name]);
            if entry.age() > TRASH_LIFETIME {
                self.bucket.remove(&key).await?;
            } else if entry.name.parse::<Digest>().is_ok() {
                named.extend(
                    read_blob_location(&self.bucket, &key)
                        .await?
                        .map(|location| location.data.to_string()),
                );
            }
        }
        Ok(named)
    }
}

//! What a collection must know of a bucket, and the trash there.
//!
//! The trash is a folder of small objects: names of blobs, and manifests. The bytes of a blob stay where they are while its name lies in
//! the trash. S3 copies no object of more than 5 GB at once.

use std::collections::HashSet;

use object_store::path::Path;
use puna_store::Digest;

use super::{ObjectLibrary, each, place_at};
use crate::error::MirrorError;
use crate::library::inventory::{check_type, cut, is_known, read_manifest};
use crate::library::trash::TRASH_TIME;
use crate::manifest::Manifest;

/// The folder of the trash.
const TRASH: &str = "trash";

impl ObjectLibrary {
    /// The blobs that a collection must keep; `None` if it must remove nothing, which the log says.
    pub(super) async fn collectable(&self) -> Result<Option<HashSet<Digest>>, MirrorError> {
        Ok(self.refusals.check(self.inventory().await?))
    }

    /// The blobs that manifests in the bucket need, or why that is not known.
    async fn inventory(&self) -> Result<Result<HashSet<Digest>, String>, MirrorError> {
        let mut manifests = Vec::new();
        for path in self.bucket.paths().await? {
            let words: Vec<&str> = path.iter().map(String::as_str).collect();
            if !is_known(&words) {
                let path = cut(&path.join("/"));
                return Ok(Err(format!("the object {path} is unknown: move it elsewhere")));
            }
            if let ["repositories", _, "manifests", _] = words[..] {
                manifests.push(path);
            }
        }
        let read = |path: Vec<String>| async move { self.needed_by(&path).await };
        let (mut needed, mut reasons) = (HashSet::new(), Vec::new());
        for found in each(manifests, read).await? {
            match found {
                Ok(blobs) => needed.extend(blobs),
                Err(reason) => reasons.push(reason),
            }
        }
        // The same one each time, so that the log repeats no reason.
        Ok(reasons.into_iter().min().map_or(Ok(needed), Err))
    }

    /// The blobs that a manifest needs, or why that is not known; `None` if it is gone by now.
    async fn needed_by(
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
        let unknown =
            |reason| format!("the manifest {} is not understood: {reason}", path.join("/"));
        Ok(Some(manifest.map(blobs).map_err(unknown)))
    }

    /// Moves a small object to the trash under a name.
    pub(super) async fn move_to_trash(&self, key: &Path, name: &str) -> Result<(), MirrorError> {
        if let Some(bytes) = self.bucket.read(key).await? {
            self.bucket.write(&self.bucket.key([TRASH, name]), bytes).await?;
        }
        self.bucket.remove(key).await
    }

    /// Removes what has been in the trash for a day. Says which data the rest names.
    pub(super) async fn empty_trash(&self) -> Result<HashSet<String>, MirrorError> {
        let mut named = HashSet::new();
        for entry in self.bucket.entries(&self.bucket.key([TRASH])).await? {
            let key = self.bucket.key([TRASH, &entry.name]);
            if entry.age() > TRASH_TIME {
                self.bucket.remove(&key).await?;
            } else if entry.name.parse::<Digest>().is_ok() {
                named.extend(
                    place_at(&self.bucket, &key).await?.map(|place| place.data.to_string()),
                );
            }
        }
        Ok(named)
    }
}

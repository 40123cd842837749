//! Inventory of the registry directory, which garbage collection needs.
//!
//! The registry knows which blobs are in use only if it can read every manifest. So it lists
//! everything below its directory first. If one entry is unknown or unreadable, the collection
//! removes nothing, and the log names the entry.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;

use puna_store::Digest;

use super::registry_dir::{self, RegistryDir};
use crate::storage::collection_rules::{is_known, manifest_digest, read_manifest};
use crate::types::repository::Repository;

/// Whether the registry keeps a directory at a path below its root.
fn is_known_folder(path: &[&str]) -> bool {
    match path {
        [
            "blobs" | "uploads" | "history" | "damaged" | "trash" | "brought" | "sizes"
            | "repositories",
        ]
        | ["trash", _] => true,
        ["brought" | "sizes" | "repositories", name] => Repository::from_dir_name(name).is_some(),
        ["repositories", _, "manifests" | "tags" | "referrers" | "lists"] => true,
        ["repositories", _, "referrers" | "lists", hex] => manifest_digest(hex).is_some(),
        _ => false,
    }
}

impl RegistryDir {
    /// Returns the blobs that manifests in the registry directory reference, or why they are not
    /// known. The caller holds the write lock.
    pub(crate) fn inventory(&self) -> Result<HashSet<Digest>, String> {
        let mut blobs = HashSet::new();
        if self.exists() {
            self.walk(self.root(), &mut Vec::new(), &mut blobs)?;
        }
        Ok(blobs)
    }

    /// Returns the blobs in use; `None` if nothing may be removed, which is logged.
    pub(crate) fn blobs_in_use(&self) -> Option<HashSet<Digest>> {
        self.refusal_log.check(self.inventory())
    }

    fn walk(
        &self,
        dir: &Path,
        path: &mut Vec<String>,
        blobs: &mut HashSet<Digest>,
    ) -> Result<(), String> {
        let unreadable =
            |error: io::Error| format!("cannot read the folder {}: {error}", dir.display());
        let mut names = Vec::new();
        for entry in fs::read_dir(dir).map_err(unreadable)? {
            let name = entry.map_err(unreadable)?.file_name().into_string();
            names.push(name.map_err(|name| format!("unknown entry {}", dir.join(name).display()))?);
        }
        // A fixed order makes the reason the same each time, so that it is logged once.
        names.sort();
        for name in names {
            let at = dir.join(&name);
            path.push(name);
            self.visit(&at, path, blobs)?;
            path.pop();
        }
        Ok(())
    }

    fn visit(
        &self,
        at: &Path,
        path: &mut Vec<String>,
        blobs: &mut HashSet<Digest>,
    ) -> Result<(), String> {
        let unreadable = |reason: String| format!("cannot read {}: {reason}", at.display());
        let words: Vec<&str> = path.iter().map(String::as_str).collect();
        let meta = match fs::metadata(at) {
            Ok(meta) => meta,
            // An upload may end at any time.
            Err(e) if e.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(at).is_err() => {
                return Ok(());
            }
            Err(error) => return Err(unreadable(error.to_string())),
        };
        // The store of a mirror in front of a bucket contains no manifests of this directory.
        if meta.is_dir() && words == ["passing"] {
            return Ok(());
        }
        if meta.is_dir() && is_known_folder(&words) {
            return self.walk(at, path, blobs);
        }
        if meta.is_dir() || !is_known(&words) {
            return Err(format!("unknown entry {}: move it elsewhere", at.display()));
        }
        if let ["repositories", _, "manifests", hex] = words[..]
            && let Some(bytes) =
                registry_dir::read_small_file(at).map_err(|error| unreadable(error.to_string()))?
        {
            let manifest = read_manifest(hex, bytes.into())
                .map_err(|reason| format!("cannot read the manifest {}: {reason}", at.display()))?;
            blobs.extend(manifest.blobs.iter().map(|blob| blob.digest));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

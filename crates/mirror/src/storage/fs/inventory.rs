//! Inventory of the registry directory, which garbage collection needs.
//!
//! The registry knows which blobs are in use only if it can read every manifest. So it lists
//! everything below its directory first. If one entry is unknown or unreadable, the collection
//! removes nothing, and the log names the entry.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Mutex;

use bytes::Bytes;
use puna_store::Digest;

use super::registry_dir::{self, RegistryDir};
use crate::locks::lock;
use crate::types::manifest::Manifest;
use crate::types::repository::{Reference, Repository};
use crate::types::upload_id::UploadId;

/// The largest number of characters of an unknown name in the log.
const MAX_LOGGED_CHARS: usize = 200;

/// Whether the registry keeps a file or object at a path below its root.
pub(crate) fn is_known(path: &[&str]) -> bool {
    let is_hex = |hex: &str| manifest_digest(hex).is_some();
    let is_repository = |name: &str| Repository::from_dir_name(name).is_some();
    match path {
        ["lock"] | ["uploads" | "history" | "damaged", _] | ["trash", _] | ["trash", _, _] => true,
        // A `.copy` is a blob that is being written.
        ["blobs", name] => name.strip_suffix(".copy").unwrap_or(name).parse::<Digest>().is_ok(),
        ["data", id] => UploadId::parse(id).is_ok(),
        ["brought" | "retiring" | "sizes", name, _] => is_repository(name),
        ["repositories", name, "manifests", hex] => is_repository(name) && is_hex(hex),
        ["repositories", name, "tags", tag] => {
            is_repository(name) && matches!(Reference::parse(tag), Ok(Reference::Tag(_)))
        }
        ["repositories", name, "referrers" | "lists", hex, other] => {
            is_repository(name) && is_hex(hex) && is_hex(other)
        }
        _ => false,
    }
}

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

/// The digest of a manifest by its file name; `None` if the name is no digest.
fn manifest_digest(hex: &str) -> Option<Digest> {
    format!("sha256:{hex}").parse().ok()
}

/// Reads a manifest whose blobs are in use.
///
/// # Errors
/// The bytes are not the manifest of that name, or its media type is unknown.
pub(crate) fn read_manifest(hex: &str, bytes: Bytes) -> Result<Manifest, String> {
    let manifest = Manifest::parse(bytes, None).map_err(|error| error.to_string())?;
    if manifest_digest(hex) != Some(manifest.digest) {
        return Err("its content has another digest than its name says".into());
    }
    check_type(&manifest)?;
    Ok(manifest)
}

/// Rejects a media type that may reference blobs in an unknown way.
pub(crate) fn check_type(manifest: &Manifest) -> Result<(), String> {
    match manifest.unknown_type() {
        Some(kind) => Err(format!("it has the unknown media type {:?}", shorten(&kind))),
        None => Ok(()),
    }
}

/// Beginning of a text from outside, for the log.
pub(crate) fn shorten(text: &str) -> String {
    text.chars().take(MAX_LOGGED_CHARS).collect()
}

/// Logs why garbage collection removes nothing, once for each reason.
#[derive(Default)]
pub(crate) struct GcRefusalLog(Mutex<Option<String>>);

impl GcRefusalLog {
    /// Returns the value, or logs the reason unless the last collection failed for the same one.
    pub(crate) fn check<T>(&self, found: Result<T, String>) -> Option<T> {
        match found {
            Ok(blobs) => {
                *lock(&self.0) = None;
                Some(blobs)
            }
            Err(reason) => {
                if self.is_new(&reason) {
                    tracing::warn!("garbage is not collected: {reason}");
                }
                None
            }
        }
    }

    /// Whether the reason differs from the last one, which it replaces.
    fn is_new(&self, reason: &str) -> bool {
        lock(&self.0).replace(reason.to_owned()).is_none_or(|last| last != reason)
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
            |error: io::Error| format!("the folder {} cannot be read: {error}", dir.display());
        let mut names = Vec::new();
        for entry in fs::read_dir(dir).map_err(unreadable)? {
            let name = entry.map_err(unreadable)?.file_name().into_string();
            names.push(name.map_err(|name| format!("{} is unknown", dir.join(name).display()))?);
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
        let unreadable = |reason: String| format!("{} cannot be read: {reason}", at.display());
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
            return Err(format!("{} is unknown: move it elsewhere", at.display()));
        }
        if let ["repositories", _, "manifests", hex] = words[..]
            && let Some(bytes) =
                registry_dir::read_small_file(at).map_err(|error| unreadable(error.to_string()))?
        {
            let manifest = read_manifest(hex, bytes.into()).map_err(|reason| {
                format!("the manifest {} is not understood: {reason}", at.display())
            })?;
            blobs.extend(manifest.blobs.iter().map(|blob| blob.digest));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

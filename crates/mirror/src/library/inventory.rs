//! What a library must understand before it collects garbage.
//!
//! The library knows which blobs are needed only if it can read every manifest that it keeps. So it looks at everything under its root
//! first. If one entry is unknown or unreadable, the collection removes nothing, and the log names that entry.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Mutex;

use bytes::Bytes;
use puna_store::Digest;

use super::folder::{self, Folder};
use crate::id::UploadId;
use crate::lock::lock;
use crate::manifest::Manifest;
use crate::name::{Reference, Repository};

/// The largest number of characters of an unknown name in the log.
const MAX_NAME: usize = 200;

/// Whether a library keeps a file or object at a path below its root.
pub(super) fn is_known(path: &[&str]) -> bool {
    let is_hex = |hex: &str| manifest_digest(hex).is_some();
    let is_repository = |name: &str| Repository::of_folder(name).is_some();
    match path {
        ["lock"] | ["uploads" | "history" | "damaged", _] | ["trash", _] | ["trash", _, _] => true,
        // A copy is a blob that is just being written.
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

/// Whether a library keeps a folder at a path below its root.
fn is_known_folder(path: &[&str]) -> bool {
    match path {
        [
            "blobs" | "uploads" | "history" | "damaged" | "trash" | "brought" | "sizes"
            | "repositories",
        ]
        | ["trash", _] => true,
        ["brought" | "sizes" | "repositories", name] => Repository::of_folder(name).is_some(),
        ["repositories", _, "manifests" | "tags" | "referrers" | "lists"] => true,
        ["repositories", _, "referrers" | "lists", hex] => manifest_digest(hex).is_some(),
        _ => false,
    }
}

/// The digest of a manifest by its file name; `None` if the name is no digest.
fn manifest_digest(hex: &str) -> Option<Digest> {
    format!("sha256:{hex}").parse().ok()
}

/// Reads a manifest whose blobs a collection must keep.
///
/// # Errors
/// The bytes are not the manifest of that name, or its form is unknown.
pub(super) fn read_manifest(hex: &str, bytes: Bytes) -> Result<Manifest, String> {
    let manifest = Manifest::parse(bytes, None).map_err(|error| error.to_string())?;
    if manifest_digest(hex) != Some(manifest.digest) {
        return Err("its content has another digest than its name says".into());
    }
    check_type(&manifest)?;
    Ok(manifest)
}

/// Refuses a manifest of a media type that may name blobs in a way that the library does not know.
pub(super) fn check_type(manifest: &Manifest) -> Result<(), String> {
    match manifest.unknown_type() {
        Some(kind) => Err(format!("it has the unknown media type {:?}", cut(&kind))),
        None => Ok(()),
    }
}

/// The beginning of a text from outside, for the log.
pub(super) fn cut(text: &str) -> String {
    text.chars().take(MAX_NAME).collect()
}

/// Logs why a library removes nothing, once for each reason.
#[derive(Default)]
pub(super) struct RefusalLog(Mutex<Option<String>>);

impl RefusalLog {
    /// Hands on what is needed. A reason is logged unless the last collection failed for it, too.
    pub(super) fn check<T>(&self, found: Result<T, String>) -> Option<T> {
        match found {
            Ok(needed) => {
                *lock(&self.0) = None;
                Some(needed)
            }
            Err(reason) => {
                if self.is_new(&reason) {
                    tracing::warn!("garbage is not collected: {reason}");
                }
                None
            }
        }
    }

    /// Whether a reason is another one than the last, which it replaces.
    fn is_new(&self, reason: &str) -> bool {
        lock(&self.0).replace(reason.to_owned()).is_none_or(|last| last != reason)
    }
}

impl Folder {
    /// The blobs that manifests in the registry's folder need, or why that is not known. The caller holds the lock of changes.
    pub(super) fn inventory(&self) -> Result<HashSet<Digest>, String> {
        let mut needed = HashSet::new();
        if self.is_there() {
            self.walk(self.root(), &mut Vec::new(), &mut needed)?;
        }
        Ok(needed)
    }

    /// The blobs that a collection must keep; `None` if it must remove nothing, which the log says.
    pub(super) fn needed(&self) -> Option<HashSet<Digest>> {
        self.refusals.check(self.inventory())
    }

    fn walk(
        &self,
        dir: &Path,
        path: &mut Vec<String>,
        needed: &mut HashSet<Digest>,
    ) -> Result<(), String> {
        let unreadable =
            |error: io::Error| format!("the folder {} cannot be read: {error}", dir.display());
        let mut names = Vec::new();
        for entry in fs::read_dir(dir).map_err(unreadable)? {
            let name = entry.map_err(unreadable)?.file_name().into_string();
            names.push(name.map_err(|name| format!("{} is unknown", dir.join(name).display()))?);
        }
        // In the same order each time, so that the log repeats no reason.
        names.sort();
        for name in names {
            let at = dir.join(&name);
            path.push(name);
            self.visit(&at, path, needed)?;
            path.pop();
        }
        Ok(())
    }

    fn visit(
        &self,
        at: &Path,
        path: &mut Vec<String>,
        needed: &mut HashSet<Digest>,
    ) -> Result<(), String> {
        let unreadable = |reason: String| format!("{} cannot be read: {reason}", at.display());
        let words: Vec<&str> = path.iter().map(String::as_str).collect();
        let meta = match fs::metadata(at) {
            Ok(meta) => meta,
            // An upload ends at any time.
            Err(e) if e.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(at).is_err() => {
                return Ok(());
            }
            Err(error) => return Err(unreadable(error.to_string())),
        };
        // The store of a mirror before a bucket has no manifests of this folder.
        if meta.is_dir() && words == ["passing"] {
            return Ok(());
        }
        if meta.is_dir() && is_known_folder(&words) {
            return self.walk(at, path, needed);
        }
        if meta.is_dir() || !is_known(&words) {
            return Err(format!("{} is unknown: move it elsewhere", at.display()));
        }
        if let ["repositories", _, "manifests", hex] = words[..]
            && let Some(bytes) = folder::read(at).map_err(|error| unreadable(error.to_string()))?
        {
            let manifest = read_manifest(hex, bytes.into()).map_err(|reason| {
                format!("the manifest {} is not understood: {reason}", at.display())
            })?;
            needed.extend(manifest.blobs.iter().map(|blob| blob.digest));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

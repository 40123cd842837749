//! Rules of garbage collection that all drivers share: how long items are kept, which items the
//! registry knows, and when a collection must not remove anything.

use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use puna_store::Digest;

use crate::locks::lock;
use crate::types::manifest::Manifest;
use crate::types::repository::{Reference, Repository};
use crate::types::upload_id::UploadId;

/// How long a pushed blob may wait for its manifest.
pub(crate) const BLOB_GRACE_PERIOD: Duration = Duration::from_secs(24 * 60 * 60);
/// How long an item stays in the trash.
pub(crate) const TRASH_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);
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

/// The digest of a manifest by its file name; `None` if the name is no digest.
pub(crate) fn manifest_digest(hex: &str) -> Option<Digest> {
    format!("sha256:{hex}").parse().ok()
}

/// Reads a manifest whose blobs are in use.
///
/// # Errors
/// The bytes are not the manifest of that name, or its media type is unknown.
pub(crate) fn read_manifest(hex: &str, bytes: Bytes) -> Result<Manifest, String> {
    let manifest = Manifest::parse(bytes, None).map_err(|error| error.to_string())?;
    if manifest_digest(hex) != Some(manifest.digest) {
        return Err("its content does not match its digest".into());
    }
    check_type(&manifest)?;
    Ok(manifest)
}

/// Rejects a media type that may reference blobs in an unknown way.
pub(crate) fn check_type(manifest: &Manifest) -> Result<(), String> {
    match manifest.unknown_type() {
        Some(kind) => Err(format!("unknown media type {:?}", shorten(&kind))),
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
                    tracing::warn!("garbage collection removes nothing: {reason}");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_reason_is_logged_once() {
        let log = GcRefusalLog::default();
        assert!(log.is_new("one") && !log.is_new("one") && log.is_new("other"));
        assert_eq!(log.check::<()>(Err("other".into())), None);
        assert_eq!(log.check(Ok(7)), Some(7));
        assert!(log.is_new("other"));
    }
}

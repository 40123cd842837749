//! Computes the blobs that the names of a store reference. Blobs may be removed only if all entries
//! of the store's folder are known and every manifest can be read.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use puna_gguf::escape_for_message;
use serde_json::Value;

use crate::digest::Digest;
use crate::entry::read_manifest_blob;
use crate::error::StoreError;
use crate::files::TEMP_DIR;
use crate::manifest::{Layer, Manifest, TEXT_LIMIT, media, parse_object};
use crate::manifest_list::{Child, ManifestDocument};
use crate::name_files::{NameFile, NameScan, dangling_link_error, entries_of, foreign_file_error};
use crate::store::Store;
use crate::trash::TRASH_DIR;

/// Known entries of a store's folder.
const STORE_ENTRIES: [&str; 6] =
    ["blobs", "manifests", "manifests-v2", TEMP_DIR, "puna-registry", TRASH_DIR];
/// Files that operating systems create in any folder.
const SYSTEM_ENTRIES: [&str; 4] = ["lost+found", "desktop.ini", "Thumbs.db", "@eaDir"];
/// Media types of manifests with layers and a config.
const MANIFEST_TYPES: [&str; 3] =
    ["", media::MANIFEST, "application/vnd.oci.image.manifest.v1+json"];
/// Advice for a manifest of a newer program.
const UPGRADE_HINT: &str = ": update Puna, or remove the name with `rm`";
/// The schema version of all known manifests.
const SCHEMA_VERSION: u64 = 2;

impl Store {
    /// The blobs that the names of the own folder reference. The inner error is the first entry
    /// that Puna does not know: it may need any blob.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn referenced_blobs(
        &self,
    ) -> Result<Result<HashSet<Digest>, StoreError>, StoreError> {
        let found = self.find_references()?;
        if let Err(error) = &found
            && self.is_first_report(&format!("unused {error}"))
        {
            tracing::warn!(%error, "this entry blocks garbage collection");
        }
        Ok(found)
    }

    fn find_references(&self) -> Result<Result<HashSet<Digest>, StoreError>, StoreError> {
        if let Some(path) = unknown_entry(self.root())? {
            return Ok(Err(StoreError::UnknownEntry { path }));
        }
        let scan = NameScan::of(self.root())?;
        if let Some(path) = scan.foreign.into_iter().next() {
            return Ok(Err(foreign_file_error(path)));
        }
        if let Some(path) = scan.misplaced.into_iter().next() {
            return Ok(Err(StoreError::UnknownEntry { path }));
        }
        let mut references = HashSet::new();
        for file in &scan.files {
            match references_of(self.root(), file) {
                Ok(found) => references.extend(found),
                // The file was removed after the folder was read.
                Err(error) if error.is_not_found() && file.path.symlink_metadata().is_err() => {}
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(references))
    }
}

/// The first unknown entry of the store's folder or of its `blobs` folder.
fn unknown_entry(root: &Path) -> Result<Option<PathBuf>, StoreError> {
    let is_known = |path: &Path, known: &[&str]| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        known.iter().chain(&SYSTEM_ENTRIES).any(|known| *known == name)
    };
    for (path, _) in entries_of(root)? {
        if !is_known(&path, &STORE_ENTRIES) {
            return Ok(Some(path));
        }
    }
    for (path, is_dir) in entries_of(&root.join("blobs"))? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !is_known(&path, &[]) && (is_dir || !is_blob_file(&name)) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Whether Ollama or Puna gives this name to files in `blobs`: a blob, a partial download or other
/// file with a blob's name and a suffix, or a temporary file.
fn is_blob_file(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("sha256-").or_else(|| name.strip_prefix("sha256:")) else {
        return false;
    };
    let is_digest = rest.len() >= 64 && rest.as_bytes()[..64].iter().all(u8::is_ascii_hexdigit);
    is_digest || (!rest.is_empty() && rest.bytes().all(|c| c.is_ascii_digit()))
}

/// The blobs that the file of a name references: the manifest or manifest list itself, and all
/// digests in it and in listed manifests.
///
/// # Errors
/// The file or a manifest is not understood. The error names the file.
pub(crate) fn references_of(root: &Path, file: &NameFile) -> Result<HashSet<Digest>, StoreError> {
    let text = match file.read(root) {
        Err(error) if error.is_not_found() => {
            return Err(if file.path.symlink_metadata().is_ok() {
                dangling_link_error(file)
            } else {
                error
            });
        }
        read => read?,
    };
    let mut references = HashSet::from([text.digest]);
    let followed = collect_references(root, &text.bytes, true, &mut references);
    followed.map_err(|reason| StoreError::Manifest { path: file.path.clone(), reason })?;
    Ok(references)
}

/// Adds all digests in a manifest or manifest list, and those in the manifests that it lists. If
/// `required`, at least one child of a list must be in the store.
fn collect_references(
    root: &Path,
    bytes: &[u8],
    required: bool,
    references: &mut HashSet<Digest>,
) -> Result<(), String> {
    let value: Value = parse_object(bytes)?;
    check_media_type(&value)?;
    add_digests(&value, references);
    match ManifestDocument::parse(bytes)? {
        ManifestDocument::Manifest { manifest, .. } => {
            collect_anchor_references(root, &manifest, references)
        }
        ManifestDocument::List(list) => {
            let mut present = 0;
            for child in &list.children {
                references.insert(child.digest);
                present += usize::from(collect_child_references(root, child, references)?);
            }
            match present > 0 || !required {
                true => Ok(()),
                false => Err("none of the manifests of its list is in the store: pull the model again, or remove it with `rm`".into()),
            }
        }
    }
}

/// Adds the digests in the manifest of a list's child. Returns whether it is in the store.
fn collect_child_references(
    root: &Path,
    child: &Child,
    references: &mut HashSet<Digest>,
) -> Result<bool, String> {
    let bytes = match &child.inline {
        Some(text) => Some(text.clone()),
        None if is_larger_than_manifests(root, &child.digest) => None,
        None => read_manifest_blob(root, &child.digest)
            .map_err(|why| format!("{}: {why}", child.digest))?,
    };
    let Some(bytes) = bytes else { return Ok(false) };
    // A client can upload any content as the blob of a child. Content that is no manifest blocks
    // nothing, and keeps the blobs that it names.
    let Ok(value) = parse_object::<Value>(&bytes) else { return Ok(false) };
    add_digests(&value, references);
    let is_manifest =
        || matches!(ManifestDocument::parse(&bytes), Ok(ManifestDocument::Manifest { .. }));
    Ok(check_media_type(&value).is_ok() && is_manifest())
}

/// Checks that garbage collection can read a manifest or manifest list. A name with another content
/// would block garbage collection.
///
/// # Errors
/// The reason.
pub(crate) fn check_readable(root: &Path, bytes: &[u8]) -> Result<(), String> {
    collect_references(root, bytes, true, &mut HashSet::new())
}

/// Whether a blob is too large for a manifest.
fn is_larger_than_manifests(root: &Path, digest: &Digest) -> bool {
    let path = root.join("blobs").join(digest.file_name());
    path.metadata().is_ok_and(|meta| meta.len() > TEXT_LIMIT)
}

/// Adds the digests in manifests and lists that a manifest's anchor layers reference.
fn collect_anchor_references(
    root: &Path,
    manifest: &Manifest,
    references: &mut HashSet<Digest>,
) -> Result<(), String> {
    let is_manifest = |layer: &&Layer| {
        matches!(layer.media_type.as_str(), media::MANIFEST | media::MANIFEST_LIST)
    };
    for layer in manifest.layers.iter().filter(is_manifest) {
        let of_layer = |why: String| format!("{}: {why}", layer.digest);
        let Some(bytes) = read_manifest_blob(root, &layer.digest).map_err(of_layer)? else {
            continue;
        };
        match ManifestDocument::parse(&bytes).map_err(of_layer)? {
            // A manifest referenced by an anchor references no further manifests.
            ManifestDocument::Manifest { .. } => add_digests(&parse_object(&bytes)?, references),
            ManifestDocument::List(_) => {
                collect_references(root, &bytes, false, references).map_err(of_layer)?
            }
        }
    }
    Ok(())
}

/// Rejects manifests of unknown types: they may reference blobs in unknown ways.
fn check_media_type(value: &Value) -> Result<(), String> {
    let media_type = value.get("mediaType").and_then(Value::as_str).unwrap_or_default();
    let is_list = media_type == media::MANIFEST_LIST;
    if !is_list && !MANIFEST_TYPES.contains(&media_type) {
        return Err(format!(
            "it has the unknown media type {:?}{UPGRADE_HINT}",
            escape_for_message(media_type)
        ));
    }
    if !is_list && value.get("manifests").is_some() {
        return Err("it has children, but not the media type of a list".into());
    }
    match value.get("schemaVersion") {
        None => Ok(()),
        Some(version)
            if version
                .as_u64()
                .is_some_and(|version| version == SCHEMA_VERSION || version == 0) =>
        {
            Ok(())
        }
        Some(version) => Err(format!("it has the unknown schema version {version}{UPGRADE_HINT}")),
    }
}

/// Adds all digests in a JSON value, whatever they stand for.
fn add_digests(value: &Value, references: &mut HashSet<Digest>) {
    match value {
        Value::String(text) => references.extend(text.parse::<Digest>()),
        Value::Array(items) => items.iter().for_each(|item| add_digests(item, references)),
        Value::Object(map) => map.values().for_each(|item| add_digests(item, references)),
        _ => {}
    }
}

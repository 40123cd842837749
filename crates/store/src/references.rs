//! Which blobs the names of a store need. Blobs are removed only where that is certain: everything in the store's folder
//! is known, and every manifest in it can be read.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::digest::Digest;
use crate::entry::read_manifest_blob;
use crate::error::StoreError;
use crate::files::TEMP_DIR;
use crate::manifest::{Layer, Manifest, media, object};
use crate::manifest_list::{Child, Document};
use crate::names::{NameFile, NameScan, dangling, entries_of, foreign};
use crate::store::Store;
use crate::trash::TRASH;

/// What lies in a store's folder beside the folders of names.
const KNOWN: [&str; 6] = ["blobs", "manifests", "manifests-v2", TEMP_DIR, "puna-registry", TRASH];
/// What systems leave in every folder.
const OF_SYSTEMS: [&str; 4] = ["lost+found", "desktop.ini", "Thumbs.db", "@eaDir"];
/// Media types of manifests with layers and a config.
const MANIFEST_TYPES: [&str; 3] =
    ["", media::MANIFEST, "application/vnd.oci.image.manifest.v1+json"];
/// What to do about a manifest of a newer program.
const UPGRADE: &str = ": a newer version of Puna may know it; `rm` removes the name";
/// The version of the schema that all of these have.
const SCHEMA: u64 = 2;

impl Store {
    /// The blobs that the names of the own folder need. The inner error is the first thing that is not understood: while
    /// it is there, any blob may be needed.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn referenced_blobs(
        &self,
    ) -> Result<Result<HashSet<Digest>, StoreError>, StoreError> {
        let found = self.find_references()?;
        if let Err(error) = &found
            && self.is_news(&format!("unused {error}"))
        {
            tracing::warn!(%error, "no unused blob is removed while this is in the store");
        }
        Ok(found)
    }

    fn find_references(&self) -> Result<Result<HashSet<Digest>, StoreError>, StoreError> {
        if let Some(path) = unknown_entry(self.root())? {
            return Ok(Err(StoreError::Unknown { path }));
        }
        let scan = NameScan::of(self.root())?;
        if let Some(path) = scan.foreign.into_iter().next() {
            return Ok(Err(foreign(path)));
        }
        if let Some(path) = scan.misplaced.into_iter().next() {
            return Ok(Err(StoreError::Unknown { path }));
        }
        let mut references = HashSet::new();
        for file in &scan.files {
            match references_of(self.root(), file) {
                Ok(found) => references.extend(found),
                // Removed since the folder was read.
                Err(error) if error.is_absence() && file.path.symlink_metadata().is_err() => {}
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(references))
    }
}

/// The first entry of the store's folder, or of that of its blobs, that this program does not know.
fn unknown_entry(root: &Path) -> Result<Option<PathBuf>, StoreError> {
    let is_known = |path: &Path, known: &[&str]| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        known.iter().chain(&OF_SYSTEMS).any(|known| *known == name)
    };
    for (path, _) in entries_of(root)? {
        if !is_known(&path, &KNOWN) {
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

/// Whether a file among the blobs has a name that Ollama or Puna gives: a blob's, one beside it such as an unfinished
/// download, or a temporary one.
fn is_blob_file(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("sha256-").or_else(|| name.strip_prefix("sha256:")) else {
        return false;
    };
    let is_digest = rest.len() >= 64 && rest.as_bytes()[..64].iter().all(u8::is_ascii_hexdigit);
    is_digest || (!rest.is_empty() && rest.bytes().all(|c| c.is_ascii_digit()))
}

/// The blobs that the file of a name needs: the manifest or list itself, and whatever it names, directly or through the
/// manifests that it names.
///
/// # Errors
/// Something of it is not understood; the error names the file.
pub(crate) fn references_of(root: &Path, file: &NameFile) -> Result<HashSet<Digest>, StoreError> {
    let text = match file.read(root) {
        Err(error) if error.is_absence() => {
            return Err(if file.path.symlink_metadata().is_ok() { dangling(file) } else { error });
        }
        read => read?,
    };
    let mut references = HashSet::from([text.digest]);
    let followed = follow(root, &text.bytes, true, &mut references);
    followed.map_err(|reason| StoreError::Manifest { path: file.path.clone(), reason })?;
    Ok(references)
}

/// Adds every digest that a manifest or list names, and those of the manifests that it names. A list's own children are
/// `required` to be there but for those that were never fetched.
fn follow(
    root: &Path,
    bytes: &[u8],
    required: bool,
    references: &mut HashSet<Digest>,
) -> Result<(), String> {
    let value: Value = object(bytes)?;
    check_known(&value)?;
    add_digests(&value, references);
    match Document::parse(bytes)? {
        Document::Manifest { manifest, .. } => follow_anchors(root, &manifest, references),
        Document::List(list) => {
            let mut present = 0;
            for child in &list.children {
                references.insert(child.digest);
                present += usize::from(follow_child(root, child, references)?);
            }
            match present > 0 || !required {
                true => Ok(()),
                false => Err("none of the manifests of its list is in the store: pull the model again, or remove it with `rm`".into()),
            }
        }
    }
}

/// Follows the manifest of a list's child. Says whether it is in the store.
fn follow_child(
    root: &Path,
    child: &Child,
    references: &mut HashSet<Digest>,
) -> Result<bool, String> {
    let bytes = match &child.inline {
        Some(text) => Some(text.clone()),
        None => read_manifest_blob(root, &child.digest)
            .map_err(|why| format!("{}: {why}", child.digest))?,
    };
    let Some(bytes) = bytes else { return Ok(false) };
    let value: Value = object(&bytes).map_err(|why| format!("{}: {why}", child.digest))?;
    check_known(&value).map_err(|why| format!("{}: {why}", child.digest))?;
    if !matches!(Document::parse(&bytes), Ok(Document::Manifest { .. })) {
        return Err(format!("{}: it is no manifest of a model", child.digest));
    }
    add_digests(&value, references);
    Ok(true)
}

/// Follows the manifests and lists that layers of a manifest keep alive.
fn follow_anchors(
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
        match Document::parse(&bytes).map_err(of_layer)? {
            // What it keeps alive itself is a manifest that names nothing more.
            Document::Manifest { .. } => add_digests(&object(&bytes)?, references),
            Document::List(_) => follow(root, &bytes, false, references).map_err(of_layer)?,
        }
    }
    Ok(())
}

/// Refuses manifests of a type that is not known: they may name blobs in ways that are not known either.
fn check_known(value: &Value) -> Result<(), String> {
    let media_type = value.get("mediaType").and_then(Value::as_str).unwrap_or_default();
    let is_list = media_type == media::MANIFEST_LIST;
    if !is_list && !MANIFEST_TYPES.contains(&media_type) {
        return Err(format!(
            "it has the unknown media type {:?}{UPGRADE}",
            crate::name::shown(media_type)
        ));
    }
    if !is_list && value.get("manifests").is_some() {
        return Err("it has children, but not the media type of a list".into());
    }
    match value.get("schemaVersion") {
        None => Ok(()),
        Some(version)
            if version.as_u64().is_some_and(|version| version == SCHEMA || version == 0) =>
        {
            Ok(())
        }
        Some(version) => Err(format!("it has the unknown schema version {version}{UPGRADE}")),
    }
}

/// Adds all digests in a text, whatever they stand for.
fn add_digests(value: &Value, references: &mut HashSet<Digest>) {
    match value {
        Value::String(text) => references.extend(text.parse::<Digest>()),
        Value::Array(items) => items.iter().for_each(|item| add_digests(item, references)),
        Value::Object(map) => map.values().for_each(|item| add_digests(item, references)),
        _ => {}
    }
}

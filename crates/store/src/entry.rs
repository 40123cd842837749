//! Models as the store finds them: a name and its manifest, or the children of its manifest list.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use crate::anchor::is_anchor;
use crate::digest::Digest;
use crate::error::StoreError;
use crate::files::read_limited;
use crate::manifest::{Layer, Manifest, TEXT_LIMIT, media};
use crate::manifest_list::{Child, ManifestDocument, ManifestList};
use crate::name::ModelName;
use crate::name_files::{NameFile, NameFolder};

/// Largest number of children named in a message.
const MAX_NAMED_CHILDREN: usize = 8;

/// A model of the store, as in a listing.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The name in the store's spelling.
    pub name: ModelName,
    /// The digest of the manifest or manifest list.
    pub digest: Digest,
    /// When the name was written.
    pub modified: SystemTime,
    /// The manifest, or that of the chosen child of a manifest list.
    pub manifest: Manifest,
    /// Where the model is.
    pub location: StoreLocation,
    /// The runner that the manifest names, such as `llamacpp`; empty if it names none.
    pub runner: String,
    /// The children, if the name stands for a manifest list.
    pub list: Option<Arc<ChildList>>,
}

/// The children of a manifest list.
#[derive(Debug, Clone, PartialEq)]
pub struct ChildList {
    /// All children, in the order of the list.
    pub children: Vec<StoredChild>,
    /// Index of the child that is used.
    pub chosen: usize,
}

/// A child of a manifest list, with its manifest if that is in the store.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredChild {
    /// The entry of the list.
    pub child: Child,
    /// Its manifest; `None` if it was not fetched.
    pub manifest: Option<Manifest>,
}

/// Where a model is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreLocation {
    /// In the store's own folder.
    Own,
    /// In a read-only folder.
    ReadOnly(PathBuf),
    /// Embedded in the program.
    Embedded,
}

impl Entry {
    /// Whether the model is embedded in the program.
    pub fn is_embedded(&self) -> bool {
        self.location == StoreLocation::Embedded
    }

    /// Size of the model's blobs in bytes, as its manifest states them.
    pub fn size(&self) -> u64 {
        self.manifest.size()
    }

    /// The digest that listings show: that of the chosen child's manifest for a manifest list.
    pub fn shown_digest(&self) -> Digest {
        self.list.as_ref().map_or(self.digest, |list| list.children[list.chosen].child.digest)
    }

    /// The rows of this entry in a listing: the entry itself, or one entry for each stored child of
    /// a manifest list.
    pub fn rows(&self) -> Vec<Self> {
        let Some(list) = &self.list else { return vec![self.clone()] };
        let present = (0..list.children.len()).filter(|at| list.children[*at].manifest.is_some());
        present.map(|at| self.with_child(at)).collect()
    }

    /// The same name with the child for a runner.
    ///
    /// # Errors
    /// [`StoreError::NoRunner`], or the child's manifest is not in the store.
    pub fn for_runner(&self, runner: &str) -> Result<Self, StoreError> {
        let none = |known: Vec<&str>| StoreError::NoRunner {
            name: self.name.to_string(),
            wanted: runner.to_owned(),
            known: known.into_iter().take(MAX_NAMED_CHILDREN).collect::<Vec<_>>().join(", "),
        };
        let Some(list) = &self.list else {
            let fits = self.runner.is_empty() || self.runner.eq_ignore_ascii_case(runner);
            return if fits { Ok(self.clone()) } else { Err(none(vec![&self.runner])) };
        };
        let of_runner = |stored: &StoredChild| stored.child.runner.eq_ignore_ascii_case(runner);
        match list.children.iter().position(of_runner) {
            None => {
                Err(none(list.children.iter().map(|stored| stored.child.runner.as_str()).collect()))
            }
            Some(at) if list.children[at].manifest.is_none() => Err(StoreError::ChildMissing {
                name: self.name.to_string(),
                runner: list.children[at].child.runner.clone(),
                digest: list.children[at].child.digest,
            }),
            Some(at) => Ok(self.with_child(at)),
        }
    }

    fn with_child(&self, at: usize) -> Self {
        let Some(list) = &self.list else { return self.clone() };
        let stored = &list.children[at];
        let chosen = ChildList { chosen: at, ..(**list).clone() };
        Self {
            manifest: stored.manifest.clone().unwrap_or_else(|| self.manifest.clone()),
            runner: stored.child.runner.clone(),
            list: Some(Arc::new(chosen)),
            ..self.clone()
        }
    }

    /// The blobs of the manifest, or of all stored children of a manifest list.
    pub fn blobs(&self) -> impl Iterator<Item = &Layer> {
        let children = self.list.iter().flat_map(|list| &list.children);
        let of_children =
            children.filter_map(|stored| stored.manifest.as_ref()).flat_map(Manifest::blobs);
        of_children.chain(self.manifest.blobs().filter(|_| self.list.is_none()))
    }
}

impl StoredChild {
    /// Whether this program's engine can run the child: its weights are a GGUF file.
    pub fn is_runnable(&self) -> bool {
        let is_whole = |manifest: &Manifest| manifest.all(media::TENSOR).next().is_none();
        runner_rank(&self.child).is_some() && self.manifest.as_ref().is_none_or(is_whole)
    }
}

/// The rank of a child among those that the engine can run, best first; `None` if the engine cannot
/// run its format. The engine reads llama.cpp's GGUF files as they are, and translates Ollama's
/// variants.
pub fn runner_rank(child: &Child) -> Option<u8> {
    match (child.runner.as_str(), child.format.as_str()) {
        ("llamacpp", "" | "gguf") => Some(0),
        ("ggml", "" | "gguf") => Some(1),
        ("ollama", "" | "gguf") => Some(2),
        (runner, "" | "gguf") if runner != "mlx" => Some(3),
        _ => None,
    }
}

/// Reads the file of a name in the store at `root`. Of a manifest list, the stored child for the
/// runner `preferred` is chosen, or else the child that the engine runs best.
///
/// # Errors
/// The file cannot be read, or is no manifest.
pub(crate) fn read_entry(
    root: &Path,
    file: &NameFile,
    location: StoreLocation,
    preferred: Option<&str>,
) -> Result<Entry, StoreError> {
    let text = file.read(root)?;
    let error = |reason| StoreError::Manifest { path: file.path.clone(), reason };
    let document = ManifestDocument::parse(&text.bytes).map_err(error)?;
    entry_of(
        root,
        file,
        NameDocument { digest: text.digest, modified: text.modified, document },
        location,
        preferred,
    )
}

/// The parsed file of a name.
pub(crate) struct NameDocument {
    pub(crate) digest: Digest,
    pub(crate) modified: SystemTime,
    pub(crate) document: ManifestDocument,
}

/// Makes an entry of a parsed file.
///
/// # Errors
/// None of a list's children is in the store, or one is damaged.
pub(crate) fn entry_of(
    root: &Path,
    file: &NameFile,
    file_content: NameDocument,
    location: StoreLocation,
    preferred: Option<&str>,
) -> Result<Entry, StoreError> {
    let error = |reason| StoreError::Manifest { path: file.path.clone(), reason };
    let NameDocument { mut digest, modified, mut document } = file_content;
    if let ManifestDocument::Manifest { manifest, .. } = &mut document {
        let listed = anchored_list(root, file, manifest);
        manifest.layers.retain(|layer| !is_anchor(layer));
        if let Some((of_list, list)) = listed {
            (digest, document) = (of_list, ManifestDocument::List(list));
        }
    }
    let name = file.name.clone();
    let list = match document {
        ManifestDocument::Manifest { manifest, runner } => {
            return Ok(Entry { name, digest, modified, manifest, location, runner, list: None });
        }
        ManifestDocument::List(list) => list,
    };
    let children = stored_children(root, &list).map_err(error)?;
    let Some(chosen) = choose_child(root, &children, preferred) else {
        let missing: Vec<String> =
            list.children.iter().take(MAX_NAMED_CHILDREN).map(describe).collect();
        return Err(error(format!(
            "none of the manifests of its list is in the store ({}): pull the model again, or remove it with `rm`",
            missing.join(", ")
        )));
    };
    let manifest =
        children[chosen].manifest.clone().expect("only children with a manifest are chosen");
    let runner = children[chosen].child.runner.clone();
    let list = Some(Arc::new(ChildList { children, chosen }));
    Ok(Entry { name, digest, modified, manifest, location, runner, list })
}

fn describe(child: &Child) -> String {
    match child.runner.as_str() {
        "" => child.digest.to_string(),
        runner => format!("{} for {runner}", child.digest),
    }
}

/// The manifest list that an anchor in `manifests` keeps. In a store without `manifests-v2`, the
/// name stands for that list. In a store with `manifests-v2`, Ollama 0.40 treats the manifest as
/// the model.
fn anchored_list(
    root: &Path,
    file: &NameFile,
    manifest: &Manifest,
) -> Option<(Digest, ManifestList)> {
    let is_alone =
        file.folder == NameFolder::Manifests && !NameFolder::ManifestsV2.at(root).is_dir();
    let layer = manifest.last(media::MANIFEST_LIST).filter(|_| is_alone)?;
    match ManifestDocument::parse(&read_manifest_blob(root, &layer.digest).ok()??) {
        Ok(ManifestDocument::List(list)) => Some((layer.digest, list)),
        _ => None,
    }
}

/// The children of a list, with the manifests that are in the store.
///
/// # Errors
/// A child's manifest is damaged, invalid, or a list itself.
pub(crate) fn stored_children(
    root: &Path,
    list: &ManifestList,
) -> Result<Vec<StoredChild>, String> {
    let stored = |child: &Child| {
        let bytes = match &child.inline {
            Some(text) => Some(text.clone()),
            None => read_manifest_blob(root, &child.digest)
                .map_err(|why| format!("{}: {why}", describe(child)))?,
        };
        let Some(bytes) = bytes else {
            return Ok(StoredChild { child: child.clone(), manifest: None });
        };
        match ManifestDocument::parse(&bytes) {
            Ok(ManifestDocument::Manifest { manifest, runner }) => {
                let mut child = child.clone();
                if child.runner.is_empty() {
                    child.runner = runner;
                }
                Ok(StoredChild { child, manifest: Some(manifest) })
            }
            Ok(ManifestDocument::List(_)) => Err(format!("{} is a list itself", describe(child))),
            Err(why) => Err(format!("{}: {why}", describe(child))),
        }
    };
    list.children.iter().map(stored).collect()
}

/// The bytes of a child's manifest in the store at `root`.
///
/// # Errors
/// The manifest is absent or damaged.
pub(crate) fn child_text(
    root: &Path,
    name: &ModelName,
    stored: &StoredChild,
) -> Result<Vec<u8>, StoreError> {
    let StoredChild { child, .. } = stored;
    if let Some(text) = &child.inline {
        return Ok(text.clone());
    }
    match read_manifest_blob(root, &child.digest) {
        Ok(Some(bytes)) => Ok(bytes),
        Ok(None) => Err(StoreError::ChildMissing {
            name: name.to_string(),
            runner: child.runner.clone(),
            digest: child.digest,
        }),
        Err(reason) => {
            let path = root.join("blobs").join(child.digest.file_name());
            Err(StoreError::Manifest { path, reason })
        }
    }
}

/// The bytes of a manifest stored as a blob; `None` if it is not in the store.
///
/// # Errors
/// The blob cannot be read, or its content has another digest.
pub(crate) fn read_manifest_blob(root: &Path, digest: &Digest) -> Result<Option<Vec<u8>>, String> {
    let bytes = match read_limited(&root.join("blobs").join(digest.file_name()), TEXT_LIMIT) {
        Ok(bytes) => bytes,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    match Digest::of(&bytes) {
        found if found == *digest => Ok(Some(bytes)),
        found => Err(format!("its blob has the digest {found}: repair it with `verify --repair`")),
    }
}

/// Chooses the child to use among the stored ones: the preferred runner's, then runnable ones,
/// complete ones, and the best rank.
fn choose_child(root: &Path, children: &[StoredChild], preferred: Option<&str>) -> Option<usize> {
    let present = || (0..children.len()).filter(|at| children[*at].manifest.is_some());
    let of_runner = |at: &usize| {
        preferred.is_some_and(|runner| children[*at].child.runner.eq_ignore_ascii_case(runner))
    };
    if let Some(at) = present().find(of_runner) {
        return Some(at);
    }
    let is_incomplete = |manifest: &Manifest| {
        let is_there = |layer: &Layer| {
            fs::metadata(root.join("blobs").join(layer.digest.file_name()))
                .is_ok_and(|meta| meta.len() == layer.size)
        };
        !manifest.blobs().all(is_there)
    };
    present().min_by_key(|at| {
        let StoredChild { child, manifest } = &children[*at];
        let runnable = children[*at].is_runnable();
        (!runnable, manifest.as_ref().is_some_and(is_incomplete), runner_rank(child))
    })
}

//! Stored manifests and blobs of repositories, and which of them may be removed.

use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

use puna_store::Digest;

use crate::types::manifest::Manifest;
use crate::types::repository::Repository;

/// A manifest of a repository, or a blob that was pushed to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    /// Repository of the object.
    pub name: Repository,
    /// Digest of the manifest; `None` for a pushed blob.
    pub manifest: Option<Digest>,
    /// Blobs that the manifest references, or the pushed blob, with their sizes in bytes.
    pub blobs: Vec<(Digest, u64)>,
    /// Whether the manifest is a model of the store. It exists as long as its tag.
    pub is_model: bool,
    /// Children, if the manifest is a list.
    pub children: Vec<Digest>,
    /// Manifest that this one refers to.
    pub subject: Option<Digest>,
    /// When the manifest was written, if known.
    pub written: Option<SystemTime>,
}

impl StoredObject {
    pub(crate) fn from_manifest(
        name: Repository,
        manifest: &Manifest,
        written: Option<SystemTime>,
    ) -> Self {
        let blobs = manifest.blobs.iter().map(|blob| (blob.digest, blob.size)).collect();
        let (children, subject) = (manifest.children.clone(), manifest.subject);
        Self {
            name,
            manifest: Some(manifest.digest),
            blobs,
            is_model: false,
            children,
            subject,
            written,
        }
    }

    /// Whether the object references a blob, or is that blob.
    pub(crate) fn has_blob(&self, digest: &Digest) -> bool {
        self.blobs.iter().any(|(blob, _)| blob == digest)
    }

    /// Parses the name of a push mark, which records that a blob was pushed to the repository.
    pub(crate) fn from_push_mark(name: Repository, mark: &str) -> Option<Self> {
        let (hex, size) = mark.split_once('-')?;
        let digest = format!("sha256:{hex}").parse().ok()?;
        let blobs = vec![(digest, size.parse().ok()?)];
        let (children, subject, written) = (Vec::new(), None, None);
        Some(Self { name, manifest: None, blobs, is_model: false, children, subject, written })
    }
}

/// Name of the push mark of a blob.
pub(crate) fn push_mark_name(digest: &Digest, size: u64) -> String {
    format!("{}-{size}", digest.hex())
}

/// Whether a file name is that of a push mark of a blob.
pub(crate) fn is_push_mark_of(mark: &str, digest: &Digest) -> bool {
    mark.split_once('-').is_some_and(|(hex, _)| hex == digest.hex())
}

/// Tag or manifest to remove, with its state when it was chosen. It is removed only if it is
/// unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionalRemoval {
    /// Repository of the tag or manifest.
    pub name: Repository,
    /// Tag to remove; `None` for a manifest without tags.
    pub tag: Option<String>,
    /// Digest of the manifest.
    pub digest: Digest,
    /// Whether the manifest is a model of the store.
    pub is_model: bool,
    /// When the tag was written, if known.
    pub tag_written: Option<SystemTime>,
    /// Whether the manifest is removed as well.
    pub with_manifest: bool,
    /// When the manifest was written, if known.
    pub manifest_written: Option<SystemTime>,
}

/// Returns which of the `expected` manifests may be removed: those that are unchanged and that no
/// remaining manifest or tag needs. `expected` holds the write time when each was chosen.
pub(crate) fn removable_manifests(
    expected: &HashMap<Digest, Option<SystemTime>>,
    tagged: impl IntoIterator<Item = Digest>,
    manifests: &[StoredObject],
) -> HashSet<Digest> {
    let is_removable = |object: &&StoredObject| {
        let seen = object.manifest.and_then(|digest| expected.get(&digest));
        seen.is_some_and(|written| *written == object.written)
    };
    let (candidates, others): (Vec<_>, Vec<_>) = manifests.iter().partition(is_removable);
    let roots =
        tagged.into_iter().chain(others.into_iter().filter_map(|object| object.manifest)).collect();
    let reached = reachable(roots, manifests);
    candidates
        .into_iter()
        .filter_map(|object| object.manifest)
        .filter(|digest| !reached.contains(digest))
        .collect()
}

/// Returns `roots`, their children, and the manifests that refer to one of them, transitively.
pub(crate) fn reachable<'a>(
    roots: HashSet<Digest>,
    manifests: impl IntoIterator<Item = &'a StoredObject>,
) -> HashSet<Digest> {
    let mut linked: HashMap<Digest, Vec<Digest>> = HashMap::new();
    for object in manifests {
        let Some(digest) = object.manifest else { continue };
        linked.entry(digest).or_default().extend(&object.children);
        if let Some(subject) = object.subject {
            linked.entry(subject).or_default().push(digest);
        }
    }
    let mut queue: Vec<Digest> = roots.iter().copied().collect();
    let mut reached = roots;
    while let Some(digest) = queue.pop() {
        queue.extend(
            linked.remove(&digest).into_iter().flatten().filter(|next| reached.insert(*next)),
        );
    }
    reached
}

/// A tag and the manifest it points to, for listings.
#[derive(Debug, Clone, PartialEq)]
pub struct TagEntry {
    /// Repository of the tag.
    pub name: Repository,
    /// The tag.
    pub tag: String,
    /// Digest of the manifest.
    pub digest: Digest,
    /// Sum of the blob sizes in bytes.
    pub size: u64,
    /// Bytes that are present while the model is being fetched; `None` if it is complete.
    pub completed: Option<u64>,
    /// Who owns the manifest.
    pub owner: Owner,
    /// When the tag was written, if known.
    pub written: Option<SystemTime>,
}

/// Who owns a tag or manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The registry: it was pushed or fetched, and exists nowhere else.
    Registry,
    /// The store: a model that a user of this machine may have created.
    Store,
    /// A read-only model directory.
    ReadOnly,
}

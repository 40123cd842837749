//! What repositories have, and what of it may go.

use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

use puna_store::Digest;

use crate::manifest::Manifest;
use crate::name::Repository;

/// What a repository has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// The repository.
    pub name: Repository,
    /// A manifest; `None` of a blob that was pushed there.
    pub manifest: Option<Digest>,
    /// The blobs that it needs and their bytes, or the one that was pushed.
    pub blobs: Vec<(Digest, u64)>,
    /// Whether it is a model of the store's, which is there as long as its tag.
    pub is_model: bool,
    /// The manifests that it is a list of.
    pub children: Vec<Digest>,
    /// The manifest that it is about.
    pub subject: Option<Digest>,
    /// When the manifest was written, where that is known.
    pub written: Option<SystemTime>,
}

impl Holding {
    pub(crate) fn of_manifest(
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

    /// Whether it needs a blob, or is one.
    pub(crate) fn has(&self, digest: &Digest) -> bool {
        self.blobs.iter().any(|(blob, _)| blob == digest)
    }

    /// A blob that was brought, by the name that says so.
    pub(crate) fn of_mark(name: Repository, mark: &str) -> Option<Self> {
        let (hex, size) = mark.split_once('-')?;
        let digest = format!("sha256:{hex}").parse().ok()?;
        let blobs = vec![(digest, size.parse().ok()?)];
        let (children, subject, written) = (Vec::new(), None, None);
        Some(Self { name, manifest: None, blobs, is_model: false, children, subject, written })
    }
}

/// The name that says that a blob was brought.
pub(crate) fn mark_of(digest: &Digest, size: u64) -> String {
    format!("{}-{size}", digest.hex())
}

/// A tag or a manifest that is to go, as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doomed {
    /// The repository.
    pub name: Repository,
    /// The tag; `None` of a manifest that no tag stands for.
    pub tag: Option<String>,
    /// Of the manifest.
    pub digest: Digest,
    /// Whether it is a model of the store's.
    pub is_model: bool,
    /// When the tag was written, where that is known.
    pub tag_written: Option<SystemTime>,
    /// Whether the manifest goes, too.
    pub with_manifest: bool,
    /// When that was written, where that is known.
    pub manifest_written: Option<SystemTime>,
}

/// Which of the manifests of a repository that are to go may go, once some tags have: those that are as they were seen, and
/// that nothing needs which stays.
pub(crate) fn leaving(
    doomed: &HashMap<Digest, Option<SystemTime>>,
    tagged: impl IntoIterator<Item = Digest>,
    manifests: &[Holding],
) -> HashSet<Digest> {
    let goes = |held: &&Holding| {
        let seen = held.manifest.and_then(|digest| doomed.get(&digest));
        seen.is_some_and(|written| *written == held.written)
    };
    let (going, staying): (Vec<_>, Vec<_>) = manifests.iter().partition(goes);
    let roots =
        tagged.into_iter().chain(staying.into_iter().filter_map(|held| held.manifest)).collect();
    let reached = reachable(roots, manifests);
    going
        .into_iter()
        .filter_map(|held| held.manifest)
        .filter(|digest| !reached.contains(digest))
        .collect()
}

/// Manifests that are kept, those that they list, and those that are about one of them.
pub(crate) fn reachable<'a>(
    roots: HashSet<Digest>,
    manifests: impl IntoIterator<Item = &'a Holding>,
) -> HashSet<Digest> {
    let mut beside: HashMap<Digest, Vec<Digest>> = HashMap::new();
    for held in manifests {
        let Some(digest) = held.manifest else { continue };
        beside.entry(digest).or_default().extend(&held.children);
        if let Some(subject) = held.subject {
            beside.entry(subject).or_default().push(digest);
        }
    }
    let mut open: Vec<Digest> = roots.iter().copied().collect();
    let mut reached = roots;
    while let Some(digest) = open.pop() {
        open.extend(
            beside.remove(&digest).into_iter().flatten().filter(|next| reached.insert(*next)),
        );
    }
    reached
}

/// A tag and what it stands for, as people see it.
#[derive(Debug, Clone, PartialEq)]
pub struct Shown {
    /// The repository.
    pub name: Repository,
    /// The tag.
    pub tag: String,
    /// Of the manifest.
    pub digest: Digest,
    /// Bytes of its blobs.
    pub size: u64,
    /// Those of them that are here, while it is being fetched.
    pub completed: Option<u64>,
    /// Whose it is.
    pub whose: Whose,
    /// When it was written, where that is known.
    pub written: Option<SystemTime>,
}

/// Whose something in a library is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// The registry's: it was pushed, or fetched for somebody, and is nowhere else.
    Registry,
    /// A model of the store's, which may be that of the machine's user.
    Store,
    /// Of a folder that is only read.
    Elsewhere,
}

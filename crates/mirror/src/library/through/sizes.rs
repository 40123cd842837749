//! How large blobs are, as the manifests of their repository say that came from its upstream.
//!
//! Clients know a blob's size from its manifest, the mirror knows it too, and nobody is given the last byte of a blob whose digest is
//! not known to be right. But where the mirror takes the size from whoever sends the blob, a body that is longer than it should be has
//! its last byte elsewhere: all bytes that a client asks for come before it, and are given, though they may be wrong. So a blob
//! counts as so large only if a manifest of the very repository said so; then the upstream is held to that. Of one of which no manifest
//! is known (it was handed out before a restart, or by another mirror), nobody knows where it ends, and any range from its
//! beginning could be all of it. What each of them has, whatever the size, is the first byte: that one waits until the digest of the
//! whole body is right. Ranges behind it, with which clients go on, are given as they arrive: by themselves they are not all of it.
//!
//! Two gaps are left, since nothing of this is written down. Who got the first part of a blob while its size was known, and the rest where
//! it is not (the mirror was started anew between the two, or another one before the same bucket gave the rest), may have all of
//! it without any of it having been found right. And who holds a manifest that this mirror has forgotten, because it was
//! started anew and the tag has moved meanwhile, is given the blob by the size that the manifest says which is known now: an upstream that
//! names a larger one there has the last byte elsewhere than that client. In both the mirror finds the digest wrong and keeps nothing,
//! but has given the bytes out; clients that verify digests, as all of those that are named in the manual do, notice.

use std::collections::HashMap;
use std::sync::Mutex;

use puna_store::Digest;

use crate::lock::lock;
use crate::manifest::Manifest;
use crate::name::Repository;

/// Blobs whose sizes are remembered.
const MAX_SIZES: usize = 100_000;

/// What manifests have said.
#[derive(Default)]
pub(super) struct Sizes(Mutex<HashMap<(Repository, Digest), Said>>);

/// What they say of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    /// They agree.
    Bytes(u64),
    /// They contradict each other, so that a client may believe something else than the mirror.
    Anything,
}

impl Sizes {
    /// Notes what a manifest of a repository says.
    pub(super) fn note(&self, name: &Repository, manifest: &Manifest) {
        manifest.blobs.iter().for_each(|blob| self.note_one(name, blob.digest, blob.size));
    }

    pub(super) fn note_one(&self, name: &Repository, digest: Digest, size: u64) {
        let mut sizes = lock(&self.0);
        if sizes.len() >= MAX_SIZES {
            // What is known of none is given out with more care.
            sizes.clear();
        }
        let said = sizes.entry((name.clone(), digest)).or_insert(Said::Bytes(size));
        if *said != Said::Bytes(size) {
            *said = Said::Anything;
        }
    }

    pub(super) fn of(&self, name: &Repository, digest: Digest) -> Option<Said> {
        lock(&self.0).get(&(name.clone(), digest)).copied()
    }

    /// Whether a blob of a repository has so many bytes, as far as its manifests say.
    pub(super) fn vouch(&self, name: &Repository, digest: Digest, size: u64) -> bool {
        self.of(name, digest) == Some(Said::Bytes(size))
    }
}

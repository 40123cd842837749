//! Sizes of blobs as declared by the upstream manifests of their repository.
//!
//! A client knows the size of a blob from its manifest, and so does the mirror. The mirror
//! withholds the last byte of a blob until the digest is verified. But if it took the size from the
//! response of the upstream, a longer body would have its last byte elsewhere. All bytes that the
//! client asks for would come before that byte and be served, although they may be wrong. So the
//! size of a blob counts as known only if a manifest of the same repository declares it and no
//! other one contradicts. Then the upstream is held to that size. A blob with unknown or
//! conflicting size is served only after verification.
//!
//! Before a manifest is served, its declared sizes are written to a note in the storage, one for
//! each manifest:
//!
//! ```text
//! sizes/<repository>/<64 hex>      [["sha256:<64 hex>", 123], …], or null for too many blobs
//! ```
//!
//! So the sizes survive a restart, and other mirrors of the storage know them. Each mirror lists
//! the notes again for each response, because another mirror may just have served a manifest. Notes
//! never change; they are only added and removed, so none is read twice.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use puna_store::Digest;

use crate::error::{InternalError, MirrorError};
use crate::locks::lock;
use crate::storage::note_store::{NoteStore, SIZE_NOTE_REFRESH};
use crate::storage::{InventoryScope, ObjectInventory};
use crate::types::manifest::Manifest;
use crate::types::repository::Repository;
use crate::types::shared_table::{SharedTable, TableLimit};

/// Largest number of remembered sizes and notes. One repository has at most half of them.
const MAX_REMEMBERED: usize = if cfg!(test) { 40 } else { 100_000 };
/// Largest number of blobs in a note.
const MAX_BLOBS_PER_NOTE: usize = if cfg!(test) { 20 } else { 1000 };
/// How long a scan of the stored manifests is valid. Notes of newer manifests live longer than
/// that.
const STORAGE_SCAN_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);
/// Number of notes that are read concurrently.
const CONCURRENT_READS: usize = 16;
/// Number of attempts to get a consistent view, while notes expire and the memory limit removes
/// sizes.
const MAX_ATTEMPTS: usize = 3;

/// Description of [`DeclaredSizes`].
pub(crate) static BLOB_SIZES: SharedTable = SharedTable {
    name: "mirror: declared sizes of blobs",
    holders: &["puna_mirror::pull_through::declared_sizes::DeclaredSizes"],
    limits: &[TableLimit::Entries(MAX_REMEMBERED)],
    shares: &[TableLimit::Entries(MAX_REMEMBERED / 2)],
    when_full: "forgotten and read again; the blobs of a repository beyond its share are served once verified",
    test: "evicted_sizes_are_read_again",
};

/// Declared sizes of all repositories.
#[derive(Default)]
pub(super) struct DeclaredSizes(Mutex<HashMap<Repository, RepositorySizes>>);

/// Size that the manifests of a repository declare for a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeclaredSize {
    /// All declare the same size, in bytes.
    Bytes(u64),
    /// They contradict each other, so that a client may expect another size than the mirror.
    Conflicting,
}

/// Declared sizes of one repository.
#[derive(Default)]
struct RepositorySizes {
    sizes: HashMap<Digest, DeclaredSize>,
    /// Notes that were read or written, and when this process wrote them.
    notes: HashMap<String, Option<Instant>>,
    /// When the stored manifests were read.
    scanned_at: Option<Instant>,
    /// Whether a note is unreadable or there are too many sizes. Then all sizes count as
    /// conflicting.
    is_unknown: bool,
}

impl RepositorySizes {
    fn count(&self) -> usize {
        1 + self.sizes.len() + self.notes.len()
    }

    fn add(&mut self, declared: impl IntoIterator<Item = (Digest, u64)>) {
        for (digest, size) in declared {
            // No size counts any more.
            if self.is_unknown {
                return;
            }
            let entry = self.sizes.entry(digest).or_insert(DeclaredSize::Bytes(size));
            if *entry != DeclaredSize::Bytes(size) {
                *entry = DeclaredSize::Conflicting;
            }
            self.enforce_limit();
        }
    }

    /// Replaces the data of a repository that has too much by `is_unknown`. Otherwise it would
    /// evict all others, be evicted itself, and be read again for each request.
    fn enforce_limit(&mut self) {
        if self.count() > MAX_REMEMBERED / 2 {
            (self.sizes, self.notes, self.is_unknown) = (HashMap::new(), HashMap::new(), true);
        }
    }

    /// Adds the sizes of a note. An unreadable note may declare anything.
    fn add_note(
        &mut self,
        name: &str,
        written: Option<Instant>,
        declared: Option<Vec<(Digest, u64)>>,
    ) {
        self.is_unknown |= declared.is_none();
        self.add(declared.into_iter().flatten());
        let at = self.notes.entry(name.to_owned()).or_default();
        *at = written.or(*at);
        self.enforce_limit();
    }

    fn get(&self, digest: &Digest) -> Option<DeclaredSize> {
        if self.is_unknown {
            Some(DeclaredSize::Conflicting)
        } else {
            self.sizes.get(digest).copied()
        }
    }

    fn is_scanned(&self) -> bool {
        self.scanned_at.is_some_and(|at| at.elapsed() < STORAGE_SCAN_LIFETIME)
    }
}

impl DeclaredSizes {
    /// Writes the declared sizes of a manifest to a note, before the manifest is served.
    pub(super) async fn declare(
        &self,
        inventory: &dyn ObjectInventory,
        name: &Repository,
        manifest: &Manifest,
    ) -> Result<(), MirrorError> {
        let note_name = manifest.digest.hex();
        let written =
            self.with_repository(name, |sizes| sizes.notes.get(&note_name).copied().flatten());
        if written.is_some_and(|at| at.elapsed() < SIZE_NOTE_REFRESH) {
            return Ok(());
        }
        let declared = manifest.blobs.iter().map(|blob| (blob.digest, blob.size)).collect();
        let declared: Option<Vec<(Digest, u64)>> =
            Some(declared).filter(|_| manifest.blobs.len() <= MAX_BLOBS_PER_NOTE);
        let text = serde_json::to_vec(&declared).map_err(InternalError::from)?;
        inventory.size_notes(name).write(&note_name, text.into()).await?;
        self.with_repository(name, |sizes| {
            sizes.add_note(&note_name, Some(Instant::now()), declared)
        });
        Ok(())
    }

    /// Returns the size that stored manifests, and manifests that any mirror has served, declare
    /// for a blob.
    pub(super) async fn get(
        &self,
        inventory: &dyn ObjectInventory,
        name: &Repository,
        digest: Digest,
    ) -> Result<Option<DeclaredSize>, MirrorError> {
        let notes = inventory.size_notes(name);
        for _ in 0..MAX_ATTEMPTS {
            if self.is_unknown(name) {
                break;
            }
            let listed: HashSet<String> =
                notes.list().await?.into_iter().map(|note| note.name).collect();
            let is_new = |note: &&String, sizes: &RepositorySizes| !sizes.notes.contains_key(*note);
            let (is_scanned, new) = self.with_repository(name, |sizes| {
                let new: Vec<String> =
                    listed.iter().filter(|note| is_new(note, sizes)).cloned().collect();
                (sizes.is_scanned(), new)
            });
            if !is_scanned {
                self.scan_storage(inventory, name).await?;
            }
            self.read_notes(&*notes, name, new).await?;
            // The view must be complete: after an eviction, the remaining sizes might hide a
            // conflict.
            let all = self.with_repository(name, |sizes| {
                let is_all = sizes.is_scanned() && listed.iter().all(|note| !is_new(&note, sizes));
                is_all.then(|| sizes.get(&digest))
            });
            if let Some(declared) = all {
                return Ok(declared);
            }
        }
        Ok(Some(DeclaredSize::Conflicting))
    }

    /// Adds the sizes of the stored manifests.
    async fn scan_storage(
        &self,
        inventory: &dyn ObjectInventory,
        name: &Repository,
    ) -> Result<(), MirrorError> {
        let at = Instant::now();
        let held = inventory.stored_objects(InventoryScope::Repository(name.clone())).await?;
        let declared =
            held.into_iter().filter(|held| held.manifest.is_some()).flat_map(|held| held.blobs);
        self.with_repository(name, |sizes| {
            sizes.add(declared);
            sizes.scanned_at = Some(at);
        });
        Ok(())
    }

    /// Adds the sizes of new notes that still exist.
    async fn read_notes(
        &self,
        notes: &dyn NoteStore,
        name: &Repository,
        new: Vec<String>,
    ) -> Result<(), MirrorError> {
        let read_notes =
            |note: String| async move { Ok::<_, MirrorError>((notes.read(&note).await?, note)) };
        let mut read_notes = stream::iter(new).map(read_notes).buffer_unordered(CONCURRENT_READS);
        while !self.is_unknown(name)
            && let Some((bytes, note)) = read_notes.try_next().await?
        {
            let Some(bytes) = bytes else { continue };
            self.with_repository(name, |sizes| {
                sizes.add_note(&note, None, parse_note(name, &note, &bytes))
            });
        }
        Ok(())
    }

    /// Whether no size of a repository is known.
    fn is_unknown(&self, name: &Repository) -> bool {
        self.with_repository(name, |sizes| sizes.is_unknown)
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        lock(&self.0).values().map(RepositorySizes::count).sum()
    }

    /// Works with the sizes of a repository. If there are too many sizes, those of other
    /// repositories are evicted and read again later.
    fn with_repository<T>(
        &self,
        name: &Repository,
        work: impl FnOnce(&mut RepositorySizes) -> T,
    ) -> T {
        let mut all = lock(&self.0);
        let done = work(all.entry(name.clone()).or_default());
        if all.values().map(RepositorySizes::count).sum::<usize>() > MAX_REMEMBERED {
            all.retain(|other, _| other == name);
        }
        done
    }
}

/// Parses a note.
fn parse_note(name: &Repository, note: &str, bytes: &Bytes) -> Option<Vec<(Digest, u64)>> {
    match serde_json::from_slice(bytes) {
        Ok(declared) => declared,
        Err(error) => {
            let effect = "serving blobs of this repository only after verification";
            tracing::warn!(repository = %name, note, %error, "cannot parse declared blob sizes; {effect}");
            None
        }
    }
}

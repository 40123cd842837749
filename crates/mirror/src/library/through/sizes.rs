//! How large blobs are, as the manifests of their repository say that came from its upstream.
//!
//! Clients know a blob's size from its manifest, the mirror knows it too, and nobody is given the last byte of a blob whose digest is
//! not known to be right. But where the mirror takes the size from whoever sends the blob, a body that is longer than it should be has
//! its last byte elsewhere: all bytes that a client asks for come before it, and are given, though they may be wrong. So a blob
//! counts as so large only if a manifest of the very repository said so, and none of them says otherwise; then the upstream is held to
//! that. Of another one nobody knows where it ends for a client, and nothing of it is given before all of it is right.
//!
//! What manifests have said is noted beside the library before anybody is given them, a note a manifest:
//!
//! ```text
//! sizes/<repository>/<64 hex>      [["sha256:<64 hex>", 123], …], or null of a manifest that has too many blobs
//! ```
//!
//! So it is known after a restart, and to every mirror of the library, each of which lists the notes anew for each answer: what
//! another one has handed out counts here, too. Notes never change, only come and go, so that none is read twice.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use puna_store::Digest;

use crate::error::MirrorError;
use crate::library::Library;
use crate::lock::lock;
use crate::manifest::Manifest;
use crate::name::Repository;
use crate::notes::{AGAIN, Notes};

/// Sizes and notes that are remembered, of which one repository has half at most.
const MAX_KNOWN: usize = if cfg!(test) { 40 } else { 100_000 };
/// Blobs of a manifest whose sizes are noted.
const MAX_NOTED: usize = if cfg!(test) { 20 } else { 1000 };
/// How long it is known what manifests the library had: those that come are noted longer than that.
const LOOKED: Duration = Duration::from_secs(24 * 60 * 60);
/// Notes that are read at a time.
const AT_ONCE: usize = 16;
/// How often it is tried to know all that is said at a time, while notes go and others have what was known forgotten.
const TRIES: usize = 3;

/// What manifests have said.
#[derive(Default)]
pub(super) struct Sizes(Mutex<HashMap<Repository, Known>>);

/// What they say of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    /// They agree.
    Bytes(u64),
    /// They contradict each other, so that a client may believe something else than the mirror.
    Anything,
}

/// What is known of a repository.
#[derive(Default)]
struct Known {
    sizes: HashMap<Digest, Said>,
    /// The notes that were read or written, and when they were written here.
    notes: HashMap<String, Option<Instant>>,
    /// When the manifests of the library were read.
    looked: Option<Instant>,
    /// There is one of which it is not known what it says, or there are too many.
    is_vague: bool,
}

impl Known {
    fn count(&self) -> usize {
        1 + self.sizes.len() + self.notes.len()
    }

    fn learn(&mut self, said: impl IntoIterator<Item = (Digest, u64)>) {
        for (digest, size) in said {
            // It says nothing any more.
            if self.is_vague {
                return;
            }
            let known = self.sizes.entry(digest).or_insert(Said::Bytes(size));
            if *known != Said::Bytes(size) {
                *known = Said::Anything;
            }
            self.bound();
        }
    }

    /// Remembers nothing of a repository that has too much but that: it would have all others forgotten, and be forgotten itself, to be
    /// read wholly again each time that somebody asks.
    fn bound(&mut self) {
        if self.count() > MAX_KNOWN / 2 {
            (self.sizes, self.notes, self.is_vague) = (HashMap::new(), HashMap::new(), true);
        }
    }

    /// What a note says; one that cannot be read may say anything.
    fn learn_note(
        &mut self,
        name: &str,
        written: Option<Instant>,
        said: Option<Vec<(Digest, u64)>>,
    ) {
        self.is_vague |= said.is_none();
        self.learn(said.into_iter().flatten());
        let at = self.notes.entry(name.to_owned()).or_default();
        *at = written.or(*at);
        self.bound();
    }

    fn of(&self, digest: &Digest) -> Option<Said> {
        if self.is_vague { Some(Said::Anything) } else { self.sizes.get(digest).copied() }
    }

    fn has_looked(&self) -> bool {
        self.looked.is_some_and(|at| at.elapsed() < LOOKED)
    }
}

impl Sizes {
    /// Notes what a manifest of a repository says, before anybody is given it.
    pub(super) async fn note(
        &self,
        library: &dyn Library,
        name: &Repository,
        manifest: &Manifest,
    ) -> Result<(), MirrorError> {
        let note = manifest.digest.hex();
        let written = self.known(name, |known| known.notes.get(&note).copied().flatten());
        if written.is_some_and(|at| at.elapsed() < AGAIN) {
            return Ok(());
        }
        let said = manifest.blobs.iter().map(|blob| (blob.digest, blob.size)).collect();
        let said: Option<Vec<(Digest, u64)>> =
            Some(said).filter(|_| manifest.blobs.len() <= MAX_NOTED);
        let text = serde_json::to_vec(&said).map_err(|e| MirrorError::Internal(e.to_string()))?;
        library.sizes(name).write(&note, text.into()).await?;
        self.known(name, |known| known.learn_note(&note, Some(Instant::now()), said));
        Ok(())
    }

    /// What the manifests of a repository say of a blob that were handed out, by whichever mirror, or are here.
    pub(super) async fn of(
        &self,
        library: &dyn Library,
        name: &Repository,
        digest: Digest,
    ) -> Result<Option<Said>, MirrorError> {
        let notes = library.sizes(name);
        for _ in 0..TRIES {
            if self.is_vague(name) {
                break;
            }
            let listed: HashSet<String> =
                notes.list().await?.into_iter().map(|note| note.name).collect();
            let is_new = |note: &&String, known: &Known| !known.notes.contains_key(*note);
            let (has_looked, new) = self.known(name, |known| {
                let new: Vec<String> =
                    listed.iter().filter(|note| is_new(note, known)).cloned().collect();
                (known.has_looked(), new)
            });
            if !has_looked {
                self.look(library, name).await?;
            }
            self.read(&*notes, name, new).await?;
            // All of it at a time, or none: what is left of what was forgotten would not contradict itself.
            let all = self.known(name, |known| {
                let is_all = known.has_looked() && listed.iter().all(|note| !is_new(&note, known));
                is_all.then(|| known.of(&digest))
            });
            if let Some(said) = all {
                return Ok(said);
            }
        }
        Ok(Some(Said::Anything))
    }

    /// Learns what manifests of the library say.
    async fn look(&self, library: &dyn Library, name: &Repository) -> Result<(), MirrorError> {
        let at = Instant::now();
        let held = library.holdings_of(name).await?;
        let said =
            held.into_iter().filter(|held| held.manifest.is_some()).flat_map(|held| held.blobs);
        self.known(name, |known| {
            known.learn(said);
            known.looked = Some(at);
        });
        Ok(())
    }

    /// Learns what notes say that are still there.
    async fn read(
        &self,
        notes: &dyn Notes,
        name: &Repository,
        new: Vec<String>,
    ) -> Result<(), MirrorError> {
        let read =
            |note: String| async move { Ok::<_, MirrorError>((notes.read(&note).await?, note)) };
        let mut read = stream::iter(new).map(read).buffer_unordered(AT_ONCE);
        while !self.is_vague(name)
            && let Some((bytes, note)) = read.try_next().await?
        {
            let Some(bytes) = bytes else { continue };
            self.known(name, |known| known.learn_note(&note, None, parse(name, &note, &bytes)));
        }
        Ok(())
    }

    /// Whether nothing else is known of any blob of a repository.
    fn is_vague(&self, name: &Repository) -> bool {
        self.known(name, |known| known.is_vague)
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        lock(&self.0).values().map(Known::count).sum()
    }

    /// Does something with what is known of a repository. Others are forgotten where there is too much: they are read again.
    fn known<T>(&self, name: &Repository, work: impl FnOnce(&mut Known) -> T) -> T {
        let mut all = lock(&self.0);
        let done = work(all.entry(name.clone()).or_default());
        if all.values().map(Known::count).sum::<usize>() > MAX_KNOWN {
            all.retain(|other, _| other == name);
        }
        done
    }
}

/// What a note says.
fn parse(name: &Repository, note: &str, bytes: &Bytes) -> Option<Vec<(Digest, u64)>> {
    match serde_json::from_slice(bytes) {
        Ok(said) => said,
        Err(error) => {
            let given = "those of this repository are given when they are here";
            tracing::warn!(repository = %name, note, %error, "a note of how large blobs are cannot be read: {given}");
            None
        }
    }
}

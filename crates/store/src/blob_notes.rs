//! Notes of what Puna has begun with blobs, so that a crash leaves none behind that nothing needs: without a note no blob
//! is removed unless a user asks for that.
//!
//! ```text
//! puna-tmp/begun/<64 hex>        a blob that Puna has stored for a model whose manifest is still to come
//! puna-tmp/removals/<random>     digests, one a line, of blobs that a removed or replaced name needed
//! ```

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::digest::Digest;
use crate::error::StoreError;
use crate::files::{self, TEMP_DIR, TempFile, read_limited, write_atomic};
use crate::store::Store;

const BEGUN: &str = "begun";
const REMOVALS: &str = "removals";
/// Bytes of the note of a removal at most.
const LIMIT: u64 = 64 << 20;

/// A note of blobs.
pub(crate) struct BlobNote {
    pub(crate) path: PathBuf,
    pub(crate) digests: Vec<Digest>,
    /// Whether it is about a removal.
    pub(crate) is_removal: bool,
    pub(crate) age: Duration,
}

impl Store {
    fn notes_in(&self, kind: &str) -> PathBuf {
        self.root().join(TEMP_DIR).join(kind)
    }

    /// Notes that Puna has stored a blob. Where that cannot be written, the blob stays until a user prunes the store.
    pub(crate) fn note_begun(&self, digest: &Digest) {
        let dir = self.notes_in(BEGUN);
        let _ = fs::create_dir_all(&dir).and_then(|()| fs::write(dir.join(digest.hex()), ""));
    }

    /// Removes the notes about blobs that a name needs, or that are gone.
    pub(crate) fn forget_begun(&self, digests: impl IntoIterator<Item = Digest>) {
        let dir = self.notes_in(BEGUN);
        digests.into_iter().for_each(|digest| _ = fs::remove_file(dir.join(digest.hex())));
    }

    /// Notes the blobs that a name needs which is about to be removed or replaced.
    ///
    /// # Errors
    /// The store cannot be written.
    pub(crate) fn note_removal(
        &self,
        digests: &HashSet<Digest>,
    ) -> Result<Option<PathBuf>, StoreError> {
        if digests.is_empty() {
            return Ok(None);
        }
        let path = self.notes_in(REMOVALS).join(TempFile::new_name());
        let text: String = digests.iter().map(|digest| format!("{digest}\n")).collect();
        match write_atomic(self.root(), &path, text.as_bytes()) {
            Ok(()) => Ok(Some(path)),
            // What is removed makes room on a full disk, for which no note must be in the way.
            Err(StoreError::Io {
                kind: io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded,
                ..
            }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The notes of both kinds.
    pub(crate) fn blob_notes(&self) -> Vec<BlobNote> {
        let now = SystemTime::now();
        let of_kind = |kind: &str| {
            let is_removal = kind == REMOVALS;
            let entries = fs::read_dir(self.notes_in(kind)).into_iter().flatten().flatten();
            let note = move |entry: fs::DirEntry| {
                let path = entry.path();
                let digests = match is_removal {
                    true => digests_in(&read_limited(&path, LIMIT).ok()?),
                    false => vec![format!("sha256:{}", entry.file_name().to_str()?).parse().ok()?],
                };
                let modified = entry.metadata().and_then(|meta| meta.modified()).ok()?;
                let age = now.duration_since(modified).unwrap_or_default();
                Some(BlobNote { path, digests, is_removal, age })
            };
            entries.filter_map(note).collect::<Vec<_>>()
        };
        let mut notes = of_kind(BEGUN);
        notes.extend(of_kind(REMOVALS));
        notes
    }

    /// Forgets a note.
    pub(crate) fn forget_note(&self, note: &std::path::Path) {
        if let Err(error) = files::remove(note) {
            tracing::debug!(%error, "a note about blobs stays");
        }
    }
}

fn digests_in(text: &[u8]) -> Vec<Digest> {
    String::from_utf8_lossy(text).lines().filter_map(|line| line.trim().parse().ok()).collect()
}

//! Records of stored and removed blobs, so that [`Store::clean_up`] can remove blobs that a crash
//! leaves unreferenced. It does not remove a blob without a record.
//!
//! ```text
//! puna-tmp/begun/<64 hex>        a blob stored for a model without a manifest yet
//! puna-tmp/removals/<random>     digests, one a line, of blobs of a removed or replaced name
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

const STORED_BLOBS_DIR: &str = "begun";
const REMOVALS_DIR: &str = "removals";
/// Largest size of a removal record in bytes.
const MAX_REMOVAL_RECORD_BYTES: u64 = 64 << 20;

/// A record of stored or removed blobs.
pub(crate) struct PendingBlobs {
    pub(crate) path: PathBuf,
    pub(crate) digests: Vec<Digest>,
    /// Whether it is a removal record.
    pub(crate) is_removal: bool,
    pub(crate) age: Duration,
}

impl Store {
    fn records_dir(&self, kind: &str) -> PathBuf {
        self.root().join(TEMP_DIR).join(kind)
    }

    /// Records that Puna has stored a blob. If the record cannot be written, only [`Store::prune`]
    /// can remove the blob.
    pub(crate) fn record_stored_blob(&self, digest: &Digest) {
        let dir = self.records_dir(STORED_BLOBS_DIR);
        let _ =
            crate::files::create_dir_all(&dir).and_then(|()| fs::write(dir.join(digest.hex()), ""));
    }

    /// Removes the records of blobs that a name references, or that are gone.
    pub(crate) fn remove_stored_blob_records(&self, digests: impl IntoIterator<Item = Digest>) {
        let dir = self.records_dir(STORED_BLOBS_DIR);
        digests.into_iter().for_each(|digest| _ = fs::remove_file(dir.join(digest.hex())));
    }

    /// Records the blobs of a name that is about to be removed or replaced.
    ///
    /// # Errors
    /// The store cannot be written.
    pub(crate) fn record_removal(
        &self,
        digests: &HashSet<Digest>,
    ) -> Result<Option<PathBuf>, StoreError> {
        if digests.is_empty() {
            return Ok(None);
        }
        let path = self.records_dir(REMOVALS_DIR).join(TempFile::new_name());
        let text: String = digests.iter().map(|digest| format!("{digest}\n")).collect();
        match write_atomic(self.root(), &path, text.as_bytes()) {
            Ok(()) => Ok(Some(path)),
            // A removal must work on a full disk, even without a record.
            Err(StoreError::Io {
                kind: io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded,
                ..
            }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The records of both kinds.
    pub(crate) fn pending_blobs(&self) -> Vec<PendingBlobs> {
        let now = SystemTime::now();
        let of_kind = |kind: &str| {
            let is_removal = kind == REMOVALS_DIR;
            let entries = fs::read_dir(self.records_dir(kind)).into_iter().flatten().flatten();
            let record = move |entry: fs::DirEntry| {
                let path = entry.path();
                let digests = match is_removal {
                    true => digests_in(&read_limited(&path, MAX_REMOVAL_RECORD_BYTES).ok()?),
                    false => vec![format!("sha256:{}", entry.file_name().to_str()?).parse().ok()?],
                };
                let modified = entry.metadata().and_then(|meta| meta.modified()).ok()?;
                let age = now.duration_since(modified).unwrap_or_default();
                Some(PendingBlobs { path, digests, is_removal, age })
            };
            entries.filter_map(record).collect::<Vec<_>>()
        };
        let mut records = of_kind(STORED_BLOBS_DIR);
        records.extend(of_kind(REMOVALS_DIR));
        records
    }

    /// Removes a record.
    pub(crate) fn remove_blob_record(&self, record: &std::path::Path) {
        if let Err(error) = files::remove(record) {
            tracing::debug!(%error, "cannot remove a record of blobs");
        }
    }
}

fn digests_in(text: &[u8]) -> Vec<Digest> {
    String::from_utf8_lossy(text).lines().filter_map(|line| line.trim().parse().ok()).collect()
}

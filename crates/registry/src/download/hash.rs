//! Computes a download's digest on a thread that follows the writing connections.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use puna_store::{Digest, StoreError};

use super::active::{ActiveDownload, IDLE_POLL_INTERVAL};
use crate::download::positioned_io::{CHUNK_BYTES, file_id, read_at};
use crate::download::resumable_sha256::{ResumableSha256, Sha256State};
use crate::error::RegistryError;
use crate::lock::lock;

impl ActiveDownload {
    /// Computes the digest of the file while connections write it. Returns `None` if the download
    /// ended before completion.
    pub(super) fn hash(&self) -> Result<Option<Digest>, RegistryError> {
        let file = file_id(&self.file).unwrap_or(0);
        let (mut hasher, mut at) = self.load_hash_state(file);
        let mut generation = 0;
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let until = {
                let mut table = self.table();
                loop {
                    if self.cancelled.load(Ordering::Relaxed) {
                        return Ok(None);
                    }
                    // A server without range requests makes the download restart from byte 0.
                    if table.generation() != generation {
                        (hasher, at, generation) =
                            (ResumableSha256::default(), 0, table.generation());
                        *lock(&self.hash_state) = None;
                    }
                    if table.contiguous_bytes() > at || table.is_complete() {
                        break;
                    }
                    let wait = self.bytes_written.wait_timeout(table, IDLE_POLL_INTERVAL);
                    table = wait.unwrap_or_else(PoisonError::into_inner).0;
                }
                if at == table.total() {
                    return Ok(Some(hasher.finish()));
                }
                table.contiguous_bytes()
            };
            let want = usize::try_from(until - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
            read_at(&self.file, &mut buffer[..want], at)
                .map_err(|e| StoreError::io("read", self.partial.data(), &e))?;
            hasher.update(&buffer[..want]);
            at += want as u64;
            if let Some(saved) = hasher.save(file).filter(|_| file > 0) {
                *lock(&self.hash_state) = Some(saved);
            }
        }
    }

    /// The hash state that an interrupted download saved for this file, if the hashed bytes are
    /// still valid.
    fn load_hash_state(&self, file: u64) -> (ResumableSha256, u64) {
        if !self.verified {
            // Without a known digest, nothing would detect a state of other bytes.
            return (ResumableSha256::default(), 0);
        }
        let saved = self
            .partial
            .read_hash_state()
            .and_then(|text| serde_json::from_slice::<Sha256State>(&text).ok());
        let contiguous_bytes = self.table().contiguous_bytes();
        match saved.filter(|saved| {
            saved.file == file && file > 0 && saved.at <= contiguous_bytes && saved.at % 64 == 0
        }) {
            Some(saved) => (ResumableSha256::resume(&saved), saved.at),
            None => (ResumableSha256::default(), 0),
        }
    }
}

/// Stops the hashing thread on drop.
pub(super) struct StopHashingOnDrop<'a>(pub(super) &'a ActiveDownload);

impl Drop for StopHashingOnDrop<'_> {
    fn drop(&mut self) {
        self.0.cancelled.store(true, Ordering::Relaxed);
        self.0.bytes_written.notify_one();
    }
}

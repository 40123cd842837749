//! Blobs that are served while they are being fetched.

use std::ops::Range;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use puna_registry::DownloadReader;
use puna_store::Digest;

use super::fetch_error;
use crate::error::MirrorError;
use crate::storage::{Blob, ByteStream, Storage};

/// Bytes of one read.
const READ_BYTES: usize = 256 << 10;

/// A blob whose download has not ended.
pub(super) struct InFlightBlob {
    /// Storage that will have the blob.
    pub(super) storage: Arc<dyn Storage>,
    pub(super) digest: Digest,
    pub(super) size: u64,
    pub(super) running: DownloadReader,
    /// Whether the manifests of the requested repository declare this size. Otherwise nothing is
    /// served before the blob is verified: wherever the client expects its end, it cannot have all
    /// of it earlier. See `declared_sizes`.
    pub(super) is_size_declared: bool,
}

impl InFlightBlob {
    /// Returns the next bytes of a range that are present, or the stored blob for all of it.
    async fn next(&mut self, range: Range<u64>) -> Result<Next, MirrorError> {
        // The last byte arrives only after verification.
        if !self.is_size_declared {
            self.running.read(self.size.saturating_sub(1), 1).await.map_err(fetch_error)?;
            self.is_size_declared = true;
        }
        let most = usize::try_from(range.end - range.start).unwrap_or(READ_BYTES).min(READ_BYTES);
        let bytes = self.running.read(range.start, most).await.map_err(fetch_error)?;
        if !self.running.is_unverified() {
            return Ok(Next::Bytes(bytes));
        }
        // The storage verifies blobs that other programs have named, and serves no damaged one.
        match self.storage.blob(self.digest).await? {
            Some(blob) if blob.size() == self.size => Ok(Next::Rest(blob.read(range))),
            // The blob is in the store of this process and not yet in the remote storage.
            None if self.storage.is_remote_storage() => Ok(Next::Bytes(bytes)),
            _ => Err(MirrorError::BlobUnknown(self.digest)),
        }
    }
}

/// Next piece of a blob.
enum Next {
    Bytes(bytes::Bytes),
    /// All remaining bytes.
    Rest(ByteStream),
}

impl Blob for InFlightBlob {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(self: Box<Self>, range: Range<u64>) -> ByteStream {
        let pieces = stream::unfold((range, self), |(range, mut blob)| async move {
            if range.is_empty() {
                return None;
            }
            match blob.next(range.clone()).await {
                Ok(Next::Bytes(bytes)) => {
                    let rest = range.start + bytes.len() as u64..range.end;
                    Some((stream::once(async { Ok(bytes) }).boxed(), (rest, blob)))
                }
                Ok(Next::Rest(rest)) => Some((rest, (range.end..range.end, blob))),
                Err(error) => {
                    let error: ByteStream = stream::once(async { Err(error) }).boxed();
                    Some((error, (range.end..range.end, blob)))
                }
            }
        });
        pieces.flatten().boxed()
    }
}

//! Blobs that are served while they are being fetched.

use std::ops::Range;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use puna_registry::DownloadReader;
use puna_store::Digest;

use crate::error::MirrorError;
use crate::storage::{Blob, BlobStore, ByteStream};

/// Bytes of one read.
const READ_BYTES: usize = 256 << 10;

/// A blob whose download has not ended.
pub(super) struct InFlightBlob {
    /// Storage that will have the blob.
    pub(super) blobs: Arc<dyn BlobStore>,
    /// Whether fetched blobs stay in the local store until their model is copied to a bucket.
    pub(super) has_bucket: bool,
    pub(super) digest: Digest,
    pub(super) size: u64,
    pub(super) reader: DownloadReader,
    /// Whether the manifests of the requested repository declare this size. If not, no byte is
    /// served before the digest is verified, because a wrong size of the upstream could let the
    /// client finish early. See `declared_sizes`.
    pub(super) is_size_declared: bool,
}

impl InFlightBlob {
    /// Returns the next bytes of a range that are present, or the stored blob for all of it.
    async fn next(&mut self, range: Range<u64>) -> Result<BlobPiece, MirrorError> {
        // `DownloadReader` returns the last byte only after verification, so this read waits for
        // it.
        if !self.is_size_declared {
            self.reader.read(self.size.saturating_sub(1), 1).await?;
            self.is_size_declared = true;
        }
        let max = usize::try_from(range.end - range.start).unwrap_or(READ_BYTES).min(READ_BYTES);
        let bytes = self.reader.read(range.start, max).await?;
        if !self.reader.is_unverified() {
            return Ok(BlobPiece::Bytes(bytes));
        }
        // Another program completed this download, so the blob is read through the storage, which
        // verifies it.
        match self.blobs.blob(self.digest).await? {
            Some(blob) if blob.size() == self.size => Ok(BlobPiece::Rest(blob.read(range))),
            // The blob is in the store of this process and not yet in the bucket.
            None if self.has_bucket => Ok(BlobPiece::Bytes(bytes)),
            _ => Err(MirrorError::BlobUnknown(self.digest)),
        }
    }
}

/// Next piece of a blob.
enum BlobPiece {
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
                Ok(BlobPiece::Bytes(bytes)) => {
                    let rest = range.start + bytes.len() as u64..range.end;
                    Some((stream::once(async { Ok(bytes) }).boxed(), (rest, blob)))
                }
                Ok(BlobPiece::Rest(rest)) => Some((rest, (range.end..range.end, blob))),
                Err(error) => {
                    let error: ByteStream = stream::once(async { Err(error) }).boxed();
                    Some((error, (range.end..range.end, blob)))
                }
            }
        });
        pieces.flatten().boxed()
    }
}

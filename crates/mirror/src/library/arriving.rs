//! Blobs that are read while they arrive.

use std::ops::Range;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use puna_registry::Running;
use puna_store::Digest;

use super::through::broken;
use super::{Blob, Body, Library};
use crate::error::MirrorError;

/// Bytes that are read at once.
const PIECE: usize = 256 << 10;

/// A blob that has not arrived wholly.
pub(super) struct Arriving {
    /// Where it comes to be.
    pub(super) library: Arc<dyn Library>,
    pub(super) digest: Digest,
    pub(super) size: u64,
    pub(super) running: Running,
    /// Whether the manifests of the repository in which it was asked for say that it has so many bytes. Where they do not nothing of it
    /// is given before all of it is right: wherever it ends for a client, nobody has all of it before (`through::sizes` says why).
    pub(super) is_vouched: bool,
}

impl Arriving {
    /// The bytes from one on that are here, or all that are left.
    async fn next(&mut self, range: Range<u64>) -> Result<Next, MirrorError> {
        // The last byte comes when the digest is right.
        if !self.is_vouched {
            self.running.read(self.size.saturating_sub(1), 1).await.map_err(broken)?;
            self.is_vouched = true;
        }
        let most = usize::try_from(range.end - range.start).unwrap_or(PIECE).min(PIECE);
        let bytes = self.running.read(range.start, most).await.map_err(broken)?;
        if !self.running.is_found() {
            return Ok(Next::Bytes(bytes));
        }
        // The library looks into what others have named, and gives nothing of what it finds damaged.
        match self.library.blob(self.digest).await? {
            Some(blob) if blob.size() == self.size => Ok(Next::Rest(blob.read(range))),
            // It has come to a store that is nobody else's, and is not where it belongs yet.
            None if self.library.is_elsewhere() => Ok(Next::Bytes(bytes)),
            _ => Err(MirrorError::BlobUnknown(self.digest)),
        }
    }
}

/// What is given next.
enum Next {
    Bytes(bytes::Bytes),
    /// All that is left.
    Rest(Body),
}

impl Blob for Arriving {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(self: Box<Self>, range: Range<u64>) -> Body {
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
                    let error: Body = stream::once(async { Err(error) }).boxed();
                    Some((error, (range.end..range.end, blob)))
                }
            }
        });
        pieces.flatten().boxed()
    }
}

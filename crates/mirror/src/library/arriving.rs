//! Blobs that are read while they arrive.

use std::ops::Range;

use futures_util::{StreamExt, stream};
use puna_registry::Running;

use super::through::broken;
use super::{Blob, Body};

/// Bytes that are read at once.
const PIECE: usize = 256 << 10;

/// A blob that has not arrived wholly.
pub(super) struct Arriving {
    pub(super) size: u64,
    pub(super) running: Running,
    /// Whether the manifests of the repository in which it was asked for say that it has so many bytes. Where they do not nothing of it
    /// is given before all of it is right: wherever it ends for a client, nobody has all of it before (`through::sizes` says why).
    pub(super) is_vouched: bool,
}

impl Blob for Arriving {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(self: Box<Self>, range: Range<u64>) -> Body {
        // The last byte comes when the digest is right.
        let waits = (!self.is_vouched).then(|| self.size.saturating_sub(1));
        let pieces = stream::unfold((range, self.running, waits), |(range, mut running, waits)| async move {
            if range.is_empty() {
                return None;
            }
            if let Some(last) = waits
                && let Err(error) = running.read(last, 1).await
            {
                return Some((Err(broken(error)), (range.end..range.end, running, None)));
            }
            let most = usize::try_from(range.end - range.start).unwrap_or(PIECE).min(PIECE);
            match running.read(range.start, most).await {
                Ok(bytes) => {
                    let rest = range.start + bytes.len() as u64..range.end;
                    Some((Ok(bytes), (rest, running, None)))
                }
                Err(error) => Some((Err(broken(error)), (range.end..range.end, running, None))),
            }
        });
        pieces.boxed()
    }
}

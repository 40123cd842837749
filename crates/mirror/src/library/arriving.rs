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
}

impl Blob for Arriving {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(self: Box<Self>, range: Range<u64>) -> Body {
        let pieces = stream::unfold((range, self.running), |(range, mut running)| async move {
            if range.is_empty() {
                return None;
            }
            let most = usize::try_from(range.end - range.start).unwrap_or(PIECE).min(PIECE);
            match running.read(range.start, most).await {
                Ok(bytes) => {
                    let rest = range.start + bytes.len() as u64..range.end;
                    Some((Ok(bytes), (rest, running)))
                }
                Err(error) => Some((Err(broken(error)), (range.end..range.end, running))),
            }
        });
        pieces.boxed()
    }
}

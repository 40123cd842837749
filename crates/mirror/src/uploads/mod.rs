//! Rules for upload sessions that all storage drivers share.

pub(crate) mod admission;

use std::time::Duration;

/// Longest wait for the next piece of a body.
pub(crate) const PIECE_TIMEOUT: Duration =
    Duration::from_millis(if cfg!(test) { 2_000 } else { 60_000 });

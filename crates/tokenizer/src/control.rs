//! Control of an encoding: when it ends early, and how much text it processes at once.

use std::sync::atomic::{AtomicBool, Ordering};

/// Flag of encodings that nothing cancels.
pub(crate) static NEVER: AtomicBool = AtomicBool::new(false);

/// Default of [`EncodeControl::piece_bytes`]. Working memory is at most [`ENCODING_BYTES`], and a
/// piece takes a few milliseconds.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// Largest working memory of one encoding in bytes, without its tokens.
pub const ENCODING_BYTES: usize = 4 * PIECE_BYTES;

/// The encoding was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the encoding was cancelled")]
pub struct EncodeCancelled;

/// Control of one encoding.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EncodeControl<'a> {
    /// Ends the encoding once it is set. Tokens are meaningless from then on. All loops over text
    /// read it for each character or token.
    pub(crate) cancelled: &'a AtomicBool,
    /// Bytes of text that are processed at once. The tokens do not depend on it.
    pub(crate) piece_bytes: usize,
}

impl EncodeControl<'_> {
    #[inline]
    pub(crate) fn is_cancelled(self) -> bool {
        is_set(self.cancelled)
    }
}

/// Whether a cancellation flag is set. Relaxed order suffices, because only the flag is shared.
#[inline(always)]
pub(crate) fn is_set(cancelled: &AtomicBool) -> bool {
    cancelled.load(Ordering::Relaxed)
}

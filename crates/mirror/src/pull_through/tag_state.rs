//! State of an upstream tag in the cache.

use std::time::Instant;

use crate::error::MirrorError;

/// State of a tag that is not being fetched.
#[derive(Debug, Clone, Default)]
pub(super) enum TagState {
    /// Nothing is known.
    #[default]
    Unknown,
    /// The stored manifest is what the upstream has under the tag.
    Confirmed(Confirmation),
    /// A lookup has failed or found nothing at that time.
    NegativeCached(Instant, MissReason),
}

/// Confirmation by an upstream that the stored manifest is current.
#[derive(Debug, Clone, Copy)]
pub(super) struct Confirmation {
    pub(super) at: Instant,
    /// Number of damaged blobs found by then.
    pub(super) damaged_blobs: u64,
}

/// Why nothing was fetched.
#[derive(Debug, Clone)]
pub(super) enum MissReason {
    /// The upstream does not have it.
    Absent,
    /// The lookup or the fetch failed.
    Failed(MirrorError),
    /// The model has this many bytes, more than an anonymous request may cause to be fetched.
    TooLarge(u64),
    /// The limit of concurrent fetches was reached.
    FetchLimit,
}

//! How far an upload is, as it is noted.

use puna_registry::SavedSum;
use serde::{Deserialize, Serialize};

use crate::name::Repository;

/// Bytes of a part. Some services want all parts of an object to be of one size.
pub(super) const PART: usize = if cfg!(test) { 64 << 10 } else { 32 << 20 };
/// Bytes of the parts of what is larger than 128 GB: an object has 10,000 parts at most.
pub(super) const LARGE_PART: usize = 8 * PART;
/// Parts of the first size.
const SMALL_PARTS: usize = 4000;

/// How far an upload is, as it lies in the bucket.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in super::super) struct Note {
    pub(super) repository: String,
    /// Whose it is.
    #[serde(default)]
    pub(super) owner: String,
    /// Bytes that are there, also of a part that broke off.
    pub(super) len: u64,
    /// Bytes of all parts that came whole.
    pub(super) committed: u64,
    /// What the service calls the object in the making, once it has a part.
    pub(super) object: Option<String>,
    /// Bytes are coming, of which none need lie in the bucket yet.
    #[serde(default)]
    pub(super) comes: bool,
    /// What it calls its parts.
    pub(super) parts: Vec<String>,
    /// The sum of the parts' bytes.
    pub(super) sum: Option<SavedSum>,
    /// Bytes behind the parts, which lie in an object of their own.
    pub(super) tail: u64,
}

impl Note {
    pub(super) fn new(name: &Repository, owner: &str) -> Self {
        Self {
            repository: name.to_string(),
            owner: owner.to_owned(),
            len: 0,
            committed: 0,
            object: None,
            comes: false,
            parts: Vec::new(),
            sum: None,
            tail: 0,
        }
    }

    /// Whether bytes have come, though they may be in another mirror's memory, or in parts that are not noted: more of a part that
    /// comes is noted when that ends.
    pub(super) fn has_bytes(&self) -> bool {
        self.len > 0 || self.object.is_some() || self.comes
    }

    /// Bytes of the next part.
    pub(super) fn next_part(&self) -> usize {
        if self.parts.len() < SMALL_PARTS { PART } else { LARGE_PART }
    }

    /// Bytes that the next part takes of memory, where so many are there and so many, if that is known, are to come.
    pub(super) fn next_room(&self, there: u64, coming: Option<u64>) -> u64 {
        let most = self.next_part() as u64;
        coming.map_or(most, |coming| there.saturating_add(coming).min(most))
    }
}

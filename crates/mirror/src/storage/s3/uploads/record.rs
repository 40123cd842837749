//! Record of an open upload in the bucket.

use puna_registry::Sha256State;
use serde::{Deserialize, Serialize};

use crate::types::repository::Repository;

/// Bytes of a part. Some services require parts of equal size.
pub(super) const PART_BYTES: usize = if cfg!(test) { 64 << 10 } else { 32 << 20 };
/// Bytes of a part of a blob larger than 128 GB, because an object has at most 10,000 parts.
pub(super) const LARGE_PART_BYTES: usize = 8 * PART_BYTES;
/// Number of parts of the first size.
const SMALL_PARTS: usize = 4000;

/// Progress of an upload, as stored in the bucket.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct UploadRecord {
    pub(super) repository: String,
    /// Key or address that opened the upload.
    #[serde(default)]
    pub(super) owner: String,
    /// Received bytes, including an interrupted part.
    pub(super) len: u64,
    /// Bytes of all complete parts.
    pub(super) committed: u64,
    /// Id of the multipart upload, once it has a part.
    pub(super) object: Option<String>,
    /// Whether bytes are arriving that the bucket may not have yet.
    #[serde(default, rename = "comes")]
    pub(super) is_receiving: bool,
    /// Ids of the uploaded parts.
    pub(super) parts: Vec<String>,
    /// State of the digest over the uploaded parts.
    pub(super) sum: Option<Sha256State>,
    /// Bytes behind the uploaded parts, which lie in an object of their own.
    pub(super) tail: u64,
}

impl UploadRecord {
    pub(super) fn new(name: &Repository, owner: &str) -> Self {
        Self {
            repository: name.to_string(),
            owner: owner.to_owned(),
            len: 0,
            committed: 0,
            object: None,
            is_receiving: false,
            parts: Vec::new(),
            sum: None,
            tail: 0,
        }
    }

    /// Whether bytes have arrived. They may be in the memory of another mirror, or in parts that
    /// the record does not list until their request ends.
    pub(super) fn has_bytes(&self) -> bool {
        self.len > 0 || self.object.is_some() || self.is_receiving
    }

    /// Bytes of the next part.
    pub(super) fn next_part_bytes(&self) -> usize {
        if self.parts.len() < SMALL_PARTS { PART_BYTES } else { LARGE_PART_BYTES }
    }

    /// Memory for the next part, with `buffered` bytes present and `remaining` bytes to come, if
    /// known.
    pub(super) fn next_part_memory(&self, buffered: u64, remaining: Option<u64>) -> u64 {
        let max = self.next_part_bytes() as u64;
        remaining.map_or(max, |remaining| buffered.saturating_add(remaining).min(max))
    }
}

/// Cached properties of an upload, so that its record is not read again.
#[derive(Clone)]
pub(super) struct OpenUploadSummary {
    pub(super) owner: String,
    pub(super) has_bytes: bool,
}

impl OpenUploadSummary {
    pub(super) fn from_record(record: &UploadRecord) -> Self {
        Self { owner: record.owner.clone(), has_bytes: record.has_bytes() }
    }
}

/// Cached repository and size of an upload, as of a version of its record.
#[derive(Clone)]
pub(super) struct UploadProgress {
    pub(super) version: String,
    pub(super) repository: String,
    /// Received bytes.
    pub(super) len: u64,
}

//! Requests for tags.

use puna_store::{Digest, ModelName};

use super::upstreams::Requester;
use crate::types::manifest::{Manifest, OCI_MANIFEST};
use crate::types::repository::Repository;

/// Request for a tag, and the manifest that is stored for it.
pub(super) struct TagRequest<'a> {
    pub(super) name: &'a Repository,
    pub(super) model: ModelName,
    pub(super) requester: Requester,
    pub(super) stored: Option<Manifest>,
}

impl TagRequest<'_> {
    /// Whether the stored model was assembled from these files.
    pub(super) fn is_assembled_from(&self, origin: Digest) -> bool {
        let mut blobs = self.stored.iter().flat_map(|stored| &stored.blobs);
        blobs.any(|blob| blob.digest == origin && blob.media_type == OCI_MANIFEST)
    }
}

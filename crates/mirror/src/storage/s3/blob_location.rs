//! Blobs in a bucket: a name object says where the data of a blob lies.

use std::ops::Range;

use object_store::path::Path;
use puna_store::Digest;
use serde::{Deserialize, Serialize};

use super::bucket::Bucket;
use crate::error::MirrorError;
use crate::storage::{Blob, ByteStream};
use crate::types::upload_id::UploadId;

/// Location of a blob's data.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct BlobLocation {
    pub(super) data: UploadId,
    pub(super) size: u64,
}

/// Key of the object that names a blob.
pub(super) fn blob_key(bucket: &Bucket, digest: &Digest) -> Path {
    bucket.key(["blobs", &digest.file_name()])
}

/// Reads the location of a blob's data from its name object.
pub(super) async fn read_blob_location(
    bucket: &Bucket,
    key: &Path,
) -> Result<Option<BlobLocation>, MirrorError> {
    let Some(bytes) = bucket.read(key).await? else { return Ok(None) };
    let location = serde_json::from_slice(&bytes);
    location.map(Some).map_err(|_| bucket.invalid_object(key, "the record of the blob is invalid"))
}

/// Key of the data that an upload has written.
pub(super) fn data_key(bucket: &Bucket, id: &UploadId) -> Path {
    bucket.key(["data", id.as_str()])
}

/// A blob in the bucket.
pub(super) struct S3Blob {
    pub(super) bucket: Bucket,
    pub(super) location: BlobLocation,
}

impl Blob for S3Blob {
    fn size(&self) -> u64 {
        self.location.size
    }

    fn read(self: Box<Self>, range: Range<u64>) -> ByteStream {
        self.bucket.stream(data_key(&self.bucket, &self.location.data), range)
    }
}

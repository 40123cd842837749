//! Operations on a bucket: small objects that are read and replaced whole, ranges of large objects,
//! listings and multipart uploads.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, MultipartId, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
    PutPayload,
};
use puna_registry::root_cause;
use serde::Serialize;

use super::super::ByteStream;
use crate::error::{BucketProblem, InternalError, MirrorError};
use crate::types::manifest::MAX_MANIFEST_BYTES;

/// Error codes by which services reject credentials or permissions.
const AUTH_ERROR_CODES: [&str; 6] = [
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidToken",
    "ExpiredToken",
    "AuthorizationHeaderMalformed",
];

/// Operations that the object store client must support.
pub(super) trait MultipartService: ObjectStore + MultipartStore {}

impl<T: ObjectStore + MultipartStore> MultipartService for T {}

/// A bucket and the key prefix of the storage in it. Cheap to clone.
#[derive(Clone)]
pub(super) struct Bucket {
    service: Arc<dyn MultipartService>,
    prefix: Path,
    /// Display name for messages.
    location: Arc<str>,
}

/// An object in a listing.
pub(super) struct ObjectInfo {
    /// Last segment of the key.
    pub(super) name: String,
    /// Version of the object; it changes with the content.
    pub(super) version: String,
    /// Write time by the clock of the service.
    pub(super) written: SystemTime,
    /// Size in bytes.
    pub(super) size: u64,
}

impl ObjectInfo {
    /// Time since the object was written.
    pub(super) fn age(&self) -> Duration {
        SystemTime::now().duration_since(self.written).unwrap_or_default()
    }
}

impl Bucket {
    pub(super) fn new(service: Arc<dyn MultipartService>, prefix: &str, location: String) -> Self {
        Self { service, prefix: Path::from(prefix), location: location.into() }
    }

    /// Joins segments to a key below the prefix.
    pub(super) fn key<'a>(&self, segments: impl IntoIterator<Item = &'a str>) -> Path {
        segments.into_iter().fold(self.prefix.clone(), |key, word| key.join(word))
    }

    /// Reads a small object; `None` if it does not exist.
    pub(super) async fn read(&self, key: &Path) -> Result<Option<Bytes>, MirrorError> {
        Ok(self.read_version(key).await?.map(|(bytes, _)| bytes))
    }

    /// Reads a small object and its version.
    pub(super) async fn read_version(
        &self,
        key: &Path,
    ) -> Result<Option<(Bytes, String)>, MirrorError> {
        Ok(self.read_entry(key).await?.map(|(bytes, object_info)| (bytes, object_info.version)))
    }

    /// Reads a small object and its metadata.
    pub(super) async fn read_entry(
        &self,
        key: &Path,
    ) -> Result<Option<(Bytes, ObjectInfo)>, MirrorError> {
        let Some(found) = self.none_if_absent(self.service.get(key).await)? else {
            return Ok(None);
        };
        if found.meta.size > MAX_MANIFEST_BYTES as u64 {
            return Err(self.invalid_object(key, "the object is too large"));
        }
        let object_info = object_info(&found.meta);
        Ok(Some((found.bytes().await.map_err(|e| self.service_error(&e))?, object_info)))
    }

    /// Returns the age of an object; `None` if it does not exist.
    pub(super) async fn age(&self, key: &Path) -> Result<Option<Duration>, MirrorError> {
        let meta = self.none_if_absent(self.service.head(key).await)?;
        Ok(meta.map(|meta| object_info(&meta).age()))
    }

    /// Writes an object atomically.
    pub(super) async fn write(
        &self,
        key: &Path,
        bytes: impl Into<PutPayload>,
    ) -> Result<(), MirrorError> {
        self.service.put(key, bytes.into()).await.map(drop).map_err(|e| self.service_error(&e))
    }

    /// Writes an object unless it exists. Returns whether it was written.
    pub(super) async fn create(&self, key: &Path, bytes: Bytes) -> Result<bool, MirrorError> {
        match self.service.put_opts(key, bytes.clone().into(), PutMode::Create.into()).await {
            Ok(_) => Ok(true),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
            // Some services do not support conditional writes.
            Err(Error::NotImplemented { .. } | Error::NotSupported { .. }) => {
                match self.age(key).await? {
                    Some(_) => Ok(false),
                    None => self.write(key, bytes).await.map(|()| true),
                }
            }
            Err(error) => Err(self.service_error(&error)),
        }
    }

    /// Removes an object if it exists.
    pub(super) async fn remove(&self, key: &Path) -> Result<(), MirrorError> {
        self.none_if_absent(self.service.delete(key).await).map(drop)
    }

    /// Lists the objects directly in a folder.
    pub(super) async fn list_objects(&self, folder: &Path) -> Result<Vec<ObjectInfo>, MirrorError> {
        let list = self
            .service
            .list_with_delimiter(Some(folder))
            .await
            .map_err(|e| self.service_error(&e))?;
        Ok(list.objects.iter().map(object_info).collect())
    }

    /// Lists the folders directly in a folder.
    pub(super) async fn list_folders(&self, folder: &Path) -> Result<Vec<String>, MirrorError> {
        let list = self
            .service
            .list_with_delimiter(Some(folder))
            .await
            .map_err(|e| self.service_error(&e))?;
        Ok(list
            .common_prefixes
            .iter()
            .filter_map(|path| path.filename().map(str::to_owned))
            .collect())
    }

    /// Lists the objects in the subfolders of a folder: subfolder, object and age.
    pub(super) async fn list_nested(
        &self,
        folder: &Path,
    ) -> Result<Vec<(String, String, Duration)>, MirrorError> {
        let all: Vec<ObjectMeta> = self
            .service
            .list(Some(folder))
            .try_collect()
            .await
            .map_err(|e| self.service_error(&e))?;
        let segments = |meta: &ObjectMeta| {
            let mut parts =
                meta.location.prefix_match(folder)?.map(|put_part| put_part.as_ref().to_owned());
            Some((parts.next()?, parts.next()?, object_info(meta).age()))
        };
        Ok(all.iter().filter_map(segments).collect())
    }

    /// Lists the objects below a folder at any depth: first segment below the folder, and size.
    pub(super) async fn list_sizes(
        &self,
        folder: &Path,
    ) -> Result<Vec<(String, u64)>, MirrorError> {
        let all: Vec<ObjectMeta> = self
            .service
            .list(Some(folder))
            .try_collect()
            .await
            .map_err(|e| self.service_error(&e))?;
        let first = |meta: &ObjectMeta| {
            let segment = meta.location.prefix_match(folder)?.next()?.as_ref().to_owned();
            Some((segment, meta.size))
        };
        Ok(all.iter().filter_map(first).collect())
    }

    /// Lists all keys of the storage as segments, sorted.
    pub(super) async fn list_keys(&self) -> Result<Vec<Vec<String>>, MirrorError> {
        let metas: Vec<ObjectMeta> = self
            .service
            .list(Some(&self.prefix))
            .try_collect()
            .await
            .map_err(|e| self.service_error(&e))?;
        let segments = |meta: ObjectMeta| -> Option<Vec<String>> {
            let segments = meta.location.prefix_match(&self.prefix)?;
            Some(segments.map(|word| word.as_ref().to_owned()).collect())
        };
        let mut all: Vec<_> = metas.into_iter().filter_map(segments).collect();
        all.sort();
        Ok(all)
    }

    /// Whether a folder contains any object at any depth.
    pub(super) async fn has_any(&self, folder: &Path) -> Result<bool, MirrorError> {
        let first = self.service.list(Some(folder)).next().await;
        first.transpose().map(|first| first.is_some()).map_err(|e| self.service_error(&e))
    }

    /// Streams a range of an object.
    pub(super) fn stream(&self, key: Path, range: Range<u64>) -> ByteStream {
        if range.is_empty() {
            return stream::empty().boxed();
        }
        let bucket = self.clone();
        let begun = async move {
            let range = Some(GetRange::Bounded(range));
            let found =
                bucket.service.get_opts(&key, GetOptions { range, ..GetOptions::default() }).await;
            let found = found.map_err(|e| bucket.service_error(&e))?;
            Ok::<_, MirrorError>(found.into_stream().map_err(move |e| bucket.service_error(&e)))
        };
        stream::once(begun).try_flatten().boxed()
    }

    /// Reads a whole object into memory.
    pub(super) async fn read_whole(&self, key: Path, size: u64) -> Result<Bytes, MirrorError> {
        let pieces =
            self.stream(key, 0..size).try_fold(BytesMut::new(), |mut all, piece| async move {
                all.extend_from_slice(&piece);
                Ok(all)
            });
        Ok(pieces.await?.freeze())
    }

    /// Starts a multipart upload.
    pub(super) async fn begin_multipart(&self, key: &Path) -> Result<MultipartId, MirrorError> {
        self.service.create_multipart(key).await.map_err(|e| self.service_error(&e))
    }

    /// Uploads a part. Returns its id.
    pub(super) async fn put_part(
        &self,
        key: &Path,
        id: &MultipartId,
        number: usize,
        put_part: PutPayload,
    ) -> Result<String, MirrorError> {
        let put_part = self
            .service
            .put_part(key, id, number, put_part)
            .await
            .map_err(|e| self.service_error(&e))?;
        Ok(put_part.content_id)
    }

    /// Completes a multipart upload.
    pub(super) async fn complete_multipart(
        &self,
        key: &Path,
        id: &MultipartId,
        parts: Vec<String>,
    ) -> Result<(), MirrorError> {
        let parts =
            parts.into_iter().map(|content_id| object_store::multipart::PartId { content_id });
        let done = self.service.complete_multipart(key, id, parts.collect()).await;
        done.map(drop).map_err(|e| self.service_error(&e))
    }

    /// Aborts a multipart upload.
    pub(super) async fn abort_multipart(
        &self,
        key: &Path,
        id: &MultipartId,
    ) -> Result<(), MirrorError> {
        self.none_if_absent(self.service.abort_multipart(key, id).await).map(drop)
    }

    /// Maps "not found" to `None`.
    fn none_if_absent<T>(&self, result: object_store::Result<T>) -> Result<Option<T>, MirrorError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.service_error(&error)),
        }
    }

    /// Error for an object with invalid content.
    pub(super) fn invalid_object(&self, key: &Path, what: &'static str) -> MirrorError {
        self.failed(BucketProblem::InvalidObject { key: key.to_string(), what })
    }

    fn failed(&self, problem: BucketProblem) -> MirrorError {
        MirrorError::StorageFailed { location: self.location.to_string(), problem }
    }

    /// Error of the service, with advice for the user.
    pub(super) fn service_error(&self, error: &Error) -> MirrorError {
        let cause = one_line_cause(error);
        let says = |codes: &[&str]| codes.iter().any(|code| cause.starts_with(code));
        let refused =
            matches!(error, Error::Unauthenticated { .. } | Error::PermissionDenied { .. });
        self.failed(if refused || says(&AUTH_ERROR_CODES) {
            BucketProblem::Credentials { cause }
        } else if matches!(error, Error::NotFound { .. }) || says(&["NoSuchBucket"]) {
            BucketProblem::NoBucket
        } else {
            BucketProblem::Service { cause }
        })
    }
}

/// Cause of an error in one line of limited length. Services answer with whole documents.
fn one_line_cause(error: &Error) -> String {
    let text = root_cause(error);
    let said = |tag: &str| {
        let (_, rest) = text.split_once(&format!("<{tag}>"))?;
        Some(rest.split_once('<')?.0.to_owned())
    };
    match (said("Code"), said("Message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        _ => text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(300).collect(),
    }
}

fn object_info(meta: &ObjectMeta) -> ObjectInfo {
    ObjectInfo {
        name: meta.location.filename().unwrap_or_default().to_owned(),
        version: meta.e_tag.clone().unwrap_or_else(|| meta.last_modified.to_string()),
        written: meta.last_modified.into(),
        size: meta.size,
    }
}

/// Serializes a value as JSON.
pub(super) fn to_json(value: &impl Serialize) -> Result<Bytes, InternalError> {
    Ok(serde_json::to_vec(value)?.into())
}

//! A bucket, as far as a library needs it: small objects that are read and replaced whole, ranges of large ones, lists.

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

use super::super::Body;
use crate::error::MirrorError;
use crate::manifest::MAX_MANIFEST;

/// How services say that somebody is nobody, or may not do something.
const REFUSALS: [&str; 6] = [
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidToken",
    "ExpiredToken",
    "AuthorizationHeaderMalformed",
];

/// What a bucket must be able to do.
pub(super) trait Service: ObjectStore + MultipartStore {}

impl<T: ObjectStore + MultipartStore> Service for T {}

/// A bucket and what all keys of a library in it begin with. Cheap to clone.
#[derive(Clone)]
pub(super) struct Bucket {
    service: Arc<dyn Service>,
    prefix: Path,
    /// What people call it.
    place: Arc<str>,
}

/// Something that lies in a folder of the bucket.
pub(super) struct Entry {
    /// Its last word.
    pub(super) name: String,
    /// What tells this version from others.
    pub(super) version: String,
    /// When it was written, as the service says.
    pub(super) written: SystemTime,
}

impl Entry {
    /// How long ago it was written.
    pub(super) fn age(&self) -> Duration {
        SystemTime::now().duration_since(self.written).unwrap_or_default()
    }
}

impl Bucket {
    pub(super) fn new(service: Arc<dyn Service>, prefix: &str, place: String) -> Self {
        Self { service, prefix: Path::from(prefix), place: place.into() }
    }

    /// A key of words.
    pub(super) fn key<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Path {
        words.into_iter().fold(self.prefix.clone(), |key, word| key.join(word))
    }

    /// A small object; `None` if it is not there.
    pub(super) async fn read(&self, key: &Path) -> Result<Option<Bytes>, MirrorError> {
        Ok(self.read_version(key).await?.map(|(bytes, _)| bytes))
    }

    /// The same, and which version of it that is.
    pub(super) async fn read_version(
        &self,
        key: &Path,
    ) -> Result<Option<(Bytes, String)>, MirrorError> {
        Ok(self.read_entry(key).await?.map(|(bytes, entry)| (bytes, entry.version)))
    }

    /// The same, and how it lies there.
    pub(super) async fn read_entry(
        &self,
        key: &Path,
    ) -> Result<Option<(Bytes, Entry)>, MirrorError> {
        let Some(found) = self.absent(self.service.get(key).await)? else { return Ok(None) };
        if found.meta.size > MAX_MANIFEST as u64 {
            return Err(self.wrong(key, "it is larger than anything that is kept there"));
        }
        let entry = entry(&found.meta);
        Ok(Some((found.bytes().await.map_err(|e| self.failure(&e))?, entry)))
    }

    /// Whether an object is there, and how long it has been.
    pub(super) async fn age(&self, key: &Path) -> Result<Option<Duration>, MirrorError> {
        let meta = self.absent(self.service.head(key).await)?;
        Ok(meta.map(|meta| entry(&meta).age()))
    }

    /// Writes an object whole: the old one is there until the new one is.
    pub(super) async fn write(
        &self,
        key: &Path,
        bytes: impl Into<PutPayload>,
    ) -> Result<(), MirrorError> {
        self.service.put(key, bytes.into()).await.map(drop).map_err(|e| self.failure(&e))
    }

    /// Writes an object unless it is there. Says whether it was written.
    pub(super) async fn create(&self, key: &Path, bytes: Bytes) -> Result<bool, MirrorError> {
        match self.service.put_opts(key, bytes.clone().into(), PutMode::Create.into()).await {
            Ok(_) => Ok(true),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
            // Not every service knows conditions.
            Err(Error::NotImplemented { .. } | Error::NotSupported { .. }) => {
                match self.age(key).await? {
                    Some(_) => Ok(false),
                    None => self.write(key, bytes).await.map(|()| true),
                }
            }
            Err(error) => Err(self.failure(&error)),
        }
    }

    /// Removes an object, if it is there.
    pub(super) async fn remove(&self, key: &Path) -> Result<(), MirrorError> {
        self.absent(self.service.delete(key).await).map(drop)
    }

    /// What lies in a folder: objects.
    pub(super) async fn entries(&self, folder: &Path) -> Result<Vec<Entry>, MirrorError> {
        let list =
            self.service.list_with_delimiter(Some(folder)).await.map_err(|e| self.failure(&e))?;
        Ok(list.objects.iter().map(entry).collect())
    }

    /// What lies in a folder: folders.
    pub(super) async fn folders(&self, folder: &Path) -> Result<Vec<String>, MirrorError> {
        let list =
            self.service.list_with_delimiter(Some(folder)).await.map_err(|e| self.failure(&e))?;
        Ok(list
            .common_prefixes
            .iter()
            .filter_map(|path| path.filename().map(str::to_owned))
            .collect())
    }

    /// What lies in the folders of a folder: the folder, the object, and how long ago it was written.
    pub(super) async fn below(
        &self,
        folder: &Path,
    ) -> Result<Vec<(String, String, Duration)>, MirrorError> {
        let all: Vec<ObjectMeta> =
            self.service.list(Some(folder)).try_collect().await.map_err(|e| self.failure(&e))?;
        let words = |meta: &ObjectMeta| {
            let mut parts =
                meta.location.prefix_match(folder)?.map(|part| part.as_ref().to_owned());
            Some((parts.next()?, parts.next()?, entry(meta).age()))
        };
        Ok(all.iter().filter_map(words).collect())
    }

    /// The words of all keys of the library, in order.
    pub(super) async fn paths(&self) -> Result<Vec<Vec<String>>, MirrorError> {
        let metas: Vec<ObjectMeta> = self
            .service
            .list(Some(&self.prefix))
            .try_collect()
            .await
            .map_err(|e| self.failure(&e))?;
        let words = |meta: ObjectMeta| -> Option<Vec<String>> {
            let words = meta.location.prefix_match(&self.prefix)?;
            Some(words.map(|word| word.as_ref().to_owned()).collect())
        };
        let mut all: Vec<_> = metas.into_iter().filter_map(words).collect();
        all.sort();
        Ok(all)
    }

    /// Whether there is anything in a folder, however deep.
    pub(super) async fn has_any(&self, folder: &Path) -> Result<bool, MirrorError> {
        let first = self.service.list(Some(folder)).next().await;
        first.transpose().map(|first| first.is_some()).map_err(|e| self.failure(&e))
    }

    /// Bytes of an object, as they come.
    pub(super) fn stream(&self, key: Path, range: Range<u64>) -> Body {
        if range.is_empty() {
            return stream::empty().boxed();
        }
        let bucket = self.clone();
        let begun = async move {
            let range = Some(GetRange::Bounded(range));
            let found =
                bucket.service.get_opts(&key, GetOptions { range, ..GetOptions::default() }).await;
            let found = found.map_err(|e| bucket.failure(&e))?;
            Ok::<_, MirrorError>(found.into_stream().map_err(move |e| bucket.failure(&e)))
        };
        stream::once(begun).try_flatten().boxed()
    }

    /// A whole object that is not large.
    pub(super) async fn whole(&self, key: Path, size: u64) -> Result<Bytes, MirrorError> {
        let pieces =
            self.stream(key, 0..size).try_fold(BytesMut::new(), |mut all, piece| async move {
                all.extend_from_slice(&piece);
                Ok(all)
            });
        Ok(pieces.await?.freeze())
    }

    /// Begins an object that comes in parts.
    pub(super) async fn begin(&self, key: &Path) -> Result<MultipartId, MirrorError> {
        self.service.create_multipart(key).await.map_err(|e| self.failure(&e))
    }

    /// Writes a part of it: what the service calls the part.
    pub(super) async fn part(
        &self,
        key: &Path,
        id: &MultipartId,
        number: usize,
        part: PutPayload,
    ) -> Result<String, MirrorError> {
        let part =
            self.service.put_part(key, id, number, part).await.map_err(|e| self.failure(&e))?;
        Ok(part.content_id)
    }

    /// Makes the object of its parts.
    pub(super) async fn complete(
        &self,
        key: &Path,
        id: &MultipartId,
        parts: Vec<String>,
    ) -> Result<(), MirrorError> {
        let parts =
            parts.into_iter().map(|content_id| object_store::multipart::PartId { content_id });
        let done = self.service.complete_multipart(key, id, parts.collect()).await;
        done.map(drop).map_err(|e| self.failure(&e))
    }

    /// Gives such an object up.
    pub(super) async fn abort(&self, key: &Path, id: &MultipartId) -> Result<(), MirrorError> {
        self.absent(self.service.abort_multipart(key, id).await).map(drop)
    }

    /// `None` for what is not there.
    fn absent<T>(&self, result: object_store::Result<T>) -> Result<Option<T>, MirrorError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failure(&error)),
        }
    }

    /// An object that is not what it should be.
    pub(super) fn wrong(&self, key: &Path, what: &str) -> MirrorError {
        MirrorError::Storage { place: self.place.to_string(), reason: format!("{key}: {what}") }
    }

    /// A failure of the service, with the way out.
    pub(super) fn failure(&self, error: &Error) -> MirrorError {
        let cause = cause(error);
        let says = |codes: &[&str]| codes.iter().any(|code| cause.starts_with(code));
        let refused =
            matches!(error, Error::Unauthenticated { .. } | Error::PermissionDenied { .. });
        let reason = if refused || says(&REFUSALS) {
            format!(
                "the service refuses these credentials: mend mirror.storage_key and mirror.storage_secret, or what they may do ({cause})"
            )
        } else if matches!(error, Error::NotFound { .. }) || says(&["NoSuchBucket"]) {
            "there is no such bucket, or what was there is gone: make it, or mend mirror.storage"
                .to_owned()
        } else {
            format!("{cause} (is the service there, and mirror.storage_endpoint right?)")
        };
        MirrorError::Storage { place: self.place.to_string(), reason }
    }
}

/// What went wrong, in one line that is not endless: services answer with whole documents.
fn cause(error: &Error) -> String {
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

fn entry(meta: &ObjectMeta) -> Entry {
    Entry {
        name: meta.location.filename().unwrap_or_default().to_owned(),
        version: meta.e_tag.clone().unwrap_or_else(|| meta.last_modified.to_string()),
        written: meta.last_modified.into(),
    }
}

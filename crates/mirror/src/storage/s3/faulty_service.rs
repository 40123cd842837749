//! In-memory object store with injected faults and object ages.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::S3Storage;
use super::bucket::Bucket;
use crate::locks::lock;

/// Kind of an injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A write succeeds but returns an error.
    AnswerOfPut,
    /// A write succeeds but its response is lost; the retry finds that the object exists.
    Repeated,
    /// A read fails.
    Get,
}

/// The object store.
#[derive(Debug, Clone, Default)]
pub(crate) struct FaultyService {
    pub(crate) inner: InMemory,
    /// Injected faults: kind, substring of the key, and number of matching requests that succeed
    /// first.
    faults: Arc<Mutex<Vec<(Fault, String, usize)>>>,
    /// Objects that appear older than they are.
    old: Arc<Mutex<HashMap<Path, Duration>>>,
}

impl FaultyService {
    /// Storage of one of the mirrors that share this service.
    pub(crate) fn storage(&self) -> S3Storage {
        S3Storage::of(Bucket::new(Arc::new(self.clone()), "models", "s3://test".into()))
    }

    /// Storage of a mirror that writes slowly.
    pub(crate) fn storage_with_slow_writes(&self) -> S3Storage {
        let wait_put_per_call = Duration::from_millis(2);
        let pauses = ThrottleConfig { wait_put_per_call, ..ThrottleConfig::default() };
        let slow = ThrottledStore::new(self.clone(), pauses);
        S3Storage::of(Bucket::new(Arc::new(slow), "models", "s3://test".into()))
    }

    /// Makes the request after `well` matching ones fail, for keys that contain `word`.
    pub(crate) fn fail(&self, fault: Fault, word: &str, well: usize) {
        lock(&self.faults).push((fault, word.to_owned(), well));
    }

    /// Makes all present objects old.
    pub(crate) async fn age(&self) {
        self.age_by(Duration::from_secs(40 * 24 * 60 * 60)).await;
    }

    /// Makes all present objects appear older by `age`.
    pub(crate) async fn age_by(&self, age: Duration) {
        let all: Vec<ObjectMeta> = self.inner.list(None).try_collect().await.unwrap();
        lock(&self.old).extend(all.into_iter().map(|meta| (meta.location, age)));
    }

    fn fails(&self, fault: Fault, key: &Path) -> Result<()> {
        let mut faults = lock(&self.faults);
        let hit = faults
            .iter_mut()
            .find(|(of, word, _)| *of == fault && key.as_ref().contains(word.as_str()));
        match hit {
            Some((_, _, 0)) => {
                faults.retain(|(of, word, well)| {
                    *of != fault || *well > 0 || !key.as_ref().contains(word.as_str())
                });
                Err(match fault {
                    Fault::Repeated => {
                        Error::AlreadyExists { path: key.to_string(), source: "412".into() }
                    }
                    _ => Error::Generic { store: "test", source: "503 Slow Down".into() },
                })
            }
            Some((_, _, well)) => {
                *well -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn aged(&self, meta: ObjectMeta) -> ObjectMeta {
        let age = lock(&self.old).get(&meta.location).copied().unwrap_or_default();
        ObjectMeta { last_modified: meta.last_modified - age, ..meta }
    }
}

impl fmt::Display for FaultyService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("wayward")
    }
}

#[async_trait]
impl ObjectStore for FaultyService {
    async fn put_opts(
        &self,
        key: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let put = self.inner.put_opts(key, payload, options).await?;
        lock(&self.old).remove(key);
        self.fails(Fault::Repeated, key)?;
        self.fails(Fault::AnswerOfPut, key)?;
        Ok(put)
    }

    async fn put_multipart_opts(
        &self,
        key: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(key, options).await
    }

    async fn get_opts(&self, key: &Path, options: GetOptions) -> Result<GetResult> {
        self.fails(Fault::Get, key)?;
        let got = self.inner.get_opts(key, options).await?;
        Ok(GetResult { meta: self.aged(got.meta.clone()), ..got })
    }

    fn delete_stream(
        &self,
        keys: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(keys)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let this = self.clone();
        self.inner.list(prefix).map_ok(move |meta| this.aged(meta)).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut list = self.inner.list_with_delimiter(prefix).await?;
        list.objects = list.objects.into_iter().map(|meta| self.aged(meta)).collect();
        Ok(list)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[async_trait]
impl MultipartStore for FaultyService {
    async fn create_multipart(&self, key: &Path) -> Result<MultipartId> {
        self.inner.create_multipart(key).await
    }

    async fn put_part(
        &self,
        key: &Path,
        id: &MultipartId,
        n: usize,
        part: PutPayload,
    ) -> Result<PartId> {
        self.inner.put_part(key, id, n, part).await
    }

    async fn complete_multipart(
        &self,
        key: &Path,
        id: &MultipartId,
        parts: Vec<PartId>,
    ) -> Result<PutResult> {
        self.inner.complete_multipart(key, id, parts).await
    }

    async fn abort_multipart(&self, key: &Path, id: &MultipartId) -> Result<()> {
        self.inner.abort_multipart(key, id).await
    }
}

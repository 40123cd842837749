//! The library in a bucket of an S3-compatible service, which any number of mirrors may share:
//!
//! ```text
//! blobs/sha256-<hex>              where the bytes of a blob lie, and how many they are
//! data/<id>                       the bytes
//! repositories/<name>/            (`/` is `+`)
//!     manifests/<hex>             a manifest, byte for byte
//!     tags/<tag>                  the digest that a tag stands for
//!     referrers/<hex>/<hex>       the manifests that have another one as their subject
//!     lists/<hex>/<hex>           the manifest lists that have another one as their child
//! brought/<name>/<hex>-<size>     a blob that was pushed there a short while ago
//! retiring/<name>/<id>            a mirror is just removing something of the repository
//! uploads/<id>.json               how far an upload is
//! uploads/<id>.<length>           its last bytes, fewer than a part has
//! history/<id>-<n>.json           what a mirror knows of when things came and were pulled
//! trash/sha256-<hex>              a blob that was removed less than a day ago: where its bytes lie
//! trash/manifest-<hex>            a manifest that was removed less than a day ago
//! sizes/<name>/<hex>              how large the blobs of an upstream's manifest are that was handed out
//! ```
//!
//! A blob's digest is known when its last byte is there, and a bucket cannot rename: so bytes go where they stay from the
//! beginning, and the name is written when the digest has been found right. What has no name is seen by nobody.
//! Nothing is kept in memory but what never changes, so that mirrors need not know of each other.

mod bucket;
mod connect;
#[cfg(test)]
mod failures;
mod inventory;
mod lists;
mod manifests;
mod notes;
mod retire;
#[cfg(test)]
mod tests;
mod uploads;
#[cfg(test)]
mod wayward;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use puna_registry::Registry;
use puna_store::{Digest, Store};
use serde::{Deserialize, Serialize};

use super::blobs::FileBlob;
use super::inventory::RefusalLog;
use super::store::GRACE;
use super::{Blob, Body, Library, Part};
use crate::error::MirrorError;
use crate::holding::{Doomed, Holding, Shown};
use crate::id::UploadId;
use crate::lock::lock;
use crate::manifest::{Descriptor, Manifest};
use crate::name::{Reference, Repository};
use crate::notes::{AGAIN, Notes, outdated};
use crate::waiting::{Answer, blocking};
use bucket::{Bucket, Entry};
use notes::BucketNotes;
use retire::RETIRING;
use uploads::Uploads;

pub use connect::Storage;

/// Requests to the service at once, of those that look at many objects.
const AT_ONCE: usize = 16;
/// Manifests, tags and blobs that are remembered, each.
const MAX_KNOWN: usize = 20_000;
/// How long bytes may be without a name. Services date them by when they began to come.
const NAMELESS: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Where it lies how large blobs are.
const SIZES: &str = "sizes";

/// What a bucket holds.
pub struct ObjectLibrary {
    bucket: Bucket,
    history: BucketNotes,
    uploads: Uploads,
    /// Manifests by their digests.
    manifests: Known<Digest, Manifest>,
    /// What tags stood for, by what they were called in which version.
    tags: Known<(String, String), Digest>,
    /// Where blobs lie, by their objects' names and versions.
    places: Known<(String, String), Place>,
    /// Bytes that had no name when they were last looked at.
    nameless: Mutex<HashSet<String>>,
    refusals: RefusalLog,
}

/// Where the bytes of a blob lie.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Place {
    data: UploadId,
    size: u64,
}

impl ObjectLibrary {
    /// Opens it.
    ///
    /// # Errors
    /// The service is not there, or does not let us in, or there is no such bucket.
    pub async fn open(storage: &Storage, client: &Registry) -> Result<Self, MirrorError> {
        let service = Arc::new(storage.open(client)?);
        let library = Self::of(Bucket::new(service, &storage.prefix, storage.to_string()));
        // What is wrong with the settings is said at start.
        library.bucket.has_any(&library.bucket.key(["repositories"])).await?;
        Ok(library)
    }

    /// One that lies in memory.
    #[cfg(test)]
    pub(crate) fn in_memory() -> Self {
        let service = Arc::new(object_store::memory::InMemory::new());
        Self::of(Bucket::new(service, "models", "s3://test".into()))
    }

    fn of(bucket: Bucket) -> Self {
        Self {
            history: BucketNotes::new(bucket.clone(), bucket.key(["history"])),
            uploads: Uploads::new(bucket.clone()),
            bucket,
            manifests: Known::default(),
            tags: Known::default(),
            places: Known::default(),
            nameless: Mutex::default(),
            refusals: RefusalLog::default(),
        }
    }

    /// Where a blob lies; `None` if it is not here. Asked anew each time, since another mirror may have removed it.
    async fn place(&self, digest: &Digest) -> Result<Option<Place>, MirrorError> {
        place_at(&self.bucket, &blob_key(&self.bucket, digest)).await
    }

    /// Uploads the blobs that are not here from a store, and then keeps the manifest.
    async fn take_over(
        &self,
        name: &Repository,
        reference: &Reference,
        manifest: Manifest,
        store: &Store,
    ) -> Result<(), MirrorError> {
        let mut done = HashSet::new();
        for blob in &manifest.blobs {
            if !done.insert(blob.digest) || self.place(&blob.digest).await?.is_some() {
                continue;
            }
            let path = store.blob_path(&blob.digest);
            let file = blocking(move || FileBlob::open(&path)).await?;
            let file = file.ok_or(MirrorError::ManifestBlobUnknown(blob.digest))?;
            let id = self.uploads.begin(name, "").await?;
            let size = file.size();
            let part = Part { at: None, len: Some(size), body: Box::new(file).read(0..size) };
            let kept = match self.uploads.append(name, &id, part).await {
                Ok(_) => self.uploads.finish(name, &id, blob.digest).await,
                Err(error) => Err(error),
            };
            if let Err(error) = kept {
                let _ = self.uploads.cancel(name, &id).await;
                return Err(error);
            }
        }
        self.keep(name, reference, manifest).await
    }

    /// Removes blobs that no manifest needs, a day after they came or a manifest named them, and bytes without a name.
    async fn sweep(&self) -> Result<usize, MirrorError> {
        // Before the manifests, so that a manifest that comes meanwhile has made its blobs younger.
        let blobs = self.bucket.entries(&self.bucket.key(["blobs"])).await?;
        let data = self.bucket.entries(&self.bucket.key(["data"])).await?;
        let (old, young): (Vec<_>, Vec<_>) = blobs.into_iter().partition(|blob| blob.age() > GRACE);
        let Some(needed) = self.collectable().await? else { return Ok(0) };
        let (mut gone, mut places) = (Vec::new(), self.empty_trash().await?);
        for (digest, place, age) in
            each(old.into_iter().chain(young), |blob| self.swept(blob)).await?
        {
            places.insert(place.data.to_string());
            if age > GRACE && !needed.contains(&digest) && self.is_old(&digest).await? {
                // The name alone: another mirror may be giving it to the bytes again, which the next sweep sees.
                self.move_to_trash(&blob_key(&self.bucket, &digest), &digest.file_name()).await?;
                gone.push((digest, place));
            }
        }
        let mut removed = gone.len() - self.put_back(gone).await?;
        // What had no name an hour ago either: another mirror may just be putting one back.
        let nameless = data
            .into_iter()
            .filter(|bytes| bytes.age() > NAMELESS && !places.contains(&bytes.name));
        let nameless: HashSet<_> = nameless.map(|bytes| bytes.name).collect();
        let before = std::mem::replace(&mut *lock(&self.nameless), nameless.clone());
        for name in &nameless {
            if before.contains(name) {
                self.bucket.remove(&self.bucket.key(["data", name])).await?;
                removed += 1;
            }
        }
        for kind in ["brought", RETIRING] {
            for (folder, mark, age) in self.bucket.below(&self.bucket.key([kind])).await? {
                if age > GRACE {
                    self.bucket.remove(&self.bucket.key([kind, &folder, &mark])).await?;
                }
            }
        }
        for (folder, note) in outdated(self.bucket.below(&self.bucket.key([SIZES])).await?) {
            let key = self.bucket.key([SIZES, &folder, &note]);
            // It may have been written again since then.
            if self.bucket.age(&key).await?.is_some_and(|age| age > AGAIN) {
                self.bucket.remove(&key).await?;
            }
        }
        Ok(removed)
    }

    /// Gives blobs their names again that a manifest needs which came between a look and their removal: whoever pushed it saw them
    /// there. Says how many. What comes after this look finds no blob, and is refused.
    async fn put_back(&self, gone: Vec<(Digest, Place)>) -> Result<usize, MirrorError> {
        if gone.is_empty() {
            return Ok(0);
        }
        let needed = self.needed().await?;
        let mut back = 0;
        for (digest, place) in gone.iter().filter(|(digest, _)| needed.contains(digest)) {
            // Unless it has been pushed again.
            self.bucket.create(&blob_key(&self.bucket, digest), json(place)?).await?;
            back += 1;
        }
        Ok(back)
    }

    /// What a sweep must know of a blob. It looks at all of them, and most are as they were the last time.
    async fn swept(&self, blob: Entry) -> Result<Option<(Digest, Place, Duration)>, MirrorError> {
        let Ok(digest) = blob.name.parse::<Digest>() else { return Ok(None) };
        let age = blob.age();
        let key = (blob.name, blob.version);
        let place = match self.places.get(&key) {
            Some(place) => place,
            None => {
                let Some(place) = self.place(&digest).await? else { return Ok(None) };
                self.places.put(key, place.clone());
                place
            }
        };
        Ok(Some((digest, place, age)))
    }

    async fn is_old(&self, digest: &Digest) -> Result<bool, MirrorError> {
        let age = self.bucket.age(&blob_key(&self.bucket, digest)).await?;
        Ok(age.is_some_and(|age| age > GRACE))
    }

    /// The blobs of all manifests.
    async fn needed(&self) -> Result<HashSet<Digest>, MirrorError> {
        let blobs = |_, kept: Manifest, _| {
            kept.blobs.into_iter().map(|blob| blob.digest).collect::<Vec<_>>()
        };
        Ok(self.of_manifests(|_| true, blobs).await?.into_iter().flatten().collect())
    }

    /// What some repositories have.
    async fn held_by(
        &self,
        is_wanted: impl Fn(&Repository) -> bool,
    ) -> Result<Vec<Holding>, MirrorError> {
        let holding =
            |name, kept: Manifest, written| Holding::of_manifest(name, &kept, Some(written));
        let mut holdings = self.of_manifests(&is_wanted, holding).await?;
        for (folder, mark, _) in self.bucket.below(&self.bucket.key(["brought"])).await? {
            let name = Repository::of_folder(&folder).filter(&is_wanted);
            holdings.extend(name.and_then(|name| Holding::of_mark(name, &mark)));
        }
        Ok(holdings)
    }
}

fn blob_key(bucket: &Bucket, digest: &Digest) -> Path {
    bucket.key(["blobs", &digest.file_name()])
}

/// What an object says of where a blob lies.
async fn place_at(bucket: &Bucket, key: &Path) -> Result<Option<Place>, MirrorError> {
    let Some(bytes) = bucket.read(key).await? else { return Ok(None) };
    let place = serde_json::from_slice(&bytes);
    place.map(Some).map_err(|_| bucket.wrong(key, "it does not say where the blob lies"))
}

fn data_key(bucket: &Bucket, id: &UploadId) -> Path {
    bucket.key(["data", id.as_str()])
}

/// A blob in the bucket.
struct ObjectBlob {
    bucket: Bucket,
    place: Place,
}

impl Blob for ObjectBlob {
    fn size(&self) -> u64 {
        self.place.size
    }

    fn read(self: Box<Self>, range: Range<u64>) -> Body {
        self.bucket.stream(data_key(&self.bucket, &self.place.data), range)
    }
}

/// Values that never change, as many as there is room for.
struct Known<K, V>(Mutex<HashMap<K, V>>);

impl<K, V> Default for Known<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + std::hash::Hash, V: Clone> Known<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        self.lock().get(key).cloned()
    }

    fn put(&self, key: K, value: V) {
        let mut known = self.lock();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(key, value);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<K, V>> {
        lock(&self.0)
    }
}

/// Does something with many, some at a time.
async fn each<I, T, F>(
    items: impl IntoIterator<Item = I>,
    work: impl FnMut(I) -> F,
) -> Result<Vec<T>, MirrorError>
where
    F: Future<Output = Result<Option<T>, MirrorError>> + Send,
{
    each_of(items, AT_ONCE, work).await
}

/// The same with so many at a time.
async fn each_of<I, T, F>(
    items: impl IntoIterator<Item = I>,
    at_once: usize,
    mut work: impl FnMut(I) -> F,
) -> Result<Vec<T>, MirrorError>
where
    F: Future<Output = Result<Option<T>, MirrorError>> + Send,
{
    // In boxes, so that the code of the queue is compiled once for each type of result.
    let done = stream::iter(items).map(|item| work(item).boxed()).buffer_unordered(at_once);
    done.try_filter_map(|found| async { Ok(found) }).try_collect().await
}

impl Library for ObjectLibrary {
    fn manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
    ) -> Answer<'a, Option<Manifest>> {
        Box::pin(async move {
            match reference {
                Reference::Digest(digest) => match self.kept(name, digest).await? {
                    Some(manifest) => Ok(Some(manifest)),
                    None => self.inline_child(name, digest).await,
                },
                Reference::Tag(tag) => match self.tagged(name, tag).await? {
                    Some(digest) => self.kept(name, &digest).await,
                    None => Ok(None),
                },
            }
        })
    }

    fn put_manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
        manifest: Manifest,
    ) -> Answer<'a, Option<puna_store::Entry>> {
        Box::pin(async move {
            self.keep(name, reference, manifest).await?;
            // Models of the machine itself are not here.
            Ok(None)
        })
    }

    fn put_upstream_list<'a>(
        &'a self,
        name: &'a Repository,
        tag: &'a str,
        manifest: Manifest,
    ) -> Answer<'a, ()> {
        Box::pin(self.keep_list(name, tag, manifest))
    }

    fn is_elsewhere(&self) -> bool {
        true
    }

    fn lists_with<'a>(&'a self, name: &'a Repository, child: Digest) -> Answer<'a, Vec<Digest>> {
        Box::pin(async move {
            let lists = self.lists_with_child(name, &child).await?;
            Ok(lists.iter().map(|list| list.digest).collect())
        })
    }

    fn land<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
        manifest: Manifest,
        store: &'a Store,
    ) -> Answer<'a, bool> {
        Box::pin(async move {
            self.take_over(name, reference, manifest, store).await?;
            Ok(true)
        })
    }

    fn remove_manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
    ) -> Answer<'a, bool> {
        Box::pin(self.forget(name, reference))
    }

    fn retire(&self, doomed: Vec<Doomed>) -> Answer<'_, Vec<Result<bool, MirrorError>>> {
        Box::pin(self.let_go(doomed))
    }

    fn notes(&self) -> &dyn Notes {
        &self.history
    }

    fn sizes(&self, name: &Repository) -> Box<dyn Notes> {
        let folder = self.bucket.key([SIZES, &name.folder()]);
        Box::new(BucketNotes::new(self.bucket.clone(), folder))
    }

    fn tags<'a>(&'a self, name: &'a Repository) -> Answer<'a, Option<Vec<String>>> {
        Box::pin(async move {
            let folder = self.folder(name);
            let tags = self.bucket.entries(&folder.clone().join("tags")).await?;
            if tags.is_empty() && !self.bucket.has_any(&folder).await? {
                return Ok(None);
            }
            Ok(Some(tags.into_iter().map(|tag| tag.name).collect()))
        })
    }

    fn holdings(&self) -> Answer<'_, Vec<Holding>> {
        Box::pin(self.held_by(|_| true))
    }

    fn holdings_in<'a>(&'a self, namespace: &'a str) -> Answer<'a, Vec<Holding>> {
        Box::pin(self.held_by(move |name| name.is_in(namespace)))
    }

    fn holdings_of<'a>(&'a self, name: &'a Repository) -> Answer<'a, Vec<Holding>> {
        Box::pin(self.held_by(move |other| other == name))
    }

    fn needs<'a>(&'a self, name: &'a Repository, digest: Digest) -> Answer<'a, bool> {
        Box::pin(async move {
            let marks = self.bucket.entries(&self.bucket.key(["brought", &name.folder()])).await?;
            let mut brought =
                marks.iter().filter_map(|mark| Holding::of_mark(name.clone(), &mark.name));
            if brought.any(|held| held.has(&digest)) {
                return Ok(true);
            }
            let manifests = self.manifests_in(name, &self.folder(name).join("manifests")).await?;
            Ok(manifests.iter().any(|kept| kept.blobs.iter().any(|blob| blob.digest == digest)))
        })
    }

    fn repositories(&self) -> Answer<'_, Vec<Repository>> {
        Box::pin(self.all_repositories())
    }

    fn shown(&self) -> Answer<'_, Vec<Shown>> {
        Box::pin(self.all_tags())
    }

    fn referrers<'a>(
        &'a self,
        name: &'a Repository,
        subject: Digest,
    ) -> Answer<'a, Vec<Descriptor>> {
        Box::pin(async move {
            let folder = self.folder(name).join("referrers").join(subject.hex());
            let found = self.manifests_in(name, &folder).await?;
            Ok(found.iter().map(Manifest::descriptor).collect())
        })
    }

    fn blob(&self, digest: Digest) -> Answer<'_, Option<Box<dyn Blob>>> {
        Box::pin(async move {
            let place = self.place(&digest).await?;
            Ok(place.map(|place| {
                Box::new(ObjectBlob { bucket: self.bucket.clone(), place }) as Box<dyn Blob>
            }))
        })
    }

    fn remove_blob(&self, digest: Digest) -> Answer<'_, bool> {
        Box::pin(async move {
            if self.place(&digest).await?.is_none() {
                return Ok(false);
            }
            let needed =
                self.collectable().await?.ok_or_else(|| MirrorError::uncollectable(&digest))?;
            if needed.contains(&digest) {
                return Err(MirrorError::needed(&digest));
            }
            // The bytes stay as long as the name lies in the trash.
            self.move_to_trash(&blob_key(&self.bucket, &digest), &digest.file_name()).await?;
            Ok(true)
        })
    }

    fn begin<'a>(&'a self, name: &'a Repository, owner: &'a str) -> Answer<'a, UploadId> {
        Box::pin(self.uploads.begin(name, owner))
    }

    fn uploaded<'a>(&'a self, name: &'a Repository, id: &'a UploadId) -> Answer<'a, u64> {
        Box::pin(self.uploads.uploaded(name, id))
    }

    fn append<'a>(&'a self, name: &'a Repository, id: &'a UploadId, part: Part) -> Answer<'a, u64> {
        Box::pin(self.uploads.append(name, id, part))
    }

    fn finish<'a>(
        &'a self,
        name: &'a Repository,
        id: &'a UploadId,
        digest: Digest,
    ) -> Answer<'a, ()> {
        Box::pin(self.uploads.finish(name, id, digest))
    }

    fn tidy(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            self.uploads.clear().await?;
            let removed = self.sweep().await?;
            if removed > 0 {
                tracing::info!(removed, "blobs that no manifest needs were removed");
            }
            Ok(())
        })
    }

    fn cancel<'a>(&'a self, name: &'a Repository, id: &'a UploadId) -> Answer<'a, ()> {
        Box::pin(self.uploads.cancel(name, id))
    }
}

/// Bytes of JSON.
fn json(value: &impl Serialize) -> Result<Bytes, MirrorError> {
    serde_json::to_vec(value).map(Bytes::from).map_err(|e| MirrorError::Internal(e.to_string()))
}

//! Where a registry keeps what it serves.

mod arriving;
mod blobs;
mod checks;
mod crowd;
mod folder;
mod inventory;
mod list_models;
mod lists;
mod manifests;
mod notes;
mod objects;
#[cfg(all(test, unix))]
mod races;
mod store;
mod through;
mod trash;
mod uploads;
mod upstreams;

use std::ops::Range;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use puna_store::{Digest, Entry, Store};

use crate::error::MirrorError;
use crate::holding::{Doomed, Holding, Shown};
use crate::id::UploadId;
use crate::manifest::{Descriptor, Manifest};
use crate::name::{Reference, Repository};
use crate::notes::Notes;
use crate::waiting::Answer;

pub(crate) use crowd::MAX_AGE;
#[cfg(test)]
pub(crate) use crowd::{MAX_EACH, MAX_UPLOADS};
pub use objects::{ObjectLibrary, Storage};
pub use store::StoreLibrary;

pub use through::{Through, UpstreamLookup, UpstreamManifest};
pub use upstreams::{Asker, Upstreams};

/// Bytes that come piece by piece.
pub type Body = BoxStream<'static, Result<Bytes, MirrorError>>;

/// Manifests by repository, blobs by digest, and blobs in the making. A file system, or anything else that keeps bytes.
pub trait Library: Send + Sync + 'static {
    /// A manifest; `None` if it is not there.
    fn manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
    ) -> Answer<'a, Option<Manifest>>;

    /// The same for somebody: what is not here may be fetched for some, and not for others.
    fn manifest_for<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
        asker: Asker,
    ) -> Answer<'a, Option<Manifest>> {
        let _ = asker;
        self.manifest(name, reference)
    }

    /// Keeps a manifest, whose blobs and children of a list must be there, under its digest or a tag. Says which model of the store it replaced, if one.
    fn put_manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
        manifest: Manifest,
    ) -> Answer<'a, Option<Entry>>;

    /// Keeps a manifest list of an upstream under a tag. Its children and their blobs need not be here.
    fn put_upstream_list<'a>(
        &'a self,
        name: &'a Repository,
        tag: &'a str,
        manifest: Manifest,
    ) -> Answer<'a, ()>;

    /// The manifest lists of a repository that have a manifest as their child.
    fn lists_with<'a>(&'a self, name: &'a Repository, child: Digest) -> Answer<'a, Vec<Digest>>;

    /// Takes a model over that was fetched into a store. Says whether it lies elsewhere now, and the store needs it no more.
    fn land<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
        manifest: Manifest,
        store: &'a Store,
    ) -> Answer<'a, bool>;

    /// Removes a tag, or a manifest with all its tags. Says whether there was one.
    fn remove_manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
    ) -> Answer<'a, bool>;

    /// Removes what still is as it was seen. Says of each, in their order, whether it was removed: what was written again meanwhile
    /// stays, as does a manifest that something needs by now.
    fn retire(&self, doomed: Vec<Doomed>) -> Answer<'_, Vec<Result<bool, MirrorError>>>;

    /// Notes of those who serve this library.
    fn notes(&self) -> &dyn Notes;

    /// What was noted of manifests of a repository that were handed out before their blobs were here. They go when they are old.
    fn sizes(&self, name: &Repository) -> Box<dyn Notes>;

    /// The tags of a repository, in no order; `None` if there is no such repository.
    fn tags<'a>(&'a self, name: &'a Repository) -> Answer<'a, Option<Vec<String>>>;

    /// All manifests with the blobs that they need, and blobs that were brought a short while ago, in no order.
    fn holdings(&self) -> Answer<'_, Vec<Holding>>;

    /// The same of one namespace, whose case does not count.
    fn holdings_in<'a>(&'a self, namespace: &'a str) -> Answer<'a, Vec<Holding>>;

    /// The same of one repository.
    fn holdings_of<'a>(&'a self, name: &'a Repository) -> Answer<'a, Vec<Holding>>;

    /// Whether a manifest of a repository needs a blob, or it was brought there a short while ago.
    fn needs<'a>(&'a self, name: &'a Repository, digest: Digest) -> Answer<'a, bool>;

    /// What was asked others for.
    fn fetches(&self) -> BoxFuture<'_, Fetches> {
        Box::pin(std::future::ready(Fetches::default()))
    }

    /// How often something that was asked others for began to come, or has come. What there is has changed then.
    fn fetches_begun_and_ended(&self) -> u64 {
        0
    }

    /// How many blobs were found damaged, and put away.
    fn lost(&self) -> u64 {
        0
    }

    /// All repositories, in no order.
    fn repositories(&self) -> Answer<'_, Vec<Repository>>;

    /// All tags, in no order.
    fn shown(&self) -> Answer<'_, Vec<Shown>>;

    /// The manifests of a repository that are about another one, which need not be there.
    fn referrers<'a>(
        &'a self,
        name: &'a Repository,
        subject: Digest,
    ) -> Answer<'a, Vec<Descriptor>>;

    /// A blob; `None` if it is not there.
    fn blob(&self, digest: Digest) -> Answer<'_, Option<Box<dyn Blob>>>;

    /// The same for somebody who asks for it in a repository: what is not here may be fetched for some, and not for others.
    fn blob_for<'a>(
        &'a self,
        name: &'a Repository,
        digest: Digest,
        asker: Asker,
    ) -> Answer<'a, Option<Box<dyn Blob>>> {
        let _ = (name, asker);
        self.blob(digest)
    }

    /// Whether somebody else, whose repository it is, says that a blob is of it.
    fn vouches<'a>(&'a self, name: &'a Repository, digest: Digest) -> Answer<'a, bool> {
        let _ = (name, digest);
        Box::pin(async { Ok(false) })
    }

    /// Whether it keeps nothing in the store that what it takes over is fetched into.
    fn is_elsewhere(&self) -> bool {
        false
    }

    /// Removes a blob that no manifest needs. Says whether there was one.
    fn remove_blob(&self, digest: Digest) -> Answer<'_, bool>;

    /// Lets a repository have a blob that is here as if its bytes had been pushed there: it may wait for a manifest as long. Says whether
    /// it is here.
    fn mount<'a>(&'a self, name: &'a Repository, digest: Digest) -> Answer<'a, bool> {
        let _ = name;
        Box::pin(async move { Ok(self.blob(digest).await?.is_some()) })
    }

    /// Begins an upload to a repository, for somebody, of whom there may be so many at a time; nobody is this library itself.
    fn begin<'a>(&'a self, name: &'a Repository, owner: &'a str) -> Answer<'a, UploadId>;

    /// How many bytes an upload has.
    fn uploaded<'a>(&'a self, name: &'a Repository, id: &'a UploadId) -> Answer<'a, u64>;

    /// Appends to an upload: at byte `at`, if that is said, and as many as `len`, if that is. Says how many it has then.
    fn append<'a>(&'a self, name: &'a Repository, id: &'a UploadId, part: Part) -> Answer<'a, u64>;

    /// Makes a blob of an upload, whose digest must be right.
    fn finish<'a>(
        &'a self,
        name: &'a Repository,
        id: &'a UploadId,
        digest: Digest,
    ) -> Answer<'a, ()>;

    /// Removes what nobody needs any more: uploads that were given up, blobs without a manifest. To be called now and then.
    fn tidy(&self) -> Answer<'_, ()>;

    /// Gives an upload up.
    fn cancel<'a>(&'a self, name: &'a Repository, id: &'a UploadId) -> Answer<'a, ()>;
}

/// What a library has asked others for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fetches {
    /// Tags that were served as they are here.
    pub hits: u64,
    /// Tags that had to be fetched.
    pub misses: u64,
    /// Models that could not be fetched whole.
    pub failures: u64,
    /// Requests for models that were not let be fetched.
    pub refused: u64,
    /// Models that are being fetched.
    pub running: u64,
    /// Bytes that have arrived.
    pub bytes: u64,
}

/// A blob that is there.
pub trait Blob: Send {
    /// Its bytes.
    fn size(&self) -> u64;

    /// Some of them.
    fn read(self: Box<Self>, range: Range<u64>) -> Body;
}

/// A part of an upload.
pub struct Part {
    /// Where it begins, if that was said.
    pub at: Option<u64>,
    /// How many bytes it has, if that was said.
    pub len: Option<u64>,
    /// The bytes.
    pub body: Body,
}

/// Something that is to go, as a library shows it now.
#[cfg(test)]
pub(crate) async fn seen(
    library: &dyn Library,
    name: &Repository,
    tag: Option<&str>,
    digest: Digest,
) -> Doomed {
    let shown = library.shown().await.unwrap();
    let shown =
        shown.into_iter().find(|shown| shown.name == *name && Some(shown.tag.as_str()) == tag);
    let is_model = shown.as_ref().is_some_and(|shown| shown.whose == crate::holding::Whose::Store);
    let holdings = library.holdings().await.unwrap();
    let is_it = |held: &&Holding| {
        held.name == *name && (held.manifest, held.is_model) == (Some(digest), is_model)
    };
    Doomed {
        name: name.clone(),
        tag: tag.map(str::to_owned),
        digest,
        is_model,
        tag_written: shown.and_then(|shown| shown.written),
        with_manifest: true,
        manifest_written: holdings.iter().find(is_it).and_then(|held| held.written),
    }
}

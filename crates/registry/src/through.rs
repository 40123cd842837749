//! What a mirror needs of pulling: a model's manifest before its blobs are there, and blobs while they arrive.

use std::collections::HashSet;
use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use puna_store::{Digest, Entry, Manifest, ModelRef, Store, StoreError};
use tokio::sync::mpsc;

use crate::Registry;
use crate::blocking::{at_work, blocking};
use crate::download::State;
use crate::error::RegistryError;
use crate::fetch::What;
use crate::file::read_at;
use crate::manifest::{is_manifest_list, with_layers};
use crate::pull::{Held, Sources, Wanted};
use crate::settings::Options;
use crate::share::{Share, TAKE_OVERS};

/// A model that a registry has: its manifest, and who has its blobs.
pub struct Found {
    registry: Registry,
    reference: ModelRef,
    bytes: Bytes,
    manifest: Manifest,
    sources: Sources,
    /// Blobs that are kept elsewhere.
    elsewhere: HashSet<Digest>,
}

/// What a registry has under a tag.
pub enum TagContent {
    /// A model.
    Model(Box<Found>),
    /// A manifest list, as it came.
    List(Bytes),
}

/// A blob that a registry has.
pub struct FoundBlob {
    registry: Registry,
    sources: Sources,
    digest: Digest,
    size: u64,
}

impl Registry {
    /// Looks for a model where a pull would, and fetches its manifest.
    ///
    /// # Errors
    /// Nobody has it, or nobody answers; [`RegistryError::Listed`]: it has no manifest, but [`Registry::pull`] makes it.
    pub async fn look(
        &self,
        reference: &ModelRef,
        options: &Options,
    ) -> Result<Found, RegistryError> {
        match self.look_up_tag(reference, options).await? {
            TagContent::Model(found) => Ok(*found),
            TagContent::List(_) => Err(RegistryError::IsAList),
        }
    }

    /// Looks for a model or a manifest list where a pull would.
    ///
    /// # Errors
    /// As of [`Registry::look`].
    pub async fn look_up_tag(
        &self,
        reference: &ModelRef,
        options: &Options,
    ) -> Result<TagContent, RegistryError> {
        let options = Options { insecure: options.insecure || reference.http, ..options.clone() };
        let (sources, bytes) = self.find(&reference.name, &options).await?;
        if is_manifest_list(&bytes) {
            return Ok(TagContent::List(bytes));
        }
        let manifest = with_layers(&bytes)?;
        let (registry, reference, elsewhere) = (self.clone(), reference.clone(), HashSet::new());
        Ok(TagContent::Model(Box::new(Found {
            registry,
            reference,
            bytes,
            manifest,
            sources,
            elsewhere,
        })))
    }

    /// Fetches a manifest of the model's repository by its digest, which is checked.
    ///
    /// # Errors
    /// Nobody has it, or nobody answers.
    pub async fn fetch_manifest(
        &self,
        reference: &ModelRef,
        digest: Digest,
        options: &Options,
    ) -> Result<Bytes, RegistryError> {
        let options = Options { insecure: options.insecure || reference.http, ..options.clone() };
        self.find_manifest(&reference.name, digest, &options).await
    }

    /// Looks for a blob where a pull of a model of the same repository would.
    ///
    /// # Errors
    /// Nobody has it, or nobody answers.
    pub async fn look_blob(
        &self,
        reference: &ModelRef,
        digest: Digest,
        options: &Options,
    ) -> Result<FoundBlob, RegistryError> {
        let options = Options { insecure: options.insecure || reference.http, ..options.clone() };
        let (sources, size) = self.find_blob(&reference.name, &digest, &options).await?;
        Ok(FoundBlob { registry: self.clone(), sources, digest, size })
    }
}

impl Found {
    /// The manifest, as it came.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The bytes of a blob of it; `None` if it has no such blob.
    pub fn size(&self, digest: &Digest) -> Option<u64> {
        self.manifest.blobs().find(|layer| layer.digest == *digest).map(|layer| layer.size)
    }

    /// Leaves blobs out that are kept elsewhere: they are not fetched, and count as here.
    pub fn without(self, elsewhere: HashSet<Digest>) -> Self {
        Self { elsewhere, ..self }
    }

    /// Fetches all blobs, small ones first, and stores the model then. Says what it replaced, whose blobs are kept.
    ///
    /// # Errors
    /// Of the registry or the store. What has arrived stays, and is gone on from the next time.
    pub async fn fetch(&self, store: &Arc<Store>) -> Result<Option<Entry>, RegistryError> {
        at_work(store, async {
            let _kept = self.fetch_blobs(store).await?;
            let (store, bytes, name) =
                (store.clone(), self.bytes.clone(), self.reference.name.clone());
            blocking(move || {
                let name = store.spelled(&name)?;
                Ok(store.store_manifest(&name, &bytes, true, &mut || ())?)
            })
            .await
        })
        .await
    }

    /// Fetches all blobs, small ones first. They are kept from being cleared away as long as what comes of it is held.
    ///
    /// # Errors
    /// As of [`Found::fetch`].
    pub async fn fetch_blobs(&self, store: &Arc<Store>) -> Result<Kept, RegistryError> {
        let mut manifest = self.manifest.clone();
        manifest.layers.sort_by_key(|layer| layer.size);
        let missing = manifest.blobs().filter(|layer| !self.elsewhere.contains(&layer.digest));
        let blobs: Vec<_> = missing.map(|layer| Wanted::blob(layer.digest, layer.size)).collect();
        keep(&self.registry, &self.sources, store, &blobs).await
    }

    /// Bytes of its blobs that are here.
    pub async fn completed(&self, store: &Arc<Store>) -> u64 {
        let blobs = self.manifest.blobs().map(|layer| (layer.digest, layer.size));
        let (there, here): (Vec<_>, Vec<_>) =
            blobs.partition(|(digest, _)| self.elsewhere.contains(digest));
        let there = there.into_iter().map(|(_, size)| size).fold(0, u64::saturating_add);
        self.registry.completed(store, &here).await.saturating_add(there)
    }

    /// The download of a blob of it, which begins unless it runs; `None` if it has no such blob.
    pub fn running(&self, store: &Arc<Store>, digest: Digest) -> Option<Running> {
        Running::join(&self.registry, &self.sources, store, digest, self.size(&digest)?)
    }
}

impl FoundBlob {
    /// Its bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Fetches it, and keeps it from being cleared away as long as what comes of it is held.
    ///
    /// # Errors
    /// As of [`Found::fetch`].
    pub async fn fetch(&self, store: &Arc<Store>) -> Result<Kept, RegistryError> {
        keep(&self.registry, &self.sources, store, &[Wanted::blob(self.digest, self.size)]).await
    }

    /// Bytes of it that are here.
    pub async fn completed(&self, store: &Arc<Store>) -> u64 {
        self.registry.completed(store, &[(self.digest, self.size)]).await
    }

    /// The download of it, which begins unless it runs.
    pub fn running(&self, store: &Arc<Store>) -> Option<Running> {
        Running::join(&self.registry, &self.sources, store, self.digest, self.size)
    }
}

/// Blobs that nobody clears away as long as this is held.
pub struct Kept {
    _held: Held,
}

/// Fetches blobs, which nobody clears away as long as they are held.
async fn keep(
    registry: &Registry,
    sources: &Sources,
    store: &Arc<Store>,
    blobs: &[Wanted],
) -> Result<Kept, RegistryError> {
    let mut held = Held::new(store);
    // Nobody listens.
    let (report, _) = mpsc::channel(1);
    registry.blobs(&mut sources.clone(), store, blobs, &report, &mut held).await?;
    Ok(Kept { _held: held })
}

/// Joins the download of a blob from the first who may have it.
fn join(
    registry: &Registry,
    sources: &Sources,
    store: &Arc<Store>,
    digest: Digest,
    total: u64,
) -> Option<Share> {
    let session = sources.first()?;
    let what = What { key: digest, verified: true, total, url: session.blob_url(&digest) };
    Some(registry.downloads().join(session, store, &what))
}

/// A download that goes on as long as somebody holds it, and its bytes.
pub struct Running {
    registry: Registry,
    sources: Sources,
    /// How often somebody else's failed download is taken over.
    left: usize,
    share: Share,
    store: Arc<Store>,
    digest: Digest,
    total: u64,
    /// Which life of the download bytes were given of.
    life: Option<u64>,
    /// Where bytes were read last. It stays readable when it has become a blob, and when that is removed: a mirror's bucket takes
    /// blobs over long before a slow client has read them.
    file: Option<Arc<File>>,
}

impl Running {
    fn join(
        registry: &Registry,
        sources: &Sources,
        store: &Arc<Store>,
        digest: Digest,
        total: u64,
    ) -> Option<Self> {
        let share = join(registry, sources, store, digest, total)?;
        let (registry, sources, store) = (registry.clone(), sources.clone(), store.clone());
        let (left, life, file) = (TAKE_OVERS, None, None);
        Some(Self { registry, sources, left, share, store, digest, total, life, file })
    }

    /// The bytes from one on, as far as they have arrived and at most so many; waits for the first of them, which comes before those
    /// that nobody waits for. A download that fails goes on with the next who may have the blob.
    ///
    /// The last byte comes when the digest of the whole is right: nobody gets all of a blob that is not what it should be.
    ///
    /// # Errors
    /// Nobody could be fetched from, or bytes that were given before have turned out to be wrong.
    pub async fn read(&mut self, from: u64, most: usize) -> Result<Bytes, RegistryError> {
        let (file, until) = self.reach(from).await?;
        let len = usize::try_from(until.saturating_sub(from)).unwrap_or(most).min(most);
        let path = self.store.blob_path(&self.digest);
        blocking(move || {
            let mut bytes = vec![0; len];
            read_at(&file, &mut bytes, from).map_err(|e| StoreError::io("read", &path, &e))?;
            Ok(bytes.into())
        })
        .await
    }

    /// Whether the blob was named by another process, an Ollama perhaps, which does so before it looks whether it is right: nothing
    /// says that it is.
    pub fn is_found(&self) -> bool {
        self.share.state.borrow().is_found
    }

    /// Waits until a byte has arrived: where, and up to where those behind it have.
    async fn reach(&mut self, from: u64) -> Result<(Arc<File>, u64), RegistryError> {
        let last = self.total.saturating_sub(1);
        let arrived = |state: &State| {
            state.arrived(from).filter(|_| from < last).map(|(file, to)| (file, to.min(last)))
        };
        // In which life of the download it was said that somebody waits.
        let mut said = None;
        loop {
            let given = self.life;
            let is_wrong = |state: &State| given.is_some_and(|given| given != state.life);
            let here =
                |state: &State| state.end.is_some() || is_wrong(state) || arrived(state).is_some();
            let (end, life, arrived) = {
                let to_say = |state: &State| said != Some(state.life) && state.is_at_work();
                let state = self.share.state.wait_for(|state| here(state) || to_say(state)).await;
                let state = state.map_err(|_| RegistryError::Cancelled)?;
                if is_wrong(&state) {
                    return Err(RegistryError::Anew { digest: self.digest });
                }
                if !here(&state) {
                    state.want(from);
                }
                (state.end.clone(), state.life, arrived(&state))
            };
            match (end, arrived) {
                (Some(Ok(_)), _) => return Ok((self.open().await?, self.total)),
                (Some(Err(error)), _) => {
                    self.go_on(error)?;
                    said = None;
                }
                (None, Some((file, until))) => {
                    (self.life, self.file) = (Some(life), Some(file.clone()));
                    return Ok((file, until));
                }
                (None, None) => said = Some(life),
            }
        }
    }

    /// Joins another download after one that failed.
    fn go_on(&mut self, error: RegistryError) -> Result<(), RegistryError> {
        // What a reader was given before was wrong, or the disk is the matter.
        if matches!(error, RegistryError::DigestMismatch { .. }) || error.is_ours() {
            return Err(error);
        }
        let again = !self.share.is_own && self.left > 0;
        if again {
            self.left -= 1;
        } else {
            self.sources.pass(error)?;
        }
        let share = join(&self.registry, &self.sources, &self.store, self.digest, self.total);
        self.share = share.ok_or(RegistryError::NotFound)?;
        // It goes on from the same bytes, unless it throws them away.
        (self.life, self.file) = (self.life.map(|_| 0), None);
        Ok(())
    }

    /// The blob's file: what was read while it arrived, if anything was.
    async fn open(&mut self) -> Result<Arc<File>, RegistryError> {
        if let Some(file) = &self.file {
            return Ok(file.clone());
        }
        let path = self.store.blob_path(&self.digest);
        let file =
            blocking(move || Ok(File::open(&path).map_err(|e| StoreError::io("read", &path, &e))?))
                .await?;
        Ok(self.file.insert(Arc::new(file)).clone())
    }
}

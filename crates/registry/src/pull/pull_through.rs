//! Pulls for a pull-through cache: a model's manifest before its blobs are stored, and blobs while
//! they arrive.

use std::collections::HashSet;
use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use puna_store::{Digest, Entry, Manifest, ModelRef, Store, StoreError};
use tokio::sync::mpsc;

use crate::Registry;
use crate::blocking::{blocking, with_store_guard};
use crate::client::settings::Options;
use crate::download::DownloadState;
use crate::download::positioned_io::read_at;
use crate::download::shared::{MAX_TAKE_OVERS, SharedDownload};
use crate::download::source::DownloadSpec;
use crate::error::RegistryError;
use crate::manifest::{is_manifest_list, parse_with_layers};
use crate::pull::{BlobSpec, PinnedBlobs, Sources};

/// Model at a registry: its manifest, and the endpoints that have its blobs.
pub struct RegistryModel {
    registry: Registry,
    reference: ModelRef,
    bytes: Bytes,
    manifest: Manifest,
    sources: Sources,
    /// Blobs that the mirror has stored outside the local store.
    stored_elsewhere: HashSet<Digest>,
}

/// Content of a tag at a registry.
pub enum TagContent {
    /// A model.
    Model(Box<RegistryModel>),
    /// The manifest list as received.
    List(Bytes),
}

/// Blob at a registry.
pub struct RegistryBlob {
    registry: Registry,
    sources: Sources,
    digest: Digest,
    size: u64,
}

impl Registry {
    /// Finds a model at the endpoints that a pull would use, and fetches its manifest.
    ///
    /// # Errors
    /// No endpoint has the model, or none answers. [`RegistryError::FileListing`]: the model has no
    /// manifest, but [`Registry::pull`] creates one.
    pub async fn look_up_model(
        &self,
        reference: &ModelRef,
        options: &Options,
    ) -> Result<RegistryModel, RegistryError> {
        match self.look_up_tag(reference, options).await? {
            TagContent::Model(found) => Ok(*found),
            TagContent::List(_) => Err(RegistryError::IsManifestList),
        }
    }

    /// Finds a model or manifest list at the endpoints that a pull would use.
    ///
    /// # Errors
    /// As for [`Registry::look_up_model`].
    pub async fn look_up_tag(
        &self,
        reference: &ModelRef,
        options: &Options,
    ) -> Result<TagContent, RegistryError> {
        let options = Options { insecure: options.insecure || reference.http, ..options.clone() };
        let (sources, bytes) = self.find_manifest_sources(&reference.name, &options).await?;
        if is_manifest_list(&bytes) {
            return Ok(TagContent::List(bytes));
        }
        let manifest = parse_with_layers(&bytes)?;
        let (registry, reference, stored_elsewhere) =
            (self.clone(), reference.clone(), HashSet::new());
        Ok(TagContent::Model(Box::new(RegistryModel {
            registry,
            reference,
            bytes,
            manifest,
            sources,
            stored_elsewhere,
        })))
    }

    /// Fetches a manifest of the model's repository by digest, and verifies it.
    ///
    /// # Errors
    /// No endpoint has it, or none answers.
    pub async fn fetch_manifest(
        &self,
        reference: &ModelRef,
        digest: Digest,
        options: &Options,
    ) -> Result<Bytes, RegistryError> {
        let options = Options { insecure: options.insecure || reference.http, ..options.clone() };
        self.find_manifest(&reference.name, digest, &options).await
    }

    /// Finds a blob at the endpoints that a pull from the same repository would use.
    ///
    /// # Errors
    /// No endpoint has it, or none answers.
    pub async fn look_up_blob(
        &self,
        reference: &ModelRef,
        digest: Digest,
        options: &Options,
    ) -> Result<RegistryBlob, RegistryError> {
        let options = Options { insecure: options.insecure || reference.http, ..options.clone() };
        let (sources, size) = self.find_blob(&reference.name, &digest, &options).await?;
        Ok(RegistryBlob { registry: self.clone(), sources, digest, size })
    }
}

impl RegistryModel {
    /// The manifest as received.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The size of a blob. `None`: the model does not contain this blob.
    pub fn size(&self, digest: &Digest) -> Option<u64> {
        self.manifest.blobs().find(|layer| layer.digest == *digest).map(|layer| layer.size)
    }

    /// Skips blobs that are stored elsewhere: they are not fetched, and count as completed.
    pub fn skip_blobs(self, stored_elsewhere: HashSet<Digest>) -> Self {
        Self { stored_elsewhere, ..self }
    }

    /// Fetches all blobs, small ones first, then stores the model. Returns the replaced model; its
    /// blobs stay.
    ///
    /// # Errors
    /// An error of the registry or the store. The next attempt resumes from the received bytes.
    pub async fn fetch(&self, store: &Arc<Store>) -> Result<Option<Entry>, RegistryError> {
        with_store_guard(store, async {
            let _pins = self.fetch_blobs(store).await?;
            let (store, bytes, name) =
                (store.clone(), self.bytes.clone(), self.reference.name.clone());
            blocking(move || {
                let name = store.stored_spelling(&name)?;
                Ok(store.store_manifest(&name, &bytes, true, &mut || ())?)
            })
            .await
        })
        .await
    }

    /// Fetches all blobs, small ones first. They are pinned until the result is dropped.
    ///
    /// # Errors
    /// As for [`RegistryModel::fetch`].
    pub async fn fetch_blobs(&self, store: &Arc<Store>) -> Result<PinGuard, RegistryError> {
        let mut manifest = self.manifest.clone();
        manifest.layers.sort_by_key(|layer| layer.size);
        let missing =
            manifest.blobs().filter(|layer| !self.stored_elsewhere.contains(&layer.digest));
        let blobs: Vec<_> = missing.map(|layer| BlobSpec::blob(layer.digest, layer.size)).collect();
        fetch_pinned(&self.registry, &self.sources, store, &blobs).await
    }

    /// Completed bytes of the model's blobs.
    pub async fn completed(&self, store: &Arc<Store>) -> u64 {
        let blobs = self.manifest.blobs().map(|layer| (layer.digest, layer.size));
        let (elsewhere, local): (Vec<_>, Vec<_>) =
            blobs.partition(|(digest, _)| self.stored_elsewhere.contains(digest));
        let elsewhere_bytes =
            elsewhere.into_iter().map(|(_, size)| size).fold(0, u64::saturating_add);
        self.registry.completed(store, &local).await.saturating_add(elsewhere_bytes)
    }

    /// A reader of a blob's download, which starts unless it is running. `None`: the model does not
    /// contain this blob.
    pub fn download_reader(&self, store: &Arc<Store>, digest: Digest) -> Option<DownloadReader> {
        DownloadReader::join_download(
            &self.registry,
            &self.sources,
            store,
            digest,
            self.size(&digest)?,
        )
    }
}

impl RegistryBlob {
    /// Size of the blob in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Fetches the blob. It is pinned until the result is dropped.
    ///
    /// # Errors
    /// As for [`RegistryModel::fetch`].
    pub async fn fetch(&self, store: &Arc<Store>) -> Result<PinGuard, RegistryError> {
        fetch_pinned(
            &self.registry,
            &self.sources,
            store,
            &[BlobSpec::blob(self.digest, self.size)],
        )
        .await
    }

    /// Completed bytes of the blob.
    pub async fn completed(&self, store: &Arc<Store>) -> u64 {
        self.registry.completed(store, &[(self.digest, self.size)]).await
    }

    /// A reader of the blob's download, which starts unless it is running.
    pub fn download_reader(&self, store: &Arc<Store>) -> Option<DownloadReader> {
        DownloadReader::join_download(&self.registry, &self.sources, store, self.digest, self.size)
    }
}

/// Pins blobs against garbage collection until it is dropped.
pub struct PinGuard {
    _pinned: PinnedBlobs,
}

/// Fetches blobs and pins them.
async fn fetch_pinned(
    registry: &Registry,
    sources: &Sources,
    store: &Arc<Store>,
    blobs: &[BlobSpec],
) -> Result<PinGuard, RegistryError> {
    let mut pinned = PinnedBlobs::new(store);
    // The progress is not reported.
    let (report, _) = mpsc::channel(1);
    let operation = (&Options::default(), &report);
    registry.pull_blobs(&mut sources.clone(), store, blobs, operation, &mut pinned).await?;
    Ok(PinGuard { _pinned: pinned })
}

/// Joins the download of a blob from the first endpoint.
fn join_download(
    registry: &Registry,
    sources: &Sources,
    store: &Arc<Store>,
    digest: Digest,
    total: u64,
) -> Option<SharedDownload> {
    let session = sources.first()?;
    let url = session.blob_url(&digest);
    let spec = DownloadSpec { key: digest, verified: true, total, url, private_to: None };
    Some(registry.downloads().join(session, store, &spec))
}

/// Reader of a blob while it is downloaded. It keeps the download running.
pub struct DownloadReader {
    registry: Registry,
    sources: Sources,
    /// How many more failed downloads of other pulls are taken over.
    take_overs_left: usize,
    download: SharedDownload,
    store: Arc<Store>,
    digest: Digest,
    total: u64,
    /// Generation of the download that the returned bytes belong to.
    generation: Option<u64>,
    /// The file of the last read. It stays readable after the blob is stored or removed. A mirror's
    /// object store may take the blob over long before a slow client has read it.
    file: Option<Arc<File>>,
}

impl DownloadReader {
    fn join_download(
        registry: &Registry,
        sources: &Sources,
        store: &Arc<Store>,
        digest: Digest,
        total: u64,
    ) -> Option<Self> {
        let download = join_download(registry, sources, store, digest, total)?;
        let (registry, sources, store) = (registry.clone(), sources.clone(), store.clone());
        let (take_overs_left, generation, file) = (MAX_TAKE_OVERS, None, None);
        Some(Self {
            registry,
            sources,
            take_overs_left,
            download,
            store,
            digest,
            total,
            generation,
            file,
        })
    }

    /// Returns up to `max_bytes` arrived bytes that start at `from`, and waits for the first of
    /// them. Requested bytes are fetched before others. A failed download continues with the next
    /// endpoint.
    ///
    /// The last byte is returned only after the digest is verified, so no reader gets a complete
    /// wrong blob.
    ///
    /// # Errors
    /// All endpoints failed, or bytes that were returned before are wrong.
    pub async fn read(&mut self, from: u64, max_bytes: usize) -> Result<Bytes, RegistryError> {
        let (file, until) = self.wait_for_byte(from).await?;
        let len = usize::try_from(until.saturating_sub(from)).unwrap_or(max_bytes).min(max_bytes);
        let path = self.store.blob_path(&self.digest);
        blocking(move || {
            let mut bytes = vec![0; len];
            read_at(&file, &mut bytes, from).map_err(|e| StoreError::io("read", &path, &e))?;
            Ok(bytes.into())
        })
        .await
    }

    /// Whether another process stored the blob. It may be Ollama, which names blobs before it
    /// verifies them.
    pub fn is_unverified(&self) -> bool {
        self.download.state.borrow().is_unverified
    }

    /// Waits until a byte has arrived. Returns the file, and the end of the contiguous bytes.
    async fn wait_for_byte(&mut self, from: u64) -> Result<(Arc<File>, u64), RegistryError> {
        let last = self.total.saturating_sub(1);
        let arrived = |state: &DownloadState| {
            state
                .available_from(from)
                .filter(|_| from < last)
                .map(|(file, to)| (file, to.min(last)))
        };
        // Generation in which the byte was requested.
        let mut requested_in = None;
        loop {
            let read_generation = self.generation;
            let is_restarted = |state: &DownloadState| {
                read_generation.is_some_and(|read_generation| read_generation != state.generation)
            };
            let is_ready = |state: &DownloadState| {
                state.result.is_some() || is_restarted(state) || arrived(state).is_some()
            };
            let (end, generation, arrived) = {
                let can_request = |state: &DownloadState| {
                    requested_in != Some(state.generation) && state.is_at_work()
                };
                let state = self
                    .download
                    .state
                    .wait_for(|state| is_ready(state) || can_request(state))
                    .await;
                let state = state.map_err(|_| RegistryError::Cancelled)?;
                if is_restarted(&state) {
                    return Err(RegistryError::DownloadRestarted { digest: self.digest });
                }
                if !is_ready(&state) {
                    state.request_byte(from);
                }
                (state.result.clone(), state.generation, arrived(&state))
            };
            match (end, arrived) {
                (Some(Ok(_)), _) => return Ok((self.open_blob().await?, self.total)),
                (Some(Err(error)), _) => {
                    self.switch_source(error)?;
                    requested_in = None;
                }
                (None, Some((file, until))) => {
                    (self.generation, self.file) = (Some(generation), Some(file.clone()));
                    return Ok((file, until));
                }
                (None, None) => requested_in = Some(generation),
            }
        }
    }

    /// Joins another download after a failed one.
    fn switch_source(&mut self, error: RegistryError) -> Result<(), RegistryError> {
        // The returned bytes are wrong, or the local disk failed.
        if matches!(error, RegistryError::DigestMismatch { .. }) || error.is_local() {
            return Err(error);
        }
        let again = !self.download.is_initiator && self.take_overs_left > 0;
        if again {
            self.take_overs_left -= 1;
        } else {
            self.sources.advance_after(error)?;
        }
        let download =
            join_download(&self.registry, &self.sources, &self.store, self.digest, self.total);
        self.download = download.ok_or(RegistryError::NotFound)?;
        // The new download resumes from the same bytes, unless it discards them.
        (self.generation, self.file) = (self.generation.map(|_| 0), None);
        Ok(())
    }

    /// The blob's file: the file that was read during the download, if any.
    async fn open_blob(&mut self) -> Result<Arc<File>, RegistryError> {
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

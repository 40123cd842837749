//! What a mirror needs of pulling: a model's manifest before its blobs are there, and blobs while they arrive.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use puna_store::{Digest, Manifest, ModelRef, Store};
use tokio::sync::mpsc;

use crate::Registry;
use crate::blocking::blocking;
use crate::download::What;
use crate::error::RegistryError;
use crate::pull::{Held, Sources, Wanted};
use crate::settings::Options;
use crate::share::Share;

/// A model that a registry has: its manifest, and who has its blobs.
pub struct Found {
    registry: Registry,
    reference: ModelRef,
    bytes: Bytes,
    manifest: Manifest,
    sources: Sources,
}

impl Registry {
    /// Looks for a model where a pull would, and fetches its manifest.
    ///
    /// # Errors
    /// Nobody has it, or nobody answers; [`RegistryError::Listed`]: it has no manifest, but [`Registry::pull`] makes it.
    pub async fn look(&self, reference: &ModelRef, options: &Options) -> Result<Found, RegistryError> {
        let options = Options { insecure: options.insecure || reference.http, ..options.clone() };
        let (sources, bytes) = self.find(&reference.name, &options).await?;
        let manifest = Manifest::parse(&bytes, Path::new(""))
            .map_err(|error| RegistryError::NotAManifest(error.to_string()))?;
        if manifest.layers.is_empty() {
            return Err(RegistryError::NotAManifest("it has no layers".into()));
        }
        Ok(Found { registry: self.clone(), reference: reference.clone(), bytes, manifest, sources })
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

    /// Fetches all blobs, small ones first, and stores the model then. Blobs of the one that it replaces are kept.
    ///
    /// # Errors
    /// Of the registry or the store. What has arrived stays, and is gone on from the next time.
    pub async fn fetch(&self, store: &Arc<Store>) -> Result<(), RegistryError> {
        let _work = store.work();
        let _kept = self.fetch_blobs(store).await?;
        let (store, bytes, name) = (store.clone(), self.bytes.clone(), self.reference.name.clone());
        blocking(move || {
            let name = store.spelled(&name)?;
            Ok(store.store_manifest(&name, &bytes, true, &mut || ())?)
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
        let mut held = Held::new(store);
        // Nobody listens.
        let (report, _) = mpsc::channel(1);
        let blobs: Vec<_> = manifest.blobs().map(|layer| Wanted::blob(layer.digest, layer.size)).collect();
        self.registry.blobs(&mut self.sources.clone(), store, &blobs, &report, &mut held).await?;
        Ok(Kept { _held: held })
    }

    /// Bytes of its blobs that are here.
    pub fn completed(&self, store: &Store) -> u64 {
        let here = |layer: &puna_store::Layer| match store.has_blob(&layer.digest) {
            true => layer.size,
            false => self.registry.downloads().completed(store, layer.digest).min(layer.size),
        };
        self.manifest.blobs().fold(0, |sum, layer| sum.saturating_add(here(layer)))
    }

    /// The download of a blob of it, which begins unless it runs; `None` if it has no such blob.
    pub fn running(&self, store: &Arc<Store>, digest: Digest) -> Option<Running> {
        let total = self.size(&digest)?;
        let session = self.sources.first()?;
        let what = What { key: digest, verified: true, total, url: session.blob_url(&digest) };
        let share = self.registry.downloads().join(session, store, &what);
        Some(Running { share, store: store.clone(), digest })
    }
}

/// Blobs that nobody clears away as long as this is held.
pub struct Kept {
    _held: Held,
}

/// A download that goes on as long as somebody holds it.
pub struct Running {
    share: Share,
    store: Arc<Store>,
    digest: Digest,
}

impl Running {
    /// Waits until a byte has arrived. Says up to where those behind it have.
    ///
    /// # Errors
    /// The download failed.
    pub async fn reach(&mut self, from: u64) -> Result<u64, RegistryError> {
        let state = self.share.state.wait_for(|state| state.end.is_some() || state.reach(from) > from).await;
        let state = state.map_err(|_| RegistryError::Cancelled)?;
        match &state.end {
            Some(Ok(_)) => Ok(u64::MAX),
            Some(Err(error)) => Err(error.clone()),
            None => Ok(state.reach(from)),
        }
    }

    /// The file with what has arrived. It stays readable when the blob is complete and when the download fails.
    ///
    /// # Errors
    /// It is gone.
    pub fn open(&self) -> Result<File, RegistryError> {
        let open =
            |path: PathBuf| File::open(&path).map_err(|e| puna_store::StoreError::io("read", &path, &e));
        // It is renamed when it is complete, perhaps between the two.
        let partial = self.store.partial(&self.digest)?;
        Ok(open(partial.data().to_owned()).or_else(|_| open(self.store.blob_path(&self.digest)))?)
    }
}

//! Pulling: the manifest, its blobs one after another, then the model's name.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use puna_store::{Digest, Layer, Manifest, ModelRef, Store, StoreError, media};
use reqwest::header::{ACCEPT, HeaderMap};
use reqwest::{Method, StatusCode};

use crate::Registry;
use crate::blocking::blocking;
use crate::error::RegistryError;
use crate::http::{Ask, Session};
use crate::settings::{Options, Progress, Report, tell};
use crate::space::{on_disk, room};

/// Bytes of a manifest at most.
const MAX_MANIFEST: usize = 4 << 20;
/// Attempts at it: somebody waits who has seen nothing yet.
const MANIFEST_ATTEMPTS: u32 = 3;
/// Layers of models in parts that no engine here runs.
const TENSOR: &str = "application/vnd.ollama.image.tensor";

impl Registry {
    /// Fetches a model into the store, or brings a stored one up to date. Dropping the future cancels it; what has arrived
    /// stays and is gone on from.
    ///
    /// # Errors
    /// Of the registry or the store. The model under this name is whole all the same: the old one, or none.
    pub async fn pull(
        &self,
        store: &Arc<Store>,
        reference: &ModelRef,
        options: &Options,
        report: Report,
    ) -> Result<(), RegistryError> {
        let _work = store.work();
        tell(&report, Progress::status("pulling manifest")).await;
        let (asked, at) = (reference.name.clone(), store.clone());
        let name = blocking(move || Ok(at.spelled(&asked)?)).await?;
        let options = Options { insecure: options.insecure || reference.http, ..*options };
        let session = Arc::new(Session::new(self, name.clone(), &options)?);
        let bytes = session.manifest().await.map_err(RegistryError::of_manifest)?;
        let manifest = read_manifest(&bytes).map_err(RegistryError::of_manifest)?;

        let mut held = Held { store: store.clone(), digests: Vec::new() };
        self.blobs(&session, store, &manifest, &report, &mut held).await?;
        tell(&report, Progress::status("verifying sha256 digest")).await;
        tell(&report, Progress::status("writing manifest")).await;
        let (at, to) = (store.clone(), report.clone());
        blocking(move || {
            let mut removing = || {
                let _ = to.blocking_send(Progress::status("removing unused layers"));
            };
            Ok(at.store_manifest(&name, &bytes, options.keep_unused, &mut removing)?)
        })
        .await?;
        tell(&report, Progress::status("success")).await;
        Ok(())
    }

    async fn blobs(
        &self,
        session: &Arc<Session>,
        store: &Arc<Store>,
        manifest: &Manifest,
        report: &Report,
        held: &mut Held,
    ) -> Result<(), RegistryError> {
        let sizes = sizes(manifest)?;
        let at = store.clone();
        let missing: Vec<(Digest, u64)> = sizes.iter().map(|(digest, size)| (*digest, *size)).collect();
        blocking(move || has_room(&at, missing)).await?;
        let mut done = Vec::new();
        for layer in manifest.blobs() {
            let Layer { digest, size, .. } = *layer;
            if done.contains(&digest) {
                continue;
            }
            done.push(digest);
            let at = store.clone();
            let is_there = blocking(move || Ok(at.hold_blob(&digest, size))).await?;
            held.digests.push(digest);
            if !is_there {
                self.blob(session, store, digest, size, report).await?;
            }
            tell(report, Progress::blob("pulling", digest, size, size)).await;
        }
        Ok(())
    }

    async fn blob(
        &self,
        session: &Arc<Session>,
        store: &Arc<Store>,
        digest: Digest,
        size: u64,
        report: &Report,
    ) -> Result<(), RegistryError> {
        if size == 0 {
            let at = store.clone();
            return blocking(move || Ok(at.blob_writer()?.finish(Some(&digest)).map(drop)?)).await;
        }
        // What was told is never taken back, also where a download begins anew.
        let (mut most, mut said) = (0, None);
        let told = |completed: u64| {
            most = completed.max(most).min(size);
            if said != Some(most) {
                said = Some(most);
                let _ = report.try_send(Progress::blob("pulling", digest, size, most));
            }
        };
        let fetched = self.downloads().fetch(session, store, digest, size, told).await;
        if let Err(RegistryError::DigestMismatch { .. }) = fetched {
            tell(report, Progress::status("verifying sha256 digest")).await;
        }
        fetched
    }
}

impl Session {
    /// The manifest as the registry has it.
    async fn manifest(&self) -> Result<Bytes, RegistryError> {
        let ask = Ask::new(Method::GET, self.manifest_url()).header(ACCEPT, media::MANIFEST);
        let mut retry = self.retry().at_most(MANIFEST_ATTEMPTS);
        let response = loop {
            let error = match self.send(&ask).await {
                Ok(response) if response.status().is_success() => break response,
                Ok(response) if response.status() == StatusCode::NOT_FOUND => {
                    return Err(RegistryError::NotFound);
                }
                Ok(response) => self.refusal(response).await,
                Err(error) => error,
            };
            // Who cannot be reached is not waited for: names are misspelt, and networks absent.
            if !matches!(error, RegistryError::Status { .. }) {
                return Err(error);
            }
            match retry.after(error).await {
                Ok(()) => {}
                // In the words of Ollama, which tries once.
                Err(RegistryError::Retries(last)) => return Err(*last),
                Err(error) => return Err(error),
            }
        };
        let said = said_digest(response.headers());
        let bytes = self.read(response, MAX_MANIFEST).await?;
        match said {
            Some(said) if said != Digest::of(&bytes) => {
                Err(RegistryError::ManifestDigest { said, found: Digest::of(&bytes) })
            }
            _ => Ok(bytes),
        }
    }
}

/// Blobs that are kept from being cleared away until the manifest is stored, or the pull has failed.
struct Held {
    store: Arc<Store>,
    digests: Vec<Digest>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.store.let_go(self.digests.drain(..));
    }
}

/// The digest that a registry gives beside a manifest.
fn said_digest(headers: &HeaderMap) -> Option<Digest> {
    headers.get("Docker-Content-Digest")?.to_str().ok()?.parse().ok()
}

fn read_manifest(bytes: &[u8]) -> Result<Manifest, RegistryError> {
    let manifest = Manifest::parse(bytes, Path::new("")).map_err(|error| match error {
        StoreError::Manifest { reason, .. } if bytes.trim_ascii_start().starts_with(b"<") => {
            RegistryError::NotAManifest(format!("it is a page for browsers ({reason})"))
        }
        StoreError::Manifest { reason, .. } => RegistryError::NotAManifest(reason),
        other => other.into(),
    })?;
    if manifest.layers.is_empty() {
        return Err(RegistryError::NotAManifest("it has no layers".into()));
    }
    if manifest.all(TENSOR).next().is_some() {
        return Err(RegistryError::Tensors);
    }
    Ok(manifest)
}

/// The blobs and their sizes, each of which has one.
fn sizes(manifest: &Manifest) -> Result<HashMap<Digest, u64>, RegistryError> {
    let mut sizes = HashMap::new();
    for layer in manifest.blobs() {
        let first = *sizes.entry(layer.digest).or_insert(layer.size);
        if first != layer.size {
            let reason = format!("the blob {} has two sizes, {first} and {}", layer.digest, layer.size);
            return Err(RegistryError::NotAManifest(reason).of_manifest());
        }
    }
    Ok(sizes)
}

/// Whether all that is missing of a model fits on the disk.
fn has_room(store: &Store, blobs: Vec<(Digest, u64)>) -> Result<(), RegistryError> {
    let absent = blobs.into_iter().filter(|(digest, size)| {
        !std::fs::metadata(store.blob_path(digest)).is_ok_and(|meta| meta.len() == *size)
    });
    let mut needed = 0u64;
    for (digest, size) in absent {
        needed = needed.saturating_add(size.saturating_sub(on_disk(store.partial(&digest)?.data())));
    }
    room(store, "the model", needed)
}

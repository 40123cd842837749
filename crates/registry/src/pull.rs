//! Pulling: the manifest, its blobs one after another, then the model's name.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use puna_store::{Digest, Layer, Manifest, ModelName, ModelRef, Store};

use crate::Registry;
use crate::blocking::blocking;
use crate::endpoint::Endpoint;
use crate::error::RegistryError;
use crate::http::Session;
use crate::manifest::read_manifest;
use crate::settings::{Options, Progress, Report, tell};
use crate::space::{on_disk, room};

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
        let options = Options { insecure: options.insecure || reference.http, ..options.clone() };
        let (mut sources, bytes) = self.find(&name, &options).await.map_err(RegistryError::of_manifest)?;
        let manifest = read_manifest(&bytes).map_err(RegistryError::of_manifest)?;

        let (at, noted, text) = (store.clone(), name.clone(), bytes.clone());
        blocking(move || Ok(at.note_pull(&noted, &text)?)).await?;
        let mut held = Held::new(store);
        self.blobs(&mut sources, store, &manifest, &report, &mut held).await?;
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

    /// The manifest, from the first who has it, and everybody who may have its blobs from there on.
    pub(crate) async fn find(
        &self,
        name: &ModelName,
        options: &Options,
    ) -> Result<(Sources, Bytes), RegistryError> {
        let limits = self.limits(options);
        let mut sessions = VecDeque::new();
        for endpoint in Endpoint::all(self.settings(), name, options)? {
            sessions.push_back(Arc::new(Session::new(self, name.clone(), endpoint, &limits)?));
        }
        let mut missed: Vec<String> = Vec::new();
        loop {
            let Some(session) = sessions.front() else { return Err(RegistryError::NotFound) };
            let error = match session.manifest().await {
                Ok(bytes) => return Ok((Sources(sessions), bytes)),
                Err(error) => error,
            };
            let Some(mirror) = session.is_mirror().then(|| session.host()) else {
                return Err(error.after_mirrors(&missed));
            };
            if error.is_ours() {
                return Err(error);
            }
            tracing::info!(%mirror, %name, %error, "a mirror does not have the model");
            missed.push(format!("{mirror}: {error}"));
            sessions.pop_front();
        }
    }

    pub(crate) async fn blobs(
        &self,
        sources: &mut Sources,
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
                self.blob(sources, store, digest, size, report).await?;
            }
            tell(report, Progress::blob("pulling", digest, size, size)).await;
        }
        Ok(())
    }

    async fn blob(
        &self,
        sources: &mut Sources,
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
        let mut told = |completed: u64| {
            most = completed.max(most).min(size);
            if said != Some(most) {
                said = Some(most);
                let _ = report.try_send(Progress::blob("pulling", digest, size, most));
            }
        };
        while let Some(session) = sources.0.front() {
            let fetched = self.downloads().fetch(session, store, digest, size, &mut told).await;
            let Err(error) = fetched else { return Ok(()) };
            if let RegistryError::DigestMismatch { .. } = error {
                tell(report, Progress::status("verifying sha256 digest")).await;
            }
            if !session.is_mirror() || error.is_ours() {
                return Err(error);
            }
            tracing::warn!(mirror = %session.host(), %digest, %error, "a mirror failed: going on with the next");
            sources.0.pop_front();
        }
        Err(RegistryError::NotFound)
    }
}

/// Everybody who may have a model's blobs, in the order of asking. Never empty: the registry itself is the last.
#[derive(Clone)]
pub(crate) struct Sources(VecDeque<Arc<Session>>);

impl Sources {
    pub(crate) fn first(&self) -> Option<&Arc<Session>> {
        self.0.front()
    }
}

/// Blobs that are kept from being cleared away until the manifest is stored, or the pull has failed.
pub(crate) struct Held {
    store: Arc<Store>,
    digests: Vec<Digest>,
}

impl Held {
    pub(crate) fn new(store: &Arc<Store>) -> Self {
        Self { store: store.clone(), digests: Vec::new() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.store.let_go(self.digests.drain(..));
    }
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

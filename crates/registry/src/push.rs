//! Pushing: the blobs that the registry lacks, then the manifest, as it is stored.

mod list;

use std::sync::Arc;

use bytes::Bytes;
use puna_store::{Digest, Entry, Layer, ModelName, ModelRef, Store, StoreError, media};
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE};
use reqwest::{Body, Method, Url};
use serde::Deserialize;

use crate::Registry;
use crate::blocking::blocking;
use crate::endpoint::Endpoint;
use crate::error::RegistryError;
use crate::http::{Ask, Session, stalled};
use crate::packaging::{self, Format};
use crate::settings::{Options, Progress, Report, tell};
use crate::upload::Upload;

/// What a manifest says of itself.
#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "mediaType", default)]
    media_type: String,
}

impl Registry {
    /// Sends a stored model to the registry of its name. Dropping the future cancels it.
    ///
    /// # Errors
    /// The model is not stored or not whole, or of the registry, which then does not list it.
    pub async fn push(
        &self,
        store: &Arc<Store>,
        reference: &ModelRef,
        options: &Options,
        report: Report,
    ) -> Result<(), RegistryError> {
        tell(&report, Progress::status("retrieving manifest")).await;
        let (at, name, format, runner) =
            (store.clone(), reference.name.clone(), options.format, options.runner.clone());
        let read = blocking(move || match list::read_list(&at, &name, format)? {
            Some(list) => Ok(list),
            None => read_model(&at, &name, format, runner.as_deref()),
        })
        .await;
        let outgoing = match read {
            Ok(read) => read,
            Err(error) => {
                tell(&report, Progress::status("couldn't retrieve manifest")).await;
                return Err(error);
            }
        };
        let made = outgoing.made;
        let pushed = self.push_all(store, outgoing, reference, options, &report).await;
        if let Some(made) = made {
            let at = store.clone();
            blocking(move || {
                at.let_go([made]);
                Ok(at.discard_blobs(&[made])?)
            })
            .await?;
        }
        pushed?;
        tell(&report, Progress::status("success")).await;
        Ok(())
    }

    async fn push_all(
        &self,
        store: &Arc<Store>,
        outgoing: Outgoing,
        reference: &ModelRef,
        options: &Options,
        report: &Report,
    ) -> Result<(), RegistryError> {
        let options = Options { insecure: options.insecure || reference.http, ..options.clone() };
        let target = Endpoint::target(self.settings(), &outgoing.name, &options)?;
        let session = Session::new(self, outgoing.name.clone(), target, &self.limits(&options))?;
        session.attended(report, list::check_absent(&session, &outgoing), || false).await?;
        let mut done = Vec::new();
        for layer in &outgoing.layers {
            if !done.contains(&layer.digest) {
                done.push(layer.digest);
                push_blob(&session, store, layer, report).await?;
            }
        }
        for child in outgoing.children {
            tell(report, Progress::status(format!("pushing manifest for {}", child.runner))).await;
            let url = session.digest_url(&Digest::of(&child.text));
            session
                .attended(report, session.put_manifest(url, child.text.into()), || false)
                .await?;
        }
        tell(report, Progress::status("pushing manifest")).await;
        let put = session.put_manifest(session.manifest_url(), outgoing.manifest.into());
        session.attended(report, put, || false).await
    }
}

/// What a manifest says it is; one that says nothing is Ollama's.
pub(crate) fn media_type(manifest: &[u8]) -> String {
    let said =
        serde_json::from_slice::<Kind>(manifest).map(|kind| kind.media_type).unwrap_or_default();
    if said.is_empty() { media::MANIFEST.to_owned() } else { said }
}

/// What is pushed.
pub(crate) struct Outgoing {
    /// The model's name, as it is stored.
    pub(crate) name: ModelName,
    pub(crate) layers: Vec<Layer>,
    pub(crate) manifest: Vec<u8>,
    /// A blob that is of no use afterwards.
    pub(crate) made: Option<Digest>,
    /// The manifests that a list refers to, as far as they are in the store.
    children: Vec<list::ChildText>,
    /// The children of a list that are not in the store.
    absent: Vec<list::AbsentChild>,
}

impl Outgoing {
    /// A single manifest.
    fn of(name: ModelName, layers: Vec<Layer>, manifest: Vec<u8>, made: Option<Digest>) -> Self {
        Self { name, layers, manifest, made, children: Vec::new(), absent: Vec::new() }
    }
}

/// A stored model as it is to be pushed; of a manifest list the child for the runner, or the chosen one.
pub(crate) fn read_model(
    store: &Store,
    name: &ModelName,
    format: Format,
    runner: Option<&str>,
) -> Result<Outgoing, RegistryError> {
    let (mut entry, mut bytes) = store.manifest_bytes(name)?;
    if entry.is_embedded() {
        return Err(RegistryError::BuiltIn(entry.name.to_string()));
    }
    if let Some(runner) = runner {
        entry = entry.for_runner(runner)?;
    }
    if let Some(list) = &entry.list {
        bytes = store.child_manifest(&entry, list.chosen)?;
    }
    check_layers(store, &entry, entry.manifest.blobs())?;
    if format != Format::Ollama {
        let packaging::Outgoing { manifest, layers, made } =
            packaging::package(store, &entry, format)?;
        return Ok(Outgoing::of(entry.name, layers, manifest, made));
    }
    let layers = entry.manifest.blobs().cloned().collect();
    Ok(Outgoing::of(entry.name, layers, bytes, None))
}

/// Refuses a model of which a blob is missing, before anything is sent.
fn check_layers<'a>(
    store: &Store,
    entry: &Entry,
    layers: impl IntoIterator<Item = &'a Layer>,
) -> Result<(), RegistryError> {
    for layer in layers {
        store.layer_file(layer).map_err(|error| match error {
            StoreError::BlobMissing(digest) => {
                StoreError::Incomplete { name: entry.name.to_string(), digest }
            }
            other => other,
        })?;
    }
    Ok(())
}

async fn push_blob(
    session: &Session,
    store: &Arc<Store>,
    layer: &Layer,
    report: &Report,
) -> Result<(), RegistryError> {
    let (at, wanted) = (store.clone(), layer.clone());
    let path = blocking(move || Ok(at.layer_file(&wanted)?)).await?;
    let upload = Upload::new(session, store, layer, path);
    let mut said = 0;
    let tell_sent = || {
        let moved = upload.sent() > said;
        if moved {
            said = upload.sent();
            let _ = report.try_send(Progress::blob("pushing", layer.digest, layer.size, said));
        }
        moved
    };
    session.attended(report, upload.run(), tell_sent).await?;
    tell(report, Progress::blob("pushing", layer.digest, layer.size, layer.size)).await;
    Ok(())
}

impl Session {
    async fn put_manifest(&self, url: Url, bytes: Bytes) -> Result<(), RegistryError> {
        let kind = media_type(&bytes);
        let body = || Body::from(bytes.clone());
        let ask = Ask::new(Method::PUT, url).header(CONTENT_TYPE, &kind);
        let ask = ask.header(CONTENT_LENGTH, &bytes.len().to_string()).with_body(&body);
        let patience = self.settings().patience * 2;
        let mut retry = self.retry();
        loop {
            let done = match tokio::time::timeout(patience, self.send(&ask)).await {
                Ok(Ok(response)) => self.expect_success(response).await.map(drop),
                Ok(Err(error)) => Err(error),
                Err(_) => Err(stalled(&ask.method, &ask.url, patience)),
            };
            match done {
                Ok(()) => return Ok(()),
                Err(error) => retry.after(error).await?,
            }
        }
    }
}

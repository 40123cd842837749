//! Pushing: the blobs that the registry lacks, then the manifest, as it is stored.

use std::sync::Arc;

use bytes::Bytes;
use puna_store::{Digest, Layer, ModelName, ModelRef, Store, StoreError, media};
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE};
use reqwest::{Body, Method};
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
        let (at, name) = (store.clone(), reference.name.clone());
        let format = options.format;
        let read = blocking(move || read_model(&at, &name, format)).await;
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
                Ok(at.remove_blobs(&[made])?)
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
        let session = Session::new(self, outgoing.name, target, &self.limits(&options))?;
        let mut done = Vec::new();
        for layer in &outgoing.layers {
            if !done.contains(&layer.digest) {
                done.push(layer.digest);
                push_blob(&session, store, layer, report).await?;
            }
        }
        tell(report, Progress::status("pushing manifest")).await;
        session.attended(report, session.put_manifest(outgoing.manifest.into()), || false).await
    }
}

/// What a manifest says it is; one that says nothing is Ollama's.
pub(crate) fn media_type(manifest: &[u8]) -> String {
    let said = serde_json::from_slice::<Kind>(manifest).map(|kind| kind.media_type).unwrap_or_default();
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
}

/// A stored model as it is to be pushed.
pub(crate) fn read_model(store: &Store, name: &ModelName, format: Format) -> Result<Outgoing, RegistryError> {
    let (entry, bytes) = store.manifest_bytes(name)?;
    if entry.is_embedded() {
        return Err(RegistryError::BuiltIn(entry.name.to_string()));
    }
    // What is missing is known before anything is sent.
    for layer in entry.manifest.blobs() {
        store.layer_file(layer).map_err(|error| match error {
            StoreError::BlobMissing(digest) => {
                StoreError::Incomplete { name: entry.name.to_string(), digest }
            }
            other => other,
        })?;
    }
    if format != Format::Ollama {
        let packaging::Outgoing { manifest, layers, made } = packaging::package(store, &entry, format)?;
        return Ok(Outgoing { name: entry.name, layers, manifest, made });
    }
    let layers = entry.manifest.blobs().cloned().collect();
    Ok(Outgoing { name: entry.name, layers, manifest: bytes, made: None })
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
    async fn put_manifest(&self, bytes: Bytes) -> Result<(), RegistryError> {
        let kind = media_type(&bytes);
        let body = || Body::from(bytes.clone());
        let ask = Ask::new(Method::PUT, self.manifest_url()).header(CONTENT_TYPE, &kind);
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

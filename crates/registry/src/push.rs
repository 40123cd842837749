//! Pushing: the blobs that the registry lacks, then the manifest, as it is stored.

use std::sync::Arc;

use bytes::Bytes;
use puna_store::{Layer, Manifest, ModelName, ModelRef, Store, StoreError, media};
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE};
use reqwest::{Body, Method};
use serde::Deserialize;

use crate::Registry;
use crate::blocking::blocking;
use crate::endpoint::Endpoint;
use crate::error::RegistryError;
use crate::http::{Ask, Session, stalled};
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
        let read = blocking(move || read_model(&at, &name)).await;
        let (name, manifest, bytes) = match read {
            Ok(read) => read,
            Err(error) => {
                tell(&report, Progress::status("couldn't retrieve manifest")).await;
                return Err(error);
            }
        };
        let options = Options { insecure: options.insecure || reference.http, ..options.clone() };
        let target = Endpoint::target(self.settings(), &name, &options)?;
        let session = Session::new(self, name, target, &self.limits(&options))?;
        let mut done = Vec::new();
        for layer in manifest.blobs() {
            if !done.contains(&layer.digest) {
                done.push(layer.digest);
                push_blob(&session, store, layer, &report).await?;
            }
        }
        tell(&report, Progress::status("pushing manifest")).await;
        session.put_manifest(bytes.into()).await?;
        tell(&report, Progress::status("success")).await;
        Ok(())
    }
}

/// The model's name as it is stored, and its manifest.
fn read_model(store: &Store, name: &ModelName) -> Result<(ModelName, Manifest, Vec<u8>), RegistryError> {
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
    Ok((entry.name, entry.manifest, bytes))
}

async fn push_blob(
    session: &Session,
    store: &Arc<Store>,
    layer: &Layer,
    report: &Report,
) -> Result<(), RegistryError> {
    let (at, wanted) = (store.clone(), layer.clone());
    let path = blocking(move || Ok(at.layer_file(&wanted)?)).await?;
    let upload = Upload::new(session, layer, path);
    let mut ticks = tokio::time::interval(session.settings().tick);
    let work = upload.run();
    tokio::pin!(work);
    let mut said = None;
    loop {
        tokio::select! {
            done = &mut work => {
                done?;
                break;
            }
            _ = ticks.tick() => {
                let sent = upload.sent();
                if said != Some(sent) && sent > 0 {
                    said = Some(sent);
                    let _ = report.try_send(Progress::blob("pushing", layer.digest, layer.size, sent));
                }
            }
        }
    }
    tell(report, Progress::blob("pushing", layer.digest, layer.size, layer.size)).await;
    Ok(())
}

impl Session {
    async fn put_manifest(&self, bytes: Bytes) -> Result<(), RegistryError> {
        let kind = serde_json::from_slice::<Kind>(&bytes).map(|kind| kind.media_type).unwrap_or_default();
        let kind = if kind.is_empty() { media::MANIFEST } else { &kind };
        let body = || Body::from(bytes.clone());
        let ask = Ask::new(Method::PUT, self.manifest_url()).header(CONTENT_TYPE, kind);
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

//! Push: sends the blobs that the registry lacks, then the stored manifest.

mod manifest_list;
mod upload;

use std::sync::Arc;

use bytes::Bytes;
use puna_store::{Digest, Entry, Layer, ModelName, ModelRef, Store, StoreError, media};
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE};
use reqwest::{Body, Method, Url};
use serde::Deserialize;

use crate::Registry;
use crate::blocking::blocking;
use crate::client::endpoint::Endpoint;
use crate::client::session::{RequestSpec, Session, stalled_error};
use crate::client::settings::{Options, Progress, Report, send_progress};
use crate::error::RegistryError;
use crate::packaging::{self, Format};
use crate::push::upload::Upload;

/// The manifest's own media type.
#[derive(Deserialize)]
struct ManifestHeader {
    #[serde(rename = "mediaType", default)]
    media_type: String,
}

impl Registry {
    /// Pushes a stored model to the registry of its name. Dropping the future cancels the push.
    ///
    /// # Errors
    /// The model is not stored or incomplete, or the registry refuses it. The registry then does
    /// not list it.
    pub async fn push(
        &self,
        store: &Arc<Store>,
        reference: &ModelRef,
        options: &Options,
        report: Report,
    ) -> Result<(), RegistryError> {
        self.check_push(reference, options).await?;
        send_progress(&report, Progress::status("retrieving manifest")).await;
        let (at, name, format, runner) =
            (store.clone(), reference.name.clone(), options.format, options.runner.clone());
        let read = blocking(move || match manifest_list::read_list(&at, &name, format)? {
            Some(list) => Ok(list),
            None => read_model(&at, &name, format, runner.as_deref()),
        })
        .await;
        let outgoing = match read {
            Ok(read) => read,
            Err(error) => {
                send_progress(&report, Progress::status("couldn't retrieve manifest")).await;
                return Err(error);
            }
        };
        let temporary_blob = outgoing.temporary_blob;
        let pushed = self.push_all(store, outgoing, reference, options, &report).await;
        if let Some(temporary_blob) = temporary_blob {
            let at = store.clone();
            blocking(move || {
                at.unpin_blobs([temporary_blob]);
                Ok(at.discard_blobs(&[temporary_blob])?)
            })
            .await?;
        }
        pushed.map_err(|error| self.error_for_caller(error, options, reference.name.host()))?;
        send_progress(&report, Progress::status("success")).await;
        Ok(())
    }

    async fn push_all(
        &self,
        store: &Arc<Store>,
        outgoing: OutgoingModel,
        reference: &ModelRef,
        options: &Options,
        report: &Report,
    ) -> Result<(), RegistryError> {
        let options = Options { insecure: options.insecure || reference.http, ..options.clone() };
        let target = Endpoint::push_target(self.settings(), &outgoing.name, &options)?;
        let limits = self.rate_limits(&options);
        let session = Session::new(self, outgoing.name.clone(), target, &options, &limits)?;
        session
            .with_waiting_notices(
                report,
                manifest_list::check_absent_children(&session, &outgoing),
                || false,
            )
            .await?;
        let mut result = Vec::new();
        for layer in &outgoing.layers {
            if !result.contains(&layer.digest) {
                result.push(layer.digest);
                push_blob(&session, store, layer, report).await?;
            }
        }
        for child in outgoing.children {
            send_progress(
                report,
                Progress::status(format!("pushing manifest for {}", child.runner)),
            )
            .await;
            let url = session.digest_url(&Digest::of(&child.text));
            session
                .with_waiting_notices(report, session.put_manifest(url, child.text.into()), || {
                    false
                })
                .await?;
        }
        send_progress(report, Progress::status("pushing manifest")).await;
        let put = session.put_manifest(session.manifest_url(), outgoing.manifest.into());
        session.with_waiting_notices(report, put, || false).await
    }
}

/// The media type that a manifest states. Without one, it is Ollama's.
pub(crate) fn manifest_media_type(manifest: &[u8]) -> String {
    let reported = serde_json::from_slice::<ManifestHeader>(manifest)
        .map(|kind| kind.media_type)
        .unwrap_or_default();
    if reported.is_empty() { media::MANIFEST.to_owned() } else { reported }
}

/// Model to push.
pub(crate) struct OutgoingModel {
    /// Name as stored.
    pub(crate) name: ModelName,
    pub(crate) layers: Vec<Layer>,
    pub(crate) manifest: Vec<u8>,
    /// Blob that is removed after the push.
    pub(crate) temporary_blob: Option<Digest>,
    /// Manifests of the list's children that are in the store.
    children: Vec<manifest_list::ChildManifest>,
    /// Children of the list that are not in the store.
    absent: Vec<manifest_list::AbsentChild>,
}

impl OutgoingModel {
    /// A model with a single manifest.
    fn single(
        name: ModelName,
        layers: Vec<Layer>,
        manifest: Vec<u8>,
        temporary_blob: Option<Digest>,
    ) -> Self {
        Self { name, layers, manifest, temporary_blob, children: Vec::new(), absent: Vec::new() }
    }
}

/// Reads a stored model for a push. For a manifest list, it is the child for `runner`, or the
/// selected child.
pub(crate) fn read_model(
    store: &Store,
    name: &ModelName,
    format: Format,
    runner: Option<&str>,
) -> Result<OutgoingModel, RegistryError> {
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
        let packaging::OutgoingPackage { manifest, layers, temporary_blob } =
            packaging::package(store, &entry, format)?;
        return Ok(OutgoingModel::single(entry.name, layers, manifest, temporary_blob));
    }
    let layers = entry.manifest.blobs().cloned().collect();
    Ok(OutgoingModel::single(entry.name, layers, bytes, None))
}

/// Checks that all blobs of a model are in the store before anything is sent.
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
    let mut reported = 0;
    let report_sent = || {
        let has_progress = upload.sent() > reported;
        if has_progress {
            reported = upload.sent();
            let _ = report.try_send(Progress::blob("pushing", layer.digest, layer.size, reported));
        }
        has_progress
    };
    session.with_waiting_notices(report, upload.run(), report_sent).await?;
    send_progress(report, Progress::blob("pushing", layer.digest, layer.size, layer.size)).await;
    Ok(())
}

impl Session {
    async fn put_manifest(&self, url: Url, bytes: Bytes) -> Result<(), RegistryError> {
        let kind = manifest_media_type(&bytes);
        let body = || Body::from(bytes.clone());
        let request = RequestSpec::new(Method::PUT, url).header(CONTENT_TYPE, &kind);
        let request = request.header(CONTENT_LENGTH, &bytes.len().to_string()).with_body(&body);
        let timeout = self.settings().stall_timeout * 2;
        let mut retry = self.retry();
        loop {
            let result = match tokio::time::timeout(timeout, self.send(&request)).await {
                Ok(Ok(response)) => self.expect_success(response).await.map(drop),
                Ok(Err(error)) => Err(error),
                Err(_) => Err(stalled_error(&request.method, &request.url, timeout)),
            };
            match result {
                Ok(()) => return Ok(()),
                Err(error) => retry.wait_after(error).await?,
            }
        }
    }
}

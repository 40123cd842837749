//! Last step of a pull: stores the manifest under the model's name.

use std::sync::Arc;

use bytes::Bytes;
use puna_store::{Digest, ModelName, Store, StoreError};
use tokio::sync::mpsc::error::TrySendError;

use crate::blocking::blocking;
use crate::client::settings::{Options, Progress, Report, send_progress};
use crate::error::RegistryError;
use crate::manifest::is_manifest_list;

/// The status before the store removes blobs that only the replaced model had.
const REMOVING_STATUS: &str = "removing unused layers";

/// Stores a manifest or manifest list under a name. All blobs must be in the store. `children` are
/// the texts of a list's child manifests.
pub(super) async fn write_model(
    store: &Arc<Store>,
    name: ModelName,
    bytes: Bytes,
    children: Vec<Bytes>,
    options: &Options,
    report: &Report,
) -> Result<(), RegistryError> {
    send_progress(report, Progress::status("verifying sha256 digest")).await;
    send_progress(report, Progress::status("writing manifest")).await;
    let (at, to, keep_unused) = (store.clone(), report.clone(), options.keep_unused);
    let unsent_line = blocking(move || {
        let mut unsent_line = None;
        // The store is locked now, so a reader that does not read must not block the pull.
        let mut removing = || {
            if let Err(TrySendError::Full(line)) = to.try_send(Progress::status(REMOVING_STATUS)) {
                unsent_line = Some(line);
            }
        };
        with_manifest_blobs(&at, children, &bytes, || {
            at.store_manifest(&name, &bytes, keep_unused, &mut removing).map(drop)
        })?;
        Ok(unsent_line)
    })
    .await?;
    if let Some(line) = unsent_line {
        send_progress(report, line).await;
    }
    Ok(())
}

/// Adds a list and its children's manifests as blobs, then runs `store_model`. If that fails, the
/// new blobs are removed. A plain manifest without children does not become a blob.
fn with_manifest_blobs(
    store: &Store,
    mut manifests: Vec<Bytes>,
    list: &Bytes,
    store_model: impl FnOnce() -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    if is_manifest_list(list) {
        manifests.push(list.clone());
    }
    let digests: Vec<Digest> = manifests.iter().map(|text| Digest::of(text)).collect();
    let new_blobs: Vec<Digest> =
        digests.iter().filter(|digest| !store.has_blob(digest)).copied().collect();
    let stored = manifests
        .iter()
        .try_for_each(|text| store.add_manifest(text).map(drop))
        .and_then(|()| store_model());
    if stored.is_err() {
        store.unpin_blobs(digests);
        if let Err(error) = store.discard_blobs(&new_blobs) {
            tracing::warn!(%error, "cannot remove manifests of a rejected list; garbage collection removes them later");
        }
    }
    stored
}

//! The last step of a pull: the manifest under the model's name.

use std::sync::Arc;

use bytes::Bytes;
use puna_store::{Digest, ModelName, Store, StoreError};
use tokio::sync::mpsc::error::TrySendError;

use crate::blocking::blocking;
use crate::error::RegistryError;
use crate::manifest::is_manifest_list;
use crate::settings::{Options, Progress, Report, tell};

/// The status before the store removes blobs that only the replaced model had.
const REMOVING: &str = "removing unused layers";

/// Stores a manifest or manifest list under a name. All blobs are in the store; `children` are the texts of a list's
/// children.
pub(super) async fn write_model(
    store: &Arc<Store>,
    name: ModelName,
    bytes: Bytes,
    children: Vec<Bytes>,
    options: &Options,
    report: &Report,
) -> Result<(), RegistryError> {
    tell(report, Progress::status("verifying sha256 digest")).await;
    tell(report, Progress::status("writing manifest")).await;
    let (at, to, keep_unused) = (store.clone(), report.clone(), options.keep_unused);
    let unsent = blocking(move || {
        let mut unsent = None;
        // The store is locked now, so a reader that does not read must not block the pull.
        let mut removing = || {
            if let Err(TrySendError::Full(line)) = to.try_send(Progress::status(REMOVING)) {
                unsent = Some(line);
            }
        };
        with_manifests(&at, children, &bytes, || {
            at.store_manifest(&name, &bytes, keep_unused, &mut removing).map(drop)
        })?;
        Ok(unsent)
    })
    .await?;
    if let Some(line) = unsent {
        tell(report, line).await;
    }
    Ok(())
}

/// Adds a list and its children's manifests as blobs, then does the work that needs them. If the work fails, the new
/// blobs go again. A plain manifest without children is no blob.
fn with_manifests(
    store: &Store,
    mut manifests: Vec<Bytes>,
    list: &Bytes,
    work: impl FnOnce() -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    if is_manifest_list(list) {
        manifests.push(list.clone());
    }
    let digests: Vec<Digest> = manifests.iter().map(|text| Digest::of(text)).collect();
    let added: Vec<Digest> =
        digests.iter().filter(|digest| !store.has_blob(digest)).copied().collect();
    let done = manifests
        .iter()
        .try_for_each(|text| store.add_manifest(text).map(drop))
        .and_then(|()| work());
    if done.is_err() {
        store.let_go(digests);
        if let Err(error) = store.discard_blobs(&added) {
            tracing::warn!(%error, "manifests of a refused list stay in the store until unused blobs are removed");
        }
    }
    done
}

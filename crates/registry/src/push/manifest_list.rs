//! Pushes manifest lists: the stored list, with the manifests and blobs of the children that are in
//! the store.

use puna_store::{Digest, Layer, ModelName, Store};

use super::{OutgoingModel, check_layers};
use crate::client::session::Session;
use crate::display::single_line;
use crate::error::RegistryError;
use crate::packaging::Format;
use crate::pull::describe_child;

/// The manifest of a child that a list refers to.
pub(super) struct ChildManifest {
    /// Runner, or the digest of a child without a runner; for messages.
    pub(super) runner: String,
    pub(super) text: Vec<u8>,
}

/// A child that is not in the store.
pub(super) struct AbsentChild {
    /// Description of the entry, for messages.
    description: String,
    digest: Digest,
    /// Missing blobs of a child with an inline manifest.
    inline_blobs: Option<Vec<Digest>>,
}

/// Reads a stored manifest list for a push. `None` for a single manifest, and for formats without
/// lists.
pub(super) fn read_list(
    store: &Store,
    name: &ModelName,
    format: Format,
) -> Result<Option<OutgoingModel>, RegistryError> {
    let (entry, bytes) = store.manifest_bytes(name)?;
    let Some(list) = entry.list.as_ref().filter(|_| format == Format::Ollama) else {
        return Ok(None);
    };
    let mut outgoing = OutgoingModel::single(entry.name.clone(), Vec::new(), bytes, None);
    for (at, stored) in list.children.iter().enumerate() {
        let child = &stored.child;
        let is_missing = |layer: &&Layer| store.layer_file(layer).is_err();
        let missing =
            || stored.manifest.iter().flat_map(|manifest| manifest.blobs()).filter(is_missing);
        let is_absent =
            stored.manifest.is_none() || child.inline.is_some() && missing().next().is_some();
        if is_absent {
            let inline_blobs =
                child.inline.as_ref().map(|_| missing().map(|layer| layer.digest).collect());
            let description = describe_child(at, child);
            outgoing.absent.push(AbsentChild { description, digest: child.digest, inline_blobs });
            continue;
        }
        let layers = || stored.manifest.iter().flat_map(|manifest| manifest.blobs());
        check_layers(store, &entry, layers())?;
        outgoing.layers.extend(layers().cloned());
        if child.inline.is_none() {
            let runner = if child.runner.is_empty() {
                child.digest.short().to_string()
            } else {
                single_line(&child.runner, 40)
            };
            outgoing
                .children
                .push(ChildManifest { runner, text: store.child_manifest(&entry, at)? });
        }
    }
    Ok(Some(outgoing))
}

/// Refuses a list with a child that is neither in the store nor at the registry.
pub(super) async fn check_absent_children(
    session: &Session,
    outgoing: &OutgoingModel,
) -> Result<(), RegistryError> {
    for child in &outgoing.absent {
        if !is_at_registry(session, child).await? {
            let (name, child) = (outgoing.name.to_string(), child.description.clone());
            return Err(RegistryError::ChildMissing { name, child });
        }
    }
    Ok(())
}

async fn is_at_registry(session: &Session, child: &AbsentChild) -> Result<bool, RegistryError> {
    let Some(blobs) = &child.inline_blobs else { return session.has_manifest(child.digest).await };
    for blob in blobs {
        match session.blob_size(blob).await {
            Ok(_) => {}
            Err(error) if error.is_not_found() => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

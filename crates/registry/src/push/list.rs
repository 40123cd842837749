//! Pushing manifest lists: the list as it is stored, with the manifests and blobs of the children that are in the store.

use puna_store::{Digest, Layer, ModelName, Store};

use super::{Outgoing, check_layers};
use crate::address::plain;
use crate::error::RegistryError;
use crate::http::Session;
use crate::packaging::Format;
use crate::pull::describe_child;

/// The manifest of a child that a list refers to.
pub(super) struct ChildText {
    /// The runner, or the digest of a child without one; for messages.
    pub(super) runner: String,
    pub(super) text: Vec<u8>,
}

/// A child that is not in the store.
pub(super) struct AbsentChild {
    /// Which entry of the list it is; for messages.
    description: String,
    digest: Digest,
    /// The missing blobs of a child whose manifest stands in the list.
    inline_blobs: Option<Vec<Digest>>,
}

/// Reads a stored manifest list as it is to be pushed; `None` for a single manifest, and for formats without lists.
pub(super) fn read_list(
    store: &Store,
    name: &ModelName,
    format: Format,
) -> Result<Option<Outgoing>, RegistryError> {
    let (entry, bytes) = store.manifest_bytes(name)?;
    let Some(list) = entry.list.as_ref().filter(|_| format == Format::Ollama) else {
        return Ok(None);
    };
    let mut outgoing = Outgoing::of(entry.name.clone(), Vec::new(), bytes, None);
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
                plain(&child.runner, 40)
            };
            outgoing.children.push(ChildText { runner, text: store.child_manifest(&entry, at)? });
        }
    }
    Ok(Some(outgoing))
}

/// Refuses a list with a child that is neither in the store nor at the registry.
pub(super) async fn check_absent(
    session: &Session,
    outgoing: &Outgoing,
) -> Result<(), RegistryError> {
    for child in &outgoing.absent {
        if !is_at_registry(session, child).await? {
            let (name, child) = (outgoing.name.to_string(), child.description.clone());
            return Err(RegistryError::ChildNotHere { name, child });
        }
    }
    Ok(())
}

async fn is_at_registry(session: &Session, child: &AbsentChild) -> Result<bool, RegistryError> {
    let Some(blobs) = &child.inline_blobs else { return session.has_manifest(child.digest).await };
    for blob in blobs {
        match session.blob_size(blob).await {
            Ok(_) => {}
            Err(error) if error.is_absence() => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

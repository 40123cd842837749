//! Writing bundles.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Write};

use puna_store::{Digest, Hasher, Layer, ModelName, Store, StoreError, media};
use serde_json::{Map, Value};

use super::{INDEX, INDEX_TYPE, Index, LAYOUT, Layout, REF_NAME, blob_name};
use crate::descriptor::Descriptor;
use crate::error::RegistryError;
use crate::packaging::Format;
use crate::push::{Outgoing, media_type, read_model};
use crate::tar;

/// Writes models as a bundle. What is written has the digests that it says: a damaged blob ends it. `progress` gets the bytes that
/// are done, and all.
///
/// # Errors
/// A model is not stored or not whole, or the bundle cannot be written.
pub fn write_bundle(
    store: &Store,
    names: &[ModelName],
    format: Format,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), RegistryError> {
    let mut made = Vec::new();
    let models = names.iter().map(|name| {
        if store.get(name)?.manifest.last(media::MODEL).is_none() {
            return Err(RegistryError::NothingToBundle(name.to_string()));
        }
        let model = read_model(store, name, format, None)?;
        made.extend(model.made);
        Ok(model)
    });
    let models: Result<Vec<Outgoing>, RegistryError> = models.collect();
    let written = models.and_then(|models| write(store, &models, out, progress));
    // What was made for the bundle alone.
    store.let_go(made.iter().copied());
    let removed = store.discard_blobs(&made);
    written?;
    Ok(removed?)
}

fn write(
    store: &Store,
    models: &[Outgoing],
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), RegistryError> {
    let layout = Layout { version: "1.0.0".into() };
    let manifests = models.iter().map(listed).collect();
    let index = Index { schema_version: 2, media_type: INDEX_TYPE.into(), manifests };
    let mut bundle = Bundle { out, done: HashSet::new() };
    bundle.file(LAYOUT, &json(&layout)?)?;
    bundle.file(INDEX, &json(&index)?)?;
    for model in models {
        let digest = Digest::of(&model.manifest);
        if bundle.done.insert(digest) {
            bundle.file(&blob_name(&digest), &model.manifest)?;
        }
    }
    let layers: Vec<&Layer> = models.iter().flat_map(|model| &model.layers).collect();
    let (mut written, total) = (0, bundle.missing(&layers));
    for layer in layers {
        if bundle.done.insert(layer.digest) {
            bundle.blob(store, layer, &mut |bytes| {
                written += bytes;
                progress(written, total);
            })?;
        }
    }
    tar::write_end(bundle.out).and_then(|()| bundle.out.flush()).map_err(unwritten)
}

/// What the list says of a model.
fn listed(model: &Outgoing) -> Descriptor {
    let name = Value::from(model.name.to_string());
    Descriptor {
        media_type: media_type(&model.manifest),
        digest: Digest::of(&model.manifest),
        size: model.manifest.len() as u64,
        annotations: Map::from_iter([(REF_NAME.to_owned(), name)]),
    }
}

struct Bundle<'a> {
    out: &'a mut dyn Write,
    /// The blobs that are in it.
    done: HashSet<Digest>,
}

impl Bundle<'_> {
    fn file(&mut self, name: &str, bytes: &[u8]) -> Result<(), RegistryError> {
        let size = bytes.len() as u64;
        let out = &mut self.out;
        let written = tar::write_header(out, name, size)
            .and_then(|()| out.write_all(bytes))
            .and_then(|()| tar::write_padding(out, size));
        written.map_err(unwritten)
    }

    /// Bytes of the blobs that are not in it, each once.
    fn missing(&self, layers: &[&Layer]) -> u64 {
        let mut seen = self.done.clone();
        layers.iter().filter(|layer| seen.insert(layer.digest)).map(|layer| layer.size).sum()
    }

    /// Copies a blob of the store, and compares its digest on the way.
    fn blob(
        &mut self,
        store: &Store,
        layer: &Layer,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), RegistryError> {
        let path = store.layer_file(layer)?;
        let unread = |e: &io::Error| StoreError::io("read", &path, e);
        let mut file = File::open(&path).map_err(|e| unread(&e))?.take(layer.size);
        tar::write_header(&mut self.out, &blob_name(&layer.digest), layer.size)
            .map_err(unwritten)?;
        let (mut hasher, mut buffer, mut left) = (Hasher::default(), vec![0; 1 << 20], layer.size);
        while left > 0 {
            let n = file.read(&mut buffer).map_err(|e| unread(&e))?;
            if n == 0 {
                break;
            }
            hasher.update(&buffer[..n]);
            self.out.write_all(&buffer[..n]).map_err(unwritten)?;
            left -= n as u64;
            progress(n as u64);
        }
        let found = hasher.finish();
        if found != layer.digest {
            return Err(StoreError::DigestMismatch { expected: layer.digest, found }.into());
        }
        tar::write_padding(&mut self.out, layer.size).map_err(unwritten)
    }
}

fn json(value: &impl serde::Serialize) -> Result<Vec<u8>, RegistryError> {
    serde_json::to_vec(value).map_err(|e| RegistryError::Bundle(e.to_string()))
}

fn unwritten(error: io::Error) -> RegistryError {
    RegistryError::BundleWrite(error.to_string())
}

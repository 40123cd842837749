//! Writes bundles.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Write};

use puna_store::{Digest, Hasher, Layer, ModelName, Store, StoreError, media};
use serde_json::{Map, Value};

use super::{
    INDEX_FILE, INDEX_MEDIA_TYPE, ImageLayout, Index, LAYOUT_FILE, REF_NAME_ANNOTATION, blob_path,
};
use crate::error::{BundleProblem, RegistryError};
use crate::packaging::Format;
use crate::packaging::descriptor::Descriptor;
use crate::packaging::tar;
use crate::push::{OutgoingModel, manifest_media_type, read_model};

/// Writes models as a bundle. A damaged blob is an error, so all digests in a bundle are correct.
/// `progress` gets the written bytes and the total.
///
/// # Errors
/// A model is not stored or incomplete, or the bundle cannot be written.
pub fn write_bundle(
    store: &Store,
    names: &[ModelName],
    format: Format,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), RegistryError> {
    let mut temporary = Vec::new();
    let models = names.iter().map(|name| {
        if store.get(name)?.manifest.last(media::MODEL).is_none() {
            return Err(RegistryError::NothingToBundle(name.to_string()));
        }
        let model = read_model(store, name, format, None)?;
        temporary.extend(model.temporary_blob);
        Ok(model)
    });
    let models: Result<Vec<OutgoingModel>, RegistryError> = models.collect();
    let written = models.and_then(|models| write(store, &models, out, progress));
    // These blobs were made for the bundle only.
    store.unpin_blobs(temporary.iter().copied());
    let removed = store.discard_blobs(&temporary);
    written?;
    Ok(removed?)
}

fn write(
    store: &Store,
    models: &[OutgoingModel],
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), RegistryError> {
    let layout = ImageLayout { version: "1.0.0".into() };
    let manifests = models.iter().map(index_entry).collect();
    let index = Index { schema_version: 2, media_type: INDEX_MEDIA_TYPE.into(), manifests };
    let mut bundle = BundleWriter { out, written_blobs: HashSet::new() };
    bundle.write_file(LAYOUT_FILE, &to_json(&layout)?)?;
    bundle.write_file(INDEX_FILE, &to_json(&index)?)?;
    for model in models {
        let digest = Digest::of(&model.manifest);
        if bundle.written_blobs.insert(digest) {
            bundle.write_file(&blob_path(&digest), &model.manifest)?;
        }
    }
    let layers: Vec<&Layer> = models.iter().flat_map(|model| &model.layers).collect();
    let (mut written, total) = (0, bundle.missing_bytes(&layers));
    for layer in layers {
        if bundle.written_blobs.insert(layer.digest) {
            bundle.write_blob(store, layer, &mut |bytes| {
                written += bytes;
                progress(written, total);
            })?;
        }
    }
    tar::write_end(bundle.out).and_then(|()| bundle.out.flush()).map_err(write_error)
}

/// The index entry of a model.
fn index_entry(model: &OutgoingModel) -> Descriptor {
    let name = Value::from(model.name.to_string());
    Descriptor {
        media_type: manifest_media_type(&model.manifest),
        digest: Digest::of(&model.manifest),
        size: model.manifest.len() as u64,
        annotations: Map::from_iter([(REF_NAME_ANNOTATION.to_owned(), name)]),
    }
}

struct BundleWriter<'a> {
    out: &'a mut dyn Write,
    /// Blobs that the bundle contains already.
    written_blobs: HashSet<Digest>,
}

impl BundleWriter<'_> {
    fn write_file(&mut self, name: &str, bytes: &[u8]) -> Result<(), RegistryError> {
        let size = bytes.len() as u64;
        let out = &mut self.out;
        let result = tar::write_header(out, name, size)
            .and_then(|()| out.write_all(bytes))
            .and_then(|()| tar::write_padding(out, size));
        result.map_err(write_error)
    }

    /// Total size of the blobs that are not in the bundle yet.
    fn missing_bytes(&self, layers: &[&Layer]) -> u64 {
        let mut seen = self.written_blobs.clone();
        layers.iter().filter(|layer| seen.insert(layer.digest)).map(|layer| layer.size).sum()
    }

    /// Copies a blob of the store and verifies its digest.
    fn write_blob(
        &mut self,
        store: &Store,
        layer: &Layer,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), RegistryError> {
        let path = store.layer_file(layer)?;
        let read_error = |e: &io::Error| StoreError::io("read", &path, e);
        let mut file = File::open(&path).map_err(|e| read_error(&e))?.take(layer.size);
        tar::write_header(&mut self.out, &blob_path(&layer.digest), layer.size)
            .map_err(write_error)?;
        let (mut hasher, mut buffer, mut left) = (Hasher::default(), vec![0; 1 << 20], layer.size);
        while left > 0 {
            let n = file.read(&mut buffer).map_err(|e| read_error(&e))?;
            if n == 0 {
                break;
            }
            hasher.update(&buffer[..n]);
            self.out.write_all(&buffer[..n]).map_err(write_error)?;
            left -= n as u64;
            progress(n as u64);
        }
        let found = hasher.finish();
        if found != layer.digest {
            return Err(StoreError::DigestMismatch { expected: layer.digest, found }.into());
        }
        tar::write_padding(&mut self.out, layer.size).map_err(write_error)
    }
}

fn to_json(value: &impl serde::Serialize) -> Result<Vec<u8>, RegistryError> {
    Ok(serde_json::to_vec(value).map_err(|e| BundleProblem::Json { reason: e.to_string() })?)
}

fn write_error(error: io::Error) -> RegistryError {
    RegistryError::BundleWrite { reason: error.to_string() }
}

//! Writes models as packages: the manifest and config to push.

use puna_store::{Digest, Entry, Layer, Model, Store, StoreError, media};
use serde_json::{Map, Value, json};

use super::{Artifact, FILE_PATH_ANNOTATIONS, Format, OCI_MANIFEST};
use crate::error::{RegistryError, SetupProblem};
use crate::packaging::descriptor::Descriptor;

/// Package to push.
pub(crate) struct OutgoingPackage {
    pub(crate) manifest: Vec<u8>,
    pub(crate) layers: Vec<Layer>,
    /// Blob that exists only for the push.
    pub(crate) temporary_blob: Option<Digest>,
}

/// Packages a stored model. A model that was pulled in this format is pushed with its original
/// manifest, if all blobs are in the store.
///
/// # Errors
/// The model cannot be read, or the store cannot be written.
pub(crate) fn package(
    store: &Store,
    entry: &Entry,
    format: Format,
) -> Result<OutgoingPackage, RegistryError> {
    if let Some(outgoing) = original_package(store, entry, format)? {
        return Ok(outgoing);
    }
    let model = store.resolve_entry(entry)?;
    let mut layers = Vec::new();
    let mut projector_count = 0;
    for layer in &entry.manifest.layers {
        let file = match layer.media_type.as_str() {
            media::MODEL => format!("{}.gguf", file_stem(&model)),
            media::PROJECTOR => {
                projector_count += 1;
                format!("mmproj-{projector_count}.gguf")
            }
            media::LICENSE => "LICENSE".to_owned(),
            _ => String::new(),
        };
        if let Some(kind) = layer_media_type(&layer.media_type, format) {
            let named = [(FILE_PATH_ANNOTATIONS[0].to_owned(), Value::from(file.clone()))];
            let annotations =
                if file.is_empty() { Map::new() } else { named.into_iter().collect() };
            layers.push(Descriptor {
                media_type: kind,
                digest: layer.digest,
                size: layer.size,
                annotations,
            });
        }
    }
    if let Some(config) = &entry.manifest.config {
        // The other formats have no field for renderer and parser.
        let (digest, size) = (config.digest, config.size);
        layers.push(Descriptor {
            media_type: media::CONFIG.into(),
            digest,
            size,
            annotations: Map::new(),
        });
    }
    let config = match format {
        Format::Docker => docker_config(&model, &layers),
        _ => model_pack_config(&model, &layers),
    };
    let config_bytes = config.to_string().into_bytes();
    let stored = store.add_blob(&config_bytes)?;
    let (config_type, artifact_type) = match format {
        Format::Docker => ("application/vnd.docker.ai.model.config.v0.1+json", ""),
        _ => (
            "application/vnd.cncf.model.config.v1+json",
            "application/vnd.cncf.model.manifest.v1+json",
        ),
    };
    let artifact = Artifact {
        schema_version: 2,
        media_type: OCI_MANIFEST.into(),
        artifact_type: artifact_type.into(),
        config: Descriptor {
            media_type: config_type.into(),
            digest: stored.digest,
            size: stored.size,
            annotations: Map::new(),
        },
        layers,
    };
    let manifest = serde_json::to_vec(&artifact).map_err(SetupProblem::from)?;
    Ok(OutgoingPackage {
        manifest,
        layers: artifact_layers(&artifact),
        temporary_blob: Some(stored.digest),
    })
}

/// The original package of a model, if it has the format and all blobs are in the store.
fn original_package(
    store: &Store,
    entry: &Entry,
    format: Format,
) -> Result<Option<OutgoingPackage>, RegistryError> {
    for layer in entry.manifest.all(OCI_MANIFEST) {
        let path = store.layer_file(layer)?;
        let manifest = std::fs::read(&path).map_err(|e| StoreError::io("read", &path, &e))?;
        let Ok(artifact) = serde_json::from_slice::<Artifact>(&manifest) else { continue };
        let layers = artifact_layers(&artifact);
        if artifact.format() == format && layers.iter().all(|layer| store.layer_file(layer).is_ok())
        {
            return Ok(Some(OutgoingPackage { manifest, layers, temporary_blob: None }));
        }
    }
    Ok(None)
}

fn artifact_layers(artifact: &Artifact) -> Vec<Layer> {
    let all = artifact.layers.iter().chain([&artifact.config]);
    all.map(|blob| Layer::new(&blob.media_type, blob.digest, blob.size)).collect()
}

/// The media type of a layer in the format. `None`: the layer is not part of the package.
fn layer_media_type(media_type: &str, format: Format) -> Option<String> {
    let (docker, pack) = match media_type {
        media::MODEL => ("gguf.v3", "weight.v1.raw"),
        media::PROJECTOR => ("mmproj", "weight.v1.raw"),
        media::LICENSE => ("license", "doc.v1.raw"),
        // Other programs ignore layers with Ollama's media types.
        media::TEMPLATE | media::SYSTEM | media::PARAMS | media::MESSAGES => {
            return Some(media_type.into());
        }
        _ => return None,
    };
    Some(match format {
        Format::Docker => format!("{}{docker}", super::DOCKER_PREFIX),
        _ => format!("{}{pack}", super::MODEL_PACK_PREFIXES[0]),
    })
}

/// File name of the weights without suffix: model name and quantization, in plain characters.
fn file_stem(model: &Model) -> String {
    let quantization = &model.gguf_info.file_type;
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '-' };
    format!("{}-{quantization}", model.name.model()).chars().map(plain).collect()
}

fn digests(layers: &[Descriptor]) -> Vec<Digest> {
    layers.iter().map(|layer| layer.digest).collect()
}

fn digest_texts(digests: &[Digest]) -> Vec<String> {
    digests.iter().map(Digest::to_string).collect()
}

fn docker_config(model: &Model, layers: &[Descriptor]) -> Value {
    let details = model.details();
    let bytes: u64 = layers.iter().map(|layer| layer.size).sum();
    json!({
        "config": {
            "format": "gguf",
            "quantization": details.quantization_level,
            "parameters": details.parameter_size,
            "architecture": model.gguf_info.architecture,
            "size": format!("{:.2} MiB", bytes as f64 / 1_048_576.0),
        },
        "descriptor": {},
        "rootfs": {"type": "rootfs", "diff_ids": digest_texts(&digests(layers))},
    })
}

fn model_pack_config(model: &Model, layers: &[Descriptor]) -> Value {
    json!({
        "descriptor": {"name": model.name.model(), "family": model.gguf_info.architecture},
        "modelfs": {"type": "layers", "diffIds": digest_texts(&digests(layers))},
        "config": {
            "architecture": "transformer",
            "format": "gguf",
            "paramSize": model_pack_size(model.gguf_info.parameter_count),
            "quantization": model.gguf_info.file_type,
        },
    })
}

/// Parameter count in ModelPack's form, such as `1.5B`, with at most one decimal digit.
fn model_pack_size(count: u64) -> String {
    let (scale, letter) = match count {
        1_000_000_000.. => (1e9, "B"),
        1_000_000.. => (1e6, "M"),
        _ => (1e3, "K"),
    };
    let text = format!("{:.1}", count as f64 / scale);
    format!("{}{letter}", text.strip_suffix(".0").unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use super::model_pack_size;

    #[test]
    fn sizes_have_one_decimal_digit() {
        let sizes = [1_543_714_304, 8_000_000_000, 134_515_008, 950].map(model_pack_size);
        assert_eq!(sizes, ["1.5B", "8B", "134.5M", "0.9K"].map(str::to_owned));
    }
}

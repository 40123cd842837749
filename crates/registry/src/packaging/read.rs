//! Reads packages: selects the blobs to fetch, and creates a model from them.

use std::collections::BTreeMap;
use std::sync::Arc;

use puna_store::{
    Config, CreateHooks, CreateRequest, Digest, FileTemplate, JobExecutor, Layer, ModelName, Store,
    StoreError, media,
};
use serde_json::Value;

use super::unpack::{LayerEncoding, check_name, unpack};
use super::{
    Artifact, DOCKER_PREFIX, Format, MODEL_PACK_PREFIXES, OCI_MANIFEST, OLLAMA_PREFIX,
    SourceManifest, TemplateDetector,
};
use crate::error::{ManifestProblem, RegistryError};
use crate::packaging::descriptor::Descriptor;

/// Largest text layer, in bytes.
const MAX_TEXT_BYTES: u64 = 4 << 20;

/// Purpose of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LayerRole {
    /// Weights, or a multimodal projector.
    Weights(LayerEncoding),
    /// Files that safetensors weights need: configuration and tokenizer.
    Companion(LayerEncoding),
    License,
    /// Jinja chat template.
    Template,
    /// Layer with one of Ollama's media types.
    Ollama,
    /// Not needed to run the model.
    Other,
}

/// Package described by a registry's manifest.
pub(crate) struct Package {
    bytes: Vec<u8>,
    artifact: Artifact,
    roles: Vec<LayerRole>,
}

impl Package {
    /// Reads a manifest as a package. `None`: the manifest is in Ollama's format.
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<Self>, RegistryError> {
        let Ok(artifact) = serde_json::from_slice::<Artifact>(bytes) else { return Ok(None) };
        if artifact.format() == Format::Ollama {
            return Ok(None);
        }
        let mut roles: Vec<LayerRole> = artifact.layers.iter().map(layer_role).collect();
        let is_gguf = |(blob, role): (&Descriptor, &LayerRole)| {
            matches!(role, LayerRole::Weights(LayerEncoding::Raw))
                && (blob.media_type.contains("gguf")
                    || blob.file_name().is_some_and(|n| n.ends_with(".gguf")))
        };
        if artifact.layers.iter().zip(&roles).any(is_gguf) {
            // A GGUF file contains the configuration, so the separate files are not needed.
            roles
                .iter_mut()
                .filter(|r| matches!(r, LayerRole::Companion(_)))
                .for_each(|r| *r = LayerRole::Other);
        }
        if !roles.iter().any(|role| matches!(role, LayerRole::Weights(_))) {
            let kinds: Vec<&str> =
                artifact.layers.iter().map(|l| l.media_type.as_str()).take(8).collect();
            let kinds = crate::display::single_line(&kinds.join(", "), 400);
            return Err(ManifestProblem::NoWeights { kinds }.into());
        }
        Ok(Some(Self { bytes: bytes.to_vec(), artifact, roles }))
    }

    /// Digest of the manifest, which identifies the package.
    pub(crate) fn digest(&self) -> Digest {
        Digest::of(&self.bytes)
    }

    /// Blobs to fetch.
    pub(crate) fn blobs(&self) -> Vec<(Digest, u64)> {
        let layers = self.artifact.layers.iter().zip(&self.roles);
        let needed = layers.filter(|(_, role)| **role != LayerRole::Other).map(|(blob, _)| blob);
        needed.chain([&self.artifact.config]).map(|blob| (blob.digest, blob.size)).collect()
    }

    /// Whether the store has the model that this package creates.
    pub(crate) fn is_stored(&self, store: &Store, name: &ModelName) -> Result<bool, StoreError> {
        is_created_from(store, name, &self.digest())
    }

    /// Creates the model from the blobs, which must be in the store. Returns the blobs that only
    /// packed files.
    pub(crate) fn store(
        &self,
        store: &Arc<Store>,
        name: &ModelName,
        keep_unused: bool,
        detect: Option<&dyn TemplateDetector>,
        executor: Option<&dyn JobExecutor>,
    ) -> Result<Vec<Digest>, RegistryError> {
        let mut builder = ModelBuilder::default();
        for (blob, role) in self.artifact.layers.iter().zip(&self.roles) {
            builder.add_layer(store, blob, *role, detect)?;
        }
        let manifest = store.add_blob(&self.bytes)?;
        let config = &self.artifact.config;
        builder.request.extra_layers = vec![
            Layer::new(OCI_MANIFEST, manifest.digest, manifest.size),
            Layer::new(&config.media_type, config.digest, config.size),
        ];
        builder.create(store, name, keep_unused, executor)
    }
}

/// Whether a complete model is stored that was created from the manifest with this digest.
pub(crate) fn is_created_from(
    store: &Store,
    name: &ModelName,
    origin: &Digest,
) -> Result<bool, StoreError> {
    let Some(entry) = store.find(name)? else { return Ok(false) };
    let is_origin = |layer: &Layer| layer.digest == *origin && layer.media_type == OCI_MANIFEST;
    let is_there = |layer: &Layer| {
        std::fs::metadata(store.blob_path(&layer.digest)).is_ok_and(|meta| meta.len() == layer.size)
    };
    Ok(entry.manifest.layers.iter().any(is_origin) && entry.manifest.blobs().all(is_there))
}

/// Collects the parts of a model to create.
#[derive(Default)]
pub(crate) struct ModelBuilder {
    pub(crate) request: CreateRequest,
    /// Blobs that are not needed after the model is created.
    pub(crate) packing_blobs: Vec<Digest>,
}

impl ModelBuilder {
    fn add_layer(
        &mut self,
        store: &Store,
        blob: &Descriptor,
        role: LayerRole,
        detect: Option<&dyn TemplateDetector>,
    ) -> Result<(), RegistryError> {
        match role {
            LayerRole::Weights(LayerEncoding::Raw) | LayerRole::Companion(LayerEncoding::Raw) => {
                let files = self.request.files.get_or_insert_default();
                let number = files.len() + 1;
                let name = match blob.file_name() {
                    Some(name) => check_name(name)?,
                    None => format!("model-{number}.{}", extension(&blob.media_type)),
                };
                self.add_file(name, blob.digest)?;
            }
            LayerRole::Weights(encoding) | LayerRole::Companion(encoding) => {
                self.packing_blobs.push(blob.digest);
                for (name, digest) in unpack(store, &blob.digest, blob.size, encoding)? {
                    self.add_file(name, digest)?;
                }
            }
            LayerRole::License => self.request.license.push(read_text_layer(store, blob)?),
            LayerRole::Template => {
                let source = read_text_layer(store, blob)?;
                let file = FileTemplate { source, ..FileTemplate::default() };
                match detect.and_then(|detect| detect.detect(&file)) {
                    Some(known) => {
                        self.request.template = Some(known.template);
                        if !known.stop.is_empty() {
                            self.request.parameters.insert("stop".into(), known.stop.into());
                        }
                    }
                    None => tracing::info!(
                        "unknown template in the package; using the template of the weights"
                    ),
                }
            }
            LayerRole::Ollama => {
                self.add_ollama_layer(&blob.media_type, read_text_layer(store, blob)?)?
            }
            LayerRole::Other => {}
        }
        Ok(())
    }

    /// Adds the manifest of the model's sources.
    pub(crate) fn set_source(
        &mut self,
        store: &Store,
        origin: &SourceManifest,
    ) -> Result<(), RegistryError> {
        let blob = store.add_blob(&origin.0)?;
        self.request.extra_layers.push(Layer::new(OCI_MANIFEST, blob.digest, blob.size));
        Ok(())
    }

    pub(crate) fn add_file(&mut self, name: String, digest: Digest) -> Result<(), RegistryError> {
        let files = self.request.files.get_or_insert_default();
        if files.contains_key(&name) {
            let name = crate::display::single_line(&name, 100);
            return Err(ManifestProblem::DuplicateFile { name }.into());
        }
        files.insert(name, digest.to_string());
        Ok(())
    }

    /// Adds a layer that this program's own packages have with Ollama's media types.
    fn add_ollama_layer(&mut self, kind: &str, text: String) -> Result<(), RegistryError> {
        let json = |what: &'static str| {
            serde_json::from_str::<Value>(&text).map_err(|_| ManifestProblem::NotJson { what })
        };
        match kind {
            media::TEMPLATE => self.request.template = Some(text),
            media::SYSTEM => self.request.system = Some(text),
            media::LICENSE => self.request.license.push(text),
            media::PARAMS => {
                if let Value::Object(params) = json("parameters")? {
                    self.request.parameters.extend(params);
                }
            }
            media::MESSAGES => {
                if let Value::Array(messages) = json("messages")? {
                    self.request.messages = messages;
                }
            }
            media::CONFIG => {
                let config: Config = serde_json::from_str(&text).unwrap_or_default();
                let set = |text: String| Some(text).filter(|text| !text.is_empty());
                self.request.renderer = set(config.renderer);
                self.request.parser = set(config.parser);
                self.request.requires = set(config.requires);
            }
            _ => {}
        }
        Ok(())
    }

    /// Creates the model. Returns the blobs that only packed files; they may be removed after the
    /// pull.
    pub(crate) fn create(
        mut self,
        store: &Arc<Store>,
        name: &ModelName,
        keep_unused: bool,
        executor: Option<&dyn JobExecutor>,
    ) -> Result<Vec<Digest>, RegistryError> {
        let files: &mut BTreeMap<String, String> = self.request.files.get_or_insert_default();
        let mut packing_blobs = self.packing_blobs;
        if files.keys().any(|name| name.ends_with(".gguf")) {
            // A GGUF file contains what the other files say.
            files.retain(|name, digest| {
                let is_wanted = name.ends_with(".gguf");
                packing_blobs.extend(digest.parse::<Digest>().ok().filter(|_| !is_wanted));
                is_wanted
            });
        }
        // Split files are merged into one.
        if files.len() > 1 {
            packing_blobs.extend(files.values().filter_map(|digest| digest.parse::<Digest>().ok()));
        }
        let hooks = CreateHooks { keep_unused, executor, ..CreateHooks::default() };
        store.create(name, &self.request, &hooks, &mut |_| {})?;
        store.forget_pull(name);
        store.unpin_blobs(packing_blobs.iter().copied());
        Ok(packing_blobs)
    }
}

fn extension(media_type: &str) -> &'static str {
    if media_type.contains("safetensors") { "safetensors" } else { "gguf" }
}

fn read_text_layer(store: &Store, blob: &Descriptor) -> Result<String, RegistryError> {
    let (layer, size) = (blob.digest, blob.size);
    if size > MAX_TEXT_BYTES {
        return Err(ManifestProblem::LongText { layer, size, max: MAX_TEXT_BYTES }.into());
    }
    let path = store.blob_path(&blob.digest);
    let bytes = std::fs::read(&path).map_err(|e| StoreError::io("read", &path, &e))?;
    Ok(String::from_utf8(bytes).map_err(|_| ManifestProblem::NotText { layer })?)
}

/// The role of a layer by its media type.
fn layer_role(blob: &Descriptor) -> LayerRole {
    let kind = blob.media_type.as_str();
    if let Some(kind) = kind.strip_prefix(DOCKER_PREFIX) {
        return match kind {
            "safetensors" | "mmproj" => LayerRole::Weights(LayerEncoding::Raw),
            _ if kind.starts_with("gguf.") => LayerRole::Weights(LayerEncoding::Raw),
            "license" => LayerRole::License,
            "chat.template.jinja" => LayerRole::Template,
            "vllm.config.tar" | "dir.tar" => LayerRole::Companion(LayerEncoding::Tar),
            "model.file" => LayerRole::Companion(LayerEncoding::Raw),
            _ => LayerRole::Other,
        };
    }
    if kind.starts_with(OLLAMA_PREFIX) || kind == media::CONFIG {
        return LayerRole::Ollama;
    }
    let Some(kind) = MODEL_PACK_PREFIXES.iter().find_map(|prefix| kind.strip_prefix(prefix)) else {
        return LayerRole::Other;
    };
    let Some((what, encoding)) = kind.split_once(".v1.") else { return LayerRole::Other };
    let name = blob.file_name().unwrap_or_default().rsplit('/').next().unwrap_or_default();
    match (what, LayerEncoding::from_media_type_suffix(encoding)) {
        ("weight", Some(encoding)) => LayerRole::Weights(encoding),
        ("weight.config", Some(LayerEncoding::Raw)) if name.ends_with(".jinja") => {
            LayerRole::Template
        }
        ("weight.config", Some(encoding)) => LayerRole::Companion(encoding),
        ("doc", Some(LayerEncoding::Raw)) if name.to_ascii_uppercase().starts_with("LICENSE") => {
            LayerRole::License
        }
        _ => LayerRole::Other,
    }
}

//! Packages into models: which blobs are wanted, and what becomes of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use puna_store::{
    Config, CreateRequest, Digest, FileTemplate, Hooks, Layer, ModelName, Store, StoreError, media,
};
use serde_json::Value;

use super::unpack::{Form, check_name, unpack};
use super::{Artifact, DOCKER, DetectTemplate, Format, MANIFEST, MODEL_PACK, OLLAMA, Origin};
use crate::descriptor::Descriptor;
use crate::error::RegistryError;

/// Bytes of a text layer at most.
const MAX_TEXT: u64 = 4 << 20;

/// What a layer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Weights, or projectors of images and sound.
    Weights(Form),
    /// What belongs to weights in safetensors: configuration and tokenizer.
    Companion(Form),
    License,
    /// A Jinja template.
    Template,
    /// A layer of Ollama's kind.
    Ollama,
    /// Nothing that running it needs.
    Other,
}

/// A package as a registry describes it.
pub(crate) struct Package {
    bytes: Vec<u8>,
    artifact: Artifact,
    roles: Vec<Role>,
}

impl Package {
    /// The package that a manifest describes; `None`: it is a model of Ollama's kind.
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<Self>, RegistryError> {
        let Ok(artifact) = serde_json::from_slice::<Artifact>(bytes) else { return Ok(None) };
        if artifact.format() == Format::Ollama {
            return Ok(None);
        }
        let mut roles: Vec<Role> = artifact.layers.iter().map(role).collect();
        let is_gguf = |(blob, role): (&Descriptor, &Role)| {
            matches!(role, Role::Weights(Form::Raw))
                && (blob.media_type.contains("gguf")
                    || blob.file_name().is_some_and(|n| n.ends_with(".gguf")))
        };
        if artifact.layers.iter().zip(&roles).any(is_gguf) {
            // Configuration that comes beside it is in the file too.
            roles
                .iter_mut()
                .filter(|r| matches!(r, Role::Companion(_)))
                .for_each(|r| *r = Role::Other);
        }
        if !roles.iter().any(|role| matches!(role, Role::Weights(_))) {
            let kinds: Vec<&str> =
                artifact.layers.iter().map(|l| l.media_type.as_str()).take(8).collect();
            return Err(RegistryError::NotAManifest(format!(
                "it is a package without weights in GGUF or safetensors; it has {}",
                crate::address::plain(&kinds.join(", "), 400)
            )));
        }
        Ok(Some(Self { bytes: bytes.to_vec(), artifact, roles }))
    }

    /// What the package is known by.
    pub(crate) fn digest(&self) -> Digest {
        Digest::of(&self.bytes)
    }

    /// The blobs to fetch.
    pub(crate) fn blobs(&self) -> Vec<(Digest, u64)> {
        let layers = self.artifact.layers.iter().zip(&self.roles);
        let wanted = layers.filter(|(_, role)| **role != Role::Other).map(|(blob, _)| blob);
        wanted.chain([&self.artifact.config]).map(|blob| (blob.digest, blob.size)).collect()
    }

    /// Whether the store has the model as this package makes it.
    pub(crate) fn is_stored(&self, store: &Store, name: &ModelName) -> Result<bool, StoreError> {
        is_made_of(store, name, &self.digest())
    }

    /// Makes the model of the blobs, which are all there: those that were only packing.
    pub(crate) fn store(
        &self,
        store: &Arc<Store>,
        name: &ModelName,
        keep_unused: bool,
        detect: Option<DetectTemplate>,
    ) -> Result<Vec<Digest>, RegistryError> {
        let mut made = Made::default();
        for (blob, role) in self.artifact.layers.iter().zip(&self.roles) {
            made.take(store, blob, *role, detect)?;
        }
        let manifest = store.add_blob(&self.bytes)?;
        let config = &self.artifact.config;
        made.request.beside = vec![
            Layer::new(MANIFEST, manifest.digest, manifest.size),
            Layer::new(&config.media_type, config.digest, config.size),
        ];
        made.finish(store, name, keep_unused)
    }
}

/// Whether a model is stored, whole, that was made of what has this digest.
pub(crate) fn is_made_of(
    store: &Store,
    name: &ModelName,
    origin: &Digest,
) -> Result<bool, StoreError> {
    let Some(entry) = store.find(name)? else { return Ok(false) };
    let is_origin = |layer: &Layer| layer.digest == *origin && layer.media_type == MANIFEST;
    let is_there = |layer: &Layer| {
        std::fs::metadata(store.blob_path(&layer.digest)).is_ok_and(|meta| meta.len() == layer.size)
    };
    Ok(entry.manifest.layers.iter().any(is_origin) && entry.manifest.blobs().all(is_there))
}

/// A model in the making.
#[derive(Default)]
pub(crate) struct Made {
    pub(crate) request: CreateRequest,
    /// Blobs that are of no use once the model is made.
    pub(crate) spent: Vec<Digest>,
}

impl Made {
    fn take(
        &mut self,
        store: &Store,
        blob: &Descriptor,
        role: Role,
        detect: Option<DetectTemplate>,
    ) -> Result<(), RegistryError> {
        match role {
            Role::Weights(Form::Raw) | Role::Companion(Form::Raw) => {
                let files = self.request.files.get_or_insert_default();
                let number = files.len() + 1;
                let name = match blob.file_name() {
                    Some(name) => check_name(name)?,
                    None => format!("model-{number}.{}", extension(&blob.media_type)),
                };
                self.file(name, blob.digest)?;
            }
            Role::Weights(form) | Role::Companion(form) => {
                self.spent.push(blob.digest);
                for (name, digest) in unpack(store, &blob.digest, blob.size, form)? {
                    self.file(name, digest)?;
                }
            }
            Role::License => self.request.license.push(text(store, blob)?),
            Role::Template => {
                let source = text(store, blob)?;
                let file = FileTemplate { source, ..FileTemplate::default() };
                match detect.and_then(|detect| detect(&file)) {
                    Some(found) => {
                        self.request.template = Some(found.template);
                        if !found.stop.is_empty() {
                            self.request.parameters.insert("stop".into(), found.stop.into());
                        }
                    }
                    None => tracing::info!(
                        "the package's template is not known: that of the weights counts"
                    ),
                }
            }
            Role::Ollama => self.ollama(&blob.media_type, text(store, blob)?)?,
            Role::Other => {}
        }
        Ok(())
    }

    /// Keeps what the model is made of.
    pub(crate) fn made_of(&mut self, store: &Store, origin: &Origin) -> Result<(), RegistryError> {
        let blob = store.add_blob(&origin.0)?;
        self.request.beside.push(Layer::new(MANIFEST, blob.digest, blob.size));
        Ok(())
    }

    pub(crate) fn file(&mut self, name: String, digest: Digest) -> Result<(), RegistryError> {
        let files = self.request.files.get_or_insert_default();
        if files.contains_key(&name) {
            let reason = format!("it has two files called {:?}", crate::address::plain(&name, 100));
            return Err(RegistryError::NotAManifest(reason));
        }
        files.insert(name, digest.to_string());
        Ok(())
    }

    /// What a package of ours says in Ollama's words.
    fn ollama(&mut self, kind: &str, text: String) -> Result<(), RegistryError> {
        let json = |what: &str| {
            serde_json::from_str::<Value>(&text)
                .map_err(|_| RegistryError::NotAManifest(format!("its {what} are no JSON")))
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

    /// Stores the model: the blobs that were only packing, which may go once nobody is at work.
    pub(crate) fn finish(
        mut self,
        store: &Arc<Store>,
        name: &ModelName,
        keep_unused: bool,
    ) -> Result<Vec<Digest>, RegistryError> {
        let files: &mut BTreeMap<String, String> = self.request.files.get_or_insert_default();
        let mut spent = self.spent;
        if files.keys().any(|name| name.ends_with(".gguf")) {
            // What lies beside a GGUF file is in it.
            files.retain(|name, digest| {
                let is_wanted = name.ends_with(".gguf");
                spent.extend(digest.parse::<Digest>().ok().filter(|_| !is_wanted));
                is_wanted
            });
        }
        // Parts of a split file become one.
        if files.len() > 1 {
            spent.extend(files.values().filter_map(|digest| digest.parse::<Digest>().ok()));
        }
        let hooks = Hooks { keep_unused, ..Hooks::default() };
        store.create(name, &self.request, &hooks, &mut |_| {})?;
        store.forget_pull(name);
        store.let_go(spent.iter().copied());
        Ok(spent)
    }
}

fn extension(media_type: &str) -> &'static str {
    if media_type.contains("safetensors") { "safetensors" } else { "gguf" }
}

fn text(store: &Store, blob: &Descriptor) -> Result<String, RegistryError> {
    let wrong = |what: String| {
        RegistryError::NotAManifest(format!("its layer {} {what}", blob.digest.short()))
    };
    if blob.size > MAX_TEXT {
        return Err(wrong(format!("has {} bytes, more than a text of {MAX_TEXT}", blob.size)));
    }
    let path = store.blob_path(&blob.digest);
    let bytes = std::fs::read(&path).map_err(|e| StoreError::io("read", &path, &e))?;
    String::from_utf8(bytes).map_err(|_| wrong("is no text".into()))
}

/// The role of a layer.
fn role(blob: &Descriptor) -> Role {
    let kind = blob.media_type.as_str();
    if let Some(kind) = kind.strip_prefix(DOCKER) {
        return match kind {
            "safetensors" | "mmproj" => Role::Weights(Form::Raw),
            _ if kind.starts_with("gguf.") => Role::Weights(Form::Raw),
            "license" => Role::License,
            "chat.template.jinja" => Role::Template,
            "vllm.config.tar" | "dir.tar" => Role::Companion(Form::Tar),
            "model.file" => Role::Companion(Form::Raw),
            _ => Role::Other,
        };
    }
    if kind.starts_with(OLLAMA) || kind == media::CONFIG {
        return Role::Ollama;
    }
    let Some(kind) = MODEL_PACK.iter().find_map(|prefix| kind.strip_prefix(prefix)) else {
        return Role::Other;
    };
    let Some((what, form)) = kind.split_once(".v1.") else { return Role::Other };
    let name = blob.file_name().unwrap_or_default().rsplit('/').next().unwrap_or_default();
    match (what, Form::of(form)) {
        ("weight", Some(form)) => Role::Weights(form),
        ("weight.config", Some(Form::Raw)) if name.ends_with(".jinja") => Role::Template,
        ("weight.config", Some(form)) => Role::Companion(form),
        ("doc", Some(Form::Raw)) if name.to_ascii_uppercase().starts_with("LICENSE") => {
            Role::License
        }
        _ => Role::Other,
    }
}

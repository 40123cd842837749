//! A model with everything that is needed to run and show it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use puna_gguf::{Gguf, GgufError};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::builtin;
use crate::digest::Digest;
use crate::embedded;
use crate::entry::{ChildList, Entry};
use crate::error::StoreError;
use crate::gguf_info::{GgufInfo, parameter_size};
use crate::manifest::{Config, Layer, media, parse_json, parse_object};
use crate::modelfile::{Instruction, Modelfile, params};
use crate::name::ModelName;
use crate::remote::Remote;
use crate::store::Store;
use crate::summary::Details;

/// Where the weights are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Weights {
    /// In a GGUF file.
    File(PathBuf),
    /// In this program: [`embedded::weights`].
    Embedded,
    /// On other servers: [`Config::remote_host`].
    Remote,
}

/// A model of the store, with the content of its small layers.
#[derive(Debug, Clone)]
pub struct Model {
    /// The name in the store's spelling.
    pub name: ModelName,
    /// The digest of the manifest, or of the chosen child's manifest.
    pub digest: Digest,
    /// The runner that the manifest names, such as `llamacpp`; empty if it names none.
    pub runner: String,
    /// The children, if the name stands for a manifest list.
    pub list: Option<Arc<ChildList>>,
    /// When the name was written.
    pub modified: SystemTime,
    /// Size of all layers in bytes.
    pub size: u64,
    /// Where the weights are.
    pub weights: Weights,
    /// The blob of the weights.
    pub weights_digest: Digest,
    /// LoRA adapters, in order.
    pub adapters: Vec<PathBuf>,
    /// Projectors for images and audio.
    pub projectors: Vec<PathBuf>,
    /// The draft model for speculative decoding.
    pub draft: Option<PathBuf>,
    /// The Go template. Without it, the weights' Jinja template is used
    /// ([`GgufInfo::chat_template`]).
    pub template: Option<String>,
    /// The system message.
    pub system: Option<String>,
    /// Stored options that differ from their defaults.
    pub params: Map<String, Value>,
    /// Messages before every conversation: objects with `role` and `content`.
    pub messages: Vec<Value>,
    /// Licence texts.
    pub licenses: Vec<String>,
    /// The config blob.
    pub config: Config,
    /// The model that this one was made from, or empty.
    pub parent: String,
    /// Properties of the weights' file.
    pub gguf_info: Arc<GgufInfo>,
    /// Properties of the projectors' files.
    pub projector_info: Vec<Arc<GgufInfo>>,
}

impl Store {
    /// Reads a model by name, ignoring case.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], or a blob is missing or damaged.
    pub fn resolve(&self, name: &ModelName) -> Result<Model, StoreError> {
        self.resolve_for(name, None)
    }

    /// Like [`Store::resolve`], with the manifest for `runner` if it is given.
    ///
    /// # Errors
    /// Those of [`Store::resolve`] and [`Entry::for_runner`].
    pub fn resolve_for(&self, name: &ModelName, runner: Option<&str>) -> Result<Model, StoreError> {
        let mut entry = self.get_for(name, runner)?;
        loop {
            let error = match self.resolve_entry(&entry) {
                Err(error) if error.is_not_found() => error,
                done => return done,
            };
            // The model may have been removed or replaced during the read.
            let now = self.get_for(name, runner)?;
            if now.digest == entry.digest {
                return Err(error);
            }
            entry = now;
        }
    }

    /// Reads the model of an entry.
    ///
    /// # Errors
    /// Those of [`Store::resolve`].
    pub fn resolve_entry(&self, entry: &Entry) -> Result<Model, StoreError> {
        self.read_model(entry).map_err(|error| error.for_model(&entry.name))
    }

    fn read_model(&self, entry: &Entry) -> Result<Model, StoreError> {
        let reader = LayerReader { store: self, entry };
        let manifest = &entry.manifest;
        let config: Config = match &manifest.config {
            Some(layer) => parse_object(&reader.bytes(layer)?)
                .map_err(|reason| reader.error(layer, "config", reason))?,
            None => Config::default(),
        };
        let (weights, gguf_info, weights_digest, parent) = if config.remote_host.is_empty() {
            let layer =
                manifest.last(media::MODEL).ok_or_else(|| without_weights(entry, &config))?;
            let (weights, gguf_info) = reader.weights(layer)?;
            (weights, gguf_info, layer.digest, layer.from.clone().unwrap_or_default())
        } else {
            (Weights::Remote, Arc::new(GgufInfo::of_remote(&config)), entry.digest, String::new())
        };
        let paths = |media_type: &str| {
            manifest.all(media_type).map(|l| self.layer_path(l)).collect::<Result<_, _>>()
        };
        let template = manifest.last(media::TEMPLATE).or(manifest.last(media::PROMPT));
        let projector_info = manifest
            .all(media::PROJECTOR)
            .map(|layer| reader.gguf_info(layer, "projector", &self.layer_path(layer)?))
            .collect::<Result<_, _>>()?;
        Ok(Model {
            name: entry.name.clone(),
            digest: entry.shown_digest(),
            runner: entry.runner.clone(),
            list: entry.list.clone(),
            modified: entry.modified,
            size: entry.size(),
            weights,
            weights_digest,
            adapters: paths(media::ADAPTER)?,
            projectors: paths(media::PROJECTOR)?,
            draft: manifest.last(media::DRAFT).map(|l| self.layer_path(l)).transpose()?,
            template: template.map(|l| reader.text(l, "template")).transpose()?,
            system: manifest.last(media::SYSTEM).map(|l| reader.text(l, "system")).transpose()?,
            params: reader.json_or_default(media::PARAMS, "params")?,
            messages: reader.json_or_default(media::MESSAGES, "messages")?,
            licenses: manifest
                .all(media::LICENSE)
                .map(|l| reader.text(l, "license"))
                .collect::<Result<_, _>>()?,
            config,
            parent,
            gguf_info,
            projector_info,
        })
    }
}

/// The error for a manifest without GGUF weights.
fn without_weights(entry: &Entry, config: &Config) -> StoreError {
    let name = entry.name.to_string();
    let is_foreign = |format: &str| !matches!(format, "" | "gguf");
    let format =
        entry.list.as_ref().map_or("", |list| list.children[list.chosen].child.format.as_str());
    let format = if format.is_empty() { config.model_format.as_str() } else { format };
    if entry.runner == "mlx" || is_foreign(format) {
        let or = |text: &str, other: &str| {
            if text.is_empty() { other.to_owned() } else { text.to_owned() }
        };
        return StoreError::NotRunnable {
            name,
            runner: or(&entry.runner, "mlx"),
            format: or(format, "safetensors"),
        };
    }
    StoreError::NoWeights(name)
}

/// Reads the layers of an entry, from a store or from the program.
struct LayerReader<'a> {
    store: &'a Store,
    entry: &'a Entry,
}

impl LayerReader<'_> {
    fn bytes(&self, layer: &Layer) -> Result<Vec<u8>, StoreError> {
        match self.entry.is_embedded() {
            true => embedded::blob(&layer.digest).ok_or(StoreError::BlobMissing(layer.digest)),
            false => self.store.read_layer(layer),
        }
    }

    fn error(&self, layer: &Layer, what: &'static str, reason: String) -> StoreError {
        StoreError::Layer { name: self.entry.name.to_string(), what, digest: layer.digest, reason }
    }

    fn text(&self, layer: &Layer, what: &'static str) -> Result<String, StoreError> {
        String::from_utf8(self.bytes(layer)?)
            .map_err(|e| self.error(layer, what, format!("not UTF-8: {e}")))
    }

    fn json<T: DeserializeOwned>(
        &self,
        layer: &Layer,
        what: &'static str,
    ) -> Result<T, StoreError> {
        parse_json(&self.bytes(layer)?)
            .map_err(|e| self.error(layer, what, format!("not the expected JSON: {e}")))
    }

    /// The last layer of a type; `null` counts as an absent layer.
    fn json_or_default<T: DeserializeOwned + Default>(
        &self,
        media_type: &str,
        what: &'static str,
    ) -> Result<T, StoreError> {
        let layer = self.entry.manifest.last(media_type);
        Ok(layer
            .map(|l| self.json::<Option<T>>(l, what))
            .transpose()?
            .flatten()
            .unwrap_or_default())
    }

    fn weights(&self, layer: &Layer) -> Result<(Weights, Arc<GgufInfo>), StoreError> {
        if self.entry.is_embedded() {
            let info = GgufInfo::of(&Gguf::from_bytes(embedded::weights())?);
            return Ok((Weights::Embedded, Arc::new(info)));
        }
        let path = self.store.layer_path(layer)?;
        // A link points to a file with its own name, which identifies the parts of a split model.
        let is_link = path.symlink_metadata().is_ok_and(|meta| meta.is_symlink());
        let path = if is_link { path.canonicalize().unwrap_or(path) } else { path };
        let info = self.gguf_info(layer, "model", &path)?;
        Ok((Weights::File(path), info))
    }

    /// Properties of a layer's GGUF file. The error of an invalid file goes to clients of the
    /// server, so it names the layer. The path is only logged.
    fn gguf_info(
        &self,
        layer: &Layer,
        what: &'static str,
        path: &Path,
    ) -> Result<Arc<GgufInfo>, StoreError> {
        self.store.gguf_info(&self.entry.name.to_string(), what, layer, path)
    }
}

impl Store {
    /// Properties of the GGUF file of a layer in the model `name`. The error of an invalid file
    /// goes to clients of the server, so it names the layer. The path is only logged.
    fn gguf_info(
        &self,
        name: &str,
        what: &'static str,
        layer: &Layer,
        path: &Path,
    ) -> Result<Arc<GgufInfo>, StoreError> {
        match self.gguf_info_cache.read(&layer.digest, path) {
            Err(StoreError::GgufFile { file, error })
                if !matches!(error, GgufError::Io { .. } | GgufError::FileChanged { .. }) =>
            {
                tracing::info!(model = name, file, %error, "invalid GGUF file");
                Err(StoreError::Layer {
                    name: name.to_owned(),
                    what,
                    digest: layer.digest,
                    reason: without_folder(&error.to_string(), path),
                })
            }
            info => info,
        }
    }

    /// Properties of the GGUF file of a layer of the model that is being created. Its base model
    /// may have the layer.
    pub(crate) fn created_gguf_info(
        &self,
        what: &'static str,
        layer: &Layer,
    ) -> Result<Arc<GgufInfo>, StoreError> {
        let name = layer.from.as_deref().unwrap_or("the model");
        self.gguf_info(name, what, layer, &self.layer_path(layer)?)
    }
}

/// Removes the folder of `path` from a message. File names remain.
fn without_folder(message: &str, path: &Path) -> String {
    let folder = path.parent().map(|folder| format!("{}/", folder.display()));
    folder
        .filter(|folder| folder != "/")
        .map_or_else(|| message.to_owned(), |folder| message.replace(&folder, ""))
}

impl Model {
    /// Family, size and so on. The weights supply what the config omits.
    pub fn details(&self) -> Details {
        let config = &self.config;
        let or =
            |stated: &str, found: String| if stated.is_empty() { found } else { stated.to_owned() };
        Details {
            parent_model: self.parent.clone(),
            format: match self.weights {
                Weights::Remote => config.model_format.clone(),
                _ => or(&config.model_format, "gguf".into()),
            },
            family: or(&config.model_family, self.gguf_info.architecture.clone()),
            families: config.model_families.clone(),
            parameter_size: match self.weights {
                Weights::Remote => config.model_type.clone(),
                _ => or(&config.model_type, parameter_size(self.gguf_info.parameter_count)),
            },
            quantization_level: or(&config.file_type, self.gguf_info.file_type.clone()),
            runner: self.runner.clone(),
        }
    }

    /// What the model can do, in the API's order: `completion`, `embedding` or `rerank` (only
    /// Puna), then capabilities of its files, template and config. With a built-in renderer, the
    /// template's fields do not count, except `Suffix`, which no renderer writes.
    ///
    /// A remote model has the capabilities of its config, or all of them if the config names none:
    /// the other server knows better.
    pub fn capabilities(&self) -> Vec<String> {
        if self.weights == Weights::Remote {
            let stated = &self.config.capabilities;
            let all = || {
                ["completion", "embedding", "vision", "tools", "insert", "thinking"]
                    .map(str::to_owned)
                    .into()
            };
            return if stated.is_empty() { all() } else { stated.clone() };
        }
        let template = self.template.as_deref().unwrap_or_default();
        capabilities(&self.gguf_info, &self.projector_info, template, &self.config)
    }

    /// The Modelfile that `show` prints, without comment lines. A request's `system` and `options`
    /// override the stored ones.
    pub fn modelfile(&self, system: Option<&str>, options: &Map<String, Value>) -> Modelfile {
        let sources = match &self.weights {
            Weights::File(path) => vec![path.display().to_string()],
            Weights::Embedded => vec![self.name.to_string()],
            Weights::Remote => Remote::sources(&self.config.remote_host, &self.config.remote_model),
        };
        let mut all: Vec<_> = sources.into_iter().map(Instruction::From).collect();
        let path = |path: &PathBuf| path.display().to_string();
        all.extend(self.adapters.iter().map(|p| Instruction::Adapter(path(p))));
        all.extend(self.draft.iter().map(|p| Instruction::Draft(path(p))));
        all.extend(self.projectors.iter().map(|p| Instruction::From(path(p))));
        let plain = || (self.weights != Weights::Remote).then(|| "{{ .Prompt }}".into());
        all.extend(self.template.clone().or_else(plain).map(Instruction::Template));
        let system = system.filter(|s| !s.is_empty()).or(self.system.as_deref());
        all.extend(system.map(|text| Instruction::System(text.to_owned())));
        let text = |s: &str| Some(s.to_owned()).filter(|s| !s.is_empty());
        all.extend(text(&self.config.renderer).map(Instruction::Renderer));
        all.extend(text(&self.config.parser).map(Instruction::Parser));
        let mut params = self.params.clone();
        params.extend(options.clone());
        let mut names: Vec<_> = params.keys().collect();
        names.sort();
        for name in names {
            let parameter = |value| Instruction::Parameter { name: name.clone(), value };
            all.extend(params::values(&params[name]).into_iter().map(parameter));
        }
        all.extend(self.licenses.iter().cloned().map(Instruction::License));
        for message in &self.messages {
            let field =
                |key: &str| message.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            all.push(Instruction::Message { role: field("role"), content: field("content") });
        }
        Modelfile { instructions: all, lines: Vec::new() }
    }
}

impl GgufInfo {
    /// Properties of a remote model, from its config.
    fn of_remote(config: &Config) -> Self {
        Self {
            architecture: config.model_family.clone(),
            kind: "model".into(),
            file_type: config.file_type.clone(),
            context_length: config.context_length,
            embedding_length: config.embedding_length,
            ..Self::default()
        }
    }

    /// Capabilities of a file without a store's template and config.
    pub fn capabilities(&self) -> Vec<String> {
        capabilities(self, &[], "", &Config::default())
    }
}

fn capabilities(
    info: &GgufInfo,
    projectors: &[Arc<GgufInfo>],
    go: &str,
    config: &Config,
) -> Vec<String> {
    let mut found: Vec<&str> = Vec::new();
    match info.pooling {
        None if info.is_draft() || info.is_audio() => {}
        None => found.push("completion"),
        Some(GgufInfo::RANK_POOLING) => found.push("rerank"),
        Some(_) => found.push("embedding"),
    }
    if info.vision || projectors.iter().any(|f| f.vision || !f.audio) {
        found.push("vision");
    }
    if info.audio || projectors.iter().any(|f| f.audio) {
        found.push("audio");
    }
    let jinja = info.chat_template.as_deref().unwrap_or_default();
    let built_in = builtin::of_config(config);
    let is_rendered = !config.renderer.is_empty();
    let takes_tools =
        uses_field(go, "Tools") || jinja.contains("tools") || jinja.contains("tool_call");
    if built_in.is_some_and(|one| one.tools) || (takes_tools && !is_rendered) {
        found.push("tools");
    }
    if uses_field(go, "Suffix") {
        found.push("insert");
    }
    let thinks = jinja.contains("<think>") && jinja.contains("</think>");
    let thinks = uses_field(go, "Thinking")
        || thinks
        || matches!(info.architecture.as_str(), "gptoss" | "gpt-oss");
    if built_in.is_some_and(|one| one.thinking) || (thinks && !is_rendered) {
        found.push("thinking");
    }
    for stated in &config.capabilities {
        if !found.contains(&stated.as_str()) {
            found.push(stated);
        }
    }
    found.into_iter().map(str::to_owned).collect()
}

/// Whether a Go template uses a field: `.Tools`, `$.Tools` or `.Tools` at the end of a chain, but
/// not `.ToolsX`.
fn uses_field(template: &str, field: &str) -> bool {
    let dotted = format!(".{field}");
    template.match_indices(&dotted).any(|(at, found)| {
        !template[at + found.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_')
    })
}

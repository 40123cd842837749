//! Creates models from files or from another model: layers, config and manifest.

mod check;
mod files;
mod local;
mod request;
mod split;

use std::path::{Path, PathBuf};

use puna_gguf::escape_for_message;
use serde_json::{Map, Value};

pub use files::check_quantize_type;
pub use local::{LocalFile, LocalPlan, plan_local};
pub use request::{
    CheckDraft, CheckModel, CheckTemplate, CreateHooks, CreateRequest, DetectTemplate,
    FileTemplate, NamedTemplate,
};

use crate::admission::NewModel;
use crate::blobs::NewBlob;
use crate::builtin;
use crate::digest::Digest;
use crate::embedded::params_bytes;
use crate::error::StoreError;
use crate::file_job::JobExecutor;
use crate::gguf_info::{GgufInfo, parameter_size};
use crate::gojson;
use crate::manifest::{Config, Layer, Manifest, media};
use crate::model::Weights;
use crate::name::{ModelName, ModelRef};
use crate::pins::{Pins, WorkGuard};
use crate::progress::{Progress, ProgressFn};
use crate::remote::Remote;
use crate::store::Store;
use files::{FileLayer, UploadedFiles};

impl Store {
    /// Creates or replaces a model. If an error occurs before the first progress message, nothing
    /// was changed. A later error may leave blobs, which [`Store::prune`] removes. The manifest is
    /// written last, so the model is complete or absent.
    ///
    /// # Errors
    /// The request is invalid, [`StoreError::NotFound`] for the `from` model (callers with a
    /// network may pull it and try again), or the store cannot be written.
    pub fn create(
        &self,
        name: &ModelName,
        request: &CreateRequest,
        hooks: &CreateHooks<'_>,
        progress: ProgressFn<'_>,
    ) -> Result<(), StoreError> {
        let built = self.build_model(name, request, hooks, progress)?;
        self.name_built_model(built, hooks.keep_unused, progress)
    }

    /// Like [`Store::create`], up to the manifest: [`Store::name_built_model`] writes it.
    ///
    /// # Errors
    /// Those of [`Store::create`].
    pub fn build_model(
        &self,
        name: &ModelName,
        request: &CreateRequest,
        hooks: &CreateHooks<'_>,
        progress: ProgressFn<'_>,
    ) -> Result<BuiltModel, StoreError> {
        check::check(request, hooks)?;
        let work = self.begin_work();
        let mut builder = ModelBuilder::default();
        let built = self.build(name, request, hooks, progress, &mut builder);
        let files =
            request.files.iter().flatten().chain(&request.adapters).chain(&request.draft_files);
        let files = files.map(|(_, digest)| digest).chain(&request.imatrix);
        let files = files.filter_map(|digest| digest.parse().ok());
        let mut pinned: Vec<Digest> = files.chain(builder.pinned).collect();
        pinned.extend(builder.layers.iter().map(|l| l.layer.digest));
        let mut new_blobs: Vec<Digest> =
            builder.layers.iter().filter(|l| l.is_new).map(|l| l.layer.digest).collect();
        let (name, manifest, config) = match built {
            Ok(built) => built,
            Err(error) => {
                self.pins.unpin(pinned);
                return Err(error);
            }
        };
        pinned.push(config.digest);
        new_blobs.extend(config.is_new.then_some(config.digest));
        let text = manifest.to_bytes();
        let description = NewModel::of_manifest(&name, &manifest, text.len());
        let pins = self.pins.clone();
        Ok(BuiltModel { description, manifest: text, new_blobs, pinned, pins, _work: work })
    }

    /// Writes the manifest of a built model, which replaces a model of the same name.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn name_built_model(
        &self,
        model: BuiltModel,
        keep_unused: bool,
        progress: ProgressFn<'_>,
    ) -> Result<(), StoreError> {
        progress(Progress::status("writing manifest"));
        self.write_manifest(&model.description.name, &model.manifest, keep_unused)?;
        progress(Progress::status("success"));
        Ok(())
    }

    /// Removes the blobs that were stored for a built model only.
    ///
    /// # Errors
    /// The store cannot be written. Garbage collection then removes the blobs.
    pub fn discard_built_model(&self, mut model: BuiltModel) -> Result<(), StoreError> {
        let new_blobs = std::mem::take(&mut model.new_blobs);
        drop(model);
        self.discard_blobs(&new_blobs)
    }

    fn build(
        &self,
        name: &ModelName,
        request: &CreateRequest,
        hooks: &CreateHooks<'_>,
        progress: ProgressFn<'_>,
        builder: &mut ModelBuilder,
    ) -> Result<(ModelName, Manifest, NewBlob), StoreError> {
        let name = self.spelling(name)?;
        let executor = hooks.executor();
        // Check the small importance matrix before the large weights.
        let imatrix = request.imatrix.as_deref();
        let imatrix = imatrix.map(|digest| files::imatrix(self, executor, digest)).transpose()?;
        let remote = request.remote()?;
        match (remote, request.from.as_deref().filter(|from| !from.is_empty())) {
            (Some(Remote { host, model }), _) => {
                builder.config =
                    Config { remote_host: host, remote_model: model, ..Config::default() };
            }
            (None, Some(from)) => {
                builder.take_model(self, from)?;
                if !builder.config.remote_host.is_empty() {
                    check::for_remote(request)?;
                }
            }
            (None, None) => builder.take_files(self, request, hooks, progress)?,
        }
        builder.take_adapters(self, request, executor, progress)?;
        builder.take_draft_files(self, request, executor, progress)?;
        builder.check_loadable(self, request, hooks, progress)?;
        let (kind, draft_kind) = (request.quantize.as_deref(), request.draft_quantize.as_deref());
        builder.quantize(self, executor, kind, imatrix.as_deref(), media::MODEL, progress)?;
        builder.quantize(self, executor, draft_kind, None, media::DRAFT, progress)?;
        builder.set_default_formats(self, request)?;
        builder.apply_request(self, request)?;
        builder.set_config(self, request)?;
        for layer in &builder.layers {
            progress(Progress::status(layer.status(hooks.hides_stored_layers)));
        }
        let config = builder.config.to_bytes();
        let blob = self.add_blob(&config)?;
        let manifest = Manifest {
            config: Some(Layer::new(media::CONFIG, blob.digest, blob.size)),
            layers: builder
                .layers
                .iter()
                .map(|layer| &layer.layer)
                .chain(&request.extra_layers)
                .cloned()
                .collect(),
        };
        Ok((name, manifest, blob))
    }
}

/// A model without its name: all of its blobs are stored. Dropping it lets garbage collection
/// remove them.
pub struct BuiltModel {
    description: NewModel,
    manifest: Vec<u8>,
    /// Blobs that the store did not have before.
    new_blobs: Vec<Digest>,
    pinned: Vec<Digest>,
    pins: Pins,
    _work: WorkGuard,
}

impl BuiltModel {
    /// Name, blobs and manifest of the model.
    pub fn description(&self) -> &NewModel {
        &self.description
    }
}

impl Drop for BuiltModel {
    fn drop(&mut self) {
        // Blobs in a manifest need no pin.
        self.pins.unpin(self.pinned.drain(..));
    }
}

/// A layer of the model that is being created.
struct PendingLayer {
    layer: Layer,
    is_new: bool,
    /// Progress message that replaces the usual one.
    status: Option<String>,
}

impl PendingLayer {
    fn status(&self, hides_stored_layers: bool) -> String {
        match (&self.status, self.is_new || hides_stored_layers) {
            (Some(status), _) => status.clone(),
            (None, true) => format!("creating new layer {}", self.layer.digest),
            (None, false) => format!("using existing layer {}", self.layer.digest),
        }
    }
}

/// The model that is being created.
#[derive(Default)]
struct ModelBuilder {
    layers: Vec<PendingLayer>,
    config: Config,
    params: Map<String, Value>,
    /// Pinned blobs of the `from` model.
    pinned: Vec<Digest>,
}

impl ModelBuilder {
    /// Copies all layers of a model.
    fn take_model(&mut self, store: &Store, from: &str) -> Result<(), StoreError> {
        let ModelRef { name, runner, .. } = ModelRef::parse(from)?;
        let entry = store.pin_model(&name, runner.as_deref())?;
        self.pinned = entry.manifest.blobs().map(|layer| layer.digest).collect();
        let model = store.resolve_entry(&entry)?;
        let short = entry.name.to_string();
        let take = |layer: &Layer| {
            store.touch_blob(&layer.digest);
            let layer = Layer { from: Some(short.clone()), ..layer.clone() };
            PendingLayer { layer, is_new: false, status: None }
        };
        self.layers = entry.manifest.layers.iter().map(take).collect();
        let config = model.config;
        self.config = match model.weights {
            Weights::Remote => config,
            _ => Config {
                model_format: config.model_format,
                renderer: config.renderer,
                parser: config.parser,
                requires: config.requires,
                capabilities: config.capabilities,
                ..Config::default()
            },
        };
        self.params = model.params;
        Ok(())
    }

    /// Makes layers of uploaded files. A known Jinja template adds its Go equivalent.
    fn take_files(
        &mut self,
        store: &Store,
        request: &CreateRequest,
        hooks: &CreateHooks<'_>,
        progress: ProgressFn<'_>,
    ) -> Result<(), StoreError> {
        let sources = UploadedFiles::of(store, request.files.iter().flatten())?;
        sources.check_one_model(store)?;
        if let Some(limit) = sources.sentence_limit(store)? {
            self.params.insert("num_ctx".into(), limit.into());
        }
        let mut file_template = None;
        for FileLayer { layer, is_new, info } in
            sources.into_layers(store, hooks.executor(), progress)?
        {
            if layer.media_type == media::MODEL && hooks.detect_template.is_some() {
                file_template = files::template(store, &layer, &info)?;
            }
            self.layers.push(PendingLayer { layer, is_new, status: None });
        }
        if let (Some(detect), Some(template)) = (hooks.detect_template, file_template)
            && let Some(found) = detect(&template)
        {
            self.set(store, media::TEMPLATE, found.template.as_bytes())?;
            if let Some(layer) = self.layers.last_mut() {
                layer.status = Some(format!("using autodetected template {}", found.name));
            }
            if !found.stop.is_empty() {
                self.params.insert("stop".into(), found.stop.into());
            }
        }
        Ok(())
    }

    /// Makes the layers of adapters, after those that the model already has.
    fn take_adapters(
        &mut self,
        store: &Store,
        request: &CreateRequest,
        executor: &dyn JobExecutor,
        progress: ProgressFn<'_>,
    ) -> Result<(), StoreError> {
        if !request.adapters.is_empty() {
            let model =
                self.layers.iter().rfind(|l| l.layer.media_type == media::MODEL).map(|l| &l.layer);
            let files = files::adapter_layers(store, executor, &request.adapters, model, progress)?;
            for FileLayer { layer, is_new, .. } in files {
                if layer.media_type != media::ADAPTER {
                    let is_it = |digest: &str| digest.parse() == Ok(layer.digest);
                    let named = request.adapters.iter().find(|(_, digest)| is_it(digest));
                    let file =
                        named.map_or("a file".to_owned(), |(name, _)| escape_for_message(name));
                    return Err(StoreError::NotAnAdapter { file });
                }
                self.layers.push(PendingLayer { layer, is_new, status: None });
            }
        }
        let of_type =
            |ty: &'static str| self.layers.iter().filter(move |l| l.layer.media_type == ty);
        let Some(model) = of_type(media::MODEL).next_back() else { return Ok(()) };
        for adapter in of_type(media::ADAPTER) {
            files::check_adapter(store, &adapter.layer, &model.layer)?;
        }
        Ok(())
    }

    /// Makes the layer of the draft model, which replaces an earlier one.
    fn take_draft_files(
        &mut self,
        store: &Store,
        request: &CreateRequest,
        executor: &dyn JobExecutor,
        progress: ProgressFn<'_>,
    ) -> Result<(), StoreError> {
        if request.draft_files.is_empty() {
            return Ok(());
        }
        let files = UploadedFiles::of(store, &request.draft_files)?;
        let mut files = files.into_layers(store, executor, progress)?;
        let (Some(FileLayer { mut layer, is_new, info }), []) = (files.pop(), files.as_slice())
        else {
            return Err(StoreError::SeveralDrafts { files: files.len() + 1 });
        };
        if layer.media_type != media::MODEL || info.pooling.is_some() {
            let kind =
                if info.pooling.is_some() { "an embedding model" } else { info.kind.as_str() };
            return Err(StoreError::NotADraft { kind: kind.to_owned() });
        }
        layer.media_type = media::DRAFT.into();
        self.layers.retain(|l| l.layer.media_type != media::DRAFT);
        self.layers.push(PendingLayer { layer, is_new, status: None });
        Ok(())
    }

    /// Rejects new weights and adapters that the program cannot load. Otherwise the first request
    /// would fail.
    fn check_loadable(
        &self,
        store: &Store,
        request: &CreateRequest,
        hooks: &CreateHooks<'_>,
        progress: ProgressFn<'_>,
    ) -> Result<(), StoreError> {
        let path = |ty: &str| -> Result<Option<PathBuf>, StoreError> {
            let layer = self.layers.iter().rfind(|l| l.layer.media_type == ty);
            layer.map(|l| store.layer_path(&l.layer)).transpose()
        };
        let has_new =
            request.files.is_some() && request.from.is_none() || !request.adapters.is_empty();
        if has_new
            && let Some(check) = hooks.check_model
            && let Some(weights) = path(media::MODEL)?
        {
            let adapters = self.layers.iter().filter(|l| l.layer.media_type == media::ADAPTER);
            let adapters: Vec<_> =
                adapters.map(|l| store.layer_path(&l.layer)).collect::<Result<_, StoreError>>()?;
            let remark =
                check(&weights, &adapters).map_err(|reason| StoreError::NotLoadable { reason })?;
            remark.into_iter().for_each(|remark| progress(Progress::status(remark)));
        }
        if (has_new || !request.draft_files.is_empty())
            && let Some(check) = hooks.check_draft
            && let (Some(weights), Some(draft)) = (path(media::MODEL)?, path(media::DRAFT)?)
        {
            check(&weights, &draft).map_err(|reason| StoreError::DraftNotForModel { reason })?;
        }
        Ok(())
    }

    /// Quantizes the weights of the model or of its draft model, if the request asks for it.
    fn quantize(
        &mut self,
        store: &Store,
        executor: &dyn JobExecutor,
        kind: Option<&str>,
        imatrix: Option<&Path>,
        media_type: &str,
        progress: ProgressFn<'_>,
    ) -> Result<(), StoreError> {
        let Some(kind) = kind.filter(|kind| !kind.is_empty()) else { return Ok(()) };
        let target = files::quantize_type(kind, imatrix.is_some())?;
        for draft in self.layers.iter_mut().filter(|l| l.layer.media_type == media_type) {
            if let Some(FileLayer { layer, is_new, .. }) =
                files::quantized_layer(store, executor, &draft.layer, target, imatrix, progress)?
            {
                let layer = Layer { media_type: media_type.into(), ..layer };
                *draft = PendingLayer { layer, is_new, status: None };
            }
        }
        Ok(())
    }

    /// Applies the request's texts and options. Parameters follow the other texts, as in Ollama.
    fn apply_request(&mut self, store: &Store, request: &CreateRequest) -> Result<(), StoreError> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        if let Some(template) = given(&request.template) {
            self.layers.retain(|l| l.layer.media_type != media::PROMPT);
            self.set(store, media::TEMPLATE, template.as_bytes())?;
        }
        if let Some(system) = given(&request.system) {
            self.set(store, media::SYSTEM, system.as_bytes())?;
        }
        for license in &request.license {
            self.push(store, media::LICENSE, license.as_bytes())?;
        }
        self.params.extend(request.parameters.clone());
        if !self.params.is_empty() {
            let bytes = params_bytes(&self.params);
            self.set(store, media::PARAMS, &bytes)?;
        }
        if !request.messages.is_empty() {
            let text = gojson::to_string_in_order(&Value::Array(request.messages.clone()));
            self.set(store, media::MESSAGES, format!("{text}\n").as_bytes())?;
        }
        Ok(())
    }

    /// Sets the built-in renderer and parser of the architecture, unless the model has others.
    fn set_default_formats(
        &mut self,
        store: &Store,
        request: &CreateRequest,
    ) -> Result<(), StoreError> {
        let is_set = |own: &str, given: &Option<String>| {
            !own.is_empty() || given.as_ref().is_some_and(|given| !given.is_empty())
        };
        let config = &mut self.config;
        if is_set(&config.renderer, &request.renderer) && is_set(&config.parser, &request.parser) {
            return Ok(());
        }
        let Some(model) = self.layers.iter().find(|l| l.layer.media_type == media::MODEL) else {
            return Ok(());
        };
        let info = store.created_gguf_info("model", &model.layer)?;
        let Some((name, stop)) = builtin::of_architecture(&info.architecture) else {
            return Ok(());
        };
        for field in
            [&mut config.renderer, &mut config.parser].into_iter().filter(|field| field.is_empty())
        {
            field.push_str(name);
        }
        if let Some(stop) = stop.filter(|_| !request.parameters.contains_key("stop")) {
            self.params.entry("stop").or_insert_with(|| vec![stop].into());
        }
        Ok(())
    }

    /// Sets the config: properties of the weights, then the request's overrides.
    fn set_config(&mut self, store: &Store, request: &CreateRequest) -> Result<(), StoreError> {
        let config = &mut self.config;
        let mut families = Vec::new();
        let mut model: Option<std::sync::Arc<GgufInfo>> = None;
        for PendingLayer { layer, .. } in
            self.layers.iter().filter(|l| l.layer.media_type == media::MODEL)
        {
            let info = store.created_gguf_info("model", layer)?;
            families.push(info.architecture.clone());
            model = Some(info);
        }
        if !config.remote_host.is_empty() {
            return check::apply_info(config, &request.info);
        }
        let has = |ty: &str| self.layers.iter().any(|l| l.layer.media_type == ty);
        let Some(model) = model else {
            return Err(match () {
                () if has(media::ADAPTER) => StoreError::AdapterWithoutModel,
                () if has(media::PROJECTOR) => StoreError::ProjectorWithoutModel,
                () => StoreError::NotGguf,
            });
        };
        config.model_format = "gguf".into();
        config.model_family.clone_from(&model.architecture);
        config.model_families = Some(families);
        config.model_type = parameter_size(model.parameter_count);
        config.file_type.clone_from(&model.file_type);
        let set = |field: &mut String, value: &Option<String>| {
            if let Some(value) = value.as_ref().filter(|v| !v.is_empty()) {
                field.clone_from(value);
            }
        };
        set(&mut config.renderer, &request.renderer);
        set(&mut config.parser, &request.parser);
        set(
            &mut config.requires,
            &request.requires.as_ref().map(|v| v.trim_start_matches('v').to_owned()),
        );
        check::apply_info(config, &request.info)
    }

    /// Replaces the layer of a type.
    fn set(&mut self, store: &Store, media_type: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.layers.retain(|l| l.layer.media_type != media_type);
        self.push(store, media_type, bytes)
    }

    fn push(&mut self, store: &Store, media_type: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let blob = store.add_blob(bytes)?;
        let layer = Layer::new(media_type, blob.digest, blob.size);
        self.layers.push(PendingLayer { layer, is_new: blob.is_new, status: None });
        Ok(())
    }
}

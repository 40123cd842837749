//! Creating models: from files or another model to layers, config and manifest.

mod check;
mod files;
mod local;
mod request;
mod split;

use std::path::PathBuf;

use serde_json::{Map, Value};

pub use files::check_quantize_type;
pub use local::{LocalFile, LocalPlan, plan_local};
pub use request::{
    CheckDraft, CheckModel, CheckTemplate, CreateRequest, DetectTemplate, FileTemplate, Hooks,
    NamedTemplate, Progress,
};

use crate::builtin;
use crate::digest::Digest;
use crate::embedded::params_bytes;
use crate::error::StoreError;
use crate::facts::{Facts, parameter_size};
use crate::gojson;
use crate::manifest::{Config, Layer, Manifest, media};
use crate::model::Weights;
use crate::name::{ModelName, ModelRef};
use crate::remote::Remote;
use crate::requantize::Imatrix;
use crate::store::Store;
pub(crate) use files::{IMATRIX_TYPES, QUANTIZE_TYPES};
use files::{SourceFile, Sources};

/// Where progress goes.
pub type ProgressFn<'a> = &'a mut dyn FnMut(Progress);

impl Store {
    /// Creates a model, or replaces one of the same name. An error before the first line of progress means that
    /// nothing was done; later ones leave blobs that the next [`Store::prune`] clears away. The manifest comes last, so
    /// the model is there whole or not at all.
    ///
    /// # Errors
    /// What is wrong with the request, [`StoreError::NotFound`] for the model that it is made `from` (callers with a
    /// network may pull it and try again), or the store cannot be written.
    pub fn create(
        &self,
        name: &ModelName,
        request: &CreateRequest,
        hooks: &Hooks<'_>,
        progress: ProgressFn<'_>,
    ) -> Result<(), StoreError> {
        check::check(request, hooks)?;
        let _work = self.work();
        let mut draft = Draft::default();
        let made = self.make(name, request, hooks, progress, &mut draft);
        // Whatever came of it: what a manifest uses needs no pin any more, and the rest may go.
        let files =
            request.files.iter().flatten().chain(&request.adapters).chain(&request.draft_files);
        let files = files.map(|(_, digest)| digest).chain(&request.imatrix);
        let files = files.filter_map(|digest| digest.parse().ok());
        self.release(files.chain(draft.taken).chain(draft.layers.iter().map(|l| l.layer.digest)));
        made
    }

    fn make(
        &self,
        name: &ModelName,
        request: &CreateRequest,
        hooks: &Hooks<'_>,
        progress: ProgressFn<'_>,
        draft: &mut Draft,
    ) -> Result<(), StoreError> {
        let name = self.spelling(name)?;
        // Read first: it is small, and what it is made for is not.
        let imatrix =
            request.imatrix.as_deref().map(|digest| files::imatrix(self, digest)).transpose()?;
        let remote = check::remote(request)?;
        match (remote, request.from.as_deref().filter(|from| !from.is_empty())) {
            (Some(Remote { host, model }), _) => {
                draft.config =
                    Config { remote_host: host, remote_model: model, ..Config::default() };
            }
            (None, Some(from)) => {
                draft.take_model(self, from)?;
                if !draft.config.remote_host.is_empty() {
                    check::for_remote(request)?;
                }
            }
            (None, None) => draft.take_files(self, request, hooks, progress)?,
        }
        draft.take_adapters(self, request, progress)?;
        draft.take_draft_files(self, request, progress)?;
        draft.check_new(self, request, hooks, progress)?;
        draft.quantize(
            self,
            request.quantize.as_deref(),
            imatrix.as_ref(),
            media::MODEL,
            progress,
        )?;
        draft.quantize(self, request.draft_quantize.as_deref(), None, media::DRAFT, progress)?;
        draft.assume_formats(self, request)?;
        draft.edit(self, request)?;
        draft.describe(self, request)?;
        for layer in &draft.layers {
            progress(Progress::status(layer.status()));
        }
        let config = draft.config.to_bytes();
        let blob = self.add_blob(&config)?;
        let manifest = Manifest {
            config: Some(Layer::new(media::CONFIG, blob.digest, blob.size)),
            layers: draft
                .layers
                .iter()
                .map(|layer| &layer.layer)
                .chain(&request.beside)
                .cloned()
                .collect(),
        };
        progress(Progress::status("writing manifest"));
        self.write_manifest(&name, &manifest.to_bytes(), hooks.keep_unused)
            .inspect_err(|_| self.release([blob.digest]))?;
        progress(Progress::status("success"));
        Ok(())
    }
}

/// A layer of the model in the making.
struct DraftLayer {
    layer: Layer,
    is_new: bool,
    /// Said of it instead of whether it is new.
    status: Option<String>,
}

impl DraftLayer {
    fn status(&self) -> String {
        match (&self.status, self.is_new) {
            (Some(status), _) => status.clone(),
            (None, true) => format!("creating new layer {}", self.layer.digest),
            (None, false) => format!("using existing layer {}", self.layer.digest),
        }
    }
}

/// The model in the making.
#[derive(Default)]
struct Draft {
    layers: Vec<DraftLayer>,
    config: Config,
    params: Map<String, Value>,
    /// Blobs of the model that it is made from.
    taken: Vec<Digest>,
}

impl Draft {
    /// Takes over all layers of a model.
    fn take_model(&mut self, store: &Store, from: &str) -> Result<(), StoreError> {
        let ModelRef { name, runner, .. } = ModelRef::parse(from)?;
        let entry = store.hold(&name, runner.as_deref())?;
        self.taken = entry.manifest.blobs().map(|layer| layer.digest).collect();
        let model = store.resolve_entry(&entry)?;
        let short = entry.name.to_string();
        let take = |layer: &Layer| {
            store.touch_blob(&layer.digest);
            let layer = Layer { from: Some(short.clone()), ..layer.clone() };
            DraftLayer { layer, is_new: false, status: None }
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

    /// Makes layers of uploaded files; a Jinja template that is known adds its Go form.
    fn take_files(
        &mut self,
        store: &Store,
        request: &CreateRequest,
        hooks: &Hooks<'_>,
        progress: ProgressFn<'_>,
    ) -> Result<(), StoreError> {
        let sources = Sources::of(store, request.files.iter().flatten())?;
        sources.check_one_model(store)?;
        if let Some(limit) = sources.sentence_limit(store)? {
            self.params.insert("num_ctx".into(), limit.into());
        }
        let mut file_template = None;
        for SourceFile { layer, is_new, facts } in sources.into_layers(store, progress)? {
            if layer.media_type == media::MODEL && hooks.detect_template.is_some() {
                file_template = files::template(store, &layer, &facts)?;
            }
            self.layers.push(DraftLayer { layer, is_new, status: None });
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

    /// Makes the layers of adapters, behind those that the model had before.
    fn take_adapters(
        &mut self,
        store: &Store,
        request: &CreateRequest,
        progress: ProgressFn<'_>,
    ) -> Result<(), StoreError> {
        if !request.adapters.is_empty() {
            let model =
                self.layers.iter().rfind(|l| l.layer.media_type == media::MODEL).map(|l| &l.layer);
            let files = files::adapter_layers(store, &request.adapters, model, progress)?;
            for SourceFile { layer, is_new, .. } in files {
                if layer.media_type != media::ADAPTER {
                    let is_it = |digest: &str| digest.parse() == Ok(layer.digest);
                    let named = request.adapters.iter().find(|(_, digest)| is_it(digest));
                    let file =
                        named.map_or("a file".to_owned(), |(name, _)| crate::name::shown(name));
                    return Err(StoreError::NotAnAdapter { file });
                }
                self.layers.push(DraftLayer { layer, is_new, status: None });
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

    /// Makes the layer of the draft model, which replaces one that the model had before.
    fn take_draft_files(
        &mut self,
        store: &Store,
        request: &CreateRequest,
        progress: ProgressFn<'_>,
    ) -> Result<(), StoreError> {
        if request.draft_files.is_empty() {
            return Ok(());
        }
        let mut files = Sources::of(store, &request.draft_files)?.into_layers(store, progress)?;
        let (Some(SourceFile { mut layer, is_new, facts }), []) = (files.pop(), files.as_slice())
        else {
            return Err(StoreError::ManyDrafts { files: files.len() + 1 });
        };
        if layer.media_type != media::MODEL || facts.pooling.is_some() {
            let kind =
                if facts.pooling.is_some() { "an embedding model" } else { facts.kind.as_str() };
            return Err(StoreError::NotADraft { kind: kind.to_owned() });
        }
        layer.media_type = media::DRAFT.into();
        self.layers.retain(|l| l.layer.media_type != media::DRAFT);
        self.layers.push(DraftLayer { layer, is_new, status: None });
        Ok(())
    }

    /// Refuses new weights and adapters that the program could not load: nobody would learn of it before the first question.
    fn check_new(
        &self,
        store: &Store,
        request: &CreateRequest,
        hooks: &Hooks<'_>,
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
            check(&weights, &draft).map_err(|reason| StoreError::NotADraftOfIt { reason })?;
        }
        Ok(())
    }

    /// Replaces the weights of the model or its draft model by their quantized form, where the request asks for it.
    fn quantize(
        &mut self,
        store: &Store,
        kind: Option<&str>,
        imatrix: Option<&Imatrix>,
        media_type: &str,
        progress: ProgressFn<'_>,
    ) -> Result<(), StoreError> {
        let Some(kind) = kind.filter(|kind| !kind.is_empty()) else { return Ok(()) };
        let target = files::quantize_type(kind, imatrix.is_some())?;
        for draft in self.layers.iter_mut().filter(|l| l.layer.media_type == media_type) {
            if let Some(SourceFile { layer, is_new, .. }) =
                files::quantized_layer(store, &draft.layer, target, imatrix, progress)?
            {
                let layer = Layer { media_type: media_type.into(), ..layer };
                *draft = DraftLayer { layer, is_new, status: None };
            }
        }
        Ok(())
    }

    /// What the request says about texts and options. Parameters go behind the other texts, as Ollama has them.
    fn edit(&mut self, store: &Store, request: &CreateRequest) -> Result<(), StoreError> {
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

    /// Architectures with a built-in renderer and parser have them unless other ones are given.
    fn assume_formats(&mut self, store: &Store, request: &CreateRequest) -> Result<(), StoreError> {
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
        let facts = store.facts(&model.layer.digest, &store.layer_path(&model.layer)?)?;
        let Some((name, stop)) = builtin::of_architecture(&facts.architecture) else {
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

    /// The config: what the weights say, then what the request overrides.
    fn describe(&mut self, store: &Store, request: &CreateRequest) -> Result<(), StoreError> {
        let config = &mut self.config;
        let mut families = Vec::new();
        let mut model: Option<std::sync::Arc<Facts>> = None;
        for DraftLayer { layer, .. } in
            self.layers.iter().filter(|l| l.layer.media_type == media::MODEL)
        {
            let facts = store.facts(&layer.digest, &store.layer_path(layer)?)?;
            families.push(facts.architecture.clone());
            model = Some(facts);
        }
        if !config.remote_host.is_empty() {
            return check::apply_info(config, &request.info);
        }
        let has = |ty: &str| self.layers.iter().any(|l| l.layer.media_type == ty);
        let Some(model) = model else {
            return Err(match () {
                () if has(media::ADAPTER) => StoreError::AdapterAlone,
                () if has(media::PROJECTOR) => StoreError::ProjectorAlone,
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
        self.layers.push(DraftLayer { layer, is_new: blob.is_new, status: None });
        Ok(())
    }
}

/// The digest that a request gives for a file, which must be in the store.
fn stored(store: &Store, digest: &str) -> Result<Digest, StoreError> {
    let digest: Digest = digest.parse()?;
    store.pin(&digest);
    store.touch_blob(&digest);
    if store.has_blob(&digest) { Ok(digest) } else { Err(StoreError::BlobMissing(digest)) }
}

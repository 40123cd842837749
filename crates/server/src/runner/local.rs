//! Implements [`RunnerModel`] with this program's engine on the CPU.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use puna_cpu::{Config, CpuBackend};
use puna_engine::{
    Adapter, DraftModel, Engine, EngineError, EngineOptions, ModelError, PAGE_TOKENS, Pooling,
    Request, Sink, plan_memory, plan_memory_with_draft,
};
use puna_gguf::{Gguf, GgufError, View};
use puna_graph::{BackendError, KvType};
use puna_sampler::{Constraint, Grammar};
use puna_store::embedded;
use puna_tokenizer::{EncodeOptions, Tokenizer, TokenizerError};

use super::protocol::{Counts, Heartbeat, LoadSpec, MemoryParts, is_out_of_memory};
use super::runner_model::{
    EmbedCallback, EncodeCancelled, EncodeResult, LoadError, Loader, PairFormat, RerankCallback,
    RunnerModel, RunnerModelInfo,
};
use super::worker::encoding_bytes;
use crate::canonical::TokenizeTask;
use crate::model_scheduler::LoadOptions;
use crate::options::speculate::DraftModelSpec;

/// Prompt tokens of a step if the request does not set a number.
const DEFAULT_BATCH_TOKENS: u32 = 512;

/// Maximum number of prompt tokens of a step; larger batches only cost memory.
const MAX_BATCH_TOKENS: u32 = 8192;

/// Logs the devices that run models, with the settings of the server.
pub(crate) fn log_devices(threads: Option<usize>, kernels: Option<String>) {
    let config = Config { threads, capped: true, kernels, ..Config::default() };
    let Ok(device) = puna_cpu::describe(&config) else { return };
    let memory = crate::memory();
    let gib = |bytes: u64| match bytes {
        u64::MAX => "unknown".to_owned(),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    };
    tracing::info!(
        device = device.device,
        threads = device.threads,
        kernels = device.kernels,
        memory = gib(memory.total),
        available = gib(memory.available),
        "models run on the CPU"
    );
}

/// Loads models into this program's engine, on the CPU.
pub(crate) struct LocalLoader;

impl Loader for LocalLoader {
    fn plan(&self, spec: &LoadSpec) -> Result<MemoryParts, LoadError> {
        // Planning computes nothing, so one thread suffices.
        let config =
            Config { threads: Some(1), kernels: spec.kernels.clone(), ..Config::default() };
        let (view, options) = (open_view(spec.weights.as_deref())?, engine_options(spec)?);
        let Some(draft) = &spec.options.draft else {
            let report = plan_memory(&view, backend(&config)?, &options).map_err(engine_error)?;
            return Ok(memory_parts(&report));
        };
        let report = open_draft_model(draft, &config).and_then(|draft_model| {
            let report = plan_memory_with_draft(&view, backend(&config)?, &options, draft_model);
            report.map_err(|error| draft_error(draft, error, &options))
        });
        match report {
            Ok(report) => Ok(memory_parts(&report)),
            // `load` logs the reason.
            Err(error) if draft.optional && !error.out_of_memory => self.plan(&without_draft(spec)),
            Err(error) => Err(error),
        }
    }

    fn load(&self, spec: &LoadSpec) -> Result<Box<dyn RunnerModel>, LoadError> {
        let threads = spec.threads.or(Some(spec.options.num_thread as usize).filter(|n| *n > 0));
        let config = Config {
            threads: threads.inspect(|wanted| warn_about_threads(*wanted)),
            capped: true,
            kernels: spec.kernels.clone(),
            deterministic: spec.options.deterministic,
        };
        let (engine, templates) = open_engine(spec, &config)?;
        let tokenizer = engine.tokenizer();
        let text = |token: Option<u32>| {
            token
                .map(|t| String::from_utf8_lossy(tokenizer.text(t)).into_owned())
                .unwrap_or_default()
        };
        let model_info = RunnerModelInfo {
            num_ctx: u32::try_from(engine.info().n_ctx).unwrap_or(u32::MAX),
            chat_template: templates.chat.filter(|t| !t.is_empty()),
            bos: text(tokenizer.bos()),
            eos: text(tokenizer.eos()),
            end_texts: tokenizer.eog().iter().map(|end| text(Some(*end))).collect(),
            embeds: !matches!(engine.info().pooling, Pooling::None | Pooling::Rank),
            pair_format: engine.info().can_rerank.then(|| pair_format(tokenizer, templates.rerank)),
            max_token_bytes: tokenizer.max_token_bytes(),
            adapters: spec.adapters.len(),
            is_diffusion: engine.info().unmasking.is_some(),
        };
        Ok(Box::new(LocalModel { engine, model_info }))
    }
}

/// Returns the reason why this program cannot load weights with their adapters. An unknown
/// architecture or a missing vocabulary yields only a warning, because another program that uses
/// the same model folder may support it.
pub(super) fn check_model(weights: &Path, adapters: &[PathBuf]) -> Result<Option<String>, String> {
    let check = || {
        let adapters =
            adapters.iter().map(|path| open_adapter(path)).collect::<Result<Vec<_>, _>>()?;
        let view = open_view(Some(weights))?;
        match puna_engine::check_model(&view, &adapters) {
            Ok(()) => Ok(None),
            Err(EngineError::Model(error @ ModelError::UnknownArchitecture { .. })) => {
                Ok(Some(format!("warning: {error}; this version cannot run it")))
            }
            Err(EngineError::Tokenizer(error @ TokenizerError::NoVocabulary { .. })) => {
                Ok(Some(format!("warning: {error}")))
            }
            Err(error) => Err(engine_error(error)),
        }
    };
    check().map_err(|error: LoadError| error.message)
}

/// Returns the reason why a draft model does not fit these weights.
pub(super) fn check_draft(weights: &Path, draft: &Path) -> Result<(), String> {
    let check = || {
        puna_engine::check_draft(&open_view(Some(weights))?, &open_view(Some(draft))?)
            .map_err(engine_error)
    };
    check().map_err(|error: LoadError| error.message)
}

/// Returns the layout of query–document pairs, as llama.cpp has it: each special token stands only
/// if the file wants it around texts.
fn pair_format(tokenizer: &Tokenizer, template: Option<String>) -> PairFormat {
    let end = tokenizer.eos().or(tokenizer.sep()).filter(|_| tokenizer.add_eos());
    let separator = tokenizer.sep().filter(|_| tokenizer.add_sep());
    PairFormat {
        template: template.filter(|t| !t.is_empty()),
        before: tokenizer.bos().filter(|_| tokenizer.add_bos()).into_iter().collect(),
        between: end.into_iter().chain(separator).collect(),
        after: end.into_iter().collect(),
    }
}

/// Warns about more threads than processors, which only wait for each other. A model made on a
/// larger machine may ask for them.
fn warn_about_threads(wanted: usize) {
    let processors = std::thread::available_parallelism().map_or(wanted, |n| n.get());
    if wanted > processors {
        tracing::warn!(
            wanted,
            processors,
            "fewer processors than requested threads; using one thread per processor"
        );
    }
}

fn backend(config: &Config) -> Result<Box<CpuBackend>, LoadError> {
    CpuBackend::new(config).map(Box::new).map_err(load_error)
}

fn open_draft_model(draft: &DraftModelSpec, config: &Config) -> Result<DraftModel, LoadError> {
    let view =
        open_view(draft.weights.as_deref()).map_err(|error| name_draft_in_error(draft, error))?;
    Ok(DraftModel { view, backend: backend(config)? })
}

/// Adds the name of the draft model to its error.
fn name_draft_in_error(draft: &DraftModelSpec, error: LoadError) -> LoadError {
    let digest = draft.weights.as_ref().and_then(|path| path.file_name()?.to_str());
    let digest = digest.and_then(|name| name.strip_prefix("sha256-")?.get(..12));
    let layer = digest.map_or_else(String::new, |digest| format!(" (layer {digest})"));
    let message = format!("{}{layer} cannot be a draft model: {}", draft.name, error.message);
    LoadError { message, ..error }
}

/// Converts the error of a model with its draft model. Checks the draft model alone to find out
/// which of the two caused the error.
fn draft_error(draft: &DraftModelSpec, error: EngineError, options: &EngineOptions) -> LoadError {
    let error_alone = || {
        let single_thread = Config { threads: Some(1), ..Config::default() };
        let draft = open_draft_model(draft, &single_thread).ok()?;
        match draft.is_companion() {
            true => puna_engine::check_model(&draft.view, &[]).err(),
            false => plan_memory(&draft.view, draft.backend, options).err(),
        }
    };
    // Only a draft model must be able to generate; a target model is loaded either way.
    let is_draft_only_error = matches!(
        error,
        EngineError::CannotGenerate
            | EngineError::DraftVocabulary { .. }
            | EngineError::RecurrentDraft { .. }
            | EngineError::EncoderDraft { .. }
            | EngineError::DiffusionDraft { .. }
            | EngineError::DraftCacheType { .. }
            | EngineError::Model(ModelError::Companion { .. } | ModelError::UnreadableLayer { .. })
    );
    let is_of_draft = is_draft_only_error || error_alone().is_some_and(|found| found == error);
    let error = engine_error(error);
    if is_of_draft { name_draft_in_error(draft, error) } else { error }
}

fn without_draft(spec: &LoadSpec) -> LoadSpec {
    LoadSpec { options: LoadOptions { draft: None, ..spec.options.clone() }, ..spec.clone() }
}

/// Templates in a model file.
struct FileTemplates {
    chat: Option<String>,
    /// Template of query–document pairs.
    rerank: Option<String>,
}

impl FileTemplates {
    fn of(view: &View) -> Self {
        let text = |key| view.metadata().opt_str(key).ok().flatten().map(str::to_owned);
        Self {
            chat: text("tokenizer.chat_template"),
            rerank: text("tokenizer.chat_template.rerank"),
        }
    }
}

/// Loads a model with its draft model, if it has one, and the templates of its file. An optional
/// draft model that cannot be used is left out.
fn open_engine(spec: &LoadSpec, config: &Config) -> Result<(Engine, FileTemplates), LoadError> {
    let (view, options) = (open_view(spec.weights.as_deref())?, engine_options(spec)?);
    let templates = FileTemplates::of(&view);
    let Some(draft) = &spec.options.draft else {
        let engine = Engine::open(view, backend(config)?, &options).map_err(engine_error)?;
        return Ok((engine, templates));
    };
    let engine = open_draft_model(draft, config).and_then(|draft_model| {
        let engine = Engine::open_with_draft(view, backend(config)?, &options, draft_model);
        engine.map_err(|error| draft_error(draft, error, &options))
    });
    match engine {
        Ok(engine) => Ok((engine, templates)),
        // If memory is short, the scheduler leaves the draft model out and records that.
        Err(error) if draft.optional && !error.out_of_memory => {
            let result = open_engine(&without_draft(spec), config)?;
            tracing::warn!(
                draft = draft.name,
                error = error.message,
                "cannot use the draft model; loading without it"
            );
            Ok(result)
        }
        Err(error) => Err(error),
    }
}

/// Opens the file at a path, or the model embedded in this program if there is none.
fn open_view(weights: Option<&Path>) -> Result<View, LoadError> {
    let gguf = match weights {
        Some(path) => Gguf::open(path),
        None => Gguf::from_bytes(embedded::weights()),
    };
    let gguf = gguf.map_err(|error| file_error(&error))?;
    View::new(Arc::new(gguf)).map_err(|error| file_error(&error))
}

/// Opens the adapter at a path. Its name is `general.name` with the file name, or the file name
/// alone.
fn open_adapter(path: &Path) -> Result<Adapter, LoadError> {
    let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let gguf = Gguf::open(path).map_err(|error| LoadError {
        message: format!("adapter {file}: {error}"),
        ..file_error(&error)
    })?;
    let name =
        gguf.metadata().opt_str("general.name").ok().flatten().filter(|name| !name.is_empty());
    let name = name.map_or_else(|| file.clone(), |name| format!("{name:?} ({file})"));
    Ok(Adapter::new(name, Arc::new(gguf)))
}

fn engine_options(spec: &LoadSpec) -> Result<EngineOptions, LoadError> {
    let options = &spec.options;
    let kind = KvType::ALL.into_iter().find(|kind| kind.name() == spec.kv_cache_type).ok_or_else(
        || {
            let known = KvType::ALL.map(KvType::name).join(", ");
            let given = &spec.kv_cache_type;
            LoadError {
                message: format!(
                    "OLLAMA_KV_CACHE_TYPE is {given:?}, which is not supported: use one of {known}"
                ),
                ..LoadError::default()
            }
        },
    )?;
    Ok(EngineOptions {
        num_ctx: Some(options.num_ctx as usize),
        num_batch: options.num_batch.unwrap_or(DEFAULT_BATCH_TOKENS).clamp(1, MAX_BATCH_TOKENS)
            as usize,
        cache_k: kind,
        cache_v: kind,
        max_sequences: options.parallel.map(|max| max.max(1) as usize),
        // One additional page, so that a sequence that shares all pages but the last can copy that
        // one.
        cache_pages: Some((options.cache.max(options.num_ctx) as usize).div_ceil(PAGE_TOKENS) + 1),
        adapters: spec.adapters.iter().map(|path| open_adapter(path)).collect::<Result<_, _>>()?,
        ..EngineOptions::default()
    })
}

/// Converts an error of the engine. Its type identifies a lack of memory, so that another model can
/// be unloaded.
fn engine_error(error: EngineError) -> LoadError {
    let out_of_memory = matches!(error, EngineError::Backend(BackendError::OutOfMemory { .. }));
    let is_invalid_model = match &error {
        EngineError::Model(ModelError::Gguf(error)) => is_invalid_file(error),
        EngineError::Model(_) | EngineError::Tokenizer(_) => true,
        EngineError::CannotGenerate
        | EngineError::DraftVocabulary { .. }
        | EngineError::RecurrentDraft { .. }
        | EngineError::EncoderDraft { .. }
        | EngineError::DiffusionDraft { .. } => true,
        _ => false,
    };
    let result = load_error(error);
    let out_of_memory = out_of_memory || result.out_of_memory;
    LoadError { out_of_memory, is_invalid_model: is_invalid_model && !out_of_memory, ..result }
}

/// Converts an error of a GGUF file.
fn file_error(error: &GgufError) -> LoadError {
    LoadError { is_invalid_model: is_invalid_file(error), ..load_error(error) }
}

/// Whether the content of a file is at fault, rather than the disk or the system.
fn is_invalid_file(error: &GgufError) -> bool {
    match error {
        GgufError::Io { .. } | GgufError::FileChanged { .. } => false,
        GgufError::InPart { error, .. } => is_invalid_file(error),
        _ => true,
    }
}

fn load_error(error: impl std::fmt::Display) -> LoadError {
    let message = error.to_string();
    LoadError { out_of_memory: is_out_of_memory(&message), message, is_invalid_model: false }
}

fn memory_parts(report: &puna_engine::MemoryReport) -> MemoryParts {
    MemoryParts {
        weights: report.weights,
        kv: report.cache + report.states,
        scratch: report.scratch,
        draft: report.draft,
        other: encoding_bytes(),
    }
}

/// Model loaded into this program's engine.
struct LocalModel {
    engine: Engine,
    model_info: RunnerModelInfo,
}

impl LocalModel {
    fn tokenizer(&self) -> &Tokenizer {
        self.engine.tokenizer()
    }
}

impl RunnerModel for LocalModel {
    fn model_info(&self) -> &RunnerModelInfo {
        &self.model_info
    }

    fn encode(&self, text: &str, cancelled: &AtomicBool) -> EncodeResult {
        self.encode_prompt(&[(text, true)], "", cancelled)
    }

    fn tokenize(&self, text: &TokenizeTask, cancelled: &AtomicBool) -> EncodeResult {
        let TokenizeTask { text, add_special, parse_special } = text;
        let options = EncodeOptions { add_special: *add_special, parse_special: *parse_special };
        self.tokenizer().try_encode(text, options, cancelled)
    }

    fn encode_parts(&self, parts: &[(&str, bool)], cancelled: &AtomicBool) -> EncodeResult {
        self.tokenizer().try_encode_parts(parts, false, cancelled)
    }

    fn encode_prompt(
        &self,
        parts: &[(&str, bool)],
        leading_bos: &str,
        cancelled: &AtomicBool,
    ) -> EncodeResult {
        self.tokenizer().try_encode_prompt_parts(parts, leading_bos, cancelled)
    }

    fn controls_in(
        &self,
        text: &str,
        cancelled: &AtomicBool,
    ) -> Result<Vec<Range<usize>>, EncodeCancelled> {
        self.tokenizer().try_controls_in(text, cancelled)
    }

    fn decode(&self, tokens: &[u32]) -> String {
        self.tokenizer().decode(tokens, true)
    }

    fn control_token(&self, text: &str) -> Option<u32> {
        self.tokenizer().token_id(text).filter(|token| self.tokenizer().is_control(*token))
    }

    fn token_bytes(&self, token: u32) -> Vec<u8> {
        self.tokenizer().piece(token).to_vec()
    }

    fn is_bos(&self, token: u32) -> bool {
        self.tokenizer().add_bos() && self.tokenizer().bos() == Some(token)
    }

    fn vocab_size(&self) -> usize {
        self.tokenizer().vocab_size()
    }

    fn grammar(
        &self,
        constraint: &Constraint,
        whole: bool,
        cancelled: &AtomicBool,
    ) -> Result<Grammar, String> {
        self.engine.try_grammar(constraint, whole, cancelled).map_err(|e| e.to_string())
    }

    fn check_request(&self, request: &Request) -> Result<(), EngineError> {
        self.engine.check(request)
    }

    fn submit(&self, request: Request, sink: Box<dyn Sink>) -> Result<u64, EngineError> {
        self.engine.submit(request, sink).map(|id| id.0)
    }

    fn cancel(&self, request: u64) {
        self.engine.cancel(puna_engine::RequestId(request));
    }

    fn wake(&self) {
        self.engine.wake();
    }

    fn embed(
        &self,
        client: u64,
        inputs: Vec<Vec<u32>>,
        done: EmbedCallback,
    ) -> Result<u64, EngineError> {
        self.engine.embed(client, inputs, done).map(|id| id.0)
    }

    fn rerank(
        &self,
        client: u64,
        pairs: Vec<Vec<u32>>,
        done: RerankCallback,
    ) -> Result<u64, EngineError> {
        self.engine.rerank(client, pairs, done).map(|id| id.0)
    }

    fn heartbeat(&self) -> Heartbeat {
        let stats = self.engine.stats();
        let is_busy = stats.running + stats.waiting > 0;
        let (prompt_tokens, generated_tokens) = (stats.prompt_tokens, stats.generated_tokens);
        let (steps, preempted) = (stats.steps, stats.preempted);
        let draft_counts = stats.draft_stats.into();
        Heartbeat {
            memory: memory_parts(&self.engine.memory()),
            rounds: stats.rounds,
            is_busy,
            running: stats.running as u64,
            waiting: stats.waiting as u64,
            pages: stats.pages as u64,
            pages_in_use: stats.pages_in_use as u64,
            pages_pinned: stats.pages_pinned as u64,
            window_pages: [
                stats.window_pages,
                stats.window_pages_in_use,
                stats.window_pages_pinned,
            ]
            .map(|pages| pages as u64),
            counts: Counts { prompt_tokens, generated_tokens, draft_counts, steps, preempted },
        }
    }
}

#[cfg(test)]
mod tests {
    use puna_graph::{Backend, CacheLayer, CacheSpec, Mask};

    use super::*;

    fn spec(draft: DraftModelSpec) -> LoadSpec {
        let options = LoadOptions { num_ctx: 64, draft: Some(draft), ..LoadOptions::default() };
        LoadSpec {
            weights: None,
            adapters: Vec::new(),
            options,
            kv_cache_type: "f16".into(),
            kernels: None,
            threads: Some(1),
        }
    }

    #[test]
    fn the_plan_counts_the_memory_of_concurrent_encodings() {
        let draft = DraftModelSpec { name: "d".into(), weights: None, optional: true };
        let plan = LocalLoader.plan(&without_draft(&spec(draft))).unwrap();
        assert_eq!(plan.other, encoding_bytes());
        // A piece of 64 KiB takes four times its size, in at least eight threads.
        assert!(plan.other >= 8 * 4 * (64 << 10), "{}", plan.other);
        assert!(plan.total() > plan.other);
    }

    #[test]
    fn a_draft_that_is_not_a_model_is_left_out_if_it_is_optional() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("passwd");
        std::fs::write(&path, "root:x:0:0:root:/root:/bin/sh\n").unwrap();
        let draft = |optional| DraftModelSpec {
            name: "some-draft".into(),
            weights: Some(path.clone()),
            optional,
        };
        let without = LocalLoader.plan(&without_draft(&spec(draft(true)))).unwrap();
        assert_eq!(LocalLoader.plan(&spec(draft(true))).unwrap(), without);
        assert_eq!(LocalLoader.load(&spec(draft(true))).unwrap().model_info().num_ctx, 64);
        let asked = spec(draft(false));
        let errors = [LocalLoader.plan(&asked).err(), LocalLoader.load(&asked).err()];
        for error in errors.map(Option::unwrap) {
            let names_draft =
                error.message.starts_with("some-draft cannot be a draft model: not a GGUF file");
            assert!(names_draft && !error.out_of_memory, "{error:?}");
        }
    }

    #[test]
    fn a_draft_of_an_unsuitable_kind_is_left_out_if_it_is_optional() {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo/bert-mean.gguf");
        let draft = |optional| DraftModelSpec {
            name: "bert-mean".into(),
            weights: Some(path.clone()),
            optional,
        };
        assert_eq!(LocalLoader.load(&spec(draft(true))).unwrap().model_info().num_ctx, 64);
        let error = LocalLoader.load(&spec(draft(false))).err().unwrap();
        assert!(error.message.starts_with("bert-mean cannot be a draft model: "), "{error:?}");
    }

    #[test]
    fn a_companion_draft_is_planned_with_its_model_and_its_errors_name_it() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
        let path = data.join("drafts/gemma4-assistant.gguf");
        let draft = DraftModelSpec {
            name: "an-assistant".into(),
            weights: Some(path.clone()),
            optional: false,
        };
        let of = |model: &str, draft: &DraftModelSpec| LoadSpec {
            weights: Some(data.join("zoo").join(model)),
            ..spec(draft.clone())
        };
        let [with, without] =
            [of("gemma4.gguf", &draft), without_draft(&of("gemma4.gguf", &draft))]
                .map(|spec| LocalLoader.plan(&spec).unwrap());
        assert!(
            with.draft > 0 && without.draft == 0 && with.kv == without.kv,
            "{with:?} {without:?}"
        );
        assert_eq!(LocalLoader.load(&of("gemma4.gguf", &draft)).unwrap().model_info().num_ctx, 64);
        let other = of("gemma3.gguf", &draft);
        for error in
            [LocalLoader.plan(&other).err(), LocalLoader.load(&other).err()].map(Option::unwrap)
        {
            let names_draft = error.message.starts_with("an-assistant cannot be a draft model: ");
            assert!(names_draft && error.message.contains("gemma4-assistant"), "{error:?}");
        }
        // A truncated draft file lacks a tensor; the error must name the draft, not the target
        // model.
        let folder = tempfile::tempdir().unwrap();
        let broken = folder.path().join("broken.gguf");
        let mut file = puna_gguf::Writer::new();
        file.set("general.architecture", "gemma4-assistant");
        std::fs::write(&broken, file.to_vec([]).unwrap()).unwrap();
        let broken = of("gemma4.gguf", &DraftModelSpec { weights: Some(broken), ..draft });
        let error = LocalLoader.plan(&broken).err().unwrap();
        assert!(error.message.starts_with("an-assistant cannot be a draft model: "), "{error:?}");
        assert_eq!(check_model(&path, &[]), Ok(None));
    }

    #[test]
    fn a_model_of_an_unknown_architecture_gets_a_warning_and_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        let check = |architecture: &str, key: &str, value: &str| {
            let mut file = puna_gguf::Writer::new();
            file.set("general.architecture", architecture)
                .set("tokenizer.ggml.model", "gpt2")
                .set(key, value);
            std::fs::write(&path, file.to_vec([]).unwrap()).unwrap();
            check_model(&path, &[])
        };
        for (key, value) in
            [("tokenizer.ggml.pre", "othernet-pre"), ("tokenizer.ggml.model", "othernet")]
        {
            let remark = check("othernet", key, value).unwrap().unwrap();
            assert!(remark.starts_with("warning: unknown architecture `othernet`"), "{remark}");
            let refused = check("llama", key, value).unwrap_err();
            assert!(refused.contains("unknown") && refused.contains(value), "{refused}");
        }
    }

    #[test]
    fn an_audio_model_without_a_vocabulary_gets_a_warning() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/data/zoo/wavtokenizer-dec.gguf");
        let remark = check_model(&path, &[]).unwrap().unwrap();
        assert!(
            remark.contains("no vocabulary") && remark.contains("cannot process text"),
            "{remark}"
        );
    }

    #[test]
    fn a_lack_of_memory_in_the_backend_is_distinguished_from_other_errors() {
        let mut backend =
            CpuBackend::new(&Config { threads: Some(1), ..Config::default() }).unwrap();
        let layers = vec![CacheLayer {
            kv_heads: 1,
            key_dim: 64,
            value_dim: 64,
            values_in_keys: false,
            mask: Mask::Causal,
        }];
        let (key_type, value_type) = (KvType::F16, KvType::F16);
        // More than any machine can address, with and without an overflow of the size.
        for pages in [1 << 46, usize::MAX] {
            let layers = layers.clone();
            let spec =
                CacheSpec { layers, key_type, value_type, page_tokens: 64, pages, window_pages: 0 };
            let error = engine_error(backend.create_cache(spec).unwrap_err().into());
            assert!(
                error.out_of_memory && error.message.starts_with("cannot allocate"),
                "{error:?}"
            );
        }
        assert!(!engine_error(EngineError::EmptyPrompt).out_of_memory);
    }
}

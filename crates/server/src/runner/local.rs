//! The engine of this program as a [`Generator`].

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use puna_cpu::{Config, CpuBackend};
use puna_engine::{
    Adapter, DraftModel, Engine, EngineError, EngineOptions, ModelError, PAGE_TOKENS, Pooling,
    Request, Sink, plan_memory, plan_memory_with_draft,
};
use puna_gguf::{Gguf, View};
use puna_graph::{BackendError, KvType};
use puna_sampler::{Constraint, Grammar};
use puna_store::embedded;
use puna_tokenizer::{EncodeOptions, Tokenizer, TokenizerError};

use super::generator::{EmbedDone, Facts, Generator, LoadError, Loader, PairForm, RankDone};
use super::protocol::{Counts, LoadSpec, MemoryParts, Pulse, is_out_of_memory};
use crate::canonical::Tokenize;
use crate::scheduler::LoadOptions;
use crate::speculate::Draft;

/// Prompt tokens of a step unless a request says otherwise.
const BATCH: u32 = 512;

/// Larger batches than this only cost memory.
const MAX_BATCH: u32 = 8192;

/// Loads models into the engine of this program, on the CPU.
pub(crate) struct LocalLoader;

impl Loader for LocalLoader {
    fn plan(&self, spec: &LoadSpec) -> Result<MemoryParts, LoadError> {
        // Its threads would only be in the way.
        let config =
            Config { threads: Some(1), kernels: spec.kernels.clone(), ..Config::default() };
        let (view, options) = (view(spec.weights.as_deref())?, engine_options(spec)?);
        let Some(draft) = &spec.options.draft else {
            let report = plan_memory(&view, backend(&config)?, &options).map_err(engine_error)?;
            return Ok(parts(&report));
        };
        let report = draft_model(draft, &config).and_then(|guesser| {
            let report = plan_memory_with_draft(&view, backend(&config)?, &options, guesser);
            report.map_err(|error| draft_error(draft, error, &options))
        });
        match report {
            Ok(report) => Ok(parts(&report)),
            // Loading says so.
            Err(error) if draft.optional && !error.out_of_memory => self.plan(&without_draft(spec)),
            Err(error) => Err(error),
        }
    }

    fn load(&self, spec: &LoadSpec) -> Result<Box<dyn Generator>, LoadError> {
        let threads = spec.threads.or(Some(spec.options.num_thread as usize).filter(|n| *n > 0));
        let config = Config {
            threads: threads.inspect(|wanted| warn_of_threads(*wanted)),
            capped: true,
            kernels: spec.kernels.clone(),
            deterministic: spec.options.deterministic,
        };
        let (engine, templates) = open(spec, &config)?;
        let tokenizer = engine.tokenizer();
        let text = |token: Option<u32>| {
            token
                .map(|t| String::from_utf8_lossy(tokenizer.text(t)).into_owned())
                .unwrap_or_default()
        };
        let facts = Facts {
            num_ctx: u32::try_from(engine.info().n_ctx).unwrap_or(u32::MAX),
            chat_template: templates.chat.filter(|t| !t.is_empty()),
            bos: text(tokenizer.bos()),
            eos: text(tokenizer.eos()),
            ends: tokenizer.eog().iter().map(|end| text(Some(*end))).collect(),
            embeds: !matches!(engine.info().pooling, Pooling::None | Pooling::Rank),
            ranks: engine.info().can_rank.then(|| pair_form(tokenizer, templates.rerank)),
            adapters: spec.adapters.len(),
            unmasks: engine.info().unmasking.is_some(),
        };
        Ok(Box::new(Local { engine, facts }))
    }
}

/// Why this program cannot load weights with their adapters. Of an architecture that it does not know it says so and no more:
/// another program on the same folder of models may know it.
pub(super) fn check_model(weights: &Path, adapters: &[PathBuf]) -> Result<Option<String>, String> {
    let check = || {
        let adapters = adapters.iter().map(|path| adapter(path)).collect::<Result<Vec<_>, _>>()?;
        let view = view(Some(weights))?;
        match puna_engine::check_model(&view, &adapters) {
            Ok(()) => Ok(None),
            Err(EngineError::Model(unknown @ ModelError::UnknownArchitecture { .. })) => {
                Ok(Some(format!("warning: {unknown}; it cannot be run here")))
            }
            Err(EngineError::Tokenizer(none @ TokenizerError::NoVocabulary { .. })) => {
                Ok(Some(format!("warning: {none}")))
            }
            Err(error) => Err(engine_error(error)),
        }
    };
    check().map_err(|error: LoadError| error.message)
}

/// Why a draft model cannot guess for these weights.
pub(super) fn check_draft(weights: &Path, draft: &Path) -> Result<(), String> {
    let check = || {
        puna_engine::check_draft(&view(Some(weights))?, &view(Some(draft))?).map_err(engine_error)
    };
    check().map_err(|error: LoadError| error.message)
}

/// How a model takes pairs. The marks are llama.cpp's: each only where the file wants it around texts.
fn pair_form(tokenizer: &Tokenizer, template: Option<String>) -> PairForm {
    let end = tokenizer.eos().or(tokenizer.sep()).filter(|_| tokenizer.add_eos());
    let separator = tokenizer.sep().filter(|_| tokenizer.add_sep());
    PairForm {
        template: template.filter(|t| !t.is_empty()),
        before: tokenizer.bos().filter(|_| tokenizer.add_bos()).into_iter().collect(),
        between: end.into_iter().chain(separator).collect(),
        after: end.into_iter().collect(),
    }
}

/// More threads than processors only wait for each other, and a model made on a larger machine may ask for more.
fn warn_of_threads(wanted: usize) {
    let processors = std::thread::available_parallelism().map_or(wanted, |n| n.get());
    if wanted > processors {
        tracing::warn!(
            wanted,
            processors,
            "fewer processors than threads asked for: one thread a processor is used"
        );
    }
}

fn backend(config: &Config) -> Result<Box<CpuBackend>, LoadError> {
    CpuBackend::new(config).map(Box::new).map_err(load_error)
}

fn draft_model(draft: &Draft, config: &Config) -> Result<DraftModel, LoadError> {
    let view = view(draft.weights.as_deref()).map_err(|error| of_draft(draft, error))?;
    Ok(DraftModel { view, backend: backend(config)? })
}

/// An error that is the draft model's own, which it names.
fn of_draft(draft: &Draft, error: LoadError) -> LoadError {
    LoadError {
        message: format!("{} cannot be a draft model: {}", draft.name, error.message),
        ..error
    }
}

/// An error of a model with its draft model. Which of them it is about is told by trying the draft model alone.
fn draft_error(draft: &Draft, error: EngineError, options: &EngineOptions) -> LoadError {
    let alone = || {
        let one = Config { threads: Some(1), ..Config::default() };
        let draft = draft_model(draft, &one).ok()?;
        match draft.is_companion() {
            true => puna_engine::check_model(&draft.view, &[]).err(),
            false => plan_memory(&draft.view, draft.backend, options).err(),
        }
    };
    // A model is loaded whether it generates or not, a draft model only where it does.
    let only_a_drafts = matches!(
        error,
        EngineError::CannotGenerate
            | EngineError::DraftVocabulary { .. }
            | EngineError::RecurrentDraft { .. }
            | EngineError::EncoderDraft { .. }
            | EngineError::DiffusionDraft { .. }
            | EngineError::DraftCacheType { .. }
            | EngineError::Model(ModelError::Companion { .. } | ModelError::UnreadableLayer { .. })
    );
    let its_own = only_a_drafts || alone().is_some_and(|found| found == error);
    let error = engine_error(error);
    if its_own { of_draft(draft, error) } else { error }
}

fn without_draft(spec: &LoadSpec) -> LoadSpec {
    LoadSpec { options: LoadOptions { draft: None, ..spec.options.clone() }, ..spec.clone() }
}

/// Templates that a file brings.
struct Templates {
    chat: Option<String>,
    /// For pairs of texts.
    rerank: Option<String>,
}

impl Templates {
    fn of(view: &View) -> Self {
        let text = |key| view.metadata().opt_str(key).ok().flatten().map(str::to_owned);
        Self {
            chat: text("tokenizer.chat_template"),
            rerank: text("tokenizer.chat_template.rerank"),
        }
    }
}

/// Loads a model, with its draft model if it has one, and its file's templates. A draft that nobody asked for is left
/// out where it cannot be used.
fn open(spec: &LoadSpec, config: &Config) -> Result<(Engine, Templates), LoadError> {
    let (view, options) = (view(spec.weights.as_deref())?, engine_options(spec)?);
    let templates = Templates::of(&view);
    let Some(draft) = &spec.options.draft else {
        let engine = Engine::open(view, backend(config)?, &options).map_err(engine_error)?;
        return Ok((engine, templates));
    };
    let engine = draft_model(draft, config).and_then(|guesser| {
        let engine = Engine::open_with_draft(view, backend(config)?, &options, guesser);
        engine.map_err(|error| draft_error(draft, error, &options))
    });
    match engine {
        Ok(engine) => Ok((engine, templates)),
        // For want of memory the scheduler leaves it out, and knows.
        Err(error) if draft.optional && !error.out_of_memory => {
            let found = open(&without_draft(spec), config)?;
            tracing::warn!(draft = draft.name, "{}; going without", error.message);
            Ok(found)
        }
        Err(error) => Err(error),
    }
}

/// The file at a path; without one the model inside this program.
fn view(weights: Option<&Path>) -> Result<View, LoadError> {
    let gguf = match weights {
        Some(path) => Gguf::open(path),
        None => Gguf::from_bytes(embedded::weights()),
    };
    View::new(Arc::new(gguf.map_err(load_error)?)).map_err(load_error)
}

/// The adapter at a path, by the name that its file gives it, else the file's own.
fn adapter(path: &Path) -> Result<Adapter, LoadError> {
    let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let gguf = Gguf::open(path).map_err(|error| load_error(format!("adapter {file}: {error}")))?;
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
                out_of_memory: false,
            }
        },
    )?;
    Ok(EngineOptions {
        num_ctx: Some(options.num_ctx as usize),
        num_batch: options.num_batch.unwrap_or(BATCH).clamp(1, MAX_BATCH) as usize,
        cache_k: kind,
        cache_v: kind,
        max_sequences: options.parallel.map(|most| most.max(1) as usize),
        // One more, so that a sequence that shares all but its last page can still copy one.
        cache_pages: Some((options.cache.max(options.num_ctx) as usize).div_ceil(PAGE_TOKENS) + 1),
        adapters: spec.adapters.iter().map(|path| adapter(path)).collect::<Result<_, _>>()?,
        ..EngineOptions::default()
    })
}

/// An error of the engine. Want of memory is told by its kind, so that another model can make room.
fn engine_error(error: EngineError) -> LoadError {
    let out_of_memory = matches!(error, EngineError::Backend(BackendError::OutOfMemory { .. }));
    let found = load_error(error);
    LoadError { out_of_memory: out_of_memory || found.out_of_memory, ..found }
}

fn load_error(error: impl std::fmt::Display) -> LoadError {
    let message = error.to_string();
    LoadError { out_of_memory: is_out_of_memory(&message), message }
}

fn parts(report: &puna_engine::MemoryReport) -> MemoryParts {
    MemoryParts {
        weights: report.weights,
        kv: report.cache + report.states,
        scratch: report.scratch,
        draft: report.draft,
        other: 0,
    }
}

struct Local {
    engine: Engine,
    facts: Facts,
}

impl Local {
    fn tokenizer(&self) -> &Tokenizer {
        self.engine.tokenizer()
    }
}

impl Generator for Local {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        self.tokenizer().encode_prompt(text, "")
    }

    fn tokenize(&self, text: &Tokenize) -> Vec<u32> {
        let Tokenize { text, add_special, parse_special } = text;
        self.tokenizer().encode(
            text,
            EncodeOptions { add_special: *add_special, parse_special: *parse_special },
        )
    }

    fn encode_parts(&self, parts: &[(&str, bool)]) -> Vec<u32> {
        self.tokenizer().encode_parts(parts, false)
    }

    fn encode_prompt(&self, parts: &[(&str, bool)], leading_bos: &str) -> Vec<u32> {
        self.tokenizer().encode_prompt_parts(parts, leading_bos)
    }

    fn controls_in(&self, text: &str) -> Vec<Range<usize>> {
        self.tokenizer().controls_in(text)
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

    fn grammar(&self, form: &Constraint, whole: bool) -> Result<Grammar, String> {
        let found = if whole { self.engine.whole_grammar(form) } else { self.engine.grammar(form) };
        found.map_err(|e| e.to_string())
    }

    fn check_request(&self, job: &Request) -> Result<(), EngineError> {
        self.engine.check(job)
    }

    fn submit(&self, job: Request, sink: Box<dyn Sink>) -> Result<u64, EngineError> {
        self.engine.submit(job, sink).map(|id| id.0)
    }

    fn cancel(&self, job: u64) {
        self.engine.cancel(puna_engine::RequestId(job));
    }

    fn wake(&self) {
        self.engine.wake();
    }

    fn embed(&self, inputs: Vec<Vec<u32>>, done: EmbedDone) -> Result<u64, EngineError> {
        self.engine.embed(inputs, done).map(|id| id.0)
    }

    fn rank(&self, pairs: Vec<Vec<u32>>, done: RankDone) -> Result<u64, EngineError> {
        self.engine.rank(pairs, done).map(|id| id.0)
    }

    fn pulse(&self) -> Pulse {
        let stats = self.engine.stats();
        let works = stats.running + stats.waiting > 0;
        let (prompt_tokens, generated_tokens) = (stats.prompt_tokens, stats.generated_tokens);
        let (steps, preempted) = (stats.steps, stats.preempted);
        let guesses = stats.speculated.into();
        Pulse {
            memory: parts(&self.engine.memory()),
            rounds: stats.rounds,
            works,
            running: stats.running as u64,
            waiting: stats.waiting as u64,
            pages: stats.pages as u64,
            pages_in_use: stats.pages_in_use as u64,
            pages_held: stats.pages_held as u64,
            recent_pages: [stats.recent_pages, stats.recent_pages_in_use, stats.recent_pages_held]
                .map(|pages| pages as u64),
            counts: Counts { prompt_tokens, generated_tokens, guesses, steps, preempted },
        }
    }
}

#[cfg(test)]
mod tests {
    use puna_graph::{Backend, CacheLayer, CacheSpec, Mask};

    use super::*;

    fn spec(draft: Draft) -> LoadSpec {
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
    fn a_draft_that_is_no_model_is_left_out_unless_it_was_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("passwd");
        std::fs::write(&path, "root:x:0:0:root:/root:/bin/sh\n").unwrap();
        let draft =
            |optional| Draft { name: "some-draft".into(), weights: Some(path.clone()), optional };
        let without = LocalLoader.plan(&without_draft(&spec(draft(true)))).unwrap();
        assert_eq!(LocalLoader.plan(&spec(draft(true))).unwrap(), without);
        assert_eq!(LocalLoader.load(&spec(draft(true))).unwrap().facts().num_ctx, 64);
        let asked = spec(draft(false));
        let errors = [LocalLoader.plan(&asked).err(), LocalLoader.load(&asked).err()];
        for error in errors.map(Option::unwrap) {
            let named =
                error.message.starts_with("some-draft cannot be a draft model: not a GGUF file");
            assert!(named && !error.out_of_memory, "{error:?}");
        }
    }

    #[test]
    fn a_draft_of_another_kind_is_left_out_unless_it_was_asked_for() {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo/bert-mean.gguf");
        let draft =
            |optional| Draft { name: "bert-mean".into(), weights: Some(path.clone()), optional };
        assert_eq!(LocalLoader.load(&spec(draft(true))).unwrap().facts().num_ctx, 64);
        let error = LocalLoader.load(&spec(draft(false))).err().unwrap();
        assert!(error.message.starts_with("bert-mean cannot be a draft model: "), "{error:?}");
    }

    #[test]
    fn a_draft_of_one_model_is_planned_with_it_and_what_is_wrong_with_it_is_said_of_it() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
        let path = data.join("drafts/gemma4-assistant.gguf");
        let draft =
            Draft { name: "an-assistant".into(), weights: Some(path.clone()), optional: false };
        let of = |model: &str, draft: &Draft| LoadSpec {
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
        assert_eq!(LocalLoader.load(&of("gemma4.gguf", &draft)).unwrap().facts().num_ctx, 64);
        let other = of("gemma3.gguf", &draft);
        for error in
            [LocalLoader.plan(&other).err(), LocalLoader.load(&other).err()].map(Option::unwrap)
        {
            let told = error.message.starts_with("an-assistant cannot be a draft model: ");
            assert!(told && error.message.contains("gemma4-assistant"), "{error:?}");
        }
        // A file that is cut lacks a tensor, which is not the model's.
        let folder = tempfile::tempdir().unwrap();
        let broken = folder.path().join("broken.gguf");
        let mut file = puna_gguf::Writer::new();
        file.set("general.architecture", "gemma4-assistant");
        std::fs::write(&broken, file.to_vec([]).unwrap()).unwrap();
        let broken = of("gemma4.gguf", &Draft { weights: Some(broken), ..draft });
        let error = LocalLoader.plan(&broken).err().unwrap();
        assert!(error.message.starts_with("an-assistant cannot be a draft model: "), "{error:?}");
        assert_eq!(check_model(&path, &[]), Ok(None));
    }

    #[test]
    fn a_model_that_another_program_may_know_is_remarked_on_and_not_refused() {
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
    fn a_model_of_sound_without_a_vocabulary_is_remarked_on() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/data/zoo/wavtokenizer-dec.gguf");
        let remark = check_model(&path, &[]).unwrap().unwrap();
        assert!(
            remark.contains("no vocabulary") && remark.contains("cannot take or give text"),
            "{remark}"
        );
    }

    #[test]
    fn the_backends_own_want_of_memory_is_told_from_other_errors() {
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
                CacheSpec { layers, key_type, value_type, page_tokens: 64, pages, recent_pages: 0 };
            let error = engine_error(backend.create_cache(spec).unwrap_err().into());
            assert!(
                error.out_of_memory && error.message.starts_with("cannot allocate"),
                "{error:?}"
            );
        }
        assert!(!engine_error(EngineError::EmptyPrompt).out_of_memory);
    }
}

//! The engine of this program as a [`Generator`].

use std::sync::Arc;

use puna_cpu::{Config, CpuBackend};
use puna_engine::{Engine, EngineError, EngineOptions, Job, Pooling, Sink, plan_memory};
use puna_gguf::{Gguf, View};
use puna_graph::{BackendError, KvType};
use puna_store::embedded;
use puna_tokenizer::{Encode, Tokenizer};

use super::generator::{EmbedDone, Facts, Generator, LoadError, Loader};
use super::launch::is_out_of_memory;
use super::protocol::{LoadSpec, MemoryParts, Pulse};

/// Prompt tokens of a step unless a request says otherwise.
const BATCH: u32 = 512;

/// Larger batches than this only cost memory.
const MAX_BATCH: u32 = 8192;

/// Loads models into the engine of this program, on the CPU.
pub(crate) struct LocalLoader;

impl Loader for LocalLoader {
    fn plan(&self, spec: &LoadSpec) -> Result<MemoryParts, LoadError> {
        // Its threads would only be in the way.
        let backend = CpuBackend::new(&Config { threads: Some(1), kernels: spec.kernels.clone() });
        let backend = Box::new(backend.map_err(load_error)?);
        let report = plan_memory(&view(spec)?, backend, &engine_options(spec)?).map_err(engine_error)?;
        Ok(parts(&report))
    }

    fn load(&self, spec: &LoadSpec) -> Result<Box<dyn Generator>, LoadError> {
        let view = view(spec)?;
        let chat_template =
            view.metadata().opt_str("tokenizer.chat_template").ok().flatten().map(str::to_owned);
        let threads = spec.threads.or(Some(spec.options.num_thread as usize).filter(|n| *n > 0));
        let threads = threads.map(usable_threads);
        let config = Config { threads, kernels: spec.kernels.clone() };
        let backend = CpuBackend::new(&config).map_err(load_error)?;
        let engine = Engine::open(view, Box::new(backend), &engine_options(spec)?).map_err(engine_error)?;
        let tokenizer = engine.tokenizer();
        let text = |token: Option<u32>| {
            token.map(|t| String::from_utf8_lossy(tokenizer.text(t)).into_owned()).unwrap_or_default()
        };
        let facts = Facts {
            num_ctx: u32::try_from(engine.info().n_ctx).unwrap_or(u32::MAX),
            chat_template: chat_template.filter(|t| !t.is_empty()),
            bos: text(tokenizer.bos()),
            eos: text(tokenizer.eos()),
            embeds: !matches!(engine.info().pooling, Pooling::None | Pooling::Rank),
        };
        Ok(Box::new(Local { engine, facts }))
    }
}

/// `wanted`, or as many as there are processors: more threads only wait for each other, and a model made on a larger
/// machine may ask for more.
fn usable_threads(wanted: usize) -> usize {
    let processors = std::thread::available_parallelism().map_or(wanted, |n| n.get());
    if wanted > processors {
        tracing::warn!(
            wanted,
            processors,
            "fewer processors than threads asked for: one thread a processor is used"
        );
    }
    wanted.min(processors)
}

fn view(spec: &LoadSpec) -> Result<View, LoadError> {
    let gguf = match &spec.weights {
        Some(path) => Gguf::open(path),
        None => Gguf::from_bytes(embedded::weights()),
    };
    View::new(Arc::new(gguf.map_err(load_error)?)).map_err(load_error)
}

fn engine_options(spec: &LoadSpec) -> Result<EngineOptions, LoadError> {
    let options = &spec.options;
    let kind = KvType::ALL.into_iter().find(|kind| kind.name() == spec.kv_cache_type).ok_or_else(|| {
        let known = KvType::ALL.map(KvType::name).join(", ");
        let given = &spec.kv_cache_type;
        LoadError {
            message: format!("OLLAMA_KV_CACHE_TYPE is {given:?}, which is not supported: use one of {known}"),
            out_of_memory: false,
        }
    })?;
    Ok(EngineOptions {
        num_ctx: Some(options.num_ctx as usize),
        num_batch: options.num_batch.unwrap_or(BATCH).clamp(1, MAX_BATCH) as usize,
        cache_k: kind,
        cache_v: kind,
        max_sequences: options.parallel.max(1) as usize,
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
    MemoryParts { weights: report.weights, kv: report.cache, scratch: report.scratch, other: 0 }
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
        let tokenizer = self.tokenizer();
        let mut tokens = tokenizer.encode(text, Encode { add_special: true, parse_special: true });
        // A template that writes the first token itself does not want it twice.
        if tokenizer.add_bos()
            && tokens.len() > 1
            && Some(tokens[0]) == tokenizer.bos()
            && tokens[1] == tokens[0]
        {
            tokens.remove(0);
        }
        tokens
    }

    fn decode(&self, tokens: &[u32]) -> String {
        self.tokenizer().decode(tokens, true)
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

    fn submit(&self, job: Job, sink: Box<dyn Sink>) -> Result<u64, String> {
        self.engine.submit(job, sink).map(|id| id.0).map_err(|e| e.to_string())
    }

    fn cancel(&self, job: u64) {
        self.engine.cancel(puna_engine::JobId(job));
    }

    fn embed(&self, inputs: Vec<Vec<u32>>, done: EmbedDone) -> Result<u64, String> {
        let done = Box::new(|result: Result<_, EngineError>| done(result.map_err(|e| e.to_string())));
        self.engine.embed(inputs, done).map(|id| id.0).map_err(|e| e.to_string())
    }

    fn pulse(&self) -> Pulse {
        let stats = self.engine.stats();
        let works = stats.running + stats.waiting > 0;
        Pulse { memory: parts(&self.engine.memory()), rounds: stats.rounds, works }
    }
}

#[cfg(test)]
mod tests {
    use puna_graph::{Backend, CacheLayer, CacheSpec};

    use super::*;

    #[test]
    fn the_backends_own_want_of_memory_is_told_from_other_errors() {
        let mut backend = CpuBackend::new(&Config { threads: Some(1), kernels: None }).unwrap();
        let layers = vec![CacheLayer { kv_heads: 1, key_dim: 64, value_dim: 64 }];
        let (key_type, value_type) = (KvType::F16, KvType::F16);
        // More than any machine can address, with and without an overflow of the size.
        for pages in [1 << 46, usize::MAX] {
            let spec = CacheSpec { layers: layers.clone(), key_type, value_type, page_tokens: 64, pages };
            let error = engine_error(backend.create_cache(spec).unwrap_err().into());
            assert!(error.out_of_memory && error.message.starts_with("cannot allocate"), "{error:?}");
        }
        assert!(!engine_error(EngineError::EmptyPrompt).out_of_memory);
    }
}

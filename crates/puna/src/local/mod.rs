//! Runs a model in this process, without a server, for commands that inspect, check and measure.

mod file;
mod output;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use puna_cpu::kernels::level;
use puna_cpu::{Config, CpuBackend};
use puna_engine::{EngineOptions, Evaluator};
use puna_graph::{Backend, KvType};

use crate::{format, usage};

pub use file::{ModelFile, check_file, is_path, looks_like_path};
pub use output::OutputFile;

/// Reads a text file, or standard input for `-`.
pub fn read_text(path: &Path) -> Result<String> {
    let (text, shown) = match path == Path::new("-") {
        true => (std::io::read_to_string(std::io::stdin()), "standard input".to_owned()),
        false => (std::fs::read_to_string(path), path.display().to_string()),
    };
    text.with_context(|| format!("cannot read {shown}"))
}

/// Settings of the computation.
#[derive(Debug, Clone)]
pub struct Compute {
    /// Threads; `None` uses one per core.
    pub threads: Option<usize>,
    /// Kernel level; `None` uses `PUNA_KERNELS`, or else the best one.
    pub kernels: Option<String>,
    /// Whether the results of each token are independent of the other tokens in the step.
    pub deterministic: bool,
    /// Storage type of keys in the KV cache.
    pub cache_k: KvType,
    /// Storage type of values in the KV cache.
    pub cache_v: KvType,
    /// Maximum tokens of a sequence; `None` uses the context length of the training.
    pub num_ctx: Option<usize>,
    /// Maximum tokens of a step.
    pub num_batch: usize,
    /// Number of sequences in the KV cache.
    pub sequences: usize,
    /// Whether to record the inputs of matrix products, as an importance matrix needs them.
    pub observe: bool,
}

impl Compute {
    /// Settings for the CPU with a 16-bit KV cache and one sequence.
    ///
    /// # Errors
    /// A setting is invalid.
    pub fn new(threads: Option<usize>, kernels: Option<String>) -> Result<Self> {
        if let Some(name) = &kernels {
            level(name).map_err(|error| usage::error(format!("--kernels {name}: {error}")))?;
        }
        let kernels = if kernels.is_some() { kernels } else { crate::env::kernels()? };
        let (cache_k, cache_v) = (KvType::F16, KvType::F16);
        let (num_ctx, num_batch, sequences) = (None, 512, 1);
        Ok(Self {
            threads,
            kernels,
            deterministic: false,
            cache_k,
            cache_v,
            num_ctx,
            num_batch,
            sequences,
            observe: false,
        })
    }

    /// Creates the backend.
    pub fn backend(&self) -> Result<CpuBackend> {
        let backend = CpuBackend::new(&Config {
            threads: self.threads,
            kernels: self.kernels.clone(),
            deterministic: self.deterministic,
            capped: false,
        })?;
        Ok(if self.observe { backend.observing() } else { backend })
    }

    /// Loads a model with its adapters and returns an evaluator that takes tokens directly.
    ///
    /// # Errors
    /// The model cannot be loaded, or exceeds the free memory, so that every step would read it
    /// from disk again.
    pub fn evaluator(&self, file: &ModelFile) -> Result<Evaluator> {
        let options = EngineOptions {
            num_ctx: self.num_ctx,
            num_batch: self.num_batch,
            cache_k: self.cache_k,
            cache_v: self.cache_v,
            max_sequences: Some(self.sequences),
            adapters: file.adapters()?,
            ..EngineOptions::default()
        };
        let backend: Box<dyn Backend> = Box::new(self.backend()?);
        // The free memory is read before the model is opened, so that its cache is not counted
        // twice.
        let available = puna_server::memory().available;
        let evaluator = Evaluator::open(&file.view, backend, &options)
            .with_context(|| file.display_name.clone())?;
        let need = evaluator.memory().total();
        ensure!(
            need <= available,
            "{}: the model requires more memory ({}) than is available ({})",
            file.display_name,
            format::bytes(need),
            format::bytes(available)
        );
        Ok(evaluator)
    }
}

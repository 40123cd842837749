//! Working on a model in this process, without a server: for the commands that look inside, check and measure.

mod file;
mod output;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use puna_cpu::{Config, CpuBackend};
use puna_engine::{EngineOptions, Evaluator};
use puna_graph::{Backend, KvType};

use crate::format;

pub use file::{ModelFile, check_file, is_a_path, looks_like_a_path};
pub use output::Output;

/// The text of a file, or of standard input for `-`.
pub fn read_text(path: &Path) -> Result<String> {
    let (text, shown) = match path == Path::new("-") {
        true => (std::io::read_to_string(std::io::stdin()), "standard input".to_owned()),
        false => (std::fs::read_to_string(path), path.display().to_string()),
    };
    text.with_context(|| format!("cannot read {shown}"))
}

/// How to compute.
#[derive(Debug, Clone)]
pub struct Compute {
    /// Threads; `None`: one a core.
    pub threads: Option<usize>,
    /// Kernel level; `None`: the best, or what `PUNA_KERNELS` says.
    pub kernels: Option<String>,
    /// Whether each token's results are the same whatever is computed with it.
    pub deterministic: bool,
    /// Storage of keys.
    pub cache_k: KvType,
    /// Storage of values.
    pub cache_v: KvType,
    /// Tokens of a sequence; `None`: as the model was trained with.
    pub num_ctx: Option<usize>,
    /// Tokens of a step.
    pub num_batch: usize,
    /// Sequences that are kept apart.
    pub sequences: usize,
    /// Whether what products read is summed up.
    pub observe: bool,
}

impl Compute {
    /// The CPU, 16-bit cache, one sequence.
    ///
    /// # Errors
    /// Something that is set is wrong.
    pub fn new(threads: Option<usize>, kernels: Option<String>) -> Result<Self> {
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

    /// The backend.
    pub fn backend(&self) -> Result<CpuBackend> {
        let backend = CpuBackend::new(&Config {
            threads: self.threads,
            kernels: self.kernels.clone(),
            deterministic: self.deterministic,
            capped: false,
        })?;
        Ok(if self.observe { backend.observing() } else { backend })
    }

    /// Loads a model with its adapters, to be fed by hand.
    ///
    /// # Errors
    /// It cannot be loaded, or is larger than the memory that is free: it would be read from the disk again in every step.
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
        // Before it is opened: what it takes for its cache would count twice.
        let available = puna_server::memory().available;
        let evaluator =
            Evaluator::open(&file.view, backend, &options).with_context(|| file.shown.clone())?;
        let need = evaluator.memory().total();
        ensure!(
            need <= available,
            "{}: the model requires more memory ({}) than is available ({})",
            file.shown,
            format::bytes(need),
            format::bytes(available)
        );
        Ok(evaluator)
    }
}

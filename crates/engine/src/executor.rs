//! Runs steps of a model on a backend. Programs are compiled by size class when first needed.

use std::collections::HashMap;

use puna_graph::{Backend, Capacity, Plan, ProgramId, Rows, StepInput};
use puna_models::{DraftMethod, LoadOptions, Model, StepKind};

use puna_gguf::View;

use crate::cache_plan::{cache_spec, context, state_spec};
use crate::config::{EngineOptions, MemoryReport, ModelInfo};
use crate::diffusion::longest_block;
use crate::error::EngineError;
use crate::kv::CacheCopy;

/// Number of logits that each step has room for if the number of sequences is open: 16 MiB.
const OPEN_LOGITS: usize = 1 << 22;
/// Minimum number of output rows of a step if the number of sequences is open.
const MIN_OUTPUT_ROWS: usize = 32;

/// A loaded model with its compiled programs.
pub struct ModelExecutor {
    pub backend: Box<dyn Backend>,
    pub model: Model,
    pub info: ModelInfo,
    pub planned: MemoryReport,
    /// Number of output rows that every program has room for, so that it does not need further
    /// programs: one for each sequence, and at least the rows of a step that verifies drafts; for a
    /// diffusion model one for each position of a block.
    output_rows: usize,
    programs: HashMap<(StepKind, Capacity), CompiledProgram>,
}

/// A compiled program.
#[derive(Debug, Clone, Copy)]
struct CompiledProgram {
    program: ProgramId,
    /// Columns of the result.
    cols: usize,
    /// Columns of the extra outputs: those with a row per token, and those with a row per output.
    extra_cols: [usize; 2],
}

impl CompiledProgram {
    /// Bytes of all outputs of a step with `tokens` rows, `outputs` of them output rows.
    fn output_bytes(&self, tokens: usize, outputs: usize) -> u64 {
        let [of_tokens, of_outputs] = self.extra_cols;
        4 * (outputs * (self.cols + of_outputs) + tokens * of_tokens) as u64
    }
}

impl ModelExecutor {
    /// Loads a model on a backend, and compiles its largest steps, so that unsupported operations
    /// fail here.
    pub fn new(
        view: &View,
        backend: Box<dyn Backend>,
        options: &EngineOptions,
    ) -> Result<Self, EngineError> {
        Self::with_companion(view, backend, options, None)
    }

    /// Like [`ModelExecutor::new`], with a companion draft model.
    pub fn with_companion(
        view: &View,
        backend: Box<dyn Backend>,
        options: &EngineOptions,
        companion: Option<&View>,
    ) -> Result<Self, EngineError> {
        let mut executor = Self::load_weights(view, backend, options, companion)?;
        let spec = cache_spec(&executor.model, options);
        if spec.pages > 0 {
            executor.backend.create_cache(spec)?;
        }
        let states = state_spec(&executor.model, options);
        if states.slots > 0 {
            executor.backend.create_states(states)?;
        }
        executor.planned = executor.memory(options)?;
        Ok(executor)
    }

    /// Like [`ModelExecutor::with_companion`], without caches and compiled steps.
    pub fn load_weights(
        view: &View,
        mut backend: Box<dyn Backend>,
        options: &EngineOptions,
        companion: Option<&View>,
    ) -> Result<Self, EngineError> {
        let load = LoadOptions { n_ctx: options.num_ctx };
        let load = |companion| Model::load_with_draft(view, &options.adapters, load, companion);
        let mut model = load(companion)?;
        let info = ModelInfo::of(&model, view, context(&model, options));
        if companion.is_some() && !info.takes_drafts() {
            // The companion fits, but the target cannot verify drafts.
            model = load(None)?;
        }
        check_draft_cache(&model, options)?;
        backend.load_weights(model.weights().to_vec(), model.ropes().to_vec())?;
        let shape = model.shape();
        let speculates = options.speculation.is_on() && shape.causal && !info.recurrent;
        let verified_rows = if speculates { backend.max_bit_exact_rows() } else { 1 };
        let open =
            || (OPEN_LOGITS / shape.n_vocab.max(1)).max(MIN_OUTPUT_ROWS).min(options.num_batch);
        let output_rows = match info.unmasking {
            Some(_) => longest_block(info.n_vocab, info.n_ctx),
            None => options.max_sequences.unwrap_or_else(open).max(verified_rows).max(1),
        };
        let planned = MemoryReport::default();
        Ok(Self { backend, model, info, planned, output_rows, programs: HashMap::new() })
    }

    /// Memory of the model with its largest steps. Compiling them reserves addresses, but no memory
    /// before they run.
    pub fn memory(&mut self, options: &EngineOptions) -> Result<MemoryReport, EngineError> {
        let [weights, draft]: [u64; 2] =
            self.model.weights_by_model().map(|all| all.iter().map(|w| w.data.size() as u64).sum());
        let spec = cache_spec(&self.model, options);
        let cache = spec.bytes();
        let states = state_spec(&self.model, options);
        let states = states.slot_bytes() as u64 * states.slots as u64;
        // An encoder computes a whole text in one step.
        let whole = options.num_batch.max(self.info.n_ctx);
        let kinds: &[(StepKind, usize, usize)] = match (self.info.can_generate, self.info.causal) {
            (true, _) if self.info.start.is_some() => &[
                (StepKind::Encode, whole, whole),
                (StepKind::Logits, options.num_batch, self.output_rows),
            ],
            (true, true) => &[(StepKind::Logits, options.num_batch, self.output_rows)],
            // A denoising step computes the whole text.
            (true, false) => &[(StepKind::Logits, whole, self.output_rows)],
            (false, true) => &[(StepKind::Hidden, options.num_batch, options.num_batch)],
            (false, false) => &[(StepKind::Hidden, whole, whole)],
        };
        let mut kinds = kinds.to_vec();
        // Bytes that the loop carries from step to step.
        let mut carried = 0;
        if let Some(draft_method) = self.model.draft_method() {
            // At most as many sequences have drafts as a step verifies rows.
            let (sequences, each) = (self.backend.max_bit_exact_rows(), draft_method.rows());
            kinds.push((StepKind::Draft, sequences * each, sequences));
            kinds.extend([
                (StepKind::DraftPrefill, options.num_batch, 0),
                (StepKind::TransitionLogits, sequences, sequences),
            ]);
            carried = match draft_method {
                DraftMethod::Chain { state_dim, .. } => {
                    2 * 4 * (options.num_batch * state_dim) as u64
                }
                DraftMethod::Block(_) => {
                    4 * (sequences * (self.info.n_vocab + self.info.n_embd)) as u64
                }
            };
        }
        // The largest output.
        let mut results = 0;
        let mut with = |size: &dyn Fn(usize) -> usize| -> Result<u64, EngineError> {
            for &(kind, tokens, rows) in &kinds {
                if let Some(compiled) =
                    self.program(kind, Capacity::class(size(tokens), self.output_rows))?
                {
                    results = results.max(compiled.output_bytes(tokens, rows));
                }
            }
            Ok(self.backend.scratch_bytes() as u64)
        };
        let largest = with(&|tokens| tokens)?;
        // All size classes share buffers, and each class has a few private ones. The classes are
        // powers of two: private bytes that grow with the size sum to twice the bytes of half the
        // largest class, and constant private bytes count once for each smaller class.
        let half = with(&|tokens| tokens.div_ceil(2))?;
        let one = with(&|_| 1)?;
        let tokens = kinds.iter().map(|(_, tokens, _)| tokens.next_power_of_two());
        let sizes = u64::from(tokens.max().unwrap_or(1).ilog2());
        let smaller = 2 * half.saturating_sub(largest) + sizes * one.saturating_sub(half);
        Ok(MemoryReport {
            weights,
            cache,
            states,
            scratch: largest + smaller + results + carried,
            draft,
        })
    }

    /// Number of output rows that every step has room for.
    pub fn output_rows(&self) -> usize {
        self.output_rows
    }

    /// Largest number of logits rows that can be read from a step: the output rows, or as many as
    /// `logits` values allow.
    pub fn prompt_logits_rows(&self, logits: usize) -> usize {
        self.output_rows.max(logits / self.info.n_vocab.max(1))
    }

    /// Scores by the labels of a classifier.
    pub fn rerank_scores(&self, mut labels: Vec<f32>) -> Vec<f32> {
        if self.model.shape().score_is_softmax {
            let highest = labels.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            labels.iter_mut().for_each(|x| *x = (*x - highest).exp());
            let sum: f32 = labels.iter().sum();
            labels.iter_mut().for_each(|x| *x /= sum);
        }
        labels
    }

    /// Makes copies within the caches, in order.
    pub fn copy(&mut self, copies: Vec<CacheCopy>) {
        for copy in copies {
            match copy {
                CacheCopy::Page { from, to } => {
                    self.backend.copy_page(from.full, to.full);
                    if let (Some(from), Some(to)) = (from.window, to.window) {
                        self.backend.copy_window_page(from, to);
                    }
                }
                CacheCopy::State { from, to } => self.backend.copy_state(from, to),
            }
        }
    }

    /// Runs a step, and returns the number of columns of its result; `None` if the model does not
    /// compute this kind.
    pub fn run(&mut self, kind: StepKind, input: &StepInput) -> Result<Option<usize>, EngineError> {
        let Some((program, cols)) = self.prepare(kind, input)? else { return Ok(None) };
        self.backend.run(program, input);
        Ok(Some(cols))
    }

    /// Compiles the program of a step if necessary. Callers that time steps do so before.
    pub fn prepare(
        &mut self,
        kind: StepKind,
        input: &StepInput,
    ) -> Result<Option<(ProgramId, usize)>, EngineError> {
        // Hidden states are computed for all tokens, whichever are outputs.
        let outputs = if matches!(kind, StepKind::Hidden | StepKind::Encode) {
            1
        } else {
            input.outputs.len()
        };
        let compiled =
            self.program(kind, Capacity::class(input.tokens.len(), outputs.max(self.output_rows)))?;
        Ok(compiled.map(|compiled| (compiled.program, compiled.cols)))
    }

    /// Program of a size class.
    fn program(
        &mut self,
        kind: StepKind,
        capacity: Capacity,
    ) -> Result<Option<CompiledProgram>, EngineError> {
        if let Some(&known) = self.programs.get(&(kind, capacity)) {
            return Ok(Some(known));
        }
        let Some(graph) = self.model.graph(kind) else { return Ok(None) };
        let cols = graph.result().map_or(0, |result| graph.value(result).cols);
        let extra_cols = [Rows::Tokens, Rows::Outputs].map(|rows| {
            let values = graph.extra_outputs().iter().map(|&value| graph.value(value));
            values.filter(|value| value.rows == rows).map(|value| value.cols).sum()
        });
        let program = self.backend.compile(Plan::new(graph, capacity))?;
        let compiled = CompiledProgram { program, cols, extra_cols };
        self.programs.insert((kind, capacity), compiled);
        Ok(Some(compiled))
    }
}

/// Checks that the cache types of the target fit the companion's own layers.
fn check_draft_cache(model: &Model, options: &EngineOptions) -> Result<(), EngineError> {
    let sizes = model.draft_cache_layers().iter();
    let sizes = sizes.flat_map(|l| [(options.cache_k, l.key_dim), (options.cache_v, l.value_dim)]);
    let mut wrong = sizes.filter(|(ty, dim)| !dim.is_multiple_of(ty.block_values()));
    wrong.next().map_or(Ok(()), |(ty, dim)| {
        Err(EngineError::DraftCacheType { ty, multiple: ty.block_values(), dim })
    })
}

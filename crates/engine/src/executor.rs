//! A model on a backend: programs by size class, made when first needed.

use std::collections::HashMap;

use puna_graph::{Backend, Capacity, Plan, ProgramId, Rows, StepInput};
use puna_models::{Guesses, LoadOptions, Model, Want};

use puna_gguf::View;

use crate::diffusion::longest_block;
use crate::error::EngineError;
use crate::options::{EngineOptions, MemoryReport, ModelInfo, cache_spec, state_spec};

/// Logits of a step that there is room for, however many sequences run: 16 MiB.
const LOGITS: usize = 1 << 22;
/// Sequences that have room for their logits in every step, however large the vocabulary.
const LEAST_RESULTS: usize = 32;

/// Runs steps of one model.
pub struct ModelExecutor {
    pub backend: Box<dyn Backend>,
    pub model: Model,
    pub info: ModelInfo,
    pub planned: MemoryReport,
    /// Results of a step that every program has room for, so that their number makes no programs of its own: one for each
    /// sequence, where their number is open as many as there is memory for, and at least the rows of a step that checks
    /// guesses; of a diffusion model one for each place of a block.
    results: usize,
    programs: HashMap<(Want, Capacity), Made>,
}

/// A program that was made.
#[derive(Debug, Clone, Copy)]
struct Made {
    program: ProgramId,
    /// Columns of its result.
    cols: usize,
    /// Columns that it hands out beside it: in rows of tokens, and in rows of outputs.
    beside: [usize; 2],
}

impl Made {
    /// Bytes of what a step hands out that has so many tokens and outputs.
    fn output_bytes(&self, tokens: usize, outputs: usize) -> u64 {
        let [of_tokens, of_outputs] = self.beside;
        4 * (outputs * (self.cols + of_outputs) + tokens * of_tokens) as u64
    }
}

impl ModelExecutor {
    /// Loads a model, hands it to a backend and prepares its largest steps, so that what cannot be computed is known
    /// before the first one.
    pub fn new(
        view: &View,
        backend: Box<dyn Backend>,
        options: &EngineOptions,
    ) -> Result<Self, EngineError> {
        Self::accompanied(view, backend, options, None)
    }

    /// The same with a draft model that guesses with parts of it.
    pub fn accompanied(
        view: &View,
        backend: Box<dyn Backend>,
        options: &EngineOptions,
        companion: Option<&View>,
    ) -> Result<Self, EngineError> {
        let mut executor = Self::bare(view, backend, options, companion)?;
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

    /// The same without a cache and with nothing prepared.
    pub fn bare(
        view: &View,
        mut backend: Box<dyn Backend>,
        options: &EngineOptions,
        companion: Option<&View>,
    ) -> Result<Self, EngineError> {
        let load = LoadOptions { n_ctx: options.num_ctx };
        let load = |companion| Model::load_accompanied(view, &options.adapters, load, companion);
        let mut model = load(companion)?;
        let info = ModelInfo::of(&model, view, options);
        if companion.is_some() && !info.takes_drafts() {
            // It fits, but is of no use here.
            model = load(None)?;
        }
        check_draft_cache(&model, options)?;
        backend.adopt(model.weights().to_vec(), model.ropes().to_vec())?;
        let shape = model.shape();
        let guesses = options.speculation.is_on() && shape.causal && !info.recurrent;
        let guessed = if guesses { backend.max_bit_exact_rows() } else { 1 };
        let open = || (LOGITS / shape.n_vocab.max(1)).max(LEAST_RESULTS).min(options.num_batch);
        let results = match info.unmasking {
            Some(_) => longest_block(info.n_vocab, info.n_ctx),
            None => options.max_sequences.unwrap_or_else(open).max(guessed).max(1),
        };
        let planned = MemoryReport::default();
        Ok(Self { backend, model, info, planned, results, programs: HashMap::new() })
    }

    /// What the model takes with steps as large as they can be. Compiling them takes addresses, but no memory before they
    /// run.
    pub fn memory(&mut self, options: &EngineOptions) -> Result<MemoryReport, EngineError> {
        let [weights, draft]: [u64; 2] =
            self.model.weights_by_model().map(|all| all.iter().map(|w| w.data.size() as u64).sum());
        let spec = cache_spec(&self.model, options);
        let cache = spec.bytes();
        let states = state_spec(&self.model, options);
        let states = states.slot_bytes() as u64 * states.slots as u64;
        // An encoder sees a text as a whole, however long.
        let whole = options.num_batch.max(self.info.n_ctx);
        let kinds: &[(Want, usize, usize)] = match (self.info.can_generate, self.info.causal) {
            (true, _) if self.info.start.is_some() => {
                &[(Want::Encode, whole, whole), (Want::Logits, options.num_batch, self.results)]
            }
            (true, true) => &[(Want::Logits, options.num_batch, self.results)],
            // A step of an answer that begins as masks is its whole text.
            (true, false) => &[(Want::Logits, whole, self.results)],
            (false, true) => &[(Want::Hidden, options.num_batch, options.num_batch)],
            (false, false) => &[(Want::Hidden, whole, whole)],
        };
        let mut kinds = kinds.to_vec();
        // What goes from step to step by way of the loop.
        let mut carried = 0;
        if let Some(guesses) = self.model.guesses() {
            // No more sequences are guessed for than a step checks rows.
            let (sequences, each) = (self.backend.max_bit_exact_rows(), guesses.rows());
            kinds.push((Want::Guess, sequences * each, sequences));
            kinds
                .extend([(Want::Follow, options.num_batch, 0), (Want::Link, sequences, sequences)]);
            carried = match guesses {
                Guesses::Chain { state, .. } => 2 * 4 * (options.num_batch * state) as u64,
                Guesses::Block(_) => {
                    4 * (sequences * (self.info.n_vocab + self.info.n_embd)) as u64
                }
            };
        }
        // The largest result as it is handed out, and what is handed out beside it.
        let mut results = 0;
        let room = self.results;
        let mut with = |size: &dyn Fn(usize) -> usize| -> Result<u64, EngineError> {
            for &(want, tokens, rows) in &kinds {
                if let Some(made) = self.program(want, Capacity::class(size(tokens), room))? {
                    results = results.max(made.output_bytes(tokens, rows));
                }
            }
            Ok(self.backend.scratch_bytes() as u64)
        };
        let largest = with(&|tokens| tokens)?;
        // Steps of all sizes share buffers, but for those that each size keeps for itself. What grows with the size comes to
        // twice that of half the largest for all smaller ones; what does not comes again for each of them.
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

    /// Rows of a step that sequences may draw from.
    pub fn results(&self) -> usize {
        self.results
    }

    /// Rows of a step whose logits may be had beside those that are drawn from: what every step has room for, or `logits` in
    /// all.
    pub fn scored_rows(&self, logits: usize) -> usize {
        self.results.max(logits / self.info.n_vocab.max(1))
    }

    /// What the classifier's labels come to as scores.
    pub fn scores(&self, mut labels: Vec<f32>) -> Vec<f32> {
        if self.model.shape().score_is_softmax {
            let highest = labels.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            labels.iter_mut().for_each(|x| *x = (*x - highest).exp());
            let sum: f32 = labels.iter().sum();
            labels.iter_mut().for_each(|x| *x /= sum);
        }
        labels
    }

    /// Runs a step; the result has this many columns. `None` where the model has no such result.
    pub fn run(&mut self, want: Want, input: &StepInput) -> Result<Option<usize>, EngineError> {
        let Some((program, cols)) = self.prepare(want, input)? else { return Ok(None) };
        self.backend.run(program, input);
        Ok(Some(cols))
    }

    /// Makes the program of a step, if there is none yet: whoever measures steps does so before.
    pub fn prepare(
        &mut self,
        want: Want,
        input: &StepInput,
    ) -> Result<Option<(ProgramId, usize)>, EngineError> {
        // States of all tokens are the same steps whichever of them are wanted.
        let outputs =
            if matches!(want, Want::Hidden | Want::Encode) { 1 } else { input.outputs.len() };
        let made =
            self.program(want, Capacity::class(input.tokens.len(), outputs.max(self.results)))?;
        Ok(made.map(|made| (made.program, made.cols)))
    }

    /// The program of a size class.
    fn program(&mut self, want: Want, capacity: Capacity) -> Result<Option<Made>, EngineError> {
        if let Some(&known) = self.programs.get(&(want, capacity)) {
            return Ok(Some(known));
        }
        let Some(graph) = self.model.graph(want) else { return Ok(None) };
        let cols = graph.result().map_or(0, |result| graph.value(result).cols);
        let beside = [Rows::Tokens, Rows::Outputs].map(|rows| {
            let values = graph.extra_outputs().iter().map(|&value| graph.value(value));
            values.filter(|value| value.rows == rows).map(|value| value.cols).sum()
        });
        let program = self.backend.compile(Plan::new(graph, capacity))?;
        let made = Made { program, cols, beside };
        self.programs.insert((want, capacity), made);
        Ok(Some(made))
    }
}

/// Whether the draft model's own layers can be kept as those of its model are.
fn check_draft_cache(model: &Model, options: &EngineOptions) -> Result<(), EngineError> {
    let sizes = model.draft_cache_layers().iter();
    let sizes = sizes.flat_map(|l| [(options.cache_k, l.key_dim), (options.cache_v, l.value_dim)]);
    let mut wrong = sizes.filter(|(ty, dim)| !dim.is_multiple_of(ty.block_values()));
    wrong.next().map_or(Ok(()), |(ty, dim)| {
        Err(EngineError::DraftCacheType { ty, multiple: ty.block_values(), dim })
    })
}

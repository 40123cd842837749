//! Drafts of a separate, small draft model.
//!
//! The draft model has its own weights, KV cache and prefix tree. Before it drafts for a sequence,
//! it computes the tokens that it has not seen yet. It then drafts greedily, one token per step,
//! while the most probable token has at least `MIN_PROBABILITY`. KV entries of accepted draft
//! tokens stay valid.

use std::collections::HashMap;
use std::time::Instant;

use puna_graph::{Backend, StepInput};
use puna_models::{StepKind, is_companion};
use puna_tokenizer::Tokenizer;

use puna_gguf::View;

use super::rolling_median::RollingMedian;
use crate::config::{EngineOptions, MemoryReport};
use crate::error::EngineError;
use crate::executor::ModelExecutor;
use crate::kv::{CacheScope, PAGE_TOKENS, PagePool, PrefixTreeKey, SequencePages};
use crate::request::RequestId;
use crate::speculate::Speculation;

/// Drafts end before a token with a lower probability.
const MIN_PROBABILITY: f32 = 0.4;
/// Prefill tokens of a draft step while several sequences wait.
const SHARED_PREFILL_TOKENS: usize = 64;
/// Steps with at most this many rows per sequence count as draft steps, larger ones as prefill.
const MAX_DRAFT_STEP_ROWS: usize = 4;
/// Number of timings in a median.
pub(super) const TIMING_WINDOW: usize = 9;

/// A draft model to load: a separate model, or a companion that uses parts of its target model.
pub struct DraftModel {
    /// View of its file.
    pub view: View,
    /// Backend of a separate model. A companion does not use it, since it runs on the target's
    /// backend.
    pub backend: Box<dyn Backend>,
}

impl DraftModel {
    /// Whether the model is a companion, which cannot run alone.
    pub fn is_companion(&self) -> bool {
        is_companion(self.view.metadata())
    }
}

/// A loaded separate draft model.
pub struct ModelDrafter {
    executor: ModelExecutor,
    pages: PagePool,
    num_batch: usize,
    sequences: HashMap<RequestId, DraftSequence>,
    /// Seconds of draft steps.
    times: RollingMedian,
    /// Seconds per token of prefill steps.
    prefill_times: RollingMedian,
}

/// State of one sequence in the draft model.
#[derive(Debug, Default)]
struct DraftSequence {
    pages: SequencePages,
    /// Number of the sequence's tokens in the draft model's cache.
    computed: usize,
    /// Draft tokens in the cache behind them.
    draft: Vec<u32>,
    /// Whether the prompt is computed. Later prefill counts as cost of drafting.
    is_prompt_computed: bool,
}

/// Request for a draft of one sequence.
pub struct DraftRequest<'a> {
    pub id: RequestId,
    pub tokens: &'a [u32],
    /// Largest number of draft tokens.
    pub max_tokens: usize,
    /// Draft regardless of the token's probability.
    pub always: bool,
    /// Pages of the sequence in the target model's cache.
    pub pages: &'a SequencePages,
}

impl DraftRequest<'_> {
    /// Whether a token with this probability becomes part of the draft.
    pub(super) fn accepts(
        &self,
        token: u32,
        probability: f32,
        is_end: impl Fn(u32) -> bool,
    ) -> bool {
        (probability >= MIN_PROBABILITY || self.always) && !is_end(token)
    }
}

/// A draft while its tokens are sampled.
struct DraftInProgress<'a> {
    request: &'a DraftRequest<'a>,
    /// Index of the request.
    index: usize,
    /// Tokens of the next step.
    input: Vec<u32>,
    /// Tokens of the first step that count as time of drafting.
    timed_tokens: usize,
    draft: Vec<u32>,
}

/// Drafts of several sequences.
#[derive(Debug, Default)]
pub struct DraftTokens {
    /// Draft tokens by request; may be empty.
    pub drafts: Vec<Vec<u32>>,
    /// Seconds spent on drafting.
    pub seconds: f64,
}

impl DraftTokens {
    /// Adds `token` to a draft. Stores the draft of request `index` and returns `false` if it ends
    /// here: without a token, or with `max_tokens`.
    pub(super) fn continue_draft(
        &mut self,
        index: usize,
        draft: &mut Vec<u32>,
        token: Option<u32>,
        max_tokens: usize,
    ) -> bool {
        draft.extend(token);
        let continues = token.is_some() && draft.len() < max_tokens;
        if !continues {
            self.drafts[index] = std::mem::take(draft);
        }
        continues
    }
}

impl ModelDrafter {
    /// Loads a draft model for a target model called `name` with this tokenizer.
    pub fn open(
        draft: DraftModel,
        name: &str,
        tokenizer: &Tokenizer,
        options: &EngineOptions,
    ) -> Result<Self, EngineError> {
        check_vocabulary(&draft.view, name, tokenizer)?;
        let options = draft_options(options);
        let executor = ModelExecutor::new(&draft.view, draft.backend, &options)?;
        check_autoregressive(&executor)?;
        if !executor.info.can_generate || !executor.info.causal {
            return Err(EngineError::CannotGenerate);
        }
        check_can_roll_back(&executor)?;
        let pages = PagePool::of(&executor.model, &options);
        let num_batch = options.num_batch.max(1);
        Ok(Self {
            executor,
            pages,
            num_batch,
            sequences: HashMap::new(),
            times: RollingMedian::default(),
            prefill_times: RollingMedian::default(),
        })
    }

    /// Memory that a draft model takes with the options of its target.
    pub fn plan(draft: DraftModel, options: &EngineOptions) -> Result<MemoryReport, EngineError> {
        let options = draft_options(options);
        let mut executor = ModelExecutor::load_weights(&draft.view, draft.backend, &options, None)?;
        check_autoregressive(&executor)?;
        check_can_roll_back(&executor)?;
        executor.memory(&options)
    }

    /// Planned memory.
    pub fn planned(&self) -> MemoryReport {
        self.executor.planned
    }

    /// Median seconds of a draft step; 0 before the first one.
    pub fn token_seconds(&self) -> f64 {
        self.times.median().unwrap_or(0.0)
    }

    /// Expected seconds to compute the tokens of a sequence that the draft model has not seen,
    /// beyond the prompt.
    pub fn prefill_seconds(&self, id: RequestId, tokens: &[u32]) -> f64 {
        let sequence = self.sequences.get(&id).filter(|sequence| sequence.is_prompt_computed);
        let missed =
            sequence.map_or(0, |sequence| tokens.len().saturating_sub(sequence.computed + 1));
        if missed < MAX_DRAFT_STEP_ROWS {
            0.0
        } else {
            missed as f64 * self.prefill_times.median().unwrap_or(0.0)
        }
    }

    /// Drafts for several sequences; each step computes one token of each.
    pub fn draft(
        &mut self,
        requests: &[DraftRequest<'_>],
        is_end: impl Fn(u32) -> bool,
    ) -> Result<DraftTokens, EngineError> {
        let mut result = DraftTokens { drafts: vec![Vec::new(); requests.len()], seconds: 0.0 };
        let mut in_progress = self.compute_missed_tokens(requests)?;
        while !in_progress.is_empty() {
            let input = self.input(&in_progress, true);
            self.executor.prepare(StepKind::Logits, &input)?;
            let start = Instant::now();
            let Some(cols) = self.executor.run(StepKind::Logits, &input)? else { break };
            let seconds = start.elapsed().as_secs_f64();
            let rows = input.tokens.len();
            if rows <= MAX_DRAFT_STEP_ROWS * in_progress.len() {
                self.times.push(seconds, TIMING_WINDOW);
                result.seconds += seconds;
            } else {
                self.prefill_times.push(seconds / rows as f64, TIMING_WINDOW);
                let timed_tokens: usize =
                    in_progress.iter().map(|in_progress| in_progress.timed_tokens).sum();
                result.seconds += seconds * timed_tokens as f64 / rows as f64;
            }
            let rows = self.executor.backend.result().chunks_exact(cols);
            for (in_progress, row) in in_progress.iter_mut().zip(rows) {
                let sequence = self
                    .sequences
                    .get_mut(&in_progress.request.id)
                    .expect("every drafting sequence has a state");
                sequence.add_computed(&in_progress.input, in_progress.request.tokens.len());
                sequence.is_prompt_computed = true;
                in_progress.input.clear();
                let (token, probability) = most_probable(row);
                if in_progress.request.accepts(token, probability, &is_end) {
                    in_progress.draft.push(token);
                    in_progress.input.push(token);
                }
            }
            in_progress.retain_mut(|one| {
                let continues = !one.input.is_empty() && one.draft.len() < one.request.max_tokens;
                if !continues {
                    result.drafts[one.index] = std::mem::take(&mut one.draft);
                }
                continues
            });
        }
        Ok(result)
    }

    /// Computes the tokens that the draft model has not seen yet. Sequences that are still behind,
    /// or without free pages, get no draft.
    fn compute_missed_tokens<'a>(
        &mut self,
        requests: &'a [DraftRequest<'a>],
    ) -> Result<Vec<DraftInProgress<'a>>, EngineError> {
        let mut budget = if requests.len() > 1 { SHARED_PREFILL_TOKENS } else { self.num_batch };
        let (mut ready, mut behind) = (Vec::new(), Vec::new());
        for (index, request) in requests.iter().enumerate() {
            let n = request.tokens.len();
            if n == 0
                || request.max_tokens == 0
                || n + request.max_tokens > self.executor.info.n_ctx
            {
                self.remove(request.id, request.tokens);
                continue;
            }
            let sequence = self.sequences.entry(request.id).or_insert_with(|| {
                let known = &request.tokens[..n - 1];
                // Adapters do not apply to the draft model.
                let key = PrefixTreeKey::default();
                let scope = CacheScope { key, ..request.pages.scope().clone() };
                let (pages, computed) = SequencePages::start_from_cache(
                    &mut self.pages,
                    &scope,
                    known,
                    std::iter::empty(),
                );
                self.executor.copy(self.pages.take_copies());
                DraftSequence { pages, computed, draft: Vec::new(), is_prompt_computed: false }
            });
            sequence.keep_accepted(request.tokens);
            // Publishing also releases pages behind the attention windows.
            sequence.pages.publish(&mut self.pages, &request.tokens[..sequence.computed]);
            let lacking = (n + request.max_tokens).saturating_sub(sequence.pages.capacity_tokens());
            if lacking.div_ceil(PAGE_TOKENS) > self.pages.available(&[]) {
                continue;
            }
            let missed = &request.tokens[sequence.computed..];
            let input = missed[..missed.len().min(budget)].to_vec();
            let draft = if input.len() == missed.len() { request.max_tokens } else { 0 };
            if !sequence.pages.grow(&mut self.pages, sequence.computed + input.len() + draft) {
                continue;
            }
            budget -= input.len();
            let list = if input.len() == missed.len() { &mut ready } else { &mut behind };
            let timed_tokens = if sequence.is_prompt_computed { input.len() } else { 1 };
            list.push(DraftInProgress { request, index, input, timed_tokens, draft: Vec::new() });
        }
        behind.retain(|in_progress| !in_progress.input.is_empty());
        if !behind.is_empty() {
            let input = self.input(&behind, false);
            self.executor.run(StepKind::Logits, &input)?;
            for in_progress in &behind {
                let sequence = self
                    .sequences
                    .get_mut(&in_progress.request.id)
                    .expect("every drafting sequence has a state");
                sequence.add_computed(&in_progress.input, in_progress.request.tokens.len());
                sequence
                    .pages
                    .publish(&mut self.pages, &in_progress.request.tokens[..sequence.computed]);
            }
        }
        Ok(ready)
    }

    fn input(&self, in_progress: &[DraftInProgress<'_>], outputs: bool) -> StepInput {
        let mut input = StepInput::default();
        for in_progress in in_progress {
            let sequence = &self.sequences[&in_progress.request.id];
            let (first_row, rows) = (input.tokens.len(), in_progress.input.len());
            let cached_tokens = sequence.computed + sequence.draft.len();
            input.tokens.extend_from_slice(&in_progress.input);
            input.positions.extend((cached_tokens..cached_tokens + rows).map(|p| p as u32));
            if outputs {
                input.outputs.push((first_row + rows - 1) as u32);
            }
            input.segments.push(sequence.pages.segment(
                &self.pages,
                first_row,
                rows,
                cached_tokens,
            ));
        }
        input
    }

    /// Removes a sequence that has ended or is preempted. Its full pages stay in the prefix tree.
    pub fn remove(&mut self, id: RequestId, tokens: &[u32]) {
        if let Some(mut sequence) = self.sequences.remove(&id) {
            sequence.keep_accepted(tokens);
            sequence.pages.release(&mut self.pages, &tokens[..sequence.computed]);
        }
    }
}

impl DraftSequence {
    /// Adds computed tokens: first tokens of the sequence, which has `n`, then draft tokens.
    fn add_computed(&mut self, tokens: &[u32], n: usize) {
        let own = tokens.len().min(n - self.computed);
        self.computed += own;
        self.draft.extend_from_slice(&tokens[own..]);
    }

    /// Keeps the draft tokens that the sequence accepted. The newest token is computed again, since
    /// its logits are needed.
    fn keep_accepted(&mut self, tokens: &[u32]) {
        let generated = &tokens[self.computed.min(tokens.len())..];
        let equal = self.draft.iter().zip(generated).take_while(|(a, b)| a == b).count();
        self.computed = (self.computed + equal).min(tokens.len().saturating_sub(1));
        self.draft.clear();
    }
}

/// The token with the largest logit, and its probability.
pub(super) fn most_probable(logits: &[f32]) -> (u32, f32) {
    let best =
        (0..logits.len()).reduce(|a, b| if logits[b] > logits[a] { b } else { a }).unwrap_or(0);
    let top = logits.get(best).copied().unwrap_or(0.0);
    // Logits 17 below the largest add less than 2^-24 of the sum.
    let near = logits.iter().map(|&l| l - top).filter(|&l| l > -17.0);
    let sum = near.map(f32::exp).sum::<f32>();
    // The largest adds 1: a smaller sum means that no logit is a number.
    (best as u32, if sum >= 1.0 { 1.0 / sum } else { 0.0 })
}

/// Options of a draft model: the options of its target without adapters and speculation.
fn draft_options(options: &EngineOptions) -> EngineOptions {
    EngineOptions { speculation: Speculation::OFF, adapters: Vec::new(), ..options.clone() }
}

/// Rejects diffusion models as draft models.
fn check_autoregressive(executor: &ModelExecutor) -> Result<(), EngineError> {
    let architecture = executor.info.architecture;
    match executor.info.unmasking {
        Some(_) => Err(EngineError::DiffusionDraft { architecture }),
        None => Ok(()),
    }
}

/// Rejects models that cannot roll back rejected draft tokens, and
/// encoder–decoder models.
fn check_can_roll_back(executor: &ModelExecutor) -> Result<(), EngineError> {
    let architecture = executor.info.architecture;
    match executor.info.start {
        Some(_) => Err(EngineError::EncoderDraft { architecture }),
        None if executor.info.recurrent => Err(EngineError::RecurrentDraft { architecture }),
        None => Ok(()),
    }
}

/// Checks that a companion with a vocabulary has that of its target.
pub(crate) fn check_companion_vocabulary(
    draft: &View,
    model: &str,
    tokenizer: &Tokenizer,
) -> Result<(), EngineError> {
    match draft.metadata().get("tokenizer.ggml.tokens") {
        Some(_) => check_vocabulary(draft, model, tokenizer),
        None => Ok(()),
    }
}

/// Checks that a draft model has the vocabulary of its target, called `model`.
pub(crate) fn check_vocabulary(
    draft: &View,
    model: &str,
    tokenizer: &Tokenizer,
) -> Result<(), EngineError> {
    let draft_tokenizer = Tokenizer::from_metadata(draft.metadata())?;
    let differ = |difference| EngineError::DraftVocabulary {
        draft: model_name(draft),
        model: model.to_owned(),
        difference,
    };
    if draft_tokenizer.model() != tokenizer.model() {
        return Err(differ(format!(
            "its tokenizer type is {:?}, not {:?}",
            draft_tokenizer.model(),
            tokenizer.model()
        )));
    }
    let both = draft_tokenizer.vocab_size().min(tokenizer.vocab_size()) as u32;
    // The sizes of a model family name their reserved tokens differently.
    let reserved = |id| draft_tokenizer.is_control(id) && tokenizer.is_control(id);
    match (0..both).find(|&id| draft_tokenizer.text(id) != tokenizer.text(id) && !reserved(id)) {
        Some(id) => {
            let text = |t: &Tokenizer| String::from_utf8_lossy(t.text(id)).into_owned();
            Err(differ(format!(
                "its token {id} is {:?}, not {:?}",
                text(&draft_tokenizer),
                text(tokenizer)
            )))
        }
        None => Ok(()),
    }
}

/// Name of a model by its metadata.
pub fn model_name(view: &View) -> String {
    let key = |key| view.metadata().opt_str(key).ok().flatten().map(str::to_owned);
    key("general.name")
        .or_else(|| key("general.architecture"))
        .unwrap_or_else(|| "unnamed model".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_token_has_the_probability_that_softmax_gives_it() {
        let (token, p) = most_probable(&[1.0, 3.0, 2.0, f32::NEG_INFINITY]);
        let exact = 1.0 / (1.0 + (-1f32).exp() + (-2f32).exp());
        assert_eq!(token, 1);
        assert!((p - exact).abs() < 1e-6);
        assert_eq!(most_probable(&[f32::NAN, f32::NAN]).1, 0.0);
        assert_eq!(most_probable(&[f32::NEG_INFINITY; 2]).1, 0.0);
    }

    #[test]
    fn accepted_draft_tokens_stay_computed_and_rejected_ones_do_not() {
        let mut sequence = DraftSequence::default();
        sequence.add_computed(&[1, 2, 3], 3);
        sequence.add_computed(&[4], 3);
        sequence.add_computed(&[5], 3);
        assert_eq!((sequence.computed, sequence.draft.as_slice()), (3, &[4, 5][..]));
        sequence.keep_accepted(&[1, 2, 3, 4, 9]);
        assert_eq!((sequence.computed, sequence.draft.len()), (4, 0));
        sequence.add_computed(&[9, 7], 5);
        sequence.keep_accepted(&[1, 2, 3, 4, 9, 7]);
        assert_eq!(sequence.computed, 5, "the newest token's own result is wanted");
    }
}

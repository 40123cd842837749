//! Handle to a loaded model and its engine thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use puna_gguf::View;
use puna_graph::{Backend, Description};
use puna_models::{StepKind, VisionTower, check_architecture};
use puna_sampler::{Constraint, Grammar, GrammarError};
use puna_tokenizer::Tokenizer;

use crate::config::{EngineOptions, MemoryReport, ModelInfo};
use crate::constraint::{ConstrainedSampler, MaskThreads};
use crate::diffusion::{self, DiffusionSequence};
use crate::embed_queue::{EmbedCallback, EmbedRequest, RerankCallback};
use crate::engine_loop::{Command, EngineLoop, MediaEncoder};
use crate::error::EngineError;
use crate::executor::ModelExecutor;
use crate::generation::Generation;
use crate::kv::PagePool;
use crate::media::NO_TOKEN;
use crate::projector::Projector;
use crate::request::{Request, RequestId, Sink};
use crate::scheduler::{Scheduler, SchedulerLimits, SequenceState};
use crate::speculate::draft_source::DraftSource;
use crate::speculate::lookup::LookupDrafter;
use crate::speculate::model::{DraftModel, ModelDrafter, check_companion_vocabulary, model_name};
use crate::speculate::speculator::Speculator;
use crate::speculate::{Drafter, Speculation};
use crate::stats::Stats;

/// Name of the engine thread.
pub const THREAD: &str = "puna-engine";

/// Largest number of logits of a step that only score prompts.
const MAX_SCORED_LOGITS: usize = 1 << 20;

/// Makes the prompt lookup of a new sequence.
pub(crate) type Drafters = Arc<dyn Fn() -> Box<dyn Drafter> + Send + Sync>;

fn lookup_drafters() -> Drafters {
    Arc::new(|| Box::<LookupDrafter>::default())
}

/// Models that belong to a language model.
#[derive(Default)]
pub struct Companions {
    /// Draft model for speculative decoding.
    pub draft: Option<DraftModel>,
    /// Vision tower for pictures.
    pub projector: Option<Projector>,
}

/// Checks that the rows of a projector fit the model.
fn check_projector(projector: &Projector, executor: &ModelExecutor) -> Result<(), EngineError> {
    let (media, width) = (projector.tower().width(), executor.model.media_width());
    if media != width {
        return Err(EngineError::MediaWidth { media, width });
    }
    let takes_media = executor.model.graph(StepKind::MediaLogits).is_some();
    if takes_media { Ok(()) } else { Err(EngineError::NoMedia) }
}

/// A loaded model and its engine loop. Clones share it; the loop stops with the last clone.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    commands: Sender<Command>,
    tokenizer: Arc<Tokenizer>,
    info: ModelInfo,
    planned: MemoryReport,
    device: Description,
    stats: Arc<Mutex<Stats>>,
    speculation: Speculation,
    drafters: Drafters,
    masks: Arc<MaskThreads>,
    next_id: AtomicU64,
    tower: Option<Arc<VisionTower>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Loads a model and starts its loop. Weights are mapped, and read when first used.
    pub fn open(
        view: View,
        backend: Box<dyn Backend>,
        options: &EngineOptions,
    ) -> Result<Self, EngineError> {
        Self::start(view, backend, options, Companions::default(), lookup_drafters())
    }

    /// Like [`Engine::open`], with a draft model. Answers are the same, but may be faster.
    ///
    /// # Errors
    ///
    /// As [`Engine::open`], for both models; and [`EngineError::DraftVocabulary`], or
    /// [`ModelError::Companion`](puna_models::ModelError::Companion).
    pub fn open_with_draft(
        view: View,
        backend: Box<dyn Backend>,
        options: &EngineOptions,
        draft: DraftModel,
    ) -> Result<Self, EngineError> {
        let companions = Companions { draft: Some(draft), ..Companions::default() };
        Self::start(view, backend, options, companions, lookup_drafters())
    }

    /// Like [`Engine::open`], with other models that belong to this one.
    ///
    /// # Errors
    ///
    /// As [`Engine::open_with_draft`]; and [`EngineError::MediaWidth`], or
    /// [`EngineError::NoMedia`] for an architecture that takes no rows of media.
    pub fn open_with_companions(
        view: View,
        backend: Box<dyn Backend>,
        options: &EngineOptions,
        companions: Companions,
    ) -> Result<Self, EngineError> {
        Self::start(view, backend, options, companions, lookup_drafters())
    }

    /// Like [`Engine::open_with_companions`], with another drafter than prompt lookup.
    pub(crate) fn start(
        view: View,
        backend: Box<dyn Backend>,
        options: &EngineOptions,
        companions: Companions,
        drafters: Drafters,
    ) -> Result<Self, EngineError> {
        let Companions { draft, projector } = companions;
        // Checked first, so that an unknown architecture is not reported as an unknown vocabulary.
        check_architecture(view.metadata())?;
        let tokenizer = Arc::new(Tokenizer::from_metadata(view.metadata())?);
        let (companion, draft) = match draft {
            Some(draft) if draft.is_companion() => (Some(draft.view), None),
            draft => (None, draft),
        };
        if let Some(draft) = &companion {
            check_companion_vocabulary(draft, &model_name(&view), &tokenizer)?;
        }
        let executor = ModelExecutor::with_companion(&view, backend, options, companion.as_ref())?;
        if let Some(projector) = &projector {
            check_projector(projector, &executor)?;
        }
        // Both models have the same context size.
        let draft_options = EngineOptions { num_ctx: Some(executor.info.n_ctx), ..options.clone() };
        if draft.is_some() || companion.is_some() {
            diffusion::check_draft_support(&executor.info)?;
        }
        if (draft.is_some() || companion.is_some()) && !executor.info.takes_drafts() {
            tracing::warn!(
                architecture = executor.info.architecture,
                "architecture does not support speculative decoding; draft model not used"
            );
        }
        let draft = draft.filter(|_| executor.info.takes_drafts());
        let drafts = draft
            .map(|draft| ModelDrafter::open(draft, &model_name(&view), &tokenizer, &draft_options))
            .transpose()?;
        let drafted =
            drafts.as_ref().map_or(executor.planned.draft, |drafts| drafts.planned().total());
        let (info, planned) =
            (executor.info.clone(), MemoryReport { draft: drafted, ..executor.planned });
        let companion_drafts = executor.model.draft_method().filter(|_| info.takes_drafts());
        let source = drafts.map(|drafts| DraftSource::Model(Box::new(drafts)));
        let source = source.or_else(|| companion_drafts.map(DraftSource::companion));
        let device = executor.backend.describe();
        let exact = if info.recurrent { 1 } else { executor.backend.max_bit_exact_rows() };
        let speculator = Speculator::new(exact, source);
        let scheduler = Scheduler::new(
            PagePool::of(&executor.model, options),
            SchedulerLimits {
                num_batch: options.num_batch,
                max_sequences: options.max_sequences,
                output_rows: executor.output_rows(),
                prompt_logits_rows: executor.prompt_logits_rows(MAX_SCORED_LOGITS),
                max_bit_exact_rows: executor.backend.max_bit_exact_rows(),
                media_width: executor.model.media_width(),
            },
        );
        let stats = Arc::new(Mutex::new(Stats::default()));
        let (commands, receiver) = channel();
        let tower = projector.as_ref().map(|projector| Arc::clone(projector.tower()));
        let engine_loop = EngineLoop::new(
            executor,
            Arc::clone(&tokenizer),
            Arc::clone(&stats),
            scheduler,
            speculator,
            MediaEncoder::new(projector, options.media_cache_bytes),
        );
        let thread = std::thread::Builder::new()
            .name(THREAD.into())
            .spawn(move || engine_loop.run(&receiver));
        let thread = Mutex::new(Some(thread.map_err(|_| EngineError::Stopped)?));
        let (speculation, next_id) = (options.speculation, AtomicU64::new(1));
        let masks = Arc::new(MaskThreads::new());
        let inner = Inner {
            commands,
            tokenizer,
            info,
            planned,
            device,
            stats,
            speculation,
            drafters,
            masks,
            next_id,
            tower,
            thread,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.inner.tokenizer
    }

    /// The vision tower, if the model has one.
    pub fn tower(&self) -> Option<&Arc<VisionTower>> {
        self.inner.tower.as_ref()
    }

    /// Properties of the model.
    pub fn info(&self) -> &ModelInfo {
        &self.inner.info
    }

    /// Description of the device that runs the model.
    pub fn device(&self) -> &Description {
        &self.inner.device
    }

    /// Compiles the grammar of a [`Request`]. The first one takes longer, since the vocabulary is
    /// sorted.
    ///
    /// # Errors
    ///
    /// The constraint is invalid or too large.
    pub fn grammar(&self, constraint: &Constraint) -> Result<Grammar, GrammarError> {
        self.try_grammar(constraint, false, &AtomicBool::new(false))
    }

    /// Like [`Engine::grammar`], for an answer that must be complete: the engine ends it in time
    /// for the token limit, and when it repeats itself. If the grammar's shortest end takes too
    /// much work to find, the answer can be cut.
    ///
    /// # Errors
    ///
    /// As [`Engine::grammar`].
    pub fn whole_grammar(&self, constraint: &Constraint) -> Result<Grammar, GrammarError> {
        self.try_grammar(constraint, true, &AtomicBool::new(false))
    }

    /// Like [`Engine::grammar`] or, `whole`, [`Engine::whole_grammar`], until `cancelled` is set.
    ///
    /// # Errors
    ///
    /// As these, and [`GrammarError::Cancelled`].
    pub fn try_grammar(
        &self,
        constraint: &Constraint,
        whole: bool,
        cancelled: &AtomicBool,
    ) -> Result<Grammar, GrammarError> {
        self.inner.masks.grammar(constraint, &self.inner.tokenizer, whole, cancelled)
    }

    /// Checks a request without running it.
    ///
    /// # Errors
    ///
    /// The prompt is empty or too long, or the model does not support an option of the request.
    pub fn check(&self, request: &Request) -> Result<(), EngineError> {
        let info = &self.inner.info;
        if !info.can_generate {
            return Err(EngineError::CannotGenerate);
        }
        self.check_vocabulary(&request.prompt, request.context_in(info.n_ctx))?;
        self.check_media(request)?;
        if info.start.is_some() {
            if request.prompt_logprobs.is_some() {
                return Err(EngineError::CannotScorePrompt);
            }
            // The context also holds the decoder's start token.
            let (tokens, n_ctx) = (request.prompt.len() + 1, request.context_in(info.n_ctx));
            if tokens > n_ctx {
                return Err(EngineError::PromptTooLong { tokens, n_ctx });
            }
        }
        diffusion::check(request, info)
    }

    /// Starts a generation. `sink` receives its events.
    ///
    /// # Errors
    ///
    /// As [`Engine::check`]; and [`EngineError::Stopped`].
    pub fn submit(
        &self,
        mut request: Request,
        sink: Box<dyn Sink>,
    ) -> Result<RequestId, EngineError> {
        self.check(&request)?;
        let info = &self.inner.info;
        let id = self.next_id();
        if let Some(unmasking) = info.unmasking {
            let sequence =
                DiffusionSequence::new(id, request, sink, &self.inner.tokenizer, info, unmasking);
            self.send(Command::SubmitDiffusion(Box::new(sequence)))?;
            return Ok(id);
        }
        request.speculation.get_or_insert(self.inner.speculation);
        let drafter = (self.inner.drafters)();
        let masks = &self.inner.masks;
        let constrained = request
            .grammar
            .take()
            .map(|grammar| ConstrainedSampler::new(grammar, Arc::clone(masks)));
        let state = SequenceState::new(id, &request, info.n_ctx, info.start);
        let tokenizer = &self.inner.tokenizer;
        let generation = Generation::new(id, request, sink, tokenizer, info, drafter, constrained);
        self.send(Command::Submit(Box::new((state, generation))))?;
        Ok(id)
    }

    /// Cancels a request before the next step. Its sink receives no further events.
    pub fn cancel(&self, id: RequestId) {
        // A stopped loop has no requests.
        let _ = self.send(Command::Cancel(id));
    }

    /// Tells the loop that a sink which was not ready may be ready now. Without it the loop asks
    /// again after 100 ms.
    pub fn wake(&self) {
        // A stopped loop has no requests.
        let _ = self.send(Command::Wake);
    }

    /// Computes one embedding for each input, with the model's pooling and without normalization;
    /// rerankers return their labels. Clients share the steps fairly.
    pub fn embed(
        &self,
        client: u64,
        inputs: Vec<Vec<u32>>,
        done: EmbedCallback,
    ) -> Result<RequestId, EngineError> {
        if self.inner.info.start.is_some() {
            return Err(EngineError::CannotEmbed);
        }
        for input in &inputs {
            self.check_vocabulary(input, self.inner.info.n_ctx)?;
        }
        let id = self.next_id();
        self.send(Command::Embed(EmbedRequest::new(id, client, inputs, done)))?;
        Ok(id)
    }

    /// Computes the score of each query–document pair, the model's first label.
    ///
    /// # Errors
    ///
    /// As [`Engine::embed`]; and [`EngineError::CannotRank`].
    pub fn rerank(
        &self,
        client: u64,
        pairs: Vec<Vec<u32>>,
        done: RerankCallback,
    ) -> Result<RequestId, EngineError> {
        if !self.inner.info.can_rerank {
            return Err(EngineError::CannotRank);
        }
        let first = |labels: Vec<f32>| labels.first().copied().ok_or(EngineError::CannotRank);
        let scores = move |labels: Vec<Vec<f32>>| {
            labels.into_iter().map(first).collect::<Result<Vec<_>, _>>()
        };
        self.embed(client, pairs, Box::new(move |result| done(result.and_then(scores))))
    }

    /// Planned memory.
    pub fn memory(&self) -> MemoryReport {
        self.inner.planned
    }

    /// Statistics of the loop.
    pub fn stats(&self) -> Stats {
        *self.inner.stats.lock().expect("nobody panics with the statistics")
    }

    fn check_vocabulary(&self, tokens: &[u32], n_ctx: usize) -> Result<(), EngineError> {
        let n_vocab = self.inner.info.n_vocab;
        match tokens {
            [] => Err(EngineError::EmptyPrompt),
            _ if tokens.len() > n_ctx => {
                Err(EngineError::PromptTooLong { tokens: tokens.len(), n_ctx })
            }
            _ => match tokens.iter().find(|&&t| t as usize >= n_vocab && t != NO_TOKEN) {
                Some(&token) => Err(EngineError::UnknownToken { token, n_vocab }),
                None => Ok(()),
            },
        }
    }

    /// Checks that each medium of a request is at rows of the prompt without a token.
    fn check_media(&self, request: &Request) -> Result<(), EngineError> {
        let mut rows = request.prompt.clone();
        for medium in &request.media {
            let place = rows.get_mut(medium.first..medium.first.saturating_add(medium.layout.rows));
            let place = place.filter(|place| place.iter().all(|token| *token == NO_TOKEN));
            place.ok_or(EngineError::MediaPlaces)?.fill(0);
        }
        if rows.contains(&NO_TOKEN) {
            return Err(EngineError::MediaPlaces);
        }
        let has_media = !request.media.is_empty();
        if has_media && self.inner.tower.is_none() {
            return Err(EngineError::NoMedia);
        }
        if has_media && request.prompt_logprobs.is_some() {
            return Err(EngineError::CannotScoreMedia);
        }
        Ok(())
    }

    fn next_id(&self) -> RequestId {
        RequestId(self.inner.next_id.fetch_add(1, Ordering::Relaxed))
    }

    fn send(&self, command: Command) -> Result<(), EngineError> {
        self.inner.commands.send(command).map_err(|_| EngineError::Stopped)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The loop may have stopped already.
        let _ = self.commands.send(Command::Stop);
        let thread = self.thread.get_mut().ok().and_then(Option::take);
        // The engine thread cannot join itself: a sink may hold the last clone.
        if let Some(thread) = thread.filter(|t| t.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

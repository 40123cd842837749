//! The handle: what the rest of the program holds of a loaded model.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use puna_gguf::View;
use puna_graph::{Backend, Description};
use puna_models::check_architecture;
use puna_sampler::{Constraint, Grammar, GrammarError};
use puna_tokenizer::Tokenizer;

use crate::constraint::{Constrained, Masks};
use crate::diffusion::{self, DiffusionSequence};
use crate::embed::{Done, EmbedJob, Scored};
use crate::engine_loop::{Command, EngineLoop};
use crate::error::EngineError;
use crate::executor::ModelExecutor;
use crate::job::{Job, Sink};
use crate::options::{EngineOptions, MemoryReport, ModelInfo};
use crate::pages::Pages;
use crate::sequence::{JobId, Sequence};
use crate::speculate::lookup::Lookup;
use crate::speculate::model::{DraftModel, Drafts, check_companion_tokens, name_of};
use crate::speculate::source::Source;
use crate::speculate::speculator::Speculator;
use crate::speculate::{Drafter, Speculation};
use crate::stats::Stats;

/// Name of the thread that runs a model's loop.
pub const THREAD: &str = "puna-engine";

/// Makes what guesses from the text of a new sequence.
pub(crate) type Drafters = Arc<dyn Fn() -> Box<dyn Drafter> + Send + Sync>;

fn lookups() -> Drafters {
    Arc::new(|| Box::<Lookup>::default())
}

/// A loaded model and its loop. Clones share it; the loop ends with the last one.
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
    masks: Arc<Masks>,
    next_id: AtomicU64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Loads a model: reads the file's keys, maps its weights, starts the loop. Weights are read when first used.
    pub fn open(
        view: View,
        backend: Box<dyn Backend>,
        options: &EngineOptions,
    ) -> Result<Self, EngineError> {
        Self::start(view, backend, options, None, lookups())
    }

    /// The same with a draft model that guesses ahead. DraftTokens are the same; they may come faster.
    ///
    /// # Errors
    /// As [`Engine::open`], for both models; and [`EngineError::DraftVocabulary`], or [`ModelError::Companion`](puna_models::ModelError::Companion).
    pub fn open_with_draft(
        view: View,
        backend: Box<dyn Backend>,
        options: &EngineOptions,
        draft: DraftModel,
    ) -> Result<Self, EngineError> {
        Self::start(view, backend, options, Some(draft), lookups())
    }

    /// The same with some other way to guess from a sequence's text.
    pub(crate) fn start(
        view: View,
        backend: Box<dyn Backend>,
        options: &EngineOptions,
        draft: Option<DraftModel>,
        drafters: Drafters,
    ) -> Result<Self, EngineError> {
        // First: of what is not run at all, the vocabulary need not be known either.
        check_architecture(view.metadata())?;
        let tokenizer = Arc::new(Tokenizer::from_metadata(view.metadata())?);
        let (companion, draft) = match draft {
            Some(draft) if draft.is_companion() => (Some(draft.view), None),
            draft => (None, draft),
        };
        if let Some(draft) = &companion {
            check_companion_tokens(draft, &name_of(&view), &tokenizer)?;
        }
        let executor = ModelExecutor::accompanied(&view, backend, options, companion.as_ref())?;
        // What the model was shortened to holds for both.
        let alike = EngineOptions { num_ctx: Some(executor.info.n_ctx), ..options.clone() };
        if draft.is_some() || companion.is_some() {
            diffusion::takes_draft(&executor.info)?;
        }
        if (draft.is_some() || companion.is_some()) && !executor.info.takes_drafts() {
            let architecture = executor.info.architecture;
            tracing::warn!(
                "models of architecture {architecture} are not guessed for: the draft model is left out"
            );
        }
        let draft = draft.filter(|_| executor.info.takes_drafts());
        let drafts = draft
            .map(|draft| Drafts::open(draft, &name_of(&view), &tokenizer, &alike))
            .transpose()?;
        let drafted =
            drafts.as_ref().map_or(executor.planned.draft, |drafts| drafts.planned().total());
        let (info, planned) =
            (executor.info.clone(), MemoryReport { draft: drafted, ..executor.planned });
        let beside = executor.model.guesses().filter(|_| info.takes_drafts());
        let source = drafts.map(|drafts| Source::Model(Box::new(drafts)));
        let source = source.or_else(|| beside.map(Source::beside));
        let device = executor.backend.describe();
        let exact = if info.recurrent { 1 } else { executor.backend.max_bit_exact_rows() };
        let speculator = Speculator::new(exact, source);
        let pages = Pages::of(&executor.model, options);
        let stats = Arc::new(Mutex::new(Stats::default()));
        let (commands, receiver) = channel();
        let engine_loop = EngineLoop::new(
            executor,
            Arc::clone(&tokenizer),
            Arc::clone(&stats),
            pages,
            options.num_batch,
            options.max_sequences,
            speculator,
        );
        let thread = std::thread::Builder::new()
            .name(THREAD.into())
            .spawn(move || engine_loop.run(&receiver));
        let thread = Mutex::new(Some(thread.map_err(|_| EngineError::Stopped)?));
        let (speculation, next_id) = (options.speculation, AtomicU64::new(1));
        let masks = Arc::new(Masks::new());
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
            thread,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.inner.tokenizer
    }

    /// Figures of the model.
    pub fn info(&self) -> &ModelInfo {
        &self.inner.info
    }

    /// Where it runs.
    pub fn device(&self) -> &Description {
        &self.inner.device
    }

    /// Makes a grammar for a [`Job`]'s answer. The first one takes longer: all tokens are sorted.
    ///
    /// # Errors
    /// What is wrong with the constraint.
    pub fn grammar(&self, constraint: &Constraint) -> Result<Grammar, GrammarError> {
        self.inner.masks.grammar(constraint, &self.inner.tokenizer, false)
    }

    /// Makes a grammar for an answer that is to be whole whatever its limit is: it is ended in time, and where it repeats
    /// itself. Where the shortest end of an answer is not known, for a grammar that takes too much work, the answer is cut.
    ///
    /// # Errors
    /// As [`Engine::grammar`].
    pub fn whole_grammar(&self, constraint: &Constraint) -> Result<Grammar, GrammarError> {
        self.inner.masks.grammar(constraint, &self.inner.tokenizer, true)
    }

    /// Checks that a job can be done.
    ///
    /// # Errors
    /// The prompt is empty or too long, or the model cannot give what is asked for.
    pub fn check(&self, job: &Job) -> Result<(), EngineError> {
        let info = &self.inner.info;
        if !info.can_generate {
            return Err(EngineError::CannotGenerate);
        }
        self.check_tokens(&job.prompt, job.context_in(info.n_ctx))?;
        if info.start.is_some() {
            if job.prompt_logprobs.is_some() {
                return Err(EngineError::CannotScorePrompt);
            }
            // Beside the prompt there must be room for the token that the answer begins with.
            let (tokens, n_ctx) = (job.prompt.len() + 1, job.context_in(info.n_ctx));
            if tokens > n_ctx {
                return Err(EngineError::PromptTooLong { tokens, n_ctx });
            }
        }
        diffusion::check(job, info)
    }

    /// Generates; `sink` hears of it.
    ///
    /// # Errors
    /// As [`Engine::check`]; and [`EngineError::Stopped`].
    pub fn submit(&self, mut job: Job, sink: Box<dyn Sink>) -> Result<JobId, EngineError> {
        self.check(&job)?;
        let info = &self.inner.info;
        let id = self.next_id();
        if let Some(unmasking) = info.unmasking {
            let canvas =
                DiffusionSequence::new(id, job, sink, &self.inner.tokenizer, info, unmasking);
            self.send(Command::Unmask(Box::new(canvas)))?;
            return Ok(id);
        }
        job.speculation.get_or_insert(self.inner.speculation);
        let drafter = (self.inner.drafters)();
        let masks = &self.inner.masks;
        let constrained =
            job.grammar.take().map(|grammar| Constrained::new(grammar, Arc::clone(masks)));
        let sequence =
            Sequence::new(id, job, sink, &self.inner.tokenizer, info, drafter, constrained);
        self.send(Command::Submit(Box::new(sequence)))?;
        Ok(id)
    }

    /// Ends a job at the next step; its sink hears nothing more.
    pub fn cancel(&self, id: JobId) {
        // A loop that has ended has no jobs.
        let _ = self.send(Command::Cancel(id));
    }

    /// One vector for each input, pooled as the file says and not normalised; scores for rerankers.
    pub fn embed(&self, inputs: Vec<Vec<u32>>, done: Done) -> Result<JobId, EngineError> {
        if self.inner.info.start.is_some() {
            return Err(EngineError::CannotEmbed);
        }
        for input in &inputs {
            self.check_tokens(input, self.inner.info.n_ctx)?;
        }
        let id = self.next_id();
        self.send(Command::Embed(EmbedJob { id, inputs, vectors: Vec::new(), done, long: None }))?;
        Ok(id)
    }

    /// One score for each input, a pair of texts: what the model's first label comes to.
    ///
    /// # Errors
    /// As [`Engine::embed`]; and [`EngineError::CannotRank`].
    pub fn rank(&self, pairs: Vec<Vec<u32>>, done: Scored) -> Result<JobId, EngineError> {
        if !self.inner.info.can_rank {
            return Err(EngineError::CannotRank);
        }
        let first = |labels: Vec<f32>| labels.first().copied().ok_or(EngineError::CannotRank);
        let scores = move |labels: Vec<Vec<f32>>| {
            labels.into_iter().map(first).collect::<Result<Vec<_>, _>>()
        };
        self.embed(pairs, Box::new(move |result| done(result.and_then(scores))))
    }

    /// Bytes by purpose, as planned.
    pub fn memory(&self) -> MemoryReport {
        self.inner.planned
    }

    /// What the loop is doing.
    pub fn stats(&self) -> Stats {
        *self.inner.stats.lock().expect("nobody panics with the statistics")
    }

    fn check_tokens(&self, tokens: &[u32], n_ctx: usize) -> Result<(), EngineError> {
        let n_vocab = self.inner.info.n_vocab;
        match tokens {
            [] => Err(EngineError::EmptyPrompt),
            _ if tokens.len() > n_ctx => {
                Err(EngineError::PromptTooLong { tokens: tokens.len(), n_ctx })
            }
            _ => match tokens.iter().find(|&&t| t as usize >= n_vocab) {
                Some(&token) => Err(EngineError::UnknownToken { token, n_vocab }),
                None => Ok(()),
            },
        }
    }

    fn next_id(&self) -> JobId {
        JobId(self.inner.next_id.fetch_add(1, Ordering::Relaxed))
    }

    fn send(&self, command: Command) -> Result<(), EngineError> {
        self.inner.commands.send(command).map_err(|_| EngineError::Stopped)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The loop may have ended already.
        let _ = self.commands.send(Command::Stop);
        let thread = self.thread.get_mut().ok().and_then(Option::take);
        // A sink that holds the last clone runs on the loop's own thread, which cannot wait for itself.
        if let Some(thread) = thread.filter(|t| t.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

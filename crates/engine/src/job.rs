//! What callers ask of the engine and what comes back.

use std::time::Duration;

use puna_graph::AdapterScales;
use puna_sampler::{Grammar, Params};

use crate::diffusion::Diffusion;
use crate::speculate::{Speculated, Speculation};

/// A text to generate.
#[derive(Debug, Clone)]
pub struct Job {
    /// The whole prompt, special tokens included.
    pub prompt: Vec<u32>,
    /// How to draw tokens.
    pub sampling: Params,
    /// Strings that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// Tokens to generate at most; `None` ends by the model's own decision or the context's size. A diffusion model begins with so
    /// many masks, and with 256 where nobody says; never with more than the context has room for.
    pub max_tokens: Option<usize>,
    /// Control tokens that are part of the text; others are not.
    pub shown: Vec<u32>,
    /// Prompt tokens that survive a context shift.
    pub keep: usize,
    /// Tokens of prompt and answer that the context holds; `None` is as many as the engine's does, and never more than
    /// those.
    pub context: Option<usize>,
    /// Whether to drop the older half when the context is full, rather than to end with [`Finish::Length`].
    pub shift: bool,
    /// Report log-probabilities, with this many alternatives each.
    pub logprobs: Option<usize>,
    /// Report the prompt's log-probabilities, with this many alternatives each ([`Event::Prompt`]). All of it is computed
    /// then, whatever the cache holds.
    pub prompt_logprobs: Option<usize>,
    /// Who asks; the loop is fair between different values.
    pub client: u64,
    /// How much of the engine's adapters it has; all of them as they are by default. Jobs with different adapter_scales share steps,
    /// and what is computed is found again by those of the same adapter_scales.
    pub adapter_scales: AdapterScales,
    /// Whether and how to guess ahead; `None` as the engine's options say.
    pub speculation: Option<Speculation>,
    /// The form of the answer, from [`crate::Engine::grammar`]. It holds from where [`Sink::stage`] says that the answer
    /// begins.
    pub grammar: Option<Grammar>,
    /// How a diffusion model fills the answer.
    pub diffusion: Diffusion,
}

impl Job {
    /// Goes on from `prompt` until the model ends, shifting the context if need be.
    pub fn new(prompt: Vec<u32>, sampling: Params) -> Self {
        Self {
            prompt,
            sampling,
            stop: Vec::new(),
            max_tokens: None,
            shown: Vec::new(),
            keep: 0,
            context: None,
            shift: true,
            logprobs: None,
            prompt_logprobs: None,
            client: 0,
            adapter_scales: AdapterScales::default(),
            speculation: None,
            grammar: None,
            diffusion: Diffusion::default(),
        }
    }

    /// Tokens that its context holds, in an engine whose contexts hold `n_ctx`.
    pub(crate) fn context_in(&self, n_ctx: usize) -> usize {
        self.context.map_or(n_ctx, |tokens| tokens.clamp(1, n_ctx))
    }
}

/// What a job reports, in order: progress, pieces, one end.
#[derive(Debug, Clone)]
pub enum Event {
    /// The prompt is being read.
    Prefill {
        /// Prompt tokens that are done, cached ones included.
        done: usize,
        /// Prompt tokens in all.
        total: usize,
    },
    /// The next tokens of the prompt, where their log-probabilities were asked for.
    Prompt(Vec<PromptToken>),
    /// Some text; may be empty where a character is incomplete or a stop string may have begun.
    Piece(Piece),
    /// The end.
    Done(Summary),
    /// The end, by an error.
    Failed(String),
    /// What was asked for cannot be done, as turned out on the way; the request would have to be another one.
    Refused(String),
}

/// A token of the prompt, and what the model makes of it.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptToken {
    /// The token.
    pub token: u32,
    /// How likely it is behind those before it; nothing is known of the first.
    pub logprobs: Option<puna_sampler::TokenLogprobs>,
    /// How many tokens are likelier, and one more; 0 for the first.
    pub rank: u32,
}

/// One generated token and the text that can be shown after it.
#[derive(Debug, Clone, Default)]
pub struct Piece {
    /// Text that is safe to show: whole characters, no part of a stop string.
    pub text: String,
    /// The token.
    pub token: u32,
    /// Filled when the job asks for it.
    pub logprobs: Option<puna_sampler::TokenLogprobs>,
}

/// Why a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// The model's end token.
    End,
    /// A stop string (its index in the job).
    Stop(usize),
    /// `max_tokens` or the context's size.
    Length,
}

/// Figures of a finished job.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Why it ended.
    pub finish: Finish,
    /// Prompt tokens, cached ones included.
    pub prompt_tokens: usize,
    /// Prompt tokens that were found in the cache.
    pub cached_tokens: usize,
    /// Time spent reading the rest of the prompt.
    pub prefill: Duration,
    /// Generated tokens, the end token included.
    pub generated_tokens: usize,
    /// Time spent generating.
    pub decode: Duration,
    /// Time spent waiting in the queue.
    pub queued: Duration,
    /// Tokens that were guessed ahead, and those of them that came true.
    pub speculated: Speculated,
    /// Tokens dropped by context shifts.
    pub shifted_tokens: usize,
    /// All tokens of the sequence, prompt first, for callers that continue it.
    pub tokens: Vec<u32>,
}

/// What the next piece of text would be to a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// A thought, or nothing that counts: the answer begins later.
    Before,
    /// The answer.
    Answer,
    /// The end of a thought and the beginning of the answer in one.
    Mixed,
    /// The end without an answer, as something else was said that will do, such as a tool call.
    Enough,
}

/// Where a job's events go.
pub trait Sink: Send {
    /// Whether another event would be taken now. While it is not, the sequence pauses and others go on.
    fn ready(&self) -> bool {
        true
    }

    /// Pieces that would be taken now. Guesses that come true bring several in one step, and no more than this many are
    /// made.
    fn room(&self) -> usize {
        usize::MAX
    }

    /// What `text` would be, were it the next piece; an empty text asks whether the answer is due. Asked of jobs with a
    /// [`Job::grammar`] until the answer begins.
    fn stage(&self, text: &str) -> Stage {
        let _ = text;
        Stage::Answer
    }

    /// Tokens that must come next instead of being drawn, such as the end of a thought that was long enough. Asked before
    /// every draw, but not within a character.
    fn forced(&mut self) -> Vec<u32> {
        Vec::new()
    }

    /// Tokens that end a thought whose model would rather end the text than answer. Without any, the end is not drawn. Asked
    /// of jobs with a [`Job::grammar`], once.
    fn end_thought(&mut self) -> Vec<u32> {
        Vec::new()
    }

    /// Whether the answer of a [`Job::grammar`] itself begins with the end of the thought before it.
    fn answer_ends_thought(&self) -> bool {
        false
    }

    /// The answer begins with the next piece: what was held back before it is no part of it. Told of jobs with a
    /// [`Job::grammar`].
    fn begin_answer(&mut self) {}

    /// Whether what was sent so far is enough, and the answer ends here as if the model had ended it. Asked after every
    /// piece.
    fn has_enough(&self) -> bool {
        false
    }

    /// Whether stop strings do not count in `text`, the next piece, such as in a thought.
    fn ignores_stops(&self, text: &str) -> bool {
        let _ = text;
        false
    }

    /// Takes an event; `false` says that nobody listens any more, and cancels the job.
    fn send(&mut self, event: Event) -> bool;
}

impl<F: FnMut(Event) -> bool + Send> Sink for F {
    fn send(&mut self, event: Event) -> bool {
        self(event)
    }
}

//! Requests to the engine and the events that it returns.

use std::sync::Arc;
use std::time::Duration;

use puna_graph::AdapterScales;
use puna_models::{TowerPicture, UnmaskOrder};
use puna_sampler::{Grammar, Params};

use crate::media::MediumLayout;
use crate::speculate::{DraftStats, Speculation};

/// Number of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Namespace of cached prefixes. Requests find only prefixes of their own namespace, so that a
/// client cannot learn what another one has sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheNamespace(pub u128);

/// Beginning of a prompt that every client of the model may know, such as the model's system
/// prompt. Its whole pages are shared by all requests with the same public prefix.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PublicPrefix {
    /// Length in tokens.
    pub tokens: usize,
    /// Namespace of its pages. It identifies the whole public text, so that requests for another
    /// text cannot find out where the texts differ.
    pub namespace: CacheNamespace,
}

/// A medium of a prompt.
#[derive(Debug, Clone)]
pub struct PromptMedium {
    /// Index of its first row. The prompt has [`crate::NO_TOKEN`] for each row.
    pub first: usize,
    /// Positions and visibility of its rows.
    pub layout: MediumLayout,
    /// Hash of the content and of all options that change the rows.
    pub content: u128,
    /// The picture for the tower.
    pub picture: Arc<TowerPicture>,
}

/// A generation request.
#[derive(Debug, Clone)]
pub struct Request {
    /// The prompt, including special tokens.
    pub prompt: Vec<u32>,
    /// The media of the prompt, in order.
    pub media: Vec<PromptMedium>,
    /// Sampling parameters.
    pub sampling: Params,
    /// Stop strings; they are not part of the answer.
    pub stop: Vec<String>,
    /// Largest number of generated tokens; `None` is limited by the context only. A diffusion model
    /// starts with this many masked positions (`None`: 256), at most the context size.
    pub max_tokens: Option<usize>,
    /// Control tokens that are part of the text; others are removed.
    pub visible_control_tokens: Vec<u32>,
    /// Number of first prompt tokens that a context shift keeps.
    pub keep: usize,
    /// Context size in tokens, at most that of the engine; `None` is that of the engine.
    pub context: Option<usize>,
    /// Whether to shift a full context instead of finishing with [`FinishReason::Length`].
    pub shift: bool,
    /// Number of alternatives in log-probabilities of generated tokens; `None` reports none.
    pub logprobs: Option<usize>,
    /// Number of alternatives in log-probabilities of prompt tokens ([`Event::Prompt`]); `None`
    /// reports none. The whole prompt is then computed, even if it is cached.
    pub prompt_logprobs: Option<usize>,
    /// Client of the request, for fairness between clients.
    pub client: u64,
    /// Namespace of the prefixes that the request finds and leaves in the cache.
    pub cache_namespace: CacheNamespace,
    /// Public beginning of the prompt.
    pub public_prefix: PublicPrefix,
    /// Adapter scales; 1 by default. Requests with different scales share steps, but not cached
    /// prefixes.
    pub adapter_scales: AdapterScales,
    /// Speculative decoding; `None` uses the options of the engine.
    pub speculation: Option<Speculation>,
    /// Grammar of the answer, from [`crate::Engine::grammar`]. It applies from where
    /// [`Sink::stage`] says that the answer begins.
    pub grammar: Option<Grammar>,
    /// Parameters of diffusion models.
    pub diffusion: Diffusion,
}

impl Request {
    /// Generates after `prompt` until the model ends, with context shifts.
    pub fn new(prompt: Vec<u32>, sampling: Params) -> Self {
        Self {
            prompt,
            media: Vec::new(),
            sampling,
            stop: Vec::new(),
            max_tokens: None,
            visible_control_tokens: Vec::new(),
            keep: 0,
            context: None,
            shift: true,
            logprobs: None,
            prompt_logprobs: None,
            client: 0,
            cache_namespace: CacheNamespace::default(),
            public_prefix: PublicPrefix::default(),
            adapter_scales: AdapterScales::default(),
            speculation: None,
            grammar: None,
            diffusion: Diffusion::default(),
        }
    }

    /// Context size in an engine with context size `n_ctx`.
    pub(crate) fn context_in(&self, n_ctx: usize) -> usize {
        self.context.map_or(n_ctx, |tokens| tokens.clamp(1, n_ctx))
    }
}

/// Parameters of diffusion models; `None` uses the model's default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Diffusion {
    /// Number of steps for the whole answer; one per token by default.
    pub steps: Option<usize>,
    /// Block length in tokens; 0 is the whole answer.
    pub block_length: Option<usize>,
    /// Order of unmasking.
    pub algorithm: Option<UnmaskOrder>,
}

/// Events of a request in order: progress, pieces of text, one end.
#[derive(Debug, Clone)]
pub enum Event {
    /// Progress of the prefill.
    Prefill {
        /// Computed prompt tokens, including cached ones.
        done: usize,
        /// Number of prompt tokens.
        total: usize,
    },
    /// Log-probabilities of the next prompt tokens, if requested.
    Prompt(Vec<PromptToken>),
    /// Generated text; empty while a character is incomplete or a stop string may have begun.
    Piece(Piece),
    /// End of the generation.
    Done(GenerationStats),
    /// End by an error.
    Failed(String),
    /// End because the request cannot be fulfilled; the client has to change it.
    Refused(String),
}

/// A prompt token with its probability.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptToken {
    /// The token.
    pub token: u32,
    /// Log-probability after the tokens before it; `None` for the first token.
    pub logprobs: Option<puna_sampler::TokenLogprobs>,
    /// Rank by probability, from 1; 0 for the first token.
    pub rank: u32,
}

/// One generated token and the text that it completes.
#[derive(Debug, Clone, Default)]
pub struct Piece {
    /// Text that can be sent: whole characters, no part of a stop string.
    pub text: String,
    /// The token.
    pub token: u32,
    /// Log-probabilities, if requested.
    pub logprobs: Option<puna_sampler::TokenLogprobs>,
}

/// Why a sequence ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// The model's end token.
    End,
    /// A stop string (its index in the request).
    Stop(usize),
    /// `max_tokens`, or a full context.
    Length,
}

/// Statistics of a finished request.
#[derive(Debug, Clone)]
pub struct GenerationStats {
    /// Finish reason.
    pub finish: FinishReason,
    /// Prompt tokens, including cached ones.
    pub prompt_tokens: usize,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: usize,
    /// Prefill time.
    pub prefill: Duration,
    /// Generated tokens, including the end token.
    pub generated_tokens: usize,
    /// Decode time.
    pub decode: Duration,
    /// Time in the queue.
    pub queued: Duration,
    /// Draft tokens, and how many were accepted.
    pub draft_stats: DraftStats,
    /// Tokens dropped by context shifts.
    pub shifted_tokens: usize,
    /// All tokens of the sequence, prompt first, for callers that continue it.
    pub tokens: Vec<u32>,
}

/// Part of the output that the next piece of text belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerStage {
    /// Reasoning, or text before the answer.
    BeforeAnswer,
    /// The answer.
    Answer,
    /// End of the reasoning and beginning of the answer in one piece.
    Mixed,
    /// End without an answer, since other output suffices, such as a tool call.
    Complete,
}

/// Receiver of the events of a request.
pub trait Sink: Send {
    /// Whether the receiver takes an event now. If not, the sequence pauses. The owner of the sink
    /// calls [`crate::Engine::wake`] once it is ready again.
    fn ready(&self) -> bool {
        true
    }

    /// Number of pieces that the receiver takes now. It limits draft tokens, since accepted ones
    /// produce several pieces in one step.
    fn piece_capacity(&self) -> usize {
        usize::MAX
    }

    /// Part of the output that `text` would belong to as the next piece; for an empty text, whether
    /// the answer is due. The engine asks for requests with a [`Request::grammar`] until the answer
    /// begins.
    fn stage(&self, text: &str) -> AnswerStage {
        let _ = text;
        AnswerStage::Answer
    }

    /// Tokens that must come next instead of sampled ones, such as the end of the reasoning. The
    /// engine asks before every sample, except within a character.
    fn forced(&mut self) -> Vec<u32> {
        Vec::new()
    }

    /// Tokens that end the reasoning if the model would end the text without an answer. If empty,
    /// the end token is not sampled. The engine asks once, for requests with a
    /// [`Request::grammar`].
    fn reasoning_end_tokens(&mut self) -> Vec<u32> {
        Vec::new()
    }

    /// Whether the answer of a [`Request::grammar`] begins with the end tag of the reasoning.
    fn answer_ends_reasoning(&self) -> bool {
        false
    }

    /// The answer begins with the next piece; text held back before is excluded. The engine
    /// calls it for requests with a [`Request::grammar`].
    fn begin_answer(&mut self) {}

    /// Whether the output so far suffices, so that the generation ends as if the model had ended
    /// it. The engine asks after every piece.
    fn has_enough(&self) -> bool {
        false
    }

    /// Whether stop strings are ignored in `text`, the next piece, such as in reasoning.
    fn ignores_stops(&self, text: &str) -> bool {
        let _ = text;
        false
    }

    /// Takes an event. Returns `false` if the client has disconnected, which cancels the request.
    fn send(&mut self, event: Event) -> bool;
}

impl<F: FnMut(Event) -> bool + Send> Sink for F {
    fn send(&mut self, event: Event) -> bool {
        self(event)
    }
}

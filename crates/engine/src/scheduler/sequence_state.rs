//! Scheduling state of a sequence.

use std::ops::Range;
use std::sync::Arc;

use crate::kv::{CacheScope, PrefixTreeKey, SequencePages};
use crate::media::{MediaNumbers, PlacedMedium, SequenceMedia, step_token};
use crate::request::{PromptMedium, Request, RequestId};

/// A waiting or running sequence: its tokens, its pages, and its place in the queue.
#[derive(Debug, Default)]
pub struct SequenceState {
    pub id: RequestId,
    pub client: u64,
    /// Tokens of the context: prompt and generated tokens. The rows of a medium have the number of
    /// its content ([`crate::media::MediaNumbers`]).
    pub tokens: Vec<u32>,
    /// The media of the prompt.
    pub media: SequenceMedia,
    /// Number of tokens in the KV cache.
    pub computed: usize,
    /// Number of generated tokens, including tokens that a context shift dropped.
    pub generated: usize,
    /// Cached pages that the sequence finds and adds.
    pub cache_scope: CacheScope,
    pub pages: SequencePages,
    /// Context size in tokens.
    pub context: usize,
    /// Number of first tokens that a context shift keeps. `None` finishes the sequence instead.
    pub kept_by_shift: Option<usize>,
    /// Number of prompt tokens with requested log-probabilities.
    pub to_score: usize,
    /// Number of prompt tokens with sent log-probabilities.
    pub scored: usize,
    /// Whether the receiver of the output takes an event now.
    pub is_ready: bool,
    /// Computed prompt rows, plus the smallest count of the client's sequences at admission, for
    /// fairness.
    pub prefilled_rows: u64,
    /// Number of its latest rows in the order of all scheduled rows; 0 before the first.
    pub last_scheduled: u64,
    /// Number of the first admission, for preemption; 0 before.
    pub admitted: u64,
}

impl SequenceState {
    /// State of a new request, in an engine with context size `n_ctx`. `start` is the start token
    /// of the decoder in an encoder–decoder model.
    pub fn new(id: RequestId, request: &Request, n_ctx: usize, start: Option<u32>) -> Self {
        let encoder_input: &[u32] = if start.is_some() { &request.prompt } else { &[] };
        let adapter_scales = request.adapter_scales.clone();
        Self {
            id,
            client: request.client,
            tokens: request.prompt.iter().copied().chain(start).collect(),
            cache_scope: CacheScope {
                key: PrefixTreeKey { adapter_scales, encoder_input: encoder_input.into() },
                namespace: request.cache_namespace,
                public_prefix: request.public_prefix,
            },
            context: request.context_in(n_ctx),
            // A shift would move or cut media.
            kept_by_shift: (request.shift && request.media.is_empty()).then_some(request.keep),
            to_score: request.prompt_logprobs.map_or(0, |_| request.prompt.len()),
            ..Self::default()
        }
    }

    /// Gives the rows of each medium the number of its content.
    pub fn place_media(&mut self, media: &[PromptMedium], numbers: &mut MediaNumbers) {
        for medium in media {
            let PromptMedium { first, layout, content, ref picture } = *medium;
            let number = numbers.number(content);
            self.tokens[first..first + layout.rows].fill(number);
            let source = Some((content, Arc::clone(picture)));
            self.media.push(PlacedMedium { first, layout, rows: None, source });
        }
    }

    /// Number of tokens that the encoder has to read; 0 once they are in the cache.
    pub fn encoder_tokens_left(&self) -> usize {
        if self.computed == 0 { self.cache_scope.key.encoder_input.len() } else { 0 }
    }

    /// Whether only the latest token is not computed.
    pub fn is_decoding(&self) -> bool {
        self.generated > 0 && self.computed + 1 == self.tokens.len()
    }

    /// Whether log-probabilities of prompt tokens are still to be sent.
    pub fn has_prompt_logprobs_left(&self) -> bool {
        self.scored < self.to_score
    }

    /// Number of first tokens that can come from the cache; the logits of the next token are
    /// needed.
    pub fn cacheable(&self) -> usize {
        let all = self.tokens.len() - 1;
        match self.has_prompt_logprobs_left() {
            true => self.scored.saturating_sub(1).min(all),
            false => all,
        }
    }

    /// Range of the next `rows` tokens with logits that score the following prompt tokens.
    pub fn scoring(&self, rows: usize) -> Range<usize> {
        if !self.has_prompt_logprobs_left() {
            return 0..0;
        }
        let first = self.computed.max(self.scored.saturating_sub(1));
        first..(self.computed + rows).min(self.to_score - 1).max(first)
    }

    /// Number of first tokens that a context shift keeps in any case: the encoder's input and the
    /// decoder's start token.
    fn min_kept_tokens(&self) -> usize {
        let encoder_tokens = self.cache_scope.key.encoder_input.len();
        if encoder_tokens == 0 { 0 } else { encoder_tokens + 1 }
    }

    /// Whether a context shift leaves tokens of the answer. Otherwise the same token would be
    /// sampled again.
    pub fn can_shift(&self) -> bool {
        self.kept_by_shift.is_some() && self.tokens.len() > self.min_kept_tokens() + 1
    }

    /// Context shift: drops the older half of the tokens behind the kept ones. The others are
    /// computed again. Returns the number of dropped tokens.
    pub fn shift(&mut self) -> usize {
        let keep = self.kept_by_shift.unwrap_or(0).max(self.min_kept_tokens());
        let keep = keep.min(self.tokens.len() - 1);
        let dropped = ((self.tokens.len() - keep) / 2).max(1);
        self.tokens.drain(keep..keep + dropped);
        // Behind the kept tokens the sequence no longer equals the public prefix.
        let public = &mut self.cache_scope.public_prefix;
        public.tokens = public.tokens.min(keep);
        self.computed = 0;
        dropped
    }

    /// Prompt and generated tokens, without the decoder's start token. Rows of media have
    /// [`crate::NO_TOKEN`].
    pub fn text(&self) -> Vec<u32> {
        let encoder_tokens = self.cache_scope.key.encoder_input.len();
        let first_generated = self.min_kept_tokens();
        self.tokens[..encoder_tokens]
            .iter()
            .chain(&self.tokens[first_generated..])
            .copied()
            .map(step_token)
            .collect()
    }
}

//! Log-probabilities of an answer, and its stats.

use std::time::Duration;

use puna_api::ollama::{Logprob, PromptLogprob, PromptTopLogprob, TopLogprob};
use puna_engine::{FinishReason as EngineFinishReason, GenerationStats, PromptToken};
use puna_sampler::TokenLogprobs;

use super::AnswerSink;
use crate::canonical::{ApiError, Event, FinishReason, GenerationSummary};
use crate::options::speculate::DraftCounts;

/// Number of tokens that the debug log shows on either side of the end of a cached prefix.
const CACHE_MISS_CONTEXT_TOKENS: usize = 16;

impl AnswerSink {
    pub(super) fn logprob(&self, token: u32, logprobs: &TokenLogprobs) -> Logprob {
        let text = |token| {
            let bytes = self.model.token_bytes(token);
            (String::from_utf8_lossy(&bytes).into_owned(), bytes)
        };
        let top = |(token, logprob): &(u32, f32)| {
            let (token, bytes) = text(*token);
            TopLogprob { token, logprob: *logprob, bytes }
        };
        let top_logprobs = logprobs.top.iter().map(top).collect();
        let (token, bytes) = text(token);
        Logprob { token, logprob: logprobs.logprob, bytes, top_logprobs }
    }

    pub(super) fn prompt_logprob(&self, prompt_token: &PromptToken) -> PromptLogprob {
        let text = |token| String::from_utf8_lossy(&self.model.token_bytes(token)).into_owned();
        let top = prompt_token.logprobs.iter().flat_map(|logprobs| &logprobs.top);
        let top = top.map(|&(id, logprob)| PromptTopLogprob { token: text(id), id, logprob });
        PromptLogprob {
            token: text(prompt_token.token),
            id: prompt_token.token,
            logprob: prompt_token.logprobs.as_ref().map(|logprobs| logprobs.logprob),
            rank: prompt_token.rank,
            bytes: self.model.token_bytes(prompt_token.token),
            top_logprobs: top.collect(),
        }
    }

    /// Logs where the cached prefix of the prompt ended, which helps users find what changes at the
    /// start of their prompts. Prompts are private, so only the debug log shows their text.
    pub(super) fn log_cache_miss(&self, stats: &GenerationStats) {
        let (at, prompt) = (stats.cached_tokens, stats.prompt_tokens);
        let is_known = stats.shifted_tokens == 0 && at < prompt && prompt <= stats.tokens.len();
        if !is_known || !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let before =
            self.model.decode(&stats.tokens[at.saturating_sub(CACHE_MISS_CONTEXT_TOKENS)..at]);
        let behind =
            self.model.decode(&stats.tokens[at..prompt.min(at + CACHE_MISS_CONTEXT_TOKENS)]);
        let task = self.handle.id;
        tracing::debug!(task, cache_miss_at = at, prompt, %before, %behind, "prompt differs from the prefix cache");
    }

    /// Sends the end of the answer. Checks run on their own thread, because they may take as long
    /// as several engine steps.
    pub(super) fn send_done(&mut self, mut done: GenerationSummary) -> bool {
        let Some(checks) = self.checks.take() else {
            return self.handle.send(Event::Done(Box::new(done)));
        };
        let handle = self.handle.clone();
        let check = move || {
            done.schema_violations = Some(checks.violations());
            handle.send(Event::Done(Box::new(done)))
        };
        let thread = std::thread::Builder::new().name("schema check".into()).spawn(check);
        if let Err(error) = &thread {
            let message = format!("cannot check the answer: cannot start a thread: {error}");
            return self.handle.send(Event::Error(ApiError::internal(message)));
        }
        !self.handle.state.is_cancelled()
    }

    pub(super) fn generation_summary(&self, stats: GenerationStats) -> GenerationSummary {
        GenerationSummary {
            reason: match stats.finish {
                EngineFinishReason::End | EngineFinishReason::Stop(_) => FinishReason::Stop,
                EngineFinishReason::Length => FinishReason::Length,
            },
            stop: match stats.finish {
                EngineFinishReason::Stop(index) => self.stop.get(index).cloned(),
                EngineFinishReason::End | EngineFinishReason::Length => None,
            },
            has_usage: true,
            prompt_tokens: stats.prompt_tokens as u64,
            cached_tokens: stats.cached_tokens as u64,
            prefill: stats.prefill,
            generated_tokens: stats.generated_tokens as u64,
            thought_tokens: self.thought_tokens,
            decode: stats.decode,
            draft_counts: stats.draft_stats.into(),
            dropped_messages: self.dropped_messages,
            dropped_tokens: self.cut_tokens + stats.shifted_tokens as u64,
            context: self.without_bos(stats.tokens),
            schema_violations: None,
        }
    }

    fn without_bos(&self, mut tokens: Vec<u32>) -> Vec<u32> {
        if tokens.first().is_some_and(|token| self.model.is_bos(*token)) {
            tokens.remove(0);
        }
        tokens
    }
}

/// Summary of a request that wants no tokens of an answer.
pub(in crate::runner) fn summary_without_tokens(
    answer: &AnswerSink,
    prompt: Vec<u32>,
) -> GenerationSummary {
    GenerationSummary {
        reason: FinishReason::Length,
        stop: None,
        has_usage: true,
        prompt_tokens: prompt.len() as u64,
        cached_tokens: 0,
        prefill: Duration::ZERO,
        generated_tokens: 0,
        thought_tokens: 0,
        decode: Duration::ZERO,
        draft_counts: DraftCounts::default(),
        dropped_messages: answer.dropped_messages,
        dropped_tokens: answer.cut_tokens,
        context: answer.without_bos(prompt),
        schema_violations: None,
    }
}

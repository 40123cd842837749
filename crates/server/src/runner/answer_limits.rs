//! Grammar of a constrained answer, and the check that the token limits leave room for its shortest
//! text.

use puna_prompt::OutputParser;
use puna_sampler::{Constraint, Grammar};

use super::answer_sink::starts_with_reasoning_end;
use super::preparer::Preparer;
use super::task_handle::{TaskHandle, check_connected};
use crate::canonical::{ApiError, GenerateTask};

/// Limits of the length of an answer, in tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct AnswerLimits {
    /// Maximum number of tokens of the answer.
    pub(super) tokens: Option<usize>,
    /// Number of prompt tokens.
    pub(super) prompt: usize,
    /// Size of the context, if the answer ends when the context is full.
    pub(super) context: Option<usize>,
}

impl AnswerLimits {
    /// Rejects a request with limits that allow fewer than `min_tokens` tokens.
    fn check(self, min_tokens: usize) -> Result<(), ApiError> {
        if let Some(limit) = self.tokens.filter(|limit| *limit < min_tokens) {
            return Err(ApiError::bad_request(format!(
                "the constraint's shortest answer has {min_tokens} tokens, but the request allows {limit}: allow at least {min_tokens} (num_predict, max_tokens, max_output_tokens)"
            )));
        }
        let Some(context) = self.context else { return Ok(()) };
        // The last token of an answer is not computed, so it needs no place in the context.
        let remaining = (context + 1).saturating_sub(self.prompt);
        if remaining < min_tokens {
            return Err(ApiError::bad_request(format!(
                "the constraint's shortest answer has {min_tokens} tokens, but a context of {context} leaves {remaining} after a prompt of {}: shorten the prompt, or use a larger context",
                self.prompt
            )));
        }
        Ok(())
    }
}

impl Preparer {
    /// Returns the grammar of a constrained answer. For a forced tool call, `call`, it also returns
    /// the text that starts the call. An answer to a JSON Schema and a forced tool call must be
    /// complete; this function rejects limits that are too small for that.
    pub(super) fn answer_grammar(
        &self,
        handle: &TaskHandle,
        task: &GenerateTask,
        call: Option<(Grammar, String)>,
        parser: Option<&OutputParser>,
        limits: AnswerLimits,
    ) -> Result<(Option<Grammar>, Option<String>), ApiError> {
        let (call, forced_prefix) = call.unzip();
        let format = task.format.as_ref().filter(|_| call.is_none());
        let is_complete = |constraint: &Constraint| matches!(constraint, Constraint::Schema(_));
        let format = format
            .map(|constraint| {
                let cancelled = handle.cancelled();
                self.model.grammar(constraint, is_complete(constraint), cancelled)
            })
            .transpose();
        let mut grammar = call.or(format.map_err(ApiError::bad_request)?);
        check_connected(handle)?;
        // A request for the prompt's log-probabilities may want no answer.
        let shortest = grammar.as_mut().filter(|_| task.prompt_logprobs.is_none());
        if let Some(shortest) = shortest.and_then(Grammar::shortest_end) {
            limits.check(
                self.reasoning_end_token_count(handle, parser, forced_prefix.as_deref()) + shortest,
            )?;
        }
        Ok((grammar, forced_prefix))
    }

    /// Number of tokens that end the reasoning that the prompt leaves open. Zero if a forced tool
    /// call that starts with `forced_prefix` ends the reasoning itself.
    fn reasoning_end_token_count(
        &self,
        handle: &TaskHandle,
        parser: Option<&OutputParser>,
        forced_prefix: Option<&str>,
    ) -> usize {
        let end =
            parser.filter(|parser| parser.is_thinking()).and_then(OutputParser::reasoning_end);
        let end = end.filter(|end| {
            !forced_prefix
                .is_some_and(|forced_prefix| starts_with_reasoning_end(forced_prefix, end))
        });
        let tokens = |end: String| {
            self.model.encode_parts(&[(&end, true)], handle.cancelled()).unwrap_or_default()
        };
        end.map_or(0, |end| tokens(end).len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_below_the_shortest_answer_is_refused_with_its_length() {
        let limits = AnswerLimits { tokens: Some(11), prompt: 20, context: Some(100) };
        let message = limits.check(12).unwrap_err().message;
        assert!(message.contains("has 12 tokens") && message.contains("allows 11"), "{message}");
        assert!(limits.check(11).is_ok());
        let full = AnswerLimits { tokens: None, prompt: 90, ..limits };
        let message = full.check(12).unwrap_err().message;
        assert!(message.contains("context of 100 leaves 11"), "{message}");
        assert!(full.check(11).is_ok() && AnswerLimits { context: None, ..full }.check(12).is_ok());
    }
}

//! The form of an answer, and whether a request leaves enough tokens for it.

use puna_prompt::OutputParser;
use puna_sampler::{Constraint, Grammar};

use super::answer::begins_with_end;
use super::prepare::{Preparer, listening};
use super::worker::Handle;
use crate::canonical::{ApiError, Generate};

/// What bounds an answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Tokens that the request allows.
    pub(super) tokens: Option<usize>,
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    /// Tokens of the context, where the answer ends with it.
    pub(super) context: Option<usize>,
}

impl Limits {
    /// Refuses an answer of at least so many tokens where the limits are smaller.
    fn check(self, least: usize) -> Result<(), ApiError> {
        if let Some(limit) = self.tokens.filter(|limit| *limit < least) {
            return Err(ApiError::bad_request(format!(
                "the shortest answer of this form has {least} tokens, but the request allows {limit}: allow at least {least} \
                 (num_predict, max_tokens, max_output_tokens)"
            )));
        }
        let Some(context) = self.context else { return Ok(()) };
        // The last token of an answer need not be computed.
        let left = (context + 1).saturating_sub(self.prompt);
        if left < least {
            return Err(ApiError::bad_request(format!(
                "the shortest answer of this form has {least} tokens, but a context of {context} has room for {left} behind a \
                 prompt of {}: shorten the prompt, or use a larger context",
                self.prompt
            )));
        }
        Ok(())
    }
}

impl Preparer {
    /// The grammar of an answer that has a form, and how it begins where it is a forced tool call, which is `call` then. An
    /// answer to a JSON Schema and a forced tool call are to be whole, for which the limits must leave room.
    pub(super) fn answer_form(
        &self,
        handle: &Handle,
        task: &Generate,
        call: Option<(Grammar, String)>,
        parser: Option<&OutputParser>,
        limits: Limits,
    ) -> Result<(Option<Grammar>, Option<String>), ApiError> {
        let (call, beginning) = call.unzip();
        let format = task.format.as_ref().filter(|_| call.is_none());
        let is_whole = |form: &Constraint| matches!(form, Constraint::Schema(_));
        let format = format.map(|form| self.generator.grammar(form, is_whole(form))).transpose();
        let mut grammar = call.or(format.map_err(ApiError::bad_request)?);
        listening(handle)?;
        // Who asks for the prompt's log-probabilities may want no answer.
        let shortest = grammar.as_mut().filter(|_| task.prompt_logprobs.is_none());
        if let Some(shortest) = shortest.and_then(Grammar::shortest_end) {
            limits.check(self.thought_end_tokens(parser, beginning.as_deref()) + shortest)?;
        }
        Ok((grammar, beginning))
    }

    /// Tokens that end the thought which the prompt leaves open, where the answer, which begins with `beginning` if it is a
    /// forced tool call, does not end it itself.
    fn thought_end_tokens(&self, parser: Option<&OutputParser>, beginning: Option<&str>) -> usize {
        let end =
            parser.filter(|parser| parser.is_thinking()).and_then(OutputParser::reasoning_end);
        let end =
            end.filter(|end| !beginning.is_some_and(|beginning| begins_with_end(beginning, end)));
        end.map_or(0, |end| self.generator.encode_parts(&[(&end, true)]).len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_below_the_shortest_answer_is_refused_with_its_length() {
        let limits = Limits { tokens: Some(11), prompt: 20, context: Some(100) };
        let message = limits.check(12).unwrap_err().message;
        assert!(message.contains("has 12 tokens") && message.contains("allows 11"), "{message}");
        assert!(limits.check(11).is_ok());
        let full = Limits { tokens: None, prompt: 90, ..limits };
        let message = full.check(12).unwrap_err().message;
        assert!(message.contains("context of 100 has room for 11"), "{message}");
        assert!(full.check(11).is_ok() && Limits { context: None, ..full }.check(12).is_ok());
    }
}

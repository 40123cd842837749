//! Builds the query–document pairs that a reranker scores, in llama.cpp's layout.
//!
//! A file may contain a template for pairs. Without one, a pair consists of BOS, the query, EOS,
//! a separator, the document and EOS. Each special token is added only if the GGUF metadata enables
//! it.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use puna_engine::EngineError;

use super::preparer::{Preparer, to_api_error};
use super::runner_model::{EncodeCancelled, EncodeResult, PairFormat, RunnerModel};
use super::task_handle::{TaskHandle, check_connected};
use crate::canonical::{ApiError, Event, RerankScores, RerankTask, TokenizeTask};

/// Maximum number of attempts to cut a document, because its end may become other tokens inside the
/// template.
const MAX_CUT_ATTEMPTS: usize = 8;

/// Maximum number of tokens of all pairs of a request. The query is repeated with each document,
/// even a short one.
const MAX_REQUEST_TOKENS: u64 = 32 << 20;

/// Query–document pair as the model's input.
struct PairInput {
    tokens: Vec<u32>,
    /// Number of tokens cut from the document.
    cut_tokens: usize,
}

impl Preparer {
    /// Builds the pairs of a task and starts their scoring.
    pub(super) fn rerank(&self, handle: TaskHandle, task: RerankTask) -> Result<(), ApiError> {
        let model_info = self.model.model_info();
        let format = model_info
            .pair_format
            .as_ref()
            .ok_or_else(|| ApiError::bad_request("this model does not support reranking"))?;
        let context = self.context(task.num_ctx) as usize;
        self.check_text_bytes("the query", task.query.len(), task.num_ctx)?;
        let cancelled = handle.cancelled();
        let pairs = PairBuilder::new(&*self.model, format, &task.query, context, cancelled)?;
        let (mut inputs, mut summary) =
            (Vec::with_capacity(task.documents.len()), RerankScores::default());
        for (i, document) in task.documents.iter().enumerate() {
            check_connected(&handle)?;
            self.check_text_bytes(&format!("document {i}"), document.len(), task.num_ctx)?;
            let pair = pairs
                .build(document, &task)
                .map_err(|reason| ApiError::bad_request(format!("document {i} {reason}")));
            // A cancelled encoding returns no pair.
            check_connected(&handle)?;
            let pair = pair?;
            summary.tokens += pair.tokens.len() as u64;
            if summary.tokens > MAX_REQUEST_TOKENS {
                return Err(ApiError::bad_request(format!(
                    "the documents with the query have more than {MAX_REQUEST_TOKENS} tokens: send fewer documents"
                )));
            }
            if pair.cut_tokens > 0 {
                summary.cut.push((i, pair.cut_tokens as u64));
            }
            inputs.push(pair.tokens);
        }
        let answer = handle.clone();
        let on_done = move |result: Result<Vec<f32>, EngineError>| {
            answer.send(match result {
                // JSON has no NaN and no infinity, so this message would break the connection.
                Ok(scores) if scores.iter().any(|score| !score.is_finite()) => Event::Error(
                    ApiError::internal("a score is NaN or infinite: the model file may be damaged"),
                ),
                Ok(scores) => Event::Reranked(RerankScores { scores, ..summary }),
                Err(error) => Event::Error(to_api_error(error)),
            });
        };
        self.record_request(&handle, self.model.rerank(handle.client, inputs, Box::new(on_done)))
    }
}

/// Builds the pairs of a query.
struct PairBuilder<'a> {
    model: &'a dyn RunnerModel,
    format: &'a PairFormat,
    query: &'a str,
    /// Tokens of the query; empty if there is a template.
    query_tokens: Vec<u32>,
    /// Maximum number of tokens of a pair.
    context: usize,
    /// Ends the tokenizing.
    cancelled: &'a AtomicBool,
}

impl<'a> PairBuilder<'a> {
    fn new(
        model: &'a dyn RunnerModel,
        format: &'a PairFormat,
        query: &'a str,
        context: usize,
        cancelled: &'a AtomicBool,
    ) -> Result<Self, EncodeCancelled> {
        let query_tokens = Vec::new();
        let mut pairs = Self { model, format, query, query_tokens, context, cancelled };
        if format.template.is_none() {
            pairs.query_tokens = pairs.encode_plain(query)?;
        }
        Ok(pairs)
    }

    /// Builds the pair with a document, cut to the limit if the request allows that.
    fn build(&self, document: &str, task: &RerankTask) -> Result<PairInput, String> {
        let limit = task.pair_tokens.unwrap_or(self.context).min(self.context);
        let may_cut = task.truncate || task.pair_tokens.is_some();
        let max_document_tokens = task.document_tokens.unwrap_or(usize::MAX);
        let pair = match &self.format.template {
            Some(template) => self
                .build_from_template(template, document, limit, max_document_tokens, may_cut)
                .map_err(|cancelled| cancelled.to_string())?,
            None => self
                .build_plain(document, limit, max_document_tokens, may_cut)
                .map_err(|cancelled| cancelled.to_string())?,
        };
        match pair.tokens.len() {
            0 => Err("and the query are empty, and the model adds no start token".into()),
            n if n <= limit => Ok(pair),
            n if may_cut => Err(format!(
                "cannot be truncated to fit: the query and the template take {n} tokens, and the limit is {limit}"
            )),
            n => Err(format!(
                "is too long: it has {n} tokens with the query, and the limit is {limit}; shorten it, or set \"truncate\": true"
            )),
        }
    }

    fn build_plain(
        &self,
        document: &str,
        limit: usize,
        max_document_tokens: usize,
        may_cut: bool,
    ) -> Result<PairInput, EncodeCancelled> {
        let PairFormat { before, between, after, .. } = self.format;
        let (query, mut document_tokens) = (&self.query_tokens, self.encode_plain(document)?);
        let frame_tokens = before.len() + query.len() + between.len() + after.len();
        let available = if may_cut { limit.saturating_sub(frame_tokens) } else { usize::MAX };
        let full_length = document_tokens.len();
        document_tokens.truncate(available.min(max_document_tokens));
        let cut = full_length - document_tokens.len();
        Ok(PairInput {
            tokens: [before, query, between, &document_tokens, after]
                .into_iter()
                .flatten()
                .copied()
                .collect(),
            cut_tokens: cut,
        })
    }

    fn build_from_template(
        &self,
        template: &str,
        document: &str,
        limit: usize,
        max_document_tokens: usize,
        may_cut: bool,
    ) -> Result<PairInput, EncodeCancelled> {
        let document_tokens = self.encode_plain(document)?;
        let (mut kept_tokens, mut text) = (document_tokens.len(), document.to_owned());
        let decode_prefix = |kept_tokens: usize| {
            // The cut may split a character.
            let text = self.model.decode(&document_tokens[..kept_tokens]);
            text.trim_end_matches('\u{FFFD}').to_owned()
        };
        if kept_tokens > max_document_tokens {
            kept_tokens = max_document_tokens;
            text = decode_prefix(kept_tokens);
        }
        let encode = |text: &str| {
            let parts = template_parts(template, self.query, text);
            self.model.encode_parts(&parts, self.cancelled)
        };
        let mut tokens = encode(&text)?;
        for _ in 0..MAX_CUT_ATTEMPTS {
            let over = tokens.len().saturating_sub(limit);
            if over == 0 || !may_cut || kept_tokens == 0 {
                break;
            }
            kept_tokens = kept_tokens.saturating_sub(over);
            text = decode_prefix(kept_tokens);
            tokens = encode(&text)?;
        }
        Ok(PairInput { tokens, cut_tokens: document_tokens.len() - kept_tokens })
    }

    /// Tokenizes a text without adding tokens or reading control tokens.
    fn encode_plain(&self, text: &str) -> EncodeResult {
        let text = TokenizeTask { text: text.to_owned(), add_special: false, parse_special: false };
        self.model.tokenize(&text, self.cancelled)
    }
}

/// Splits a template with its query and document into parts. Only the template's own text may
/// contain control tokens.
fn template_parts<'a>(
    template: &'a str,
    query: &'a str,
    document: &'a str,
) -> Vec<(&'a str, bool)> {
    let mut parts = Vec::new();
    let mut rest = template;
    while let Some((place, text)) = next_placeholder(rest, query, document) {
        parts.extend([(&rest[..place.start], true), (text, false)]);
        rest = &rest[place.end..];
    }
    parts.push((rest, true));
    parts
}

/// Returns the first placeholder of a template, and its text.
fn next_placeholder<'a>(
    template: &str,
    query: &'a str,
    document: &'a str,
) -> Option<(Range<usize>, &'a str)> {
    let places = [("{query}", query), ("{document}", document)].into_iter();
    let places = places.filter_map(|(name, text)| {
        let start = template.find(name)?;
        Some((start..start + name.len(), text))
    });
    places.min_by_key(|(place, _)| place.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_in_texts_of_users_stay_text() {
        let all = template_parts("<q>{query}<d>{document}</d>{query}", "{document}", "a {query}");
        let want = [
            ("<q>", true),
            ("{document}", false),
            ("<d>", true),
            ("a {query}", false),
            ("</d>", true),
            ("{document}", false),
            ("", true),
        ];
        assert_eq!(all, want);
    }
}

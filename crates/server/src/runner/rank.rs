//! From a query and documents to the pairs that a reranker scores, in llama.cpp's form.
//!
//! A file may bring a template for pairs. Without one a pair is the beginning of a text, the query, its end, a separator,
//! the document and its end, each mark only where the file wants it around texts.

use std::ops::Range;

use puna_engine::EngineError;

use super::generator::{Generator, PairForm};
use super::prepare::{Preparer, listening, told};
use super::worker::Handle;
use crate::canonical::{ApiError, Event, Rank, RankResult, Tokenize};

/// How often a document is cut anew at most, as its end may become other tokens in its template.
const CUTS: usize = 8;

/// Tokens of all pairs of a request: the query comes again with each document, however short.
const TOKENS_MAX: u64 = 32 << 20;

/// A pair as the model's input.
struct Pair {
    tokens: Vec<u32>,
    /// Tokens that its document lost.
    cut: usize,
}

impl Preparer {
    /// Scores the documents of a task.
    pub(super) fn rank(&self, handle: Handle, task: Rank) -> Result<(), ApiError> {
        let facts = self.generator.facts();
        let form = facts
            .ranks
            .as_ref()
            .ok_or_else(|| ApiError::bad_request("this model does not rank texts"))?;
        let context = self.context(task.num_ctx) as usize;
        let pairs = Pairs::new(&*self.generator, form, &task.query, context);
        let (mut inputs, mut ranked) =
            (Vec::with_capacity(task.documents.len()), RankResult::default());
        for (i, document) in task.documents.iter().enumerate() {
            listening(&handle)?;
            let pair = pairs
                .fitting(document, &task)
                .map_err(|reason| ApiError::bad_request(format!("document {i} {reason}")))?;
            ranked.tokens += pair.tokens.len() as u64;
            if ranked.tokens > TOKENS_MAX {
                return Err(ApiError::bad_request(format!(
                    "the documents with the query have more than {TOKENS_MAX} tokens: ask for fewer at once"
                )));
            }
            if pair.cut > 0 {
                ranked.cut.push((i, pair.cut as u64));
            }
            inputs.push(pair.tokens);
        }
        let answer = handle.clone();
        let done = move |result: Result<Vec<f32>, EngineError>| {
            answer.send(match result {
                // JSON has no numbers for them, and the message would break the connection.
                Ok(scores) if scores.iter().any(|score| !score.is_finite()) => Event::Error(
                    ApiError::internal("a score is not a number: the file may be damaged"),
                ),
                Ok(scores) => Event::Ranked(RankResult { scores, ..ranked }),
                Err(error) => Event::Error(told(error)),
            });
        };
        self.begun(&handle, self.generator.rank(inputs, Box::new(done)))
    }
}

/// Makes the pairs of a query.
struct Pairs<'a> {
    generator: &'a dyn Generator,
    form: &'a PairForm,
    query: &'a str,
    /// The query's tokens, where there is no template.
    query_tokens: Vec<u32>,
    /// Tokens of a pair at most.
    context: usize,
}

impl<'a> Pairs<'a> {
    fn new(
        generator: &'a dyn Generator,
        form: &'a PairForm,
        query: &'a str,
        context: usize,
    ) -> Self {
        let mut pairs = Self { generator, form, query, query_tokens: Vec::new(), context };
        if form.template.is_none() {
            pairs.query_tokens = pairs.words(query);
        }
        pairs
    }

    /// The pair with a document, cut as far as that is asked for.
    fn fitting(&self, document: &str, task: &Rank) -> Result<Pair, String> {
        let limit = task.pair_tokens.unwrap_or(self.context).min(self.context);
        let may_cut = task.truncate || task.pair_tokens.is_some();
        let most = task.document_tokens.unwrap_or(usize::MAX);
        let pair = match &self.form.template {
            Some(template) => self.templated(template, document, limit, most, may_cut)?,
            None => self.plain(document, limit, most, may_cut),
        };
        match pair.tokens.len() {
            0 => {
                Err("and the query are empty, and the model has no token that begins every text"
                    .into())
            }
            n if n <= limit => Ok(pair),
            n if may_cut => Err(format!(
                "cannot be cut to fit: the query and what stands around it take {n} tokens, and the limit is {limit}"
            )),
            n => Err(format!(
                "is too long: with the query it has {n} tokens, and the context holds {limit}; shorten it, or set \
                 \"truncate\": true to have it cut"
            )),
        }
    }

    fn plain(&self, document: &str, limit: usize, most: usize, may_cut: bool) -> Pair {
        let PairForm { before, between, after, .. } = self.form;
        let (query, mut words) = (&self.query_tokens, self.words(document));
        let frame = before.len() + query.len() + between.len() + after.len();
        let room = if may_cut { limit.saturating_sub(frame) } else { usize::MAX };
        let whole = words.len();
        words.truncate(room.min(most));
        let cut = whole - words.len();
        Pair {
            tokens: [before, query, between, &words, after]
                .into_iter()
                .flatten()
                .copied()
                .collect(),
            cut,
        }
    }

    fn templated(
        &self,
        template: &str,
        document: &str,
        limit: usize,
        most: usize,
        may_cut: bool,
    ) -> Result<Pair, String> {
        let words = self.words(document);
        let (mut keep, mut text) = (words.len(), document.to_owned());
        let shorten = |keep: usize| {
            // A character may be cut through.
            let text = self.generator.decode(&words[..keep]);
            text.trim_end_matches('\u{FFFD}').to_owned()
        };
        if keep > most {
            keep = most;
            text = shorten(keep);
        }
        let mut tokens = self.generator.encode_parts(&parts(template, self.query, &text));
        for _ in 0..CUTS {
            let over = tokens.len().saturating_sub(limit);
            if over == 0 || !may_cut || keep == 0 {
                break;
            }
            keep = keep.saturating_sub(over);
            text = shorten(keep);
            tokens = self.generator.encode_parts(&parts(template, self.query, &text));
        }
        Ok(Pair { tokens, cut: words.len() - keep })
    }

    /// The tokens of a text, nothing added and nothing in it special.
    fn words(&self, text: &str) -> Vec<u32> {
        let text = Tokenize { text: text.to_owned(), add_special: false, parse_special: false };
        self.generator.tokenize(&text)
    }
}

/// A template with a query and a document in it, in parts; only its own text may hold special tokens.
fn parts<'a>(template: &'a str, query: &'a str, document: &'a str) -> Vec<(&'a str, bool)> {
    let mut parts = Vec::new();
    let mut rest = template;
    while let Some((place, text)) = next_place(rest, query, document) {
        parts.extend([(&rest[..place.start], true), (text, false)]);
        rest = &rest[place.end..];
    }
    parts.push((rest, true));
    parts
}

/// The first place in a template that one of the texts goes to.
fn next_place<'a>(
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
    fn what_users_write_stays_text_in_a_template() {
        let all = parts("<q>{query}<d>{document}</d>{query}", "{document}", "a {query}");
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

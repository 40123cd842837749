//! Encodes texts: special tokens first, then the text between them by the model of the vocabulary.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::control::{EncodeCancelled, EncodeControl, NEVER};
use crate::tokenizer::{Inner, Model, Tokenizer};
use crate::vocab::{CONTROL, MARKUP, TokenKind, UNKNOWN};

/// Longer texts are split, since positions in a word are 32-bit.
const MAX_RUN_BYTES: usize = 1 << 30;

/// What [`Tokenizer::max_token_bytes`] adds to the longest token: a nucleotide token has six
/// letters, and PLaMo 2 ignores a byte order mark.
const EXTRA_TOKEN_BYTES: usize = 8;

/// Tokens that an encoding reserves memory for at its start.
const MAX_RESERVED_TOKENS: usize = 16 << 10;

/// Options for encoding a text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Adds the tokens that the file requests at the start and end of a text.
    pub add_special: bool,
    /// Parses texts of control tokens as these tokens. Never set this for text of users.
    pub parse_special: bool,
}

impl Tokenizer {
    /// Returns the tokenizer with pieces of another size, for tests. The tokens are the same.
    #[doc(hidden)]
    #[must_use]
    pub fn with_piece_bytes(self, piece_bytes: usize) -> Option<Self> {
        let mut inner = Arc::into_inner(self.inner)?;
        inner.piece_bytes = piece_bytes;
        Some(Tokenizer { inner: Arc::new(inner) })
    }

    /// Encodes a text.
    pub fn encode(&self, text: &str, opts: EncodeOptions) -> Vec<u32> {
        self.try_encode(text, opts, &NEVER).unwrap_or_default()
    }

    /// Encodes a text until `cancelled` is set, which takes effect within a millisecond. Besides
    /// the tokens, encoding needs memory for a piece of the text.
    ///
    /// # Errors
    /// `cancelled` was set.
    pub fn try_encode(
        &self,
        text: &str,
        opts: EncodeOptions,
        cancelled: &AtomicBool,
    ) -> Result<Vec<u32>, EncodeCancelled> {
        // Some files give a token several kinds. Control and unknown take precedence.
        let is_allowed =
            |kind, _: Range<usize>| kind & (CONTROL | UNKNOWN) == 0 || opts.parse_special;
        self.inner.encode(text, opts.add_special, is_allowed, self.inner.control(cancelled))
    }

    /// Encodes a prompt that a template wrote, and parses control tokens in it. If the tokenizer
    /// adds a first token, the prompt has it only once, even if the template wrote it too.
    /// `leading_bos`, the template's text for it, is then removed.
    pub fn encode_prompt(&self, text: &str, leading_bos: &str) -> Vec<u32> {
        self.encode_prompt_parts(&[(text, true)], leading_bos)
    }

    /// Like [`encode_prompt`](Self::encode_prompt), for a text in parts as in
    /// [`encode_parts`](Self::encode_parts). A BOS in an untrusted part is text.
    pub fn encode_prompt_parts(&self, parts: &[(&str, bool)], leading_bos: &str) -> Vec<u32> {
        self.try_encode_prompt_parts(parts, leading_bos, &NEVER).unwrap_or_default()
    }

    /// Like [`encode_prompt_parts`](Self::encode_prompt_parts), until `cancelled` is set.
    ///
    /// # Errors
    /// `cancelled` was set.
    pub fn try_encode_prompt_parts(
        &self,
        parts: &[(&str, bool)],
        leading_bos: &str,
        cancelled: &AtomicBool,
    ) -> Result<Vec<u32>, EncodeCancelled> {
        let first = self.inner.first_token().filter(|_| self.add_bos());
        let mut tokens = match (parts, first) {
            ([(text, true), rest @ ..], Some(_)) if text.starts_with(leading_bos) => {
                let parts = [&[(&text[leading_bos.len()..], true)], rest].concat();
                self.try_encode_parts(&parts, true, cancelled)?
            }
            _ => self.try_encode_parts(parts, true, cancelled)?,
        };
        if first.is_some() && tokens.get(1) == first.as_ref() {
            tokens.remove(0);
        }
        Ok(tokens)
    }

    /// Byte ranges of conversation markup in a text: control tokens, and visible markup such as
    /// Harmony's. The caller makes sure that users' text with this markup stays text in a template.
    pub fn controls_in(&self, text: &str) -> Vec<Range<usize>> {
        self.try_controls_in(text, &NEVER).unwrap_or_default()
    }

    /// Like [`controls_in`](Self::controls_in), until `cancelled` is set.
    ///
    /// # Errors
    /// `cancelled` was set.
    pub fn try_controls_in(
        &self,
        text: &str,
        cancelled: &AtomicBool,
    ) -> Result<Vec<Range<usize>>, EncodeCancelled> {
        let inner = &self.inner;
        let control = inner.control(cancelled);
        let mut found = Vec::new();
        inner.partition.for_each_token(
            &inner.vocab,
            text,
            |_, _| true,
            control,
            |range, id| {
                if inner.vocab.is(id, CONTROL | UNKNOWN | MARKUP) {
                    found.push(range);
                }
            },
        );
        if control.is_cancelled() { Err(EncodeCancelled) } else { Ok(found) }
    }

    /// Encodes a text in parts. For each part, a flag tells whether texts of control tokens in it
    /// are parsed. Otherwise the result equals the tokens of the whole text: merges cross the
    /// borders of parts. So a prompt of template text and user text has its regular tokens, and
    /// users cannot write control tokens or visible markup.
    pub fn encode_parts(&self, parts: &[(&str, bool)], add_special: bool) -> Vec<u32> {
        self.try_encode_parts(parts, add_special, &NEVER).unwrap_or_default()
    }

    /// Like [`encode_parts`](Self::encode_parts), until `cancelled` is set.
    ///
    /// # Errors
    /// `cancelled` was set.
    pub fn try_encode_parts(
        &self,
        parts: &[(&str, bool)],
        add_special: bool,
        cancelled: &AtomicBool,
    ) -> Result<Vec<u32>, EncodeCancelled> {
        let text = match parts {
            [(whole, _)] => Cow::Borrowed(*whole),
            _ => parts.iter().map(|(text, _)| *text).collect(),
        };
        let mut end = 0;
        let mut trusted: Vec<Range<usize>> = Vec::new();
        for &(part, parse_special) in parts {
            let start = end;
            end += part.len();
            match trusted.last_mut() {
                Some(last) if parse_special && last.end == start => last.end = end,
                _ if parse_special => trusted.push(start..end),
                _ => {}
            }
        }
        let is_allowed = |kind, range: Range<usize>| {
            if kind & (CONTROL | UNKNOWN | MARKUP) == 0 {
                return true;
            }
            let at = trusted.partition_point(|part| part.end < range.end);
            trusted.get(at).is_some_and(|part| part.start <= range.start)
        };
        self.inner.encode(&text, add_special, is_allowed, self.inner.control(cancelled))
    }

    /// Maximum number of bytes of a text that one token stands for. `None` if there is none: some
    /// tokenizers drop white space, normalize, or have one token for any unknown word.
    pub fn max_token_bytes(&self) -> Option<usize> {
        let Inner { vocab, model, partition, .. } = &*self.inner;
        let covers_every_byte = match model {
            Model::Bpe(bpe, _) => bpe.covers_every_byte(vocab),
            Model::Spm(spm) => spm.covers_every_byte(),
            Model::Rwkv(rwkv) => rwkv.covers_every_byte(),
            Model::Plamo2(_) => true,
            Model::Wpm(_) | Model::Ugm(_) => false,
        };
        (covers_every_byte && !partition.strips_space())
            .then_some(vocab.longest + EXTRA_TOKEN_BYTES)
    }
}

impl Inner {
    fn control<'a>(&self, cancelled: &'a AtomicBool) -> EncodeControl<'a> {
        EncodeControl { cancelled, piece_bytes: self.piece_bytes }
    }

    fn encode(
        &self,
        text: &str,
        add_special: bool,
        is_allowed: impl Fn(TokenKind, Range<usize>) -> bool,
        control: EncodeControl<'_>,
    ) -> Result<Vec<u32>, EncodeCancelled> {
        let mut ids = Vec::with_capacity((text.len() / 3 + 4).min(MAX_RESERVED_TOKENS));
        ids.extend(self.first_token().filter(|_| add_special));
        let mut end = 0;
        self.partition.for_each_token(&self.vocab, text, is_allowed, control, |range, id| {
            self.encode_run(&text[end..range.start], &mut ids, control);
            ids.push(id);
            end = range.end;
        });
        self.encode_run(&text[end..], &mut ids, control);
        ids.extend(self.last_token().filter(|_| add_special));
        if control.is_cancelled() { Err(EncodeCancelled) } else { Ok(ids) }
    }

    fn first_token(&self) -> Option<u32> {
        match self.model {
            Model::Wpm(_) => self.specials.bos,
            Model::Rwkv(_) | Model::Plamo2(_) => None,
            _ => self.specials.bos.filter(|_| self.rules.add_bos),
        }
    }

    fn last_token(&self) -> Option<u32> {
        match self.model {
            Model::Wpm(_) => self.specials.sep,
            Model::Rwkv(_) | Model::Plamo2(_) => None,
            _ => self.specials.eos.filter(|_| self.rules.add_eos),
        }
    }

    fn encode_run(&self, text: &str, ids: &mut Vec<u32>, control: EncodeControl<'_>) {
        let mut rest = text;
        while !rest.is_empty() && !control.is_cancelled() {
            let (run, behind) = rest.split_at(rest.floor_char_boundary(MAX_RUN_BYTES));
            match &self.model {
                Model::Bpe(bpe, None) => bpe.encode(&self.vocab, run, ids, control),
                Model::Bpe(bpe, Some(dna)) => dna.encode(bpe, &self.vocab, run, ids, control),
                Model::Spm(spm) => spm.encode(&self.vocab, run, ids, control),
                Model::Wpm(wpm) => wpm.encode(run, ids, control),
                Model::Ugm(ugm) => ugm.encode(run, ids, control),
                Model::Rwkv(rwkv) => rwkv.encode(run, ids, control),
                Model::Plamo2(plamo2) => plamo2.encode(run, ids, control),
            }
            rest = behind;
        }
    }
}

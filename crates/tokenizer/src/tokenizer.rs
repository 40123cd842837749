//! The tokenizer: loading, decoding, and properties of tokens.

use std::sync::Arc;

use puna_gguf::{Metadata, escape_for_display};

use crate::TokenizerError;
use crate::bpe::Bpe;
use crate::control::PIECE_BYTES;
use crate::decode::{StoredText, StreamDecoder, clean_spaces, pieces};
use crate::dna::Dna;
use crate::hash::TextTable;
use crate::partition::SpecialTokenPartition;
use crate::plamo2::Plamo2;
use crate::pre_tokenizer::{self, PreTokenizer};
use crate::rwkv::Rwkv;
use crate::special_tokens::{SpecialTokens, mark_whitespace_stripping};
use crate::spm::Spm;
use crate::ugm::Ugm;
use crate::vocab::{CONTROL, UNKNOWN, Vocab};
use crate::wpm::Wpm;

/// Supported values of `tokenizer.ggml.model`.
const MODELS: &[&str] =
    &["bert", "gemma4", "gpt2", "hybriddna", "llama", "plamo2", "rwkv", "t5", "whitespace"];

/// A tokenizer of a GGUF file. Cloning shares the vocabulary.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    name: String,
    pre_name: Option<String>,
    pub(crate) vocab: Vocab,
    pub(crate) model: Model,
    pub(crate) partition: SpecialTokenPartition,
    pieces: TextTable,
    pub(crate) specials: SpecialTokens,
    pub(crate) rules: TextRules,
    suppressed: Vec<u32>,
    /// Bytes of text that are encoded at once.
    pub(crate) piece_bytes: usize,
}

#[derive(Debug)]
pub(crate) enum Model {
    /// Optionally with nucleotide sequences in the text.
    Bpe(Box<Bpe>, Option<Dna>),
    Spm(Spm),
    Wpm(Wpm),
    Ugm(Ugm),
    Rwkv(Rwkv),
    Plamo2(Plamo2),
}

/// Additions and removals around the model's own tokens.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TextRules {
    pub(crate) add_bos: bool,
    pub(crate) add_eos: bool,
    add_sep: bool,
    space_prefix: bool,
    clean_spaces: bool,
}

/// Family of `tokenizer.ggml.model`, before the file's other keys are read.
enum Family {
    Bpe(&'static PreTokenizer),
    Spm,
    Wpm,
    Ugm,
    Rwkv,
    Plamo2,
}

impl Tokenizer {
    /// Reads the tokenizer of a file.
    ///
    /// # Errors
    /// [`TokenizerError`]: no vocabulary, an unsupported tokenizer or pre-tokenizer, inconsistent
    /// lists, or a key of the wrong type.
    pub fn from_metadata(meta: &Metadata) -> Result<Self, TokenizerError> {
        Self::read(meta, false)
    }

    /// Like [`from_metadata`](Self::from_metadata), but with the original expressions of GPT-4o,
    /// Tekken, Youtu and Tiny Aya, which distinguish letter case in all scripts. Otherwise, as in
    /// llama.cpp, only ASCII letters have case (Youtu, Tiny Aya: none).
    ///
    /// # Errors
    /// As [`from_metadata`](Self::from_metadata).
    pub fn with_original_patterns(meta: &Metadata) -> Result<Self, TokenizerError> {
        Self::read(meta, true)
    }

    fn read(meta: &Metadata, original: bool) -> Result<Self, TokenizerError> {
        let name = meta.str("tokenizer.ggml.model")?.to_owned();
        let pre_name = meta.opt_str("tokenizer.ggml.pre")?.map(str::to_owned);
        let family = family(&name, pre_name.as_deref())?;
        let mut vocab = Vocab::read(meta)?;
        let (mut specials, rules) = defaults(&family, &name);
        let rules = rules.read(meta, &family)?;
        specials.complete(meta, &mut vocab);
        let model = match family {
            Family::Bpe(pre) => {
                let dna = if name == "hybriddna" { Dna::new(&vocab) } else { None };
                Model::Bpe(Box::new(Bpe::read(meta, &vocab, &name, pre, original)?), dna)
            }
            Family::Spm => Model::Spm(Spm::new(&vocab, rules.space_prefix, specials.unk)),
            Family::Wpm => {
                let lowercase =
                    meta.opt_bool("tokenizer.ggml.normalizer.lowercase")?.unwrap_or(true);
                let strip =
                    meta.opt_bool("tokenizer.ggml.normalizer.strip_accents")?.unwrap_or(lowercase);
                Model::Wpm(Wpm::new(&vocab, lowercase, strip, specials.unk))
            }
            Family::Ugm => Model::Ugm(Ugm::read(meta, &vocab, rules.space_prefix, specials.unk)?),
            Family::Rwkv => Model::Rwkv(Rwkv::new(&vocab, specials.unk)),
            Family::Plamo2 => Model::Plamo2(Plamo2::new(&vocab)?),
        };
        let stored = match family {
            Family::Bpe(pre) if pre.byte_encode && !pre.escape_spaces => StoredText::ByteAlphabet,
            Family::Rwkv => StoredText::BackslashEscapes,
            Family::Plamo2 => StoredText::Plain,
            _ => StoredText::EscapedSpaces,
        };
        let pieces = match &model {
            Model::Bpe(_, Some(dna)) => dna.strip_marks(&pieces(&vocab, stored)),
            _ => pieces(&vocab, stored),
        };
        mark_whitespace_stripping(meta, pre_name.as_deref().unwrap_or(""), &mut vocab);
        let partition = SpecialTokenPartition::new(&vocab);
        let suppressed = meta.i32s("tokenizer.ggml.suppress_tokens")?.unwrap_or_default();
        let suppressed = suppressed.into_iter().filter_map(|id| u32::try_from(id).ok());
        let suppressed = suppressed.filter(|&id| (id as usize) < vocab.len()).collect();
        let inner = Inner {
            name,
            pre_name,
            vocab,
            model,
            partition,
            pieces,
            specials,
            rules,
            suppressed,
            piece_bytes: PIECE_BYTES,
        };
        Ok(Tokenizer { inner: Arc::new(inner) })
    }

    /// Bytes that a token prints: a space for "Ġ", a line feed for `<0x0A>`, and the text of
    /// control tokens. Empty for unused tokens and invalid ids. May be part of a character.
    pub fn piece(&self, id: u32) -> &[u8] {
        self.inner.piece(id)
    }

    /// Text of a token as stored in the file.
    pub fn text(&self, id: u32) -> &[u8] {
        self.inner.vocab.text(id)
    }

    /// Decodes tokens, with control tokens if `special`. Removes the space that SPM tokenizers put
    /// before a text. Invalid UTF-8 becomes U+FFFD.
    pub fn decode(&self, ids: &[u32], special: bool) -> String {
        let mut decoder = self.decoder().special(special).at_start();
        let mut text: String = ids.iter().map(|&id| decoder.push(id)).collect();
        text.push_str(&decoder.finish());
        text
    }

    /// Decodes tokens like llama.cpp's `detokenize`. `remove_special` removes a leading BOS and a
    /// trailing EOS that the tokenizer adds. Removes spaces before punctuation if the vocabulary
    /// requests it.
    pub fn detokenize(&self, ids: &[u32], remove_special: bool, special: bool) -> String {
        let inner = &*self.inner;
        let mut ids = ids;
        let mut strip = inner.rules.space_prefix;
        if remove_special
            && inner.rules.add_bos
            && !ids.is_empty()
            && ids.first().copied() == inner.specials.bos
        {
            ids = &ids[1..];
            strip = false;
        }
        if remove_special
            && inner.rules.add_eos
            && !ids.is_empty()
            && ids.last().copied() == inner.specials.eos
        {
            ids = &ids[..ids.len() - 1];
        }
        let mut bytes = Vec::new();
        for &id in ids {
            let shown = if special || !inner.is_hidden(id) { inner.piece(id) } else { &[] };
            bytes.extend_from_slice(shown.strip_prefix(b" ").filter(|_| strip).unwrap_or(shown));
            strip = false;
        }
        let text = String::from_utf8_lossy(&bytes);
        if inner.rules.clean_spaces { clean_spaces(&text) } else { text.into_owned() }
    }

    /// A decoder for a stream of tokens that continues a prompt.
    pub fn decoder(&self) -> StreamDecoder {
        StreamDecoder::new(Arc::clone(&self.inner))
    }

    /// Number of tokens. Ids are below it.
    pub fn vocab_size(&self) -> usize {
        self.inner.vocab.len()
    }

    /// Token with exactly this text, as stored in the file.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.inner.vocab.id(text.as_bytes())
    }

    /// `tokenizer.ggml.model`.
    pub fn model(&self) -> &str {
        &self.inner.name
    }

    /// `tokenizer.ggml.pre`, if the file has it. A BPE file without it uses the `default` patterns,
    /// which suit few models.
    pub fn pre(&self) -> Option<&str> {
        self.inner.pre_name.as_deref()
    }

    /// Token that starts a text.
    pub fn bos(&self) -> Option<u32> {
        self.inner.specials.bos
    }

    /// Token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.inner.specials.eos
    }

    /// Token that ends a turn of a conversation.
    pub fn eot(&self) -> Option<u32> {
        self.inner.specials.eot
    }

    /// Token that ends a message to which a tool responds.
    pub fn eom(&self) -> Option<u32> {
        self.inner.specials.eom
    }

    /// Token for text without other tokens.
    pub fn unk(&self) -> Option<u32> {
        self.inner.specials.unk
    }

    /// Token that pads batches.
    pub fn pad(&self) -> Option<u32> {
        self.inner.specials.pad
    }

    /// Token between texts, and after the last one in WPM.
    pub fn sep(&self) -> Option<u32> {
        self.inner.specials.sep
    }

    /// Token that starts a text in WPM, and that classifiers read: the file's CLS, or else its BOS.
    pub fn cls(&self) -> Option<u32> {
        let wpm = matches!(self.inner.model, Model::Wpm(_));
        self.inner.specials.cls.or(self.inner.specials.bos.filter(|_| wpm))
    }

    /// Token for a masked word.
    pub fn mask(&self) -> Option<u32> {
        self.inner.specials.mask
    }

    /// Tokens for fill-in-the-middle.
    pub fn fim(&self) -> FimTokens {
        let s = &self.inner.specials;
        FimTokens {
            pre: s.fim_pre,
            suf: s.fim_suf,
            mid: s.fim_mid,
            pad: s.fim_pad,
            rep: s.fim_rep,
            sep: s.fim_sep,
        }
    }

    /// Whether the file requests BOS at the start of texts. A template that writes BOS itself must
    /// not add it twice.
    pub fn add_bos(&self) -> bool {
        self.inner.rules.add_bos
    }

    /// Whether the file requests EOS at the end of texts.
    pub fn add_eos(&self) -> bool {
        self.inner.rules.add_eos
    }

    /// Whether the file requests SEP between two texts.
    pub fn add_sep(&self) -> bool {
        self.inner.rules.add_sep
    }

    /// Whether a space is put before texts.
    pub fn add_space_prefix(&self) -> bool {
        self.inner.rules.space_prefix
    }

    /// Whether the token ends generation.
    pub fn is_eog(&self, id: u32) -> bool {
        self.inner.specials.eog.binary_search(&id).is_ok()
    }

    /// Tokens that end generation, ascending.
    pub fn eog(&self) -> &[u32] {
        &self.inner.specials.eog
    }

    /// Whether the token is a control token, which is not part of the text.
    pub fn is_control(&self, id: u32) -> bool {
        self.inner.vocab.is(id, CONTROL)
    }

    /// Tokens that must not be generated (`tokenizer.ggml.suppress_tokens`).
    pub fn suppressed(&self) -> &[u32] {
        &self.inner.suppressed
    }
}

/// Tokens for fill-in-the-middle. A vocabulary may have only some of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FimTokens {
    /// Precedes the text before the gap.
    pub pre: Option<u32>,
    /// Precedes the text after the gap.
    pub suf: Option<u32>,
    /// Starts the generated middle.
    pub mid: Option<u32>,
    /// Pads batches.
    pub pad: Option<u32>,
    /// Precedes the name of a repository.
    pub rep: Option<u32>,
    /// Precedes the name of a file.
    pub sep: Option<u32>,
}

impl Inner {
    pub(crate) fn piece(&self, id: u32) -> &[u8] {
        self.pieces.get(id as usize)
    }

    /// Whether the token is hidden in decoded text.
    pub(crate) fn is_hidden(&self, id: u32) -> bool {
        self.vocab.is(id, CONTROL | UNKNOWN)
    }

    pub(crate) fn space_prefix(&self) -> bool {
        self.rules.space_prefix
    }
}

fn family(model: &str, pre: Option<&str>) -> Result<Family, TokenizerError> {
    // Made safe for display. The errors add quotes themselves.
    let safe = |name: &str| escape_for_display(name.as_bytes()).trim_matches('`').to_owned();
    let pre_tokenizer = |pre: &str| {
        let unknown = || TokenizerError::UnknownPreTokenizer {
            pre: safe(pre),
            known: pre_tokenizer::known(),
        };
        pre_tokenizer::find(pre).map(Family::Bpe).ok_or_else(unknown)
    };
    match model {
        "llama" => Ok(Family::Spm),
        "bert" => Ok(Family::Wpm),
        "t5" => Ok(Family::Ugm),
        "rwkv" => Ok(Family::Rwkv),
        "plamo2" => Ok(Family::Plamo2),
        "gemma4" => pre_tokenizer("gemma4"),
        "gpt2" | "hybriddna" | "whitespace" => {
            pre_tokenizer(pre.filter(|pre| !pre.is_empty()).unwrap_or("default"))
        }
        "none" | "no_vocab" => Err(TokenizerError::NoVocabulary { model: model.to_owned() }),
        _ => Err(TokenizerError::UnknownModel { model: safe(model), known: MODELS }),
    }
}

/// Default ids and rules of a family.
fn defaults(family: &Family, model: &str) -> (SpecialTokens, TextRules) {
    match family {
        Family::Spm => (
            SpecialTokens { bos: Some(1), eos: Some(2), unk: Some(0), ..SpecialTokens::default() },
            TextRules { add_bos: true, space_prefix: true, ..TextRules::default() },
        ),
        Family::Wpm => (
            SpecialTokens {
                bos: Some(101),
                unk: Some(100),
                sep: Some(102),
                pad: Some(0),
                mask: Some(103),
                ..SpecialTokens::default()
            },
            TextRules { add_bos: true, add_sep: true, clean_spaces: true, ..TextRules::default() },
        ),
        Family::Ugm => (
            SpecialTokens { eos: Some(1), unk: Some(2), pad: Some(0), ..SpecialTokens::default() },
            TextRules { add_eos: true, ..TextRules::default() },
        ),
        Family::Rwkv => (SpecialTokens::default(), TextRules::default()),
        Family::Plamo2 => (
            SpecialTokens {
                bos: Some(1),
                eos: Some(2),
                unk: Some(0),
                pad: Some(3),
                ..SpecialTokens::default()
            },
            TextRules::default(),
        ),
        Family::Bpe(pre) => {
            let id = Some(11).filter(|_| model != "gemma4");
            let specials = SpecialTokens {
                bos: id.filter(|_| !pre.no_bos),
                eos: id,
                ..SpecialTokens::default()
            };
            let rules = TextRules {
                add_bos: pre.add_bos,
                add_sep: pre.add_sep,
                clean_spaces: pre.clean_spaces,
                ..TextRules::default()
            };
            (specials, rules)
        }
    }
}

impl TextRules {
    /// Overrides the defaults with the file's keys.
    fn read(self, meta: &Metadata, family: &Family) -> Result<TextRules, TokenizerError> {
        let read = |key: &str, default: bool| {
            meta.opt_bool(&format!("tokenizer.ggml.{key}")).map(|value| value.unwrap_or(default))
        };
        let forced = matches!(family, Family::Bpe(pre) if pre.gemma4);
        Ok(TextRules {
            add_bos: read("add_bos_token", self.add_bos)? || forced,
            add_eos: read("add_eos_token", self.add_eos)?,
            add_sep: read("add_sep_token", self.add_sep)?,
            space_prefix: read("add_space_prefix", self.space_prefix)?,
            clean_spaces: self.clean_spaces,
        })
    }
}

//! The tokenizer: loading, encoding, and what is known about tokens.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use puna_gguf::{Metadata, shown};

use crate::TokenizerError;
use crate::bpe::Bpe;
use crate::decode::{Spelling, StreamDecoder, clean_spaces, pieces};
use crate::dna::Dna;
use crate::hash::Texts;
use crate::partition::{Part, Partition};
use crate::plamo2::Plamo2;
use crate::pretok::{self, PreTokenizer};
use crate::rwkv::Rwkv;
use crate::special::{Specials, mark_strips};
use crate::spm::Spm;
use crate::ugm::Ugm;
use crate::vocab::{CONTROL, Kind, MARKUP, UNKNOWN, Vocab};
use crate::wpm::Wpm;

/// The values of `tokenizer.ggml.model` that work.
const MODELS: &[&str] =
    &["bert", "gemma4", "gpt2", "hybriddna", "llama", "plamo2", "rwkv", "t5", "whitespace"];

/// Longer runs of text are cut: positions in a word are 32-bit.
const LONGEST_RUN: usize = 1 << 30;

/// How a text is encoded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Encode {
    /// Adds the tokens that the file wants at the start and the end of a text.
    pub add_special: bool,
    /// Texts of control tokens in the input become these tokens. Never set it for what a user wrote.
    pub parse_special: bool,
}

/// A tokenizer of a GGUF file. Cloning shares the vocabulary.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    name: String,
    pre_name: Option<String>,
    vocab: Vocab,
    model: Model,
    partition: Partition,
    pieces: Texts,
    specials: Specials,
    rules: Rules,
    suppressed: Vec<u32>,
}

#[derive(Debug)]
enum Model {
    /// With sequences of nucleotides in the text, if the vocabulary has them.
    Bpe(Box<Bpe>, Option<Dna>),
    Spm(Spm),
    Wpm(Wpm),
    Ugm(Ugm),
    Rwkv(Rwkv),
    Plamo2(Plamo2),
}

/// What is added and removed around the model's own work.
#[derive(Debug, Clone, Copy, Default)]
struct Rules {
    add_bos: bool,
    add_eos: bool,
    add_sep: bool,
    space_prefix: bool,
    clean_spaces: bool,
}

/// What `tokenizer.ggml.model` stands for, before the file's other keys.
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
    /// [`TokenizerError`]: no vocabulary, a kind of tokenizer or pre-tokenizer that is not known, lists that do not
    /// fit together, a key of the wrong type.
    pub fn from_metadata(meta: &Metadata) -> Result<Self, TokenizerError> {
        Self::read(meta, false)
    }

    /// The same, cutting words as the publishers of GPT-4o, Tekken, Youtu and Tiny Aya meant it, with letter case in all
    /// scripts. Without this, as in llama.cpp, case is told in ASCII alone (Youtu, Tiny Aya: not at all).
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
        let partition = Partition::new(&vocab);
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
        let spelling = match family {
            Family::Bpe(pre) if pre.byte_encode && !pre.escape_spaces => Spelling::Bytes,
            Family::Rwkv => Spelling::Escapes,
            Family::Plamo2 => Spelling::Plain,
            _ => Spelling::Spaces,
        };
        let pieces = match &model {
            Model::Bpe(_, Some(dna)) => dna.unmarked(&pieces(&vocab, spelling)),
            _ => pieces(&vocab, spelling),
        };
        mark_strips(meta, pre_name.as_deref().unwrap_or(""), &mut vocab);
        let suppressed = meta.i32s("tokenizer.ggml.suppress_tokens")?.unwrap_or_default();
        let suppressed = suppressed.into_iter().filter_map(|id| u32::try_from(id).ok());
        let suppressed = suppressed.filter(|&id| (id as usize) < vocab.len()).collect();
        let inner =
            Inner { name, pre_name, vocab, model, partition, pieces, specials, rules, suppressed };
        Ok(Tokenizer { inner: Arc::new(inner) })
    }

    /// The tokens of a text.
    pub fn encode(&self, text: &str, opts: Encode) -> Vec<u32> {
        // Some files give a token more kinds than one: what hides it as control or unknown wins.
        self.inner.encode(text, opts.add_special, |kind, _| {
            kind & (CONTROL | UNKNOWN) == 0 || opts.parse_special
        })
    }

    /// The tokens of a prompt that a template wrote, control tokens read as such. Where the first token comes by itself
    /// it comes once, though the template wrote it too; nor is `leading_bos` read then, the template's text for it.
    pub fn encode_prompt(&self, text: &str, leading_bos: &str) -> Vec<u32> {
        self.encode_prompt_parts(&[(text, true)], leading_bos)
    }

    /// The same of a text in parts, as [`encode_parts`](Self::encode_parts) reads them. A BOS that was not believed is text.
    pub fn encode_prompt_parts(&self, parts: &[(&str, bool)], leading_bos: &str) -> Vec<u32> {
        let first = self.inner.first_token().filter(|_| self.add_bos());
        let mut tokens = match (parts, first) {
            ([(text, true), rest @ ..], Some(_)) if text.starts_with(leading_bos) => {
                self.encode_parts(&[&[(&text[leading_bos.len()..], true)], rest].concat(), true)
            }
            _ => self.encode_parts(parts, true),
        };
        if first.is_some() && tokens.get(1) == first.as_ref() {
            tokens.remove(0);
        }
        tokens
    }

    /// Where in a text what marks up conversations is written: control tokens, and those that are shown, such as Harmony's. Whoever
    /// hands a user's text to a template takes care that it stays text there.
    pub fn controls_in(&self, text: &str) -> Vec<Range<usize>> {
        let inner = &self.inner;
        let mut found: Vec<Range<usize>> = inner
            .partition
            .find(&inner.vocab, text, |_, _| true)
            .into_iter()
            .filter(|(_, id)| inner.vocab.is(*id, CONTROL | UNKNOWN | MARKUP))
            .map(|(range, _)| range)
            .collect();
        found.sort_unstable_by_key(|range| range.start);
        found
    }

    /// The tokens of a text in parts, for each of which is said whether texts of control tokens in it become these
    /// tokens. Apart from that, the tokens are those of the whole text: parts are no borders for merging. So a prompt
    /// of a template's own text and of what users wrote has the tokens that it should have, and users cannot write
    /// control tokens, nor those marks of conversations that are shown.
    pub fn encode_parts(&self, parts: &[(&str, bool)], add_special: bool) -> Vec<u32> {
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
        self.inner.encode(&text, add_special, |kind, range| {
            if kind & (CONTROL | UNKNOWN | MARKUP) == 0 {
                return true;
            }
            let at = trusted.partition_point(|part| part.end < range.end);
            trusted.get(at).is_some_and(|part| part.start <= range.start)
        })
    }

    /// The bytes that a token prints: "Ġ" is a blank, `<0x0A>` a line end; of control tokens, their text. Empty for
    /// unused tokens and ids that are none. May be part of a character.
    pub fn piece(&self, id: u32) -> &[u8] {
        self.inner.piece(id)
    }

    /// The text of a token as it stands in the file.
    pub fn text(&self, id: u32) -> &[u8] {
        self.inner.vocab.text(id)
    }

    /// The text of some tokens, with control tokens if `special`. The blank that SPM tokenizers put before a text is
    /// left out. Invalid UTF-8 becomes U+FFFD.
    pub fn decode(&self, ids: &[u32], special: bool) -> String {
        let mut decoder = self.decoder().special(special).at_start();
        let mut text: String = ids.iter().map(|&id| decoder.push(id)).collect();
        text.push_str(&decoder.finish());
        text
    }

    /// The text of some tokens as llama.cpp's `detokenize` gives it: with `remove_special` without a leading BOS and a
    /// trailing EOS that the tokenizer adds, and without blanks before punctuation if the vocabulary wants that.
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

    /// A decoder for tokens that come one by one, going on where a prompt ended.
    pub fn decoder(&self) -> StreamDecoder {
        StreamDecoder::new(Arc::clone(&self.inner))
    }

    /// The number of tokens; ids are below it.
    pub fn vocab_size(&self) -> usize {
        self.inner.vocab.len()
    }

    /// The token of exactly this text, as it stands in the file.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.inner.vocab.id(text.as_bytes())
    }

    /// `tokenizer.ggml.model`.
    pub fn model(&self) -> &str {
        &self.inner.name
    }

    /// `tokenizer.ggml.pre`, if the file has it. A BPE file without it is cut by the `default` rules, which fit few
    /// models.
    pub fn pre(&self) -> Option<&str> {
        self.inner.pre_name.as_deref()
    }

    /// Begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.inner.specials.bos
    }

    /// Ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.inner.specials.eos
    }

    /// Ends a turn of a conversation.
    pub fn eot(&self) -> Option<u32> {
        self.inner.specials.eot
    }

    /// Ends a message that a tool answers.
    pub fn eom(&self) -> Option<u32> {
        self.inner.specials.eom
    }

    /// Stands for what has no token.
    pub fn unk(&self) -> Option<u32> {
        self.inner.specials.unk
    }

    /// Fills batches.
    pub fn pad(&self) -> Option<u32> {
        self.inner.specials.pad
    }

    /// Stands between texts, and behind the last one in WPM.
    pub fn sep(&self) -> Option<u32> {
        self.inner.specials.sep
    }

    /// Begins a text in WPM, whose classification reads it: the file's CLS, or else its BOS.
    pub fn cls(&self) -> Option<u32> {
        let wpm = matches!(self.inner.model, Model::Wpm(_));
        self.inner.specials.cls.or(self.inner.specials.bos.filter(|_| wpm))
    }

    /// Stands for a word to be guessed.
    pub fn mask(&self) -> Option<u32> {
        self.inner.specials.mask
    }

    /// Marks for filling in the middle of a text.
    pub fn fim(&self) -> Fim {
        let s = &self.inner.specials;
        Fim {
            pre: s.fim_pre,
            suf: s.fim_suf,
            mid: s.fim_mid,
            pad: s.fim_pad,
            rep: s.fim_rep,
            sep: s.fim_sep,
        }
    }

    /// Whether the file wants BOS at the start of texts. A prompt template that writes it too must not add it twice.
    pub fn add_bos(&self) -> bool {
        self.inner.rules.add_bos
    }

    /// Whether the file wants EOS at the end of texts.
    pub fn add_eos(&self) -> bool {
        self.inner.rules.add_eos
    }

    /// Whether the file wants SEP between two texts.
    pub fn add_sep(&self) -> bool {
        self.inner.rules.add_sep
    }

    /// Whether a blank is put before texts.
    pub fn add_space_prefix(&self) -> bool {
        self.inner.rules.space_prefix
    }

    /// Whether the token ends generation.
    pub fn is_eog(&self, id: u32) -> bool {
        self.inner.specials.eog.binary_search(&id).is_ok()
    }

    /// The tokens that end generation, ascending.
    pub fn eog(&self) -> &[u32] {
        &self.inner.specials.eog
    }

    /// Whether the token is a control token: not part of the text.
    pub fn is_control(&self, id: u32) -> bool {
        self.inner.vocab.is(id, CONTROL)
    }

    /// Tokens that must not be generated (`tokenizer.ggml.suppress_tokens`).
    pub fn suppressed(&self) -> &[u32] {
        &self.inner.suppressed
    }
}

/// Tokens for filling in the middle of a text; a vocabulary may have some of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fim {
    /// Before the text that precedes the gap.
    pub pre: Option<u32>,
    /// Before the text that follows the gap.
    pub suf: Option<u32>,
    /// Where the filling begins.
    pub mid: Option<u32>,
    /// Fills batches.
    pub pad: Option<u32>,
    /// Before the name of a repository.
    pub rep: Option<u32>,
    /// Before the name of a file.
    pub sep: Option<u32>,
}

impl Inner {
    pub(crate) fn piece(&self, id: u32) -> &[u8] {
        self.pieces.get(id as usize)
    }

    /// Whether the token is left out of text for readers.
    pub(crate) fn is_hidden(&self, id: u32) -> bool {
        self.vocab.is(id, CONTROL | UNKNOWN)
    }

    pub(crate) fn space_prefix(&self) -> bool {
        self.rules.space_prefix
    }

    fn encode(
        &self,
        text: &str,
        add_special: bool,
        wanted: impl Fn(Kind, Range<usize>) -> bool,
    ) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 4);
        ids.extend(self.first_token().filter(|_| add_special));
        for part in self.partition.cut(&self.vocab, text, wanted) {
            match part {
                Part::Token(id) => ids.push(id),
                Part::Text(range) => self.encode_run(&text[range], &mut ids),
            }
        }
        ids.extend(self.last_token().filter(|_| add_special));
        ids
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

    fn encode_run(&self, text: &str, ids: &mut Vec<u32>) {
        let mut rest = text;
        while !rest.is_empty() {
            let (run, behind) = rest.split_at(rest.floor_char_boundary(LONGEST_RUN));
            match &self.model {
                Model::Bpe(bpe, None) => bpe.encode(&self.vocab, run, ids),
                Model::Bpe(bpe, Some(dna)) => dna.encode(bpe, &self.vocab, run, ids),
                Model::Spm(spm) => spm.encode(&self.vocab, run, ids),
                Model::Wpm(wpm) => wpm.encode(run, ids),
                Model::Ugm(ugm) => ugm.encode(run, ids),
                Model::Rwkv(rwkv) => rwkv.encode(run, ids),
                Model::Plamo2(plamo2) => plamo2.encode(run, ids),
            }
            rest = behind;
        }
    }
}

fn family(model: &str, pre: Option<&str>) -> Result<Family, TokenizerError> {
    // As it can be shown; the errors quote it themselves.
    let safe = |name: &str| shown(name.as_bytes()).trim_matches('`').to_owned();
    let pre_tokenizer = |pre: &str| {
        let unknown =
            || TokenizerError::UnknownPreTokenizer { pre: safe(pre), known: pretok::known() };
        pretok::find(pre).map(Family::Bpe).ok_or_else(unknown)
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

/// Special ids and rules of a family where the file is silent.
fn defaults(family: &Family, model: &str) -> (Specials, Rules) {
    match family {
        Family::Spm => (
            Specials { bos: Some(1), eos: Some(2), unk: Some(0), ..Specials::default() },
            Rules { add_bos: true, space_prefix: true, ..Rules::default() },
        ),
        Family::Wpm => (
            Specials {
                bos: Some(101),
                unk: Some(100),
                sep: Some(102),
                pad: Some(0),
                mask: Some(103),
                ..Specials::default()
            },
            Rules { add_bos: true, add_sep: true, clean_spaces: true, ..Rules::default() },
        ),
        Family::Ugm => (
            Specials { eos: Some(1), unk: Some(2), pad: Some(0), ..Specials::default() },
            Rules { add_eos: true, ..Rules::default() },
        ),
        Family::Rwkv => (Specials::default(), Rules::default()),
        Family::Plamo2 => (
            Specials {
                bos: Some(1),
                eos: Some(2),
                unk: Some(0),
                pad: Some(3),
                ..Specials::default()
            },
            Rules::default(),
        ),
        Family::Bpe(pre) => {
            let id = Some(11).filter(|_| model != "gemma4");
            let specials =
                Specials { bos: id.filter(|_| !pre.no_bos), eos: id, ..Specials::default() };
            let rules = Rules {
                add_bos: pre.add_bos,
                add_sep: pre.add_sep,
                clean_spaces: pre.clean_spaces,
                ..Rules::default()
            };
            (specials, rules)
        }
    }
}

impl Rules {
    /// The rules with what the file says.
    fn read(self, meta: &Metadata, family: &Family) -> Result<Rules, TokenizerError> {
        let read = |key: &str, default: bool| {
            meta.opt_bool(&format!("tokenizer.ggml.{key}")).map(|value| value.unwrap_or(default))
        };
        let forced = matches!(family, Family::Bpe(pre) if pre.gemma4);
        Ok(Rules {
            add_bos: read("add_bos_token", self.add_bos)? || forced,
            add_eos: read("add_eos_token", self.add_eos)?,
            add_sep: read("add_sep_token", self.add_sep)?,
            space_prefix: read("add_space_prefix", self.space_prefix)?,
            clean_spaces: self.clean_spaces,
        })
    }
}

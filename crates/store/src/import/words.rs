//! The vocabulary of a family, of whichever kind it has.

use puna_gguf::Writer;

use super::Folder;
use super::bytewise::Bytewise;
use super::config::Json;
use super::families::{Family, Words};
use super::vocabulary::Vocabulary;
use super::wordpiece::WordPiece;
use crate::error::StoreError;

/// A vocabulary.
pub(super) enum Vocab {
    Usual(Box<Vocabulary>),
    Pieces(WordPiece),
    Bytes(Bytewise),
}

/// Reads the vocabulary of an embedding of so many rows.
pub(super) fn read(
    folder: &Folder<'_>,
    config: &Json,
    family: &Family,
    rows: u64,
) -> Result<Vocab, StoreError> {
    let usual = |words| {
        let vocabulary =
            Vocabulary::read_as(folder, config, words, (family.bare_start, family.ranks), rows)?;
        Ok(Vocab::Usual(Box::new(vocabulary.of(family, config))))
    };
    match family.words {
        Words::Bytes => Ok(Vocab::Bytes(Bytewise::read(folder, rows)?)),
        Words::Encoder => {
            let json = folder.json("tokenizer.json")?;
            let kind = json.as_ref().and_then(|json| json.pointer("/model/type")?.as_str());
            match kind {
                Some("WordPiece") => Ok(Vocab::Pieces(WordPiece::read(folder, rows as u32)?)),
                None if folder.has("vocab.txt") => {
                    Ok(Vocab::Pieces(WordPiece::read(folder, rows as u32)?))
                }
                _ => usual(Words::Encoder),
            }
        }
        words => usual(words),
    }
}

impl Vocab {
    /// Writes the keys.
    pub(super) fn write(
        &self,
        family: &Family,
        config: &Json,
        writer: &mut Writer,
    ) -> Result<(), StoreError> {
        match self {
            Vocab::Usual(vocabulary) => vocabulary.write(family.architecture, writer),
            Vocab::Pieces(vocabulary) => vocabulary.write(writer),
            Vocab::Bytes(vocabulary) => vocabulary.write(writer),
        }
        if family.words == Words::Encoder && family.has_token_types() {
            let types = config.opt_count("type_vocab_size")?.unwrap_or(1);
            writer.set("tokenizer.ggml.token_type_count", types);
        }
        Ok(())
    }
}

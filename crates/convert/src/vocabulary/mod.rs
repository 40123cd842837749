//! The vocabulary of a family: standard, WordPiece or RWKV.

mod plamo;
mod pretokenizer;
mod rwkv;
mod sentencepiece;
mod special_tokens;
mod standard;
mod tiktoken;
mod token;
mod unigram;
mod wordpiece;

use puna_gguf::Writer;

use self::rwkv::RwkvVocabulary;
pub(crate) use self::standard::Vocabulary;
pub(crate) use self::wordpiece::WordPiece;
use crate::error::ConvertError;
use crate::family::{Family, VocabularyKind};
use crate::source::{Config, ModelFolder};

/// A vocabulary of any kind.
pub(crate) enum FamilyVocabulary {
    Standard(Box<Vocabulary>),
    WordPiece(WordPiece),
    Rwkv(RwkvVocabulary),
}

/// Reads the vocabulary of an embedding with `rows` rows.
pub(crate) fn read(
    folder: &ModelFolder<'_>,
    config: &Config,
    family: &Family,
    rows: u64,
) -> Result<FamilyVocabulary, ConvertError> {
    let standard = |kind| {
        let vocabulary = Vocabulary::read_as(
            folder,
            config,
            kind,
            (family.omits_space_prefix, family.tiktoken_pretokenizer),
            rows,
        )?;
        Ok(FamilyVocabulary::Standard(Box::new(vocabulary.with_family(family, config))))
    };
    match family.vocabulary {
        VocabularyKind::Rwkv => Ok(FamilyVocabulary::Rwkv(RwkvVocabulary::read(folder, rows)?)),
        VocabularyKind::Encoder => {
            let json = folder.json("tokenizer.json")?;
            let model_type = json.as_ref().and_then(|json| json.pointer("/model/type")?.as_str());
            match model_type {
                Some("WordPiece") => {
                    Ok(FamilyVocabulary::WordPiece(WordPiece::read(folder, rows as u32)?))
                }
                None if folder.has("vocab.txt") => {
                    Ok(FamilyVocabulary::WordPiece(WordPiece::read(folder, rows as u32)?))
                }
                _ => standard(VocabularyKind::Encoder),
            }
        }
        kind => standard(kind),
    }
}

impl FamilyVocabulary {
    /// Writes the metadata keys.
    pub(crate) fn write(
        &self,
        family: &Family,
        config: &Config,
        writer: &mut Writer,
    ) -> Result<(), ConvertError> {
        match self {
            FamilyVocabulary::Standard(vocabulary) => vocabulary.write(family.architecture, writer),
            FamilyVocabulary::WordPiece(vocabulary) => vocabulary.write(writer),
            FamilyVocabulary::Rwkv(vocabulary) => vocabulary.write(writer),
        }
        if family.vocabulary == VocabularyKind::Encoder && family.has_token_types() {
            let types = config.opt_count("type_vocab_size")?.unwrap_or(1);
            writer.set("tokenizer.ggml.token_type_count", types);
        }
        Ok(())
    }
}

//! The tokenizer as the sampler sees it.

use std::borrow::Cow;
use std::sync::Arc;

use puna_sampler::Vocab;
use puna_tokenizer::{EncodeOptions, Tokenizer};

/// A shared tokenizer.
pub struct SamplerVocab(pub Arc<Tokenizer>);

impl Vocab for SamplerVocab {
    fn n_tokens(&self) -> usize {
        self.0.vocab_size()
    }

    fn piece(&self, id: u32, special: bool) -> Cow<'_, [u8]> {
        Cow::Borrowed(if special || !self.0.is_control(id) { self.0.piece(id) } else { b"" })
    }

    fn tokenize(&self, text: &str) -> Vec<u32> {
        self.0.encode(text, EncodeOptions { add_special: false, parse_special: false })
    }

    fn is_end(&self, id: u32) -> bool {
        self.0.is_eog(id)
    }

    fn end_of_turn(&self) -> Option<u32> {
        self.0.eot().or(self.0.eos())
    }
}

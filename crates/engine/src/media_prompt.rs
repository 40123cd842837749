//! Prompts of texts and pictures.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use puna_media::Picture;
use puna_models::{PromptPart, VisionTower};
use puna_tokenizer::{EncodeOptions, Tokenizer};

use crate::error::EngineError;
use crate::media::NO_TOKEN;
use crate::projector::picture_layout;
use crate::request::PromptMedium;

/// A prompt: tokens, and media between them.
#[derive(Debug, Clone, Default)]
pub struct MediaPrompt {
    /// Tokens, with [`NO_TOKEN`] for each row of a medium.
    pub tokens: Vec<u32>,
    /// The media, in order.
    pub media: Vec<PromptMedium>,
}

impl MediaPrompt {
    /// Adds a picture: its parts for the tower, and the texts around them. `content` is a hash of
    /// the picture and of the options that change its rows.
    ///
    /// # Errors
    /// The tower does not take a picture of this size.
    pub fn push_picture(
        &mut self,
        picture: &Picture,
        content: u128,
        tower: &VisionTower,
        tokenizer: &Tokenizer,
    ) -> Result<(), EngineError> {
        let mut number = 0;
        let parts = tower.prompt_parts(picture);
        let named = tokens_by_text(&parts, tokenizer);
        for part in parts {
            match part {
                PromptPart::Text(text) => {
                    let options = EncodeOptions { add_special: false, parse_special: true };
                    self.tokens.extend(tokenizer.encode(text, options));
                }
                PromptPart::Tokens(texts) => {
                    self.tokens.extend(texts.iter().filter_map(|text| named.get(text.as_bytes())));
                }
                PromptPart::Picture(picture) => {
                    let layout = picture_layout(tower, picture.width, picture.height)?;
                    let first = self.tokens.len();
                    self.tokens.resize(first + layout.rows, NO_TOKEN);
                    number += 1;
                    // Differs for each part. The hash has no structure.
                    let content = content.wrapping_add(number);
                    let picture = Arc::new(picture);
                    self.media.push(PromptMedium { first, layout, content, picture });
                }
            }
        }
        Ok(())
    }
}

/// The first token with each of the texts in [`PromptPart::Tokens`].
fn tokens_by_text(parts: &[PromptPart], tokenizer: &Tokenizer) -> HashMap<Vec<u8>, u32> {
    let texts = parts.iter().filter_map(|part| match part {
        PromptPart::Tokens(texts) => Some(texts),
        _ => None,
    });
    let wanted: HashSet<&[u8]> = texts.flatten().map(|text| text.as_bytes()).collect();
    if wanted.is_empty() {
        return HashMap::new();
    }
    let mut found = HashMap::new();
    for id in 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX) {
        let text = tokenizer.piece(id);
        if wanted.contains(text) {
            found.entry(text.to_vec()).or_insert(id);
        }
    }
    found
}

//! How far to guess ahead, and with which draft model: what requests, models and the configuration say.

use std::path::{Path, PathBuf};

use puna_engine::Speculation;
use puna_store::ModelName;
use serde::{Deserialize, Serialize};

/// Whether and how to guess ahead. No mode changes an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// From the text and with a draft model, where it pays.
    #[default]
    Auto,
    /// Not at all.
    Off,
    /// From the text alone, where it pays.
    Ngram,
    /// Whenever there is something to guess, whether it pays or not: for measuring.
    Always,
}

impl Mode {
    /// Whether a draft model has anything to do.
    pub fn takes_drafts(self) -> bool {
        matches!(self, Self::Auto | Self::Always)
    }

    /// What the engine makes of it, with so many guesses a step at most.
    pub fn speculation(self, most: Option<u32>) -> Speculation {
        let mode = match self {
            Self::Auto => Speculation::AUTO,
            Self::Off => Speculation::OFF,
            Self::Ngram => Speculation::LOOKUP,
            Self::Always => Speculation { always: true, ..Speculation::AUTO },
        };
        Speculation { most: most.map(|n| n as usize), ..mode }
    }
}

/// What the option `speculate` and the variable `PUNA_SPECULATE` can say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// A mode.
    Mode(Mode),
    /// A draft model, by name.
    Model(String),
}

impl Default for Wish {
    fn default() -> Self {
        Self::Mode(Mode::Auto)
    }
}

impl Wish {
    /// What it can say besides the name of a draft model, for messages.
    pub const MODES: &str = "auto, off, ngram, always";

    /// Letters in which a misspelt mode may differ.
    const SLIPS: usize = 1;

    /// The same for a text that stands for all models: what can be neither a mode nor a model is refused.
    ///
    /// # Errors
    /// What it must be.
    pub fn parse_checked(text: &str) -> Result<Self, String> {
        let wish = Self::parse(text);
        let Self::Model(name) = &wish else { return Ok(wish) };
        if name.starts_with(['/', '.']) {
            let path = Path::new(name);
            return if path.is_file() { Ok(wish) } else { Err("there is no such file".into()) };
        }
        let plain = name.to_lowercase();
        if let Some(mode) =
            Self::MODES.split(", ").find(|mode| strsim::osa_distance(mode, &plain) <= Self::SLIPS)
        {
            return Err(format!(
                "did you mean {mode:?}? A draft model of that name is \"{name}:latest\""
            ));
        }
        match ModelName::parse(name) {
            Ok(_) => Ok(wish),
            Err(_) => {
                Err(format!("it must be one of {}, or the name of a draft model", Self::MODES))
            }
        }
    }

    /// Reads a mode, in any case; any other text is the name of a draft model. Nothing is the default.
    pub fn parse(text: &str) -> Self {
        let text = text.trim();
        match text.to_ascii_lowercase().as_str() {
            "" | "auto" | "on" | "true" => Self::Mode(Mode::Auto),
            "off" | "none" | "false" => Self::Mode(Mode::Off),
            "ngram" => Self::Mode(Mode::Ngram),
            "always" => Self::Mode(Mode::Always),
            _ => Self::Model(text.to_owned()),
        }
    }
}

/// A small model that guesses ahead for another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draft {
    /// What it is called.
    pub name: String,
    /// Its GGUF file; `None` is the model inside this program.
    pub weights: Option<PathBuf>,
    /// It was not asked for by the request or the model: where it does not fit, there is none.
    pub optional: bool,
}

/// Tokens of guesses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guesses {
    /// Guessed from the text, and checked.
    pub ngram: u64,
    /// Those of them that came true.
    pub ngram_accepted: u64,
    /// Guessed by the draft model, and checked.
    pub model: u64,
    /// Those of them that came true.
    pub model_accepted: u64,
}

impl From<puna_engine::Speculated> for Guesses {
    fn from(counts: puna_engine::Speculated) -> Self {
        let puna_engine::Speculated { lookup, model, .. } = counts;
        Self {
            ngram: lookup.drafted,
            ngram_accepted: lookup.accepted,
            model: model.drafted,
            model_accepted: model.accepted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_mode_is_the_name_of_a_model() {
        assert_eq!(Wish::parse(" ngram "), Wish::Mode(Mode::Ngram));
        assert_eq!(Wish::parse(""), Wish::default());
        assert_eq!(Wish::parse("SmolLM2:135m"), Wish::Model("SmolLM2:135m".into()));
    }

    #[test]
    fn modes_may_be_in_any_case_and_messages_list_them_all() {
        let modes = [Mode::Auto, Mode::Off, Mode::Ngram, Mode::Always];
        for (word, mode) in Wish::MODES.split(", ").zip(modes) {
            let capital = word[..1].to_uppercase() + &word[1..];
            for text in [word, &word.to_uppercase(), &capital] {
                assert_eq!(Wish::parse(text), Wish::Mode(mode), "{text}");
            }
        }
        assert_eq!(Wish::MODES.split(", ").count(), modes.len());
    }

    #[test]
    fn no_guesses_a_step_are_no_guesses() {
        assert!(!Mode::Auto.speculation(Some(0)).is_on());
        assert!(!Mode::Off.speculation(None).is_on());
        assert!(Mode::Ngram.speculation(Some(2)).is_on() && !Mode::Ngram.takes_drafts());
    }
}

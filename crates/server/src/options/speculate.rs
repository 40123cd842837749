//! Speculative decoding settings of requests, models and the configuration.

use std::path::{Path, PathBuf};

use puna_engine::Speculation;
use puna_store::ModelName;
use serde::{Deserialize, Serialize};

/// Speculation mode. No mode changes an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpeculationMode {
    /// Draft tokens from n-grams of the text and from a draft model, when they save time.
    #[default]
    Auto,
    /// No draft tokens.
    Off,
    /// Draft tokens from n-grams of the text only, when they save time.
    Ngram,
    /// Draft tokens in every step, even when they cost time. For measurements.
    Always,
}

impl SpeculationMode {
    /// Whether this mode uses a draft model.
    pub fn uses_draft_model(self) -> bool {
        matches!(self, Self::Auto | Self::Always)
    }

    /// Speculation settings of the engine, with at most `max` draft tokens per step.
    pub fn speculation(self, max: Option<u32>) -> Speculation {
        let mode = match self {
            Self::Auto => Speculation::AUTO,
            Self::Off => Speculation::OFF,
            Self::Ngram => Speculation::LOOKUP,
            Self::Always => Speculation { always: true, ..Speculation::AUTO },
        };
        Speculation { max_tokens: max.map(|n| n as usize), ..mode }
    }
}

/// Value of the option `speculate` and of the variable `PUNA_SPECULATE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpeculateSetting {
    /// A mode.
    Mode(SpeculationMode),
    /// The name of a draft model.
    Model(String),
}

impl Default for SpeculateSetting {
    fn default() -> Self {
        Self::Mode(SpeculationMode::Auto)
    }
}

impl SpeculateSetting {
    /// Names of the modes, for messages.
    pub const MODES: &str = "auto, off, ngram, always";

    /// Maximum edit distance of a misspelt mode.
    const MAX_TYPOS: usize = 1;

    /// Parses the value for all models. Rejects a text that is neither a mode nor the name of a
    /// model.
    ///
    /// # Errors
    /// Describes the valid values.
    pub fn parse_checked(text: &str) -> Result<Self, String> {
        let setting = Self::parse(text);
        let Self::Model(name) = &setting else { return Ok(setting) };
        if name.starts_with(['/', '.']) {
            let path = Path::new(name);
            return if path.is_file() {
                Ok(setting)
            } else {
                Err("the file does not exist".into())
            };
        }
        let plain = name.to_lowercase();
        if let Some(mode) = Self::MODES
            .split(", ")
            .find(|mode| strsim::osa_distance(mode, &plain) <= Self::MAX_TYPOS)
        {
            return Err(format!(
                "did you mean {mode:?}? a draft model of this name is \"{name}:latest\""
            ));
        }
        match ModelName::parse(name) {
            Ok(_) => Ok(setting),
            Err(_) => {
                Err(format!("it must be one of {}, or the name of a draft model", Self::MODES))
            }
        }
    }

    /// Parses a mode, ignoring case. Any other text is the name of a draft model; an empty text is
    /// the default.
    pub fn parse(text: &str) -> Self {
        let text = text.trim();
        match text.to_ascii_lowercase().as_str() {
            "" | "auto" | "on" | "true" => Self::Mode(SpeculationMode::Auto),
            "off" | "none" | "false" => Self::Mode(SpeculationMode::Off),
            "ngram" => Self::Mode(SpeculationMode::Ngram),
            "always" => Self::Mode(SpeculationMode::Always),
            _ => Self::Model(text.to_owned()),
        }
    }
}

/// A draft model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftModelSpec {
    /// Name of the draft model.
    pub name: String,
    /// GGUF file; `None` is the embedded model.
    pub weights: Option<PathBuf>,
    /// Whether neither the request nor the model names it. An optional draft model is dropped if it
    /// does not fit.
    pub optional: bool,
}

/// Numbers of draft tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftCounts {
    /// Verified draft tokens from n-grams of the text.
    pub ngram: u64,
    /// Accepted draft tokens from n-grams of the text.
    pub ngram_accepted: u64,
    /// Verified draft tokens of the draft model.
    pub model: u64,
    /// Accepted draft tokens of the draft model.
    pub model_accepted: u64,
}

impl From<puna_engine::DraftStats> for DraftCounts {
    fn from(counts: puna_engine::DraftStats) -> Self {
        let puna_engine::DraftStats { lookup, model, .. } = counts;
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
    fn a_word_that_is_not_a_mode_is_a_model_name() {
        assert_eq!(
            SpeculateSetting::parse(" ngram "),
            SpeculateSetting::Mode(SpeculationMode::Ngram)
        );
        assert_eq!(SpeculateSetting::parse(""), SpeculateSetting::default());
        assert_eq!(
            SpeculateSetting::parse("SmolLM2:135m"),
            SpeculateSetting::Model("SmolLM2:135m".into())
        );
    }

    #[test]
    fn modes_ignore_case_and_messages_list_them_all() {
        let modes = [
            SpeculationMode::Auto,
            SpeculationMode::Off,
            SpeculationMode::Ngram,
            SpeculationMode::Always,
        ];
        for (word, mode) in SpeculateSetting::MODES.split(", ").zip(modes) {
            let capital = word[..1].to_uppercase() + &word[1..];
            for text in [word, &word.to_uppercase(), &capital] {
                assert_eq!(SpeculateSetting::parse(text), SpeculateSetting::Mode(mode), "{text}");
            }
        }
        assert_eq!(SpeculateSetting::MODES.split(", ").count(), modes.len());
    }

    #[test]
    fn zero_draft_tokens_per_step_disable_speculation() {
        assert!(!SpeculationMode::Auto.speculation(Some(0)).is_on());
        assert!(!SpeculationMode::Off.speculation(None).is_on());
        assert!(
            SpeculationMode::Ngram.speculation(Some(2)).is_on()
                && !SpeculationMode::Ngram.uses_draft_model()
        );
    }
}

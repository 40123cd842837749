//! Denoising options of diffusion models in requests and model parameters.

use puna_engine::{Diffusion, UnmaskOrder};
use serde::{Deserialize, Serialize};

/// Which masked positions are unmasked first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// Those with the most probable token.
    Confidence,
    /// Those with the lowest entropy.
    Entropy,
    /// Those with the largest gap between the two most probable tokens.
    Margin,
    /// Random positions.
    Random,
    /// Each position with the same probability per step.
    Origin,
}

impl Algorithm {
    const ALL: [(&str, Self); 5] = [
        ("confidence", Self::Confidence),
        ("entropy", Self::Entropy),
        ("margin", Self::Margin),
        ("random", Self::Random),
        ("origin", Self::Origin),
    ];

    /// Parses a name, ignoring case.
    ///
    /// # Errors
    /// Lists the known names.
    pub fn parse(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(text.trim()));
        known.map(|(_, algorithm)| algorithm).ok_or_else(|| {
            let names = Self::ALL.map(|(name, _)| name).join(", ");
            format!("unknown value {text:?}: use one of {names}")
        })
    }

    fn order(self) -> UnmaskOrder {
        match self {
            Self::Confidence => UnmaskOrder::Confidence,
            Self::Entropy => UnmaskOrder::Entropy,
            Self::Margin => UnmaskOrder::Margin,
            Self::Random => UnmaskOrder::Random,
            Self::Origin => UnmaskOrder::Origin,
        }
    }
}

/// Options of a generation; `None` is the model's default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffusionOptions {
    /// Denoising steps for the whole answer.
    pub steps: Option<u32>,
    /// Positions per block; a block is completed before the next one starts. 0 is the whole answer.
    pub block_length: Option<u32>,
    /// Which positions are unmasked first.
    pub algorithm: Option<Algorithm>,
}

impl From<DiffusionOptions> for Diffusion {
    fn from(options: DiffusionOptions) -> Self {
        let DiffusionOptions { steps, block_length, algorithm } = options;
        let number = |n: u32| n as usize;
        Self {
            steps: steps.map(number),
            block_length: block_length.map(number),
            algorithm: algorithm.map(Algorithm::order),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_ignore_case_and_errors_list_the_known_ones() {
        for (name, algorithm) in Algorithm::ALL {
            assert_eq!(Algorithm::parse(&name.to_uppercase()), Ok(algorithm));
        }
        let told = Algorithm::parse("best").unwrap_err();
        assert_eq!(
            told,
            "unknown value \"best\": use one of confidence, entropy, margin, random, origin"
        );
    }
}

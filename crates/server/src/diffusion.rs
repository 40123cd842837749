//! How the answer of a diffusion model is filled: what requests and models say.

use puna_engine::{Diffusion, Order};
use serde::{Deserialize, Serialize};

/// Which masked places become tokens first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// The likeliest token's.
    Confidence,
    /// Those with least entropy.
    Entropy,
    /// Those whose two likeliest tokens differ most.
    Margin,
    /// Any.
    Random,
    /// Each with the same chance.
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

    /// Reads a name, in any case.
    ///
    /// # Errors
    /// The names that there are.
    pub fn parse(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(text.trim()));
        known.map(|(_, algorithm)| algorithm).ok_or_else(|| {
            let names = Self::ALL.map(|(name, _)| name).join(", ");
            format!("{text:?} is none of {names}")
        })
    }

    fn order(self) -> Order {
        match self {
            Self::Confidence => Order::Confidence,
            Self::Entropy => Order::Entropy,
            Self::Margin => Order::Margin,
            Self::Random => Order::Random,
            Self::Origin => Order::Origin,
        }
    }
}

/// What was said; what was not is the model's habit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filling {
    /// Steps for the whole answer.
    pub steps: Option<u32>,
    /// Places that are filled before the next ones are begun; 0 is the whole answer.
    pub block_length: Option<u32>,
    /// Which places become tokens first.
    pub algorithm: Option<Algorithm>,
}

impl From<Filling> for Diffusion {
    fn from(filling: Filling) -> Self {
        let Filling { steps, block_length, algorithm } = filling;
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
    fn names_may_be_in_any_case_and_a_wrong_one_is_told_the_right_ones() {
        for (name, algorithm) in Algorithm::ALL {
            assert_eq!(Algorithm::parse(&name.to_uppercase()), Ok(algorithm));
        }
        let told = Algorithm::parse("best").unwrap_err();
        assert_eq!(told, "\"best\" is none of confidence, entropy, margin, random, origin");
    }
}

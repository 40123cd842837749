//! Sampling options of a request: names, defaults, ranges.

use serde::{Deserialize, Serialize};

/// Options of the sampler chain. Defaults are Ollama's. Field names are those of Ollama's options,
/// or else of llama.cpp's server. Each comment names the value that switches the option off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Params {
    /// Seed of the random numbers. The low 32 bits are used. −1: random.
    pub seed: i64,
    /// Temperature. 0: always the most likely token; 1: the model's own distribution.
    pub temperature: f32,
    /// Above 0: the temperature varies within `temperature ± dynatemp_range` with the entropy.
    pub dynatemp_range: f32,
    /// Exponent that maps the entropy to the dynamic temperature.
    pub dynatemp_exponent: f32,
    /// Number of most likely tokens to draw from. Off: 0.
    pub top_k: i32,
    /// Draws from the smallest set of most likely tokens that has this probability. Off: 1.
    pub top_p: f32,
    /// Least probability, relative to the largest one. Off: 0.
    pub min_p: f32,
    /// Locally typical sampling. Off: 1.
    pub typical_p: f32,
    /// Masks logits that lie more than this many standard deviations below the largest. Off: ≤ 0.
    pub top_n_sigma: f32,
    /// Probability of removing the top choices. Off: 0.
    pub xtc_probability: f32,
    /// Least probability of a top choice. Off: above 0.5.
    pub xtc_threshold: f32,
    /// Number of last tokens, prompt included, that penalties apply to. Off: 0; −1: the context
    /// length.
    pub repeat_last_n: i32,
    /// Divisor of the logits of repeated tokens. Off: 1.
    pub repeat_penalty: f32,
    /// Subtracted from the logits of repeated tokens. Off: 0.
    pub presence_penalty: f32,
    /// Subtracted from the logits of repeated tokens once per occurrence. Off: 0.
    pub frequency_penalty: f32,
    /// Factor of the penalty on continuing a repeated sequence. Off: 0.
    pub dry_multiplier: f32,
    /// Growth of the DRY penalty with each repeated token.
    pub dry_base: f32,
    /// Longest repeat without a DRY penalty, in tokens.
    pub dry_allowed_length: i32,
    /// Number of last tokens that DRY searches for repeats. Off: 0; −1: the context length.
    pub dry_penalty_last_n: i32,
    /// Strings that end a repeat for DRY. They need a vocabulary: [`crate::Sampler::with_vocab`].
    pub dry_sequence_breakers: Vec<String>,
    /// Mirostat version 1 or 2: controls the surprise of drawn tokens, and replaces all other
    /// samplers except bias and temperature. Off: 0.
    pub mirostat: i32,
    /// Mirostat's target surprise in bits.
    pub mirostat_tau: f32,
    /// Mirostat's learning rate.
    pub mirostat_eta: f32,
    /// Preferred probability of drawn tokens, if `samplers` contains adaptive-p. Off: negative.
    pub adaptive_target: f32,
    /// Decay of adaptive-p's history: larger values forget more slowly.
    pub adaptive_decay: f32,
    /// Least number of candidates that a truncating sampler keeps.
    pub min_keep: i32,
    /// Values added to the logits of tokens. −∞ bans a token.
    #[serde(with = "bias_list")]
    pub logit_bias: Vec<(u32, f32)>,
    /// Bans all tokens that end the generation. Needs a vocabulary: [`crate::Sampler::with_vocab`].
    pub ignore_eos: bool,
    /// Samplers to run, in order. The logit bias always runs before them, and the draw after them.
    pub samplers: Vec<SamplerKind>,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            seed: -1,
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.9,
            min_p: 0.0,
            typical_p: 1.0,
            top_n_sigma: -1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            repeat_last_n: 64,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            dry_multiplier: 0.0,
            dry_base: Self::DRY_BASE,
            dry_allowed_length: 2,
            dry_penalty_last_n: 64,
            dry_sequence_breakers: ["\n", ":", "\"", "*"].map(String::from).to_vec(),
            mirostat: 0,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            adaptive_target: -1.0,
            adaptive_decay: 0.9,
            min_keep: 0,
            logit_bias: Vec::new(),
            ignore_eos: false,
            samplers: SamplerKind::DEFAULT_ORDER.to_vec(),
        }
    }
}

impl Params {
    const DRY_BASE: f32 = 1.75;

    /// Validates options from a request: clamps values that may be clamped, and replaces −1 by the
    /// context length of `n_ctx` tokens. Rejects other values with llama.cpp's messages.
    pub fn normalize(&mut self, n_ctx: u32) -> Result<(), ParamsError> {
        self.check_finite()?;
        let context = i32::try_from(n_ctx).unwrap_or(i32::MAX);
        for n in [&mut self.repeat_last_n, &mut self.dry_penalty_last_n] {
            if *n == -1 {
                *n = context;
            }
        }
        for (field, got) in
            [("repeat_last_n", self.repeat_last_n), ("dry_penalty_last_n", self.dry_penalty_last_n)]
        {
            if got < 0 {
                return Err(ParamsError::Window { field, got });
            }
        }
        let lengths =
            [("dry_allowed_length", self.dry_allowed_length), ("min_keep", self.min_keep)];
        if let Some(&(field, got)) = lengths.iter().find(|(_, got)| *got < 0) {
            return Err(ParamsError::Negative { field, got });
        }
        if self.repeat_penalty <= 0.0 || !self.repeat_penalty.recip().is_finite() {
            return Err(ParamsError::NotPositive {
                field: "repeat_penalty",
                got: self.repeat_penalty,
            });
        }
        if !(0.0..=0.99).contains(&self.adaptive_decay) {
            return Err(ParamsError::Decay { got: self.adaptive_decay });
        }
        if self.dry_sequence_breakers.is_empty() {
            return Err(ParamsError::NoBreakers);
        }
        self.clamp();
        Ok(())
    }

    /// The low 32 bits of the seed, or `None` for a random seed.
    pub(crate) fn fixed_seed(&self) -> Option<u32> {
        let low = self.seed as u32;
        (low != u32::MAX).then_some(low)
    }

    fn check_finite(&self) -> Result<(), ParamsError> {
        let numbers = [
            ("temperature", self.temperature),
            ("dynatemp_range", self.dynatemp_range),
            ("dynatemp_exponent", self.dynatemp_exponent),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("typical_p", self.typical_p),
            ("top_n_sigma", self.top_n_sigma),
            ("xtc_probability", self.xtc_probability),
            ("xtc_threshold", self.xtc_threshold),
            ("repeat_penalty", self.repeat_penalty),
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
            ("dry_multiplier", self.dry_multiplier),
            ("dry_base", self.dry_base),
            ("mirostat_tau", self.mirostat_tau),
            ("mirostat_eta", self.mirostat_eta),
            ("adaptive_target", self.adaptive_target),
            ("adaptive_decay", self.adaptive_decay),
        ];
        match numbers.iter().find(|(_, value)| !value.is_finite()) {
            Some(&(field, got)) => Err(ParamsError::NotFinite { field, got }),
            None => Ok(()),
        }
    }

    fn clamp(&mut self) {
        self.temperature = self.temperature.max(0.0);
        self.top_k = self.top_k.max(0);
        for share in
            [&mut self.top_p, &mut self.min_p, &mut self.xtc_probability, &mut self.xtc_threshold]
        {
            *share = share.clamp(0.0, 1.0);
        }
        self.mirostat = self.mirostat.clamp(0, 2);
        self.adaptive_target = self.adaptive_target.min(1.0);
        if self.dry_base < 1.0 {
            self.dry_base = Self::DRY_BASE;
        }
    }
}

/// A sampler that `samplers` may list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // Named like the fields of `Params` that configure them.
pub enum SamplerKind {
    Penalties,
    Dry,
    TopNSigma,
    TopK,
    #[serde(rename = "typ_p")]
    Typical,
    TopP,
    MinP,
    Xtc,
    Temperature,
    Infill,
    AdaptiveP,
}

impl SamplerKind {
    /// Default order of samplers.
    pub const DEFAULT_ORDER: [Self; 9] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::TopK,
        Self::Typical,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
        Self::Temperature,
    ];

    /// Finds a sampler by a name of llama.cpp's server: `top_k`, `top-k`, `topk`, and some older
    /// names, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        let plain: String = name.chars().filter(|c| !"_-".contains(*c)).collect();
        Some(match plain.to_ascii_lowercase().as_str() {
            "penalties" => Self::Penalties,
            "dry" => Self::Dry,
            "topnsigma" => Self::TopNSigma,
            "topk" => Self::TopK,
            "typp" | "typ" => Self::Typical,
            "topp" | "nucleus" => Self::TopP,
            "minp" => Self::MinP,
            "xtc" => Self::Xtc,
            "temperature" | "temp" => Self::Temperature,
            "infill" => Self::Infill,
            "adaptivep" => Self::AdaptiveP,
            _ => return None,
        })
    }

    /// Finds a sampler by the letter that llama.cpp's server uses. `"edskypmxt"` is the default
    /// order.
    pub fn from_letter(letter: char) -> Option<Self> {
        Some(match letter {
            'e' => Self::Penalties,
            'd' => Self::Dry,
            's' => Self::TopNSigma,
            'k' => Self::TopK,
            'y' => Self::Typical,
            'p' => Self::TopP,
            'm' => Self::MinP,
            'x' => Self::Xtc,
            't' => Self::Temperature,
            'i' => Self::Infill,
            'a' => Self::AdaptiveP,
            _ => return None,
        })
    }
}

/// An option outside its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the fields are the option's name and its value
pub enum ParamsError {
    #[error("Field '{field}': Value must be between 0 <= value <= 2147483647, but got {got}")]
    Negative { field: &'static str, got: i32 },
    #[error(
        "Field '{field}': Value must be between -1 <= value <= 2147483647 (-1 is the whole context), but got {got}"
    )]
    Window { field: &'static str, got: i32 },
    #[error(
        "Field 'adaptive_decay': Value must be between 0.000000 <= value <= 0.990000, but got {got:.6}"
    )]
    Decay { got: f32 },
    #[error("Field '{field}': Value must be finite and greater than 0, but got {got}")]
    NotPositive { field: &'static str, got: f32 },
    #[error("Field '{field}': Value must be finite, but got {got}")]
    NotFinite { field: &'static str, got: f32 },
    #[error(
        "Field 'dry_sequence_breakers': Error: dry_sequence_breakers must be a non-empty array of strings"
    )]
    NoBreakers,
}

/// Serializes bias values with −∞ as `null`, since JSON has no infinities.
mod bias_list {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(list: &[(u32, f32)], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(
            list.iter().map(|&(id, bias)| (id, (bias > f32::NEG_INFINITY).then_some(bias))),
        )
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<(u32, f32)>, D::Error> {
        let list = Vec::<(u32, Option<f32>)>::deserialize(from)?;
        Ok(list.into_iter().map(|(id, bias)| (id, bias.unwrap_or(f32::NEG_INFINITY))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_survive_json_and_absent_ones_have_their_defaults() {
        let params = Params {
            logit_bias: vec![(3, f32::NEG_INFINITY), (4, -1.5)],
            samplers: vec![SamplerKind::Typical, SamplerKind::TopNSigma],
            ..Params::default()
        };
        let json = serde_json::to_string(&params).expect("serializable");
        assert!(json.contains(r#""logit_bias":[[3,null],[4,-1.5]]"#), "{json}");
        assert!(json.contains(r#""samplers":["typ_p","top_n_sigma"]"#), "{json}");
        assert_eq!(serde_json::from_str::<Params>(&json).expect("readable"), params);
        assert_eq!(serde_json::from_str::<Params>("{}").expect("readable"), Params::default());
    }

    #[test]
    fn ranges_are_clamped_or_refused_as_llama_server_does() {
        let mut wide = Params {
            temperature: -1.0,
            top_k: -3,
            top_p: 1.5,
            min_p: -0.1,
            mirostat: 7,
            ..Params::default()
        };
        wide.dry_base = 0.5;
        assert_eq!(wide.normalize(2048), Ok(()));
        let Params { temperature, top_k, top_p, min_p, mirostat, dry_base, .. } = wide;
        assert_eq!(
            (temperature, top_k, top_p, min_p, mirostat, dry_base),
            (0.0, 0, 1.0, 0.0, 2, 1.75)
        );

        let refuse =
            |params: Params| params.clone().normalize(2048).expect_err("out of range").to_string();
        assert_eq!(
            refuse(Params { repeat_last_n: -2, ..Params::default() }),
            "Field 'repeat_last_n': Value must be between -1 <= value <= 2147483647 (-1 is the whole context), but got -2"
        );
        assert!(
            refuse(Params { min_keep: -2, ..Params::default() })
                .contains("'min_keep': Value must be between 0 <=")
        );
        assert!(
            refuse(Params { repeat_penalty: 0.0, ..Params::default() })
                .contains("'repeat_penalty'")
        );
        assert!(
            refuse(Params { frequency_penalty: f32::NAN, ..Params::default() }).contains("finite")
        );
        assert!(
            refuse(Params { adaptive_decay: 1.0, ..Params::default() })
                .contains("0.990000, but got 1.000000")
        );
        assert!(
            refuse(Params { dry_sequence_breakers: vec![], ..Params::default() })
                .contains("non-empty")
        );
    }

    #[test]
    fn minus_one_means_the_context_length() {
        let mut params = Params { repeat_last_n: -1, dry_penalty_last_n: -1, ..Params::default() };
        assert_eq!(params.normalize(4096), Ok(()));
        assert_eq!((params.repeat_last_n, params.dry_penalty_last_n), (4096, 4096));
    }

    #[test]
    fn samplers_are_found_by_name_alias_and_letter() {
        for name in ["top_k", "top-k", "topk", "Top_K"] {
            assert_eq!(SamplerKind::from_name(name), Some(SamplerKind::TopK));
        }
        for (name, kind) in [
            ("nucleus", SamplerKind::TopP),
            ("temp", SamplerKind::Temperature),
            ("typ", SamplerKind::Typical),
        ] {
            assert_eq!(SamplerKind::from_name(name), Some(kind));
        }
        assert_eq!(SamplerKind::from_name("top"), None);
        let default: Option<Vec<_>> = "edskypmxt".chars().map(SamplerKind::from_letter).collect();
        assert_eq!(default, Some(SamplerKind::DEFAULT_ORDER.to_vec()));
    }
}

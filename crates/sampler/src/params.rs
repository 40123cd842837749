//! The options of a request that concern sampling: names, defaults, ranges.

use serde::{Deserialize, Serialize};

/// Options of the sampler chain. The defaults are Ollama's. Field names are those of Ollama's options, else those of
/// llama.cpp's server; each doc comment names the value that switches the option off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Params {
    /// Seed of the random numbers, of which the low 32 bits count; −1: random.
    pub seed: i64,
    /// 0: always the most likely token; 1: the model's own distribution.
    pub temperature: f32,
    /// Above 0: the temperature varies in `temperature ± dynatemp_range` with the entropy.
    pub dynatemp_range: f32,
    /// How the entropy maps to the dynamic temperature.
    pub dynatemp_exponent: f32,
    /// Number of most likely tokens to draw from; off: 0.
    pub top_k: i32,
    /// Draw from the most likely tokens that together have this probability; off: 1.
    pub top_p: f32,
    /// Least probability, as a share of the largest one; off: 0.
    pub min_p: f32,
    /// Locally typical sampling; off: 1.
    pub typical_p: f32,
    /// Hide logits more than this many standard deviations below the largest; off: ≤ 0.
    pub top_n_sigma: f32,
    /// Chance of removing the top choices; off: 0.
    pub xtc_probability: f32,
    /// Least probability of a top choice; off: above 0.5.
    pub xtc_threshold: f32,
    /// Number of last tokens, prompt included, that the penalties look at; off: 0; −1: the context length.
    pub repeat_last_n: i32,
    /// Factor on the logits of repeated tokens; off: 1.
    pub repeat_penalty: f32,
    /// Taken off the logits of repeated tokens; off: 0.
    pub presence_penalty: f32,
    /// Taken off the logits of repeated tokens for each occurrence; off: 0.
    pub frequency_penalty: f32,
    /// Size of the penalty on continuing a repeated sequence; off: 0.
    pub dry_multiplier: f32,
    /// Growth of that penalty with each repeated token.
    pub dry_base: f32,
    /// Longest repeat without a penalty.
    pub dry_allowed_length: i32,
    /// Number of last tokens searched for repeats; off: 0; −1: the context length.
    pub dry_penalty_last_n: i32,
    /// Strings across which nothing counts as repeated. They need a vocabulary: [`crate::Sampler::with_vocab`].
    pub dry_sequence_breakers: Vec<String>,
    /// 1 or 2: control the surprise of the drawn tokens, in place of all other samplers but bias and temperature; off: 0.
    pub mirostat: i32,
    /// Mirostat's target surprise in bits.
    pub mirostat_tau: f32,
    /// Mirostat's learning rate.
    pub mirostat_eta: f32,
    /// Preferred probability of the drawn tokens (when `samplers` has adaptive-p); off: negative.
    pub adaptive_target: f32,
    /// How slowly adaptive-p forgets.
    pub adaptive_decay: f32,
    /// Least number of candidates that a truncating sampler leaves.
    pub min_keep: i32,
    /// Added to the logits of tokens; −∞ bans one.
    #[serde(with = "bias_list")]
    pub logit_bias: Vec<(u32, f32)>,
    /// Ban all tokens that end the generation. Needs a vocabulary: [`crate::Sampler::with_vocab`].
    pub ignore_eos: bool,
    /// The samplers to run, in order. The logit bias always comes before them, the draw after them.
    pub samplers: Vec<Kind>,
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
            samplers: Kind::DEFAULT_ORDER.to_vec(),
        }
    }
}

impl Params {
    const DRY_BASE: f32 = 1.75;

    /// Brings options from outside into their ranges: clamps what may be clamped, resolves −1 to the context length
    /// of `n_ctx` tokens, and refuses the rest with llama.cpp's messages.
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

    /// The 32-bit seed, unless a random one is asked for.
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
#[allow(missing_docs)] // named like the fields of `Params` that they obey
pub enum Kind {
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

impl Kind {
    /// What runs when a request says nothing.
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

    /// By a name of llama.cpp's server: `top_k`, `top-k`, `topk`, and a few old names, in any case.
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

    /// By the letter that llama.cpp's server takes in a string of them (`"edskypmxt"` is the default order).
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

/// Bias values with −∞ as `null`, which JSON can carry.
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
            samplers: vec![Kind::Typical, Kind::TopNSigma],
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
    fn a_window_of_minus_one_is_the_context_length() {
        let mut params = Params { repeat_last_n: -1, dry_penalty_last_n: -1, ..Params::default() };
        assert_eq!(params.normalize(4096), Ok(()));
        assert_eq!((params.repeat_last_n, params.dry_penalty_last_n), (4096, 4096));
    }

    #[test]
    fn samplers_go_by_name_old_name_and_letter() {
        for name in ["top_k", "top-k", "topk", "Top_K"] {
            assert_eq!(Kind::from_name(name), Some(Kind::TopK));
        }
        for (name, kind) in
            [("nucleus", Kind::TopP), ("temp", Kind::Temperature), ("typ", Kind::Typical)]
        {
            assert_eq!(Kind::from_name(name), Some(kind));
        }
        assert_eq!(Kind::from_name("top"), None);
        let default: Option<Vec<_>> = "edskypmxt".chars().map(Kind::from_letter).collect();
        assert_eq!(default, Some(Kind::DEFAULT_ORDER.to_vec()));
    }
}

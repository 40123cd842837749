//! Rotary tables: base, scaling (linear, yarn, longrope, per-pair factors), magnitude.
//!
//! Angles are `position · frequency`, so every kind of scaling comes down to a list of frequencies and one magnitude.

use puna_gguf::shown;
use puna_graph::{Rope, RopeKind};

use crate::error::ModelError;
use crate::hparams::Keys;

/// Base of the frequencies where a file names none.
pub(crate) const BASE: f32 = 10000.0;

/// `rope.scaling.*` of a file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scaling {
    /// Positions as they are.
    None,
    /// Frequencies divided by the factor.
    Linear {
        /// How many times longer the context became.
        factor: f32,
    },
    /// Low frequencies divided by the factor, high ones kept, a ramp between (Peng et al., 2023).
    Yarn {
        /// How many times longer the context became.
        factor: f32,
        /// Context before it was extended.
        original: usize,
        /// Turns over the original context above which a frequency is kept.
        beta_fast: f32,
        /// Turns below which it is divided.
        beta_slow: f32,
        /// How much of the ramp is used.
        extrapolation: f32,
        /// `yarn_log_multiplier`.
        log_multiplier: f32,
        /// Whether the ramp starts and ends at whole pairs.
        whole_pairs: bool,
    },
    /// One factor a pair, from tensors of the file.
    Long,
}

/// Everything that a file says of its rotary embedding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeKeys {
    /// Features of a head that turn.
    pub dims: usize,
    /// Base of the frequencies.
    pub base: f32,
    /// Scaling.
    pub scaling: Scaling,
    /// Multiplies the magnitude.
    pub attn_factor: f32,
    /// Context before it was extended.
    pub original: usize,
}

impl RopeKeys {
    /// Reads `rope.*`; a head of `head_dim` features turns as a whole unless `rope.dimension_count` says less.
    pub fn read(keys: &Keys<'_>, head_dim: usize, n_ctx_train: usize) -> Result<Self, ModelError> {
        let dims = keys.count_or("rope.dimension_count", head_dim)?;
        let base = base(keys, "rope.freq_base", BASE)?;
        check(dims, head_dim, || keys.name("rope.dimension_count"))?;
        let attn_factor = keys.opt_f32("rope.scaling.attn_factor")?.unwrap_or(1.0);
        let original =
            keys.opt_count("rope.scaling.original_context_length")?.unwrap_or(n_ctx_train);
        Ok(Self { dims, base, scaling: scaling(keys, original)?, attn_factor, original })
    }

    /// How layers with a sliding window turn, whose heads have this size: by the file's own base for them, else by `default`, and as many
    /// features as the file says, else as many as in other layers.
    pub fn in_windows(
        self,
        keys: &Keys<'_>,
        head_dim: usize,
        default: f32,
    ) -> Result<Self, ModelError> {
        let dims = keys.count_or("rope.dimension_count_swa", self.dims)?;
        let base = base(keys, "rope.freq_base_swa", default)?;
        check(dims, head_dim, || keys.name("rope.dimension_count_swa"))?;
        Ok(Self { dims, base, ..self })
    }

    /// The same, if heads of this size can turn so.
    pub fn checked(self, keys: &Keys<'_>, head_dim: usize) -> Result<Self, ModelError> {
        check(self.dims, head_dim, || keys.name("rope.dimension_count_swa"))?;
        Ok(self)
    }

    /// The same without scaling.
    pub fn unscaled(self) -> Self {
        Self { scaling: Scaling::None, attn_factor: 1.0, ..self }
    }

    /// The table, with each frequency divided by its factor where the file has some.
    pub fn table(&self, kind: RopeKind, factors: Option<&[f32]>) -> Rope {
        let mut frequencies: Vec<f64> = (0..self.dims / 2)
            .map(|j| {
                let plain = f64::from(self.base).powf(-2.0 * j as f64 / self.dims as f64);
                plain / factors.map_or(1.0, |f| f64::from(f[j]))
            })
            .collect();
        match self.scaling {
            Scaling::None | Scaling::Long => {}
            Scaling::Linear { factor } => {
                frequencies.iter_mut().for_each(|f| *f /= f64::from(factor))
            }
            Scaling::Yarn { .. } => self.yarn(&mut frequencies),
        }
        let frequencies = frequencies.into_iter().map(|f| f as f32).collect();
        Rope { kind, frequencies, magnitude: self.magnitude(), behind: 0, is_back: false }
    }

    fn yarn(&self, frequencies: &mut [f64]) {
        let Scaling::Yarn {
            factor,
            original,
            beta_fast,
            beta_slow,
            extrapolation,
            whole_pairs,
            ..
        } = self.scaling
        else {
            return;
        };
        let dims = self.dims as f64;
        // The pair that makes `beta` turns over the original context.
        let pair = |beta: f32| {
            let turns = original as f64 / (f64::from(beta) * std::f64::consts::TAU);
            dims * turns.ln() / (2.0 * f64::from(self.base).ln())
        };
        let ends = (pair(beta_fast), pair(beta_slow));
        let (low, high) = if whole_pairs { (ends.0.floor(), ends.1.ceil()) } else { ends };
        let (low, high) = (low.max(0.0), high.min(dims - 1.0));
        for (j, f) in frequencies.iter_mut().enumerate() {
            let ramp = ((j as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            let keep = (1.0 - ramp) * f64::from(extrapolation);
            *f = *f / f64::from(factor) * (1.0 - keep) + *f * keep;
        }
    }

    fn magnitude(&self) -> f32 {
        let Scaling::Yarn { factor, log_multiplier: m, .. } = self.scaling else {
            return self.attn_factor;
        };
        let g = |multiplier| growth(factor, multiplier);
        if m == 0.0 { self.attn_factor * g(1.0) } else { self.attn_factor * g(1.0) / g(m) }
    }

    /// The same with a ramp of yarn that starts and ends where it does, be it between two pairs.
    pub fn with_exact_ramp(mut self) -> Self {
        if let Scaling::Yarn { whole_pairs, .. } = &mut self.scaling {
            *whole_pairs = false;
        }
        self
    }

    /// As files with latent attention mean the multiplier of yarn: they hold a tenth of it, and scores are sharpened, too. DeepSeek's
    /// mean to sharpen these by it while cosine and sine stay. Returns these keys with that said, and by what scores are multiplied.
    pub fn sharpened(mut self, is_deepseek: bool) -> (Self, f32) {
        let Scaling::Yarn { factor, log_multiplier: m, .. } = &mut self.scaling else {
            return (self, 1.0);
        };
        let stored = *m / 0.1;
        let is_own = is_deepseek && stored != 0.0;
        // Growth over the same growth.
        *m = if is_own { 1.0 } else { stored };
        let sharper = self.attn_factor * growth(*factor, if is_own { stored } else { 1.0 });
        (self, sharper * sharper)
    }
}

/// The base of frequencies that a key names, else `default`.
pub(crate) fn base(keys: &Keys<'_>, key: &str, default: f32) -> Result<f32, ModelError> {
    let base = keys.opt_f32(key)?.unwrap_or(default);
    if base > 0.0 {
        return Ok(base);
    }
    let (key, value) = (keys.name(key), base.to_string());
    Err(ModelError::KeyValue { key, value, reason: "the base of frequencies must be positive" })
}

/// Whether so many features of a head can turn.
fn check(dims: usize, head_dim: usize, key: impl Fn() -> String) -> Result<(), ModelError> {
    if dims.is_multiple_of(2) && dims <= head_dim {
        return Ok(());
    }
    let value = format!("{dims} dimensions in heads of {head_dim}");
    let reason = "an even number of dimensions can turn, not more than a head has";
    Err(ModelError::KeyValue { key: key(), value, reason })
}

/// What yarn multiplies by in a context so many times longer.
fn growth(factor: f32, multiplier: f32) -> f32 {
    if factor <= 1.0 { 1.0 } else { 0.1 * multiplier * factor.ln() + 1.0 }
}

fn scaling(keys: &Keys<'_>, original: usize) -> Result<Scaling, ModelError> {
    let factor = match keys.opt_f32("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => keys.opt_f32("rope.scale_linear")?,
    };
    let factor = factor.filter(|&f| f != 0.0).unwrap_or(1.0);
    if !factor.is_finite() || factor < 0.0 {
        let (key, value) = (keys.name("rope.scaling.factor"), factor.to_string());
        return Err(ModelError::KeyValue { key, value, reason: "must be positive" });
    }
    let number =
        |key: &str, default: f32| Ok::<_, ModelError>(keys.opt_f32(key)?.unwrap_or(default));
    Ok(match keys.opt_str("rope.scaling.type")? {
        Some("none") => Scaling::None,
        None | Some("linear") if factor == 1.0 => Scaling::None,
        None | Some("linear") => Scaling::Linear { factor },
        Some("yarn") => Scaling::Yarn {
            factor,
            original,
            beta_fast: number("rope.scaling.yarn_beta_fast", 32.0)?,
            beta_slow: number("rope.scaling.yarn_beta_slow", 1.0)?,
            extrapolation: number("rope.scaling.yarn_ext_factor", 1.0)?,
            log_multiplier: number("rope.scaling.yarn_log_multiplier", 0.0)?,
            whole_pairs: true,
        },
        Some("longrope") => Scaling::Long,
        Some(other) => {
            let (key, value) = (keys.name("rope.scaling.type"), shown(other.as_bytes()));
            return Err(ModelError::KeyValue {
                key,
                value,
                reason: "use none, linear, yarn or longrope",
            });
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_the_multiplier_sharpens_scores_and_leaves_the_magnitude() {
        let keys = |log_multiplier| RopeKeys {
            dims: 64,
            base: 10_000.0,
            scaling: Scaling::Yarn {
                factor: 40.0,
                original: 4096,
                beta_fast: 32.0,
                beta_slow: 1.0,
                extrapolation: 1.0,
                log_multiplier,
                whole_pairs: true,
            },
            attn_factor: 1.0,
            original: 4096,
        };
        let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-5, "{a}, not {b}");
        // DeepSeek 2, DeepSeek 3, and files that do not say it.
        for (stored, multiplier, magnitude) in
            [(0.0707, 0.707, 1.0), (0.1, 1.0, 1.0), (0.0, 1.0, 1.0 + 0.1 * 40f32.ln())]
        {
            let (keys, sharper) = keys(stored).sharpened(true);
            near(sharper, (1.0 + 0.1 * multiplier * 40f32.ln()).powi(2));
            near(keys.table(RopeKind::Norm, None).magnitude, magnitude);
        }
        // Of other files only cosine and sine differ by it.
        for (stored, magnitude) in
            [(0.0707, (1.0 + 0.1 * 40f32.ln()) / (1.0 + 0.0707 * 40f32.ln())), (0.1, 1.0)]
        {
            let (keys, sharper) = keys(stored).sharpened(false);
            near(sharper, (1.0 + 0.1 * 40f32.ln()).powi(2));
            near(keys.table(RopeKind::Norm, None).magnitude, magnitude);
        }
        let plain = RopeKeys { scaling: Scaling::None, ..keys(0.1) };
        assert_eq!(plain.sharpened(true), (plain, 1.0));
    }
}

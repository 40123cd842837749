//! Rotary tables: base, scaling (linear, YaRN, LongRoPE, per-pair factors), magnitude.
//!
//! Angles are `position · frequency`, so every kind of scaling amounts to a list of frequencies and
//! one magnitude.

use puna_gguf::escape_for_display;
use puna_graph::{AXES, Rope, RopeKind};

use crate::error::ModelError;
use crate::hparams::Keys;

/// Default base of the frequencies.
pub(crate) const BASE: f32 = 10000.0;

/// `rope.scaling.*` of a file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scaling {
    /// No scaling.
    None,
    /// All frequencies divided by the factor.
    Linear {
        /// Ratio of the extended to the original context.
        factor: f32,
    },
    /// YaRN (Peng et al., 2023): low frequencies divided by the factor, high ones unchanged, a ramp
    /// between.
    Yarn {
        /// Ratio of the extended to the original context.
        factor: f32,
        /// Original context, in tokens.
        original: usize,
        /// Rotations over the original context above which a frequency is unchanged.
        beta_fast: f32,
        /// Rotations below which a frequency is divided.
        beta_slow: f32,
        /// Fraction of the ramp that is applied.
        extrapolation: f32,
        /// `yarn_log_multiplier` (DeepSeek: `mscale_all_dim`).
        log_multiplier: f32,
        /// Whether the ramp starts and ends at whole pairs.
        whole_pairs: bool,
    },
    /// LongRoPE: a factor per pair, from tensors of the file.
    Long,
}

/// Rotary-embedding keys of a file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeKeys {
    /// Dimensions of a head that are rotated.
    pub dims: usize,
    /// Base of the frequencies.
    pub base: f32,
    /// Scaling.
    pub scaling: Scaling,
    /// Factor of the magnitude.
    pub attn_factor: f32,
    /// Original context, in tokens.
    pub original: usize,
    /// Axes of the pairs.
    pub sections: Sections,
}

/// Axes of the pairs of a multimodal rotary embedding (M-RoPE): time, height or width. For text all
/// coordinates are equal, so it is the usual rotary embedding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sections {
    /// All pairs rotate by the position.
    #[default]
    None,
    /// This many pairs of each axis, one axis after the other.
    Consecutive([usize; AXES]),
    /// The axes alternate as long as they have pairs left; the remaining pairs belong to time.
    Interleaved([usize; AXES]),
}

impl Sections {
    /// Axis of each of the first `pairs` pairs; empty if all rotate by the position.
    fn axes(self, pairs: usize) -> Vec<u8> {
        let axis = |pair: usize| match self {
            Sections::None => 0,
            Sections::Consecutive(counts) => {
                let ends = counts.into_iter().scan(0, |end: &mut usize, count| {
                    *end = end.saturating_add(count);
                    Some(*end)
                });
                ends.take_while(|end| pair >= *end).count() as u8 % AXES as u8
            }
            Sections::Interleaved([_, height, width]) => match pair % AXES {
                1 if pair / AXES < height => 1,
                2 if pair / AXES < width => 2,
                _ => 0,
            },
        };
        if self == Sections::None { Vec::new() } else { (0..pairs).map(axis).collect() }
    }
}

impl RopeKeys {
    /// Reads `rope.*`; by default all `head_dim` dimensions of a head are rotated.
    pub fn read(keys: &Keys<'_>, head_dim: usize, n_ctx_train: usize) -> Result<Self, ModelError> {
        let dims = keys.count_or("rope.dimension_count", head_dim)?;
        let base = base(keys, "rope.freq_base", BASE)?;
        check(dims, head_dim, || keys.name("rope.dimension_count"))?;
        let attn_factor = keys.opt_f32("rope.scaling.attn_factor")?.unwrap_or(1.0);
        let original =
            keys.opt_count("rope.scaling.original_context_length")?.unwrap_or(n_ctx_train);
        let sections = Sections::None;
        Ok(Self { dims, base, scaling: scaling(keys, original)?, attn_factor, original, sections })
    }

    /// Reads `rope.dimension_sections`, the number of pairs of each axis, if the file has it.
    pub fn with_sections(
        self,
        keys: &Keys<'_>,
        order: fn([usize; AXES]) -> Sections,
    ) -> Result<Self, ModelError> {
        let key = keys.name("rope.dimension_sections");
        let Some(counts) = keys.meta().u32s(&key)? else { return Ok(self) };
        let [time, height, width, ..] = counts[..] else {
            let reason = "must have three or four numbers of pairs";
            return Err(ModelError::KeyValue { key, value: format!("{counts:?}"), reason });
        };
        let sections = order([time, height, width].map(|count| count as usize));
        Ok(Self { sections, ..self })
    }

    /// Rotary embedding of layers with a sliding window and heads of `head_dim` dimensions. Base
    /// and number of dimensions have keys of their own, with `default` and the value of other
    /// layers as defaults.
    pub fn for_windows(
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

    /// Checks that heads of this size have enough dimensions.
    pub fn checked(self, keys: &Keys<'_>, head_dim: usize) -> Result<Self, ModelError> {
        check(self.dims, head_dim, || keys.name("rope.dimension_count_swa"))?;
        Ok(self)
    }

    /// Drops the scaling.
    pub fn unscaled(self) -> Self {
        Self { scaling: Scaling::None, attn_factor: 1.0, ..self }
    }

    /// Rotary table, with each frequency divided by its factor, if any.
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
        let frequencies: Vec<f32> = frequencies.into_iter().map(|f| f as f32).collect();
        Rope {
            kind,
            axes: self.sections.axes(frequencies.len()),
            frequencies,
            magnitude: self.magnitude(),
            position_offset: 0,
            is_inverse: false,
        }
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
        // Pair that rotates `beta` times over the original context.
        let pair = |beta: f32| {
            let rotations = original as f64 / (f64::from(beta) * std::f64::consts::TAU);
            dims * rotations.ln() / (2.0 * f64::from(self.base).ln())
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
        let g = |multiplier| yarn_mscale(factor, multiplier);
        if m == 0.0 { self.attn_factor * g(1.0) } else { self.attn_factor * g(1.0) / g(m) }
    }

    /// Lets the YaRN ramp start and end between two pairs.
    pub fn with_exact_ramp(mut self) -> Self {
        if let Scaling::Yarn { whole_pairs, .. } = &mut self.scaling {
            *whole_pairs = false;
        }
        self
    }

    /// YaRN scaling as files with latent attention define it: the stored multiplier is a tenth of
    /// the real one, and scores are scaled as well. In files of DeepSeek the multiplier scales the
    /// scores, while cosine and sine stay. Returns the adjusted keys, and the factor of scores.
    pub fn with_mscale(mut self, is_deepseek: bool) -> (Self, f32) {
        let Scaling::Yarn { factor, log_multiplier: m, .. } = &mut self.scaling else {
            return (self, 1.0);
        };
        let stored = *m / 0.1;
        let is_own = is_deepseek && stored != 0.0;
        // The magnitude is a ratio of two equal terms, thus 1.
        *m = if is_own { 1.0 } else { stored };
        let score_scale =
            self.attn_factor * yarn_mscale(*factor, if is_own { stored } else { 1.0 });
        (self, score_scale * score_scale)
    }
}

/// Base of the frequencies from a key, or `default`.
pub(crate) fn base(keys: &Keys<'_>, key: &str, default: f32) -> Result<f32, ModelError> {
    let base = keys.opt_f32(key)?.unwrap_or(default);
    if base > 0.0 {
        return Ok(base);
    }
    let (key, value) = (keys.name(key), base.to_string());
    Err(ModelError::KeyValue { key, value, reason: "must be positive" })
}

/// Checks that `dims` dimensions of a head can be rotated.
fn check(dims: usize, head_dim: usize, key: impl Fn() -> String) -> Result<(), ModelError> {
    if dims.is_multiple_of(2) && dims <= head_dim {
        return Ok(());
    }
    let value = format!("{dims} dimensions in heads of {head_dim}");
    let reason = "must be even, and at most the size of a head";
    Err(ModelError::KeyValue { key: key(), value, reason })
}

/// YaRN's magnitude for a context extended by `factor`.
fn yarn_mscale(factor: f32, multiplier: f32) -> f32 {
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
            let (key, value) =
                (keys.name("rope.scaling.type"), escape_for_display(other.as_bytes()));
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
    fn stored_yarn_multiplier_is_a_tenth_and_scales_scores() {
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
            sections: Sections::None,
            attn_factor: 1.0,
            original: 4096,
        };
        let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-5, "{a}, not {b}");
        // DeepSeek 2, DeepSeek 3, and files without the key.
        for (stored, multiplier, magnitude) in
            [(0.0707, 0.707, 1.0), (0.1, 1.0, 1.0), (0.0, 1.0, 1.0 + 0.1 * 40f32.ln())]
        {
            let (keys, score_scale) = keys(stored).with_mscale(true);
            near(score_scale, (1.0 + 0.1 * multiplier * 40f32.ln()).powi(2));
            near(keys.table(RopeKind::Norm, None).magnitude, magnitude);
        }
        // In other files the magnitude of cosine and sine changes instead.
        for (stored, magnitude) in
            [(0.0707, (1.0 + 0.1 * 40f32.ln()) / (1.0 + 0.0707 * 40f32.ln())), (0.1, 1.0)]
        {
            let (keys, score_scale) = keys(stored).with_mscale(false);
            near(score_scale, (1.0 + 0.1 * 40f32.ln()).powi(2));
            near(keys.table(RopeKind::Norm, None).magnitude, magnitude);
        }
        let plain = RopeKeys { scaling: Scaling::None, ..keys(0.1) };
        assert_eq!(plain.with_mscale(true), (plain, 1.0));
    }

    #[test]
    fn pairs_have_axes_in_sections_one_after_the_other_or_alternating() {
        assert_eq!(Sections::None.axes(4), [0; 0]);
        assert_eq!(Sections::Consecutive([2, 1, 3]).axes(8), [0, 0, 1, 2, 2, 2, 0, 0]);
        // Qwen3-VL has more pairs of time than of height and width.
        let axes = Sections::Interleaved([4, 2, 2]).axes(8);
        assert_eq!(axes, [0, 1, 2, 0, 1, 2, 0, 0]);
        assert_eq!(Sections::Consecutive([usize::MAX; 3]).axes(2), [0, 0]);
    }
}

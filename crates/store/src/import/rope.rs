//! Keys and tensors of rotary positions.

use puna_quant::TensorType;

use super::ImportError;
use super::config::Json;
use super::keys::Keys;
use super::plan::{Content, Output};
use crate::error::StoreError;

/// Names of the base of frequencies, and of that of layers with a window.
const BASE: [&str; 3] = ["rope_theta", "rotary_emb_base", "global_rope_theta"];
const LOCAL_BASE: [&str; 4] =
    ["rope_local_base_freq", "local_rope_theta", "rope_local_theta", "swa_rope_theta"];
/// Names of the share of a head that turns.
const SHARE: [&str; 4] = ["partial_rotary_factor", "rope_pct", "rotary_pct", "rope_percent"];

impl Keys<'_> {
    /// What is said about positions of layers that see everything.
    fn global_rope(&self) -> Json {
        self.config.rope().section("full_attention")
    }

    /// How many values of a head turn, where so great a share does unless something is said.
    pub(super) fn turning(&self, usual: f32) -> Result<u32, StoreError> {
        let share = self.global_rope().first_float(&SHARE)?.or(self.config.first_float(&SHARE)?);
        Ok((share.unwrap_or(usual) * self.head() as f32) as u32)
    }

    /// The context of the training before frequencies were changed.
    pub(super) fn original_context(&self) -> Result<u32, StoreError> {
        let key = "original_max_position_embeddings";
        let original = self.global_rope().opt_count(key)?.or(self.config.opt_count(key)?);
        Ok(original.unwrap_or(self.shape.context))
    }

    /// The base of frequencies, how they are scaled, and sections of a head.
    pub(super) fn rope(&mut self) -> Result<(), StoreError> {
        self.rope_of(None)
    }

    /// The same, with the base that is meant where none is said.
    pub(super) fn rope_of(&mut self, usual: Option<f32>) -> Result<(), StoreError> {
        let rope = self.config.rope();
        let global = self.global_rope();
        let base = global.first_float(&BASE)?.or(self.config.first_float(&BASE)?);
        let base = base.or(usual);
        let local = rope
            .section_if("sliding_attention")
            .map(|local| local.opt_float("rope_theta"))
            .transpose()?;
        let local = local.flatten().or(self.config.first_float(&LOCAL_BASE)?);
        if let Some(base) = base {
            self.set("rope.freq_base", base);
        }
        if let Some(local) = local {
            self.set("rope.freq_base_swa", local);
        }
        self.sections(&rope, &["mrope_section"])?;
        self.sections(&global, &["mrope_section"])?;
        let factor = global.opt_float("factor")?;
        let kind = global.text("rope_type").or(global.text("type")).unwrap_or("default").to_owned();
        match (kind.as_str(), factor) {
            ("default" | "dynamic" | "mrope" | "xdrope" | "none", _) => {}
            ("linear", Some(factor)) => {
                self.set("rope.scaling.type", "linear");
                self.set("rope.scaling.factor", factor);
            }
            ("yarn", Some(factor)) => self.yarn(&global, factor)?,
            ("llama3", factor) => {
                let factors = llama3(&global, self.head(), base, factor.unwrap_or(8.0))?;
                self.give("rope_freqs.weight", factors);
            }
            ("longrope" | "su", _) => self.longrope(&global)?,
            (other, _) => return Err(self.config.unknown_rope(other).into()),
        }
        Ok(())
    }

    /// How many pairs of a head turn by which kind of position, where that is said under one of these names.
    pub(super) fn sections(&mut self, rope: &Json, there: &[&str]) -> Result<(), StoreError> {
        let Some((key, list)) = there.iter().find_map(|key| Some((*key, rope.value(key)?))) else {
            return Ok(());
        };
        let number = |value: &serde_json::Value| value.as_i64().and_then(|n| i32::try_from(n).ok());
        let list = list.as_array().filter(|list| list.len() <= 4);
        let list: Option<Vec<i32>> = list.and_then(|list| list.iter().map(number).collect());
        let mut list =
            list.ok_or_else(|| self.config.wrong(key, "a list of up to four numbers"))?;
        list.resize(4, 0);
        self.set("rope.dimension_sections", list);
        Ok(())
    }

    /// Adds a tensor whose numbers the configuration gives.
    pub(super) fn give(&mut self, name: &str, values: Vec<f32>) {
        self.tensors.push(given(name, values));
    }

    fn yarn(&mut self, rope: &Json, factor: f32) -> Result<(), StoreError> {
        let original = self.original_context()?;
        self.set("rope.scaling.type", "yarn");
        self.set("rope.scaling.factor", factor);
        self.set("rope.scaling.original_context_length", original);
        for (there, here) in [
            ("extrapolation_factor", "yarn_ext_factor"),
            ("attention_factor", "yarn_attn_factor"),
            ("attn_factor", "yarn_attn_factor"),
            ("beta_fast", "yarn_beta_fast"),
            ("beta_slow", "yarn_beta_slow"),
        ] {
            if let Some(number) = rope.opt_float(there)? {
                self.set(&format!("rope.scaling.{here}"), number);
            }
        }
        Ok(())
    }

    /// Phi 3's factors for short and for long contexts.
    fn longrope(&mut self, rope: &Json) -> Result<(), StoreError> {
        let original = self.original_context()?;
        let scale = f64::from(self.shape.context) / f64::from(original);
        let magnitude =
            if scale > 1.0 { (1.0 + scale.ln() / f64::from(original).ln()).sqrt() } else { 1.0 };
        // No type: the factors' tensors say it.
        self.set("rope.scaling.original_context_length", original);
        self.set("rope.scaling.attn_factor", magnitude as f32);
        let turning = self.turning(1.0)?;
        self.factors(rope, turning)
    }

    /// The factors alone, for pairs of so many values.
    pub(super) fn factors(&mut self, rope: &Json, turning: u32) -> Result<(), StoreError> {
        let (long, short) = (rope.floats("long_factor")?, rope.floats("short_factor")?);
        let want = turning as usize / 2;
        for (key, list) in [("long_factor", &long), ("short_factor", &short)] {
            if list.len() != want {
                return Err(rope
                    .wrong(key, "a list with a number for each pair of features that turns")
                    .into());
            }
        }
        self.give("rope_factors_long.weight", long);
        self.give("rope_factors_short.weight", short);
        Ok(())
    }
}

/// Llama 3.1's factors of the frequencies: those that turn seldom over the original context are divided, with a smooth
/// change between.
pub(super) fn llama3(
    rope: &Json,
    turning: u32,
    base: Option<f32>,
    factor: f32,
) -> Result<Vec<f32>, StoreError> {
    let (low, high) = (rope.float("low_freq_factor", 1.0)?, rope.float("high_freq_factor", 4.0)?);
    let original = rope.opt_count("original_max_position_embeddings")?.unwrap_or(8192) as f32;
    let base = base.unwrap_or(10000.0);
    let factors = (0..turning / 2)
        .map(|i| {
            let exponent = (2 * i) as f32 / turning as f32;
            let length = std::f32::consts::TAU * base.powf(exponent);
            if length < original / high {
                1.0
            } else if length > original / low {
                factor
            } else {
                let smooth = (original / length - low) / (high - low);
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        })
        .collect();
    Ok(factors)
}

/// A tensor of numbers that follow from the configuration.
pub(super) fn given(name: &str, values: Vec<f32>) -> Output<'static> {
    let shape = vec![values.len() as u64];
    Output { name: name.to_owned(), ty: TensorType::F32, shape, content: Content::Given(values) }
}

impl Json {
    fn unknown_rope(&self, kind: &str) -> ImportError {
        self.wrong_value(
            "rope_scaling",
            format!("of type {}, which is not known", crate::name::shown(kind)),
        )
    }
}

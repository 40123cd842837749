//! Metadata keys and tensors of rotary embeddings.

use puna_gguf::escape_for_message;
use puna_quant::TensorType;

use super::writer::MetadataWriter;
use crate::error::ConvertError;
use crate::output::{OutputTensor, TensorContent};
use crate::source::Config;

/// Configuration keys of the frequency base, and of the base of layers with a window.
const FREQ_BASE: [&str; 3] = ["rope_theta", "rotary_emb_base", "global_rope_theta"];
const LOCAL_FREQ_BASE: [&str; 4] =
    ["rope_local_base_freq", "local_rope_theta", "rope_local_theta", "swa_rope_theta"];
/// Configuration keys of the rotated fraction of a head.
const ROTARY_FRACTION: [&str; 4] =
    ["partial_rotary_factor", "rope_pct", "rotary_pct", "rope_percent"];

impl MetadataWriter<'_> {
    /// The rotary parameters of layers with full attention.
    fn global_rope(&self) -> Config {
        self.config.rope_parameters().section_or_self("full_attention")
    }

    /// Number of rotated values of a head; `default_fraction` applies if the configuration has no
    /// fraction.
    pub(crate) fn rope_dim(&self, default_fraction: f32) -> Result<u32, ConvertError> {
        let fraction = self
            .global_rope()
            .first_float(&ROTARY_FRACTION)?
            .or(self.config.first_float(&ROTARY_FRACTION)?);
        Ok((fraction.unwrap_or(default_fraction) * self.head_dim() as f32) as u32)
    }

    /// Context length of the training before frequencies were scaled.
    pub(crate) fn original_context_length(&self) -> Result<u32, ConvertError> {
        let key = "original_max_position_embeddings";
        let original = self.global_rope().opt_count(key)?.or(self.config.opt_count(key)?);
        Ok(original.unwrap_or(self.params.context_length))
    }

    /// Writes frequency base, scaling and sections.
    pub(crate) fn write_rope(&mut self) -> Result<(), ConvertError> {
        self.write_rope_with_base(None)
    }

    /// Like [`MetadataWriter::write_rope`], with a frequency base for configurations without one.
    pub(crate) fn write_rope_with_base(
        &mut self,
        default_base: Option<f32>,
    ) -> Result<(), ConvertError> {
        let rope = self.config.rope_parameters();
        let global = self.global_rope();
        let base = global.first_float(&FREQ_BASE)?.or(self.config.first_float(&FREQ_BASE)?);
        let base = base.or(default_base);
        let local = rope
            .opt_section("sliding_attention")
            .map(|local| local.opt_float("rope_theta"))
            .transpose()?;
        let local = local.flatten().or(self.config.first_float(&LOCAL_FREQ_BASE)?);
        if let Some(base) = base {
            self.set("rope.freq_base", base);
        }
        if let Some(local) = local {
            self.set("rope.freq_base_swa", local);
        }
        self.write_rope_sections(&rope, &["mrope_section"])?;
        self.write_rope_sections(&global, &["mrope_section"])?;
        let factor = global.opt_float("factor")?;
        let kind = global.text("rope_type").or(global.text("type")).unwrap_or("default").to_owned();
        match (kind.as_str(), factor) {
            ("default" | "dynamic" | "mrope" | "xdrope" | "none", _) => {}
            ("linear", Some(factor)) => {
                self.set("rope.scaling.type", "linear");
                self.set("rope.scaling.factor", factor);
            }
            ("yarn", Some(factor)) => self.write_yarn(&global, factor)?,
            ("llama3", factor) => {
                let factors =
                    llama3_factors(&global, self.head_dim(), base, factor.unwrap_or(8.0))?;
                self.add_constant("rope_freqs.weight", factors);
            }
            ("longrope" | "su", _) => self.write_longrope(&global)?,
            (other, _) => return Err(self.config.unknown_rope(other)),
        }
        Ok(())
    }

    /// Writes how many pairs of a head each kind of position rotates, from the first key that is
    /// present.
    pub(crate) fn write_rope_sections(
        &mut self,
        rope: &Config,
        config_keys: &[&str],
    ) -> Result<(), ConvertError> {
        let Some((key, list)) = config_keys.iter().find_map(|key| Some((*key, rope.value(key)?)))
        else {
            return Ok(());
        };
        let number = |value: &serde_json::Value| value.as_i64().and_then(|n| i32::try_from(n).ok());
        let list = list.as_array().filter(|list| list.len() <= 4);
        let list: Option<Vec<i32>> = list.and_then(|list| list.iter().map(number).collect());
        let mut list =
            list.ok_or_else(|| self.config.invalid(key, "a list of up to four numbers"))?;
        list.resize(4, 0);
        self.set("rope.dimension_sections", list);
        Ok(())
    }

    /// Adds a tensor of values that follow from the configuration.
    pub(crate) fn add_constant(&mut self, name: &str, values: Vec<f32>) {
        self.tensors.push(constant_tensor(name, values));
    }

    fn write_yarn(&mut self, rope: &Config, factor: f32) -> Result<(), ConvertError> {
        let original = self.original_context_length()?;
        self.set("rope.scaling.type", "yarn");
        self.set("rope.scaling.factor", factor);
        self.set("rope.scaling.original_context_length", original);
        for (source, target) in [
            ("extrapolation_factor", "yarn_ext_factor"),
            ("attention_factor", "yarn_attn_factor"),
            ("attn_factor", "yarn_attn_factor"),
            ("beta_fast", "yarn_beta_fast"),
            ("beta_slow", "yarn_beta_slow"),
        ] {
            if let Some(number) = rope.opt_float(source)? {
                self.set(&format!("rope.scaling.{target}"), number);
            }
        }
        Ok(())
    }

    /// Writes the LongRoPE factors of Phi 3 for short and for long contexts.
    fn write_longrope(&mut self, rope: &Config) -> Result<(), ConvertError> {
        let original = self.original_context_length()?;
        let scale = f64::from(self.params.context_length) / f64::from(original);
        let magnitude =
            if scale > 1.0 { (1.0 + scale.ln() / f64::from(original).ln()).sqrt() } else { 1.0 };
        // The file has no scaling type: the tensors of factors imply it.
        self.set("rope.scaling.original_context_length", original);
        self.set("rope.scaling.attn_factor", magnitude as f32);
        let rope_dim = self.rope_dim(1.0)?;
        self.write_rope_factors(rope, rope_dim)
    }

    /// Adds the tensors of LongRoPE factors for `rope_dim` rotated values.
    pub(crate) fn write_rope_factors(
        &mut self,
        rope: &Config,
        rope_dim: u32,
    ) -> Result<(), ConvertError> {
        let (long, short) = (rope.floats("long_factor")?, rope.floats("short_factor")?);
        let want = rope_dim as usize / 2;
        for (key, list) in [("long_factor", &long), ("short_factor", &short)] {
            if list.len() != want {
                return Err(
                    rope.invalid(key, "a list with a number for each rotated pair of features")
                );
            }
        }
        self.add_constant("rope_factors_long.weight", long);
        self.add_constant("rope_factors_short.weight", short);
        Ok(())
    }
}

/// Frequency factors of Llama 3.1: frequencies with few periods in the original context are divided
/// by `factor`, with a linear transition.
pub(crate) fn llama3_factors(
    rope: &Config,
    rope_dim: u32,
    base: Option<f32>,
    factor: f32,
) -> Result<Vec<f32>, ConvertError> {
    let (low, high) =
        (rope.float_or("low_freq_factor", 1.0)?, rope.float_or("high_freq_factor", 4.0)?);
    let original = rope.opt_count("original_max_position_embeddings")?.unwrap_or(8192) as f32;
    let base = base.unwrap_or(10000.0);
    let factors = (0..rope_dim / 2)
        .map(|i| {
            let exponent = (2 * i) as f32 / rope_dim as f32;
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

/// A vector of values that follow from the configuration.
pub(crate) fn constant_tensor(name: &str, values: Vec<f32>) -> OutputTensor<'static> {
    let shape = vec![values.len() as u64];
    OutputTensor {
        name: name.to_owned(),
        ty: TensorType::F32,
        shape,
        content: TensorContent::Constant(values),
    }
}

impl Config {
    fn unknown_rope(&self, kind: &str) -> ConvertError {
        self.invalid_value(
            "rope_scaling",
            format!("of type {}, which is not supported", escape_for_message(kind)),
        )
    }
}

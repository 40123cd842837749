//! Families of decoders: what stands in `config.json`, and what becomes of it.

use puna_gguf::Writer;
use puna_quant::TensorType;

use super::ImportError;
use super::config::Json;
use super::decoder::Sizes;
use super::plan::{Content, Output};
use crate::error::StoreError;

/// What sets a family apart from the others.
pub(super) struct Family {
    /// Its name in a GGUF file.
    pub(super) architecture: &'static str,
    /// The names of its classes in `config.json`.
    pub(super) classes: &'static [&'static str],
    /// What the norm called `post_attention_layernorm` is.
    pub(super) second_norm: &'static str,
    /// A norm that each layer has.
    pub(super) norm: &'static str,
    /// Whether pairs of features that turn together stand side by side, in the rows of queries and keys.
    pub(super) pairs: bool,
    /// What is added to the weights of norms.
    pub(super) norm_offset: f32,
    /// Whether the output is the table of tokens, whatever else the folder has.
    pub(super) tied: bool,
    /// Whether an unknown first word gets no space before it, whatever the vocabulary says.
    pub(super) bare_start: bool,
}

/// A family like most of them.
const PLAIN: Family = Family {
    architecture: "",
    classes: &[],
    second_norm: "ffn_norm",
    norm: "attn_norm",
    pairs: false,
    norm_offset: 0.0,
    tied: false,
    bare_start: false,
};

const GEMMA: Family =
    Family { second_norm: "post_attention_norm", norm_offset: 1.0, tied: true, bare_start: true, ..PLAIN };

/// Families with norms behind their parts alone.
const BEHIND: Family = Family { second_norm: "post_attention_norm", norm: "post_attention_norm", ..PLAIN };

/// All families.
pub(super) const FAMILIES: [Family; 20] = [
    Family {
        architecture: "llama",
        classes: &[
            "LlamaForCausalLM",
            "LLaMAForCausalLM",
            "LlamaModel",
            "MistralForCausalLM",
            "MixtralForCausalLM",
            "IQuestCoderForCausalLM",
        ],
        pairs: true,
        ..PLAIN
    },
    Family {
        architecture: "qwen2",
        classes: &["Qwen2ForCausalLM", "Qwen2Model", "KORMoForCausalLM"],
        ..PLAIN
    },
    Family { architecture: "qwen3", classes: &["Qwen3ForCausalLM", "Qwen3Model"], ..PLAIN },
    Family { architecture: "qwen3moe", classes: &["Qwen3MoeForCausalLM"], ..PLAIN },
    Family { architecture: "qwen2moe", classes: &["Qwen2MoeForCausalLM"], ..PLAIN },
    Family { architecture: "gemma", classes: &["GemmaForCausalLM"], second_norm: PLAIN.second_norm, ..GEMMA },
    Family { architecture: "gemma2", classes: &["Gemma2ForCausalLM"], ..GEMMA },
    Family {
        architecture: "gemma3",
        classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
        ..GEMMA
    },
    Family { architecture: "phi3", classes: &["Phi3ForCausalLM"], ..PLAIN },
    Family {
        architecture: "gpt-oss",
        classes: &["GptOssForCausalLM"],
        second_norm: "post_attention_norm",
        ..PLAIN
    },
    Family { architecture: "smollm3", classes: &["SmolLM3ForCausalLM"], pairs: true, ..PLAIN },
    Family { architecture: "arcee", classes: &["ArceeForCausalLM"], pairs: true, ..PLAIN },
    Family { architecture: "granite", classes: &["GraniteForCausalLM"], pairs: true, ..PLAIN },
    Family {
        architecture: "seed_oss",
        classes: &["SeedOssForCausalLM"],
        second_norm: "post_attention_norm",
        ..PLAIN
    },
    Family { architecture: "olmo2", classes: &["Olmo2ForCausalLM", "Olmo3ForCausalLM"], ..BEHIND },
    Family { architecture: "exaone4", classes: &["Exaone4ForCausalLM"], ..BEHIND },
    Family { architecture: "olmoe", classes: &["OlmoeForCausalLM"], ..PLAIN },
    Family { architecture: "command-r", classes: &["CohereForCausalLM"], tied: true, ..PLAIN },
    Family { architecture: "cohere2", classes: &["Cohere2ForCausalLM"], tied: true, ..PLAIN },
    Family { architecture: "ernie4_5", classes: &["Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"], ..PLAIN },
];

/// The family of a class.
pub(super) fn of_class(class: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.classes.contains(&class))
}

/// The family of a GGUF architecture.
pub(super) fn of_architecture(architecture: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.architecture == architecture)
}

/// A matrix of each expert.
pub(super) struct Expert {
    /// Its name, with `{}` for the expert's number.
    pub(super) there: &'static str,
    pub(super) here: &'static str,
}

impl Expert {
    pub(super) const ALL: [Self; 6] = [
        Self { there: "mlp.experts.{}.gate_proj", here: "ffn_gate_exps" },
        Self { there: "mlp.experts.{}.up_proj", here: "ffn_up_exps" },
        Self { there: "mlp.experts.{}.down_proj", here: "ffn_down_exps" },
        Self { there: "block_sparse_moe.experts.{}.w1", here: "ffn_gate_exps" },
        Self { there: "block_sparse_moe.experts.{}.w3", here: "ffn_up_exps" },
        Self { there: "block_sparse_moe.experts.{}.w2", here: "ffn_down_exps" },
    ];
}

/// What the configuration says about the network.
pub(super) struct Shape {
    pub(super) sizes: Sizes,
    width: u32,
    context: u32,
    head: u32,
}

impl Shape {
    pub(super) fn read(config: &Json, family: &Family) -> Result<Self, StoreError> {
        // Gemma 3's configuration leaves out what is usual there.
        let gemma3 = family.architecture == "gemma3";
        let heads = config.opt_count("num_attention_heads")?.or(gemma3.then_some(8));
        let heads = match heads {
            Some(heads) => heads,
            None => config.count("num_attention_heads")?,
        };
        let kv_heads = config.opt_count("num_key_value_heads")?.unwrap_or(if gemma3 { 4 } else { heads });
        let width = config.count("hidden_size")?;
        let head = config.opt_count("head_dim")?.unwrap_or(if gemma3 { 256 } else { width / heads });
        // Command R was trained for more than it says there.
        let longer = config.opt_count("model_max_length")?.filter(|_| family.architecture == "command-r");
        let context = match longer.or(config.opt_count("max_position_embeddings")?) {
            Some(context) => context,
            None if gemma3 => 131_072,
            None => config.count("max_position_embeddings")?,
        };
        let experts = config.first_count(&["num_local_experts", "num_experts"])?.unwrap_or(0);
        let layers = config.count("num_hidden_layers")?;
        Ok(Self { sizes: Sizes { layers, heads, kv_heads, experts }, width, context, head })
    }

    /// Writes the keys of the architecture, and returns tensors that follow from the configuration.
    pub(super) fn write(
        &self,
        config: &Json,
        family: &Family,
        writer: &mut Writer,
        rows: u64,
    ) -> Result<Vec<Output<'static>>, StoreError> {
        let arch = family.architecture;
        let Sizes { layers, heads, kv_heads, .. } = self.sizes;
        let mut set = |key: &str, value: u32| {
            writer.set(&format!("{arch}.{key}"), value);
        };
        set("block_count", layers);
        set("context_length", self.context);
        set("embedding_length", self.width);
        set("feed_forward_length", config.count("intermediate_size")?);
        set("attention.head_count", heads);
        set("attention.head_count_kv", kv_heads);
        if arch.starts_with("gemma") || arch != "granite" && config.opt_count("head_dim")?.is_some() {
            set("attention.key_length", self.head);
            set("attention.value_length", self.head);
        }
        if self.sizes.experts > 0 {
            set("expert_count", self.sizes.experts);
            let used = config.first_count(&["num_experts_per_tok", "experts_per_token"])?;
            set("expert_used_count", used.map_or_else(|| config.count("num_experts_per_tok"), Ok)?);
        }
        let window = config.opt_count("sliding_window")?;
        if family.pairs || matches!(arch, "exaone4" | "cohere2") {
            set("vocab_size", u32::try_from(rows).unwrap_or(u32::MAX));
        }
        match arch {
            _ if family.pairs => set("rope.dimension_count", self.head),
            "cohere2" => {
                set("rope.dimension_count", (config.float("rotary_pct", 1.0)? * self.head as f32) as u32);
            }
            "qwen3moe" => set("expert_feed_forward_length", config.count("moe_intermediate_size")?),
            "qwen2moe" => {
                set("expert_feed_forward_length", config.count("moe_intermediate_size")?);
                set("expert_shared_feed_forward_length", config.count("shared_expert_intermediate_size")?);
            }
            "gpt-oss" => set("expert_feed_forward_length", config.count("intermediate_size")?),
            // None is a window of none, which tells Phi 4 from the others.
            "phi3" => set("attention.sliding_window", window.unwrap_or(0)),
            _ => {}
        }
        let slides = match arch {
            "gemma2" | "gpt-oss" | "cohere2" => true,
            "gemma3" => config.opt_count("sliding_window_pattern")? != Some(1),
            _ => false,
        };
        if slides {
            set("attention.sliding_window", config.count("sliding_window")?);
        }
        self.write_layers(config, arch, writer)?;
        self.write_numbers(config, arch, writer)?;
        self.write_rope(config, arch, writer)
    }

    /// Which layers are of which kind, where that is not the same for all files of an architecture.
    fn write_layers(&self, config: &Json, arch: &str, writer: &mut Writer) -> Result<(), StoreError> {
        let layers = self.sizes.layers;
        let window = config.opt_count("sliding_window")?;
        if let ("olmo2" | "exaone4", Some(window)) = (arch, window) {
            writer.set(&format!("{arch}.attention.sliding_window"), window);
            let of_type = config
                .strings("layer_types")
                .map(|types| types.iter().map(|kind| kind == "sliding_attention").collect::<Vec<bool>>());
            let letters = config.text("sliding_window_pattern").filter(|text| !text.is_empty());
            let by_letter = || {
                letters.map(|text| text.bytes().cycle().take(layers as usize).map(|c| c == b'L').collect())
            };
            // Unless something is said, the fourth one sees all.
            let every = match config.value("sliding_window_pattern") {
                Some(value) if value.is_number() => config.count("sliding_window_pattern")?,
                _ => 4,
            };
            let by_number = || (1..=layers).map(|layer| !layer.is_multiple_of(every)).collect();
            let slides: Vec<bool> = of_type.or_else(by_letter).unwrap_or_else(by_number);
            if slides.len() != layers as usize {
                return Err(config.wrong("layer_types", "a list with a word for each layer").into());
            }
            writer.set(&format!("{arch}.attention.sliding_window_pattern"), slides);
        }
        // Files have no word for it.
        match config.opt_count("no_rope_layer_interval")? {
            Some(every) if arch == "smollm3" && every != 4 => {
                let found = format!("{every}: in a GGUF file it is 4");
                Err(config.wrong_value("no_rope_layer_interval", found).into())
            }
            _ => Ok(()),
        }
    }

    fn write_numbers(&self, config: &Json, arch: &str, writer: &mut Writer) -> Result<(), StoreError> {
        let eps = config.float("rms_norm_eps", if arch.starts_with("gemma") { 1e-6 } else { 1e-5 })?;
        writer.set(&format!("{arch}.attention.layer_norm_rms_epsilon"), eps);
        if let "command-r" | "cohere2" = arch {
            writer
                .set(&format!("{arch}.attention.layer_norm_epsilon"), config.float("layer_norm_eps", 1e-5)?);
            writer.set(&format!("{arch}.logit_scale"), config.float("logit_scale", 0.0625)?);
            writer.set(&format!("{arch}.rope.scaling.type"), "none");
        }
        let scales = [
            ("attention_multiplier", "attention.scale"),
            ("embedding_multiplier", "embedding_scale"),
            ("residual_multiplier", "residual_scale"),
            ("logits_scaling", "logit_scale"),
        ];
        for (there, here) in scales.into_iter().filter(|_| arch == "granite") {
            if let Some(scale) = config.opt_float(there)?.filter(|scale| *scale != 0.0) {
                writer.set(&format!("{arch}.{here}"), scale);
            }
        }
        for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
            if arch.starts_with("gemma") && config.value(key).is_some_and(|value| !value.is_null()) {
                writer.set(&format!("{arch}.{key}"), config.float(key, 0.0)?);
            }
        }
        Ok(())
    }

    fn write_rope(
        &self,
        config: &Json,
        arch: &str,
        writer: &mut Writer,
    ) -> Result<Vec<Output<'static>>, StoreError> {
        let rope = config.rope();
        let global = rope.section("full_attention");
        let base = match global.opt_float("rope_theta")?.or(config.opt_float("rope_theta")?) {
            None if arch == "gemma3" => Some(1e6),
            base => base,
        };
        let local =
            rope.section_if("sliding_attention").map(|local| local.opt_float("rope_theta")).transpose()?;
        let local = local.flatten().or(config.opt_float("rope_local_base_freq")?);
        let key = |name: &str| format!("{arch}.rope.{name}");
        if let Some(base) = base {
            writer.set(&key("freq_base"), base);
        }
        if let Some(local) = local {
            writer.set(&key("freq_base_swa"), local);
        }
        let share = global.opt_float("partial_rotary_factor")?.or(config.opt_float("partial_rotary_factor")?);
        let turning = (share.unwrap_or(1.0) * self.head as f32) as u32;
        if arch == "phi3" {
            writer.set(&key("dimension_count"), turning);
        }
        let factor = global.opt_float("factor")?;
        let kind = global.text("rope_type").or(global.text("type")).unwrap_or("default").to_owned();
        match (kind.as_str(), factor) {
            ("default" | "dynamic", _) => {
                // Phi 3 has the key with and without scaling.
                if arch == "phi3" {
                    let original =
                        config.opt_count("original_max_position_embeddings")?.unwrap_or(self.context);
                    writer.set(&key("scaling.original_context_length"), original);
                }
            }
            ("linear", Some(factor)) => {
                writer.set(&key("scaling.type"), "linear").set(&key("scaling.factor"), factor);
            }
            ("yarn", Some(factor)) => self.write_yarn(config, &global, factor, arch, writer)?,
            ("llama3", factor) => return Ok(vec![self.llama3(&global, base, factor.unwrap_or(8.0))?]),
            ("longrope" | "su", _) => return self.longrope(config, &global, turning, arch, writer),
            (other, _) => return Err(config.unknown_rope(other).into()),
        }
        Ok(Vec::new())
    }

    fn write_yarn(
        &self,
        config: &Json,
        rope: &Json,
        factor: f32,
        arch: &str,
        writer: &mut Writer,
    ) -> Result<(), StoreError> {
        let key = |name: &str| format!("{arch}.rope.scaling.{name}");
        let original = rope.opt_count("original_max_position_embeddings")?;
        let original =
            original.or(config.opt_count("original_max_position_embeddings")?).unwrap_or(self.context);
        writer
            .set(&key("type"), "yarn")
            .set(&key("factor"), factor)
            .set(&key("original_context_length"), original);
        for (there, here) in [
            ("extrapolation_factor", "yarn_ext_factor"),
            ("attention_factor", "yarn_attn_factor"),
            ("beta_fast", "yarn_beta_fast"),
            ("beta_slow", "yarn_beta_slow"),
        ] {
            if let Some(number) = rope.opt_float(there)? {
                writer.set(&key(here), number);
            }
        }
        Ok(())
    }

    /// Llama 3.1's factors of the frequencies: those that turn seldom over the original context are divided, with a
    /// smooth change between.
    fn llama3(&self, rope: &Json, base: Option<f32>, factor: f32) -> Result<Output<'static>, StoreError> {
        let (low, high) = (rope.float("low_freq_factor", 1.0)?, rope.float("high_freq_factor", 4.0)?);
        let original = rope.opt_count("original_max_position_embeddings")?.unwrap_or(8192) as f32;
        let base = base.unwrap_or(10000.0);
        let factors: Vec<f32> = (0..self.head / 2)
            .map(|i| {
                let exponent = (2 * i) as f32 / self.head as f32;
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
        Ok(given("rope_freqs.weight", factors))
    }

    /// Phi 3's factors for short and for long contexts.
    fn longrope(
        &self,
        config: &Json,
        rope: &Json,
        turning: u32,
        arch: &str,
        writer: &mut Writer,
    ) -> Result<Vec<Output<'static>>, StoreError> {
        let original = rope.opt_count("original_max_position_embeddings")?;
        let original =
            original.or(config.opt_count("original_max_position_embeddings")?).unwrap_or(self.context);
        let scale = f64::from(self.context) / f64::from(original);
        let magnitude = if scale > 1.0 { (1.0 + scale.ln() / f64::from(original).ln()).sqrt() } else { 1.0 };
        let key = |name: &str| format!("{arch}.rope.scaling.{name}");
        // No type: the factors' tensors say it.
        writer.set(&key("original_context_length"), original).set(&key("attn_factor"), magnitude as f32);
        let (long, short) = (rope.floats("long_factor")?, rope.floats("short_factor")?);
        let want = turning as usize / 2;
        for (key, list) in [("long_factor", &long), ("short_factor", &short)] {
            if list.len() != want {
                return Err(rope
                    .wrong(key, "a list with a number for each pair of features that turns")
                    .into());
            }
        }
        Ok(vec![given("rope_factors_long.weight", long), given("rope_factors_short.weight", short)])
    }
}

fn given(name: &str, values: Vec<f32>) -> Output<'static> {
    let shape = vec![values.len() as u64];
    Output { name: name.to_owned(), ty: TensorType::F32, shape, content: Content::Given(values) }
}

/// The classes that can be imported.
pub(super) fn known() -> String {
    let classes = FAMILIES.iter().flat_map(|family| family.classes).copied();
    super::BERT.iter().copied().chain(classes).collect::<Vec<_>>().join(", ")
}

impl Json {
    fn unknown_rope(&self, kind: &str) -> ImportError {
        self.wrong_value("rope_scaling", format!("of type {}, which is not known", crate::name::shown(kind)))
    }
}

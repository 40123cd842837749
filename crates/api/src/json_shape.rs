//! Fields of JSON values that have no Rust type because they are decoded leniently.
//!
//! Other fields are dropped and recorded as ignored (see [`crate::decode`]).

use std::fmt::Formatter;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Which fields of an object are read. In a list, this applies to each element. Other values are
/// kept unchanged.
pub(crate) struct JsonShape {
    /// Fields of the object that are read.
    pub(crate) fields: &'static [&'static str],
    /// Shapes of the values of some of these fields.
    pub(crate) nested: &'static [(&'static str, &'static JsonShape)],
}

impl JsonShape {
    const fn flat(fields: &'static [&'static str]) -> Self {
        Self { fields, nested: &[] }
    }

    /// Decodes a value and keeps the fields of the shape.
    pub(crate) fn read<'de, D: Deserializer<'de>>(&'static self, d: D) -> Result<Value, D::Error> {
        d.deserialize_any(ShapeReader(self))
    }

    /// The exact name of a field, from a key in any case.
    pub(crate) fn field(&self, key: &str) -> Option<&'static str> {
        let exact = self.fields.iter().find(|field| **field == key);
        exact.or_else(|| self.fields.iter().find(|field| field.eq_ignore_ascii_case(key))).copied()
    }
}

struct ShapeReader(&'static JsonShape);

impl<'de> DeserializeSeed<'de> for ShapeReader {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        self.0.read(d)
    }
}

impl<'de> Visitor<'de> for ShapeReader {
    type Value = Value;

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let Some(field) = self.0.field(&key) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let value = match self.0.nested.iter().find(|(name, _)| *name == field) {
                Some((_, shape)) => map.next_value_seed(ShapeReader(shape))?,
                None => map.next_value()?,
            };
            if !value.is_null() {
                object.insert(field.to_owned(), value);
            }
        }
        Ok(Value::Object(object))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(ShapeReader(self.0))? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

/// Defines shapes, and a function for each that `deserialize_with` can name.
macro_rules! shapes {
    ($($(#[$doc:meta])* $function:ident $name:ident = $shape:expr;)*) => {$(
        $(#[$doc])*
        pub(crate) static $name: JsonShape = $shape;

        pub(crate) fn $function<'de, D: Deserializer<'de>>(d: D) -> Result<Value, D::Error> {
            $name.read(d)
        }
    )*};
}

shapes! {
    /// Tool choice, in the forms of all dialects.
    tool_choice TOOL_CHOICE = JsonShape {
        fields: &[
            "type", "name", "namespace", "function", "custom", "allowed_tools", "mode", "tools",
            "disable_parallel_tool_use",
        ],
        nested: &[
            ("function", &JsonShape::flat(&["name"])),
            ("custom", &JsonShape::flat(&["name"])),
            ("allowed_tools", &ALLOWED_TOOLS),
            ("tools", &ALLOWED_TOOL),
        ],
    };

    /// Message content of a chat completion.
    openai_content OPENAI_CONTENT = JsonShape {
        fields: &["type", "text", "refusal", "image_url", "input_audio"],
        nested: &[("image_url", &JsonShape::flat(&["url"])), ("input_audio", &JsonShape::flat(&["data"]))],
    };

    /// Message content in Anthropic's dialect.
    anthropic_content ANTHROPIC_CONTENT = JsonShape {
        fields: &[
            "type", "text", "source", "title", "context", "thinking", "id", "name", "input", "tool_use_id", "content",
            "is_error",
        ],
        nested: &[("source", &ANTHROPIC_SOURCE), ("content", &ANTHROPIC_RESULT)],
    };

    /// Query or document.
    rerank_text RERANK_TEXT = JsonShape::flat(&["text"]);

    /// Blocks of a system prompt.
    anthropic_system ANTHROPIC_SYSTEM = JsonShape::flat(&["type", "text"]);

    /// Input items of a response.
    responses_input RESPONSES_INPUT = JsonShape {
        fields: &[
            "type", "id", "role", "content", "call_id", "name", "arguments", "input", "action", "output",
            "encrypted_content", "summary", "namespace", "tools",
        ],
        nested: &[
            ("content", &RESPONSES_CONTENT),
            ("output", &RESPONSES_CONTENT),
            ("summary", &JsonShape::flat(&["text"])),
            ("tools", &RESPONSES_TOOL),
        ],
    };

    /// Format of a response.
    responses_format RESPONSES_FORMAT = JsonShape::flat(&["type", "name", "description", "schema", "strict", "pattern", "grammar"]);
}

/// Options of a model.
pub(crate) static OPTIONS: JsonShape = JsonShape {
    fields: &[
        "num_ctx",
        "num_batch",
        "num_gpu",
        "main_gpu",
        "num_thread",
        "use_mmap",
        "num_keep",
        "num_predict",
        "stop",
        "seed",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "repeat_last_n",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "adapters",
        "draft_model",
        "draft_num_predict",
        "speculate",
        "deterministic",
        "think_budget",
        "diffusion_steps",
        "diffusion_block_length",
        "diffusion_algorithm",
        "dry_multiplier",
        "dry_base",
        "dry_allowed_length",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
        "xtc_probability",
        "xtc_threshold",
        "top_n_sigma",
        "dynatemp_range",
        "dynatemp_exponent",
        "ignore_eos",
    ],
    nested: &[("adapters", &JsonShape::flat(&["id", "scale"]))],
};

/// Facts of a model.
pub(crate) static INFO: JsonShape = JsonShape::flat(&[
    "capabilities",
    "model_family",
    "base_name",
    "quantization_level",
    "parameter_size",
    "context_length",
    "embedding_length",
]);

/// Tools of a response.
pub(crate) static RESPONSES_TOOL: JsonShape = JsonShape {
    fields: &["type", "name", "description", "parameters", "strict", "format", "tools"],
    nested: &[(
        "tools",
        &JsonShape::flat(&["type", "name", "description", "parameters", "strict", "format"]),
    )],
};

/// List of allowed tools.
static ALLOWED_TOOLS: JsonShape =
    JsonShape { fields: &["mode", "tools"], nested: &[("tools", &ALLOWED_TOOL)] };

/// Allowed tool.
static ALLOWED_TOOL: JsonShape = JsonShape {
    fields: &["type", "name", "namespace", "function", "custom"],
    nested: &[("function", &JsonShape::flat(&["name"])), ("custom", &JsonShape::flat(&["name"]))],
};

static ANTHROPIC_SOURCE: JsonShape = JsonShape {
    fields: &["type", "media_type", "data", "url", "content"],
    nested: &[("content", &JsonShape::flat(&["type", "text"]))],
};

/// Result of a tool (`text`, `image`, `document`, `search_result`) or of a web search.
static ANTHROPIC_RESULT: JsonShape = JsonShape {
    fields: &["type", "text", "source", "title", "context", "content", "url", "error_code"],
    nested: &[("source", &ANTHROPIC_SOURCE), ("content", &JsonShape::flat(&["type", "text"]))],
};

static RESPONSES_CONTENT: JsonShape = JsonShape::flat(&["type", "text", "refusal", "image_url"]);

/// Decodes options. The value must be an object or `null`.
pub(crate) fn options<'de, D: Deserializer<'de>>(
    d: D,
) -> Result<Option<Map<String, Value>>, D::Error> {
    d.deserialize_option(ObjectReader(&OPTIONS))
}

/// Decodes overrides of a model file's facts. The value must be an object or `null`.
pub(crate) fn info<'de, D: Deserializer<'de>>(
    d: D,
) -> Result<Option<Map<String, Value>>, D::Error> {
    d.deserialize_option(ObjectReader(&INFO))
}

struct ObjectReader(&'static JsonShape);

impl<'de> Visitor<'de> for ObjectReader {
    type Value = Option<Map<String, Value>>;

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        match d.deserialize_map(ShapeReader(self.0))? {
            Value::Object(map) => Ok(Some(map)),
            _ => Err(D::Error::custom("expected an object")),
        }
    }
}

/// Decodes the list of tools of a response.
pub(crate) fn responses_tools<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Value>, D::Error> {
    match d.deserialize_seq(ShapeReader(&RESPONSES_TOOL))? {
        Value::Array(list) => Ok(list),
        _ => Err(D::Error::custom("tools must be a list")),
    }
}

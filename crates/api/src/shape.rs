//! JSON that has no type of its own because it is read leniently, and which of its fields are looked at.
//!
//! What is left aside is noted as everywhere (see [`crate::decode`]), and is not there for those who read the value.

use std::fmt::Formatter;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// An object, a list of them, or anything else, which is taken as it is.
pub(crate) struct Shape {
    /// Fields of the object that are looked at.
    pub(crate) fields: &'static [&'static str],
    /// Those of them that have a shape themselves.
    pub(crate) inside: &'static [(&'static str, &'static Shape)],
}

impl Shape {
    const fn of(fields: &'static [&'static str]) -> Self {
        Self { fields, inside: &[] }
    }

    /// Reads a value.
    pub(crate) fn read<'de, D: Deserializer<'de>>(&'static self, d: D) -> Result<Value, D::Error> {
        d.deserialize_any(Reader(self))
    }

    /// The spelling of a field; its name is exact or in another case.
    pub(crate) fn field(&self, key: &str) -> Option<&'static str> {
        let exact = self.fields.iter().find(|field| **field == key);
        exact.or_else(|| self.fields.iter().find(|field| field.eq_ignore_ascii_case(key))).copied()
    }
}

struct Reader(&'static Shape);

impl<'de> DeserializeSeed<'de> for Reader {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        self.0.read(d)
    }
}

impl<'de> Visitor<'de> for Reader {
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
            let value = match self.0.inside.iter().find(|(name, _)| *name == field) {
                Some((_, shape)) => map.next_value_seed(Reader(shape))?,
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
        while let Some(value) = list.next_element_seed(Reader(self.0))? {
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

/// Shapes, and the functions that `deserialize_with` names for them.
macro_rules! shapes {
    ($($(#[$doc:meta])* $function:ident $name:ident = $shape:expr;)*) => {$(
        $(#[$doc])*
        pub(crate) static $name: Shape = $shape;

        pub(crate) fn $function<'de, D: Deserializer<'de>>(d: D) -> Result<Value, D::Error> {
            $name.read(d)
        }
    )*};
}

shapes! {
    /// What the model may or must call, in the forms of all dialects.
    tool_choice TOOL_CHOICE = Shape {
        fields: &[
            "type", "name", "namespace", "function", "custom", "allowed_tools", "mode", "tools",
            "disable_parallel_tool_use",
        ],
        inside: &[
            ("function", &Shape::of(&["name"])),
            ("custom", &Shape::of(&["name"])),
            ("allowed_tools", &ALLOWED_TOOLS),
            ("tools", &ALLOWED_TOOL),
        ],
    };

    /// Parts of a message for a chat completion.
    openai_content OPENAI_CONTENT = Shape {
        fields: &["type", "text", "refusal", "image_url", "input_audio"],
        inside: &[("image_url", &Shape::of(&["url"])), ("input_audio", &Shape::of(&["data"]))],
    };

    /// Parts of a message for Anthropic's dialect.
    anthropic_content ANTHROPIC_CONTENT = Shape {
        fields: &[
            "type", "text", "source", "title", "context", "thinking", "id", "name", "input", "tool_use_id", "content",
            "is_error",
        ],
        inside: &[("source", &ANTHROPIC_SOURCE), ("content", &ANTHROPIC_RESULT)],
    };

    /// A query or a document.
    rerank_text RERANK_TEXT = Shape::of(&["text"]);

    /// Blocks of a system text.
    anthropic_system ANTHROPIC_SYSTEM = Shape::of(&["type", "text"]);

    /// Items that a response is to answer.
    responses_input RESPONSES_INPUT = Shape {
        fields: &[
            "type", "id", "role", "content", "call_id", "name", "arguments", "input", "action", "output",
            "encrypted_content", "summary", "namespace", "tools",
        ],
        inside: &[
            ("content", &RESPONSES_CONTENT),
            ("output", &RESPONSES_CONTENT),
            ("summary", &Shape::of(&["text"])),
            ("tools", &RESPONSES_TOOL),
        ],
    };

    /// The form of a response.
    responses_format RESPONSES_FORMAT = Shape::of(&["type", "name", "description", "schema", "strict", "pattern", "grammar"]);
}

/// Parameters of a model.
pub(crate) static OPTIONS: Shape = Shape {
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
    inside: &[("adapters", &Shape::of(&["id", "scale"]))],
};

/// Facts of a model.
pub(crate) static INFO: Shape = Shape::of(&[
    "capabilities",
    "model_family",
    "base_name",
    "quantization_level",
    "parameter_size",
    "context_length",
    "embedding_length",
]);

/// Functions that a response may call.
pub(crate) static RESPONSES_TOOL: Shape = Shape {
    fields: &["type", "name", "description", "parameters", "strict", "format", "tools"],
    inside: &[(
        "tools",
        &Shape::of(&["type", "name", "description", "parameters", "strict", "format"]),
    )],
};

/// The list of tools that may be called.
static ALLOWED_TOOLS: Shape =
    Shape { fields: &["mode", "tools"], inside: &[("tools", &ALLOWED_TOOL)] };

/// One of these tools.
static ALLOWED_TOOL: Shape = Shape {
    fields: &["type", "name", "namespace", "function", "custom"],
    inside: &[("function", &Shape::of(&["name"])), ("custom", &Shape::of(&["name"]))],
};

static ANTHROPIC_SOURCE: Shape = Shape {
    fields: &["type", "media_type", "data", "url", "content"],
    inside: &[("content", &Shape::of(&["type", "text"]))],
};

/// Of a tool (`text`, `image`, `document`, `search_result`) or of a search on the web.
static ANTHROPIC_RESULT: Shape = Shape {
    fields: &["type", "text", "source", "title", "context", "content", "url", "error_code"],
    inside: &[("source", &ANTHROPIC_SOURCE), ("content", &Shape::of(&["type", "text"]))],
};

static RESPONSES_CONTENT: Shape = Shape::of(&["type", "text", "refusal", "image_url"]);

/// Parameters by name; nothing else than an object or `null`.
pub(crate) fn options<'de, D: Deserializer<'de>>(
    d: D,
) -> Result<Option<Map<String, Value>>, D::Error> {
    d.deserialize_option(Object(&OPTIONS))
}

/// What replaces facts of a model's file; nothing else than an object or `null`.
pub(crate) fn info<'de, D: Deserializer<'de>>(
    d: D,
) -> Result<Option<Map<String, Value>>, D::Error> {
    d.deserialize_option(Object(&INFO))
}

struct Object(&'static Shape);

impl<'de> Visitor<'de> for Object {
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
        match d.deserialize_map(Reader(self.0))? {
            Value::Object(map) => Ok(Some(map)),
            _ => Err(D::Error::custom("expected an object")),
        }
    }
}

/// A list of functions that a response may call.
pub(crate) fn responses_tools<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Value>, D::Error> {
    match d.deserialize_seq(Reader(&RESPONSES_TOOL))? {
        Value::Array(list) => Ok(list),
        _ => Err(D::Error::custom("tools must be a list")),
    }
}

//! Decodes JSON values into request types as Ollama does. Keys match in any case, and `null` counts
//! as absent. A wrong type is reported as `json: cannot unmarshal number into Go struct field
//! ChatRequest.messages.content of type string`.

mod error;
mod fields;

use std::cell::RefCell;

use serde::de::{self, DeserializeOwned, DeserializeSeed, IntoDeserializer, Visitor};
use serde_json::{Map, Value};

pub use error::DecodeError;
use fields::Fields;

use crate::json;

/// Largest number of elements of a list of objects or texts, such as messages, tools or inputs.
/// Lists of numbers may be longer.
pub const MAX_ELEMENTS: usize = 1 << 16;

/// Largest number of ignored fields that are reported.
pub const MAX_IGNORED: usize = 32;

/// Requests that accept native options among their own fields. The own fields have priority.
/// Options given there win over those in `options`.
const REQUESTS_WITH_OPTION_FIELDS: [&str; 3] =
    ["ChatCompletionRequest", "CompletionRequest", "ResponsesRequest"];

/// Decodes a request body.
pub fn from_slice<T: DeserializeOwned>(body: &[u8]) -> Result<T, DecodeError> {
    from_value(&json::parse(body).map_err(DecodeError::Syntax)?)
}

/// Decodes a request body. Also returns the names of ignored fields: dotted paths without list
/// indexes, each once, at most [`MAX_IGNORED`].
pub fn from_slice_with_ignored<T: DeserializeOwned>(
    body: &[u8],
) -> Result<(T, Vec<String>), DecodeError> {
    from_value_with_ignored(&json::parse(body).map_err(DecodeError::Syntax)?)
}

/// Decodes a JSON value. `null` counts as an empty object.
pub fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, DecodeError> {
    from_value_with_ignored(value).map(|(request, _)| request)
}

fn from_value_with_ignored<T: DeserializeOwned>(
    value: &Value,
) -> Result<(T, Vec<String>), DecodeError> {
    let empty = Value::Object(Map::new());
    let ignored_fields = IgnoredFields::default();
    let request =
        T::deserialize(Node(if value.is_null() { &empty } else { value }, &ignored_fields))?;
    Ok((request, ignored_fields.ignored.into_inner()))
}

/// Collects the ignored fields of a request.
#[derive(Default)]
struct IgnoredFields {
    /// Names of the fields around the current value.
    path: RefCell<Vec<String>>,
    ignored: RefCell<Vec<String>>,
}

impl IgnoredFields {
    /// Records that the current value, or one of its fields, is ignored.
    fn record(&self, field: Option<&str>) {
        let mut ignored = self.ignored.borrow_mut();
        if ignored.len() == MAX_IGNORED {
            return;
        }
        let path = self.path.borrow();
        let name = path.iter().map(String::as_str).chain(field).collect::<Vec<_>>().join(".");
        if !ignored.contains(&name) {
            ignored.push(name);
        }
    }
}

/// The type of a JSON value, as errors name it.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

struct Node<'a>(&'a Value, &'a IgnoredFields);

impl<'a> Node<'a> {
    fn mismatch(&self, expected: &'static str) -> DecodeError {
        let actual = match self.0 {
            Value::Number(n) if expected == "int" && n.is_f64() => format!("number {n}"),
            other => kind(other).into(),
        };
        DecodeError::Type { actual, expected, root: "", path: Vec::new() }
    }

    fn integer<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let Value::Number(n) = self.0 else { return Err(self.mismatch("int")) };
        let read = match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => visitor.visit_i64(n),
            (_, Some(n)) => visitor.visit_u64(n),
            _ => return Err(self.mismatch("int")),
        };
        read.map_err(|error| match error {
            // Serde's message for an integer out of range does not name the field.
            DecodeError::Field(text) if text.starts_with("invalid value: integer") => {
                let actual = format!("number {n}");
                DecodeError::Type { actual, expected: "int", root: "", path: Vec::new() }
            }
            error => error,
        })
    }

    /// Decodes a number with an absolute value below `limit`. Numbers beyond the range of `f64` are
    /// `f64::MAX` here.
    fn float_below<V: Visitor<'a>>(
        self,
        visitor: V,
        limit: f64,
        expected: &'static str,
    ) -> Result<V::Value, DecodeError> {
        match self.0.as_f64() {
            Some(x) if x.abs() < limit => visitor.visit_f64(x),
            Some(_) => {
                let actual = "number out of range".into();
                Err(DecodeError::Type { actual, expected, root: "", path: Vec::new() })
            }
            None => Err(self.mismatch("float64")),
        }
    }

    fn text<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::String(s) => visitor.visit_str(s),
            Value::Null => visitor.visit_str(""),
            _ => Err(self.mismatch("string")),
        }
    }
}

/// Implements methods by calling another method.
macro_rules! forward {
    ($target:ident: $($method:ident)*) => {$(
        fn $method<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            self.$target(visitor)
        }
    )*};
}

impl<'a> de::Deserializer<'a> for Node<'a> {
    type Error = DecodeError;

    forward!(integer: deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64);
    forward!(text: deserialize_str deserialize_string deserialize_char deserialize_identifier
        deserialize_bytes deserialize_byte_buf);

    fn deserialize_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Object(map) => visitor.visit_map(Fields::all(map, self.1)),
            Value::Array(list) => visitor.visit_seq(ListElements(list.iter(), self.1)),
            value => value.deserialize_any(visitor).map_err(|e| DecodeError::Field(e.to_string())),
        }
    }

    fn deserialize_f32<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.float_below(visitor, f64::from(f32::MAX), "float32")
    }

    fn deserialize_f64<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.float_below(visitor, f64::MAX, "float64")
    }

    fn deserialize_bool<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Bool(b) => visitor.visit_bool(*b),
            _ => Err(self.mismatch("bool")),
        }
    }

    fn deserialize_option<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_unit<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    /// Records the field as ignored.
    fn deserialize_ignored_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        if !self.0.is_null() {
            self.1.record(None);
        }
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'a>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'a>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Array(list) => visitor.visit_seq(ListElements(list.iter(), self.1)),
            Value::Null => visitor.visit_seq(ListElements([].iter(), self.1)),
            _ => Err(self.mismatch("[]interface {}")),
        }
    }

    fn deserialize_tuple<V: Visitor<'a>>(
        self,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'a>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Object(map) => visitor.visit_map(Fields::all(map, self.1)),
            _ => Err(self.mismatch("map[string]interface {}")),
        }
    }

    fn deserialize_struct<V: Visitor<'a>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        let result = match self.0 {
            Value::Object(map) => visitor.visit_map(Fields::for_struct(
                map,
                fields,
                REQUESTS_WITH_OPTION_FIELDS.contains(&name),
                self.1,
            )),
            _ => Err(self.mismatch(name)),
        };
        // The outermost struct sets the name last.
        result.map_err(|mut e| {
            if let DecodeError::Type { root, .. } = &mut e {
                *root = name;
            }
            e
        })
    }

    fn deserialize_enum<V: Visitor<'a>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::String(s) => visitor.visit_enum(s.as_str().into_deserializer()),
            _ => Err(self.mismatch("string")),
        }
    }
}

struct ListElements<'a>(std::slice::Iter<'a, Value>, &'a IgnoredFields);

impl<'a> de::SeqAccess<'a> for ListElements<'a> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'a>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError> {
        self.0.next().map(|value| seed.deserialize(Node(value, self.1))).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json_shape::OPTIONS;
    use crate::ollama::{ChatRequest, GenerateRequest};
    use serde_json::json;

    fn chat(body: Value) -> Result<ChatRequest, String> {
        from_value(&body).map_err(|e| e.to_string())
    }

    #[test]
    fn keys_match_in_any_case_and_null_is_absent() {
        let actual: GenerateRequest =
            from_slice(br#"{"MODEL":"m","Prompt":"p","stream":null,"think":null,"options":null,"images":null,"frob":[1]}"#).unwrap();
        assert_eq!(
            (actual.model.as_str(), actual.prompt.as_str(), actual.stream),
            ("m", "p", None)
        );
    }

    #[test]
    fn openai_requests_accept_options_as_fields() {
        use crate::openai::{ChatCompletionRequest, CompletionRequest};
        use crate::responses::ResponsesRequest;
        fn read<T: DeserializeOwned>(of: fn(T) -> Option<Map<String, Value>>, own: &[&str]) {
            let named = Map::from_iter(
                OPTIONS.fields.iter().map(|name| ((*name).to_owned(), json!([*name]))),
            );
            let mut named = Value::Object(named);
            own.iter().for_each(|name| drop(named.as_object_mut().unwrap().remove(*name)));
            let mut body = named.clone();
            body["options"] = json!({"num_ctx": 1, "temperature": 2, "mirostat": 3});
            body["MIN_P"] = json!(0.5);
            body.as_object_mut().unwrap().remove("min_p");
            body["zz"] = json!(4);
            named["temperature"] = json!(2);
            named["min_p"] = json!(0.5);
            let (request, ignored) = from_value_with_ignored::<T>(&body).unwrap();
            assert_eq!(
                Value::Object(of(request).unwrap()),
                named,
                "beside `options` wins over in it"
            );
            let mut ignored = ignored;
            ignored.sort();
            assert_eq!(ignored, ["options.mirostat", "zz"]);
            let alone = from_value::<T>(&json!({"top_k": null, "xtc_threshold": 1})).unwrap();
            assert_eq!(of(alone), json!({"xtc_threshold": 1}).as_object().cloned());
            let wrong =
                from_value::<T>(&json!({"num_ctx": 1, "options": 5})).err().unwrap().to_string();
            assert!(wrong.contains(".options of type map"), "{wrong}");
        }
        let own = [
            "seed",
            "stop",
            "temperature",
            "top_p",
            "frequency_penalty",
            "presence_penalty",
            "logit_bias",
        ];
        read::<ChatCompletionRequest>(|request| request.options, &own);
        read::<CompletionRequest>(|request| request.options, &own);
        read::<ResponsesRequest>(|request| request.options, &["temperature", "top_p"]);
        let native = from_value_with_ignored::<ChatRequest>(&json!({"top_k": 1})).unwrap();
        assert_eq!((native.0.options, native.1), (None, vec!["top_k".to_owned()]));
    }

    #[test]
    fn a_number_out_of_range_names_its_field() {
        #[derive(Debug, serde::Deserialize)]
        #[allow(dead_code)]
        struct Numbers {
            small: Option<u32>,
            byte: Option<i8>,
            single: Option<f32>,
            double: Option<Vec<f64>>,
        }
        for (body, expected) in [
            (
                r#"{"small": 4294967296}"#,
                "number 4294967296 into Go struct field Numbers.small of type int",
            ),
            (r#"{"small": -1}"#, "number -1 into Go struct field Numbers.small of type int"),
            (
                r#"{"byte": 18446744073709551615}"#,
                "number 18446744073709551615 into Go struct field Numbers.byte",
            ),
            (
                r#"{"small": 1180591620717411303424}"#,
                "into Go struct field Numbers.small of type int",
            ),
            (r#"{"small": 1e400}"#, "into Go struct field Numbers.small of type int"),
            (
                r#"{"single": 1e39}"#,
                "number out of range into Go struct field Numbers.single of type float32",
            ),
            (
                r#"{"double": [1, -1e400]}"#,
                "number out of range into Go struct field Numbers.double of type float64",
            ),
        ] {
            let text = from_slice::<Numbers>(body.as_bytes()).unwrap_err().to_string();
            assert!(
                text.starts_with("json: cannot unmarshal ") && text.contains(expected),
                "{body}: {text}"
            );
        }
        let fits = br#"{"small": 4294967295, "byte": -128, "single": 3e38, "double": [1e308]}"#;
        from_slice::<Numbers>(fits).unwrap();
    }

    #[test]
    fn long_lists_are_refused() {
        let body = |count: usize| format!(r#"{{"messages":[{}{{}}]}}"#, "{},".repeat(count - 1));
        let read =
            |count| from_slice::<ChatRequest>(body(count).as_bytes()).map(|r| r.messages.len());
        assert_eq!(read(MAX_ELEMENTS), Ok(MAX_ELEMENTS));
        let text = "messages: 65537 elements, at most 65536 are allowed";
        assert_eq!(read(MAX_ELEMENTS + 1), Err(DecodeError::Field(text.into())));
        assert_eq!(
            read(json::MAX_VALUES).unwrap_err().to_string(),
            "the body has more than 2097152 JSON values"
        );
        let context = format!(r#"{{"context":[{}0]}}"#, "1,".repeat(1 << 17));
        let request = from_slice::<GenerateRequest>(context.as_bytes()).unwrap();
        assert_eq!(request.context.unwrap().len(), (1 << 17) + 1, "token numbers are many");
    }

    #[test]
    fn ignored_fields_are_named_once_up_to_a_limit() {
        let body = br#"{"model":"m","frob":1,"Stream":false,"user":null,"messages":[{"role":"user","x":1},{"x":2}],"options":{"SEED":3,"y":3}}"#;
        let (actual, ignored) = from_slice_with_ignored::<ChatRequest>(body).unwrap();
        assert_eq!((actual.messages.len(), actual.options.unwrap()["seed"].as_i64()), (2, Some(3)));
        assert_eq!(ignored, ["frob", "messages.x", "options.y"]);
        let many: String = (0..99).map(|i| format!(r#""f{i}":0,"#)).collect();
        let (_, ignored) =
            from_slice_with_ignored::<ChatRequest>(format!("{{{many}\"model\":\"m\"}}").as_bytes())
                .unwrap();
        assert_eq!((ignored.len(), ignored[31].as_str()), (MAX_IGNORED, "f31"));
    }

    #[test]
    fn a_null_body_is_an_empty_request() {
        assert_eq!(from_slice::<GenerateRequest>(b"null").unwrap().model, "");
    }

    #[test]
    fn errors_name_the_path_of_a_wrong_type() {
        let wrong = |body| chat(body).unwrap_err();
        assert_eq!(
            wrong(json!({"model": true})),
            "json: cannot unmarshal bool into Go struct field ChatRequest.model of type string"
        );
        assert_eq!(
            wrong(json!({"messages": [{"role": "user", "content": [1]}]})),
            "json: cannot unmarshal array into Go struct field ChatRequest.messages.content of type string"
        );
        assert_eq!(
            wrong(json!("x")),
            "json: cannot unmarshal string into Go value of type ChatRequest"
        );
        assert_eq!(
            wrong(json!({"top_logprobs": 1.5})),
            "json: cannot unmarshal number 1.5 into Go struct field ChatRequest.top_logprobs of type int"
        );
        assert!(
            wrong(json!({"options": [1]}))
                .contains("array into Go struct field ChatRequest.options")
        );
    }

    #[test]
    fn fields_with_special_rules_have_specific_error_messages() {
        let think = "think must be a boolean or string (\"high\", \"medium\", \"low\", \"max\", true, or false)";
        assert_eq!(chat(json!({"think": 3})).unwrap_err(), think);
        assert_eq!(
            chat(json!({"keep_alive": "5x"})).unwrap_err(),
            "time: unknown unit \"x\" in duration \"5x\""
        );
        assert!(chat(json!({"tools": ["f"]})).is_err());
        assert!(
            chat(json!({"messages": [{"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]}))
                .is_err()
        );
    }
}

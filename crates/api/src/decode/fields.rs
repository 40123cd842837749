//! Maps the entries of a JSON object to the fields of a request type.

use serde::de::{self, DeserializeSeed, Visitor};
use serde_json::{Map, Value};

use super::{DecodeError, IgnoredFields, MAX_ELEMENTS, Node};
use crate::json_shape::OPTIONS;

/// Entries of an object, renamed to the field names of a struct.
pub(super) struct Fields<'a> {
    entries: std::vec::IntoIter<(&'a str, &'a Value)>,
    value: Option<(&'a str, &'a Value)>,
    /// Entries that also belong to `options`.
    options: Vec<(&'a str, &'a Value)>,
    ignored_fields: &'a IgnoredFields,
}

impl<'a> Fields<'a> {
    pub(super) fn all(map: &'a Map<String, Value>, ignored_fields: &'a IgnoredFields) -> Self {
        Self::new(map.iter().map(|(k, v)| (k.as_str(), v)).collect(), ignored_fields)
    }

    fn new(entries: Vec<(&'a str, &'a Value)>, ignored_fields: &'a IgnoredFields) -> Self {
        Self { entries: entries.into_iter(), value: None, options: Vec::new(), ignored_fields }
    }

    /// Matches exact names first, then names in another case. A later entry replaces an earlier
    /// one, and `null` counts as absent. If the request accepts options among its fields, they go
    /// into the field `options`.
    pub(super) fn for_struct(
        map: &'a Map<String, Value>,
        fields: &'static [&'static str],
        accepts_options: bool,
        ignored_fields: &'a IgnoredFields,
    ) -> Self {
        let mut entries: Vec<(&'a str, &'a Value)> = Vec::new();
        let mut options = Vec::new();
        for (key, value) in map {
            let exact = fields.iter().find(|f| *f == key);
            let Some(field) = exact.or_else(|| fields.iter().find(|f| f.eq_ignore_ascii_case(key)))
            else {
                match OPTIONS.field(key).filter(|_| accepts_options) {
                    _ if value.is_null() => {}
                    Some(option) => options.push((option, value)),
                    None => ignored_fields.record(Some(key)),
                }
                continue;
            };
            if value.is_null() {
                continue;
            }
            match entries.iter_mut().find(|(name, _)| name == field) {
                Some(entry) => entry.1 = value,
                None => entries.push((field, value)),
            }
        }
        if !options.is_empty() && !entries.iter().any(|(name, _)| *name == "options") {
            entries.push(("options", &Value::Null));
        }
        Self { options, ..Self::new(entries, ignored_fields) }
    }

    /// Decodes `options` merged with the options among the fields.
    fn with_options<T: DeserializeSeed<'a>>(
        &mut self,
        value: &'a Value,
        seed: T,
    ) -> Result<T::Value, DecodeError> {
        let own = match value {
            Value::Null => None,
            Value::Object(map) => Some(map),
            _ => return seed.deserialize(Node(value, self.ignored_fields)),
        };
        let own = own.into_iter().flatten().map(|(name, value)| (name.as_str(), value));
        seed.deserialize(MergedOptions(
            own.chain(self.options.drain(..)).collect(),
            self.ignored_fields,
        ))
    }
}

/// Options from both places; the last one of equal names counts.
struct MergedOptions<'a>(Vec<(&'a str, &'a Value)>, &'a IgnoredFields);

impl<'de> de::Deserializer<'de> for MergedOptions<'de> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_map(Fields::new(self.0, self.1))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_some(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf unit unit_struct newtype_struct seq
        tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'a> de::MapAccess<'a> for Fields<'a> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'a>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, DecodeError> {
        self.value = self.entries.next();
        let Some((key, _)) = self.value else { return Ok(None) };
        seed.deserialize(de::value::BorrowedStrDeserializer::new(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'a>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, DecodeError> {
        let (key, value) = self.value.take().unwrap_or(("", &Value::Null));
        if let Value::Array(list) = value
            && list.len() > MAX_ELEMENTS
            && !list[0].is_number()
        {
            let text =
                format!("{key}: {} elements, at most {MAX_ELEMENTS} are allowed", list.len());
            return Err(DecodeError::Field(text));
        }
        self.ignored_fields.path.borrow_mut().push(key.to_owned());
        let read = match key {
            "options" if !self.options.is_empty() => self.with_options(value, seed),
            _ => seed.deserialize(Node(value, self.ignored_fields)),
        };
        self.ignored_fields.path.borrow_mut().pop();
        read.map_err(|mut e| {
            if let DecodeError::Type { path, .. } = &mut e {
                path.push(key.to_owned());
            }
            e
        })
    }
}

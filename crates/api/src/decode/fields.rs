//! The entries of objects, as the fields of requests.

use serde::de::{self, DeserializeSeed, Visitor};
use serde_json::{Map, Value};

use super::{DecodeError, MAX_ELEMENTS, Node, Notes};
use crate::shape::OPTIONS;

/// The entries of an object, renamed to the spelling of a struct's fields.
pub(super) struct Fields<'a> {
    entries: std::vec::IntoIter<(&'a str, &'a Value)>,
    value: Option<(&'a str, &'a Value)>,
    /// What belongs into `options` as well.
    options: Vec<(&'a str, &'a Value)>,
    notes: &'a Notes,
}

impl<'a> Fields<'a> {
    pub(super) fn all(map: &'a Map<String, Value>, notes: &'a Notes) -> Self {
        Self::new(map.iter().map(|(k, v)| (k.as_str(), v)).collect(), notes)
    }

    fn new(entries: Vec<(&'a str, &'a Value)>, notes: &'a Notes) -> Self {
        Self { entries: entries.into_iter(), value: None, options: Vec::new(), notes }
    }

    /// Exact names, else names in another case; later ones replace earlier ones; `null` counts as absent. Where `options`
    /// may be named beside the fields, they are put into the field of that name.
    pub(super) fn of_struct(
        map: &'a Map<String, Value>,
        fields: &'static [&'static str],
        names_options: bool,
        notes: &'a Notes,
    ) -> Self {
        let mut entries: Vec<(&'a str, &'a Value)> = Vec::new();
        let mut options = Vec::new();
        for (key, value) in map {
            let exact = fields.iter().find(|f| *f == key);
            let Some(field) = exact.or_else(|| fields.iter().find(|f| f.eq_ignore_ascii_case(key)))
            else {
                match OPTIONS.field(key).filter(|_| names_options) {
                    _ if value.is_null() => {}
                    Some(option) => options.push((option, value)),
                    None => notes.ignored(Some(key)),
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
        Self { options, ..Self::new(entries, notes) }
    }

    /// Reads the value of `options` together with those that were named beside it.
    fn with_options<T: DeserializeSeed<'a>>(
        &mut self,
        value: &'a Value,
        seed: T,
    ) -> Result<T::Value, DecodeError> {
        let given = match value {
            Value::Null => None,
            Value::Object(map) => Some(map),
            _ => return seed.deserialize(Node(value, self.notes)),
        };
        let given = given.into_iter().flatten().map(|(name, value)| (name.as_str(), value));
        seed.deserialize(Options(given.chain(self.options.drain(..)).collect(), self.notes))
    }
}

/// Options of two places; of equal ones the last counts.
struct Options<'a>(Vec<(&'a str, &'a Value)>, &'a Notes);

impl<'de> de::Deserializer<'de> for Options<'de> {
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
                format!("{key}: {} elements, and a list holds at most {MAX_ELEMENTS}", list.len());
            return Err(DecodeError::Field(text));
        }
        self.notes.path.borrow_mut().push(key.to_owned());
        let read = match key {
            "options" if !self.options.is_empty() => self.with_options(value, seed),
            _ => seed.deserialize(Node(value, self.notes)),
        };
        self.notes.path.borrow_mut().pop();
        read.map_err(|mut e| {
            if let DecodeError::Type { path, .. } = &mut e {
                path.push(key.to_owned());
            }
            e
        })
    }
}

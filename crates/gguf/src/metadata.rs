//! Keys and values of a file in file order, with typed getters. Their errors show the actual value.

use crate::error::GgufError;
use crate::value::{Array, Strings, Value};

/// Keys and values in file order.
///
/// Typed getters accept harmless differences between files: an integer of any width that fits, a
/// float of either width, an array of any of these. They never convert strings to numbers, or
/// floats to integers. `key(…)` getters require the key. `opt_key(…)` and array getters return
/// `None` if it is absent, and an error if it has the wrong type.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(Box<str>, Value)>,
    /// Indices of `entries`, sorted by key.
    sorted: Vec<u32>,
}

impl Metadata {
    /// Makes empty metadata.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes metadata from entries in file order. A duplicate key is an error.
    pub(crate) fn from_entries(entries: Vec<(Box<str>, Value)>) -> Result<Self, GgufError> {
        let mut sorted: Vec<u32> = (0..entries.len() as u32).collect();
        sorted.sort_by(|&a, &b| entries[a as usize].0.cmp(&entries[b as usize].0));
        let key = |i: u32| &*entries[i as usize].0;
        if let Some(twice) = sorted.windows(2).find(|pair| key(pair[0]) == key(pair[1])) {
            return Err(GgufError::KeyDuplicate {
                key: crate::error::escape_for_display(key(twice[0]).as_bytes()),
            });
        }
        Ok(Metadata { entries, sorted })
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (&**key, value))
    }

    /// Value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.find(key).ok().map(|at| &self.entries[self.sorted[at] as usize].1)
    }

    /// Whether `key` is present, with any type.
    pub fn contains(&self, key: &str) -> bool {
        self.find(key).is_ok()
    }

    /// Sets `key` in its place, or appends it.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        match self.find(key) {
            Ok(at) => self.entries[self.sorted[at] as usize].1 = value.into(),
            Err(at) => {
                self.sorted.insert(at, self.entries.len() as u32);
                self.entries.push((key.into(), value.into()));
            }
        }
    }

    /// Removes `key` and returns its value.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let at = self.find(key).ok()?;
        let gone = self.sorted.remove(at);
        self.sorted.iter_mut().filter(|i| **i > gone).for_each(|i| *i -= 1);
        Some(self.entries.remove(gone as usize).1)
    }

    /// Position of `key` in `sorted`, or where to insert it.
    fn find(&self, key: &str) -> Result<usize, usize> {
        self.sorted.binary_search_by(|&i| (*self.entries[i as usize].0).cmp(key))
    }

    /// `general.architecture`.
    pub fn architecture(&self) -> Result<&str, GgufError> {
        let value = self.get("general.architecture").ok_or(GgufError::ArchitectureMissing)?;
        value.as_str().ok_or_else(|| GgufError::ArchitectureType { found: value.describe() })
    }

    /// An unsigned 32-bit integer.
    pub fn u32(&self, key: &str) -> Result<u32, GgufError> {
        self.opt_u32(key).and_then(|value| required(key, value))
    }

    /// An unsigned 64-bit integer.
    pub fn u64(&self, key: &str) -> Result<u64, GgufError> {
        self.opt_u64(key).and_then(|value| required(key, value))
    }

    /// A float.
    pub fn f32(&self, key: &str) -> Result<f32, GgufError> {
        self.opt_f32(key).and_then(|value| required(key, value))
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<bool, GgufError> {
        self.opt_bool(key).and_then(|value| required(key, value))
    }

    /// A string of valid UTF-8.
    pub fn str(&self, key: &str) -> Result<&str, GgufError> {
        self.opt_str(key).and_then(|value| required(key, value))
    }

    /// An unsigned 32-bit integer, if the key is present.
    pub fn opt_u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.typed(key, "an integer from 0 to 2^32-1", |value| value.as_int()?.try_into().ok())
    }

    /// A signed 32-bit integer, if the key is present.
    pub fn opt_i32(&self, key: &str) -> Result<Option<i32>, GgufError> {
        self.typed(key, "an integer from -2^31 to 2^31-1", |value| value.as_int()?.try_into().ok())
    }

    /// An unsigned 64-bit integer, if the key is present.
    pub fn opt_u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.typed(key, "an integer from 0 to 2^64-1", |value| value.as_int()?.try_into().ok())
    }

    /// A float, if the key is present. 64-bit floats are rounded.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.typed(key, "a float", |value| value.as_float().map(|v| v as f32))
    }

    /// A boolean, if the key is present.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "a bool", |value| match value {
            Value::Bool(value) => Some(*value),
            _ => None,
        })
    }

    /// A string of valid UTF-8, if the key is present.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.typed(key, "a string of valid UTF-8", Value::as_str)
    }

    /// Strings of an array as bytes. They may be invalid UTF-8.
    pub fn strings(&self, key: &str) -> Result<Option<Strings<'_>>, GgufError> {
        self.typed(key, "an array of strings", |value| value.as_array()?.strings())
    }

    /// An array, if the key is present.
    pub fn array(&self, key: &str) -> Result<Option<&Array>, GgufError> {
        self.typed(key, "an array", Value::as_array)
    }

    /// Elements of an array of integers that fit. Booleans are 0 and 1.
    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>, GgufError> {
        self.typed(key, "an array of integers from 0 to 2^32-1", |value| ints(value.as_array()?))
    }

    /// Elements of an array of integers that fit. Booleans are 0 and 1.
    pub fn u64s(&self, key: &str) -> Result<Option<Vec<u64>>, GgufError> {
        self.typed(key, "an array of integers from 0 to 2^64-1", |value| ints(value.as_array()?))
    }

    /// Elements of an array of integers that fit. Booleans are 0 and 1.
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, GgufError> {
        self.typed(key, "an array of integers from -2^31 to 2^31-1", |value| {
            ints(value.as_array()?)
        })
    }

    /// Elements of an array of bytes.
    pub fn u8s(&self, key: &str) -> Result<Option<Vec<u8>>, GgufError> {
        // Files store the normalizer's tables as u8 or i8. Only the bits matter.
        self.typed(key, "an array of bytes", |value| {
            let array = value.as_array()?;
            (array.element_type().size() == Some(1)).then(|| array.as_bytes().to_vec())
        })
    }

    /// Elements of an array of floats. 64-bit floats are rounded.
    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        self.typed(key, "an array of floats", |value| Some(value.as_array()?.floats()?.collect()))
    }

    /// Elements of an array of booleans, or of integers that are all 0 or 1.
    pub fn bools(&self, key: &str) -> Result<Option<Vec<bool>>, GgufError> {
        self.typed(key, "an array of bools", |value| {
            let bit = |v| match v {
                0 => Some(false),
                1 => Some(true),
                _ => None,
            };
            value.as_array()?.ints()?.map(bit).collect()
        })
    }

    /// A value for each of `layers` layers: an array of that length, or one integer for all.
    pub fn u32_per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<u32>>, GgufError> {
        if self.get(key).is_none_or(|value| value.as_array().is_none()) {
            return Ok(self.opt_u32(key)?.map(|value| vec![value; layers]));
        }
        match self.u32s(key)? {
            Some(values) if values.len() != layers => Err(GgufError::KeyArrayLength {
                key: key.to_owned(),
                want: layers,
                found: values.len(),
            }),
            values => Ok(values),
        }
    }

    /// Converts `key` with `read`. If that fails, returns an error that names the expected type
    /// `want`.
    fn typed<'a, T>(
        &'a self,
        key: &str,
        want: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || GgufError::KeyType { key: key.to_owned(), want, found: value.describe() };
        read(value).map(Some).ok_or_else(wrong)
    }
}

impl serde::Serialize for Metadata {
    /// Serializes as an object with keys in file order.
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_map(self.iter())
    }
}

fn required<T>(key: &str, value: Option<T>) -> Result<T, GgufError> {
    value.ok_or_else(|| GgufError::KeyMissing { key: key.to_owned() })
}

fn ints<T: TryFrom<i128>>(array: &Array) -> Option<Vec<T>> {
    array.ints()?.map(|v| T::try_from(v).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata() -> Metadata {
        let mut m = Metadata::new();
        m.set("general.architecture", "llama");
        m.set("u16", 7u16);
        m.set("i64", -1i64);
        m.set("big", u64::MAX);
        m.set("f64", 0.5f64);
        m.set("yes", true);
        m.set("heads", vec![8i32, 4]);
        m.set("wide", vec![u64::MAX, 1]);
        m.set("mask", vec![true, false]);
        m.set("words", Value::strings(["a", "b"]));
        m
    }

    #[test]
    fn integers_of_any_width_are_read_if_they_fit() {
        let m = metadata();
        assert_eq!(m.u32("u16"), Ok(7));
        assert_eq!(m.u64("big"), Ok(u64::MAX));
        assert_eq!(m.opt_i32("i64"), Ok(Some(-1)));
        assert_eq!(m.f32("f64"), Ok(0.5));
        assert_eq!(m.u32s("heads"), Ok(Some(vec![8, 4])));
        assert_eq!(m.i32s("mask"), Ok(Some(vec![1, 0])));
        assert_eq!(m.u64s("heads"), Ok(Some(vec![8, 4])));
        assert_eq!(m.u64s("wide"), Ok(Some(vec![u64::MAX, 1])));
        assert_eq!(m.bools("mask"), Ok(Some(vec![true, false])));
        assert_eq!(m.u32_per_layer("heads", 2), Ok(Some(vec![8, 4])));
        assert_eq!(m.u32_per_layer("u16", 3), Ok(Some(vec![7; 3])));
        assert_eq!(m.strings("words").unwrap().unwrap().collect::<Vec<_>>(), [b"a", b"b"]);
    }

    #[test]
    fn a_wrong_type_is_an_error_with_the_found_value() {
        let m = metadata();
        let text = |e: GgufError| (e.code(), e.to_string());
        let (code, message) = text(m.u32("i64").unwrap_err());
        assert_eq!(code, "gguf_key_type");
        assert_eq!(message, "key `i64` must be an integer from 0 to 2^32-1, found i64 -1");
        assert_eq!(m.opt_u32("big").unwrap_err().code(), "gguf_key_type");
        assert_eq!(m.opt_u32("f64").unwrap_err().code(), "gguf_key_type");
        assert_eq!(m.opt_f32("u16").unwrap_err().code(), "gguf_key_type");
        assert_eq!(m.opt_bool("u16").unwrap_err().code(), "gguf_key_type");
        assert_eq!(m.u32("general.architecture").unwrap_err().code(), "gguf_key_type");
        assert_eq!(m.u32("heads").unwrap_err().code(), "gguf_key_type");
        assert_eq!(m.bools("heads").unwrap_err().code(), "gguf_key_type");
        assert_eq!(m.u32s("wide").unwrap_err().code(), "gguf_key_type");
        assert_eq!(m.strings("heads").err().unwrap().code(), "gguf_key_type");
        assert_eq!(
            m.u32_per_layer("heads", 3),
            Err(GgufError::KeyArrayLength { key: "heads".into(), want: 3, found: 2 })
        );
    }

    #[test]
    fn an_absent_key_is_none_or_a_named_error() {
        let m = metadata();
        assert_eq!(m.opt_str("none"), Ok(None));
        assert_eq!(m.str("none"), Err(GgufError::KeyMissing { key: "none".into() }));
        assert_eq!(m.u32_per_layer("none", 3), Ok(None));
        assert_eq!(Metadata::new().architecture(), Err(GgufError::ArchitectureMissing));
    }

    #[test]
    fn metadata_serializes_as_a_json_object_in_file_order() {
        let mut m = Metadata::new();
        m.set("z", 1u32);
        m.set("a", Value::strings(["x"]));
        assert_eq!(serde_json::to_string(&m).unwrap(), r#"{"z":1,"a":["x"]}"#);
    }

    #[test]
    fn keys_can_be_set_and_removed_in_any_order() {
        let mut m = metadata();
        assert_eq!(m.remove("u16"), Some(Value::U16(7)));
        assert_eq!(m.remove("u16"), None);
        m.set("big", 1u32);
        m.set("aaa", 2u32);
        assert_eq!((m.u32("big"), m.u32("aaa"), m.opt_i32("i64")), (Ok(1), Ok(2), Ok(Some(-1))));
        let keys: Vec<_> = m.iter().map(|(key, _)| key).collect();
        assert_eq!(
            keys,
            [
                "general.architecture",
                "i64",
                "big",
                "f64",
                "yes",
                "heads",
                "wide",
                "mask",
                "words",
                "aaa"
            ]
        );
        for key in keys {
            assert!(m.contains(key));
        }
    }
}

//! Metadata values. Strings and arrays refer to the file's bytes.

use std::fmt;

use crate::bytes::SharedBytes;
use crate::error::escape_for_display;

/// Type of a metadata value or of array elements. Discriminants are the format's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)] // the variants are the format's own names
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    const ALL: [ValueType; 13] = {
        use ValueType::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64]
    };

    /// Type of a number, if valid.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// Number of the type in a file.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Size of a value in bytes. `None` for strings and arrays.
    pub fn size(self) -> Option<usize> {
        use ValueType::*;
        match self {
            U8 | I8 | Bool => Some(1),
            U16 | I16 => Some(2),
            U32 | I32 | F32 => Some(4),
            U64 | I64 | F64 => Some(8),
            String | Array => None,
        }
    }

    /// Name, such as `u32` or `string`.
    pub fn name(self) -> &'static str {
        use ValueType::*;
        match self {
            U8 => "u8",
            I8 => "i8",
            U16 => "u16",
            I16 => "i16",
            U32 => "u32",
            I32 => "i32",
            F32 => "f32",
            Bool => "bool",
            String => "string",
            Array => "array",
            U64 => "u64",
            I64 => "i64",
            F64 => "f64",
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // the variants are the format's own names
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(GgufString),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    /// Type of the value.
    pub fn ty(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// Value of an integer of any width.
    pub fn as_int(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// Value of a float of either width.
    pub fn as_float(&self) -> Option<f64> {
        match *self {
            Value::F32(v) => Some(v.into()),
            Value::F64(v) => Some(v),
            _ => None,
        }
    }

    /// Bytes of a string.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Value::String(text) => Some(text.as_bytes()),
            _ => None,
        }
    }

    /// A string, if it is valid UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => text.as_str(),
            _ => None,
        }
    }

    /// An array.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }

    /// Describes the value for a message: its type and, if short, the value.
    pub fn describe(&self) -> String {
        match self {
            Value::String(text) => format!("string {text}"),
            Value::Array(array) => format!("array of {} {}", array.len(), array.element_type()),
            scalar => format!("{} {scalar}", scalar.ty()),
        }
    }

    /// Makes an array of strings.
    pub fn strings<S: AsRef<[u8]>>(items: impl IntoIterator<Item = S>) -> Self {
        let mut bytes = Vec::new();
        let mut len = 0;
        for item in items {
            let item = item.as_ref();
            bytes.extend_from_slice(&(item.len() as u64).to_le_bytes());
            bytes.extend_from_slice(item);
            len += 1;
        }
        Value::Array(Array { element: ValueType::String, len, bytes: bytes.into() })
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U8(v) => v.fmt(f),
            Value::I8(v) => v.fmt(f),
            Value::U16(v) => v.fmt(f),
            Value::I16(v) => v.fmt(f),
            Value::U32(v) => v.fmt(f),
            Value::I32(v) => v.fmt(f),
            Value::F32(v) => v.fmt(f),
            Value::Bool(v) => v.fmt(f),
            Value::String(text) => text.fmt(f),
            Value::Array(array) => write!(f, "[{} × {}]", array.len(), array.element_type()),
            Value::U64(v) => v.fmt(f),
            Value::I64(v) => v.fmt(f),
            Value::F64(v) => v.fmt(f),
        }
    }
}

impl serde::Serialize for Value {
    /// Serializes as JSON: numbers, booleans, strings (with invalid UTF-8 replaced), and lists of
    /// these.
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::U8(v) => out.serialize_u8(*v),
            Value::I8(v) => out.serialize_i8(*v),
            Value::U16(v) => out.serialize_u16(*v),
            Value::I16(v) => out.serialize_i16(*v),
            Value::U32(v) => out.serialize_u32(*v),
            Value::I32(v) => out.serialize_i32(*v),
            Value::F32(v) => out.serialize_f32(*v),
            Value::Bool(v) => out.serialize_bool(*v),
            Value::String(text) => out.serialize_str(&String::from_utf8_lossy(text.as_bytes())),
            Value::Array(array) => match array.strings() {
                Some(strings) => out.collect_seq(strings.map(String::from_utf8_lossy)),
                None => out.collect_seq(array.scalars()),
            },
            Value::U64(v) => out.serialize_u64(*v),
            Value::I64(v) => out.serialize_i64(*v),
            Value::F64(v) => out.serialize_f64(*v),
        }
    }
}

/// A string of a file: UTF-8 by convention, but possibly any bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufString(pub(crate) SharedBytes);

impl GgufString {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text, if it is valid UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl fmt::Display for GgufString {
    /// Quoted, escaped and shortened for a message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape_for_display(&self.0))
    }
}

/// An array of scalars or strings in file format: little-endian, unaligned, strings with their
/// lengths.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    pub(crate) element: ValueType,
    pub(crate) len: usize,
    /// Bytes of `len` elements. The parser has checked every string length.
    pub(crate) bytes: SharedBytes,
}

impl Array {
    /// Type of the elements, never `Array`.
    pub fn element_type(&self) -> ValueType {
        self.element
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the elements in file format.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Strings of an array of strings.
    pub fn strings(&self) -> Option<Strings<'_>> {
        (self.element == ValueType::String).then(|| Strings { rest: &self.bytes, left: self.len })
    }

    /// Elements, if they are integers of any width or booleans (0 and 1).
    pub fn ints(&self) -> Option<impl ExactSizeIterator<Item = i128> + '_> {
        use ValueType::*;
        let size = self.element.size()?;
        let read: fn(&[u8]) -> i128 = match self.element {
            U8 => |b| b[0].into(),
            Bool => |b| (b[0] != 0).into(),
            I8 => |b| (b[0] as i8).into(),
            U16 => |b| u16::from_le_bytes(fixed(b)).into(),
            I16 => |b| i16::from_le_bytes(fixed(b)).into(),
            U32 => |b| u32::from_le_bytes(fixed(b)).into(),
            I32 => |b| i32::from_le_bytes(fixed(b)).into(),
            U64 => |b| u64::from_le_bytes(fixed(b)).into(),
            I64 => |b| i64::from_le_bytes(fixed(b)).into(),
            F32 | F64 | String | Array => return None,
        };
        Some(self.bytes.chunks_exact(size).map(read))
    }

    /// Elements, if they are floats. 64-bit floats are rounded.
    pub fn floats(&self) -> Option<impl ExactSizeIterator<Item = f32> + '_> {
        let read: fn(&[u8]) -> f32 = match self.element {
            ValueType::F32 => |b| f32::from_le_bytes(fixed(b)),
            ValueType::F64 => |b| f64::from_le_bytes(fixed(b)) as f32,
            _ => return None,
        };
        Some(self.bytes.chunks_exact(self.element.size()?).map(read))
    }

    /// The first `len` elements, or all if there are fewer.
    pub fn prefix(&self, len: usize) -> Array {
        let len = len.min(self.len);
        let end = match self.element.size() {
            Some(size) => size * len,
            None => {
                let mut strings = Strings { rest: &self.bytes, left: self.len };
                strings.by_ref().take(len).for_each(drop);
                self.bytes.len() - strings.rest.len()
            }
        };
        Array { element: self.element, len, bytes: self.bytes.slice(0, end) }
    }

    /// Scalars with a `true` entry in `keeps`. `None` if the lengths differ.
    pub(crate) fn filtered(&self, keeps: &[bool]) -> Option<Array> {
        let size = self.element.size().filter(|_| keeps.len() == self.len)?;
        let filtered = self.bytes.chunks_exact(size).zip(keeps).filter(|(_, keeps)| **keeps);
        let bytes: Vec<u8> = filtered.flat_map(|(bytes, _)| bytes).copied().collect();
        Some(Array { element: self.element, len: bytes.len() / size, bytes: bytes.into() })
    }

    /// Elements as values; empty for an array of strings.
    fn scalars(&self) -> impl Iterator<Item = Value> + '_ {
        let size = self.element.size();
        let bytes = if size.is_some() { self.as_bytes() } else { &[] };
        bytes.chunks_exact(size.unwrap_or(1)).filter_map(|bytes| scalar(self.element, bytes))
    }

    /// One element as a value.
    pub fn get(&self, index: usize) -> Option<Value> {
        if index >= self.len {
            return None;
        }
        let Some(size) = self.element.size() else {
            let bytes = self.strings()?.nth(index)?;
            return Some(Value::String(GgufString(bytes.to_vec().into())));
        };
        scalar(self.element, &self.bytes[index * size..(index + 1) * size])
    }
}

/// Decodes a scalar from exactly its bytes. `None` for strings and arrays.
pub(crate) fn scalar(ty: ValueType, bytes: &[u8]) -> Option<Value> {
    Some(match ty {
        ValueType::U8 => Value::U8(bytes[0]),
        ValueType::I8 => Value::I8(bytes[0] as i8),
        ValueType::U16 => Value::U16(u16::from_le_bytes(fixed(bytes))),
        ValueType::I16 => Value::I16(i16::from_le_bytes(fixed(bytes))),
        ValueType::U32 => Value::U32(u32::from_le_bytes(fixed(bytes))),
        ValueType::I32 => Value::I32(i32::from_le_bytes(fixed(bytes))),
        ValueType::F32 => Value::F32(f32::from_le_bytes(fixed(bytes))),
        ValueType::Bool => Value::Bool(bytes[0] != 0),
        ValueType::U64 => Value::U64(u64::from_le_bytes(fixed(bytes))),
        ValueType::I64 => Value::I64(i64::from_le_bytes(fixed(bytes))),
        ValueType::F64 => Value::F64(f64::from_le_bytes(fixed(bytes))),
        ValueType::String | ValueType::Array => return None,
    })
}

/// Converts bytes to an array. Callers pass exactly `N` bytes.
fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("a piece of the element's size")
}

/// Iterator over the strings of an array, as bytes.
#[derive(Debug, Clone)]
pub struct Strings<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        // The parser has checked these lengths. If a mapped file has changed since, strings are cut
        // short.
        let (len, rest) = self.rest.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        let len = usize::try_from(u64::from_le_bytes(*len)).unwrap_or(usize::MAX).min(rest.len());
        let (string, rest) = rest.split_at(len);
        self.rest = rest;
        Some(string)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Strings<'_> {}

macro_rules! value_from {
    ($($ty:ty, $variant:ident;)*) => {$(
        impl From<$ty> for Value {
            fn from(value: $ty) -> Self {
                Value::$variant(value)
            }
        }

        impl From<&[$ty]> for Value {
            fn from(values: &[$ty]) -> Self {
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                Value::Array(Array { element: ValueType::$variant, len: values.len(), bytes: bytes.into() })
            }
        }

        impl From<Vec<$ty>> for Value {
            fn from(values: Vec<$ty>) -> Self {
                values.as_slice().into()
            }
        }
    )*};
}

value_from! {
    u8, U8; i8, I8; u16, U16; i16, I16; u32, U32; i32, I32; u64, U64; i64, I64; f32, F32; f64, F64;
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Value::Bool(value)
    }
}

impl From<&[bool]> for Value {
    fn from(values: &[bool]) -> Self {
        let bytes: Vec<u8> = values.iter().map(|&v| v.into()).collect();
        Value::Array(Array { element: ValueType::Bool, len: values.len(), bytes: bytes.into() })
    }
}

impl From<Vec<bool>> for Value {
    fn from(values: Vec<bool>) -> Self {
        values.as_slice().into()
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::String(GgufString(text.as_bytes().to_vec().into()))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::String(GgufString(text.into_bytes().into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_numbers_and_variants_agree() {
        for (id, ty) in ValueType::ALL.into_iter().enumerate() {
            assert_eq!((ty.id(), ValueType::from_id(id as u32)), (id as u32, Some(ty)));
        }
        assert_eq!(ValueType::from_id(13), None);
    }

    #[test]
    fn values_serialize_as_json() {
        let json = |value: Value| serde_json::to_string(&value).unwrap();
        assert_eq!(json(vec![1i16, -2].into()), "[1,-2]");
        assert_eq!(json(vec![true, false].into()), "[true,false]");
        assert_eq!(json(vec![0.5f32, 1e-6].into()), "[0.5,0.000001]");
        assert_eq!(json(Value::strings([&b"a"[..], b"\xff"])), "[\"a\",\"\u{fffd}\"]");
        assert_eq!(json(Value::F32(f32::NAN)), "null");
        assert_eq!(json("x\n".into()), "\"x\\n\"");
        assert_eq!(json(u64::MAX.into()), "18446744073709551615");
    }

    #[test]
    fn arrays_round_trip() {
        let ints = Value::from(vec![1i16, -2, 300]);
        assert_eq!(ints.as_array().unwrap().ints().unwrap().collect::<Vec<_>>(), [1, -2, 300]);
        assert_eq!(ints.as_array().unwrap().get(1), Some(Value::I16(-2)));
        assert_eq!(ints.as_array().unwrap().get(3), None);
        assert!(ints.as_array().unwrap().floats().is_none());
        let bools = Value::from(vec![true, false]);
        assert_eq!(bools.as_array().unwrap().ints().unwrap().collect::<Vec<_>>(), [1, 0]);
        let floats = Value::from(vec![1.5f64, -0.25]);
        assert_eq!(floats.as_array().unwrap().floats().unwrap().collect::<Vec<_>>(), [1.5, -0.25]);
        let strings = Value::strings([&b"a"[..], b"", b"\xff\xfe", b"long"]);
        let array = strings.as_array().unwrap();
        assert_eq!(
            array.strings().unwrap().collect::<Vec<_>>(),
            [&b"a"[..], b"", b"\xff\xfe", b"long"]
        );
        assert_eq!(
            array.prefix(3).strings().unwrap().collect::<Vec<_>>(),
            [&b"a"[..], b"", b"\xff\xfe"]
        );
        assert_eq!(array.prefix(9), *array);
        assert_eq!(array.get(3), Some(Value::from("long")));
    }
}

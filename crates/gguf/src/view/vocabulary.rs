//! Changes of vocabulary keys.

use crate::value::{Array, ValueType};

use super::rules::ViewBuilder;

const TYPES: &str = "tokenizer.ggml.token_type";
const NORMAL: i32 = 1;
const BYTE: i32 = 6;

impl ViewBuilder<'_> {
    /// Sets tokens like `<0x0A>` to byte tokens, and tokens that start with `<unused` to normal
    /// ones.
    pub(super) fn set_token_types(&mut self) {
        let tokens = self.list("tokenizer.ggml.tokens").and_then(Array::strings);
        let (Some(tokens), Ok(Some(mut types))) = (tokens, self.metadata.i32s(TYPES)) else {
            return;
        };
        for (ty, token) in types.iter_mut().zip(tokens) {
            match token {
                [b'<', b'0', b'x', _, _, b'>'] => *ty = BYTE,
                token if token.starts_with(b"<unused") => *ty = NORMAL,
                _ => {}
            }
        }
        self.metadata.set(TYPES, types);
    }

    /// Adds a number to a list, or creates the list.
    pub(super) fn append_to_list(&mut self, key: &str, number: i32, first: i32) {
        let list = match self.metadata.get(key) {
            None => vec![first],
            Some(_) => match self.metadata.i32s(key) {
                Ok(Some(list)) => list,
                _ => return,
            },
        };
        if !list.contains(&number) {
            self.metadata.set(key, [&list[..], &[number]].concat());
        }
    }

    /// Decodes a list of single base64 letters.
    pub(super) fn decode_base64_list(&self, key: &str) -> Option<Vec<u8>> {
        let list = self.list(key).filter(|list| list.element_type() == ValueType::String)?;
        let (mut bytes, mut bits, mut have) = (Vec::with_capacity(list.len() / 4 * 3), 0u32, 0);
        for letter in list.strings()? {
            let [letter] = letter else { return None };
            let value = match letter {
                b'A'..=b'Z' => letter - b'A',
                b'a'..=b'z' => letter - b'a' + 26,
                b'0'..=b'9' => letter - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                b'=' => break,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
            have += 6;
            if have >= 8 {
                have -= 8;
                bytes.push((bits >> have) as u8);
                bits &= (1 << have) - 1;
            }
        }
        Some(bytes)
    }
}

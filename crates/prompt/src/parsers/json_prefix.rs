//! Checks incrementally whether a text is the prefix of a JSON object.

/// State of a JSON object that arrives in pieces. Text behind the complete object is invalid.
#[derive(Debug, Clone)]
pub struct JsonPrefix {
    /// Open brackets, outermost first.
    open: Vec<u8>,
    expected: Expected,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// The object itself.
    Object,
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    /// A comma or the closing bracket.
    Comma,
    /// Inside a string; true for a key.
    String(bool),
    Escape(bool),
    /// Inside `\u`: true for a key, and the number of hexadecimal digits still missing.
    Digits(bool, u8),
    /// The rest of `true`, `false` or `null`.
    Literal(&'static [u8]),
    NumberPart(NumberPart),
    /// Only white space.
    End,
    /// The text is not JSON.
    Invalid,
}

/// The part of a number that was read last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NumberPart {
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

impl NumberPart {
    fn next(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::Minus, b'0') => Self::Zero,
            (Self::Minus, b'1'..=b'9') | (Self::Integer, b'0'..=b'9') => Self::Integer,
            (Self::Zero | Self::Integer, b'.') => Self::Point,
            (Self::Point | Self::Fraction, b'0'..=b'9') => Self::Fraction,
            (Self::Zero | Self::Integer | Self::Fraction, b'e' | b'E') => Self::Exponent,
            (Self::Exponent, b'+' | b'-') => Self::ExponentSign,
            (Self::Exponent | Self::ExponentSign | Self::ExponentDigits, b'0'..=b'9') => {
                Self::ExponentDigits
            }
            _ => return None,
        })
    }

    fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Integer | Self::Fraction | Self::ExponentDigits)
    }
}

impl Default for JsonPrefix {
    fn default() -> Self {
        Self { open: Vec::new(), expected: Expected::Object }
    }
}

impl JsonPrefix {
    /// Returns true if the object is complete: only white space may follow.
    pub fn is_complete(&self) -> bool {
        self.expected == Expected::End
    }

    /// Appends a text. Returns the number of its bytes up to which the whole text is a prefix of
    /// JSON.
    pub fn push(&mut self, text: &str) -> usize {
        for (at, byte) in text.bytes().enumerate() {
            self.expected = self.next(byte);
            if self.expected == Expected::Invalid {
                return at;
            }
        }
        text.len()
    }

    fn next(&mut self, byte: u8) -> Expected {
        use Expected::*;
        match (self.expected, byte) {
            (Invalid, _) => Invalid,
            (String(key), b'"') => {
                if key {
                    Colon
                } else {
                    Comma
                }
            }
            (String(key), b'\\') => Escape(key),
            (String(_), ..b' ') => Invalid,
            (String(key), _) => String(key),
            (Escape(key), b'u') => Digits(key, 4),
            (Escape(key), b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => String(key),
            (Escape(_), _) => Invalid,
            (Digits(key, 1), _) if byte.is_ascii_hexdigit() => String(key),
            (Digits(key, left), _) if byte.is_ascii_hexdigit() => Digits(key, left - 1),
            (Digits(..), _) => Invalid,
            (Literal(rest), _) => match rest.split_first() {
                Some((first, [])) if *first == byte => Comma,
                Some((first, rest)) if *first == byte => Literal(rest),
                _ => Invalid,
            },
            (NumberPart(part), _) => match part.next(byte) {
                Some(part) => NumberPart(part),
                None if part.may_end() => {
                    self.expected = Comma;
                    self.next(byte)
                }
                None => Invalid,
            },
            (expected, b' ' | b'\n' | b'\r' | b'\t') => expected,
            (Object, b'{') => self.open(byte),
            (Key | KeyOrEnd, b'"') => String(true),
            (KeyOrEnd, b'}') | (ValueOrEnd, b']') => self.close(byte),
            (Comma, b'}' | b']') => self.close(byte),
            (Comma, b',') if self.open.last() == Some(&b'{') => Key,
            (Comma, b',') if !self.open.is_empty() => Value,
            (Colon, b':') => Value,
            (Value | ValueOrEnd, _) => self.value(byte),
            _ => Invalid,
        }
    }

    fn value(&mut self, byte: u8) -> Expected {
        match byte {
            b'{' | b'[' => self.open(byte),
            b'"' => Expected::String(false),
            b't' => Expected::Literal(b"rue"),
            b'f' => Expected::Literal(b"alse"),
            b'n' => Expected::Literal(b"ull"),
            b'-' => Expected::NumberPart(NumberPart::Minus),
            b'0' => Expected::NumberPart(NumberPart::Zero),
            b'1'..=b'9' => Expected::NumberPart(NumberPart::Integer),
            _ => Expected::Invalid,
        }
    }

    fn open(&mut self, bracket: u8) -> Expected {
        self.open.push(bracket);
        if bracket == b'{' { Expected::KeyOrEnd } else { Expected::ValueOrEnd }
    }

    fn close(&mut self, bracket: u8) -> Expected {
        // The code of a closing bracket is that of the opening one plus 2.
        match self.open.pop() {
            Some(open) if open + 2 == bracket && self.open.is_empty() => Expected::End,
            Some(open) if open + 2 == bracket => Expected::Comma,
            _ => Expected::Invalid,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn push_accepts_only_prefixes_of_json_objects() {
        let whole = " {\"a\": [1, -0.5e+3, true, null, {}, [], \"\\u00e4\\n\u{e4}\"], \"b\": {\"c\": false}} \n";
        for cut in (0..whole.len()).filter(|cut| whole.is_char_boundary(*cut)) {
            let mut prefix = JsonPrefix::default();
            assert_eq!(prefix.push(&whole[..cut]), cut);
            assert_eq!(prefix.push(&whole[cut..]), whole.len() - cut);
        }
        for (good, rest) in [
            ("", "[1]"),
            ("{", "a}"),
            ("{", ",}"),
            ("{\"a\"", "}"),
            ("{\"a\": ", "</tool_call>"),
            ("{\"a\": 1", "x"),
            ("{\"a\": 0", "1}"),
            ("{\"a\": 1.", "}"),
            ("{\"a\": t", "ure}"),
            ("{\"a\": \"b", "\nc\"}"),
            ("{\"a\": \"\\", "x\"}"),
            ("{\"a\": \"\\u00", "g0\"}"),
            ("{\"a\": [1", "}"),
            ("{\"a\": [1,", "]}"),
            ("{\"a\": 1,", "}"),
            ("{} ", "{}"),
        ] {
            let mut prefix = JsonPrefix::default();
            assert_eq!(prefix.push(&format!("{good}{rest}")), good.len(), "{good}{rest}");
            assert_eq!(prefix.push("1"), 0);
        }
    }
}

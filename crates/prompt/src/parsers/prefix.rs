//! Whether a text that comes in pieces may still become JSON.

/// Follows a JSON object. What comes behind one that is complete is none.
#[derive(Debug, Clone)]
pub struct JsonPrefix {
    /// Brackets that are open.
    open: Vec<u8>,
    expects: Expects,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expects {
    /// The object itself.
    Object,
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    /// Or the closing bracket.
    Comma,
    /// In a string, and whether it is a key.
    Text(bool),
    Escape(bool),
    /// So many digits of one.
    Digits(bool, u8),
    /// The rest of `true`, `false` or `null`.
    Word(&'static [u8]),
    Number(Number),
    /// White space.
    Nothing,
    /// It is none.
    Broken,
}

/// Behind which part of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    Exponent,
    Sign,
    Power,
}

impl Number {
    fn next(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::Minus, b'0') => Self::Zero,
            (Self::Minus, b'1'..=b'9') | (Self::Whole, b'0'..=b'9') => Self::Whole,
            (Self::Zero | Self::Whole, b'.') => Self::Point,
            (Self::Point | Self::Fraction, b'0'..=b'9') => Self::Fraction,
            (Self::Zero | Self::Whole | Self::Fraction, b'e' | b'E') => Self::Exponent,
            (Self::Exponent, b'+' | b'-') => Self::Sign,
            (Self::Exponent | Self::Sign | Self::Power, b'0'..=b'9') => Self::Power,
            _ => return None,
        })
    }

    fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Whole | Self::Fraction | Self::Power)
    }
}

impl Default for JsonPrefix {
    fn default() -> Self {
        Self { open: Vec::new(), expects: Expects::Object }
    }
}

impl JsonPrefix {
    /// Whether the object is complete: only white space may follow.
    pub fn is_complete(&self) -> bool {
        self.expects == Expects::Nothing
    }

    /// Goes on with a text; the number of its bytes with which the whole is still the beginning of JSON.
    pub fn push(&mut self, text: &str) -> usize {
        for (at, byte) in text.bytes().enumerate() {
            self.expects = self.next(byte);
            if self.expects == Expects::Broken {
                return at;
            }
        }
        text.len()
    }

    fn next(&mut self, byte: u8) -> Expects {
        use Expects::*;
        match (self.expects, byte) {
            (Broken, _) => Broken,
            (Text(key), b'"') => {
                if key {
                    Colon
                } else {
                    Comma
                }
            }
            (Text(key), b'\\') => Escape(key),
            (Text(_), ..b' ') => Broken,
            (Text(key), _) => Text(key),
            (Escape(key), b'u') => Digits(key, 4),
            (Escape(key), b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Text(key),
            (Escape(_), _) => Broken,
            (Digits(key, 1), _) if byte.is_ascii_hexdigit() => Text(key),
            (Digits(key, left), _) if byte.is_ascii_hexdigit() => Digits(key, left - 1),
            (Digits(..), _) => Broken,
            (Word(rest), _) => match rest.split_first() {
                Some((first, [])) if *first == byte => Comma,
                Some((first, rest)) if *first == byte => Word(rest),
                _ => Broken,
            },
            (Number(part), _) => match part.next(byte) {
                Some(part) => Number(part),
                None if part.may_end() => {
                    self.expects = Comma;
                    self.next(byte)
                }
                None => Broken,
            },
            (expects, b' ' | b'\n' | b'\r' | b'\t') => expects,
            (Object, b'{') => self.open(byte),
            (Key | KeyOrEnd, b'"') => Text(true),
            (KeyOrEnd, b'}') | (ValueOrEnd, b']') => self.close(byte),
            (Comma, b'}' | b']') => self.close(byte),
            (Comma, b',') if self.open.last() == Some(&b'{') => Key,
            (Comma, b',') if !self.open.is_empty() => Value,
            (Colon, b':') => Value,
            (Value | ValueOrEnd, _) => self.value(byte),
            _ => Broken,
        }
    }

    fn value(&mut self, byte: u8) -> Expects {
        match byte {
            b'{' | b'[' => self.open(byte),
            b'"' => Expects::Text(false),
            b't' => Expects::Word(b"rue"),
            b'f' => Expects::Word(b"alse"),
            b'n' => Expects::Word(b"ull"),
            b'-' => Expects::Number(Number::Minus),
            b'0' => Expects::Number(Number::Zero),
            b'1'..=b'9' => Expects::Number(Number::Whole),
            _ => Expects::Broken,
        }
    }

    fn open(&mut self, bracket: u8) -> Expects {
        self.open.push(bracket);
        if bracket == b'{' { Expects::KeyOrEnd } else { Expects::ValueOrEnd }
    }

    fn close(&mut self, bracket: u8) -> Expects {
        // The closing bracket of either stands two behind the opening one.
        match self.open.pop() {
            Some(open) if open + 2 == bracket && self.open.is_empty() => Expects::Nothing,
            Some(open) if open + 2 == bracket => Expects::Comma,
            _ => Expects::Broken,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_still_become_json_is_taken() {
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

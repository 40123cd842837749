//! Parts of a Lark grammar that have limits: string literals, regular expressions and JSON values.

use std::collections::HashSet;

use serde_json::Value;

/// Parts of a Lark grammar, as `llguidance` divides it.
#[derive(Debug, Default)]
pub struct LarkParts<'a> {
    /// Number of names, string literals and regular expressions, also of equal ones.
    pub references: usize,
    /// Different string literals, with their quotation marks.
    pub string_literals: HashSet<&'a str>,
    /// Different regular expressions, without their slashes.
    pub regexes: HashSet<&'a str>,
    /// Whether a terminal is an intersection (`&`).
    pub has_intersection: bool,
    /// Values after `%json`.
    pub schemas: Vec<Value>,
    /// Values after `%regex`.
    pub regex_values: Vec<Value>,
}

impl<'a> LarkParts<'a> {
    /// Divides a grammar. Malformed parts are skipped: the library reports them.
    pub fn new(lark: &'a str) -> Self {
        let mut found = Self::default();
        let (bytes, mut at) = (lark.as_bytes(), 0);
        while let Some(byte) = bytes.get(at) {
            let rest = &bytes[at..];
            at += match byte {
                b'#' => line_bytes(rest),
                b'/' if rest.starts_with(b"//") => line_bytes(rest),
                b'"' => {
                    let length = quoted_bytes(rest);
                    found.references += 1;
                    found.string_literals.extend(lark.get(at..at + length));
                    length
                }
                b'/' => {
                    let length = quoted_bytes(rest);
                    found.references += 1;
                    found.regexes.extend(lark.get(at + 1..(at + length).saturating_sub(1)));
                    length
                }
                b'%' => found.add_value(&lark[at..]),
                b'&' => {
                    found.has_intersection = true;
                    1
                }
                byte if is_name_byte(byte) => {
                    found.references += 1;
                    rest.iter().position(|byte| !is_name_byte(byte)).unwrap_or(rest.len())
                }
                _ => 1,
            };
        }
        found
    }

    /// Adds the JSON value after a keyword. Returns the length of both.
    fn add_value(&mut self, rest: &str) -> usize {
        let keyword = ["%json", "%regex", "%llguidance"].into_iter().find(|k| rest.starts_with(k));
        let Some(keyword) = keyword else { return 1 };
        let mut values =
            serde_json::Deserializer::from_str(&rest[keyword.len()..]).into_iter::<Value>();
        let Some(Ok(value)) = values.next() else { return keyword.len() };
        match keyword {
            "%json" => self.schemas.push(value),
            "%regex" => self.regex_values.push(value),
            _ => {}
        }
        keyword.len() + values.byte_offset()
    }
}

/// Whether names and numbers contain a byte.
fn is_name_byte(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || *byte == b'_'
}

/// Length of the rest of a line.
fn line_bytes(rest: &[u8]) -> usize {
    rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len())
}

/// Length of a literal that ends with its first byte, and in which `\` escapes a byte.
fn quoted_bytes(rest: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = rest.get(at) {
        match byte {
            b'\\' => at += 2,
            byte if *byte == rest[0] => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn comments_literals_expressions_and_values_are_told_apart() {
        let lark = r#"start: "a\"/" /b\/"c/ x // "no" /no/
# "no"
x: %json {"pattern": "no&"} | %regex {"substring_chars": "/no/"} | "%json [" /d
e/ "]" "a\"/""#;
        let found = LarkParts::new(lark);
        assert_eq!(found.string_literals, HashSet::from([r#""a\"/""#, "\"%json [\"", "\"]\""]));
        assert_eq!(found.regexes, HashSet::from([r#"b\/"c"#, "d\ne"]));
        assert_eq!(found.schemas, [json!({"pattern": "no&"})]);
        assert_eq!(found.regex_values, [json!({"substring_chars": "/no/"})]);
        assert!(!found.has_intersection);
        assert!(LarkParts::new("start: A & \"b\"").has_intersection);
        assert_eq!(found.references, 9, "three names, four string literals, two expressions");
        // Unfinished ones reach to the end.
        for unfinished in ["\"a", "/", "/\u{e4}\\", "%json {", "\"\\", "%", "#", "\"\u{e4}\\\u{e4}"]
        {
            LarkParts::new(unfinished);
        }
    }
}

//! Resolves references in a JSON Schema: pointers, anchors and ids.

use std::collections::HashMap;

use serde_json::Value;

/// Keywords that hold values, not schemas.
const VALUES: [&str; 5] = ["const", "enum", "default", "examples", "example"];

/// Targets of `$ref` in a schema.
#[derive(Debug)]
pub(crate) struct References<'a> {
    root: &'a Value,
    /// JSON pointers of schemas by `$id`, and by the last path segment of `$id`.
    ids: HashMap<&'a str, String>,
    /// JSON pointers of schemas by `$anchor` or `$dynamicAnchor`. The outermost one wins.
    anchors: HashMap<&'a str, String>,
}

impl<'a> References<'a> {
    /// Collects the ids and anchors of a schema.
    pub(crate) fn new(root: &'a Value) -> Self {
        let mut references = Self { root, ids: HashMap::new(), anchors: HashMap::new() };
        references.read(root, &mut String::new());
        references
    }

    fn read(&mut self, schema: &'a Value, pointer: &mut String) {
        let length = pointer.len();
        match schema {
            Value::Object(map) => {
                for keyword in ["$anchor", "$dynamicAnchor"] {
                    if let Some(name) = map.get(keyword).and_then(Value::as_str) {
                        self.anchors.entry(name).or_insert_with(|| pointer.clone());
                    }
                }
                for keyword in ["$id", "id"] {
                    let id =
                        map.get(keyword).and_then(Value::as_str).map(|id| id.trim_end_matches('#'));
                    for name in
                        id.into_iter().flat_map(|id| [Some(id), id.rsplit('/').next()]).flatten()
                    {
                        self.ids.entry(name).or_insert_with(|| pointer.clone());
                    }
                }
                for (name, inner) in map {
                    if !VALUES.contains(&name.as_str()) {
                        push_segment(pointer, name);
                        self.read(inner, pointer);
                        pointer.truncate(length);
                    }
                }
            }
            Value::Array(list) => {
                for (i, inner) in list.iter().enumerate() {
                    push_segment(pointer, &i.to_string());
                    self.read(inner, pointer);
                    pointer.truncate(length);
                }
            }
            _ => {}
        }
    }

    /// Resolves a `$ref` to a JSON pointer and a schema. `None` for targets outside of this
    /// document.
    pub(crate) fn resolve(&self, reference: &str) -> Option<(String, &'a Value)> {
        let (base, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let base = match base {
            "" => "",
            id => self.ids.get(id).or_else(|| self.ids.get(id.rsplit('/').next()?))?,
        };
        let pointer = match fragment {
            "" => base.to_owned(),
            path if path.starts_with('/') => {
                let path = percent_decoded(path);
                // Some generators escape names in pointers, others do not.
                let pointers = [format!("{base}{path}"), format!("{base}{fragment}")];
                pointers.into_iter().find(|pointer| self.root.pointer(pointer).is_some())?
            }
            anchor => self.anchors.get(anchor)?.clone(),
        };
        let target = self.root.pointer(&pointer)?;
        Some((pointer, target))
    }

    /// The reference in a schema: `$ref`, `$dynamicRef` or `$recursiveRef`.
    pub(crate) fn reference_in(map: &serde_json::Map<String, Value>) -> Option<&str> {
        ["$ref", "$dynamicRef", "$recursiveRef"]
            .iter()
            .find_map(|keyword| map.get(*keyword)?.as_str())
    }
}

/// Appends a segment to a JSON pointer.
pub(crate) fn push_segment(pointer: &mut String, segment: &str) {
    pointer.push('/');
    for c in segment.chars() {
        match c {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            c => pointer.push(c),
        }
    }
}

/// A JSON pointer with one more segment.
pub(crate) fn child(pointer: &str, segment: &str) -> String {
    let mut child = pointer.to_owned();
    push_segment(&mut child, segment);
    child
}

fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut decoded, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| bytes[at] == b'%') {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8(decoded).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_are_found_by_pointer_anchor_and_id() {
        let schema = json!({
            "$id": "https://example.com/tree.json",
            "$defs": {
                "a/b": {"type": "string"},
                "c d": {"$anchor": "spaced"},
                "T0": {"$id": "T0", "items": {"$ref": "T0"}},
                "100%": {},
            },
            "enum": [{"$anchor": "no-schema"}],
        });
        let references = References::new(&schema);
        let pointer = |reference: &str| references.resolve(reference).map(|(pointer, _)| pointer);
        for (reference, expected) in [
            ("#", ""),
            ("#/$defs/a~1b", "/$defs/a~1b"),
            ("#/$defs/c%20d", "/$defs/c d"),
            ("#/$defs/100%", "/$defs/100%"),
            ("#spaced", "/$defs/c d"),
            ("T0", "/$defs/T0"),
            ("T0#/items", "/$defs/T0/items"),
            ("tree.json#/$defs/T0", "/$defs/T0"),
            ("https://example.com/tree.json", ""),
        ] {
            assert_eq!(pointer(reference).as_deref(), Some(expected), "{reference}");
        }
        for reference in ["#/$defs/nothing", "#no-schema", "other.json", "#/"] {
            assert_eq!(pointer(reference), None, "{reference}");
        }
    }
}

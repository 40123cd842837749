//! `pattern` and `format`.

use serde_json::{Value, json};

use super::conditions::TYPES;
use super::{Object, Relaxer, allows, count};
use crate::schema::formats::FORMATS;
use crate::schema::patterns::{for_grammar, is_pattern, may_fit, widened};

/// Integer formats and their bounds.
const INTEGER_FORMATS: [(&str, i128, i128); 8] = [
    ("int8", i8::MIN as i128, i8::MAX as i128),
    ("int16", i16::MIN as i128, i16::MAX as i128),
    ("int32", i32::MIN as i128, i32::MAX as i128),
    ("int64", i64::MIN as i128, i64::MAX as i128),
    ("uint8", 0, u8::MAX as i128),
    ("uint16", 0, u16::MAX as i128),
    ("uint32", 0, u32::MAX as i128),
    ("uint64", 0, u64::MAX as i128),
];

impl<'a> Relaxer<'a> {
    /// Translates the keywords of strings, and integer formats. Returns `false` if no text matches
    /// the pattern.
    pub(super) fn relax_strings(
        &mut self,
        map: &'a Object,
        pointer: &str,
        out: &mut Object,
    ) -> bool {
        let format = map.get("format").and_then(Value::as_str);
        let is_enforced =
            format.is_some_and(|format| FORMATS.contains(&format)) && allows(map, "string");
        if let (true, Some(format)) = (is_enforced, format) {
            out.insert("format".into(), format.into());
        }
        let integer = INTEGER_FORMATS.iter().find(|(name, ..)| Some(*name) == format);
        if let (Some((_, min, max)), true) =
            (integer, allows(map, "integer") && map.contains_key("type"))
        {
            set_bound(out, ["minimum", "exclusiveMinimum"], *min);
            set_bound(out, ["maximum", "exclusiveMaximum"], *max);
        }
        let pattern = map.get("pattern").and_then(Value::as_str).filter(|_| allows(map, "string"));
        let Some(pattern) = pattern else { return true };
        if self.matches_nothing(pattern, pointer) {
            return false;
        }
        if let Some(pattern) = for_grammar(pattern) {
            out.insert("pattern".into(), pattern.into());
        } else if is_pattern(pattern) {
            self.note("pattern", pointer);
            let lengths = (count(map, "minLength").unwrap_or(0), count(map, "maxLength"));
            let is_bound = is_enforced || map.contains_key("enum") || map.contains_key("const");
            let wide =
                Some(pattern).filter(|_| !is_bound).and_then(|pattern| widened(pattern, lengths));
            if let Some(wide) = wide {
                out.insert("pattern".into(), wide.into());
            }
        } else {
            // The compiler of the schema reports the invalid pattern.
            out.insert("pattern".into(), pattern.into());
        }
        true
    }

    /// Whether a schema allows only strings, and none matches its pattern.
    pub(super) fn matches_no_string(&mut self, schema: &Value, pointer: &str) -> bool {
        let pattern = schema.get("pattern").and_then(Value::as_str);
        schema.get("type").is_some_and(|name| name == "string")
            && schema.get("nullable") != Some(&Value::Bool(true))
            && pattern.is_some_and(|pattern| self.matches_nothing(pattern, pointer))
    }

    /// Whether no text matches a pattern. Records it as the reason in case no value fits the whole
    /// schema.
    fn matches_nothing(&mut self, pattern: &str, pointer: &str) -> bool {
        let matches_nothing = !may_fit(pattern);
        if matches_nothing && self.unfit_pattern.is_none() {
            self.unfit_pattern = Some(format!(
                "no text matches the pattern {pattern:?} at #{pointer}: its anchors (^ and $) contradict each other; correct it, or leave it out"
            ));
        }
        matches_nothing
    }
}

/// Removes strings from the types of a schema. Returns `false` if no type remains.
pub(super) fn remove_strings(map: &Object, out: &mut Object) -> bool {
    let mut types: Vec<Value> = match out.get("type").or_else(|| map.get("type")) {
        Some(Value::Array(names)) => names.clone(),
        Some(name) => vec![name.clone()],
        None => TYPES.map(Value::from).to_vec(),
    };
    types.retain(|name| name != "string");
    let is_left = !types.is_empty();
    out.insert("type".into(), Value::Array(types));
    is_left
}

/// Sets a bound unless one exists.
fn set_bound(out: &mut Object, keywords: [&str; 2], value: i128) {
    let is_bound = keywords.iter().any(|keyword| out.contains_key(*keyword));
    let value = i64::try_from(value)
        .map(|value| json!(value))
        .or_else(|_| u64::try_from(value).map(|v| json!(v)));
    if let (false, Ok(value)) = (is_bound, value) {
        out.insert(keywords[0].into(), value);
    }
}

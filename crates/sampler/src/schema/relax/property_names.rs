//! `propertyNames`: translated to declared properties, or to a pattern of names.

use indexmap::IndexSet;
use serde_json::{Value, json};

use super::{MAX_REFERENCES, MAX_SCHEMAS, Object, Relaxer, allows, child, count};
use super::{fits_everything, fits_nothing};
use crate::schema::formats::{FORMATS, format_pattern};
use crate::schema::patterns::{for_grammar, is_pattern, widened};

/// Maximum number of patterns that are joined to one expression.
const MAX_PATTERNS: usize = 64;

/// Property names that a schema allows.
enum AllowedNames {
    /// Any name.
    Any,
    /// Exactly these names.
    Listed(Vec<String>),
    /// Names that match a pattern which grammars support, and whether the pattern is exact.
    Matching(String, bool),
    /// Names that only a check of the finished answer can decide.
    Undecided,
}

impl<'a> Relaxer<'a> {
    pub(super) fn property_names(
        &mut self,
        map: &'a Object,
        pointer: &str,
        part: bool,
        out: &mut Object,
    ) {
        let Some(names) = map.get("propertyNames") else { return };
        let is_enforced = match self.names(names, 0) {
            AllowedNames::Any => true,
            AllowedNames::Undecided => false,
            _ if part || out.contains_key("patternProperties") => false,
            AllowedNames::Listed(listed) => {
                list_names(listed.iter().map(String::as_str).collect(), out);
                true
            }
            AllowedNames::Matching(pattern, is_exact) => {
                self.restrict_names(names, &child(pointer, "propertyNames"), pattern, out)
                    && is_exact
            }
        };
        if !is_enforced {
            self.note("propertyNames", pointer);
        }
    }

    /// Names that fit a schema. `depth`: nesting depth of the schema.
    fn names(&mut self, schema: &'a Value, depth: usize) -> AllowedNames {
        self.schemas += 1;
        if depth > MAX_REFERENCES || self.schemas > MAX_SCHEMAS {
            return AllowedNames::Undecided;
        }
        let schema = self.referred(schema);
        if fits_everything(schema) {
            return AllowedNames::Any;
        }
        let Value::Object(map) = schema else { return AllowedNames::Listed(Vec::new()) };
        if fits_nothing(schema) || !allows(map, "string") {
            return AllowedNames::Listed(Vec::new());
        }
        let known: Vec<&str> =
            map.keys().map(String::as_str).filter(|keyword| super::is_known(keyword)).collect();
        let only = |keywords: &[&str]| known.iter().all(|k| *k == "type" || keywords.contains(k));
        let listed = match (map.get("const"), map.get("enum")) {
            (Some(value), _) => Some(vec![value]),
            (None, Some(Value::Array(values))) => Some(values.iter().collect()),
            _ => None,
        };
        if let Some(values) = listed {
            let mut names = Vec::new();
            for value in values {
                match (value.as_str(), self.validator.fits(schema, "", value)) {
                    (Some(name), Ok(true)) => names.push(name.to_owned()),
                    (None, _) | (_, Ok(false)) => {}
                    (_, Err(_)) => return AllowedNames::Undecided,
                }
            }
            return AllowedNames::Listed(names);
        }
        if only(&["pattern", "format", "minLength", "maxLength"]) {
            return matching_names(map);
        }
        let parts = ["allOf", "anyOf", "oneOf"]
            .into_iter()
            .find_map(|k| Some((k, map.get(k)?.as_array()?)));
        match parts {
            Some((keyword, parts))
                if only(&[keyword]) && (keyword != "allOf" || parts.len() == 1) =>
            {
                let parts: Vec<AllowedNames> =
                    parts.iter().map(|part| self.names(part, depth + 1)).collect();
                let patterns = parts
                    .iter()
                    .filter(|names| matches!(names, AllowedNames::Matching(..)))
                    .count();
                if patterns > MAX_PATTERNS {
                    return AllowedNames::Undecided;
                }
                parts.into_iter().reduce(AllowedNames::or).unwrap_or(AllowedNames::Undecided)
            }
            _ => AllowedNames::Undecided,
        }
    }

    /// Restricts names to a pattern. Returns `false` if declared properties prevent it.
    fn restrict_names(
        &mut self,
        names: &'a Value,
        pointer: &str,
        pattern: String,
        out: &mut Object,
    ) -> bool {
        let others = out.get("additionalProperties").cloned();
        let mut fits_some = false;
        if let Some(Value::Object(properties)) = out.get_mut("properties") {
            for (name, schema) in properties.iter_mut() {
                match self.validator.fits(names, pointer, &Value::from(name.as_str())) {
                    Ok(true) => fits_some = true,
                    Ok(false) => *schema = Value::Bool(false),
                    Err(_) => return false,
                }
            }
            if others.is_none() {
                return true;
            }
        }
        let others = others.unwrap_or(Value::Bool(true));
        // The schema for matching names would also apply to declared properties.
        if fits_some && !fits_everything(&others) {
            return others == Value::Bool(false);
        }
        out.insert("additionalProperties".into(), Value::Bool(false));
        if others != Value::Bool(false) {
            out.insert("patternProperties".into(), json!({pattern: others}));
        }
        true
    }
}

impl AllowedNames {
    /// Union of both sets of names.
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Any, _) | (_, Self::Any) => Self::Any,
            (Self::Undecided, _) | (_, Self::Undecided) => Self::Undecided,
            (Self::Listed(mut names), Self::Listed(others)) => {
                names.extend(others);
                Self::Listed(names)
            }
            (one, other) => {
                let ((one, is_exact), (other, is_other_exact)) = (one.pattern(), other.pattern());
                Self::Matching(format!("(?:{one})|(?:{other})"), is_exact && is_other_exact)
            }
        }
    }

    fn pattern(self) -> (String, bool) {
        match self {
            Self::Listed(names) => {
                let literal = |name: &String| {
                    name.chars().map(|c| format!("\\x{{{:x}}}", u32::from(c))).collect::<String>()
                };
                (format!("^(?:{})$", names.iter().map(literal).collect::<Vec<_>>().join("|")), true)
            }
            Self::Matching(pattern, is_exact) => (pattern, is_exact),
            Self::Any | Self::Undecided => (String::new(), false),
        }
    }
}

/// Names that `format`, `pattern` and lengths describe. Only the first of these is enforced.
fn matching_names(map: &Object) -> AllowedNames {
    let (min, max) = (count(map, "minLength").unwrap_or(0), count(map, "maxLength"));
    let format =
        map.get("format").and_then(Value::as_str).filter(|format| FORMATS.contains(format));
    let format = format.and_then(format_pattern).map(|pattern| (format!("^(?:{pattern})$"), true));
    let pattern = map.get("pattern").and_then(Value::as_str).filter(|pattern| is_pattern(pattern));
    let has_pattern = pattern.is_some();
    let pattern = pattern.and_then(|pattern| match for_grammar(pattern) {
        Some(pattern) => Some((pattern, true)),
        None => Some((widened(pattern, (min, max))?, false)),
    });
    let length = (min > 0 || max.is_some()).then(|| {
        let max = max.map_or(String::new(), |max| max.to_string());
        (format!("^(?s:.){{{min},{max}}}$"), true)
    });
    let asked = [format.is_some(), has_pattern, length.is_some()]
        .into_iter()
        .filter(|asked| *asked)
        .count();
    match (format.or(pattern).or(length), asked) {
        (None, 0) => AllowedNames::Any,
        (None, _) => AllowedNames::Undecided,
        (Some((pattern, is_exact)), asked) => {
            AllowedNames::Matching(pattern, is_exact && asked == 1)
        }
    }
}

/// Restricts an object to these names. Undeclared names get the schema of additional properties.
fn list_names(listed: IndexSet<&str>, out: &mut Object) {
    let others = out.shift_remove("additionalProperties").unwrap_or(Value::Bool(true));
    let properties = out.entry("properties").or_insert_with(|| Value::Object(Object::new()));
    let Value::Object(properties) = properties else { return };
    for (name, schema) in &mut *properties {
        if !listed.contains(name.as_str()) {
            *schema = Value::Bool(false);
        }
    }
    if others != Value::Bool(false) {
        for name in listed {
            properties.entry(name).or_insert_with(|| others.clone());
        }
    }
    out.insert("additionalProperties".into(), Value::Bool(false));
}

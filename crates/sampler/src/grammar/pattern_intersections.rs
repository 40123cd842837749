//! Limits the patterns that a JSON Schema requires of one text.
//!
//! `llguidance` intersects all patterns of a value: those of `allOf`, of references beside other
//! keywords, and of one property in several branches of `allOf`. While it reads the schema, it
//! checks that the intersection matches any text. One step of this check combines the alternatives
//! of all patterns, and the library counts steps only. So thirty patterns with two alternatives
//! each take a billion combinations.

use std::collections::HashMap;
use std::rc::Rc;

use serde_json::Value;

use crate::schema::keywords::{NAMED_SCHEMAS, SCHEMA_LISTS, SINGLE_SCHEMA};

/// Maximum product of the alternatives of all patterns of one text.
const MAX_COMBINATIONS: u64 = 20_000;
/// Alternatives that a `format` counts as.
const FORMAT_ALTERNATIVES: u64 = 4;
/// Maximum number of entries of all tables, which limits the work for schemas with many references.
const MAX_ENTRIES: usize = 500_000;
/// Keywords of which one applies, and those that apply instead of others.
const CHOICES: [&str; 5] = ["anyOf", "oneOf", "if", "then", "else"];

/// Combinations of alternatives by the place of a value within another one. Values of a place may
/// have to fit all patterns that stand there.
type Combinations = HashMap<String, u64>;

/// Checks a schema.
///
/// # Errors
/// A sentence about the place with too many patterns.
pub fn check(schema: &Value) -> Result<(), String> {
    let mut check = PatternCheck { root: schema, referred: HashMap::new(), entries: 0 };
    let all = check.combinations(schema)?;
    match all.iter().filter(|(_, count)| **count > MAX_COMBINATIONS).min() {
        None => Ok(()),
        Some((place, _)) => Err(format!(
            "a text at {:?} must match too many patterns at once: use fewer or simpler patterns for one value",
            if place.is_empty() { "/" } else { place }
        )),
    }
}

struct PatternCheck<'a> {
    root: &'a Value,
    /// Results by reference; `None` while the reference is followed.
    referred: HashMap<&'a str, Option<Rc<Combinations>>>,
    entries: usize,
}

impl<'a> PatternCheck<'a> {
    fn combinations(&mut self, schema: &'a Value) -> Result<Combinations, String> {
        let mut all = Combinations::new();
        let Value::Object(map) = schema else { return Ok(all) };
        for (keyword, value) in map {
            match (keyword.as_str(), value) {
                ("pattern", Value::String(pattern)) => {
                    multiply(&mut all, "", alternatives(pattern))
                }
                ("format", Value::String(_)) => multiply(&mut all, "", FORMAT_ALTERNATIVES),
                ("$ref", Value::String(name)) => {
                    if let Some(of_target) = self.referred(name)? {
                        self.join(&mut all, "", &of_target, u64::saturating_mul)?;
                    }
                }
                ("allOf", Value::Array(list)) => {
                    for schema in list {
                        let other = self.combinations(schema)?;
                        self.join(&mut all, "", &other, u64::saturating_mul)?;
                    }
                }
                (choice, value) if CHOICES.contains(&choice) => {
                    let one = std::slice::from_ref(value);
                    let mut largest = Combinations::new();
                    for schema in value.as_array().map_or(one, Vec::as_slice) {
                        let other = self.combinations(schema)?;
                        self.join(&mut largest, "", &other, u64::max)?;
                    }
                    self.join(&mut all, "", &largest, u64::saturating_mul)?;
                }
                ("$defs" | "definitions", _) => {}
                (named, Value::Object(schemas)) if NAMED_SCHEMAS.contains(&named) => {
                    for (name, schema) in schemas {
                        let other = self.combinations(schema)?;
                        self.join(&mut all, &format!("/{name}"), &other, u64::saturating_mul)?;
                    }
                }
                (single, Value::Object(_)) if SINGLE_SCHEMA.contains(&single) => {
                    let other = self.combinations(value)?;
                    self.join(&mut all, "/*", &other, u64::saturating_mul)?;
                }
                (list, Value::Array(schemas)) if SCHEMA_LISTS.contains(&list) => {
                    for (index, schema) in schemas.iter().enumerate() {
                        let other = self.combinations(schema)?;
                        self.join(&mut all, &format!("/{index}"), &other, u64::saturating_mul)?;
                    }
                }
                _ => {}
            }
        }
        Ok(all)
    }

    /// The combinations of a reference's target. `None` if the reference leads back to itself, or
    /// to no schema.
    fn referred(&mut self, name: &'a str) -> Result<Option<Rc<Combinations>>, String> {
        if let Some(known) = self.referred.get(name) {
            return Ok(known.clone());
        }
        let target = name.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
        let Some(target) = target else { return Ok(None) };
        self.referred.insert(name, None);
        let found = Rc::new(self.combinations(target)?);
        self.referred.insert(name, Some(found.clone()));
        Ok(Some(found))
    }

    /// Adds the combinations of a value at `place` to those of the value that contains it.
    fn join(
        &mut self,
        all: &mut Combinations,
        place: &str,
        other: &Combinations,
        combine: fn(u64, u64) -> u64,
    ) -> Result<(), String> {
        self.entries += other.len();
        if self.entries > MAX_ENTRIES {
            return Err("its references repeat too many patterns: use fewer of them".into());
        }
        for (within, count) in other {
            let known = all.entry(format!("{place}{within}")).or_insert(1);
            *known = combine(*known, *count);
        }
        Ok(())
    }
}

fn multiply(all: &mut Combinations, place: &str, count: u64) {
    let known = all.entry(place.to_owned()).or_insert(1);
    *known = known.saturating_mul(count);
}

/// Estimate of the alternatives for the next character of a pattern: one for each branch and each
/// repetition. A pattern alone is never too much.
fn alternatives(pattern: &str) -> u64 {
    let branches = pattern.bytes().filter(|byte| b"|?*+{".contains(byte)).count() as u64;
    (branches + 1).min(MAX_COMBINATIONS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn several_patterns_of_one_value_are_accepted() {
        let name = json!({"type": "string", "pattern": "^[a-z][a-z0-9-]*$"});
        let id = json!({"pattern": "^(a|b|c)[0-9]{2,9}$", "format": "uuid"});
        let branches: Vec<Value> = (0..200)
            .map(|n| json!({"properties": {"kind": {"const": n}, "id": {"$ref": "#/$defs/id"}, "name": {"$ref": "#/$defs/name"}}}))
            .collect();
        for schema in [
            json!({"oneOf": branches, "$defs": {"id": id, "name": name}}),
            json!({"allOf": [name, id, {"pattern": "x$"}]}),
            json!({"type": "string", "pattern": "a|".repeat(50_000)}),
            json!({"properties": (0..500).map(|n| (n.to_string(), name.clone())).collect::<serde_json::Map<_, _>>()}),
            json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"properties": {"name": name, "next": {"$ref": "#/$defs/tree"}}}}}),
        ] {
            assert_eq!(check(&schema), Ok(()), "{schema}");
        }
    }

    #[test]
    fn many_patterns_of_one_value_are_refused() {
        let patterns = |wrap: &dyn Fn(Value) -> Value| -> Value {
            let one =
                |n: usize| wrap(json!({"type": "string", "pattern": format!("(a|b){{{n},}}")}));
            json!({"allOf": (1..30).map(one).collect::<Vec<_>>()})
        };
        let direct = patterns(&|schema| schema);
        for schema in [
            patterns(&|schema| json!({"properties": {"a": {"items": schema}}})),
            patterns(&|schema| json!({"anyOf": [{"type": "null"}, schema]})),
            json!({"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"a": direct}}}}),
            json!({"items": {"items": direct.clone()}}),
            direct,
        ] {
            assert!(
                check(&schema).is_err_and(|error| error.contains("too many patterns")),
                "{schema}"
            );
        }
    }

    #[test]
    fn references_that_double_take_bounded_time() {
        let define = |n: usize| {
            let next = json!({"$ref": format!("#/$defs/{}", n + 1)});
            (n.to_string(), json!({"properties": {"a": next, "b": next}}))
        };
        let mut defs: serde_json::Map<String, Value> = (0..60).map(define).collect();
        defs.insert("60".into(), json!({"pattern": "a|b"}));
        let error = check(&json!({"$ref": "#/$defs/0", "$defs": defs})).unwrap_err();
        assert!(error.contains("references"), "{error}");
    }
}

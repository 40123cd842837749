//! Keywords of objects, except property names and counts.

use std::collections::HashSet;

use serde_json::Value;

use super::{Object, Relaxer, allows, child};
use crate::schema::patterns::{for_grammar, is_pattern};

/// Maximum number of properties of one object. If all are optional, each may follow each other one.
const MAX_PROPERTIES: usize = 2000;
/// Maximum number of `patternProperties` of one object. The grammar compares each pair of them.
const MAX_PATTERN_PROPERTIES: usize = 32;

impl<'a> Relaxer<'a> {
    pub(super) fn relax_objects(
        &mut self,
        map: &'a Object,
        pointer: &str,
        is_part: bool,
        out: &mut Object,
    ) -> Result<(), String> {
        if !allows(map, "object") {
            return Ok(());
        }
        let count = map.get("properties").and_then(Value::as_object).map_or(0, Object::len);
        if count > MAX_PROPERTIES {
            return Err(format!(
                "the object at #{pointer} has {count} properties, at most {MAX_PROPERTIES} are allowed: split it into several objects, or use additionalProperties"
            ));
        }
        self.pattern_properties(map, pointer, out)?;
        self.property_names(map, pointer, is_part, out);
        for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
            if map.get(keyword).and_then(Value::as_object).is_some_and(|all| !all.is_empty()) {
                self.note(keyword, pointer);
            }
        }
        if will_close(out, is_part) {
            let conditional = self.conditional_properties(map, pointer)?;
            let required = out.get("required").and_then(Value::as_array).into_iter().flatten();
            let required: Vec<String> =
                required.filter_map(Value::as_str).map(str::to_owned).collect();
            if let Some(Value::Object(properties)) = out.get_mut("properties") {
                let declared: HashSet<String> = properties.keys().cloned().collect();
                for (name, schema) in conditional {
                    match properties.get_mut(&name) {
                        Some(_) if declared.contains(&name) => {}
                        Some(known) => *known = either(known.take(), schema),
                        None => drop(properties.insert(name, schema)),
                    }
                }
                // A required but undeclared property accepts any value.
                for name in required {
                    properties.entry(name).or_insert(Value::Bool(true));
                }
            }
        }
        self.unevaluated_properties(map, pointer, out)
    }

    /// Translates `patternProperties`. If grammars do not support a pattern, its schema applies to
    /// all undeclared names.
    fn pattern_properties(
        &mut self,
        map: &'a Object,
        pointer: &str,
        out: &mut Object,
    ) -> Result<(), String> {
        let Some(Value::Object(named)) = map.get("patternProperties") else { return Ok(()) };
        if named.len() > MAX_PATTERN_PROPERTIES {
            return Err(format!(
                "the object at #{pointer} has {} patternProperties, at most {MAX_PATTERN_PROPERTIES} are allowed: join patterns with |, or use additionalProperties",
                named.len()
            ));
        }
        let inner = child(pointer, "patternProperties");
        let (mut written, mut unsupported): (Object, Option<Value>) = (Object::new(), None);
        for (pattern, schema) in named {
            let schema = self.schema(schema, &child(&inner, pattern), false)?;
            match for_grammar(pattern) {
                None if is_pattern(pattern) => {
                    self.note("patternProperties", pointer);
                    unsupported = Some(
                        unsupported
                            .map_or(schema.clone(), |unsupported| either(unsupported, schema)),
                    );
                }
                translated => {
                    let pattern = translated.unwrap_or_else(|| pattern.clone());
                    match written.get_mut(&pattern) {
                        Some(known) => *known = join("allOf", known.take(), schema),
                        None => drop(written.insert(pattern, schema)),
                    }
                }
            }
        }
        if !written.is_empty() {
            out.insert("patternProperties".into(), Value::Object(written));
        }
        if let Some(unsupported) = unsupported {
            let others = match out.shift_remove("additionalProperties") {
                None | Some(Value::Bool(_)) => unsupported,
                Some(others) => either(unsupported, others),
            };
            out.insert("additionalProperties".into(), others);
        }
        Ok(())
    }
}

/// Whether a relaxed object will be closed, since it lists properties and does not mention others.
pub(super) fn will_close(out: &Object, is_part: bool) -> bool {
    let says = |keyword: &str| out.contains_key(keyword);
    !is_part && says("properties") && !says("additionalProperties") && !says("patternProperties")
}

fn either(one: Value, other: Value) -> Value {
    if one == other { one } else { join("anyOf", one, other) }
}

/// Joins two schemas in a list. `one` may already be a list.
fn join(keyword: &str, mut one: Value, other: Value) -> Value {
    if let Value::Object(map) = &mut one
        && map.len() == 1
        && let Some(Value::Array(list)) = map.get_mut(keyword)
    {
        list.push(other);
        return one;
    }
    Value::Object(Object::from_iter([(keyword.to_owned(), Value::Array(vec![one, other]))]))
}

//! `unevaluatedProperties`: enforced if the evaluated properties are known.

use std::collections::HashSet;

use serde_json::Value;

use super::{Object, Relaxer, child};
use crate::schema::references::References;

/// Maximum number of schemas visited.
const MAX_STEPS: usize = 2000;

/// Properties that the schemas of a value evaluate.
#[derive(Default)]
struct EvaluatedNames {
    names: Vec<String>,
    /// Some schema evaluates properties that it does not name.
    has_others: bool,
    /// Some properties are evaluated only conditionally.
    has_conditions: bool,
    steps: usize,
    /// Visited schemas.
    seen: HashSet<*const Object>,
}

impl<'a> Relaxer<'a> {
    pub(super) fn unevaluated_properties(
        &mut self,
        map: &'a Object,
        pointer: &str,
        out: &mut Object,
    ) -> Result<(), String> {
        let Some(rest) = map.get("unevaluatedProperties") else { return Ok(()) };
        if map.contains_key("additionalProperties") || *rest == Value::Bool(true) {
            return Ok(());
        }
        let mut found = EvaluatedNames::default();
        let is_known = self.evaluated_names(map, true, &mut found);
        if found.has_others && !found.has_conditions && is_known {
            return Ok(());
        }
        let is_written = is_known
            && !found.has_others
            && !out.contains_key("patternProperties")
            && !out.contains_key("additionalProperties")
            && !self.refers_to_itself(map, pointer);
        if is_written {
            let rest = self.schema(rest, &child(pointer, "unevaluatedProperties"), false)?;
            let properties =
                out.entry("properties").or_insert_with(|| Value::Object(Object::new()));
            for name in found.names {
                if let Value::Object(properties) = &mut *properties {
                    properties.entry(name).or_insert(Value::Bool(true));
                }
            }
            out.insert("additionalProperties".into(), rest);
        }
        if !is_written || found.has_conditions {
            self.note("unevaluatedProperties", pointer);
        }
        Ok(())
    }

    /// Collects the properties that a schema evaluates. Returns `false` if that takes too long.
    /// `is_own`: the schema itself has the `unevaluatedProperties`.
    fn evaluated_names(&self, map: &'a Object, is_own: bool, found: &mut EvaluatedNames) -> bool {
        if !found.seen.insert(std::ptr::from_ref(map)) {
            return true;
        }
        found.steps += 1;
        if found.steps > MAX_STEPS {
            return false;
        }
        let named = map.get("properties").and_then(Value::as_object).into_iter().flatten();
        found.names.extend(named.map(|(name, _)| name.clone()));
        let others = ["patternProperties", "additionalProperties", "unevaluatedProperties"];
        let others = if is_own { &others[..1] } else { &others[..] };
        found.has_others |= others.iter().any(|keyword| map.contains_key(*keyword));
        let list = |keyword: &str| map.get(keyword).and_then(Value::as_array).into_iter().flatten();
        let referred =
            References::reference_in(map).and_then(|reference| self.references.resolve(reference));
        let all = referred.map(|(_, schema)| schema).into_iter().chain(list("allOf"));
        let mut is_known = true;
        for part in all.filter_map(Value::as_object) {
            is_known &= self.evaluated_names(part, false, found);
        }
        let conditional = ["if", "then", "else"].iter().filter_map(|keyword| map.get(*keyword));
        let dependent = ["dependentSchemas", "dependencies"].iter();
        let dependent = dependent.filter_map(|keyword| map.get(*keyword)?.as_object());
        let choices = list("anyOf").chain(list("oneOf")).chain(conditional);
        for part in
            choices.chain(dependent.flat_map(|named| named.values())).filter_map(Value::as_object)
        {
            let before = (found.names.len(), found.has_others);
            is_known &= self.evaluated_names(part, false, found);
            found.has_conditions |= before != (found.names.len(), found.has_others);
        }
        is_known
    }

    /// Whether a schema with a reference is reachable from that reference. No grammar exists for a
    /// cycle of this kind.
    fn refers_to_itself(&self, map: &'a Object, pointer: &str) -> bool {
        let mut left: Vec<&'a Value> = Vec::new();
        let own =
            References::reference_in(map).and_then(|reference| self.references.resolve(reference));
        let (mut seen, mut steps) = (HashSet::new(), 0);
        left.extend(own.map(|(_, schema)| schema));
        left.extend(["allOf", "anyOf", "oneOf"].iter().filter_map(|keyword| map.get(*keyword)));
        while let Some(schema) = left.pop() {
            steps += 1;
            if steps > MAX_STEPS {
                return true;
            }
            match schema {
                Value::Array(list) => left.extend(list),
                Value::Object(map) => {
                    left.extend(map.values());
                    let Some(reference) = References::reference_in(map) else { continue };
                    let Some((target, schema)) = self.references.resolve(reference) else {
                        continue;
                    };
                    if pointer.starts_with(&target) {
                        return true;
                    }
                    if seen.insert(target) {
                        left.push(schema);
                    }
                }
                _ => {}
            }
        }
        false
    }
}

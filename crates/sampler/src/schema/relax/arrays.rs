//! Keywords of arrays: `uniqueItems`, `contains` and `unevaluatedItems`.

use serde_json::{Value, json};

use super::{Object, Relaxer, allows, child, count};

impl<'a> Relaxer<'a> {
    pub(super) fn relax_arrays(
        &mut self,
        map: &'a Object,
        pointer: &str,
        out: &mut Object,
    ) -> Result<(), String> {
        if !allows(map, "array") {
            return Ok(());
        }
        let max = count(map, "maxItems");
        if map.get("uniqueItems") == Some(&Value::Bool(true)) && max.is_none_or(|max| max > 1) {
            self.note("uniqueItems", pointer);
            // Unique items cannot outnumber the possible values.
            let values = map.get("items").and_then(|items| self.count_values(items));
            if let Some(values) = values.filter(|values| max.is_none_or(|max| max > *values)) {
                out.insert("maxItems".into(), json!(values));
            }
        }
        if map.contains_key("contains") {
            let bound = |keyword: &str| count(map, keyword);
            let min = bound("minContains").unwrap_or(1);
            if min > 0 || bound("maxContains").is_some() {
                self.note("contains", pointer);
            }
            if bound("minItems").unwrap_or(0) < min {
                out.insert("minItems".into(), json!(min));
            }
        }
        self.unevaluated_items(map, pointer, out)
    }

    /// Number of values that fit a schema, if it enumerates them.
    fn count_values(&self, schema: &'a Value) -> Option<u64> {
        let schema = self.referred(schema);
        match (schema.get("enum"), schema.get("const"), schema.get("type")) {
            (Some(Value::Array(list)), ..) => u64::try_from(list.len()).ok(),
            (_, Some(_), _) => Some(1),
            (.., Some(Value::String(name))) if name == "boolean" => Some(2),
            _ => None,
        }
    }

    fn unevaluated_items(
        &mut self,
        map: &'a Object,
        pointer: &str,
        out: &mut Object,
    ) -> Result<(), String> {
        let Some(rest) = map.get("unevaluatedItems") else { return Ok(()) };
        let is_tuple = matches!(map.get("items"), Some(Value::Array(_)));
        let all = map.contains_key("items") && !is_tuple || map.contains_key("additionalItems");
        if all || *rest == Value::Bool(true) {
            return Ok(());
        }
        let others =
            ["allOf", "anyOf", "oneOf", "if", "contains", "$ref", "$dynamicRef", "$recursiveRef"];
        if others.iter().any(|keyword| map.contains_key(*keyword)) {
            self.note("unevaluatedItems", pointer);
            return Ok(());
        }
        let rest = self.schema(rest, &child(pointer, "unevaluatedItems"), false)?;
        out.insert(if is_tuple { "additionalItems" } else { "items" }.into(), rest);
        Ok(())
    }
}

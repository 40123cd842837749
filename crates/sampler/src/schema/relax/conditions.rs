//! `not`, `if`, and enumerated values.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{Object, Relaxer, allows, child, fits_everything, is_known};

pub(super) const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

impl<'a> Relaxer<'a> {
    /// Translates `not`. Returns `false` if no value remains.
    pub(super) fn relax_not(
        &mut self,
        map: &'a Object,
        pointer: &str,
        out: &mut Object,
    ) -> Result<bool, String> {
        let Some(denied) = map.get("not") else { return Ok(true) };
        if fits_everything(denied) {
            return Ok(false);
        }
        if *denied == Value::Bool(false) {
            return Ok(true);
        }
        if let Some(types) = types_without(map, denied) {
            out.insert("type".into(), json!(types));
            return Ok(!types.is_empty());
        }
        self.note("not", pointer);
        Ok(true)
    }

    pub(super) fn note_condition(&mut self, map: &'a Object, pointer: &str) {
        let mut parts = ["then", "else"].iter().filter_map(|keyword| map.get(*keyword));
        if map.contains_key("if") && !parts.all(fits_everything) {
            self.note("if", pointer);
        }
    }

    /// Keeps only enumerated values that fit the whole schema, so that its keywords need no check
    /// later. `listed`: number of unenforced keywords before this schema.
    pub(super) fn filter_values(
        &mut self,
        schema: &'a Value,
        pointer: &str,
        listed: usize,
        out: &mut Object,
    ) {
        let is_here = |place: &str| place.strip_prefix('#') == Some(pointer);
        if !self.unenforced[listed..].iter().any(|noted| is_here(&noted.place)) {
            return;
        }
        let values = match (out.get("const"), out.get("enum")) {
            (Some(value), _) => vec![value.clone()],
            (None, Some(Value::Array(values))) => values.clone(),
            _ => return,
        };
        let mut fitting = Vec::new();
        for value in values {
            match self.validator.fits(schema, pointer, &value) {
                Ok(true) => fitting.push(value),
                Ok(false) => {}
                Err(_) => return,
            }
        }
        let mut at = 0;
        self.unenforced.retain(|noted| {
            at += 1;
            at <= listed || !is_here(&noted.place)
        });
        out.shift_remove("const");
        out.insert("enum".into(), Value::Array(fitting));
    }

    /// Schemas of properties that apply conditionally, by name: the schemas of `then`, `else` and
    /// `dependentSchemas`, and conditionally required names.
    pub(super) fn conditional_properties(
        &mut self,
        map: &'a Object,
        pointer: &str,
    ) -> Result<Vec<(String, Value)>, String> {
        let mut parts: Vec<(String, &'a Value)> = Vec::new();
        if map.contains_key("if") {
            let keywords = ["then", "else"].into_iter();
            parts.extend(
                keywords.filter_map(|keyword| Some((child(pointer, keyword), map.get(keyword)?))),
            );
        }
        for keyword in ["dependentSchemas", "dependencies"] {
            let named = map.get(keyword).and_then(Value::as_object).into_iter().flatten();
            parts.extend(named.map(|(name, part)| (child(&child(pointer, keyword), name), part)));
        }
        let mut found: Vec<(String, Value)> = Vec::new();
        self.suppress_notes += 1;
        let done: Result<(), String> = parts.iter().try_for_each(|(pointer, part)| {
            let part = self.referred(part);
            for (name, schema) in
                part.get("properties").and_then(Value::as_object).into_iter().flatten()
            {
                let pointer = child(&child(pointer, "properties"), name);
                found.push((name.clone(), self.schema(schema, &pointer, false)?));
            }
            Ok(())
        });
        self.suppress_notes -= 1;
        done?;
        let mut known: HashSet<String> = found.iter().map(|(name, _)| name.clone()).collect();
        let lists = map.get("dependentRequired").and_then(Value::as_object).into_iter().flatten();
        let lists = lists.map(|(_, list)| list).chain(parts.iter().map(|(_, part)| *part));
        for list in lists {
            let names = list.as_array().or_else(|| list.get("required")?.as_array());
            for name in names.into_iter().flatten().filter_map(Value::as_str) {
                if known.insert(name.to_owned()) {
                    found.push((name.to_owned(), Value::Bool(true)));
                }
            }
        }
        Ok(found)
    }
}

/// Types that remain after a `not` that denies types only.
fn types_without(map: &Object, denied: &Value) -> Option<Vec<String>> {
    let denied = denied.as_object()?;
    if denied.keys().any(|keyword| keyword != "type" && is_known(keyword)) {
        return None;
    }
    // The type alone does not distinguish an integer from a fraction.
    let is_integer = allows(denied, "integer") && !allows(denied, "number");
    let own: Vec<&str> = match map.get("type") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => TYPES.to_vec(),
    };
    if is_integer && own.contains(&"number") {
        return None;
    }
    let is_denied =
        |name: &str| allows(denied, name) || (name == "integer" && allows(denied, "number"));
    Some(own.into_iter().filter(|name| !is_denied(name)).map(str::to_owned).collect())
}

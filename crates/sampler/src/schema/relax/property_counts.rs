//! `minProperties` and `maxProperties`: enforced if all properties are declared, or none is
//! optional.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::objects::will_close;
use super::{Object, Relaxer, allows};

/// Maximum number of branches for the properties of one object.
const MAX_BRANCHES: usize = 32;
/// Maximum number of branches for a whole schema.
const MAX_ALL_BRANCHES: usize = 256;

impl<'a> Relaxer<'a> {
    /// Translates the property counts of an object. `has_branches`: a subschema already has
    /// branches.
    pub(super) fn count_properties(
        &mut self,
        pointer: &str,
        is_part: bool,
        has_branches: bool,
        out: &mut Object,
    ) -> Result<(), String> {
        let bound = |keyword: &str| out.get(keyword).and_then(Value::as_u64);
        let (min, max) = (bound("minProperties").filter(|min| *min > 0), bound("maxProperties"));
        if min.is_none() {
            out.shift_remove("minProperties");
        }
        if (min, max) == (None, None) {
            return Ok(());
        }
        if !allows(out, "object") {
            out.shift_remove("minProperties");
            out.shift_remove("maxProperties");
            return Ok(());
        }
        let is_composed =
            is_part || ["$ref", "allOf", "anyOf", "oneOf"].iter().any(|key| out.contains_key(*key));
        let is_closed = will_close(out, is_part)
            || out.get("additionalProperties") == Some(&Value::Bool(false))
                && !out.contains_key("patternProperties");
        let required = out.get("required").and_then(Value::as_array).into_iter().flatten();
        let required: HashSet<&str> = required.filter_map(Value::as_str).collect();
        let declared = out.get("properties").and_then(Value::as_object);
        let declared =
            declared.into_iter().flatten().filter(|(_, schema)| **schema != Value::Bool(false));
        let optional: Vec<String> = declared
            .map(|(name, _)| name.clone())
            .filter(|name| !required.contains(name.as_str()))
            .collect();
        let required_count = required.len() as u64;
        if is_closed && !is_composed {
            return self.count_declared(
                pointer,
                has_branches,
                (required_count, &optional),
                (min, max),
                out,
            );
        }
        // Undeclared names may repeat, and a repeated name is a single property. So one more
        // property than required is the most that is certain.
        if !is_composed && optional.is_empty() {
            if min.is_some_and(|min| min > required_count + 1) {
                self.note("minProperties", pointer);
            }
            return Ok(());
        }
        for (keyword, is_asked) in [
            ("minProperties", min.is_some_and(|min| min > required_count)),
            ("maxProperties", max.is_some()),
        ] {
            out.shift_remove(keyword);
            if is_asked {
                self.note(keyword, pointer);
            }
        }
        Ok(())
    }

    /// Translates the counts of an object with declared properties only. `required_count`: number
    /// of required properties.
    fn count_declared(
        &mut self,
        pointer: &str,
        has_branches: bool,
        (required_count, optional): (u64, &[String]),
        (min, max): (Option<u64>, Option<u64>),
        out: &mut Object,
    ) -> Result<(), String> {
        let all = required_count + optional.len() as u64;
        if let Some(min) = min.filter(|min| *min > all) {
            return Err(format!(
                "minProperties {min} at #{pointer} exceeds the {all} allowed properties"
            ));
        }
        if let Some(max) = max.filter(|max| *max < required_count) {
            return Err(format!(
                "maxProperties {max} at #{pointer} is less than the {required_count} required properties"
            ));
        }
        out.shift_remove("minProperties");
        out.shift_remove("maxProperties");
        let min =
            min.filter(|min| *min > required_count).map(|min| (min - required_count) as usize);
        let max = max.filter(|max| *max < all).map(|max| (max - required_count) as usize);
        if (min, max) == (None, None) {
            return Ok(());
        }
        let is_object = out.get("type").is_some_and(|kind| kind == "object");
        let branches = Some(()).filter(|()| is_object && !has_branches);
        let branches = branches.and_then(|()| branches_of(optional, min, max));
        let branches =
            branches.filter(|branches| self.branches + branches.len() <= MAX_ALL_BRANCHES);
        match branches {
            Some(branches) => {
                self.branches += branches.len();
                out.insert("additionalProperties".into(), Value::Bool(false));
                out.insert("anyOf".into(), Value::Array(branches));
            }
            None => {
                let keywords = [("minProperties", min), ("maxProperties", max)];
                keywords
                    .iter()
                    .filter(|(_, n)| n.is_some())
                    .for_each(|(k, _)| self.note(k, pointer));
            }
        }
        Ok(())
    }
}

/// One schema for each choice of properties. `None` if there are too many choices.
fn branches_of(optional: &[String], min: Option<usize>, max: Option<usize>) -> Option<Vec<Value>> {
    let count = optional.len();
    let mut branches = Vec::new();
    let absent = |names: &mut dyn Iterator<Item = &String>| -> Object {
        names.map(|name| (name.clone(), Value::Bool(false))).collect()
    };
    let sizes = match (min, max) {
        (Some(min), Some(max)) => min..=max,
        (Some(size), None) | (None, Some(size)) => size..=size,
        (None, None) => return Some(branches),
    };
    for size in sizes {
        let mut chosen: Vec<usize> = (0..size).collect();
        loop {
            if branches.len() == MAX_BRANCHES {
                return None;
            }
            // The chosen positions are sorted.
            let is_chosen = |at: &usize| chosen.binary_search(at).is_ok();
            let required: Vec<&String> = chosen.iter().map(|at| &optional[*at]).collect();
            let last = chosen.last().copied().unwrap_or(0);
            let others = optional.iter().enumerate().filter(|(at, _)| !is_chosen(at));
            branches.push(match (min, max) {
                // The chosen properties are the first that are present. Later ones may be present
                // as well.
                (Some(_), None) => {
                    let mut before = others.filter(|(at, _)| *at < last).map(|(_, name)| name);
                    json!({"type": "object", "properties": absent(&mut before), "required": required})
                }
                (None, Some(_)) => {
                    json!({"type": "object", "properties": absent(&mut others.map(|(_, name)| name))})
                }
                _ => {
                    let properties = absent(&mut others.map(|(_, name)| name));
                    json!({"type": "object", "properties": properties, "required": required})
                }
            });
            // Next choice in lexicographic order.
            let Some(at) = (0..size).rev().find(|at| chosen[*at] < count - size + at) else {
                break;
            };
            chosen[at] += 1;
            for next in at + 1..size {
                chosen[next] = chosen[next - 1] + 1;
            }
        }
    }
    Some(branches)
}

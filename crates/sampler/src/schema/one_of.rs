//! Checks whether the branches of a `oneOf` exclude each other, so that no value fits two branches.
//!
//! If they do, `oneOf` equals `anyOf`, which a grammar can enforce. Otherwise a grammar cannot
//! enforce it.

use std::collections::HashSet;

use serde_json::Value;

use super::keywords::{NAMED_SCHEMAS, SAME_VALUE_SCHEMAS, SCHEMA_LISTS, SINGLE_SCHEMA};
use crate::constraint_size::MAX_CONSTRAINT_BYTES;

type Object = serde_json::Map<String, Value>;

/// Maximum number of references and subschemas followed in a row from one schema.
const MAX_REFERENCES: usize = 32;
/// Maximum number of comparisons of two schemas or two listed values. Schemas come from untrusted
/// clients.
const MAX_COMPARED: usize = 100_000;
/// Maximum number of required properties that are tried as the one that distinguishes all branches.
const MAX_DISCRIMINATORS: usize = 16;
/// Maximum number of schemas visited. A constraint has room for fewer.
const MAX_SCHEMAS: usize = MAX_CONSTRAINT_BYTES / 3;
/// Types of a JSON value. A set of types has the bit of each one's index.
const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
/// Set of all types.
const ANY_TYPE: u8 = (1 << TYPES.len()) - 1;
/// Set of the type `object`.
const OBJECT_TYPE: u8 = 1 << 5;

/// Looks for a `oneOf` of which a value may fit more than one branch. Considers types, constants,
/// enumerations, and properties that an object must or must not have.
///
/// # Errors
/// A sentence that names the keyword, its location, the branches, and how to make them exclusive.
pub fn check_one_of(schema: &Value) -> Result<(), String> {
    let mut check = ExclusionCheck { root: schema, compared: 0 };
    let (mut seen, mut left) = (HashSet::new(), vec![(schema, "#".to_owned())]);
    while let Some((schema, place)) = left.pop() {
        let Value::Object(map) = schema else { continue };
        if !seen.insert(std::ptr::from_ref(schema)) || seen.len() > MAX_SCHEMAS {
            continue;
        }
        if let Some(Value::Array(branches)) = map.get("oneOf") {
            check.branches(branches, &place)?;
        }
        for (keyword, value) in map {
            let (keyword, place) = (keyword.as_str(), format!("{place}/{keyword}"));
            match value {
                Value::Object(_) if SINGLE_SCHEMA.contains(&keyword) => left.push((value, place)),
                Value::Object(named) if NAMED_SCHEMAS.contains(&keyword) => {
                    left.extend(
                        named.iter().map(|(name, schema)| (schema, format!("{place}/{name}"))),
                    );
                }
                Value::Array(list)
                    if SCHEMA_LISTS.contains(&keyword) || SAME_VALUE_SCHEMAS.contains(&keyword) =>
                {
                    left.extend(
                        list.iter().enumerate().map(|(i, schema)| (schema, format!("{place}/{i}"))),
                    );
                }
                // The target may be anywhere in the schema.
                Value::String(name) if keyword == "$ref" => {
                    left.extend(check.referred(name).map(|schema| (schema, name.clone())));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

struct ExclusionCheck<'a> {
    root: &'a Value,
    compared: usize,
}

/// Checks whether the branches of several `oneOf` keywords exclude each other, within one shared
/// limit of comparisons.
pub(crate) struct OverlapChecker<'a>(ExclusionCheck<'a>);

impl<'a> OverlapChecker<'a> {
    pub(crate) fn new(root: &'a Value) -> Self {
        Self(ExclusionCheck { root, compared: 0 })
    }

    /// Whether the check proves that no value fits two of these branches.
    pub(crate) fn exclude_each_other(&mut self, branches: &'a [Value]) -> bool {
        self.0.branches(branches, "#").is_ok()
    }
}

impl<'a> ExclusionCheck<'a> {
    /// Resolves a reference within the schema.
    fn referred(&self, name: &str) -> Option<&'a Value> {
        self.root.pointer(name.strip_prefix('#')?)
    }

    fn branches(&mut self, branches: &'a [Value], place: &str) -> Result<(), String> {
        // A reference without a target is another error, which the compiler of the schema reports.
        let is_lost = |branch: &Value| {
            branch["$ref"].as_str().is_some_and(|name| self.referred(name).is_none())
        };
        if branches.iter().any(is_lost) {
            return Ok(());
        }
        if self.have_distinct_constants(branches) {
            return Ok(());
        }
        for (i, one) in branches.iter().enumerate() {
            for (j, other) in branches.iter().enumerate().skip(i + 1) {
                if self.exclude(one, other, MAX_REFERENCES) {
                    continue;
                }
                return Err(format!(
                    "\"oneOf\" at {place}: a value could match branches {i} and {j}: give them different types, or a required property with different \"const\", or use \"anyOf\""
                ));
            }
        }
        Ok(())
    }

    /// Whether all branches require one property, such as `type`, with other constants in each.
    /// Most schemas distinguish their branches like this, and no pairs need to be compared.
    fn have_distinct_constants(&self, branches: &'a [Value]) -> bool {
        let Some(objects) =
            branches.iter().map(|branch| self.resolve(branch)).collect::<Option<Vec<_>>>()
        else {
            return false;
        };
        let names = objects.first().and_then(|first| first.get("required")?.as_array());
        let names = names.into_iter().flatten().filter_map(Value::as_str);
        names.take(MAX_DISCRIMINATORS).any(|name| self.is_discriminator(name, &objects))
    }

    /// Whether all schemas are of objects that require this property, with other constants in each.
    fn is_discriminator(&self, name: &str, schemas: &[&'a Object]) -> bool {
        let mut seen = HashSet::new();
        schemas.iter().all(|schema| {
            let required = schema.get("required").and_then(Value::as_array);
            let constants = || {
                let property = self.resolve(schema.get("properties")?.get(name)?)?;
                values(property)?.iter().map(constant_key).collect::<Option<HashSet<_>>>()
            };
            types(schema) == OBJECT_TYPE
                && required.is_some_and(|names| names.iter().any(|required| required == name))
                && constants()
                    .is_some_and(|constants| constants.into_iter().all(|key| seen.insert(key)))
        })
    }

    /// The object of a schema behind its references.
    fn resolve(&self, schema: &'a Value) -> Option<&'a Object> {
        let mut schema = schema.as_object()?;
        for _ in 0..MAX_REFERENCES {
            let Some(name) = schema.get("$ref") else { return Some(schema) };
            schema = self.referred(name.as_str()?)?.as_object()?;
        }
        None
    }

    /// Whether the check proves that no value fits both schemas. `depth` limits the references and
    /// subschemas that it follows.
    fn exclude(&mut self, one: &'a Value, other: &'a Value, depth: usize) -> bool {
        self.compared += 1;
        if depth == 0 || self.compared > MAX_COMPARED {
            return false;
        }
        let (Value::Object(ours), Value::Object(theirs)) = (one, other) else {
            // `false` accepts nothing.
            return *one == Value::Bool(false) || *other == Value::Bool(false);
        };
        self.compared +=
            [ours, theirs].into_iter().filter_map(values).map(<[Value]>::len).sum::<usize>();
        self.list_different_values(ours, theirs)
            || types(ours) & types(theirs) == 0
            || self.exclude_by_property(ours, theirs, depth)
            || self.exclude_by_property(theirs, ours, depth)
            || self.parts_exclude(ours, other, depth)
            || self.parts_exclude(theirs, one, depth)
    }

    /// Whether both schemas list values and have none in common.
    fn list_different_values(&mut self, one: &Object, other: &Object) -> bool {
        let (Some(ours), Some(theirs)) = (values(one), values(other)) else { return false };
        self.compared = self.compared.saturating_add(ours.len().saturating_mul(theirs.len()));
        self.compared <= MAX_COMPARED
            && !ours.iter().any(|value| theirs.iter().any(|other| are_same(value, other)))
    }

    /// Whether `one` requires a property that `other` forbids, or for which the two allow no common
    /// value.
    fn exclude_by_property(&mut self, one: &'a Object, other: &'a Object, depth: usize) -> bool {
        // Properties do not restrict values that are not objects.
        if types(one) != OBJECT_TYPE || types(other) != OBJECT_TYPE {
            return false;
        }
        let closed = other.get("additionalProperties") == Some(&Value::Bool(false))
            && !other.contains_key("patternProperties");
        let property =
            |map: &'a Object, name: &str| map.get("properties").and_then(|all| all.get(name));
        let required = one.get("required").and_then(Value::as_array).into_iter().flatten();
        required.filter_map(Value::as_str).any(|name| {
            match (property(one, name), property(other, name)) {
                (_, None) => closed,
                (Some(ours), Some(theirs)) => self.exclude(ours, theirs, depth - 1),
                (None, Some(theirs)) => *theirs == Value::Bool(false),
            }
        })
    }

    /// Whether the subschemas of `one` exclude `other`: its reference, one of its `allOf`, or all
    /// branches of an `anyOf` or `oneOf`.
    fn parts_exclude(&mut self, one: &'a Object, other: &'a Value, depth: usize) -> bool {
        let referred = one.get("$ref").and_then(Value::as_str).and_then(|name| self.referred(name));
        if referred.is_some_and(|part| self.exclude(part, other, depth - 1)) {
            return true;
        }
        let list = |keyword: &str| one.get(keyword).and_then(Value::as_array);
        if list("allOf")
            .is_some_and(|parts| parts.iter().any(|part| self.exclude(part, other, depth - 1)))
        {
            return true;
        }
        let choices = ["anyOf", "oneOf"].into_iter().filter_map(list);
        choices
            .into_iter()
            .any(|parts| parts.iter().all(|part| self.exclude(part, other, depth - 1)))
    }
}

/// Set of the types that a schema itself allows. `integer` counts as `number`.
fn types(schema: &Object) -> u8 {
    let of_name = |name: &str| {
        let name = if name == "integer" { "number" } else { name };
        TYPES.iter().position(|kind| *kind == name).map_or(0, |index| 1 << index)
    };
    let declared: u8 = match schema.get("type") {
        Some(Value::String(name)) => of_name(name),
        Some(Value::Array(names)) => {
            names.iter().filter_map(Value::as_str).map(of_name).fold(0, |all, kind| all | kind)
        }
        _ => ANY_TYPE,
    };
    let Some(values) = values(schema) else { return declared };
    declared & values.iter().map(type_of).fold(0, |all, kind| all | kind)
}

/// Set of the type of a value.
fn type_of(value: &Value) -> u8 {
    1 << match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(_) => 2,
        Value::String(_) => 3,
        Value::Array(_) => 4,
        Value::Object(_) => 5,
    }
}

/// Values that a schema lists with `const` or `enum`.
fn values(schema: &Object) -> Option<&[Value]> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(std::slice::from_ref(value)),
        (None, Some(Value::Array(list))) => Some(list),
        _ => None,
    }
}

/// A text that is the same for equal constants; `None` for lists and objects. Numbers compare by
/// value.
fn constant_key(value: &Value) -> Option<String> {
    match value {
        Value::Array(_) | Value::Object(_) => None,
        // Adding zero turns -0 into 0.
        Value::Number(number) => number.as_f64().map(|number| format!("{:?}", number + 0.0)),
        _ => Some(value.to_string()),
    }
}

/// Whether two JSON values are equal. Numbers compare by value.
fn are_same(one: &Value, other: &Value) -> bool {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error(schema: &Value) -> Option<String> {
        check_one_of(schema).err()
    }

    #[test]
    fn exclusive_branches_are_accepted() {
        let cat = json!({"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]});
        let dog = json!({"type": "object", "properties": {"kind": {"enum": ["dog", "wolf"]}}, "required": ["kind"]});
        let refs = json!([{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}]);
        let closed = |name: &str| json!({"type": "object", "properties": {name: {"type": "string"}}, "required": [name], "additionalProperties": false});
        for branches in [
            json!([{"type": "string"}, {"type": "integer"}, {"type": ["null", "boolean"]}]),
            json!([{"const": 1}, {"enum": [2, "1", null]}]),
            json!([cat, dog]),
            json!([closed("a"), closed("b")]),
            json!([{"allOf": [cat, {"title": "x"}]}, {"anyOf": [dog, {"type": "string"}]}]),
            json!([false, true]),
            json!([{"type": "string"}]),
            refs.clone(),
        ] {
            let schema = json!({"$defs": {"cat": cat, "dog": dog}, "properties": {"pet": {"oneOf": branches}}});
            assert_eq!(error(&schema), None, "{schema}");
        }
        // A reference to a reference.
        let schema =
            json!({"oneOf": refs, "$defs": {"cat": {"$ref": "#/$defs/c"}, "c": cat, "dog": dog}});
        assert_eq!(error(&schema), None);
    }

    #[test]
    fn many_branches_with_distinct_constants_need_no_comparison_of_pairs() {
        let branch = |kind: Value| json!({"type": "object", "properties": {"id": {"type": "string"}, "kind": {"$ref": "#/$defs/kinds/0"}, "n": {"const": kind}}, "required": ["id", "kind", "n"]});
        let mut branches: Vec<Value> = (0..2000).map(|n| branch(json!(n))).collect();
        let schema =
            |branches: &[Value]| json!({"oneOf": branches, "$defs": {"kinds": [{"enum": ["a"]}]}});
        assert_eq!(error(&schema(&branches)), None);
        branches[1999] = json!({"$ref": "#/oneOf/1"});
        assert!(error(&schema(&branches)).unwrap().contains("branches"));
        branches[1999] = branch(json!(7.0));
        assert!(error(&schema(&branches)).unwrap().contains("branches"));
    }

    #[test]
    fn overlapping_branches_are_refused_with_their_location() {
        let open = |name: &str| json!({"type": "object", "properties": {name: {"type": "string"}}, "required": [name]});
        let kind =
            |value: &str| json!({"type": "object", "properties": {"kind": {"const": value}}});
        for branches in [
            json!([{"type": "number"}, {"type": "integer"}]),
            json!([{"const": 1}, {"enum": [1.0]}]),
            json!([open("a"), open("b")]),
            // Neither branch requires the property.
            json!([kind("cat"), kind("dog")]),
            json!([{"type": "string", "minLength": 2}, {"type": "string", "pattern": "^a"}]),
            json!([{}, {"type": "string"}]),
            json!([{"$ref": "#/$defs/loop"}, {"type": "string"}]),
            json!([{"type": "null"}, {"type": "string"}, {"enum": ["a", null]}]),
        ] {
            let schema =
                json!({"$defs": {"loop": {"$ref": "#/$defs/loop"}}, "items": {"oneOf": branches}});
            let error = error(&schema).unwrap_or_else(|| panic!("{schema}"));
            assert!(
                error.starts_with("\"oneOf\" at #/items: ") && error.contains("anyOf"),
                "{error}"
            );
        }
        assert_eq!(
            error(&json!({"oneOf": [{"$ref": "#/nowhere"}, {"type": "string"}]})),
            None,
            "it is no matter of this"
        );
        // At the location of the reference's target.
        let branches = json!([{"type": "string"}, {"const": "a"}]);
        let schema = json!({"$ref": "#/components/x", "components": {"x": {"oneOf": branches}}});
        assert!(error(&schema).unwrap().contains("at #/components/x: "));
        // A property that is named like a keyword is not a keyword.
        let names =
            json!({"properties": {"oneOf": {"type": "array"}}, "const": {"oneOf": [{}, {}]}});
        assert_eq!(error(&names), None);
    }

    #[test]
    fn hostile_schemas_take_bounded_time() {
        let names: Vec<Value> =
            (0..40).map(|n| json!({"$ref": format!("#/$defs/{}", (n + 1) % 40)})).collect();
        let defs: Object =
            (0..40).map(|n| (n.to_string(), json!({"allOf": names, "anyOf": names}))).collect();
        let begun = std::time::Instant::now();
        assert!(error(&json!({"oneOf": names, "$defs": defs})).is_some());
        // Long lists of different values, twice.
        let many = |from: usize| json!({"enum": (from..from + 300_000).collect::<Vec<_>>()});
        assert!(error(&json!({"oneOf": [many(0), many(1_000_000)]})).is_some());
        let few = |from: usize| json!({"enum": (from..from + 300).collect::<Vec<_>>()});
        let lists: Vec<Value> = (0..200).map(|n| few(1000 * n)).collect();
        assert!(error(&json!({"oneOf": lists})).is_some());
        // Long chains of references.
        let chain: Object = (0..100_000)
            .map(|n| (n.to_string(), json!({"$ref": format!("#/$defs/{}", n + 1)})))
            .collect();
        assert!(error(&json!({"$ref": "#/$defs/0", "$defs": chain})).is_none());
        assert!(begun.elapsed().as_secs() < 120, "{:?}", begun.elapsed());
    }
}

//! Relaxes a JSON Schema to what a grammar can enforce, and lists the keywords that are not fully
//! enforced.
//!
//! The relaxed schema has only keywords that grammars support. Other keywords are expressed by
//! those where possible (`propertyNames`, `nullable`, `{"not": {}}`). Keywords that cannot be
//! enforced token by token are removed and listed for a check of the finished answer. References
//! point to `$defs` or `definitions` of the root.

mod arrays;
mod conditions;
mod finite;
mod objects;
mod property_counts;
mod property_names;
mod strings;
mod unevaluated;
mod value_kinds;

use std::collections::{HashMap, HashSet};

use indexmap::IndexSet;
use serde_json::{Map, Value, json};

use super::one_of::OverlapChecker;
use super::references::{References, child};
use super::unenforced_keyword::UnenforcedKeyword;
use super::validate::Validator;
use crate::constraint_size::MAX_CONSTRAINT_BYTES;

type Object = Map<String, Value>;

/// Maximum number of schemas written. A constraint has room for fewer, but some may be written
/// repeatedly.
const MAX_SCHEMAS: usize = 200_000;
/// Maximum nesting depth of written schemas. Requests are less deep, but a schema may contain
/// itself.
const MAX_DEPTH: usize = 128;
/// Stack size of the thread that reads schemas. Only used pages take memory.
const STACK_BYTES: usize = 64 << 20;
/// Maximum count of characters, items and properties. No answer has more.
const MAX_COUNT: u64 = 1 << 31;
/// Maximum number of listed unenforced keywords.
const MAX_UNENFORCED: usize = 256;
/// Maximum length of a chain of references.
const MAX_REFERENCES: usize = 16;

/// Keywords that are copied.
const COPIED: [&str; 14] = [
    "const",
    "enum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "required",
    "minProperties",
    "maxProperties",
];
/// Keywords that count characters, items or properties.
const COUNTS: [&str; 8] = [
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minContains",
    "maxContains",
];
/// Keywords that hold one schema of a property or item.
const PART_SCHEMAS: [&str; 2] = ["additionalProperties", "additionalItems"];
/// Keywords that hold several schemas for the same value.
const SAME_VALUE_SCHEMAS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Keywords that have their own translation.
const OTHER_ASSERTIONS: [&str; 18] = [
    "nullable",
    "pattern",
    "format",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "unevaluatedItems",
    "unevaluatedProperties",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "$ref",
];

/// A schema that a grammar can enforce.
pub(crate) struct RelaxedSchema {
    /// The relaxed schema. Every value that fits the original fits it, except objects with
    /// undeclared properties where the original lists properties.
    pub(crate) schema: Value,
    /// Keywords of the original that it does not fully enforce.
    pub(crate) unenforced: Vec<UnenforcedKeyword>,
}

/// Relaxes a schema.
///
/// # Errors
/// A sentence about a schema that is too large, or that no value fits.
pub(crate) fn relax(root: &Value) -> Result<RelaxedSchema, String> {
    let bytes = root.to_string().len();
    if bytes > MAX_CONSTRAINT_BYTES {
        return Err(format!("it has {bytes} bytes, at most {MAX_CONSTRAINT_BYTES} are allowed"));
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("puna-schema".into()).stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, || relax_here(root));
        let thread =
            thread.map_err(|error| format!("cannot start a thread to read it: {error}"))?;
        thread.join().unwrap_or_else(|_| Err("it cannot be read".into()))
    })
}

fn relax_here(root: &Value) -> Result<RelaxedSchema, String> {
    let references = References::new(root);
    let own_names = root.get("$defs").and_then(Value::as_object);
    let mut relaxer = Relaxer {
        references: &references,
        validator: Validator::new(&references),
        overlaps: OverlapChecker::new(root),
        shared: HashSet::new(),
        unenforced: IndexSet::new(),
        suppress_notes: 0,
        definitions: HashMap::new(),
        own_names: own_names.into_iter().flatten().map(|(name, _)| name.as_str()).collect(),
        names: 0,
        pending_definitions: Vec::new(),
        schemas: 0,
        depth: 0,
        branches: 0,
        unfit_pattern: None,
    };
    relaxer.find_shared(root, false);
    let mut schema = match relaxer.schema(root, "", false)? {
        Value::Object(map) => map,
        _ => {
            let unfit = relaxer.unfit_pattern.take();
            let denied =
                || "no value matches it: it is false, or \"not\" excludes everything".into();
            return Err(unfit.unwrap_or_else(denied));
        }
    };
    while let Some((pointer, target, keyword, name)) = relaxer.pending_definitions.pop() {
        let relaxed = relaxer.schema(target, &pointer, false)?;
        let definitions = schema.entry(keyword).or_insert_with(|| json!({}));
        if let Value::Object(definitions) = definitions {
            definitions.insert(name, relaxed);
        }
    }
    let schema = Value::Object(schema);
    let pointers =
        relaxer.definitions.iter().map(|(pointer, written)| (written.as_str(), pointer.as_str()));
    finite::check_finite(&schema, &pointers.collect(), relaxer.unfit_pattern)?;
    Ok(RelaxedSchema { schema, unenforced: relaxer.unenforced.into_iter().collect() })
}

struct Relaxer<'a> {
    references: &'a References<'a>,
    validator: Validator<'a>,
    overlaps: OverlapChecker<'a>,
    /// Pointers of definitions that are referenced from one of several schemas for the same value.
    shared: HashSet<String>,
    unenforced: IndexSet<UnenforcedKeyword>,
    /// If above 0, keywords are not listed.
    suppress_notes: usize,
    /// Written references by the pointers of their targets.
    definitions: HashMap<String, String>,
    /// Names in the schema's own `$defs`.
    own_names: HashSet<&'a str>,
    /// Number of generated definition names.
    names: usize,
    /// Definitions to write: pointer, schema, keyword and name.
    pending_definitions: Vec<(String, &'a Value, &'static str, String)>,
    schemas: usize,
    /// Nesting depth of the current schema.
    depth: usize,
    /// Number of branches written for property counts.
    branches: usize,
    /// Sentence about the first pattern that no text matches. It is the reason if no value fits the
    /// whole schema.
    unfit_pattern: Option<String>,
}

impl<'a> Relaxer<'a> {
    /// Lists a keyword that the relaxed schema does not fully enforce.
    fn note(&mut self, keyword: &str, pointer: &str) {
        let noted = UnenforcedKeyword { keyword: keyword.to_owned(), place: format!("#{pointer}") };
        if self.suppress_notes == 0 && self.unenforced.len() < MAX_UNENFORCED {
            self.unenforced.insert(noted);
        }
    }

    /// Relaxes one schema. `is_part`: it is one of several schemas for the same value, so its
    /// objects stay open.
    fn schema(&mut self, schema: &'a Value, pointer: &str, is_part: bool) -> Result<Value, String> {
        self.schemas += 1;
        if self.schemas > MAX_SCHEMAS {
            return Err("it has too many references".into());
        }
        let Value::Object(map) = schema else { return Ok(schema.clone()) };
        if self.depth >= MAX_DEPTH {
            return Err(format!("it is nested too deeply: at most {MAX_DEPTH} levels are allowed"));
        }
        self.depth += 1;
        let relaxed = self.object_schema(schema, map, pointer, is_part);
        self.depth -= 1;
        relaxed
    }

    fn object_schema(
        &mut self,
        schema: &'a Value,
        map: &'a Object,
        pointer: &str,
        is_part: bool,
    ) -> Result<Value, String> {
        value_kinds::check_kinds(map, pointer)?;
        let is_part = is_part || self.is_composed(map) || self.shared.contains(pointer);
        let relaxed = match self.only_part(map) {
            Some(only) => self.schema(only, &child(&child(pointer, "allOf"), "0"), is_part)?,
            None => self.keywords(schema, map, pointer, is_part)?,
        };
        let is_nullable = map.get("nullable") == Some(&Value::Bool(true));
        Ok(if is_nullable { nullable(relaxed) } else { relaxed })
    }

    fn keywords(
        &mut self,
        schema: &'a Value,
        map: &'a Object,
        pointer: &str,
        is_part: bool,
    ) -> Result<Value, String> {
        let (listed, branches) = (self.unenforced.len(), self.branches);
        let mut out = Object::new();
        if let Some(reference) = References::reference_in(map) {
            match self.reference(reference) {
                Some(reference) => drop(out.insert("$ref".into(), reference.into())),
                None => return Ok(Value::Bool(false)),
            }
        }
        for (keyword, value) in map {
            if let Some(value) = self.keyword(map, keyword, value, pointer, is_part)? {
                out.insert(keyword.clone(), value);
            }
        }
        let allows_strings = self.relax_strings(map, pointer, &mut out);
        self.relax_arrays(map, pointer, &mut out)?;
        self.relax_objects(map, pointer, is_part, &mut out)?;
        self.count_properties(pointer, is_part, self.branches > branches, &mut out)?;
        let allows_values = self.relax_not(map, pointer, &mut out)?;
        if !allows_values || !allows_strings && !strings::remove_strings(map, &mut out) {
            return Ok(Value::Bool(false));
        }
        self.note_condition(map, pointer);
        self.filter_values(schema, pointer, listed, &mut out);
        Ok(Value::Object(out))
    }

    /// Translates a keyword. `None` if it is removed or translated elsewhere.
    fn keyword(
        &mut self,
        map: &'a Object,
        keyword: &str,
        value: &'a Value,
        pointer: &str,
        is_part: bool,
    ) -> Result<Option<Value>, String> {
        let inner = child(pointer, keyword);
        Ok(Some(match (keyword, value) {
            ("type", _) if self.is_implied_by_reference(map, value) => return Ok(None),
            ("type", _) => value.clone(),
            ("items", Value::Array(list)) | ("prefixItems", Value::Array(list)) => {
                self.schema_list(list, &inner, false)?
            }
            ("items", _) => self.schema(value, &inner, false)?,
            ("properties", Value::Object(named)) => {
                let mut properties = Object::new();
                for (name, schema) in named {
                    properties
                        .insert(name.clone(), self.schema(schema, &child(&inner, name), false)?);
                }
                Value::Object(properties)
            }
            ("properties" | "patternProperties" | "prefixItems", _) if !value.is_object() => {
                value.clone()
            }
            ("oneOf", Value::Array(list)) => {
                if !self.overlaps.exclude_each_other(list) {
                    self.note("oneOf", pointer);
                }
                self.schema_list(list, &inner, is_part)?
            }
            (_, Value::Array(list)) if SAME_VALUE_SCHEMAS.contains(&keyword) => {
                self.schema_list(list, &inner, is_part)?
            }
            _ if COPIED.contains(&keyword) && COUNTS.contains(&keyword) => {
                match count(map, keyword) {
                    Some(count) if count <= MAX_COUNT => count.into(),
                    _ if keyword.starts_with("max") => return Ok(None),
                    _ => {
                        return Err(format!("{keyword} {value} at #{pointer} is too large"));
                    }
                }
            }
            _ if SAME_VALUE_SCHEMAS.contains(&keyword) || COPIED.contains(&keyword) => {
                value.clone()
            }
            _ if PART_SCHEMAS.contains(&keyword) => self.schema(value, &inner, false)?,
            _ => return Ok(None),
        }))
    }

    fn schema_list(
        &mut self,
        list: &'a [Value],
        pointer: &str,
        is_part: bool,
    ) -> Result<Value, String> {
        let schemas = list.iter().enumerate();
        let schemas = schemas
            .map(|(i, schema)| self.schema(schema, &child(pointer, &i.to_string()), is_part));
        Ok(Value::Array(schemas.collect::<Result<_, _>>()?))
    }

    /// Translates a reference. `None` if no value fits its target.
    fn reference(&mut self, reference: &str) -> Option<String> {
        // The compiler of the schema reports the missing target.
        let Some((pointer, target)) = self.references.resolve(reference) else {
            return Some(reference.to_owned());
        };
        if fits_nothing(target) || self.matches_no_string(target, &pointer) {
            return None;
        }
        if pointer.is_empty() {
            return Some("#".into());
        }
        if let Some(known) = self.definitions.get(&pointer) {
            return Some(known.clone());
        }
        let is_plain = |name: &&str| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
        };
        let under = |keyword: &'static str| {
            let name = pointer.strip_prefix('/')?.strip_prefix(keyword)?.strip_prefix('/')?;
            Some((keyword, name)).filter(|(_, name)| is_plain(name))
        };
        let (keyword, name) = match under("$defs").or_else(|| under("definitions")) {
            Some((keyword, name)) => (keyword, name.to_owned()),
            None => ("$defs", self.free_name()),
        };
        let written = format!("#/{keyword}/{name}");
        self.definitions.insert(pointer.clone(), written.clone());
        self.pending_definitions.push((pointer, target, keyword, name));
        Some(written)
    }

    /// A definition name that the schema does not use.
    fn free_name(&mut self) -> String {
        loop {
            let name = format!("puna-{}", self.names);
            self.names += 1;
            if !self.own_names.contains(name.as_str()) {
                return name;
            }
        }
    }

    /// Follows references from schemas that contain nothing else.
    fn referred(&self, schema: &'a Value) -> &'a Value {
        let mut schema = schema;
        for _ in 0..MAX_REFERENCES {
            let Some(reference) = schema.as_object().and_then(References::reference_in) else {
                return schema;
            };
            let Some((_, target)) = self.references.resolve(reference) else { return schema };
            schema = target;
        }
        schema
    }

    /// The only schema of `allOf`, if the schema has no other assertion.
    fn only_part(&self, map: &'a Object) -> Option<&'a Value> {
        let [only] = map.get("allOf")?.as_array()?.as_slice() else { return None };
        let says_nothing = |(keyword, value): (&String, &Value)| match keyword.as_str() {
            "allOf" | "nullable" => true,
            "type" => self.referred(only).get("type") == Some(value),
            keyword => !is_known(keyword),
        };
        map.iter().all(says_nothing).then_some(only)
    }

    /// Whether the type beside a reference equals the target's type. Recursive references allow no
    /// keywords beside them.
    fn is_implied_by_reference(&self, map: &'a Object, types: &Value) -> bool {
        let target =
            References::reference_in(map).and_then(|reference| self.references.resolve(reference));
        target.is_some_and(|(_, target)| target.get("type") == Some(types))
    }

    /// Whether several keywords of a schema describe the properties of one value.
    fn is_composed(&self, map: &'a Object) -> bool {
        let parts =
            ["properties", "anyOf", "oneOf"].into_iter().filter(|k| map.contains_key(*k)).count();
        let parts = parts + usize::from(References::reference_in(map).is_some());
        map.contains_key("allOf") && self.only_part(map).is_none() || parts > 1
    }

    fn find_shared(&mut self, schema: &'a Value, is_part: bool) {
        let Value::Object(map) = schema else {
            return schema
                .as_array()
                .into_iter()
                .flatten()
                .for_each(|one| self.find_shared(one, false));
        };
        let is_part = is_part || self.is_composed(map);
        if let (true, Some(reference)) = (is_part, References::reference_in(map)) {
            self.shared.extend(self.references.resolve(reference).map(|(pointer, _)| pointer));
        }
        for (keyword, value) in map {
            match value {
                Value::Array(list) if SAME_VALUE_SCHEMAS.contains(&keyword.as_str()) => {
                    list.iter().for_each(|schema| self.find_shared(schema, is_part));
                }
                // Properties may have the names of keywords.
                Value::Object(named)
                    if ["properties", "$defs", "definitions"].contains(&keyword.as_str()) =>
                {
                    named.values().for_each(|schema| self.find_shared(schema, false));
                }
                _ if ["enum", "const", "default", "examples"].contains(&keyword.as_str()) => {}
                _ => self.find_shared(value, false),
            }
        }
    }
}

/// Reads a count, which may be written as a whole fraction such as 2.0.
fn count(map: &Object, keyword: &str) -> Option<u64> {
    let value = map.get(keyword)?;
    let is_whole =
        |number: &f64| number.fract() == 0.0 && (0.0..=MAX_COUNT as f64 + 1.0).contains(number);
    value.as_u64().or_else(|| value.as_f64().filter(is_whole).map(|number| number as u64))
}

/// Whether a keyword restricts values.
fn is_known(keyword: &str) -> bool {
    let others = ["type", "items", "prefixItems", "properties", "patternProperties", "$dynamicRef"];
    [&COPIED[..], &PART_SCHEMAS, &SAME_VALUE_SCHEMAS, &OTHER_ASSERTIONS, &others]
        .iter()
        .any(|known| known.contains(&keyword))
        || keyword == "$recursiveRef"
}

/// Whether a schema restricts nothing.
fn fits_everything(schema: &Value) -> bool {
    match schema {
        Value::Bool(fits) => *fits,
        Value::Object(map) => !map.keys().any(|keyword| is_known(keyword)),
        _ => false,
    }
}

/// Whether a schema obviously accepts no value.
fn fits_nothing(schema: &Value) -> bool {
    *schema == Value::Bool(false) || schema.get("not").is_some_and(fits_everything)
}

/// Whether a schema allows values of a type.
fn allows(map: &Object, kind: &str) -> bool {
    match map.get("type") {
        Some(Value::String(name)) => name == kind,
        Some(Value::Array(names)) => names.iter().any(|name| name == kind),
        _ => true,
    }
}

/// A schema that also accepts `null`.
fn nullable(schema: Value) -> Value {
    let Value::Object(mut map) = schema else {
        return json!({"anyOf": [schema, {"type": "null"}]});
    };
    let is_composed =
        ["$ref", "allOf", "anyOf", "oneOf", "const"].iter().any(|key| map.contains_key(*key));
    match map.get_mut("type") {
        Some(Value::String(name)) if !is_composed => {
            let types = json!([name, "null"]);
            map.insert("type".into(), types);
            Value::Object(map)
        }
        Some(Value::Array(names)) if !is_composed => {
            if !names.iter().any(|name| name == "null") {
                names.push("null".into());
            }
            Value::Object(map)
        }
        _ => {
            // Definitions stay at the location that references point to.
            json!({"anyOf": [map, {"type": "null"}]})
        }
    }
}

//! A JSON Schema as a grammar can enforce it, and the keywords of which that is not all.
//!
//! The relaxed schema has only keywords that grammars know. What can be said with those in another way is written so
//! (`propertyNames`, `nullable`, `{"not": {}}`). What cannot be enforced token by token is left out and listed: it is
//! checked on the finished answer. References lead to `$defs` or `definitions` of the root.

mod choices;
mod counts;
mod finite;
mod lists;
mod names;
mod objects;
mod texts;
mod unevaluated;
mod values;

use std::collections::{HashMap, HashSet};

use indexmap::IndexSet;
use serde_json::{Map, Value, json};

use super::UnenforcedKeyword;
use super::references::{References, child};
use super::validate::Validator;
use crate::grammar::{CONSTRAINT_BYTES_MAX, Overlaps};

type Object = Map<String, Value>;

/// Schemas that are written at most. No more fit into a constraint, but a part may be written more than once.
const SCHEMAS_MAX: usize = 200_000;
/// Schemas within each other that are written at most. Those of requests are less deep, but a part may stand within itself.
const DEPTH_MAX: usize = 128;
/// Bytes of the stack on which schemas are read; only what is used of it is memory.
const STACK_BYTES: usize = 64 << 20;
/// Characters, items and properties that are counted at most. No answer has more.
const COUNTED_MAX: u64 = 1 << 31;
/// Keywords that are listed at most.
const UNENFORCED_MAX: usize = 256;
/// References that are followed from one to the next at most.
const REFERENCES_MAX: usize = 16;

/// Keywords that are written as they are.
const KEPT: [&str; 14] = [
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
/// Keywords that hold one schema of a part of a value.
const PART: [&str; 2] = ["additionalProperties", "additionalItems"];
/// Keywords that hold several schemas of the same value.
const SAME: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Keywords that are read elsewhere than in their turn.
const NARROWING: [&str; 18] = [
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
    /// The schema; what fits the original fits it as well, but for what only widens an object that lists its properties.
    pub(crate) schema: Value,
    /// The keywords of the original that it does not say all of.
    pub(crate) unenforced: Vec<UnenforcedKeyword>,
}

/// Relaxes a schema.
///
/// # Errors
/// A sentence about a schema that is too large, or that no value fits.
pub(crate) fn relax(root: &Value) -> Result<RelaxedSchema, String> {
    let bytes = root.to_string().len();
    if bytes > CONSTRAINT_BYTES_MAX {
        return Err(format!("it has {bytes} bytes, of which {CONSTRAINT_BYTES_MAX} are read"));
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("puna-schema".into()).stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, || relax_here(root));
        let thread = thread.map_err(|error| format!("there is no thread to read it: {error}"))?;
        thread.join().unwrap_or_else(|_| Err("it cannot be read".into()))
    })
}

fn relax_here(root: &Value) -> Result<RelaxedSchema, String> {
    let references = References::new(root);
    let own_names = root.get("$defs").and_then(Value::as_object);
    let mut relaxer = Relaxer {
        references: &references,
        validator: Validator::new(&references),
        overlaps: Overlaps::new(root),
        shared: HashSet::new(),
        unenforced: IndexSet::new(),
        quiet: 0,
        definitions: HashMap::new(),
        own_names: own_names.into_iter().flatten().map(|(name, _)| name.as_str()).collect(),
        names: 0,
        waiting: Vec::new(),
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
            let denied = || "no value fits it: it is false, or \"not\" denies everything".into();
            return Err(unfit.unwrap_or_else(denied));
        }
    };
    while let Some((pointer, target, keyword, name)) = relaxer.waiting.pop() {
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
    overlaps: Overlaps<'a>,
    /// Pointers of schemas that are referred to as a part of what is said about a value.
    shared: HashSet<String>,
    unenforced: IndexSet<UnenforcedKeyword>,
    /// More than 0: nothing is listed.
    quiet: usize,
    /// References by the pointers of what they lead to.
    definitions: HashMap<String, String>,
    /// Names in the schema's own `$defs`.
    own_names: HashSet<&'a str>,
    /// Names that were made for definitions.
    names: usize,
    /// Definitions to write: pointer, schema, keyword and name.
    waiting: Vec<(String, &'a Value, &'static str, String)>,
    schemas: usize,
    /// How many schemas the one that is written stands within.
    depth: usize,
    /// Branches that were written for counts of properties.
    branches: usize,
    /// A sentence about the first pattern that no text fits: the reason where no value fits the whole schema.
    unfit_pattern: Option<String>,
}

impl<'a> Relaxer<'a> {
    /// Lists a keyword of which the relaxed schema does not say all.
    fn note(&mut self, keyword: &str, pointer: &str) {
        let noted = UnenforcedKeyword { keyword: keyword.to_owned(), place: format!("#{pointer}") };
        if self.quiet == 0 && self.unenforced.len() < UNENFORCED_MAX {
            self.unenforced.insert(noted);
        }
    }

    /// Relaxes one schema. `part`: it is a part of what is said about a value, so that its objects stay open.
    fn schema(&mut self, schema: &'a Value, pointer: &str, part: bool) -> Result<Value, String> {
        self.schemas += 1;
        if self.schemas > SCHEMAS_MAX {
            return Err("its parts refer to each other too often".into());
        }
        let Value::Object(map) = schema else { return Ok(schema.clone()) };
        if self.depth >= DEPTH_MAX {
            return Err(format!(
                "its parts are nested too deeply: more than {DEPTH_MAX} stand within each other"
            ));
        }
        self.depth += 1;
        let relaxed = self.object_schema(schema, map, pointer, part);
        self.depth -= 1;
        relaxed
    }

    fn object_schema(
        &mut self,
        schema: &'a Value,
        map: &'a Object,
        pointer: &str,
        part: bool,
    ) -> Result<Value, String> {
        values::check_kinds(map, pointer)?;
        let part = part || self.is_composed(map) || self.shared.contains(pointer);
        let relaxed = match self.only_part(map) {
            Some(only) => self.schema(only, &child(&child(pointer, "allOf"), "0"), part)?,
            None => self.keywords(schema, map, pointer, part)?,
        };
        let is_nullable = map.get("nullable") == Some(&Value::Bool(true));
        Ok(if is_nullable { nullable(relaxed) } else { relaxed })
    }

    fn keywords(
        &mut self,
        schema: &'a Value,
        map: &'a Object,
        pointer: &str,
        part: bool,
    ) -> Result<Value, String> {
        let (listed, branches) = (self.unenforced.len(), self.branches);
        let mut out = Object::new();
        if let Some(reference) = References::of(map) {
            match self.reference(reference) {
                Some(reference) => drop(out.insert("$ref".into(), reference.into())),
                None => return Ok(Value::Bool(false)),
            }
        }
        for (keyword, value) in map {
            if let Some(value) = self.keyword(map, keyword, value, pointer, part)? {
                out.insert(keyword.clone(), value);
            }
        }
        let has_texts = self.texts(map, pointer, &mut out);
        self.lists(map, pointer, &mut out)?;
        self.objects(map, pointer, part, &mut out)?;
        self.count_properties(pointer, part, self.branches > branches, &mut out)?;
        let is_left = self.denials(map, pointer, &mut out)?;
        if !is_left || !has_texts && !texts::remove_strings(map, &mut out) {
            return Ok(Value::Bool(false));
        }
        self.condition(map, pointer);
        self.filter_values(schema, pointer, listed, &mut out);
        Ok(Value::Object(out))
    }

    /// What a keyword is written as; `None` for one that is left out, or written elsewhere.
    fn keyword(
        &mut self,
        map: &'a Object,
        keyword: &str,
        value: &'a Value,
        pointer: &str,
        part: bool,
    ) -> Result<Option<Value>, String> {
        let inner = child(pointer, keyword);
        Ok(Some(match (keyword, value) {
            ("type", _) if self.is_said_by_reference(map, value) => return Ok(None),
            ("type", _) => value.clone(),
            ("items", Value::Array(list)) | ("prefixItems", Value::Array(list)) => {
                self.listed(list, &inner, false)?
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
                self.listed(list, &inner, part)?
            }
            (_, Value::Array(list)) if SAME.contains(&keyword) => {
                self.listed(list, &inner, part)?
            }
            _ if KEPT.contains(&keyword) && COUNTS.contains(&keyword) => {
                match count(map, keyword) {
                    Some(count) if count <= COUNTED_MAX => count.into(),
                    _ if keyword.starts_with("max") => return Ok(None),
                    _ => {
                        return Err(format!(
                            "{keyword} {value} at #{pointer} is more than any answer has"
                        ));
                    }
                }
            }
            _ if SAME.contains(&keyword) || KEPT.contains(&keyword) => value.clone(),
            _ if PART.contains(&keyword) => self.schema(value, &inner, false)?,
            _ => return Ok(None),
        }))
    }

    fn listed(&mut self, list: &'a [Value], pointer: &str, part: bool) -> Result<Value, String> {
        let schemas = list.iter().enumerate();
        let schemas =
            schemas.map(|(i, schema)| self.schema(schema, &child(pointer, &i.to_string()), part));
        Ok(Value::Array(schemas.collect::<Result<_, _>>()?))
    }

    /// The reference to write for one; `None` where no value fits what it leads to.
    fn reference(&mut self, reference: &str) -> Option<String> {
        // Whoever compiles the schema says that it leads nowhere.
        let Some((pointer, target)) = self.references.resolve(reference) else {
            return Some(reference.to_owned());
        };
        if fits_nothing(target) || self.has_no_text(target, &pointer) {
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
        self.waiting.push((pointer, target, keyword, name));
        Some(written)
    }

    /// A name for a definition that the schema does not have itself.
    fn free_name(&mut self) -> String {
        loop {
            let name = format!("puna-{}", self.names);
            self.names += 1;
            if !self.own_names.contains(name.as_str()) {
                return name;
            }
        }
    }

    /// The schema that another one refers to and says nothing more than, if it does.
    fn referred(&self, schema: &'a Value) -> &'a Value {
        let mut schema = schema;
        for _ in 0..REFERENCES_MAX {
            let Some(reference) = schema.as_object().and_then(References::of) else {
                return schema;
            };
            let Some((_, target)) = self.references.resolve(reference) else { return schema };
            schema = target;
        }
        schema
    }

    /// The only schema of `allOf`, where nothing but that is said about a value.
    fn only_part(&self, map: &'a Object) -> Option<&'a Value> {
        let [only] = map.get("allOf")?.as_array()?.as_slice() else { return None };
        let says_nothing = |(keyword, value): (&String, &Value)| match keyword.as_str() {
            "allOf" | "nullable" => true,
            "type" => self.referred(only).get("type") == Some(value),
            keyword => !is_known(keyword),
        };
        map.iter().all(says_nothing).then_some(only)
    }

    /// Whether the type beside a reference is that of what it leads to. Recursive references may not have anything beside
    /// them.
    fn is_said_by_reference(&self, map: &'a Object, types: &Value) -> bool {
        let target = References::of(map).and_then(|reference| self.references.resolve(reference));
        target.is_some_and(|(_, target)| target.get("type") == Some(types))
    }

    /// Whether a schema says more than one thing about the properties of a value.
    fn is_composed(&self, map: &'a Object) -> bool {
        let parts =
            ["properties", "anyOf", "oneOf"].into_iter().filter(|k| map.contains_key(*k)).count();
        let parts = parts + usize::from(References::of(map).is_some());
        map.contains_key("allOf") && self.only_part(map).is_none() || parts > 1
    }

    fn find_shared(&mut self, schema: &'a Value, part: bool) {
        let Value::Object(map) = schema else {
            return schema
                .as_array()
                .into_iter()
                .flatten()
                .for_each(|one| self.find_shared(one, false));
        };
        let part = part || self.is_composed(map);
        if let (true, Some(reference)) = (part, References::of(map)) {
            self.shared.extend(self.references.resolve(reference).map(|(pointer, _)| pointer));
        }
        for (keyword, value) in map {
            match value {
                Value::Array(list) if SAME.contains(&keyword.as_str()) => {
                    list.iter().for_each(|schema| self.find_shared(schema, part));
                }
                // Properties may be called like keywords.
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

/// A count, which may be written as a fraction of which nothing is left, such as 2.0.
fn count(map: &Object, keyword: &str) -> Option<u64> {
    let value = map.get(keyword)?;
    let is_whole =
        |number: &f64| number.fract() == 0.0 && (0.0..=COUNTED_MAX as f64 + 1.0).contains(number);
    value.as_u64().or_else(|| value.as_f64().filter(is_whole).map(|number| number as u64))
}

/// Whether a keyword says something about values.
fn is_known(keyword: &str) -> bool {
    let others = ["type", "items", "prefixItems", "properties", "patternProperties", "$dynamicRef"];
    [&KEPT[..], &PART, &SAME, &NARROWING, &others].iter().any(|known| known.contains(&keyword))
        || keyword == "$recursiveRef"
}

/// Whether a schema says nothing about values.
fn fits_everything(schema: &Value) -> bool {
    match schema {
        Value::Bool(fits) => *fits,
        Value::Object(map) => !map.keys().any(|keyword| is_known(keyword)),
        _ => false,
    }
}

/// Whether it is plain that no value fits a schema.
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

/// A schema that `null` fits as well.
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
            // Definitions stay where references find them.
            json!({"anyOf": [map, {"type": "null"}]})
        }
    }
}

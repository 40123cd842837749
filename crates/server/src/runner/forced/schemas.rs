//! Splits JSON Schemas into alternatives: the schema of a value becomes a choice of plain schemas
//! without references and compositions.

use std::cell::Cell;
use std::collections::HashSet;

use serde_json::{Map, Value, json};

pub(super) type Schema = Map<String, Value>;

/// Maximum depth of references and compositions.
const MAX_DEPTH: usize = 32;
/// Maximum number of alternatives of a schema.
const MAX_CHOICES: usize = 64;
/// Maximum number of schemas that apply together in one alternative.
const MAX_JOINED_SCHEMAS: usize = 32;
/// Maximum number of steps to split the schemas of a tool, because schemas come from untrusted
/// clients.
const MAX_STEPS: usize = 20_000;

/// Keywords about objects that the grammar cannot enforce if arguments are written one by one.
const UNSUPPORTED_KEYWORDS: [&str; 14] = [
    "patternProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedProperties",
    "not",
    "if",
    "then",
    "else",
    "const",
    "enum",
];

/// Keywords that [`Schemas::choices`] resolves.
const COMPOSITION_KEYWORDS: [&str; 6] = ["$ref", "allOf", "anyOf", "oneOf", "$defs", "definitions"];

/// Keywords that do not restrict values.
const ANNOTATION_KEYWORDS: [&str; 11] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "discriminator",
    "$comment",
    "$schema",
    "$id",
];

/// Types of JSON Schema. A number may be an integer.
pub(super) const TYPES: [&str; 7] =
    ["string", "integer", "number", "boolean", "null", "array", "object"];

/// One alternative: plain schemas, without references and compositions, that all apply.
#[derive(Debug, Clone, Default)]
pub(super) struct SchemaChoice(pub(super) Vec<Schema>);

impl SchemaChoice {
    /// Returns the types that a value may have; `None` if no schema restricts them.
    pub(super) fn types(&self) -> Option<Vec<&'static str>> {
        let mut all: Option<Vec<&'static str>> = None;
        for schema in &self.0 {
            let Some(own) = types(schema) else { continue };
            all = Some(match all {
                None => own,
                Some(all) => all.into_iter().filter(|name| own.contains(name)).collect(),
            });
        }
        all
    }

    fn and(&self, other: &Self) -> Self {
        let mut all = self.0.clone();
        all.extend(other.0.iter().filter(|schema| !self.0.contains(schema)).cloned());
        Self(all)
    }

    /// Returns one schema for this alternative, restricted to the given types.
    pub(super) fn schema(&self, types: &[&str]) -> Value {
        let only = |schema: &Schema| {
            let mut schema = schema.clone();
            schema.insert("type".into(), json!(types));
            Value::Object(schema)
        };
        match self.0.as_slice() {
            [] => json!({"type": types}),
            [one] => only(one),
            many => json!({"allOf": many.iter().map(only).collect::<Vec<_>>()}),
        }
    }
}

/// Returns the types that a type name includes.
fn types_of_name(name: &str) -> impl Iterator<Item = &'static str> {
    TYPES
        .into_iter()
        .filter(move |known| *known == name || (name == "number" && *known == "integer"))
}

/// Returns the types that one schema allows: the named ones, or the ones that its keywords refer
/// to.
fn types(schema: &Schema) -> Option<Vec<&'static str>> {
    let of = |value: &Value| match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let listed = match (schema.get("enum"), schema.get("const")) {
        (_, Some(value)) => Some(vec![of(value)]),
        (Some(Value::Array(values)), _) => Some(values.iter().map(of).collect::<Vec<_>>()),
        _ => None,
    };
    let declared: Option<Vec<&'static str>> = match schema.get("type") {
        Some(Value::String(name)) => Some(types_of_name(name).collect()),
        Some(Value::Array(names)) => {
            let names: HashSet<&str> =
                names.iter().filter_map(Value::as_str).flat_map(types_of_name).collect();
            Some(TYPES.into_iter().filter(|name| names.contains(name)).collect())
        }
        _ => None,
    };
    let has_keyword = |keys: &[&str]| keys.iter().any(|key| schema.contains_key(*key));
    match (declared, listed) {
        (Some(declared), Some(listed)) => {
            Some(declared.into_iter().filter(|name| listed.contains(name)).collect())
        }
        (Some(types), None) => Some(types),
        (None, Some(listed)) => {
            Some(TYPES.into_iter().filter(|name| listed.contains(name)).collect())
        }
        (None, None) if has_keyword(&["properties", "additionalProperties"]) => {
            Some(vec!["object"])
        }
        (None, None) if has_keyword(&["items", "prefixItems"]) => Some(vec!["array"]),
        (None, None) if has_keyword(&["minimum", "maximum", "multipleOf"]) => {
            Some(vec!["integer", "number"])
        }
        (None, None) => None,
    }
}

/// Schemas of one tool, with the number of steps used.
pub(super) struct Schemas<'a> {
    root: &'a Value,
    steps: Cell<usize>,
}

impl<'a> Schemas<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        Self { root, steps: Cell::new(0) }
    }

    /// Counts steps and returns an error beyond [`MAX_STEPS`].
    fn count_steps(&self, steps: usize) -> Result<(), String> {
        self.steps.set(self.steps.get().saturating_add(steps));
        match self.steps.get() <= MAX_STEPS {
            true => Ok(()),
            false => Err(format!(
                "their $ref, allOf, anyOf and oneOf take more than {MAX_STEPS} steps to resolve"
            )),
        }
    }

    /// Returns the alternatives of a schema.
    pub(super) fn choices(&self, schema: &Value) -> Result<Vec<SchemaChoice>, String> {
        self.choices_at(schema, 0)
    }

    fn choices_at(&self, schema: &Value, depth: usize) -> Result<Vec<SchemaChoice>, String> {
        let map = match schema {
            Value::Object(map) => map,
            Value::Bool(true) => return Ok(vec![SchemaChoice::default()]),
            Value::Bool(false) => return Ok(Vec::new()),
            _ => return Err(format!("a schema was expected, but found {schema}")),
        };
        if depth == MAX_DEPTH {
            return Err(format!(
                "$ref, allOf, anyOf and oneOf are nested more than {MAX_DEPTH} levels"
            ));
        }
        self.count_steps(1)?;
        let mut own = map.clone();
        own.retain(|key, _| {
            !ANNOTATION_KEYWORDS.contains(&key.as_str())
                && !COMPOSITION_KEYWORDS.contains(&key.as_str())
        });
        let mut all = vec![SchemaChoice(if own.is_empty() { Vec::new() } else { vec![own] })];
        let mut join = |more: Vec<SchemaChoice>| {
            if all.len() * more.len() > MAX_CHOICES {
                return Err(format!("anyOf and oneOf have more than {MAX_CHOICES} combinations"));
            }
            self.count_steps(all.len() * more.len())?;
            all = all.iter().flat_map(|one| more.iter().map(move |other| one.and(other))).collect();
            match all.iter().all(|choice| choice.0.len() <= MAX_JOINED_SCHEMAS) {
                true => Ok(()),
                false => Err(format!(
                    "allOf combines more than {MAX_JOINED_SCHEMAS} schemas for one value"
                )),
            }
        };
        if let Some(name) = map.get("$ref") {
            join(self.choices_at(self.target(name)?, depth + 1)?)?;
        }
        for part in list(map, "allOf") {
            join(self.choices_at(part, depth + 1)?)?;
        }
        for keyword in ["anyOf", "oneOf"].into_iter().filter(|keyword| map.contains_key(*keyword)) {
            let mut choices = Vec::new();
            for part in list(map, keyword) {
                choices.extend(self.choices_at(part, depth + 1)?);
                if choices.len() > MAX_CHOICES {
                    return Err(format!("{keyword} has more than {MAX_CHOICES} alternatives"));
                }
            }
            join(choices)?;
        }
        Ok(all)
    }

    fn target(&self, name: &Value) -> Result<&Value, String> {
        let target = name.as_str().and_then(|name| self.root.pointer(name.strip_prefix('#')?));
        target.ok_or_else(|| format!("$ref {name} has no target in the schema"))
    }

    /// Copies the root's definitions into a schema that may refer to them.
    pub(super) fn with_definitions(&self, mut schema: Value) -> Value {
        if !schema.to_string().contains("\"$ref\"") {
            return schema;
        }
        for keyword in ["$defs", "definitions"] {
            if let (Some(map), Some(definitions)) = (schema.as_object_mut(), self.root.get(keyword))
            {
                map.entry(keyword).or_insert_with(|| definitions.clone());
            }
        }
        schema
    }
}

fn list<'m>(map: &'m Schema, keyword: &str) -> impl Iterator<Item = &'m Value> {
    map.get(keyword).and_then(Value::as_array).into_iter().flatten()
}

/// Combines schemas that all apply into one `allOf`. Nested `allOf` schemas are flattened and
/// duplicates removed, so that recursive schemas reach the same combination again.
pub(super) fn all_of<'v>(schemas: impl IntoIterator<Item = &'v Value>) -> Value {
    let mut all: Vec<&Value> = Vec::new();
    for schema in schemas {
        let parts = schema.get("allOf").and_then(Value::as_array);
        let parts = parts.filter(|_| schema.as_object().is_some_and(|map| map.len() == 1));
        for part in parts.map_or_else(|| std::slice::from_ref(schema), Vec::as_slice) {
            if !all.contains(&part) {
                all.push(part);
            }
        }
    }
    match all.as_slice() {
        [one] => (*one).clone(),
        all => json!({"allOf": all}),
    }
}

/// Schema of an object with known properties.
#[derive(Debug, Clone, Default)]
pub(super) struct ObjectSchema {
    /// Properties in the order in which they are written.
    pub(super) properties: Vec<(String, Value)>,
    required: HashSet<String>,
    /// Schema of additional properties, if they are allowed.
    pub(super) additional: Option<Value>,
}

impl ObjectSchema {
    /// Returns the object that an alternative describes. Additional properties are allowed if the
    /// schema says so, or if it lists no properties.
    pub(super) fn of(choice: &SchemaChoice) -> Result<Self, String> {
        let mut object = Self::default();
        let (mut lists, mut others) = (false, Vec::new());
        for schema in &choice.0 {
            if let Some(keyword) =
                UNSUPPORTED_KEYWORDS.iter().find(|keyword| schema.contains_key(**keyword))
            {
                return Err(format!(
                    "{keyword} of an object cannot be enforced in this model's call format"
                ));
            }
            lists |= schema.contains_key("properties");
            for (name, property) in
                schema.get("properties").and_then(Value::as_object).into_iter().flatten()
            {
                match object.properties.iter_mut().find(|(known, _)| known == name) {
                    Some((_, known)) => *known = all_of([&*known, property]),
                    None => object.properties.push((name.clone(), property.clone())),
                }
            }
            object
                .required
                .extend(list(schema, "required").filter_map(Value::as_str).map(str::to_owned));
            others.extend(schema.get("additionalProperties").map(|others| (others, schema)));
        }
        for name in
            choice.0.iter().flat_map(|schema| list(schema, "required")).filter_map(Value::as_str)
        {
            if !object.properties.iter().any(|(known, _)| known == name) {
                object.properties.push((name.to_owned(), json!({})));
            }
        }
        for (others, schema) in &others {
            let is_listed =
                |name: &str| schema.get("properties").is_some_and(|own| own.get(name).is_some());
            let unlisted = object.properties.iter().find(|(name, _)| !is_listed(name));
            if let (false, Some((name, _))) = (**others == Value::Bool(true), unlisted) {
                return Err(format!(
                    "additionalProperties excludes or restricts {name:?}, which another schema lists"
                ));
            }
        }
        object.additional = match others.as_slice() {
            [] if lists => None,
            [] => Some(json!({})),
            [(others, _)] => Some((*others).clone()).filter(|others| *others != Value::Bool(false)),
            _ if others.iter().any(|(others, _)| **others == Value::Bool(false)) => None,
            _ => Some(all_of(others.iter().map(|(others, _)| *others))),
        };
        Ok(object)
    }

    pub(super) fn is_required(&self, name: &str) -> bool {
        self.required.contains(name)
    }
}

/// Name of the definition of a schema that allows any value.
const ANY_VALUE: &str = "puna-anything";

/// Adds a pattern to all strings in a schema, including places without a restriction.
pub(super) fn bind_strings(mut schema: Value, pattern: &str) -> Value {
    bind(&mut schema, pattern);
    for keyword in ["$defs", "definitions"] {
        let definitions = schema.get_mut(keyword).and_then(Value::as_object_mut);
        definitions.into_iter().flat_map(Map::values_mut).for_each(|schema| bind(schema, pattern));
    }
    if schema.to_string().contains(ANY_VALUE) {
        let anything = json!({"$ref": format!("#/$defs/{ANY_VALUE}")});
        schema["$defs"][ANY_VALUE] = json!({"anyOf": [
            {"type": ["number", "boolean", "null"]},
            {"type": "string", "pattern": pattern},
            {"type": "array", "items": anything},
            {"type": "object", "patternProperties": {pattern: anything}, "additionalProperties": false},
        ]});
    }
    schema
}

fn bind(schema: &mut Value, pattern: &str) {
    let anything = || json!({"$ref": format!("#/$defs/{ANY_VALUE}")});
    if *schema == Value::Bool(true) {
        *schema = anything();
    }
    let Value::Object(map) = schema else { return };
    for keyword in ["items", "additionalItems", "additionalProperties"] {
        map.get_mut(keyword).into_iter().for_each(|schema| bind(schema, pattern));
    }
    for keyword in ["properties", "patternProperties"] {
        let named = map.get_mut(keyword).and_then(Value::as_object_mut).into_iter();
        named.flat_map(Map::values_mut).for_each(|schema| bind(schema, pattern));
    }
    for keyword in ["prefixItems", "anyOf", "oneOf", "allOf"] {
        let listed = map.get_mut(keyword).and_then(Value::as_array_mut).into_iter();
        listed.flatten().for_each(|schema| bind(schema, pattern));
    }
    let has_keyword = |keyword: &str| map.contains_key(keyword);
    if ["$ref", "anyOf", "oneOf", "allOf", "enum", "const"].into_iter().any(has_keyword) {
        return;
    }
    let Some(types) = types(map) else {
        *schema = json!({"allOf": [schema.clone(), anything()]});
        return;
    };
    if types.contains(&"array") && !map.contains_key("items") && !map.contains_key("prefixItems") {
        map.insert("items".into(), anything());
    }
    // Property names are strings as well.
    if types.contains(&"object")
        && !map.contains_key("properties")
        && !map.contains_key("patternProperties")
    {
        let others = map.get("additionalProperties").cloned().unwrap_or_else(anything);
        if others != Value::Bool(false) {
            map.insert("patternProperties".into(), json!({pattern: others}));
            map.insert("additionalProperties".into(), false.into());
        }
    }
    if types.contains(&"string") {
        if map.contains_key("pattern") || map.contains_key("format") {
            map.insert("allOf".into(), json!([{"pattern": pattern}]));
        } else {
            map.insert("pattern".into(), pattern.into());
        }
    }
}

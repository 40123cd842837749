//! Declared tools of a request, and conversion of bare text to argument values by their schemas.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Map, Value as Json};

use super::python_literal::{literal, number};

/// Tools by name. Copies share the tools, since a parser is copied to peek at the next piece.
#[derive(Debug, Clone, Default)]
pub(super) struct Tools(Arc<[Tool]>);

#[derive(Debug)]
struct Tool {
    name: String,
    parameters: Json,
}

impl Tools {
    /// Reads tools of the form `{"type": "function", "function": {"name", "parameters", …}}`.
    pub(super) fn new(tools: &[Json]) -> Self {
        let one = |tool: &Json| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name")?.as_str()?.to_owned();
            Some(Tool {
                name,
                parameters: function.get("parameters").cloned().unwrap_or(Json::Null),
            })
        };
        Self(tools.iter().filter_map(one).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|tool| tool.name.as_str())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }

    /// Finds the tool in the start of a call: the value of `"name"`, or else the first whole word
    /// that is a tool's name. A name at the very end of the text may be incomplete and is ignored.
    pub(super) fn find_tool_name(&self, text: &str) -> Option<String> {
        const KEY: &str = "\"name\"";
        if let Some(at) = text.find(KEY) {
            let rest = text[at + KEY.len()..].trim_start().strip_prefix(':')?.trim_start();
            let (name, _) = rest.strip_prefix('"')?.split_once('"')?;
            return self.has(name).then(|| name.to_owned());
        }
        let of_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
        let place = |name: &str| {
            let is_whole = |at: &usize| {
                let mut behind = text[at + name.len()..].chars();
                !text[..*at].ends_with(of_word) && behind.next().is_some_and(|next| !of_word(next))
            };
            text.match_indices(name).map(|(at, _)| at).find(is_whole)
        };
        let names = self.names().filter(|name| !name.is_empty());
        let places = names
            .filter_map(|name| place(name).map(|at| (at, std::cmp::Reverse(name.len()), name)));
        places.min().map(|(_, _, name)| name.to_owned())
    }

    fn parameters(&self, name: &str) -> Option<&Json> {
        self.0.iter().find(|tool| tool.name == name).map(|tool| &tool.parameters)
    }

    /// The first required argument of a tool that is missing in `arguments`.
    pub(super) fn missing_argument(
        &self,
        name: &str,
        arguments: &Map<String, Json>,
    ) -> Option<String> {
        let required = self.parameters(name)?.get("required")?.as_array()?;
        let missing_argument = |key: &&str| !arguments.contains_key(*key);
        required.iter().filter_map(Json::as_str).find(missing_argument).map(str::to_owned)
    }

    /// Converts a text to a value of the argument's declared types. Without declared types, the
    /// value is a string.
    pub(super) fn value(&self, tool: &str, argument: &str, text: &str) -> Json {
        parse_value(text, &self.types(tool, argument))
    }

    /// Parses a text as a Python list or dict, if the tool declares a list or object.
    pub(super) fn python_value(&self, tool: &str, argument: &str, text: &str) -> Option<Json> {
        let types = self.types(tool, argument);
        let is_declared = |value: &Json| types.contains(&type_of(value));
        let begins = matches!(text.trim_start().as_bytes().first(), Some(b'[' | b'{'));
        literal(text).filter(|value| begins && is_declared(value))
    }

    /// The value of an empty text if only a list or only an object is declared.
    pub(super) fn empty_value(&self, tool: &str, argument: &str) -> Option<Json> {
        match self.types(tool, argument)[..] {
            ["object"] => Some(Json::Object(Map::new())),
            ["array"] => Some(Json::Array(Vec::new())),
            _ => None,
        }
    }

    /// Returns true if the argument is declared as a string only.
    pub(super) fn is_text(&self, tool: &str, argument: &str) -> bool {
        self.types(tool, argument) == ["string"]
    }

    fn types(&self, tool: &str, argument: &str) -> Vec<&str> {
        let mut found = Vec::new();
        if let Some(root) = self.parameters(tool) {
            let mut schemas = SchemaTypes { root, seen: HashSet::new() };
            if let Some(property) = schemas.property(root, argument, 0) {
                schemas.seen.clear();
                schemas.types(property, 0, &mut found);
            }
        }
        found
    }
}

/// Deepest nesting of references and combined schemas.
const MAX_SCHEMA_DEPTH: usize = 32;

/// Keywords for alternative or combined schemas of one value.
const COMBINERS: [&str; 3] = ["anyOf", "oneOf", "allOf"];

/// Collects the types that a schema allows.
struct SchemaTypes<'t> {
    root: &'t Json,
    /// Addresses of visited schemas. References may form cycles, and a second visit adds no types.
    seen: HashSet<*const Json>,
}

impl<'t> SchemaTypes<'t> {
    fn target(&self, schema: &Json) -> Option<&'t Json> {
        self.root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)
    }

    fn parts(schema: &'t Json) -> impl Iterator<Item = &'t Json> {
        COMBINERS.iter().filter_map(|key| schema.get(*key)?.as_array()).flatten()
    }

    /// The schema of an argument.
    fn property(&mut self, schema: &'t Json, name: &str, depth: usize) -> Option<&'t Json> {
        if depth == MAX_SCHEMA_DEPTH || !self.seen.insert(schema) {
            return None;
        }
        if let Some(own) = schema.get("properties").and_then(|all| all.get(name)) {
            return Some(own);
        }
        let mut inside = self.target(schema).into_iter().chain(Self::parts(schema));
        let other = inside.find_map(|part| self.property(part, name, depth + 1));
        other.or_else(|| schema.get("additionalProperties").filter(|schema| schema.is_object()))
    }

    /// Collects the types that a schema declares, itself or in its combined schemas.
    fn types(&mut self, schema: &'t Json, depth: usize, found: &mut Vec<&'t str>) {
        if !self.seen.insert(schema) {
            return;
        }
        let before = found.len();
        if depth < MAX_SCHEMA_DEPTH {
            let inside = self.target(schema).into_iter().chain(Self::parts(schema));
            inside.for_each(|part| self.types(part, depth + 1, found));
        }
        if found.len() > before {
            return;
        }
        let own: Vec<&str> = match (schema.get("type"), schema.get("enum"), schema.get("const")) {
            (Some(Json::String(one)), ..) => vec![one],
            (Some(Json::Array(all)), ..) => all.iter().filter_map(Json::as_str).collect(),
            (_, Some(Json::Array(values)), _) => values.iter().map(type_of).collect(),
            (.., Some(value)) => vec![type_of(value)],
            _ => implied_type(schema).into_iter().collect(),
        };
        for name in own {
            if !found.contains(&name) {
                found.push(name);
            }
        }
    }
}

fn type_of(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "boolean",
        Json::Number(number) if number.is_f64() => "number",
        Json::Number(_) => "integer",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    }
}

/// The type of a schema without `type`, derived from its other keywords.
fn implied_type(schema: &Json) -> Option<&'static str> {
    let says = |keys: &[&str]| keys.iter().any(|key| schema.get(*key).is_some());
    match () {
        () if says(&["properties", "additionalProperties"]) => Some("object"),
        () if says(&["items", "prefixItems"]) => Some("array"),
        () if says(&["minimum", "maximum", "multipleOf"]) => Some("number"),
        () => None,
    }
}

/// Converts a text to the first matching type in the order null, boolean, integer, number, array,
/// object, string.
fn parse_value(text: &str, types: &[&str]) -> Json {
    let may_be = |name: &str| types.contains(&name);
    // White space around a value is significant only in strings.
    let text = if types.is_empty() || may_be("string") { text } else { text.trim() };
    if text.eq_ignore_ascii_case("null") {
        return Json::Null;
    }
    if may_be("boolean") {
        if text.eq_ignore_ascii_case("true") {
            return Json::Bool(true);
        }
        if text.eq_ignore_ascii_case("false") || types.len() == 1 {
            return Json::Bool(false);
        }
    }
    if may_be("integer")
        && let Ok(number) = text.parse::<i64>()
    {
        return number.into();
    }
    if may_be("integer")
        && text.strip_prefix('-').unwrap_or(text).bytes().all(|b| b.is_ascii_digit())
        && let Ok(number @ Json::Number(_)) = serde_json::from_str(text)
    {
        return number;
    }
    if may_be("number")
        && let Some(number) = number(text)
    {
        return number;
    }
    let json = || serde_json::from_str::<Json>(text).ok();
    if may_be("array")
        && let Some(list) = json().filter(Json::is_array)
    {
        return list;
    }
    if may_be("object")
        && let Some(object) = json().filter(Json::is_object)
    {
        return object;
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cyclic_schema_references_are_fast() {
        let all: Vec<Json> =
            (0..60).map(|n| json!({"$ref": format!("#/$defs/{}", n % 20)})).collect();
        let defs: Map<String, Json> =
            (0..20).map(|n| (n.to_string(), json!({"anyOf": all, "allOf": all}))).collect();
        let ends = json!({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/0"}, {"type": ["null", "string"]}]});
        let parameters =
            json!({"properties": {"x": {"allOf": all}, "y": ends}, "allOf": all, "$defs": defs});
        let tools = Tools::new(&[json!({"name": "f", "parameters": parameters})]);
        let begun = std::time::Instant::now();
        assert_eq!(tools.value("f", "x", "1"), json!("1"));
        assert_eq!(tools.value("f", "nobody's", "1"), json!("1"));
        assert_eq!(tools.types("f", "y"), ["string", "null"]);
        assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
    }
}

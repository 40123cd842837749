//! The tools of a request, and values of arguments that come as bare text.

use std::sync::Arc;

use serde_json::{Map, Value as Json};

/// Tools by name. Copies share them: a parser is copied to see what the next piece would be.
#[derive(Debug, Clone, Default)]
pub(super) struct Tools(Arc<[Tool]>);

#[derive(Debug)]
struct Tool {
    name: String,
    parameters: Json,
}

impl Tools {
    /// Reads `{"type": "function", "function": {"name", "parameters", …}}`.
    pub(super) fn new(tools: &[Json]) -> Self {
        let one = |tool: &Json| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name")?.as_str()?.to_owned();
            Some(Tool { name, parameters: function.get("parameters").cloned().unwrap_or(Json::Null) })
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

    fn parameters(&self, name: &str) -> Option<&Json> {
        self.0.iter().find(|tool| tool.name == name).map(|tool| &tool.parameters)
    }

    /// A required argument of a tool that is not among `arguments`.
    pub(super) fn missing(&self, name: &str, arguments: &Map<String, Json>) -> Option<String> {
        let required = self.parameters(name)?.get("required")?.as_array()?;
        let missing = |key: &&str| !arguments.contains_key(*key);
        required.iter().filter_map(Json::as_str).find(missing).map(str::to_owned)
    }

    /// The value that a text stands for, by the types that the tool declares for the argument: with none it is a string.
    pub(super) fn value(&self, tool: &str, argument: &str, text: &str) -> Json {
        let property =
            self.parameters(tool).and_then(|p| p.get("properties")).and_then(|all| all.get(argument));
        typed(text, &property.map(types).unwrap_or_default())
    }

    /// Is the argument declared as a string and as nothing else?
    pub(super) fn is_text(&self, tool: &str, argument: &str) -> bool {
        let property =
            self.parameters(tool).and_then(|p| p.get("properties")).and_then(|all| all.get(argument));
        property.is_some_and(|property| types(property) == ["string"])
    }
}

/// The types that a property declares, or all those under `anyOf`.
fn types(property: &Json) -> Vec<&str> {
    fn of(schema: &Json) -> Vec<&str> {
        match schema.get("type") {
            Some(Json::String(one)) => vec![one],
            Some(Json::Array(all)) => all.iter().filter_map(Json::as_str).collect(),
            _ => Vec::new(),
        }
    }
    match property.get("anyOf").and_then(Json::as_array) {
        Some(any) if !any.is_empty() => any.iter().flat_map(of).collect(),
        _ => of(property),
    }
}

/// The first type that fits counts: null, boolean, integer, number, array, object; anything is a string.
fn typed(text: &str, types: &[&str]) -> Json {
    if text.eq_ignore_ascii_case("null") {
        return Json::Null;
    }
    let may_be = |name: &str| types.contains(&name);
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

/// A number; one without a fraction is an integer.
pub(super) fn number(text: &str) -> Option<Json> {
    if let Ok(whole) = text.parse::<i64>() {
        return Some(whole.into());
    }
    let number = text.parse::<f64>().ok()?;
    if number.fract() == 0.0 && number.abs() < 9e15 {
        return Some((number as i64).into());
    }
    serde_json::Number::from_f64(number).map(Json::Number)
}

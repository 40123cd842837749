//! Tools as Ollama decodes them: only known keys, in the order of Ollama's declarations. Models
//! were trained on these prompts. Property names keep the client's order; objects in other values
//! are sorted by key.

use serde_json::{Map, Value as Json};

/// A tool `{"type", "items"?, "function": {"name", "description"?, "parameters": {…}}}`.
pub(super) struct Tool(Json);

impl Tool {
    /// Reads a tool as the client sent it. A value of the wrong type counts as missing.
    pub(super) fn new(sent: &Json) -> Tool {
        let function = sent.get("function").unwrap_or(&Json::Null);
        let mut tool = JsonObjectBuilder::default();
        tool.set("type", text(sent, "type").into());
        tool.copy_sorted("items", sent);
        let mut inner = JsonObjectBuilder::default();
        inner.set("name", text(function, "name").into());
        inner.copy_string("description", function);
        inner.set("parameters", parameters(function.get("parameters").unwrap_or(&Json::Null)));
        tool.set("function", inner.into());
        Tool(tool.into())
    }

    /// The whole tool.
    pub(super) fn json(&self) -> &Json {
        &self.0
    }

    /// `{"name", "description"?, "parameters"}`
    pub(super) fn function(&self) -> &Json {
        &self.0["function"]
    }

    pub(super) fn name(&self) -> &str {
        text(self.function(), "name")
    }

    /// The description; empty if missing.
    pub(super) fn description(&self) -> &str {
        text(self.function(), "description")
    }

    /// `{"type", "$defs"?, "items"?, "required"?, "properties"}`; the properties may be null.
    pub(super) fn parameters(&self) -> &Json {
        &self.function()["parameters"]
    }

    /// The parameters by name. Each may have the keys `anyOf`, `type`, `items`, `description`,
    /// `enum`, `properties` and `required`.
    pub(super) fn properties(&self) -> Option<&Map<String, Json>> {
        self.parameters()["properties"].as_object()
    }
}

/// The string under a key; empty if missing.
pub(super) fn text<'j>(json: &'j Json, key: &str) -> &'j str {
    json.get(key).and_then(Json::as_str).unwrap_or_default()
}

/// The strings of a list under a key.
pub(super) fn texts<'j>(json: &'j Json, key: &str) -> impl Iterator<Item = &'j str> {
    json.get(key).and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str)
}

/// The types of a property.
pub(super) fn types(property: &Json) -> Vec<&str> {
    match property.get("type") {
        Some(Json::String(one)) => vec![one],
        _ => texts(property, "type").collect(),
    }
}

fn parameters(sent: &Json) -> Json {
    let mut object = JsonObjectBuilder::default();
    object.set("type", text(sent, "type").into());
    object.copy_sorted("$defs", sent);
    object.copy_sorted("items", sent);
    object.copy_strings("required", sent);
    object.set("properties", properties(sent).unwrap_or(Json::Null));
    object.into()
}

fn properties(sent: &Json) -> Option<Json> {
    let properties = sent.get("properties")?.as_object()?;
    Some(properties.iter().map(|(name, sent)| (name.clone(), property(sent))).collect())
}

fn property(sent: &Json) -> Json {
    let mut object = JsonObjectBuilder::default();
    if let Some(Json::Array(some)) =
        sent.get("anyOf").filter(|any| any.as_array().is_some_and(|a| !a.is_empty()))
    {
        object.set("anyOf", some.iter().map(property).collect());
    }
    match &types(sent)[..] {
        [] => {}
        [one] => object.set("type", (*one).into()),
        many => object.set("type", many.to_vec().into()),
    }
    object.copy_sorted("items", sent);
    object.copy_string("description", sent);
    if sent.get("enum").and_then(Json::as_array).is_some_and(|values| !values.is_empty()) {
        object.copy_sorted("enum", sent);
    }
    if let Some(properties) = properties(sent) {
        object.set("properties", properties);
    }
    object.copy_strings("required", sent);
    object.into()
}

/// Builds a JSON object.
#[derive(Default)]
struct JsonObjectBuilder(Map<String, Json>);

impl JsonObjectBuilder {
    fn set(&mut self, key: &str, value: Json) {
        self.0.insert(key.to_owned(), value);
    }

    /// Copies the value under a key with sorted objects, unless it is null.
    fn copy_sorted(&mut self, key: &str, sent: &Json) {
        if let Some(value) = sent.get(key).filter(|value| !value.is_null()) {
            let mut value = value.clone();
            value.sort_all_objects();
            self.set(key, value);
        }
    }

    /// Copies a non-empty string.
    fn copy_string(&mut self, key: &str, sent: &Json) {
        let text = text(sent, key);
        if !text.is_empty() {
            self.set(key, text.into());
        }
    }

    /// Copies a non-empty list of strings.
    fn copy_strings(&mut self, key: &str, sent: &Json) {
        let texts: Vec<&str> = texts(sent, key).collect();
        if !texts.is_empty() {
            self.set(key, texts.into());
        }
    }
}

impl From<JsonObjectBuilder> for Json {
    fn from(object: JsonObjectBuilder) -> Json {
        Json::Object(object.0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Tool;

    #[test]
    fn a_tool_has_the_known_keys_in_order() {
        let sent = json!({"function": {"strict": true, "parameters": {
            "additionalProperties": false, "$defs": {"z": 1, "a": {"c": 2, "b": 3}}, "required": ["q", 7], "type": "object",
            "properties": {"q": {"enum": ["x"], "type": ["string"], "default": 1, "anyOf": []}, "a": true}},
            "name": "f"}, "type": "function"});
        assert_eq!(
            Tool::new(&sent).json().to_string(),
            r#"{"type":"function","function":{"name":"f","parameters":{"type":"object","$defs":{"a":{"b":3,"c":2},"z":1},"required":["q"],"properties":{"q":{"type":"string","enum":["x"]},"a":{}}}}}"#
        );
        let nothing =
            r#"{"type":"","function":{"name":"","parameters":{"type":"","properties":null}}}"#;
        for sent in [
            json!(null),
            json!({"function": []}),
            json!({"type": 7, "function": {"parameters": "p"}}),
        ] {
            assert_eq!(Tool::new(&sent).json().to_string(), nothing);
        }
    }
}

//! Tools as Ollama decodes them: only the keys that it knows, in the order of its declarations. Models were trained on
//! prompts made that way. The names of properties keep the client's order; objects in free places are sorted by key.

use serde_json::{Map, Value as Json};

/// A tool `{"type", "items"?, "function": {"name", "description"?, "parameters": {…}}}`.
pub(super) struct Tool(Json);

impl Tool {
    /// A tool as the client sent it; what has the wrong type counts as missing.
    pub(super) fn new(sent: &Json) -> Tool {
        let function = sent.get("function").unwrap_or(&Json::Null);
        let mut tool = Object::default();
        tool.set("type", text(sent, "type").into());
        tool.set_free("items", sent);
        let mut inner = Object::default();
        inner.set("name", text(function, "name").into());
        inner.set_text("description", function);
        inner.set("parameters", parameters(function.get("parameters").unwrap_or(&Json::Null)));
        tool.set("function", inner.into());
        Tool(tool.into())
    }

    /// All of it.
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

    /// Empty where there is none.
    pub(super) fn description(&self) -> &str {
        text(self.function(), "description")
    }

    /// `{"type", "$defs"?, "items"?, "required"?, "properties"}`; the properties may be null.
    pub(super) fn parameters(&self) -> &Json {
        &self.function()["parameters"]
    }

    /// The parameters by name, each `{"anyOf"?, "type"?, "items"?, "description"?, "enum"?, "properties"?, "required"?}`.
    pub(super) fn properties(&self) -> Option<&Map<String, Json>> {
        self.parameters()["properties"].as_object()
    }
}

/// The text under a key, empty where there is none.
pub(super) fn text<'j>(json: &'j Json, key: &str) -> &'j str {
    json.get(key).and_then(Json::as_str).unwrap_or_default()
}

/// The texts of a list under a key.
pub(super) fn texts<'j>(json: &'j Json, key: &str) -> impl Iterator<Item = &'j str> {
    json.get(key).and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str)
}

/// The types of a property: one, or several.
pub(super) fn types(property: &Json) -> Vec<&str> {
    match property.get("type") {
        Some(Json::String(one)) => vec![one],
        _ => texts(property, "type").collect(),
    }
}

fn parameters(sent: &Json) -> Json {
    let mut object = Object::default();
    object.set("type", text(sent, "type").into());
    object.set_free("$defs", sent);
    object.set_free("items", sent);
    object.set_texts("required", sent);
    object.set("properties", properties(sent).unwrap_or(Json::Null));
    object.into()
}

fn properties(sent: &Json) -> Option<Json> {
    let properties = sent.get("properties")?.as_object()?;
    Some(properties.iter().map(|(name, sent)| (name.clone(), property(sent))).collect())
}

fn property(sent: &Json) -> Json {
    let mut object = Object::default();
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
    object.set_free("items", sent);
    object.set_text("description", sent);
    if sent.get("enum").and_then(Json::as_array).is_some_and(|values| !values.is_empty()) {
        object.set_free("enum", sent);
    }
    if let Some(properties) = properties(sent) {
        object.set("properties", properties);
    }
    object.set_texts("required", sent);
    object.into()
}

/// An object in the making.
#[derive(Default)]
struct Object(Map<String, Json>);

impl Object {
    fn set(&mut self, key: &str, value: Json) {
        self.0.insert(key.to_owned(), value);
    }

    /// Takes over whatever is under a key, unless it is null.
    fn set_free(&mut self, key: &str, sent: &Json) {
        if let Some(value) = sent.get(key).filter(|value| !value.is_null()) {
            let mut value = value.clone();
            value.sort_all_objects();
            self.set(key, value);
        }
    }

    /// Takes over a text that is not empty.
    fn set_text(&mut self, key: &str, sent: &Json) {
        let text = text(sent, key);
        if !text.is_empty() {
            self.set(key, text.into());
        }
    }

    /// Takes over a list of texts that is not empty.
    fn set_texts(&mut self, key: &str, sent: &Json) {
        let texts: Vec<&str> = texts(sent, key).collect();
        if !texts.is_empty() {
            self.set(key, texts.into());
        }
    }
}

impl From<Object> for Json {
    fn from(object: Object) -> Json {
        Json::Object(object.0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Tool;

    #[test]
    fn a_tool_has_the_known_keys_in_their_order() {
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

//! Where addresses of images stand in requests.

use serde_json::{Value, json};

use super::is_link;

/// An address in a request.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    value: &'a mut Value,
    form: Form,
}

#[derive(Debug, Clone, Copy)]
enum Form {
    /// A text, which may be data as well.
    Text,
    /// Anthropic's source of an image.
    Source,
}

impl<'a> Place<'a> {
    fn new(value: &'a mut Value, form: Form) -> Option<Self> {
        let place = Self { value, form };
        is_link(place.url()).then_some(place)
    }

    /// The address.
    pub(super) fn url(&self) -> &str {
        let value = match self.form {
            Form::Text => &*self.value,
            Form::Source if self.value["type"] == "url" => &self.value["url"],
            Form::Source => &Value::Null,
        };
        value.as_str().unwrap_or_default()
    }

    /// Puts the image in its stead.
    pub(super) fn put(self, image: &[u8]) {
        let data = puna_api::base64_encode(image);
        *self.value = match self.form {
            Form::Text => format!("data:;base64,{data}").into(),
            Form::Source => json!({"type": "base64", "data": data}),
        };
    }
}

/// Those in the content of messages and results of OpenAI's dialects.
pub(crate) fn in_openai<'a>(contents: impl Iterator<Item = &'a mut Value>) -> Vec<Place<'a>> {
    let parts = contents.filter_map(Value::as_array_mut).flatten();
    let place = |part: &'a mut Value| {
        if !matches!(part["type"].as_str(), Some("image_url" | "input_image")) {
            return None;
        }
        let image = part.get_mut("image_url")?;
        Place::new(if image.is_object() { image.get_mut("url")? } else { image }, Form::Text)
    };
    parts.filter_map(place).collect()
}

/// Those in the content of Anthropic's messages, and in the results of tools there.
pub(crate) fn in_messages<'a>(contents: impl Iterator<Item = &'a mut Value>) -> Vec<Place<'a>> {
    let mut places = Vec::new();
    for block in contents.filter_map(Value::as_array_mut).flatten() {
        if block["type"] == "tool_result" {
            let inside = block.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten();
            places.extend(inside.filter_map(source));
        } else {
            places.extend(source(block));
        }
    }
    places
}

fn source(block: &mut Value) -> Option<Place<'_>> {
    if block["type"] != "image" {
        return None;
    }
    Place::new(block.get_mut("source")?, Form::Source)
}

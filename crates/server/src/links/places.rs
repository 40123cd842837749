//! Where addresses of images stand in requests.

use serde_json::{Value, json};

use super::is_link;

/// Who a message is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Author {
    Assistant,
    /// A tool that answers a call.
    Tool,
    /// The user, or whoever instructs the model.
    Other,
}

impl Author {
    /// The author of a message with this role.
    pub(crate) fn of_role(role: &str) -> Self {
        match role.to_ascii_lowercase().as_str() {
            "assistant" => Self::Assistant,
            "tool" => Self::Tool,
            _ => Self::Other,
        }
    }
}

/// The content of a message, and its author.
pub(crate) type Content<'a> = (Author, &'a mut Value);

/// An address in a request.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    value: &'a mut Value,
    form: Form,
    /// It stands in the newest turn, and in no tool result.
    is_newest: bool,
}

#[derive(Debug, Clone, Copy)]
enum Form {
    /// A text, which may be data as well.
    Text,
    /// Anthropic's source of an image.
    Source,
}

impl<'a> Place<'a> {
    fn new(value: &'a mut Value, form: Form, is_newest: bool) -> Option<Self> {
        let place = Self { value, form, is_newest };
        is_link(place.url()).then_some(place)
    }

    /// Whether the model is to answer it now. Other addresses stand in earlier turns or in tool results.
    pub(crate) fn is_newest(&self) -> bool {
        self.is_newest
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
pub(crate) fn in_openai<'a>(contents: Vec<Content<'a>>) -> Vec<Place<'a>> {
    let parts = with_age(contents);
    let place = |(is_newest, part): (bool, &'a mut Value)| {
        if !matches!(part["type"].as_str(), Some("image_url" | "input_image")) {
            return None;
        }
        let image = part.get_mut("image_url")?;
        Place::new(
            if image.is_object() { image.get_mut("url")? } else { image },
            Form::Text,
            is_newest,
        )
    };
    parts.filter_map(place).collect()
}

/// Those in the content of Anthropic's messages, and in the results of tools there.
pub(crate) fn in_messages(contents: Vec<Content<'_>>) -> Vec<Place<'_>> {
    let mut places = Vec::new();
    for (is_newest, block) in with_age(contents) {
        if block["type"] == "tool_result" {
            let inside =
                block.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten();
            places.extend(inside.filter_map(|block| source(block, false)));
        } else {
            places.extend(source(block, is_newest));
        }
    }
    places
}

fn source(block: &mut Value, is_newest: bool) -> Option<Place<'_>> {
    if block["type"] != "image" {
        return None;
    }
    Place::new(block.get_mut("source")?, Form::Source, is_newest)
}

/// The parts of messages, and whether they are of the newest turn. The beginning of an answer at the end of a conversation is
/// no answer.
fn with_age<'a>(contents: Vec<Content<'a>>) -> impl Iterator<Item = (bool, &'a mut Value)> {
    let is_answer = |(author, _): &Content<'a>| *author == Author::Assistant;
    let end = contents.iter().rposition(|content| !is_answer(content)).map_or(0, |at| at + 1);
    let newest = contents[..end].iter().rposition(is_answer).map_or(0, |at| at + 1);
    contents.into_iter().enumerate().flat_map(move |(at, (author, content))| {
        let is_newest = at >= newest && author == Author::Other;
        content.as_array_mut().into_iter().flatten().map(move |part| (is_newest, part))
    })
}

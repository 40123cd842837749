//! Finds image URLs in requests of each dialect.

use serde_json::{Value, json};

use super::is_http_url;

/// Author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Author {
    Assistant,
    /// A tool result.
    Tool,
    /// The user, the system or a developer.
    Other,
}

impl Author {
    /// Author for a message role.
    pub(crate) fn of_role(role: &str) -> Self {
        match role.to_ascii_lowercase().as_str() {
            "assistant" => Self::Assistant,
            "tool" => Self::Tool,
            _ => Self::Other,
        }
    }
}

/// Author and content of a message.
pub(crate) type MessageContent<'a> = (Author, &'a mut Value);

/// An image URL in a request.
#[derive(Debug)]
pub(crate) struct ImageUrl<'a> {
    value: &'a mut Value,
    form: UrlForm,
    /// Whether it belongs to the newest turn and not to a tool result.
    is_newest: bool,
}

#[derive(Debug, Clone, Copy)]
enum UrlForm {
    /// A text, which may also be a data URL.
    Text,
    /// Anthropic's `source` object of an image.
    Source,
}

impl<'a> ImageUrl<'a> {
    fn new(value: &'a mut Value, form: UrlForm, is_newest: bool) -> Option<Self> {
        let image_url = Self { value, form, is_newest };
        is_http_url(image_url.url()).then_some(image_url)
    }

    /// Whether the URL belongs to the newest turn. Others are in earlier turns or in tool results.
    pub(crate) fn is_newest(&self) -> bool {
        self.is_newest
    }

    /// The URL.
    pub(super) fn url(&self) -> &str {
        let value = match self.form {
            UrlForm::Text => &*self.value,
            UrlForm::Source if self.value["type"] == "url" => &self.value["url"],
            UrlForm::Source => &Value::Null,
        };
        value.as_str().unwrap_or_default()
    }

    /// Replaces the URL by the image data.
    pub(super) fn replace_with(self, image: &[u8]) {
        let data = puna_api::base64_encode(image);
        *self.value = match self.form {
            UrlForm::Text => format!("data:;base64,{data}").into(),
            UrlForm::Source => json!({"type": "base64", "data": data}),
        };
    }
}

/// URLs in messages and tool results of OpenAI's dialects.
pub(crate) fn in_openai<'a>(contents: Vec<MessageContent<'a>>) -> Vec<ImageUrl<'a>> {
    let parts = parts_with_turn(contents);
    let image_url = |(is_newest, part): (bool, &'a mut Value)| {
        if !matches!(part["type"].as_str(), Some("image_url" | "input_image")) {
            return None;
        }
        let image = part.get_mut("image_url")?;
        ImageUrl::new(
            if image.is_object() { image.get_mut("url")? } else { image },
            UrlForm::Text,
            is_newest,
        )
    };
    parts.filter_map(image_url).collect()
}

/// URLs in messages of Anthropic's dialect, including its tool results.
pub(crate) fn in_anthropic(contents: Vec<MessageContent<'_>>) -> Vec<ImageUrl<'_>> {
    let mut urls = Vec::new();
    for (is_newest, block) in parts_with_turn(contents) {
        if block["type"] == "tool_result" {
            let inside =
                block.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten();
            urls.extend(inside.filter_map(|block| source(block, false)));
        } else {
            urls.extend(source(block, is_newest));
        }
    }
    urls
}

fn source(block: &mut Value, is_newest: bool) -> Option<ImageUrl<'_>> {
    if block["type"] != "image" {
        return None;
    }
    ImageUrl::new(block.get_mut("source")?, UrlForm::Source, is_newest)
}

/// Content parts of messages, each with whether it belongs to the newest turn. A prefilled answer
/// at the end of the conversation does not end that turn.
fn parts_with_turn<'a>(
    contents: Vec<MessageContent<'a>>,
) -> impl Iterator<Item = (bool, &'a mut Value)> {
    let is_answer = |(author, _): &MessageContent<'a>| *author == Author::Assistant;
    let end = contents.iter().rposition(|content| !is_answer(content)).map_or(0, |at| at + 1);
    let newest = contents[..end].iter().rposition(is_answer).map_or(0, |at| at + 1);
    contents.into_iter().enumerate().flat_map(move |(at, (author, content))| {
        let is_newest = at >= newest && author == Author::Other;
        content.as_array_mut().into_iter().flatten().map(move |part| (is_newest, part))
    })
}

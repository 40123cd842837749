//! Messages of OpenAI's chats.

use schemars::JsonSchema;

/// Text, a list of parts, or nothing beside tool calls.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum OpenAiContent {
    Text(String),
    Parts(Vec<OpenAiPart>),
}

/// A part of a message.
#[derive(JsonSchema)]
pub struct OpenAiPart {
    /// `text`, `refusal`, `image_url` or `input_audio`.
    r#type: String,
    /// Of a `text`: the text.
    text: Option<String>,
    /// Of a `refusal`: its text.
    refusal: Option<String>,
    /// Of an `image_url`: the image.
    image_url: Option<OpenAiImage>,
    /// Of an `input_audio`: the sound.
    input_audio: Option<OpenAiAudio>,
}

/// An image.
#[derive(JsonSchema)]
pub struct OpenAiImage {
    /// `data:image/png;base64,…`; an address where the server's `image_urls` is on.
    url: String,
}

/// A sound.
#[derive(JsonSchema)]
pub struct OpenAiAudio {
    /// Bytes in base64.
    data: String,
}

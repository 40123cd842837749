//! Message content of OpenAI's chat completions.

use schemars::JsonSchema;

/// Text, or a list of parts. May be absent if there are tool calls.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum OpenAiContent {
    Text(String),
    Parts(Vec<OpenAiPart>),
}

/// Part of a message.
#[derive(JsonSchema)]
pub struct OpenAiPart {
    /// `text`, `refusal`, `image_url` or `input_audio`.
    r#type: String,
    /// For `text`: the text.
    text: Option<String>,
    /// For `refusal`: its text.
    refusal: Option<String>,
    /// For `image_url`: the image.
    image_url: Option<OpenAiImage>,
    /// For `input_audio`: the audio data.
    input_audio: Option<OpenAiAudio>,
}

/// Image.
#[derive(JsonSchema)]
pub struct OpenAiImage {
    /// `data:image/png;base64,…`, or a URL if the server's `image_urls` is on.
    url: String,
}

/// Audio data.
#[derive(JsonSchema)]
pub struct OpenAiAudio {
    /// Bytes in base64.
    data: String,
}

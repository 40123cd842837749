//! Conversations with the settings that a template reads.

use serde_json::{Map, Value as Json};

use crate::adapt::MessageRules;
use crate::message::{Message, Think};

/// A conversation with the settings that a template reads.
#[derive(Debug, Clone)]
pub struct Chat<'a> {
    /// The conversation, oldest message first. The model continues a trailing assistant message.
    pub messages: &'a [Message],
    /// Tools offered, as the client sent them (`{"type":"function","function":{…}}`).
    pub tools: &'a [Json],
    /// Reasoning switch of the request; `None` selects the template's default.
    pub think: Option<Think>,
    /// Text of the beginning-of-sequence token (`bos_token` of Jinja templates).
    pub bos: &'a str,
    /// Text of the end-of-sequence token (`eos_token` of Jinja templates).
    pub eos: &'a str,
    /// Additional variables for Jinja templates (`chat_template_kwargs`). They override all other
    /// variables.
    pub variables: Map<String, Json>,
    /// Date and time that a template may print; `None` means the current local time.
    pub now: Option<jiff::civil::DateTime>,
    /// Tokens that an image needs in addition to its tag, used when a prompt is fitted to the
    /// context.
    pub image_tokens: usize,
    /// Messages that the template accepts. The conversation is adapted to these rules; without
    /// rules it is rendered unchanged.
    pub rules: Option<MessageRules>,
}

impl<'a> Chat<'a> {
    /// A conversation without tools and settings.
    pub fn new(messages: &'a [Message]) -> Self {
        Chat {
            messages,
            tools: &[],
            think: None,
            bos: "",
            eos: "",
            variables: Map::new(),
            now: None,
            image_tokens: 0,
            rules: None,
        }
    }

    pub(crate) fn now(&self) -> jiff::civil::DateTime {
        self.now.unwrap_or_else(|| jiff::Zoned::now().datetime())
    }
}

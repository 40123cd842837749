//! Renders conversations to prompts, and parses the output of models into reasoning, answer and
//! tool calls.
//!
//! * [`Template`]: a parsed Go or Jinja template, or a built-in renderer.
//!   [`Template::capabilities`] lists its features.
//! * [`Renderer`]: a built-in prompt format, found by name.
//! * [`conversation`], [`generate_conversation`]: join the messages of a request with those stored
//!   in the model.
//! * [`render`], [`render_insert`]: render a prompt. [`fit`]: drops the oldest messages until the
//!   prompt fits the context.
//! * [`MessageRules`]: the messages that a template accepts. Conversations are adapted to them.
//! * [`mark_untrusted`], [`split_at_marks`]: separate the text of users from the template's own
//!   text.
//! * [`OutputParser`]: splits the streamed output of a model into reasoning, answer and tool calls.
//! * [`NamedTemplate`]: Ollama's named templates with their stop strings, detected by their output.
//!
//! Templates are untrusted input. Source size, steps, nesting and text sizes are limited, nothing
//! panics, and errors name the line.
//!
//! ```
//! use puna_prompt::{Chat, TemplateFormat, Message, Template, render};
//!
//! let source = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}";
//! let template = Template::parse(TemplateFormat::Jinja, source)?;
//! let messages = [Message::new("user", "Hi")];
//! assert_eq!(render(&template, &Chat::new(&messages))?, "[user] Hi\n");
//! # Ok::<(), puna_prompt::PromptError>(())
//! ```

#![forbid(unsafe_code)]

mod adapt;
mod capabilities;
mod chat;
mod control_marks;
mod conversation;
mod error;
mod fit;
mod fit_turns;
mod go;
mod jinja;
mod jinja_chat;
mod limits;
mod message;
mod named_templates;
mod parsers;
mod probe_results;
mod render_unchanged;
mod renderers;
mod rendering;
mod template;
mod template_choice;
mod thinking;

pub use adapt::{Adaptation, Adaptations, MessageRules, ROLES, adapt, check_results};
pub use capabilities::Capabilities;
pub use chat::Chat;
pub use control_marks::{is_marked, mark_untrusted, split_at_marks, without_marks};
pub use conversation::{conversation, generate_conversation, strip_past_reasoning};
pub use error::PromptError;
pub use fit::{FittedPrompt, fit};
pub use fit_turns::fit_turns;
pub use go::GoTemplate;
pub use jinja::JinjaTemplate;
pub use limits::{MAX_SOURCE_BYTES, TemplateLimit};
pub use message::{FunctionCall, Image, Message, Think, ToolCall};
pub use named_templates::NamedTemplate;
pub use parsers::{
    ArgumentListFormat, ArgumentsFormat, CallError, CallFormat, JsonPrefix, OutputParser,
    OutputPart, OutputStage, ParserInput, ValueFrame, ValueKind, ValueStyle,
};
pub use renderers::Renderer;
pub use rendering::{RenderedPrompt, render, render_adapted, render_insert};
pub use template::{Template, TemplateFormat};
pub use template_choice::prefer_jinja;
pub use thinking::ThinkTags;

#[cfg(test)]
mod tests;

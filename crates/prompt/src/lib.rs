//! From a conversation to the text that is tokenized, and back from the model's text to thoughts and answer.
//!
//! * [`Template`]: a Go or Jinja template, parsed; [`Template::capabilities`] tells what it supports.
//! * [`Renderer`]: a prompt format that is built in, by name; a [`Template`] too.
//! * [`conversation`], [`generation`]: the messages of a request with those stored in the model.
//! * [`render`], [`render_insert`]: the prompt. [`fit`]: the prompt with the oldest messages dropped until it fits.
//! * [`MessageRules`]: which messages a template accepts; conversations are changed to that.
//! * [`mark_written`], [`marked_parts`]: what users wrote, told from a template's own words.
//! * [`OutputParser`]: tells thoughts, answer and tool calls apart while the model's text streams.
//! * [`NamedTemplate`]: Ollama's named templates with their stop strings, found by what a model's own template writes.
//!
//! Templates are hostile input: sources, steps, nesting and texts are bounded, nothing panics, and errors name the line.
//!
//! ```
//! use puna_prompt::{Chat, Kind, Message, Template, render};
//!
//! let template = Template::parse(Kind::Jinja, "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}")?;
//! let messages = [Message::new("user", "Hi")];
//! assert_eq!(render(&template, &Chat::new(&messages))?, "[user] Hi\n");
//! # Ok::<(), puna_prompt::PromptError>(())
//! ```

#![forbid(unsafe_code)]

mod adapt;
mod capabilities;
mod chat;
mod conversation;
mod error;
mod fit;
mod fit_turns;
mod go;
mod jinja;
mod jinja_chat;
mod limits;
mod marks;
mod message;
mod named;
mod parsers;
mod renderers;
mod template;
mod thinking;

pub use adapt::{Adaptation, Adaptations, MessageRules, ROLES, adapt, check_results};
pub use capabilities::{Capabilities, prefer_jinja};
pub use chat::{Chat, Rendered, render, render_adapted, render_insert};
pub use conversation::{conversation, generation, strip_past_thoughts};
pub use error::PromptError;
pub use fit::{Fitted, fit};
pub use fit_turns::fit_turns;
pub use go::GoTemplate;
pub use jinja::JinjaTemplate;
pub use limits::{Bound, SOURCE_BYTES_MAX};
pub use marks::{is_marked, mark_written, marked_parts, unmarked};
pub use message::{FunctionCall, Image, Message, Think, ToolCall};
pub use named::NamedTemplate;
pub use parsers::{
    Arguments, CallError, CallForm, Frame, JsonPrefix, OutputParser, ParserInput, Part, Stage,
    Style, ValueKind, Written,
};
pub use renderers::Renderer;
pub use template::{Kind, Template};
pub use thinking::ThinkTags;

#[cfg(test)]
mod tests;

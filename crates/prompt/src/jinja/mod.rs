//! Jinja as Hugging Face chat templates use it: `trim_blocks`, `lstrip_blocks`, no escaping, Python's values and
//! printing, the sandbox's refusals, `tojson` without HTML escapes, `raise_exception`, `strftime_now`,
//! `{% generation %}`, `{% break %}`.
//!
//! The engine is our own: prompts must equal Python's byte for byte (method before key in `d.items`, `1e+20`, string
//! `%`, `varargs`, generators that are no JSON, …), and hostile templates must meet bounds on steps, memory and stack.

mod args;
mod ast;
mod chars;
mod checks;
mod eval;
mod filters;
mod filters_seq;
mod format;
mod globals;
mod interp;
mod lex;
mod methods;
mod ops;
mod parse;
mod parse_expr;
mod text;
mod value;
mod wrap;

use std::sync::Arc;

use serde_json::Value as Json;

use crate::PromptError;
use crate::jinja_chat::Habits;
use value::{Fail, Value};

/// A parsed Jinja template.
#[derive(Debug, Clone)]
pub struct JinjaTemplate {
    source: String,
    body: Arc<ast::Body>,
    habits: Arc<Habits>,
}

impl JinjaTemplate {
    /// Parses a template.
    pub fn parse(source: &str) -> Result<Self, PromptError> {
        let unix = source.replace("\r\n", "\n").replace('\r', "\n");
        let body = Arc::new(parse::parse(&unix)?);
        Ok(JinjaTemplate { source: source.to_string(), body, habits: Arc::default() })
    }

    /// The text it was parsed from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What is known of the form of input it wants.
    pub(crate) fn habits(&self) -> &Habits {
        &self.habits
    }

    /// Renders with the given variables; `now` is what `strftime_now` shows.
    pub(crate) fn render<'v>(
        &self,
        variables: impl IntoIterator<Item = (&'v str, &'v Json)>,
        now: jiff::civil::DateTime,
    ) -> Result<String, PromptError> {
        let convert = |(name, json): (&str, &Json)| match Value::from_json(json) {
            Ok(value) => Ok((Arc::from(name), value)),
            Err(Fail::Bound(bound)) => Err(PromptError::Limit { line: 0, bound }),
            Err(Fail::Error(message) | Fail::Raised(message)) => {
                Err(PromptError::JinjaRender { line: 0, message })
            }
        };
        let context = variables.into_iter().map(convert).collect::<Result<_, _>>()?;
        interp::run(&self.body, context, now)
    }
}

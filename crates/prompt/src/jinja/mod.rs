//! Jinja as in Hugging Face chat templates: `trim_blocks`, `lstrip_blocks`, no escaping, Python's
//! values and printing, the refusals of the sandbox, `tojson` without HTML escapes,
//! `raise_exception`, `strftime_now`, `{% generation %}`, `{% break %}`.
//!
//! Prompts must equal Python's byte for byte: methods before keys in `d.items`, `1e+20`, string
//! `%`, `varargs`, generators that are not JSON. Untrusted templates must stay within limits on
//! steps, memory and stack. Therefore this is an independent implementation.

mod args;
mod ast;
mod builtin_tests;
mod eval;
mod filters;
mod format;
mod format_method;
mod globals;
mod interp;
mod lex;
mod methods;
mod ops;
mod parse;
mod parse_expr;
mod python_chars;
mod sequence_filters;
mod text;
mod value;
mod word_wrap;

use std::sync::Arc;

use serde_json::Value as Json;

use crate::PromptError;
use crate::probe_results::ProbeResults;
use value::{EvalError, Value};

/// A parsed Jinja template.
#[derive(Debug, Clone)]
pub struct JinjaTemplate {
    source: String,
    body: Arc<ast::Body>,
    probe_results: Arc<ProbeResults>,
}

impl JinjaTemplate {
    /// Parses a template.
    pub fn parse(source: &str) -> Result<Self, PromptError> {
        let unix = source.replace("\r\n", "\n").replace('\r', "\n");
        let body = Arc::new(parse::parse(&unix)?);
        Ok(JinjaTemplate { source: source.to_string(), body, probe_results: Arc::default() })
    }

    /// The source text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Results of probing the template's input format.
    pub(crate) fn probe_results(&self) -> &ProbeResults {
        &self.probe_results
    }

    /// Renders with the given variables. `now` is the time for `strftime_now`.
    pub(crate) fn render<'v>(
        &self,
        variables: impl IntoIterator<Item = (&'v str, &'v Json)>,
        now: jiff::civil::DateTime,
    ) -> Result<String, PromptError> {
        let convert = |(name, json): (&str, &Json)| match Value::from_json(json) {
            Ok(value) => Ok((Arc::from(name), value)),
            Err(EvalError::Limit(limit)) => Err(PromptError::Limit { line: 0, limit }),
            Err(EvalError::Error(message) | EvalError::Raised(message)) => {
                Err(PromptError::JinjaRender { line: 0, message })
            }
        };
        let context = variables.into_iter().map(convert).collect::<Result<_, _>>()?;
        interp::run(&self.body, context, now)
    }
}

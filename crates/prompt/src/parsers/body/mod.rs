//! The forms that the inside of a tool call has. Each reads the text of one call, or of a list of calls.

mod elements;
mod gemma;
mod json;
mod name_json;
mod pairs;
mod python;
mod xml;

use std::borrow::Cow;

pub(super) use gemma::Gemma;
pub(super) use json::{arguments, object_call};
pub(super) use name_json::NameJson;
pub(super) use pairs::{Pairs, read as read_pairs};
pub(super) use python::literal as python_literal;
pub(super) use xml::Xml;

use super::call::CallError;
use super::pending::Brackets;
use super::tools::Tools;
use super::written::Style;
use crate::message::FunctionCall;

/// A tag or separator: of a family's table, or found in a template.
pub(super) type Text = Cow<'static, str>;

/// The form of a call's inside.
#[derive(Debug, Clone)]
pub(super) enum Body {
    /// `{"name": "f", "arguments": {…}}` with several spellings of the keys, or a list of such objects.
    Json,
    /// `f<separator>{…}`.
    NameJson(NameJson),
    /// `<function=f><parameter=a>x</parameter></function>` and its relatives.
    Xml(Xml),
    /// `<invoke name="f"><a>x</a></invoke>`, with a text before every tag that is left out.
    Elements(Text),
    /// `f<arg_key>a</arg_key><arg_value>x</arg_value>`.
    Pairs(Pairs),
    /// `[f(a="x", n=2), g()]`, or one call a line.
    Python,
    /// `call:f{a:<quote>x<quote>,n:2}`.
    Gemma(Gemma),
}

impl Body {
    pub(super) fn read(&self, text: &str, tools: &Tools) -> Result<Vec<FunctionCall>, CallError> {
        let calls = match self {
            Self::Json => json::read(text, tools)?,
            Self::NameJson(form) => vec![form.read(text)?],
            Self::Xml(form) => form.read(text, tools)?,
            Self::Elements(mark) => elements::read(mark, text, tools)?,
            Self::Pairs(tags) => vec![read_pairs(tags, text, tools)?],
            Self::Python => python::read(text)?,
            Self::Gemma(form) => vec![form.read(text, tools)?],
        };
        if calls.iter().any(|call| call.name.is_empty()) {
            return Err(CallError::NoName);
        }
        Ok(calls)
    }

    /// How values are written where arguments are no JSON object, and what none of them can hold.
    pub(super) fn values(&self) -> Option<(Style, Vec<String>)> {
        let bare =
            |barred: &[&str]| (Style::Bare, barred.iter().map(|tag| (*tag).to_owned()).collect());
        Some(match self {
            Self::Json | Self::NameJson(_) => return None,
            Self::Xml(form) => bare(&[&form.end]),
            Self::Elements(mark) => bare(&[&format!("{mark}<")]),
            Self::Pairs(tags) => bare(&tags.all()),
            Self::Python => (Style::Json, Vec::new()),
            Self::Gemma(form) => {
                (Style::Quoted(form.quote.to_string()), vec![form.quote.to_string()])
            }
        })
    }

    /// Whether a text that is part of a call ends inside of a value: a tag behind it may belong to that.
    pub(super) fn ends_in_value(&self, text: &str) -> bool {
        let last = |tag: &str| text.rfind(tag).map_or(0, |at| at + 1);
        match self {
            Self::Json => Brackets::end_in_string(text),
            Self::NameJson(form) => {
                form.head(text).is_some_and(|(_, from)| Brackets::end_in_string(&text[from..]))
            }
            Self::Xml(form) => last(&form.argument) > last(&form.end),
            Self::Pairs(tags) => last(&tags.value.0) > last(&tags.value.1),
            Self::Gemma(form) => text.matches(form.quote.as_ref()).count() % 2 == 1,
            Self::Elements(_) | Self::Python => false,
        }
    }

    /// The tag that ends a value, and those that begin another or another call; `None` where values are quoted.
    pub(super) fn value_tags(&self) -> Option<(&str, Vec<&str>)> {
        match self {
            Self::Xml(form) => Some((&form.end, vec![&form.argument, &form.call])),
            Self::Pairs(tags) => Some((&tags.value.1, vec![&tags.key.0, &tags.value.0])),
            _ => None,
        }
    }

    /// Its tags, which may be special tokens.
    pub(super) fn tags(&self) -> Vec<&str> {
        match self {
            Self::Json | Self::Python => Vec::new(),
            Self::NameJson(form) => form.tags(),
            Self::Xml(form) => form.tags(),
            Self::Elements(mark) => vec![mark],
            Self::Pairs(tags) => tags.all().to_vec(),
            Self::Gemma(form) => vec![&form.quote],
        }
    }
}

/// The value between two tags. Some formats put it on lines of its own; others write it as it is, and it has line ends of
/// its own (`bare`) unless they come on both sides.
fn value_in(text: &str, bare: bool) -> &str {
    let within = text.strip_prefix('\n');
    if bare {
        return within.and_then(|text| text.strip_suffix('\n')).unwrap_or(text);
    }
    let text = within.unwrap_or(text);
    text.strip_suffix('\n').unwrap_or(text)
}

/// A call without a number.
pub(super) fn call(
    name: impl Into<String>,
    arguments: serde_json::Map<String, serde_json::Value>,
) -> FunctionCall {
    FunctionCall { index: 0, name: name.into(), arguments }
}

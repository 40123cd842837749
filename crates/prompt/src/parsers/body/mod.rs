//! Syntaxes of the text inside a tool call. Each parses the text of one call or of a list of calls.

mod elements;
mod gemma;
mod json;
mod name_json;
mod pairs;
mod python;
mod syntax;
mod xml;

pub(super) use gemma::Gemma;
pub(super) use json::{arguments, object_call};
pub(super) use name_json::NameJson;
pub(super) use pairs::{Pairs, read as read_pairs};
pub(super) use syntax::{TagText, call};
pub(super) use xml::Xml;

use super::output_part::CallError;
use super::pending::BracketMatcher;
use super::tools::Tools;
use super::value_style::ValueStyle;
use crate::message::FunctionCall;

/// Syntax of the text inside a call.
#[derive(Debug, Clone)]
pub(super) enum CallBody {
    /// `{"name": "f", "arguments": {…}}` with several spellings of the keys, or a list of these
    /// objects.
    Json,
    /// `f<separator>{…}`.
    NameJson(NameJson),
    /// `<function=f><parameter=a>x</parameter></function>` and variants.
    Xml(Xml),
    /// `<invoke name="f"><a>x</a></invoke>`, with a prefix before every tag.
    Elements(TagText),
    /// `f<arg_key>a</arg_key><arg_value>x</arg_value>`.
    Pairs(Pairs),
    /// `[f(a="x", n=2), g()]`, or one call a line.
    Python,
    /// `call:f{a:<quote>x<quote>,n:2}`.
    Gemma(Gemma),
}

impl CallBody {
    pub(super) fn read(&self, text: &str, tools: &Tools) -> Result<Vec<FunctionCall>, CallError> {
        let calls = match self {
            Self::Json => json::read(text, tools)?,
            Self::NameJson(format) => vec![format.read(text)?],
            Self::Xml(format) => format.read(text, tools)?,
            Self::Elements(tag_prefix) => elements::read(tag_prefix, text, tools)?,
            Self::Pairs(tags) => vec![read_pairs(tags, text, tools)?],
            Self::Python => python::read(text)?,
            Self::Gemma(format) => vec![format.read(text, tools)?],
        };
        if calls.iter().any(|call| call.name.is_empty()) {
            return Err(CallError::NoName);
        }
        Ok(calls)
    }

    /// How values are written if arguments are not a JSON object, and the texts that a value must
    /// not contain.
    pub(super) fn value_style(&self) -> Option<(ValueStyle, Vec<String>)> {
        let bare = |forbidden: &[&str]| {
            (ValueStyle::Bare, forbidden.iter().map(|tag| (*tag).to_owned()).collect())
        };
        Some(match self {
            Self::Json | Self::NameJson(_) => return None,
            Self::Xml(format) => bare(&[&format.end]),
            Self::Elements(tag_prefix) => bare(&[&format!("{tag_prefix}<")]),
            Self::Pairs(tags) => bare(&tags.all()),
            Self::Python => (ValueStyle::Json, Vec::new()),
            Self::Gemma(format) => {
                (ValueStyle::Quoted(format.quote.to_string()), vec![format.quote.to_string()])
            }
        })
    }

    /// Returns true if `text`, the start of a call, ends inside a value. A closing tag behind it
    /// may then be part of the value.
    pub(super) fn ends_in_value(&self, text: &str) -> bool {
        let last = |tag: &str| text.rfind(tag).map_or(0, |at| at + 1);
        match self {
            Self::Json => BracketMatcher::ends_in_string(text),
            Self::NameJson(format) => format
                .head(text)
                .is_some_and(|(_, from)| BracketMatcher::ends_in_string(&text[from..])),
            Self::Xml(format) => last(&format.argument) > last(&format.end),
            Self::Pairs(tags) => last(&tags.value.0) > last(&tags.value.1),
            Self::Gemma(format) => text.matches(format.quote.as_ref()).count() % 2 == 1,
            Self::Elements(_) | Self::Python => false,
        }
    }

    /// The tag that ends a value, and the tags that start another argument or call. `None` if
    /// values are quoted.
    pub(super) fn value_tags(&self) -> Option<(&str, Vec<&str>)> {
        match self {
            Self::Xml(format) => Some((&format.end, vec![&format.argument, &format.call])),
            Self::Pairs(tags) => Some((&tags.value.1, vec![&tags.key.0, &tags.value.0])),
            _ => None,
        }
    }

    /// Tags of the syntax, which may be special tokens.
    pub(super) fn tags(&self) -> Vec<&str> {
        match self {
            Self::Json | Self::Python => Vec::new(),
            Self::NameJson(format) => format.tags(),
            Self::Xml(format) => format.tags(),
            Self::Elements(tag_prefix) => vec![tag_prefix],
            Self::Pairs(tags) => tags.all().to_vec(),
            Self::Gemma(format) => vec![&format.quote],
        }
    }
}

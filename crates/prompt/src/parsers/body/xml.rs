//! Calls with an XML element for the function and one for each argument.

use serde_json::{Map, Value as Json};

use super::super::output_part::CallError;
use super::super::tools::Tools;
use super::syntax::{TagText, call, trim_value};
use crate::message::FunctionCall;

/// `<function=f><parameter=a>x</parameter></function>` or
/// `<invoke name="f"><parameter name="a">x</parameter></invoke>`.
#[derive(Debug, Clone)]
pub(in super::super) struct Xml {
    /// Start of a call's opening tag, before the name: `<function`.
    pub(in super::super) call: TagText,
    /// Start of an argument's opening tag, before its name: `<parameter`.
    pub(in super::super) argument: TagText,
    /// End of an opening tag.
    pub(in super::super) head_end: TagText,
    /// Closing tag of an argument.
    pub(in super::super) end: TagText,
    /// Values are not on their own lines.
    pub(in super::super) bare: bool,
    /// Lists and objects may be written in Python syntax.
    pub(in super::super) python: bool,
}

impl Xml {
    pub(in super::super) const FUNCTION: Xml = Xml {
        call: TagText::Borrowed("<function"),
        argument: TagText::Borrowed("<parameter"),
        head_end: TagText::Borrowed(">"),
        end: TagText::Borrowed("</parameter>"),
        bare: false,
        python: false,
    };

    /// `<invoke name="f"><parameter name="a">x</parameter></invoke>`.
    pub(in super::super) const INVOKE: Xml =
        Xml { call: TagText::Borrowed("<invoke"), ..Xml::FUNCTION };

    pub(in super::super) fn read(
        &self,
        text: &str,
        tools: &Tools,
    ) -> Result<Vec<FunctionCall>, CallError> {
        let mut calls = Vec::new();
        let mut parser = Parser {
            text,
            at: 0,
            head_end: &self.head_end,
            call: NextMatch::new(&self.call),
            argument: NextMatch::new(&self.argument),
            end: NextMatch::new(&self.end),
            format: self,
            closing: NextMatch::new("</"),
        };
        while let Some(head) = parser.head(|r| r.call.from(text, r.at)) {
            let name = name_attribute(head).ok_or(CallError::NoName)?;
            calls.push(call(name, parser.arguments(name, tools)));
        }
        if calls.is_empty() {
            Err(CallError::Syntax("<function=NAME>…</function>"))
        } else {
            Ok(calls)
        }
    }

    pub(super) fn tags(&self) -> Vec<&str> {
        vec![&self.call, &self.argument, &self.head_end, &self.end]
    }
}

/// Walks through the elements. Every byte is examined a constant number of times, even if closing
/// tags are missing.
struct Parser<'t> {
    text: &'t str,
    format: &'t Xml,
    at: usize,
    head_end: &'t str,
    call: NextMatch<'t>,
    argument: NextMatch<'t>,
    end: NextMatch<'t>,
    closing: NextMatch<'t>,
}

impl<'t> Parser<'t> {
    /// Moves behind an opening tag. Returns the text in the tag.
    fn head(&mut self, find: impl Fn(&mut Self) -> Option<(usize, usize)>) -> Option<&'t str> {
        let (_, from) = find(self)?;
        let (head, _) = self.text[from..].split_once(self.head_end)?;
        self.at = from + head.len() + self.head_end.len();
        Some(head)
    }

    /// Reads the arguments before the next call. A value ends at its closing tag. Without one, it
    /// ends at the next argument, at another closing tag, or at the end of the text.
    fn arguments(&mut self, name: &str, tools: &Tools) -> Map<String, Json> {
        let mut arguments = Map::new();
        loop {
            let next_call = self.call.from(self.text, self.at).map_or(usize::MAX, |(at, _)| at);
            let in_call = |found: &(usize, usize)| found.0 < next_call;
            let find = |r: &mut Self| r.argument.from(r.text, r.at).filter(in_call);
            let Some(head) = self.head(find) else { return arguments };
            let from = self.at;
            let (end, behind) = self.end.from(self.text, from).unwrap_or_else(|| {
                let next = self
                    .argument
                    .from(self.text, from)
                    .or_else(|| self.closing.from(self.text, from));
                next.map_or((self.text.len(), self.text.len()), |(at, _)| (at, at))
            });
            self.at = behind;
            let Some(key) = name_attribute(head) else { continue };
            let value = trim_value(&self.text[from..end], self.format.bare);
            let literal =
                value.strip_prefix("<![CDATA[").and_then(|value| value.strip_suffix("]]>"));
            let value = literal.unwrap_or(value);
            let value = match attribute(head, "string") {
                Some("true") => Json::from(value),
                Some("false") => {
                    serde_json::from_str(value.trim()).unwrap_or_else(|_| value.into())
                }
                _ => match tools.value(name, key, value) {
                    Json::String(text) if self.format.python => {
                        tools.python_value(name, key, &text).unwrap_or(Json::String(text))
                    }
                    other => other,
                },
            };
            arguments.insert(key.to_owned(), value);
        }
    }
}

/// Finds the next occurrence of a text. Each occurrence is searched once.
struct NextMatch<'n> {
    needle: &'n str,
    /// The last occurrence found; `None` if there is no further one.
    found: Option<usize>,
    searched: bool,
}

impl<'n> NextMatch<'n> {
    fn new(needle: &'n str) -> Self {
        Self { needle, found: None, searched: false }
    }

    /// Start and end of the next occurrence that starts at or behind `from`.
    fn from(&mut self, text: &str, from: usize) -> Option<(usize, usize)> {
        if !self.searched || self.found.is_some_and(|at| at < from) {
            self.found = text[from..].find(self.needle).map(|at| from + at);
            self.searched = true;
        }
        self.found.map(|at| (at, at + self.needle.len()))
    }
}

/// The name in an opening tag: `=f` or ` name="f"`.
fn name_attribute(head: &str) -> Option<&str> {
    let name = match head.strip_prefix('=') {
        Some(name) => name.trim().trim_matches(['"', '\'']),
        None => ["name", "tool", "key"].iter().find_map(|key| attribute(head, key))?,
    };
    Some(name).filter(|name| !name.is_empty())
}

fn attribute<'t>(head: &'t str, key: &str) -> Option<&'t str> {
    let mut rest = head;
    loop {
        let (_, after) = rest.split_once(key)?;
        rest = after;
        let Some(value) = after.trim_start().strip_prefix('=') else { continue };
        let value = value.trim_start();
        let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        return value[1..].split_once(quote).map(|(value, _)| value);
    }
}

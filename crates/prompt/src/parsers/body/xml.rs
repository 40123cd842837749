//! Calls written with an element for the function and one for every argument.

use serde_json::{Map, Value as Json};

use super::super::call::CallError;
use super::super::tools::Tools;
use super::{Text, call, value_in};
use crate::message::FunctionCall;

/// `<function=f><parameter=a>x</parameter></function>` or `<invoke name="f"><parameter name="a">x</parameter></invoke>`.
#[derive(Debug, Clone)]
pub(in super::super) struct Xml {
    /// What opens a call, up to the name: `<function`.
    pub(in super::super) call: Text,
    /// What opens an argument, up to its name: `<parameter`.
    pub(in super::super) argument: Text,
    /// What ends an opening tag.
    pub(in super::super) head_end: Text,
    /// What closes an argument.
    pub(in super::super) end: Text,
    /// Values stand between their tags as they are, not on lines of their own.
    pub(in super::super) bare: bool,
    /// Lists and objects may be written as Python does.
    pub(in super::super) python: bool,
}

impl Xml {
    pub(in super::super) const FUNCTION: Xml = Xml {
        call: Text::Borrowed("<function"),
        argument: Text::Borrowed("<parameter"),
        head_end: Text::Borrowed(">"),
        end: Text::Borrowed("</parameter>"),
        bare: false,
        python: false,
    };

    /// `<invoke name="f"><parameter name="a">x</parameter></invoke>`.
    pub(in super::super) const INVOKE: Xml =
        Xml { call: Text::Borrowed("<invoke"), ..Xml::FUNCTION };

    pub(in super::super) fn read(
        &self,
        text: &str,
        tools: &Tools,
    ) -> Result<Vec<FunctionCall>, CallError> {
        let mut calls = Vec::new();
        let mut reader = Reader {
            text,
            at: 0,
            head_end: &self.head_end,
            call: Next::new(&self.call),
            argument: Next::new(&self.argument),
            end: Next::new(&self.end),
            form: self,
            closing: Next::new("</"),
        };
        while let Some(head) = reader.head(|r| r.call.from(text, r.at)) {
            let name = name_in(head).ok_or(CallError::NoName)?;
            calls.push(call(name, reader.arguments(name, tools)));
        }
        if calls.is_empty() {
            Err(CallError::Form("<function=NAME>…</function>"))
        } else {
            Ok(calls)
        }
    }

    pub(super) fn tags(&self) -> Vec<&str> {
        vec![&self.call, &self.argument, &self.head_end, &self.end]
    }
}

/// Walks through the elements; every byte is looked at a few times, however many elements lack their end.
struct Reader<'t> {
    text: &'t str,
    form: &'t Xml,
    at: usize,
    head_end: &'t str,
    call: Next<'t>,
    argument: Next<'t>,
    end: Next<'t>,
    closing: Next<'t>,
}

impl<'t> Reader<'t> {
    /// Goes behind an opening tag; what stands in it.
    fn head(&mut self, find: impl Fn(&mut Self) -> Option<(usize, usize)>) -> Option<&'t str> {
        let (_, from) = find(self)?;
        let (head, _) = self.text[from..].split_once(self.head_end)?;
        self.at = from + head.len() + self.head_end.len();
        Some(head)
    }

    /// The arguments before the next call. A value ends with its closing tag; if there is none, with the next argument,
    /// another closing tag or the text.
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
            let Some(key) = name_in(head) else { continue };
            let value = value_in(&self.text[from..end], self.form.bare);
            let literal =
                value.strip_prefix("<![CDATA[").and_then(|value| value.strip_suffix("]]>"));
            let value = literal.unwrap_or(value);
            let value = match attribute(head, "string") {
                Some("true") => Json::from(value),
                Some("false") => {
                    serde_json::from_str(value.trim()).unwrap_or_else(|_| value.into())
                }
                _ => match tools.value(name, key, value) {
                    Json::String(text) if self.form.python => {
                        tools.python_value(name, key, &text).unwrap_or(Json::String(text))
                    }
                    other => other,
                },
            };
            arguments.insert(key.to_owned(), value);
        }
    }
}

/// Where a text comes next, looked up once for each place.
struct Next<'n> {
    needle: &'n str,
    /// The place found last; `None` when there is no further one.
    known: Option<usize>,
    searched: bool,
}

impl<'n> Next<'n> {
    fn new(needle: &'n str) -> Self {
        Self { needle, known: None, searched: false }
    }

    /// Beginning and end of the next one that does not begin before `from`.
    fn from(&mut self, text: &str, from: usize) -> Option<(usize, usize)> {
        if !self.searched || self.known.is_some_and(|at| at < from) {
            self.known = text[from..].find(self.needle).map(|at| from + at);
            self.searched = true;
        }
        self.known.map(|at| (at, at + self.needle.len()))
    }
}

/// The name in the rest of an opening tag: `=f` or ` name="f"`.
fn name_in(head: &str) -> Option<&str> {
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

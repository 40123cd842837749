//! Go `text/template` as Ollama uses it: lexer, parser, evaluator, and the three ways in which Ollama runs a template.
//!
//! * *insert*: `prompt` and `suffix` are given (fill in the middle);
//! * *messages*: the template reads `.Messages`;
//! * *exchanges*: it only knows `.System`, `.Prompt` and `.Response`, and is run once for each exchange; the last time
//!   it is cut after `.Response`, where the model goes on.

mod data;
mod exec;
mod fmt;
mod funcs;
mod lex;
mod literal;
mod node;
mod parse;
mod scan;
mod value;

use std::collections::BTreeSet;

use serde_json::Value as Json;

use crate::PromptError;
use crate::limits::Budget;
use crate::message::{Message, Think};
pub(crate) use fmt::float_json;
use funcs::{Env, is_function};
use node::{Arg, Command, Expr, List, Node, Pipe};
use value::Value;
pub(crate) use value::json_string;

/// A parsed Go template.
#[derive(Debug, Clone)]
pub struct GoTemplate {
    source: String,
    trees: parse::Trees,
    /// The main tree for the last exchange.
    tail: List,
    vars: BTreeSet<String>,
}

/// What one rendering is given.
pub(crate) struct Input<'a> {
    pub(crate) messages: &'a [Message],
    pub(crate) tools: &'a [Json],
    pub(crate) think: Option<&'a Think>,
    pub(crate) now: jiff::civil::DateTime,
}

impl GoTemplate {
    /// Parses a template. Templates that read neither `.Messages` nor `.Response` get `{{ .Response }}` at their end.
    pub fn parse(source: &str) -> Result<Self, PromptError> {
        let mut trees = parse::parse(source)?;
        let mut vars = BTreeSet::new();
        trees.values().for_each(|nodes| scan::variables(nodes, &mut vars));
        let root = trees.entry(String::new()).or_default();
        if !vars.contains("messages") && !vars.contains("response") {
            root.push(print_response(source.len()));
            vars.insert("response".into());
        }
        let tail = scan::cut_after_response(root);
        Ok(GoTemplate { source: source.to_string(), trees, tail, vars })
    }

    /// The text it was parsed from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// All fields and variables that it mentions, in lower case.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        self.vars.iter().map(String::as_str)
    }

    /// Does it mention this field or variable (in lower case)?
    pub fn reads(&self, variable: &str) -> bool {
        self.vars.contains(variable)
    }

    /// The text that opens a tool call in the model's output, as the template writes it for past calls.
    pub fn tool_tag(&self) -> String {
        scan::tool_tag(self.root())
    }

    /// The tags around thoughts, as the template writes them for past messages; either may be empty.
    pub fn think_tags(&self) -> (String, String) {
        scan::think_tags(self.root())
    }

    /// Renders a conversation. On an error, what was written before it is in `out`.
    pub(crate) fn render(&self, input: &Input<'_>, out: &mut String) -> Result<(), PromptError> {
        let (system, messages) = collate(input.messages);
        if !self.reads("messages") {
            return self.render_exchanges(&messages, input, out);
        }
        let data = data::top(
            [
                ("System", Value::str(system)),
                ("Messages", data::messages(&messages)),
                ("Tools", data::tools(input.tools)),
                ("Response", Value::str("")),
            ],
            input.think,
        );
        let env = Env { now: input.now };
        exec::run(&self.source, &self.trees, self.root(), &data, &env, &mut Budget::new(), out)
    }

    /// Renders a text with a gap: `prompt` before it, `suffix` after it.
    pub(crate) fn render_insert(
        &self,
        prompt: &str,
        suffix: &str,
        input: &Input<'_>,
        out: &mut String,
    ) -> Result<(), PromptError> {
        let data = data::top(
            [
                ("Prompt", Value::str(prompt)),
                ("Suffix", Value::str(suffix)),
                ("Response", Value::str("")),
            ],
            input.think,
        );
        let env = Env { now: input.now };
        exec::run(&self.source, &self.trees, self.root(), &data, &env, &mut Budget::new(), out)
    }

    fn render_exchanges(
        &self,
        messages: &[Message],
        input: &Input<'_>,
        out: &mut String,
    ) -> Result<(), PromptError> {
        let env = Env { now: input.now };
        let mut budget = Budget::new();
        let mut turn = Exchange::default();
        let mut text = String::new();
        let mut run = |turn: &Exchange<'_>, nodes: &[Node], out: &mut String| {
            let data = data::top(
                [
                    ("System", Value::str(turn.system)),
                    ("Prompt", Value::str(turn.prompt)),
                    ("Response", Value::str(turn.response)),
                ],
                input.think,
            );
            exec::run(&self.source, &self.trees, nodes, &data, &env, &mut budget, out)
        };
        for message in messages {
            match message.role.as_str() {
                "system" => {
                    if !turn.prompt.is_empty() || !turn.response.is_empty() {
                        run(&turn, self.root(), &mut text)?;
                        turn = Exchange::default();
                    }
                    turn.system = &message.content;
                }
                "user" => {
                    if !turn.response.is_empty() {
                        run(&turn, self.root(), &mut text)?;
                        turn = Exchange::default();
                    }
                    turn.prompt = &message.content;
                }
                "assistant" => turn.response = &message.content,
                _ => {}
            }
        }
        run(&turn, &self.tail, &mut text)?;
        out.push_str(&text);
        Ok(())
    }

    fn root(&self) -> &[Node] {
        self.trees.get("").map_or(&[], Vec::as_slice)
    }
}

#[derive(Default)]
struct Exchange<'a> {
    system: &'a str,
    prompt: &'a str,
    response: &'a str,
}

/// The node `{{ .Response }}`.
fn print_response(pos: usize) -> Node {
    let arg = Arg { pos, expr: Expr::Field(vec!["Response".into()]) };
    let cmd = Command { pos, args: vec![arg] };
    Node::Action(Pipe { is_assign: false, decl: vec![], cmds: vec![cmd] })
}

/// Merges neighbours of the same role, tool results excepted; also gives all system texts joined. A merged message
/// keeps the first one's thinking, images and calls, as in Ollama.
fn collate(messages: &[Message]) -> (String, Vec<Message>) {
    let mut system: Vec<&str> = Vec::new();
    let mut collated: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        if message.role == "system" {
            system.push(&message.content);
        }
        match collated.last_mut() {
            Some(last) if last.role == message.role && message.role != "tool" => {
                last.content.push_str("\n\n");
                last.content.push_str(&message.content);
            }
            _ => collated.push(message.clone()),
        }
    }
    (system.join("\n\n"), collated)
}

#[cfg(test)]
impl GoTemplate {
    /// Renders any data, for comparison with Go itself.
    pub(crate) fn render_json(&self, data: &Json, out: &mut String) -> Result<(), PromptError> {
        let env = Env { now: jiff::civil::DateTime::default() };
        let data = Value::from_json(data);
        exec::run(&self.source, &self.trees, self.root(), &data, &env, &mut Budget::new(), out)
    }
}

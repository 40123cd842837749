//! Go `text/template` as Ollama uses it: lexer, parser and evaluator. Ollama renders a template in
//! one of three modes:
//!
//! * *insert*: the request has `prompt` and `suffix` (fill-in-the-middle).
//! * *messages*: the template reads `.Messages`.
//! * *exchanges*: the template reads only `.System`, `.Prompt` and `.Response`. It runs once for
//!   each exchange. In the last run it is cut behind `.Response`, where the model continues.

mod analysis;
mod data;
mod exec;
mod functions;
mod lex;
mod literal;
mod node;
mod parse;
mod printf;
mod value;

use std::collections::BTreeSet;

use serde_json::Value as Json;

use crate::PromptError;
use crate::limits::Budget;
use crate::message::{Message, Think};
use functions::{Environment, is_function};
use node::{Arg, Command, Expr, List, Node, Pipe};
pub(crate) use printf::float_json;
use value::Value;
pub(crate) use value::json_string;

/// A parsed Go template.
#[derive(Debug, Clone)]
pub struct GoTemplate {
    source: String,
    trees: parse::TemplateTrees,
    /// The main tree, cut behind `.Response`, for the last exchange.
    response_tree: List,
    vars: BTreeSet<String>,
}

/// Input of one rendering.
pub(crate) struct GoInput<'a> {
    pub(crate) messages: &'a [Message],
    pub(crate) tools: &'a [Json],
    pub(crate) think: Option<&'a Think>,
    pub(crate) now: jiff::civil::DateTime,
}

impl GoTemplate {
    /// Parses a template. `{{ .Response }}` is appended to templates that read neither `.Messages`
    /// nor `.Response`.
    pub fn parse(source: &str) -> Result<Self, PromptError> {
        let mut trees = parse::parse(source)?;
        let mut vars = BTreeSet::new();
        trees.values().for_each(|nodes| analysis::variables(nodes, &mut vars));
        let root = trees.entry(String::new()).or_default();
        if !vars.contains("messages") && !vars.contains("response") {
            root.push(print_response(source.len()));
            vars.insert("response".into());
        }
        let response_tree = analysis::cut_after_response(root);
        Ok(GoTemplate { source: source.to_string(), trees, response_tree, vars })
    }

    /// The source text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// All fields and variables that the template reads, in lower case.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        self.vars.iter().map(String::as_str)
    }

    /// Returns true if the template reads this field or variable, given in lower case.
    pub fn reads(&self, variable: &str) -> bool {
        self.vars.contains(variable)
    }

    /// The text that starts a tool call, as the template writes it for earlier calls.
    pub fn tool_tag(&self) -> String {
        analysis::tool_tag(self.root())
    }

    /// The tags around reasoning, as the template writes them for earlier messages. Each may be
    /// empty.
    pub fn think_tags(&self) -> (String, String) {
        analysis::think_tags(self.root())
    }

    /// Renders a conversation. On an error, `out` contains the text written before.
    pub(crate) fn render(&self, input: &GoInput<'_>, out: &mut String) -> Result<(), PromptError> {
        let (system, messages) = collate(input.messages);
        if !self.reads("messages") {
            return self.render_exchanges(&messages, input, out);
        }
        let data = data::root_map(
            [
                ("System", Value::str(system)),
                ("Messages", data::messages(&messages)),
                ("Tools", data::tools(input.tools)),
                ("Response", Value::str("")),
            ],
            input.think,
        );
        let env = Environment { now: input.now };
        exec::run(&self.source, &self.trees, self.root(), &data, &env, &mut Budget::new(), out)
    }

    /// Renders a fill-in-the-middle prompt for the gap between `prompt` and `suffix`.
    pub(crate) fn render_insert(
        &self,
        prompt: &str,
        suffix: &str,
        input: &GoInput<'_>,
        out: &mut String,
    ) -> Result<(), PromptError> {
        let data = data::root_map(
            [
                ("Prompt", Value::str(prompt)),
                ("Suffix", Value::str(suffix)),
                ("Response", Value::str("")),
            ],
            input.think,
        );
        let env = Environment { now: input.now };
        exec::run(&self.source, &self.trees, self.root(), &data, &env, &mut Budget::new(), out)
    }

    fn render_exchanges(
        &self,
        messages: &[Message],
        input: &GoInput<'_>,
        out: &mut String,
    ) -> Result<(), PromptError> {
        let env = Environment { now: input.now };
        let mut budget = Budget::new();
        let mut turn = Exchange::default();
        let mut text = String::new();
        let mut run = |turn: &Exchange<'_>, nodes: &[Node], out: &mut String| {
            let data = data::root_map(
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
        run(&turn, &self.response_tree, &mut text)?;
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

/// Merges neighbouring messages of one role, except tool results, and joins all system texts. As in
/// Ollama, a merged message keeps the reasoning, images and calls of the first one.
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
    /// Renders any data, for comparison with Go.
    pub(crate) fn render_json(&self, data: &Json, out: &mut String) -> Result<(), PromptError> {
        let env = Environment { now: jiff::civil::DateTime::default() };
        let data = Value::from_json(data);
        exec::run(&self.source, &self.trees, self.root(), &data, &env, &mut Budget::new(), out)
    }
}

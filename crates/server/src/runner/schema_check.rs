//! The check of a finished answer for what its schema asks for and no grammar enforces.

use std::collections::{HashMap, HashSet};

use puna_sampler::{Constraint, SchemaCheck};
use serde_json::{Map, Value};

use super::forced::ForcedTool;
use crate::canonical::Generate;

/// Bytes of an answer that are kept for the check at most.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// What is reported of an answer that is no whole JSON text.
const INCOMPLETE: &str = "the answer is not complete JSON";

/// What is checked of one answer.
#[derive(Debug, Default)]
pub(super) struct AnswerChecks {
    /// The check of the answer's text.
    text: Option<SchemaCheck>,
    /// The checks of the arguments of forced calls, by the names of the tools.
    arguments: HashMap<String, SchemaCheck>,
    answer: String,
    is_too_long: bool,
    calls: Vec<(String, Map<String, Value>)>,
}

impl AnswerChecks {
    /// The checks that a request's schemas ask for; `None` where grammars enforce everything.
    /// A schema that cannot be read is refused by the grammar, with all that is wrong.
    pub(super) fn of(task: &Generate, tools: &[ForcedTool<'_>]) -> Option<Self> {
        let mut checks = Self::default();
        for tool in tools {
            let check = tool.schema.check().ok().flatten();
            checks.arguments.extend(check.map(|check| (tool.name().to_owned(), check)));
        }
        if let (true, Some(Constraint::Schema(schema))) = (tools.is_empty(), &task.format) {
            checks.text = schema.check().ok().flatten();
        }
        (checks.text.is_some() || !checks.arguments.is_empty()).then_some(checks)
    }

    /// The keywords that are checked, with their places.
    pub(super) fn keywords(&self) -> Vec<String> {
        let mut all: Vec<String> =
            self.text.iter().flat_map(SchemaCheck::keywords).map(ToString::to_string).collect();
        for (tool, check) in &self.arguments {
            all.extend(
                check
                    .keywords()
                    .iter()
                    .map(|keyword| in_tool(tool, &keyword.keyword, &keyword.place)),
            );
        }
        all.sort_unstable();
        all
    }

    /// Keeps the next part of the answer's text.
    pub(super) fn push_text(&mut self, text: &str) {
        if self.text.is_none() {
            return;
        }
        self.is_too_long |= self.answer.len() + text.len() > ANSWER_BYTES_MAX;
        if !self.is_too_long {
            self.answer.push_str(text);
        }
    }

    /// Keeps a call whose arguments are checked.
    pub(super) fn push_call(&mut self, tool: &str, arguments: &Map<String, Value>) {
        if self.arguments.contains_key(tool) {
            self.calls.push((tool.to_owned(), arguments.clone()));
        }
    }

    /// The keywords that the answer does not keep to, or why that is not known.
    pub(super) fn violations(&self) -> Vec<String> {
        let mut all = Vec::new();
        if let Some(check) = &self.text {
            match serde_json::from_str::<Value>(&self.answer) {
                Ok(answer) => match check.violations(&answer) {
                    Ok(violated) => all.extend(violated.iter().map(ToString::to_string)),
                    Err(error) => all.push(error.to_string()),
                },
                Err(_) if self.is_too_long => {
                    all.push("the answer is too long to be checked".into())
                }
                Err(_) => all.push(INCOMPLETE.into()),
            }
        }
        for (tool, arguments) in &self.calls {
            let Some(check) = self.arguments.get(tool) else { continue };
            match check.violations(&Value::Object(arguments.clone())) {
                Ok(violated) => {
                    all.extend(violated.iter().map(|v| in_tool(tool, &v.keyword, &v.place)))
                }
                Err(error) => all.push(format!("{error}, in the call of {tool}")),
            }
        }
        let mut seen = HashSet::new();
        all.retain(|violation| seen.insert(violation.clone()));
        all
    }
}

/// A keyword in the schema of a tool's arguments.
fn in_tool(tool: &str, keyword: &str, place: &str) -> String {
    format!("{keyword} at tools.{tool}{place}")
}

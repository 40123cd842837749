//! Checks a finished answer against the parts of its schema that a grammar cannot enforce.

use std::collections::{HashMap, HashSet};

use puna_sampler::{Constraint, SchemaCheck};
use serde_json::{Map, Value};

use super::forced::ForcedTool;
use crate::canonical::GenerateTask;

/// Maximum number of bytes of an answer that are kept for the check.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// Violation that is reported for an answer that is not complete JSON.
const INCOMPLETE_JSON: &str = "the answer is not complete JSON";

/// Checks of one answer.
#[derive(Debug, Default)]
pub(super) struct AnswerChecks {
    /// Check of the answer's text.
    text: Option<SchemaCheck>,
    /// Checks of the arguments of forced calls, by tool name.
    arguments: HashMap<String, SchemaCheck>,
    answer: String,
    is_too_long: bool,
    calls: Vec<(String, Map<String, Value>)>,
}

impl AnswerChecks {
    /// Returns the checks that a request's schemas need; `None` if grammars enforce everything.
    /// This function skips an invalid schema: compiling its grammar rejects it with all errors.
    pub(super) fn of(task: &GenerateTask, tools: &[ForcedTool<'_>]) -> Option<Self> {
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

    /// Returns the checked keywords with their positions in the schema.
    pub(super) fn keywords(&self) -> Vec<String> {
        let mut all: Vec<String> =
            self.text.iter().flat_map(SchemaCheck::keywords).map(ToString::to_string).collect();
        for (tool, check) in &self.arguments {
            all.extend(
                check
                    .keywords()
                    .iter()
                    .map(|keyword| tool_keyword(tool, &keyword.keyword, &keyword.place)),
            );
        }
        all.sort_unstable();
        all
    }

    /// Appends a part of the answer's text.
    pub(super) fn push_text(&mut self, text: &str) {
        if self.text.is_none() {
            return;
        }
        self.is_too_long |= self.answer.len() + text.len() > MAX_ANSWER_BYTES;
        if !self.is_too_long {
            self.answer.push_str(text);
        }
    }

    /// Keeps a call if its arguments are checked.
    pub(super) fn push_call(&mut self, tool: &str, arguments: &Map<String, Value>) {
        if self.arguments.contains_key(tool) {
            self.calls.push((tool.to_owned(), arguments.clone()));
        }
    }

    /// Returns the keywords that the answer violates, or the reason why the check failed.
    pub(super) fn violations(&self) -> Vec<String> {
        let mut all = Vec::new();
        if let Some(check) = &self.text {
            match serde_json::from_str::<Value>(&self.answer) {
                Ok(answer) => match check.violations(&answer) {
                    Ok(violated) => all.extend(violated.iter().map(ToString::to_string)),
                    Err(error) => all.push(error.to_string()),
                },
                Err(_) if self.is_too_long => all.push("the answer is too long to check".into()),
                Err(_) => all.push(INCOMPLETE_JSON.into()),
            }
        }
        for (tool, arguments) in &self.calls {
            let Some(check) = self.arguments.get(tool) else { continue };
            match check.violations(&Value::Object(arguments.clone())) {
                Ok(violated) => {
                    all.extend(violated.iter().map(|v| tool_keyword(tool, &v.keyword, &v.place)))
                }
                Err(error) => all.push(format!("{error}, in the call of {tool}")),
            }
        }
        let mut seen = HashSet::new();
        all.retain(|violation| seen.insert(violation.clone()));
        all
    }
}

/// Describes a keyword in the schema of a tool's arguments.
fn tool_keyword(tool: &str, keyword: &str, place: &str) -> String {
    format!("{keyword} at tools.{tool}{place}")
}

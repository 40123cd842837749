//! Detects the features of a model from its template: tools, fill-in-the-middle, reasoning.

use crate::{NamedTemplate, Template};

/// Features of a model, detected from the source text or syntax tree of its template.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// The template lists tools.
    pub tools: bool,
    /// The template has a fill-in-the-middle prompt (`suffix`).
    pub insert: bool,
    /// The template uses think tags.
    pub thinking: bool,
    /// The template writes earlier tool calls and their results.
    pub tool_round_trip: bool,
}

impl Capabilities {
    pub(crate) fn detect(template: &Template) -> Capabilities {
        match template {
            Template::Go(go) => {
                let text = go.source();
                let tools = go.reads("tools");
                let writes_results = ["eq .Role \"tool\"", "tool_response", "TOOL_RESULTS"];
                Capabilities {
                    tools,
                    insert: go.reads("suffix"),
                    thinking: template.think_tags().is_some(),
                    tool_round_trip: tools
                        && go.reads("toolcalls")
                        && writes_results.iter().any(|snippet| text.contains(snippet)),
                }
            }
            Template::Jinja(jinja) => detect_jinja(jinja.source()),
            Template::BuiltIn(renderer) => renderer.capabilities(),
        }
    }

    /// Number of supported features among tools, insert and thinking.
    fn feature_count(self) -> usize {
        usize::from(self.tools) + usize::from(self.insert) + usize::from(self.thinking)
    }

    fn has_same_features(self, other: Capabilities) -> bool {
        (self.tools, self.insert, self.thinking) == (other.tools, other.insert, other.thinking)
    }
}

fn detect_jinja(text: &str) -> Capabilities {
    let any = |snippets: &[&str]| snippets.iter().any(|snippet| text.contains(snippet));
    let tools = any(&["tools", "tool_call"]);
    let splits_reasoning = any(&["content.split('</think>')", "content.split(\"</think>\")"]);
    let thinking = (text.contains("<think>") && text.contains("</think>"))
        || (splits_reasoning && !any(&["reasoning_content", "<SPECIAL_12>"]));
    let writes_calls = any(&["tool_calls", "assistant_tool_call"]);
    let writes_results = any(&[
        "tool_response",
        "tool_results",
        "role'] == 'tool'",
        "role'] == \"tool\"",
        "role\"] == 'tool'",
        "role\"] == \"tool\"",
        "message.role == 'tool'",
        "message.role == \"tool\"",
        "ipython",
    ]);
    Capabilities {
        tools,
        insert: false,
        thinking,
        tool_round_trip: tools && writes_calls && writes_results,
    }
}

/// Decides which template to use for a model that has both kinds and no explicit setting: true for
/// the Jinja template.
///
/// The Jinja template is preferred in these cases:
///
/// * It has more features of tools, insert and thinking than the Go template. Exception: only the
///   Go template writes tool results.
/// * Both have the same features including tools, and only the Jinja template writes tool results.
/// * The Go template is one of Ollama's named templates, detected by its output. The Jinja template
///   of the file is more complete: it may contain a default system text.
pub fn prefer_jinja(jinja: &Template, go: &Template) -> bool {
    if NamedTemplate::is_source(go.source()) {
        return true;
    }
    let (j, g) = (jinja.capabilities(), go.capabilities());
    if j.feature_count() > g.feature_count() {
        return !g.tool_round_trip || j.tool_round_trip;
    }
    j.has_same_features(g) && j.tools && j.tool_round_trip && !g.tool_round_trip
}

//! Detects the features of a model from its template: tools, fill-in-the-middle, reasoning.

use crate::go::GoTemplate;

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
    /// Features of a Go template. `thinking`: the template has think tags.
    pub(crate) fn of_go(go: &GoTemplate, thinking: bool) -> Capabilities {
        let text = go.source();
        let tools = go.reads("tools");
        let writes_results = ["eq .Role \"tool\"", "tool_response", "TOOL_RESULTS"];
        Capabilities {
            tools,
            insert: go.reads("suffix"),
            thinking,
            tool_round_trip: tools
                && go.reads("toolcalls")
                && writes_results.iter().any(|snippet| text.contains(snippet)),
        }
    }

    /// Features of a Jinja template with this source.
    pub(crate) fn of_jinja(text: &str) -> Capabilities {
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

    /// Number of supported features among tools, insert and thinking.
    pub(crate) fn feature_count(self) -> usize {
        usize::from(self.tools) + usize::from(self.insert) + usize::from(self.thinking)
    }

    pub(crate) fn has_same_features(self, other: Capabilities) -> bool {
        (self.tools, self.insert, self.thinking) == (other.tools, other.insert, other.thinking)
    }
}

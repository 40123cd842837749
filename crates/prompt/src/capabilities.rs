//! What a template tells about its model.

use crate::{NamedTemplate, Template};

/// Abilities guessed from a template's text and tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Tools can be offered.
    pub tools: bool,
    /// There is a form for filling in the middle (`suffix`).
    pub insert: bool,
    /// Thoughts have tags.
    pub thinking: bool,
    /// Calls and their results can be shown to the model again.
    pub tool_round_trip: bool,
}

impl Capabilities {
    pub(crate) fn of(template: &Template) -> Capabilities {
        match template {
            Template::Go(go) => {
                let text = go.source();
                let tools = go.reads("tools");
                let shows_results = ["eq .Role \"tool\"", "tool_response", "TOOL_RESULTS"];
                Capabilities {
                    tools,
                    insert: go.reads("suffix"),
                    thinking: template.think_tags().is_some(),
                    tool_round_trip: tools
                        && go.reads("toolcalls")
                        && shows_results.iter().any(|mark| text.contains(mark)),
                }
            }
            Template::Jinja(jinja) => of_jinja(jinja.source()),
            Template::BuiltIn(renderer) => renderer.capabilities(),
        }
    }

    /// Tools, insert and thinking, counted.
    fn count(self) -> usize {
        usize::from(self.tools) + usize::from(self.insert) + usize::from(self.thinking)
    }

    fn same_set(self, other: Capabilities) -> bool {
        (self.tools, self.insert, self.thinking) == (other.tools, other.insert, other.thinking)
    }
}

fn of_jinja(text: &str) -> Capabilities {
    let any = |marks: &[&str]| marks.iter().any(|mark| text.contains(mark));
    let tools = any(&["tools", "tool_call"]);
    let splits_thoughts = any(&["content.split('</think>')", "content.split(\"</think>\")"]);
    let thinking = (text.contains("<think>") && text.contains("</think>"))
        || (splits_thoughts && !any(&["reasoning_content", "<SPECIAL_12>"]));
    let shows_calls = any(&["tool_calls", "assistant_tool_call"]);
    let shows_results = any(&[
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
        tool_round_trip: tools && shows_calls && shows_results,
    }
}

/// With both kinds of template in a model, and nothing said about it: is the Jinja one the better?
///
/// It is if it has more of tools, insert and thinking, unless only the Go template shows tool results again; or if both
/// have the same, tools among them, and only the Jinja one shows results again.
///
/// So it is where the Go template is a named one that was found because it writes the same: the file's own knows more,
/// such as a default system text.
pub fn prefer_jinja(jinja: &Template, go: &Template) -> bool {
    if NamedTemplate::is_source(go.source()) {
        return true;
    }
    let (j, g) = (jinja.capabilities(), go.capabilities());
    if j.count() > g.count() {
        return !g.tool_round_trip || j.tool_round_trip;
    }
    j.same_set(g) && j.tools && j.tool_round_trip && !g.tool_round_trip
}

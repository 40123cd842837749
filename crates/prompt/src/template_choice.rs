//! Chooses between the Jinja template and the Go template of a model.

use crate::{NamedTemplate, Template};

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

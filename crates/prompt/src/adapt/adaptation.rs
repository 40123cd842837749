//! Changes that adapt a conversation to a template.

use std::collections::BTreeSet;
use std::fmt;

/// Text of a user message that is inserted because a template requires one.
pub(super) const PLACEHOLDER_TEXT: &str = "...";

/// Kind of a change that adapts a conversation to its template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Adaptation {
    /// Neighbouring messages of one role became one message.
    Merged,
    /// The text of a system message moved to another place, or a text moved to a message of its own
    /// before its calls.
    Moved,
    /// Calls and results changed their order: each result directly follows its call.
    Reordered,
    /// A text replaces something that the template cannot express, or is a user message that the
    /// template requires.
    Placeholder,
    /// A message got another role.
    Renamed,
    /// Arguments of a call that were not a JSON object were wrapped in one.
    Repaired,
    /// Messages, or the middle of a tool result, were left out.
    Dropped,
}

impl Adaptation {
    /// The word for headers and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Merged => "merged",
            Self::Moved => "moved",
            Self::Reordered => "reordered",
            Self::Placeholder => "placeholder",
            Self::Renamed => "renamed",
            Self::Repaired => "repaired",
            Self::Dropped => "dropped",
        }
    }

    /// A sentence for users.
    pub fn description(self) -> &'static str {
        match self {
            Self::Merged => "adjacent messages of one role were merged",
            Self::Moved => {
                "a system message was moved, or a text was moved to its own message before its calls"
            }
            Self::Reordered => "each result was moved after its call, in the order of the calls",
            Self::Placeholder => {
                "a text replaces calls or an image, or is a user message that the template requires"
            }
            Self::Repaired => {
                "arguments of a call that were not a JSON object became one text argument"
            }
            Self::Dropped => {
                "messages or parts of them were left out: the context is too small, or the template does not support them"
            }
            Self::Renamed => {
                "a message has another role: developer became system, a late system message or a result became user"
            }
        }
    }
}

impl fmt::Display for Adaptation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// All kinds of changes made to a conversation.
pub type Adaptations = BTreeSet<Adaptation>;

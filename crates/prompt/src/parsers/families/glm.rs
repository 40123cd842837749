//! GLM 4.x: a name and pairs of tagged keys and values in `<tool_call>`.

use super::super::body::{Body, Pairs};
use super::super::tagged::{Calls, Rules, Start, Thought, Unclosed};

/// `thinks`: the prompt has opened a thought; otherwise the model may open one itself.
pub(super) fn glm(thinks: bool) -> Rules {
    let calls = Calls {
        unclosed: Unclosed::IfComplete,
        ..Calls::between("<tool_call>", "</tool_call>", Body::Pairs(Pairs::default()))
    };
    let start = if thinks { Start::Thought } else { Start::MayOpen };
    Rules {
        think: Some(Thought::tags("<think>", "</think>", start)),
        calls: Some(calls),
        ..Rules::PLAIN
    }
}

//! GLM 4.x: a name and pairs of tagged keys and values in `<tool_call>`.

use super::super::body::{CallBody, Pairs};
use super::super::tagged::{
    CallsFormat, ReasoningFormat, ReasoningStart, TaggedFormat, UnclosedCall,
};

/// `thinks`: the prompt has opened the reasoning. Otherwise the model may open it.
pub(super) fn glm(thinks: bool) -> TaggedFormat {
    let calls = CallsFormat {
        unclosed: UnclosedCall::IfComplete,
        ..CallsFormat::between("<tool_call>", "</tool_call>", CallBody::Pairs(Pairs::default()))
    };
    let start = if thinks { ReasoningStart::InReasoning } else { ReasoningStart::MayOpen };
    TaggedFormat {
        think: Some(ReasoningFormat::tags("<think>", "</think>", start)),
        calls: Some(calls),
        ..TaggedFormat::PLAIN
    }
}

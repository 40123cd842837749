//! LFM2: a list of Python calls between tags.

use super::super::body::CallBody;
use super::super::tagged::{CallsFormat, ReasoningFormat, ReasoningStart, TaggedFormat};

/// `thinks`: the model may start with reasoning.
pub(super) fn lfm2(thinks: bool) -> TaggedFormat {
    let calls = CallsFormat {
        retry_after_close: true,
        ..CallsFormat::between("<|tool_call_start|>", "<|tool_call_end|>", CallBody::Python)
    };
    let start = if thinks { ReasoningStart::MayOpen } else { ReasoningStart::Answer };
    TaggedFormat {
        think: Some(ReasoningFormat::tags("<think>", "</think>", start)),
        calls: Some(calls),
        keep_tail: true,
        ..TaggedFormat::PLAIN
    }
}

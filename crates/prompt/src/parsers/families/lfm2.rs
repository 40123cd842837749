//! LFM2: a list of Python calls between tags.

use super::super::body::Body;
use super::super::tagged::{Calls, Rules, Start, Thought};

/// `thinks`: the model may open a thought.
pub(super) fn lfm2(thinks: bool) -> Rules {
    let calls = Calls {
        patient: true,
        ..Calls::between("<|tool_call_start|>", "<|tool_call_end|>", Body::Python)
    };
    let start = if thinks { Start::MayOpen } else { Start::Answer };
    Rules {
        think: Some(Thought::tags("<think>", "</think>", start)),
        calls: Some(calls),
        keep_tail: true,
        ..Rules::PLAIN
    }
}

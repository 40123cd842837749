//! OLMo 3: Python calls, one a line, between tags; its thinking sister calls nothing.

use super::super::ParserInput;
use super::super::body::Body;
use super::super::tagged::{Calls, Rules, Start, Thought};

pub(super) fn olmo3() -> Rules {
    let calls = Calls {
        keep_blank: true,
        ..Calls::between("<function_calls>", "</function_calls>", Body::Python)
    };
    Rules { calls: Some(calls), keep_tail: true, ..Rules::PLAIN }
}

pub(super) fn think(input: &ParserInput<'_>) -> Rules {
    let start = if input.continues() { Start::Answer } else { Start::Thought };
    Rules {
        think: Some(Thought::tags("<think>", "</think>", start)),
        keep_tail: true,
        ..Rules::PLAIN
    }
}

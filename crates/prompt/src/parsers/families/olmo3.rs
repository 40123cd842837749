//! OLMo 3: Python calls between tags, one a line. The reasoning variant does not call tools.

use super::super::body::CallBody;
use super::super::format_parser::ParserInput;
use super::super::tagged::{CallsFormat, ReasoningFormat, ReasoningStart, TaggedFormat};

pub(super) fn olmo3() -> TaggedFormat {
    let calls = CallsFormat {
        keep_blank: true,
        ..CallsFormat::between("<function_calls>", "</function_calls>", CallBody::Python)
    };
    TaggedFormat { calls: Some(calls), keep_tail: true, ..TaggedFormat::PLAIN }
}

pub(super) fn think(input: &ParserInput<'_>) -> TaggedFormat {
    let start =
        if input.continues() { ReasoningStart::Answer } else { ReasoningStart::InReasoning };
    TaggedFormat {
        think: Some(ReasoningFormat::tags("<think>", "</think>", start)),
        keep_tail: true,
        ..TaggedFormat::PLAIN
    }
}

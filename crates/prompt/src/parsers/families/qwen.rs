//! Qwen 3 and related models: JSON or XML calls in `<tool_call>`, reasoning in `<think>`.

use super::super::body::{CallBody, Xml};
use super::super::format_parser::ParserInput;
use super::super::tagged::{CallsFormat, ReasoningFormat, ReasoningStart, TaggedFormat};

fn calls(body: CallBody) -> CallsFormat {
    CallsFormat::between("<tool_call>", "</tool_call>", body)
}

/// Reasoning with a closing tag that may be missing before a call.
fn reasoning(start: ReasoningStart) -> Option<ReasoningFormat> {
    Some(ReasoningFormat {
        call_ends_reasoning: true,
        ..ReasoningFormat::tags("<think>", "</think>", start)
    })
}

pub(super) fn qwen3() -> TaggedFormat {
    TaggedFormat {
        calls: Some(calls(CallBody::Json)),
        preserved_tokens: &["<think>", "</think>"],
        ..TaggedFormat::PLAIN
    }
}

pub(super) fn coder() -> TaggedFormat {
    TaggedFormat { calls: Some(calls(CallBody::Xml(Xml::FUNCTION))), ..TaggedFormat::PLAIN }
}

pub(super) fn thinking(input: &ParserInput<'_>) -> TaggedFormat {
    let start =
        if input.thinks_by_default() { ReasoningStart::MayReopen } else { ReasoningStart::Answer };
    TaggedFormat { think: reasoning(start), ..qwen3() }
}

/// This model always reasons.
pub(super) fn vl_thinking(input: &ParserInput<'_>) -> TaggedFormat {
    let start =
        if input.continues() { ReasoningStart::Answer } else { ReasoningStart::InReasoning };
    TaggedFormat { think: reasoning(start), ..qwen3() }
}

pub(super) fn qwen35(input: &ParserInput<'_>) -> TaggedFormat {
    let thinks = input.thinks_by_default() && !input.continues();
    let start = if thinks { ReasoningStart::MayReopen } else { ReasoningStart::Answer };
    TaggedFormat { think: reasoning(start), ..coder() }
}

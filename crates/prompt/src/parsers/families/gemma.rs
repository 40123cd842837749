//! Gemma 4 and FunctionGemma: `call:f{a:<quote>x<quote>,n:2}` between tags.

use super::super::body::{CallBody, Gemma};
use super::super::format_parser::ParserInput;
use super::super::tagged::{CallsFormat, ReasoningFormat, ReasoningStart, TaggedFormat};

fn calls(
    open: &'static str,
    close: &'static str,
    quote: &'static str,
    keep_blank: bool,
) -> CallsFormat {
    CallsFormat {
        keep_blank,
        ..CallsFormat::between(open, close, CallBody::Gemma(Gemma { quote: quote.into() }))
    }
}

/// Calls of Gemma 4.
pub(in super::super) fn calls4() -> CallsFormat {
    calls("<|tool_call>", "<tool_call|>", "<|\"|>", false)
}

/// Calls of FunctionGemma.
pub(in super::super) fn calls_function() -> CallsFormat {
    calls("<start_function_call>", "<end_function_call>", "<escape>", true)
}

/// `shows`: this variant returns its reasoning on request.
pub(super) fn gemma4(input: &ParserInput<'_>, shows: bool) -> TaggedFormat {
    let thinks = shows && input.thinks();
    let after_tool = input.last.is_some_and(|last| last.role == "tool");
    let start =
        if thinks && after_tool { ReasoningStart::InReasoning } else { ReasoningStart::Answer };
    let tags = ReasoningFormat::tags("<|channel>thought", "<channel|>", start);
    TaggedFormat {
        think: Some(ReasoningFormat { reasoning_anywhere: true, discard: !thinks, ..tags }),
        calls: Some(calls4()),
        removed_tags: &["<tool_call|>", "<|tool_response>"],
        keep_tail: true,
        preserved_tokens: &["<|channel>"],
        ..TaggedFormat::PLAIN
    }
}

pub(super) fn functiongemma() -> TaggedFormat {
    TaggedFormat { calls: Some(calls_function()), keep_tail: true, ..TaggedFormat::PLAIN }
}

//! Gemma 4 and FunctionGemma: `call:f{a:<quote>x<quote>,n:2}` between tags.

use super::super::ParserInput;
use super::super::body::{Body, Gemma};
use super::super::tagged::{Calls, Rules, Start, Thought};

fn calls(open: &'static str, close: &'static str, quote: &'static str, keep_blank: bool) -> Calls {
    Calls { keep_blank, ..Calls::between(open, close, Body::Gemma(Gemma { quote: quote.into() })) }
}

/// Calls of Gemma 4.
pub(in super::super) fn calls4() -> Calls {
    calls("<|tool_call>", "<tool_call|>", "<|\"|>", false)
}

/// Calls of FunctionGemma.
pub(in super::super) fn calls_function() -> Calls {
    calls("<start_function_call>", "<end_function_call>", "<escape>", true)
}

/// `shows`: the variant shows its thoughts if asked to.
pub(super) fn gemma4(input: &ParserInput<'_>, shows: bool) -> Rules {
    let thinks = shows && input.thinks();
    let after_tool = input.last.is_some_and(|last| last.role == "tool");
    let start = if thinks && after_tool { Start::Thought } else { Start::Answer };
    let tags = Thought::tags("<|channel>thought", "<channel|>", start);
    Rules {
        think: Some(Thought { anywhere: true, discard: !thinks, ..tags }),
        calls: Some(calls4()),
        dropped: &["<tool_call|>", "<|tool_response>"],
        keep_tail: true,
        preserved: &["<|channel>"],
        ..Rules::PLAIN
    }
}

pub(super) fn functiongemma() -> Rules {
    Rules { calls: Some(calls_function()), keep_tail: true, ..Rules::PLAIN }
}

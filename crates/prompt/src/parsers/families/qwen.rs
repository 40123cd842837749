//! Qwen 3 and its relatives: JSON or XML calls in `<tool_call>`, thoughts in `<think>`.

use super::super::ParserInput;
use super::super::body::{Body, Xml};
use super::super::tagged::{Calls, Rules, Start, Thought};

fn calls(body: Body) -> Calls {
    Calls::between("<tool_call>", "</tool_call>", body)
}

/// A thought that may lack its end before a call.
fn thought(start: Start) -> Option<Thought> {
    Some(Thought { call_ends: true, ..Thought::tags("<think>", "</think>", start) })
}

pub(super) fn qwen3() -> Rules {
    Rules { calls: Some(calls(Body::Json)), preserved: &["<think>", "</think>"], ..Rules::PLAIN }
}

pub(super) fn coder() -> Rules {
    Rules { calls: Some(calls(Body::Xml(Xml::FUNCTION))), ..Rules::PLAIN }
}

pub(super) fn thinking(input: &ParserInput<'_>) -> Rules {
    let start = if input.thinks_unless_told() { Start::MayReopen } else { Start::Answer };
    Rules { think: thought(start), ..qwen3() }
}

/// Thinks whatever it is told.
pub(super) fn vl_thinking(input: &ParserInput<'_>) -> Rules {
    let start = if input.continues() { Start::Answer } else { Start::Thought };
    Rules { think: thought(start), ..qwen3() }
}

pub(super) fn qwen35(input: &ParserInput<'_>) -> Rules {
    let thinks = input.thinks_unless_told() && !input.continues();
    let start = if thinks { Start::MayReopen } else { Start::Answer };
    Rules { think: thought(start), ..coder() }
}

//! Calls in Python syntax: `f(a="x", n=2)`.

use serde_json::Map;

use super::super::output_part::CallError;
use super::super::python_literal::LiteralParser;
use super::syntax::call;
use crate::message::FunctionCall;

const SYNTAX_ERROR: CallError = CallError::Syntax("NAME(KEY=VALUE, …)");

/// Reads calls in brackets, or one after the other.
pub(in super::super) fn read(text: &str) -> Result<Vec<FunctionCall>, CallError> {
    let text = text.trim();
    let text = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    let mut parser = LiteralParser { rest: text.trim() };
    let mut calls = Vec::new();
    while !parser.rest.is_empty() {
        calls.push(read_call(&mut parser).ok_or(SYNTAX_ERROR)?);
        let separated = parser.eat(',');
        if !separated && !parser.rest.is_empty() && !parser.rest.starts_with(is_name) {
            return Err(SYNTAX_ERROR);
        }
    }
    if calls.is_empty() { Err(SYNTAX_ERROR) } else { Ok(calls) }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Reads `f(a=x, …)`.
fn read_call(parser: &mut LiteralParser<'_>) -> Option<FunctionCall> {
    let name = parser.word(|c| is_name(c) || c == '.' || c == '-');
    if name.is_empty() || !parser.eat('(') {
        return None;
    }
    let mut arguments = Map::new();
    while !parser.eat(')') {
        let key = parser.word(is_name);
        if key.is_empty() || !parser.eat('=') {
            return None;
        }
        let value = parser.value(0)?;
        arguments.insert(key.to_owned(), value);
        if !parser.eat(',') && !parser.rest.starts_with(')') {
            return None;
        }
    }
    Some(call(name, arguments))
}

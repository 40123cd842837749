//! Schemas of libraries, and keywords of schemas.

mod checks;
mod keywords;
mod libraries;

use serde_json::{Map, Value, json};

use super::*;
use crate::grammar::{Constraint, Grammar, GrammarCompiler, GrammarError, GrammarToken};

/// Every byte is a token.
fn grammars() -> GrammarCompiler {
    let bytes: Vec<Vec<u8>> = (0..=255u8).map(|b| vec![b]).collect();
    let texts = bytes.iter().map(|bytes| GrammarToken { bytes, is_text: true });
    let end = GrammarToken { bytes: b"<end>", is_text: false };
    GrammarCompiler::new(texts.chain([end]), &[256]).unwrap()
}

fn json_schema(schema: &Value) -> JsonSchema {
    schema.clone().into()
}

fn compile(schema: &Value) -> Result<Grammar, GrammarError> {
    grammars().compile(&Constraint::schema(schema.clone()))
}

/// Whether a grammar accepts a whole text.
fn accepts(grammar: &Grammar, text: &str) -> bool {
    let mut grammar = grammar.clone();
    let is_taken = text.bytes().all(|byte| {
        let mut logits = [0.0; 257];
        let is_allowed = grammar.mask(&mut logits).is_ok() && logits[usize::from(byte)] == 0.0;
        is_allowed && grammar.accept(u32::from(byte)).is_ok()
    });
    is_taken && grammar.is_complete()
}

/// Keywords that are checked on the finished answer.
fn unenforced(schema: &Value) -> Vec<String> {
    let check = json_schema(schema).check().unwrap_or_else(|error| panic!("{schema}: {error}"));
    check.iter().flat_map(SchemaCheck::keywords).map(ToString::to_string).collect()
}

/// Keywords that an answer violates.
fn violated(schema: &Value, answer: &Value) -> Vec<String> {
    let check = json_schema(schema)
        .check()
        .unwrap()
        .unwrap_or_else(|| panic!("{schema}: nothing is checked"));
    check.violations(answer).unwrap().iter().map(ToString::to_string).collect()
}

/// Checks that a grammar accepts the texts `yes` and rejects the texts `no`.
#[track_caller]
fn enforced(schema: &Value, yes: &[&str], no: &[&str]) {
    let grammar = compile(schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
    for text in yes {
        assert!(accepts(&grammar, text), "{schema} refuses {text}");
    }
    for text in no {
        assert!(!accepts(&grammar, text), "{schema} takes {text}");
    }
}

/// Small schemas that would exhaust the stack, time or memory without limits.
#[test]
fn hostile_schemas_take_bounded_time_and_memory() {
    let begun = std::time::Instant::now();
    let many = |count: usize, one: &dyn Fn(usize) -> (String, Value)| -> Value {
        Value::Object((0..count).map(one).collect())
    };
    let cases = [
        json!({"type": "object", "propertyNames": {"$ref": "#/$defs/N"}, "$defs": {"N": {"anyOf": [{"$ref": "#/$defs/N"}, {"pattern": "a"}]}}}),
        json!({"type": "object", "properties": {"a": {"type": "object", "properties": {}, "dependentSchemas": {"d": {"$ref": "#"}}}}}),
        json!({"type": "object", "properties": {"a": {"type": "object", "properties": {}, "if": {}, "then": {"$ref": "#"}}}}),
        json!({"type": "object", "properties": {"b": true}, "dependentSchemas": many(2500, &|i| {
            (format!("n{i}"), json!({"properties": {"x": {"minLength": i}}}))
        })}),
        json!({"type": "object", "patternProperties": many(2500, &|i| (format!("(?!{i})a"), json!({"minLength": i})))}),
        json!({"type": "string", "pattern": "{".repeat(150_000)}),
        json!({"unevaluatedProperties": false, "properties": many(8000, &|i| (format!("n{i}"), json!(true))), "allOf": [{"$ref": "#"}]}),
    ];
    for schema in cases {
        // Either result is correct. The test only requires that the call returns.
        let _ = json_schema(&schema).enforceable();
        let _ = json_schema(&schema).check_strict();
    }
    let long = json!({"description": "x".repeat(300 << 10)});
    assert!(json_schema(&long).enforceable().err().unwrap().contains("bytes, at most"));
    assert!(begun.elapsed().as_secs() < 120, "{:?}", begun.elapsed());
}

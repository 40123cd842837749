//! Limits of numbers, strings and names in schemas.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

#[test]
fn hard_multiples_are_refused_quickly() {
    let (grammars, start) = (grammars(), Instant::now());
    let number = |kind: &str, n: Value| Constraint::schema(json!({"type": kind, "multipleOf": n}));
    for n in [json!(9_999_991), json!(62_615_533), json!(1_000_003), json!(1e-9)] {
        let error = grammars.compile(&number("number", n)).unwrap_err().to_string();
        assert!(error.contains("multipleOf"), "{error}");
    }
    let lark =
        Constraint::Lark("start: %json {\"type\": \"integer\", \"multipleOf\": 1000003}".into());
    assert!(grammars.compile(&lark).unwrap_err().to_string().contains("multipleOf"));
    for (kind, n) in
        [("integer", json!(1999)), ("number", json!(1234.567)), ("number", json!(0.01))]
    {
        let mut grammar = grammars.compile(&number(kind, n.clone())).unwrap();
        for byte in b"9173648520551" {
            grammar.mask(&mut [0.0; TOKENS]).unwrap_or_else(|error| panic!("{n}: {error}"));
            grammar.accept(u32::from(*byte)).unwrap();
        }
    }
    let grammar = grammars.compile(&number("number", json!(0.07))).unwrap();
    check(&grammar, &["0.07", "0.14", "7", "-0.21"], &["0.08", "1"]);
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

#[test]
fn unbounded_first_byte_searches_are_refused() {
    // Bypasses the check of the number: the library does not limit the search for the first byte.
    let grammars = grammars();
    let source = json(json!({"type": "integer", "multipleOf": 62_615_533, "x-guidance": {}}));
    let (start, parts) =
        (Instant::now(), first_bytes::load(&grammars.factory, source, false).unwrap());
    let refused =
        first_bytes::check_first_bytes(&grammars.factory, &parts.1, &Cancellation(&|| false));
    assert!(matches!(refused, Err(GrammarError::TooComplex(_))), "{refused:?}");
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

#[test]
fn a_cancelled_compilation_ends_before_its_next_phase() {
    let grammars = grammars();
    let schema = json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}});
    let constraint = Constraint::schema(schema);
    let check_count = AtomicUsize::new(0);
    let count = || check_count.fetch_add(1, Ordering::Relaxed);
    assert!(grammars.compile_unless(&constraint, true, &|| count() == usize::MAX).is_ok());
    let checks = check_count.load(Ordering::Relaxed);
    // Before and after the schema is read, for each first byte, and around the search for the end.
    assert_eq!(checks, 2 + 256 + 2);
    for last in [0, 1, 2, 100, 257, 258, 259] {
        check_count.store(0, Ordering::Relaxed);
        let cancelled = grammars.compile_unless(&constraint, true, &|| count() == last);
        assert_eq!(cancelled.err(), Some(GrammarError::Cancelled));
        assert_eq!(check_count.load(Ordering::Relaxed), last + 1, "nothing follows");
    }
    let flag = AtomicBool::new(true);
    let cancelled = grammars.try_compile(&constraint, false, &flag);
    assert_eq!(cancelled.err(), Some(GrammarError::Cancelled));
}

#[test]
fn redundant_keywords_and_listed_names_are_accepted() {
    check(
        &schema(json!({"type": "array", "items": {"type": "null"}, "uniqueItems": false})),
        &["[null, null]"],
        &[],
    );
    let listed = json!({
        "type": "object",
        "propertyNames": {"enum": ["a", "b"]},
        "additionalProperties": {"type": "integer"},
    });
    check(
        &schema(listed),
        &["{}", "{\"a\": 1}", "{\"a\": 1, \"b\": 2}"],
        &["{\"c\": 1}", "{\"a\": \"x\"}"],
    );
    let fitting = json!({"type": "object", "propertyNames": {"pattern": "^a"}});
    check(&schema(fitting), &["{\"ab\": 1}"], &["{\"b\": 1}"]);
}

#[test]
fn contradicting_bounds_and_strings_are_named() {
    let cases = [
        (json!({"type": "string", "format": "ipv4", "maxLength": 3}), "format"),
        (
            json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^aaa$", "maxLength": 2}}, "required": ["a"]}),
            "maxLength",
        ),
        (json!({"type": "number", "minimum": -1e-300, "maximum": 1e300}), "minimum"),
        (json!({"type": "number", "exclusiveMaximum": 4.9e-324}), "exclusiveMaximum"),
    ];
    for (given, word) in cases {
        let text = compile(&Constraint::schema(given.clone())).unwrap_err().to_string();
        assert!(text.contains(word), "{given}: {text}");
        assert!(
            !["(And", "(Regex", "{299}", "the pattern"].iter().any(|inside| text.contains(inside)),
            "{given}: {text}"
        );
    }
    for small in [0.1 + 0.2, 1.2345678901234567e-29, 4.9e-324] {
        let above = schema(json!({"type": "number", "minimum": small, "maximum": 1e300}));
        check(&above, &["1", "0.5"], &["0", "-1", "0.0"]);
        let below = schema(json!({"type": "number", "exclusiveMaximum": -small}));
        check(&below, &["-1", "-0.5"], &["0", "1"]);
    }
}

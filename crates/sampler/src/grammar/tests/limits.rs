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
        first_bytes::check_first_bytes(&grammars.factory, &parts.1, &Cancellation::new(&|| false));
    assert!(matches!(refused, Err(GrammarError::TooComplex(_))), "{refused:?}");
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

#[test]
fn a_cancelled_compilation_ends_before_its_next_phase() {
    let grammars = grammars();
    let schema = json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}});
    let constraint = Constraint::schema(schema);
    let check_count = AtomicUsize::new(0);
    // The thread that waits for the compilation reads the flag too, a number of times that depends
    // on its duration.
    let count = || match is_compiling_thread() {
        true => check_count.fetch_add(1, Ordering::Relaxed),
        false => usize::MAX - 1,
    };
    assert!(grammars.compile_unless(&constraint, true, &|| count() == usize::MAX).is_ok());
    let checks = check_count.load(Ordering::Relaxed);
    // Around the reading of the schema and of its grammar, for each first byte, around the parser
    // and the search for the end, and after the first tokens.
    assert_eq!(checks, 3 + 256 + 4);
    for last in [0, 1, 2, 3, 100, 258, 259, 260, 261, 262] {
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
fn a_cancellation_interrupts_the_computation_of_the_first_tokens() {
    // 1,000 rules that all mention the first one: the library needs about a second.
    let rules: String =
        (0..1000).map(|n| format!("r{n}: r{} r0 | r0 r{} | \"a\"\n", n + 1, n + 1)).collect();
    let constraint = Constraint::Lark(format!("start: r0\n{rules}r1000: \"b\"\n"));
    let grammars = super::phases::large_vocabulary();
    // Only the waiting thread sees the cancellation, so the library's error shows that it stopped.
    let stopped = grammars.compile_unless(&constraint, false, &|| !is_compiling_thread());
    let stopped = stopped.unwrap_err().to_string();
    assert!(stopped.contains("cancelled"), "{stopped}");
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

/// Compiles a constraint. Returns its error if the error contains `words`, which name a limit.
fn refusal(constraint: &Constraint, words: &str) -> Option<String> {
    let error = compile(constraint).err()?.to_string();
    error.contains(words).then_some(error)
}

#[test]
fn too_many_terminals_and_symbols_are_refused() {
    let lark = |count: usize| {
        let texts: Vec<_> = (0..count).map(|n| format!("\"{n:x}\"")).collect();
        Constraint::Lark(format!("start: {}", texts.join(" | ")))
    };
    let words = format!("at most {} are allowed", expression_limits::MAX_TERMINALS);
    // The library adds a terminal for white space, and this crate more of its own.
    assert_eq!(refusal(&lark(expression_limits::MAX_TERMINALS - 10), "are allowed"), None);
    let error = refusal(&lark(expression_limits::MAX_TERMINALS + 1), &words).unwrap();
    assert!(error.contains("use fewer"), "{error}");
    let gbnf = |count: usize| {
        let texts = (0..count).map(|n| format!("root \"{n:x}\"")).collect::<Vec<_>>();
        Constraint::Gbnf(format!("root ::= \"x\" | {}", texts.join(" | ")))
    };
    assert!(refusal(&gbnf(expression_limits::MAX_TERMINALS + 1), &words).is_some());
    let objects = |count: usize| {
        let object = |n| json!({"type": "object", "properties": {format!("{n:x}"): {}}});
        let objects: Vec<_> = (0..count).map(|n| format!("%json {}", object(n))).collect();
        Constraint::Lark(format!("start: {}", objects.join(" | ")))
    };
    let words = format!("more than {MAX_SYMBOLS} rules");
    assert_eq!(refusal(&objects(100), &words), None);
    let error = compile(&objects(4500)).unwrap_err().to_string();
    assert!(error.contains(&words), "{error}");
}

#[test]
fn too_many_optional_parts_in_a_row_are_refused() {
    let optional = |count: usize| Constraint::Regex((0..count).map(|_| "[a-c]?b?").collect());
    // Each part has an alternative for itself and for each one after it.
    let most = (expression_limits::MAX_ALTERNATIVES as f64 * 2.0).sqrt() as usize / 2;
    let words = format!("more than {} alternatives", expression_limits::MAX_ALTERNATIVES);
    assert_eq!(refusal(&optional(most / 4), "alternatives"), None);
    let error = refusal(&optional(most + 10), &words).unwrap();
    assert!(error.contains("use fewer optional parts"), "{error}");
    let lark = format!("start: T\nT: {}", "(\"a\" | /c/)? ".repeat(most * 2 + 10));
    assert!(refusal(&Constraint::Lark(lark), &words).is_some());
    let pattern = format!("^{}$", "[a-c]?b?".repeat(most + 10));
    let schema = Constraint::schema(json!({"type": "string", "pattern": pattern}));
    assert!(refusal(&schema, &words).is_some());
}

#[test]
fn intersections_with_many_combinations_are_refused() {
    // After `n` times `a`, up to `n + 2` alternatives of an expression start with `a`.
    let lark = |prefix: &str, count: usize| {
        let part = |n| format!("/{prefix}(?s:.*)a{{{}}}b/", n + 1);
        let parts: Vec<_> = (0..count).map(part).collect();
        Constraint::Lark(format!("start: T\nT: {}", parts.join(" & ")))
    };
    let words = format!("more than {} combinations", overlap::MAX_COMBINATIONS);
    for prefix in ["", "xx[yz]"] {
        assert_eq!(refusal(&lark(prefix, 5), "combinations"), None);
        let error = refusal(&lark(prefix, 6), &words).unwrap();
        assert!(error.contains("require fewer"), "{error}");
    }
    // Disjoint alternatives do not multiply.
    let apart: Vec<_> = (0..60).map(|n| format!("/[a-z]{{1,{}}}/", n + 1)).collect();
    let apart = Constraint::Lark(format!("start: T\nT: {}", apart.join(" & ")));
    assert_eq!(refusal(&apart, "combinations"), None);
}

#[test]
fn many_unicode_classes_are_refused() {
    let named = |count: usize| Constraint::Regex(r"\w".repeat(count));
    let words = format!("at most {} are allowed", expression_limits::MAX_CLASS_NAMES);
    assert_eq!(refusal(&named(expression_limits::MAX_CLASS_NAMES), "classes"), None);
    let error = refusal(&named(expression_limits::MAX_CLASS_NAMES + 1), &words).unwrap();
    assert!(error.contains("use fewer of"), "{error}");
    let class = |n: u32| format!(r"[\p{{L}}&&[^\x{{{:x}}}]]", 0x4e00 + n);
    let different = |count: u32| (0..count).map(class).collect::<String>();
    let words = format!("more than {} ranges", expression_limits::MAX_CLASS_RANGES);
    let mut counter = ClassCounter::default();
    counter.add(&class(0)).unwrap();
    let most = (expression_limits::MAX_CLASS_RANGES / counter.ranges()) as u32;
    assert_eq!(refusal(&Constraint::Regex(different(most - 1)), "ranges"), None);
    let refused = different(most + 1);
    assert!(refusal(&Constraint::Regex(refused.clone()), &words).unwrap().contains("use fewer"));
    let lark = Constraint::Lark(format!("start: /{refused}/"));
    assert!(refusal(&lark, &words).is_some());
    let schemas = [
        json!({"type": "string", "pattern": refused}),
        json!({"items": [{"patternProperties": {refused.clone(): true}}]}),
    ];
    for schema in schemas {
        let lark = Constraint::Lark(format!("start: %json {schema}"));
        assert!(refusal(&lark, &words).is_some(), "{schema}");
        assert!(refusal(&Constraint::schema(schema), &words).is_some());
    }
    // Equal classes count once.
    assert_eq!(refusal(&Constraint::Regex(class(1).repeat(400)), "ranges"), None);
}

#[test]
fn long_texts_of_substrings_are_refused() {
    let lark = |count: usize| {
        Constraint::Lark(format!(
            "start: %regex {{\"substring_words\": \"{}\"}}",
            (0..count).map(|n| format!("{n:x} ")).collect::<String>()
        ))
    };
    let most = expression_limits::MAX_SUBSTRING_PIECES;
    let words = format!("at most {most} are allowed");
    assert_eq!(refusal(&lark(most), "are allowed"), None);
    assert!(refusal(&lark(most + 1), &words).unwrap().contains("shorter text"));
    for value in [
        json!({"substring_chars": "a".repeat(most + 1)}),
        json!({"substring_chunks": vec!["a"; most + 1]}),
    ] {
        let lark = Constraint::Lark(format!("start: %regex {value}"));
        assert!(refusal(&lark, &words).is_some());
    }
}

#[test]
fn many_pattern_properties_are_refused() {
    let patterns = |count: usize| {
        let named = (0..count).map(|n| (format!("^k{n}_"), json!({"type": "integer"})));
        let named: serde_json::Map<_, _> = named.collect();
        Constraint::schema(json!({"type": "object", "patternProperties": named}))
    };
    assert!(compile(&patterns(32)).is_ok());
    let error = compile(&patterns(33)).unwrap_err().to_string();
    assert!(error.contains("33 patternProperties, at most 32"), "{error}");
}

#[test]
fn rules_with_many_references_are_refused() {
    let lark = |count: usize| Constraint::Lark(format!("start: {}\nx: \"a\"", "x ".repeat(count)));
    let words = format!("at most {} are allowed", expression_limits::MAX_REFERENCES);
    // The names of the rules and the text count too.
    assert_eq!(refusal(&lark(expression_limits::MAX_REFERENCES - 3), "are allowed"), None);
    let error = refusal(&lark(expression_limits::MAX_REFERENCES - 2), &words).unwrap();
    assert!(error.contains("use fewer alternatives"), "{error}");
}

/// A schema as a program with many tools sends: objects of ten typed properties, about 200 KB.
fn tools_schema(tools: usize) -> Value {
    let kinds = [
        json!({"type": "string"}),
        json!({"type": "integer", "minimum": 0}),
        json!({"type": "boolean"}),
        json!({"type": "array", "items": {"type": "string"}}),
        json!({"type": ["string", "null"]}),
        json!({"type": "string", "enum": ["read", "write", "append"]}),
        json!({"type": "number"}),
    ];
    let tool = |tool: usize| {
        let property = |n: usize| (format!("field_{tool}_{n}"), kinds[n % kinds.len()].clone());
        let properties: serde_json::Map<_, _> = (0..10).map(property).collect();
        let required: Vec<&String> = properties.keys().step_by(2).collect();
        json!({
            "type": "object",
            "properties": {
                "name": {"const": format!("tool_{tool}")},
                "arguments": {"type": "object", "properties": properties, "required": required},
            },
            "required": ["name", "arguments"],
        })
    };
    json!({"anyOf": (0..tools).map(tool).collect::<Vec<_>>()})
}

#[test]
fn schemas_of_many_tools_are_accepted() {
    let constraint = Constraint::schema(tools_schema(340));
    assert!(
        (200_000..MAX_CONSTRAINT_BYTES).contains(&constraint.bytes()),
        "{}",
        constraint.bytes()
    );
    let grammars = grammars();
    let source = translate(&constraint).unwrap();
    let (rules, terminals) = first_bytes::load(&grammars.factory, source, false).unwrap();
    let terminals = terminals.lexemes.len();
    assert!(rules.num_symbols() < MAX_SYMBOLS * 3 / 4, "{}", rules.num_symbols());
    assert!(terminals < expression_limits::MAX_TERMINALS * 3 / 4, "{terminals}");
    grammars.compile(&constraint).unwrap();
}

//! Meaning of JSON Schemas.

use super::*;

#[test]
fn schemas_are_enforced() {
    let person = schema(json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "mood": {"enum": ["very good", "bad", null]},
        },
        "required": ["name", "age"],
    }));
    check(
        &person,
        &[
            "{\"name\":\"Ann\",\"age\":31}",
            "{\"name\": \"Ann\", \"age\": 0, \"mood\": \"very good\"}",
            "{\"name\":\"A\",\"age\":150,\"mood\":null}",
        ],
        &[
            "{\"name\":\"Ann\"}",
            "{\"name\":\"\",\"age\":1}",
            "{\"name\":\"A\",\"age\":151}",
            "{\"name\":\"A\",\"age\":-1}",
            "{\"name\":\"A\",\"age\":1.5}",
            "{\"name\":\"A\",\"age\":1,\"mood\":\"fair\"}",
            "{\"name\":\"A\",\"age\":1,\"size\":2}",
        ],
    );
    let tree = schema(json!({
        "$defs": {"node": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["v", "next"],
        }},
        "$ref": "#/$defs/node",
    }));
    check(
        &tree,
        &["{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"],
        &["{\"v\":1}", "{\"v\":1,\"next\":{}}", "{\"v\":1,\"next\":null,\"x\":1}"],
    );
}

#[test]
fn formats_patterns_bounds_and_unions_are_enforced() {
    let cases: [(Value, &[&str], &[&str]); 8] = [
        (
            json!({"type": "string", "format": "date"}),
            &["\"2026-02-28\""],
            &["\"2026-13-01\"", "\"soon\""],
        ),
        (
            json!({"type": "string", "pattern": "^[a-z]{2}-\\d+$"}),
            &["\"ab-12\""],
            &["\"ab-\"", "\"xab-1\""],
        ),
        (
            json!({"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 2}),
            &["[1]", "[1.5,2]"],
            &["[]", "[1,2,3]"],
        ),
        (
            json!({"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 2}]}),
            &["true", "\"ab\""],
            &["1", "\"abc\""],
        ),
        (json!({"const": {"a": [1]}}), &["{\"a\":[1]}"], &["{\"a\":[2]}"]),
        (json!({"type": "number", "multipleOf": 0.5}), &["1.5"], &["1.3"]),
        (json!({"type": ["integer", "null"]}), &["7", "null"], &["\"7\"", "1.5"]),
        (
            json!({"allOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]},
            ]}),
            &["{\"a\":1,\"b\":2}"],
            &["{\"a\":1}"],
        ),
    ];
    for (given, yes, no) in cases {
        check(&schema(given), yes, no);
    }
}

#[test]
fn subschemas_of_one_object_do_not_exclude_each_other() {
    let part = |name: &str| json!({"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]});
    let cases: [(Value, &[&str], &[&str]); 3] = [
        (
            json!({"$defs": {"A": part("a")}, "allOf": [{"$ref": "#/$defs/A"}, part("b")]}),
            &["{\"a\":1,\"b\":2}"],
            &["{\"a\":1}"],
        ),
        (
            json!({"type": "object", "properties": {"kind": {"type": "string", "enum": ["x"]}}, "required": ["kind"], "anyOf": [part("x"), part("y")]}),
            &["{\"kind\":\"x\",\"x\":1}", "{\"kind\":\"x\",\"y\":1}"],
            &["{\"kind\":\"x\"}"],
        ),
        // On their own, a definition and the branches of a choice are closed.
        (
            json!({"$defs": {"A": part("a")}, "anyOf": [{"$ref": "#/$defs/A"}, part("b")]}),
            &["{\"a\":1}", "{\"b\":1}"],
            &["{\"a\":1,\"c\":1}", "{\"b\":1,\"c\":1}"],
        ),
    ];
    for (given, yes, no) in cases {
        check(&schema(given), yes, no);
    }
}

#[test]
fn unsupported_schemas_are_refused_by_name() {
    let refused = [
        (json!({"not": {}}), "no value matches"),
        (json!({"type": "integer", "minimum": 1e19}), "minimum"),
        (
            json!({"properties": {"id": {"enum": [9_007_199_254_740_993u64]}}}),
            "enum at #/properties/id",
        ),
        (json!({"const": {"a": [i64::MIN]}}), "-9223372036854775808"),
        (json!({"type": "nonsense"}), "nonsense"),
        (json!({"$ref": "https://example.com/a.json"}), "example.com"),
        (json!({"$ref": "#/$defs/nothing"}), "nothing"),
        (json!({"type": "object", "x-guidance": {"lenient": true}}), "x-guidance"),
        (json!(["a"]), "object"),
        (json!(true), "object"),
        (json!({"type": "string", "pattern": "("}), ""),
        (json!({"type": "integer", "minimum": 5, "maximum": 4}), ""),
        (json!({"enum": []}), ""),
    ];
    for (given, word) in refused {
        match compile(&Constraint::schema(given.clone())) {
            Err(error @ GrammarError::Schema(_)) => {
                let text = error.to_string();
                assert!(text.starts_with("invalid JSON schema in format: "), "{text}");
                assert!(text.contains(word) && !text.contains('\n'), "{given}: {text}");
            }
            other => panic!("{given}: {other:?}"),
        }
    }
}

#[test]
fn unknown_formats_are_annotations() {
    let others = [
        "password",
        "binary",
        "byte",
        "path",
        "file-path",
        "decimal",
        "ipv4network",
        "json-string",
        "regex",
        "uuid4",
        "color",
        "phone",
        "int64",
    ];
    for name in others {
        check(
            &schema(json!({"type": "string", "format": name, "maxLength": 2})),
            &["\"ab\""],
            &["\"abc\"", "1"],
        );
        let inside = json!({
            "properties": {"format": {"type": "array", "items": {"anyOf": [{"type": "string", "format": name}]}}},
            "required": ["format"],
        });
        check(&schema(inside), &["{\"format\":[\"a\"]}"], &["{\"format\":[1]}", "{}"]);
    }
    let date =
        json!({"properties": {"a": {"type": "string", "format": "date"}}, "required": ["a"]});
    check(&schema(date), &["{\"a\":\"2026-02-28\"}"], &["{\"a\":\"soon\"}"]);
}

#[test]
fn integer_and_float_type_bounds_are_enforced() {
    let cases: [(Value, &[&str], &[&str]); 9] = [
        (
            json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}),
            &["0", "-1", "9223372036854775807", "-9223372036854774784"],
            &["9223372036854775808", "-9223372036854775809", "1.5"],
        ),
        (
            json!({"type": "integer", "minimum": i64::MIN}),
            &["-5", "123456789012345678901"],
            &["-9223372036854775809"],
        ),
        (
            json!({"type": ["integer", "null"], "minimum": 0, "maximum": u64::MAX}),
            &["0", "null", "9223372036854775807"],
            &["-1", "18446744073709551616"],
        ),
        (
            json!({"type": "integer", "exclusiveMinimum": -1e30, "exclusiveMaximum": 1e30}),
            &["-7", "7"],
            &["x"],
        ),
        (
            json!({"type": "number", "maximum": f64::MAX, "minimum": f64::MIN}),
            &["1e300", "-2.5"],
            &["\"1\""],
        ),
        (json!({"type": "number", "minimum": 0, "maximum": f64::MAX}), &["0", "3.25"], &["-1"]),
        (json!({"type": "number", "maximum": f32::MAX}), &["-1", "3.25", "1000000000000"], &["x"]),
        (
            json!({"type": "integer", "minimum": 2_000_000_000_000_000_000u64}),
            &["2000000000000000000"],
            &["1", "-1"],
        ),
        (json!({"type": "number", "maximum": -2e18}), &["-2000000000000000001"], &["1", "-1"]),
    ];
    for (given, yes, no) in cases {
        let grammar =
            compile(&Constraint::schema(given.clone())).unwrap_or_else(|e| panic!("{given}: {e}"));
        check(&grammar, yes, no);
    }
}

#[test]
fn one_of_is_read_as_any_of_where_its_branches_overlap() {
    let overlapping = schema(json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}));
    check(&overlapping, &["1", "1.5"], &["\"1\""]);
    let animal = |kind: &str| json!({"type": "object", "properties": {"kind": {"const": kind, "type": "string"}}, "required": ["kind"]});
    let told_apart = schema(json!({
        "$defs": {"Cat": animal("cat"), "Dog": animal("dog")},
        "discriminator": {"propertyName": "kind"},
        "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
    }));
    check(&told_apart, &["{\"kind\":\"cat\"}", "{\"kind\":\"dog\"}"], &["{\"kind\":\"cow\"}"]);
}

#[test]
fn unknown_dialects_are_read_as_the_newest() {
    for dialect in [
        "http://json-schema.org/schema#",
        "https://json-schema.org/draft-07/schema#",
        "http://json-schema.org/draft-07/schema#",
        "https://example.com/my-dialect",
    ] {
        let inner = json!({"$schema": dialect, "type": "integer"});
        let given = json!({"$schema": dialect, "properties": {"a": inner}, "required": ["a"]});
        check(&schema(given), &["{\"a\":1}"], &["{\"a\":true}"]);
    }
}

#[test]
fn objects_may_be_nested_as_deep_as_requests() {
    let nested = |n: usize| {
        let outer =
            |inner, _| json!({"type": "object", "properties": {"a": inner}, "required": ["a"]});
        (0..n).fold(json!({"type": "integer"}), outer)
    };
    for n in [39, 41, 50] {
        let text = format!("{}1{}", "{\"a\":".repeat(n), "}".repeat(n));
        check(&schema(nested(n)), &[&text], &["1"]);
        assert!(
            compile(&Constraint::Lark(format!(
                "start: a\na: {}",
                lark_json(&nested(n).into()).unwrap()
            )))
            .is_ok(),
            "{n}"
        );
    }
}

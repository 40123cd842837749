//! Keywords that are checked on the finished answer.

use super::*;

/// Schema, listed keyword, a valid answer and an invalid one.
#[test]
fn keywords_are_listed_and_checked() {
    let list = |more: Value| {
        let mut schema = json!({"type": "array", "items": {"type": "integer"}});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    let object = |more: Value| {
        let mut schema = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    let cases = [
        ("uniqueItems", list(json!({"uniqueItems": true})), json!([1, 2]), json!([1, 1])),
        ("contains", list(json!({"contains": {"minimum": 5}})), json!([5]), json!([4])),
        (
            "contains",
            list(json!({"contains": {"const": 1}, "minContains": 2})),
            json!([1, 1]),
            json!([1, 2]),
        ),
        (
            "contains",
            list(json!({"contains": {"const": 1}, "maxContains": 1})),
            json!([1]),
            json!([1, 1]),
        ),
        ("not", list(json!({"not": {"minItems": 2}})), json!([1]), json!([1, 2])),
        ("not", json!({"type": "string", "not": {"pattern": "^a"}}), json!("b"), json!("a")),
        (
            "pattern",
            json!({"type": "string", "pattern": "^(?=.*\\d)\\w+$"}),
            json!("a1"),
            json!("a"),
        ),
        ("pattern", json!({"type": "string", "pattern": "^(a|b)\\1$"}), json!("aa"), json!("ab")),
        (
            "if",
            object(
                json!({"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"maxProperties": 0}}),
            ),
            json!({"a": 1, "b": 1}),
            json!({"a": 1}),
        ),
        (
            "dependentRequired",
            object(json!({"dependentRequired": {"a": ["b"]}})),
            json!({"b": 1}),
            json!({"a": 1}),
        ),
        (
            "dependencies",
            object(json!({"dependencies": {"a": ["b"]}})),
            json!({"b": 1}),
            json!({"a": 1}),
        ),
        (
            "dependentSchemas",
            object(json!({"dependentSchemas": {"a": {"properties": {"b": {"const": 1}}}}})),
            json!({"a": 1, "b": 1}),
            json!({"a": 1, "b": 2}),
        ),
        (
            "dependencies",
            object(json!({"dependencies": {"a": {"properties": {"b": {"const": 1}}}}})),
            json!({"a": 1, "b": 1}),
            json!({"a": 1, "b": 2}),
        ),
        (
            "unevaluatedProperties",
            json!({"type": "object", "anyOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}], "unevaluatedProperties": false}),
            json!({"a": 1}),
            json!({"a": 2, "b": 1}),
        ),
        (
            "unevaluatedItems",
            json!({"type": "array", "contains": {"type": "string"}, "minContains": 0, "unevaluatedItems": false}),
            json!(["a"]),
            json!(["a", 1]),
        ),
        (
            "minProperties",
            object(json!({"additionalProperties": {"type": "integer"}, "minProperties": 1})),
            json!({"x": 1}),
            json!({}),
        ),
        (
            "maxProperties",
            object(json!({"additionalProperties": {"type": "integer"}, "maxProperties": 1})),
            json!({"x": 1}),
            json!({"a": 1, "x": 1}),
        ),
        (
            "minProperties",
            json!({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2}),
            json!({"x": 1, "y": 1}),
            json!({"x": 1}),
        ),
        (
            "patternProperties",
            json!({"type": "object", "patternProperties": {"^(?!x)": {"type": "integer"}}, "additionalProperties": false}),
            json!({"a": 1}),
            json!({"xa": 1}),
        ),
        (
            "propertyNames",
            json!({"type": "object", "propertyNames": {"not": {"const": "x"}}, "additionalProperties": {"type": "integer"}}),
            json!({"a": 1}),
            json!({"x": 1}),
        ),
        (
            "oneOf",
            json!({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 5}]}),
            json!(1),
            json!(5),
        ),
    ];
    for (keyword, schema, good, bad) in cases {
        let listed = format!("{keyword} at #");
        assert_eq!(unenforced(&schema), [listed.as_str()], "{schema}");
        assert_eq!(violated(&schema, &good), [""; 0], "{schema}");
        assert_eq!(violated(&schema, &bad), [listed.as_str()], "{schema}");
        // The grammar accepts the valid answer.
        let grammar = compile(&schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
        assert!(accepts(&grammar, &good.to_string()), "{schema}: {good}");
        let error = json_schema(&schema).check_strict().unwrap_err();
        assert!(error.contains(keyword) && error.contains("at #"), "{error}");
    }
}

#[test]
fn failures_name_their_location_and_branches_are_followed() {
    let schema = json!({
        "type": "object",
        "properties": {
            "a/b": {"type": "array", "items": {"$ref": "#/$defs/set"}},
            "c": {"anyOf": [{"$ref": "#/$defs/set"}, {"type": "null"}]},
        },
        "required": ["a/b", "c"],
        "$defs": {"set": {"type": "array", "items": {"type": "integer"}, "uniqueItems": true}, "unused": {"not": {"minimum": 1}}},
    });
    assert_eq!(unenforced(&schema), ["uniqueItems at #/$defs/set"]);
    assert_eq!(violated(&schema, &json!({"a/b": [[1]], "c": null})), [""; 0]);
    assert_eq!(
        violated(&schema, &json!({"a/b": [[1, 1]], "c": null})),
        ["uniqueItems at #/$defs/set"]
    );
    assert_eq!(violated(&schema, &json!({"a/b": [], "c": [2, 2]})), ["uniqueItems at #/$defs/set"]);
    let schema =
        json!({"type": "object", "properties": {"a/b": {"type": "array", "uniqueItems": true}}});
    assert_eq!(unenforced(&schema), ["uniqueItems at #/properties/a~1b"]);
}

#[test]
fn keywords_without_effect_are_not_listed() {
    for schema in [
        json!({"type": "array", "uniqueItems": false}),
        json!({"type": "array", "uniqueItems": true, "maxItems": 1}),
        json!({"type": "string", "uniqueItems": true, "minProperties": 3, "contains": {}}),
        json!({"type": "array", "contains": {"const": 1}, "minContains": 0}),
        json!({"type": "integer", "not": false}),
        json!({"type": "integer", "if": {"const": 1}}),
        json!({"type": "integer", "then": {"const": 1}}),
        json!({"type": "object", "dependentRequired": {}}),
        json!({"type": "object", "minProperties": 0}),
        json!({"type": "object", "properties": {"a": {}}, "required": ["a"], "minProperties": 1}),
        json!({"type": "object", "unevaluatedProperties": true}),
        json!({"type": "object", "additionalProperties": false, "unevaluatedProperties": false}),
        json!({"type": "array", "items": {"const": 1}, "unevaluatedItems": false}),
        json!({"type": "string", "format": "emoji", "x-anything": {"not": {}}, "deprecated": true}),
    ] {
        assert_eq!(unenforced(&schema), [""; 0], "{schema}");
        assert!(
            compile(&schema).is_ok() && json_schema(&schema).check_strict().is_ok(),
            "{schema}"
        );
    }
}

#[test]
fn patterns_with_look_around_are_enforced_in_part() {
    let decimal = json!({"type": "string", "pattern": "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$"});
    enforced(&decimal, &["\"1.5\"", "\"-3\""], &["\"a\""]);
    assert_eq!(violated(&decimal, &json!("1.5")), [""; 0]);
    assert_eq!(violated(&decimal, &json!("-")), ["pattern at #"]);
    // An enforced format suffices.
    let duration = json!({
        "type": "string", "format": "duration",
        "pattern": "^P(?:(\\d+W)|(?!.*W)(?=\\d|T\\d)(\\d+Y)?(\\d+M)?(\\d+D)?(T(?=\\d)(\\d+H)?(\\d+M)?(\\d+([.,]\\d+)?S)?)?)$",
    });
    enforced(&duration, &["\"P3D\"", "\"PT5M\""], &["\"3 days\"", "\"P\""]);
    assert_eq!(unenforced(&duration), ["pattern at #"]);
    assert_eq!(violated(&duration, &json!("P3D")), [""; 0]);
}

#[test]
fn properties_of_conditions_can_be_written() {
    let schema = json!({
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"]}},
        "required": ["kind"],
        "if": {"properties": {"kind": {"const": "a"}}},
        "then": {"properties": {"x": {"type": "integer"}}, "required": ["x"]},
        "else": {"properties": {"y": {"type": "string"}}, "required": ["y", "z"]},
    });
    enforced(
        &schema,
        &["{\"kind\":\"a\",\"x\":1}", "{\"kind\":\"b\",\"y\":\"q\",\"z\":[]}"],
        &["{\"kind\":\"a\",\"x\":\"1\"}", "{\"kind\":\"a\",\"w\":1}"],
    );
    assert_eq!(unenforced(&schema), ["if at #"]);
    assert_eq!(violated(&schema, &json!({"kind": "a"})), ["if at #"]);
    assert_eq!(violated(&schema, &json!({"kind": "b", "y": "", "z": 1})), [""; 0]);
}

#[test]
fn recursive_openapi_schemas_terminate() {
    let schema = json!({
        "type": "object",
        "properties": {"v": {"$ref": "#/definitions/N"}},
        "required": ["v"],
        "definitions": {"N": {
            "type": "object",
            "properties": {
                "v": {"type": "integer", "minimum": 0, "maximum": 9},
                "next": {"nullable": true, "type": "object", "allOf": [{"$ref": "#/definitions/N"}], "example": {}},
            },
            "required": ["v", "next"],
        }},
    });
    enforced(
        &schema,
        &["{\"v\":{\"v\":1,\"next\":{\"v\":2,\"next\":null}}}"],
        &[
            "{\"v\":null}",
            "{\"v\":{\"v\":1}}",
            "{\"v\":{\"v\":1,\"next\":{\"v\":10,\"next\":null}}}",
        ],
    );
    assert_eq!(unenforced(&schema), [""; 0]);
}

#[test]
fn unique_items_are_compared_by_value() {
    let unique = json!({"type": "array", "uniqueItems": true});
    for (list, is_unique) in [
        (json!([1, 1.0]), false),
        (json!([1, true, "1", null, [1], {"a": 1}]), true),
        (json!([{"a": 1, "b": 2}, {"b": 2, "a": 1}]), false),
        (json!([0, -0.0]), false),
        (json!([9_007_199_254_740_993_u64, 9_007_199_254_740_992_u64]), true),
        (json!(["a,", "a"]), true),
        (json!([["a", "b"], ["a,b"]]), true),
    ] {
        assert_eq!(violated(&unique, &list).is_empty(), is_unique, "{list}");
    }
}

#[test]
fn hostile_schemas_and_answers_take_bounded_work() {
    let check = |schema: &Value, answer: &Value| {
        json_schema(schema)
            .check()
            .unwrap()
            .unwrap()
            .violations(answer)
            .map(|violated| violated.len())
    };
    // Circular references, and references that double with each level.
    let circle = json!({"not": {"$ref": "#/$defs/a"}, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}});
    assert_eq!(check(&circle, &json!(1)), Err(WorkLimitExceeded));
    let mut doubled = json!({"$defs": {}, "not": {"$ref": "#/$defs/0"}});
    for i in 0..64 {
        let next = json!({"$ref": format!("#/$defs/{}", i + 1)});
        doubled["$defs"][i.to_string()] = json!({"allOf": [next, next], "minimum": 1});
    }
    assert_eq!(check(&doubled, &json!(1)), Err(WorkLimitExceeded));
    let pattern = json!({"type": "string", "pattern": "^(?:(a+)\\1?)+b$"});
    assert_eq!(check(&pattern, &json!("a".repeat(5000))), Err(WorkLimitExceeded));
    let long: Vec<Value> = (0..400_000).map(|i| json!(i)).collect();
    assert_eq!(
        check(&json!({"type": "array", "uniqueItems": true}), &json!(long)),
        Err(WorkLimitExceeded)
    );
    // As deep as a request may be.
    let deep = (0..120)
        .fold(json!({"uniqueItems": true}), |inner, _| json!({"items": inner, "type": "array"}));
    let answer = (0..120).fold(json!([1, 1]), |inner, _| json!([inner]));
    assert_eq!(check(&deep, &answer), Ok(1));
    // Schemas that refer into each other.
    let mut schema = json!({"type": "integer"});
    for i in 0..100 {
        let path = "/properties/a".repeat(i % 20);
        schema = json!({"properties": {"a": schema, "b": {"$ref": format!("#{path}")}}, "not": {"const": 1}});
    }
    assert!(json_schema(&schema).check().is_ok());
}

#[test]
fn hostile_patterns_and_keywords_take_bounded_time() {
    let begun = std::time::Instant::now();
    let check = |schema: &Value, answer: &Value| {
        json_schema(schema).check().unwrap().unwrap().violations(answer)
    };
    let texts = |count: usize, bytes: usize| -> Value {
        (0..count).map(|n| json!(format!("{n}{}", "ab".repeat(bytes / 2)))).collect()
    };
    let strings = |pattern: &str| json!({"type": "array", "uniqueItems": true, "not": {"items": {"pattern": pattern}}});
    for (pattern, is_bounded) in
        [("^(?:a|b|ab){1,900}c$", true), ("^(?=(a|b)+)(?:(a+)\\2?|b)+c$", true), ("(", false)]
    {
        let result = check(&strings(pattern), &texts(20_000, 40));
        assert_eq!(result.is_err(), is_bounded, "{pattern}: {result:?}");
    }
    let many: Map<String, Value> = (0..2000).map(|n| (format!("x-{n}"), json!(n))).collect();
    let mut keywords = json!({"const": 1});
    keywords.as_object_mut().unwrap().extend(many);
    let schema = json!({"type": "array", "uniqueItems": true, "not": {"contains": keywords}});
    assert_eq!(check(&schema, &texts(1000, 4)), Err(WorkLimitExceeded));
    let lengths = json!({"type": "array", "uniqueItems": true, "not": {"contains": {"not": {"anyOf": vec![json!({"maxLength": 1}); 500]}}}});
    assert_eq!(check(&lengths, &texts(10, 400_000)), Err(WorkLimitExceeded));
    assert!(begun.elapsed().as_secs() < 120, "{:?}", begun.elapsed());
}

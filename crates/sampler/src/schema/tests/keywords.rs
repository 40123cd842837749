//! Every keyword, with an answer that it rejects.

use super::*;

/// Keyword, schema, valid texts and invalid texts.
type Case = (&'static str, Value, &'static [&'static str], &'static [&'static str]);

#[test]
fn keywords_of_any_value_are_enforced() {
    let cases: [Case; 12] = [
        ("type", json!({"type": ["string", "null"]}), &["\"a\"", "null"], &["1"]),
        ("enum", json!({"enum": ["a", 1, null]}), &["\"a\"", "1", "null"], &["2", "\"b\""]),
        ("const", json!({"const": {"a": [1]}}), &["{\"a\":[1]}"], &["{\"a\":[2]}"]),
        ("allOf", json!({"allOf": [{"type": "integer"}, {"minimum": 3}]}), &["3"], &["2", "\"a\""]),
        ("anyOf", json!({"anyOf": [{"type": "boolean"}, {"const": 2}]}), &["true", "2"], &["3"]),
        ("oneOf", json!({"oneOf": [{"type": "boolean"}, {"const": 2}]}), &["true", "2"], &["3"]),
        (
            "$ref",
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}),
            &["1"],
            &["\"a\""],
        ),
        (
            "definitions",
            json!({"$ref": "#/definitions/a", "definitions": {"a": {"const": 1}}}),
            &["1"],
            &["2"],
        ),
        (
            "$anchor",
            json!({"$ref": "#a", "$defs": {"x": {"$anchor": "a", "const": 1}}}),
            &["1"],
            &["2"],
        ),
        ("$id", json!({"$ref": "T0", "$defs": {"x": {"$id": "T0", "const": 1}}}), &["1"], &["2"]),
        (
            "$dynamicRef",
            json!({"$dynamicAnchor": "n", "type": "array", "items": {"$dynamicRef": "#n"}}),
            &["[]", "[[],[[]]]"],
            &["[1]"],
        ),
        (
            "nullable",
            json!({"type": "object", "properties": {"a": {"type": "string", "nullable": true}}, "required": ["a"]}),
            &["{\"a\":null}", "{\"a\":\"x\"}"],
            &["{\"a\":1}"],
        ),
    ];
    check_enforced(cases);
}

#[test]
fn keywords_of_numbers_and_texts_are_enforced() {
    let cases: [Case; 12] = [
        ("minimum", json!({"type": "integer", "minimum": 3}), &["3"], &["2"]),
        ("maximum", json!({"type": "integer", "maximum": 3}), &["3"], &["4"]),
        ("exclusiveMinimum", json!({"type": "integer", "exclusiveMinimum": 3}), &["4"], &["3"]),
        ("exclusiveMaximum", json!({"type": "integer", "exclusiveMaximum": 3}), &["2"], &["3"]),
        (
            "exclusiveMinimum of OpenAPI 3.0",
            json!({"type": "integer", "minimum": 3, "exclusiveMinimum": true, "maximum": 5, "exclusiveMaximum": true}),
            &["4"],
            &["3", "5"],
        ),
        ("multipleOf", json!({"type": "integer", "multipleOf": 3}), &["9"], &["8"]),
        (
            "format of numbers",
            json!({"type": "integer", "format": "int32"}),
            &["2147483647"],
            &["2147483648"],
        ),
        (
            "format of numbers",
            json!({"type": "integer", "format": "uint8"}),
            &["255"],
            &["256", "-1"],
        ),
        ("minLength", json!({"type": "string", "minLength": 2}), &["\"ab\""], &["\"a\""]),
        ("maxLength", json!({"type": "string", "maxLength": 2}), &["\"ab\""], &["\"abc\""]),
        ("pattern", json!({"type": "string", "pattern": "^[\\d.]+$"}), &["\"1.2\""], &["\"a\""]),
        (
            "format",
            json!({"type": "string", "format": "uuid"}),
            &["\"01234567-89ab-cdef-0123-456789abcdef\""],
            &["\"a\""],
        ),
    ];
    check_enforced(cases);
}

#[test]
fn keywords_of_lists_are_enforced() {
    let cases: [Case; 9] = [
        ("items", json!({"type": "array", "items": {"type": "integer"}}), &["[1,2]"], &["[\"a\"]"]),
        (
            "items of draft 7",
            json!({"items": [{"type": "integer"}], "type": "array"}),
            &["[1]", "[1,\"a\"]"],
            &["[\"a\"]"],
        ),
        (
            "additionalItems",
            json!({"type": "array", "items": [{"type": "integer"}], "additionalItems": false}),
            &["[1]"],
            &["[1,2]"],
        ),
        (
            "prefixItems",
            json!({"type": "array", "prefixItems": [{"const": 1}]}),
            &["[1]"],
            &["[2]"],
        ),
        (
            "minItems",
            json!({"type": "array", "items": {"const": 1}, "minItems": 2}),
            &["[1,1]"],
            &["[1]"],
        ),
        (
            "maxItems",
            json!({"type": "array", "items": {"const": 1}, "maxItems": 1}),
            &["[1]"],
            &["[1,1]"],
        ),
        (
            "unevaluatedItems",
            json!({"type": "array", "prefixItems": [{"const": 1}], "unevaluatedItems": false}),
            &["[1]"],
            &["[1,2]"],
        ),
        // Unique items cannot outnumber the possible values.
        (
            "uniqueItems",
            json!({"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": true}),
            &["[\"a\",\"b\"]"],
            &["[\"a\",\"b\",\"a\"]"],
        ),
        (
            "contains",
            json!({"type": "array", "items": {"type": "integer"}, "contains": {"const": 1}}),
            &["[1]"],
            &["[]"],
        ),
    ];
    check_enforced(cases);
}

#[test]
fn keywords_of_objects_are_enforced() {
    let cases: [Case; 14] = [
        (
            "properties",
            json!({"type": "object", "properties": {"a": {"const": 1}}}),
            &["{}", "{\"a\":1}"],
            &["{\"a\":2}", "{\"b\":1}"],
        ),
        (
            "required",
            json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}),
            &["{\"a\":1}"],
            &["{}"],
        ),
        (
            "required of a name that is not declared",
            json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a", "zz"]}),
            &["{\"a\":1,\"zz\":[{}]}", "{\"a\":1,\"zz\":null}"],
            &["{\"a\":1}", "{\"a\":1,\"zz\":1,\"y\":1}"],
        ),
        (
            "additionalProperties",
            json!({"type": "object", "additionalProperties": {"const": 1}}),
            &["{\"x\":1}"],
            &["{\"x\":2}"],
        ),
        (
            "patternProperties",
            json!({"type": "object", "patternProperties": {"^a": {"const": 1}}, "additionalProperties": false}),
            &["{\"ab\":1}"],
            &["{\"ab\":2}", "{\"b\":1}"],
        ),
        (
            "minProperties",
            json!({"type": "object", "additionalProperties": {"const": 1}, "minProperties": 1}),
            &["{\"a\":1}"],
            &["{}"],
        ),
        (
            "maxProperties",
            json!({"type": "object", "additionalProperties": {"const": 1}, "maxProperties": 1}),
            &["{}", "{\"a\":1}"],
            &["{\"a\":1,\"b\":1}"],
        ),
        (
            "minProperties of declared ones",
            json!({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 1}, "c": {"const": 1}, "d": {"const": 1}}, "required": ["b"], "minProperties": 3}),
            &[
                "{\"a\":1,\"b\":1,\"c\":1}",
                "{\"b\":1,\"c\":1,\"d\":1}",
                "{\"a\":1,\"b\":1,\"c\":1,\"d\":1}",
            ],
            &["{\"a\":1,\"b\":1}", "{\"b\":1}", "{\"a\":1,\"c\":1,\"d\":1}"],
        ),
        (
            "minProperties and maxProperties of declared ones",
            json!({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 1}, "c": {"const": 1}}, "minProperties": 1, "maxProperties": 2}),
            &["{\"a\":1}", "{\"b\":1,\"c\":1}", "{\"a\":1,\"c\":1}"],
            &["{}", "{\"a\":1,\"b\":1,\"c\":1}"],
        ),
        (
            "maxProperties of declared ones",
            json!({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 1}}, "maxProperties": 1}),
            &["{}", "{\"a\":1}", "{\"b\":1}"],
            &["{\"a\":1,\"b\":1}"],
        ),
        (
            "unevaluatedProperties",
            json!({"type": "object", "allOf": [{"properties": {"a": {"const": 1}}}, {"$ref": "#/$defs/b"}], "unevaluatedProperties": false, "$defs": {"b": {"properties": {"b": {"const": 2}}}}}),
            &["{\"a\":1,\"b\":2}"],
            &["{\"a\":1,\"c\":1}", "{\"a\":2}"],
        ),
        (
            "unevaluatedProperties beside properties",
            json!({"type": "object", "properties": {"a": {"const": 1}}, "unevaluatedProperties": {"type": "boolean"}}),
            &["{\"a\":1,\"b\":true}"],
            &["{\"a\":1,\"b\":1}"],
        ),
        (
            "false",
            json!({"type": "object", "properties": {"a": false, "b": true}}),
            &["{\"b\":1}", "{}"],
            &["{\"a\":1}"],
        ),
        (
            "a denied property",
            json!({"type": "object", "properties": {"a": {"not": {}}, "b": {"$ref": "#/$defs/never"}, "c": {}}, "$defs": {"never": {"not": {"description": "x"}}}}),
            &["{\"c\":1}", "{}"],
            &["{\"a\":1}", "{\"b\":1}"],
        ),
    ];
    check_enforced(cases);
}

#[test]
fn names_of_properties_are_enforced() {
    let map = |names: Value| json!({"type": "object", "propertyNames": names, "additionalProperties": {"type": "integer"}});
    let cases: [(Value, &[&str], &[&str]); 14] = [
        (json!({"type": "string"}), &["{\"any\":1}", "{}"], &["{\"a\":\"x\"}"]),
        (json!({}), &["{\"any\":1}"], &["{\"a\":\"x\"}"]),
        (json!(true), &["{\"any\":1}"], &["{\"a\":\"x\"}"]),
        (json!({"description": "a name", "type": "string"}), &["{\"any\":1}"], &["{\"a\":\"x\"}"]),
        (json!(false), &["{}"], &["{\"a\":1}"]),
        (json!({"enum": ["a", "b", 3]}), &["{\"a\":1,\"b\":2}", "{}"], &["{\"c\":1}"]),
        (json!({"const": "a"}), &["{\"a\":1}"], &["{\"b\":1}"]),
        (json!({"enum": ["a", "bb"], "minLength": 2}), &["{\"bb\":1}"], &["{\"a\":1}"]),
        (json!({"pattern": "^k_"}), &["{\"k_1\":1}", "{}"], &["{\"x\":1}", "{\"k_1\":true}"]),
        (json!({"minLength": 2, "maxLength": 3}), &["{\"ab\":1}"], &["{\"a\":1}", "{\"abcd\":1}"]),
        (
            json!({"format": "uuid"}),
            &["{\"01234567-89ab-cdef-0123-456789abcdef\":1}"],
            &["{\"a\":1}"],
        ),
        (json!({"type": "string", "format": "date"}), &["{\"2026-02-28\":1}"], &["{\"soon\":1}"]),
        (
            json!({"anyOf": [{"const": "a"}, {"pattern": "^k"}]}),
            &["{\"a\":1}", "{\"kk\":1}"],
            &["{\"b\":1}"],
        ),
        (
            json!({"anyOf": [{"const": "a"}, {"enum": ["b"]}]}),
            &["{\"a\":1}", "{\"b\":1}"],
            &["{\"c\":1}"],
        ),
    ];
    for (names, yes, no) in cases {
        let schema = map(names);
        enforced(&schema, yes, no);
        assert_eq!(unenforced(&schema), [""; 0], "{schema}");
    }
    // By reference, as generated for keys of enumerations.
    let schema = json!({
        "type": "object", "propertyNames": {"$ref": "#/$defs/color"}, "additionalProperties": {"type": "integer"},
        "$defs": {"color": {"enum": ["red", "blue"]}},
    });
    enforced(&schema, &["{\"red\":1}"], &["{\"green\":1}"]);
    // Beside declared properties.
    let schema = json!({
        "type": "object", "properties": {"a1": {"type": "string"}, "b": {}}, "propertyNames": {"pattern": "^a"},
        "additionalProperties": true,
    });
    enforced(
        &schema,
        &["{\"a1\":\"x\"}", "{\"a1\":\"x\",\"a2\":1}"],
        &["{\"b\":1}", "{\"a1\":1}", "{\"c\":1}"],
    );
}

#[test]
fn denied_types_and_listed_values_are_enforced() {
    let cases: [Case; 5] = [
        ("not", json!({"not": {"type": "null"}}), &["1", "\"a\"", "{}"], &["null"]),
        (
            "not",
            json!({"type": ["string", "number"], "not": {"type": "number"}}),
            &["\"a\""],
            &["1"],
        ),
        ("not", json!({"enum": ["a", "b"], "not": {"const": "a"}}), &["\"b\""], &["\"a\""]),
        ("pattern", json!({"enum": ["a", "b"], "pattern": "^(?!a)"}), &["\"b\""], &["\"a\""]),
        (
            "if",
            json!({"enum": [1, 2, "x"], "if": {"type": "integer"}, "then": {"minimum": 2}}),
            &["2", "\"x\""],
            &["1"],
        ),
    ];
    check_enforced(cases);
}

fn check_enforced<const N: usize>(cases: [Case; N]) {
    for (keyword, schema, yes, no) in cases {
        enforced(&schema, yes, no);
        let expected: &[&str] = match keyword {
            "uniqueItems" => &["uniqueItems at #"],
            "contains" => &["contains at #"],
            _ => &[],
        };
        assert_eq!(unenforced(&schema), expected, "{keyword}");
    }
}

#[test]
fn unsatisfiable_schemas_are_refused_by_name() {
    for (schema, word) in [
        (json!({"not": {}}), "no value matches"),
        (json!({"type": "object", "properties": {"a": {"not": {}}}, "required": ["a"]}), "'a'"),
        (
            json!({"type": "object", "properties": {"a": {}}, "minProperties": 2}),
            "minProperties 2 at #",
        ),
        (
            json!({"type": "object", "properties": {"a": {}}, "required": ["a"], "maxProperties": 0}),
            "maxProperties 0 at #",
        ),
        (
            json!({"type": "object", "properties": {"a": {}}, "required": ["b"], "additionalProperties": false}),
            "'b'",
        ),
        (json!({"type": "string", "pattern": "(?<!a"}), ""),
        (
            json!({"items": {"uniqueItems": "yes"}}),
            "uniqueItems at #/items must be true or false, but is \"yes\"",
        ),
        (json!({"contains": 5}), "contains at # must be a schema"),
        (json!({"dependentRequired": ["a"]}), "dependentRequired at # must be an object"),
        (
            json!({"contains": {}, "minContains": -1}),
            "minContains at # must be a whole number of at least 0",
        ),
    ] {
        let error = compile(&schema).unwrap_err().to_string();
        assert!(error.contains(word), "{schema}: {error}");
    }
}

#[test]
fn counts_may_be_written_as_whole_fractions() {
    let text = json!({"type": "string", "minLength": 2.0, "maxLength": 3.0});
    enforced(&text, &["\"ab\"", "\"abc\""], &["\"a\"", "\"abcd\""]);
    let list =
        json!({"type": "array", "items": {"type": "null"}, "minItems": 1.0, "maxItems": 2.0});
    enforced(&list, &["[null]", "[null,null]"], &["[]", "[null,null,null]"]);
    let object =
        json!({"type": "object", "additionalProperties": {"type": "null"}, "minProperties": 1.0});
    enforced(&object, &["{\"a\":null}"], &["{}"]);
    // No answer has as many.
    enforced(&json!({"type": "string", "maxLength": 1e300}), &["\"ab\""], &["1"]);
    for (schema, words) in [
        (json!({"type": "string", "minLength": 2.5}), "minLength at # must be a whole number"),
        (json!({"type": "string", "minLength": -1}), "minLength at # must be a whole number"),
        (json!({"type": "array", "minItems": 1e300}), "is too large"),
        (json!({"$ref": 5}), "$ref at # must be a string"),
        (json!({"type": "string", "pattern": "$^a"}), "no text matches the pattern \"$^a\" at #"),
    ] {
        let error = compile(&schema).unwrap_err().to_string();
        assert!(error.contains(words), "{schema}: {error}");
    }
}

#[test]
fn an_unsatisfiable_pattern_leaves_values_other_than_strings() {
    let unfit = json!({"type": "string", "pattern": "$^a"});
    let integer = json!({"type": "integer"});
    enforced(&json!({"anyOf": [unfit, integer]}), &["1"], &["\"a\"", "\"\"", "null"]);
    enforced(&json!({"type": ["string", "integer"], "pattern": "$^a"}), &["1"], &["\"a\"", "null"]);
    enforced(&json!({"pattern": "$^a"}), &["1", "null", "[true]"], &["\"a\"", "\"\""]);
    enforced(
        &json!({"pattern": "$^a", "not": {"type": "object"}}),
        &["1", "null"],
        &["\"a\"", "{}"],
    );
    enforced(&json!({"enum": ["a", 1], "pattern": "$^a"}), &["1"], &["\"a\"", "2"]);
    enforced(&json!({"type": "string", "pattern": "$^a", "nullable": true}), &["null"], &["\"a\""]);
    let optional = json!({"type": "object", "properties": {"a": unfit, "b": integer}});
    enforced(&optional, &["{}", "{\"b\":1}"], &["{\"a\":\"a\"}", "{\"a\":1}"]);
    enforced(&json!({"type": "array", "items": unfit}), &["[]"], &["[\"a\"]"]);
    let shared = json!({"$defs": {"x": unfit}, "anyOf": [{"$ref": "#/$defs/x"}, integer]});
    enforced(&shared, &["1"], &["\"a\""]);
    for whole in [
        json!({"type": "object", "properties": {"a": unfit}, "required": ["a"]}),
        json!({"type": "array", "items": unfit, "minItems": 1}),
        json!({"anyOf": [unfit, unfit]}),
        json!({"$defs": {"x": unfit}, "$ref": "#/$defs/x"}),
    ] {
        let error = compile(&whole).unwrap_err().to_string();
        assert!(error.contains("no text matches the pattern \"$^a\" at #/"), "{whole}: {error}");
    }
}

#[test]
fn objects_of_too_many_properties_are_refused_by_name() {
    for count in [3000, 4000] {
        let properties: Map<String, Value> =
            (0..count).map(|n| (format!("p{n}"), json!({"type": "string"}))).collect();
        let names: Vec<&String> = properties.keys().collect();
        let required = json!({"type": "object", "properties": properties, "required": names});
        let optional = json!({"type": "object", "properties": properties});
        for object in [required, optional] {
            let error =
                compile(&json!({"type": "array", "items": object})).unwrap_err().to_string();
            assert!(
                error.contains(&format!("the object at #/items has {count} properties")),
                "{error}"
            );
        }
    }
}

#[test]
fn generated_definition_names_do_not_collide_with_given_ones() {
    let schema = json!({
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/a~1b"}, "y": {"$ref": "#/$defs/puna-0"}, "z": {"$ref": "#/$defs/puna-1"}},
        "required": ["x", "y", "z"],
        "$defs": {"a/b": {"type": "string"}, "puna-0": {"type": "integer"}, "puna-1": {"type": "null"}},
    });
    enforced(&schema, &["{\"x\":\"a\",\"y\":1,\"z\":null}"], &["{\"x\":1,\"y\":1,\"z\":null}"]);
}

//! Schemas without finite values.

use super::*;

#[test]
fn schemas_without_a_finite_value_are_refused_with_their_location() {
    let node = json!({"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]});
    let list = json!({"type": "array", "items": {"$ref": "#/$defs/list"}, "minItems": 1});
    let one =
        json!({"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}, "required": ["b"]});
    let other =
        json!({"type": "array", "prefixItems": [{"$ref": "#/definitions/inner/a"}], "minItems": 1});
    let cases = [
        (json!({"$defs": {"node": node}, "$ref": "#/$defs/node"}), "#/$defs/node"),
        (json!({"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]}), "#:"),
        (
            json!({"type": "object", "properties": {"l": {"$ref": "#/$defs/list"}}, "required": ["l"], "$defs": {"list": list}}),
            "#/$defs/list",
        ),
        (
            json!({"anyOf": [{"$ref": "#/definitions/inner/a"}], "definitions": {"inner": {"a": one}}, "$defs": {"b": other}}),
            "#/definitions/inner/a",
        ),
        (
            json!({"type": "object", "additionalProperties": {"$ref": "#"}, "minProperties": 1}),
            "#/additionalProperties",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "array", "contains": true, "items": {"$ref": "#/properties/a"}}}, "required": ["a"]}),
            "#/properties/a",
        ),
    ];
    for (schema, place) in cases {
        let error = compile(&Constraint::schema(schema.clone())).unwrap_err().to_string();
        assert!(error.contains("no finite value matches"), "{schema}: {error}");
        assert!(error.contains(place), "{schema}: {error}");
    }
}

#[test]
fn recursive_schemas_with_a_finite_value_are_accepted() {
    let nullable = json!({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]});
    let optional = json!({"type": "object", "properties": {"next": {"$ref": "#"}}});
    let list = json!({"type": "array", "items": {"$ref": "#"}});
    check(&schema(nullable), &["{\"next\":{\"next\":null}}"], &["{\"next\":{}}"]);
    check(&schema(optional), &["{\"next\":{}}"], &["{\"next\":1}"]);
    check(&schema(list), &["[[],[[]]]"], &["[1]"]);
    // An optional part may have no finite value.
    let unused = json!({
        "$defs": {"endless": {"type": "array", "items": {"$ref": "#/$defs/endless"}, "minItems": 1}},
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/$defs/endless"}},
        "required": ["a"],
    });
    check(&schema(unused), &["{\"a\":1}"], &["{}"]);
}

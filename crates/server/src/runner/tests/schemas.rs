//! Tests that schemas as clients write them are accepted, and that answers are checked, with the
//! embedded model.

use puna_api::ollama::Message;
use puna_sampler::Constraint;
use serde_json::{Value, json};

use super::*;

/// Returns a request for an answer to a schema, of up to 300 tokens.
fn request(schema: Value) -> Task {
    let Task::Generate(mut generate) = task("", 300, 4, true, true) else { panic!() };
    let question = Message { role: "user".into(), content: "go".into(), ..Message::default() };
    generate.input = Input::Chat { messages: vec![question], tools: Vec::new() };
    generate.options.sampling.temperature = 0.0;
    generate.format = Some(Constraint::schema(schema));
    Task::Generate(generate)
}

/// Returns the checked keywords, the answer to a schema, and the violated keywords.
async fn answer(
    connection: &RunnerConnection,
    schema: Value,
) -> (Vec<String>, String, Option<Vec<String>>) {
    let mut events = connection.submit(1, request(schema));
    let (mut keywords, mut content) = (Vec::new(), String::new());
    loop {
        match events.next().await.unwrap() {
            Event::SchemaUnenforced(all) => keywords = all,
            Event::Content(piece) => content.push_str(&piece.text),
            Event::Done(done) => return (keywords, content, done.schema_violations),
            Event::Error(failure) => panic!("{failure}"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn schemas_of_clients_are_accepted_and_checked() {
    let connection = loaded_file(None, 512).await;
    let object = |property: Value| json!({"type": "object", "properties": {"a": property}, "required": ["a"]});
    let duration = "^P(?:(\\d+W)|(?!.*W)(?=\\d|T\\d)(\\d+Y)?(\\d+M)?(\\d+D)?(T(?=\\d)(\\d+H)?(\\d+M)?(\\d+([.,]\\d+)?S)?)?)$";
    let set =
        json!({"type": "array", "uniqueItems": true, "items": {"enum": ["x", "y"]}, "maxItems": 2});
    let node = json!({
        "type": "object",
        "properties": {"v": {"type": "integer", "minimum": 0, "maximum": 9}, "next": {"nullable": true, "allOf": [{"$ref": "#/definitions/N"}]}},
        "required": ["v", "next"],
    });
    let mut recursive = object(json!({"$ref": "#/definitions/N"}));
    recursive["definitions"] = json!({"N": node});
    let cases = [
        (
            object(
                json!({"type": "object", "propertyNames": {"type": "string"}, "maxProperties": 1, "additionalProperties": {"type": "boolean"}}),
            ),
            "",
        ),
        (
            object(
                json!({"type": "string", "format": "duration", "pattern": duration, "maxLength": 12}),
            ),
            "pattern",
        ),
        (object(set), "uniqueItems"),
        (
            json!({"type": "object", "properties": {"b": {"not": {}}, "a": {"type": "boolean"}}, "required": ["a"]}),
            "",
        ),
        (recursive, ""),
    ];
    for (schema, keyword) in cases {
        let (keywords, text, violations) = answer(&connection, schema.clone()).await;
        let expected = format!("{keyword} at #/properties/a");
        let expected = if keyword.is_empty() { Vec::new() } else { vec![expected] };
        assert_eq!(keywords, expected, "{schema}");
        assert_eq!(violations.is_some(), !keyword.is_empty(), "{schema}: {text}");
        // A small model may write a long text until its limit.
        if let Ok(value) = serde_json::from_str::<Value>(&text) {
            let fails = violations.iter().flatten().eq(&keywords);
            let is_set = value["a"].as_array().is_none_or(|all| all.len() < 2 || all[0] != all[1]);
            assert!(value.get("a").is_some() && value.get("b").is_none(), "{schema}: {text}");
            assert!(keyword != "uniqueItems" || fails != is_set, "{schema}: {text} {violations:?}");
        } else {
            assert_ne!(violations, Some(Vec::new()), "{schema}: {text}");
        }
    }
}

#[tokio::test]
async fn constraints_whose_shortest_answer_exceeds_the_limit_are_rejected() {
    let connection = loaded_file(None, 512).await;
    let node = json!({"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]});
    let cases = [
        (
            json!({"$defs": {"node": node}, "$ref": "#/$defs/node"}),
            "no finite value matches #/$defs/node",
        ),
        (
            json!({"const": "xyz ".repeat(1250)}),
            "tokens, but the request allows 300: allow at least",
        ),
        (
            json!({"type": "string", "minLength": 10_000}),
            "tokens, but the request allows 300: allow at least",
        ),
        (
            json!({"type": "array", "items": {"type": "integer"}, "minItems": 100_000}),
            "has at least",
        ),
        (json!({"type": "string", "minLength": 100_000}), "require shorter strings"),
    ];
    for (schema, words) in cases {
        let name: String = schema.to_string().chars().take(60).collect();
        let mut events = connection.submit(1, request(schema));
        match events.next().await.unwrap() {
            Event::Error(failure) => {
                assert!(
                    failure.status == 400 && failure.message.contains(words),
                    "{name}: {failure}"
                );
            }
            event => panic!("{name}: {event:?}"),
        }
    }
}

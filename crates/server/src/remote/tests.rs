//! Tests of the requests that remote servers receive.

use puna_api::ollama::Message;
use puna_sampler::Params;
use serde_json::{Map, Value, json};

use super::*;
use crate::canonical::{EmbedTask, EmbedText, GenerateTask, Input, Overflow, Prompt, RunOptions};
use crate::config::Config;
use crate::util::shutdown::ShutdownSignal;

fn generate(given: Value) -> GenerateTask {
    let Value::Object(given) = given else { panic!() };
    GenerateTask {
        model: Default::default(),
        input: Input::Prompt(Prompt { text: "x".into(), ..Prompt::default() }),
        options: RunOptions {
            num_predict: if given.contains_key("num_predict") { 5 } else { -1 },
            stop: vec!["END".into()],
            sampling: Params { seed: 7, ..Params::default() },
            explicit_parameters: given,
            ..RunOptions::default()
        },
        think: None,
        variables: Map::new(),
        format: None,
        tool_choice: Default::default(),
        parallel_tool_calls: true,
        overflow: Overflow::Refuse,
        schema_label: Default::default(),
        shift: false,
        logprobs: None,
        prompt_logprobs: None,
        stream_calls: false,
        render_only: false,
        cache_salt: None,
        cache_namespace: 0,
    }
}

fn upstream(keep_alive: Option<KeepAlive>) -> Upstream {
    let config = Config::with_models(std::path::Path::new("/tmp"));
    Upstream {
        remotes: Remotes::new(&config, ShutdownSignal::default()),
        hosts: Vec::new(),
        model: "m".into(),
        via: Vec::new(),
        keep_alive,
    }
}

#[test]
fn a_native_server_receives_every_field() {
    let keep_alive = serde_json::from_value(json!("7m")).unwrap();
    let (path, body) = upstream(Some(keep_alive))
        .with_keep_alive(ollama::generation(&generate(json!({"num_ctx": 9})), "m").unwrap());
    let said = ["keep_alive", "truncate", "shift", "options"].map(|field| body[field].clone());
    assert_eq!(
        (path, said),
        ("/api/generate", [json!("7m0s"), json!(false), json!(false), json!({"num_ctx": 9})])
    );
    let (_, silent) =
        upstream(None).with_keep_alive(ollama::generation(&generate(json!({})), "m").unwrap());
    assert!(silent.get("keep_alive").is_none() && silent.get("options").is_none(), "{silent}");
    let given = json!({"num_ctx": 9}).as_object().unwrap().clone();
    let embed = EmbedTask {
        inputs: vec![EmbedText::Text("x".into())],
        truncate: false,
        num_ctx: None,
        explicit_parameters: given,
    };
    assert_eq!(ollama::embedding(&embed, "m").unwrap().1["options"], json!({"num_ctx": 9}));
}

fn openai_body(generate: &GenerateTask) -> Value {
    openai::generation(&openai::AdaptedChat::new(generate), "m").unwrap().1
}

#[test]
fn options_missing_in_the_openai_dialect_are_detected() {
    let body = |given| openai_body(&generate(given));
    let without = body(json!({}));
    let schema =
        schemars::SchemaGenerator::default().into_root_schema_for::<puna_api::schema::Options>();
    let all = schema.get("properties").unwrap().as_object().unwrap();
    assert!(all.len() > 30);
    for name in all.keys() {
        assert_eq!(body(json!({ name: 1 })) != without, has_option(name), "{name}");
    }
}

#[test]
fn a_schema_is_sent_with_the_name_and_strictness_of_the_client() {
    let schema = json!({"type": "object"});
    let sent = |label: crate::canonical::SchemaLabel| {
        let format = Some(puna_sampler::Constraint::schema(schema.clone()));
        let generate = GenerateTask { format, schema_label: label, ..generate(json!({})) };
        openai_body(&generate)["response_format"]["json_schema"].clone()
    };
    assert_eq!(sent(Default::default()), json!({"name": "answer", "schema": schema}));
    let label = crate::canonical::SchemaLabel {
        name: Some("n".into()),
        description: Some("d".into()),
        strict: Some(false),
    };
    assert_eq!(
        sent(label),
        json!({"name": "n", "schema": schema, "strict": false, "description": "d"})
    );
}

#[test]
fn a_last_assistant_message_is_continued() {
    let sent = |messages: &[(&str, &str)]| {
        let messages = messages
            .iter()
            .map(|(role, text)| puna_api::ollama::Message::text(*role, *text))
            .collect();
        let input = Input::Chat { messages, tools: Vec::new() };
        let body = openai_body(&GenerateTask { input, ..generate(json!({})) });
        [body["add_generation_prompt"].clone(), body["continue_final_message"].clone()]
    };
    assert_eq!(sent(&[("user", "q")]), [json!(null), json!(null)]);
    assert_eq!(sent(&[("user", "q"), ("assistant", "a")]), [json!(false), json!(true)]);
}

#[test]
fn num_predict_zero_is_refused() {
    let limited = |num_predict| {
        let mut generate = generate(json!({}));
        generate.options.num_predict = num_predict;
        check_supported(&generate).map_err(|failure| failure.status)
    };
    assert_eq!([limited(0), limited(1), limited(-1)], [Err(400), Ok(()), Ok(())]);
}

#[test]
fn messages_that_local_models_refuse_are_refused_with_their_index() {
    let call = json!({"role": "assistant", "content": "", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {}}}]});
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "r"});
    let checked = |stored: Value, messages: Value, overflow| {
        let read = |messages| serde_json::from_value::<Vec<Message>>(messages).unwrap();
        let input = Input::Chat { messages: read(messages), tools: Vec::new() };
        let mut generate = GenerateTask { input, overflow, ..generate(json!({})) };
        generate.model.messages = read(stored);
        check_supported(&generate).map_err(|failure| (failure.status, failure.message))
    };
    let user = json!({"role": "user", "content": "hi"});
    let bad = json!([user, call, result("a"), result("b")]);
    for overflow in [Overflow::Refuse, Overflow::DropTurns] {
        let (status, text) = checked(json!([user]), bad.clone(), overflow).unwrap_err();
        assert!(status == 400 && text.starts_with("messages[3]: "), "{text}");
        let (status, text) =
            checked(json!([user]), json!([user, {"role": "critic", "content": "x"}]), overflow)
                .unwrap_err();
        assert!(
            status == 400 && text.starts_with("messages[1]: unknown role \"critic\""),
            "{text}"
        );
        assert_eq!(checked(json!([]), json!([user, call, result("a")]), overflow), Ok(()));
        assert_eq!(checked(json!([user, call]), json!([result("a")]), overflow), Ok(()));
    }
    assert_eq!(checked(json!([]), bad, Overflow::DropMessages), Ok(()));
}

//! Conversations rendered with whole templates: the two templates of cria, image tags, and
//! adaptation to Jinja templates.

use serde_json::{Value as Json, json};

use crate::{
    Capabilities, Chat, FunctionCall, Image, Message, PromptError, Template, TemplateFormat, Think,
    ToolCall, conversation, generate_conversation, prefer_jinja, render, render_insert,
    strip_past_reasoning,
};

fn cria(kind: TemplateFormat) -> Template {
    let name = if kind == TemplateFormat::Go { "gotmpl" } else { "jinja" };
    let path = format!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/cria/template.{}"), name);
    let source =
        std::fs::read_to_string(path).expect("cria's templates are part of the repository");
    assert_eq!(Template::detect(&source), kind);
    // The file ends with a line break, the Modelfile's TEMPLATE does not.
    Template::parse(kind, source.trim_end_matches('\n')).expect("cria's template parses")
}

/// Text that both templates of cria write. They differ only in the text of tool schemas and in the
/// BOS token that Jinja adds.
fn render_both(messages: &[Message], tools: &[Json], think: Option<Think>) -> (String, String) {
    let chat =
        Chat { tools, think, bos: "<|startoftext|>", eos: "<|im_end|>", ..Chat::new(messages) };
    let go = render(&cria(TemplateFormat::Go), &chat).expect("the Go template renders");
    let jinja = render(&cria(TemplateFormat::Jinja), &chat).expect("the Jinja template renders");
    (go, jinja.strip_prefix("<|startoftext|>").expect("Jinja writes the BOS").to_string())
}

fn weather_tool() -> Json {
    json!({"type": "function", "function": {"name": "get_weather", "description": "Get the weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}})
}

fn weather_call() -> Message {
    let arguments = json!({"city": "Paris"}).as_object().cloned().unwrap_or_default();
    let function = FunctionCall { index: 0, name: "get_weather".into(), arguments };
    Message {
        tool_calls: vec![ToolCall { id: "call_1".into(), function }],
        ..Message::new("assistant", "")
    }
}

#[test]
fn cria_renders_a_plain_question_without_a_system_block() {
    let (go, jinja) = render_both(&[Message::new("user", "Hi")], &[], None);
    assert_eq!(go, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(jinja, go);
}

#[test]
fn cria_renders_the_tool_conversation_of_its_readme() {
    let messages = [
        Message::new("system", "{system message}"),
        Message::new("user", "What is the weather in Paris?"),
        weather_call(),
        Message::new("tool", "{\"temperature\": 18, \"condition\": \"sunny\"}"),
    ];
    let (go, jinja) = render_both(&messages, &[weather_tool()], None);
    let with = |schema: &str, arguments: &str| {
        format!(
            "<|im_start|>system\n{{system message}}\n\n# Tools\nYou may call these tools:\n{schema}<|im_end|>\n\
             <|im_start|>user\nWhat is the weather in Paris?<|im_end|>\n\
             <|im_start|>assistant\n<tool_call>\n{{\"name\": \"get_weather\", \"arguments\": {arguments}}}\n\
             </tool_call><|im_end|>\n\
             <|im_start|>tool\n{{\"temperature\": 18, \"condition\": \"sunny\"}}<|im_end|>\n<|im_start|>assistant\n"
        )
    };
    let jinja_schema = r#"{"name": "get_weather", "description": "Get the weather in a city", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}"#;
    let go_schema = r#"{"name":"get_weather","description":"Get the weather in a city","parameters":{"type":"object","required":["city"],"properties":{"city":{"type":"string"}}}}"#;
    assert_eq!(jinja, with(jinja_schema, r#"{"city": "Paris"}"#));
    assert_eq!(go, with(go_schema, r#"{"city":"Paris"}"#));
}

#[test]
fn cria_prompts_end_inside_the_reasoning_if_it_is_on() {
    let messages = [Message::new("user", "17 + 25?")];
    let (go, jinja) = render_both(&messages, &[], Some(Think::Switch(true)));
    assert_eq!(go, "<|im_start|>user\n17 + 25?<|im_end|>\n<|im_start|>assistant\n<think>\n");
    assert_eq!(jinja, go);
    let (go, jinja) = render_both(&messages, &[], Some(Think::Switch(false)));
    assert!(go.ends_with("<|im_start|>assistant\n"));
    assert_eq!(jinja, go);
}

#[test]
fn cria_drops_reasoning_of_earlier_turns_and_keeps_that_of_the_tool_loop() {
    let thought = |message: Message, text: &str| Message { thinking: Some(text.into()), ..message };
    let messages = [
        Message::new("user", "2+2?"),
        thought(Message::new("assistant", "4"), "old"),
        Message::new("user", "Weather?"),
        thought(weather_call(), "new"),
        Message::new("tool", "sunny"),
    ];
    let (go, jinja) = render_both(&messages, &[], None);
    for text in [&go, &jinja] {
        assert!(!text.contains("old"));
        assert!(
            text.contains("<|im_start|>assistant\n<think>\nnew\n</think>\n\n<tool_call>\n"),
            "{text}"
        );
    }
}

#[test]
fn an_answer_at_the_end_is_left_open_for_the_model() {
    let messages = [Message::new("user", "Count."), Message::new("assistant", "1, 2,")];
    let (go, jinja) = render_both(&messages, &[], None);
    assert_eq!(go, "<|im_start|>user\nCount.<|im_end|>\n<|im_start|>assistant\n1, 2,");
    assert_eq!(jinja, go);
    let (_, jinja) = render_both(&messages, &[], Some(Think::Switch(true)));
    assert!(jinja.ends_with("<|im_start|>assistant\n<think>\n\n</think>\n\n1, 2,"), "{jinja}");
}

#[test]
fn cria_fills_in_the_middle_by_its_go_template_only() {
    let text = render_insert(&cria(TemplateFormat::Go), "def add(", "return c", None)
        .expect("it has insert");
    assert_eq!(text, "<|fim_prefix|>def add(<|fim_suffix|>return c<|fim_middle|>");
    assert_eq!(
        render_insert(&cria(TemplateFormat::Jinja), "a", "b", None),
        Err(PromptError::NoInsert)
    );
    let plain = Template::parse(TemplateFormat::Go, "{{ .Prompt }}").expect("it parses");
    assert_eq!(render_insert(&plain, "a", "b", None), Err(PromptError::NoInsert));
}

#[test]
fn cria_templates_report_capabilities_and_tags() {
    let go = cria(TemplateFormat::Go);
    let all = Capabilities { tools: true, insert: true, thinking: true, tool_round_trip: false };
    assert_eq!(go.capabilities(), all);
    let jinja = cria(TemplateFormat::Jinja);
    assert_eq!(jinja.capabilities(), Capabilities { insert: false, ..all });
    assert!(!prefer_jinja(&jinja, &go));
    for template in [&go, &jinja] {
        let tags = template.think_tags().expect("it has tags");
        assert_eq!((tags.open.as_str(), tags.close.as_str()), ("<think>", "</think>"));
    }
    assert_eq!(go.tool_tag().as_deref(), Some("<tool_call>"));
}

#[test]
fn the_richer_template_is_preferred() {
    let go = |text: &str| Template::parse(TemplateFormat::Go, text).expect("it parses");
    let jinja = |text: &str| Template::parse(TemplateFormat::Jinja, text).expect("it parses");
    let plain = go("{{ range .Messages }}{{ .Content }}{{ end }}");
    let round_trip = go(
        "{{ .Tools }}{{ range .Messages }}{{ .ToolCalls }}{{ if eq .Role \"tool\" }}{{ end }}{{ end }}",
    );
    let tools = go("{{ .Tools }}{{ .Messages }}");
    let jinja_tools = jinja("{{ tools }}");
    let jinja_round =
        jinja("{{ tools }}{% if message.role == 'tool' %}{{ tool_calls }}{% endif %}");
    assert!(prefer_jinja(&jinja_tools, &plain));
    assert!(!prefer_jinja(&jinja_tools, &tools));
    assert!(prefer_jinja(&jinja_round, &tools));
    assert!(!prefer_jinja(&jinja("{{ tools }}<think></think>"), &round_trip));
}

#[test]
fn images_get_numbered_tags_in_their_place_or_in_front() {
    let image = || Image("aW1n".into());
    let messages = [
        Message { images: vec![image(), image()], ..Message::new("user", "look: [img] there") },
        Message::new("assistant", "yes"),
        Message { images: vec![image()], ..Message::new("user", "and this") },
    ];
    let template =
        Template::parse(TemplateFormat::Go, "{{ range .Messages }}{{ .Content }}|{{ end }}")
            .expect("it parses");
    let text = render(&template, &Chat::new(&messages)).expect("it renders");
    assert_eq!(text, "[img-1]look: [img-0] there|yes|[img-2]and this|");
}

#[test]
fn system_texts_move_to_the_user_message_if_a_template_has_no_system_role() {
    let refuses = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}\
        {% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let template = Template::parse(TemplateFormat::Jinja, refuses).expect("it parses");
    let messages = [Message::new("system", "Be kind."), Message::new("user", "Hi")];
    assert_eq!(render(&template, &Chat::new(&messages)), Ok("<user>Be kind.\nHi".into()));
}

#[test]
fn call_arguments_become_text_if_a_template_concatenates_them() {
    let joins = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}\
        {{ '<call>' + c.function.name + c.function.arguments }}{% endfor %}{% endfor %}";
    let dumps = joins.replace("+ c.function.arguments", "+ c.function.arguments|tojson");
    let messages = [Message::new("user", "W?"), weather_call()];
    for source in [joins, &dumps] {
        let template = Template::parse(TemplateFormat::Jinja, source).expect("it parses");
        let text = render(&template, &Chat::new(&messages)).expect("it renders").replace(": ", ":");
        assert_eq!(text, "W?<call>get_weather{\"city\":\"Paris\"}");
    }
}

#[test]
fn contents_become_parts_if_a_template_iterates_them() {
    let walks =
        "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %};{% endfor %}";
    let template = Template::parse(TemplateFormat::Jinja, walks).expect("it parses");
    let messages = [Message::new("user", "Hi")];
    assert_eq!(render(&template, &Chat::new(&messages)), Ok("Hi;".into()));
}

#[test]
fn variables_of_the_request_reach_the_template_and_override() {
    let template = Template::parse(
        TemplateFormat::Jinja,
        "{{ enable_thinking }} {{ reasoning_effort }} {{ mine }}",
    )
    .expect("it parses");
    let mut chat = Chat { think: Some(Think::Level("low".into())), ..Chat::new(&[]) };
    assert_eq!(render(&template, &chat), Ok("True low ".into()));
    chat.variables.insert("mine".into(), json!([1]));
    chat.variables.insert("enable_thinking".into(), json!(false));
    assert_eq!(render(&template, &chat), Ok("False low [1]".into()));
}

#[test]
fn the_system_text_of_the_model_comes_first_unless_the_request_has_one() {
    let stored = [Message::new("user", "stored")];
    let request = [Message::new("user", "asked")];
    let own = [Message::new("system", "own"), Message::new("user", "asked")];
    let roles =
        |messages: Vec<Message>| messages.iter().map(|m| m.content.clone()).collect::<Vec<_>>();
    assert_eq!(roles(conversation(Some("model"), &stored, &request)), ["model", "stored", "asked"]);
    assert_eq!(roles(conversation(Some("model"), &stored, &own)), ["stored", "own", "asked"]);
    assert_eq!(
        roles(generate_conversation(Some("model"), &stored, "p", &[])),
        ["model", "stored", "p"]
    );
    assert_eq!(roles(generate_conversation(None, &[], "p", &[])), ["p"]);
}

#[test]
fn reasoning_in_answers_before_the_last_question_is_removed() {
    let mut messages = vec![
        Message::new("assistant", "<think>a</think>\n\nA"),
        Message::new("user", "Q <think>x</think>"),
        Message::new("assistant", "<think>b</think>B"),
    ];
    strip_past_reasoning(&mut messages);
    let contents: Vec<&str> = messages.iter().map(|m| m.content.as_str()).collect();
    assert_eq!(contents, ["A", "Q <think>x</think>", "<think>b</think>B"]);
}

#[test]
fn messages_have_the_json_format_of_ollama() {
    let text = r#"{"role":"Assistant","content":"c","thinking":"t","tool_calls":[{"function":{"name":"f","arguments":{"b":1,"a":2}}}]}"#;
    let message: Message = serde_json::from_str(text).expect("it decodes");
    assert_eq!(message.role, "assistant");
    let back = serde_json::to_string(&message).expect("it encodes");
    let want = r#"{"role":"assistant","content":"c","thinking":"t","tool_calls":[{"function":{"index":0,"name":"f","arguments":{"b":1,"a":2}}}]}"#;
    assert_eq!(back, want);
    assert!(serde_json::from_str::<Think>("\"ultra\"").is_err());
    let text = r#"{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}"#;
    let error = serde_json::from_str::<Message>(text).expect_err("arguments are no text");
    assert!(error.to_string().starts_with("tool call arguments must be an object"));
}

//! `tests/data/cases/renderers.jsonl`: 15 conversations rendered by Ollama's built-in renderers.
//! `renderers-random.jsonl`: random conversations with unusual texts, calls and schemas.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value as Json, json};

use crate::{
    Chat, FunctionCall, Image, Message, PromptError, Renderer, Template, TemplateFormat,
    TemplateLimit, Think, ToolCall, fit, render,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    id: String,
    renderer: String,
    #[serde(rename = "conversation")]
    _conversation: String,
    /// Values with the same result.
    think_any_of: Vec<Option<Think>>,
    image_tags: bool,
    messages: Vec<Message>,
    #[serde(default)]
    tools: Vec<Json>,
    expect: Option<String>,
    expect_error: Option<String>,
    /// Placeholders in the expected text and their meaning: only the current date.
    #[serde(default)]
    substitute: BTreeMap<String, String>,
}

const RENDERERS: usize = 26;

#[test]
fn every_case_of_the_renderer_files_renders_as_ollama_does() {
    for (file, cases) in [("renderers", 713), ("renderers-random", 260)] {
        let by_renderer = replay(file);
        assert_eq!(
            (by_renderer.len(), by_renderer.values().sum::<usize>()),
            (RENDERERS, cases),
            "{file}"
        );
        // All names have cases, except the alias of one renderer.
        let names: Vec<&str> = Renderer::names().filter(|name| *name != "deepseek3").collect();
        assert_eq!(names, by_renderer.keys().collect::<Vec<_>>(), "{file}");
    }
}

/// Checks all cases of a file. Returns the number of cases of each renderer.
fn replay(file: &str) -> BTreeMap<String, usize> {
    let path =
        format!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/cases/{}.jsonl"), file);
    let text = std::fs::read_to_string(path).expect("the case file is part of the repository");
    let mut by_renderer: BTreeMap<String, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for line in text.lines() {
        let case: Case = serde_json::from_str(line).expect("a case is one JSON object");
        for think in &case.think_any_of {
            if let Err(why) = check(&case, think.clone()) {
                wrong.push(format!("{} ({}, think {think:?}): {why}", case.id, case.renderer));
            }
        }
        *by_renderer.entry(case.renderer).or_default() += 1;
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    by_renderer
}

fn check(case: &Case, think: Option<Think>) -> Result<(), String> {
    assert!(case.image_tags, "{}: all cases have tags for images", case.id);
    let template =
        Template::parse(TemplateFormat::BuiltIn, &case.renderer).map_err(|e| e.to_string())?;
    let now = Some(jiff::civil::datetime(2026, 3, 1, 12, 0, 0, 0));
    let chat = Chat { tools: &case.tools, think, now, ..Chat::new(&case.messages) };
    let got = render(&template, &chat).map_err(|e| e.to_string());
    let want = match (&case.expect, &case.expect_error) {
        (Some(prompt), None) => {
            let mut prompt = prompt.clone();
            for (mark, meaning) in &case.substitute {
                assert_eq!(meaning, "today as YYYY-MM-DD");
                prompt = prompt.replace(mark, "2026-03-01");
            }
            Ok(prompt)
        }
        (None, Some(error)) => Err(error.clone()),
        _ => return Err("a case has either a prompt or an error".into()),
    };
    if got == want { Ok(()) } else { Err(format!("\n  got  {got:?}\n  want {want:?}")) }
}

fn built_in(name: &str) -> Template {
    Template::parse(TemplateFormat::BuiltIn, name).expect("the renderer exists")
}

fn call(arguments: Json) -> ToolCall {
    let arguments = arguments.as_object().cloned().unwrap_or_default();
    ToolCall { id: String::new(), function: FunctionCall { index: 0, name: "f".into(), arguments } }
}

#[test]
fn the_error_names_an_unknown_renderer() {
    let error = Template::parse(TemplateFormat::BuiltIn, "nope").expect_err("there is none");
    assert_eq!(error.to_string(), "unknown renderer \"nope\"");
}

#[test]
fn renderers_are_sorted_and_report_their_capabilities() {
    assert!(Renderer::names().is_sorted());
    let of = |name: &str| {
        let template = built_in(name);
        let able = template.capabilities();
        assert_eq!(able.thinking, template.think_tags().is_some());
        assert_eq!(
            (able.insert, template.source(), template.format()),
            (false, name, TemplateFormat::BuiltIn)
        );
        (able.tools, able.thinking)
    };
    assert_eq!(of("qwen3-coder"), (true, false));
    assert_eq!(of("olmo3-think"), (false, true));
    assert_eq!(of("gemma4"), (true, true));
}

#[test]
fn prompts_start_with_the_bos_text_unless_the_tokenizer_adds_it() {
    let messages = [Message::new("user", "Hi")];
    for name in Renderer::names() {
        let template = built_in(name);
        let prompt = render(&template, &Chat::new(&messages)).expect("a question can be rendered");
        let is_left_out = name == "cohere";
        assert_eq!(prompt.starts_with(template.leading_bos()), !is_left_out, "{name}: {prompt}");
    }
}

#[test]
fn gemma4_is_resolved_by_model_name_then_by_size() {
    let of = |model, size| Renderer::resolve("gemma4", model, size);
    assert_eq!(of("library/gemma4:e4b-it", "31B"), "gemma4-small");
    assert_eq!(of("library/Gemma4:31B", "1B"), "gemma4-large");
    assert_eq!(of("mine", "12.0B"), "gemma4-large");
    assert_eq!(of("mine", "11.9B"), "gemma4-small");
    assert_eq!(of("mine", "13000M"), "gemma4-large");
    for size in ["", "B", "é", "7x", "big"] {
        assert_eq!(of("mine", size), "gemma4-small");
    }
    assert_eq!(Renderer::resolve("qwen3.5", "gemma4:31b", "31B"), "qwen3.5");
}

#[test]
fn prompts_of_renderers_are_fitted_by_dropping_the_oldest_messages() {
    let messages = [
        Message::new("system", "S"),
        Message::new("user", "one"),
        Message::new("assistant", "two"),
        Message::new("user", "three"),
    ];
    let mut count = |text: &str| Ok(text.len());
    let fitted = fit(&built_in("qwen3-coder"), &Chat::new(&messages), 110, &mut count)
        .expect("it can be rendered");
    assert_eq!(
        (fitted.prompt.as_str(), fitted.dropped_messages, fitted.too_long),
        (
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n",
            2,
            false
        )
    );
}

#[test]
fn renderers_with_errors_in_ollama_match_the_models_own_templates() {
    let tools = [json!({"function": {"name": "f", "parameters": {"properties": {
        "a": {"type": "string", "description": "x < y & z", "enum": [null]}, "b": {"items": true}}}}})];
    let million = Message {
        tool_calls: vec![call(json!({"n": 1_000_000}))],
        ..Message::new("assistant", "")
    };
    let messages = [
        Message::new("user", "Q?"),
        million,
        Message::new("tool", "R"),
        Message::new("system", "S."),
        Message::new("user", "Q!"),
    ];
    let shows = |name: &str, text: &str| {
        let prompt = render(&built_in(name), &Chat { tools: &tools, ..Chat::new(&messages) })
            .expect("it renders");
        assert!(prompt.contains(text), "{name}: {prompt}");
    };
    // Ollama: 1e+06
    shows("qwen3-coder", "<parameter=n>\n1000000\n</parameter>");
    // Ollama: `x \u003c y`, although the text of the tool itself is not escaped.
    shows("lfm2", "x < y & z");
    shows("glimmer", "x < y & z");
    // Ollama: `<nil>`
    shows("gemma4", "enum:[<|\"|>null<|\"|>]");
    // Ollama: true
    shows("nemotron-3-nano", "<items>True</items>");
    // Ollama: no turn
    shows(
        "functiongemma",
        "<start_of_turn>system\nS.<end_of_turn>\n<start_of_turn>user\nQ!<end_of_turn>",
    );
}

#[test]
fn qwen38_gives_reasons_for_refusals() {
    let refused = |messages: &[Message], think: Option<Think>| {
        let chat = Chat { think, ..Chat::new(messages) };
        render(&built_in("qwen3.8"), &chat).expect_err("it is refused").to_string()
    };
    let image =
        |role: &str| Message { images: vec![Image("aQ==".into())], ..Message::new(role, "S") };
    let user = Message::new("user", "Hi");
    assert_eq!(refused(&[], None), "no messages provided");
    assert_eq!(
        refused(&[image("developer"), user.clone()], None),
        "developer message cannot contain images"
    );
    let result = Message::new("user", "<tool_response>\n1\n</tool_response>");
    assert_eq!(refused(&[result], None), "no user query found in messages");
    let level = Some(Think::Level("odd".into()));
    assert_eq!(refused(&[user], level), "unsupported Qwen3.8 reasoning effort \"odd\"");
}

#[test]
fn no_conversation_makes_a_renderer_panic() {
    let roles = ["system", "developer", "user", "assistant", "tool", "chatbot", "", "é"];
    let texts = [
        "",
        " \n",
        "<think>",
        "</think>",
        "a</think>b</think>",
        "<|channel>",
        "[img][img-1]",
        "[img]",
        "é\0<",
    ];
    let tools = [
        json!(null),
        json!({"function": 1}),
        json!({"function": {"name": ".", "parameters": {"properties": {"a": 1, "": {"type": []}}}}}),
        json!({"function": {"parameters": {"type": "object", "required": [1], "properties": {
            "o": {"type": "object"}, "a": {"type": ["array"], "items": {"type": 1, "required": 2, "properties": 3}},
            "u": {"anyOf": [{}, {"type": "string"}]}, "e": {"type": "string", "enum": [null, {}, [1.5]]}}}}}),
    ];
    let thoughts = [
        None,
        Some(Think::Switch(true)),
        Some(Think::Switch(false)),
        Some(Think::Level("\0".into())),
    ];
    let mut messages: Vec<Message> = Vec::new();
    for (i, text) in texts.iter().enumerate() {
        for (j, role) in roles.iter().enumerate() {
            let calls =
                (0..(i + j) % 3).map(|n| call(json!({"a": [n, {"b": null}], "": ""}))).collect();
            let images = vec![Image(String::new()); (i * j) % 4];
            let thinking = Some((*text).to_owned()).filter(|_| j % 2 == 0);
            messages.push(Message {
                tool_calls: calls,
                images,
                thinking,
                ..Message::new(*role, *text)
            });
        }
    }
    let mut rendered = 0;
    for name in Renderer::names() {
        let template = built_in(name);
        for think in &thoughts {
            for first in 0..=messages.len() {
                let tools = &tools[first % 5 % tools.len()..];
                let chat = Chat { tools, think: think.clone(), ..Chat::new(&messages[first..]) };
                rendered += usize::from(render(&template, &chat).is_ok());
            }
        }
    }
    // Only Qwen3.8 refuses conversations: images in instructions, and unknown reasoning levels.
    let all = Renderer::names().count() * thoughts.len() * (messages.len() + 1);
    let by_qwen38 = thoughts.len() * (messages.len() + 1);
    assert!(rendered >= all - by_qwen38 && rendered < all, "{rendered} of {all}");
}

#[test]
fn deep_arguments_and_schemas_are_refused_before_the_stack_overflows() {
    let deep = |levels: usize| (0..levels).fold(json!("x"), |inner, _| json!({"items": [inner]}));
    for name in Renderer::names() {
        let render = |tools: &[Json], arguments: Json| {
            let calls =
                Message { tool_calls: vec![call(arguments)], ..Message::new("assistant", "") };
            let messages = [Message::new("user", "Hi"), calls];
            render(&built_in(name), &Chat { tools, ..Chat::new(&messages) })
        };
        // The deepest JSON that the parser accepts.
        let schema = |levels| json!({"function": {"name": "f", "parameters": {"properties": {"a": deep(levels)}}}});
        assert!(render(&[schema(60)], json!({"a": deep(60)})).is_ok(), "{name}");
        let refused = |got| assert!(matches!(got, Err(PromptError::Refused(_))), "{name}: {got:?}");
        refused(render(&[schema(400)], json!({})));
        refused(render(&[], json!({"a": deep(400)})));
    }
}

#[test]
fn tools_repeated_for_many_system_messages_exceed_the_text_limit() {
    let tools = [json!({"function": {"name": "f", "description": "x".repeat(1 << 20)}})];
    let messages = vec![Message::new("system", "S"); 100];
    let got = render(&built_in("glimmer"), &Chat { tools: &tools, ..Chat::new(&messages) });
    assert_eq!(got, Err(PromptError::Limit { line: 0, limit: TemplateLimit::Text }));
}

#[test]
fn large_conversations_take_linear_time() {
    let answer = Message {
        tool_calls: vec![call(json!({"a": 1})); 10_000],
        ..Message::new("assistant", "A")
    };
    let mut messages = vec![Message::new("user", "[img]".repeat(10_000)), answer];
    messages[0].images = vec![Image(String::new()); 10_000];
    messages.extend(vec![
        Message { tool_call_id: Some("x".into()), ..Message::new("tool", "R") };
        10_000
    ]);
    messages.extend(
        (0..10_000).map(|i| Message::new(if i % 2 == 0 { "user" } else { "assistant" }, "T")),
    );
    let started = std::time::Instant::now();
    for name in Renderer::names() {
        render(&built_in(name), &Chat::new(&messages)).expect("it is only long");
    }
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}

//! Calls as chat templates write them: `tests/data/cases/jinja.jsonl`, rendered by Jinja2.

use super::*;
use crate::{JinjaTemplate, TemplateFormat};

fn rows() -> Vec<Json> {
    rows_of("jinja.jsonl")
}

fn rows_of(name: &str) -> Vec<Json> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/cases/");
    let text = std::fs::read_to_string(format!("{folder}{name}"))
        .expect("the case file is part of the repository");
    text.lines().map(|line| serde_json::from_str(line).expect("a row is one JSON object")).collect()
}

/// `templates` beside the test models: the folder `models/templates` of llama.cpp, under the names
/// of the cases.
fn source(file: &str) -> Option<String> {
    let models = std::env::var_os("PUNA_TEST_MODELS").map(std::path::PathBuf::from);
    let models = models
        .unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../../.cache/models").into());
    let name = file.rsplit('/').next()?;
    let source = std::fs::read_to_string(models.join("templates").join(name)).ok();
    if source.is_none() {
        eprintln!("SKIPPED: no {name} in the folder `templates` of $PUNA_TEST_MODELS");
    }
    source
}

#[test]
fn the_call_that_a_template_writes_is_read_back() {
    let (mut read, mut silent) = (0, 0);
    let rows = rows();
    let conversation =
        rows.iter().find(|row| row["kind"] == "conversation" && row["name"] == "tool_round");
    let tools =
        conversation.and_then(|row| row["variables"]["tools"].as_array()).cloned().expect("tools");
    for row in rows.iter().filter(|row| row["conversation"] == "tool_round") {
        let file = row["file"].as_str().expect("a file");
        let Some(text) = row["expect"].as_str() else { continue };
        let Some((_, after)) = text.rsplit_once("Tides at Wick for 2 days?") else { continue };
        let Some(source) = source(file) else { return };
        let template = Template::parse(TemplateFormat::Jinja, &source).expect("it parses");
        if !after.contains("tide_table") || !after.contains("Wick") {
            silent += 1;
            continue;
        }
        let input = ParserInput { tools: &tools, ..ParserInput::default() };
        // Behind the header of the answer, in formats with a recipient per message.
        let after = after.split_once("<|start|>assistant").map_or(after, |(_, after)| after);
        // Without the result of the call, which may contain another object.
        let after = after.split("{\"high\"").next().expect("a first part");
        let whole = |text: &str, cut: usize| {
            let parser = OutputParser::for_template(&template, template.think_tags(), &input);
            JoinedOutput::of(parser, pieces(text, cut))
        };
        let expect =
            vec![("tide_table".to_owned(), serde_json::json!({"harbour": "Wick", "days": 2}))];
        // Bare JSON is a call only at the start of the answer.
        let bare = after
            .find("{\"name\": \"tide_table\", \"parameters\"")
            .map_or(after, |at| &after[at..]);
        let after = if file.contains("Llama-3") { bare } else { after };
        assert_eq!(whole(after, 3).calls, expect, "{file}: {after}");
        assert_eq!(whole(after, 1000), whole(after, 1), "{file}");
        read += 1;
    }
    assert!(read >= 50, "{read} templates write calls, {silent} do not");
}

#[test]
fn a_call_in_the_format_of_a_template_is_read_back() {
    const ENDS: [&str; 14] = [
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "</s>",
        "<|end|>",
        "<|call|>",
        "<|endoftext|>",
        "<｜end▁of▁sentence｜>",
        "<|END_OF_TURN_TOKEN|>",
        "<|end_of_text|>",
        "<|eot|>",
        "<end_of_turn>",
        "<|role_end|>",
        "[e~[",
    ];
    let ends = ENDS.map(str::to_owned);
    let (mut json, mut free, mut none) = (0, 0, Vec::new());
    let rows = rows();
    let files: std::collections::BTreeSet<&str> =
        rows.iter().filter_map(|row| row["file"].as_str()).collect();
    for file in files {
        let Some(source) = source(file) else { return };
        let Ok(template) = Template::parse(TemplateFormat::Jinja, &source) else { continue };
        let tags = template.think_tags();
        let format = crate::CallFormat::probe(&template, None, tags.as_ref(), &ends);
        let Some(crate::CallFormat { before, arguments }) = format else {
            none.push(file);
            continue;
        };
        let (between, after) = match arguments {
            crate::ArgumentsFormat::Object { between, after } => (between, after),
            crate::ArgumentsFormat::List(written) => {
                check_written(file, &template, &before, &written);
                free += 1;
                continue;
            }
        };
        let tools = [
            serde_json::json!({"type": "function", "function": {"name": "tide_table", "parameters": {}}}),
        ];
        let input = ParserInput { tools: &tools, ..ParserInput::default() };
        let arguments = serde_json::json!({"harbour": "Wick", "deep": {"a": [1, "}"]}});
        let text = format!("{before}tide_table{between}{arguments}{after}");
        let whole =
            JoinedOutput::of(OutputParser::for_template(&template, tags, &input), pieces(&text, 3));
        assert_eq!(whole.calls, [("tide_table".to_owned(), arguments)], "{file}: {text}");
        json += 1;
    }
    assert!(json >= 23 && free >= 20, "{json} with JSON, {free} without, none of {none:?}");
}

/// Checks that calls with values of all kinds, written as the template does, are read back.
fn check_written(
    file: &str,
    template: &Template,
    before: &str,
    written: &crate::ArgumentListFormat,
) {
    use crate::ValueKind::*;
    let properties = serde_json::json!({
        "harbour": {"type": "string"}, "days": {"$ref": "#/$defs/days"}, "deep": {"type": "boolean"},
        "none": {"type": ["string", "null"]}, "list": {"type": "array"}, "map": {"anyOf": [{"type": "object"}]},
    });
    let defs = serde_json::json!({"days": {"type": "integer"}});
    let parameters = serde_json::json!({"type": "object", "properties": properties, "$defs": defs});
    let function = serde_json::json!({"name": "tide_table", "parameters": parameters});
    let tools = [serde_json::json!({"type": "function", "function": function})];
    let input = ParserInput { tools: &tools, ..ParserInput::default() };
    let (list, map) = match written.style {
        crate::ValueStyle::Quoted(ref quote) => {
            (format!("[1,{quote}a{quote}]"), format!("{{a:[{quote}b{quote}]}}"))
        }
        _ => ("[1, \"a\"]".to_owned(), "{\"a\": [\"b\"]}".to_owned()),
    };
    let all = [
        ("harbour", Text, "Wick, {N}"),
        ("days", Number, "2"),
        ("deep", Boolean, "true"),
        ("none", Null, "null"),
        ("list", List, &list),
        ("map", Object, &map),
    ];
    let expect = serde_json::json!({"harbour": "Wick, {N}", "days": 2, "deep": true, "none": null, "list": [1, "a"], "map": {"a": ["b"]}});
    for range in [0..0, 0..1, 1..2, 0..2, 2..6, 0..6] {
        let text = format!("{before}tide_table{}", written.write(&all[range.clone()]));
        let tags = template.think_tags();
        let whole =
            JoinedOutput::of(OutputParser::for_template(template, tags, &input), pieces(&text, 3));
        let some = expect.as_object().unwrap().iter().skip(range.start).take(range.len());
        let some: serde_json::Map<_, _> =
            some.map(|(key, value)| (key.clone(), value.clone())).collect();
        assert_eq!(whole.calls, [("tide_table".to_owned(), Json::Object(some))], "{file}: {text}");
    }
}

#[test]
fn formats_that_a_template_only_mentions_are_detected() {
    let tools =
        vec![serde_json::json!({"type": "function", "function": {"name": "f", "parameters": {}}})];
    let input = ParserInput { tools: &tools, ..ParserInput::default() };
    for (file, text) in [
        (
            "ibm-granite-granite-3.3-2B-Instruct.jinja",
            "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]",
        ),
        ("LFM2-8B-A1B.jinja", "<|tool_call_start|>[f()]<|tool_call_end|>"),
    ] {
        let Some(source) = source(file) else { return };
        let template = Template::parse(TemplateFormat::Jinja, &source).expect("it parses");
        let whole = JoinedOutput::of(OutputParser::for_template(&template, None, &input), [text]);
        assert_eq!(whole.calls, [("f".to_owned(), serde_json::json!({}))], "{file}");
    }
}

#[test]
fn functionary_messages_go_to_their_recipients() {
    // The texts that identify the format in the template of version 3.2.
    let source = "Respond in this format:\n>>>${recipient}\n${content}\n{% for m in messages %}<{{ m.role }}>\
                  {% if m.content %}{{ '>>>all\n' + m.content if m.role == 'assistant' else m.content }}{% endif %}\
                  {% for c in m.tool_calls or [] %}{{ '>>>' + c.function.name + '\n' + c.function.arguments }}{% endfor %}<|eot_id|>\
                  {% endfor %}{% if add_generation_prompt %}<assistant>>>>{% endif %}";
    let template = Template::parse(TemplateFormat::Jinja, source).expect("it parses");
    let tools = ["f", "all_of"]
        .map(|name| serde_json::json!({"type": "function", "function": {"name": name, "parameters": {}}}));
    let offered = ParserInput { tools: &tools, ..ParserInput::default() };
    let read = |text: &str, input: &ParserInput<'_>| {
        let whole = |cut: usize| {
            JoinedOutput::of(OutputParser::for_template(&template, None, input), pieces(text, cut))
        };
        assert_eq!(whole(1000), whole(1), "{text}");
        whole(1)
    };
    let content = |text: &str| {
        let whole = read(text, &offered);
        assert!(whole.calls.is_empty() && whole.malformed.is_empty(), "{whole:?}");
        whole.content
    };
    assert_eq!(content("all\nHello!\n>>> 1 + 1"), "Hello!\n>>> 1 + 1");
    assert_eq!(content(">>>all\nHello!"), "Hello!");
    assert_eq!(content("Hello!\nf"), "Hello!\nf", "it has forgotten the recipient");
    assert_eq!(content("all"), "");
    assert_eq!(content("all\na>>>>>b>>>"), "a>>>>>b>>>");
    assert_eq!(
        read("all\nHello!", &ParserInput::default()).content,
        "Hello!",
        "without tools, too"
    );

    let arguments = serde_json::json!({"a": "}>>>all\n"});
    let one = ("f".to_owned(), arguments.clone());
    let called = read(&format!("f\n{arguments}"), &offered);
    assert_eq!((called.content.as_str(), called.calls), ("", vec![one.clone()]));
    let called =
        read(&format!("all\nI look.>>>f\n{arguments}\n>>>all_of\n{{}}>>>all\nSo."), &offered);
    assert_eq!(
        (called.content.as_str(), called.calls),
        ("I look.So.", vec![one, ("all_of".into(), serde_json::json!({}))])
    );
    for (text, error) in [
        ("f\n{\"a\": 1", "the call is incomplete"),
        ("f\n{x}", "failed to parse JSON"),
        ("f\nprint()", "invalid call syntax"),
    ] {
        let whole = read(text, &offered);
        assert!(whole.calls.is_empty() && whole.malformed[0].1.starts_with(error), "{whole:?}");
        assert_eq!(whole.malformed[0].0.clone() + &whole.content, text);
    }
    let format = crate::CallFormat::probe(&template, None, None, &["<|eot_id|>".to_owned()])
        .expect("it writes calls");
    let arguments = crate::ArgumentsFormat::Object { between: "\n".into(), after: String::new() };
    assert_eq!(format, crate::CallFormat { before: String::new(), arguments });
}

#[test]
fn in_an_unknown_format_json_behind_the_tag_is_a_call() {
    let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}\
                  %%call%% {\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\
                  {% endfor %}</{{ m.role }}>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    let template = Template::parse(TemplateFormat::Jinja, source).expect("it parses");
    let tools =
        vec![serde_json::json!({"type": "function", "function": {"name": "f", "parameters": {}}})];
    let input = ParserInput { tools: &tools, ..ParserInput::default() };
    let text = "I look. %%call%% {\"name\": \"f\", \"arguments\": {\"a\": 1}}";
    let whole =
        JoinedOutput::of(OutputParser::for_template(&template, None, &input), pieces(text, 2));
    assert_eq!((whole.content.as_str(), whole.calls.len()), ("I look. ", 1), "{whole:?}");
    let Template::Jinja(jinja) = &template else { unreachable!() };
    let found = JinjaTemplate::probe_results(jinja).call_format.get().cloned();
    assert_eq!(found, Some(super::super::DetectedCalls::Tag("%%call%%".into())));
}

/// `jinja-calls.jsonl`: reasoning, text and calls with difficult values, as templates write them.
#[test]
fn answers_with_difficult_values_are_read_back_in_all_chunkings() {
    let rows = rows_of("jinja-calls.jsonl");
    let tools = rows[0]["tools"].as_array().expect("the first row holds the tools");
    let mut wrong = Vec::new();
    let mut count = 0;
    for row in &rows[1..] {
        let (file, text) =
            (row["file"].as_str().expect("a file"), row["text"].as_str().expect("a text"));
        let Some(source) = source(file) else { return };
        let template = Template::parse(TemplateFormat::Jinja, &source).expect("it parses");
        let prompt = row["prompt"].as_str().expect("a prompt");
        let input = ParserInput { tools, prompt, ..ParserInput::default() };
        let parse = |chunks: Vec<&str>| {
            JoinedOutput::of(
                OutputParser::for_template(&template, template.think_tags(), &input),
                chunks,
            )
        };
        let whole = parse(vec![text]);
        assert_eq!(parse(pieces(text, 1)), whole, "{file}: {text}");
        for (at, _) in text.char_indices().skip(1) {
            assert_eq!(parse(vec![&text[..at], &text[at..]]), whole, "{file}: {text} cut at {at}");
        }
        let calls: Vec<_> = whole
            .calls
            .iter()
            .map(|(name, given)| serde_json::json!({"name": name, "arguments": given}))
            .collect();
        let said = |key: &str| row[key].as_str().expect("a text").trim().to_owned();
        let got = (whole.thinking.trim(), whole.content.trim(), Json::Array(calls));
        if got != (&*said("thinking"), &*said("content"), row["calls"].clone()) {
            wrong.push(format!("{file}: {text}\n   got {got:?}, malformed {:?}", whole.malformed));
        }
        count += 1;
    }
    assert!(count > 150, "{count}");
    assert!(wrong.is_empty(), "{} of {count} differ:\n{}", wrong.len(), wrong.join("\n"));
}

//! Calls that are streamed while their arguments arrive.

use serde_json::json;

use super::*;

fn tools() -> Vec<Json> {
    vec![json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}})]
}

/// Output of a text parsed in single characters: pieces of arguments are joined by `|`, a started
/// call is `f{…}`, a complete one ends with `!`.
fn streamed(name: &str, text: &str) -> String {
    let tools = tools();
    let input =
        ParserInput { tools: &tools, think: Some(&Think::Switch(false)), ..ParserInput::default() };
    let parser = match Template::parse(crate::TemplateFormat::Go, name) {
        Ok(template) if name.contains("{{") => OutputParser::for_template(&template, None, &input),
        _ => OutputParser::by_name(name, &input).expect("a name"),
    };
    let mut parser = parser.with_call_streaming();
    let mut parts = Vec::new();
    for piece in pieces(text, 1) {
        parts.extend(parser.push(piece));
    }
    parts.extend(parser.finish());
    let mut out = String::new();
    for part in parts {
        match part {
            OutputPart::CallStart(name) => out += &name,
            OutputPart::CallArguments(text) => out += &format!("|{text}"),
            OutputPart::Call(_) => out += "!",
            OutputPart::Malformed { error, .. } => out += &format!("<{error}>"),
            OutputPart::Thinking(text) | OutputPart::Content(text) => out += &text,
        }
    }
    out
}

#[test]
fn arguments_are_streamed_as_they_arrive() {
    let all = r#"|{|"|a|"|:| |"|}|"|}!"#;
    for (name, text) in [
        ("qwen3", r#"<tool_call>{"name": "f", "arguments": {"a": "}"}}</tool_call>"#),
        ("qwen3", r#"<tool_call>[{"id": "x", "name": "f", "parameters": {"a": "}"}}]</tool_call>"#),
        ("ministral", r#"[TOOL_CALLS]f[ARGS]{"a": "}"}"#),
        (
            "deepseek3",
            r#"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": "}"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"#,
        ),
        ("harmony", r#"<|channel|>commentary to=functions.f<|message|>{"a": "}"}<|call|>"#),
        (
            "{{ if .ToolCalls }}<call>{{ end }}",
            r#"<call>{"name": "f", "parameters": {"a": "}"}}</call>"#,
        ),
        ("{{ if .ToolCalls }}{ {{ end }}", r#"{"name": "f", "parameters": {"a": "}"}}"#),
    ] {
        assert_eq!(streamed(name, text), format!("f{all}"), "{name}");
    }
}

#[test]
fn uncertain_calls_are_sent_when_they_are_complete() {
    for (name, text) in [
        // Arguments before the name, arguments as text, another format, and a wrapped call.
        ("qwen3", r#"<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>"#),
        ("qwen3", r#"<tool_call>{"name": "f", "arguments": "{}"}</tool_call>"#),
        ("qwen3", r#"<tool_call>{"function": {"name": "f", "arguments": {"a": 1}}}</tool_call>"#),
        ("qwen3", r#"<tool_call>{"f": {"a": 1}}</tool_call>"#),
        ("qwen3-coder", "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>"),
        // An undeclared tool.
        ("qwen3", r#"<tool_call>{"name": "g", "arguments": {"a": 1}}</tool_call>"#),
    ] {
        assert_eq!(streamed(name, text), "!", "{text}");
    }
}

#[test]
fn a_streamed_call_that_ends_early_or_changes_is_malformed() {
    for (text, want) in [
        (r#"<tool_call>{"name": "f", "arguments": {"a"#, "f|{|\"|a<the call is incomplete>"),
        (r#"<tool_call>{"name": "f", "arguments": {a}}</tool_call>"#, "f|{<failed to parse JSON: "),
        (
            r#"<tool_call>{"name": "f", "arguments": {}, "name": "g"}</tool_call> so"#,
            "f|{|}<the call has two names or two sets of arguments>so",
        ),
        (r#"<tool_call>{"name": "f", "arguments": {</tool_call>}}"#, "f|{<failed to parse JSON: "),
    ] {
        let streamed = streamed("qwen3", text);
        assert!(streamed.starts_with(want), "{streamed} instead of {want}");
    }
}

#[test]
fn a_streamed_object_that_is_not_a_call_ends_before_the_next_call() {
    let text = r#"<call>{"name": "f", "arguments": {"a": 1},} {"name": "f", "arguments": {"a": 2}}</call>"#;
    let streamed = streamed("{{ if .ToolCalls }}<call>{{ end }}", text);
    assert!(
        streamed.starts_with("f|{|\"|a|\"|:| |1|}<invalid call syntax: expected")
            && streamed.contains("!"),
        "{streamed}"
    );
}

#[test]
fn a_streamed_call_is_never_repeated_as_text() {
    let tools = tools();
    for (name, call) in [
        ("qwen3", r#"<tool_call>{"name": "f", "arguments": {"a":}}</tool_call>"#),
        (
            "{{ if .ToolCalls }}<call>{{ end }}",
            r#"<call>{"name": "f", "arguments": {"a":}}</call>"#,
        ),
        (
            "{{ if .ToolCalls }}<call>{{ end }}",
            r#"<call>{"name": "f", "arguments": {"a": 'b'}}</call> so"#,
        ),
        ("{{ if .ToolCalls }}{ {{ end }}", r#"{"name": "f", "arguments": {"a": 1e999}}"#),
    ] {
        let input = ParserInput { tools: &tools, ..ParserInput::default() };
        let parser = match Template::parse(crate::TemplateFormat::Go, name) {
            Ok(template) if name.contains("{{") => {
                OutputParser::for_template(&template, None, &input)
            }
            _ => OutputParser::by_name(name, &input).expect("a name"),
        };
        let (mut parser, mut is_open) = (parser.with_call_streaming(), false);
        let mut parts: Vec<_> =
            pieces(call, 1).into_iter().flat_map(|piece| parser.push(piece)).collect();
        parts.extend(parser.finish());
        for part in parts {
            match part {
                OutputPart::CallStart(_) => is_open = true,
                // Clients that received the start of a call ignore the text of the malformed call.
                OutputPart::Malformed { .. } if is_open => is_open = false,
                OutputPart::Malformed { text, .. }
                | OutputPart::Content(text)
                | OutputPart::Thinking(text) => {
                    assert!(!text.contains("arguments"), "{name}: {text}");
                }
                OutputPart::CallArguments(_) => {}
                OutputPart::Call(call) => panic!("{name}: {call:?}"),
            }
        }
    }
}

#[test]
fn consecutive_calls_are_streamed_one_after_the_other() {
    let call = r#"<tool_call>{"name": "f", "arguments": {}}</tool_call>"#;
    assert_eq!(streamed("qwen3", &format!("{call}\n{call} so")), "f|{|}!f|{|}!so");
    let call = r#"{"name": "f", "arguments": {}}"#;
    let list = format!("<tool_call>[{call}, {call}]</tool_call>");
    assert_eq!(streamed("qwen3", &list), "f|{|}!f|{|}!");
    assert_eq!(
        streamed("{{ if .ToolCalls }}[{{ end }}", &format!("[{call}, {call}]")),
        "f|{|}!f|{|}!"
    );
    let spaced = format!("<tool_call> [ {call} ,\n {call} , {call}]</tool_call> so");
    assert_eq!(streamed("qwen3", &spaced), "f|{|}!f|{|}!f|{|}!so");
}

#[test]
fn complete_calls_of_a_list_are_kept_if_the_rest_is_invalid() {
    let call = r#"{"name": "f", "arguments": {}}"#;
    for (rest, want) in [
        // A call that is not streamed; then later calls of the list are not streamed either.
        (format!(r#"{call}, {{"arguments": {{}}, "name": "f"}}, {call}]"#), "f|{|}!!!so"),
        (
            format!("{call}, 5] "),
            "f|{|}!<invalid call syntax: expected {\"name\": \"f\", \"arguments\": {…}}> so",
        ),
        (
            format!("{call}, {{\"name\": \"f\", \"arguments\": {{}}, \"name\": \"g\"}}]"),
            "f|{|}!f|{|}<the call has two names or two sets of arguments>so",
        ),
        (
            format!(r#"{{"name": "f", "arguments": {{}}, "name": "g"}}, {call}]"#),
            "f|{|}<the call has two names or two sets of arguments>so",
        ),
    ] {
        assert_eq!(
            streamed("qwen3", &format!("<tool_call>[{rest}</tool_call> so")),
            want,
            "{rest}"
        );
    }
}

#[test]
fn a_truncated_call_is_text_even_if_its_closing_tag_is_optional() {
    let text = "<tool_call>f<arg_key>a</arg_key><arg_value>rm -rf /tmp</arg_value></tool_call>";
    for name in ["glm-4.7", "glm-ocr", "laguna", "poolside-v1"] {
        for cut in 1..=text.len() {
            let tools = tools();
            let input = ParserInput {
                tools: &tools,
                think: Some(&Think::Switch(false)),
                ..ParserInput::default()
            };
            let parser = || OutputParser::by_name(name, &input).expect("a name");
            let is_call =
                |parts: &[OutputPart]| parts.iter().any(|part| matches!(part, OutputPart::Call(_)));
            let mut cut_off = parser();
            let mut parts = cut_off.push(&text[..cut]);
            parts.extend(cut_off.finish_truncated());
            assert_eq!(is_call(&parts), cut == text.len(), "{name} at {cut}: {parts:?}");
            let malformed = parts.iter().any(|part| matches!(part, OutputPart::Malformed { .. }));
            let has_begun = ("<tool_call>".len()..text.len()).contains(&cut);
            assert!(malformed || !has_begun, "{name} at {cut}: {parts:?}");
        }
        // The result differs if the model itself ended the output.
        let tools = tools();
        let input = ParserInput {
            tools: &tools,
            think: Some(&Think::Switch(false)),
            ..ParserInput::default()
        };
        let mut ended = OutputParser::by_name(name, &input).expect("a name");
        let mut parts = ended.push(text.strip_suffix("</tool_call>").unwrap());
        parts.extend(ended.finish());
        assert!(parts.iter().any(|part| matches!(part, OutputPart::Call(_))), "{name}: {parts:?}");
    }
}

#[test]
fn a_call_truncated_behind_its_name_is_a_started_call() {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}});
    let tools = [tool("get"), tool("get_weather")];
    let go = "{{ if .ToolCalls }}<tool_call>{{ end }}";
    let tagged = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
    let twice = format!("{tagged}\n{tagged}");
    let xml = "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>";
    let glm = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>";
    let harmony = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Rome\"}<|call|>";
    for (name, text) in [
        (go, tagged),
        (go, &twice),
        ("qwen3", tagged),
        ("qwen3", &twice),
        ("qwen3-coder", xml),
        ("glm-4.7", glm),
        ("harmony", harmony),
        ("ministral", "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Rome\"}"),
    ] {
        let input = ParserInput {
            tools: &tools,
            think: Some(&Think::Switch(false)),
            ..ParserInput::default()
        };
        let parser = || {
            let parser = match Template::parse(crate::TemplateFormat::Go, name) {
                Ok(template) if name.contains("{{") => {
                    OutputParser::for_template(&template, None, &input)
                }
                _ => OutputParser::by_name(name, &input).expect("a name"),
            };
            parser.with_call_streaming()
        };
        let from = text.rfind("get_weather").unwrap() + "get_weather".len() + 1;
        let to = text.rfind('R').unwrap() + 3;
        for at in from..to {
            let mut parser = parser();
            let mut parts = parser.push(&text[..at]);
            parts.extend(parser.finish_truncated());
            let begun = parts
                .iter()
                .filter(|part| **part == OutputPart::CallStart("get_weather".into()))
                .count();
            // The text of a started call is not repeated.
            let is_text = |part: &OutputPart| matches!(part, OutputPart::Content(text) | OutputPart::Thinking(text) if !text.is_empty());
            assert_eq!(
                begun,
                text.matches("get_weather").count(),
                "{name}: {:?}: {parts:?}",
                &text[..at]
            );
            assert!(!parts.iter().any(is_text), "{name}: {:?}: {parts:?}", &text[..at]);
        }
    }
}

#[test]
fn a_second_call_truncated_before_its_name_is_dropped() {
    let tools = tools();
    let input = ParserInput { tools: &tools, ..ParserInput::default() };
    let template =
        Template::parse(crate::TemplateFormat::Go, "{{ if .ToolCalls }}<call>{{ end }}").unwrap();
    let call = "<call>{\"name\": \"f\", \"arguments\": {}}</call>";
    let second = format!("{call}\n{call}");
    for at in call.len()..second.rfind("f\"").unwrap() + 1 {
        let mut parser = OutputParser::for_template(&template, None, &input).with_call_streaming();
        let mut parts = parser.push(&second[..at]);
        parts.extend(parser.finish_truncated());
        let is_text = |part: &OutputPart| matches!(part, OutputPart::Content(text) | OutputPart::Malformed { text, .. } if !text.trim().is_empty());
        assert!(!parts.iter().any(is_text), "{:?}: {parts:?}", &second[..at]);
    }
}

#[test]
fn a_name_between_tags_is_a_call_without_arguments() {
    let go = "{{ if .ToolCalls }}<call>{{ end }}";
    for text in [
        "<call>{\"name\": \"f\"}</call>",
        "<call>\n{\"name\": \"f\", \"arguments\": null}\n</call>\n",
    ] {
        assert_eq!(streamed(go, text), "!");
        assert_eq!(streamed(go, &text.repeat(2)), "!!");
        assert_eq!(
            streamed(go, &format!("{text}<call>{{\"name\": \"f\", \"arguments\": {{}}}}</call>")),
            "!f|{|}!"
        );
    }
    assert!(
        streamed(go, "<call>{\"name\": \"g\"}</call>")
            .starts_with("<invalid call syntax: expected")
    );
}

//! Body of the template fuzz target: the first byte selects the language, the rest is a template.

use puna_prompt::{
    Chat, FunctionCall, Message, OutputParser, OutputPart, ParserInput, Template, TemplateFormat,
    Think, ToolCall, fit, render, render_insert,
};

/// Parses `data` as a template, renders a conversation with it, truncates the conversation, and
/// parses the rendered output.
pub fn run(data: &[u8]) {
    let Some((kind, source)) = data.split_first() else { return };
    let kind = if kind % 2 == 0 { TemplateFormat::Go } else { TemplateFormat::Jinja };
    let Ok(source) = std::str::from_utf8(source) else { return };
    let template = match Template::parse(kind, source) {
        Ok(template) => template,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let arguments = serde_json::json!({"a": [1, {"b": null}], "c": "é"})
        .as_object()
        .cloned()
        .unwrap_or_default();
    let call = ToolCall {
        id: "c1".into(),
        function: FunctionCall { index: 0, name: "f".into(), arguments },
    };
    let messages = [
        Message::new("system", "S"),
        Message::new("user", "Hi é"),
        Message {
            tool_calls: vec![call],
            thinking: Some("T".into()),
            ..Message::new("assistant", "")
        },
        Message { tool_name: Some("f".into()), ..Message::new("tool", "r") },
        Message::new("user", "Bye"),
    ];
    let tools = [
        serde_json::json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}),
    ];
    let chat = Chat {
        tools: &tools,
        think: Some(Think::Switch(true)),
        bos: "<s>",
        ..Chat::new(&messages)
    };
    let _ =
        (template.capabilities(), template.tool_tag(), render_insert(&template, "a", "b", None));
    if let Ok(prompt) = render(&template, &chat) {
        let input = ParserInput { tools: &tools, prompt: &prompt, ..ParserInput::default() };
        let mut parser = OutputParser::for_template(&template, template.think_tags(), &input);
        let mut parts = parser.push(&prompt);
        parts.extend(parser.finish());
        let length = |part: &OutputPart| match part {
            OutputPart::Thinking(text) | OutputPart::Content(text) => text.len(),
            _ => 0,
        };
        assert!(parts.iter().map(length).sum::<usize>() <= prompt.len());
        let limit = prompt.len() / 2;
        let fitted = fit(&template, &chat, limit, &mut |text| Ok(text.len()));
        assert!(fitted.is_ok_and(|f| f.too_long == (f.tokens > limit)));
    }
}

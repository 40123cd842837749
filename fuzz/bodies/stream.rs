//! Body of the output parser fuzz target. The first byte selects the parser; the second sets the
//! size of the pieces and whether the model reasons; the rest is the model's text.

use puna_prompt::{
    OutputParser, OutputPart, ParserInput, Template, TemplateFormat, Think, ThinkTags,
};

/// Parses `data` as a whole and in pieces. Both must give the same parts, and only text of the
/// input.
pub fn run(data: &[u8]) {
    let [choice, how, text @ ..] = data else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let parameters = serde_json::json!({"type": "object", "required": ["a"], "properties": {
        "a": {"type": "string"}, "b": {"type": ["integer", "null"]}, "c": {"anyOf": [{"type": "array"}, {"type": "object"}]},
    }});
    let tools = [
        serde_json::json!({"type": "function", "function": {"name": "f", "parameters": parameters}}),
    ];
    let think = Think::Switch(how % 2 == 0);
    let input = ParserInput { tools: &tools, think: Some(&think), ..ParserInput::default() };
    let size = 1 + usize::from(how / 2 % 16);
    let whole = parts(parser(*choice, &input), [text]);
    let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).step_by(size).collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    let pieces = starts.iter().zip(ends).map(|(from, to)| &text[*from..to]);
    assert_eq!(parts(parser(*choice, &input), pieces), whole);
    let length = |part: &OutputPart| match part {
        OutputPart::Thinking(text) | OutputPart::Content(text) => text.len(),
        _ => 0,
    };
    assert!(whole.iter().map(length).sum::<usize>() <= text.len());
}

/// A named parser, or the parser of a Go template.
fn parser(choice: u8, input: &ParserInput<'_>) -> OutputParser {
    let names: Vec<&str> = OutputParser::names().collect();
    if let Some(parser) =
        names.get(usize::from(choice)).and_then(|name| OutputParser::by_name(name, input))
    {
        return parser;
    }
    let source = [
        "{{ if .ToolCalls }}<tool_call>{{ end }}",
        "{{ if .ToolCalls }}[{{ end }}",
        "{{ .Prompt }}",
    ];
    let template = Template::parse(TemplateFormat::Go, source[usize::from(choice) % source.len()])
        .expect("it parses");
    let tags = ThinkTags { open: "<think>".into(), close: "</think>".into() };
    OutputParser::for_template(&template, Some(tags), input)
}

/// Parts of the output, with adjacent texts of the same kind joined.
fn parts<'t>(
    mut parser: OutputParser,
    pieces: impl IntoIterator<Item = &'t str>,
) -> Vec<OutputPart> {
    let mut all = Vec::new();
    let mut add = |parts: Vec<OutputPart>| {
        for part in parts {
            match (all.last_mut(), part) {
                (Some(OutputPart::Thinking(last)), OutputPart::Thinking(text)) => {
                    last.push_str(&text)
                }
                (Some(OutputPart::Content(last)), OutputPart::Content(text)) => {
                    last.push_str(&text)
                }
                (_, part) => all.push(part),
            }
        }
    };
    for piece in pieces {
        add(parser.push(piece));
    }
    add(parser.finish());
    all
}

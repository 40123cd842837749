//! Hostile texts for all parsers.

use std::time::{Duration, Instant};

use super::*;

/// Tags and other pieces of all families.
pub(super) const PIECES: [&str; 62] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<function=f>",
    "<parameter=a>",
    "</parameter>",
    "</function>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<user>",
    "</user>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[THINK]",
    "[/THINK]",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>",
    "<function_calls>",
    "</function_calls>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<start_function_call>",
    "<end_function_call>",
    "<escape>",
    "<|channel>thought",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "call:f{",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "analysis",
    " to=f",
    "assistant",
    "<|eom|>",
    "<|eot|>",
    "<atem:function_calls>",
    "</atem:function_calls>",
    "<|END_THINKING|>",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    "<|START_TEXT|>",
    "<|END_TEXT|>",
    "f",
    "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
    "{",
    "}",
    "f(a='x')",
    " \n",
    "é",
    "\\\"",
];

fn tools() -> Vec<Json> {
    let parameters = serde_json::json!({"type": "object", "properties": {"a": {"type": "string"}}});
    vec![
        serde_json::json!({"type": "function", "function": {"name": "f", "parameters": parameters}}),
    ]
}

/// All parsers, with and without reasoning.
fn every_parser(tools: &[Json]) -> Vec<(String, OutputParser)> {
    let mut all = Vec::new();
    for think in [true, false] {
        let think = Think::Switch(think);
        let input = ParserInput { tools, think: Some(&think), ..ParserInput::default() };
        for name in OutputParser::names() {
            all.push((
                format!("{name}, {think:?}"),
                OutputParser::by_name(name, &input).expect("a name"),
            ));
        }
        for source in ["{{ if .ToolCalls }}<tool_call>{{ end }}", "{{ if .ToolCalls }}{ {{ end }}"]
        {
            let template = Template::parse(crate::TemplateFormat::Go, source).expect("a template");
            let tags = ThinkTags { open: "<think>".into(), close: "</think>".into() };
            all.push((source.into(), OutputParser::for_template(&template, Some(tags), &input)));
        }
    }
    all
}

/// A reproducible random sequence.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

#[test]
fn random_texts_parse_the_same_in_all_chunkings_without_invented_text() {
    let tools = tools();
    let mut random = Random(7);
    for round in 0..150 {
        let text: String =
            (0..1 + random.below(14)).map(|_| PIECES[random.below(PIECES.len())]).collect();
        let size = 1 + random.below(9);
        for ((name, whole), (_, cut)) in every_parser(&tools).into_iter().zip(every_parser(&tools))
        {
            let whole = JoinedOutput::of(whole, [text.as_str()]);
            let cut = JoinedOutput::of(cut, pieces(&text, size));
            assert_eq!(cut, whole, "round {round}, {name} in pieces of {size}: {text}");
            let written = whole.content.len() + whole.thinking.len();
            assert!(written <= text.len(), "round {round}, {name}: {text}");
        }
    }
}

#[test]
fn time_and_memory_are_linear_in_the_text() {
    const LENGTH: usize = 256 << 10;
    let tools = tools();
    let starts = [
        "",
        " ",
        "<",
        "<tool_call>",
        "</think>x",
        "{",
        "{\"",
        "<user>",
        "<|start|>",
        "<|tool_call_start|>[f(a='",
        "</think><tool_call><function=f>",
        "[TOOL_CALLS]f[ARGS]{",
        "<|message|>",
        " to=f<|message|>",
        "<｜tool▁calls▁begin｜>",
    ];
    let fillers =
        [" ", "<", "x", "{", "<parameter=a>", "<tool_call>", "<|tool_call_end|>", "<think>", "f "];
    for (at, start) in starts.iter().enumerate() {
        let filler = fillers[at % fillers.len()];
        for filler in [filler, fillers[(at + 4) % fillers.len()]] {
            let text = start.to_string() + &filler.repeat(LENGTH / filler.len());
            for (name, mut parser) in every_parser(&tools).into_iter().step_by(2) {
                let started = Instant::now();
                let mut out = 0;
                for piece in pieces(&text, 16) {
                    out += parser.push(piece).len();
                }
                out += parser.finish().len();
                let took = started.elapsed();
                assert!(
                    took < Duration::from_secs(4),
                    "{name} took {took:?} for {start:?} and {filler:?}"
                );
                assert!(out <= text.len());
            }
        }
    }
}

#[test]
fn a_megabyte_in_single_characters_is_parsed_fast() {
    let text = "a < b ".repeat((1 << 20) / 6);
    let tools = tools();
    for name in ["qwen3.5", "laguna", "harmony", "gemma4"] {
        let input = ParserInput { tools: &tools, ..ParserInput::default() };
        let mut parser = OutputParser::by_name(name, &input).expect("a name");
        let started = Instant::now();
        let mut whole = JoinedOutput::default();
        for piece in pieces(&text, 1) {
            whole.add(parser.push(piece));
        }
        assert!(started.elapsed() < Duration::from_secs(10), "{name} took {:?}", started.elapsed());
    }
}

#[test]
fn the_answer_continues_behind_a_call_of_an_unknown_tool() {
    let tools = tools();
    let input = ParserInput { tools: &tools, ..ParserInput::default() };
    let source = "{{ if .ToolCalls }}<tool_call>{{ end }}";
    let template = Template::parse(crate::TemplateFormat::Go, source).expect("a template");
    let no_tool = "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>";
    let text = format!(
        "{no_tool}{no_tool} Well. <tool_call>{{\"name\": \"f\", \"arguments\": {{}}}}</tool_call>"
    );
    for size in [1, 2, 1000] {
        let whole = JoinedOutput::of(
            OutputParser::for_template(&template, None, &input),
            pieces(&text, size),
        );
        let lost: Vec<&str> = whole.malformed.iter().map(|(text, ..)| text.as_str()).collect();
        assert_eq!(
            (lost, whole.content.as_str(), whole.calls.len()),
            (vec![no_tool; 2], " Well. ", 1)
        );
    }
}

#[test]
fn text_of_unreadable_calls_is_not_lost() {
    let tools = tools();
    let input = ParserInput { tools: &tools, ..ParserInput::default() };
    for (name, text) in [
        ("qwen3", "<tool_call>{broken</tool_call>"),
        ("qwen3", "<tool_call>{\"name\": \"f\", \"argu"),
        ("qwen3", "so <tool_ca"),
        ("qwen3-coder", "<tool_call>nothing</tool_call>"),
        ("lfm2", "<|tool_call_start|>oops<|tool_call_end|>"),
        (
            "deepseek3",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{oops<｜tool▁call▁end｜>",
        ),
        ("gemma4", "<|tool_call>f{}<tool_call|>"),
        ("harmony", "<|channel|>commentary to=functions.f<|message|>{\"a\":"),
    ] {
        let parser = OutputParser::by_name(name, &input).expect("a name");
        let whole = JoinedOutput::of(parser, [text]);
        let [(lost, error, ..)] = &whole.malformed[..] else { panic!("{name}: {whole:?}") };
        assert!(!error.is_empty() && whole.calls.is_empty());
        let body = lost.rsplit(['>', 'e']).next().unwrap_or_default();
        assert!(text.contains(body) && lost.len() > 4, "{name}: {lost:?} of {text:?}");
    }
}

//! Detects the tool call format of a chat template, for models that name no parser.
//!
//! A probe call is rendered with the template. Its format is the first one with a parser that reads
//! this call back. Templates that do not write calls often mention the tags in their instructions.

use std::sync::OnceLock;

use serde_json::{Map, Value as Json};

use super::body::{CallBody, NameJson, Pairs, TagText, Xml};
use super::detected_calls::DetectedCalls;
use super::families::{self, deepseek, gemma};
use super::format_parser::{FormatParser, ParserInput};
use super::output_parser::OutputParser;
use super::output_part::OutputPart;
use super::probe_call::{
    PROBE_TOOL, PROBE_USER, after_user, answer_of, probe_arguments, probe_call, probe_tools,
};
use super::tagged::{
    CallEnd, CallsFormat, ReasoningFormat, ReasoningStart, TaggedFormat, TaggedParser,
};
use super::tools::Tools;
use crate::message::Message;
use crate::{Template, ThinkTags};

/// A tool call format.
enum KnownFormat {
    Calls(fn() -> CallsFormat),
    /// A parser by name, which also parses reasoning and answers.
    Family(&'static str),
}

/// All known formats. Of formats with the same tags, the stricter one comes first.
const KNOWN_FORMATS: &[(&str, KnownFormat)] = &[
    ("harmony", KnownFormat::Family("harmony")),
    ("glimmer", KnownFormat::Family("glimmer")),
    (
        "function in tool_call",
        KnownFormat::Calls(|| tag("tool_call", CallBody::Xml(Xml::FUNCTION))),
    ),
    (
        "pairs in tool_call",
        KnownFormat::Calls(|| {
            tag("tool_call", CallBody::Pairs(Pairs { bare: true, ..Pairs::default() }))
        }),
    ),
    ("json in tool_call", KnownFormat::Calls(|| tag("tool_call", CallBody::Json))),
    ("json in tool_calls", KnownFormat::Calls(|| tag("tool_calls", CallBody::Json))),
    ("json in TOOLCALL", KnownFormat::Calls(|| tag("TOOLCALL", CallBody::Json))),
    (
        "function in seed:tool_call",
        KnownFormat::Calls(|| tag("seed:tool_call", bare(Xml { python: true, ..Xml::FUNCTION }))),
    ),
    (
        "invoke in minimax:tool_call",
        KnownFormat::Calls(|| tag("minimax:tool_call", bare(Xml::INVOKE))),
    ),
    ("elements", KnownFormat::Calls(elements)),
    ("dsml function_calls", KnownFormat::Calls(|| dsml("function_calls"))),
    ("dsml tool_calls", KnownFormat::Calls(|| dsml("tool_calls"))),
    ("python in function_calls", KnownFormat::Calls(|| tag("function_calls", CallBody::Python))),
    ("python in tool_call_start", KnownFormat::Calls(lfm2)),
    (
        "tools_prefix",
        KnownFormat::Calls(|| {
            CallsFormat::between("<|tools_prefix|>", "<|tools_suffix|>", CallBody::Json)
        }),
    ),
    (
        "action",
        KnownFormat::Calls(|| {
            CallsFormat::between("<|START_ACTION|>", "<|END_ACTION|>", CallBody::Json)
        }),
    ),
    (
        "action in code",
        KnownFormat::Calls(|| CallsFormat::between("Action:\n```json", "```", CallBody::Json)),
    ),
    ("name and arguments", KnownFormat::Calls(mistral)),
    (
        "list",
        KnownFormat::Calls(|| {
            CallsFormat::new("[TOOL_CALLS]", CallEnd::Json(None), CallBody::Json)
        }),
    ),
    (
        "function_call",
        KnownFormat::Calls(|| {
            CallsFormat::new("<|function_call|>", CallEnd::Json(None), CallBody::Json)
        }),
    ),
    (
        "function call",
        KnownFormat::Calls(|| {
            CallsFormat::new("function call<|role_sep|>", CallEnd::Json(None), CallBody::Json)
        }),
    ),
    ("function with json", KnownFormat::Calls(functionary)),
    ("function with params", KnownFormat::Calls(minicpm)),
    ("kimi", KnownFormat::Calls(kimi)),
    ("deepseek", KnownFormat::Calls(deepseek_plain)),
    ("deepseek in code", KnownFormat::Calls(|| deepseek::calls(deepseek::in_code_block()))),
    ("solar", KnownFormat::Calls(solar)),
    ("hunyuan", KnownFormat::Calls(hunyuan)),
    ("kimi-k3", KnownFormat::Calls(kimi_k3)),
    (
        "granite",
        KnownFormat::Calls(|| {
            CallsFormat::new("<|tool_call|>", CallEnd::Json(None), CallBody::Json)
        }),
    ),
    ("gemma4", KnownFormat::Calls(gemma::calls4)),
    ("functiongemma", KnownFormat::Calls(gemma::calls_function)),
];

fn tag(name: &str, body: CallBody) -> CallsFormat {
    CallsFormat::between(format!("<{name}>"), format!("</{name}>"), body)
}

fn bare(xml: Xml) -> CallBody {
    CallBody::Xml(Xml { bare: true, ..xml })
}

fn elements() -> CallsFormat {
    const TAG_PREFIX: &str = "]<]minimax[>[";
    let tags = (format!("{TAG_PREFIX}<tool_call>"), format!("{TAG_PREFIX}</tool_call>"));
    CallsFormat::between(tags.0, tags.1, CallBody::Elements(TAG_PREFIX.into()))
}

fn dsml(name: &str) -> CallsFormat {
    let xml = Xml {
        call: "<｜DSML｜invoke".into(),
        argument: "<｜DSML｜parameter".into(),
        end: "</｜DSML｜parameter>".into(),
        ..Xml::FUNCTION
    };
    CallsFormat::between(format!("<｜DSML｜{name}>"), format!("</｜DSML｜{name}>"), bare(xml))
}

fn lfm2() -> CallsFormat {
    CallsFormat {
        retry_after_close: true,
        ..CallsFormat::between("<|tool_call_start|>", "<|tool_call_end|>", CallBody::Python)
    }
}

fn mistral() -> CallsFormat {
    let format = NameJson {
        separator: "[ARGS]".into(),
        id: Some("[CALL_ID]".into()),
        ..NameJson::default()
    };
    CallsFormat::new(
        "[TOOL_CALLS]",
        CallEnd::Json(Some("[ARGS]".into())),
        CallBody::NameJson(format),
    )
}

fn functionary() -> CallsFormat {
    let format = NameJson { separator: ">".into(), ..NameJson::default() };
    CallsFormat::between("<function=", "</function>", CallBody::NameJson(format))
}

fn minicpm() -> CallsFormat {
    let xml =
        Xml { argument: "<param".into(), end: "</param>".into(), python: true, ..Xml::FUNCTION };
    CallsFormat {
        body_includes_open: true,
        ..CallsFormat::between("<function", "</function>", bare(xml))
    }
}

fn kimi() -> CallsFormat {
    let format = NameJson {
        separator: "<|tool_call_argument_begin|>".into(),
        numbered: true,
        ..NameJson::default()
    };
    let section = ("<|tool_calls_section_begin|>".into(), "<|tool_calls_section_end|>".into());
    let one = CallsFormat::between(
        "<|tool_call_begin|>",
        "<|tool_call_end|>",
        CallBody::NameJson(format),
    );
    CallsFormat { section: Some(section), ..one }
}

fn deepseek_plain() -> CallsFormat {
    deepseek::calls(NameJson { separator: "<｜tool▁sep｜>".into(), ..NameJson::default() })
}

fn solar() -> CallsFormat {
    let format = NameJson {
        before: Some("<|tool_call:name|>".into()),
        separator: "<|tool_call:args|>".into(),
        ..NameJson::default()
    };
    let one = CallsFormat::between(
        "<|tool_call:begin|>",
        "<|tool_call:end|>",
        CallBody::NameJson(format),
    );
    CallsFormat { section: Some(("<|tool_calls|>".into(), "<|calls|>".into())), ..one }
}

fn hunyuan() -> CallsFormat {
    let tag = |name: &str| TagText::from(format!("<{name}:opensource>"));
    let both = |name: &str| (tag(name), tag(&format!("/{name}")));
    let pairs = Pairs {
        key: both("arg_key"),
        value: both("arg_value"),
        separator: Some(tag("tool_sep")),
        strict: false,
        bare: true,
    };
    let (open, close) = both("tool_call");
    CallsFormat {
        section: Some(both("tool_calls")),
        ..CallsFormat::between(open, close, CallBody::Pairs(pairs))
    }
}

fn kimi_k3() -> CallsFormat {
    let xml = Xml {
        call: "<|open|>call".into(),
        argument: "<|open|>argument".into(),
        head_end: "<|sep|>".into(),
        end: "<|close|>argument<|sep|>".into(),
        ..Xml::FUNCTION
    };
    CallsFormat::between("<|open|>tools<|sep|>", "<|close|>tools<|sep|>", bare(xml))
}

/// Returns true if every message of an answer has a header, as with gpt-oss.
pub(super) fn has_headers(template: &Template) -> bool {
    let has = |marks: &[&str]| marks.iter().all(|mark| template.source().contains(mark));
    let named = matches!(template, Template::BuiltIn(renderer) if matches!(renderer.name(), "glimmer" | "harmony"));
    named
        || has(&["<|start|>", "<|message|>", "<|end|>"])
        || has(&["<|start|>", "<|message|>", "<|eom|>"])
}

/// The parser of a template's renderer, or the family that markers in its source identify. Their
/// output needs this parser even without tools.
pub(super) fn parser_by_markers(
    template: &Template,
    input: &ParserInput<'_>,
) -> Option<Box<dyn FormatParser>> {
    let source = template.source();
    if let Template::BuiltIn(renderer) = template {
        return families::by_name(parser_of_renderer(renderer.name()), input);
    }
    let has = |marks: &[&str]| marks.iter().all(|mark| source.contains(mark));
    if has(&["<|start|>", "<|channel|>", "<|message|>", "<|end|>"]) {
        return families::by_name("harmony", input);
    }
    if has(&["<|start|>", "<|message|>", "<|eom|>", "<|eot|>"]) {
        return families::by_name("glimmer", input);
    }
    if has(&[">>>${recipient}", ">>>all"]) {
        return Some(Box::new(families::Functionary::new(input)));
    }
    None
}

/// The parser that belongs to a renderer.
fn parser_of_renderer(renderer: &str) -> &str {
    match renderer {
        "deepseek3.1" => "deepseek3",
        "gemma4-small" | "gemma4-large" => "gemma4",
        "olmo3.1" => "olmo3",
        "olmo3-32b-think" => "olmo3-think",
        "qwen3.8" => "qwen3.5",
        same => same,
    }
}

/// Parser of the calls that a template writes, by the known format that parses its rendering of a
/// probe call. The error is the tag behind which calls are searched.
pub(super) fn parser_by_probe_call(
    template: &Template,
    tags: Option<&ThinkTags>,
    input: &ParserInput<'_>,
) -> Result<Box<dyn FormatParser>, String> {
    let cell = OnceLock::new();
    let cell = match template {
        Template::Jinja(jinja) => &jinja.probe_results().call_format,
        _ => &cell,
    };
    match cell.get_or_init(|| detect(template)) {
        DetectedCalls::Known(name) => build_parser(name, tags, input).ok_or_else(|| "{".to_owned()),
        DetectedCalls::Tag(tag) => Err(tag.clone()),
    }
}

/// Builds the parser of a known format with think tags.
fn build_parser(
    name: &str,
    tags: Option<&ThinkTags>,
    input: &ParserInput<'_>,
) -> Option<Box<dyn FormatParser>> {
    match &KNOWN_FORMATS.iter().find(|(known, _)| *known == name)?.1 {
        KnownFormat::Family(name) => families::by_name(name, input),
        KnownFormat::Calls(calls) => {
            let start = |tags: &ThinkTags| match input.prompt.trim().ends_with(&tags.open) {
                true => ReasoningStart::InReasoning,
                false => ReasoningStart::MayOpen,
            };
            let think = tags.map(|tags| ReasoningFormat {
                call_ends_reasoning: true,
                allows_missing_open_tag: true,
                ..ReasoningFormat::tags(tags.open.clone(), tags.close.clone(), start(tags))
            });
            let removed_tags = match name {
                "action" => &ANSWER_TAGS[..],
                "function call" => &["<|message_sep|>"],
                "kimi-k3" => &ANSWER_TAGS_OF_KIMI_K3,
                _ => &[],
            };
            let calls = Some(CallsFormat { close_tag_in_values: true, ..calls() });
            let rules =
                TaggedFormat { think, calls, removed_tags, keep_tail: true, ..TaggedFormat::PLAIN };
            Some(Box::new(TaggedParser::new(rules, Tools::new(input.tools))))
        }
    }
}

/// Tags around the answers of Command models.
const ANSWER_TAGS: [&str; 4] =
    ["<|START_TEXT|>", "<|END_TEXT|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"];

/// Tags around and behind the answers of Kimi K3.
const ANSWER_TAGS_OF_KIMI_K3: [&str; 4] = [
    "<|open|>response<|sep|>",
    "<|close|>response<|sep|>",
    "<|close|>message<|sep|>",
    "<|end_of_msg|>",
];

/// Returns true if the answers of a template stand between tags, with or without tools.
pub(super) fn has_answer_tags(template: &Template) -> bool {
    let has = |mark: &str| template.source().contains(mark);
    has("<|START_RESPONSE|>") || (has("<|open|>") && has("'response'"))
}

/// Detects the format of a template by probing.
fn detect(template: &Template) -> DetectedCalls {
    let tools = probe_tools();
    let written = probe_call(template, &tools);
    if let Some(written) = &written {
        // The model's answer starts behind the header of the message.
        let from =
            written.find("<|start|>assistant").map_or(0, |at| at + "<|start|>assistant".len());
        let input = ParserInput { tools: &tools, ..ParserInput::default() };
        let parses_probe_call = |name: &str| {
            build_parser(name, None, &input).is_some_and(|g| parses_probe_call(g, &written[from..]))
        };
        if let Some((name, _)) = KNOWN_FORMATS.iter().find(|(name, _)| parses_probe_call(name)) {
            return DetectedCalls::Known(name);
        }
    }
    match written.and_then(|written| unknown_tag(template, &written, &tools)) {
        Some(tag) => DetectedCalls::Tag(tag),
        None => detect_by_mentioned_tags(template)
            .map_or_else(|| DetectedCalls::Tag("{".to_owned()), DetectedCalls::Known),
    }
}

/// Returns true if a parser finds the probe call and no other call.
pub(super) fn parses_probe_call(grammar: Box<dyn FormatParser>, text: &str) -> bool {
    parses_call(grammar, text, &probe_arguments())
}

/// Like [`parses_probe_call`], for a call with these arguments.
pub(super) fn parses_call(
    grammar: Box<dyn FormatParser>,
    text: &str,
    arguments: &Map<String, Json>,
) -> bool {
    let mut parser = OutputParser::new(grammar, &[]);
    let mut parts = parser.push(text);
    parts.extend(parser.finish());
    let mut calls = parts.iter().filter_map(|part| match part {
        OutputPart::Call(call) => Some(call),
        _ => None,
    });
    let matches =
        calls.next().is_some_and(|call| call.name == PROBE_TOOL && call.arguments == *arguments);
    matches && calls.next().is_none()
}

/// Text between the header of an answer and a call with JSON arguments; a bracket if there is none.
fn unknown_tag(template: &Template, written: &str, tools: &[Json]) -> Option<String> {
    let header = after_user(template, &[Message::new("user", PROBE_USER)], tools)?;
    let call = answer_of(written, &header)?;
    let name = call.find(PROBE_TOOL)?;
    call[name..].find('{').or_else(|| call[..name].find('{'))?;
    let tag = call[..name].split(['{', '"']).next().unwrap_or_default().trim();
    let tag = tag.strip_suffix('[').map_or(tag, str::trim_end);
    Some(if tag.is_empty() { "{".to_owned() } else { tag.to_owned() })
}

/// Detects the format by tags that the template source mentions, if the template writes no calls.
fn detect_by_mentioned_tags(template: &Template) -> Option<&'static str> {
    let source = template.source();
    let has = |text: &str| source.contains(text);
    match () {
        () if has("<tool_call>") && has("<function=") => Some("function in tool_call"),
        () if has("<tool_call>") && has("<arg_key>") => Some("pairs in tool_call"),
        () if has("<tool_call>") => Some("json in tool_call"),
        () if has("<|tool_list_start|>") || has("<|tool_call_start|>") => {
            Some("python in tool_call_start")
        }
        () if has("<function_calls>") => Some("python in function_calls"),
        () if has("<|tool_call|>") => Some("granite"),
        () if has("[TOOL_CALLS]") => Some("list"),
        () => None,
    }
}

//! The forms of tool calls that chat templates write, for models that name no parser.
//!
//! Which one a template uses is found out by rendering a call with it: the form is the one that reads this call back.
//! Templates that show no calls often mention the tags in the instructions they write.

use std::sync::OnceLock;

use serde_json::{Map, Value as Json, json};

use super::body::{Body, NameJson, Pairs, Text, Xml};
use super::families::{self, deepseek, gemma};
use super::tagged::{Calls, End, Rules, Start, Tagged, Thought};
use super::tools::Tools;
use super::written::whole_tags;
use super::{Grammar, OutputParser, ParserInput, Part};
use crate::chat::{Chat, render};
use crate::message::{FunctionCall, Message, ToolCall};
use crate::{Template, ThinkTags};

/// One form of calls.
enum Shape {
    Calls(fn() -> Calls),
    /// A built-in parser, which knows thoughts and answers as well.
    Family(&'static str),
}

/// The table. Of forms with the same tags the stricter comes first.
const SHAPES: &[(&str, Shape)] = &[
    ("harmony", Shape::Family("harmony")),
    ("glimmer", Shape::Family("glimmer")),
    ("function in tool_call", Shape::Calls(|| tag("tool_call", Body::Xml(Xml::FUNCTION)))),
    (
        "pairs in tool_call",
        Shape::Calls(|| tag("tool_call", Body::Pairs(Pairs { bare: true, ..Pairs::default() }))),
    ),
    ("json in tool_call", Shape::Calls(|| tag("tool_call", Body::Json))),
    ("json in tool_calls", Shape::Calls(|| tag("tool_calls", Body::Json))),
    ("json in TOOLCALL", Shape::Calls(|| tag("TOOLCALL", Body::Json))),
    (
        "function in seed:tool_call",
        Shape::Calls(|| tag("seed:tool_call", bare(Xml { python: true, ..Xml::FUNCTION }))),
    ),
    ("invoke in minimax:tool_call", Shape::Calls(|| tag("minimax:tool_call", bare(Xml::INVOKE)))),
    ("elements", Shape::Calls(elements)),
    ("dsml function_calls", Shape::Calls(|| dsml("function_calls"))),
    ("dsml tool_calls", Shape::Calls(|| dsml("tool_calls"))),
    ("python in function_calls", Shape::Calls(|| tag("function_calls", Body::Python))),
    ("python in tool_call_start", Shape::Calls(lfm2)),
    (
        "tools_prefix",
        Shape::Calls(|| Calls::between("<|tools_prefix|>", "<|tools_suffix|>", Body::Json)),
    ),
    ("action", Shape::Calls(|| Calls::between("<|START_ACTION|>", "<|END_ACTION|>", Body::Json))),
    ("action in code", Shape::Calls(|| Calls::between("Action:\n```json", "```", Body::Json))),
    ("name and arguments", Shape::Calls(mistral)),
    ("list", Shape::Calls(|| Calls::new("[TOOL_CALLS]", End::Json(None), Body::Json))),
    (
        "function_call",
        Shape::Calls(|| Calls::new("<|function_call|>", End::Json(None), Body::Json)),
    ),
    (
        "function call",
        Shape::Calls(|| Calls::new("function call<|role_sep|>", End::Json(None), Body::Json)),
    ),
    ("function with json", Shape::Calls(functionary)),
    ("function with params", Shape::Calls(minicpm)),
    ("kimi", Shape::Calls(kimi)),
    ("deepseek", Shape::Calls(deepseek_plain)),
    ("deepseek in code", Shape::Calls(|| deepseek::calls(deepseek::in_code_block()))),
    ("solar", Shape::Calls(solar)),
    ("hunyuan", Shape::Calls(hunyuan)),
    ("kimi-k3", Shape::Calls(kimi_k3)),
    ("granite", Shape::Calls(|| Calls::new("<|tool_call|>", End::Json(None), Body::Json))),
    ("gemma4", Shape::Calls(gemma::calls4)),
    ("functiongemma", Shape::Calls(gemma::calls_function)),
];

fn tag(name: &str, body: Body) -> Calls {
    Calls::between(format!("<{name}>"), format!("</{name}>"), body)
}

fn bare(xml: Xml) -> Body {
    Body::Xml(Xml { bare: true, ..xml })
}

fn elements() -> Calls {
    const MARK: &str = "]<]minimax[>[";
    let tags = (format!("{MARK}<tool_call>"), format!("{MARK}</tool_call>"));
    Calls::between(tags.0, tags.1, Body::Elements(MARK.into()))
}

fn dsml(name: &str) -> Calls {
    let xml = Xml {
        call: "<｜DSML｜invoke".into(),
        argument: "<｜DSML｜parameter".into(),
        end: "</｜DSML｜parameter>".into(),
        ..Xml::FUNCTION
    };
    Calls::between(format!("<｜DSML｜{name}>"), format!("</｜DSML｜{name}>"), bare(xml))
}

fn lfm2() -> Calls {
    Calls {
        patient: true,
        ..Calls::between("<|tool_call_start|>", "<|tool_call_end|>", Body::Python)
    }
}

fn mistral() -> Calls {
    let form = NameJson {
        separator: "[ARGS]".into(),
        id: Some("[CALL_ID]".into()),
        ..NameJson::default()
    };
    Calls::new("[TOOL_CALLS]", End::Json(Some("[ARGS]".into())), Body::NameJson(form))
}

fn functionary() -> Calls {
    let form = NameJson { separator: ">".into(), ..NameJson::default() };
    Calls::between("<function=", "</function>", Body::NameJson(form))
}

fn minicpm() -> Calls {
    let xml =
        Xml { argument: "<param".into(), end: "</param>".into(), python: true, ..Xml::FUNCTION };
    Calls { whole: true, ..Calls::between("<function", "</function>", bare(xml)) }
}

fn kimi() -> Calls {
    let form = NameJson {
        separator: "<|tool_call_argument_begin|>".into(),
        numbered: true,
        ..NameJson::default()
    };
    let section = ("<|tool_calls_section_begin|>".into(), "<|tool_calls_section_end|>".into());
    let one = Calls::between("<|tool_call_begin|>", "<|tool_call_end|>", Body::NameJson(form));
    Calls { section: Some(section), ..one }
}

fn deepseek_plain() -> Calls {
    deepseek::calls(NameJson { separator: "<｜tool▁sep｜>".into(), ..NameJson::default() })
}

fn solar() -> Calls {
    let form = NameJson {
        before: Some("<|tool_call:name|>".into()),
        separator: "<|tool_call:args|>".into(),
        ..NameJson::default()
    };
    let one = Calls::between("<|tool_call:begin|>", "<|tool_call:end|>", Body::NameJson(form));
    Calls { section: Some(("<|tool_calls|>".into(), "<|calls|>".into())), ..one }
}

fn hunyuan() -> Calls {
    let tag = |name: &str| Text::from(format!("<{name}:opensource>"));
    let both = |name: &str| (tag(name), tag(&format!("/{name}")));
    let pairs = Pairs {
        key: both("arg_key"),
        value: both("arg_value"),
        separator: Some(tag("tool_sep")),
        strict: false,
        bare: true,
    };
    let (open, close) = both("tool_call");
    Calls { section: Some(both("tool_calls")), ..Calls::between(open, close, Body::Pairs(pairs)) }
}

fn kimi_k3() -> Calls {
    let xml = Xml {
        call: "<|open|>call".into(),
        argument: "<|open|>argument".into(),
        head_end: "<|sep|>".into(),
        end: "<|close|>argument<|sep|>".into(),
        ..Xml::FUNCTION
    };
    Calls::between("<|open|>tools<|sep|>", "<|close|>tools<|sep|>", bare(xml))
}

/// What probing a template showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// The form of this name in the table.
    Shape(&'static str),
    /// What stands before a call in an unknown form, or a bracket.
    Tag(String),
}

/// Whether every message of an answer has a header, as with gpt-oss.
pub(super) fn has_headers(template: &Template) -> bool {
    let has = |marks: &[&str]| marks.iter().all(|mark| template.source().contains(mark));
    let named = matches!(template, Template::BuiltIn(renderer) if matches!(renderer.name(), "glimmer" | "harmony"));
    named
        || has(&["<|start|>", "<|message|>", "<|end|>"])
        || has(&["<|start|>", "<|message|>", "<|eom|>"])
}

/// The built-in parser for a template whose answers are of no use without one, whether there are tools or not.
pub(super) fn family(template: &Template, input: &ParserInput<'_>) -> Option<Box<dyn Grammar>> {
    let source = template.source();
    if let Template::BuiltIn(renderer) = template {
        return families::by_name(parser_of(renderer.name()), input);
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

/// The parser that goes with a renderer.
fn parser_of(renderer: &str) -> &str {
    match renderer {
        "deepseek3.1" => "deepseek3",
        "gemma4-small" | "gemma4-large" => "gemma4",
        "olmo3.1" => "olmo3",
        "olmo3-32b-think" => "olmo3-think",
        "qwen3.8" => "qwen3.5",
        same => same,
    }
}

/// The parser for the calls that a Jinja template writes, or the tag to look for calls behind.
pub(super) fn grammar(
    template: &Template,
    tags: Option<&ThinkTags>,
    input: &ParserInput<'_>,
) -> Result<Box<dyn Grammar>, String> {
    let cell = OnceLock::new();
    let cell = match template {
        Template::Jinja(jinja) => &jinja.habits().calls,
        _ => &cell,
    };
    match cell.get_or_init(|| find(template)) {
        Found::Shape(name) => make(name, tags, input).ok_or_else(|| "{".to_owned()),
        Found::Tag(tag) => Err(tag.clone()),
    }
}

fn make(name: &str, tags: Option<&ThinkTags>, input: &ParserInput<'_>) -> Option<Box<dyn Grammar>> {
    match &SHAPES.iter().find(|(known, _)| *known == name)?.1 {
        Shape::Family(name) => families::by_name(name, input),
        Shape::Calls(calls) => {
            let start = |tags: &ThinkTags| match input.prompt.trim().ends_with(&tags.open) {
                true => Start::Thought,
                false => Start::MayOpen,
            };
            let think = tags.map(|tags| Thought {
                call_ends: true,
                lone_close: true,
                ..Thought::tags(tags.open.clone(), tags.close.clone(), start(tags))
            });
            let dropped = match name {
                "action" => &ANSWER_TAGS[..],
                "function call" => &["<|message_sep|>"],
                "kimi-k3" => &ANSWER_TAGS_OF_KIMI_K3,
                _ => &[],
            };
            let calls = Some(Calls { in_values: true, ..calls() });
            let rules = Rules { think, calls, dropped, keep_tail: true, ..Rules::PLAIN };
            Some(Box::new(Tagged::new(rules, Tools::new(input.tools))))
        }
    }
}

/// Around the answers of Command models.
const ANSWER_TAGS: [&str; 4] =
    ["<|START_TEXT|>", "<|END_TEXT|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"];

/// Around the answers of Kimi K3, and behind them.
const ANSWER_TAGS_OF_KIMI_K3: [&str; 4] = [
    "<|open|>response<|sep|>",
    "<|close|>response<|sep|>",
    "<|close|>message<|sep|>",
    "<|end_of_msg|>",
];

/// Whether a template's answers stand between tags, whether there are tools or not.
pub(super) fn has_answer_tags(template: &Template) -> bool {
    let has = |mark: &str| template.source().contains(mark);
    has("<|START_RESPONSE|>") || (has("<|open|>") && has("'response'"))
}

/// In the result of the call.
pub(super) const RESULT: &str = "third";
pub(super) const TOOL: &str = "puna_probe_tool";
const USER: &str = "puna-probe-user";

fn find(template: &Template) -> Found {
    let tools = tools();
    let written = written_call(template, &tools);
    if let Some(written) = &written {
        // Behind a message's header, where the answer of a model begins.
        let from =
            written.find("<|start|>assistant").map_or(0, |at| at + "<|start|>assistant".len());
        let input = ParserInput { tools: &tools, ..ParserInput::default() };
        let reads =
            |name: &str| make(name, None, &input).is_some_and(|g| reads(g, &written[from..]));
        if let Some((name, _)) = SHAPES.iter().find(|(name, _)| reads(name)) {
            return Found::Shape(name);
        }
    }
    match written.and_then(|written| unknown_tag(template, &written, &tools)) {
        Some(tag) => Found::Tag(tag),
        None => mentioned(template).map_or_else(|| Found::Tag("{".to_owned()), Found::Shape),
    }
}

pub(super) fn tools() -> [Json; 1] {
    [json!({"type": "function", "function": {
        "name": TOOL, "description": "", "parameters": {"type": "object", "required": ["first"], "properties": {
            "first": {"type": "string", "description": ""}, "second": {"type": "integer", "description": ""},
        }},
    }})]
}

/// What a template writes behind the message of a user for a call, with and without a result of it, and for an answer that
/// is still to come.
pub(super) fn written_answers(template: &Template) -> Option<(Vec<String>, String)> {
    written_with(template, &tools(), &arguments())
}

/// The same for a call with these arguments of the tool among `tools`.
pub(super) fn written_with(
    template: &Template,
    tools: &[Json],
    arguments: &Map<String, Json>,
) -> Option<(Vec<String>, String)> {
    let header = after_user(template, &[Message::new("user", USER)], tools)?;
    Some((written_calls(template, tools, arguments).collect(), header))
}

/// What a template writes behind the message of a user for a call, with and without a result of it.
fn written_call(template: &Template, tools: &[Json]) -> Option<String> {
    written_calls(template, tools, &arguments()).next()
}

fn written_calls(
    template: &Template,
    tools: &[Json],
    arguments: &Map<String, Json>,
) -> impl Iterator<Item = String> {
    let mut call = Message::new("assistant", "");
    call.tool_calls = vec![ToolCall {
        id: "abcDEF123".into(),
        function: FunctionCall { index: 0, name: TOOL.into(), arguments: arguments.clone() },
    }];
    let result = Message {
        tool_name: Some(TOOL.into()),
        tool_call_id: Some("abcDEF123".into()),
        ..Message::new("tool", format!("{{\"{RESULT}\": 3}}"))
    };
    let messages = [Message::new("user", USER), call, result];
    [3, 2].into_iter().filter_map(move |count| {
        let text = after_user(template, &messages[..count], tools)?;
        text.contains(TOOL).then_some(text)
    })
}

pub(super) fn arguments() -> Map<String, Json> {
    let mut arguments = Map::new();
    arguments.insert("first".into(), "x y".into());
    arguments.insert("second".into(), 2.into());
    arguments
}

fn after_user(template: &Template, messages: &[Message], tools: &[Json]) -> Option<String> {
    let chat = Chat { tools, now: Some(jiff::civil::DateTime::default()), ..Chat::new(messages) };
    let text = render(template, &chat).ok()?;
    let (_, after) = text.rsplit_once(USER)?;
    Some(after.to_owned())
}

/// Does a grammar find the call, and nothing else?
pub(super) fn reads(grammar: Box<dyn Grammar>, text: &str) -> bool {
    reads_with(grammar, text, &arguments())
}

/// The same for a call with these arguments.
pub(super) fn reads_with(
    grammar: Box<dyn Grammar>,
    text: &str,
    arguments: &Map<String, Json>,
) -> bool {
    let mut parser = OutputParser::new(grammar, &[]);
    let mut parts = parser.push(text);
    parts.extend(parser.finish());
    let mut calls = parts.iter().filter_map(|part| match part {
        Part::Call(call) => Some(call),
        _ => None,
    });
    let good = calls.next().is_some_and(|call| call.name == TOOL && call.arguments == *arguments);
    good && calls.next().is_none()
}

/// What stands between the header of an answer and a call with a JSON object in it; a bracket if there is nothing.
fn unknown_tag(template: &Template, written: &str, tools: &[Json]) -> Option<String> {
    let header = after_user(template, &[Message::new("user", USER)], tools)?;
    let call = answer_of(written, &header)?;
    let name = call.find(TOOL)?;
    call[name..].find('{').or_else(|| call[..name].find('{'))?;
    let tag = call[..name].split(['{', '"']).next().unwrap_or_default().trim();
    let tag = tag.strip_suffix('[').map_or(tag, str::trim_end);
    Some(if tag.is_empty() { "{".to_owned() } else { tag.to_owned() })
}

/// What is written of an answer behind its header.
pub(super) fn answer_of<'t>(written: &'t str, header: &str) -> Option<&'t str> {
    let common = written.char_indices().zip(header.chars()).find(|((_, a), b)| a != b);
    let mut from = common.map_or_else(|| written.len().min(header.len()), |((at, _), _)| at);
    // A tag may begin as another does.
    from = whole_tags(&written[..from]);
    written.get(from..)
}

/// The form whose tags stand in the source of a template that writes no calls itself.
fn mentioned(template: &Template) -> Option<&'static str> {
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

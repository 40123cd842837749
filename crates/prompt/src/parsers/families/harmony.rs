//! gpt-oss: messages with header and body, `<|start|>assistant<|channel|>final<|message|>…<|end|>`.

use super::super::body::call;
use super::super::call_stream::StreamedFormat;
use super::super::format_parser::{FormatParser, OutputStage, ParserInput, is_free_of};
use super::super::output_part::CallError;
use super::super::part_sink::PartSink;
use super::super::pending::{PendingText, TagMatch};
use super::super::tools::Tools;

const START: &str = "<|start|>";
const MESSAGE: &str = "<|message|>";
const END: &str = "<|end|>";
const CALL: &str = "<|call|>";
const CHANNEL: &str = "<|channel|>";
const CONSTRAIN: &str = "<|constrain|>";

#[derive(Debug, Clone, PartialEq)]
enum HarmonyState {
    /// Between messages.
    Outside,
    Header,
    Thinking,
    Content,
    /// In the arguments of a call to this recipient.
    Call(String),
}

/// The parser of gpt-oss.
#[derive(Debug, Clone)]
pub(in super::super) struct Harmony {
    state: HarmonyState,
    /// The answer has begun.
    answers: bool,
    tools: Tools,
}

impl Harmony {
    /// The output continues behind `<|start|>assistant`, or behind the unfinished last message.
    pub(in super::super) fn new(input: &ParserInput<'_>) -> Self {
        let last = input.last.filter(|last| last.role == "assistant");
        let thinks = last.is_some_and(|last| last.thinking.as_ref().is_some_and(|t| !t.is_empty()));
        let state = match last {
            Some(last) if !last.content.is_empty() => HarmonyState::Content,
            Some(_) if thinks => HarmonyState::Thinking,
            _ => HarmonyState::Header,
        };
        Self { answers: state == HarmonyState::Content, state, tools: Tools::new(input.tools) }
    }

    fn outside(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        let (stray, found) = match text.take_through(START) {
            Some(stray) => (stray, true),
            None if end => (text.take_all(), false),
            None => return false,
        };
        if !stray.trim().is_empty() {
            out.malformed(stray, CallError::Syntax("<|start|>HEADER<|message|>BODY"));
        }
        if found {
            self.state = HarmonyState::Header;
        }
        found
    }

    fn header(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        if let Some(header) = text.take_through(MESSAGE) {
            self.state = state_of(&header);
            self.answers |= !matches!(self.state, HarmonyState::Thinking);
            return true;
        }
        if end {
            out.malformed(text.take_all(), CallError::Syntax("<|start|>HEADER<|message|>BODY"));
        }
        false
    }

    fn body(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        let released = text.release_with_blanks(&[END]);
        let done = released.tag.is_some();
        let body = released.text + &if end && !done { text.take_all() } else { String::new() };
        if self.state == HarmonyState::Thinking {
            out.thinking(&body)
        } else {
            out.content(&body)
        }
        if done {
            self.state = HarmonyState::Outside;
        }
        done
    }

    fn call(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        let found = text.find(&[END, CALL]);
        let known = match found {
            TagMatch::Tag { at, .. } | TagMatch::Partial(at) => at,
            TagMatch::None => text.rest().len(),
        };
        if let HarmonyState::Call(recipient) = &self.state {
            let name = self.declared(recipient.strip_prefix("functions.").unwrap_or(recipient));
            out.stream_call(StreamedFormat::Arguments(&name), &text.rest()[..known], &self.tools);
        }
        let (length, tag) = match found {
            TagMatch::Tag { at, tag } => (at, [END, CALL][tag].len()),
            _ if end => (text.rest().len(), 0),
            _ => return false,
        };
        let HarmonyState::Call(recipient) =
            std::mem::replace(&mut self.state, HarmonyState::Outside)
        else {
            return true;
        };
        let json = text.take(length).to_owned();
        text.take(tag);
        let name = recipient.strip_prefix("functions.").unwrap_or(&recipient);
        let arguments = serde_json::from_str(&json).map_err(|e| CallError::Json(e.to_string()));
        let read = arguments.map(|arguments| vec![call(self.declared(name), arguments)]);
        out.calls(read, |_| format!("to={recipient}{MESSAGE}{json}"));
        true
    }

    /// The declared tool of a name in the model's spelling.
    fn declared(&self, name: &str) -> String {
        if self.tools.has(name)
            || matches!(name, "python" | "browser.open" | "browser.search" | "browser.find")
        {
            return name.to_owned();
        }
        let mut taken: Vec<String> = Vec::new();
        for tool in self.tools.names() {
            let plain = plain_name(tool);
            let mut shown = plain.clone();
            for number in 2.. {
                if !taken.contains(&shown) {
                    break;
                }
                shown = format!("{plain}_{number}");
            }
            if shown == name {
                return tool.to_owned();
            }
            taken.push(shown);
        }
        name.to_owned()
    }
}

/// A tool's name as the model sees it: a TypeScript identifier.
fn plain_name(name: &str) -> String {
    let replaced = name.chars().filter_map(|c| match c {
        ' ' | '-' | '.' => Some('_'),
        c if c.is_alphanumeric() || c == '_' || c == '$' => Some(c),
        _ => None,
    });
    let name: String = replaced.collect();
    match name.chars().next() {
        None => "unnamed".to_owned(),
        Some(first) if first.is_ascii_digit() => format!("_{name}"),
        Some(_) => name,
    }
}

/// Derives the state from a header: role, recipient, channel and content type. The recipient stands
/// before or behind the channel.
fn state_of(header: &str) -> HarmonyState {
    let header = header.replacen(CONSTRAIN, &format!(" {CONSTRAIN}"), 1);
    let (channel, words) = match header.split_once(CHANNEL) {
        Some((before, after)) => {
            let end = after.find(char::is_whitespace).unwrap_or(after.len());
            (&after[..end], format!("{before} {}", &after[end..]))
        }
        None => ("", header.clone()),
    };
    let recipient = words.split_whitespace().find_map(|word| word.strip_prefix("to="));
    match (channel, recipient.filter(|r| !r.is_empty())) {
        ("analysis" | "commentary", Some(recipient)) => HarmonyState::Call(recipient.to_owned()),
        ("analysis", None) => HarmonyState::Thinking,
        _ => HarmonyState::Content,
    }
}

impl FormatParser for Harmony {
    fn step(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        if text.is_empty() && !matches!(self.state, HarmonyState::Call(_)) {
            return false;
        }
        match self.state {
            HarmonyState::Outside => self.outside(text, end, out),
            HarmonyState::Header => self.header(text, end, out),
            HarmonyState::Thinking | HarmonyState::Content => self.body(text, end, out),
            HarmonyState::Call(_) => self.call(text, end, out),
        }
    }

    fn stage(&self) -> OutputStage {
        if self.answers { OutputStage::Answer } else { OutputStage::Thinking }
    }

    fn reasoning_end(&self) -> Option<String> {
        let thinks = self.state == HarmonyState::Thinking;
        thinks.then(|| format!("{END}{START}assistant{CHANNEL}final{MESSAGE}"))
    }

    fn keeps_thinking(&self, piece: &str) -> bool {
        self.state == HarmonyState::Thinking && is_free_of(piece, [END].into_iter())
    }

    fn clone_box(&self) -> Box<dyn FormatParser> {
        Box::new(self.clone())
    }

    fn preserved_tokens(&self) -> Vec<String> {
        [START, END, MESSAGE, CHANNEL, CONSTRAIN].map(str::to_owned).to_vec()
    }
}

//! gpt-oss: messages of a header and a body, `<|start|>assistant<|channel|>final<|message|>…<|end|>`.

use super::super::body::call;
use super::super::call::{CallError, Out};
use super::super::early::Form;
use super::super::pending::{Found, Pending};
use super::super::tools::Tools;
use super::super::{Grammar, ParserInput, Stage, is_free_of};

const START: &str = "<|start|>";
const MESSAGE: &str = "<|message|>";
const END: &str = "<|end|>";
const CALL: &str = "<|call|>";
const CHANNEL: &str = "<|channel|>";
const CONSTRAIN: &str = "<|constrain|>";

#[derive(Debug, Clone, PartialEq)]
enum State {
    /// Between messages.
    Outside,
    Header,
    Thinking,
    Content,
    /// The arguments of a call of this recipient.
    Call(String),
}

/// The parser of gpt-oss.
#[derive(Debug, Clone)]
pub(in super::super) struct Harmony {
    state: State,
    /// The answer has begun.
    answers: bool,
    tools: Tools,
}

impl Harmony {
    /// The output goes on behind `<|start|>assistant`, or behind what the last message has of the answer.
    pub(in super::super) fn new(input: &ParserInput<'_>) -> Self {
        let last = input.last.filter(|last| last.role == "assistant");
        let thinks = last.is_some_and(|last| last.thinking.as_ref().is_some_and(|t| !t.is_empty()));
        let state = match last {
            Some(last) if !last.content.is_empty() => State::Content,
            Some(_) if thinks => State::Thinking,
            _ => State::Header,
        };
        Self { answers: state == State::Content, state, tools: Tools::new(input.tools) }
    }

    fn outside(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        let (stray, found) = match text.take_through(START) {
            Some(stray) => (stray, true),
            None if end => (text.take_all(), false),
            None => return false,
        };
        if !stray.trim().is_empty() {
            out.malformed(stray, CallError::Form("<|start|>HEADER<|message|>BODY"));
        }
        if found {
            self.state = State::Header;
        }
        found
    }

    fn header(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        if let Some(header) = text.take_through(MESSAGE) {
            self.state = state_of(&header);
            self.answers |= !matches!(self.state, State::Thinking);
            return true;
        }
        if end {
            out.malformed(text.take_all(), CallError::Form("<|start|>HEADER<|message|>BODY"));
        }
        false
    }

    fn body(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        let flow = text.flow_blank(&[END]);
        let done = flow.tag.is_some();
        let body = flow.text + &if end && !done { text.take_all() } else { String::new() };
        if self.state == State::Thinking {
            out.thinking(&body)
        } else {
            out.content(&body)
        }
        if done {
            self.state = State::Outside;
        }
        done
    }

    fn call(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        let found = text.find(&[END, CALL]);
        let known = match found {
            Found::Tag { at, .. } | Found::Perhaps(at) => at,
            Found::None => text.rest().len(),
        };
        if let State::Call(recipient) = &self.state {
            let name = self.declared(recipient.strip_prefix("functions.").unwrap_or(recipient));
            out.follow(Form::Arguments(&name), &text.rest()[..known], &self.tools);
        }
        let (length, tag) = match found {
            Found::Tag { at, tag } => (at, [END, CALL][tag].len()),
            _ if end => (text.rest().len(), 0),
            _ => return false,
        };
        let State::Call(recipient) = std::mem::replace(&mut self.state, State::Outside) else {
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

    /// The tool that the model knows by a name which follows its rules.
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

/// What a header announces: role, recipient, channel and content type, the recipient before or after the channel.
fn state_of(header: &str) -> State {
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
        ("analysis" | "commentary", Some(recipient)) => State::Call(recipient.to_owned()),
        ("analysis", None) => State::Thinking,
        _ => State::Content,
    }
}

impl Grammar for Harmony {
    fn step(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        if text.is_empty() && !matches!(self.state, State::Call(_)) {
            return false;
        }
        match self.state {
            State::Outside => self.outside(text, end, out),
            State::Header => self.header(text, end, out),
            State::Thinking | State::Content => self.body(text, end, out),
            State::Call(_) => self.call(text, end, out),
        }
    }

    fn stage(&self) -> Stage {
        if self.answers { Stage::Answer } else { Stage::Thinking }
    }

    fn thought_end(&self) -> Option<String> {
        let thinks = self.state == State::Thinking;
        thinks.then(|| format!("{END}{START}assistant{CHANNEL}final{MESSAGE}"))
    }

    fn keeps_thinking(&self, piece: &str) -> bool {
        self.state == State::Thinking && is_free_of(piece, [END].into_iter())
    }

    fn boxed(&self) -> Box<dyn Grammar> {
        Box::new(self.clone())
    }

    fn preserved(&self) -> Vec<String> {
        [START, END, MESSAGE, CHANNEL, CONSTRAIN].map(str::to_owned).to_vec()
    }
}

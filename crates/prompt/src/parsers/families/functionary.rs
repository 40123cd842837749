//! Functionary 3.2: a recipient, a line break and what it gets, again and again with `>>>` between them. `all` is the user,
//! everybody else a function with JSON. The prompt ends with the first `>>>`.

use super::super::body;
use super::super::call::{CallError, Out};
use super::super::pending::{Brackets, Found, Pending};
use super::super::tools::Tools;
use super::super::{Grammar, ParserInput, Stage};

/// What stands in front of a recipient.
const MARK: &str = ">>>";

/// The recipient that is the user.
const USER: &str = "all";

#[derive(Debug, Clone)]
pub(in super::super) struct Functionary {
    tools: Tools,
    state: State,
    /// White space is dropped until something else comes.
    trim: bool,
}

#[derive(Debug, Clone)]
enum State {
    /// Before the first recipient, which may have its mark or not.
    Start,
    /// In a text for the user, where the next recipient may come.
    Answer,
    /// In the arguments of a function.
    Arguments(String, Brackets),
}

/// What a text begins with.
enum Head {
    /// A recipient; so many bytes, with the line break.
    Recipient(String, usize),
    /// It may become one.
    Perhaps,
    Other,
}

impl Functionary {
    pub(in super::super) fn new(input: &ParserInput<'_>) -> Self {
        let state = if input.continues() { State::Answer } else { State::Start };
        Self { tools: Tools::new(input.tools), state, trim: false }
    }

    /// Whether a text begins with somebody who can be meant.
    fn head(&self, text: &str, end: bool) -> Head {
        let mut known = self.tools.names().chain([USER]);
        match text.split_once('\n') {
            Some((name, _)) if known.any(|known| known == name) => {
                Head::Recipient(name.to_owned(), name.len() + 1)
            }
            // Nothing more is to be said.
            None if end && text == USER => Head::Recipient(USER.to_owned(), USER.len()),
            None if !end && known.any(|known| known.starts_with(text)) => Head::Perhaps,
            _ => Head::Other,
        }
    }

    fn start(&mut self, text: &mut Pending, end: bool) -> bool {
        let rest = text.rest();
        if !end && rest.len() < MARK.len() && MARK.starts_with(rest) {
            return false;
        }
        let mark = if rest.starts_with(MARK) { MARK.len() } else { 0 };
        match self.head(&rest[mark..], end) {
            Head::Perhaps => false,
            Head::Recipient(name, length) => {
                text.take(mark + length);
                self.turn_to(name);
                true
            }
            Head::Other => {
                self.state = State::Answer;
                true
            }
        }
    }

    fn turn_to(&mut self, name: String) {
        self.trim = name != USER;
        self.state = match name.as_str() {
            USER => State::Answer,
            _ => State::Arguments(name, Brackets::default()),
        };
    }

    /// Text for the user up to a mark that has a recipient behind it.
    fn answer(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        match text.find(&[MARK]) {
            Found::Tag { at, .. } => {
                out.content(text.take(at));
                match self.head(&text.rest()[MARK.len()..], end) {
                    Head::Perhaps => return false,
                    Head::Recipient(name, length) => {
                        text.take(MARK.len() + length);
                        self.turn_to(name);
                    }
                    // The next one may begin in it.
                    Head::Other => out.content(text.take(1)),
                }
                true
            }
            Found::Perhaps(at) if !end => {
                out.content(text.take(at));
                false
            }
            Found::Perhaps(_) | Found::None => {
                out.content(&text.take_all());
                false
            }
        }
    }

    fn arguments(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        let State::Arguments(name, brackets) = &mut self.state else { return false };
        let whole = |json: &str| format!("{name}\n{json}");
        if !text.is_empty() && !text.rest().starts_with('{') {
            let name = whole("");
            out.malformed(
                name,
                CallError::Form("a function's name, a line break and a JSON object"),
            );
            self.state = State::Answer;
            return true;
        }
        let seen = text.seen();
        match brackets.end(&text.rest()[seen..]) {
            Some(length) => {
                let json = text.take(seen + length);
                match serde_json::from_str(json) {
                    Ok(arguments) => {
                        out.calls(Ok(vec![body::call(name.as_str(), arguments)]), |_| String::new())
                    }
                    Err(error) => out.malformed(whole(json), CallError::Json(error.to_string())),
                }
                (self.state, self.trim) = (State::Answer, true);
                true
            }
            None if end => {
                let json = text.take_all();
                out.malformed(whole(&json), CallError::Unclosed);
                self.state = State::Answer;
                false
            }
            None => {
                let length = text.rest().len();
                text.set_seen(length);
                false
            }
        }
    }
}

impl Grammar for Functionary {
    fn step(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        if !text.trimmed(&mut self.trim) && !end {
            return false;
        }
        match self.state {
            State::Start => self.start(text, end),
            State::Answer => self.answer(text, end, out),
            State::Arguments(..) => self.arguments(text, end, out),
        }
    }

    fn stage(&self) -> Stage {
        Stage::Answer
    }

    fn boxed(&self) -> Box<dyn Grammar> {
        Box::new(self.clone())
    }

    fn preserved(&self) -> Vec<String> {
        Vec::new()
    }
}

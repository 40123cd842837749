//! Functionary 3.2: messages of a recipient, a line break and a body, separated by `>>>`. The
//! recipient `all` is the user, any other recipient is a function with JSON arguments. The prompt
//! ends with the first `>>>`.

use super::super::body;
use super::super::format_parser::{FormatParser, OutputStage, ParserInput};
use super::super::output_part::CallError;
use super::super::part_sink::PartSink;
use super::super::pending::{BracketMatcher, PendingText, TagMatch};
use super::super::tools::Tools;

/// Text before a recipient.
const RECIPIENT_MARK: &str = ">>>";

/// The recipient for messages to the user.
const USER: &str = "all";

#[derive(Debug, Clone)]
pub(in super::super) struct Functionary {
    tools: Tools,
    state: FunctionaryState,
    /// White space is dropped until other text arrives.
    trim: bool,
}

#[derive(Debug, Clone)]
enum FunctionaryState {
    /// Before the first recipient, with or without `>>>`.
    Start,
    /// In a text for the user.
    Answer,
    /// In the arguments of a function.
    Arguments(String, BracketMatcher),
}

/// Result of matching a recipient at the start of a text.
enum RecipientMatch {
    /// A recipient, and the bytes up to and including the line break.
    Recipient(String, usize),
    /// More text is needed.
    Partial,
    Other,
}

impl Functionary {
    pub(in super::super) fn new(input: &ParserInput<'_>) -> Self {
        let state =
            if input.continues() { FunctionaryState::Answer } else { FunctionaryState::Start };
        Self { tools: Tools::new(input.tools), state, trim: false }
    }

    /// Matches the user or a declared tool at the start of a text.
    fn head(&self, text: &str, end: bool) -> RecipientMatch {
        let mut known = self.tools.names().chain([USER]);
        match text.split_once('\n') {
            Some((name, _)) if known.any(|known| known == name) => {
                RecipientMatch::Recipient(name.to_owned(), name.len() + 1)
            }
            // An empty message to the user at the end.
            None if end && text == USER => RecipientMatch::Recipient(USER.to_owned(), USER.len()),
            None if !end && known.any(|known| known.starts_with(text)) => RecipientMatch::Partial,
            _ => RecipientMatch::Other,
        }
    }

    fn start(&mut self, text: &mut PendingText, end: bool) -> bool {
        let rest = text.rest();
        if !end && rest.len() < RECIPIENT_MARK.len() && RECIPIENT_MARK.starts_with(rest) {
            return false;
        }
        let mark = if rest.starts_with(RECIPIENT_MARK) { RECIPIENT_MARK.len() } else { 0 };
        match self.head(&rest[mark..], end) {
            RecipientMatch::Partial => false,
            RecipientMatch::Recipient(name, length) => {
                text.take(mark + length);
                self.enter_message(name);
                true
            }
            RecipientMatch::Other => {
                self.state = FunctionaryState::Answer;
                true
            }
        }
    }

    fn enter_message(&mut self, name: String) {
        self.trim = name != USER;
        self.state = match name.as_str() {
            USER => FunctionaryState::Answer,
            _ => FunctionaryState::Arguments(name, BracketMatcher::default()),
        };
    }

    /// Text for the user, up to a `>>>` with a recipient.
    fn answer(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        match text.find(&[RECIPIENT_MARK]) {
            TagMatch::Tag { at, .. } => {
                out.content(text.take(at));
                match self.head(&text.rest()[RECIPIENT_MARK.len()..], end) {
                    RecipientMatch::Partial => return false,
                    RecipientMatch::Recipient(name, length) => {
                        text.take(RECIPIENT_MARK.len() + length);
                        self.enter_message(name);
                    }
                    // The next `>>>` may overlap this one.
                    RecipientMatch::Other => out.content(text.take(1)),
                }
                true
            }
            TagMatch::Partial(at) if !end => {
                out.content(text.take(at));
                false
            }
            TagMatch::Partial(_) | TagMatch::None => {
                out.content(&text.take_all());
                false
            }
        }
    }

    fn arguments(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        let FunctionaryState::Arguments(name, brackets) = &mut self.state else { return false };
        let whole = |json: &str| format!("{name}\n{json}");
        if !text.is_empty() && !text.rest().starts_with('{') {
            let name = whole("");
            out.malformed(
                name,
                CallError::Syntax("a function's name, a line break and a JSON object"),
            );
            self.state = FunctionaryState::Answer;
            return true;
        }
        let searched = text.search_position();
        match brackets.find_end(&text.rest()[searched..]) {
            Some(length) => {
                let json = text.take(searched + length);
                match serde_json::from_str(json) {
                    Ok(arguments) => {
                        out.calls(Ok(vec![body::call(name.as_str(), arguments)]), |_| String::new())
                    }
                    Err(error) => out.malformed(whole(json), CallError::Json(error.to_string())),
                }
                (self.state, self.trim) = (FunctionaryState::Answer, true);
                true
            }
            None if end => {
                let json = text.take_all();
                out.malformed(whole(&json), CallError::Unclosed);
                self.state = FunctionaryState::Answer;
                false
            }
            None => {
                let length = text.rest().len();
                text.set_search_position(length);
                false
            }
        }
    }
}

impl FormatParser for Functionary {
    fn step(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        if !text.trim_start_if(&mut self.trim) && !end {
            return false;
        }
        match self.state {
            FunctionaryState::Start => self.start(text, end),
            FunctionaryState::Answer => self.answer(text, end, out),
            FunctionaryState::Arguments(..) => self.arguments(text, end, out),
        }
    }

    fn stage(&self) -> OutputStage {
        OutputStage::Answer
    }

    fn clone_box(&self) -> Box<dyn FormatParser> {
        Box::new(self.clone())
    }

    fn preserved_tokens(&self) -> Vec<String> {
        Vec::new()
    }
}

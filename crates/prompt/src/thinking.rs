//! Separates thoughts from the answer while the model's text streams in.

/// The texts around thoughts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThinkTags {
    /// Before a thought, as `<think>`.
    pub open: String,
    /// After it, as `</think>`.
    pub close: String,
}

/// Tags of known chat templates. A template shows which it uses by its closing tag: the opening one is often written
/// only by the model.
const KNOWN: [(&str, &str); 8] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|channel>thought", "<channel|>"),
];

pub(crate) fn tags_in_jinja(source: &str) -> Option<ThinkTags> {
    let (open, close) = KNOWN.into_iter().find(|(_, close)| source.contains(close))?;
    Some(ThinkTags { open: open.into(), close: close.into() })
}

/// What a piece of output added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Split {
    /// New text of the thought.
    pub thinking: String,
    /// New text of the answer.
    pub content: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before anything but white space.
    Start,
    /// After the opening tag, nothing but white space yet.
    Opened,
    Thinking,
    /// After the closing tag, nothing but white space yet.
    Closed,
    Answer,
}

/// Splits a stream at its first pair of tags. A thought must be the first thing in the output, or have been opened by
/// the prompt; later tags are part of the answer. White space after either tag is dropped. Tags may be cut anywhere.
#[derive(Debug, Clone)]
pub struct ThinkingSplitter {
    tags: ThinkTags,
    state: State,
    /// Text that may turn out to be part of a tag.
    held: String,
}

impl ThinkingSplitter {
    /// A splitter for the output that follows `prompt`: if that ends with the opening tag, the output is a thought.
    pub fn new(tags: ThinkTags, prompt: &str) -> Self {
        let opened = prompt.trim().ends_with(&tags.open);
        let state = if opened { State::Opened } else { State::Start };
        ThinkingSplitter { tags, state, held: String::new() }
    }

    /// Is the answer still to come?
    pub fn is_thinking(&self) -> bool {
        matches!(self.state, State::Opened | State::Thinking)
    }

    /// Takes the next piece of output.
    pub fn push(&mut self, piece: &str) -> Split {
        let mut split = Split::default();
        self.held.push_str(piece);
        while self.step(&mut split) {}
        split
    }

    /// Ends the stream: what was held back as a possible tag was none.
    pub fn finish(&mut self) -> Split {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Start | State::Answer => Split { content: held, thinking: String::new() },
            State::Thinking => Split { thinking: held, content: String::new() },
            State::Opened | State::Closed => Split::default(),
        }
    }

    /// One change of state; false when more text is needed.
    fn step(&mut self, split: &mut Split) -> bool {
        let text = self.held.trim_start();
        match self.state {
            State::Start => {
                if let Some(rest) = text.strip_prefix(&self.tags.open) {
                    self.held = rest.to_string();
                    self.state = State::Opened;
                    return true;
                }
                if self.tags.open.starts_with(text) {
                    return false;
                }
                self.state = State::Answer;
                true
            }
            State::Opened | State::Closed => {
                if text.is_empty() {
                    self.held.clear();
                    return false;
                }
                self.held = text.to_string();
                self.state = if self.state == State::Opened { State::Thinking } else { State::Answer };
                true
            }
            State::Thinking => {
                if let Some((thought, rest)) = self.held.split_once(&self.tags.close) {
                    split.thinking.push_str(thought);
                    self.held = rest.to_string();
                    self.state = State::Closed;
                    return true;
                }
                let keep = partial_tag(&self.held, &self.tags.close);
                split.thinking.push_str(&self.held[..self.held.len() - keep]);
                self.held.drain(..self.held.len() - keep);
                false
            }
            State::Answer => {
                split.content.push_str(&self.held);
                self.held.clear();
                false
            }
        }
    }
}

/// Length of the longest end of `text` that begins `tag`.
fn partial_tag(text: &str, tag: &str) -> usize {
    let longest = tag.len().saturating_sub(1).min(text.len());
    (1..=longest).rev().find(|len| tag.is_char_boundary(*len) && text.ends_with(&tag[..*len])).unwrap_or(0)
}

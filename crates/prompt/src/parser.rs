//! Output parsers by name, as a Modelfile's `PARSER` and `puna debug parse` choose them.

use crate::thinking::{Split, ThinkTags, ThinkingSplitter};

/// Turns a model's text, as it streams, into thoughts and answer.
#[derive(Debug, Clone)]
pub struct OutputParser(Form);

#[derive(Debug, Clone)]
enum Form {
    /// Everything is the answer.
    Passthrough,
    Thinking(ThinkingSplitter),
}

impl OutputParser {
    /// The names that [`by_name`](Self::by_name) knows.
    pub const NAMES: [&str; 2] = ["passthrough", "thinking"];

    /// The parser of a name, `None` for an unknown one. `passthrough` takes all text as the answer; `thinking` takes
    /// what stands between `tags` at the start for a thought, or from the start where `prompt` ends with the opening
    /// tag.
    pub fn by_name(name: &str, tags: ThinkTags, prompt: &str) -> Option<Self> {
        match name {
            "passthrough" => Some(Self(Form::Passthrough)),
            "thinking" => Some(Self(Form::Thinking(ThinkingSplitter::new(tags, prompt)))),
            _ => None,
        }
    }

    /// Takes the next piece of output.
    pub fn push(&mut self, piece: &str) -> Split {
        match &mut self.0 {
            Form::Passthrough => Split { content: piece.to_owned(), thinking: String::new() },
            Form::Thinking(splitter) => splitter.push(piece),
        }
    }

    /// Ends the stream.
    pub fn finish(&mut self) -> Split {
        match &mut self.0 {
            Form::Passthrough => Split::default(),
            Form::Thinking(splitter) => splitter.finish(),
        }
    }
}

//! Tests that reach into the parsers.

mod cases;
mod hostile;
mod templates;

use super::*;

/// What came out, joined.
#[derive(Debug, Default, Clone, PartialEq)]
struct Whole {
    thinking: String,
    content: String,
    calls: Vec<(String, Json)>,
    /// Of each malformed call: text, error, content and thoughts before it.
    malformed: Vec<(String, String, String, String)>,
}

impl Whole {
    fn add(&mut self, parts: Vec<Part>) {
        for part in parts {
            match part {
                Part::Thinking(text) => self.thinking += &text,
                Part::Content(text) => self.content += &text,
                Part::Call(call) => {
                    assert_eq!(call.index, self.calls.len(), "calls are numbered");
                    self.calls.push((call.name, Json::Object(call.arguments)));
                }
                Part::Malformed { text, error } => {
                    let (content, thinking) = (self.content.clone(), self.thinking.clone());
                    self.malformed.push((text, error.to_string(), content, thinking));
                }
            }
        }
    }

    fn of<'c>(mut parser: OutputParser, chunks: impl IntoIterator<Item = &'c str>) -> Self {
        let mut whole = Self::default();
        for chunk in chunks {
            whole.add(parser.push(chunk));
        }
        whole.add(parser.finish());
        assert_eq!(parser.finish(), [], "an end is an end");
        whole
    }
}

/// The text in pieces of `size` characters.
fn pieces(text: &str, size: usize) -> Vec<&str> {
    let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).step_by(size).collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts.iter().zip(ends).map(|(from, to)| &text[*from..to]).collect()
}

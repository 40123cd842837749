//! Tests that reach into the parsers.

mod cases;
mod early;
mod hostile;
mod templates;
mod thoughts;

use super::*;

/// What came out, joined.
#[derive(Debug, Default, Clone, PartialEq)]
struct Whole {
    thinking: String,
    content: String,
    calls: Vec<(String, Json)>,
    /// Of each malformed call: text, error, content and thoughts before it.
    malformed: Vec<(String, String, String, String)>,
    /// The call that was told of and is not there yet: its tool and its arguments so far.
    told: Option<(String, String)>,
}

impl Whole {
    fn add(&mut self, parts: Vec<Part>) {
        for part in parts {
            let told = match &part {
                Part::CallBegins(_) | Part::Arguments(_) => None,
                _ => self.told.take(),
            };
            match part {
                Part::CallBegins(name) => self.told = Some((name, String::new())),
                Part::Arguments(text) => {
                    self.told.as_mut().expect("a call has begun").1.push_str(&text)
                }
                Part::Thinking(text) => self.thinking += &text,
                Part::Content(text) => self.content += &text,
                Part::Call(call) => {
                    assert_eq!(call.index, self.calls.len(), "calls are numbered");
                    if let Some((name, arguments)) = told {
                        let arguments: Json =
                            serde_json::from_str(&arguments).expect("what was told is whole");
                        assert_eq!(
                            (name, arguments),
                            (call.name.clone(), call.arguments.clone().into())
                        );
                    }
                    self.calls.push((call.name, Json::Object(call.arguments)));
                }
                Part::Malformed { text, .. } if text.is_empty() => assert!(told.is_some()),
                Part::Malformed { text, error } => {
                    let (content, thinking) = (self.content.clone(), self.thinking.clone());
                    self.malformed.push((text, error.to_string(), content, thinking));
                }
            }
        }
    }

    fn of<'c>(mut parser: OutputParser, chunks: impl IntoIterator<Item = &'c str>) -> Self {
        let (mut whole, mut early) = (Self::default(), Self::default());
        let mut early_parser = parser.copy().telling_early();
        for chunk in chunks {
            whole.add(parser.push(chunk));
            early.add(early_parser.push(chunk));
        }
        whole.add(parser.finish());
        assert_eq!(parser.finish(), [], "an end is an end");
        early.add(early_parser.finish());
        early.told = None;
        let changed = CallError::Changed.to_string();
        if early.malformed.iter().all(|(_, error, ..)| *error != changed) {
            assert_eq!(early, whole, "what is told early changes nothing");
        }
        whole
    }
}

/// The text in pieces of `size` characters.
fn pieces(text: &str, size: usize) -> Vec<&str> {
    let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).step_by(size).collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts.iter().zip(ends).map(|(from, to)| &text[*from..to]).collect()
}

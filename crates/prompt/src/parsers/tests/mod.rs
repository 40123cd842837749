//! Tests with access to private items of the parsers.

mod call_stream;
mod cases;
mod hostile;
mod reasoning;
mod templates;

use serde_json::Value as Json;

use super::*;
use crate::message::{Message, Think};
use crate::{Template, ThinkTags};

/// Joined output of a parser.
#[derive(Debug, Default, Clone, PartialEq)]
struct JoinedOutput {
    thinking: String,
    content: String,
    calls: Vec<(String, Json)>,
    /// Of each malformed call: text, error, and the content and reasoning before it.
    malformed: Vec<(String, String, String, String)>,
    /// The started call that is not complete: its tool and its arguments so far.
    streamed: Option<(String, String)>,
}

impl JoinedOutput {
    fn add(&mut self, parts: Vec<OutputPart>) {
        for part in parts {
            let streamed = match &part {
                OutputPart::CallStart(_) | OutputPart::CallArguments(_) => None,
                _ => self.streamed.take(),
            };
            match part {
                OutputPart::CallStart(name) => self.streamed = Some((name, String::new())),
                OutputPart::CallArguments(text) => {
                    self.streamed.as_mut().expect("a call has begun").1.push_str(&text)
                }
                OutputPart::Thinking(text) => self.thinking += &text,
                OutputPart::Content(text) => self.content += &text,
                OutputPart::Call(call) => {
                    assert_eq!(call.index, self.calls.len(), "calls are numbered");
                    if let Some((name, arguments)) = streamed {
                        let arguments: Json =
                            serde_json::from_str(&arguments).expect("what was told is whole");
                        assert_eq!(
                            (name, arguments),
                            (call.name.clone(), call.arguments.clone().into())
                        );
                    }
                    self.calls.push((call.name, Json::Object(call.arguments)));
                }
                OutputPart::Malformed { text, .. } if text.is_empty() => {
                    assert!(streamed.is_some())
                }
                OutputPart::Malformed { text, error } => {
                    let (content, thinking) = (self.content.clone(), self.thinking.clone());
                    self.malformed.push((text, error.to_string(), content, thinking));
                }
            }
        }
    }

    fn of<'c>(mut parser: OutputParser, chunks: impl IntoIterator<Item = &'c str>) -> Self {
        let (mut whole, mut early) = (Self::default(), Self::default());
        let mut early_parser = parser.snapshot().with_call_streaming();
        for chunk in chunks {
            whole.add(parser.push(chunk));
            early.add(early_parser.push(chunk));
        }
        whole.add(parser.finish());
        assert_eq!(parser.finish(), [], "an end is an end");
        early.add(early_parser.finish());
        early.streamed = None;
        let changed = CallError::Changed.to_string();
        if early.malformed.iter().all(|(_, error, ..)| *error != changed) {
            assert_eq!(early, whole, "what is told early changes nothing");
        }
        whole
    }
}

/// Splits a text into pieces of `size` characters.
fn pieces(text: &str, size: usize) -> Vec<&str> {
    let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).step_by(size).collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts.iter().zip(ends).map(|(from, to)| &text[*from..to]).collect()
}

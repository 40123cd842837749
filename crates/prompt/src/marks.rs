//! What users and tools wrote stays text: a turn's end, or another turn's beginning, written in a message ends no turn.
//!
//! A template makes one text of its own words and of the messages, and control tokens are read in all of it. So texts of control tokens
//! in messages go through the template between two marks, and the prompt is cut at these: what is between them is text. Marks are
//! noncharacters of Unicode, which templates hand on like any letter.

use std::ops::Range;

use crate::Message;

/// Stands before the text of a control token.
const OPEN: char = '\u{fdd0}';
/// Stands behind it.
const CLOSE: char = '\u{fdd1}';

/// Roles whose messages are the application's own, or the model's: they may mark up what they say.
const TRUSTED: [&str; 3] = ["system", "developer", "assistant"];

/// Marks the texts of control tokens in what users and tools wrote; `controls_in` finds them.
pub fn mark_written(messages: &mut [Message], controls_in: impl Fn(&str) -> Vec<Range<usize>>) {
    for message in messages {
        // Who wrote marks could end one, or have a template's own words taken for text.
        for text in [&mut message.content].into_iter().chain(&mut message.thinking) {
            if text.contains([OPEN, CLOSE]) {
                *text = text.replace([OPEN, CLOSE], "\u{fffd}");
            }
        }
        if TRUSTED.contains(&message.role.as_str()) {
            continue;
        }
        let controls = controls_in(&message.content);
        if controls.is_empty() {
            continue;
        }
        let (text, mut marked, mut end) = (&message.content, String::new(), 0);
        for range in controls {
            marked.push_str(&text[end..range.start]);
            marked.push(OPEN);
            marked.push_str(&text[range.clone()]);
            marked.push(CLOSE);
            end = range.end;
        }
        marked.push_str(&text[end..]);
        message.content = marked;
    }
}

/// Whether this is half of a mark, which stays as it is where other letters are spelt out.
pub(crate) fn is_half(c: char) -> bool {
    [OPEN, CLOSE].contains(&c)
}

/// Whether a rendered prompt has marks.
pub fn is_marked(prompt: &str) -> bool {
    prompt.contains(OPEN)
}

/// The prompt as people read it.
pub fn unmarked(prompt: &str) -> String {
    prompt.replace([OPEN, CLOSE], "")
}

/// The prompt in parts, and whether control tokens are read in each.
pub fn marked_parts(prompt: &str) -> Vec<(&str, bool)> {
    let (mut parts, mut trusted, mut rest) = (Vec::new(), true, prompt);
    while let Some(at) = rest.find([OPEN, CLOSE]) {
        parts.push((&rest[..at], trusted));
        trusted = rest[at..].starts_with(CLOSE);
        rest = &rest[at + OPEN.len_utf8()..];
    }
    parts.push((rest, trusted));
    parts.retain(|(text, _)| !text.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_that_were_written_are_none_whoever_wrote_them() {
        for role in ["system", "assistant", "user", "tool"] {
            let message = Message::new(role, "a\u{fdd0}b\u{fdd1}");
            let mut messages = [Message { thinking: Some("\u{fdd0}".into()), ..message }];
            mark_written(&mut messages, |_| Vec::new());
            assert_eq!(messages[0].content, "a\u{fffd}b\u{fffd}", "{role}");
            assert_eq!(messages[0].thinking.as_deref(), Some("\u{fffd}"), "{role}");
        }
    }

    #[test]
    fn prompts_are_cut_at_marks_wherever_templates_put_them() {
        let marked = |text: &str| text.replace('[', "\u{fdd0}").replace(']', "\u{fdd1}");
        let cut = |text: &str| -> Vec<(String, bool)> {
            marked_parts(&marked(text))
                .into_iter()
                .map(|(text, trusted)| (text.to_owned(), trusted))
                .collect()
        };
        let own = |parts: &[(&str, bool)]| -> Vec<(String, bool)> {
            parts.iter().map(|&(text, trusted)| (text.to_owned(), trusted)).collect()
        };
        assert_eq!(cut("a[<e>]b"), own(&[("a", true), ("<e>", false), ("b", true)]));
        assert_eq!(cut("[<e>][<e>]"), own(&[("<e>", false), ("<e>", false)]));
        // Cut by a template: what follows is not believed, or nothing of it was marked.
        assert_eq!(cut("a[<e"), own(&[("a", true), ("<e", false)]));
        assert_eq!(cut(">]b"), own(&[(">", true), ("b", true)]));
        assert_eq!(cut(""), own(&[]));
        assert_eq!(unmarked(&marked("a[<e>]b")), "a<e>b");
        assert!(is_marked(&marked("[")) && !is_marked("<e>"));
    }
}

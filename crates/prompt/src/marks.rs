//! What users and tools wrote stays text: a turn's end, or another turn's beginning, written in a message ends no turn.
//!
//! A template makes one text of its own words and of the messages, and control tokens are read in all of it. So texts of control tokens
//! in messages go through the template between two marks, and the prompt is cut at these: what is between them is text. Marks are
//! noncharacters of Unicode, which templates hand on like any letter.

use std::ops::Range;

use serde_json::{Map, Value as Json};

use crate::Message;

/// Stands before the text of a control token.
const OPEN: char = '\u{fdd0}';
/// Stands behind it.
const CLOSE: char = '\u{fdd1}';

/// Roles whose messages are the application's own, or the model's: they may mark up what they say.
const TRUSTED: [&str; 3] = ["system", "developer", "assistant"];

/// Marks the texts of control tokens in what users and tools wrote; `controls_in` finds them. Marks that were written are none: neither
/// in messages nor in `beside`, which is whatever else a template is given (tools, variables).
pub fn mark_written<'a>(
    messages: &mut [Message],
    beside: impl IntoIterator<Item = &'a mut Json>,
    controls_in: impl Fn(&str) -> Vec<Range<usize>>,
) {
    beside.into_iter().for_each(clear_json);
    for message in messages {
        clear_message(message);
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

/// Who wrote marks could end one, or have a template's own words taken for text.
fn clear(text: &mut String) {
    if text.contains([OPEN, CLOSE]) {
        *text = text.replace([OPEN, CLOSE], "\u{fffd}");
    }
}

fn clear_message(message: &mut Message) {
    let Message { role, content, thinking, images: _, tool_calls, tool_name, tool_call_id } =
        message;
    [role, content]
        .into_iter()
        .chain(thinking)
        .chain(tool_name)
        .chain(tool_call_id)
        .for_each(clear);
    for call in tool_calls {
        clear(&mut call.id);
        clear(&mut call.function.name);
        clear_object(&mut call.function.arguments);
    }
}

fn clear_json(value: &mut Json) {
    match value {
        Json::String(text) => clear(text),
        Json::Array(items) => items.iter_mut().for_each(clear_json),
        Json::Object(entries) => clear_object(entries),
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

fn clear_object(entries: &mut Map<String, Json>) {
    entries.values_mut().for_each(clear_json);
    // Keys cannot be changed where they are, and their order is the client's.
    if entries.keys().any(|key| key.contains([OPEN, CLOSE])) {
        let cleared = std::mem::take(entries).into_iter().map(|(mut key, value)| {
            clear(&mut key);
            (key, value)
        });
        *entries = cleared.collect();
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
    use serde_json::json;

    use super::*;
    use crate::{Chat, FunctionCall, Kind, Template, ToolCall, render};

    #[test]
    fn marks_that_were_written_are_none_whoever_wrote_them() {
        for role in ["system", "assistant", "user", "tool"] {
            let all = |mark: &str| {
                let arguments =
                    json!({"a": 1, (mark): [{"b": mark}]}).as_object().cloned().unwrap_or_default();
                let function = FunctionCall { index: 0, name: mark.into(), arguments };
                Message {
                    content: format!("a{mark}b{mark}"),
                    thinking: Some(mark.into()),
                    tool_calls: vec![ToolCall { id: mark.into(), function }],
                    tool_name: Some(mark.into()),
                    tool_call_id: Some(mark.into()),
                    ..Message::new(format!("{role}{mark}"), "")
                }
            };
            for mark in ["\u{fdd0}", "\u{fdd1}"] {
                let mut messages = [all(mark)];
                mark_written(&mut messages, [], |_| Vec::new());
                assert_eq!(messages, [all("\u{fffd}")], "{role}");
            }
        }
    }

    #[test]
    fn marks_beside_messages_are_none_and_what_has_none_stays_in_its_order() {
        let all = |mark: &str| {
            let own = json!({"function": {"name": "f", "parameters": {"z": [1, true, null], "a": "\u{fdd2}"}}});
            [
                own,
                json!({"b": {(format!("x{mark}")): mark, "a": [mark, 2.5]}, "a": format!("{mark}{mark}")}),
            ]
        };
        let mut beside = all("\u{fdd1}");
        mark_written(&mut [], &mut beside, |_| Vec::new());
        // The order of keys counts, which comparing objects would not see.
        assert_eq!(
            beside.map(|value| value.to_string()),
            all("\u{fffd}").map(|value| value.to_string())
        );
    }

    #[test]
    fn whatever_spells_letters_out_leaves_marks_or_takes_them_away() {
        let go = |call: &str| {
            (Kind::Go, format!("{{{{ range .Messages }}}}{{{{ {call} }}}}{{{{ end }}}}"))
        };
        let jinja = |call: &str| {
            (Kind::Jinja, format!("{{% set c = messages[0].content %}}{{{{ {call} }}}}"))
        };
        let whole = [
            go("js .Content"),
            go("html .Content"),
            go("urlquery .Content"),
            go("json .Content"),
            go(r#"printf "%q %#q %+q %v %s" .Content .Content .Content .Content .Content"#),
            jinja("c|urlencode"),
            jinja("c|e"),
            jinja("c|tojson"),
            jinja("c|tojson(ensure_ascii=true)"),
            jinja("'%r %a'|format(c, c)"),
            jinja("'{!r} {!a}'.format(c, c)"),
            jinja("[c]"),
        ];
        let gone = [go(r#"printf "%x % X" .Content .Content"#)];
        let text = "é\u{fdd0}<|e|>\u{fdd1}\u{200b}";
        for (i, (kind, source)) in whole.iter().chain(&gone).enumerate() {
            let template = Template::parse(*kind, source).unwrap();
            let render =
                |text: &str| render(&template, &Chat::new(&[Message::new("user", text)])).unwrap();
            let shown = render(text);
            assert_eq!(unmarked(&shown), render(&unmarked(text)), "{source}");
            let halves = [OPEN, CLOSE].map(|half| shown.contains(half));
            assert_eq!(halves, [i < whole.len(); 2], "{source}: {shown:?}");
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

//! Prevents control-token injection: control tokens in the text of users and tools are encoded as
//! plain text.
//!
//! A template joins its own text and the messages to one prompt, and the tokenizer reads control
//! tokens anywhere in it. Therefore control tokens in messages are put between two marks before
//! rendering. The prompt is split at the marks, and the text between them is encoded without
//! control tokens. Marks are noncharacters of Unicode, which templates copy like any other
//! character.

use std::ops::Range;

use serde_json::{Map, Value as Json};

use crate::Message;

/// Mark in front of the text of a control token.
const MARK_OPEN: char = '\u{fdd0}';
/// Mark behind the text of a control token.
const MARK_CLOSE: char = '\u{fdd1}';

/// Roles of the application and the model. Their messages may contain control tokens.
const TRUSTED_ROLES: [&str; 3] = ["system", "developer", "assistant"];

/// Puts marks around the control tokens in messages of users and tools. `controls_in` returns their
/// byte ranges. Marks that the input already contains are replaced, both in `messages` and in
/// `other_inputs`: the tools and variables of the template.
pub fn mark_untrusted<'a>(
    messages: &mut [Message],
    other_inputs: impl IntoIterator<Item = &'a mut Json>,
    controls_in: impl Fn(&str) -> Vec<Range<usize>>,
) {
    other_inputs.into_iter().for_each(replace_marks_in_json);
    for message in messages {
        replace_marks_in_message(message);
        if TRUSTED_ROLES.contains(&message.role.as_str()) {
            continue;
        }
        let controls = controls_in(&message.content);
        if controls.is_empty() {
            continue;
        }
        let (text, mut marked, mut end) = (&message.content, String::new(), 0);
        for range in controls {
            marked.push_str(&text[end..range.start]);
            marked.push(MARK_OPEN);
            marked.push_str(&text[range.clone()]);
            marked.push(MARK_CLOSE);
            end = range.end;
        }
        marked.push_str(&text[end..]);
        message.content = marked;
    }
}

/// Replaces marks of the input. They could close a real mark early, or turn the template's own text
/// into untrusted text.
fn replace_marks(text: &mut String) {
    if text.contains([MARK_OPEN, MARK_CLOSE]) {
        *text = text.replace([MARK_OPEN, MARK_CLOSE], "\u{fffd}");
    }
}

fn replace_marks_in_message(message: &mut Message) {
    let Message { role, content, thinking, images: _, tool_calls, tool_name, tool_call_id } =
        message;
    [role, content]
        .into_iter()
        .chain(thinking)
        .chain(tool_name)
        .chain(tool_call_id)
        .for_each(replace_marks);
    for call in tool_calls {
        replace_marks(&mut call.id);
        replace_marks(&mut call.function.name);
        replace_marks_in_object(&mut call.function.arguments);
    }
}

fn replace_marks_in_json(value: &mut Json) {
    match value {
        Json::String(text) => replace_marks(text),
        Json::Array(items) => items.iter_mut().for_each(replace_marks_in_json),
        Json::Object(entries) => replace_marks_in_object(entries),
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

fn replace_marks_in_object(entries: &mut Map<String, Json>) {
    entries.values_mut().for_each(replace_marks_in_json);
    // Keys of a map cannot be changed in place, and the client's order of keys must be kept.
    if entries.keys().any(|key| key.contains([MARK_OPEN, MARK_CLOSE])) {
        let replaced = std::mem::take(entries).into_iter().map(|(mut key, value)| {
            replace_marks(&mut key);
            (key, value)
        });
        *entries = replaced.collect();
    }
}

/// Returns true for both marks. Functions that escape characters leave marks unchanged.
pub(crate) fn is_mark(c: char) -> bool {
    [MARK_OPEN, MARK_CLOSE].contains(&c)
}

/// Returns true if a rendered prompt contains marks.
pub fn is_marked(prompt: &str) -> bool {
    prompt.contains(MARK_OPEN)
}

/// The prompt without marks, for display.
pub fn without_marks(prompt: &str) -> String {
    prompt.replace([MARK_OPEN, MARK_CLOSE], "")
}

/// Splits a prompt at its marks. The flag of a part is true if control tokens are read in it.
pub fn split_at_marks(prompt: &str) -> Vec<(&str, bool)> {
    let (mut parts, mut trusted, mut rest) = (Vec::new(), true, prompt);
    while let Some(at) = rest.find([MARK_OPEN, MARK_CLOSE]) {
        parts.push((&rest[..at], trusted));
        trusted = rest[at..].starts_with(MARK_CLOSE);
        rest = &rest[at + MARK_OPEN.len_utf8()..];
    }
    parts.push((rest, trusted));
    parts.retain(|(text, _)| !text.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Chat, FunctionCall, Template, TemplateFormat, ToolCall, render};

    #[test]
    fn marks_in_messages_of_any_role_are_replaced() {
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
                mark_untrusted(&mut messages, [], |_| Vec::new());
                assert_eq!(messages, [all("\u{fffd}")], "{role}");
            }
        }
    }

    #[test]
    fn marks_in_tools_are_replaced_and_keys_keep_their_order() {
        let all = |mark: &str| {
            let own = json!({"function": {"name": "f", "parameters": {"z": [1, true, null], "a": "\u{fdd2}"}}});
            [
                own,
                json!({"b": {(format!("x{mark}")): mark, "a": [mark, 2.5]}, "a": format!("{mark}{mark}")}),
            ]
        };
        let mut other_inputs = all("\u{fdd1}");
        mark_untrusted(&mut [], &mut other_inputs, |_| Vec::new());
        // Comparing JSON objects would ignore the order of keys.
        assert_eq!(
            other_inputs.map(|value| value.to_string()),
            all("\u{fffd}").map(|value| value.to_string())
        );
    }

    #[test]
    fn functions_that_escape_characters_keep_or_remove_both_marks() {
        let go = |call: &str| {
            (TemplateFormat::Go, format!("{{{{ range .Messages }}}}{{{{ {call} }}}}{{{{ end }}}}"))
        };
        let jinja = |call: &str| {
            (TemplateFormat::Jinja, format!("{{% set c = messages[0].content %}}{{{{ {call} }}}}"))
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
            assert_eq!(without_marks(&shown), render(&without_marks(text)), "{source}");
            let halves = [MARK_OPEN, MARK_CLOSE].map(|half| shown.contains(half));
            assert_eq!(halves, [i < whole.len(); 2], "{source}: {shown:?}");
        }
    }

    #[test]
    fn prompts_are_split_at_marks() {
        let marked = |text: &str| text.replace('[', "\u{fdd0}").replace(']', "\u{fdd1}");
        let cut = |text: &str| -> Vec<(String, bool)> {
            split_at_marks(&marked(text))
                .into_iter()
                .map(|(text, trusted)| (text.to_owned(), trusted))
                .collect()
        };
        let own = |parts: &[(&str, bool)]| -> Vec<(String, bool)> {
            parts.iter().map(|&(text, trusted)| (text.to_owned(), trusted)).collect()
        };
        assert_eq!(cut("a[<e>]b"), own(&[("a", true), ("<e>", false), ("b", true)]));
        assert_eq!(cut("[<e>][<e>]"), own(&[("<e>", false), ("<e>", false)]));
        // A template has cut the text: the rest after an open mark is untrusted, and a lone closing
        // mark has no effect.
        assert_eq!(cut("a[<e"), own(&[("a", true), ("<e", false)]));
        assert_eq!(cut(">]b"), own(&[(">", true), ("b", true)]));
        assert_eq!(cut(""), own(&[]));
        assert_eq!(without_marks(&marked("a[<e>]b")), "a<e>b");
        assert!(is_marked(&marked("[")) && !is_marked("<e>"));
    }
}

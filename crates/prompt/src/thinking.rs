//! The tags around thoughts, as templates show them.

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

/// Tags that templates put together or do not write: what shows them, and the tags.
const SHOWN_OTHERWISE: [(&str, &str, &str); 3] = [
    ("</think{}>'.format(", "<think:opensource>", "</think:opensource>"),
    ("close_tag('think')", "<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("[BEGIN FINAL RESPONSE]", "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
];

pub(crate) fn tags_in_jinja(source: &str) -> Option<ThinkTags> {
    let written = KNOWN.into_iter().find(|(_, close)| source.contains(close));
    let shown = || SHOWN_OTHERWISE.into_iter().find(|(mark, ..)| source.contains(mark));
    let (open, close) = written.or_else(|| shown().map(|(_, open, close)| (open, close)))?;
    Some(ThinkTags { open: open.into(), close: close.into() })
}

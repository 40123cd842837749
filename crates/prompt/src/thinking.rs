//! Detects the think tags of a template.

/// The tags around reasoning in a model's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThinkTags {
    /// Opening tag, such as `<think>`.
    pub open: String,
    /// Closing tag, such as `</think>`.
    pub close: String,
}

/// Tags of known chat templates. A template is recognized by the closing tag, since often only the
/// model writes the opening tag.
const KNOWN_TAGS: [(&str, &str); 8] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|channel>thought", "<channel|>"),
];

/// Tags that a template composes or does not contain: a source snippet that identifies them,
/// opening tag, closing tag.
const INDIRECT_TAGS: [(&str, &str, &str); 3] = [
    ("</think{}>'.format(", "<think:opensource>", "</think:opensource>"),
    ("close_tag('think')", "<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("[BEGIN FINAL RESPONSE]", "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
];

pub(crate) fn tags_in_jinja(source: &str) -> Option<ThinkTags> {
    let literal = KNOWN_TAGS.into_iter().find(|(_, close)| source.contains(close));
    let indirect = || INDIRECT_TAGS.into_iter().find(|(snippet, ..)| source.contains(snippet));
    let (open, close) = literal.or_else(|| indirect().map(|(_, open, close)| (open, close)))?;
    Some(ThinkTags { open: open.into(), close: close.into() })
}

//! Image tags in the text: `[img-0]`, `[img-1]`, …, numbered over the conversation.

use std::borrow::Cow;

use crate::message::Message;

/// How a format handles images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ImageTags {
    /// Images are not supported.
    Unsupported,
    /// Tags are inserted into the content.
    Inline,
    /// Like [`ImageTags::Inline`]; contents except the assistant's are trimmed first.
    InlineTrimmed,
}

/// Inserts the image tags into the messages.
pub(super) fn insert_tags(messages: Cow<'_, [Message]>, images: ImageTags) -> Cow<'_, [Message]> {
    if images == ImageTags::Unsupported || messages.iter().all(|m| m.images.is_empty()) {
        return messages;
    }
    let mut messages = messages.into_owned();
    let mut next = 0;
    for message in messages.iter_mut().filter(|m| !m.images.is_empty()) {
        let trims = images == ImageTags::InlineTrimmed && message.role != "assistant";
        let content = if trims { message.content.trim() } else { &message.content };
        message.content = with_tags(content, next, message.images.len());
        next += message.images.len();
    }
    Cow::Owned(messages)
}

/// Replaces `[img]` by the tags of `count` images, numbered from `first`. Further tags are put in
/// front. A text that already contains numbered tags stays unchanged.
fn with_tags(content: &str, first: usize, count: usize) -> String {
    if content.contains("[img-") {
        return content.to_owned();
    }
    let mut tags = (first..first + count).map(|n| format!("[img-{n}]"));
    let mut pieces = content.split("[img]");
    let mut body = String::from(pieces.next().unwrap_or_default());
    for piece in pieces {
        body.push_str(tags.next().as_deref().unwrap_or("[img]"));
        body.push_str(piece);
    }
    let mut front: String = tags.collect();
    if !front.is_empty() && body.starts_with(|c: char| !c.is_whitespace()) {
        front.push(' ');
    }
    front + &body
}

#[cfg(test)]
mod tests {
    use super::with_tags;

    #[test]
    fn tags_replace_placeholders_and_the_rest_is_put_in_front() {
        assert_eq!(with_tags("a [img] b", 3, 1), "a [img-3] b");
        assert_eq!(with_tags("a [img] b", 3, 2), "[img-4] a [img-3] b");
        assert_eq!(with_tags("a [img] [img]", 0, 1), "a [img-0] [img]");
        assert_eq!(with_tags(" a", 0, 2), "[img-0][img-1] a");
        assert_eq!(with_tags("", 0, 1), "[img-0]");
        assert_eq!(with_tags("see [img-7]", 0, 2), "see [img-7]");
    }
}

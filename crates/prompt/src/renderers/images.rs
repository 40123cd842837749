//! Places of images in the text: `[img-0]`, `[img-1]`, … over the whole conversation.

use std::borrow::Cow;

use crate::message::Message;

/// What a format does with images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Images {
    /// It has no place for them.
    Ignored,
    /// Their tags are put into the content as it stands.
    Tagged,
    /// Contents other than the assistant's are trimmed first.
    TaggedAfterTrim,
}

/// Messages with the tags of their images.
pub(super) fn tagged(messages: Cow<'_, [Message]>, images: Images) -> Cow<'_, [Message]> {
    if images == Images::Ignored || messages.iter().all(|m| m.images.is_empty()) {
        return messages;
    }
    let mut messages = messages.into_owned();
    let mut next = 0;
    for message in messages.iter_mut().filter(|m| !m.images.is_empty()) {
        let trims = images == Images::TaggedAfterTrim && message.role != "assistant";
        let content = if trims { message.content.trim() } else { &message.content };
        message.content = with_tags(content, next, message.images.len());
        next += message.images.len();
    }
    Cow::Owned(messages)
}

/// Puts the tags of `count` images, numbered from `first`, in the places of `[img]`; those left over go to the front.
/// A text that names its images by number already stays as it is.
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
    fn tags_take_their_places_and_the_rest_goes_to_the_front() {
        assert_eq!(with_tags("a [img] b", 3, 1), "a [img-3] b");
        assert_eq!(with_tags("a [img] b", 3, 2), "[img-4] a [img-3] b");
        assert_eq!(with_tags("a [img] [img]", 0, 1), "a [img-0] [img]");
        assert_eq!(with_tags(" a", 0, 2), "[img-0][img-1] a");
        assert_eq!(with_tags("", 0, 1), "[img-0]");
        assert_eq!(with_tags("see [img-7]", 0, 2), "see [img-7]");
    }
}

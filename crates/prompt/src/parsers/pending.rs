//! Buffers output that a parser cannot classify yet.
//!
//! The result of a parser depends only on the whole text, not on how the stream was split. Text
//! therefore leaves this buffer only when later text can no longer change its meaning. Searches
//! resume where they stopped, so that the cost of a text does not depend on the size of its pieces.

/// Consumed bytes at the front of the buffer before they are removed.
const COMPACT_AFTER_BYTES: usize = 4096;

/// The end of the stream that is not classified yet.
#[derive(Debug, Clone, Default)]
pub(super) struct PendingText {
    text: String,
    /// Start of the undecided text.
    start: usize,
    /// Bytes of the undecided text that the current search has examined.
    search_position: usize,
    /// The stream was cut by a limit or a stop string; the model did not end it.
    is_truncated: bool,
}

/// Result of a search for tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TagMatch {
    /// Tag number `tag` starts at `at`.
    Tag { at: usize, tag: usize },
    /// A tag may start at `at`: the text ends inside it.
    Partial(usize),
    /// No tag.
    None,
}

/// Text that is released, see [`PendingText::release`].
#[derive(Debug, Default)]
pub(super) struct ReleasedText {
    /// The text.
    pub(super) text: String,
    /// The tag behind the text, which is consumed as well.
    pub(super) tag: Option<usize>,
}

impl PendingText {
    /// Marks the stream as cut before the model ended it.
    pub(super) fn set_truncated(&mut self) {
        self.is_truncated = true;
    }

    /// Returns true if the stream was cut before the model ended it.
    pub(super) fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// Appends the next piece of output.
    pub(super) fn push(&mut self, piece: &str) {
        if self.start > COMPACT_AFTER_BYTES && self.start > self.text.len() / 2 {
            self.text.drain(..self.start);
            self.start = 0;
        }
        self.text.push_str(piece);
    }

    /// The undecided text.
    pub(super) fn rest(&self) -> &str {
        &self.text[self.start..]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.text.len()
    }

    /// Removes and returns the first `bytes` bytes, and restarts the search.
    pub(super) fn take(&mut self, bytes: usize) -> &str {
        let from = self.start;
        self.start += bytes;
        self.search_position = 0;
        &self.text[from..self.start]
    }

    /// Removes and returns all text.
    pub(super) fn take_all(&mut self) -> String {
        let rest = self.rest().to_owned();
        self.take(rest.len());
        rest
    }

    /// Removes leading white space. Returns true if other text follows.
    pub(super) fn skip_blank(&mut self) -> bool {
        let rest = self.rest();
        let blank = rest.len() - rest.trim_start().len();
        if blank > 0 {
            self.take(blank);
        }
        !self.is_empty()
    }

    /// Removes leading white space if `trim` is set. Clears `trim` and returns true once other text
    /// follows.
    pub(super) fn trim_start_if(&mut self, trim: &mut bool) -> bool {
        *trim = *trim && !self.skip_blank();
        !*trim
    }

    /// Offset of the first character that is not white space.
    pub(super) fn first_non_blank(&mut self) -> Option<usize> {
        let rest = &self.text[self.start + self.search_position..];
        self.search_position += rest.len() - rest.trim_start().len();
        Some(self.search_position).filter(|at| self.start + at < self.text.len())
    }

    /// Offset at which the current search resumes.
    pub(super) fn search_position(&self) -> usize {
        self.search_position
    }

    /// Sets the offset at which the next search starts.
    pub(super) fn set_search_position(&mut self, search_position: usize) {
        self.search_position = search_position;
    }

    /// Searches for the first of some non-empty tags.
    pub(super) fn find(&mut self, tags: &[&str]) -> TagMatch {
        let found = first_tag(self.rest(), self.search_position, tags);
        match found {
            TagMatch::Tag { .. } => {}
            TagMatch::Partial(at) => self.search_position = at,
            TagMatch::None => self.search_position = self.rest().len(),
        }
        found
    }

    /// Releases text up to the first of some tags, and consumes the tag. Without a tag, releases
    /// all text that cannot be part of one. White space before a possible tag is held back, since
    /// the caller may trim it. Tags must not start with white space.
    pub(super) fn release(&mut self, tags: &[&str]) -> ReleasedText {
        self.release_until(tags, true)
    }

    /// Like [`release`](Self::release), but does not hold back white space.
    pub(super) fn release_with_blanks(&mut self, tags: &[&str]) -> ReleasedText {
        self.release_until(tags, false)
    }

    fn release_until(&mut self, tags: &[&str], hold_blank: bool) -> ReleasedText {
        let blank_end = self.search_position;
        let end = match self.find(tags) {
            TagMatch::Tag { at, tag } => {
                let text = self.take(at).to_owned();
                self.take(tags[tag].len());
                return ReleasedText { text, tag: Some(tag) };
            }
            TagMatch::Partial(at) => at,
            TagMatch::None => self.rest().len(),
        };
        let text = &self.rest()[blank_end..end];
        let non_blank = if hold_blank { text.trim_end().len() } else { text.len() };
        if non_blank == 0 {
            self.search_position = end;
            return ReleasedText::default();
        }
        let text = self.take(blank_end + non_blank).to_owned();
        self.search_position = end - text.len();
        ReleasedText { text, tag: None }
    }

    /// Removes and returns the text before a tag, and the tag, once the tag has arrived.
    pub(super) fn take_through(&mut self, tag: &str) -> Option<String> {
        self.take_through_any(&[tag]).map(|(text, _)| text)
    }

    /// Like [`take_through`](Self::take_through), for the first of some tags.
    pub(super) fn take_through_any(&mut self, tags: &[&str]) -> Option<(String, usize)> {
        match self.find(tags) {
            TagMatch::Tag { at, tag } => {
                let text = self.take(at).to_owned();
                self.take(tags[tag].len());
                Some((text, tag))
            }
            _ => None,
        }
    }
}

/// The first of some tags in `text[from..]`; of several at one offset, the shortest. A tag that is
/// incomplete at the end of the text is a [`TagMatch::Partial`].
pub(super) fn first_tag(text: &str, from: usize, tags: &[&str]) -> TagMatch {
    let bytes = text.as_bytes();
    let mut heads = [false; 256];
    for tag in tags {
        heads[usize::from(tag.as_bytes()[0])] = true;
    }
    for at in (from..bytes.len()).filter(|at| heads[usize::from(bytes[*at])]) {
        let rest = &bytes[at..];
        let here = tags.iter().enumerate().filter(|(_, tag)| rest.starts_with(tag.as_bytes()));
        if let Some((tag, _)) = here.min_by_key(|(_, tag)| tag.len()) {
            return TagMatch::Tag { at, tag };
        }
        if tags.iter().any(|tag| tag.as_bytes().starts_with(rest)) {
            return TagMatch::Partial(at);
        }
    }
    TagMatch::None
}

/// Finds the end of a JSON object or list incrementally, by counting brackets.
#[derive(Debug, Clone, Default)]
pub(super) struct BracketMatcher {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl BracketMatcher {
    /// State inside one bracket that precedes the text.
    pub(super) fn inside_bracket() -> Self {
        Self { depth: 1, ..Self::default() }
    }

    /// Returns true if a JSON text ends inside a string.
    pub(super) fn ends_in_string(mut text: &str) -> bool {
        let mut brackets = Self::default();
        while let Some(end) = brackets.find_end(text) {
            text = &text[end..];
        }
        brackets.in_string
    }

    /// Continues with `text`. Returns the number of bytes through the bracket that closes the first
    /// one.
    pub(super) fn find_end(&mut self, text: &str) -> Option<usize> {
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' if self.depth > 0 => self.in_string = !self.in_string,
                b'{' | b'[' if !self.in_string => self.depth += 1,
                b'}' | b']' if !self.in_string && self.depth > 0 => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Some(at + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

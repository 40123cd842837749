//! Text that came and is not decided on yet.
//!
//! Every parser is a function of the whole text: how the stream was cut never changes a result, because text leaves here
//! only once no further text can change what it is. All searches remember how far they came, so that a text costs the
//! same in one piece as in pieces of one character.

/// Below this, the front of the buffer is not worth moving.
const SLACK: usize = 4096;

/// The tail of the stream.
#[derive(Debug, Clone, Default)]
pub(super) struct Pending {
    text: String,
    /// Where the undecided text begins.
    start: usize,
    /// Bytes of the undecided text that the current search has been through.
    seen: usize,
    /// Whether it ends because it was broken off, and not by the model.
    cut: bool,
}

/// What a search found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Tag number `tag` stands at `at`.
    Tag { at: usize, tag: usize },
    /// A tag may begin at `at`.
    Perhaps(usize),
    /// There is none.
    None,
}

/// Text that has left, see [`Pending::flow`].
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// The text.
    pub(super) text: String,
    /// The tag behind it, which has left as well.
    pub(super) tag: Option<usize>,
}

impl Pending {
    /// Says that it was broken off.
    pub(super) fn cut(&mut self) {
        self.cut = true;
    }

    /// Whether the model would have gone on.
    pub(super) fn is_cut(&self) -> bool {
        self.cut
    }

    /// Adds the next piece of output.
    pub(super) fn push(&mut self, piece: &str) {
        if self.start > SLACK && self.start > self.text.len() / 2 {
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

    /// Removes the first `bytes` bytes, and gives them; a new search begins.
    pub(super) fn take(&mut self, bytes: usize) -> &str {
        let from = self.start;
        self.start += bytes;
        self.seen = 0;
        &self.text[from..self.start]
    }

    /// Removes everything.
    pub(super) fn take_all(&mut self) -> String {
        let rest = self.rest().to_owned();
        self.take(rest.len());
        rest
    }

    /// Removes white space at the front; true if something else is there.
    pub(super) fn skip_blank(&mut self) -> bool {
        let rest = self.rest();
        let blank = rest.len() - rest.trim_start().len();
        if blank > 0 {
            self.take(blank);
        }
        !self.is_empty()
    }

    /// Removes white space at the front where that is to `trim`, which is over then; false if nothing else is there yet.
    pub(super) fn trimmed(&mut self, trim: &mut bool) -> bool {
        *trim = *trim && !self.skip_blank();
        !*trim
    }

    /// Where the first character stands that is not white space; `None` if there is none yet.
    pub(super) fn first_solid(&mut self) -> Option<usize> {
        let rest = &self.text[self.start + self.seen..];
        self.seen += rest.len() - rest.trim_start().len();
        Some(self.seen).filter(|at| self.start + at < self.text.len())
    }

    /// What the current search has been through.
    pub(super) fn seen(&self) -> usize {
        self.seen
    }

    /// Lets the next search begin at `seen`.
    pub(super) fn set_seen(&mut self, seen: usize) {
        self.seen = seen;
    }

    /// Searches the first of some tags, which are not empty.
    pub(super) fn find(&mut self, tags: &[&str]) -> Found {
        let found = first_tag(self.rest(), self.seen, tags);
        match found {
            Found::Tag { .. } => {}
            Found::Perhaps(at) => self.seen = at,
            Found::None => self.seen = self.rest().len(),
        }
        found
    }

    /// Text up to the first of some tags: with the tag if it is there, otherwise as much as cannot belong to one. White
    /// space before what may become a tag stays, as it may have to be trimmed. Tags must not begin with white space.
    pub(super) fn flow(&mut self, tags: &[&str]) -> Flow {
        self.flow_until(tags, true)
    }

    /// As [`flow`](Self::flow), without holding white space back.
    pub(super) fn flow_blank(&mut self, tags: &[&str]) -> Flow {
        self.flow_until(tags, false)
    }

    fn flow_until(&mut self, tags: &[&str], hold_blank: bool) -> Flow {
        let known_blank = self.seen;
        let end = match self.find(tags) {
            Found::Tag { at, tag } => {
                let text = self.take(at).to_owned();
                self.take(tags[tag].len());
                return Flow { text, tag: Some(tag) };
            }
            Found::Perhaps(at) => at,
            Found::None => self.rest().len(),
        };
        let text = &self.rest()[known_blank..end];
        let solid = if hold_blank { text.trim_end().len() } else { text.len() };
        if solid == 0 {
            self.seen = end;
            return Flow::default();
        }
        let text = self.take(known_blank + solid).to_owned();
        self.seen = end - text.len();
        Flow { text, tag: None }
    }

    /// Everything up to a tag, without the tag, once it is there; nothing leaves before.
    pub(super) fn take_through(&mut self, tag: &str) -> Option<String> {
        self.take_through_any(&[tag]).map(|(text, _)| text)
    }

    /// As [`take_through`](Self::take_through), for the first of some tags.
    pub(super) fn take_through_any(&mut self, tags: &[&str]) -> Option<(String, usize)> {
        match self.find(tags) {
            Found::Tag { at, tag } => {
                let text = self.take(at).to_owned();
                self.take(tags[tag].len());
                Some((text, tag))
            }
            _ => None,
        }
    }
}

/// The first of some tags in `text[from..]`; of those at one place, the shortest. A tag that the text breaks off in
/// counts as one that may come.
pub(super) fn first_tag(text: &str, from: usize, tags: &[&str]) -> Found {
    let bytes = text.as_bytes();
    let mut heads = [false; 256];
    for tag in tags {
        heads[usize::from(tag.as_bytes()[0])] = true;
    }
    for at in (from..bytes.len()).filter(|at| heads[usize::from(bytes[*at])]) {
        let rest = &bytes[at..];
        let here = tags.iter().enumerate().filter(|(_, tag)| rest.starts_with(tag.as_bytes()));
        if let Some((tag, _)) = here.min_by_key(|(_, tag)| tag.len()) {
            return Found::Tag { at, tag };
        }
        if tags.iter().any(|tag| tag.as_bytes().starts_with(rest)) {
            return Found::Perhaps(at);
        }
    }
    Found::None
}

/// Finds the end of a JSON object or list by its brackets, as text comes in.
#[derive(Debug, Clone, Default)]
pub(super) struct Brackets {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Brackets {
    /// Inside of one bracket, which stands before the text.
    pub(super) fn inside() -> Self {
        Self { depth: 1, ..Self::default() }
    }

    /// Whether some JSON breaks off in a string.
    pub(super) fn end_in_string(mut text: &str) -> bool {
        let mut brackets = Self::default();
        while let Some(end) = brackets.end(text) {
            text = &text[end..];
        }
        brackets.in_string
    }

    /// Goes on with `text`; the number of bytes up to and with the bracket that closes the first one.
    pub(super) fn end(&mut self, text: &str) -> Option<usize> {
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

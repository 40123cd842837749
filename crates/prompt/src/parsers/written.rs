//! How a template writes the arguments of a call where they are no JSON object: found out by rendering calls with it.

use serde_json::{Map, Value as Json, json};

use super::forced::Writes;
use super::shapes::TOOL;

/// How the values of arguments are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Style {
    /// Strings as their bare text, everything else as JSON.
    Bare,
    /// As JSON.
    Json,
    /// Like JSON, with bare keys and this around strings.
    Quoted(String),
}

/// Kinds of values. A template may write the arguments of each in another way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// A string.
    Text,
    /// A number.
    Number,
    /// True or false.
    Boolean,
    /// Null.
    Null,
    /// A list.
    List,
    /// An object.
    Object,
}

impl ValueKind {
    /// Text comes first.
    pub const ALL: [Self; 6] =
        [Self::Text, Self::Number, Self::Boolean, Self::Null, Self::List, Self::Object];

    fn sample(self) -> Json {
        match self {
            Self::Text => json!("x y"),
            Self::Number => json!(7),
            Self::Boolean => json!(true),
            Self::Null => Json::Null,
            Self::List => json!([7]),
            Self::Object => json!({"k": 7}),
        }
    }

    /// What the sample may be written as.
    fn spellings(self, style: &Style) -> Vec<String> {
        let all: &[&str] = match (self, style) {
            (Self::Text, Style::Bare) => &["x y"],
            (Self::Text, Style::Json) => &["\"x y\"", "'x y'"],
            (Self::Text, Style::Quoted(quote)) => return vec![format!("{quote}x y{quote}")],
            (Self::Number, _) => &["7"],
            (Self::Boolean, _) => &["true", "True"],
            (Self::Null, _) => &["null", "None"],
            (Self::List, _) => &["[7]"],
            (Self::Object, _) => &["{\"k\": 7}", "{\"k\":7}", "{'k': 7}", "{k:7}"],
        };
        all.iter().map(|text| (*text).to_owned()).collect()
    }
}

/// What stands between an argument's name and its value, and behind the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Behind the name.
    pub before: String,
    after: String,
}

/// In [`Frame::after`], the name of the argument.
const NAME: char = '\0';

impl Frame {
    /// Behind the value of an argument of this name.
    pub fn after(&self, name: &str) -> String {
        self.after.replace(NAME, name)
    }
}

/// The arguments of a call: `head`, a name, its frame with the value in it, `link`, the next name …, `close`; or `empty`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// How values are written.
    pub style: Style,
    /// Between the function's name and the name of the first argument.
    pub head: String,
    /// Between an argument and the name of the next one.
    pub link: String,
    /// Behind the last argument.
    pub close: String,
    /// What stands there in place of arguments if there are none.
    pub empty: String,
    /// Texts that no value can hold.
    pub barred: Vec<String>,
    frames: Vec<(ValueKind, Frame)>,
}

const FIRST: &str = "puna_key_a";
const SECOND: &str = "puna_key_b";

/// The tool of the probes.
pub(super) fn tool() -> Json {
    json!({"type": "function", "function": {"name": TOOL, "description": "", "parameters": {
        "type": "object", "required": [], "properties": {
            FIRST: {"type": ["string", "number", "boolean", "null", "array", "object"], "description": ""},
            SECOND: {"type": "integer", "description": ""},
        },
    }}})
}

/// An argument's parts in the text of a call.
struct Probe {
    head: String,
    frame: Frame,
    link: String,
    close: String,
}

impl Written {
    /// How `writes` writes arguments behind a function's name, if values have this style; `None` where that cannot be told.
    pub(super) fn of(style: Style, barred: Vec<String>, writes: &dyn Writes) -> Option<Self> {
        let number = probe(ValueKind::Number, &style, writes)?;
        let text = probe(ValueKind::Text, &style, writes)?;
        let is_alike = |other: &Probe| {
            (&other.head, &other.link, &other.close) == (&number.head, &number.link, &number.close)
        };
        if !is_alike(&text) {
            return None;
        }
        let mut frames =
            vec![(ValueKind::Text, text.frame), (ValueKind::Number, number.frame.clone())];
        for kind in &ValueKind::ALL[2..] {
            let own = probe(*kind, &style, writes).filter(is_alike);
            frames.push((*kind, own.map_or_else(|| number.frame.clone(), |own| own.frame)));
        }
        let Probe { head, link, close, .. } = number;
        let empty = writes.behind_name(&Map::new())?;
        let written = Self { style, head, link, close, empty, barred, frames };
        let two = json!({FIRST: "x y", SECOND: 7});
        let texts = [(FIRST, ValueKind::Text, "x y"), (SECOND, ValueKind::Number, "7")];
        let is_read = |text: &str, arguments: &Json| writes.is_read(text, arguments);
        let reads = is_read(&written.empty, &json!({})) && is_read(&written.write(&texts), &two);
        reads.then_some(written)
    }

    /// What stands around a value.
    pub fn frame(&self, kind: ValueKind) -> &Frame {
        let found = self.frames.iter().find(|(known, _)| *known == kind);
        &found.unwrap_or(&self.frames[0]).1
    }

    /// Arguments of these names, kinds and values, the texts of strings without quotes.
    pub fn write(&self, arguments: &[(&str, ValueKind, &str)]) -> String {
        let mut text = String::new();
        for (name, kind, value) in arguments {
            let frame = self.frame(*kind);
            text += if text.is_empty() { &self.head } else { &self.link };
            let quote = match (&self.style, kind) {
                (Style::Json, ValueKind::Text) => "\"",
                (Style::Quoted(quote), ValueKind::Text) => quote,
                _ => "",
            };
            text += &format!("{name}{}{quote}{value}{quote}{}", frame.before, frame.after(name));
        }
        if text.is_empty() { self.empty.clone() } else { text + &self.close }
    }
}

/// Renders a call with one argument and one with two, and takes them apart.
fn probe(kind: ValueKind, style: &Style, writes: &dyn Writes) -> Option<Probe> {
    let mut arguments = Map::new();
    arguments.insert(FIRST.to_owned(), kind.sample());
    let alone = writes.behind_name(&arguments)?;
    arguments.insert(SECOND.to_owned(), json!(7));
    let beside = writes.behind_name(&arguments)?;
    let (head, rest) = alone.split_once(FIRST)?;
    let (before, tail) = split_at_value(rest, kind, style)?;
    let (head2, rest) = beside.split_once(FIRST)?;
    let (before2, rest) = split_at_value(rest, kind, style)?;
    let (joint, _) = rest.split_once(SECOND)?;
    if (head, before) != (head2, before2) {
        return None;
    }
    let end = common_beginning(joint, tail);
    Some(Probe {
        head: head.to_owned(),
        frame: Frame {
            before: before.to_owned(),
            after: joint[..end].replace(FIRST, &NAME.to_string()),
        },
        link: joint[end..].to_owned(),
        close: tail[end..].to_owned(),
    })
}

/// What stands before a value and behind it.
fn split_at_value<'t>(text: &'t str, kind: ValueKind, style: &Style) -> Option<(&'t str, &'t str)> {
    let spellings = kind.spellings(style);
    let found =
        spellings.iter().filter_map(|value| Some((text.find(value.as_str())?, value.len())));
    let (at, length) = found.min_by_key(|(at, length)| (*at, usize::MAX - length))?;
    Some((&text[..at], &text[at + length..]))
}

/// The length of what two texts have in common at their beginning, without half a tag.
fn common_beginning(a: &str, b: &str) -> usize {
    let same = a.char_indices().zip(b.chars()).take_while(|((_, a), b)| a == b);
    let end = same.last().map_or(0, |((at, c), _)| at + c.len_utf8());
    whole_tags(&a[..end])
}

/// The length of a text without a tag that it breaks off in.
pub(super) fn whole_tags(text: &str) -> usize {
    let tag = text.rfind(['<', '[']).filter(|at| !text[*at..].contains(['>', ']']));
    tag.unwrap_or(text.len())
}

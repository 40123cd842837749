//! Detects how a template writes call arguments that are not a JSON object, by rendering calls with
//! it.

use serde_json::{Map, Value as Json, json};

use super::probe_call::{PROBE_TOOL, whole_tags};
use super::value_style::ValueStyle;

/// Kind of an argument value. A template may write each kind differently.
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
    /// All kinds; `Text` comes first.
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

    /// Possible texts of the sample value.
    fn spellings(self, style: &ValueStyle) -> Vec<String> {
        let all: &[&str] = match (self, style) {
            (Self::Text, ValueStyle::Bare) => &["x y"],
            (Self::Text, ValueStyle::Json) => &["\"x y\"", "'x y'"],
            (Self::Text, ValueStyle::Quoted(quote)) => return vec![format!("{quote}x y{quote}")],
            (Self::Number, _) => &["7"],
            (Self::Boolean, _) => &["true", "True"],
            (Self::Null, _) => &["null", "None"],
            (Self::List, _) => &["[7]"],
            (Self::Object, _) => &["{\"k\": 7}", "{\"k\":7}", "{'k': 7}", "{k:7}"],
        };
        all.iter().map(|text| (*text).to_owned()).collect()
    }
}

/// Text around the value of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueFrame {
    /// Between the name and the value.
    pub before: String,
    after: String,
}

/// Placeholder of the argument's name in [`ValueFrame::after`].
const NAME_PLACEHOLDER: char = '\0';

impl ValueFrame {
    /// Text behind the value of the argument `name`.
    pub fn after(&self, name: &str) -> String {
        self.after.replace(NAME_PLACEHOLDER, name)
    }
}

/// Syntax of an argument list: `head`, name, value in its frame, `link`, next name, …, `close`.
/// Without arguments: `empty`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArgumentListFormat {
    /// How values are written.
    pub style: ValueStyle,
    /// Between the function's name and the first argument's name.
    pub head: String,
    /// Between an argument and the next argument's name.
    pub link: String,
    /// Behind the last argument.
    pub close: String,
    /// Text of an empty argument list.
    pub empty: String,
    /// Texts that a value must not contain.
    pub forbidden: Vec<String>,
    frames: Vec<(ValueKind, ValueFrame)>,
}

const FIRST_KEY: &str = "puna_key_a";
const SECOND_KEY: &str = "puna_key_b";

/// The tool of probe calls.
pub(super) fn probe_tool() -> Json {
    json!({"type": "function", "function": {"name": PROBE_TOOL, "description": "", "parameters": {
        "type": "object", "required": [], "properties": {
            FIRST_KEY: {"type": ["string", "number", "boolean", "null", "array", "object"], "description": ""},
            SECOND_KEY: {"type": "integer", "description": ""},
        },
    }}})
}

/// A template that writes calls, with the parser of these calls.
pub(super) trait CallWriter {
    /// Text that the template writes behind the function's name.
    fn text_after_name(&self, arguments: &Map<String, Json>) -> Option<String>;

    /// Returns true if the parser reads `text`, written behind the function's name, as a call with
    /// these arguments.
    fn parses_as(&self, text: &str, arguments: &Json) -> bool;
}

/// Parts of a rendered probe call.
struct Probe {
    head: String,
    frame: ValueFrame,
    link: String,
    close: String,
}

impl ArgumentListFormat {
    /// Detects the syntax in which `writer` writes arguments with values of this style. Returns
    /// `None` if it cannot be detected.
    pub(super) fn probe(
        style: ValueStyle,
        forbidden: Vec<String>,
        writer: &dyn CallWriter,
    ) -> Option<Self> {
        let number = probe(ValueKind::Number, &style, writer)?;
        let text = probe(ValueKind::Text, &style, writer)?;
        let has_same_frame = |other: &Probe| {
            (&other.head, &other.link, &other.close) == (&number.head, &number.link, &number.close)
        };
        if !has_same_frame(&text) {
            return None;
        }
        let mut frames =
            vec![(ValueKind::Text, text.frame), (ValueKind::Number, number.frame.clone())];
        for kind in &ValueKind::ALL[2..] {
            let own = probe(*kind, &style, writer).filter(has_same_frame);
            frames.push((*kind, own.map_or_else(|| number.frame.clone(), |own| own.frame)));
        }
        let Probe { head, link, close, .. } = number;
        let empty = writer.text_after_name(&Map::new())?;
        let format = Self { style, head, link, close, empty, forbidden, frames };
        let two = json!({FIRST_KEY: "x y", SECOND_KEY: 7});
        let texts = [(FIRST_KEY, ValueKind::Text, "x y"), (SECOND_KEY, ValueKind::Number, "7")];
        let parses_as = |text: &str, arguments: &Json| writer.parses_as(text, arguments);
        let is_readable =
            parses_as(&format.empty, &json!({})) && parses_as(&format.write(&texts), &two);
        is_readable.then_some(format)
    }

    /// Text around values of this kind.
    pub fn frame(&self, kind: ValueKind) -> &ValueFrame {
        let found = self.frames.iter().find(|(known, _)| *known == kind);
        &found.unwrap_or(&self.frames[0]).1
    }

    /// Writes arguments of these names, kinds and values. Strings are given without quotes.
    pub fn write(&self, arguments: &[(&str, ValueKind, &str)]) -> String {
        let mut text = String::new();
        for (name, kind, value) in arguments {
            let frame = self.frame(*kind);
            text += if text.is_empty() { &self.head } else { &self.link };
            let quote = match (&self.style, kind) {
                (ValueStyle::Json, ValueKind::Text) => "\"",
                (ValueStyle::Quoted(quote), ValueKind::Text) => quote,
                _ => "",
            };
            text += &format!("{name}{}{quote}{value}{quote}{}", frame.before, frame.after(name));
        }
        if text.is_empty() { self.empty.clone() } else { text + &self.close }
    }
}

/// Renders a call with one argument and one with two, and splits them into their parts.
fn probe(kind: ValueKind, style: &ValueStyle, writer: &dyn CallWriter) -> Option<Probe> {
    let mut arguments = Map::new();
    arguments.insert(FIRST_KEY.to_owned(), kind.sample());
    let one = writer.text_after_name(&arguments)?;
    arguments.insert(SECOND_KEY.to_owned(), json!(7));
    let both = writer.text_after_name(&arguments)?;
    let (head, rest) = one.split_once(FIRST_KEY)?;
    let (before, tail) = split_at_value(rest, kind, style)?;
    let (head2, rest) = both.split_once(FIRST_KEY)?;
    let (before2, rest) = split_at_value(rest, kind, style)?;
    let (between, _) = rest.split_once(SECOND_KEY)?;
    if (head, before) != (head2, before2) {
        return None;
    }
    let end = common_prefix(between, tail);
    Some(Probe {
        head: head.to_owned(),
        frame: ValueFrame {
            before: before.to_owned(),
            after: between[..end].replace(FIRST_KEY, &NAME_PLACEHOLDER.to_string()),
        },
        link: between[end..].to_owned(),
        close: tail[end..].to_owned(),
    })
}

/// Splits a text at its value: text before and behind it.
fn split_at_value<'t>(
    text: &'t str,
    kind: ValueKind,
    style: &ValueStyle,
) -> Option<(&'t str, &'t str)> {
    let spellings = kind.spellings(style);
    let found =
        spellings.iter().filter_map(|value| Some((text.find(value.as_str())?, value.len())));
    let (at, length) = found.min_by_key(|(at, length)| (*at, usize::MAX - length))?;
    Some((&text[..at], &text[at + length..]))
}

/// Length of the common prefix of two texts. It does not end inside a tag.
fn common_prefix(a: &str, b: &str) -> usize {
    let same = a.char_indices().zip(b.chars()).take_while(|((_, a), b)| a == b);
    let end = same.last().map_or(0, |((at, c), _)| at + c.len_utf8());
    whole_tags(&a[..end])
}

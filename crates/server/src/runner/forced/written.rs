//! The grammar of arguments that are written one by one, as values of their schemas.
//!
//! Strings that stand bare in the text, and what may stand in their place, are single terminals together with what ends them:
//! terminals are matched as far as they reach, so that a string would otherwise take its end for a part of it.

use std::collections::HashMap;
use std::fmt::Write;

use puna_prompt::{ArgumentListFormat, ValueFrame, ValueKind, ValueStyle};
use puna_sampler::{UnquotedString, lark_json, pattern_excluding};
use serde_json::{Value, json};

use super::literal;
use super::schemas::{Choice, Record, Schema, Schemas, all_of, bind_strings};

/// Names of further properties.
const OTHER_NAME: &str = "[a-zA-Z_][a-zA-Z0-9_-]{0,63}";

/// What readers of bare text take for something else than a string.
const NUMBER: &str = "\\s*[+-]?(?:[0-9]+\\.?[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?\\s*";
const BOOLEAN: &str = "\\s*(?:[tT][rR][uU][eE]|[fF][aA][lL][sS][eE])\\s*";
const NULL: &str = "\\s*[nN][uU][lL][lL]\\s*";
const BRACKETS: &str = "\\s*[\\[{](?s:.)*";

/// Values stand in each other so deep.
const DEPTH: usize = 64;
/// Values of different schemas at most.
const VALUES: usize = 2000;

/// What the parts of an object stand between.
struct Around<'a> {
    head: &'a str,
    link: &'a str,
    close: &'a str,
    empty: &'a str,
    /// The object is the arguments themselves.
    is_outer: bool,
}

pub(super) struct Rules<'a> {
    written: &'a ArgumentListFormat,
    schemas: Schemas<'a>,
    tags: &'a [(String, u32)],
    /// Before the numbers of rules and terminals.
    tool: usize,
    lark: String,
    count: usize,
    /// Rules of values that are written like JSON, by their schemas.
    known: HashMap<String, String>,
    /// How many values the one that is being made stands in.
    depth: usize,
}

/// The rule `name` of what stands behind the name of the tool with this number, and the rules that it needs.
///
/// # Errors
/// A sentence about parameters that there is no grammar for.
pub(super) fn rules(
    name: &str,
    tool: usize,
    written: &ArgumentListFormat,
    parameters: &Value,
    tags: &[(String, u32)],
) -> Result<String, String> {
    let schemas = Schemas::new(parameters);
    let (lark, known) = (String::new(), HashMap::new());
    let mut rules = Rules { written, schemas, tags, tool, lark, count: 0, known, depth: 0 };
    let ArgumentListFormat { head, link, close, empty, .. } = written;
    let around = Around { head, link, close, empty, is_outer: true };
    let body = rules.objects(&rules.schemas.choices(parameters)?, &around)?;
    Ok(format!("{name}: {body}\n{}", rules.lark))
}

/// The names of all arguments that are listed.
pub(super) fn names(parameters: &Value) -> Vec<String> {
    let choices = Schemas::new(parameters).choices(parameters).unwrap_or_default();
    let records = choices.iter().filter_map(|choice| Record::of(choice).ok());
    records.flat_map(|record| record.properties).map(|(name, _)| name).collect()
}

impl Rules<'_> {
    fn rule(&mut self, body: &str) -> String {
        let name = format!("t{}r{}", self.tool, self.count);
        self.count += 1;
        let _ = writeln!(self.lark, "{name}: {}", if body.is_empty() { "\"\"" } else { body });
        name
    }

    /// A terminal, which may be left out if it would be empty.
    fn text(&mut self, text: &UnquotedString<'_>) -> Result<String, String> {
        let (body, may_be_empty) = text.lark()?;
        let name = format!("T{}X{}", self.tool, self.count);
        self.count += 1;
        let _ = writeln!(self.lark, "{name}: {body}");
        Ok(if may_be_empty { name + "?" } else { name })
    }

    fn literal(&self, text: &str) -> String {
        literal(text, self.tags)
    }

    /// A text in two: up to the first control token, and from there on.
    fn split_at_tag<'t>(&self, text: &'t str) -> (&'t str, &'t str) {
        let at = self.tags.iter().filter_map(|(tag, _)| text.find(tag.as_str())).min();
        text.split_at(at.unwrap_or(text.len()))
    }

    /// The choice of those that may be objects.
    fn objects(&mut self, choices: &[Choice], around: &Around<'_>) -> Result<String, String> {
        let mut all = Vec::new();
        for choice in choices {
            if choice.types().is_none_or(|types| types.contains(&"object")) {
                let record = Record::of(choice)?;
                all.push(self.object(&record, around)?);
            }
        }
        if all.is_empty() { Err("no object fits them".into()) } else { Ok(all.join(" | ")) }
    }

    /// One property behind the other, in their order: `none` goes on where none has come yet, `some` behind one.
    fn object(&mut self, record: &Record, around: &Around<'_>) -> Result<String, String> {
        let mut some = self.literal(around.close);
        let mut none = Some(self.literal(around.empty));
        if let Some(more) = self.more(record, around)? {
            let again = self.rule(&format!("({} {more})*", self.literal(around.link)));
            let first = self.rule(&format!("{} {more} {again} {some}", self.literal(around.head)));
            none = none.map(|none| format!("{none} | {first}"));
            some = format!("{again} {some}");
        }
        for (name, schema) in record.properties.iter().rev() {
            let (item, is_required) = (self.item(name, schema, around)?, record.is_required(name));
            let Some(item) = item else {
                match is_required {
                    true => return Err(format!("no value fits {name:?}, which is required")),
                    false => continue,
                }
            };
            let after = self.rule(&some);
            let first = format!("{} {item} {after}", self.literal(around.head));
            none = match none {
                _ if is_required => Some(first),
                Some(none) => Some(format!("{first} | {}", self.rule(&none))),
                None => Some(first),
            };
            let next = format!("{} {item} {after}", self.literal(around.link));
            some = if is_required { next } else { format!("{next} | {after}") };
        }
        Ok(self.rule(&none.unwrap_or_default()))
    }

    /// A property with its value; `None` if there is no value for it.
    fn item(
        &mut self,
        name: &str,
        schema: &Value,
        around: &Around<'_>,
    ) -> Result<Option<String>, String> {
        if around.is_outer {
            let prefix = |rules: &Self, frame: &ValueFrame| {
                rules.literal(&format!("{name}{}", frame.before))
            };
            return self.framed(schema, name, &prefix);
        }
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
        {
            return Err(format!(
                "the name {name:?} cannot be written in this model's form of calls"
            ));
        }
        let value = self.value(schema)?;
        Ok(value.map(|value| format!("{} {value}", self.literal(&format!("{name}:")))))
    }

    /// A property that is not listed, with its value.
    fn more(&mut self, record: &Record, around: &Around<'_>) -> Result<Option<String>, String> {
        let Some(schema) = &record.more else { return Ok(None) };
        let is_named_again = self.written.frame(ValueKind::Text).after("a")
            != self.written.frame(ValueKind::Text).after("b");
        // What is closed by its own name cannot have any.
        if around.is_outer && is_named_again {
            return Ok(None);
        }
        let known: Vec<String> =
            record.properties.iter().map(|(name, _)| super::regex(name)).collect();
        let known =
            if known.is_empty() { String::new() } else { format!(" & ~/{}/", known.join("|")) };
        let key = format!("T{}X{}", self.tool, self.count);
        self.count += 1;
        let _ = writeln!(self.lark, "{key}: /{OTHER_NAME}/{known}");
        if around.is_outer {
            let prefix = |rules: &Self, frame: &ValueFrame| {
                format!("{key} {}", rules.literal(&frame.before))
            };
            return self.framed(schema, "", &prefix);
        }
        let value = self.value(schema)?;
        Ok(value.map(|value| format!("{key} \":\" {value}")))
    }

    /// An argument: its name, its value and what stands around that; `None` if there is no value for it.
    fn framed(
        &mut self,
        schema: &Value,
        name: &str,
        prefix: &dyn Fn(&Self, &ValueFrame) -> String,
    ) -> Result<Option<String>, String> {
        let written = self.written;
        if written.style == ValueStyle::Bare {
            return self.bare(schema, name, prefix);
        }
        let value = match written.style {
            ValueStyle::Json => Some(self.json(schema)?),
            _ => self.value(schema)?,
        };
        let frame = written.frame(ValueKind::Text);
        let value = value.map(|value| {
            format!("{} {value} {}", prefix(self, frame), self.literal(&frame.after(name)))
        });
        Ok(value.map(|value| self.rule(&value)))
    }

    fn json(&mut self, schema: &Value) -> Result<String, String> {
        let schema = match schema {
            Value::Bool(true) => json!({}),
            other => self.schemas.with_definitions(other.clone()),
        };
        let schema = match self.written.forbidden.as_slice() {
            [] => schema,
            barred => bind_strings(schema, &pattern_excluding(barred)),
        };
        let json = lark_json(&schema.into()).map_err(|e| e.to_string())?;
        Ok(self.rule(&json))
    }

    /// An argument whose strings are bare.
    fn bare(
        &mut self,
        schema: &Value,
        name: &str,
        prefix: &dyn Fn(&Self, &ValueFrame) -> String,
    ) -> Result<Option<String>, String> {
        let written = self.written;
        let choices = self.schemas.choices(schema)?;
        let types: Vec<Vec<&str>> =
            choices.iter().map(|c| c.types().unwrap_or_else(|| vec!["string"])).collect();
        let all: Vec<&str> = types.concat();
        let unlike = unlike(written.frame(ValueKind::Text), name, &all);
        let mut found = Vec::new();
        for (choice, types) in choices.iter().zip(&types) {
            for kind in ValueKind::ALL {
                let names: Vec<&str> =
                    types.iter().copied().filter(|name| kind_of(name) == kind).collect();
                // The wider type says both.
                let names = if names.contains(&"number") { vec!["number"] } else { names };
                if names.is_empty() {
                    continue;
                }
                let frame = written.frame(kind);
                let (before, after) = (prefix(self, frame), frame.after(name));
                let value = match kind {
                    ValueKind::Text => Some(self.bare_text(&choice.0, &unlike, &after)?),
                    ValueKind::List | ValueKind::Object => Some(format!(
                        "{} {}",
                        self.json(&choice.schema(&names))?,
                        self.literal(&after)
                    )),
                    _ if all.contains(&"string") => self.bare_word(choice, names[0], &after)?,
                    _ => Some(format!(
                        "{} {}",
                        self.json(&choice.schema(&names))?,
                        self.literal(&after)
                    )),
                };
                found.extend(value.map(|value| format!("{before} {value}")));
            }
        }
        Ok(if found.is_empty() { None } else { Some(self.rule(&found.join(" | "))) })
    }

    /// A bare string and what stands behind it.
    fn bare_text(
        &mut self,
        schemas: &[Schema],
        unlike: &Unlike,
        after: &str,
    ) -> Result<String, String> {
        let (end, rest) = self.split_at_tag(after);
        let plain = UnquotedString { schemas, ..UnquotedString::default() };
        let patterns = if plain.is_constrained() { &unlike.bound } else { &unlike.free };
        let patterns: Vec<&str> = patterns.iter().map(|pattern| &**pattern).collect();
        let barred = &self.written.forbidden;
        let text = self.text(&UnquotedString {
            schemas,
            excluded_patterns: &patterns,
            excluded_texts: barred,
            end,
        })?;
        Ok(format!("{text} {}", self.literal(rest)))
    }

    /// A value that is one word, where a string could stand as well, and what stands behind it.
    fn bare_word(
        &mut self,
        choice: &Choice,
        name: &str,
        after: &str,
    ) -> Result<Option<String>, String> {
        let (end, rest) = self.split_at_tag(after);
        let values =
            choice.0.iter().find_map(|schema| match (schema.get("const"), schema.get("enum")) {
                (Some(one), _) => Some(vec![one.clone()]),
                (None, Some(Value::Array(all))) => Some(all.clone()),
                _ => None,
            });
        let is_plain = choice.0.iter().all(|schema| {
            let bounds =
                ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
            !bounds.iter().any(|bound| schema.contains_key(*bound))
        });
        let texts = match (name, values) {
            (_, Some(values)) => {
                let fits = |value: &&Value| kind_of(name) == kind_of_value(value);
                let texts =
                    values.iter().filter(fits).map(|value| super::regex(&value.to_string()));
                texts.collect::<Vec<_>>().join("|")
            }
            ("null", _) => "null".to_owned(),
            ("boolean", _) => "true|false".to_owned(),
            ("integer", _) if is_plain => "-?(?:0|[1-9][0-9]{0,17})".to_owned(),
            ("number", _) if is_plain => "-?(?:0|[1-9][0-9]{0,17})(?:\\.[0-9]{1,17})?".to_owned(),
            // A string is written in its place.
            _ => return Ok(None),
        };
        if texts.is_empty() {
            return Ok(None);
        }
        let name = format!("T{}X{}", self.tool, self.count);
        self.count += 1;
        let _ = writeln!(self.lark, "{name}: /(?:{texts}){}/", super::regex(end));
        Ok(Some(format!("{name} {}", self.literal(rest))))
    }

    /// A value as the style of quoted strings has it; `None` if there is none.
    fn value(&mut self, schema: &Value) -> Result<Option<String>, String> {
        let key = schema.to_string();
        if let Some(rule) = self.known.get(&key) {
            return Ok(Some(rule.clone()));
        }
        // Before it is made: it may mention itself.
        let rule = format!("t{}v{}", self.tool, self.known.len());
        self.known.insert(key, rule.clone());
        if self.depth == DEPTH || self.known.len() > VALUES {
            return Err(format!(
                "properties and items stand in each other more than {DEPTH} times, or are more than {VALUES}"
            ));
        }
        self.depth += 1;
        let found = self.values(schema);
        self.depth -= 1;
        let found = found?;
        if found.is_empty() {
            return Ok(None);
        }
        let _ = writeln!(self.lark, "{rule}: {}", found.join(" | "));
        Ok(Some(rule))
    }

    /// The forms of a value, by its choices and types.
    fn values(&mut self, schema: &Value) -> Result<Vec<String>, String> {
        let mut found = Vec::new();
        for choice in self.schemas.choices(schema)? {
            let types = choice.types().unwrap_or_else(|| super::schemas::TYPES.to_vec());
            for name in
                types.iter().filter(|name| **name != "integer" || !types.contains(&"number"))
            {
                found.push(match *name {
                    "string" => self.quoted(&choice)?,
                    "array" => self.list(&choice)?,
                    "object" => {
                        let around = Around {
                            head: "{",
                            link: ",",
                            close: "}",
                            empty: "{}",
                            is_outer: false,
                        };
                        self.objects(std::slice::from_ref(&choice), &around)?
                    }
                    scalar => self.json(&choice.schema(&[scalar]))?,
                });
            }
        }
        Ok(found)
    }

    fn quoted(&mut self, choice: &Choice) -> Result<String, String> {
        let ValueStyle::Quoted(quote) = &self.written.style else {
            return Err("strings have no quotes".into());
        };
        let (end, rest) = self.split_at_tag(quote);
        let text = UnquotedString {
            schemas: &choice.0,
            excluded_patterns: &[],
            excluded_texts: &self.written.forbidden,
            end,
        };
        let text = self.text(&text)?;
        Ok(format!("{} {text} {}", self.literal(quote), self.literal(rest)))
    }

    fn list(&mut self, choice: &Choice) -> Result<String, String> {
        let not_kept = ["prefixItems", "contains", "additionalItems", "enum", "const"];
        if let Some(keyword) =
            not_kept.iter().find(|key| choice.0.iter().any(|s| s.contains_key(**key)))
        {
            return Err(format!(
                "{keyword} of a list cannot be kept in this model's form of calls"
            ));
        }
        if choice.0.iter().any(|schema| schema.get("uniqueItems") == Some(&Value::Bool(true))) {
            return Err("uniqueItems cannot be kept".into());
        }
        let items: Vec<&Value> = choice.0.iter().filter_map(|schema| schema.get("items")).collect();
        let items = all_of(items);
        let bound =
            |key| choice.0.iter().filter_map(move |schema| schema.get(key).and_then(Value::as_u64));
        let least = bound("minItems").max().unwrap_or(0);
        let most = bound("maxItems").min();
        let empty = "\"[]\"".to_owned();
        let Some(item) = self.value(&items)?.filter(|_| most != Some(0)) else {
            return if least == 0 {
                Ok(empty)
            } else {
                Err("a list that cannot be empty has no items".into())
            };
        };
        let most =
            most.map(|most| most.checked_sub(least.max(1)).ok_or("minItems is more than maxItems"));
        let times = match (least.saturating_sub(1), most.transpose()?) {
            (few, None) => format!("{{{few},}}"),
            (few, Some(more)) if few + more == 0 => String::new(),
            (few, Some(more)) => format!("{{{few},{}}}", few + more),
        };
        let further = if times.is_empty() { times } else { format!("(\",\" {item}){times}") };
        let full = format!("\"[\" {item} {further} \"]\"");
        Ok(if least == 0 { format!("({empty} | {full})") } else { full })
    }
}

/// What a bare string may not be, or its reader takes it for something else.
struct Unlike {
    free: Vec<String>,
    /// The same for strings that are bound to something, of which nothing may be taken away either.
    bound: Vec<String>,
}

fn unlike(frame: &ValueFrame, name: &str, types: &[&str]) -> Unlike {
    let may_be = |names: &[&str]| names.iter().any(|name| types.contains(name));
    let words = [
        (true, NULL),
        (may_be(&["integer", "number"]), NUMBER),
        (may_be(&["boolean"]), BOOLEAN),
        (may_be(&["array", "object"]), BRACKETS),
    ];
    let free: Vec<String> =
        words.iter().filter(|(is, _)| *is).map(|(_, text)| (*text).to_owned()).collect();
    let mut bound = free.clone();
    bound.push("<!\\[CDATA\\[(?s:.)*".into());
    if !frame.before.ends_with('\n') {
        bound.push("\\n(?s:.)*".into());
    }
    if !frame.after(name).starts_with('\n') {
        bound.push("(?s:.)*\\n".into());
    }
    Unlike { free, bound }
}

fn kind_of(name: &str) -> ValueKind {
    match name {
        "string" => ValueKind::Text,
        "integer" | "number" => ValueKind::Number,
        "boolean" => ValueKind::Boolean,
        "null" => ValueKind::Null,
        "array" => ValueKind::List,
        _ => ValueKind::Object,
    }
}

fn kind_of_value(value: &Value) -> ValueKind {
    match value {
        Value::String(_) => ValueKind::Text,
        Value::Number(_) => ValueKind::Number,
        Value::Bool(_) => ValueKind::Boolean,
        Value::Null => ValueKind::Null,
        Value::Array(_) => ValueKind::List,
        Value::Object(_) => ValueKind::Object,
    }
}

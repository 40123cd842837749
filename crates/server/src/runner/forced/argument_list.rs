//! Grammar of arguments that are written one by one, each as a value of its schema.
//!
//! An unquoted string forms a single terminal together with the text that ends it, and so does any
//! value that may stand in its place. Lark matches the longest text, so a string alone would
//! include its own end.

use std::collections::HashMap;
use std::fmt::Write;

use puna_prompt::{ArgumentListFormat, ValueFrame, ValueKind, ValueStyle};
use puna_sampler::{UnquotedString, lark_json, pattern_excluding};
use serde_json::{Value, json};

use super::literal;
use super::schemas::{ObjectSchema, Schema, SchemaChoice, Schemas, all_of, bind_strings};

/// Pattern of the names of additional properties.
const OTHER_NAME: &str = "[a-zA-Z_][a-zA-Z0-9_-]{0,63}";

/// Texts that a parser of unquoted values reads as something other than a string.
const NUMBER: &str = "\\s*[+-]?(?:[0-9]+\\.?[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?\\s*";
const BOOLEAN: &str = "\\s*(?:[tT][rR][uU][eE]|[fF][aA][lL][sS][eE])\\s*";
const NULL: &str = "\\s*[nN][uU][lL][lL]\\s*";
const BRACKETS: &str = "\\s*[\\[{](?s:.)*";

/// Maximum nesting depth of values.
const MAX_VALUE_DEPTH: usize = 64;
/// Maximum number of values with different schemas.
const MAX_VALUES: usize = 2000;

/// Texts around and between the properties of an object.
struct ObjectSyntax<'a> {
    head: &'a str,
    link: &'a str,
    close: &'a str,
    empty: &'a str,
    /// Whether the object is the argument list itself.
    is_outer: bool,
}

/// Writes the Lark rules of one tool's arguments.
pub(super) struct GrammarWriter<'a> {
    format: &'a ArgumentListFormat,
    schemas: Schemas<'a>,
    tags: &'a [(String, u32)],
    /// Number of the tool, part of the names of rules and terminals.
    tool: usize,
    lark: String,
    count: usize,
    /// Rules of values in JSON-like syntax, by their schemas.
    value_rules: HashMap<String, String>,
    /// Nesting depth of the value that is being written.
    depth: usize,
}

/// Returns the rule `name` for the text after the name of tool number `tool`, and the rules that it
/// needs.
///
/// # Errors
/// A sentence about parameters that no grammar can express.
pub(super) fn rules(
    name: &str,
    tool: usize,
    format: &ArgumentListFormat,
    parameters: &Value,
    tags: &[(String, u32)],
) -> Result<String, String> {
    let schemas = Schemas::new(parameters);
    let (lark, value_rules) = (String::new(), HashMap::new());
    let mut rules =
        GrammarWriter { format, schemas, tags, tool, lark, count: 0, value_rules, depth: 0 };
    let ArgumentListFormat { head, link, close, empty, .. } = format;
    let syntax = ObjectSyntax { head, link, close, empty, is_outer: true };
    let body = rules.objects(&rules.schemas.choices(parameters)?, &syntax)?;
    Ok(format!("{name}: {body}\n{}", rules.lark))
}

/// Returns the names of all listed arguments.
pub(super) fn argument_names(parameters: &Value) -> Vec<String> {
    let choices = Schemas::new(parameters).choices(parameters).unwrap_or_default();
    let records = choices.iter().filter_map(|choice| ObjectSchema::of(choice).ok());
    records.flat_map(|object| object.properties).map(|(name, _)| name).collect()
}

impl GrammarWriter<'_> {
    /// Writes a rule and returns its name.
    fn rule(&mut self, body: &str) -> String {
        let name = format!("t{}r{}", self.tool, self.count);
        self.count += 1;
        let _ = writeln!(self.lark, "{name}: {}", if body.is_empty() { "\"\"" } else { body });
        name
    }

    /// Writes a terminal and returns its name, with `?` if it may be empty.
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

    /// Splits a text before its first control token.
    fn split_at_tag<'t>(&self, text: &'t str) -> (&'t str, &'t str) {
        let at = self.tags.iter().filter_map(|(tag, _)| text.find(tag.as_str())).min();
        text.split_at(at.unwrap_or(text.len()))
    }

    /// Writes the rule of a value that matches one of the alternatives that allow an object.
    fn objects(
        &mut self,
        choices: &[SchemaChoice],
        syntax: &ObjectSyntax<'_>,
    ) -> Result<String, String> {
        let mut all = Vec::new();
        for choice in choices {
            if choice.types().is_none_or(|types| types.contains(&"object")) {
                let object = ObjectSchema::of(choice)?;
                all.push(self.object(&object, syntax)?);
            }
        }
        if all.is_empty() { Err("no object matches them".into()) } else { Ok(all.join(" | ")) }
    }

    /// Writes the properties of an object in their order, from the last to the first. `none` is the
    /// continuation if no property was written yet, `some` the continuation after one.
    fn object(
        &mut self,
        object: &ObjectSchema,
        syntax: &ObjectSyntax<'_>,
    ) -> Result<String, String> {
        let mut some = self.literal(syntax.close);
        let mut none = Some(self.literal(syntax.empty));
        if let Some(more) = self.additional_property(object, syntax)? {
            let again = self.rule(&format!("({} {more})*", self.literal(syntax.link)));
            let first = self.rule(&format!("{} {more} {again} {some}", self.literal(syntax.head)));
            none = none.map(|none| format!("{none} | {first}"));
            some = format!("{again} {some}");
        }
        for (name, schema) in object.properties.iter().rev() {
            let (item, is_required) = (self.item(name, schema, syntax)?, object.is_required(name));
            let Some(item) = item else {
                match is_required {
                    true => return Err(format!("no value matches {name:?}, which is required")),
                    false => continue,
                }
            };
            let after = self.rule(&some);
            let first = format!("{} {item} {after}", self.literal(syntax.head));
            none = match none {
                _ if is_required => Some(first),
                Some(none) => Some(format!("{first} | {}", self.rule(&none))),
                None => Some(first),
            };
            let next = format!("{} {item} {after}", self.literal(syntax.link));
            some = if is_required { next } else { format!("{next} | {after}") };
        }
        Ok(self.rule(&none.unwrap_or_default()))
    }

    /// Writes a property with its value; returns `None` if no value fits.
    fn item(
        &mut self,
        name: &str,
        schema: &Value,
        syntax: &ObjectSyntax<'_>,
    ) -> Result<Option<String>, String> {
        if syntax.is_outer {
            let prefix = |rules: &Self, frame: &ValueFrame| {
                rules.literal(&format!("{name}{}", frame.before))
            };
            return self.framed(schema, name, &prefix);
        }
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
        {
            return Err(format!("the name {name:?} cannot be written in this model's call format"));
        }
        let value = self.value(schema)?;
        Ok(value.map(|value| format!("{} {value}", self.literal(&format!("{name}:")))))
    }

    /// Writes an unlisted property with its value; returns `None` if there can be none.
    fn additional_property(
        &mut self,
        object: &ObjectSchema,
        syntax: &ObjectSyntax<'_>,
    ) -> Result<Option<String>, String> {
        let Some(schema) = &object.additional else { return Ok(None) };
        let is_named_again = self.format.frame(ValueKind::Text).after("a")
            != self.format.frame(ValueKind::Text).after("b");
        // If the end of a value repeats its name, the grammar cannot express an unlisted name.
        if syntax.is_outer && is_named_again {
            return Ok(None);
        }
        let listed: Vec<String> =
            object.properties.iter().map(|(name, _)| super::regex(name)).collect();
        let listed =
            if listed.is_empty() { String::new() } else { format!(" & ~/{}/", listed.join("|")) };
        let key = format!("T{}X{}", self.tool, self.count);
        self.count += 1;
        let _ = writeln!(self.lark, "{key}: /{OTHER_NAME}/{listed}");
        if syntax.is_outer {
            let prefix = |rules: &Self, frame: &ValueFrame| {
                format!("{key} {}", rules.literal(&frame.before))
            };
            return self.framed(schema, "", &prefix);
        }
        let value = self.value(schema)?;
        Ok(value.map(|value| format!("{key} \":\" {value}")))
    }

    /// Writes an argument with its name, its value and the text around them; returns `None` if no
    /// value fits.
    fn framed(
        &mut self,
        schema: &Value,
        name: &str,
        prefix: &dyn Fn(&Self, &ValueFrame) -> String,
    ) -> Result<Option<String>, String> {
        let format = self.format;
        if format.style == ValueStyle::Bare {
            return self.bare(schema, name, prefix);
        }
        let value = match format.style {
            ValueStyle::Json => Some(self.json(schema)?),
            _ => self.value(schema)?,
        };
        let frame = format.frame(ValueKind::Text);
        let value = value.map(|value| {
            format!("{} {value} {}", prefix(self, frame), self.literal(&frame.after(name)))
        });
        Ok(value.map(|value| self.rule(&value)))
    }

    /// Writes a value in JSON.
    fn json(&mut self, schema: &Value) -> Result<String, String> {
        let schema = match schema {
            Value::Bool(true) => json!({}),
            other => self.schemas.with_definitions(other.clone()),
        };
        let schema = match self.format.forbidden.as_slice() {
            [] => schema,
            forbidden => bind_strings(schema, &pattern_excluding(forbidden)),
        };
        let json = lark_json(&schema.into()).map_err(|e| e.to_string())?;
        Ok(self.rule(&json))
    }

    /// Writes an argument with unquoted strings.
    fn bare(
        &mut self,
        schema: &Value,
        name: &str,
        prefix: &dyn Fn(&Self, &ValueFrame) -> String,
    ) -> Result<Option<String>, String> {
        let format = self.format;
        let choices = self.schemas.choices(schema)?;
        let types: Vec<Vec<&str>> =
            choices.iter().map(|c| c.types().unwrap_or_else(|| vec!["string"])).collect();
        let all: Vec<&str> = types.concat();
        let excluded = excluded_patterns(format.frame(ValueKind::Text), name, &all);
        let mut alternatives = Vec::new();
        for (choice, types) in choices.iter().zip(&types) {
            for kind in ValueKind::ALL {
                let names: Vec<&str> =
                    types.iter().copied().filter(|name| kind_of(name) == kind).collect();
                // `number` includes `integer`.
                let names = if names.contains(&"number") { vec!["number"] } else { names };
                if names.is_empty() {
                    continue;
                }
                let frame = format.frame(kind);
                let (before, after) = (prefix(self, frame), frame.after(name));
                let value = match kind {
                    ValueKind::Text => Some(self.bare_text(&choice.0, &excluded, &after)?),
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
                alternatives.extend(value.map(|value| format!("{before} {value}")));
            }
        }
        Ok(if alternatives.is_empty() { None } else { Some(self.rule(&alternatives.join(" | "))) })
    }

    /// Writes an unquoted string and the text after it.
    fn bare_text(
        &mut self,
        schemas: &[Schema],
        excluded: &ExcludedPatterns,
        after: &str,
    ) -> Result<String, String> {
        let (end, rest) = self.split_at_tag(after);
        let plain = UnquotedString { schemas, ..UnquotedString::default() };
        let patterns = if plain.is_constrained() { &excluded.bound } else { &excluded.free };
        let patterns: Vec<&str> = patterns.iter().map(|pattern| &**pattern).collect();
        let forbidden = &self.format.forbidden;
        let text = self.text(&UnquotedString {
            schemas,
            excluded_patterns: &patterns,
            excluded_texts: forbidden,
            end,
        })?;
        Ok(format!("{text} {}", self.literal(rest)))
    }

    /// Writes a one-word value where a string could stand as well, and the text after it.
    fn bare_word(
        &mut self,
        choice: &SchemaChoice,
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
            // The alternative for strings covers this value.
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

    /// Writes a value in the style with quoted strings; returns `None` if no value fits.
    fn value(&mut self, schema: &Value) -> Result<Option<String>, String> {
        let key = schema.to_string();
        if let Some(rule) = self.value_rules.get(&key) {
            return Ok(Some(rule.clone()));
        }
        // Register the rule first, because the value may refer to itself.
        let rule = format!("t{}v{}", self.tool, self.value_rules.len());
        self.value_rules.insert(key, rule.clone());
        if self.depth == MAX_VALUE_DEPTH || self.value_rules.len() > MAX_VALUES {
            return Err(format!(
                "properties and items are nested more than {MAX_VALUE_DEPTH} levels, or are more than {MAX_VALUES}"
            ));
        }
        self.depth += 1;
        let alternatives = self.values(schema);
        self.depth -= 1;
        let alternatives = alternatives?;
        if alternatives.is_empty() {
            return Ok(None);
        }
        let _ = writeln!(self.lark, "{rule}: {}", alternatives.join(" | "));
        Ok(Some(rule))
    }

    /// Returns the alternatives of a value, by alternative of its schema and by type.
    fn values(&mut self, schema: &Value) -> Result<Vec<String>, String> {
        let mut alternatives = Vec::new();
        for choice in self.schemas.choices(schema)? {
            let types = choice.types().unwrap_or_else(|| super::schemas::TYPES.to_vec());
            for name in
                types.iter().filter(|name| **name != "integer" || !types.contains(&"number"))
            {
                alternatives.push(match *name {
                    "string" => self.quoted(&choice)?,
                    "array" => self.list(&choice)?,
                    "object" => {
                        let syntax = ObjectSyntax {
                            head: "{",
                            link: ",",
                            close: "}",
                            empty: "{}",
                            is_outer: false,
                        };
                        self.objects(std::slice::from_ref(&choice), &syntax)?
                    }
                    scalar => self.json(&choice.schema(&[scalar]))?,
                });
            }
        }
        Ok(alternatives)
    }

    /// Writes a quoted string.
    fn quoted(&mut self, choice: &SchemaChoice) -> Result<String, String> {
        let ValueStyle::Quoted(quote) = &self.format.style else {
            return Err("strings have no quotes in this model's call format".into());
        };
        let (end, rest) = self.split_at_tag(quote);
        let text = UnquotedString {
            schemas: &choice.0,
            excluded_patterns: &[],
            excluded_texts: &self.format.forbidden,
            end,
        };
        let text = self.text(&text)?;
        Ok(format!("{} {text} {}", self.literal(quote), self.literal(rest)))
    }

    /// Writes a list in brackets.
    fn list(&mut self, choice: &SchemaChoice) -> Result<String, String> {
        let not_kept = ["prefixItems", "contains", "additionalItems", "enum", "const"];
        if let Some(keyword) =
            not_kept.iter().find(|key| choice.0.iter().any(|s| s.contains_key(**key)))
        {
            return Err(format!(
                "{keyword} of a list cannot be enforced in this model's call format"
            ));
        }
        if choice.0.iter().any(|schema| schema.get("uniqueItems") == Some(&Value::Bool(true))) {
            return Err("uniqueItems cannot be enforced".into());
        }
        let items: Vec<&Value> = choice.0.iter().filter_map(|schema| schema.get("items")).collect();
        let items = all_of(items);
        let bound =
            |key| choice.0.iter().filter_map(move |schema| schema.get(key).and_then(Value::as_u64));
        let min = bound("minItems").max().unwrap_or(0);
        let max = bound("maxItems").min();
        let empty = "\"[]\"".to_owned();
        let Some(item) = self.value(&items)?.filter(|_| max != Some(0)) else {
            return if min == 0 {
                Ok(empty)
            } else {
                Err("minItems requires items, but no value matches items".into())
            };
        };
        let max =
            max.map(|max| max.checked_sub(min.max(1)).ok_or("minItems is more than maxItems"));
        let times = match (min.saturating_sub(1), max.transpose()?) {
            (few, None) => format!("{{{few},}}"),
            (few, Some(more)) if few + more == 0 => String::new(),
            (few, Some(more)) => format!("{{{few},{}}}", few + more),
        };
        let following = if times.is_empty() { times } else { format!("(\",\" {item}){times}") };
        let full = format!("\"[\" {item} {following} \"]\"");
        Ok(if min == 0 { format!("({empty} | {full})") } else { full })
    }
}

/// Patterns that an unquoted string must not match, because its parser would read another type or
/// drop a part.
struct ExcludedPatterns {
    free: Vec<String>,
    /// Patterns for strings with a restriction, from which the parser must not strip anything
    /// either.
    bound: Vec<String>,
}

fn excluded_patterns(frame: &ValueFrame, name: &str, types: &[&str]) -> ExcludedPatterns {
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
    ExcludedPatterns { free, bound }
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

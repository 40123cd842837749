//! The configuration file: `key = value` in TOML, one setting a line; keys with a dot may stand in a group.

use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::ConfigError;
use super::keys::{KEYS, check_key};

/// A file's settings as text, as a variable would hold them.
#[derive(Debug, Default)]
pub struct File {
    pub path: PathBuf,
    pub entries: Vec<Entry>,
}

/// One setting of a file.
#[derive(Debug)]
pub struct Entry {
    pub key: &'static str,
    pub text: String,
    pub line: usize,
}

impl File {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, is no TOML, or has a key or a kind of value that means nothing here.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let wrong = |line, text| ConfigError::File { path: path.to_owned(), line, text };
        let source = std::fs::read_to_string(path)
            .map_err(|e| ConfigError::Unreadable { path: path.to_owned(), reason: e.to_string() })?;
        let line_of = |at: usize| source.get(..at).map_or(1, |before| before.matches('\n').count() + 1);
        let table = DeTable::parse(&source).map_err(|e| {
            let line = e.span().map_or(1, |span| line_of(span.start));
            wrong(line, e.message().to_owned())
        })?;
        let mut entries = Vec::new();
        let mut tables = vec![(String::new(), table.into_inner())];
        while let Some((group, table)) = tables.pop() {
            for (name, value) in table {
                let line = line_of(name.span().start);
                let key = format!("{group}{}", name.get_ref());
                // A group such as `[tls]`, whose keys begin with its name.
                let is_group =
                    KEYS.iter().any(|known| known.split_once('.').is_some_and(|(group, _)| group == key));
                let value = match value.into_inner() {
                    DeValue::Table(inner) if is_group => {
                        tables.push((format!("{key}."), inner));
                        continue;
                    }
                    value => value,
                };
                let key = check_key(&key).map_err(|text| wrong(line, text))?;
                let text = text_of(&value).map_err(|kind| {
                    wrong(line, format!("{key} is {kind}: it must be a text, a whole number, true or false"))
                })?;
                entries.push(Entry { key, text, line });
            }
        }
        Ok(Self { path: path.to_owned(), entries })
    }
}

/// A value as a variable would hold it; lists of texts are separated by commas.
fn text_of(value: &DeValue<'_>) -> Result<String, &'static str> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
        DeValue::Boolean(switch) => Ok(switch.to_string()),
        DeValue::Array(list) => {
            let texts = list.iter().map(|item| match item.get_ref() {
                DeValue::String(text) if !text.contains(',') => Ok(text.to_string()),
                _ => Err("a list of other things than texts without commas"),
            });
            Ok(texts.collect::<Result<Vec<_>, _>>()?.join(","))
        }
        DeValue::Integer(_) => Err("a number that is not decimal"),
        DeValue::Float(_) => Err("a number with a fraction"),
        DeValue::Datetime(_) => Err("a date"),
        DeValue::Table(_) => Err("a table"),
    }
}

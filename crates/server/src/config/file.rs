//! Parses the configuration file: `key = value` in TOML, one setting per line. Keys with a dot may
//! stand in a table. Further tables hold settings of single [hosts](super::host_keys).

use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::error::ConfigError;
use super::host_keys;
use super::host_names::is_host;
use super::setting_keys::{keys, setting};
use super::setting_table::ValueKind;
use crate::util::text_file::{line_of, read_utf8};

/// Settings of a file as text, in the form that a variable would hold.
#[derive(Debug, Default)]
pub struct File {
    pub path: PathBuf,
    pub entries: Vec<Entry>,
    pub hosts: Vec<HostTable>,
}

/// Settings of one host.
#[derive(Debug)]
pub struct HostTable {
    pub host: String,
    pub line: usize,
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
    /// The file cannot be read, is not valid TOML, or has an unknown key or a value of the wrong
    /// type.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let wrong = |line, text| ConfigError::File { path: path.to_owned(), line, text };
        let source = read_utf8(path).map_err(|e| ConfigError::Unreadable {
            path: path.to_owned(),
            reason: e.to_string(),
        })?;
        let line_of = |at: usize| line_of(&source, at);
        let table = DeTable::parse(&source).map_err(|e| {
            let line = e.span().map_or(1, |span| line_of(span.start));
            wrong(line, e.message().to_owned())
        })?;
        let (mut entries, mut hosts) = (Vec::new(), Vec::new());
        let mut tables = vec![(String::new(), table.into_inner())];
        while let Some((group, table)) = tables.pop() {
            for (name, value) in table {
                let line = line_of(name.span().start);
                let key = format!("{group}{}", name.get_ref());
                // The name of a table such as `[tls]` is the prefix of its keys.
                let is_group = keys()
                    .any(|known| known.split_once('.').is_some_and(|(group, _)| group == key));
                let value = match value.into_inner() {
                    DeValue::Table(inner) if key == host_keys::GROUP => {
                        hosts = host_tables(inner, &line_of)
                            .map_err(|(line, text)| wrong(line, text))?;
                        continue;
                    }
                    DeValue::Table(inner) if is_group => {
                        tables.push((format!("{key}."), inner));
                        continue;
                    }
                    value => value,
                };
                let (key, kind) = setting(&key).map_err(|text| wrong(line, text))?;
                let text = text_of(kind, &value).map_err(|(what, want)| {
                    wrong(line, format!("{key} is {what}: it must be {want}"))
                })?;
                entries.push(Entry { key, text, line });
            }
        }
        Ok(Self { path: path.to_owned(), entries, hosts })
    }
}

/// Reads the tables `[registry.hosts."HOST"]`. Errors are the line and the problem.
fn host_tables(
    group: DeTable<'_>,
    line_of: &dyn Fn(usize) -> usize,
) -> Result<Vec<HostTable>, (usize, String)> {
    let mut tables = Vec::new();
    for (host, table) in group {
        let (line, host) = (line_of(host.span().start), host.get_ref().to_string());
        let DeValue::Table(table) = table.into_inner() else {
            let text = format!(
                "{}.{host:?} must be a table: [{}.{host:?}]",
                host_keys::GROUP,
                host_keys::GROUP
            );
            return Err((line, text));
        };
        if !is_host(&host) {
            let text = format!(
                "[{}.{host:?}]: use a host name or IP address with an optional port, such as hub:5000",
                host_keys::GROUP
            );
            return Err((line, text));
        }
        let mut entries = Vec::new();
        for (name, value) in table {
            let line = line_of(name.span().start);
            let (key, kind) = host_keys::key(name.get_ref()).map_err(|text| (line, text))?;
            let text = text_of(kind, value.get_ref())
                .map_err(|(what, want)| (line, format!("{key} is {what}: it must be {want}")))?;
            entries.push(Entry { key, text, line });
        }
        tables.push(HostTable { host, line, entries });
    }
    Ok(tables)
}

/// Converts a value to the text that a variable would hold, with commas between list items. Errors
/// are the actual and the required type.
fn text_of(kind: ValueKind, value: &DeValue<'_>) -> Result<String, (&'static str, &'static str)> {
    let want = match kind {
        ValueKind::Text => "a string in quotes",
        ValueKind::List => "a list of strings",
        ValueKind::Any => "a string, a whole number, true or false",
    };
    let what = match (value, kind) {
        (DeValue::String(text), _) => return Ok(text.to_string()),
        (DeValue::Integer(number), ValueKind::Any) if number.radix() == 10 => {
            return Ok(number.as_str().to_owned());
        }
        (DeValue::Boolean(switch), ValueKind::Any) => return Ok(switch.to_string()),
        (DeValue::Array(list), ValueKind::List) => {
            let texts = list.iter().map(|item| match item.get_ref() {
                DeValue::String(text) if !text.contains(',') => Some(text.to_string()),
                _ => None,
            });
            match texts.collect::<Option<Vec<_>>>() {
                Some(texts) => return Ok(texts.join(",")),
                None => "a list with an item that is not a string without commas",
            }
        }
        (DeValue::Integer(_), ValueKind::Any) => "a number that is not decimal",
        (DeValue::Integer(_), _) => "a number",
        (DeValue::Boolean(_), _) => "true or false",
        (DeValue::Float(_), _) => "a number with a fraction",
        (DeValue::Array(_), _) => "a list",
        (DeValue::Datetime(_), _) => "a date",
        (DeValue::Table(_), _) => "a table",
    };
    Err((what, want))
}

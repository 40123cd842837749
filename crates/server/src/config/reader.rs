//! Reads settings from where they may be set, and takes note of what was found.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use puna_api::{KeepAlive, format_duration, parse_duration};

use super::file::File;
use super::{ConfigError, Warning};
use puna_api::Address;

/// Where a setting's value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Nobody said anything.
    Default,
    /// A line of the configuration file.
    File(PathBuf, usize),
    /// A variable of the environment, by its whole name.
    Variable(String),
    /// The command line.
    Flag,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, line) => write!(f, "{}, line {line}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Flag => f.write_str("command line"),
        }
    }
}

/// A setting as it is in effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its key.
    pub key: &'static str,
    /// Its value as the configuration file would have it; `None` is automatic, or nothing.
    pub value: Option<String>,
    /// Where that came from.
    pub source: Source,
}

/// What may be set, in the order of who wins: the command line, variables, the file.
pub struct Sources<'a> {
    pub flags: &'a [(&'static str, String)],
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    pub file: File,
}

/// A value that was found.
struct Found {
    text: String,
    source: Source,
}

/// Reads settings one by one.
pub struct Reader<'a> {
    pub sources: Sources<'a>,
    pub settings: Vec<Setting>,
    pub warnings: Vec<Warning>,
    /// The first value of a flag or of the file that could not be understood.
    pub error: Option<ConfigError>,
}

impl<'a> Reader<'a> {
    pub fn new(sources: Sources<'a>) -> Self {
        Self { sources, settings: Vec::new(), warnings: Vec::new(), error: None }
    }

    /// A variable by its whole name; blanks and quotes around it removed, empty is absent.
    pub fn raw(&self, name: &str) -> Option<String> {
        clean(&(self.sources.variable)(name)?)
    }

    fn find(&self, key: &'static str) -> Option<Found> {
        if let Some((_, text)) = self.sources.flags.iter().rev().find(|(k, _)| *k == key) {
            return Some(Found { text: text.clone(), source: Source::Flag });
        }
        for prefix in ["PUNA", "OLLAMA"] {
            let variable = format!("{prefix}_{}", key.to_uppercase().replace('.', "_"));
            if let Some(text) = self.raw(&variable) {
                return Some(Found { text, source: Source::Variable(variable) });
            }
        }
        let entry = self.sources.file.entries.iter().find(|entry| entry.key == key)?;
        let source = Source::File(self.sources.file.path.clone(), entry.line);
        clean(&entry.text).map(|text| Found { text, source })
    }

    /// Notes what is in effect.
    fn note(&mut self, key: &'static str, value: Option<String>, source: Source) {
        self.settings.push(Setting { key, value, source });
    }

    /// A value that could not be understood: a warning where the environment has it, which Ollama's users have for years,
    /// and an error elsewhere.
    fn wrong(&mut self, key: &'static str, source: &Source, text: String) {
        match source {
            Source::Variable(variable) => self.warnings.push(Warning { variable: variable.clone(), text }),
            Source::File(path, line) => {
                let error =
                    ConfigError::File { path: path.clone(), line: *line, text: format!("{key} {text}") };
                self.error.get_or_insert(error);
            }
            Source::Flag | Source::Default => {
                self.error.get_or_insert(ConfigError::Flag { key, text });
            }
        }
    }

    /// A text; `default` where nothing is said.
    pub fn text(&mut self, key: &'static str, default: Option<&str>) -> Option<String> {
        let (text, source) = match self.find(key) {
            Some(Found { text, source }) => (Some(text), source),
            None => (default.map(str::to_owned), Source::Default),
        };
        self.note(key, text.as_deref().map(quoted), source);
        text
    }

    /// A text that is not shown.
    pub fn secret(&mut self, key: &'static str) -> Option<String> {
        let found = self.find(key);
        let source = found.as_ref().map_or(Source::Default, |found| found.source.clone());
        self.note(key, None, source);
        found.map(|found| found.text)
    }

    /// A value that `parse` understands, or else says what is wrong with it.
    fn parsed<T>(
        &mut self,
        key: &'static str,
        default: T,
        parse: impl Fn(&str) -> Result<T, String>,
        show: impl Fn(&T) -> Option<String>,
    ) -> T {
        let Some(Found { text, source }) = self.find(key) else {
            self.note(key, show(&default), Source::Default);
            return default;
        };
        match parse(&text) {
            Ok(value) => {
                self.note(key, show(&value), source);
                value
            }
            Err(problem) => {
                let used = show(&default).map_or("the default".into(), |shown| shown.replace('"', ""));
                self.wrong(key, &source, format!("{problem}; using {used}"));
                self.note(key, show(&default), Source::Default);
                default
            }
        }
    }

    /// A number; 0 is automatic where that is the default.
    pub fn number(&mut self, key: &'static str, default: u64) -> u64 {
        let parse = |text: &str| {
            text.parse().map_err(|_| format!("is {text:?}: it must be a whole number from 0 up"))
        };
        self.parsed(key, default, parse, |n| (*n > 0 || default > 0).then(|| n.to_string()))
    }

    /// An address, and whether it says itself how to speak there.
    pub fn address(&mut self) -> (Address, bool) {
        let Found { text, source } =
            self.find("host").unwrap_or(Found { text: String::new(), source: Source::Default });
        let (address, problem) = Address::parse(&text);
        let scheme = text.contains("://");
        let shown = if text.is_empty() || problem.is_some() { address.authority() } else { text };
        if let Some(problem) = problem {
            self.wrong("host", &source, problem);
        }
        self.note("host", Some(quoted(&shown)), source);
        (address, scheme)
    }

    pub fn keep_alive(&mut self, default: Duration) -> KeepAlive {
        let parse = |text: &str| KeepAlive::parse(text).map_err(|_| not_a_time(text));
        let show = |kept: &KeepAlive| match kept {
            KeepAlive::For(time) => Some(quoted(&format_duration(*time))),
            KeepAlive::Forever => Some("-1".into()),
        };
        self.parsed("keep_alive", KeepAlive::For(default), parse, show)
    }

    /// Seconds or a duration; what is not positive is for ever.
    pub fn timeout(&mut self, key: &'static str, default: Duration) -> Option<Duration> {
        let parse = |text: &str| {
            let seconds = text.parse::<i64>().map(|s| s.saturating_mul(1_000_000_000));
            let nanos = seconds.or_else(|_| parse_duration(text)).map_err(|_| not_a_time(text))?;
            Ok(u64::try_from(nanos).ok().filter(|ns| *ns > 0).map(Duration::from_nanos))
        };
        let show =
            |time: &Option<Duration>| Some(time.map_or("-1".into(), |time| quoted(&format_duration(time))));
        self.parsed(key, Some(default), parse, show)
    }

    /// Whether something is on; `None` where nothing is said. Text that says neither counts as on, as it does for Ollama.
    pub fn flag(&mut self, key: &'static str, default: Option<bool>) -> Option<bool> {
        let Some(Found { text, source }) = self.find(key) else {
            self.note(key, default.map(|on| on.to_string()), Source::Default);
            return default;
        };
        let found = boolean(&text);
        if found.is_none() {
            let problem = "which counts as on: say on (1, true, yes) or off (0, false, no)";
            self.wrong(key, &source, format!("is {text:?}, {problem}"));
        }
        let on = found.unwrap_or(true);
        self.note(key, Some(on.to_string()), source);
        Some(on)
    }

    /// 0, 1 or 2; or a switch.
    pub fn debug(&mut self) -> u8 {
        let level =
            self.find("debug").and_then(|found| Some((found.text.parse::<u64>().ok()?, found.source)));
        match level {
            Some((level, source)) => {
                let level = level.min(2) as u8;
                self.note("debug", Some(level.to_string()), source);
                level
            }
            None => u8::from(self.flag("debug", Some(false)).unwrap_or(false)),
        }
    }
}

fn clean(text: &str) -> Option<String> {
    let text = text.trim().trim_matches(['"', '\'']).trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// A text as TOML has it.
pub fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn not_a_time(text: &str) -> String {
    format!("is {text:?}: it must be a time such as 90s, 5m or 1h30m, or a number of seconds")
}

/// Go's booleans and the words that people use for them, in any case.
fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "t" | "true" | "y" | "yes" | "on" => Some(true),
        "0" | "f" | "false" | "n" | "no" | "off" => Some(false),
        _ => None,
    }
}

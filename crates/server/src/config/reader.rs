//! Reads settings from all sources and records the values in effect.

use std::path::{Path, PathBuf};
use std::time::Duration;

use puna_api::{Address, KeepAlive, format_duration, parse_duration, parse_rate};
use puna_graph::KvType;
use puna_mirror::S3Location;
use puna_store::StoreMode;

use super::effective::{Setting, Source, quoted, shown_text};
use super::error::{ConfigError, Warning};
use super::file::File;
use super::host_names::{is_host, is_server, names_host_or_port, without_scheme};
use super::origins::Origins;
use super::paths::expanded;
use crate::speculate::SpeculateSetting;

/// Sources in order of precedence: the command line, variables, the file.
pub struct Sources<'a> {
    pub flags: &'a [(&'static str, String)],
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    pub file: File,
    /// Home directory, for `~`.
    pub home: Option<PathBuf>,
}

/// Text of a value with its source.
struct RawValue {
    text: String,
    source: Source,
}

/// Reads settings one by one.
pub struct SettingsReader<'a> {
    pub sources: Sources<'a>,
    pub settings: Vec<Setting>,
    pub warnings: Vec<Warning>,
    /// Error of the first invalid value of a flag or of the file.
    pub error: Option<ConfigError>,
}

impl<'a> SettingsReader<'a> {
    pub fn new(sources: Sources<'a>) -> Self {
        Self { sources, settings: Vec::new(), warnings: Vec::new(), error: None }
    }

    /// Reads a variable by its full name, without surrounding blanks and quotes. An empty value
    /// counts as absent.
    pub fn raw(&self, name: &str) -> Option<String> {
        clean(&(self.sources.variable)(name)?)
    }

    fn find(&self, key: &'static str) -> Option<RawValue> {
        if let Some((_, text)) = self.sources.flags.iter().rev().find(|(k, _)| *k == key) {
            return Some(RawValue { text: text.clone(), source: Source::Flag });
        }
        self.find_below_flags(key)
    }

    /// Like [`Self::find`]; an empty value of the command line counts as absent, too.
    fn find_text(&self, key: &'static str) -> Option<RawValue> {
        self.find(key)
            .filter(|found| !found.text.trim().is_empty())
            .or_else(|| self.find_below_flags(key))
    }

    /// Finds a value of a variable or of the file.
    fn find_below_flags(&self, key: &'static str) -> Option<RawValue> {
        for prefix in ["PUNA", "OLLAMA"] {
            let variable = format!("{prefix}_{}", key.to_uppercase().replace('.', "_"));
            if let Some(text) = self.raw(&variable) {
                return Some(RawValue { text, source: Source::Variable(variable) });
            }
        }
        let entry = self.sources.file.entries.iter().find(|entry| entry.key == key)?;
        let source = Source::File(self.sources.file.path.clone(), entry.line);
        clean(&entry.text).map(|text| RawValue { text, source })
    }

    /// Records a value in effect.
    fn note(&mut self, key: &'static str, value: Option<String>, source: Source) {
        let value = value.map(|value| without_users(&value));
        self.settings.push(Setting { key, value, source, hidden: false });
    }

    /// Source of a setting that was read already.
    pub fn source(&self, key: &str) -> Source {
        let found = self.settings.iter().find(|setting| setting.key == key);
        found.map_or(Source::Default, |setting| setting.source.clone())
    }

    /// Reports an invalid value. In a variable it is a warning that names the replacement, as in
    /// Ollama; elsewhere it is an error.
    fn warn_or_refuse(
        &mut self,
        key: &'static str,
        source: &Source,
        problem: String,
        instead: &str,
    ) {
        match source {
            Source::Variable(variable) => {
                let text = without_users(&format!("{problem}; {instead}"));
                self.warnings.push(Warning { variable: variable.clone(), text });
            }
            _ => self.refuse(key, source, problem),
        }
    }

    /// Reports an invalid value that has no safe replacement.
    fn refuse(&mut self, key: &'static str, source: &Source, text: String) {
        let text = without_users(&text);
        let error = match source.clone() {
            Source::File(path, line) => {
                ConfigError::File { path, line, text: format!("{key} {text}") }
            }
            Source::Variable(variable) => ConfigError::Variable { variable, text },
            Source::Flag | Source::Default => ConfigError::Flag { key, text },
        };
        self.error.get_or_insert(error);
    }

    /// Reads a text.
    pub fn text(&mut self, key: &'static str, default: Option<&str>) -> Option<String> {
        let (text, source) = match self.find(key) {
            Some(RawValue { text, source }) => (Some(text), source),
            None => (default.map(str::to_owned), Source::Default),
        };
        self.note(key, text.as_deref().map(quoted), source);
        text
    }

    /// Reads a path and expands `~`.
    pub fn path(&mut self, key: &'static str, default: Option<&str>) -> Option<PathBuf> {
        let (text, source) = match self.find_text(key) {
            Some(RawValue { text, source }) => (Some(self.expand(&text)), source),
            None => (default.map(str::to_owned), Source::Default),
        };
        self.note(key, text.as_deref().map(quoted), source);
        text.map(PathBuf::from)
    }

    fn expand(&self, path: &str) -> String {
        expanded(Path::new(path), self.sources.home.as_deref()).to_string_lossy().into_owned()
    }

    /// Reads a text for a header, which is not shown.
    pub fn secret(&mut self, key: &'static str) -> Option<String> {
        let found = self.find(key);
        let source = found.as_ref().map_or(Source::Default, |found| found.source.clone());
        if found.as_ref().is_some_and(|found| !found.text.chars().all(|c| c.is_ascii_graphic())) {
            let problem = "has blanks or special characters: it must be one word of ASCII letters, digits and signs";
            self.refuse(key, &source, problem.into());
        }
        self.settings.push(Setting { key, value: None, source, hidden: found.is_some() });
        found.map(|found| found.text)
    }

    /// Reads a value that must be valid, because no default is safe.
    pub(super) fn strict<T>(
        &mut self,
        key: &'static str,
        default: T,
        parse: impl Fn(&str) -> Result<T, String>,
        show: impl Fn(&T) -> Option<String>,
    ) -> T {
        self.value(key, default, parse, &show, |read, source, problem, _| {
            read.refuse(key, source, problem)
        })
    }

    /// Reads a value. An invalid one is handled by [`Self::warn_or_refuse`].
    fn parsed<T>(
        &mut self,
        key: &'static str,
        default: T,
        parse: impl Fn(&str) -> Result<T, String>,
        show: impl Fn(&T) -> Option<String>,
    ) -> T {
        self.value(key, default, parse, &show, |read, source, problem, default| {
            let used = show(default).map_or("the default".into(), |shown| shown.replace('"', ""));
            read.warn_or_refuse(key, source, problem, &format!("using {used}"));
        })
    }

    /// Reads and records a value. If it is invalid, calls `wrong` and uses the default.
    fn value<T>(
        &mut self,
        key: &'static str,
        default: T,
        parse: impl Fn(&str) -> Result<T, String>,
        show: &impl Fn(&T) -> Option<String>,
        wrong: impl FnOnce(&mut Self, &Source, String, &T),
    ) -> T {
        let (value, source) = match self.find(key) {
            None => (default, Source::Default),
            Some(RawValue { text, source }) => match parse(&text) {
                Ok(value) => (value, source),
                Err(problem) => {
                    wrong(self, &source, problem, &default);
                    (default, Source::Default)
                }
            },
        };
        self.note(key, show(&value), source);
        value
    }

    /// Reads a number up to `max`. If the default is 0, it means automatic.
    pub fn number(&mut self, key: &'static str, default: u32, max: u32) -> u32 {
        let parse = |text: &str| match text.parse() {
            Ok(number) if number <= max => Ok(number),
            _ if max == u32::MAX && !text.bytes().all(|c| c.is_ascii_digit()) => {
                Err(format!("is {}: it must be a whole number of at least 0", shown_text(text)))
            }
            _ => Err(format!("is {}: it must be a whole number from 0 to {max}", shown_text(text))),
        };
        self.parsed(key, default, parse, |n| (*n > 0 || default > 0).then(|| n.to_string()))
    }

    /// Reads an address, and whether it has an explicit scheme.
    pub fn address(&mut self, key: &'static str, default: &str) -> (Address, bool) {
        let found = self.find_text(key);
        let is_set = found.is_some();
        let RawValue { text, source } =
            found.unwrap_or(RawValue { text: default.to_owned(), source: Source::Default });
        let (address, problem) = Address::parse_at(&text, Address::parse(default).0.port);
        let scheme = text.contains("://");
        let shown = if !is_set || problem.is_some() { address.authority() } else { text };
        if let Some(problem) = problem {
            self.warn_or_refuse(key, &source, problem, &format!("using {}", address.port));
        }
        if let Some(problem) = address.problem() {
            self.refuse(key, &source, problem);
        } else if is_set && !names_host_or_port(&shown) {
            let problem =
                "must begin with a host name, an IP address or a port, such as 127.0.0.1:11434";
            self.warn_or_refuse(key, &source, problem.into(), &format!("using {}", address.host));
        }
        self.note(key, Some(quoted(&shown)), source);
        (address, scheme)
    }

    /// Reads the web origins.
    pub fn origins(&mut self) -> Origins {
        let parse = |text: &str| match Origins::parse(text) {
            Ok(origins) => Ok((origins, Some(text.to_owned()))),
            Err(error) => Err(format!("is {}: {error}", shown_text(text))),
        };
        let none = (Origins::default(), None);
        self.strict("origins", none, parse, |(_, text)| text.as_deref().map(quoted)).0
    }

    /// Reads a list. `says` describes valid items in the error message.
    pub(super) fn list(
        &mut self,
        key: &'static str,
        fits: impl Fn(&str) -> bool,
        says: &str,
    ) -> Vec<String> {
        let parse = |text: &str| {
            let all: Vec<_> =
                text.split(',').map(str::trim).filter(|one| !one.is_empty()).collect();
            match all.iter().find(|one| !fits(one)) {
                Some(wrong) => Err(format!("has {}: {says}", shown_text(wrong))),
                None => Ok(all.into_iter().map(str::to_owned).collect()),
            }
        };
        self.strict(key, Vec::new(), parse, |all| (!all.is_empty()).then(|| quoted(&all.join(","))))
    }

    /// Reads host names or IP addresses, optionally with ports.
    pub fn hosts(&mut self, key: &'static str) -> Vec<String> {
        let says =
            "use a host name or IP address with an optional port, such as intra.example:8080";
        self.list(key, is_host, says)
    }

    /// Reads registry hosts with which model names can begin.
    pub fn upstreams(&mut self, key: &'static str) -> Vec<String> {
        let says = "use a registry host with a dot or a port and without brackets, such as registry.ollama.ai or hub:5000";
        let fits =
            |text: &str| is_host(text) && text.contains(['.', ':']) && !text.starts_with('[');
        self.list(key, fits, says)
    }

    /// Reads servers: host names or IP addresses, optionally with scheme and port.
    pub fn servers(&mut self, key: &'static str) -> Vec<String> {
        let says = "use a host with an optional port (gpu1:8000), or an address without a path (https://gpu1:8000)";
        self.list(key, is_server, says)
    }

    /// Reads registry addresses, optionally with a path.
    pub fn registries(&mut self, key: &'static str) -> Vec<String> {
        let says = "use a host with an optional port (registry.intra:5000), or an address (http://registry.intra:5000)";
        let host = |text: &str| without_scheme(text).split('/').next().is_some_and(is_host);
        self.list(key, host, says)
    }

    /// Reads namespaces, which may end with `*`.
    pub fn namespaces(&mut self, key: &'static str) -> Vec<String> {
        let says = "use letters, digits, - and _, with an optional * at the end as a wildcard";
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        self.list(key, |one| one.strip_suffix('*').unwrap_or(one).chars().all(fits), says)
    }

    /// Reads servers and their API keys, `SERVER=KEY` each; not shown.
    pub fn keys_of_servers(&mut self, key: &'static str) -> Vec<(String, String)> {
        let text = self.secret(key).unwrap_or_default();
        let mut keys = Vec::new();
        for (at, part) in text.split(',').filter(|part| !part.is_empty()).enumerate() {
            match part.split_once('=') {
                Some((server, shown)) if is_server(server) && !shown.is_empty() => {
                    keys.push((server.to_owned(), shown.to_owned()));
                }
                // The text may be a key, so the message does not show it.
                _ => {
                    let problem = format!(
                        "has an invalid entry (number {}): it must be like gpu1:8000=KEY",
                        at + 1
                    );
                    let source = self.source(key);
                    self.refuse(key, &source, problem);
                }
            }
        }
        keys
    }

    /// Reads a bucket with an optional key prefix.
    pub fn storage(&mut self, key: &'static str) -> Option<S3Location> {
        let parse = |text: &str| match S3Location::parse(text) {
            Ok(storage) => Ok(Some((storage, text.to_owned()))),
            Err(problem) => Err(format!("is {}: {problem}", shown_text(text))),
        };
        let show =
            |found: &Option<(S3Location, String)>| found.as_ref().map(|(_, text)| quoted(text));
        self.strict(key, None, parse, show).map(|(storage, _)| storage)
    }

    /// Reads the address of a service, with a scheme and without a path.
    pub fn endpoint(&mut self, key: &'static str) -> Option<String> {
        let parse = |text: &str| {
            let text = text.trim_end_matches('/');
            match text.contains("://") && is_server(text) {
                true => Ok(Some(text.to_owned())),
                false => Err(format!(
                    "is {}: it must be an address such as https://s3.intra:9000",
                    shown_text(text)
                )),
            }
        };
        self.strict(key, None, parse, |found| found.as_deref().map(quoted))
    }

    /// Reads a rate in bytes per second; `None` is no limit.
    pub fn rate(&mut self, key: &'static str) -> Option<u64> {
        let parse = |text: &str| {
            parse_rate(text)
                .map(Some)
                .map_err(|problem| format!("is {}: {problem}", shown_text(text)))
        };
        self.strict(key, None, parse, |rate| rate.map(|rate| rate.to_string()))
    }

    /// Reads directories: absolute paths, or paths that begin with `~/`.
    pub fn folders(&mut self, key: &'static str) -> Vec<PathBuf> {
        let home = self.sources.home.clone();
        let parse = |text: &str| {
            let folders = text.split(',').map(str::trim).filter(|folder| !folder.is_empty());
            let folder = |text: &str| {
                let path = expanded(Path::new(text), home.as_deref());
                // A missing directory may be mounted later.
                match path.is_absolute() {
                    false => Err(format!(
                        "has {}: use an absolute path, or one that starts with ~/",
                        shown_text(text)
                    )),
                    true if path.is_file() => Err(format!(
                        "has {}, which is a file: use the directory that contains `blobs` and `manifests`",
                        shown_text(text)
                    )),
                    true => Ok(path),
                }
            };
            folders.map(folder).collect::<Result<Vec<_>, _>>()
        };
        let show = |folders: &Vec<PathBuf>| {
            let folders: Vec<_> =
                folders.iter().map(|folder| folder.display().to_string()).collect();
            (!folders.is_empty()).then(|| quoted(&folders.join(",")))
        };
        self.strict(key, Vec::new(), parse, show)
    }

    /// Reads the type of the KV cache.
    pub fn cache_type(&mut self) -> String {
        let parse = |text: &str| match text.parse::<KvType>() {
            Ok(kind) => Ok(kind.name().to_owned()),
            Err(_) => {
                let known = KvType::ALL.map(KvType::name).join(", ");
                Err(format!("is {}: it must be one of {known}", shown_text(text)))
            }
        };
        self.strict("kv_cache_type", KvType::F16.name().to_owned(), parse, |kind| {
            Some(quoted(kind))
        })
    }

    /// Reads a kernel level that this machine supports.
    pub fn kernels(&mut self) -> Option<String> {
        let parse = |text: &str| match puna_cpu::kernels::level(text) {
            Ok(level) => Ok(Some(level.name.to_owned())),
            Err(error) => Err(format!("is {}: {error}", shown_text(text))),
        };
        self.strict("kernels", None, parse, |name| name.as_deref().map(quoted))
    }

    /// Reads the preferred runner.
    pub fn runner(&mut self) -> Option<String> {
        let parse = |text: &str| {
            let is_plain = text.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c));
            match text.is_empty() || !is_plain {
                true => Err(format!(
                    "is {}: it must be one word, such as llamacpp or ggml",
                    shown_text(text)
                )),
                false => Ok(Some(text.to_ascii_lowercase())),
            }
        };
        self.strict("runner", None, parse, |name| name.as_deref().map(quoted))
    }

    /// Reads the permission bits of model files.
    pub fn store_mode(&mut self) -> Option<StoreMode> {
        let parse = |text: &str| {
            text.parse().map(Some).map_err(|problem: String| format!("is {text:?}: {problem}"))
        };
        self.strict("store_mode", None, parse, |mode| mode.map(|mode| quoted(&mode.to_string())))
    }

    /// Reads the speculation setting.
    pub fn speculate(&mut self) -> SpeculateSetting {
        let Some(RawValue { text, source }) = self.find("speculate") else {
            self.note("speculate", Some(quoted("auto")), Source::Default);
            return SpeculateSetting::default();
        };
        let text = self.expand(&text);
        let parsed = match (SpeculateSetting::parse(&text), boolean(&text)) {
            (SpeculateSetting::Model(_), Some(_)) => Err(format!(
                "it must be one of {}, or the name of a draft model",
                SpeculateSetting::MODES
            )),
            _ => SpeculateSetting::parse_checked(&text),
        };
        let setting = parsed.unwrap_or_else(|problem| {
            self.warn_or_refuse(
                "speculate",
                &source,
                format!("is {}: {problem}", shown_text(&text)),
                "using auto",
            );
            SpeculateSetting::default()
        });
        let shown = if setting == SpeculateSetting::default() { "auto" } else { &text };
        self.note("speculate", Some(quoted(shown)), source);
        setting
    }

    pub fn keep_alive(&mut self, default: Duration) -> KeepAlive {
        let parse = |text: &str| KeepAlive::parse(text).map_err(|_| invalid_duration(text));
        let show = |kept: &KeepAlive| match kept {
            KeepAlive::For(time) => Some(quoted(&format_duration(*time))),
            KeepAlive::Forever => Some("-1".into()),
        };
        self.parsed("keep_alive", KeepAlive::For(default), parse, show)
    }

    /// Reads seconds or a duration; `None` (no limit) if it is not positive.
    pub fn timeout(&mut self, key: &'static str, default: Duration) -> Option<Duration> {
        let parse = |text: &str| {
            let nanos = nanoseconds(text)?;
            Ok(u64::try_from(nanos).ok().filter(|ns| *ns > 0).map(Duration::from_nanos))
        };
        let show = |time: &Option<Duration>| {
            Some(time.map_or("-1".into(), |time| quoted(&format_duration(time))))
        };
        self.parsed(key, Some(default), parse, show)
    }

    /// Reads seconds or a duration, which may be zero.
    pub fn time(&mut self, key: &'static str, default: Duration) -> Duration {
        let parse = |text: &str| {
            let nanos = u64::try_from(nanoseconds(text)?)
                .map_err(|_| format!("is {}: it must not be negative", shown_text(text)))?;
            Ok(Duration::from_nanos(nanos))
        };
        self.strict(key, default, parse, |time| Some(quoted(&format_duration(*time))))
    }

    /// Reads a switch that is off by default.
    pub fn on(&mut self, key: &'static str) -> bool {
        self.flag(key, Some(false)).unwrap_or(false)
    }

    /// Reads a switch. Text that is not a boolean counts as on, as in Ollama.
    pub fn flag(&mut self, key: &'static str, default: Option<bool>) -> Option<bool> {
        let Some(RawValue { text, source }) = self.find(key) else {
            self.note(key, default.map(|on| on.to_string()), Source::Default);
            return default;
        };
        let found = boolean(&text);
        if found.is_none() {
            let problem = "it must be on (1, true, yes) or off (0, false, no)";
            self.warn_or_refuse(
                key,
                &source,
                format!("is {}: {problem}", shown_text(&text)),
                "using on",
            );
        }
        let on = found.unwrap_or(true);
        self.note(key, Some(on.to_string()), source);
        Some(on)
    }

    /// Reads a switch that grants access: off unless it is explicitly on.
    pub fn switch(&mut self, key: &'static str) -> bool {
        let parse = |text: &str| {
            boolean(text).ok_or_else(|| {
                format!(
                    "is {}: it must be on (1, true, yes) or off (0, false, no)",
                    shown_text(text)
                )
            })
        };
        self.strict(key, false, parse, |on| Some(on.to_string()))
    }

    /// Reads the debug level: 0, 1, 2, or a switch.
    pub fn debug(&mut self) -> u8 {
        let Some(RawValue { text, source }) = self.find("debug") else {
            self.note("debug", Some("false".into()), Source::Default);
            return 0;
        };
        let problem = || format!("is {}: it must be 0, 1 or 2, or on or off", shown_text(&text));
        let (level, shown) = match (text.parse::<u64>(), boolean(&text)) {
            (Ok(level @ 0..=2), _) => (level as u8, level.to_string()),
            (Ok(_), _) => {
                self.warn_or_refuse("debug", &source, problem(), "using 2");
                (2, "2".to_owned())
            }
            (Err(_), Some(on)) => (u8::from(on), on.to_string()),
            (Err(_), None) => {
                self.warn_or_refuse("debug", &source, problem(), "using on");
                (1, "true".to_owned())
            }
        };
        self.note("debug", Some(shown), source);
        level
    }
}

fn clean(text: &str) -> Option<String> {
    let text = text.trim().trim_matches(['"', '\'']).trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Hides user names and passwords in URLs.
fn without_users(text: &str) -> String {
    let mut parts = text.split("://");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let ends = |c: char| c.is_whitespace() || matches!(c, '/' | '"' | '\'' | ',');
        let authority = &part[..part.find(ends).unwrap_or(part.len())];
        let (user, rest) = match authority.rfind('@') {
            Some(at) => ("…@", &part[at + 1..]),
            None => ("", part),
        };
        shown.extend(["://", user, rest]);
    }
    shown
}

/// Parses seconds or a duration.
fn nanoseconds(text: &str) -> Result<i64, String> {
    let seconds = text.parse::<i64>().map(|s| s.saturating_mul(1_000_000_000));
    seconds.or_else(|_| parse_duration(text)).map_err(|_| invalid_duration(text))
}

fn invalid_duration(text: &str) -> String {
    format!(
        "is {}: it must be a time such as 90s, 5m or 1h30m, or a number of seconds",
        shown_text(text)
    )
}

/// Parses Go's booleans and common words, ignoring case.
fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "t" | "true" | "y" | "yes" | "on" => Some(true),
        "0" | "f" | "false" | "n" | "no" | "off" => Some(false),
        _ => None,
    }
}

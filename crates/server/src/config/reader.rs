//! Reads settings from where they may be set, and takes note of what was found.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use puna_api::{Address, KeepAlive, format_duration, parse_duration, parse_rate};
use puna_graph::KvType;
use puna_mirror::Storage;

use super::file::File;
use super::origins::Origins;
use super::places::expanded;
use super::{ConfigError, Warning};
use crate::speculate::Wish;

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
    /// Whether it has a value that nothing shows.
    pub hidden: bool,
}

impl Setting {
    /// Whether what the file may say of it does not count.
    pub(super) fn hides_the_file(&self) -> bool {
        matches!(self.source, Source::Variable(_) | Source::Flag)
    }
}

/// What may be set, in the order of who wins: the command line, variables, the file.
pub struct Sources<'a> {
    pub flags: &'a [(&'static str, String)],
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    pub file: File,
    /// What `~` stands for.
    pub home: Option<PathBuf>,
}

/// Whether a text is a name or an IP address, with a port or without; IPv6 has brackets.
fn is_host(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !text.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let number = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let named =
        !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
    (named || number.is_some_and(|number| number.parse::<Ipv6Addr>().is_ok()))
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// Whether a text is a host, perhaps with a scheme of the web before it.
fn is_server(text: &str) -> bool {
    is_host(without_scheme(text).trim_end_matches('/'))
}

/// An address without the scheme of the web before it.
fn without_scheme(text: &str) -> &str {
    text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or(text)
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
        let value = value.map(|value| without_users(&value));
        self.settings.push(Setting { key, value, source, hidden: false });
    }

    /// Where a setting that was read comes from.
    pub fn source(&self, key: &str) -> Source {
        let found = self.settings.iter().find(|setting| setting.key == key);
        found.map_or(Source::Default, |setting| setting.source.clone())
    }

    /// A value that could not be understood: where the environment has it, which Ollama's users have for years, a warning
    /// with what is done instead, and an error elsewhere.
    fn wrong(&mut self, key: &'static str, source: &Source, problem: String, instead: &str) {
        match source {
            Source::Variable(variable) => {
                let text = without_users(&format!("{problem}; {instead}"));
                self.warnings.push(Warning { variable: variable.clone(), text });
            }
            _ => self.refuse(key, source, problem),
        }
    }

    /// A value that nothing could stand for.
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

    /// A text; `default` where nothing is said.
    pub fn text(&mut self, key: &'static str, default: Option<&str>) -> Option<String> {
        let (text, source) = match self.find(key) {
            Some(Found { text, source }) => (Some(text), source),
            None => (default.map(str::to_owned), Source::Default),
        };
        self.note(key, text.as_deref().map(quoted), source);
        text
    }

    /// A path, in which `~` is the home folder; `default` where nothing is said.
    pub fn path(&mut self, key: &'static str, default: Option<&str>) -> Option<PathBuf> {
        let (text, source) = match self.find(key) {
            Some(Found { text, source }) => (Some(self.expand(&text)), source),
            None => (default.map(str::to_owned), Source::Default),
        };
        self.note(key, text.as_deref().map(quoted), source);
        text.map(PathBuf::from)
    }

    fn expand(&self, path: &str) -> String {
        expanded(Path::new(path), self.sources.home.as_deref()).to_string_lossy().into_owned()
    }

    /// A text that is not shown, and goes into a header.
    pub fn secret(&mut self, key: &'static str) -> Option<String> {
        let found = self.find(key);
        let source = found.as_ref().map_or(Source::Default, |found| found.source.clone());
        if found.as_ref().is_some_and(|found| !found.text.chars().all(|c| c.is_ascii_graphic())) {
            let problem = "has blanks or other characters that no key has: it must be one word of plain letters, digits and signs";
            self.refuse(key, &source, problem.into());
        }
        self.settings.push(Setting { key, value: None, source, hidden: found.is_some() });
        found.map(|found| found.text)
    }

    /// A value that must be what it says, since nothing could stand for it.
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

    /// A value that `parse` understands, or else says what is wrong with it.
    fn parsed<T>(
        &mut self,
        key: &'static str,
        default: T,
        parse: impl Fn(&str) -> Result<T, String>,
        show: impl Fn(&T) -> Option<String>,
    ) -> T {
        self.value(key, default, parse, &show, |read, source, problem, default| {
            let used = show(default).map_or("the default".into(), |shown| shown.replace('"', ""));
            read.wrong(key, source, problem, &format!("using {used}"));
        })
    }

    /// The value that is said, noted with where it comes from; the default, once `wrong` has been told, where it is no value.
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
            Some(Found { text, source }) => match parse(&text) {
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

    /// A number up to `most`; 0 is automatic where that is the default.
    pub fn number(&mut self, key: &'static str, default: u32, most: u32) -> u32 {
        let parse = |text: &str| match text.parse() {
            Ok(number) if number <= most => Ok(number),
            _ if most == u32::MAX => {
                Err(format!("is {text:?}: it must be a whole number from 0 up"))
            }
            _ => Err(format!("is {text:?}: it must be a whole number from 0 to {most}")),
        };
        self.parsed(key, default, parse, |n| (*n > 0 || default > 0).then(|| n.to_string()))
    }

    /// An address, and whether it says itself how to speak there.
    pub fn address(&mut self, key: &'static str, default: &str) -> (Address, bool) {
        let found = self.find(key);
        let said = found.is_some();
        let Found { text, source } =
            found.unwrap_or(Found { text: default.to_owned(), source: Source::Default });
        let (address, problem) = Address::parse_at(&text, Address::parse(default).0.port);
        let scheme = text.contains("://");
        let shown = if !said || problem.is_some() { address.authority() } else { text };
        if let Some(problem) = problem {
            self.wrong(key, &source, problem, &format!("using {}", address.port));
        }
        if let Some(problem) = address.problem() {
            self.refuse(key, &source, problem);
        }
        self.note(key, Some(quoted(&shown)), source);
        (address, scheme)
    }

    /// Web origins.
    pub fn origins(&mut self) -> Origins {
        let parse = |text: &str| match Origins::parse(text) {
            Ok(origins) => Ok((origins, Some(text.to_owned()))),
            Err(error) => Err(format!("is {text:?}: {error}")),
        };
        let none = (Origins::default(), None);
        self.strict("origins", none, parse, |(_, text)| text.as_deref().map(quoted)).0
    }

    /// What a list has, each of which must fit; or else what such a thing is.
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
                Some(wrong) => Err(format!("has {wrong:?}: {says}")),
                None => Ok(all.into_iter().map(str::to_owned).collect()),
            }
        };
        self.strict(key, Vec::new(), parse, |all| (!all.is_empty()).then(|| quoted(&all.join(","))))
    }

    /// Hosts by name or number, with a port or without.
    pub fn hosts(&mut self, key: &'static str) -> Vec<String> {
        let says = "a host is a name or number, with a port or without (intra.example:8080), no address and no pattern";
        self.list(key, is_host, says)
    }

    /// Registries that names of models can begin with.
    pub fn upstreams(&mut self, key: &'static str) -> Vec<String> {
        let says = "a registry whose models have names has a dot or a port in its own (registry.ollama.ai, hub:5000), and no brackets";
        let fits =
            |text: &str| is_host(text) && text.contains(['.', ':']) && !text.starts_with('[');
        self.list(key, fits, says)
    }

    /// Servers by name or number, with a port or without, perhaps with how they are spoken to.
    pub fn servers(&mut self, key: &'static str) -> Vec<String> {
        let says = "a server is a host with a port or without (gpu1:8000), or an address without a path (https://gpu1:8000)";
        self.list(key, is_server, says)
    }

    /// Addresses of registries, with a path or without.
    pub fn registries(&mut self, key: &'static str) -> Vec<String> {
        let says = "a registry is a host with a port or without (registry.intra:5000), or an address (http://registry.intra:5000)";
        let host = |text: &str| without_scheme(text).split('/').next().is_some_and(is_host);
        self.list(key, host, says)
    }

    /// Namespaces of models, of which the last letter may be `*`.
    pub fn namespaces(&mut self, key: &'static str) -> Vec<String> {
        let says = "a namespace is a word of letters, digits, - and _, and a * at its end stands for more of them";
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        self.list(key, |one| one.strip_suffix('*').unwrap_or(one).chars().all(fits), says)
    }

    /// Servers and their keys, `SERVER=KEY` each; not shown.
    pub fn keys_of_servers(&mut self, key: &'static str) -> Vec<(String, String)> {
        let text = self.secret(key).unwrap_or_default();
        let mut keys = Vec::new();
        for (at, part) in text.split(',').filter(|part| !part.is_empty()).enumerate() {
            match part.split_once('=') {
                Some((server, shown)) if is_server(server) && !shown.is_empty() => {
                    keys.push((server.to_owned(), shown.to_owned()));
                }
                // What stands there may be a key.
                _ => {
                    let problem =
                        format!("has an entry, number {}, that is not like gpu1:8000=KEY", at + 1);
                    let source = self.source(key);
                    self.refuse(key, &source, problem);
                }
            }
        }
        keys
    }

    /// A bucket and what keys in it begin with.
    pub fn storage(&mut self, key: &'static str) -> Option<Storage> {
        let parse = |text: &str| match Storage::parse(text) {
            Ok(storage) => Ok(Some((storage, text.to_owned()))),
            Err(problem) => Err(format!("is {text:?}: {problem}")),
        };
        let show = |found: &Option<(Storage, String)>| found.as_ref().map(|(_, text)| quoted(text));
        self.strict(key, None, parse, show).map(|(storage, _)| storage)
    }

    /// The address of a service, with its scheme and without a path.
    pub fn endpoint(&mut self, key: &'static str) -> Option<String> {
        let parse = |text: &str| {
            let text = text.trim_end_matches('/');
            match text.contains("://") && is_server(text) {
                true => Ok(Some(text.to_owned())),
                false => {
                    Err(format!("is {text:?}: it must be an address such as https://s3.intra:9000"))
                }
            }
        };
        self.strict(key, None, parse, |found| found.as_deref().map(quoted))
    }

    /// Bytes a second; `None` is without a limit.
    pub fn rate(&mut self, key: &'static str) -> Option<u64> {
        let parse = |text: &str| {
            parse_rate(text).map(Some).map_err(|problem| format!("is {text:?}: {problem}"))
        };
        self.strict(key, None, parse, |rate| rate.map(|rate| rate.to_string()))
    }

    /// Folders, by whole paths or from the home folder.
    pub fn folders(&mut self, key: &'static str) -> Vec<PathBuf> {
        let home = self.sources.home.clone();
        let parse = |text: &str| {
            let folders = text.split(',').map(str::trim).filter(|folder| !folder.is_empty());
            let folder = |text: &str| {
                let path = expanded(Path::new(text), home.as_deref());
                // One that is not there may be mounted later.
                match path.is_absolute() {
                    false => {
                        Err(format!("has {text:?}: a folder is a whole path, or begins with ~/"))
                    }
                    true if path.is_file() => Err(format!(
                        "has {text:?}, which is a file: name the folder with `blobs` and `manifests`"
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

    /// How keys and values are stored: the name of a type.
    pub fn cache_type(&mut self) -> String {
        let parse = |text: &str| match text.parse::<KvType>() {
            Ok(kind) => Ok(kind.name().to_owned()),
            Err(_) => {
                let known = KvType::ALL.map(KvType::name).join(", ");
                Err(format!("is {text:?}: it must be one of {known}"))
            }
        };
        self.strict("kv_cache_type", KvType::F16.name().to_owned(), parse, |kind| {
            Some(quoted(kind))
        })
    }

    /// A level of kernels that this machine has.
    pub fn kernels(&mut self) -> Option<String> {
        let parse = |text: &str| match puna_cpu::kernels::level(text) {
            Ok(level) => Ok(Some(level.name.to_owned())),
            Err(error) => Err(format!("is {text:?}: {error}")),
        };
        self.strict("kernels", None, parse, |name| name.as_deref().map(quoted))
    }

    /// The runner whose manifest is preferred.
    pub fn runner(&mut self) -> Option<String> {
        let parse = |text: &str| {
            let is_plain = text.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c));
            match text.is_empty() || !is_plain {
                true => Err(format!("is {text:?}: a runner is llamacpp, ggml or another word")),
                false => Ok(Some(text.to_ascii_lowercase())),
            }
        };
        self.strict("runner", None, parse, |name| name.as_deref().map(quoted))
    }

    /// How to guess ahead.
    pub fn speculate(&mut self) -> Wish {
        let Some(Found { text, source }) = self.find("speculate") else {
            self.note("speculate", Some(quoted("auto")), Source::Default);
            return Wish::default();
        };
        let text = self.expand(&text);
        let problem = if boolean(&text).is_some() && !text.eq_ignore_ascii_case("off") {
            Err(format!("it must be one of {}, or the name of a draft model", Wish::MODES))
        } else {
            Wish::parse_checked(&text)
        };
        let wish = problem.unwrap_or_else(|problem| {
            self.wrong("speculate", &source, format!("is {text:?}: {problem}"), "using auto");
            Wish::default()
        });
        let shown = if wish == Wish::default() { "auto" } else { &text };
        self.note("speculate", Some(quoted(shown)), source);
        wish
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
            let nanos = nanoseconds(text)?;
            Ok(u64::try_from(nanos).ok().filter(|ns| *ns > 0).map(Duration::from_nanos))
        };
        let show = |time: &Option<Duration>| {
            Some(time.map_or("-1".into(), |time| quoted(&format_duration(time))))
        };
        self.parsed(key, Some(default), parse, show)
    }

    /// Seconds or a duration, which may be none at all.
    pub fn time(&mut self, key: &'static str, default: Duration) -> Duration {
        let parse = |text: &str| {
            let nanos = u64::try_from(nanoseconds(text)?)
                .map_err(|_| format!("is {text:?}: it must not be negative"))?;
            Ok(Duration::from_nanos(nanos))
        };
        self.strict(key, default, parse, |time| Some(quoted(&format_duration(*time))))
    }

    /// Whether something is on, which is off where nothing is said.
    pub fn on(&mut self, key: &'static str) -> bool {
        self.flag(key, Some(false)).unwrap_or(false)
    }

    /// Whether something is on; `default` where nothing is said. Text that says neither counts as on, as it does for Ollama.
    pub fn flag(&mut self, key: &'static str, default: Option<bool>) -> Option<bool> {
        let Some(Found { text, source }) = self.find(key) else {
            self.note(key, default.map(|on| on.to_string()), Source::Default);
            return default;
        };
        let found = boolean(&text);
        if found.is_none() {
            let problem = "it must be on (1, true, yes) or off (0, false, no)";
            self.wrong(key, &source, format!("is {text:?}: {problem}"), "it counts as on");
        }
        let on = found.unwrap_or(true);
        self.note(key, Some(on.to_string()), source);
        Some(on)
    }

    /// Whether something is on that opens a door: only where that is said.
    pub fn switch(&mut self, key: &'static str) -> bool {
        let parse = |text: &str| {
            boolean(text)
                .ok_or_else(|| format!("is {text:?}: say on (1, true, yes) or off (0, false, no)"))
        };
        self.strict(key, false, parse, |on| Some(on.to_string()))
    }

    /// 0, 1 or 2; or a switch.
    pub fn debug(&mut self) -> u8 {
        let level = self
            .find("debug")
            .and_then(|found| Some((found.text.parse::<u64>().ok()?, found.source)));
        let Some((level, source)) = level else {
            return u8::from(self.on("debug"));
        };
        if level > 2 && !matches!(source, Source::Variable(_)) {
            self.refuse(
                "debug",
                &source,
                format!("is \"{level}\": it must be 0, 1 or 2, or on or off"),
            );
        }
        let level = level.min(2) as u8;
        self.note("debug", Some(level.to_string()), source);
        level
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

/// A text whose addresses show nobody's name and password.
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

/// Of seconds or a duration.
fn nanoseconds(text: &str) -> Result<i64, String> {
    let seconds = text.parse::<i64>().map(|s| s.saturating_mul(1_000_000_000));
    seconds.or_else(|_| parse_duration(text)).map_err(|_| not_a_time(text))
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

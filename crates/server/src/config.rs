//! The configuration: the only place that reads the environment.
//!
//! Every variable of Ollama's that has a meaning here is read under its own name, and under the name that begins with
//! `PUNA_` instead of `OLLAMA_`, which wins.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use puna_api::{KeepAlive, parse_duration};

use crate::http::origins::{Origins, OriginsError};
use crate::speculate::Wish;

/// Port on which Ollama's clients look for a server.
pub const DEFAULT_PORT: u16 = 11434;

/// The environment is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// An entry of `OLLAMA_ORIGINS`.
    #[error(transparent)]
    Origins(#[from] OriginsError),
    /// There is no home folder for the models.
    #[error("this user has no home folder: set HOME, or OLLAMA_MODELS to the folder for models")]
    NoHome,
}

/// Where the server listens, or where a client finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// `http` or `https`.
    pub scheme: String,
    /// Name or number, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path in front of all routes; empty or begins with `/`.
    pub path: String,
}

/// Everything that can be set.
#[derive(Debug, Clone)]
pub struct Config {
    /// `OLLAMA_HOST`
    pub address: Address,
    /// `OLLAMA_MODELS`
    pub models: PathBuf,
    /// `OLLAMA_ORIGINS`
    pub origins: Origins,
    /// `OLLAMA_KEEP_ALIVE`
    pub keep_alive: KeepAlive,
    /// `OLLAMA_LOAD_TIMEOUT`: how long a load may stall; `None` is for ever.
    pub load_timeout: Option<Duration>,
    /// `PUNA_STEP_TIMEOUT`: how long a single step of a model may take; `None` is for ever. The first steps read the
    /// weights from the disk, so that it must not be short.
    pub step_timeout: Option<Duration>,
    /// `PUNA_WRITE_TIMEOUT`: how long a client may take nothing of its answer before it is given up; `None` is for ever.
    pub write_timeout: Option<Duration>,
    /// `OLLAMA_CONTEXT_LENGTH`: the default context, if set.
    pub context_length: Option<u32>,
    /// `OLLAMA_NUM_PARALLEL`: conversations of one model at once; `None` is automatic.
    pub num_parallel: Option<u32>,
    /// `OLLAMA_MAX_LOADED_MODELS`
    pub max_loaded_models: usize,
    /// `OLLAMA_MAX_QUEUE`
    pub max_queue: usize,
    /// `OLLAMA_KV_CACHE_TYPE`: `f16`, `q8_0` …
    pub kv_cache_type: String,
    /// `OLLAMA_GO_TEMPLATE`: prefer the Go template (`true`) or the file's Jinja template (`false`).
    pub go_template: Option<bool>,
    /// `OLLAMA_NOPRUNE`
    pub no_prune: bool,
    /// `OLLAMA_DEBUG`: 0, 1 (debug) or 2 (trace).
    pub debug: u8,
    /// `PUNA_KERNELS`: the level of kernels to use instead of the best.
    pub kernels: Option<String>,
    /// `PUNA_THREADS`: threads of a model instead of one a core.
    pub threads: Option<usize>,
    /// `PUNA_DETERMINISTIC`: whether answers do not depend on what else is computed.
    pub deterministic: bool,
    /// `PUNA_SPECULATE`: `auto`, `off`, `ngram`, `always`, or the draft model of all models that it fits.
    pub speculate: Wish,
    /// Values that could not be understood, for the log.
    pub warnings: Vec<Warning>,
}

/// A variable whose value could not be understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Its whole name.
    pub variable: String,
    /// What is wrong with its value, what is allowed, and what is used instead.
    pub text: String,
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.variable, self.text)
    }
}

impl Config {
    /// Reads the environment of this process.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// Reads variables from elsewhere.
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut read = Reader { get: &get, warnings: Vec::new() };
        let models = match read.text("MODELS") {
            Some(models) => PathBuf::from(models),
            None => {
                let home = read.raw("HOME").map(PathBuf::from).or_else(puna_store::account_home);
                puna_store::default_root(None, Some(&home.ok_or(ConfigError::NoHome)?))
            }
        };
        Ok(Self {
            address: read.address(),
            models,
            origins: Origins::parse(&read.text("ORIGINS").unwrap_or_default())?,
            keep_alive: read.keep_alive(),
            load_timeout: read.timeout("LOAD_TIMEOUT", Duration::from_secs(300)),
            write_timeout: read.timeout("WRITE_TIMEOUT", Duration::from_secs(60)),
            step_timeout: read.timeout("STEP_TIMEOUT", Duration::from_secs(900)),
            context_length: Some(read.number("CONTEXT_LENGTH", 0)).filter(|n| *n > 0).map(clamp_u32),
            num_parallel: Some(clamp_u32(read.number("NUM_PARALLEL", 0))).filter(|n| *n > 0),
            max_loaded_models: match read.number("MAX_LOADED_MODELS", 0) {
                // Three a graphics card; three without any.
                0 => 3,
                n => n as usize,
            },
            max_queue: read.number("MAX_QUEUE", 512) as usize,
            kv_cache_type: read.text("KV_CACHE_TYPE").map_or_else(|| "f16".into(), |t| t.to_lowercase()),
            go_template: read.flag("GO_TEMPLATE"),
            no_prune: read.flag("NOPRUNE").unwrap_or(false),
            debug: read.debug(),
            kernels: read.text("KERNELS"),
            threads: Some(read.number("THREADS", 0) as usize).filter(|n| *n > 0),
            deterministic: read.flag("DETERMINISTIC").unwrap_or(false),
            speculate: Wish::parse(&read.text("SPECULATE").unwrap_or_default()),
            warnings: read.warnings,
        })
    }

    /// A configuration for tests and for programs that bring their own: defaults, with models in a folder.
    pub fn with_models(models: &Path) -> Self {
        let variables = |name: &str| (name == "OLLAMA_MODELS").then(|| models.display().to_string());
        // Without a list of origins nothing can fail.
        Self::from_variables(variables).unwrap_or_else(|e| unreachable!("the defaults are wrong: {e}"))
    }
}

impl Address {
    /// Reads `[scheme://]host[:port][/path]`; the second value says what is wrong with the port.
    pub fn parse(text: &str) -> (Self, Option<String>) {
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let default = match (text.contains("://"), scheme) {
            (true, "http") => 80,
            (true, "https") => 443,
            _ => DEFAULT_PORT,
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = split_port(authority);
        let (port, warning) = match port.map(|p| (p, p.parse::<u16>())) {
            None => (default, None),
            Some((_, Ok(port))) => (port, None),
            Some((text, Err(_))) => (
                default,
                Some(format!("has the port {text:?}: it must be a number from 0 to 65535; using {default}")),
            ),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = if host.is_empty() { "127.0.0.1" } else { host };
        let path = path.trim_end_matches('/');
        let path = if path.is_empty() { String::new() } else { format!("/{path}") };
        (Self { scheme: scheme.to_owned(), host: host.to_owned(), port, path }, warning)
    }

    /// The URL at which a client on this machine finds the server.
    pub fn url(&self) -> String {
        let host = match self.host.parse::<IpAddr>() {
            Ok(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.to_string(),
            Ok(IpAddr::V6(ip)) => format!("[{ip}]"),
            _ => self.host.clone(),
        };
        format!("{}://{host}:{}{}", self.scheme, self.port, self.path)
    }

    /// `host:port` to bind to.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// Host and port of `host`, `host:port`, `[v6]`, `[v6]:port` or bare `v6`.
pub(crate) fn split_port(authority: &str) -> (&str, Option<&str>) {
    if authority.parse::<std::net::Ipv6Addr>().is_ok() {
        return (authority, None);
    }
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (authority, None),
    }
}

struct Reader<'a> {
    get: &'a dyn Fn(&str) -> Option<String>,
    warnings: Vec<Warning>,
}

impl Reader<'_> {
    fn raw(&self, name: &str) -> Option<String> {
        let value = (self.get)(name)?;
        let value = value.trim().trim_matches(['"', '\'']).trim();
        (!value.is_empty()).then(|| value.to_owned())
    }

    /// `PUNA_NAME`, else `OLLAMA_NAME`; blanks and quotes around it removed, empty is absent.
    fn text(&self, name: &str) -> Option<String> {
        self.variable(name).map(|(_, text)| text)
    }

    /// [`Self::text`] behind the whole name of the variable that it is from.
    fn variable(&self, name: &str) -> Option<(String, String)> {
        ["PUNA", "OLLAMA"].into_iter().find_map(|prefix| {
            let variable = format!("{prefix}_{name}");
            self.raw(&variable).map(|text| (variable, text))
        })
    }

    fn warn(&mut self, variable: String, text: String) {
        self.warnings.push(Warning { variable, text });
    }

    fn number(&mut self, name: &str, default: u64) -> u64 {
        let Some((variable, text)) = self.variable(name) else { return default };
        text.parse().unwrap_or_else(|_| {
            let used = if default == 0 { "the default".to_owned() } else { default.to_string() };
            self.warn(variable, format!("is {text:?}: it must be a whole number from 0 up; using {used}"));
            default
        })
    }

    fn address(&mut self) -> Address {
        let (variable, text) = self.variable("HOST").unwrap_or_default();
        let (address, warning) = Address::parse(&text);
        if let Some(warning) = warning {
            self.warn(variable, warning);
        }
        address
    }

    fn keep_alive(&mut self) -> KeepAlive {
        let default = KeepAlive::For(Duration::from_secs(300));
        let Some((variable, text)) = self.variable("KEEP_ALIVE") else { return default };
        KeepAlive::parse(&text).unwrap_or_else(|_| {
            self.warn(variable, not_a_time(&text, Duration::from_secs(300)));
            default
        })
    }

    /// Seconds or a duration; what is not positive is for ever.
    fn timeout(&mut self, name: &str, default: Duration) -> Option<Duration> {
        let Some((variable, text)) = self.variable(name) else { return Some(default) };
        let nanos =
            text.parse::<i64>().map(|s| s.saturating_mul(1_000_000_000)).or_else(|_| parse_duration(&text));
        match nanos {
            Ok(ns) => u64::try_from(ns).ok().filter(|ns| *ns > 0).map(Duration::from_nanos),
            Err(_) => {
                self.warn(variable, not_a_time(&text, default));
                Some(default)
            }
        }
    }

    /// Whether something is on; `None` where nothing is said. Text that says neither counts as on, as it does for Ollama.
    fn flag(&mut self, name: &str) -> Option<bool> {
        let (variable, text) = self.variable(name)?;
        let found = boolean(&text);
        if found.is_none() {
            self.warn(
                variable,
                format!("is {text:?}, which counts as on: say on (1, true, yes) or off (0, false, no)"),
            );
        }
        Some(found.unwrap_or(true))
    }

    fn debug(&mut self) -> u8 {
        match self.text("DEBUG").and_then(|text| text.parse::<u64>().ok()) {
            Some(level) => level.min(2) as u8,
            None => u8::from(self.flag("DEBUG").unwrap_or(false)),
        }
    }
}

fn not_a_time(text: &str, default: Duration) -> String {
    let used = puna_api::format_duration(default);
    format!("is {text:?}: it must be a time such as 90s, 5m or 1h30m, or a number of seconds; using {used}")
}

fn clamp_u32(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Go's booleans and the words that people use for them, in any case.
fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "t" | "true" | "y" | "yes" | "on" => Some(true),
        "0" | "f" | "false" | "n" | "no" | "off" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(variables: &[(&str, &str)]) -> Config {
        let given = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        let find = |name: &str| given(name).or_else(|| (name == "HOME").then(|| "/home/me".to_owned()));
        Config::from_variables(find).unwrap()
    }

    fn address(text: &str) -> String {
        let a = Address::parse(text).0;
        format!("{}|{}|{}|{}", a.scheme, a.host, a.port, a.path)
    }

    #[test]
    fn addresses_take_every_documented_form() {
        for (text, want) in [
            ("", "http|127.0.0.1|11434|"),
            ("0.0.0.0", "http|0.0.0.0|11434|"),
            (":8080", "http|127.0.0.1|8080|"),
            ("example.com:56789", "http|example.com|56789|"),
            ("http://1.2.3.4", "http|1.2.3.4|80|"),
            ("https://1.2.3.4", "https|1.2.3.4|443|"),
            ("https://1.2.3.4:4321/ollama/", "https|1.2.3.4|4321|/ollama"),
            ("::1", "http|::1|11434|"),
            ("[::1]:1337", "http|::1|1337|"),
            ("[0001:002:003:0004::1]", "http|0001:002:003:0004::1|11434|"),
            ("host:99999", "http|host|11434|"),
        ] {
            assert_eq!(address(text), want, "{text}");
        }
        assert!(Address::parse("host:99999").1.is_some());
    }

    #[test]
    fn clients_dial_the_loopback_address_of_a_server_that_listens_everywhere() {
        assert_eq!(Address::parse("0.0.0.0").0.url(), "http://127.0.0.1:11434");
        assert_eq!(Address::parse("[::1]:7").0.url(), "http://[::1]:7");
        assert_eq!(Address::parse("::1").0.authority(), "[::1]:11434");
    }

    #[test]
    fn values_lose_blanks_and_quotes_and_punas_names_win() {
        let c =
            config(&[("OLLAMA_MODELS", " \"/a b\" "), ("OLLAMA_MAX_QUEUE", "'7'"), ("PUNA_MAX_QUEUE", "9")]);
        assert_eq!((c.models.as_path(), c.max_queue), (Path::new("/a b"), 9));
    }

    #[test]
    fn bad_numbers_and_times_leave_the_default_and_a_warning() {
        let c = config(&[
            ("OLLAMA_MAX_QUEUE", "x"),
            ("OLLAMA_KEEP_ALIVE", "soon"),
            ("OLLAMA_LOAD_TIMEOUT", "never"),
        ]);
        assert_eq!((c.max_queue, c.keep_alive), (512, KeepAlive::For(Duration::from_secs(300))));
        assert_eq!(c.load_timeout, Some(Duration::from_secs(300)));
        let warnings: Vec<String> = c.warnings.iter().map(Warning::to_string).collect();
        assert_eq!(warnings.len(), 3);
        for variable in ["OLLAMA_MAX_QUEUE", "OLLAMA_KEEP_ALIVE", "OLLAMA_LOAD_TIMEOUT"] {
            let about = warnings.iter().find(|text| text.starts_with(&format!("{variable} is ")));
            assert!(about.is_some_and(|text| text.contains("it must be a")), "{variable}: {warnings:?}");
        }
    }

    #[test]
    fn a_warning_names_the_variable_that_was_read() {
        let c =
            config(&[("OLLAMA_NUM_PARALLEL", "4"), ("PUNA_NUM_PARALLEL", "many"), ("OLLAMA_HOST", "h:x")]);
        let warnings: Vec<String> = c.warnings.iter().map(Warning::to_string).collect();
        assert_eq!(
            warnings,
            [
                r#"OLLAMA_HOST has the port "x": it must be a number from 0 to 65535; using 11434"#,
                r#"PUNA_NUM_PARALLEL is "many": it must be a whole number from 0 up; using the default"#,
            ]
        );
    }

    #[test]
    fn models_never_go_to_the_working_folder_for_want_of_a_home() {
        assert_eq!(config(&[("HOME", "/h")]).models, Path::new("/h/.ollama/models"));
        match Config::from_variables(|name| (name == "HOME").then(String::new)) {
            Ok(config) => assert!(config.models.is_absolute(), "{:?}", config.models),
            Err(error) => assert_eq!(error, ConfigError::NoHome),
        }
    }

    #[test]
    fn times_are_seconds_or_durations_and_negative_ones_are_for_ever() {
        assert_eq!(config(&[("OLLAMA_KEEP_ALIVE", "-1")]).keep_alive, KeepAlive::Forever);
        assert_eq!(
            config(&[("OLLAMA_KEEP_ALIVE", "10m")]).keep_alive,
            KeepAlive::For(Duration::from_secs(600))
        );
        assert_eq!(config(&[("OLLAMA_LOAD_TIMEOUT", "0")]).load_timeout, None);
        assert_eq!(config(&[("OLLAMA_LOAD_TIMEOUT", "90")]).load_timeout, Some(Duration::from_secs(90)));
        assert_eq!(config(&[("PUNA_STEP_TIMEOUT", "1h")]).step_timeout, Some(Duration::from_secs(3600)));
    }

    #[test]
    fn switches_take_the_usual_words_in_any_case_and_others_are_on_with_a_warning() {
        for on in ["1", "true", "TRUE", "t", "yes", "On"] {
            assert!(config(&[("PUNA_DETERMINISTIC", on)]).deterministic, "{on}");
        }
        for off in ["0", "False", "F", "no", "off", "OFF"] {
            let c =
                config(&[("PUNA_DETERMINISTIC", off), ("OLLAMA_GO_TEMPLATE", off), ("OLLAMA_DEBUG", off)]);
            assert_eq!((c.deterministic, c.go_template, c.debug), (false, Some(false), 0), "{off}");
            assert_eq!(c.warnings, []);
        }
        let c = config(&[
            ("PUNA_DETERMINISTIC", "always"),
            ("OLLAMA_NOPRUNE", "2"),
            ("OLLAMA_GO_TEMPLATE", "any text"),
        ]);
        assert_eq!((c.deterministic, c.no_prune, c.go_template), (true, true, Some(true)));
        let warned: Vec<&str> = c.warnings.iter().map(|warning| warning.variable.as_str()).collect();
        assert_eq!(warned, ["OLLAMA_GO_TEMPLATE", "OLLAMA_NOPRUNE", "PUNA_DETERMINISTIC"]);
        let text = r#"is "always", which counts as on: say on (1, true, yes) or off (0, false, no)"#;
        assert_eq!(c.warnings[2].text, text);
        for (debug, level) in [("2", 2), ("3", 2), ("true", 1), ("on", 1), ("any text", 1)] {
            assert_eq!(config(&[("OLLAMA_DEBUG", debug)]).debug, level, "{debug}");
        }
    }
}

//! The configuration: the only place that reads the environment.
//!
//! A setting has a key ([`KEYS`]). It is taken from the command line, else from the variable `PUNA_KEY`, else from
//! `OLLAMA_KEY`, which has Ollama's name, else from the configuration file, and else it has a default.

mod file;
mod keys;
mod reader;

use std::path::{Path, PathBuf};
use std::time::Duration;

use puna_api::KeepAlive;
pub use puna_api::{Address, DEFAULT_PORT};
use puna_registry::Proxies;

pub use keys::{KEYS, check_key};
pub use reader::{Setting, Source};

use crate::http::origins::{Origins, OriginsError};
use crate::speculate::Wish;

use file::File;
use reader::{Reader, Sources};

/// The file for everybody on this machine.
const SYSTEM_FILE: &str = "/etc/puna/puna.toml";

/// Connections of one download at most.
const MAX_STREAMS: usize = 64;

/// Something that was set is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// An entry of `OLLAMA_ORIGINS`.
    #[error(transparent)]
    Origins(#[from] OriginsError),
    /// There is no home folder for the models.
    #[error("this user has no home folder: set HOME, or OLLAMA_MODELS to the folder for models")]
    NoHome,
    /// The configuration file cannot be read.
    #[error("cannot read the configuration file {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// Of a certificate and its key only one is there.
    #[error("{set} is set, but not {missing}: TLS needs both, or neither")]
    HalfTls {
        /// The one that is there.
        set: &'static str,
        /// The other.
        missing: &'static str,
    },
    /// A line of the configuration file means nothing.
    #[error("{}, line {line}: {text}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        text: String,
    },
    /// A value on the command line means nothing.
    #[error("the setting {key} {text}")]
    Flag {
        /// The setting.
        key: &'static str,
        /// What is wrong with its value.
        text: String,
    },
}

/// The files that a server needs to speak TLS, in PEM form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and those that lead to the authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
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
    /// `PUNA_KEYS`: the file of [API keys](crate::keys).
    pub keys: PathBuf,
    /// `PUNA_TLS_CERTIFICATE` and `PUNA_TLS_KEY`; `None` is without TLS.
    pub tls: Option<TlsFiles>,
    /// `PUNA_API_KEY`, `OLLAMA_API_KEY`: the key that commands show to a server.
    pub api_key: Option<String>,
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
    /// `OLLAMA_MAX_TRANSFER_STREAMS`: connections of one download at once.
    pub max_transfer_streams: usize,
    /// The key that registries are shown; `None` where there is no home folder.
    pub registry_key: Option<PathBuf>,
    /// `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`, for pulls and pushes.
    pub proxies: Proxies,
    /// `PUNA_KERNELS`: the level of kernels to use instead of the best.
    pub kernels: Option<String>,
    /// `PUNA_THREADS`: threads of a model instead of one a core.
    pub threads: Option<usize>,
    /// `PUNA_DETERMINISTIC`: whether answers do not depend on what else is computed.
    pub deterministic: bool,
    /// `PUNA_SPECULATE`: `auto`, `off`, `ngram`, `always`, or the draft model of all models that it fits.
    pub speculate: Wish,
    /// `OLLAMA_NOHISTORY`: whether what is typed is forgotten.
    pub no_history: bool,
    /// `OLLAMA_EDITOR`, else `VISUAL`, else `EDITOR`: the program in which prompts are edited.
    pub editor: String,
    /// Values that could not be understood, for the log.
    pub warnings: Vec<Warning>,
    /// The configuration file that was read.
    pub file: Option<PathBuf>,
    /// Every setting as it is in effect, in the order of [`KEYS`].
    pub settings: Vec<Setting>,
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
    /// Reads the environment of this process, and the configuration file.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::with_flags(&[])
    }

    /// The same with settings of the command line, which win.
    pub fn with_flags(flags: &[(&'static str, String)]) -> Result<Self, ConfigError> {
        Self::read(flags, &|name| std::env::var(name).ok(), Some(Path::new(SYSTEM_FILE)))
    }

    /// Reads variables from elsewhere.
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        Self::read(&[], &get, None)
    }

    fn read(
        flags: &[(&'static str, String)],
        variable: &dyn Fn(&str) -> Option<String>,
        system_file: Option<&Path>,
    ) -> Result<Self, ConfigError> {
        let file = find_file(variable, system_file).map(|path| File::read(&path)).transpose()?;
        let path = file.as_ref().map(|file| file.path.clone());
        let mut read = Reader::new(Sources { flags, variable, file: file.unwrap_or_default() });
        let home = read.raw("HOME").map(PathBuf::from).or_else(puna_store::account_home);
        let registry_key = home.as_ref().map(|home| home.join(".ollama").join("id_ed25519"));
        let default = home.map(|home| puna_store::default_root(None, Some(&home)).display().to_string());
        let models = read.text("models", default.as_deref()).map(PathBuf::from);
        let keys = config_folder(variable).map(|folder| folder.join("keys.toml").display().to_string());
        let editors = ["VISUAL", "EDITOR"].into_iter().find_map(|name| read.raw(name));
        let editor = editors.unwrap_or_else(|| if cfg!(windows) { "edit" } else { "vi" }.into());
        let (mut address, scheme) = read.address();
        let tls = tls(read.text("tls.certificate", None), read.text("tls.key", None))?;
        if tls.is_some() && !scheme {
            address.scheme = "https".into();
        }
        let mut config = Self {
            address,
            models: models.ok_or(ConfigError::NoHome)?,
            origins: Origins::parse(&read.text("origins", None).unwrap_or_default())?,
            keys: read.text("keys", keys.as_deref()).map(PathBuf::from).unwrap_or_default(),
            tls,
            api_key: read.secret("api_key"),
            keep_alive: read.keep_alive(Duration::from_secs(300)),
            load_timeout: read.timeout("load_timeout", Duration::from_secs(300)),
            write_timeout: read.timeout("write_timeout", Duration::from_secs(60)),
            step_timeout: read.timeout("step_timeout", Duration::from_secs(900)),
            context_length: Some(read.number("context_length", 0)).filter(|n| *n > 0).map(clamp_u32),
            num_parallel: Some(clamp_u32(read.number("num_parallel", 0))).filter(|n| *n > 0),
            max_loaded_models: match read.number("max_loaded_models", 0) {
                // Three a graphics card; three without any.
                0 => 3,
                n => n as usize,
            },
            max_queue: read.number("max_queue", 512) as usize,
            kv_cache_type: read.text("kv_cache_type", Some("f16")).unwrap_or_default().to_lowercase(),
            go_template: read.flag("go_template", None),
            no_prune: read.flag("noprune", Some(false)).unwrap_or(false),
            debug: read.debug(),
            max_transfer_streams: (read.number("max_transfer_streams", 8) as usize).clamp(1, MAX_STREAMS),
            registry_key,
            proxies: proxies(variable),
            kernels: read.text("kernels", None),
            threads: Some(read.number("threads", 0) as usize).filter(|n| *n > 0),
            deterministic: read.flag("deterministic", Some(false)).unwrap_or(false),
            speculate: Wish::parse(&read.text("speculate", Some("auto")).unwrap_or_default()),
            no_history: read.flag("nohistory", Some(false)).unwrap_or(false),
            editor: read.text("editor", Some(&editor)).unwrap_or_default(),
            warnings: read.warnings,
            file: path,
            settings: read.settings,
        };
        if let Some(error) = read.error {
            return Err(error);
        }
        config.settings.sort_by_key(|setting| KEYS.iter().position(|key| *key == setting.key));
        Ok(config)
    }

    /// A configuration for tests and for programs that bring their own: defaults, with models in a folder.
    pub fn with_models(models: &Path) -> Self {
        let variables = |name: &str| match name {
            "OLLAMA_MODELS" => Some(models.display().to_string()),
            "PUNA_KEYS" => Some(models.join("keys.toml").display().to_string()),
            _ => None,
        };
        // Without a list of origins nothing can fail.
        Self::from_variables(variables).unwrap_or_else(|e| unreachable!("the defaults are wrong: {e}"))
    }
}

/// A certificate and its key: both or neither.
fn tls(certificate: Option<String>, key: Option<String>) -> Result<Option<TlsFiles>, ConfigError> {
    match (certificate, key) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => {
            Ok(Some(TlsFiles { certificate: certificate.into(), key: key.into() }))
        }
        (Some(_), None) => Err(ConfigError::HalfTls { set: "tls.certificate", missing: "tls.key" }),
        (None, Some(_)) => Err(ConfigError::HalfTls { set: "tls.key", missing: "tls.certificate" }),
    }
}

/// The proxies that the usual variables name, in small letters or capital ones.
fn proxies(variable: &dyn Fn(&str) -> Option<String>) -> Proxies {
    let find = |name: &str| {
        let of =
            |name: String| variable(&name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        of(name.to_uppercase()).or_else(|| of(name.to_lowercase()))
    };
    let all = || find("all_proxy");
    Proxies {
        http: find("http_proxy").or_else(all),
        https: find("https_proxy").or_else(all),
        direct: find("no_proxy").unwrap_or_default(),
    }
}

/// The configuration file: `PUNA_CONFIG`, which must be there; else the user's; else that of the machine.
fn find_file(variable: &dyn Fn(&str) -> Option<String>, system: Option<&Path>) -> Option<PathBuf> {
    let users =
        || config_folder(variable).map(|folder| folder.join("puna.toml")).filter(|path| path.exists());
    let systems = || system.filter(|path| path.exists()).map(Path::to_owned);
    path_in(variable, "PUNA_CONFIG").or_else(users).or_else(systems)
}

/// The user's folder for what Puna is told.
fn config_folder(variable: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let home = || Some(path_in(variable, "HOME").or_else(puna_store::account_home)?.join(".config"));
    Some(path_in(variable, "XDG_CONFIG_HOME").or_else(home)?.join("puna"))
}

fn path_in(variable: &dyn Fn(&str) -> Option<String>, name: &str) -> Option<PathBuf> {
    variable(name).filter(|text| !text.trim().is_empty()).map(PathBuf::from)
}

fn clamp_u32(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(variables: &[(&str, &str)]) -> Config {
        let given = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        let find = |name: &str| given(name).or_else(|| (name == "HOME").then(|| "/home/me".to_owned()));
        Config::from_variables(find).unwrap()
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
    fn with_a_certificate_an_address_is_spoken_to_by_tls_unless_it_says_otherwise() {
        let both = [("PUNA_TLS_CERTIFICATE", "/c.pem"), ("PUNA_TLS_KEY", "/k.pem")];
        let c = config(&both);
        assert_eq!(c.address.url(), "https://127.0.0.1:11434");
        assert_eq!(c.tls, Some(TlsFiles { certificate: "/c.pem".into(), key: "/k.pem".into() }));
        let plain = config(&[&both[..], &[("OLLAMA_HOST", "http://h:1")]].concat());
        assert_eq!(plain.address.url(), "http://h:1");
        let half = Config::from_variables(|name| (name == "PUNA_TLS_KEY").then(|| "/k.pem".to_owned()));
        let text = half.unwrap_err().to_string();
        assert_eq!(text, "tls.key is set, but not tls.certificate: TLS needs both, or neither");
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

    /// A configuration with a file of this text, and some variables.
    fn with_file(
        text: &str,
        variables: &[(&str, &str)],
        flags: &[(&'static str, &str)],
    ) -> Result<Config, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("puna").join("puna.toml");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        let home = folder.path().display().to_string();
        let given = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        let find = |name: &str| {
            given(name).or_else(|| matches!(name, "HOME" | "XDG_CONFIG_HOME").then(|| home.clone()))
        };
        let flags: Vec<_> = flags.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
        Config::read(&flags, &find, None)
    }

    #[test]
    fn the_command_line_wins_over_variables_and_these_over_the_file() {
        let file = "# ours\nmax_queue = 3\nkeep_alive = \"10m\"\ndeterministic = true\nhost = \"h:1\"\norigins = [\"http://a\", \"http://b\"]\n";
        let c = with_file(file, &[("OLLAMA_KEEP_ALIVE", "20m"), ("PUNA_HOST", "h:2")], &[("host", "h:3")])
            .unwrap();
        assert_eq!((c.max_queue, c.deterministic, c.address.port), (3, true, 3));
        assert_eq!(c.keep_alive, KeepAlive::For(Duration::from_secs(1200)));
        assert!(
            c.origins.allows("http://a") && c.origins.allows("http://b") && !c.origins.allows("http://c")
        );
        let setting = |key| c.settings.iter().find(|s| s.key == key).unwrap();
        let shown = |key| (setting(key).value.clone().unwrap_or_default(), setting(key).source.clone());
        assert_eq!(shown("max_queue"), ("3".into(), Source::File(c.file.clone().unwrap(), 2)));
        assert_eq!(shown("keep_alive"), ("\"20m0s\"".into(), Source::Variable("OLLAMA_KEEP_ALIVE".into())));
        assert_eq!(shown("host"), ("\"h:3\"".into(), Source::Flag));
        assert_eq!(shown("load_timeout"), ("\"5m0s\"".into(), Source::Default));
    }

    #[test]
    fn what_is_shown_of_the_settings_is_a_file_that_says_the_same() {
        let variables = [
            ("OLLAMA_HOST", "0.0.0.0:99"),
            ("OLLAMA_KEEP_ALIVE", "-1"),
            ("PUNA_THREADS", "3"),
            ("PUNA_LOAD_TIMEOUT", "0"),
            ("PUNA_TLS_CERTIFICATE", "/c"),
            ("PUNA_TLS_KEY", "/k"),
        ];
        let c = with_file("", &variables, &[]).unwrap();
        assert_eq!(c.settings.iter().map(|s| s.key).collect::<Vec<_>>(), KEYS);
        let line = |s: &Setting| s.value.as_ref().map(|value| format!("{} = {value}\n", s.key));
        let file: String = c.settings.iter().filter_map(line).collect();
        let again = with_file(&file, &[], &[]).unwrap();
        let values = |c: &Config| c.settings.iter().map(|s| s.value.clone()).collect::<Vec<_>>();
        assert_eq!(values(&again), values(&c));
        assert_eq!(
            (again.keep_alive, again.load_timeout, again.threads),
            (KeepAlive::Forever, None, Some(3))
        );
        let grouped = with_file("[tls]\nkey = \"/k\"\ncertificate = \"/c\"", &[], &[]).unwrap();
        assert!(again.tls.is_some() && again.tls == grouped.tls);
    }

    #[test]
    fn mistakes_in_the_file_are_errors_that_name_the_line() {
        let cases = [
            ("\nmax_que = 3", "line 2: there is no setting \"max_que\": did you mean \"max_queue\"?"),
            ("OLLAMA_HOST = \"x\"", "line 1: there is no setting \"OLLAMA_HOST\": did you mean \"host\"?"),
            ("wombat = 1", "line 1: there is no setting \"wombat\": `puna config` lists those there are"),
            ("[tls]\nkay = \"x\"", "line 2: there is no setting \"tls.kay\": did you mean \"tls.key\"?"),
            ("tls = \"x\"", "line 1: there is no setting \"tls\""),
            ("[server]\nhost = \"x\"", "line 1: there is no setting \"server\""),
            (
                "max_queue = \"many\"",
                "line 1: max_queue is \"many\": it must be a whole number from 0 up; using 512",
            ),
            (
                "max_queue = 1.5",
                "line 1: max_queue is a number with a fraction: it must be a text, a whole number, true or false",
            ),
            ("max_queue = -1", "line 1: max_queue is \"-1\""),
            ("threads = 0x10", "line 1: threads is a number that is not decimal"),
            ("origins = [1]", "line 1: origins is a list of other things"),
            ("host = {a = 1}", "line 1: host is a table"),
            ("keep_alive = \"soon\"", "line 1: keep_alive is \"soon\": it must be a time"),
            ("deterministic = \"maybe\"", "line 1: deterministic is \"maybe\""),
            ("\n\nhost = ", "line 3: "),
            ("host = \"a\"\nhost = \"b\"", "line 2: "),
        ];
        for (text, want) in cases {
            let error = with_file(text, &[], &[]).unwrap_err().to_string();
            assert!(error.contains("puna.toml, ") && error.contains(want), "{text}: {error}");
        }
        let error = with_file("", &[("PUNA_CONFIG", "/nowhere/puna.toml")], &[]).unwrap_err().to_string();
        assert!(error.starts_with("cannot read the configuration file /nowhere/puna.toml: "), "{error}");
        let error = with_file("", &[], &[("max_queue", "x")]).unwrap_err().to_string();
        assert!(error.starts_with("the setting max_queue is \"x\""), "{error}");
    }
}

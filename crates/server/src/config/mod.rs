//! The configuration: the only place that reads the environment.
//!
//! A setting has a key ([`SETTINGS`]). It is taken from the command line, else from the variable `PUNA_KEY`, else from
//! `OLLAMA_KEY`, which has Ollama's name, else from the configuration file, and else it has a default.

mod file;
mod hosts;
mod keys;
mod mirror;
pub mod origins;
mod places;
mod reader;
mod storage;
#[cfg(test)]
mod tests;
mod unknown;

use std::path::{Path, PathBuf};
use std::time::Duration;

use puna_api::KeepAlive;
pub use puna_api::{Address, DEFAULT_PORT};
use puna_registry::{Hosts, Proxies};
use puna_store::{Store, StoreError};

pub use hosts::HostSettings;
pub use keys::{Kind, SETTINGS, check_key};
pub use mirror::MirrorConfig;
pub use reader::{Setting, Source};

use self::origins::Origins;
use crate::speculate::Wish;

use file::File;
use reader::{Reader, Sources};

/// Connections of one download at most.
const MAX_STREAMS: u32 = 64;

/// Where a server listens that is not told otherwise.
const DEFAULT_ADDRESS: &str = "";

/// Something that was set is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
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
    #[error("{set} is set ({by}), but not {missing}: TLS needs both, or neither")]
    HalfTls {
        /// The one that is there.
        set: &'static str,
        /// Where it is set.
        by: Source,
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
    /// A variable has a value that means nothing, and nothing could stand for it.
    #[error("{variable} {text}")]
    Variable {
        /// Its whole name.
        variable: String,
        /// What is wrong with its value.
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

/// Something that no debug text shows.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Hidden<T>(pub T);

impl<T> std::fmt::Debug for Hidden<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(hidden)")
    }
}

/// Everything that can be set.
#[derive(Debug, Clone)]
pub struct Config {
    /// `OLLAMA_HOST`: where the server listens, and commands look for it.
    pub address: Address,
    /// `OLLAMA_MODELS`: the folder of the store.
    pub models: PathBuf,
    /// `PUNA_SEARCH_PATHS`: further folders of models, which are only read.
    pub search_paths: Vec<PathBuf>,
    /// `OLLAMA_ORIGINS`: web origins that may call beside those of this machine.
    pub origins: Origins,
    /// `PUNA_KEYS`: the file of [API keys](crate::keys).
    pub keys: PathBuf,
    /// `PUNA_TLS_CERTIFICATE` and `PUNA_TLS_KEY`; `None` is without TLS.
    pub tls: Option<TlsFiles>,
    /// `PUNA_MIRROR_…`: the registry.
    pub mirror: MirrorConfig,
    /// `PUNA_API_KEY`, `OLLAMA_API_KEY`: the key that commands show to a server.
    pub api_key: Hidden<Option<String>>,
    /// `OLLAMA_KEEP_ALIVE`: how long a model stays in memory after its last request, where that does not say so itself.
    pub keep_alive: KeepAlive,
    /// `OLLAMA_LOAD_TIMEOUT`: how long a load may stall; `None` is for ever.
    pub load_timeout: Option<Duration>,
    /// `PUNA_STEP_TIMEOUT`: how long a single step of a model may take; `None` is for ever. The first steps read the
    /// weights from the disk, so that it must not be short.
    pub step_timeout: Option<Duration>,
    /// `PUNA_WRITE_TIMEOUT`: how long a client may take nothing of its answer before it is given up; `None` is for ever.
    pub write_timeout: Option<Duration>,
    /// `OLLAMA_CONTEXT_LENGTH`: tokens of context of requests and models that say nothing; `None`: as many as the model has.
    pub context_length: Option<u32>,
    /// `OLLAMA_NUM_PARALLEL`: conversations of one model at once; `None` is automatic.
    pub num_parallel: Option<u32>,
    /// `OLLAMA_MAX_LOADED_MODELS`: models in memory at once; models of the same weights are one.
    pub max_loaded_models: usize,
    /// `OLLAMA_MAX_QUEUE`: requests that may wait for models that are not loaded; further ones are refused.
    pub max_queue: usize,
    /// `OLLAMA_KV_CACHE_TYPE`: `f16`, `q8_0` …
    pub kv_cache_type: String,
    /// `OLLAMA_GO_TEMPLATE`: prefer the Go template (`true`) or the file's Jinja template (`false`).
    pub go_template: Option<bool>,
    /// `OLLAMA_NOPRUNE`: whether blobs are kept that no model uses any more.
    pub no_prune: bool,
    /// `OLLAMA_DEBUG`: 0, 1 (debug) or 2 (trace).
    pub debug: u8,
    /// `OLLAMA_MAX_TRANSFER_STREAMS`: connections of one download at once.
    pub max_transfer_streams: usize,
    /// `PUNA_IMAGE_URLS`: whether images are fetched that requests name by address.
    pub image_urls: bool,
    /// `PUNA_IMAGE_HOSTS`: hosts (`name` or `name:port`) that images are fetched from though not everybody can reach them.
    pub image_hosts: Vec<String>,
    /// `PUNA_REMOTES`, `OLLAMA_REMOTES`: servers (`name`, `name:port`, with `http://` or `https://` before it or not) that models
    /// of other servers may be asked at.
    pub remotes: Vec<String>,
    /// `PUNA_REMOTE_KEYS`: such servers, and the keys that they are shown.
    pub remote_keys: Hidden<Vec<(String, String)>>,
    /// `PUNA_REMOTE_TIMEOUT`: how long such a server may be silent; `None` is for ever.
    pub remote_timeout: Option<Duration>,
    /// The key that registries are shown; `None` where there is no home folder.
    pub registry_key: Option<PathBuf>,
    /// `PUNA_REGISTRY_DEFAULT`: the address that is asked in the place of Ollama's registry.
    pub registry_default: Option<String>,
    /// `PUNA_REGISTRY_MIRRORS`: addresses that are asked before it.
    pub registry_mirrors: Vec<String>,
    /// `PUNA_REGISTRY_LIMIT_RATE`: bytes a second at most, of all pulls and pushes together.
    pub registry_limit_rate: Option<u64>,
    /// What the file sets for single registries.
    pub registry_hosts: Hosts,
    /// Docker's `config.json`, where `docker login` leaves credentials.
    pub docker_config: Option<PathBuf>,
    /// `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`, for pulls and pushes.
    pub proxies: Proxies,
    /// `PUNA_RUNNER`: the runner whose manifest is preferred where a name stands for several.
    pub runner: Option<String>,
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
    /// Every setting as it is in effect, in the order of [`SETTINGS`].
    pub settings: Vec<Setting>,
    /// What is set for single registries: the tables `[registry.hosts."HOST"]`.
    pub host_settings: Vec<HostSettings>,
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
        let mut config = Self::read(
            flags,
            &|name| std::env::var(name).ok(),
            Some(Path::new(places::SYSTEM_FILE)),
        )?;
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        config.warnings.extend(unknown::warnings(names));
        Ok(config)
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
        let file =
            places::find_file(variable, system_file).map(|path| File::read(&path)).transpose()?;
        let path = file.as_ref().map(|file| file.path.clone());
        let home = places::home(variable);
        let file = file.unwrap_or_default();
        let registry_hosts = hosts::read(&file, variable, home.as_deref())?;
        let host_settings = hosts::shown(&file, variable, home.as_deref());
        let mut read = Reader::new(Sources { flags, variable, file, home });
        let (mut config, half) = Self::values(&mut read, path, registry_hosts, host_settings);
        // Values first: a pair is judged by what it is made of.
        if let Some(error) = read.error.or(half) {
            return Err(error);
        }
        if config.models.as_os_str().is_empty() {
            return Err(ConfigError::NoHome);
        }
        config.settings.sort_by_key(|setting| keys::keys().position(|key| key == setting.key));
        if config.file.is_some() && config.settings.iter().any(Setting::hides_the_file) {
            // What is hidden now counts when the variable is gone: what is wrong with it is said at once.
            let places = |name: &str| variable(name).filter(|_| places::is_place(name));
            if let Err(error @ ConfigError::File { .. }) = Self::read(&[], &places, system_file) {
                return Err(error);
            }
        }
        Ok(config)
    }

    /// All values, and what is wrong with two of them together.
    fn values(
        read: &mut Reader<'_>,
        file: Option<PathBuf>,
        registry_hosts: Hosts,
        host_settings: Vec<HostSettings>,
    ) -> (Self, Option<ConfigError>) {
        let (variable, home) = (read.sources.variable, read.sources.home.clone());
        let (address, tls, half) = listening(read);
        let config = Self {
            address,
            models: models_folder(read),
            search_paths: read.folders("search_paths"),
            runner: read.runner(),
            origins: read.origins(),
            keys: keys_file(read),
            tls,
            mirror: MirrorConfig::read(read),
            api_key: Hidden(read.secret("api_key")),
            keep_alive: read.keep_alive(Duration::from_secs(300)),
            load_timeout: read.timeout("load_timeout", Duration::from_secs(300)),
            write_timeout: read.timeout("write_timeout", Duration::from_secs(60)),
            step_timeout: read.timeout("step_timeout", Duration::from_secs(900)),
            context_length: Some(read.number("context_length", 0, u32::MAX)).filter(|n| *n > 0),
            num_parallel: Some(read.number("num_parallel", 0, u32::MAX)).filter(|n| *n > 0),
            max_loaded_models: match read.number("max_loaded_models", 0, u32::MAX) {
                // Three a graphics card; three without any.
                0 => 3,
                n => n as usize,
            },
            max_queue: read.number("max_queue", 512, u32::MAX) as usize,
            kv_cache_type: read.cache_type(),
            go_template: read.flag("go_template", None),
            no_prune: read.on("noprune"),
            debug: read.debug(),
            max_transfer_streams: read.number("max_transfer_streams", 8, MAX_STREAMS).max(1)
                as usize,
            registry_default: read.registries("registry.default").pop(),
            registry_mirrors: read.registries("registry.mirrors"),
            registry_limit_rate: read.rate("registry.limit_rate"),
            registry_hosts,
            docker_config: places::docker_config(variable),
            image_urls: read.switch("image_urls"),
            image_hosts: read.hosts("image_hosts"),
            remotes: read.servers("remotes"),
            remote_keys: Hidden(read.keys_of_servers("remote_keys")),
            remote_timeout: read.timeout("remote_timeout", Duration::from_secs(600)),
            registry_key: home.as_ref().map(|home| home.join(".ollama").join("id_ed25519")),
            proxies: places::proxies(variable),
            kernels: read.kernels(),
            threads: Some(read.number("threads", 0, u32::MAX) as usize).filter(|n| *n > 0),
            deterministic: read.on("deterministic"),
            speculate: read.speculate(),
            no_history: read.on("nohistory"),
            editor: editor(read),
            warnings: std::mem::take(&mut read.warnings),
            file,
            settings: std::mem::take(&mut read.settings),
            host_settings,
        };
        (config, half)
    }

    /// Opens the store of models.
    ///
    /// # Errors
    /// Its folder is none, or cannot be read.
    pub fn store(&self) -> Result<Store, StoreError> {
        let store = Store::open(&self.models)?.with_others(self.search_paths.iter().cloned());
        Ok(store.with_runner(self.runner.clone()))
    }

    /// Where a setting comes from.
    pub fn source(&self, key: &str) -> &Source {
        self.settings
            .iter()
            .find(|setting| setting.key == key)
            .map_or(&Source::Default, |found| &found.source)
    }

    /// A configuration for tests and for programs that bring their own: defaults, with models in a folder.
    pub fn with_models(models: &Path) -> Self {
        let variables = |name: &str| match name {
            "OLLAMA_MODELS" => Some(models.display().to_string()),
            "PUNA_KEYS" => Some(models.join("keys.toml").display().to_string()),
            _ => None,
        };
        // Without a list of origins nothing can fail.
        Self::from_variables(variables)
            .unwrap_or_else(|e| unreachable!("the defaults are wrong: {e}"))
    }
}

/// Where a server listens, with what certificate, and what is wrong with that.
fn listening(read: &mut Reader<'_>) -> (Address, Option<TlsFiles>, Option<ConfigError>) {
    let (mut address, scheme) = read.address("host", DEFAULT_ADDRESS);
    match tls(read) {
        Ok(files) => {
            if files.is_some() && !scheme {
                address.scheme = "https".into();
            }
            (address, files, None)
        }
        Err(half) => (address, None, Some(half)),
    }
}

/// The folder of models; none where there is no home folder to have it.
fn models_folder(read: &mut Reader<'_>) -> PathBuf {
    let home = read.sources.home.as_deref();
    let usual = home.map(|home| puna_store::default_root(None, Some(home)).display().to_string());
    read.path("models", usual.as_deref()).unwrap_or_default()
}

fn keys_file(read: &mut Reader<'_>) -> PathBuf {
    let folder = places::config_folder(read.sources.variable);
    let usual = folder.map(|folder| folder.join("keys.toml").display().to_string());
    read.path("keys", usual.as_deref()).unwrap_or_default()
}

fn editor(read: &mut Reader<'_>) -> String {
    let others = ["VISUAL", "EDITOR"].into_iter().find_map(|name| read.raw(name));
    let usual = others.unwrap_or_else(|| if cfg!(windows) { "edit" } else { "vi" }.into());
    read.text("editor", Some(&usual)).unwrap_or_default()
}

/// A certificate and its key: both or neither.
fn tls(read: &mut Reader<'_>) -> Result<Option<TlsFiles>, ConfigError> {
    let (certificate, key) = (read.path("tls.certificate", None), read.path("tls.key", None));
    let (set, missing) = match (certificate, key) {
        (None, None) => return Ok(None),
        (Some(certificate), Some(key)) => return Ok(Some(TlsFiles { certificate, key })),
        (Some(_), None) => ("tls.certificate", "tls.key"),
        (None, Some(_)) => ("tls.key", "tls.certificate"),
    };
    Err(ConfigError::HalfTls { set, by: read.source(set), missing })
}

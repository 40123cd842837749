//! The configuration. Only this module reads the environment.
//!
//! A setting has a key ([`SETTINGS`]). Its value comes from the command line, else from the
//! variable `PUNA_KEY`, else from `OLLAMA_KEY` with Ollama's name, else from the configuration
//! file, else from a default.

mod effective;
mod error;
mod file;
mod host_keys;
mod host_names;
mod hosts;
mod mirror;
pub mod origins;
mod outgoing;
#[cfg(test)]
mod page_tests;
mod paths;
mod prefix_sharing;
mod reader;
mod sandbox;
mod setting_keys;
mod setting_table;
mod storage;
#[cfg(test)]
mod tests;
mod trusted_proxies;
mod unknown_variables;

use std::path::{Path, PathBuf};
use std::time::Duration;

use puna_api::KeepAlive;
pub use puna_api::{Address, DEFAULT_PORT};
use puna_registry::{Hosts, Proxies};
use puna_store::{Store, StoreError, StoreMode};

pub use effective::{Setting, Source};
pub use error::{ConfigError, Warning};
pub use hosts::HostSettings;
pub use mirror::MirrorConfig;
pub use prefix_sharing::PrefixSharing;
pub use setting_keys::check_key;
pub use setting_table::{SETTINGS, SettingDefault, SettingDefinition, SettingGroup, ValueKind};
pub use trusted_proxies::TrustedProxies;

use self::origins::Origins;
use crate::runner::sandbox::SandboxMode;
use crate::speculate::SpeculateSetting;

use file::File;
use hosts::MAX_STREAMS;
use reader::{SettingsReader, Sources};

/// Default address of the server; empty stands for the default host and port.
const DEFAULT_ADDRESS: &str = "";

/// Certificate and key files for TLS, in PEM format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate chain, the server's certificate first.
    pub certificate: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
}

/// A value that `Debug` does not show.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Redacted<T>(pub T);

impl<T> std::fmt::Debug for Redacted<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(hidden)")
    }
}

/// All settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// `OLLAMA_HOST`: address on which the server listens and at which commands look for it.
    pub address: Address,
    /// `OLLAMA_MODELS`: models directory of the store.
    pub models: PathBuf,
    /// `PUNA_SEARCH_PATHS`: additional read-only models directories.
    pub search_paths: Vec<PathBuf>,
    /// `PUNA_STORE_MODE`: permission bits of model files.
    pub store_mode: Option<StoreMode>,
    /// `OLLAMA_ORIGINS`: allowed web origins besides local ones.
    pub origins: Origins,
    /// `PUNA_ALLOWED_HOSTS`: hosts (`name` or `name:port`) that a `Host` header may name besides
    /// those of this machine.
    pub allowed_hosts: Vec<String>,
    /// `PUNA_KEYS`: the file of [API keys](crate::auth).
    pub keys: PathBuf,
    /// `PUNA_PREFIX_SHARING`: which requests find each other's prefixes in the cache.
    pub prefix_sharing: PrefixSharing,
    /// `PUNA_TRUSTED_PROXIES`: proxies whose account of the client's address is believed.
    pub trusted_proxies: TrustedProxies,
    /// `PUNA_TLS_CERTIFICATE` and `PUNA_TLS_KEY`; `None` disables TLS.
    pub tls: Option<TlsFiles>,
    /// `PUNA_MIRROR_…`: the mirror.
    pub mirror: MirrorConfig,
    /// `PUNA_API_KEY`, `OLLAMA_API_KEY`: API key that commands send to a server.
    pub api_key: Redacted<Option<String>>,
    /// `OLLAMA_KEEP_ALIVE`: how long a model stays loaded after its last request, unless the
    /// request sets it.
    pub keep_alive: KeepAlive,
    /// `OLLAMA_LOAD_TIMEOUT`: how long a load may stall; `None` is no limit.
    pub load_timeout: Option<Duration>,
    /// `PUNA_STEP_TIMEOUT`: how long one step of a model may take; `None` is no limit. The first
    /// steps read the weights from disk, so it must not be short.
    pub step_timeout: Option<Duration>,
    /// `PUNA_WRITE_TIMEOUT`: how long a client may read nothing of its response before it is
    /// disconnected; `None` is no limit.
    pub write_timeout: Option<Duration>,
    /// `OLLAMA_CONTEXT_LENGTH`: default context in tokens; `None` is the model's full context.
    pub context_length: Option<u32>,
    /// `OLLAMA_NUM_PARALLEL`: maximum concurrent conversations per model; `None` is automatic.
    pub num_parallel: Option<u32>,
    /// `OLLAMA_MAX_LOADED_MODELS`: maximum models in memory; models with the same weights count
    /// once.
    pub max_loaded_models: usize,
    /// `OLLAMA_MAX_QUEUE`: maximum requests that wait for a model to be loaded; further ones are
    /// rejected.
    pub max_queue: usize,
    /// `OLLAMA_KV_CACHE_TYPE`: `f16`, `q8_0` …
    pub kv_cache_type: String,
    /// `OLLAMA_GO_TEMPLATE`: prefer the Go template (`true`) or the Jinja template of the file
    /// (`false`).
    pub go_template: Option<bool>,
    /// `OLLAMA_NOPRUNE`: whether unreferenced blobs are kept.
    pub no_prune: bool,
    /// `OLLAMA_DEBUG`: 0, 1 (debug) or 2 (trace).
    pub debug: u8,
    /// `OLLAMA_MAX_TRANSFER_STREAMS`: concurrent connections of one download.
    pub max_transfer_streams: usize,
    /// `PUNA_IMAGE_URLS`: whether the server fetches images that requests name by URL.
    pub image_urls: bool,
    /// `PUNA_IMAGE_HOSTS`: hosts (`name` or `name:port`) from which images are fetched although
    /// their addresses are not public.
    pub image_hosts: Vec<String>,
    /// `PUNA_OUTGOING_HOSTS`: hosts (`name` or `name:port`) that clients without administrator
    /// rights may have the server contact; empty allows every public host.
    pub outgoing_hosts: Vec<String>,
    /// `PUNA_REMOTES`, `OLLAMA_REMOTES`: servers that remote models may use (`name` or `name:port`,
    /// optionally with `http://` or `https://`).
    pub remotes: Vec<String>,
    /// `PUNA_REMOTE_KEYS`: API keys for these servers.
    pub remote_keys: Redacted<Vec<(String, String)>>,
    /// `PUNA_REMOTE_TIMEOUT`: how long a remote server may be silent; `None` is no limit.
    pub remote_timeout: Option<Duration>,
    /// Private key for registries; `None` without a home directory.
    pub registry_key: Option<PathBuf>,
    /// `PUNA_REGISTRY_DEFAULT`: registry used instead of Ollama's.
    pub registry_default: Option<String>,
    /// `PUNA_REGISTRY_MIRRORS`: registries tried before it.
    pub registry_mirrors: Vec<String>,
    /// `PUNA_REGISTRY_LIMIT_RATE`: maximum bytes per second of all pulls and pushes together.
    pub registry_limit_rate: Option<u64>,
    /// Settings of single registries.
    pub registry_hosts: Hosts,
    /// Docker's `config.json`, where `docker login` stores credentials.
    pub docker_config: Option<PathBuf>,
    /// `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`, for pulls and pushes.
    pub proxies: Proxies,
    /// `PUNA_RUNNER`: preferred runner where a name has manifests for several runners.
    pub runner: Option<String>,
    /// `PUNA_KERNELS`: kernel level to use instead of the best one.
    pub kernels: Option<String>,
    /// `PUNA_THREADS`: threads per model instead of one per core.
    pub threads: Option<usize>,
    /// `PUNA_SANDBOX`: which restrictions runners and file workers apply to themselves.
    pub sandbox: SandboxMode,
    /// `PUNA_DETERMINISTIC`: whether answers are independent of other requests in the batch.
    pub deterministic: bool,
    /// `PUNA_SPECULATE`: `auto`, `off`, `ngram`, `always`, or a draft model for all models that it
    /// fits.
    pub speculate: SpeculateSetting,
    /// `OLLAMA_NOHISTORY`: whether interactive input is not saved.
    pub no_history: bool,
    /// `OLLAMA_EDITOR`, else `VISUAL`, else `EDITOR`: program for editing prompts.
    pub editor: String,
    /// Warnings about invalid values, for the log.
    pub warnings: Vec<Warning>,
    /// The configuration file that was read.
    pub file: Option<PathBuf>,
    /// All settings in effect, in the order of [`SETTINGS`].
    pub settings: Vec<Setting>,
    /// Settings of single registries: the tables `[registry.hosts."HOST"]`.
    pub host_settings: Vec<HostSettings>,
}

impl Config {
    /// Reads the environment of this process, and the configuration file.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::with_flags(&[])
    }

    /// Like [`Config::from_env`], with settings from the command line, which take precedence.
    pub fn with_flags(flags: &[(&'static str, String)]) -> Result<Self, ConfigError> {
        let mut config = Self::read(
            flags,
            &|name| std::env::var(name).ok(),
            Some(Path::new(paths::SYSTEM_FILE)),
        )?;
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        config.warnings.extend(unknown_variables::warnings(names));
        Ok(config)
    }

    /// Reads variables from a function instead of the environment.
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        Self::read(&[], &get, None)
    }

    fn read(
        flags: &[(&'static str, String)],
        variable: &dyn Fn(&str) -> Option<String>,
        system_file: Option<&Path>,
    ) -> Result<Self, ConfigError> {
        let file =
            paths::find_file(variable, system_file).map(|path| File::read(&path)).transpose()?;
        let path = file.as_ref().map(|file| file.path.clone());
        let home = paths::home(variable);
        let file = file.unwrap_or_default();
        let registry_hosts = hosts::read(&file, variable, home.as_deref())?;
        let host_settings = hosts::effective_settings(&file, variable, home.as_deref());
        let mut read = SettingsReader::new(Sources { flags, variable, file, home });
        let (mut config, incomplete_tls) =
            Self::values(&mut read, path, registry_hosts, host_settings);
        // Errors of single values come first; a pair depends on its values.
        if let Some(error) = read.error.or(incomplete_tls) {
            return Err(error);
        }
        if config.models.as_os_str().is_empty() {
            return Err(ConfigError::NoHome);
        }
        config
            .settings
            .sort_by_key(|setting| setting_keys::keys().position(|key| key == setting.key));
        if config.file.is_some() && config.settings.iter().any(Setting::overrides_file) {
            // Values of the file that a variable overrides are checked too: they apply when the
            // variable is unset.
            let locations =
                |name: &str| variable(name).filter(|_| paths::is_location_variable(name));
            if let Err(error @ ConfigError::File { .. }) = Self::read(&[], &locations, system_file)
            {
                return Err(error);
            }
        }
        Ok(config)
    }

    /// Reads all values. The error concerns two values that belong together.
    fn values(
        read: &mut SettingsReader<'_>,
        file: Option<PathBuf>,
        registry_hosts: Hosts,
        host_settings: Vec<HostSettings>,
    ) -> (Self, Option<ConfigError>) {
        let (variable, home) = (read.sources.variable, read.sources.home.clone());
        let (address, tls, incomplete_tls) = listen_settings(read);
        let config = Self {
            address,
            models: models_folder(read),
            search_paths: read.folders("search_paths"),
            store_mode: read.store_mode(),
            runner: read.runner(),
            origins: read.origins(),
            allowed_hosts: read.hosts("allowed_hosts"),
            keys: keys_file(read),
            prefix_sharing: PrefixSharing::read(read),
            trusted_proxies: TrustedProxies::read(read),
            sandbox: sandbox::read(read),
            tls,
            mirror: MirrorConfig::read(read),
            api_key: Redacted(read.secret("api_key")),
            keep_alive: read.keep_alive(Duration::from_secs(300)),
            load_timeout: read.timeout("load_timeout", Duration::from_secs(300)),
            write_timeout: read.timeout("write_timeout", Duration::from_secs(60)),
            step_timeout: read.timeout("step_timeout", Duration::from_secs(900)),
            context_length: Some(read.number("context_length", 0, u32::MAX)).filter(|n| *n > 0),
            num_parallel: Some(read.number("num_parallel", 0, u32::MAX)).filter(|n| *n > 0),
            max_loaded_models: match read.number("max_loaded_models", 0, u32::MAX) {
                // Ollama's default is three per GPU, or three without one.
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
            docker_config: paths::docker_config(variable),
            image_urls: read.switch("image_urls"),
            image_hosts: read.hosts("image_hosts"),
            outgoing_hosts: read.hosts("outgoing_hosts"),
            remotes: read.servers("remotes"),
            remote_keys: Redacted(read.keys_of_servers("remote_keys")),
            remote_timeout: read.timeout("remote_timeout", Duration::from_secs(600)),
            registry_key: home.as_ref().map(|home| home.join(".ollama").join("id_ed25519")),
            proxies: paths::proxies(variable),
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
        (config, incomplete_tls)
    }

    /// Opens the store.
    ///
    /// # Errors
    /// The models directory is not a directory, or cannot be read.
    pub fn store(&self) -> Result<Store, StoreError> {
        let store = Store::open(&self.models)?.with_mode(self.store_mode);
        let store = store.with_read_only_dirs(self.search_paths.iter().cloned());
        Ok(store.with_runner(self.runner.clone()))
    }

    /// Source of a setting's value.
    pub fn source(&self, key: &str) -> &Source {
        self.settings
            .iter()
            .find(|setting| setting.key == key)
            .map_or(&Source::Default, |found| &found.source)
    }

    /// Default configuration with a models directory, for tests and for programs that embed the
    /// server.
    pub fn with_models(models: &Path) -> Self {
        let variables = |name: &str| match name {
            "OLLAMA_MODELS" => Some(models.display().to_string()),
            "PUNA_KEYS" => Some(models.join("keys.toml").display().to_string()),
            _ => None,
        };
        // Default values are valid.
        Self::from_variables(variables)
            .unwrap_or_else(|e| unreachable!("the defaults are wrong: {e}"))
    }
}

/// Reads the address and the TLS files. The error concerns an incomplete pair of TLS files.
fn listen_settings(
    read: &mut SettingsReader<'_>,
) -> (Address, Option<TlsFiles>, Option<ConfigError>) {
    let (mut address, scheme) = read.address("host", DEFAULT_ADDRESS);
    match tls(read) {
        Ok(files) => {
            if files.is_some() && !scheme {
                address.scheme = "https".into();
            }
            (address, files, None)
        }
        Err(incomplete_tls) => (address, None, Some(incomplete_tls)),
    }
}

/// The models directory; empty without a home directory.
fn models_folder(read: &mut SettingsReader<'_>) -> PathBuf {
    let home = read.sources.home.as_deref();
    let usual = home.map(|home| puna_store::default_root(None, Some(home)).display().to_string());
    read.path("models", usual.as_deref()).unwrap_or_default()
}

fn keys_file(read: &mut SettingsReader<'_>) -> PathBuf {
    let folder = paths::config_folder(read.sources.variable);
    let usual = folder.map(|folder| folder.join("keys.toml").display().to_string());
    read.path("keys", usual.as_deref()).unwrap_or_default()
}

fn editor(read: &mut SettingsReader<'_>) -> String {
    let others = ["VISUAL", "EDITOR"].into_iter().find_map(|name| read.raw(name));
    let usual = others.unwrap_or_else(|| if cfg!(windows) { "edit" } else { "vi" }.into());
    read.text("editor", Some(&usual)).unwrap_or_default()
}

/// Reads certificate and key: both or neither.
fn tls(read: &mut SettingsReader<'_>) -> Result<Option<TlsFiles>, ConfigError> {
    let (certificate, key) = (read.path("tls.certificate", None), read.path("tls.key", None));
    let (set, missing) = match (certificate, key) {
        (None, None) => return Ok(None),
        (Some(certificate), Some(key)) => return Ok(Some(TlsFiles { certificate, key })),
        (Some(_), None) => ("tls.certificate", "tls.key"),
        (None, Some(_)) => ("tls.key", "tls.certificate"),
    };
    Err(ConfigError::IncompleteTls { set, by: read.source(set), missing })
}

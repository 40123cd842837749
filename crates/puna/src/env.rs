//! Settings that commands read without a server.

use std::path::PathBuf;

use puna_server::file_worker::FileWorkerLauncher;
use puna_server::{Config, ConfigError, SandboxMode};
use puna_store::Store;

/// The user's home directory.
pub fn home() -> Option<PathBuf> {
    puna_store::home_dir()
}

/// The model store, with its read-only folders.
///
/// # Errors
/// The store is not set and there is no home directory; another setting is invalid; or the store
/// cannot be read.
pub fn store() -> anyhow::Result<Store> {
    Ok(Config::from_env()?.store()?)
}

/// Launcher of sandboxed processes for jobs on untrusted files. Without a home directory, the
/// settings have their defaults.
///
/// # Errors
/// A setting is invalid, or the path of this program is unknown.
pub fn file_worker() -> anyhow::Result<FileWorkerLauncher> {
    let (debug, sandbox) = match Config::from_env() {
        Ok(config) => (config.debug, config.sandbox),
        Err(ConfigError::NoHome) => (0, SandboxMode::default()),
        Err(error) => return Err(error.into()),
    };
    Ok(FileWorkerLauncher::this_program(debug, sandbox)?)
}

/// The configured kernel level.
///
/// # Errors
/// A setting is invalid.
pub fn kernels() -> Result<Option<String>, ConfigError> {
    Config::from_env().map(|config| config.kernels)
}

//! Settings that commands need without a server.

use std::path::PathBuf;

use puna_server::{Config, ConfigError};

/// The home folder.
pub fn home() -> Option<PathBuf> {
    puna_store::home()
}

/// The store's folder.
///
/// # Errors
/// It is not set, and there is no home folder for it; or something else that is set is wrong.
pub fn models_dir() -> Result<PathBuf, ConfigError> {
    Config::from_env().map(|config| config.models)
}

/// The kernel level that was asked for.
///
/// # Errors
/// Something that is set is wrong.
pub fn kernels() -> Result<Option<String>, ConfigError> {
    Config::from_env().map(|config| config.kernels)
}

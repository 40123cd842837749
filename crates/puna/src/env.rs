//! Settings that commands read without a server.

use std::path::PathBuf;

use puna_server::{Config, ConfigError};
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

/// The configured kernel level.
///
/// # Errors
/// A setting is invalid.
pub fn kernels() -> Result<Option<String>, ConfigError> {
    Config::from_env().map(|config| config.kernels)
}

//! Settings that commands need without a server.

use std::path::PathBuf;

use puna_server::{Config, ConfigError};
use puna_store::Store;

/// The home folder.
pub fn home() -> Option<PathBuf> {
    puna_store::home_dir()
}

/// The store, with the folders that are only read.
///
/// # Errors
/// It is not set, and there is no home folder for it; something else that is set is wrong; it cannot be read.
pub fn store() -> anyhow::Result<Store> {
    Ok(Config::from_env()?.store()?)
}

/// The kernel level that was asked for.
///
/// # Errors
/// Something that is set is wrong.
pub fn kernels() -> Result<Option<String>, ConfigError> {
    Config::from_env().map(|config| config.kernels)
}

//! What the environment says, as far as the command line needs it; the server's own configuration reads the rest.

use std::path::PathBuf;

use puna_server::ConfigError;

/// A variable, without blanks and quotes around it; empty ones count as not set. The name that begins with `PUNA_`
/// instead of `OLLAMA_` wins.
fn variable(name: &str) -> Option<String> {
    let read = |prefix: &str| std::env::var(format!("{prefix}_{name}")).ok();
    let clean = |text: String| text.trim().trim_matches(['"', '\'']).trim().to_owned();
    read("PUNA").or_else(|| read("OLLAMA")).map(clean).filter(|text| !text.is_empty())
}

/// The home folder.
pub fn home() -> Option<PathBuf> {
    puna_store::home()
}

/// The store's folder.
///
/// # Errors
/// It is not set, and there is no home folder for it.
pub fn models_dir() -> Result<PathBuf, ConfigError> {
    let (set, home) = (variable("MODELS"), home());
    match (&set, &home) {
        (None, None) => Err(ConfigError::NoHome),
        _ => Ok(puna_store::default_root(set.as_deref(), home.as_deref())),
    }
}

/// The kernel level that was asked for.
pub fn kernels() -> Option<String> {
    variable("KERNELS")
}

/// Whether input is not to be remembered.
pub fn no_history() -> bool {
    variable("NOHISTORY")
        .is_some_and(|text| !matches!(text.as_str(), "0" | "f" | "F" | "false" | "FALSE" | "False"))
}

/// The program in which prompts are edited.
pub fn editor() -> String {
    let named = |name: &str| std::env::var(name).ok().filter(|text| !text.trim().is_empty());
    let default = if cfg!(windows) { "edit" } else { "vi" };
    variable("EDITOR")
        .or_else(|| named("VISUAL"))
        .or_else(|| named("EDITOR"))
        .unwrap_or_else(|| default.into())
}

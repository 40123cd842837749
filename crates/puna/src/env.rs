//! What the environment says, as far as the command line needs it; the server's own configuration reads the rest.

use std::path::PathBuf;

/// A variable, without blanks and quotes around it; empty ones count as not set. The name that begins with `PUNA_`
/// instead of `OLLAMA_` wins.
fn variable(name: &str) -> Option<String> {
    let read = |prefix: &str| std::env::var(format!("{prefix}_{name}")).ok();
    let clean = |text: String| text.trim().trim_matches(['"', '\'']).trim().to_owned();
    read("PUNA").or_else(|| read("OLLAMA")).map(clean).filter(|text| !text.is_empty())
}

/// The home folder.
pub fn home() -> Option<PathBuf> {
    std::env::home_dir()
}

/// The store's folder.
pub fn models_dir() -> PathBuf {
    puna_store::default_root(variable("MODELS").as_deref(), home().as_deref())
}

/// The kernel level that was asked for.
pub fn kernels() -> Option<String> {
    variable("KERNELS")
}

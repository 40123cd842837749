//! Which levels this machine can run, and how one is chosen.

use std::sync::OnceLock;

use super::{Level, portable};

/// Why a kernel level is not to be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// No level of this name runs here.
    #[error("this machine has no kernel level `{name}`; it has {}", .available.join(", "))]
    Unavailable {
        /// What was asked for.
        name: String,
        /// The names of the levels that run here, best last.
        available: Vec<&'static str>,
    },
}

/// Every level that this machine runs, best last. The first is always `portable`.
///
/// A level is handed out only after its processor features were found; its functions rely on that.
pub fn levels() -> &'static [&'static Level] {
    static FOUND: OnceLock<Vec<&'static Level>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let mut found = vec![&portable::LEVEL];
        #[cfg(target_arch = "x86_64")]
        super::x86::add_levels(&mut found);
        #[cfg(target_arch = "aarch64")]
        super::aarch64::add_levels(&mut found);
        found
    })
}

/// The level of this name (see [`Level::name`]), if this machine runs it.
pub fn level(name: &str) -> Result<&'static Level, KernelError> {
    levels().iter().chain(emulated()).copied().find(|level| level.name == name).ok_or_else(|| {
        KernelError::Unavailable {
            name: name.to_owned(),
            available: levels().iter().map(|level| level.name).collect(),
        }
    })
}

/// Levels that this machine does not have and computes as if it had: for proofs, not for speed. Only with the feature
/// `emulated`, and where there is AVX-512.
pub fn emulated() -> &'static [&'static Level] {
    #[cfg(all(target_arch = "x86_64", any(test, feature = "emulated")))]
    {
        static FOUND: OnceLock<Vec<&'static Level>> = OnceLock::new();
        FOUND.get_or_init(super::x86::emulated)
    }
    #[cfg(not(all(target_arch = "x86_64", any(test, feature = "emulated"))))]
    &[]
}

/// The fastest level of this machine.
pub fn best() -> &'static Level {
    levels().last().expect("portable is always there")
}

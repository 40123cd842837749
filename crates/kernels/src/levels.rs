//! Detection and selection of kernel levels.

use std::sync::OnceLock;

use super::{Level, portable};

/// Error of [`level`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// This processor runs no level of this name.
    #[error("this machine has no kernel level `{name}`; it has {}", .available.join(", "))]
    Unavailable {
        /// The requested name.
        name: String,
        /// Names of the levels of this processor, fastest last.
        available: Vec<&'static str>,
    },
}

/// All levels of this processor, fastest last. The first is always `portable`.
///
/// Returns only levels with detected processor features, since the functions of a level rely on
/// them.
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

/// The level with this [`Level::name`].
///
/// # Errors
/// If this processor does not run a level of this name.
pub fn level(name: &str) -> Result<&'static Level, KernelError> {
    levels().iter().chain(emulated()).copied().find(|level| level.name == name).ok_or_else(|| {
        KernelError::Unavailable {
            name: name.to_owned(),
            available: levels().iter().map(|level| level.name).collect(),
        }
    })
}

/// Levels that this processor lacks and emulates: for tests, not for speed. Only with the feature
/// `emulated`, on processors with AVX-512.
pub fn emulated() -> &'static [&'static Level] {
    #[cfg(all(target_arch = "x86_64", any(test, feature = "emulated")))]
    {
        static FOUND: OnceLock<Vec<&'static Level>> = OnceLock::new();
        FOUND.get_or_init(super::x86::emulated)
    }
    #[cfg(not(all(target_arch = "x86_64", any(test, feature = "emulated"))))]
    &[]
}

/// The fastest level of this processor.
pub fn best() -> &'static Level {
    levels().last().expect("portable is always there")
}

//! Environment variables of runners and of file workers.

use std::ffi::OsString;

use super::mode::SandboxMode;

/// Variable with the log level of a runner: 0, 1 (debug) or 2 (trace).
pub(crate) const DEBUG_VARIABLE: &str = "OLLAMA_DEBUG";

/// Variable with the name of the [`SandboxMode`].
pub(crate) const SANDBOX_VARIABLE: &str = "PUNA_SANDBOX";

/// Variables that a runner inherits from the server. All settings of a model travel in the
/// `LoadSpec`, so none of them is here.
///
/// - Folders of shared libraries, for builds that are linked to libraries outside the system's.
/// - Time zone, which templates use for the current date.
/// - Tuning of the memory allocator of glibc.
const INHERITED_VARIABLES: &[&str] = &[
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "DYLD_FALLBACK_LIBRARY_PATH",
    "TZ",
    "TZDIR",
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
];

/// Returns the environment of a runner or a file worker, from the variables of this process.
pub(crate) fn runner_variables(debug: u8, sandbox: SandboxMode) -> Vec<(OsString, OsString)> {
    select_variables(debug, sandbox, |name| std::env::var_os(name))
}

fn select_variables(
    debug: u8,
    sandbox: SandboxMode,
    get: impl Fn(&str) -> Option<OsString>,
) -> Vec<(OsString, OsString)> {
    let inherited =
        INHERITED_VARIABLES.iter().filter_map(|name| Some((OsString::from(name), get(name)?)));
    let debug = (OsString::from(DEBUG_VARIABLE), OsString::from(debug.to_string()));
    let sandbox = (OsString::from(SANDBOX_VARIABLE), OsString::from(sandbox.name()));
    inherited.chain([debug, sandbox]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runner_inherits_no_secrets() {
        let all = |name: &str| Some(OsString::from(format!("value of {name}")));
        let variables = select_variables(1, SandboxMode::Auto, all);
        let names: Vec<_> = variables.iter().map(|(name, _)| name.to_str().unwrap()).collect();
        assert_eq!(names.len(), INHERITED_VARIABLES.len() + 2);
        assert!(names.contains(&"TZ") && names.contains(&DEBUG_VARIABLE), "{names:?}");
        let secret = ["KEY", "TOKEN", "SECRET", "PASSWORD", "PROXY", "HOME", "PATH_INFO"];
        assert!(!names.iter().any(|name| secret.iter().any(|word| name.contains(word))));
    }

    #[test]
    fn an_unset_variable_stays_unset() {
        let variables = select_variables(2, SandboxMode::Off, |_| None);
        let own = [("OLLAMA_DEBUG", "2"), ("PUNA_SANDBOX", "off")];
        assert_eq!(
            variables,
            own.map(|(name, value)| (OsString::from(name), OsString::from(value)))
        );
    }
}

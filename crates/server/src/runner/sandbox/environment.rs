//! Environment variables of runners.

use std::ffi::OsString;

/// Variable with the log level of a runner: 0, 1 (debug) or 2 (trace).
pub(crate) const DEBUG_VARIABLE: &str = "OLLAMA_DEBUG";

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

/// Returns the environment of a runner, from the variables of this process.
pub(crate) fn runner_variables(debug: u8) -> Vec<(OsString, OsString)> {
    select_variables(debug, |name| std::env::var_os(name))
}

fn select_variables(
    debug: u8,
    get: impl Fn(&str) -> Option<OsString>,
) -> Vec<(OsString, OsString)> {
    let inherited =
        INHERITED_VARIABLES.iter().filter_map(|name| Some((OsString::from(name), get(name)?)));
    let debug = (OsString::from(DEBUG_VARIABLE), OsString::from(debug.to_string()));
    inherited.chain([debug]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runner_inherits_no_secrets() {
        let all = |name: &str| Some(OsString::from(format!("value of {name}")));
        let variables = select_variables(1, all);
        let names: Vec<_> = variables.iter().map(|(name, _)| name.to_str().unwrap()).collect();
        assert_eq!(names.len(), INHERITED_VARIABLES.len() + 1);
        assert!(names.contains(&"TZ") && names.contains(&DEBUG_VARIABLE), "{names:?}");
        let secret = ["KEY", "TOKEN", "SECRET", "PASSWORD", "PROXY", "HOME", "PATH_INFO"];
        assert!(!names.iter().any(|name| secret.iter().any(|word| name.contains(word))));
    }

    #[test]
    fn an_unset_variable_stays_unset() {
        let variables = select_variables(2, |_| None);
        assert_eq!(variables, [(OsString::from("OLLAMA_DEBUG"), OsString::from("2"))]);
    }
}

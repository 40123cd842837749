//! Patterns of namespaces and repositories: `name`, or `name*` for all names with that prefix.

use crate::types::name_error::NameError;
use crate::types::repository::Repository;

/// Number of characters of an invalid pattern that an error shows.
const MAX_SHOWN_CHARS: usize = 100;

/// Whether a namespace matches a pattern. Case is ignored. A prefix that could begin both a
/// namespace and a host matches no host: `team*` does not match `team.example.com/x`.
pub fn matches_pattern(namespace: &str, pattern: &str) -> bool {
    let (namespace, pattern) = (namespace.to_ascii_lowercase(), pattern.to_ascii_lowercase());
    let Some(start) = pattern.strip_suffix('*') else { return namespace == pattern };
    let names_host = start.is_empty() || start.contains(['.', ':', '/']);
    let host = namespace.split_once('/').map(|(first, _)| first);
    let has_host = host.is_some_and(|host| host.contains(['.', ':']) || host == "localhost");
    namespace.starts_with(start) && (names_host || !has_host)
}

/// Checks a pattern of namespaces: `name`, or `name*` for all names with that prefix. The same
/// patterns are valid for repositories.
///
/// # Errors
/// No repository can be in such a namespace.
pub fn check_namespace(text: &str) -> Result<(), NameError> {
    let begins = |start: &str, rests: &[&str]| {
        rests.iter().any(|rest| Repository::parse(&format!("{start}{rest}")).is_ok())
    };
    let is_one = match text.strip_suffix('*') {
        // The prefix may end within the port of a host, or behind it.
        Some(start) => begins(start, &["x/x", "0/x/x", "/x/x"]),
        None => begins(text, &["/x", ""]),
    };
    match is_one {
        true => Ok(()),
        false => Err(NameError::Namespace(text.chars().take(MAX_SHOWN_CHARS).collect())),
    }
}

/// Whether the namespace or the whole name of a repository matches a pattern.
pub(crate) fn repository_matches(name: &Repository, pattern: &str) -> bool {
    matches_pattern(name.namespace(), pattern) || matches_pattern(name.as_str(), pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_of_a_namespace_matches_no_host() {
        for (namespace, pattern) in [
            ("team-a", "team*"),
            ("team/x/y", "team*"),
            ("my.org", "my*"),
            ("hf.co/me", "*"),
            ("hf.co/me", "hf.co*"),
            ("hf.co/me", "HF.co/m*"),
            ("box:5000/me", "box:50*"),
        ] {
            assert!(matches_pattern(namespace, pattern), "{namespace} {pattern}");
        }
        for (namespace, pattern) in [
            ("team.example.com/x", "team*"),
            ("team:5000/x", "team*"),
            ("localhost/x", "local*"),
            ("other", "team*"),
        ] {
            assert!(!matches_pattern(namespace, pattern), "{namespace} {pattern}");
        }
    }

    #[test]
    fn namespace_patterns_are_names_or_prefixes() {
        for good in
            ["me", "team-*", "*", "hf.co/me", "hf.co/*", "a/b/c", "hf.co/team*", "box:5000/me"]
                .into_iter()
                .chain([
                    "box:50*",
                    "box:5000*",
                    "box:65535*",
                    "box:5000/*",
                    "library/llama3.2",
                    "hf.co/me/x*",
                ])
        {
            assert_eq!(check_namespace(good), Ok(()), "{good}");
        }
        for bad in [
            "", "../x", "a/../b", "/a", "a/", "a//b", "a b", "*a", "a*b", "a**", "me\n", "..",
            "./me", "box:",
        ] {
            let refused = check_namespace(bad).unwrap_err().to_string();
            assert!(refused.contains("invalid namespace"), "{bad}: {refused}");
        }
    }
}

//! Patterns of namespaces and repositories: `name`, or `name*` for all that begin so.

use crate::error::MirrorError;
use crate::name::Repository;

/// Letters of somebody's text that are shown.
const MAX_SHOWN: usize = 100;

/// Whether a namespace is one of a pattern.
pub(crate) fn is_in(namespace: &str, pattern: &str) -> bool {
    let (namespace, pattern) = (namespace.to_ascii_lowercase(), pattern.to_ascii_lowercase());
    pattern.strip_suffix('*').map_or(namespace == pattern, |start| namespace.starts_with(start))
}

/// Checks a pattern of namespaces: `name`, or `name*` for all that begin so. Where repositories are named by the same patterns, it is
/// right for those, too.
///
/// # Errors
/// No repository could be in such a namespace.
pub fn check_namespace(text: &str) -> Result<(), MirrorError> {
    let begins = |start: &str, rests: &[&str]| {
        rests.iter().any(|rest| Repository::parse(&format!("{start}{rest}")).is_ok())
    };
    let is_one = match text.strip_suffix('*') {
        // It may end within the port of a host, or behind it.
        Some(start) => begins(start, &["x/x", "0/x/x", "/x/x"]),
        None => begins(text, &["/x", ""]),
    };
    match is_one {
        true => Ok(()),
        false => Err(MirrorError::Namespace(text.chars().take(MAX_SHOWN).collect())),
    }
}

/// Whether a repository is one of a pattern, which stands for namespaces or for whole names.
pub(crate) fn fits(name: &Repository, pattern: &str) -> bool {
    is_in(name.namespace(), pattern) || is_in(name.as_str(), pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_of_keys_are_names_and_beginnings_of_them() {
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
            assert!(refused.contains("is no namespace"), "{bad}: {refused}");
        }
    }
}

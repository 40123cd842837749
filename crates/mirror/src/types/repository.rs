//! Repository names and references. They are valid by construction, so that a path made of them
//! cannot leave its directory.

use std::fmt;

use puna_store::{DEFAULT_HOST, Digest, ModelName};

use crate::types::name_error::NameError;

/// Largest length of a name in bytes. It becomes a directory name.
const MAX_NAME_BYTES: usize = 240;
/// Largest length of a tag in bytes.
const MAX_TAG_BYTES: usize = 128;

/// Name of a repository: words separated by `/`. Unlike in other registries, capital letters are
/// allowed, because model names have them. The first word may have a port if it is the host of a
/// model.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Repository(String);

impl Repository {
    /// Parses a name.
    ///
    /// # Errors
    /// The text is no valid name.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let words = match text.split_once('/') {
            Some((host, rest)) if rest.contains('/') && has_port(host) => rest,
            _ => text,
        };
        if text.len() <= MAX_NAME_BYTES && words.split('/').all(is_word) {
            return Ok(Self(text.to_owned()));
        }
        Err(NameError::Repository(text.chars().take(MAX_NAME_BYTES).collect()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// All but the last word; the word itself if there is only one.
    pub fn namespace(&self) -> &str {
        self.0.rsplit_once('/').map_or(&self.0, |(namespace, _)| namespace)
    }

    /// Whether the repository is in a namespace. Case is ignored.
    pub(crate) fn is_in(&self, namespace: &str) -> bool {
        self.namespace().eq_ignore_ascii_case(namespace)
    }

    /// Directory name of the repository. Some systems allow no colon in file names.
    pub(crate) fn dir_name(&self) -> String {
        self.0.replace('/', "+").replace(':', "=")
    }

    /// Parses a directory name.
    pub(crate) fn from_dir_name(name: &str) -> Option<Self> {
        Self::parse(&name.replace('+', "/").replace('=', ":")).ok()
    }

    /// Name of the model that a tag of this repository is in the store, if it can be one.
    /// `namespace/model` belongs to the default host. `host/namespace/model` needs a host with a
    /// dot or a port.
    pub fn model(&self, tag: &str) -> Option<ModelName> {
        let words: Vec<&str> = self.0.split('/').collect();
        let (host, namespace, model) = match words[..] {
            [namespace, model] => (DEFAULT_HOST, namespace, model),
            [host, namespace, model] if host.contains(['.', ':']) => (host, namespace, model),
            _ => return None,
        };
        ModelName::from_parts(host, namespace, model, tag).ok()
    }

    /// Repository of a model in the store.
    pub(crate) fn from_model_name(name: &ModelName) -> Option<Self> {
        match name.host().eq_ignore_ascii_case(DEFAULT_HOST) {
            true => Self::parse(&format!("{}/{}", name.namespace(), name.model())),
            false => Self::parse(&format!("{}/{}/{}", name.host(), name.namespace(), name.model())),
        }
        .ok()
        .filter(|repository| repository.model(name.tag()).is_some())
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_word(text: &str) -> bool {
    let first = text.bytes().next().is_some_and(|c| c.is_ascii_alphanumeric() || c == b'_');
    first && text.bytes().all(|c| c.is_ascii_alphanumeric() || b"._-".contains(&c))
}

/// Whether a word is a host with a port.
fn has_port(text: &str) -> bool {
    let number =
        |port: &str| port.bytes().all(|c| c.is_ascii_digit()) && port.parse::<u16>().is_ok();
    text.split_once(':').is_some_and(|(host, port)| is_word(host) && number(port))
}

/// Reference to a manifest of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// Manifest that a tag points to.
    Tag(String),
    /// Manifest with a digest.
    Digest(Digest),
}

impl Reference {
    /// Parses a tag or digest.
    ///
    /// # Errors
    /// The text is neither.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.contains(':') {
            return Ok(Self::Digest(digest(text)?));
        }
        if text.len() <= MAX_TAG_BYTES && is_word(text) {
            return Ok(Self::Tag(text.to_owned()));
        }
        Err(NameError::Tag(text.chars().take(MAX_TAG_BYTES).collect()))
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => f.write_str(tag),
            Self::Digest(digest) => digest.fmt(f),
        }
    }
}

/// Parses a digest of a path or query.
pub(crate) fn digest(text: &str) -> Result<Digest, NameError> {
    text.parse().map_err(|_| NameError::Digest(text.chars().take(MAX_NAME_BYTES).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_names_are_accepted_and_paths_rejected() {
        let with_port = "hub:5000/a/b";
        for good in [
            "library/llama3",
            "a",
            "a/b/c/d",
            "hf.co/User/Repo-GGUF",
            "_x/y",
            "a.b_c-d/e",
            with_port,
        ] {
            assert_eq!(Repository::parse(good).unwrap().as_str(), good);
            assert_eq!(
                Repository::from_dir_name(&Repository::parse(good).unwrap().dir_name())
                    .unwrap()
                    .as_str(),
                good
            );
        }
        let long = "a/".repeat(120) + "a";
        for bad in [
            "",
            "/",
            "a/",
            "/a",
            "a//b",
            "..",
            "a/../b",
            ".a",
            "a+b",
            "a b",
            "a\\b",
            "a:b",
            "é",
            "a\0",
            &long,
            "a=b",
            "h:5/a",
            "h:/a/b",
            "h:x/a/b",
            "h:99999/a/b",
            ":5/a/b",
            "h:5:6/a/b",
            "a/h:5/b",
            "h:+5/a/b",
        ] {
            assert!(Repository::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn two_part_names_use_the_default_host_and_three_part_names_their_own() {
        let full =
            |name: &str| Repository::parse(name).unwrap().model("t").map(|model| model.full());
        assert_eq!(full("library/m").as_deref(), Some("registry.ollama.ai/library/m:t"));
        assert_eq!(full("hf.co/u/r").as_deref(), Some("hf.co/u/r:t"));
        assert_eq!(full("localhost:5000/u/r").as_deref(), Some("localhost:5000/u/r:t"));
        for other in ["m", "a/b/c", "a.b/c/d/e", "n.x/m"] {
            assert_eq!(full(other), None, "{other}");
        }
        let there = |name: &str| {
            Repository::from_model_name(&ModelName::parse(name).unwrap()).map(|name| name.0)
        };
        assert_eq!(there("m").as_deref(), Some("library/m"));
        assert_eq!(there("hf.co/u/r:q").as_deref(), Some("hf.co/u/r"));
        assert_eq!(there("localhost:5000/u/r:q").as_deref(), Some("localhost:5000/u/r"));
        assert_eq!(there("localhost/u/r"), None);
    }

    #[test]
    fn references_are_tags_or_digests() {
        assert_eq!(Reference::parse("v1.0_b-c").unwrap(), Reference::Tag("v1.0_b-c".into()));
        let of = Digest::of(b"x");
        assert_eq!(Reference::parse(&of.to_string()).unwrap(), Reference::Digest(of));
        for bad in ["", ".x", "-x", "a/b", "sha256:12", "sha512:00", &"a".repeat(129)] {
            assert!(Reference::parse(bad).is_err(), "{bad}");
        }
    }
}

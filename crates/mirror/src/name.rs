//! Names of repositories and what is asked of them: valid by construction, so that no path made of them leaves its folder.

use std::fmt;

use puna_store::{DEFAULT_HOST, Digest, ModelName};

use crate::error::MirrorError;

/// Bytes of a name at most: it becomes the name of a folder.
const MAX_NAME: usize = 240;
/// Bytes of a tag at most.
const MAX_TAG: usize = 128;

/// The name of a repository: words with `/` between them. Capital letters are allowed, which other registries refuse: models
/// have them; and so is a port in the first word, where that is the host of a model.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Repository(String);

impl Repository {
    /// Reads a name.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Self, MirrorError> {
        let words = match text.split_once('/') {
            Some((host, rest)) if rest.contains('/') && has_port(host) => rest,
            _ => text,
        };
        if text.len() <= MAX_NAME && words.split('/').all(is_word) {
            return Ok(Self(text.to_owned()));
        }
        Err(MirrorError::Name(text.chars().take(MAX_NAME).collect()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// All but the last word; of a single word, that.
    pub fn namespace(&self) -> &str {
        self.0.rsplit_once('/').map_or(&self.0, |(namespace, _)| namespace)
    }

    /// Whether it is in a namespace, whose case does not count.
    pub(crate) fn is_in(&self, namespace: &str) -> bool {
        self.namespace().eq_ignore_ascii_case(namespace)
    }

    /// The name of a folder for it. Not every system has folders with a colon.
    pub(crate) fn folder(&self) -> String {
        self.0.replace('/', "+").replace(':', "=")
    }

    /// The repository of a folder.
    pub(crate) fn of_folder(name: &str) -> Option<Self> {
        Self::parse(&name.replace('+', "/").replace('=', ":")).ok()
    }

    /// The model that a tag of this repository is in the store, where it can be one: `namespace/model` is of the default host,
    /// `host/namespace/model` of the host that it says, which has a dot or a port.
    pub fn model(&self, tag: &str) -> Option<ModelName> {
        let words: Vec<&str> = self.0.split('/').collect();
        let (host, namespace, model) = match words[..] {
            [namespace, model] => (DEFAULT_HOST, namespace, model),
            [host, namespace, model] if host.contains(['.', ':']) => (host, namespace, model),
            _ => return None,
        };
        ModelName::from_parts(host, namespace, model, tag).ok()
    }

    /// The repository of a stored model.
    pub(crate) fn of_model(name: &ModelName) -> Option<Self> {
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

/// A manifest of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// What a tag stands for now.
    Tag(String),
    /// The one of a digest.
    Digest(Digest),
}

impl Reference {
    /// Reads a tag or digest.
    ///
    /// # Errors
    /// It is neither.
    pub fn parse(text: &str) -> Result<Self, MirrorError> {
        if text.contains(':') {
            return Ok(Self::Digest(digest(text)?));
        }
        if text.len() <= MAX_TAG && is_word(text) {
            return Ok(Self::Tag(text.to_owned()));
        }
        Err(MirrorError::Tag(text.chars().take(MAX_TAG).collect()))
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

/// A digest of a path or query.
pub(crate) fn digest(text: &str) -> Result<Digest, MirrorError> {
    text.parse().map_err(|_| MirrorError::Digest(text.chars().take(MAX_NAME).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_no_paths_are_taken() {
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
                Repository::of_folder(&Repository::parse(good).unwrap().folder()).unwrap().as_str(),
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
    fn two_words_are_a_model_of_the_default_host_and_three_of_their_own() {
        let full =
            |name: &str| Repository::parse(name).unwrap().model("t").map(|model| model.full());
        assert_eq!(full("library/m").as_deref(), Some("registry.ollama.ai/library/m:t"));
        assert_eq!(full("hf.co/u/r").as_deref(), Some("hf.co/u/r:t"));
        assert_eq!(full("localhost:5000/u/r").as_deref(), Some("localhost:5000/u/r:t"));
        for other in ["m", "a/b/c", "a.b/c/d/e", "n.x/m"] {
            assert_eq!(full(other), None, "{other}");
        }
        let there =
            |name: &str| Repository::of_model(&ModelName::parse(name).unwrap()).map(|name| name.0);
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

//! Model names: `host/namespace/model:tag`. A name is valid by construction, so that a path made of
//! its parts cannot leave the store.

use std::fmt;
use std::str::FromStr;

use puna_gguf::escape_for_message;

/// Default host.
pub const DEFAULT_HOST: &str = "registry.ollama.ai";
/// Another host of the same registry, which Ollama 0.40 uses in `manifests-v2`.
pub(crate) const OTHER_PUBLIC_HOST: &str = "ollama.com";
/// Default namespace.
pub const DEFAULT_NAMESPACE: &str = "library";
/// Default tag.
pub const DEFAULT_TAG: &str = "latest";

/// Why a text is no model name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The text is empty.
    #[error("model is required")]
    Empty,
    /// A part is empty.
    #[error("invalid model name `{name}`: the {part} is missing")]
    MissingPart {
        /// The whole text.
        name: String,
        /// `host`, `namespace`, `model` or `tag`.
        part: &'static str,
    },
    /// A part is too long or contains an invalid character.
    #[error(
        "invalid model name `{name}`: the {part} `{value}` must be 1 to {max} characters of {allowed}"
    )]
    BadPart {
        /// The whole text, truncated.
        name: String,
        /// `host`, `namespace`, `model` or `tag`.
        part: &'static str,
        /// The part, truncated.
        value: String,
        /// Largest length in bytes.
        max: usize,
        /// The valid characters.
        allowed: &'static str,
    },
    /// A URL that is no model's address.
    #[error(
        "`{name}` is not the address of a model: use {scheme}://HOST/NAMESPACE/MODEL for a registry, \
         {scheme}://HOST/v1/MODEL for OpenAI's API, {scheme}://HOST/api/MODEL for Puna or Ollama"
    )]
    Address {
        /// The whole text, truncated.
        name: String,
        /// `http` or `https`.
        scheme: &'static str,
    },
    /// The text has both `:local` and `:cloud`.
    #[error("use either :local or :cloud, not both: \"{0}\"")]
    BothSources(String),
}

/// A valid model name. Parts keep their case; [`ModelName::same`] ignores it, like the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelName {
    host: String,
    namespace: String,
    model: String,
    tag: String,
}

/// Rules for one part of a name.
struct PartRule {
    part: &'static str,
    max: usize,
    extra: &'static [u8],
    allowed: &'static str,
}

const HOST: PartRule = PartRule {
    part: "host",
    max: 350,
    extra: b"-.:",
    allowed: "A-Z a-z 0-9 _ - . : beginning with a letter, digit or _",
};
const NAMESPACE: PartRule = PartRule {
    part: "namespace",
    max: 80,
    extra: b"-",
    allowed: "A-Z a-z 0-9 _ - beginning with a letter, digit or _",
};
const MODEL: PartRule = PartRule {
    part: "model",
    max: 80,
    extra: b"-.",
    allowed: "A-Z a-z 0-9 _ - . beginning with a letter, digit or _",
};
const TAG: PartRule = PartRule {
    part: "tag",
    max: 80,
    extra: b"-.",
    allowed: "A-Z a-z 0-9 _ - . beginning with a letter, digit or _",
};

impl PartRule {
    fn admits(&self, text: &str) -> bool {
        let word = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
        (1..=self.max).contains(&text.len())
            && word(text.as_bytes()[0])
            && text.bytes().all(|c| word(c) || self.extra.contains(&c))
    }

    /// Returns the value if it is valid.
    fn check(&self, name: &dyn Fn() -> String, value: &str) -> Result<String, NameError> {
        if value.is_empty() {
            return Err(NameError::MissingPart {
                name: escape_for_message(&name()),
                part: self.part,
            });
        }
        if !self.admits(value) {
            return Err(NameError::BadPart {
                name: escape_for_message(&name()),
                part: self.part,
                value: escape_for_message(value),
                max: self.max,
                allowed: self.allowed,
            });
        }
        Ok(value.to_owned())
    }
}

impl ModelName {
    /// Parses `[scheme://][host/][namespace/]model[:tag]`. A scheme is checked and dropped; see
    /// [`ModelRef`].
    ///
    /// # Errors
    /// The missing or invalid part.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        Ok(Self::parse_with_scheme(text)?.0)
    }

    fn parse_with_scheme(text: &str) -> Result<(Self, Option<&str>), NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        let (rest, tag) = match text.rfind(':') {
            Some(at) if text.rfind('/').is_none_or(|slash| slash < at) => {
                (&text[..at], &text[at + 1..])
            }
            _ => (text, DEFAULT_TAG),
        };
        let (rest, model) = split_last_slash(rest);
        let (rest, namespace) = match rest {
            Some(rest) => split_last_slash(rest),
            None => (None, DEFAULT_NAMESPACE),
        };
        let (scheme, host) = match rest {
            Some(rest) => match rest.split_once("://") {
                Some((scheme, host)) => (Some(scheme), host),
                None => (None, rest),
            },
            None => (None, DEFAULT_HOST),
        };
        for scheme in ["http", "https"] {
            // The address has too few slashes after those of the scheme.
            if host.strip_prefix(scheme).is_some_and(|rest| matches!(rest, ":" | ":/")) {
                return Err(NameError::Address { name: escape_for_message(text), scheme });
            }
        }
        let whole = || text.to_owned();
        let name = Self {
            host: HOST.check(&whole, canonical_host(host))?,
            namespace: NAMESPACE.check(&whole, namespace)?,
            model: MODEL.check(&whole, model)?,
            tag: TAG.check(&whole, tag)?,
        };
        Ok((name, scheme))
    }

    /// Makes a name of four parts.
    ///
    /// # Errors
    /// The invalid part.
    pub fn from_parts(
        host: &str,
        namespace: &str,
        model: &str,
        tag: &str,
    ) -> Result<Self, NameError> {
        let whole = || format!("{host}/{namespace}/{model}:{tag}");
        Ok(Self {
            host: HOST.check(&whole, canonical_host(host))?,
            namespace: NAMESPACE.check(&whole, namespace)?,
            model: MODEL.check(&whole, model)?,
            tag: TAG.check(&whole, tag)?,
        })
    }

    /// The registry, such as `registry.ollama.ai` or `localhost:5000`.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The owner, such as `library`.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The model without its owner and tag.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The variant, such as `latest`.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// All four parts: `host/namespace/model:tag`.
    pub fn full(&self) -> String {
        format!("{}/{}/{}:{}", self.host, self.namespace, self.model, self.tag)
    }

    /// Whether both names are equal, ignoring case.
    pub fn same(&self, other: &Self) -> bool {
        self.parts().iter().zip(other.parts()).all(|(a, b)| a.eq_ignore_ascii_case(b))
    }

    /// The name in lower case, the same for all spellings.
    pub(crate) fn folded(&self) -> String {
        self.parts().join("/").to_ascii_lowercase()
    }

    /// Host, namespace, model and tag.
    pub(crate) fn parts(&self) -> [&str; 4] {
        [&self.host, &self.namespace, &self.model, &self.tag]
    }
}

/// Whether a host is the public registry.
pub(crate) fn is_public(host: &str) -> bool {
    [DEFAULT_HOST, OTHER_PUBLIC_HOST].iter().any(|public| host.eq_ignore_ascii_case(public))
}

/// The host's spelling in names.
fn canonical_host(host: &str) -> &str {
    if host.eq_ignore_ascii_case(OTHER_PUBLIC_HOST) { DEFAULT_HOST } else { host }
}

/// Splits a text at its last `/`.
fn split_last_slash(text: &str) -> (Option<&str>, &str) {
    match text.rsplit_once('/') {
        Some((left, right)) => (Some(left), right),
        None => (None, text),
    }
}

/// The shortest form: without the default host and namespace, always with the tag.
impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.host.eq_ignore_ascii_case(DEFAULT_HOST) {
            write!(f, "{}/{}/", self.host, self.namespace)?;
        } else if !self.namespace.eq_ignore_ascii_case(DEFAULT_NAMESPACE) {
            write!(f, "{}/", self.namespace)?;
        }
        write!(f, "{}:{}", self.model, self.tag)
    }
}

impl FromStr for ModelName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse(text)
    }
}

/// Largest length of a runner's name.
const MAX_RUNNER_BYTES: usize = 32;

/// Where a reference says that the model runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelSource {
    /// Unspecified.
    Any,
    /// `:local`.
    Local,
    /// `:cloud` or a tag that ends in `-cloud`: on another server.
    Cloud,
}

/// A reference to a model in a request: a name, optionally with a scheme, a runner, and `:local` or
/// `:cloud`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelRef {
    /// The name without scheme and source.
    pub name: ModelName,
    /// Whether the reference has the scheme `http`.
    pub http: bool,
    /// The source in the suffix.
    pub source: ModelSource,
    /// The runner in `NAME@runner`, for names of manifest lists.
    pub runner: Option<String>,
}

impl ModelRef {
    /// A reference to a name with any source.
    pub fn of(name: ModelName) -> Self {
        Self { name, http: false, source: ModelSource::Any, runner: None }
    }

    /// Parses a reference.
    ///
    /// # Errors
    /// Those of [`ModelName::parse`], or the text has both suffixes.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let (text, runner) = split_runner(text);
        let (rest, source) = split_source(text);
        if source != ModelSource::Any {
            let (_, again) = split_source(rest);
            if again != ModelSource::Any && again != source {
                return Err(NameError::BothSources(escape_for_message(text)));
            }
        }
        let (name, scheme) = ModelName::parse_with_scheme(rest)?;
        Ok(Self {
            name,
            http: scheme.is_some_and(|s| s.eq_ignore_ascii_case("http")),
            source,
            runner,
        })
    }
}

/// Splits off `@runner`. A digest or other text that cannot be a runner's name stays.
fn split_runner(text: &str) -> (&str, Option<String>) {
    let is_runner = |runner: &str| {
        (1..=MAX_RUNNER_BYTES).contains(&runner.len())
            && runner.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c))
    };
    match text.rsplit_once('@') {
        Some((rest, runner)) if is_runner(runner) => (rest, Some(runner.to_ascii_lowercase())),
        _ => (text, None),
    }
}

/// Splits off `:local`, `:cloud` or the `-cloud` of a tag.
fn split_source(text: &str) -> (&str, ModelSource) {
    let ends = |suffix: &str| {
        let at = text.len().checked_sub(suffix.len())?;
        text.get(at..).filter(|end| end.eq_ignore_ascii_case(suffix)).map(|_| &text[..at])
    };
    if let Some(rest) = ends(":local") {
        return (rest, ModelSource::Local);
    }
    if let Some(rest) = ends(":cloud") {
        return (rest, ModelSource::Cloud);
    }
    let tag_at = text.rfind(':').filter(|&at| text.rfind('/').is_none_or(|slash| slash < at));
    match (ends("-cloud"), tag_at) {
        (Some(rest), Some(at)) if rest.len() > at + 1 => (rest, ModelSource::Cloud),
        _ => (text, ModelSource::Any),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name_files::NameFolder;

    fn parts(text: &str) -> [String; 4] {
        ModelName::parse(text).unwrap().parts().map(str::to_owned)
    }

    #[test]
    fn missing_parts_take_their_defaults() {
        assert_eq!(parts("llama3"), ["registry.ollama.ai", "library", "llama3", "latest"]);
        assert_eq!(parts("me/m:1b"), ["registry.ollama.ai", "me", "m", "1b"]);
        assert_eq!(parts("h:5000/n/m"), ["h:5000", "n", "m", "latest"]);
        assert_eq!(parts("http://h:5000/n/m:t"), ["h:5000", "n", "m", "t"]);
        assert_eq!(parts("_why/_the/_lucky:_stiff"), ["_why", "_the", "_lucky", "_stiff"]);
        assert_eq!(parts("hf.co/U/R-GGUF:Q4_K_M"), ["hf.co", "U", "R-GGUF", "Q4_K_M"]);
    }

    #[test]
    fn hostile_and_malformed_names_are_refused() {
        for bad in [
            "",
            "m:",
            "/m",
            "n//m",
            ":t",
            "h/n/",
            "-x",
            "h/n/m:-t",
            "..",
            "../..",
            "a/../b",
            "../../etc/passwd",
            "a/b/c/d/e",
            "n.x/m",
            "host/name:space/model:tag",
            "http://h/m",
            "m@sha256:00",
            "a b",
            "a\0b",
            "a\\b",
            ".hidden",
            "é",
            "m:t/../../x",
            "C:\\x",
            "~/m",
            "m\n",
        ] {
            assert!(ModelName::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn lengths_are_counted_in_bytes() {
        let of = |n: usize| "a".repeat(n);
        assert!(ModelName::parse(&of(80)).is_ok());
        assert!(ModelName::parse(&of(81)).is_err());
        assert!(ModelName::parse(&format!("m:{}", of(80))).is_ok());
        assert!(ModelName::parse(&format!("m:{}", of(81))).is_err());
        assert!(ModelName::parse(&format!("{}/m", of(80))).is_ok());
        assert!(ModelName::parse(&format!("{}/m", of(81))).is_err());
        assert!(ModelName::parse(&format!("{}/n/m", of(350))).is_ok());
        assert!(ModelName::parse(&format!("{}/n/m", of(351))).is_err());
    }

    #[test]
    fn the_short_form_drops_defaults_of_the_default_host_only() {
        let short = |t: &str| ModelName::parse(t).unwrap().to_string();
        assert_eq!(short("m"), "m:latest");
        assert_eq!(short("Registry.Ollama.AI/Library/M:T"), "M:T");
        assert_eq!(short("me/m"), "me/m:latest");
        assert_eq!(short("h/library/m"), "h/library/m:latest");
        let name = ModelName::parse("https://h:1/n/m:t").unwrap();
        assert_eq!(name.full(), "h:1/n/m:t");
        assert_eq!(ModelName::parse(&name.full()).unwrap(), name);
    }

    #[test]
    fn source_suffixes_are_removed_and_cannot_be_combined() {
        let of = |t: &str| ModelRef::parse(t).map(|r| (r.name.to_string(), r.source));
        assert_eq!(of("m:8b:cloud"), Ok(("m:8b".into(), ModelSource::Cloud)));
        assert_eq!(of("m:8b-cloud"), Ok(("m:8b".into(), ModelSource::Cloud)));
        assert_eq!(of("m:CLOUD"), Ok(("m:latest".into(), ModelSource::Cloud)));
        assert_eq!(of("m:8b:local"), Ok(("m:8b".into(), ModelSource::Local)));
        assert_eq!(of("my-cloud"), Ok(("my-cloud:latest".into(), ModelSource::Any)));
        assert_eq!(of("a:cloud:local"), Err(NameError::BothSources("a:cloud:local".into())));
        assert!(ModelRef::parse("http://h/n/m").unwrap().http);
    }

    #[test]
    fn a_runner_is_split_off_and_a_digest_is_not() {
        let of = |t: &str| ModelRef::parse(t).map(|r| (r.name.to_string(), r.runner));
        assert_eq!(of("gemma4:e4b@GGML"), Ok(("gemma4:e4b".into(), Some("ggml".into()))));
        assert_eq!(
            of("h:5000/n/m@llamacpp"),
            Ok(("h:5000/n/m:latest".into(), Some("llamacpp".into())))
        );
        assert_eq!(of("m"), Ok(("m:latest".into(), None)));
        for bad in ["m@", "@ggml", "m@sha256:00", "m@a/b", "m@a@b", "m@é"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn both_spellings_of_the_public_registry_are_one_host() {
        assert_eq!(parts("ollama.com/me/m:1b"), ["registry.ollama.ai", "me", "m", "1b"]);
        assert_eq!(
            parts("https://Ollama.com/library/m"),
            ["registry.ollama.ai", "library", "m", "latest"]
        );
        assert_eq!(
            ModelName::from_parts("ollama.com", "library", "m", "t").unwrap().to_string(),
            "m:t"
        );
    }

    #[test]
    fn names_are_compared_without_case() {
        let name = |t: &str| ModelName::parse(t).unwrap();
        assert!(name("Up/Case:TAG").same(&name("up/case:tag")));
        assert!(!name("a").same(&name("b")));
    }

    proptest::proptest! {
        #[test]
        fn a_name_that_parses_stays_below_its_folder(text in "[-a-zA-Z0-9_.:/\\\\ ]{0,40}") {
            use std::path::{Component, Path};
            if let Ok(name) = ModelName::parse(&text) {
                for folder in NameFolder::ALL {
                    let path = folder.path(Path::new("/r"), &name);
                    proptest::prop_assert_eq!(path.components().count(), 7);
                    proptest::prop_assert!(path.components().all(|c| !matches!(c, Component::ParentDir)));
                }
                proptest::prop_assert_eq!(ModelName::parse(&name.full()).unwrap(), name);
            }
        }
    }
}

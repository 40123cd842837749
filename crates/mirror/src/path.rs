//! What a path below `/v2` asks for.

use puna_store::{DEFAULT_HOST, Digest};

use crate::error::MirrorError;
use crate::id::UploadId;
use crate::name::{Reference, Repository, digest};

/// Where the page for people is.
pub(crate) const PAGE: &str = "/mirror";

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// Whether this is a registry.
    Ping,
    /// The page for people.
    Page,
    /// A token for those who say who they are.
    Token,
    /// The repositories.
    Catalog,
    /// A manifest.
    Manifest(Repository, Reference),
    /// A blob.
    Blob(Repository, Digest),
    /// The uploads of a repository: to begin one.
    Uploads(Repository),
    /// An upload.
    Upload(Repository, UploadId),
    /// The tags of a repository.
    Tags(Repository),
    /// The manifests that are about another one.
    Referrers(Repository, Digest),
}

impl Target {
    /// Reads a decoded path. The names of repositories have any number of words, so it is read from its end.
    pub(crate) fn parse(path: &str) -> Result<Self, MirrorError> {
        if path == PAGE {
            return Ok(Self::Page);
        }
        let rest = match path.strip_prefix("/v2") {
            Some("" | "/") => return Ok(Self::Ping),
            Some("/_catalog") => return Ok(Self::Catalog),
            Some("/token") => return Ok(Self::Token),
            Some(rest) => rest.strip_prefix('/').ok_or(MirrorError::Route)?,
            None => return Err(MirrorError::Route),
        };
        if let Some((name, id)) =
            rest.rsplit_once("/blobs/uploads/").filter(|(_, id)| !id.contains('/'))
        {
            let name = Repository::parse(name)?;
            return Ok(if id.is_empty() {
                Self::Uploads(name)
            } else {
                Self::Upload(name, UploadId::parse(id)?)
            });
        }
        if let Some(name) = rest.strip_suffix("/blobs/uploads") {
            return Ok(Self::Uploads(Repository::parse(name)?));
        }
        if let Some(name) = rest.strip_suffix("/tags/list") {
            return Ok(Self::Tags(Repository::parse(name)?));
        }
        let (head, last) = rest.rsplit_once('/').ok_or(MirrorError::Route)?;
        let (name, what) = head.rsplit_once('/').ok_or(MirrorError::Route)?;
        match what {
            "manifests" => Ok(Self::Manifest(Repository::parse(name)?, Reference::parse(last)?)),
            "blobs" => Ok(Self::Blob(Repository::parse(name)?, digest(last)?)),
            "referrers" => Ok(Self::Referrers(Repository::parse(name)?, digest(last)?)),
            _ => Err(MirrorError::Route),
        }
    }
}

impl Target {
    /// The same for a client that takes this for the mirror of a registry, and so does not say the registry's name in the path.
    pub(crate) fn of_registry(self, host: &str) -> Result<Self, MirrorError> {
        if host.eq_ignore_ascii_case(DEFAULT_HOST) {
            return Ok(self);
        }
        let at = |name: Repository| {
            let full = Repository::parse(&format!("{host}/{name}"));
            // Hosts that no repository can be named by have nothing here.
            full.map_err(|_| MirrorError::NameUnknown(name))
        };
        Ok(match self {
            Self::Manifest(name, of) => Self::Manifest(at(name)?, of),
            Self::Blob(name, of) => Self::Blob(at(name)?, of),
            Self::Tags(name) => Self::Tags(at(name)?),
            Self::Referrers(name, of) => Self::Referrers(at(name)?, of),
            other => other,
        })
    }

    /// What can be done with it.
    pub(crate) fn methods(&self) -> &'static [&'static str] {
        match self {
            Self::Manifest(..) => &["GET", "HEAD", "PUT", "DELETE"],
            Self::Blob(..) => &["GET", "HEAD", "DELETE"],
            Self::Uploads(_) => &["POST"],
            Self::Upload(..) => &["GET", "PATCH", "PUT", "DELETE"],
            _ => &["GET", "HEAD"],
        }
    }

    /// What it is called where requests are counted.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::Page => "page",
            Self::Token => "token",
            Self::Catalog => "catalog",
            Self::Manifest(..) => "manifest",
            Self::Blob(..) => "blob",
            Self::Uploads(_) | Self::Upload(..) => "upload",
            Self::Tags(_) => "tags",
            Self::Referrers(..) => "referrers",
        }
    }

    /// The repository that it is about.
    pub(crate) fn repository(&self) -> Option<&Repository> {
        match self {
            Self::Ping | Self::Catalog | Self::Page | Self::Token => None,
            Self::Manifest(name, _)
            | Self::Blob(name, _)
            | Self::Uploads(name)
            | Self::Upload(name, _)
            | Self::Tags(name)
            | Self::Referrers(name, _) => Some(name),
        }
    }
}

/// A text with its percent escapes resolved; `None` if that is no text.
pub fn unescaped(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(b) = rest.next() {
        let mut hex = || rest.next().and_then(|d| char::from(d).to_digit(16));
        bytes.push(match b {
            b'%' => (hex()? << 4 | hex()?) as u8,
            b => b,
        });
    }
    String::from_utf8(bytes).ok()
}

/// The value of a key of a query.
pub(crate) fn query(text: Option<&str>, wanted: &str) -> Option<String> {
    let pairs = text?.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let value = pairs.filter(|(key, _)| *key == wanted).map(|(_, value)| value).next()?;
    unescaped(&value.replace('+', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_from_their_end() {
        let name = |text: &str| Repository::parse(text).unwrap();
        let of = Digest::of(b"x");
        let tag = |tag: &str| Reference::Tag(tag.into());
        let id = UploadId::parse(&"0f".repeat(16)).unwrap();
        for (path, target) in [
            ("/v2".to_owned(), Target::Ping),
            ("/v2/".to_owned(), Target::Ping),
            ("/v2/_catalog".to_owned(), Target::Catalog),
            ("/v2/token".to_owned(), Target::Token),
            ("/mirror".to_owned(), Target::Page),
            ("/v2/a/b/manifests/latest".to_owned(), Target::Manifest(name("a/b"), tag("latest"))),
            (
                "/v2/blobs/manifests/manifests".to_owned(),
                Target::Manifest(name("blobs"), tag("manifests")),
            ),
            (format!("/v2/a/manifests/{of}"), Target::Manifest(name("a"), Reference::Digest(of))),
            (format!("/v2/a/b/c/blobs/{of}"), Target::Blob(name("a/b/c"), of)),
            ("/v2/a/b/blobs/uploads/".to_owned(), Target::Uploads(name("a/b"))),
            ("/v2/a/b/blobs/uploads".to_owned(), Target::Uploads(name("a/b"))),
            (format!("/v2/a/b/blobs/uploads/{id}"), Target::Upload(name("a/b"), id)),
            ("/v2/a/tags/list".to_owned(), Target::Tags(name("a"))),
            (format!("/v2/a/b/referrers/{of}"), Target::Referrers(name("a/b"), of)),
        ] {
            assert_eq!(Target::parse(&path), Ok(target), "{path}");
        }
    }

    #[test]
    fn mirrors_of_other_registries_are_asked_by_their_names() {
        let at = |path: &str, host: &str| {
            let target = Target::parse(path).unwrap().of_registry(host)?;
            Ok(target.repository().map(ToString::to_string))
        };
        let manifest = "/v2/user/repo/manifests/latest";
        assert_eq!(at(manifest, "registry.ollama.ai"), Ok(Some("user/repo".into())));
        assert_eq!(at(manifest, "hf.co"), Ok(Some("hf.co/user/repo".into())));
        assert_eq!(at(manifest, "127.0.0.1:5000"), Ok(Some("127.0.0.1:5000/user/repo".into())));
        assert_eq!(at("/v2/", "hf.co"), Ok(None));
        let unknown = MirrorError::NameUnknown(Repository::parse("user/repo").unwrap());
        for host in ["[::1]:5000", "../x", "a b", "hub:0x50", "user@hub:5000"] {
            assert_eq!(at(manifest, host), Err(unknown.clone()), "{host}");
        }
    }

    #[test]
    fn paths_out_of_the_store_lead_nowhere() {
        for path in [
            "/v2/../manifests/x",
            "/v2/a/../b/manifests/x",
            "/v2/a/manifests/..",
            "/v2/a/manifests/",
            "/v2//manifests/x",
            "/v2/a/b/blobs/../../../etc/passwd",
            "/v2/a/b/blobs/uploads/../../x",
            "/v2/a/b/blobs/uploads/x",
            "/v2/a/blobs/sha256:..",
            "/v2/a",
            "/v2x",
            "/",
        ] {
            let error = Target::parse(path).unwrap_err();
            assert!((400..=404).contains(&error.code().0), "{path}: {error}");
        }
    }

    #[test]
    fn escapes_are_resolved_or_refused() {
        assert_eq!(unescaped("/a%20b").as_deref(), Some("/a b"));
        assert_eq!(unescaped("/%zz"), None);
        assert_eq!(unescaped("/%f"), None);
        assert_eq!(unescaped("/%ff"), None);
    }

    #[test]
    fn queries_are_unescaped() {
        let text = Some("a=1&digest=sha256%3Aab&a=2&flag");
        assert_eq!(query(text, "digest").as_deref(), Some("sha256:ab"));
        assert_eq!(query(text, "a").as_deref(), Some("1"));
        assert_eq!(query(text, "flag").as_deref(), Some(""));
        assert_eq!(query(text, "b"), None);
        assert_eq!(query(Some("a=%zz"), "a"), None);
    }
}

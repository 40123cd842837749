//! Targets of registry requests, parsed from their path.

use axum::http::Method;
use puna_store::{DEFAULT_HOST, Digest};

use crate::auth::Permission;
use crate::error::MirrorError;
use crate::types::repository::{Reference, Repository, digest};
use crate::types::upload_id::UploadId;

/// A route of the registry.
#[derive(Debug, Clone, Copy)]
pub struct RegistryRoute {
    /// Path with `{name}` for a repository, `{reference}`, `{digest}` and `{upload}`.
    pub path: &'static str,
    /// Methods that the route supports, each with the permission that it needs for the repository.
    pub methods: &'static [(&'static str, Permission)],
}

/// All routes of the registry.
pub const REGISTRY_ROUTES: &[RegistryRoute] = &[
    RegistryRoute { path: "/v2/", methods: READ },
    RegistryRoute { path: WEB_UI_PATH, methods: READ },
    RegistryRoute { path: "/v2/token", methods: READ },
    RegistryRoute { path: "/v2/_catalog", methods: READ },
    RegistryRoute { path: "/v2/{name}/manifests/{reference}", methods: MANIFEST },
    RegistryRoute { path: "/v2/{name}/blobs/{digest}", methods: BLOB },
    RegistryRoute { path: "/v2/{name}/blobs/uploads/", methods: UPLOADS },
    RegistryRoute { path: "/v2/{name}/blobs/uploads/{upload}", methods: UPLOAD },
    RegistryRoute { path: "/v2/{name}/tags/list", methods: READ },
    RegistryRoute { path: "/v2/{name}/referrers/{digest}", methods: READ },
];

/// Methods of a route with their permissions.
type Methods = &'static [(&'static str, Permission)];

const READ: Methods = &[("GET", Permission::Read), ("HEAD", Permission::Read)];
const MANIFEST: Methods = &[
    ("GET", Permission::Read),
    ("HEAD", Permission::Read),
    ("PUT", Permission::Write),
    ("DELETE", Permission::Admin),
];
const BLOB: Methods =
    &[("GET", Permission::Read), ("HEAD", Permission::Read), ("DELETE", Permission::Admin)];
const UPLOADS: Methods = &[("POST", Permission::Write)];
const UPLOAD: Methods = &[
    ("GET", Permission::Write),
    ("PATCH", Permission::Write),
    ("PUT", Permission::Write),
    ("DELETE", Permission::Write),
];

/// Path of the web page.
pub(crate) const WEB_UI_PATH: &str = "/mirror";

/// Target of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// Version check: whether this is a registry.
    Ping,
    /// Web page.
    WebUi,
    /// Token endpoint.
    Token,
    /// List of repositories.
    Catalog,
    /// A manifest.
    Manifest(Repository, Reference),
    /// A blob.
    Blob(Repository, Digest),
    /// Uploads of a repository, to start a new one.
    Uploads(Repository),
    /// An open upload.
    Upload(Repository, UploadId),
    /// Tags of a repository.
    Tags(Repository),
    /// Manifests that refer to another one.
    Referrers(Repository, Digest),
}

impl Target {
    /// Parses a decoded path from its end, because repository names have any number of words.
    pub(crate) fn parse(path: &str) -> Result<Self, MirrorError> {
        if path == WEB_UI_PATH {
            return Ok(Self::WebUi);
        }
        let rest = match path.strip_prefix("/v2") {
            Some("" | "/") => return Ok(Self::Ping),
            Some("/_catalog") => return Ok(Self::Catalog),
            Some("/token") => return Ok(Self::Token),
            Some(rest) => rest.strip_prefix('/').ok_or(MirrorError::NoRoute)?,
            None => return Err(MirrorError::NoRoute),
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
        let (head, last) = rest.rsplit_once('/').ok_or(MirrorError::NoRoute)?;
        let (name, collection) = head.rsplit_once('/').ok_or(MirrorError::NoRoute)?;
        match collection {
            "manifests" => Ok(Self::Manifest(Repository::parse(name)?, Reference::parse(last)?)),
            "blobs" => Ok(Self::Blob(Repository::parse(name)?, digest(last)?)),
            "referrers" => Ok(Self::Referrers(Repository::parse(name)?, digest(last)?)),
            _ => Err(MirrorError::NoRoute),
        }
    }
}

impl Target {
    /// Adds the registry host of the `ns` parameter to the repository. Clients that use this server
    /// as a mirror of another registry send it.
    pub(crate) fn with_registry_host(self, host: &str) -> Result<Self, MirrorError> {
        if host.eq_ignore_ascii_case(DEFAULT_HOST) {
            return Ok(self);
        }
        let at = |name: Repository| {
            let full = Repository::parse(&format!("{host}/{name}"));
            // Hosts that cannot be part of a repository name have no repositories here.
            full.map_err(|_| MirrorError::NameUnknown(name))
        };
        Ok(match self {
            Self::Manifest(name, digest) => Self::Manifest(at(name)?, digest),
            Self::Blob(name, digest) => Self::Blob(at(name)?, digest),
            Self::Tags(name) => Self::Tags(at(name)?),
            Self::Referrers(name, digest) => Self::Referrers(at(name)?, digest),
            other => other,
        })
    }

    /// HTTP methods that the target supports.
    pub(crate) fn methods(&self) -> impl Iterator<Item = &'static str> {
        self.rules().iter().map(|(method, _)| *method)
    }

    /// Permission that a method needs for the repository of the target, also a method that the
    /// target does not support.
    pub(crate) fn permission(&self, method: &Method) -> Permission {
        match *method {
            // A client that may push may also resume and cancel its upload.
            _ if matches!(self, Self::Upload(..)) => Permission::Write,
            Method::GET | Method::HEAD => Permission::Read,
            Method::DELETE => Permission::Admin,
            _ => Permission::Write,
        }
    }

    fn rules(&self) -> Methods {
        match self {
            Self::Manifest(..) => MANIFEST,
            Self::Blob(..) => BLOB,
            Self::Uploads(_) => UPLOADS,
            Self::Upload(..) => UPLOAD,
            Self::Ping
            | Self::WebUi
            | Self::Token
            | Self::Catalog
            | Self::Tags(_)
            | Self::Referrers(..) => READ,
        }
    }

    /// Value of the label `route` in metrics.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::WebUi => "page",
            Self::Token => "token",
            Self::Catalog => "catalog",
            Self::Manifest(..) => "manifest",
            Self::Blob(..) => "blob",
            Self::Uploads(_) | Self::Upload(..) => "upload",
            Self::Tags(_) => "tags",
            Self::Referrers(..) => "referrers",
        }
    }

    /// Repository of the target.
    pub(crate) fn repository(&self) -> Option<&Repository> {
        match self {
            Self::Ping | Self::Catalog | Self::WebUi | Self::Token => None,
            Self::Manifest(name, _)
            | Self::Blob(name, _)
            | Self::Uploads(name)
            | Self::Upload(name, _)
            | Self::Tags(name)
            | Self::Referrers(name, _) => Some(name),
        }
    }
}

/// Decodes percent escapes; `None` if the result is not UTF-8 or an escape is invalid.
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

/// Returns the decoded value of a query parameter.
pub(crate) fn query_value(text: Option<&str>, wanted: &str) -> Option<String> {
    let pairs = text?.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let value = pairs.filter(|(key, _)| *key == wanted).map(|(_, value)| value).next()?;
    unescaped(&value.replace('+', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Position of a kind of target in the list of routes.
    fn route_index(target: &Target) -> usize {
        match target {
            Target::Ping => 0,
            Target::WebUi => 1,
            Target::Token => 2,
            Target::Catalog => 3,
            Target::Manifest(..) => 4,
            Target::Blob(..) => 5,
            Target::Uploads(_) => 6,
            Target::Upload(..) => 7,
            Target::Tags(_) => 8,
            Target::Referrers(..) => 9,
        }
    }

    #[test]
    fn every_target_has_a_route_with_its_rule() {
        for (index, route) in REGISTRY_ROUTES.iter().enumerate() {
            let path = route.path.replace("{name}", "a/b").replace("{reference}", "latest");
            let path = path.replace("{digest}", &Digest::of(b"x").to_string());
            let target = Target::parse(&path.replace("{upload}", &"0f".repeat(16))).unwrap();
            assert_eq!(route_index(&target), index, "{}", route.path);
            assert_eq!(target.rules(), route.methods, "{}", route.path);
            for (method, permission) in route.methods {
                let method = Method::from_bytes(method.as_bytes()).unwrap();
                assert_eq!(target.permission(&method), *permission, "{method} {}", route.path);
            }
            assert_eq!(target.repository().is_some(), route.path.contains("{name}"));
        }
        assert_eq!(REGISTRY_ROUTES.len(), 10, "one for each number of `route_index`");
    }

    #[test]
    fn paths_are_parsed_from_their_end() {
        let name = |text: &str| Repository::parse(text).unwrap();
        let digest = Digest::of(b"x");
        let tag = |tag: &str| Reference::Tag(tag.into());
        let id = UploadId::parse(&"0f".repeat(16)).unwrap();
        for (path, target) in [
            ("/v2".to_owned(), Target::Ping),
            ("/v2/".to_owned(), Target::Ping),
            ("/v2/_catalog".to_owned(), Target::Catalog),
            ("/v2/token".to_owned(), Target::Token),
            ("/mirror".to_owned(), Target::WebUi),
            ("/v2/a/b/manifests/latest".to_owned(), Target::Manifest(name("a/b"), tag("latest"))),
            (
                "/v2/blobs/manifests/manifests".to_owned(),
                Target::Manifest(name("blobs"), tag("manifests")),
            ),
            (
                format!("/v2/a/manifests/{digest}"),
                Target::Manifest(name("a"), Reference::Digest(digest)),
            ),
            (format!("/v2/a/b/c/blobs/{digest}"), Target::Blob(name("a/b/c"), digest)),
            ("/v2/a/b/blobs/uploads/".to_owned(), Target::Uploads(name("a/b"))),
            ("/v2/a/b/blobs/uploads".to_owned(), Target::Uploads(name("a/b"))),
            (format!("/v2/a/b/blobs/uploads/{id}"), Target::Upload(name("a/b"), id)),
            ("/v2/a/tags/list".to_owned(), Target::Tags(name("a"))),
            (format!("/v2/a/b/referrers/{digest}"), Target::Referrers(name("a/b"), digest)),
        ] {
            assert_eq!(Target::parse(&path), Ok(target), "{path}");
        }
    }

    #[test]
    fn the_ns_parameter_selects_the_registry() {
        let at = |path: &str, host: &str| {
            let target = Target::parse(path).unwrap().with_registry_host(host)?;
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
    fn paths_outside_of_the_store_are_rejected() {
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
    fn percent_escapes_are_decoded_or_rejected() {
        assert_eq!(unescaped("/a%20b").as_deref(), Some("/a b"));
        assert_eq!(unescaped("/%zz"), None);
        assert_eq!(unescaped("/%f"), None);
        assert_eq!(unescaped("/%ff"), None);
    }

    #[test]
    fn queries_are_unescaped() {
        let text = Some("a=1&digest=sha256%3Aab&a=2&flag");
        assert_eq!(query_value(text, "digest").as_deref(), Some("sha256:ab"));
        assert_eq!(query_value(text, "a").as_deref(), Some("1"));
        assert_eq!(query_value(text, "flag").as_deref(), Some(""));
        assert_eq!(query_value(text, "b"), None);
        assert_eq!(query_value(Some("a=%zz"), "a"), None);
    }
}

//! Model names and the paths that both versions derive from them.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The public registry in names and in `manifests/`.
pub const LEGACY_PUBLIC_HOST: &str = "registry.ollama.ai";
/// The public registry in `manifests-v2/`.
pub const V2_PUBLIC_HOST: &str = "ollama.com";

/// A full model name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    pub host: String,
    pub namespace: String,
    pub model: String,
    pub tag: String,
}

impl Name {
    /// Parses a name from the right and fills in the default host, namespace and tag.
    pub fn parse(text: &str) -> io::Result<Self> {
        let colon = text.rfind(':').filter(|at| text.rfind('/').is_none_or(|slash| slash < *at));
        let (path, tag) = colon.map_or((text, "latest"), |at| (&text[..at], &text[at + 1..]));
        let mut parts = path.rsplitn(3, '/');
        let model = parts.next().unwrap_or_default();
        let namespace = parts.next().unwrap_or("library");
        let host = parts.next().unwrap_or(LEGACY_PUBLIC_HOST);
        Self::from_parts([host, namespace, model, tag]).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("invalid model name {text:?}"))
        })
    }

    /// The name of four path components, or none where a component is invalid.
    pub fn from_parts([host, namespace, model, tag]: [&str; 4]) -> Option<Self> {
        let is_valid = is_valid_part(host, 350, "_-.:")
            && is_valid_part(namespace, 80, "_-")
            && is_valid_part(model, 80, "_-.")
            && is_valid_part(tag, 80, "_-.");
        let [host, namespace, model, tag] = [host, namespace, model, tag].map(str::to_owned);
        is_valid.then_some(Self { host, namespace, model, tag })
    }

    pub fn is_public(&self) -> bool {
        [LEGACY_PUBLIC_HOST, V2_PUBLIC_HOST].iter().any(|host| self.host.eq_ignore_ascii_case(host))
    }

    /// The same name on another host.
    pub fn with_host(&self, host: &str) -> Self {
        Self { host: host.to_owned(), ..self.clone() }
    }

    /// The name with the usual spelling of the public host.
    pub fn normalized(&self) -> Self {
        if self.is_public() { self.with_host(LEGACY_PUBLIC_HOST) } else { self.clone() }
    }

    /// The entry in `manifests/`, where the host is written unchanged.
    pub fn legacy_path(&self, root: &Path) -> PathBuf {
        root.join("manifests")
            .join(&self.host)
            .join(&self.namespace)
            .join(&self.model)
            .join(&self.tag)
    }

    /// The entry in `manifests-v2/`, with the other public host and an escaped colon of a port.
    pub fn v2_path(&self, root: &Path) -> PathBuf {
        let host = if self.is_public() {
            V2_PUBLIC_HOST.to_owned()
        } else {
            self.host.replace(':', "%3A")
        };
        root.join("manifests-v2").join(host).join(&self.namespace).join(&self.model).join(&self.tag)
    }

    /// Whether the name is a rollback shadow of a local migration.
    pub fn is_shadow(&self) -> bool {
        self.is_public()
            && self.namespace == "library"
            && ["llamacpp", "ggml", "mlx", "ollama"].contains(&self.model.as_str())
            && self.tag.len() == 64
            && self.tag.bytes().all(|byte| byte.is_ascii_hexdigit())
    }

    /// The name as lists of models show it.
    pub fn shortest(&self) -> String {
        let Self { host, namespace, model, tag } = self;
        if !host.eq_ignore_ascii_case(LEGACY_PUBLIC_HOST) {
            return self.to_string();
        }
        if namespace.eq_ignore_ascii_case("library") {
            return format!("{model}:{tag}");
        }
        format!("{namespace}/{model}:{tag}")
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}:{}", self.host, self.namespace, self.model, self.tag)
    }
}

fn is_valid_part(part: &str, longest: usize, punctuation: &str) -> bool {
    let starts_well = part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    starts_well
        && part.len() <= longest
        && part.chars().all(|c| c.is_ascii_alphanumeric() || punctuation.contains(c))
}

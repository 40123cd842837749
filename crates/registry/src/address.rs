//! Addresses and texts of others, as messages show them.

use reqwest::{Method, Url};

/// Host and port of an address.
pub(crate) fn authority(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// An address for messages: without its query, which may hold signatures, and without passwords.
pub(crate) fn shown(url: &Url) -> String {
    format!("{}://{}{}", url.scheme(), authority(url), url.path())
}

/// Text of others in one line, without control characters, and not for ever.
pub(crate) fn plain(text: &str, limit: usize) -> String {
    let line = text.trim().replace(['\r', '\n', '\t'], " ");
    line.chars().filter(|c| !c.is_control()).take(limit).collect()
}

/// `Get`, as Ollama's errors write it.
pub(crate) fn verb(method: &Method) -> String {
    let name = method.as_str();
    name.get(..1).unwrap_or_default().to_owned() + &name.get(1..).unwrap_or_default().to_lowercase()
}

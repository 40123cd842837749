//! Addresses and texts of others, as messages show them.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
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

/// A text of others in which none of our secrets stands, should they have repeated one: as it is, or in base64.
pub fn hide<'a>(text: &str, secrets: impl IntoIterator<Item = &'a str>) -> String {
    let forms = secrets.into_iter().filter(|secret| !secret.is_empty());
    let forms = forms.flat_map(|secret| {
        [STANDARD.encode(secret), STANDARD_NO_PAD.encode(secret), secret.to_owned()]
    });
    let mut forms: Vec<String> = forms.collect();
    // One that is a part of another would leave the rest of that.
    forms.sort_by_key(|form| std::cmp::Reverse(form.len()));
    forms.iter().fold(text.to_owned(), |text, form| text.replace(form.as_str(), "…"))
}

/// `Get`, as Ollama's errors write it.
pub(crate) fn verb(method: &Method) -> String {
    let name = method.as_str();
    name.get(..1).unwrap_or_default().to_owned() + &name.get(1..).unwrap_or_default().to_lowercase()
}

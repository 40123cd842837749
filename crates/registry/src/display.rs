//! Texts and URLs of other parties as messages show them.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use puna_trust::TlsProblem;
use reqwest::{Method, Url};

/// Host and port of a URL.
pub(crate) fn authority(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// A URL for messages: without its query, which may contain signatures, and without user and
/// password.
pub(crate) fn display_url(url: &Url) -> String {
    format!("{}://{}{}", url.scheme(), authority(url), url.path())
}

/// Whether a character can change what a terminal shows around it: the control characters C0, DEL
/// and C1, and the bidirectional controls, which reorder text.
pub fn is_terminal_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text as one line of at most `max_chars` characters, without [terminal
/// controls](is_terminal_control).
pub fn single_line(text: &str, max_chars: usize) -> String {
    let line = text.trim().replace(['\r', '\n', '\t'], " ");
    line.chars().filter(|c| !is_terminal_control(*c)).take(max_chars).collect()
}

/// Replaces secrets in a text, in plain form and in base64.
pub fn redact<'a>(text: &str, secrets: impl IntoIterator<Item = &'a str>) -> String {
    let forms = secrets.into_iter().filter(|secret| !secret.is_empty());
    let forms = forms.flat_map(|secret| {
        [STANDARD.encode(secret), STANDARD_NO_PAD.encode(secret), secret.to_owned()]
    });
    let mut forms: Vec<String> = forms.collect();
    // Longer forms come first, so that no rest of a longer secret remains.
    forms.sort_by_key(|form| std::cmp::Reverse(form.len()));
    forms.iter().fold(text.to_owned(), |text, form| text.replace(form.as_str(), "…"))
}

/// Message of the innermost cause of an error. TLS errors have plain descriptions.
pub fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(problem) = TlsProblem::find(error) {
        return problem.to_string();
    }
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// A method as Ollama's errors write it, such as `Get`.
pub(crate) fn method_name(method: &Method) -> String {
    let name = method.as_str();
    name.get(..1).unwrap_or_default().to_owned() + &name.get(1..).unwrap_or_default().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_line_has_no_characters_that_control_a_terminal() {
        let text = "\x1b]0;a\x07\r\nb\t\u{7f}\u{9b}c\u{202e}\u{2066}d é\n";
        assert_eq!(single_line(text, 100), "]0;a  b cd é");
        assert_eq!(single_line(text, 4), "]0;a");
    }
}

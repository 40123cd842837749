//! Allowed web origins (CORS).

use super::effective::shown_text;
use crate::http::host_check::is_authority;

/// An entry of the origin list is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OriginsError {
    /// Neither a pattern nor a URL.
    #[error(
        "bad origin {}: origins must contain '*' or include http://,https://,chrome-extension://,safari-extension://,moz-extension://,ms-browser-extension://",
        shown_text(.0)
    )]
    Scheme(String),
    /// More than one wildcard.
    #[error("bad origin {}: only one * is allowed", shown_text(.0))]
    Wildcards(String),
}

/// Patterns of allowed origins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origins {
    patterns: Vec<String>,
    any: bool,
}

const SCHEMES: [&str; 6] = [
    "http://",
    "https://",
    "chrome-extension://",
    "safari-extension://",
    "moz-extension://",
    "ms-browser-extension://",
];

impl Default for Origins {
    /// The local origins.
    fn default() -> Self {
        Self::with(Vec::new())
    }
}

impl Origins {
    /// Parses a comma-separated list. Local origins are always allowed.
    pub fn parse(list: &str) -> Result<Self, OriginsError> {
        let mut patterns = Vec::new();
        for entry in list.split(',').map(str::trim).filter(|e| !e.is_empty()) {
            if entry.matches('*').count() > 1 {
                return Err(OriginsError::Wildcards(entry.to_owned()));
            }
            if !entry.contains('*') && !SCHEMES.iter().any(|scheme| entry.starts_with(scheme)) {
                return Err(OriginsError::Scheme(entry.to_owned()));
            }
            patterns.push(entry.to_owned());
        }
        Ok(Self::with(patterns))
    }

    /// Adds the local origins to `patterns`.
    fn with(mut patterns: Vec<String>) -> Self {
        for host in ["localhost", "127.0.0.1", "0.0.0.0"] {
            for scheme in ["http", "https"] {
                patterns.push(format!("{scheme}://{host}"));
                patterns.push(format!("{scheme}://{host}:*"));
            }
        }
        let apps = ["app://*", "file://*", "tauri://*", "vscode-webview://*", "vscode-file://*"];
        patterns.extend(apps.map(str::to_owned));
        let any = patterns.iter().any(|p| p == "*");
        Self { patterns, any }
    }

    /// Whether every origin is allowed.
    pub fn allows_any(&self) -> bool {
        self.any
    }

    /// Whether an origin is allowed. A wildcard for its port stands for a number only.
    pub fn allows(&self, origin: &str) -> bool {
        if !self.any && !has_valid_authority(origin) {
            return false;
        }
        self.patterns.iter().any(|pattern| match pattern.split_once('*') {
            Some((head, tail)) => {
                origin.len() >= head.len() + tail.len()
                    && origin.starts_with(head)
                    && origin.ends_with(tail)
            }
            None => pattern == origin,
        })
    }
}

/// Whether an origin of a web page has one host with an optional port, and no more. Apps have
/// origins of other forms.
fn has_valid_authority(origin: &str) -> bool {
    match ["http://", "https://"].iter().find_map(|scheme| origin.strip_prefix(scheme)) {
        Some(authority) => !authority.ends_with(':') && is_authority(authority),
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_pages_and_apps_are_allowed_and_foreign_ones_are_not() {
        let origins = Origins::parse("").unwrap();
        for good in [
            "http://localhost",
            "https://localhost:3000",
            "http://127.0.0.1:8080",
            "http://0.0.0.0:5000",
            "app://obsidian.md",
            "file://x",
            "tauri://localhost",
            "vscode-webview://abc",
        ] {
            assert!(origins.allows(good), "{good}");
        }
        for bad in [
            "null",
            "http://example.com",
            "https://localhost.evil.test",
            "chrome-extension://abc",
            "http://LOCALHOST:3000",
            "http://192.168.1.5:3000",
            "http://localhost:evil",
            "http://localhost:1.evil.test",
            "http://localhost:1@evil.test",
            "http://localhost:1/evil.test:2",
            "http://localhost:99999",
            "http://localhost:",
            "",
        ] {
            assert!(!origins.allows(bad), "{bad}");
        }
    }

    #[test]
    fn configured_origins_add_to_the_local_ones() {
        let origins = Origins::parse("https://chat.example.org, chrome-extension://*").unwrap();
        assert!(
            origins.allows("https://chat.example.org") && origins.allows("chrome-extension://abc")
        );
        assert!(
            origins.allows("http://localhost:3000") && !origins.allows("http://chat.example.org")
        );
        assert!(!origins.allows_any() && Origins::parse("*").unwrap().allows_any());
    }

    #[test]
    fn invalid_entries_are_rejected() {
        assert_eq!(Origins::parse("example.com"), Err(OriginsError::Scheme("example.com".into())));
        assert_eq!(
            Origins::parse("http://*.a.*"),
            Err(OriginsError::Wildcards("http://*.a.*".into()))
        );
    }
}

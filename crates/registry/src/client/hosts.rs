//! Settings of individual hosts: how to connect, credentials, mirrors and limits.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// Largest size of a file with a secret, in bytes.
const MAX_SECRET_BYTES: u64 = 64 << 10;

/// Password or token. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// The secret itself.
    Text(String),
    /// File with the secret, read for each use, since the secret may be rotated.
    File(PathBuf),
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("(secret)"),
            Self::File(path) => write!(f, "(secret in {})", path.display()),
        }
    }
}

impl Secret {
    /// Reads the secret, without surrounding white space.
    ///
    /// # Errors
    /// The file cannot be read, or the secret is empty or contains control characters.
    pub(crate) fn read(&self) -> Result<String, String> {
        let text = match self {
            Self::Text(text) => text.clone(),
            Self::File(path) => {
                read_text(path, MAX_SECRET_BYTES).map_err(|e| format!("{}: {e}", path.display()))?
            }
        };
        let text = text.trim();
        match text.is_empty() || text.contains(|c: char| c.is_control()) {
            true => Err(format!("{self:?} is empty or not a single line")),
            false => Ok(text.to_owned()),
        }
    }
}

/// Credentials for a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// User with a password, or with a token in its place.
    Basic {
        /// User name.
        user: String,
        /// Password or token.
        password: Secret,
    },
    /// Bearer token that the registry itself accepts.
    Token(Secret),
    /// Refresh token that the token server exchanges for bearer tokens, as `docker login` stores
    /// it.
    Refresh(Secret),
}

/// Settings of one host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Host {
    /// Use plain HTTP.
    pub http: bool,
    /// PEM file of certificates that are trusted for this host in addition to the system's.
    pub ca: Option<PathBuf>,
    /// Credentials for this host.
    pub credentials: Option<Credentials>,
    /// Another host that may give out anonymous tokens for this registry.
    pub token_host: Option<String>,
    /// Whether the host lists the files of models, as Hugging Face does.
    pub hub: bool,
    /// Mirrors that are tried before this host.
    pub mirrors: Vec<String>,
    /// Rate limit of all connections together, in bytes per second.
    pub limit_rate: Option<u64>,
    /// Largest number of connections of one download.
    pub streams: Option<usize>,
}

/// Host settings by host name, with the port if there is one. Names are case-insensitive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hosts(HashMap<String, Host>);

impl Hosts {
    /// The settings of a host.
    pub fn get(&self, host: &str) -> Option<&Host> {
        self.0.get(&host.to_ascii_lowercase())
    }

    /// All hosts with their settings, in no order. Names are in lower case.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Host)> {
        self.0.iter().map(|(name, host)| (name.as_str(), host))
    }

    /// Sets the settings of a host.
    pub fn set(&mut self, host: &str, settings: Host) {
        self.0.insert(host.to_ascii_lowercase(), settings);
    }
}

/// Reads a text file of at most `limit` bytes.
pub(crate) fn read_text(path: &Path, limit: u64) -> std::io::Result<String> {
    let mut text = String::new();
    let mut file = std::io::Read::take(std::fs::File::open(path)?, limit + 1);
    std::io::Read::read_to_string(&mut file, &mut text)?;
    if text.len() as u64 > limit {
        return Err(std::io::Error::other(format!("it has more than {limit} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_and_files_are_read_for_each_use() {
        let secret = Secret::Text("hunter2".into());
        assert_eq!(
            (format!("{secret:?}"), secret.read().unwrap()),
            ("(secret)".into(), "hunter2".into())
        );
        let dir = tempfile::tempdir().unwrap();
        let file = Secret::File(dir.path().join("token"));
        assert!(file.read().unwrap_err().contains("token"));
        std::fs::write(dir.path().join("token"), " abc\n").unwrap();
        assert_eq!(file.read().unwrap(), "abc");
        std::fs::write(dir.path().join("token"), "a\nb").unwrap();
        let text = file.read().unwrap_err();
        assert!(
            text.ends_with("is empty or not a single line") && !text.contains("a\nb"),
            "{text}"
        );
        std::fs::write(dir.path().join("token"), "x".repeat(70_000)).unwrap();
        assert!(file.read().unwrap_err().contains("more than 65536 bytes"));
    }

    #[test]
    fn host_names_are_case_insensitive() {
        let mut hosts = Hosts::default();
        hosts.set("Registry.Example:5000", Host { http: true, ..Host::default() });
        assert!(hosts.get("registry.example:5000").is_some_and(|host| host.http));
        assert!(hosts.get("registry.example").is_none());
    }
}

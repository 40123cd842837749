//! What is set for single hosts: how to reach them, who we are there, and how fast they may be asked.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// Bytes of a file with a secret at most.
const MAX_SECRET: u64 = 64 << 10;

/// A password or token. Nothing shows it.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// The secret itself.
    Text(String),
    /// A file that holds it, which is read whenever it is needed: it may be exchanged.
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
    /// The secret, without the blanks around it.
    ///
    /// # Errors
    /// Its file cannot be read, or has what no secret has.
    pub(crate) fn read(&self) -> Result<String, String> {
        let text = match self {
            Self::Text(text) => text.clone(),
            Self::File(path) => {
                read_text(path, MAX_SECRET).map_err(|e| format!("{}: {e}", path.display()))?
            }
        };
        let text = text.trim();
        match text.is_empty() || text.contains(|c: char| c.is_control()) {
            true => Err(format!("{self:?} is empty, or no line of text")),
            false => Ok(text.to_owned()),
        }
    }
}

/// Who we are at a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// A user with a password, or with a token in the place of one.
    Basic {
        /// The name.
        user: String,
        /// The password.
        password: Secret,
    },
    /// A token that the registry itself takes.
    Token(Secret),
    /// A token that its token server exchanges for others, as `docker login` leaves it.
    Refresh(Secret),
}

/// What is set for one host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Host {
    /// Plain HTTP.
    pub http: bool,
    /// A file of certificates (PEM) that are trusted there beside the system's.
    pub ca: Option<PathBuf>,
    /// Who we are there.
    pub credentials: Option<Credentials>,
    /// Another host that hands out tokens to everybody.
    pub token_host: Option<String>,
    /// Whether it lists the files of models as the hub does.
    pub hub: bool,
    /// Addresses that are asked first.
    pub mirrors: Vec<String>,
    /// Bytes a second at most, of all connections together.
    pub limit_rate: Option<u64>,
    /// Connections of one download at most.
    pub streams: Option<usize>,
}

/// Hosts by name, with a port where they have one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hosts(HashMap<String, Host>);

impl Hosts {
    /// What is set for a host.
    pub fn get(&self, host: &str) -> Option<&Host> {
        self.0.get(&host.to_ascii_lowercase())
    }

    /// Sets it.
    pub fn set(&mut self, host: &str, settings: Host) {
        self.0.insert(host.to_ascii_lowercase(), settings);
    }
}

/// A text file of bounded size.
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
    fn secrets_are_not_shown_and_files_are_read_when_needed() {
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
        assert!(text.ends_with("is empty, or no line of text") && !text.contains("a\nb"), "{text}");
        std::fs::write(dir.path().join("token"), "x".repeat(70_000)).unwrap();
        assert!(file.read().unwrap_err().contains("more than 65536 bytes"));
    }

    #[test]
    fn hosts_are_found_whatever_the_case() {
        let mut hosts = Hosts::default();
        hosts.set("Registry.Example:5000", Host { http: true, ..Host::default() });
        assert!(hosts.get("registry.example:5000").is_some_and(|host| host.http));
        assert!(hosts.get("registry.example").is_none());
    }
}

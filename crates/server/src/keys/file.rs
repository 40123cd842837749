//! The file of keys.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

use super::Scope;

/// What every key begins with, so that people and scanners know what it is.
const PREFIX: &str = "puna-";

/// A file without keys may be one that a full disk has emptied.
const NO_KEYS: &str = "there is no key in it: restore it, or remove it if nobody is to be asked for a key, and start again";

/// Random bytes of a key. As many as that cannot be guessed, so that a plain hash keeps them.
const RANDOM_BYTES: usize = 32;

/// A key cannot be made, found or kept.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read or written.
    #[error("cannot {what} the file of API keys {}: {reason}", path.display())]
    File {
        /// What was to be done with it: `read`, `write` or `lock`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why that failed.
        reason: String,
    },
    /// There is a key of that name.
    #[error("there is a key named {0:?} already: remove it first, or take another name")]
    Exists(String),
    /// There is none of that name.
    #[error("there is no key named {0:?}")]
    Unknown(String),
    /// A name that nobody could type.
    #[error("{0:?} cannot be the name of a key: take 1 to 64 letters, digits, dots, - and _")]
    Name(String),
    /// The system has no random numbers.
    #[error("the system gives no random numbers")]
    Random,
}

/// A key without the key itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// Whose or what for.
    pub name: String,
    /// SHA-256 of the key, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hash: String,
    /// What it is for.
    pub scopes: Vec<Scope>,
    /// When it was made.
    pub created: String,
    /// Requests a minute at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// Requests at once at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent: Option<u32>,
    /// The public half of an Ed25519 key, as OpenSSH writes it, by which registries know their clients; then there is no hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public: Option<String>,
    /// Namespaces of the registry that it is for: `name`, or `name*`. Without any, all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
}

impl Key {
    /// Whether it may do what needs a scope.
    pub fn may(&self, wanted: Scope) -> bool {
        self.scopes.iter().any(|scope| *scope == wanted || *scope == Scope::Admin)
    }
}

/// All keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFile {
    /// Nobody is asked for a key, though there is a file: its last key was removed. Without this a file without keys is a broken one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
    /// In the order in which they were made.
    #[serde(default, rename = "key")]
    pub keys: Vec<Key>,
}

impl KeyFile {
    /// Reads a file; one that is not there has no keys.
    ///
    /// # Errors
    /// [`KeyError::File`]
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let failed =
            |reason: String| KeyError::File { what: "read", path: path.to_owned(), reason };
        match std::fs::read_to_string(path) {
            Ok(text) => match toml::from_str::<Self>(&text) {
                Err(e) => Err(failed(e.message().to_owned())),
                Ok(file) if file.keys.is_empty() && !file.open => Err(failed(NO_KEYS.to_owned())),
                Ok(file) => Ok(file),
            },
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(e) => Err(failed(e.to_string())),
        }
    }

    /// Reads a file, changes it, and writes it; of several at once each sees what the one before wrote.
    ///
    /// # Errors
    /// [`KeyError::File`], and what the change returns; nothing is written then.
    pub fn change<T, E: From<KeyError>>(
        path: &Path,
        change: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let failed = |e: std::io::Error| KeyError::File {
            what: "lock",
            path: path.to_owned(),
            reason: e.to_string(),
        };
        // Beside the file, which is replaced as a whole. It goes with this process.
        let _lock = locked(path).map_err(failed)?;
        let mut file = Self::read(path)?;
        let done = change(&mut file)?;
        file.write(path)?;
        Ok(done)
    }

    /// Writes the file as a whole; only its owner can read it.
    ///
    /// # Errors
    /// [`KeyError::File`]
    pub fn write(&self, path: &Path) -> Result<(), KeyError> {
        let failed =
            |reason: String| KeyError::File { what: "write", path: path.to_owned(), reason };
        let text = toml::to_string(self).map_err(|e| failed(e.to_string()))?;
        let replace = || {
            let folder = folder(path);
            std::fs::create_dir_all(folder)?;
            // Made with access for its owner alone.
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            file.write_all(
                b"# API keys of Puna; `puna key` writes this file. The keys themselves are not in it.\n\n",
            )?;
            file.write_all(text.as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(path).map_err(|e| e.error).map(drop)
        };
        replace().map_err(|e: std::io::Error| failed(e.to_string()))
    }

    /// Makes a key; it is told only here.
    ///
    /// # Errors
    /// [`KeyError::Exists`], [`KeyError::Name`], [`KeyError::Random`]
    pub fn add(&mut self, name: &str, scopes: Vec<Scope>) -> Result<String, KeyError> {
        let fits = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
            return Err(KeyError::Name(name.to_owned()));
        }
        if self.keys.iter().any(|key| key.name == name) {
            return Err(KeyError::Exists(name.to_owned()));
        }
        let mut random = [0; RANDOM_BYTES];
        SystemRandom::new().fill(&mut random).map_err(|_| KeyError::Random)?;
        let secret = format!("{PREFIX}{}", hex(&random));
        let created = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let (requests_per_minute, concurrent) = (None, None);
        let (name, hash, public, namespaces) = (name.to_owned(), hash(&secret), None, Vec::new());
        self.open = false;
        let key = Key {
            name,
            hash,
            scopes,
            created,
            requests_per_minute,
            concurrent,
            public,
            namespaces,
        };
        self.keys.push(key);
        Ok(secret)
    }

    /// Removes a key.
    ///
    /// # Errors
    /// [`KeyError::Unknown`]
    pub fn remove(&mut self, name: &str) -> Result<(), KeyError> {
        let before = self.keys.len();
        self.keys.retain(|key| key.name != name);
        self.open = self.keys.is_empty();
        if self.keys.len() == before { Err(KeyError::Unknown(name.to_owned())) } else { Ok(()) }
    }

    /// The key that somebody shows. Hashes are compared, of which no time tells anything.
    pub fn find(&self, secret: &str) -> Option<&Key> {
        let hash = hash(secret);
        self.keys.iter().find(|key| key.hash.eq_ignore_ascii_case(&hash))
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Waits until nobody else changes a file.
fn locked(path: &Path) -> std::io::Result<File> {
    std::fs::create_dir_all(folder(path))?;
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let lock = File::options().create(true).append(true).open(name)?;
    lock.lock()?;
    Ok(lock)
}

fn hash(secret: &str) -> String {
    hex(digest(&SHA256, secret.as_bytes()).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

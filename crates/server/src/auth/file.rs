//! The key file.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

use super::Scope;
use crate::util::text_file::{line_of, read_utf8};

/// Prefix of all keys, by which people and secret scanners recognize them.
const PREFIX: &str = "puna-";

/// Error of a file without keys: a full disk may have emptied it.
const NO_KEYS: &str =
    "it contains no key: restore it, or remove it to require no keys, and start again";

/// Random bytes of a key. They cannot be guessed, so a plain hash protects them.
const RANDOM_BYTES: usize = 32;

/// Errors of the key file.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read or written.
    #[error("cannot {operation} the key file {}: {reason}", path.display())]
    File {
        /// The operation: `read`, `write` or `lock`.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A key with this name exists already.
    #[error("a key named {0:?} exists already: remove it first, or use another name")]
    Exists(String),
    /// There is no key with this name.
    #[error("no key is named {0:?}")]
    Unknown(String),
    /// The name has invalid characters or length.
    #[error("invalid key name {0:?}: use 1 to 64 letters, digits, dots, - and _")]
    Name(String),
    /// The system provides no random numbers.
    #[error("cannot get random numbers from the system")]
    Random,
}

/// A key entry, without the secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// Name of the key.
    pub name: String,
    /// SHA-256 of the secret, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hash: String,
    /// Granted scopes.
    pub scopes: Vec<Scope>,
    /// Time of creation.
    pub created: String,
    /// Maximum requests per minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// Maximum concurrent requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent: Option<u32>,
    /// Ed25519 public key in OpenSSH format, by which the mirror identifies a client. A key with
    /// this field has no hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public: Option<String>,
    /// Group whose keys share cached prefixes if the server's `prefix_sharing` is `group`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Namespaces of models that the key may use, in all APIs and at `/v2`: `name` or `name*`;
    /// empty allows all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
}

impl Key {
    /// Whether the key grants a scope.
    pub fn may(&self, wanted: Scope) -> bool {
        self.scopes.iter().any(|scope| *scope == wanted || *scope == Scope::Admin)
    }
}

/// Content of the key file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFile {
    /// No key is required although the file exists: the last key was removed. Without this flag a
    /// file without keys is invalid.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
    /// Keys in order of creation.
    #[serde(default, rename = "key")]
    pub keys: Vec<Key>,
}

impl KeyFile {
    /// Reads a file. A missing file has no keys.
    ///
    /// # Errors
    /// [`KeyError::File`]
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let failed =
            |reason: String| KeyError::File { operation: "read", path: path.to_owned(), reason };
        match read_utf8(path) {
            Ok(text) => match toml::from_str::<Self>(&text) {
                Err(e) => {
                    let line = e.span().map(|span| line_of(&text, span.start));
                    let line = line.map_or(String::new(), |line| format!("line {line}: "));
                    Err(failed(format!("{line}{}", e.message())))
                }
                Ok(file) if file.keys.is_empty() && !file.open => Err(failed(NO_KEYS.to_owned())),
                Ok(file) => Ok(file),
            },
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(e) => Err(failed(e.to_string())),
        }
    }

    /// Reads, changes and writes a file under a lock, so that concurrent changes do not overwrite
    /// each other.
    ///
    /// # Errors
    /// [`KeyError::File`], and errors of `change`, after which nothing is written.
    pub fn change<T, E: From<KeyError>>(
        path: &Path,
        change: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let failed = |e: std::io::Error| KeyError::File {
            operation: "lock",
            path: path.to_owned(),
            reason: e.to_string(),
        };
        // The lock file is separate because the key file is replaced as a whole. The lock ends with
        // this process at the latest.
        let _lock = lock_file(path).map_err(failed)?;
        let mut file = Self::read(path)?;
        let done = change(&mut file)?;
        file.write(path)?;
        Ok(done)
    }

    /// Replaces the file atomically; only its owner can read it.
    ///
    /// # Errors
    /// [`KeyError::File`]
    pub fn write(&self, path: &Path) -> Result<(), KeyError> {
        let failed =
            |reason: String| KeyError::File { operation: "write", path: path.to_owned(), reason };
        let text = toml::to_string(self).map_err(|e| failed(e.to_string()))?;
        let replace = || {
            let folder = folder(path);
            std::fs::create_dir_all(folder)?;
            // Temporary files are created with access for their owner only.
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

    /// Creates a key and returns its secret, which is not stored.
    ///
    /// # Errors
    /// [`KeyError::Exists`], [`KeyError::Name`], [`KeyError::Random`]
    pub fn add(&mut self, name: &str, scopes: Vec<Scope>) -> Result<String, KeyError> {
        check_key_name(name)?;
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
            group: None,
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

    /// Finds the key of a secret. It compares hashes, so timing reveals nothing about a secret.
    pub fn find(&self, secret: &str) -> Option<&Key> {
        let hash = hash(secret);
        self.keys.iter().find(|key| key.hash.eq_ignore_ascii_case(&hash))
    }
}

/// Checks the name of a key.
///
/// # Errors
/// [`KeyError::Name`]
pub fn check_key_name(name: &str) -> Result<(), KeyError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    match !name.is_empty() && name.len() <= 64 && name.chars().all(fits) {
        true => Ok(()),
        false => Err(KeyError::Name(name.to_owned())),
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Takes the lock for changes of a file. The lock file is readable for its owner alone, since
/// another user who could open it could hold the lock.
///
/// # Errors
/// Another process holds the lock for too long, or the file cannot be created.
fn lock_file(path: &Path) -> std::io::Result<File> {
    puna_store::create_private_dir(folder(path))?;
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    puna_store::lock_file(Path::new(&name)).map_err(std::io::Error::other)
}

fn hash(secret: &str) -> String {
    hex(digest(&SHA256, secret.as_bytes()).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

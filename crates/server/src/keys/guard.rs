//! Asks every request for its key.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use axum::http::{HeaderMap, header};
use puna_mirror::Limit;

use super::usage::{Exceeded, Permit, Usage};
use super::{Access, Key, KeyError, KeyFile, Scope};
use crate::canonical::Failure;
use crate::lock::lock;

/// How often the file is looked at again.
const LOOK: Duration = Duration::from_secs(1);

/// What somebody elsewhere is told who wants more than use the models of a server without keys.
const KEYLESS: &str = "this server has no API keys, so this can only be done from its own machine: make one there with \
`puna key add`";

/// Knows the keys. Where there are none, everybody may use the models, and from this machine alone they may be changed and the
/// server be looked into.
pub struct Guard {
    path: PathBuf,
    known: Mutex<Known>,
    usage: Usage,
}

struct Known {
    keys: Arc<KeyFile>,
    changed: Option<SystemTime>,
    looked: Instant,
    /// The state of the file that was complained about last.
    refused: Option<Option<SystemTime>>,
}

/// What a request may do.
#[derive(Debug, Default)]
pub struct Pass {
    /// Holds a place among the key's requests until the answer is sent.
    pub permit: Option<Permit>,
    /// The key's number among clients.
    pub client: Option<u64>,
}

/// A refusal, and the seconds after which to come again.
#[derive(Debug)]
pub struct Refusal {
    pub failure: Failure,
    pub retry_after: Option<u64>,
}

impl Guard {
    /// # Errors
    /// The file of keys is there but cannot be used: nobody gets in by breaking it.
    pub fn new(path: &Path) -> Result<Self, KeyError> {
        warn_of_readers(path);
        let known = Known {
            changed: changed(path),
            keys: Arc::new(KeyFile::read(path)?),
            looked: Instant::now(),
            refused: None,
        };
        Ok(Self { path: path.to_owned(), known: Mutex::new(known), usage: Usage::default() })
    }

    /// Whether there are any.
    pub fn has_keys(&self) -> bool {
        !self.keys().keys.is_empty()
    }

    /// Judges a request by what its route asks for; `local` says that it comes from this machine and was meant for it.
    ///
    /// # Errors
    /// Why it may not go on.
    pub(crate) fn admit(
        &self,
        access: Access,
        headers: &HeaderMap,
        local: bool,
    ) -> Result<Pass, Refusal> {
        let keys = self.keys();
        let Access::Needs(scope) = access else { return Ok(Pass::default()) };
        if keys.keys.is_empty() {
            return match scope == Scope::Inference || local {
                true => Ok(Pass::default()),
                false => Err(refusal(403, KEYLESS)),
            };
        }
        let Some(secret) = secret(headers) else {
            return Err(refusal(
                401,
                "this server needs an API key, as `Authorization: Bearer KEY` or `x-api-key: KEY` (in PUNA_API_KEY for commands)",
            ));
        };
        let Some(key) = keys.find(secret) else {
            return Err(refusal(401, "this API key is not known here"));
        };
        if !key.may(scope) {
            let Key { name, .. } = key;
            return Err(refusal(
                403,
                format!(
                    "the API key {name:?} may not do this: it lacks the scope {}",
                    scope.name()
                ),
            ));
        }
        let permit = self.usage.begin(key, None, Instant::now());
        let permit = permit.map_err(|limit| {
            let Limit { said, retry_after } = exceeded(key, &limit);
            Refusal { retry_after: Some(retry_after), ..refusal(429, said) }
        })?;
        Ok(Pass { permit: Some(permit), client: number(key) })
    }

    /// Begins a request to the registry, of the holder of a key; of one that is gone there is nothing to count.
    ///
    /// # Errors
    /// The limit of the key that was reached.
    pub(crate) fn begin(&self, name: &str, part_of: Option<&str>) -> Result<Option<Permit>, Limit> {
        let keys = self.keys();
        let Some(key) = keys.keys.iter().find(|key| key.name == name) else { return Ok(None) };
        let permit = self.usage.begin(key, part_of, Instant::now());
        permit.map(Some).map_err(|limit| exceeded(key, &limit))
    }

    /// Looks at the file now.
    pub(crate) fn reload(&self) {
        let mut known = lock(&self.known);
        known.looked = Instant::now();
        known.look(&self.path);
    }

    /// The keys as the file has them now. A file that was broken since leaves them as they were.
    pub(crate) fn keys(&self) -> Arc<KeyFile> {
        let mut known = lock(&self.known);
        if known.looked.elapsed() >= LOOK {
            known.looked = Instant::now();
            known.look(&self.path);
        }
        Arc::clone(&known.keys)
    }
}

impl Known {
    /// Reads the file again if it has changed. One that is gone or broken opens no door: the keys stay as they were.
    fn look(&mut self, path: &Path) {
        let now = changed(path);
        if now == self.changed {
            return;
        }
        let read = match now {
            None => Err("it is gone".to_owned()),
            Some(_) => KeyFile::read(path).map_err(|e| e.to_string()),
        };
        match read {
            Ok(keys) => {
                if keys.keys.is_empty() != self.keys.keys.is_empty() {
                    let asked = if keys.keys.is_empty() { "nobody" } else { "everybody" };
                    tracing::warn!(path = %path.display(), "{asked} is asked for an API key from now on");
                }
                warn_of_readers(path);
                (self.keys, self.changed, self.refused) = (Arc::new(keys), now, None);
            }
            Err(error) if self.refused != Some(now) => {
                tracing::error!(path = %path.display(), "the file of API keys: {error}; the keys stay as they were");
                self.refused = Some(now);
            }
            Err(_) => {}
        }
    }
}

/// Says when others than its owner can read the file: it holds hashes alone, but also names and limits.
fn warn_of_readers(path: &Path) {
    if others_may_read(path) {
        tracing::warn!(path = %path.display(), "others may read the file of API keys: chmod 600 it");
    }
}

#[cfg(unix)]
pub(super) fn others_may_read(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|meta| meta.permissions().mode() & 0o077 != 0)
}

#[cfg(not(unix))]
pub(super) fn others_may_read(_: &Path) -> bool {
    false
}

fn changed(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|meta| meta.modified()).ok()
}

/// Half of the hash tells keys apart.
fn number(key: &Key) -> Option<u64> {
    u64::from_str_radix(key.hash.get(..16)?, 16).ok()
}

/// `Authorization: Bearer KEY`, or `x-api-key: KEY`.
fn secret(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, secret) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(secret.trim())
    });
    bearer.or_else(|| headers.get("x-api-key")?.to_str().ok().map(str::trim))
}

fn refusal(status: u16, message: impl Into<String>) -> Refusal {
    Refusal { failure: Failure::new(status, message), retry_after: None }
}

fn exceeded(key: &Key, limit: &Exceeded) -> Limit {
    let name = &key.name;
    let (most, retry_after) = match limit {
        Exceeded::Concurrent(most) => (format!("{most} at once"), 1),
        Exceeded::Rate(most, wait) => (format!("{most} a minute"), *wait),
    };
    let said = format!("too many requests with the API key {name:?}: {most} are allowed");
    Limit { said, retry_after }
}

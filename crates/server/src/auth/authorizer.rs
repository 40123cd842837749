//! Authentication and authorization: checks the API key of every request.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use axum::http::{HeaderMap, header};
use puna_mirror::RateLimit;

use super::caller::{Caller, ModelAccess};
use super::owner::ClientIdentity;
use super::rate_limits::{KeyUsage, LimitExceeded, RequestPermit};
use super::{Key, KeyError, KeyFile, RouteRequirement, Scope};
use crate::canonical::ApiError;
use crate::util::lock::lock;

/// Minimum interval between checks of the key file, which requests trigger.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// Error for remote clients that want more than inference from a server without keys.
const LOCAL_ONLY_ERROR: &str = "this server has no API keys, so this can only be done from its own machine: create one there with `puna key add`";

/// Checks API keys. Without keys, all clients may use the models, and only this machine may change
/// models or read metrics.
pub struct Authorizer {
    path: PathBuf,
    loaded: Mutex<LoadedKeys>,
    usage: KeyUsage,
}

struct LoadedKeys {
    keys: Arc<KeyFile>,
    modified: Option<SystemTime>,
    checked_at: Instant,
    /// Modification time of the file with the last logged error.
    last_error_modified: Option<Option<SystemTime>>,
}

/// Result of a successful authorization.
#[derive(Debug, Default)]
pub(crate) struct Authorization {
    /// Counts the request as running for its key until the response is sent.
    pub permit: Option<RequestPermit>,
    /// Client number of the key.
    pub client: Option<u64>,
    /// Identity of the key; `None` without keys.
    pub identity: Option<ClientIdentity>,
    /// What the caller may do with models.
    pub caller: Caller,
    /// Whether the caller may administer this server: a key with the scope `admin` for all
    /// namespaces, or without keys a request from this machine.
    pub may_administer: bool,
}

/// Denied access.
#[derive(Debug)]
pub struct AccessDenied {
    pub error: ApiError,
    /// Name of the API key, if the request has a valid one.
    pub key: Option<Box<str>>,
}

impl AccessDenied {
    fn of_key(self, key: &Key) -> Self {
        Self { key: Some(key.name.as_str().into()), ..self }
    }
}

impl Authorizer {
    /// Loads the keys.
    ///
    /// # Errors
    /// The key file exists but cannot be used: breaking it must not open the server.
    pub fn new(path: &Path) -> Result<Self, KeyError> {
        warn_of_readers(path);
        let loaded = LoadedKeys {
            modified: modified(path),
            keys: Arc::new(KeyFile::read(path)?),
            checked_at: Instant::now(),
            last_error_modified: None,
        };
        Ok(Self { path: path.to_owned(), loaded: Mutex::new(loaded), usage: KeyUsage::default() })
    }

    /// Whether there are keys.
    pub fn has_keys(&self) -> bool {
        !self.keys().keys.is_empty()
    }

    /// Authorizes a request. `local` states that the peer is a loopback address and `Host` names
    /// this machine.
    ///
    /// # Errors
    /// Why the access is denied.
    pub(crate) fn authorize(
        &self,
        requirement: RouteRequirement,
        headers: &HeaderMap,
        local: bool,
    ) -> Result<Authorization, AccessDenied> {
        let keys = self.keys();
        let RouteRequirement::Requires(scope, models) = requirement else {
            return Ok(Authorization::default());
        };
        if keys.keys.is_empty() {
            return match scope == Scope::Inference || local {
                true => Ok(Authorization { may_administer: local, ..Authorization::default() }),
                false => Err(denied(403, LOCAL_ONLY_ERROR)),
            };
        }
        let Some(secret) = secret(headers) else {
            return Err(denied(
                401,
                "this server needs an API key, as `Authorization: Bearer KEY` or `x-api-key: KEY` (in PUNA_API_KEY for commands)",
            ));
        };
        let Some(key) = keys.find(secret) else {
            return Err(denied(401, "unknown API key"));
        };
        if !key.may(scope) {
            let (name, scope) = (&key.name, scope.name());
            let message =
                format!("the API key {name:?} may not do this: it lacks the scope {scope}");
            return Err(denied(403, message).of_key(key));
        }
        let caller = Caller::new(&key.namespaces);
        if models == ModelAccess::Server {
            let checked = caller.check_server();
            checked.map_err(|error| denied(error.status, error.message).of_key(key))?;
        }
        let permit = self.usage.start_request(key, None, Instant::now());
        let permit = permit.map_err(|limit| {
            let RateLimit { message, retry_after } = limit_error(key, &limit);
            let error = ApiError { retry_after: Some(retry_after), ..ApiError::new(429, message) };
            AccessDenied { error, key: None }.of_key(key)
        })?;
        Ok(Authorization {
            permit: Some(permit),
            client: client_id(key),
            identity: Some(ClientIdentity::of_key(key)),
            caller,
            may_administer: key.may(Scope::Admin) && key.namespaces.is_empty(),
        })
    }

    /// Starts a request to the mirror for a key. Returns `None` if the key was removed since its
    /// authentication.
    ///
    /// # Errors
    /// The limit of the key that is exceeded.
    pub(crate) fn start_mirror_request(
        &self,
        name: &str,
        transfer_id: Option<&str>,
    ) -> Result<Option<RequestPermit>, RateLimit> {
        let keys = self.keys();
        let Some(key) = keys.keys.iter().find(|key| key.name == name) else { return Ok(None) };
        let permit = self.usage.start_request(key, transfer_id, Instant::now());
        permit.map(Some).map_err(|limit| limit_error(key, &limit))
    }

    /// Checks the key file now.
    pub(crate) fn reload(&self) {
        let mut loaded = lock(&self.loaded);
        loaded.checked_at = Instant::now();
        loaded.reload_if_changed(&self.path);
    }

    /// Returns the present keys. A file that became invalid leaves them unchanged. Without keys
    /// each call checks the file, so that the first key takes effect with the next request.
    pub(crate) fn keys(&self) -> Arc<KeyFile> {
        let mut loaded = lock(&self.loaded);
        if loaded.keys.keys.is_empty() || loaded.checked_at.elapsed() >= RELOAD_INTERVAL {
            loaded.checked_at = Instant::now();
            loaded.reload_if_changed(&self.path);
        }
        Arc::clone(&loaded.keys)
    }
}

impl LoadedKeys {
    /// Reloads the file if it has changed. A missing or invalid file leaves the keys unchanged, so
    /// that it grants no access.
    fn reload_if_changed(&mut self, path: &Path) {
        let now = modified(path);
        if now == self.modified {
            return;
        }
        let read = match now {
            None => Err("the file is missing".to_owned()),
            Some(_) => KeyFile::read(path).map_err(|e| e.to_string()),
        };
        match read {
            Ok(keys) => {
                if keys.keys.is_empty() != self.keys.keys.is_empty() {
                    let now_required = if keys.keys.is_empty() { "no longer" } else { "now" };
                    tracing::warn!(path = %path.display(), "requests {now_required} need an API key");
                }
                warn_of_readers(path);
                (self.keys, self.modified, self.last_error_modified) = (Arc::new(keys), now, None);
            }
            Err(error) if self.last_error_modified != Some(now) => {
                tracing::error!(path = %path.display(), error, "cannot read the key file; keys unchanged");
                self.last_error_modified = Some(now);
            }
            Err(_) => {}
        }
    }
}

/// Logs a warning if other users can read the file. It holds only hashes, but also names and
/// limits.
fn warn_of_readers(path: &Path) {
    if others_may_read(path) {
        tracing::warn!(path = %path.display(), "other users can read the key file: run `chmod 600` on it");
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

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|meta| meta.modified()).ok()
}

/// The first 64 bits of the hash identify a key.
fn client_id(key: &Key) -> Option<u64> {
    u64::from_str_radix(key.hash.get(..16)?, 16).ok()
}

/// Secret from `Authorization: Bearer KEY` or `x-api-key: KEY`.
fn secret(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, secret) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(secret.trim())
    });
    bearer.or_else(|| headers.get("x-api-key")?.to_str().ok().map(str::trim))
}

fn denied(status: u16, message: impl Into<String>) -> AccessDenied {
    AccessDenied { error: ApiError::new(status, message), key: None }
}

fn limit_error(key: &Key, limit: &LimitExceeded) -> RateLimit {
    let name = &key.name;
    let (max, retry_after) = match limit {
        LimitExceeded::Concurrent(max) => (format!("{max} concurrent requests"), 1),
        LimitExceeded::Rate(max, wait) => (format!("{max} a minute"), *wait),
    };
    let message = format!("too many requests with the API key {name:?}: {max} are allowed");
    RateLimit { message, retry_after }
}

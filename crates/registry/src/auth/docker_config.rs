//! Credentials of `docker login`, from Docker's `config.json`: stored in `auths`, or by a helper
//! named in `credHelpers` or `credsStore`.

use std::collections::HashMap;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::auth::credential_helper;
use crate::client::hosts::{Credentials, Secret, read_text};

/// Largest size of the file, in bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Docker Hub and the name that `config.json` uses for it.
const DOCKER_HUB: (&str, &str) = ("docker.io", "index.docker.io");
/// The name that credential helpers use for Docker Hub.
const DOCKER_HUB_SERVER: &str = "https://index.docker.io/v1/";

#[derive(Deserialize)]
struct ConfigFile {
    #[serde(default)]
    auths: HashMap<String, AuthEntry>,
    /// Helpers of individual hosts, then the helper of all other hosts.
    #[serde(default, rename = "credHelpers")]
    helpers: HashMap<String, String>,
    #[serde(default, rename = "credsStore")]
    helper: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct AuthEntry {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
    registrytoken: String,
}

/// The credentials for a host. `None`: the file does not exist or has no entry for the host.
///
/// # Errors
/// The file cannot be read or parsed. Messages never contain its text.
pub(crate) fn credentials(path: &Path, host: &str) -> Result<Option<Credentials>, String> {
    let text = match read_text(path, MAX_FILE_BYTES) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(format!("{}: {e}", path.display())),
    };
    // The parser's own message may quote the file.
    let file: ConfigFile = serde_json::from_str(&text).map_err(|e| {
        format!("{}, line {}: not a docker configuration", path.display(), e.line())
    })?;
    let host = if host.eq_ignore_ascii_case(DOCKER_HUB.0) { DOCKER_HUB.1 } else { host };
    let is_of_host = |key: &str| host_of_key(key).eq_ignore_ascii_case(host);
    let entry = file.auths.iter().find(|(key, _)| is_of_host(key));
    let host_helper = file.helpers.iter().find(|(key, _)| is_of_host(key)).map(|(_, name)| name);
    if let Some(name) = host_helper.or(Some(&file.helper)).filter(|name| !name.is_empty()) {
        // An empty entry tells the name under which the helper has the credentials.
        let server = match entry {
            Some((key, _)) => key,
            None if host == DOCKER_HUB.1 => DOCKER_HUB_SERVER,
            None => host,
        };
        if let Some(found) = credential_helper::get_credentials(name, server)? {
            return Ok(Some(found));
        }
    }
    let Some((_, auth)) = entry else { return Ok(None) };
    entry_credentials(auth)
        .map_err(|what| format!("{}: the entry of {host} {what}", path.display()))
}

/// The host of `https://host/v1/`, or of a bare host.
fn host_of_key(key: &str) -> &str {
    let key = key.split_once("://").map_or(key, |(_, rest)| rest);
    key.split_once('/').map_or(key, |(host, _)| host)
}

fn entry_credentials(auth: &AuthEntry) -> Result<Option<Credentials>, &'static str> {
    let secret = |text: &str| Secret::Text(text.to_owned());
    if !auth.registrytoken.is_empty() {
        return Ok(Some(Credentials::Token(secret(&auth.registrytoken))));
    }
    if !auth.identitytoken.is_empty() {
        return Ok(Some(Credentials::Refresh(secret(&auth.identitytoken))));
    }
    let basic = |user: &str, password: &str| Credentials::Basic {
        user: user.into(),
        password: secret(password),
    };
    if !auth.username.is_empty() {
        return Ok(Some(basic(&auth.username, &auth.password)));
    }
    if auth.auth.is_empty() {
        // A credential helper stores the secret of an entry without `auth`.
        return Ok(None);
    }
    let bytes = STANDARD.decode(auth.auth.trim()).map_err(|_| "is not base64")?;
    let text = String::from_utf8(bytes).map_err(|_| "is not UTF-8 text")?;
    let (user, password) = text.split_once(':').ok_or("lacks user and password")?;
    Ok(Some(basic(user, password.trim_end_matches('\0'))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_of_docker_login_are_found_by_host() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        assert_eq!(credentials(&path, "h").unwrap(), None);
        let text = r#"{"auths": {
            "https://index.docker.io/v1/": {"auth": "dXNlcjpwYTpzcw=="},
            "h:5000": {"username": "u", "password": "p"},
            "refresh.example": {"auth": "dTo=", "identitytoken": "idt"},
            "https://token.example": {"registrytoken": "rt"},
            "helper.example": {},
            "bad.example": {"auth": "c2VjcmV0"}
        }, "credHelpers": {"kept.example": "that-nobody-has"}}"#;
        std::fs::write(&path, text).unwrap();
        let of = |host: &str| credentials(&path, host).unwrap();
        let basic = |user: &str, password: &str| {
            Some(Credentials::Basic { user: user.into(), password: Secret::Text(password.into()) })
        };
        assert_eq!(of("docker.io"), basic("user", "pa:ss"));
        assert_eq!(of("H:5000"), basic("u", "p"));
        assert_eq!(of("h"), None);
        assert_eq!(of("helper.example"), None);
        let text = credentials(&path, "kept.example").unwrap_err();
        assert!(
            text.starts_with("docker-credential-that-nobody-has: it is not installed"),
            "{text}"
        );
        assert_eq!(of("refresh.example"), Some(Credentials::Refresh(Secret::Text("idt".into()))));
        assert_eq!(of("token.example"), Some(Credentials::Token(Secret::Text("rt".into()))));
        let text = credentials(&path, "bad.example").unwrap_err();
        assert!(text.ends_with("the entry of bad.example lacks user and password"), "{text}");
        std::fs::write(&path, r#"{"auths": {"h": {"auth": secret}}}"#).unwrap();
        let text = credentials(&path, "h").unwrap_err();
        assert!(text.ends_with("line 1: not a docker configuration"), "{text}");
    }
}

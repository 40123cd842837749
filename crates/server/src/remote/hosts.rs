//! Hosts of a remote model: the addresses in its config that the server's configuration allows.

use std::sync::OnceLock;

use puna_registry::HostPattern;
use reqwest::Url;

use crate::canonical::ApiError;
use crate::util::random_ids;

/// Largest number of hosts of one model.
const MAX_HOSTS: usize = 64;

/// Largest number of servers that a request may have passed through.
const MAX_HOPS: usize = 4;

/// API that a host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// OpenAI's dialect; the address ends with `/v1`.
    OpenAi,
    /// The dialect of Ollama and Puna.
    Ollama,
}

/// A server that runs a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Host {
    /// Base URL without a slash at its end; with `/v1` for OpenAI's dialect.
    pub(super) base: String,
    pub(super) protocol: Protocol,
    /// API key for the host, which no message may contain, not even in part.
    pub(super) key: Option<String>,
}

/// A host that the configuration allows: `[scheme://]name[:port]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AllowedHost {
    scheme: Option<String>,
    /// `None`: the setting is no address, and nothing matches it.
    host: Option<HostPattern>,
    key: Option<String>,
}

impl AllowedHost {
    /// Reads the two settings: names of hosts, and names with API keys. Hosts with keys come first.
    pub(super) fn all(names: &[String], keys: &[(String, String)]) -> Vec<Self> {
        let keyed = keys.iter().map(|(name, key)| Self::new(name, Some(key.clone())));
        keyed.chain(names.iter().map(|name| Self::new(name, None))).collect()
    }

    fn new(name: &str, key: Option<String>) -> Self {
        let name = name.trim().to_ascii_lowercase();
        let scheme = name.split_once("://").map(|(scheme, _)| scheme.to_owned());
        Self { scheme, host: HostPattern::of_machine(&name), key }
    }

    fn allows(&self, url: &Url) -> bool {
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default().unwrap_or_default();
        let Some(pattern) = self.host.as_ref().filter(|own| own.matches(host, port)) else {
            return false;
        };
        // Only a setting with the scheme http sends a key in plain text.
        let default_scheme = self.key.as_ref().map(|_| "https");
        let scheme = self.scheme.as_deref().or(default_scheme);
        // A name without a port allows all ports of a machine. With a key it allows only the
        // default port: a stranger's model must not choose which program gets the key.
        let is_own = self.key.is_none() || pattern.port().is_some() || url.port().is_none();
        scheme.is_none_or(|scheme| scheme == url.scheme()) && is_own
    }
}

/// Parses a config's `remote_host`: allowed hosts separated by commas.
pub(super) fn parse_hosts(text: &str, allowed: &[AllowedHost]) -> Result<Vec<Host>, ApiError> {
    let parts: Vec<&str> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    if parts.is_empty() || parts.len() > MAX_HOSTS {
        return Err(ApiError::bad_request(format!(
            "a remote model must have between 1 and {MAX_HOSTS} hosts"
        )));
    }
    parts.into_iter().map(|part| parse_host(part, allowed)).collect()
}

fn parse_host(text: &str, all_allowed: &[AllowedHost]) -> Result<Host, ApiError> {
    let wrong = || {
        // The part before the @ is a password.
        let shown = match (text.find("://"), text.rfind('@')) {
            (Some(scheme), Some(at)) if scheme < at => {
                format!("{}…{}", &text[..scheme + 3], &text[at..])
            }
            _ => text.to_owned(),
        };
        ApiError::bad_request(format!(
            "bad remote {shown:?}: use an address such as https://host:8000/v1, without a query, a fragment (#) or the path segments . and .., and PUNA_REMOTE_KEYS for keys"
        ))
    };
    let url = Url::parse(text).map_err(|_| wrong())?;
    let has_user = !url.username().is_empty() || url.password().is_some();
    let has_suffix = url.query().is_some() || url.fragment().is_some();
    let is_http = matches!(url.scheme(), "http" | "https") && url.host_str().is_some();
    if !is_http || has_user || has_suffix || !has_plain_path(text) {
        return Err(wrong());
    }
    // The first match counts: hosts with keys come first.
    let Some(allowed) = all_allowed.iter().find(|allowed| allowed.allows(&url)) else {
        let shown = url.origin().ascii_serialization();
        return Err(ApiError::bad_request(format!(
            "this server cannot run this remote model: {shown} is not allowed; set PUNA_REMOTES={shown} on the server to allow it"
        )));
    };
    let base = text.trim_end_matches('/');
    let (base, protocol) = match base.strip_suffix("/api") {
        Some(base) => (base, Protocol::Ollama),
        None if base.ends_with("/v1") => (base, Protocol::OpenAi),
        None => (base, Protocol::Ollama),
    };
    Ok(Host { base: base.to_owned(), protocol, key: allowed.key.clone() })
}

/// Whether the path of a URL's text stays as it is when the URL is parsed: it has no segments `.`
/// and `..`, also in percent-encoding, no backslash and no characters that parsers remove.
fn has_plain_path(text: &str) -> bool {
    let is_dots = |segment: &str| matches!(&*segment.replace("%2e", "."), "." | "..");
    let text = text.to_ascii_lowercase();
    !text.contains(|c: char| c == '\\' || c.is_control()) && !text.split('/').any(is_dots)
}

/// Returns the random name of this server in the `Via` header of its requests.
pub(super) fn server_id() -> &'static str {
    static SERVER_ID: OnceLock<String> = OnceLock::new();
    SERVER_ID.get_or_init(|| random_ids::hex("puna_"))
}

/// Refuses a request that has passed through this server before, or through too many servers.
pub(super) fn check_loop(via: &[String], model: &str) -> Result<(), ApiError> {
    if via.iter().any(|server| server == server_id()) || via.len() > MAX_HOPS {
        return Err(ApiError::new(
            508,
            format!(
                "the remote model {model} forwards back to this server, or through too many servers"
            ),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::client::Remotes;
    use super::*;
    use crate::config::Config;
    use crate::util::shutdown::ShutdownSignal;

    fn remotes(names: &str, keys: &str) -> std::sync::Arc<Remotes> {
        let config = Config::from_variables(|name| match name {
            "OLLAMA_MODELS" => Some("/tmp".into()),
            "PUNA_REMOTES" => Some(names.into()),
            "PUNA_REMOTE_KEYS" => Some(keys.into()),
            _ => None,
        });
        Remotes::new(&config.unwrap(), ShutdownSignal::default())
    }

    #[test]
    fn only_configured_hosts_are_allowed_and_each_gets_its_own_key() {
        let remotes = remotes(
            "gpu1:8000,https://far.example",
            "https://api.example=k=1,keyed.example:8000=k-2,http://plain.example:8000=k-3",
        );
        let hosts = remotes
            .hosts("http://gpu1:8000/v1, http://gpu1:8000/api,https://api.example/open/v1/")
            .unwrap();
        let shown: Vec<_> =
            hosts.iter().map(|h| (h.base.as_str(), h.protocol, h.key.as_deref())).collect();
        assert_eq!(
            shown,
            [
                ("http://gpu1:8000/v1", Protocol::OpenAi, None),
                ("http://gpu1:8000", Protocol::Ollama, None),
                ("https://api.example/open/v1", Protocol::OpenAi, Some("k=1")),
            ]
        );
        for (allowed, key) in
            [("https://keyed.example:8000/v1", "k-2"), ("http://plain.example:8000/v1", "k-3")]
        {
            assert_eq!(remotes.hosts(allowed).unwrap()[0].key.as_deref(), Some(key), "{allowed}");
        }
        for other in [
            "https://api.example:8443/v1",
            "http://gpu1/v1",
            "http://gpu1:8001/v1",
            "http://far.example/v1",
            "http://api.example/v1",
            "https://gpu1.evil.example/v1",
            "http://keyed.example:8000/v1",
        ] {
            let error = remotes.check(other).unwrap_err();
            assert!(
                error.status == 400 && error.message.contains("is not allowed"),
                "{other}: {error}"
            );
        }
        for bad in [
            "",
            "gpu1:8000",
            "https://u:p@far.example/v1",
            "ftp://far.example",
            "https://far.example/v1?x",
            "https://far.example/v1?",
            "https://far.example/x#/v1",
            "https://far.example/v1#",
            "https://far.example/a/../../b/v1",
            "https://far.example/a/./v1",
            "https://far.example/a/%2E%2e/v1",
            "https://far.example/a/.%2e/v1",
            "https://far.example/a\\..\\v1",
            "https://far.example/a/.\t./v1",
        ] {
            let error = remotes.check(bad).unwrap_err();
            assert_eq!(error.status, 400, "{bad}");
            assert!(bad.is_empty() || error.message.contains("use an address such as"), "{bad}");
        }
        assert!(remotes.check("https://far.example/a.b/..c/v1.2/v1").is_ok());
    }

    #[test]
    fn a_request_loop_is_refused() {
        assert!(check_loop(&["other".into()], "m").is_ok());
        assert_eq!(check_loop(&["other".into(), server_id().into()], "m").unwrap_err().status, 508);
        assert!(check_loop(&vec!["other".to_owned(); MAX_HOPS + 1], "m").is_err());
    }
}

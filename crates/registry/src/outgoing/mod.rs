//! Which hosts the server contacts for its clients: the one policy of pulls, pushes, upstream
//! registries and images by URL.
//!
//! A client must not reach the server's network through the server (SSRF). A request without
//! administrator rights reaches public addresses only, and hosts that the configuration names. The
//! policy resolves a host once and returns its addresses. The connection goes to exactly these, so
//! a DNS server cannot substitute others between the check and the connection (DNS rebinding).

mod host_pattern;
mod public_address;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use reqwest::Url;

pub use host_pattern::HostPattern;

/// Time limit for the resolution of a host name.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Resolves a host name and a port to addresses.
pub type Resolver =
    Arc<dyn Fn(String, u16) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync>;

/// Rights of the caller that makes the server send requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OutgoingAccess {
    /// The policy decides, and errors contain no text of other hosts.
    #[default]
    Limited,
    /// An administrator: every host, with complete errors.
    Unlimited,
}

/// Why the policy refuses a host. Only the log shows it: a caller must not learn about the server's
/// network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OutgoingRefusal {
    /// The setting `outgoing_hosts` does not contain the host.
    #[error("it is not in the setting outgoing_hosts")]
    NotListed,
    /// An address is loopback, private, link-local or reserved.
    #[error("it has an address that is not public")]
    NotPublic,
    /// The host name has no address, or the resolution took too long.
    #[error("its name cannot be resolved")]
    Unresolved,
    /// The URL has no host or no port.
    #[error("it has no host")]
    NoHost,
}

/// A host that the policy allows, with its checked addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// Host of the URL.
    pub host: String,
    /// Addresses for the connection. Empty for a host of the configuration that only a proxy can
    /// resolve.
    pub addresses: Vec<SocketAddr>,
}

/// Policy of outgoing requests. Cheap to clone.
#[derive(Clone)]
pub struct OutgoingPolicy(Arc<Rules>);

struct Rules {
    /// Hosts of the configuration, which may have any address.
    named: Vec<HostPattern>,
    /// Whether requests may name only hosts of the configuration.
    named_only: bool,
    resolver: Resolver,
}

impl fmt::Debug for OutgoingPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutgoingPolicy")
            .field("named", &self.0.named)
            .field("named_only", &self.0.named_only)
            .finish_non_exhaustive()
    }
}

impl OutgoingPolicy {
    /// Makes a policy that allows public addresses and the named hosts.
    pub fn new(named: Vec<HostPattern>) -> Self {
        Self(Arc::new(Rules { named, named_only: false, resolver: Arc::new(resolve_by_system) }))
    }

    /// Limits requests to hosts of the configuration, if `named_only` is true. Their redirects may
    /// still lead to other public addresses.
    #[must_use]
    pub fn with_named_only(self, named_only: bool) -> Self {
        let Rules { named, resolver, .. } = &*self.0;
        let (named, resolver) = (named.clone(), resolver.clone());
        Self(Arc::new(Rules { named, named_only, resolver }))
    }

    /// Replaces the resolver of the system.
    #[must_use]
    pub fn with_resolver(self, resolver: Resolver) -> Self {
        let Rules { named, named_only, .. } = &*self.0;
        Self(Arc::new(Rules { named: named.clone(), named_only: *named_only, resolver }))
    }

    /// Whether the configuration names the host and port of a URL.
    pub fn names(&self, url: &Url) -> bool {
        let (host, port) = (url.host_str().unwrap_or_default(), url.port_or_known_default());
        port.is_some_and(|port| self.0.named.iter().any(|named| named.matches(host, port)))
    }

    /// Checks a host that a request names, and resolves the URL that serves it.
    ///
    /// # Errors
    /// The policy refuses the host.
    pub async fn resolve_requested(
        &self,
        requested: &Url,
        url: &Url,
    ) -> Result<Destination, OutgoingRefusal> {
        if self.0.named_only && !self.names(requested) {
            return Err(OutgoingRefusal::NotListed);
        }
        self.resolve(url).await
    }

    /// Checks a URL that may come from a redirect, and resolves its host.
    ///
    /// # Errors
    /// The policy refuses the host.
    pub async fn resolve(&self, url: &Url) -> Result<Destination, OutgoingRefusal> {
        let host = url.host_str().ok_or(OutgoingRefusal::NoHost)?;
        let port = url.port_or_known_default().ok_or(OutgoingRefusal::NoHost)?;
        let addresses = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) => self.look_up(host, port).await,
        };
        if !self.names(url) {
            if addresses.is_empty() {
                return Err(OutgoingRefusal::Unresolved);
            }
            if !addresses.iter().all(|address| public_address::is_public(*address)) {
                return Err(OutgoingRefusal::NotPublic);
            }
        }
        let addresses = addresses.into_iter().map(|address| SocketAddr::new(address, port));
        Ok(Destination { host: host.to_owned(), addresses: addresses.collect() })
    }

    /// The addresses of a host name; empty if it cannot be resolved in time.
    async fn look_up(&self, host: &str, port: u16) -> Vec<IpAddr> {
        let found = (self.0.resolver)(host.to_owned(), port);
        match tokio::time::timeout(RESOLVE_TIMEOUT, found).await {
            Ok(Ok(addresses)) => addresses,
            Ok(Err(_)) | Err(_) => Vec::new(),
        }
    }
}

fn resolve_by_system(host: String, port: u16) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
    Box::pin(async move {
        let found = tokio::net::lookup_host((host, port)).await?;
        Ok(found.map(|socket| socket.ip()).collect())
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    /// A policy with names that end in `.test`. `changing.test` has another address each time.
    fn policy(named: &[&str]) -> OutgoingPolicy {
        let count = AtomicUsize::new(0);
        let resolver: Resolver = Arc::new(move |host, _| {
            let (public, loopback): (IpAddr, IpAddr) =
                ([93, 184, 215, 14].into(), [127, 0, 0, 1].into());
            let found = match host.as_str() {
                "public.test" => Ok(vec![public]),
                "mixed.test" => Ok(vec![public, loopback]),
                "changing.test" if count.fetch_add(1, Ordering::Relaxed) == 0 => Ok(vec![public]),
                "empty.test" => Ok(Vec::new()),
                "absent.test" => Err(io::ErrorKind::NotFound.into()),
                _ => Ok(vec![loopback]),
            };
            Box::pin(async move { found })
        });
        let named = named.iter().flat_map(|text| HostPattern::of_registry(text)).collect();
        OutgoingPolicy::new(named).with_resolver(resolver)
    }

    #[tokio::test]
    async fn only_public_addresses_and_named_hosts_are_allowed() {
        let policy = policy(&["office.test:5000", "192.168.1.5:5000", "absent.test"]);
        for good in [
            "https://public.test/",
            "http://8.8.8.8:1/",
            "http://office.test:5000/",
            "http://192.168.1.5:5000/v2/",
            "https://absent.test/",
        ] {
            assert!(policy.resolve(&url(good)).await.is_ok(), "{good}");
        }
        for (bad, why) in [
            ("http://127.0.0.1/", OutgoingRefusal::NotPublic),
            ("http://2130706433/", OutgoingRefusal::NotPublic),
            ("http://[::1]/", OutgoingRefusal::NotPublic),
            ("http://[::ffff:10.0.0.1]/", OutgoingRefusal::NotPublic),
            ("http://169.254.169.254/latest", OutgoingRefusal::NotPublic),
            ("http://office.test/", OutgoingRefusal::NotPublic),
            ("http://192.168.1.5:5001/", OutgoingRefusal::NotPublic),
            ("https://mixed.test/", OutgoingRefusal::NotPublic),
            ("https://inside.test/", OutgoingRefusal::NotPublic),
            ("https://empty.test/", OutgoingRefusal::Unresolved),
            ("https://absent.test:8443/", OutgoingRefusal::Unresolved),
            ("data:text", OutgoingRefusal::NoHost),
        ] {
            assert_eq!(policy.resolve(&url(bad)).await.unwrap_err(), why, "{bad}");
        }
    }

    #[tokio::test]
    async fn a_check_returns_the_addresses_for_the_connection() {
        let policy = policy(&[]);
        let checked = policy.resolve(&url("https://changing.test/")).await.unwrap();
        assert_eq!(checked.addresses, ["93.184.215.14:443".parse().unwrap()]);
        let again = policy.resolve(&url("https://changing.test/")).await;
        assert_eq!(again, Err(OutgoingRefusal::NotPublic));
    }

    #[tokio::test]
    async fn a_list_of_hosts_applies_to_requests_and_not_to_redirects() {
        let policy = policy(&["office.test:5000"]).with_named_only(true);
        let (public, office) = (url("https://public.test/"), url("http://office.test:5000/"));
        let requested = policy.resolve_requested(&public, &public).await;
        assert_eq!(requested, Err(OutgoingRefusal::NotListed));
        assert!(policy.resolve_requested(&office, &office).await.is_ok());
        assert!(policy.resolve(&url("https://public.test/")).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_resolver_ends_like_an_unknown_name() {
        let silent: Resolver = Arc::new(|_, _| Box::pin(std::future::pending()));
        let policy = OutgoingPolicy::new(Vec::new()).with_resolver(silent);
        let refused = policy.resolve(&url("https://slow.test/")).await;
        assert_eq!(refused, Err(OutgoingRefusal::Unresolved));
    }
}

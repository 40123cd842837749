//! HTTP clients: timeouts, TLS, proxies and checked addresses.

use std::net::IpAddr;
use std::time::Duration;

use reqwest::{Client, NoProxy, Proxy, Url};
use rustls::ClientConfig;

use crate::client::endpoint::Endpoint;
use crate::client::settings::{Settings, strip_user_info};
use crate::client::tls;
use crate::display::{root_cause, single_line};
use crate::error::{RegistryError, SetupProblem};
use crate::outgoing::Destination;

/// Timeout of a TCP or TLS connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Connect timeout for a mirror. It is short because other endpoints can serve the request.
const MIRROR_CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// Largest part of a proxy's address that messages show, in characters.
const MAX_PROXY_CHARS: usize = 200;
/// Loopback addresses, which never use a proxy.
const LOOPBACK_HOSTS: &str = "localhost,127.0.0.0/8,::1";

/// Makes the HTTP client for an endpoint. It follows no redirects: a session does, because it knows
/// which hosts may see credentials. With a destination, it connects only to its addresses.
pub(crate) fn registry_client(
    settings: &Settings,
    endpoint: &Endpoint,
    tls: ClientConfig,
    destination: Option<&Destination>,
) -> Result<Client, RegistryError> {
    let connect_timeout =
        if endpoint.mirror_of.is_some() { MIRROR_CONNECT_TIMEOUT } else { CONNECT_TIMEOUT };
    build_client(settings, tls, connect_timeout, destination)
}

/// Makes an HTTP client for a host that is not a registry, such as an object store of a mirror.
pub(crate) fn client_for_host(settings: &Settings, host: &str) -> Result<Client, RegistryError> {
    let ca = settings.hosts.get(host).and_then(|host| host.ca.clone());
    build_client(settings, tls::config_with(ca.as_deref())?, CONNECT_TIMEOUT, None)
}

fn build_client(
    settings: &Settings,
    tls: ClientConfig,
    connect_timeout: Duration,
    destination: Option<&Destination>,
) -> Result<Client, RegistryError> {
    let setup = |e: reqwest::Error| SetupProblem::Client { reason: root_cause(&e) };
    let mut builder = Client::builder()
        .user_agent(&settings.user_agent)
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(connect_timeout)
        .tcp_keepalive(Duration::from_secs(30))
        .tls_backend_preconfigured(tls)
        .no_proxy();
    // Without addresses, only a proxy can resolve the host.
    if let Some(Destination { host, addresses }) = destination
        && !addresses.is_empty()
    {
        builder = builder.resolve_to_addrs(host, addresses);
    }
    let direct = format!("{LOOPBACK_HOSTS},{}", settings.proxies.direct);
    let direct = || NoProxy::from_string(&direct);
    if let Some(proxy) = &settings.proxies.http {
        let to = Proxy::http(proxy).map_err(|e| invalid_proxy("HTTP_PROXY", proxy, &e))?;
        builder = builder.proxy(to.no_proxy(direct()));
    }
    if let Some(proxy) = &settings.proxies.https {
        let to = Proxy::https(proxy).map_err(|e| invalid_proxy("HTTPS_PROXY", proxy, &e))?;
        builder = builder.proxy(to.no_proxy(direct()));
    }
    Ok(builder.build().map_err(setup)?)
}

/// Error of an invalid proxy address. The message shows no user or password.
fn invalid_proxy(variable: &'static str, proxy: &str, error: &reqwest::Error) -> RegistryError {
    let proxy = single_line(strip_user_info(proxy), MAX_PROXY_CHARS);
    RegistryError::Proxy { variable, proxy, cause: root_cause(error) }
}

/// Whether the URL's host is a loopback address, which no proxy serves.
fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Adds the proxy to an error of a failed connect, since the proxy may be the cause.
pub(crate) fn with_proxy_hint(
    settings: &Settings,
    error: RegistryError,
    url: &Url,
    sent: &reqwest::Error,
) -> RegistryError {
    let proxies = &settings.proxies;
    let (variable, proxy) = match url.scheme() {
        "https" => ("HTTPS_PROXY", &proxies.https),
        _ => ("HTTP_PROXY", &proxies.http),
    };
    match (error, proxy) {
        (RegistryError::Transport { method, url: shown, cause }, Some(proxy))
            if sent.is_connect() && !is_loopback(url) =>
        {
            let proxy = single_line(strip_user_info(proxy), MAX_PROXY_CHARS);
            let cause = format!(
                "{cause} (through the proxy {proxy} of {variable}; NO_PROXY excludes hosts)"
            );
            RegistryError::Transport { method, url: shown, cause }
        }
        (error, _) => error,
    }
}

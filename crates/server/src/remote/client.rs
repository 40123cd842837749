//! State of the remote servers: the HTTP client, the allowed hosts, their load, and cached
//! descriptions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use reqwest::Client;
use reqwest::redirect::Policy;

use super::description_cache::Descriptions;
use super::hosts::{self, AllowedHost, Host};
use crate::canonical::ApiError;
use crate::config::Config;
use crate::util::lock::lock;
use crate::util::shutdown::ShutdownSignal;

/// Time limit for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// State of the remote servers: allowed hosts, load of each host, and descriptions of models.
pub(crate) struct Remotes {
    http: Option<Client>,
    allowed: Vec<AllowedHost>,
    /// Time for which a server may send nothing; `None` is no limit.
    pub(super) silence_timeout: Option<Duration>,
    load: Mutex<HashMap<String, HostLoad>>,
    /// Descriptions of models, from their servers.
    pub(super) descriptions: Descriptions,
    /// Shutdown of this server, which ends the requests.
    pub(super) end: ShutdownSignal,
}

/// Load of a host: running requests, and until when it counts as unreachable.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HostLoad {
    pub(super) running: usize,
    pub(super) unreachable_until: Option<Instant>,
}

impl Remotes {
    pub(crate) fn new(config: &Config, end: ShutdownSignal) -> Arc<Self> {
        let allowed = AllowedHost::all(&config.remotes, &config.remote_keys.0);
        let http = if allowed.is_empty() { None } else { client() };
        Arc::new(Self {
            http,
            allowed,
            silence_timeout: config.remote_timeout,
            load: Mutex::default(),
            descriptions: Descriptions::default(),
            end,
        })
    }

    /// HTTP client; `None` if there are no remotes or the client could not be created.
    pub(super) fn http(&self) -> Option<&Client> {
        self.http.as_ref()
    }

    /// Checks that a config may name these hosts.
    pub(crate) fn check(&self, text: &str) -> Result<(), ApiError> {
        self.hosts(text).map(drop)
    }

    /// Parses a config's `remote_host`: hosts separated by commas.
    pub(super) fn hosts(&self, text: &str) -> Result<Vec<Host>, ApiError> {
        hosts::parse_hosts(text, &self.allowed)
    }

    /// Returns hosts in the order in which they are tried: reachable hosts first, then the least
    /// busy.
    pub(super) fn order<'a>(&self, hosts: &'a [Host]) -> Vec<&'a Host> {
        let (now, load) = (Instant::now(), lock(&self.load));
        let mut order: Vec<&Host> = hosts.iter().collect();
        order.sort_by_key(|host| {
            let load = load.get(&host.base).copied().unwrap_or_default();
            (load.unreachable_until.is_some_and(|until| until > now), load.running)
        });
        order
    }

    pub(super) fn update_load(&self, base: &str, with: impl FnOnce(&mut HostLoad)) {
        with(lock(&self.load).entry(base.to_owned()).or_default());
    }
}

fn client() -> Option<Client> {
    let tls = puna_registry::tls_config().map_err(|error| error.to_string());
    let made = tls.and_then(|tls| {
        let builder = Client::builder().user_agent(concat!("puna/", env!("CARGO_PKG_VERSION")));
        // A redirect could lead to a server of a stranger, which must not get the prompt or the
        // key.
        let builder = builder.redirect(Policy::none()).no_proxy().connect_timeout(CONNECT_TIMEOUT);
        builder.tls_backend_preconfigured(tls).build().map_err(|error| error.to_string())
    });
    made.inspect_err(|error| tracing::error!(%error, "cannot set up connections to remote servers"))
        .ok()
}

//! The client of the model registry protocol: pulls models into a [`Store`](puna_store::Store) and pushes them out of
//! it, as Ollama does, to registries that serve Ollama's clients and to those that follow the OCI distribution rules.
//!
//! Names and digests are parsed types from the first byte of an answer on; nothing that a registry says becomes a path
//! or part of an address as text. Whatever it answers is bounded: manifests, tokens, errors, redirects, time.
//!
//! ```no_run
//! # async fn pull() -> Result<(), puna_registry::RegistryError> {
//! use std::sync::Arc;
//! use puna_registry::{Options, Registry, Settings};
//! use puna_store::{ModelRef, Store};
//! let store = Arc::new(Store::open("/home/me/.ollama/models")?);
//! let registry = Registry::new(Settings::default());
//! let (report, mut lines) = tokio::sync::mpsc::channel(16);
//! let name = ModelRef::parse("llama3.2:1b").expect("a name");
//! let pull = async { registry.pull(&store, &name, &Options::default(), report).await };
//! let show = async {
//!     while let Some(line) = lines.recv().await {
//!         println!("{} {}/{}", line.status, line.completed, line.total);
//!     }
//! };
//! let (pulled, ()) = tokio::join!(pull, show);
//! pulled
//! # }
//! ```
//!
//! A download is cut into parts that several connections fetch at once. What has arrived is noted
//! beside the data in Ollama's format every two seconds, so that it goes on after a crash, here or there. Its digest is
//! computed while it arrives, and only a blob whose digest is right gets its name.

#![forbid(unsafe_code)]

mod address;
mod announced;
mod auth;
mod blocking;
mod bundle;
mod descriptor;
mod direct;
mod docker;
mod download;
mod endpoint;
mod error;
mod fetch;
mod file;
mod growth;
mod helper;
mod hosts;
mod http;
mod hub;
mod key;
mod lock;
mod manifest;
mod pace;
mod packaging;
mod parts;
mod pull;
mod push;
mod rate;
mod retry;
mod settings;
mod share;
mod space;
mod sum;
mod tar;
#[cfg(test)]
mod tests;
mod through;
mod tls;
mod upload;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

pub use address::hide;
pub use announced::{Announced, Announcement, MIRROR_SERVICE, announce, announced};
pub use bundle::write_bundle;
pub use direct::FileUrl;
use endpoint::Endpoint;
pub use error::RegistryError;
pub use hosts::{Credentials, Host, Hosts, Secret};
pub use http::root_cause;
pub use key::{Identity, KeyError, NO_BODY, public_key};
use lock::lock;
pub use packaging::{DetectTemplate, Format};
use rate::Limit;
pub use settings::{Options, Progress, Proxies, Report, Settings, WAITING};
pub use sum::{Saved as SavedSum, Sum};
pub use through::{Found, FoundBlob, Kept, Running, TagContent};
pub use tls::config as tls_config;

/// A client of registries. Cheap to clone; clones share running downloads.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

struct Inner {
    settings: Settings,
    /// Made when they are first needed, since that reads the system's certificates: by further certificates, and
    /// whether they go to a mirror.
    clients: Mutex<HashMap<(Option<PathBuf>, bool), reqwest::Client>>,
    downloads: Arc<share::Downloads>,
    limit: Option<Arc<Limit>>,
    /// The limits of single hosts.
    limits: Mutex<HashMap<String, Arc<Limit>>>,
}

impl Registry {
    /// A client with settings. Nothing is opened yet.
    pub fn new(settings: Settings) -> Self {
        let limit = settings.limit_rate.map(|rate| Arc::new(Limit::new(rate)));
        let (clients, limits, downloads) = Default::default();
        Self(Arc::new(Inner { settings, clients, downloads, limit, limits }))
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.0.settings
    }

    pub(crate) fn downloads(&self) -> &Arc<share::Downloads> {
        &self.0.downloads
    }

    /// The connections of all operations with registries of a kind.
    pub(crate) fn client(&self, endpoint: &Endpoint) -> Result<reqwest::Client, RegistryError> {
        let kind = (endpoint.settings.ca.clone(), endpoint.mirror_of.is_some());
        let mut clients = lock(&self.0.clients);
        if let Some(client) = clients.get(&kind) {
            return Ok(client.clone());
        }
        let client = http::client(&self.0.settings, endpoint)?;
        clients.insert(kind, client.clone());
        Ok(client)
    }

    /// Connections to a host that is no registry, with the proxies, and the certificates that are set for the host.
    ///
    /// # Errors
    /// The certificates cannot be used.
    pub fn connections(&self, host: &str) -> Result<reqwest::Client, RegistryError> {
        http::client_of_host(&self.0.settings, host)
    }

    /// The limits of speed of an operation.
    pub(crate) fn limits(&self, options: &Options) -> Vec<Arc<Limit>> {
        let own = options.limit_rate.map(|rate| Arc::new(Limit::new(rate)));
        own.into_iter().chain(self.0.limit.clone()).collect()
    }

    /// The limit of what comes from and goes to a host.
    pub(crate) fn limit_of(&self, endpoint: &Endpoint) -> Option<Arc<Limit>> {
        let rate = endpoint.settings.limit_rate?;
        let mut limits = lock(&self.0.limits);
        let limit =
            limits.entry(endpoint.host.clone()).or_insert_with(|| Arc::new(Limit::new(rate)));
        Some(limit.clone())
    }
}

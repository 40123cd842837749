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
mod auth;
mod blocking;
mod download;
mod error;
mod fetch;
mod http;
mod key;
mod lock;
mod md5;
mod parts;
mod pull;
mod push;
mod retry;
mod settings;
mod share;
mod space;
#[cfg(test)]
mod tests;
mod tls;
mod upload;

use std::sync::{Arc, OnceLock};

pub use error::RegistryError;
pub use http::root_cause;
pub use key::{Identity, KeyError};
pub use settings::{Options, Progress, Proxies, Report, Settings};
pub use tls::config as tls_config;

/// A client of registries. Cheap to clone; clones share running downloads.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

struct Inner {
    settings: Settings,
    /// Made when it is first needed, since that reads the system's certificates.
    client: OnceLock<reqwest::Client>,
    downloads: Arc<share::Downloads>,
}

impl Registry {
    /// A client with settings. Nothing is opened yet.
    pub fn new(settings: Settings) -> Self {
        Self(Arc::new(Inner { settings, client: OnceLock::new(), downloads: Arc::default() }))
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.0.settings
    }

    pub(crate) fn downloads(&self) -> &Arc<share::Downloads> {
        &self.0.downloads
    }

    /// The connections of all operations.
    pub(crate) fn client(&self) -> Result<&reqwest::Client, RegistryError> {
        if self.0.client.get().is_none() {
            // Another thread may be faster; then this one is dropped.
            let _ = self.0.client.set(http::client(&self.0.settings)?);
        }
        Ok(self.0.client.get().expect("set above"))
    }
}

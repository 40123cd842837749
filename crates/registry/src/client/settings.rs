//! Settings of the client, options of an operation, and progress reports.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use puna_store::{AdmissionGuard, Digest, JobExecutor, ModelAdmission, NewModel, StoreError};
use reqwest::Url;
use tokio::sync::mpsc;

use crate::blocking::blocking;
use crate::client::hosts::Hosts;
use crate::error::RegistryError;
use crate::outgoing::{OutgoingAccess, OutgoingPolicy};
use crate::packaging::{Format, TemplateDetector};

/// Settings of a client. Tests change the times; the defaults suit real networks.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The `User-Agent` header. Some registries answer differently to names that do not begin with
    /// `ollama/`.
    pub user_agent: String,
    /// File of the client's private key, created when a registry first asks for authentication.
    /// `None`: no key.
    pub key_file: Option<PathBuf>,
    /// Largest number of concurrent connections of one download.
    pub streams: usize,
    /// Address that replaces Ollama's registry.
    pub default_registry: Option<String>,
    /// Mirrors that are tried before the default registry.
    pub mirrors: Vec<String>,
    /// Settings of individual hosts.
    pub hosts: Hosts,
    /// Docker's `config.json` with credentials of `docker login`.
    pub docker_config: Option<PathBuf>,
    /// Recognizes the chat templates that packages bring.
    pub detect_template: Option<Arc<dyn TemplateDetector>>,
    /// Runs conversions of packages and joins of split files. `None` runs them in this process.
    pub executor: Option<Arc<dyn JobExecutor>>,
    /// Limit of all pulls and pushes together, in bytes per second.
    pub limit_rate: Option<u64>,
    /// Proxies for requests to registries.
    pub proxies: Proxies,
    /// Policy for operations with [`OutgoingAccess::Limited`]. `None`: they may reach every host.
    pub outgoing: Option<OutgoingPolicy>,
    /// How long a connection may deliver nothing before it is closed and the request retried.
    pub stall_timeout: Duration,
    /// Delay before the second attempt; it doubles for each further attempt.
    pub retry_delay: Duration,
    /// Time between two checkpoints of a download's progress on disk.
    pub checkpoint_interval: Duration,
    /// Time between two progress reports.
    pub progress_interval: Duration,
    /// Time without progress after which a report names the cause of the wait.
    pub waiting_notice_delay: Duration,
    /// How long another process that downloads the same blob may make no progress before a report
    /// says so. The download waits no longer than this for a stopped process, and no longer than
    /// 20 times this for a running one.
    pub lock_holder_timeout: Duration,
    /// Smallest range of a download in bytes, except for the last one.
    pub min_range_bytes: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            user_agent: concat!("puna/", env!("CARGO_PKG_VERSION")).to_owned(),
            key_file: None,
            streams: 8,
            default_registry: None,
            mirrors: Vec::new(),
            hosts: Hosts::default(),
            docker_config: None,
            limit_rate: None,
            detect_template: None,
            executor: None,
            proxies: Proxies::default(),
            outgoing: None,
            stall_timeout: Duration::from_secs(30),
            retry_delay: Duration::from_secs(1),
            checkpoint_interval: Duration::from_secs(2),
            progress_interval: Duration::from_millis(60),
            waiting_notice_delay: Duration::from_secs(2),
            lock_holder_timeout: Duration::from_secs(30),
            min_range_bytes: 16 << 20,
        }
    }
}

/// Proxies, named after the usual environment variables. Loopback addresses never use a proxy.
/// `Debug` hides passwords.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Proxies {
    /// `HTTP_PROXY`
    pub http: Option<String>,
    /// `HTTPS_PROXY`
    pub https: Option<String>,
    /// `NO_PROXY`: hosts, domains and address ranges without a proxy, separated by commas.
    pub direct: String,
}

impl Proxies {
    /// Whether there is a proxy for the URL's scheme.
    pub(crate) fn serves(&self, url: &Url) -> bool {
        match url.scheme() {
            "https" => self.https.is_some(),
            _ => self.http.is_some(),
        }
    }
}

impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host =
            |proxy: &Option<String>| proxy.as_deref().map(strip_user_info).map(str::to_owned);
        let (http, https) = (host(&self.http), host(&self.https));
        f.debug_struct("Proxies")
            .field("http", &http)
            .field("https", &https)
            .field("direct", &self.direct)
            .finish()
    }
}

/// The host of an address and what follows it, without scheme, user and password.
pub(crate) fn strip_user_info(address: &str) -> &str {
    let bare = address.split_once("://").map_or(address, |(_, rest)| rest);
    bare.rsplit_once('@').map_or(bare, |(_, host)| host)
}

/// Options of one operation.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Use plain HTTP instead of HTTPS.
    pub insecure: bool,
    /// Keep blobs that no model uses any more.
    pub keep_unused: bool,
    /// The only mirror to try, instead of the configured ones. An empty string means none.
    pub mirror: Option<String>,
    /// Rate limit in bytes per second.
    pub limit_rate: Option<u64>,
    /// How a pushed model is packaged.
    pub format: Format,
    /// The runner that selects the child of a manifest list. `None`: the child that runs best on
    /// this machine.
    pub runner: Option<String>,
    /// A pull of a manifest list fetches all of its children.
    pub all_runners: bool,
    /// `Via` header, for requests that a pull-through cache makes for its clients.
    pub via: Option<String>,
    /// Rights of the caller.
    pub access: OutgoingAccess,
    /// Decides whether a pulled model may be stored, before its blobs are fetched.
    pub admission: Option<Arc<dyn ModelAdmission>>,
    /// Decides which stored blobs a pull may use without receiving them again. `None`: all, and
    /// downloads are shared.
    pub reuse: Option<Arc<dyn BlobReuse>>,
}

impl Options {
    /// Admits a model before its blobs are fetched.
    pub(crate) async fn admit(
        &self,
        model: &NewModel,
    ) -> Result<Option<AdmissionGuard>, StoreError> {
        match &self.admission {
            Some(admission) => admission.admit(model).await.map(Some),
            None => Ok(None),
        }
    }

    /// Asks which blobs a pull may take from the store.
    pub(crate) async fn reusable_blobs(
        &self,
        digests: impl IntoIterator<Item = Digest>,
    ) -> Result<ReusableBlobs, RegistryError> {
        let Some(reuse) = self.reuse.clone() else { return Ok(ReusableBlobs::All) };
        let digests: Vec<_> = digests.into_iter().collect();
        blocking(move || {
            let (digests, caller) = (reuse.reusable(&digests)?, reuse.caller_number());
            Ok(ReusableBlobs::Only { digests, caller })
        })
        .await
    }
}

/// Blobs that a pull may take from the store.
#[derive(Debug, Clone)]
pub(crate) enum ReusableBlobs {
    /// All that the store has.
    All,
    /// Only these. Others are downloaded as if the store had no data of them.
    Only {
        digests: HashSet<Digest>,
        /// Number of the caller, for its private downloads.
        caller: u64,
    },
}

impl ReusableBlobs {
    /// Number of the caller, if it needs a private download of a blob.
    pub(crate) fn private_to(&self, digest: &Digest) -> Option<u64> {
        match self {
            Self::Only { digests, caller } if !digests.contains(digest) => Some(*caller),
            _ => None,
        }
    }
}

/// Decides which stored blobs a pull may use without receiving them again.
pub trait BlobReuse: Send + Sync + fmt::Debug {
    /// Those of the blobs that the caller may know of, whether or not the store has them. This
    /// function may block.
    ///
    /// # Errors
    /// The store cannot be read.
    fn reusable(&self, digests: &[Digest]) -> Result<HashSet<Digest>, StoreError>;

    /// Number of the caller, which stays the same after a restart. Callers with different numbers
    /// share no download of other blobs.
    fn caller_number(&self) -> u64;
}

/// Progress report, in Ollama's words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Current action; `success` at the end.
    pub status: String,
    /// The blob that the action is about.
    pub digest: Option<Digest>,
    /// Size of the blob in bytes.
    pub total: u64,
    /// Completed bytes of the blob.
    pub completed: u64,
}

/// Prefix of a status that names the cause of a wait. The earlier action is still in progress.
pub const WAITING_PREFIX: &str = "waiting for ";

impl Progress {
    pub(crate) fn status(status: impl Into<String>) -> Self {
        Self { status: status.into(), ..Self::default() }
    }

    pub(crate) fn blob(verb: &str, digest: Digest, total: u64, completed: u64) -> Self {
        Self {
            status: format!("{verb} {}", digest.short()),
            digest: Some(digest),
            total,
            completed,
        }
    }
}

/// Channel of progress reports. A slow reader misses reports about blobs, but no other reports.
pub type Report = mpsc::Sender<Progress>;

/// Sends a report that must not be lost. A closed channel is ignored.
pub(crate) async fn send_progress(report: &Report, progress: Progress) {
    let _ = report.send(progress).await;
}

//! What a client can be told, and what it tells.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use puna_store::Digest;
use tokio::sync::mpsc;

use crate::hosts::Hosts;
use crate::packaging::{DetectTemplate, Format};

/// How a client behaves. The times are there for tests; the defaults suit the world.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How the program introduces itself. Some registries answer differently to names that do not begin with `ollama/`.
    pub user_agent: String,
    /// The file of the key that proves who asks; it is made when a registry first wants proof. `None`: there is none.
    pub key: Option<PathBuf>,
    /// Connections of one download at once.
    pub streams: usize,
    /// The address that is asked in the place of Ollama's registry.
    pub default_registry: Option<String>,
    /// Addresses that are asked before Ollama's registry, or the one in its place.
    pub mirrors: Vec<String>,
    /// What is set for single hosts.
    pub hosts: Hosts,
    /// Docker's `config.json`, in which `docker login` leaves credentials.
    pub docker_config: Option<PathBuf>,
    /// Knows the templates of packages that bring their own.
    pub detect_template: Option<DetectTemplate>,
    /// Bytes a second at most, of all that is pulled and pushed together.
    pub limit_rate: Option<u64>,
    /// Proxies between here and the registries.
    pub proxies: Proxies,
    /// How long a connection may deliver nothing before it is given up and tried again.
    pub patience: Duration,
    /// The pause before the second attempt; each further one is twice as long.
    pub pause: Duration,
    /// How often what arrived is noted on disk.
    pub checkpoint: Duration,
    /// How often progress is reported.
    pub tick: Duration,
    /// After how long without any it is said what is waited for.
    pub quiet: Duration,
    /// How long another process that fetches the same may bring nothing before that is said; one that is stopped is not waited for then.
    pub still: Duration,
    /// Bytes of a download's parts at least, but for the last one.
    pub min_part: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            user_agent: concat!("puna/", env!("CARGO_PKG_VERSION")).to_owned(),
            key: None,
            streams: 8,
            default_registry: None,
            mirrors: Vec::new(),
            hosts: Hosts::default(),
            docker_config: None,
            limit_rate: None,
            detect_template: None,
            proxies: Proxies::default(),
            patience: Duration::from_secs(30),
            pause: Duration::from_secs(1),
            checkpoint: Duration::from_secs(2),
            tick: Duration::from_millis(60),
            quiet: Duration::from_secs(2),
            still: Duration::from_secs(30),
            min_part: 16 << 20,
        }
    }
}

/// Proxies, as the usual variables name them. Addresses of this machine are never asked through one. They may hold passwords, which
/// nothing shows.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Proxies {
    /// `HTTP_PROXY`
    pub http: Option<String>,
    /// `HTTPS_PROXY`
    pub https: Option<String>,
    /// `NO_PROXY`: hosts, domains and address ranges that are asked directly, separated by commas.
    pub direct: String,
}

impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = |proxy: &Option<String>| proxy.as_deref().map(without_user).map(str::to_owned);
        let (http, https) = (place(&self.http), place(&self.https));
        f.debug_struct("Proxies")
            .field("http", &http)
            .field("https", &https)
            .field("direct", &self.direct)
            .finish()
    }
}

/// The host of an address, and what follows it.
pub(crate) fn without_user(address: &str) -> &str {
    let bare = address.split_once("://").map_or(address, |(_, rest)| rest);
    bare.rsplit_once('@').map_or(bare, |(_, host)| host)
}

/// What one operation is told.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Plain HTTP instead of HTTPS.
    pub insecure: bool,
    /// Blobs that no model uses any more are kept.
    pub keep_unused: bool,
    /// The mirror to ask first, instead of those that are set; empty is none.
    pub mirror: Option<String>,
    /// Bytes a second at most.
    pub limit_rate: Option<u64>,
    /// How a model is packaged that is pushed.
    pub format: Format,
    /// The runner whose child of a manifest list is wanted; `None` takes the child that runs best here.
    pub runner: Option<String>,
    /// A pull of a manifest list fetches all of its children.
    pub all_runners: bool,
    /// For whom a mirror asks, as its `Via` says it.
    pub via: Option<String>,
}

/// A line of progress, in Ollama's words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// What is being done; `success` at the end.
    pub status: String,
    /// The blob it is about.
    pub digest: Option<Digest>,
    /// Its bytes.
    pub total: u64,
    /// Those that are done.
    pub completed: u64,
}

/// How a status begins that says who is waited for: what was under way before it is not done.
pub const WAITING: &str = "waiting for ";

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

/// Where progress goes. A reader that is slow misses lines of a blob's progress, and no others.
pub type Report = mpsc::Sender<Progress>;

/// Says something that must not be missed. Nobody has to listen.
pub(crate) async fn tell(report: &Report, progress: Progress) {
    let _ = report.send(progress).await;
}

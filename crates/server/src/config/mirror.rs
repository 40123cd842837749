//! Configuration of the mirror.

use std::time::Duration;

use puna_api::{Address, parse_bytes};
use puna_mirror::{DEFAULT_QUOTA_OBJECTS, Quota, Rule, S3Location, Upstreams, check_namespace};

use super::effective::{quoted, shown_text};
use super::reader::SettingsReader;
use super::storage;

/// Default address of a standalone mirror.
const ADDRESS: &str = "127.0.0.1:5000";

/// Default time for which a mirror serves an upstream tag without checking for changes.
const FRESH: Duration = Duration::from_secs(60 * 60);

/// Configuration of the [mirror](crate::mirror).
#[derive(Debug, Clone)]
pub struct MirrorConfig {
    /// `PUNA_MIRROR_SERVE`: whether `serve` also serves the registry API.
    pub serve: bool,
    /// `PUNA_MIRROR_HOST`: address of a standalone mirror.
    pub address: Address,
    /// `PUNA_MIRROR_ANONYMOUS`: whether clients may pull without a key even if there are keys.
    pub anonymous: bool,
    /// `PUNA_MIRROR_PUSH`: whether all clients may push while there are no keys.
    pub push: bool,
    /// `PUNA_MIRROR_DELETE`: whether deletion is allowed: with keys, for scope `admin`; without,
    /// for clients that may push.
    pub delete: bool,
    /// `PUNA_MIRROR_ANNOUNCE`: whether a standalone mirror announces itself on the local network.
    pub announce: bool,
    /// `PUNA_MIRROR_NAMES`: host names by which clients reach the mirror; empty allows any.
    pub names: Vec<String>,
    /// `PUNA_MIRROR_STORAGE` …: object storage of the library; `None` uses the models directory.
    pub storage: Option<S3Location>,
    /// `PUNA_MIRROR_QUOTAS`: maximum bytes and objects of namespaces.
    pub quotas: Vec<Quota>,
    /// `PUNA_MIRROR_RETENTION`: rules for the tags to keep.
    pub retention: Vec<Rule>,
    /// `PUNA_MIRROR_UPSTREAMS`, `PUNA_MIRROR_PRIVATE`, `PUNA_MIRROR_FRESH`, `PUNA_MIRROR_FETCH` …:
    /// upstream registries and the repositories that may be fetched from them.
    pub upstreams: Upstreams,
}

impl MirrorConfig {
    pub(super) fn read(read: &mut SettingsReader<'_>) -> Self {
        Self {
            serve: read.switch("mirror.serve"),
            address: read.address("mirror.host", ADDRESS).0,
            anonymous: read.switch("mirror.anonymous"),
            push: read.switch("mirror.push"),
            delete: read.switch("mirror.delete"),
            announce: read.switch("mirror.announce"),
            names: read.hosts("mirror.names"),
            storage: storage::read(read),
            quotas: read.quotas("mirror.quotas"),
            retention: read.rules("mirror.retention"),
            upstreams: Upstreams {
                hosts: read.upstreams("mirror.upstreams"),
                private: read.namespaces("mirror.private"),
                fresh: read.time("mirror.fresh", FRESH),
                fetch: read.repositories("mirror.fetch"),
                fetch_limit: read.bytes("mirror.fetch_limit"),
                fetch_parallel: read.count("mirror.fetch_parallel"),
            },
        }
    }
}

impl SettingsReader<'_> {
    /// Reads quotas, `NAMESPACE=BYTES` or `NAMESPACE=BYTES:OBJECTS` each.
    fn quotas(&mut self, key: &'static str) -> Vec<Quota> {
        let one = |text: &str| {
            let problem = || {
                format!(
                    "has {}: it must be like team=50GB, team-*=1.5TB or *=200GB:5000 (bytes and objects); the first match counts",
                    shown_text(text)
                )
            };
            let (namespaces, limits) = text.split_once('=').ok_or_else(problem)?;
            let namespaces = namespaces.trim();
            let (bytes, objects) = match limits.split_once(':') {
                Some((bytes, objects)) => (bytes, objects.trim().parse().ok()),
                None => (limits, Some(DEFAULT_QUOTA_OBJECTS)),
            };
            let bytes = parse_bytes(bytes).filter(|_| check_namespace(namespaces).is_ok());
            let (Some(bytes), Some(objects)) = (bytes, objects) else { return Err(problem()) };
            Ok(Quota { namespaces: namespaces.to_owned(), bytes, objects })
        };
        let parse = |text: &str| {
            text.split(',')
                .map(str::trim)
                .filter(|one| !one.is_empty())
                .map(one)
                .collect::<Result<Vec<_>, String>>()
        };
        let show = |all: &Vec<Quota>| {
            let one = |quota: &Quota| match quota.objects {
                DEFAULT_QUOTA_OBJECTS => format!("{}={}", quota.namespaces, quota.bytes),
                objects => format!("{}={}:{objects}", quota.namespaces, quota.bytes),
            };
            let all: Vec<_> = all.iter().map(one).collect();
            (!all.is_empty()).then(|| quoted(&all.join(",")))
        };
        self.strict(key, Vec::new(), parse, show)
    }

    /// Reads retention rules, `NAMESPACE=WORDS` each.
    fn rules(&mut self, key: &'static str) -> Vec<Rule> {
        let parse = |text: &str| {
            let rules = text.split(',').map(str::trim).filter(|rule| !rule.is_empty());
            rules.map(str::parse).collect::<Result<Vec<Rule>, String>>()
        };
        let show = |all: &Vec<Rule>| {
            let all: Vec<_> = all.iter().map(Rule::to_string).collect();
            (!all.is_empty()).then(|| quoted(&all.join(",")))
        };
        self.strict(key, Vec::new(), parse, show)
    }

    /// Reads namespaces or repositories, which may end with `*`.
    fn repositories(&mut self, key: &'static str) -> Vec<String> {
        let says = "it must be a namespace or a repository with an optional * at the end, such as library or hf.co/user/*";
        self.list(key, |one| check_namespace(one).is_ok(), says)
    }

    /// Reads a number of bytes; `None` is no limit.
    fn bytes(&mut self, key: &'static str) -> Option<u64> {
        let parse = |text: &str| {
            let bytes = parse_bytes(text).map(Some);
            bytes.ok_or_else(|| {
                format!(
                    "is {}: it must be a number of bytes such as 500MB or 20GB",
                    shown_text(text)
                )
            })
        };
        self.strict(key, None, parse, |bytes| bytes.map(|bytes| bytes.to_string()))
    }

    /// Reads a count; `None` is no limit.
    fn count(&mut self, key: &'static str) -> Option<usize> {
        let parse = |text: &str| {
            let count = text.parse().ok().filter(|count| *count > 0).map(Some);
            count.ok_or_else(|| {
                format!("is {}: it must be a whole number of at least 1", shown_text(text))
            })
        };
        self.strict(key, None, parse, |count| count.map(|count: usize| count.to_string()))
    }
}

//! How the mirror behaves.

use std::time::Duration;

use puna_api::{Address, parse_bytes};
use puna_mirror::{Quota, Rule, Storage, Upstreams, check_namespace};

use super::reader::{Reader, quoted};
use super::storage;

/// Where a mirror listens that is not told otherwise.
const ADDRESS: &str = "127.0.0.1:5000";

/// How long a mirror serves a tag without asking whether it has moved.
const FRESH: Duration = Duration::from_secs(60 * 60);

/// How the [mirror](crate::mirror) behaves.
#[derive(Debug, Clone)]
pub struct MirrorConfig {
    /// `PUNA_MIRROR_SERVE`: whether `serve` is a registry, too.
    pub serve: bool,
    /// `PUNA_MIRROR_HOST`: where a mirror that runs alone listens.
    pub address: Address,
    /// `PUNA_MIRROR_ANONYMOUS`: whether everybody may pull, though there are keys.
    pub anonymous: bool,
    /// `PUNA_MIRROR_PUSH`: whether everybody may push, as long as there are no keys.
    pub push: bool,
    /// `PUNA_MIRROR_DELETE`: whether what is here may be removed: with keys by those of scope `admin`, else by those who may push.
    pub delete: bool,
    /// `PUNA_MIRROR_ANNOUNCE`: whether a mirror that runs alone announces itself on the network.
    pub announce: bool,
    /// `PUNA_MIRROR_NAMES`: the hosts under which clients reach it; any, where there are none.
    pub names: Vec<String>,
    /// `PUNA_MIRROR_STORAGE` …: where its library lies; `None` is the folder of models.
    pub storage: Option<Storage>,
    /// `PUNA_MIRROR_QUOTAS`: how many bytes namespaces may have.
    pub quotas: Vec<Quota>,
    /// `PUNA_MIRROR_RETENTION`: what stays.
    pub retention: Vec<Rule>,
    /// `PUNA_MIRROR_UPSTREAMS`, `PUNA_MIRROR_PRIVATE`, `PUNA_MIRROR_FRESH`, `PUNA_MIRROR_FETCH` …: what is fetched from others.
    pub upstreams: Upstreams,
}

impl MirrorConfig {
    pub(super) fn read(read: &mut Reader<'_>) -> Self {
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
                fetch_parallel: read.at_once("mirror.fetch_parallel"),
            },
        }
    }
}

impl Reader<'_> {
    /// Namespaces and how many bytes they may have, `NAMESPACE=BYTES` each.
    fn quotas(&mut self, key: &'static str) -> Vec<Quota> {
        let one = |text: &str| {
            let problem = || {
                format!(
                    "has {text:?}: it must be like team=50GB, team-*=1.5TB or *=200GB, the first that fits counts"
                )
            };
            let (namespaces, bytes) = text.split_once('=').ok_or_else(problem)?;
            let namespaces = namespaces.trim();
            let bytes = parse_bytes(bytes).filter(|_| check_namespace(namespaces).is_ok());
            Ok(Quota { namespaces: namespaces.to_owned(), bytes: bytes.ok_or_else(problem)? })
        };
        let parse = |text: &str| {
            text.split(',')
                .map(str::trim)
                .filter(|one| !one.is_empty())
                .map(one)
                .collect::<Result<Vec<_>, String>>()
        };
        let show = |all: &Vec<Quota>| {
            let all: Vec<_> =
                all.iter().map(|one| format!("{}={}", one.namespaces, one.bytes)).collect();
            (!all.is_empty()).then(|| quoted(&all.join(",")))
        };
        self.strict(key, Vec::new(), parse, show)
    }

    /// What stays of repositories, `NAMESPACE=WORDS` each.
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

    /// Namespaces or repositories, of which the last letter may be `*`.
    fn repositories(&mut self, key: &'static str) -> Vec<String> {
        let says = "it must be a namespace or a repository, and a * at its end stands for more: library, hf.co/user/*";
        self.list(key, |one| check_namespace(one).is_ok(), says)
    }

    /// So many bytes; `None` is without a limit.
    fn bytes(&mut self, key: &'static str) -> Option<u64> {
        let parse = |text: &str| {
            let bytes = parse_bytes(text).map(Some);
            bytes.ok_or_else(|| {
                format!("is {text:?}: it must be a number of bytes such as 500MB or 20GB")
            })
        };
        self.strict(key, None, parse, |bytes| bytes.map(|bytes| bytes.to_string()))
    }

    /// So many things; `None` is without a limit.
    fn at_once(&mut self, key: &'static str) -> Option<usize> {
        let parse = |text: &str| {
            let count = text.parse().ok().filter(|count| *count > 0).map(Some);
            count.ok_or_else(|| format!("is {text:?}: it must be a whole number from 1 up"))
        };
        self.strict(key, None, parse, |count| count.map(|count: usize| count.to_string()))
    }
}

//! What the library holds, as far as it matters for who may read a blob and how much a namespace may have.
//!
//! Blobs have no namespace: everything that has the same bytes is kept once. But who may read some namespaces alone must not
//! get at a blob of others by its digest, neither by asking for it through a repository of his own nor by naming it in a
//! manifest there. So a blob is his to see when a manifest that he may read needs it, or when he has brought its bytes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use puna_store::Digest;

use crate::access::{Holder, Right};
use crate::error::MirrorError;
use crate::figures::Figure;
use crate::holding::{Holding, Shown};
use crate::id::UploadId;
use crate::library::Library;
use crate::lock::{Turn, lock};
use crate::manifest::Manifest;
use crate::name::Repository;
use crate::pattern::is_in;
use crate::quota::{Quota, fits};
use crate::uploading::{Room, Uploading};

/// How old what is known may be, where it is to be counted.
const RECENT: Duration = Duration::from_secs(10);
/// The same where a quota may refuse something.
const NEWEST: Duration = Duration::from_millis(500);
/// The same for people, whom a page shows it.
const SHOWN: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 3 });
/// How long somebody who could see a blob may fetch more of it without being judged again.
const SEEN: Duration = Duration::from_secs(60);
/// Blobs that are remembered as seen.
const MAX_KNOWN: usize = 100_000;

/// How much a namespace has of what it may have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Use {
    pub(crate) namespace: String,
    pub(crate) used: u64,
    pub(crate) quota: u64,
}

/// Something that takes a while to find out, as it was a moment ago. It is found out for everybody who waits for it together.
struct Kept<T>(tokio::sync::Mutex<Option<Look<T>>>);

/// What was found out.
struct Look<T> {
    at: Instant,
    /// How many changes there had been before.
    changes: u64,
    found: Arc<T>,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self(tokio::sync::Mutex::default())
    }
}

impl<T> Kept<T> {
    /// What is known, unless it is older than that, or something has changed here since; else what `look` finds.
    async fn get<F>(
        &self,
        changes: impl Fn() -> u64,
        age: Duration,
        look: impl FnOnce() -> F,
    ) -> Result<Arc<T>, MirrorError>
    where
        F: Future<Output = Result<T, MirrorError>>,
    {
        let mut kept = self.0.lock().await;
        let (now, before) = (Instant::now(), changes());
        if let Some(look) = &*kept
            && look.changes == before
            && look.at.elapsed() < age
        {
            return Ok(look.found.clone());
        }
        let found = Arc::new(look().await?);
        *kept = Some(Look { at: now, changes: before, found: found.clone() });
        Ok(found)
    }

    /// Whether something younger is known, or just being found out.
    fn is_younger(&self, age: Duration) -> bool {
        self.0
            .try_lock()
            .map_or(true, |kept| kept.as_ref().is_some_and(|look| look.at.elapsed() < age))
    }
}

/// What repositories have.
struct Holdings {
    all: Vec<Holding>,
    /// Where among them a blob is.
    by_blob: HashMap<Digest, Vec<usize>>,
}

impl Holdings {
    fn new(all: Vec<Holding>) -> Self {
        let mut by_blob: HashMap<Digest, Vec<usize>> = HashMap::new();
        for (n, held) in all.iter().enumerate() {
            held.blobs.iter().for_each(|(blob, _)| by_blob.entry(*blob).or_default().push(n));
        }
        Self { all, by_blob }
    }

    /// Those that have a blob.
    fn of_blob(&self, digest: &Digest) -> impl Iterator<Item = &Holding> {
        self.by_blob.get(digest).into_iter().flatten().map(|n| &self.all[*n])
    }
}

/// Knows what the library holds.
#[derive(Default)]
pub(crate) struct Stock {
    quotas: Vec<Quota>,
    /// How often manifests or blobs have come or gone.
    changes: AtomicU64,
    holdings: Kept<Holdings>,
    /// Of namespaces that have a quota: what one of them has need not be looked for among all.
    namespaces: Mutex<HashMap<String, Arc<Kept<Vec<Holding>>>>>,
    shown: Kept<Vec<Shown>>,
    /// Blobs that a holder was found to see.
    seen: Mutex<HashMap<(String, Digest), Instant>>,
    uploading: Arc<Uploading>,
}

impl Stock {
    pub(crate) fn new(quotas: Vec<Quota>) -> Self {
        Self { quotas, ..Self::default() }
    }

    /// What the library holds, or held a while ago.
    async fn holdings(
        &self,
        library: &dyn Library,
        age: Duration,
    ) -> Result<Arc<Holdings>, MirrorError> {
        let look = || async { Ok(Holdings::new(library.holdings().await?)) };
        self.holdings.get(|| self.changes(library), age, look).await
    }

    /// The same of a namespace, as new as a quota must know it.
    async fn holdings_in(
        &self,
        library: &dyn Library,
        namespace: &str,
    ) -> Result<Arc<Vec<Holding>>, MirrorError> {
        let kept = {
            let mut namespaces = lock(&self.namespaces);
            namespaces.retain(|_, kept| Arc::strong_count(kept) > 1 || kept.is_younger(RECENT));
            namespaces.entry(namespace.to_ascii_lowercase()).or_default().clone()
        };
        kept.get(|| self.changes(library), NEWEST, || library.holdings_in(namespace)).await
    }

    /// All tags, or those of a moment ago: whoever looks at the page does so again and again.
    pub(crate) async fn shown(
        &self,
        library: &dyn Library,
    ) -> Result<Arc<Vec<Shown>>, MirrorError> {
        self.shown.get(|| self.changes(library), SHOWN, || library.shown()).await
    }

    fn changes(&self, library: &dyn Library) -> u64 {
        self.changes.load(Relaxed) + library.fetches_begun_and_ended()
    }

    /// A manifest or blob came or went.
    pub(crate) fn changed(&self) {
        self.changes.fetch_add(1, Relaxed);
    }

    /// Whether somebody who asks in a repository may know of a blob that is here. Most often it is of that very repository; all of the
    /// others are looked through where it is not.
    pub(crate) async fn sees(
        &self,
        library: &dyn Library,
        holder: Option<&Holder>,
        name: &Repository,
        digest: Digest,
    ) -> Result<bool, MirrorError> {
        let Some(holder) = holder.filter(|holder| !holder.namespaces.is_empty()) else {
            return Ok(true);
        };
        let key = (holder.name.clone(), digest);
        if lock(&self.seen).get(&key).is_some_and(|at| at.elapsed() < SEEN) {
            return Ok(true);
        }
        let may = |name: &Repository| holder.may(Right::Read, Some(name));
        let mut sees = may(name) && library.needs(name, digest).await?;
        // What others did a moment ago counts, and what was done here always does: nobody is refused by what was known long before.
        for age in [RECENT, NEWEST] {
            if !sees {
                sees =
                    self.holdings(library, age).await?.of_blob(&digest).any(|held| may(&held.name));
            }
        }
        if sees {
            let mut seen = lock(&self.seen);
            if seen.len() >= MAX_KNOWN {
                seen.clear();
            }
            seen.insert(key, Instant::now());
        }
        Ok(sees)
    }

    fn quota(&self, namespace: &str) -> Option<u64> {
        let quota = self.quotas.iter().find(|quota| is_in(namespace, &quota.namespaces));
        quota.map(|quota| quota.bytes)
    }

    /// The room that there is for an upload; `None` where nothing limits it. What has come and no manifest needs yet takes some, and so
    /// do other uploads.
    pub(crate) async fn room(
        &self,
        library: &Arc<dyn Library>,
        name: &Repository,
        id: &UploadId,
    ) -> Result<Option<Room>, MirrorError> {
        let namespace = name.namespace();
        let Some(quota) = self.quota(namespace) else { return Ok(None) };
        // Whoever is at it is waited for here, so that nobody waits who is at others.
        let there = library.uploaded(name, id).await?;
        let _turn = self.uploading.turn(namespace).await;
        let held = sum(&self.held(&**library, namespace, true).await?);
        Ok(Some(self.uploading.enter(library, (name, id), there, quota, held)))
    }

    /// Makes the blob of an upload. Where its namespace would have more than it may, nothing of the upload is kept.
    pub(crate) async fn finish(
        &self,
        library: &Arc<dyn Library>,
        name: &Repository,
        id: &UploadId,
        digest: Digest,
    ) -> Result<(), MirrorError> {
        let namespace = name.namespace();
        let Some(quota) = self.quota(namespace) else {
            library.finish(name, id, digest).await?;
            self.changed();
            return Ok(());
        };
        let there = library.uploaded(name, id).await?;
        // Others see it as an upload or as a blob, and neither as both nor as nothing.
        let _turn = self.uploading.turn(namespace).await;
        let held = self.held(&**library, namespace, true).await?;
        let room = self.uploading.enter(library, (name, id), there, quota, sum(&held));
        if !held.contains_key(&digest)
            && let Err(refused) = room.takes(there).await
        {
            self.uploading.cancel(&**library, name, id).await?;
            return Err(refused);
        }
        let made = library.finish(name, id, digest).await;
        self.changed();
        if made.is_err()
            && let Ok(there) = library.uploaded(name, id).await
        {
            // What the disk or the storage failed at can be tried again.
            room.has(there);
        } else {
            self.uploading.forget(name, id);
        }
        made
    }

    /// Lets a repository have a blob that is here, where there is room for it. Says whether it is here.
    pub(crate) async fn mount(
        &self,
        library: &dyn Library,
        name: &Repository,
        digest: Digest,
    ) -> Result<bool, MirrorError> {
        let namespace = name.namespace();
        let mut turn = None;
        if let Some(quota) = self.quota(namespace) {
            let Some(blob) = library.blob(digest).await? else { return Ok(false) };
            turn = Some(self.uploading.turn(namespace).await);
            let held = self.held(library, namespace, true).await?;
            if !held.contains_key(&digest) {
                fits(namespace, quota, sum(&held), blob.size())?;
            }
        }
        let mounted = library.mount(name, digest).await?;
        self.changed();
        drop(turn);
        Ok(mounted)
    }

    /// Gives an upload up.
    pub(crate) async fn cancel(
        &self,
        library: &dyn Library,
        name: &Repository,
        id: &UploadId,
    ) -> Result<(), MirrorError> {
        self.uploading.cancel(library, name, id).await
    }

    /// Refuses a manifest whose blobs, which are here, would be more than its namespace may have. Nobody else's is judged as long as what
    /// this gives is held.
    pub(crate) async fn turn_for(
        &self,
        library: &dyn Library,
        name: &Repository,
        manifest: &Manifest,
    ) -> Result<Option<Turn>, MirrorError> {
        let namespace = name.namespace();
        let Some(quota) = self.quota(namespace) else { return Ok(None) };
        let turn = self.uploading.turn(namespace).await;
        let held = self.held(library, namespace, false).await?;
        let new = manifest.blobs.iter().filter(|blob| !held.contains_key(&blob.digest));
        let new: HashMap<Digest, u64> = new.map(|blob| (blob.digest, blob.size)).collect();
        for (digest, said) in &new {
            // What it says is counted, so it must be true.
            let there = library.blob(*digest).await?.map(|blob| blob.size());
            if let Some(found) = there.filter(|there| there != said) {
                return Err(MirrorError::ManifestInvalid(format!(
                    "it says that blob {digest} has {said} bytes, but it has {found}"
                )));
            }
        }
        fits(namespace, quota, sum(&held), sum(&new))?;
        Ok(Some(turn))
    }

    /// The blobs of a namespace: those that its manifests need, and with `pushed` those that were brought a short while ago.
    async fn held(
        &self,
        library: &dyn Library,
        namespace: &str,
        pushed: bool,
    ) -> Result<HashMap<Digest, u64>, MirrorError> {
        let holdings = self.holdings_in(library, namespace).await?;
        let counts = |held: &&Holding| pushed || held.manifest.is_some();
        Ok(holdings.iter().filter(counts).flat_map(|held| held.blobs.iter().copied()).collect())
    }

    /// How much there is, for those who watch.
    pub(crate) async fn figures(&self, library: &dyn Library) -> Result<Vec<Figure>, MirrorError> {
        let holdings = self.holdings(library, RECENT).await?;
        let kept = holdings.all.iter().filter(|held| held.manifest.is_some());
        let blobs: HashMap<Digest, u64> =
            kept.clone().flat_map(|held| held.blobs.iter().copied()).collect();
        let mut figures = vec![
            Figure::gauge("puna_mirror_manifests", "Manifests that are kept.", kept.count() as u64),
            Figure::gauge(
                "puna_mirror_library_bytes",
                "Bytes of all blobs that manifests need.",
                sum(&blobs),
            ),
        ];
        let uses = self.uses(library).await?;
        let of = |value: fn(&Use) -> u64| {
            uses.iter().map(|of| (vec![("namespace", of.namespace.clone())], value(of))).collect()
        };
        for (name, help, samples) in [
            (
                "puna_mirror_quota_used_bytes",
                "Bytes of namespaces that have a quota.",
                of(|of| of.used),
            ),
            ("puna_mirror_quota_bytes", "Bytes that such namespaces may have.", of(|of| of.quota)),
        ] {
            figures.push(Figure { name, kind: "gauge", help, samples });
        }
        Ok(figures)
    }

    /// How much the namespaces have that may not have everything.
    pub(crate) async fn uses(&self, library: &dyn Library) -> Result<Vec<Use>, MirrorError> {
        if self.quotas.is_empty() {
            return Ok(Vec::new());
        }
        let mut all: HashMap<String, HashMap<Digest, u64>> = HashMap::new();
        let holdings = self.holdings(library, RECENT).await?;
        for held in holdings.all.iter().filter(|held| held.manifest.is_some()) {
            let blobs = all.entry(held.name.namespace().to_ascii_lowercase()).or_default();
            blobs.extend(held.blobs.iter().copied());
        }
        let of = |(namespace, blobs): (String, HashMap<Digest, u64>)| {
            let quota = self.quota(&namespace)?;
            Some(Use { namespace, used: sum(&blobs), quota })
        };
        let mut uses: Vec<Use> = all.into_iter().filter_map(of).collect();
        uses.sort();
        Ok(uses)
    }
}

/// Bytes of blobs, as they are stated.
fn sum(blobs: &HashMap<Digest, u64>) -> u64 {
    blobs.values().fold(0, |sum, size| sum.saturating_add(*size))
}

//! Pulling: the manifest, its blobs one after another, then the model's name.

mod list;
mod write;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use puna_store::{Digest, ModelName, ModelRef, Store};
use reqwest::Url;

pub(crate) use list::describe as describe_child;

use crate::Registry;
use crate::blocking::{at_work, blocking};
use crate::endpoint::Endpoint;
use crate::error::RegistryError;
use crate::fetch::What;
use crate::http::Session;
use crate::hub::{HubFile, HubModel};
use crate::manifest::{is_manifest_list, read_manifest};
use crate::packaging::{Made, Package, is_made_of};
use crate::parts::Table;
use crate::rate::Limit;
use crate::settings::{Options, Progress, Report, WAITING, tell};
use crate::share::Told;
use crate::space::{on_disk, room};

impl Registry {
    /// Fetches a model into the store, or brings a stored one up to date. Dropping the future cancels it; what has arrived
    /// stays and is gone on from.
    ///
    /// # Errors
    /// Of the registry or the store. The model under this name is whole all the same: the old one, or none.
    pub async fn pull(
        &self,
        store: &Arc<Store>,
        reference: &ModelRef,
        options: &Options,
        report: Report,
    ) -> Result<(), RegistryError> {
        let pulled = at_work(store, self.pull_model(store, reference, options, &report)).await;
        let spent = forgetting(store, &reference.name, pulled).await?;
        self.clear(store, spent).await?;
        tell(&report, Progress::status("success")).await;
        Ok(())
    }

    /// Removes blobs that only packed others.
    pub(crate) async fn clear(
        &self,
        store: &Arc<Store>,
        spent: Vec<Digest>,
    ) -> Result<(), RegistryError> {
        if spent.is_empty() {
            return Ok(());
        }
        let at = store.clone();
        blocking(move || Ok(at.discard_blobs(&spent)?)).await
    }

    /// Stores the model: the blobs that only packed others.
    async fn pull_model(
        &self,
        store: &Arc<Store>,
        reference: &ModelRef,
        options: &Options,
        report: &Report,
    ) -> Result<Vec<Digest>, RegistryError> {
        tell(report, Progress::status("pulling manifest")).await;
        let (asked, at) = (reference.name.clone(), store.clone());
        let name = blocking(move || Ok(at.spelled(&asked)?)).await?;
        let options = Options { insecure: options.insecure || reference.http, ..options.clone() };
        let found =
            self.search(&name, &options, Some(report)).await.map_err(RegistryError::of_manifest)?;
        let (mut sources, bytes) = match found {
            Place::Manifest(sources, bytes) => (sources, bytes),
            Place::Listed(session, model) => {
                return self.pull_listed(session, store, name, model, &options, report).await;
            }
        };
        if is_manifest_list(&bytes) {
            return self.pull_list(sources, store, name, bytes, &options, report).await;
        }
        list::check_runner(&name, &bytes, &options)?;
        if let Some(package) = Package::read(&bytes).map_err(RegistryError::of_manifest)? {
            return self.pull_package(sources, store, name, package, &options, report).await;
        }
        let manifest = read_manifest(&bytes).map_err(RegistryError::of_manifest)?;

        let (at, noted, text) = (store.clone(), name.clone(), bytes.clone());
        blocking(move || Ok(at.note_pull(&noted, &text)?)).await?;
        let mut held = Held::new(store);
        let blobs: Vec<_> =
            manifest.blobs().map(|layer| Wanted::blob(layer.digest, layer.size)).collect();
        self.blobs(&mut sources, store, &blobs, report, &mut held).await?;
        write::write_model(store, name, bytes, Vec::new(), &options, report).await?;
        Ok(Vec::new())
    }

    /// Fetches a model that is packaged in another way than Ollama's.
    async fn pull_package(
        &self,
        mut sources: Sources,
        store: &Arc<Store>,
        name: ModelName,
        package: Package,
        options: &Options,
        report: &Report,
    ) -> Result<Vec<Digest>, RegistryError> {
        let (at, package) = (store.clone(), Arc::new(package));
        let (asked, wanted) = (package.clone(), name.clone());
        if !blocking(move || Ok(asked.is_stored(&at, &wanted)?)).await? {
            let mut held = Held::new(store);
            let blobs = package.blobs();
            note(store, &name, blobs.clone()).await?;
            let blobs: Vec<_> =
                blobs.into_iter().map(|(digest, size)| Wanted::blob(digest, size)).collect();
            self.blobs(&mut sources, store, &blobs, report, &mut held).await?;
            tell(report, Progress::status("verifying sha256 digest")).await;
            tell(report, Progress::status("writing manifest")).await;
            let (at, keep, detect) =
                (store.clone(), options.keep_unused, self.settings().detect_template);
            return blocking(move || package.store(&at, &name, keep, detect)).await;
        }
        Ok(Vec::new())
    }

    /// Fetches the files of a model that the hub lists, and makes a model of them.
    async fn pull_listed(
        &self,
        session: Arc<Session>,
        store: &Arc<Store>,
        name: ModelName,
        model: HubModel,
        options: &Options,
        report: &Report,
    ) -> Result<Vec<Digest>, RegistryError> {
        let origin = model.origin(&session);
        let (at, wanted) = (store.clone(), (origin.digest(), name.clone()));
        if !blocking(move || Ok(is_made_of(&at, &wanted.1, &wanted.0)?)).await? {
            let file = |file: &HubFile| Wanted {
                digest: file.digest,
                size: file.size,
                url: Some(model.url(&session, file)),
            };
            let files: Vec<_> = model.files.iter().map(file).collect();
            note(store, &name, model.files.iter().map(|file| (file.digest, file.size)).collect())
                .await?;
            let mut held = Held::new(store);
            let mut sources =
                Sources { sessions: VecDeque::from([session.clone()]), missed: Vec::new() };
            self.blobs(&mut sources, store, &files, report, &mut held).await?;
            tell(report, Progress::status("verifying sha256 digest")).await;
            tell(report, Progress::status("writing manifest")).await;
            let (at, keep) = (store.clone(), options.keep_unused);
            return blocking(move || {
                let mut made = Made::default();
                for file in model.files {
                    let name = file.path.rsplit('/').next().unwrap_or(&file.path).to_owned();
                    made.file(name, file.digest)?;
                }
                made.made_of(&at, &origin)?;
                made.finish(&at, &name, keep)
            })
            .await;
        }
        Ok(Vec::new())
    }

    /// Bytes of blobs that are here, or arriving, or that a download which was broken off has left.
    pub async fn completed(&self, store: &Arc<Store>, blobs: &[(Digest, u64)]) -> u64 {
        let (at, blobs) = (store.clone(), blobs.to_vec());
        let left = move |(digest, size): (Digest, u64)| match at.has_blob(&digest) {
            true => size,
            // What cannot be read is not gone on from either.
            false => Table::of_store(&at, &digest, size).map_or(0, |table| table.completed()),
        };
        let judged = move || Ok(blobs.into_iter().map(|blob| (blob, left(blob))).collect());
        // A panic of that leaves nothing counted.
        let judged: Vec<_> = blocking(judged).await.unwrap_or_default();
        let here = |((digest, size), left): ((Digest, u64), u64)| {
            self.downloads().completed(store, digest).max(left).min(size)
        };
        judged.into_iter().map(here).fold(0, u64::saturating_add)
    }

    /// The manifest, from the first who has it, and everybody who may have its blobs from there on.
    pub(crate) async fn find(
        &self,
        name: &ModelName,
        options: &Options,
    ) -> Result<(Sources, Bytes), RegistryError> {
        match self.search(name, options, None).await? {
            Place::Manifest(sources, bytes) => Ok((sources, bytes)),
            Place::Listed(session, model) => {
                let origin = model.origin(&session).digest();
                let files = model.files.iter().map(|file| (file.digest, file.size)).collect();
                Err(RegistryError::Listed { origin, files })
            }
        }
    }

    /// The bytes of a blob, from the first who has it, and everybody who may have it from there on.
    pub(crate) async fn find_blob(
        &self,
        name: &ModelName,
        digest: &Digest,
        options: &Options,
    ) -> Result<(Sources, u64), RegistryError> {
        let limits = self.limits(options);
        let mut sessions = self.sessions(name, options, &limits)?;
        let mut missed: Vec<String> = Vec::new();
        loop {
            let Some(session) = sessions.front() else { return Err(RegistryError::NotFound) };
            let error = match session.blob_size(digest).await {
                Ok(size) => return Ok((Sources { sessions, missed }, size)),
                Err(error) => error,
            };
            if !session.is_mirror() || error.is_ours() {
                return Err(error.after_mirrors(&missed));
            }
            missed.push(format!("{}: {error}", session.host()));
            sessions.pop_front();
        }
    }

    /// Conversations with everybody who may have a model, in the order of asking.
    fn sessions(
        &self,
        name: &ModelName,
        options: &Options,
        limits: &[Arc<Limit>],
    ) -> Result<VecDeque<Arc<Session>>, RegistryError> {
        let endpoints = Endpoint::all(self.settings(), name, options)?.into_iter();
        endpoints
            .map(|endpoint| Ok(Arc::new(self.session(name, endpoint, options, limits)?)))
            .collect()
    }

    fn session(
        &self,
        name: &ModelName,
        endpoint: Endpoint,
        options: &Options,
        limits: &[Arc<Limit>],
    ) -> Result<Session, RegistryError> {
        Ok(Session::new(self, name.clone(), endpoint, limits)?.with_via(options))
    }

    /// The manifest, or what the hub lists instead. Who is to be told hears what is waited for.
    async fn search(
        &self,
        name: &ModelName,
        options: &Options,
        report: Option<&Report>,
    ) -> Result<Place, RegistryError> {
        let limits = self.limits(options);
        let mut sessions = self.sessions(name, options, &limits)?;
        let mut missed: Vec<String> = Vec::new();
        loop {
            let Some(session) = sessions.front() else { return Err(RegistryError::NotFound) };
            let mut found = watched(session, report, session.manifest()).await;
            // What answers everything with a page of its own is no mirror of this model.
            if session.is_mirror() {
                found = found.and_then(|bytes| is_of_a_model(&bytes).map(|()| bytes));
            }
            let error = match found {
                Ok(bytes) => return Ok(Place::Manifest(Sources { sessions, missed }, bytes)),
                Err(error) => error,
            };
            if session.endpoint().settings.hub && error.is_refusal_of_hub() {
                let listing = session.endpoint().listing();
                let hub = Arc::new(self.session(name, listing, options, &limits)?);
                match watched(&hub, report, hub.hub_model()).await {
                    Ok(model) => return Ok(Place::Listed(hub, model)),
                    // It says what there is instead.
                    Err(better @ RegistryError::NotAManifest(_)) => return Err(better),
                    Err(other) => tracing::debug!(error = %other, "the hub lists no files"),
                }
            }
            let Some(mirror) = session.is_mirror().then(|| session.host()) else {
                return Err(error.after_mirrors(&missed));
            };
            if error.is_ours() {
                return Err(error);
            }
            tracing::info!(%mirror, %name, %error, "a mirror does not have the model");
            missed.push(format!("{mirror}: {error}"));
            sessions.pop_front();
        }
    }

    pub(crate) async fn blobs(
        &self,
        sources: &mut Sources,
        store: &Arc<Store>,
        blobs: &[Wanted],
        report: &Report,
        held: &mut Held,
    ) -> Result<(), RegistryError> {
        let sizes = sizes(blobs)?;
        let at = store.clone();
        blocking(move || has_room(&at, sizes.into_iter().collect())).await?;
        let mut done = Vec::new();
        for Wanted { digest, size, url } in blobs {
            let (digest, size) = (*digest, *size);
            if done.contains(&digest) {
                continue;
            }
            done.push(digest);
            let at = store.clone();
            let is_there = blocking(move || Ok(at.hold_blob(&digest, size))).await?;
            held.digests.push(digest);
            if !is_there {
                self.blob(sources, store, digest, size, url.as_ref(), report).await?;
            }
            tell(report, Progress::blob("pulling", digest, size, size)).await;
        }
        Ok(())
    }

    async fn blob(
        &self,
        sources: &mut Sources,
        store: &Arc<Store>,
        digest: Digest,
        size: u64,
        url: Option<&Url>,
        report: &Report,
    ) -> Result<(), RegistryError> {
        if size == 0 {
            let at = store.clone();
            return blocking(move || Ok(at.blob_writer()?.finish(Some(&digest)).map(drop)?)).await;
        }
        let mut told = teller(report, digest, size);
        while let Some(session) = sources.first() {
            let url = url.cloned().unwrap_or_else(|| session.blob_url(&digest));
            let what = What { key: digest, verified: true, total: size, url };
            let fetched = self.downloads().fetch(session, store, &what, &mut told).await;
            let Err(error) = fetched else { return Ok(()) };
            if let RegistryError::DigestMismatch { .. } = error {
                tell(report, Progress::status("verifying sha256 digest")).await;
            }
            if error.is_ours() {
                return Err(error);
            }
            sources.pass(error)?;
        }
        Err(RegistryError::NotFound)
    }

    /// Has something downloaded, telling how far it is: its digest.
    pub(crate) async fn fetch_told(
        &self,
        session: &Arc<Session>,
        store: &Arc<Store>,
        what: &What,
        report: &Report,
    ) -> Result<Digest, RegistryError> {
        self.downloads().fetch(session, store, what, teller(report, what.key, what.total)).await
    }
}

/// What came of a pull; of one that failed for good and has left nothing, nobody goes on, so it is not noted any more.
pub(crate) async fn forgetting<T>(
    store: &Arc<Store>,
    name: &ModelName,
    pulled: Result<T, RegistryError>,
) -> Result<T, RegistryError> {
    if pulled.as_ref().is_err_and(RegistryError::is_final) {
        let (at, name) = (store.clone(), name.clone());
        let forgotten = blocking(move || {
            at.forget_failed_pull(&at.spelled(&name)?);
            Ok(())
        });
        if let Err(error) = forgotten.await {
            tracing::warn!(%error, "a failed pull is still noted");
        }
    }
    pulled
}

/// Does a part of a search, saying what is waited for to who wants to hear it.
async fn watched<T>(
    session: &Session,
    report: Option<&Report>,
    work: impl Future<Output = Result<T, RegistryError>>,
) -> Result<T, RegistryError> {
    match report {
        Some(report) => session.attended(report, work, || false).await,
        None => work.await,
    }
}

/// Notes of which blobs a model is being made, until it is.
pub(crate) async fn note(
    store: &Arc<Store>,
    name: &ModelName,
    blobs: Vec<(Digest, u64)>,
) -> Result<(), RegistryError> {
    let (store, name) = (store.clone(), name.clone());
    blocking(move || Ok(store.note_blobs(&name, &blobs)?)).await
}

/// Tells how much of a blob there is. What was told is never taken back, also where a download begins anew.
fn teller(report: &Report, digest: Digest, size: u64) -> impl FnMut(Told) {
    let (mut most, mut said) = (0, None);
    move |told: Told| {
        let completed = match told {
            Told::Completed(completed) => completed,
            Told::Waits(who) => {
                let _ = report.try_send(Progress::status(format!("{WAITING}{who}")));
                return;
            }
        };
        most = completed.max(most).min(size);
        if said != Some(most) {
            said = Some(most);
            let _ = report.try_send(Progress::blob("pulling", digest, size, most));
        }
    }
}

/// Where a model is.
enum Place {
    /// A registry describes it.
    Manifest(Sources, Bytes),
    /// The hub lists its files.
    Listed(Arc<Session>, HubModel),
}

/// A blob that is wanted.
pub(crate) struct Wanted {
    digest: Digest,
    size: u64,
    /// Where it is, if not where the registry's blobs are.
    url: Option<Url>,
}

impl Wanted {
    pub(crate) fn blob(digest: Digest, size: u64) -> Self {
        Self { digest, size, url: None }
    }
}

/// Everybody who may have a model's blobs, in the order of asking. Never empty: the registry itself is the last.
#[derive(Clone)]
pub(crate) struct Sources {
    sessions: VecDeque<Arc<Session>>,
    /// What those said who were asked before.
    missed: Vec<String>,
}

impl Sources {
    /// Goes on to the next after the first has failed.
    ///
    /// # Errors
    /// There is none: why the last one failed, and those before it.
    pub(crate) fn pass(&mut self, error: RegistryError) -> Result<(), RegistryError> {
        if self.sessions.len() <= 1 {
            return Err(error.after_mirrors(&self.missed));
        }
        if let Some(mirror) = self.sessions.pop_front().map(|session| session.host()) {
            tracing::warn!(%mirror, %error, "a mirror failed: going on with the next");
            self.missed.push(format!("{mirror}: {error}"));
        }
        Ok(())
    }

    pub(crate) fn first(&self) -> Option<&Arc<Session>> {
        self.sessions.front()
    }
}

/// Blobs that are kept from being cleared away until the manifest is stored, or the pull has failed.
pub(crate) struct Held {
    store: Arc<Store>,
    digests: Vec<Digest>,
}

impl Held {
    pub(crate) fn new(store: &Arc<Store>) -> Self {
        Self { store: store.clone(), digests: Vec::new() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.store.let_go(self.digests.drain(..));
    }
}

/// Whether a manifest can be read, in whichever way the model is packaged.
fn is_of_a_model(bytes: &[u8]) -> Result<(), RegistryError> {
    if is_manifest_list(bytes) {
        return list::read_list(bytes).map(drop);
    }
    match Package::read(bytes)? {
        Some(_) => Ok(()),
        None => read_manifest(bytes).map(drop),
    }
}

/// The blobs and their sizes, each of which has one.
fn sizes(blobs: &[Wanted]) -> Result<HashMap<Digest, u64>, RegistryError> {
    let mut sizes = HashMap::new();
    for &Wanted { digest, size, .. } in blobs {
        let first = *sizes.entry(digest).or_insert(size);
        if first != size {
            let reason = format!("the blob {digest} has two sizes, {first} and {size}");
            return Err(RegistryError::NotAManifest(reason).of_manifest());
        }
    }
    Ok(sizes)
}

/// Whether all that is missing of a model fits on the disk.
fn has_room(store: &Store, blobs: Vec<(Digest, u64)>) -> Result<(), RegistryError> {
    let absent = blobs.into_iter().filter(|(digest, size)| {
        !std::fs::metadata(store.blob_path(digest)).is_ok_and(|meta| meta.len() == *size)
    });
    let mut needed = 0u64;
    for (digest, size) in absent {
        needed =
            needed.saturating_add(size.saturating_sub(on_disk(store.partial(&digest)?.data())));
    }
    room(store, "the model", needed)
}

//! Pull: fetches the manifest, then its blobs one after another, then stores the manifest under the
//! model's name.

pub(crate) mod file_url;
mod manifest_list;
pub(crate) mod pull_through;
mod store_manifest;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use puna_store::{Digest, ModelName, ModelRef, NewModel, PartialPath, Store};
use reqwest::Url;

pub(crate) use manifest_list::describe_child;

use crate::Registry;
use crate::blocking::{blocking, with_store_guard};
use crate::client::endpoint::Endpoint;
use crate::client::rate_limit::RateLimit;
use crate::client::session::Session;
use crate::client::settings::{
    Options, Progress, Report, ReusableBlobs, WAITING_PREFIX, send_progress,
};
use crate::disk_space::{allocated_bytes, check_free_space};
use crate::download::range_table::RangeTable;
use crate::download::shared::DownloadUpdate;
use crate::download::source::DownloadSpec;
use crate::error::{ManifestProblem, RegistryError};
use crate::hub::{HubFile, HubModel};
use crate::manifest::{is_manifest_list, read_manifest};
use crate::packaging::{ModelBuilder, Package, is_created_from};

impl Registry {
    /// Fetches a model into the store, or updates a stored one. Dropping the future cancels the
    /// pull; a later pull resumes from the received bytes.
    ///
    /// # Errors
    /// An error of the registry or the store. The model under this name is still complete: the old
    /// one, or none.
    pub async fn pull(
        &self,
        store: &Arc<Store>,
        reference: &ModelRef,
        options: &Options,
        report: Report,
    ) -> Result<(), RegistryError> {
        self.check_pull(reference, options).await?;
        let pulled =
            with_store_guard(store, self.pull_model(store, reference, options, &report)).await;
        let pulled = forget_if_permanent(store, &reference.name, pulled).await;
        let packing_blobs =
            pulled.map_err(|error| self.error_for_caller(error, options, reference.name.host()))?;
        self.discard_packing_blobs(store, packing_blobs).await?;
        send_progress(&report, Progress::status("success")).await;
        Ok(())
    }

    /// Removes blobs that only packed files.
    pub(crate) async fn discard_packing_blobs(
        &self,
        store: &Arc<Store>,
        packing_blobs: Vec<Digest>,
    ) -> Result<(), RegistryError> {
        if packing_blobs.is_empty() {
            return Ok(());
        }
        let at = store.clone();
        blocking(move || Ok(at.discard_blobs(&packing_blobs)?)).await
    }

    /// Fetches and stores a model. Returns the blobs that only packed files.
    async fn pull_model(
        &self,
        store: &Arc<Store>,
        reference: &ModelRef,
        options: &Options,
        report: &Report,
    ) -> Result<Vec<Digest>, RegistryError> {
        send_progress(report, Progress::status("pulling manifest")).await;
        let (requested_name, at) = (reference.name.clone(), store.clone());
        let name = blocking(move || Ok(at.stored_spelling(&requested_name)?)).await?;
        let options = Options { insecure: options.insecure || reference.http, ..options.clone() };
        let location = self
            .search_sources(&name, &options, Some(report))
            .await
            .map_err(RegistryError::while_pulling_manifest)?;
        let (mut sources, bytes) = match location {
            PullSource::Manifest(sources, bytes) => (sources, bytes),
            PullSource::Files(session, model) => {
                return self.pull_listed(session, store, name, model, &options, report).await;
            }
        };
        if is_manifest_list(&bytes) {
            return self.pull_list(sources, store, name, bytes, &options, report).await;
        }
        manifest_list::check_stated_runner(&name, &bytes, &options)?;
        if let Some(package) =
            Package::read(&bytes).map_err(RegistryError::while_pulling_manifest)?
        {
            return self.pull_package(sources, store, name, package, &options, report).await;
        }
        let manifest = read_manifest(&bytes).map_err(RegistryError::while_pulling_manifest)?;

        let new = NewModel {
            name: name.clone(),
            blobs: manifest.blobs().map(|layer| (layer.digest, layer.size)).collect(),
            manifests: vec![bytes.len() as u64],
        };
        let (at, text) = (store.clone(), bytes.clone());
        let admitted = options.admit(&new).await?;
        blocking(move || Ok(at.record_pull(&new.name, &text)?)).await?;
        drop(admitted);
        let mut pinned = PinnedBlobs::new(store);
        let blobs: Vec<_> =
            manifest.blobs().map(|layer| BlobSpec::blob(layer.digest, layer.size)).collect();
        self.pull_blobs(&mut sources, store, &blobs, (&options, report), &mut pinned).await?;
        store_manifest::write_model(store, name, bytes, Vec::new(), &options, report).await?;
        Ok(Vec::new())
    }

    /// Fetches a model in another packaging format than Ollama's.
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
        let (stored_package, model_name) = (package.clone(), name.clone());
        if !blocking(move || Ok(stored_package.is_stored(&at, &model_name)?)).await? {
            let mut pinned = PinnedBlobs::new(store);
            let blobs = package.blobs();
            record_pull(store, NewModel::pulled(&name, blobs.clone()), options).await?;
            let blobs: Vec<_> =
                blobs.into_iter().map(|(digest, size)| BlobSpec::blob(digest, size)).collect();
            self.pull_blobs(&mut sources, store, &blobs, (options, report), &mut pinned).await?;
            send_progress(report, Progress::status("verifying sha256 digest")).await;
            send_progress(report, Progress::status("writing manifest")).await;
            let (at, keep, detect) =
                (store.clone(), options.keep_unused, self.settings().detect_template.clone());
            let executor = self.settings().executor.clone();
            return blocking(move || {
                package.store(&at, &name, keep, detect.as_deref(), executor.as_deref())
            })
            .await;
        }
        Ok(Vec::new())
    }

    /// Fetches the files of a model that Hugging Face lists, and creates a model from them.
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
        let (at, key) = (store.clone(), (origin.digest(), name.clone()));
        if !blocking(move || Ok(is_created_from(&at, &key.1, &key.0)?)).await? {
            let file = |file: &HubFile| BlobSpec {
                digest: file.digest,
                size: file.size,
                url: Some(model.url(&session, file)),
            };
            let files: Vec<_> = model.files.iter().map(file).collect();
            let blobs = model.files.iter().map(|file| (file.digest, file.size)).collect();
            record_pull(store, NewModel::pulled(&name, blobs), options).await?;
            let mut pinned = PinnedBlobs::new(store);
            let mut sources =
                Sources { sessions: VecDeque::from([session.clone()]), mirror_errors: Vec::new() };
            self.pull_blobs(&mut sources, store, &files, (options, report), &mut pinned).await?;
            send_progress(report, Progress::status("verifying sha256 digest")).await;
            send_progress(report, Progress::status("writing manifest")).await;
            let (at, keep) = (store.clone(), options.keep_unused);
            let executor = self.settings().executor.clone();
            return blocking(move || {
                let mut builder = ModelBuilder::default();
                for file in model.files {
                    let name = file.path.rsplit('/').next().unwrap_or(&file.path).to_owned();
                    builder.add_file(name, file.digest)?;
                }
                builder.set_source(&at, &origin)?;
                builder.create(&at, &name, keep, executor.as_deref())
            })
            .await;
        }
        Ok(Vec::new())
    }

    /// Completed bytes of blobs: stored, being downloaded, or left by an interrupted download.
    pub async fn completed(&self, store: &Arc<Store>, blobs: &[(Digest, u64)]) -> u64 {
        let (at, blobs) = (store.clone(), blobs.to_vec());
        let left = move |(digest, size): (Digest, u64)| match at.has_blob(&digest) {
            true => size,
            // Unreadable files of an interrupted download count as absent.
            false => {
                RangeTable::load_for_blob(&at, &digest, size).map_or(0, |table| table.completed())
            }
        };
        let left_by_earlier =
            move || Ok(blobs.into_iter().map(|blob| (blob, left(blob))).collect());
        // After a panic, nothing is counted.
        let left_by_earlier: Vec<_> = blocking(left_by_earlier).await.unwrap_or_default();
        let present = |((digest, size), left): ((Digest, u64), u64)| {
            self.downloads().completed(store, digest).max(left).min(size)
        };
        left_by_earlier.into_iter().map(present).fold(0, u64::saturating_add)
    }

    /// Fetches the manifest from the first endpoint that has it. The result includes the endpoints
    /// from there on, which may have the blobs.
    pub(crate) async fn find_manifest_sources(
        &self,
        name: &ModelName,
        options: &Options,
    ) -> Result<(Sources, Bytes), RegistryError> {
        match self.search_sources(name, options, None).await? {
            PullSource::Manifest(sources, bytes) => Ok((sources, bytes)),
            PullSource::Files(session, model) => {
                let origin = model.origin(&session).digest();
                let files = model.files.iter().map(|file| (file.digest, file.size)).collect();
                Err(RegistryError::FileListing { origin, files })
            }
        }
    }

    /// The size of a blob at the first endpoint that has it. The result includes the endpoints from
    /// there on.
    pub(crate) async fn find_blob(
        &self,
        name: &ModelName,
        digest: &Digest,
        options: &Options,
    ) -> Result<(Sources, u64), RegistryError> {
        let limits = self.rate_limits(options);
        let mut sessions = self.sessions(name, options, &limits)?;
        let mut mirror_errors: Vec<String> = Vec::new();
        loop {
            let Some(session) = sessions.front() else { return Err(RegistryError::NotFound) };
            let error = match session.blob_size(digest).await {
                Ok(size) => return Ok((Sources { sessions, mirror_errors }, size)),
                Err(error) => error,
            };
            if !session.is_mirror() || error.is_local() {
                return Err(error.with_mirror_errors(&mirror_errors));
            }
            mirror_errors.push(format!("{}: {error}", session.host()));
            sessions.pop_front();
        }
    }

    /// Sessions with all endpoints that may have a model, in the order of requests.
    fn sessions(
        &self,
        name: &ModelName,
        options: &Options,
        limits: &[Arc<RateLimit>],
    ) -> Result<VecDeque<Arc<Session>>, RegistryError> {
        let endpoints = Endpoint::candidates(self.settings(), name, options)?.into_iter();
        endpoints
            .map(|endpoint| Ok(Arc::new(self.session(name, endpoint, options, limits)?)))
            .collect()
    }

    fn session(
        &self,
        name: &ModelName,
        endpoint: Endpoint,
        options: &Options,
        limits: &[Arc<RateLimit>],
    ) -> Result<Session, RegistryError> {
        Session::new(self, name.clone(), endpoint, options, limits)
    }

    /// Finds the manifest, or the listing of Hugging Face. Reports when the search waits.
    async fn search_sources(
        &self,
        name: &ModelName,
        options: &Options,
        report: Option<&Report>,
    ) -> Result<PullSource, RegistryError> {
        let limits = self.rate_limits(options);
        let mut sessions = self.sessions(name, options, &limits)?;
        let mut mirror_errors: Vec<String> = Vec::new();
        loop {
            let Some(session) = sessions.front() else { return Err(RegistryError::NotFound) };
            let mut fetched = with_optional_notices(session, report, session.manifest()).await;
            // A mirror that answers everything with a page of its own does not have this model.
            if session.is_mirror() {
                fetched = fetched.and_then(|bytes| check_readable(&bytes).map(|()| bytes));
            }
            let error = match fetched {
                Ok(bytes) => {
                    return Ok(PullSource::Manifest(Sources { sessions, mirror_errors }, bytes));
                }
                Err(error) => error,
            };
            if session.endpoint().settings.hub && error.is_hub_refusal() {
                let listing = session.endpoint().hub_listing();
                let hub = Arc::new(self.session(name, listing, options, &limits)?);
                match with_optional_notices(&hub, report, hub.hub_model()).await {
                    Ok(model) => return Ok(PullSource::Files(hub, model)),
                    // This error lists the files of the repository.
                    Err(better @ RegistryError::NotAManifest(_)) => return Err(better),
                    Err(other) => {
                        tracing::debug!(error = %other, "cannot list the files of the repository")
                    }
                }
            }
            let Some(mirror) = session.is_mirror().then(|| session.host()) else {
                return Err(error.with_mirror_errors(&mirror_errors));
            };
            if error.is_local() {
                return Err(error);
            }
            tracing::info!(%mirror, %name, %error, "model not available from the mirror");
            mirror_errors.push(format!("{mirror}: {error}"));
            sessions.pop_front();
        }
    }

    pub(crate) async fn pull_blobs(
        &self,
        sources: &mut Sources,
        store: &Arc<Store>,
        blobs: &[BlobSpec],
        (options, report): (&Options, &Report),
        pinned: &mut PinnedBlobs,
    ) -> Result<(), RegistryError> {
        let sizes = unique_blob_sizes(blobs)?;
        let reusable = options.reusable_blobs(sizes.keys().copied()).await?;
        let (at, known) = (store.clone(), reusable.clone());
        blocking(move || check_disk_space(&at, sizes, &known)).await?;
        let mut done = Vec::new();
        for blob in blobs {
            let BlobSpec { digest, size, .. } = *blob;
            if done.contains(&digest) {
                continue;
            }
            done.push(digest);
            let (at, private_to) = (store.clone(), reusable.private_to(&digest));
            let is_there = blocking(move || Ok(at.pin_blob(&digest, size))).await?;
            pinned.digests.push(digest);
            if !is_there || private_to.is_some() {
                self.pull_blob(sources, store, blob, private_to, report).await?;
            }
            send_progress(report, Progress::blob("pulling", digest, size, size)).await;
        }
        Ok(())
    }

    async fn pull_blob(
        &self,
        sources: &mut Sources,
        store: &Arc<Store>,
        blob: &BlobSpec,
        private_to: Option<u64>,
        report: &Report,
    ) -> Result<(), RegistryError> {
        let (digest, size) = (blob.digest, blob.size);
        if size == 0 {
            let at = store.clone();
            return blocking(move || Ok(at.blob_writer()?.finish(Some(&digest)).map(drop)?)).await;
        }
        let mut update = progress_reporter(report, digest, size);
        while let Some(session) = sources.first() {
            let url = blob.url.clone().unwrap_or_else(|| session.blob_url(&digest));
            let spec = DownloadSpec { key: digest, verified: true, total: size, url, private_to };
            let fetched = self.downloads().fetch(session, store, &spec, &mut update).await;
            let Err(error) = fetched else { return Ok(()) };
            if let RegistryError::DigestMismatch { .. } = error {
                send_progress(report, Progress::status("verifying sha256 digest")).await;
            }
            if error.is_local() {
                return Err(error);
            }
            sources.advance_after(error)?;
        }
        Err(RegistryError::NotFound)
    }

    /// Downloads a file with progress reports. Returns its digest.
    pub(crate) async fn fetch_with_progress(
        &self,
        session: &Arc<Session>,
        store: &Arc<Store>,
        spec: &DownloadSpec,
        report: &Report,
    ) -> Result<Digest, RegistryError> {
        self.downloads()
            .fetch(session, store, spec, progress_reporter(report, spec.key, spec.total))
            .await
    }
}

/// Forgets the record of a pull that failed permanently and left nothing to resume. Returns the
/// pull's result.
pub(crate) async fn forget_if_permanent<T>(
    store: &Arc<Store>,
    name: &ModelName,
    pulled: Result<T, RegistryError>,
) -> Result<T, RegistryError> {
    if pulled.as_ref().is_err_and(RegistryError::is_permanent) {
        let (at, name) = (store.clone(), name.clone());
        let forgotten = blocking(move || {
            at.forget_failed_pull(&at.stored_spelling(&name)?);
            Ok(())
        });
        if let Err(error) = forgotten.await {
            tracing::warn!(%error, "cannot remove the record of a failed pull");
        }
    }
    pulled
}

/// Runs a part of a search, with notices if there is a channel for them.
async fn with_optional_notices<T>(
    session: &Session,
    report: Option<&Report>,
    work: impl Future<Output = Result<T, RegistryError>>,
) -> Result<T, RegistryError> {
    match report {
        Some(report) => session.with_waiting_notices(report, work, || false).await,
        None => work.await,
    }
}

/// Records the blobs of a model that is being pulled, until it is stored. The record keeps the
/// space that the options' admission grants.
pub(crate) async fn record_pull(
    store: &Arc<Store>,
    model: NewModel,
    options: &Options,
) -> Result<(), RegistryError> {
    let store = store.clone();
    let _admitted = options.admit(&model).await?;
    blocking(move || Ok(store.record_blobs(&model.name, &model.blobs)?)).await
}

/// Makes a callback that reports a blob's progress. Reported bytes never decrease, even if a
/// download restarts.
fn progress_reporter(report: &Report, digest: Digest, size: u64) -> impl FnMut(DownloadUpdate) {
    let (mut highest, mut reported) = (0, None);
    move |update: DownloadUpdate| {
        let completed = match update {
            DownloadUpdate::Completed(completed) => completed,
            DownloadUpdate::WaitingFor(who) => {
                let _ = report.try_send(Progress::status(format!("{WAITING_PREFIX}{who}")));
                return;
            }
        };
        highest = completed.max(highest).min(size);
        if reported != Some(highest) {
            reported = Some(highest);
            let _ = report.try_send(Progress::blob("pulling", digest, size, highest));
        }
    }
}

/// Where a model was found.
enum PullSource {
    /// An endpoint has a manifest.
    Manifest(Sources, Bytes),
    /// Hugging Face lists the files.
    Files(Arc<Session>, HubModel),
}

/// Blob to fetch.
pub(crate) struct BlobSpec {
    digest: Digest,
    size: u64,
    /// Its URL, if it is not a blob of the registry.
    url: Option<Url>,
}

impl BlobSpec {
    pub(crate) fn blob(digest: Digest, size: u64) -> Self {
        Self { digest, size, url: None }
    }
}

/// Endpoints that may have a model's blobs, in the order of requests. Never empty: the registry
/// itself is last.
#[derive(Clone)]
pub(crate) struct Sources {
    sessions: VecDeque<Arc<Session>>,
    /// Errors of the mirrors that were tried before.
    mirror_errors: Vec<String>,
}

impl Sources {
    /// Moves on to the next endpoint after an error of the first one.
    ///
    /// # Errors
    /// There is no other endpoint. The error includes the errors of the mirrors.
    pub(crate) fn advance_after(&mut self, error: RegistryError) -> Result<(), RegistryError> {
        if self.sessions.len() <= 1 {
            return Err(error.with_mirror_errors(&self.mirror_errors));
        }
        if let Some(mirror) = self.sessions.pop_front().map(|session| session.host()) {
            tracing::warn!(%mirror, %error, "mirror failed; continuing with the next registry");
            self.mirror_errors.push(format!("{mirror}: {error}"));
        }
        Ok(())
    }

    pub(crate) fn first(&self) -> Option<&Arc<Session>> {
        self.sessions.front()
    }
}

/// Blobs that are pinned against garbage collection until the manifest is stored or the pull has
/// failed.
pub(crate) struct PinnedBlobs {
    store: Arc<Store>,
    digests: Vec<Digest>,
}

impl PinnedBlobs {
    pub(crate) fn new(store: &Arc<Store>) -> Self {
        Self { store: store.clone(), digests: Vec::new() }
    }
}

impl Drop for PinnedBlobs {
    fn drop(&mut self) {
        self.store.unpin_blobs(self.digests.drain(..));
    }
}

/// Checks that a manifest can be read in one of the packaging formats.
fn check_readable(bytes: &[u8]) -> Result<(), RegistryError> {
    if is_manifest_list(bytes) {
        return manifest_list::read_list(bytes).map(drop);
    }
    match Package::read(bytes)? {
        Some(_) => Ok(()),
        None => read_manifest(bytes).map(drop),
    }
}

/// The blobs by digest. Refuses a blob with two sizes.
fn unique_blob_sizes(blobs: &[BlobSpec]) -> Result<HashMap<Digest, u64>, RegistryError> {
    let mut sizes = HashMap::new();
    for &BlobSpec { digest, size, .. } in blobs {
        let first = *sizes.entry(digest).or_insert(size);
        if first != size {
            let problem = ManifestProblem::BlobSizes { digest, first, second: size };
            return Err(RegistryError::from(problem).while_pulling_manifest());
        }
    }
    Ok(sizes)
}

/// Checks that the disk has space for the bytes of a model that a pull downloads.
fn check_disk_space(
    store: &Store,
    blobs: HashMap<Digest, u64>,
    reusable: &ReusableBlobs,
) -> Result<(), RegistryError> {
    let mut needed = 0u64;
    for (digest, size) in blobs {
        let private_to = reusable.private_to(&digest);
        let partial_path = private_to.map_or(PartialPath::Primary, PartialPath::Private);
        let is_stored =
            || std::fs::metadata(store.blob_path(&digest)).is_ok_and(|meta| meta.len() == size);
        if partial_path == PartialPath::Primary && is_stored() {
            continue;
        }
        let partial = store.partial_at(&digest, partial_path)?;
        needed = needed.saturating_add(size.saturating_sub(allocated_bytes(partial.data())));
    }
    check_free_space(store, "the model", needed)
}

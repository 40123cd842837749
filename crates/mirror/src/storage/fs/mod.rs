//! File system driver: stores everything in a model directory.

pub(crate) mod blobs;
pub(crate) mod inventory;
mod list_models;
pub(crate) mod manifest_lists;
mod manifests;
mod metadata_usage;
mod notes;
#[cfg(all(test, unix))]
mod race_tests;
pub(crate) mod registry_dir;
pub(crate) mod trash;
pub(crate) mod uploads;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use puna_store::{Digest, Entry, ModelName, Store, last_use};

use list_models::{blobs_of, children_of};
use notes::FileNotes;
use registry_dir::RegistryDir;
use uploads::UploadSessions;

use super::{Blob, BlobStore, InventoryScope, ManifestStore, ObjectInventory, Storage};
use crate::blocking::{StorageFuture, blocking};
use crate::error::MirrorError;
use crate::integrity::IntegrityChecker;
use crate::storage::collection_rules::BLOB_GRACE_PERIOD;
use crate::storage::note_store::{NoteStore, SIZE_NOTE_REFRESH, expired_size_notes};
use crate::types::manifest::{Descriptor, Manifest};
use crate::types::repository::{Reference, Repository};
use crate::types::storage_usage::NamespaceUsages;
use crate::types::stored_object::{ConditionalRemoval, StoredObject, TagEntry};

/// How long damaged blobs are kept.
const DAMAGED_RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Storage in a model directory: models in the store, everything else in the registry directory.
pub struct FileStorage {
    registry: RegistryDir,
    uploads: UploadSessions,
    checks: IntegrityChecker,
    usage_log: FileNotes,
}

impl FileStorage {
    /// Creates the storage of a store. No directory is made before the first write.
    pub fn new(store: Arc<Store>) -> Self {
        let registry = RegistryDir::new(store);
        let usage_log = FileNotes::new(registry.clone(), registry.usage_log());
        Self {
            checks: IntegrityChecker::new(registry.clone()),
            uploads: UploadSessions::new(registry.clone()),
            registry,
            usage_log,
        }
    }

    /// Runs work with the registry directory on a blocking thread.
    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&RegistryDir) -> Result<T, MirrorError> + Send + 'static,
    ) -> Result<T, MirrorError> {
        let registry = self.registry.clone();
        blocking(move || work(&registry)).await
    }
}

impl RegistryDir {
    /// Removes pushed blobs that no manifest references, a day after they arrived. Blobs of models
    /// have a hard link in the store by then. Returns number and bytes of the removed blobs.
    pub(crate) fn sweep(&self) -> Result<(usize, u64), MirrorError> {
        // Without a registry directory, no lock file is created.
        if !self.exists() {
            return Ok((0, 0));
        }
        let _lock = self.lock_writes()?;
        let Some(mut blobs_in_use) = self.blobs_in_use() else { return Ok((0, 0)) };
        blobs_in_use.extend(self.recently_pushed()?);
        let (mut removed, mut bytes) = (0, 0);
        for name in registry_dir::file_names(&self.blobs())? {
            let path = self.blobs().join(&name);
            let Ok(meta) = fs::metadata(&path) else { continue };
            if age(&path).is_some_and(|age| age > BLOB_GRACE_PERIOD)
                && name.parse().map_or(true, |digest| !blobs_in_use.contains(&digest))
                && self.move_to_trash(&path, &name)?
            {
                (removed, bytes) = (removed + 1, bytes + meta.len());
            }
        }
        self.remove_old_push_marks()?;
        self.remove_old_size_notes()?;
        self.remove_old_damaged()?;
        self.empty_trash()?;
        Ok((removed, bytes))
    }

    /// Returns recently pushed blobs. Their files may be older than the push.
    fn recently_pushed(&self) -> Result<Vec<Digest>, MirrorError> {
        let mut digests = Vec::new();
        for dir_name in registry_dir::file_names(&self.pushed_marks())? {
            let Some(name) = Repository::from_dir_name(&dir_name) else { continue };
            let dir = self.pushed_marks().join(&dir_name);
            for mark in registry_dir::file_names(&dir)? {
                if age(&dir.join(&mark)).is_some_and(|age| age <= BLOB_GRACE_PERIOD) {
                    let object = StoredObject::from_push_mark(name.clone(), &mark);
                    digests.extend(
                        object
                            .into_iter()
                            .flat_map(|object| object.blobs)
                            .map(|(digest, _)| digest),
                    );
                }
            }
        }
        Ok(digests)
    }

    /// Removes damaged blobs after [`DAMAGED_RETENTION`].
    fn remove_old_damaged(&self) -> Result<(), MirrorError> {
        for name in registry_dir::file_names(&self.damaged())? {
            let path = self.damaged().join(name);
            // The metadata of a link itself, not of its target.
            let put = fs::symlink_metadata(&path).and_then(|meta| last_use(&meta)).ok();
            if put.is_none_or(|put| elapsed_since(put) > DAMAGED_RETENTION) {
                registry_dir::remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Removes push marks whose grace period is over.
    fn remove_old_push_marks(&self) -> Result<(), MirrorError> {
        for name in registry_dir::file_names(&self.pushed_marks())? {
            let dir = self.pushed_marks().join(name);
            for mark in registry_dir::file_names(&dir)? {
                if age(&dir.join(&mark)).is_none_or(|age| age > BLOB_GRACE_PERIOD) {
                    registry_dir::remove_file(&dir.join(mark))?;
                }
            }
            let _ = fs::remove_dir(dir);
        }
        Ok(())
    }

    /// Removes expired size notes.
    fn remove_old_size_notes(&self) -> Result<(), MirrorError> {
        let mut notes = Vec::new();
        for dir_name in registry_dir::file_names(&self.sizes())? {
            for name in registry_dir::file_names(&self.sizes().join(&dir_name))? {
                // A note without a modification time counts as old.
                let age = age(&self.sizes().join(&dir_name).join(&name)).unwrap_or(Duration::MAX);
                notes.push((dir_name.clone(), name, age));
            }
        }
        self.remove_size_notes(expired_size_notes(notes))
    }

    /// Removes expired size notes, except those that were written again since.
    fn remove_size_notes(&self, notes: Vec<(String, String)>) -> Result<(), MirrorError> {
        for (dir_name, name) in notes {
            let dir = self.sizes().join(dir_name);
            let path = dir.join(name);
            if age(&path).is_none_or(|age| age > SIZE_NOTE_REFRESH) {
                registry_dir::remove_file(&path)?;
            }
            // This fails if the directory has other notes.
            let _ = fs::remove_dir(dir);
        }
        Ok(())
    }

    /// Returns the manifests in a scope, and blobs that were recently pushed there.
    fn stored_objects(&self, scope: &InventoryScope) -> Result<Vec<StoredObject>, MirrorError> {
        let is_wanted = |name: &Repository| scope.contains(name);
        let models = self.store.list()?.into_iter().filter(|entry| !entry.is_embedded());
        let of_model = |entry: Entry| {
            let name = Repository::from_model_name(&entry.name).filter(&is_wanted)?;
            let (blobs, children) = (blobs_of(&entry), children_of(&entry));
            let manifest = Some(entry.digest);
            let (subject, written) = (None, Some(entry.modified));
            Some(StoredObject { name, manifest, blobs, is_model: true, children, subject, written })
        };
        let mut stored_objects: Vec<StoredObject> = models.filter_map(of_model).collect();
        for dir_name in registry_dir::file_names(&self.repositories())? {
            let Some(name) = Repository::from_dir_name(&dir_name).filter(&is_wanted) else {
                continue;
            };
            stored_objects.extend(self.stored_manifests_of(&name)?);
        }
        for dir_name in registry_dir::file_names(&self.pushed_marks())? {
            let Some(name) = Repository::from_dir_name(&dir_name).filter(&is_wanted) else {
                continue;
            };
            let marks = registry_dir::file_names(&self.pushed_marks().join(&dir_name))?;
            stored_objects.extend(
                marks.iter().filter_map(|mark| StoredObject::from_push_mark(name.clone(), mark)),
            );
        }
        Ok(stored_objects)
    }

    /// Whether a manifest of a repository references a blob, or the blob was recently pushed there.
    /// Reads no other repository.
    fn references_blob_in(&self, name: &Repository, digest: &Digest) -> Result<bool, MirrorError> {
        let marks = registry_dir::file_names(&self.pushed_marks().join(name.dir_name()))?;
        let pushed =
            marks.iter().filter_map(|mark| StoredObject::from_push_mark(name.clone(), mark));
        if pushed.chain(self.stored_manifests_of(name)?).any(|object| object.has_blob(digest)) {
            return Ok(true);
        }
        let has = |entry: &Entry| entry.blobs().any(|layer| layer.digest == *digest);
        Ok(self.tagged_models(name)?.iter().any(has))
    }

    /// Returns the manifests of a repository in the registry directory.
    pub(crate) fn stored_manifests_of(
        &self,
        name: &Repository,
    ) -> Result<Vec<StoredObject>, MirrorError> {
        let mut stored = Vec::new();
        for hex in registry_dir::file_names(&self.manifests(name))? {
            let path = self.manifests(name).join(hex);
            // The time is read before the content, so that a concurrent write counts as a change.
            let written = registry_dir::modified_time(&path);
            let Some(bytes) = registry_dir::read_small_file(&path)? else { continue };
            stored.push(StoredObject::from_manifest(
                name.clone(),
                &Manifest::parse(bytes.into(), None)?,
                written,
            ));
        }
        Ok(stored)
    }
}

/// Time since a file was changed.
fn age(path: &Path) -> Option<Duration> {
    fs::metadata(path).and_then(|meta| meta.modified()).ok().map(elapsed_since)
}

fn elapsed_since(at: SystemTime) -> Duration {
    SystemTime::now().duration_since(at).unwrap_or_default()
}

impl From<FileStorage> for Storage {
    fn from(driver: FileStorage) -> Self {
        let uploads = Arc::new(driver.uploads.clone());
        let driver = Arc::new(driver);
        Self { manifests: driver.clone(), blobs: driver.clone(), uploads, inventory: driver }
    }
}

impl ManifestStore for FileStorage {
    fn manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
    ) -> StorageFuture<'a, Option<Manifest>> {
        let (name, reference) = (name.clone(), reference.clone());
        Box::pin(self.run_blocking(move |registry| registry.manifest(&name, &reference)))
    }

    fn put_manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
        manifest: Manifest,
    ) -> StorageFuture<'a, Option<Entry>> {
        let (name, reference) = (name.clone(), reference.clone());
        Box::pin(
            self.run_blocking(move |registry| registry.put_manifest(&name, &reference, &manifest)),
        )
    }

    fn put_upstream_list<'a>(
        &'a self,
        name: &'a Repository,
        tag: &'a str,
        manifest: Manifest,
    ) -> StorageFuture<'a, ()> {
        let (name, tag) = (name.clone(), tag.to_owned());
        Box::pin(
            self.run_blocking(move |registry| registry.put_upstream_list(&name, &tag, &manifest)),
        )
    }

    fn lists_containing<'a>(
        &'a self,
        name: &'a Repository,
        child: Digest,
    ) -> StorageFuture<'a, Vec<Digest>> {
        let name = name.clone();
        Box::pin(self.run_blocking(move |registry| registry.lists_containing(&name, &child)))
    }

    fn referrers<'a>(
        &'a self,
        name: &'a Repository,
        subject: Digest,
    ) -> StorageFuture<'a, Vec<Descriptor>> {
        let name = name.clone();
        Box::pin(self.run_blocking(move |registry| registry.referrers_of(&name, &subject)))
    }

    fn tags<'a>(&'a self, name: &'a Repository) -> StorageFuture<'a, Option<Vec<String>>> {
        let name = name.clone();
        Box::pin(self.run_blocking(move |registry| registry.tags_of(&name)))
    }

    fn remove_manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
    ) -> StorageFuture<'a, bool> {
        let (name, reference) = (name.clone(), reference.clone());
        Box::pin(self.run_blocking(move |registry| registry.remove_manifest(&name, &reference)))
    }

    fn remove_unchanged(
        &self,
        removals: Vec<ConditionalRemoval>,
    ) -> StorageFuture<'_, Vec<Result<bool, MirrorError>>> {
        Box::pin(self.run_blocking(move |registry| registry.remove_unchanged(&removals)))
    }
}

impl BlobStore for FileStorage {
    fn blob(&self, digest: Digest) -> StorageFuture<'_, Option<Box<dyn Blob>>> {
        let checks = self.checks.clone();
        Box::pin(self.run_blocking(move |registry| {
            let blob = registry.open_blob(&digest, &checks)?;
            Ok(blob.map(|blob| Box::new(blob) as Box<dyn Blob>))
        }))
    }

    /// Also protects the blob from garbage collection like a pushed one.
    fn mount<'a>(&'a self, name: &'a Repository, digest: Digest) -> StorageFuture<'a, bool> {
        let name = name.clone();
        Box::pin(self.run_blocking(move |registry| registry.mount(&name, &digest)))
    }

    fn remove_blob(&self, digest: Digest) -> StorageFuture<'_, bool> {
        Box::pin(self.run_blocking(move |registry| registry.remove_blob(&digest)))
    }

    fn references_blob<'a>(
        &'a self,
        name: &'a Repository,
        digest: Digest,
    ) -> StorageFuture<'a, bool> {
        let name = name.clone();
        Box::pin(self.run_blocking(move |registry| registry.references_blob_in(&name, &digest)))
    }
}

impl ObjectInventory for FileStorage {
    fn repositories(&self) -> StorageFuture<'_, Vec<Repository>> {
        Box::pin(self.run_blocking(RegistryDir::all_repositories))
    }

    fn tag_entries(&self) -> StorageFuture<'_, Vec<TagEntry>> {
        Box::pin(self.run_blocking(RegistryDir::tag_entries))
    }

    fn stored_objects(&self, scope: InventoryScope) -> StorageFuture<'_, Vec<StoredObject>> {
        Box::pin(self.run_blocking(move |registry| registry.stored_objects(&scope)))
    }

    fn metadata_usage(&self, scope: InventoryScope) -> StorageFuture<'_, NamespaceUsages> {
        Box::pin(self.run_blocking(move |registry| registry.metadata_usage(&scope)))
    }

    fn pulled_blobs(&self, scope: InventoryScope) -> StorageFuture<'_, Vec<(Digest, u64)>> {
        Box::pin(self.run_blocking(move |registry| {
            let is_wanted = |name: &ModelName| {
                Repository::from_model_name(name).is_some_and(|name| scope.contains(&name))
            };
            let pulls = registry.store.pulls()?.into_iter().filter(|pull| is_wanted(&pull.name));
            Ok(pulls.flat_map(|pull| pull.reserved_blobs()).collect())
        }))
    }

    fn collect_garbage(&self) -> StorageFuture<'_, ()> {
        Box::pin(async move {
            let uploads = self.uploads.clone();
            blocking(move || uploads.remove_expired()).await?;
            let (removed, bytes) = self.run_blocking(RegistryDir::sweep).await?;
            if removed > 0 {
                tracing::info!(removed, bytes, "removed unreferenced blobs");
            }
            Ok(())
        })
    }

    fn damaged_blob_count(&self) -> u64 {
        self.checks.damaged_blob_count()
    }

    fn usage_notes(&self) -> &dyn NoteStore {
        &self.usage_log
    }

    fn size_notes(&self, name: &Repository) -> Box<dyn NoteStore> {
        let dir = self.registry.sizes().join(name.dir_name());
        Box::new(FileNotes::new(self.registry.clone(), dir))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// Runs a future while the only blocking thread is busy.
    async fn assert_uses_blocking_thread<T>(work: impl Future<Output = Result<T, MirrorError>>) {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || wait.recv());
        let mut work = Box::pin(work);
        assert!((&mut work).now_or_never().is_none());
        drop(go);
        let _ = busy.await;
        work.await.unwrap();
    }

    #[test]
    fn requests_do_not_block_on_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let storage =
            || Storage::from(FileStorage::new(Arc::new(Store::open(dir.path()).unwrap())));
        let name = Repository::parse("a/b").unwrap();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let id = storage().uploads.begin(&name, "").await.unwrap();
            // After a restart, the state of uploads is only on the disk.
            let storage = storage();
            assert_uses_blocking_thread(storage.uploads.begin(&name, "")).await;
            assert_uses_blocking_thread(storage.uploads.size(&name, &id)).await;
            assert_uses_blocking_thread(storage.uploads.cancel(&name, &id)).await;
            assert_uses_blocking_thread(storage.inventory.collect_garbage()).await;
        });
    }

    #[test]
    fn size_notes_written_again_during_cleanup_stay() {
        let dir = tempfile::tempdir().unwrap();
        let registry = RegistryDir::new(Arc::new(Store::open(dir.path()).unwrap()));
        let path = |name: &str| registry.sizes().join("a+b").join(name);
        fs::create_dir_all(path("")).unwrap();
        for name in ["old", "again"] {
            fs::write(path(name), "[]").unwrap();
            let file = fs::File::options().append(true).open(path(name)).unwrap();
            file.set_modified(SystemTime::now() - 40 * SIZE_NOTE_REFRESH).unwrap();
        }
        let of = |name: &str| ("a+b".to_owned(), name.to_owned());
        // The notes expire before one of them is written again.
        fs::write(path("again"), "[]").unwrap();
        registry.remove_size_notes(vec![of("old"), of("again"), of("gone")]).unwrap();
        assert_eq!(registry_dir::file_names(&path("")).unwrap(), ["again"]);
    }
}

//! The library in a folder of models.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use puna_store::{Digest, Entry, Store, last_use};

use super::checks::Checks;
use super::folder::{self, Folder};
use super::list_models::{blobs_of, children_of};
use super::notes::FolderNotes;
use super::uploads::Uploads;
use super::{Blob, Library, Part};
use crate::error::MirrorError;
use crate::holding::{Doomed, Holding, Shown};
use crate::id::UploadId;
use crate::manifest::{Descriptor, Manifest};
use crate::name::{Reference, Repository};
use crate::notes::{AGAIN, Notes, outdated};
use crate::waiting::{Answer, blocking};

/// How long a pushed blob may wait for its manifest.
pub(crate) const GRACE: Duration = Duration::from_secs(24 * 60 * 60);

/// How long damaged blobs are kept.
const LOOKED_AT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// What a store holds, and beside it what was pushed and is no model.
pub struct StoreLibrary {
    folder: Folder,
    uploads: Uploads,
    checks: Checks,
    history: FolderNotes,
}

impl StoreLibrary {
    /// The library of a store. Nothing is made before somebody pushes.
    pub fn new(store: Arc<Store>) -> Self {
        let folder = Folder::new(store);
        let history = FolderNotes::new(folder.clone(), folder.history());
        Self { checks: Checks::new(folder.clone()), folder, uploads: Uploads::default(), history }
    }

    /// Does something with the folder on a thread that may wait for the disk.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Folder) -> Result<T, MirrorError> + Send + 'static,
    ) -> Result<T, MirrorError> {
        let folder = self.folder.clone();
        blocking(move || work(&folder)).await
    }
}

impl Folder {
    /// Removes pushed blobs that no manifest needs, a day after they came. Those of models are the store's by then.
    pub(super) fn sweep(&self) -> Result<(usize, u64), MirrorError> {
        // Who has nothing to clear away makes no folder for a lock.
        if !self.is_there() {
            return Ok((0, 0));
        }
        let _changes = self.changes()?;
        let Some(mut needed) = self.needed() else { return Ok((0, 0)) };
        needed.extend(self.just_brought()?);
        let (mut removed, mut bytes) = (0, 0);
        for name in folder::names(&self.blobs())? {
            let path = self.blobs().join(&name);
            let Ok(meta) = fs::metadata(&path) else { continue };
            if age(&path).is_some_and(|age| age > GRACE)
                && name.parse().map_or(true, |digest| !needed.contains(&digest))
                && self.move_to_trash(&path, &name)?
            {
                (removed, bytes) = (removed + 1, bytes + meta.len());
            }
        }
        self.forget_brought()?;
        self.forget_sizes()?;
        self.forget_damaged()?;
        self.empty_trash()?;
        Ok((removed, bytes))
    }

    /// Blobs that may wait for a manifest, though their files may be older than that.
    fn just_brought(&self) -> Result<Vec<Digest>, MirrorError> {
        let mut brought = Vec::new();
        for folder in folder::names(&self.brought())? {
            let Some(name) = Repository::of_folder(&folder) else { continue };
            let dir = self.brought().join(&folder);
            for mark in folder::names(&dir)? {
                if age(&dir.join(&mark)).is_some_and(|age| age <= GRACE) {
                    let held = Holding::of_mark(name.clone(), &mark);
                    brought.extend(
                        held.into_iter().flat_map(|held| held.blobs).map(|(digest, _)| digest),
                    );
                }
            }
        }
        Ok(brought)
    }

    /// Removes damaged blobs once somebody has had the time to look at them.
    fn forget_damaged(&self) -> Result<(), MirrorError> {
        for name in folder::names(&self.damaged())? {
            let path = self.damaged().join(name);
            // A link's own: what it leads to is not ours.
            let put = fs::symlink_metadata(&path).and_then(|meta| last_use(&meta)).ok();
            if put.is_none_or(|put| since(put) > LOOKED_AT) {
                folder::remove(&path)?;
            }
        }
        Ok(())
    }

    /// Removes what says who has brought blobs, once they are a manifest's or gone.
    fn forget_brought(&self) -> Result<(), MirrorError> {
        for name in folder::names(&self.brought())? {
            let dir = self.brought().join(name);
            for mark in folder::names(&dir)? {
                if age(&dir.join(&mark)).is_none_or(|age| age > GRACE) {
                    folder::remove(&dir.join(mark))?;
                }
            }
            let _ = fs::remove_dir(dir);
        }
        Ok(())
    }

    /// Removes notes of sizes that are old, or too many.
    fn forget_sizes(&self) -> Result<(), MirrorError> {
        let mut notes = Vec::new();
        for folder in folder::names(&self.sizes())? {
            for name in folder::names(&self.sizes().join(&folder))? {
                // What the system does not date is old.
                let age = age(&self.sizes().join(&folder).join(&name)).unwrap_or(Duration::MAX);
                notes.push((folder.clone(), name, age));
            }
        }
        self.forget_outdated(outdated(notes))
    }

    /// Removes notes of sizes that were old, but for what has been written again since then.
    fn forget_outdated(&self, notes: Vec<(String, String)>) -> Result<(), MirrorError> {
        for (folder, name) in notes {
            let dir = self.sizes().join(folder);
            let path = dir.join(name);
            if age(&path).is_none_or(|age| age > AGAIN) {
                folder::remove(&path)?;
            }
            // Unless there are others.
            let _ = fs::remove_dir(dir);
        }
        Ok(())
    }

    /// The manifests of some repositories, and blobs that were brought there a short while ago.
    fn holdings(
        &self,
        is_wanted: impl Fn(&Repository) -> bool,
    ) -> Result<Vec<Holding>, MirrorError> {
        let models = self.store.list()?.into_iter().filter(|entry| !entry.is_embedded());
        let of_model = |entry: Entry| {
            let name = Repository::of_model(&entry.name).filter(&is_wanted)?;
            let (blobs, children) = (blobs_of(&entry), children_of(&entry));
            let manifest = Some(entry.digest);
            let (subject, written) = (None, Some(entry.modified));
            Some(Holding { name, manifest, blobs, is_model: true, children, subject, written })
        };
        let mut holdings: Vec<Holding> = models.filter_map(of_model).collect();
        for folder in folder::names(&self.repositories())? {
            let Some(name) = Repository::of_folder(&folder).filter(&is_wanted) else { continue };
            holdings.extend(self.kept_of(&name)?);
        }
        for folder in folder::names(&self.brought())? {
            let Some(name) = Repository::of_folder(&folder).filter(&is_wanted) else { continue };
            let marks = folder::names(&self.brought().join(&folder))?;
            holdings.extend(marks.iter().filter_map(|mark| Holding::of_mark(name.clone(), mark)));
        }
        Ok(holdings)
    }

    /// Whether a manifest of a repository needs a blob, or it was brought there. Nothing of others is read.
    fn needs_in(&self, name: &Repository, digest: &Digest) -> Result<bool, MirrorError> {
        let marks = folder::names(&self.brought().join(name.folder()))?;
        let brought = marks.iter().filter_map(|mark| Holding::of_mark(name.clone(), mark));
        if brought.chain(self.kept_of(name)?).any(|held| held.has(digest)) {
            return Ok(true);
        }
        let has = |entry: &Entry| entry.blobs().any(|layer| layer.digest == *digest);
        Ok(self.tagged_models(name)?.iter().any(has))
    }

    /// The manifests of a repository in the registry's folder.
    pub(crate) fn kept_of(&self, name: &Repository) -> Result<Vec<Holding>, MirrorError> {
        let mut kept = Vec::new();
        for hex in folder::names(&self.manifests(name))? {
            let path = self.manifests(name).join(hex);
            // Before its bytes: what is written between the two counts as another one.
            let written = folder::written(&path);
            let Some(bytes) = folder::read(&path)? else { continue };
            kept.push(Holding::of_manifest(
                name.clone(),
                &Manifest::parse(bytes.into(), None)?,
                written,
            ));
        }
        Ok(kept)
    }
}

/// How long ago a file was changed.
fn age(path: &Path) -> Option<Duration> {
    fs::metadata(path).and_then(|meta| meta.modified()).ok().map(since)
}

fn since(at: SystemTime) -> Duration {
    SystemTime::now().duration_since(at).unwrap_or_default()
}

impl Library for StoreLibrary {
    fn manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
    ) -> Answer<'a, Option<Manifest>> {
        let (name, reference) = (name.clone(), reference.clone());
        Box::pin(self.with(move |folder| folder.manifest(&name, &reference)))
    }

    fn put_manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
        manifest: Manifest,
    ) -> Answer<'a, Option<Entry>> {
        let (name, reference) = (name.clone(), reference.clone());
        Box::pin(self.with(move |folder| folder.put_manifest(&name, &reference, &manifest)))
    }

    fn put_upstream_list<'a>(
        &'a self,
        name: &'a Repository,
        tag: &'a str,
        manifest: Manifest,
    ) -> Answer<'a, ()> {
        let (name, tag) = (name.clone(), tag.to_owned());
        Box::pin(self.with(move |folder| folder.put_upstream_list(&name, &tag, &manifest)))
    }

    fn lists_with<'a>(&'a self, name: &'a Repository, child: Digest) -> Answer<'a, Vec<Digest>> {
        let name = name.clone();
        Box::pin(self.with(move |folder| folder.lists_with(&name, &child)))
    }

    fn land<'a>(
        &'a self,
        _: &'a Repository,
        _: &'a Reference,
        _: Manifest,
        _: &'a Store,
    ) -> Answer<'a, bool> {
        // It is fetched to where it stays.
        Box::pin(async { Ok(false) })
    }

    fn remove_manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
    ) -> Answer<'a, bool> {
        let (name, reference) = (name.clone(), reference.clone());
        Box::pin(self.with(move |folder| folder.remove_manifest(&name, &reference)))
    }

    fn retire(&self, doomed: Vec<Doomed>) -> Answer<'_, Vec<Result<bool, MirrorError>>> {
        Box::pin(self.with(move |folder| folder.retire(&doomed)))
    }

    fn notes(&self) -> &dyn Notes {
        &self.history
    }

    fn sizes(&self, name: &Repository) -> Box<dyn Notes> {
        let dir = self.folder.sizes().join(name.folder());
        Box::new(FolderNotes::new(self.folder.clone(), dir))
    }

    fn tags<'a>(&'a self, name: &'a Repository) -> Answer<'a, Option<Vec<String>>> {
        let name = name.clone();
        Box::pin(self.with(move |folder| folder.tags_of(&name)))
    }

    fn holdings(&self) -> Answer<'_, Vec<Holding>> {
        Box::pin(self.with(|folder| folder.holdings(|_| true)))
    }

    fn holdings_in<'a>(&'a self, namespace: &'a str) -> Answer<'a, Vec<Holding>> {
        let namespace = namespace.to_owned();
        Box::pin(self.with(move |folder| folder.holdings(|name| name.is_in(&namespace))))
    }

    fn holdings_of<'a>(&'a self, name: &'a Repository) -> Answer<'a, Vec<Holding>> {
        let name = name.clone();
        Box::pin(self.with(move |folder| folder.holdings(|other| *other == name)))
    }

    fn needs<'a>(&'a self, name: &'a Repository, digest: Digest) -> Answer<'a, bool> {
        let name = name.clone();
        Box::pin(self.with(move |folder| folder.needs_in(&name, &digest)))
    }

    fn repositories(&self) -> Answer<'_, Vec<Repository>> {
        Box::pin(self.with(Folder::all_repositories))
    }

    fn referrers<'a>(
        &'a self,
        name: &'a Repository,
        subject: Digest,
    ) -> Answer<'a, Vec<Descriptor>> {
        let name = name.clone();
        Box::pin(self.with(move |folder| folder.referrers_of(&name, &subject)))
    }

    fn blob(&self, digest: Digest) -> Answer<'_, Option<Box<dyn Blob>>> {
        let checks = self.checks.clone();
        Box::pin(self.with(move |_| {
            let blob = checks.open(&digest)?;
            Ok(blob.map(|blob| Box::new(blob) as Box<dyn Blob>))
        }))
    }

    fn remove_blob(&self, digest: Digest) -> Answer<'_, bool> {
        Box::pin(self.with(move |folder| folder.remove_blob(&digest)))
    }

    fn shown(&self) -> Answer<'_, Vec<Shown>> {
        Box::pin(self.with(Folder::shown))
    }

    fn lost(&self) -> u64 {
        self.checks.lost()
    }

    fn tidy(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let uploads = self.uploads.clone();
            self.with(move |folder| uploads.clear(folder)).await?;
            let (removed, bytes) = self.with(Folder::sweep).await?;
            if removed > 0 {
                tracing::info!(removed, bytes, "blobs that no manifest needs were removed");
            }
            Ok(())
        })
    }

    fn mount<'a>(&'a self, name: &'a Repository, digest: Digest) -> Answer<'a, bool> {
        let name = name.clone();
        Box::pin(self.with(move |folder| folder.mount(&name, &digest)))
    }

    fn begin<'a>(&'a self, name: &'a Repository, owner: &'a str) -> Answer<'a, UploadId> {
        let (uploads, name, owner) = (self.uploads.clone(), name.clone(), owner.to_owned());
        Box::pin(self.with(move |folder| uploads.begin(folder, &name, &owner)))
    }

    fn uploaded<'a>(&'a self, name: &'a Repository, id: &'a UploadId) -> Answer<'a, u64> {
        Box::pin(self.uploads.uploaded(&self.folder, name, id))
    }

    fn append<'a>(&'a self, name: &'a Repository, id: &'a UploadId, part: Part) -> Answer<'a, u64> {
        Box::pin(self.uploads.append(&self.folder, name, id, part))
    }

    fn finish<'a>(
        &'a self,
        name: &'a Repository,
        id: &'a UploadId,
        digest: Digest,
    ) -> Answer<'a, ()> {
        Box::pin(self.uploads.finish(&self.folder, name, id, digest))
    }

    fn cancel<'a>(&'a self, name: &'a Repository, id: &'a UploadId) -> Answer<'a, ()> {
        Box::pin(self.uploads.cancel(&self.folder, name, id))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::manifest::OCI_MANIFEST;

    /// Does something while the one thread that may wait for the disk is busy.
    async fn waits_elsewhere<T>(work: impl Future<Output = Result<T, MirrorError>>) {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || wait.recv());
        let mut work = Box::pin(work);
        assert!((&mut work).now_or_never().is_none());
        drop(go);
        let _ = busy.await;
        work.await.unwrap();
    }

    #[test]
    fn nobody_who_answers_waits_for_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let library = || StoreLibrary::new(Arc::new(Store::open(dir.path()).unwrap()));
        let name = Repository::parse("a/b").unwrap();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let id = library().begin(&name, "").await.unwrap();
            // As after a restart: what is known of it lies on the disk.
            let library = library();
            waits_elsewhere(library.begin(&name, "")).await;
            waits_elsewhere(library.uploaded(&name, &id)).await;
            waits_elsewhere(library.cancel(&name, &id)).await;
            waits_elsewhere(library.tidy()).await;
        });
    }

    #[test]
    fn a_note_of_sizes_that_is_written_again_while_others_are_cleared_away_stays() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(Arc::new(Store::open(dir.path()).unwrap()));
        let path = |name: &str| folder.sizes().join("a+b").join(name);
        fs::create_dir_all(path("")).unwrap();
        for name in ["old", "again"] {
            fs::write(path(name), "[]").unwrap();
            let file = fs::File::options().append(true).open(path(name)).unwrap();
            file.set_modified(SystemTime::now() - 40 * AGAIN).unwrap();
        }
        let of = |name: &str| ("a+b".to_owned(), name.to_owned());
        // They were seen to be old before one is written again.
        fs::write(path("again"), "[]").unwrap();
        folder.forget_outdated(vec![of("old"), of("again"), of("gone")]).unwrap();
        assert_eq!(folder::names(&path("")).unwrap(), ["again"]);
    }

    #[test]
    fn blobs_without_a_manifest_go_after_a_day() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(Arc::new(Store::open(dir.path()).unwrap()));
        fs::create_dir_all(folder.blobs()).unwrap();
        let pushed = |content: &[u8], age: Duration| {
            let digest = Digest::of(content);
            fs::write(folder.blob(&digest), content).unwrap();
            let file = fs::File::options().append(true).open(folder.blob(&digest)).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
            digest
        };
        let (kept, old, new) =
            (pushed(b"kept", 2 * GRACE), pushed(b"old", 2 * GRACE), pushed(b"new", GRACE / 2));
        let text = format!(
            r#"{{"mediaType":"{OCI_MANIFEST}","layers":[{{"mediaType":"x","digest":"{kept}","size":4}}]}}"#
        );
        let manifest = Manifest::parse(text.into_bytes().into(), None).unwrap();
        let name = Repository::parse("a/b").unwrap();
        folder.put_manifest(&name, &Reference::Tag("t".into()), &manifest).unwrap();
        fs::File::options()
            .append(true)
            .open(folder.blob(&kept))
            .unwrap()
            .set_modified(SystemTime::now() - 2 * GRACE)
            .unwrap();
        assert_eq!(folder.sweep().unwrap(), (1, 3));
        let there = [kept, old, new].map(|digest| folder.blob(&digest).exists());
        assert_eq!(there, [true, false, true]);
        assert!(folder.remove_manifest(&name, &Reference::Digest(manifest.digest)).unwrap());
        assert_eq!(folder.tags_of(&name).unwrap(), None);
        assert_eq!(folder.sweep().unwrap(), (1, 4));
    }
}

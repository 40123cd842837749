//! Writes and removes model names so that every version of Ollama that shares the folder sees them.
//!
//! In a store with `manifests-v2`, a name is a link to its manifest, and an *anchor* in
//! `manifests`. The anchor is the manifest that older versions run, with extra layers. They keep
//! older versions from removing the manifest, its list, and the blobs of the list's other children.
//! The anchor is written first and removed last, so that all versions see the name at any moment.
//! In a store without `manifests-v2`, a name is its manifest in `manifests`, or the anchor of its
//! manifest list.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::anchor::with_layers;
use crate::digest::Digest;
use crate::entry::{Entry, NameDocument, StoreLocation, child_text, entry_of};
use crate::error::StoreError;
use crate::files::{self, TempFile};
use crate::fingerprint::same_file;
use crate::manifest::{Layer, media};
use crate::manifest_list::ManifestDocument;
use crate::name::ModelName;
use crate::name_files::{NameFile, NameFolder, is_shadow, remove_empty_folders};
use crate::references::{check_readable, references_of};
use crate::store::{DeleteOutcome, Store};
use crate::trash::TrashBatch;

impl Store {
    /// Whether names are links to blobs, as Ollama 0.40 writes them.
    fn is_linked(&self) -> bool {
        NameFolder::ManifestsV2.at(self.root()).is_dir()
    }

    /// Writes a manifest or manifest list under the store's lock. All blobs of the chosen manifest
    /// must exist. Then removes the blobs that only the replaced manifest referenced, unless
    /// `keep_unused`.
    pub(crate) fn write_manifest(
        &self,
        name: &ModelName,
        bytes: &[u8],
        keep_unused: bool,
    ) -> Result<(), StoreError> {
        self.replace_manifest(name, bytes, keep_unused, &mut || ()).map(drop)
    }

    /// Like [`Store::write_manifest`]. Calls `on_remove` before blobs are removed. Returns the
    /// replaced entry.
    pub(crate) fn replace_manifest(
        &self,
        name: &ModelName,
        bytes: &[u8],
        keep_unused: bool,
        on_remove: &mut dyn FnMut(),
    ) -> Result<Option<Entry>, StoreError> {
        let plain = NameFile {
            name: name.clone(),
            folder: NameFolder::Manifests,
            path: NameFolder::Manifests.path(self.root(), name),
        };
        if is_shadow(name) {
            return Err(StoreError::ShadowName { name: name.to_string() });
        }
        let error = |reason| StoreError::Manifest { path: plain.path.clone(), reason };
        let document = ManifestDocument::parse(bytes).map_err(error)?;
        let _lock = self.lock()?;
        let new = self.new_entry(&plain, bytes, document.clone())?;
        for layer in new.manifest.blobs() {
            self.layer_path(layer)?;
        }
        check_readable(self.root(), bytes).map_err(error)?;
        let old_files = NameFile::all_of(self.root(), name)?;
        let replaced = self.find_own(name).ok().flatten();
        let needed = self.references_of_files(&old_files);
        let record =
            if keep_unused || needed.is_empty() { None } else { self.record_removal(&needed)? };
        let written = self.write_name(&plain, bytes, &new)?;
        for old in old_files.iter().filter(|old| !written.contains(&old.path)) {
            files::remove(&old.path)?;
            remove_empty_folders(self.root(), &old.path);
        }
        let new_blobs: Vec<Digest> = new.blobs().map(|layer| layer.digest).collect();
        let manifests =
            new.list.iter().flat_map(|list| &list.children).map(|stored| stored.child.digest);
        let all: Vec<Digest> =
            new_blobs.iter().copied().chain(manifests).chain([new.digest]).collect();
        self.remove_stored_blob_records(all.iter().copied());
        self.pins.unpin(all);
        if keep_unused {
            // Loaded models may still read these blobs. Garbage collection removes them later.
            self.record_removal(&needed)?;
            return Ok(replaced);
        }
        let old_blobs = replaced.iter().flat_map(Entry::blobs);
        if old_blobs.into_iter().any(|layer| !new_blobs.contains(&layer.digest)) {
            on_remove();
        }
        // `remove_unreferenced` logs why blobs stay.
        let written = replaced.as_ref().map(|entry| entry.modified);
        let records: Vec<PathBuf> = record.into_iter().collect();
        let _ = self.remove_unreferenced(&needed, &records, written, &mut TrashBatch::new(self))?;
        Ok(replaced)
    }

    /// The entry that a manifest or manifest list will be.
    fn new_entry(
        &self,
        file: &NameFile,
        bytes: &[u8],
        document: ManifestDocument,
    ) -> Result<Entry, StoreError> {
        let named =
            NameDocument { digest: Digest::of(bytes), modified: SystemTime::now(), document };
        entry_of(self.root(), file, named, StoreLocation::Own, self.runner())
    }

    /// Writes the files of a name. Returns their paths.
    fn write_name(
        &self,
        plain: &NameFile,
        bytes: &[u8],
        new: &Entry,
    ) -> Result<Vec<PathBuf>, StoreError> {
        let is_linked = self.is_linked();
        if !is_linked && new.list.is_none() {
            self.write_model_file(&plain.path, bytes)?;
            return Ok(vec![plain.path.clone()]);
        }
        self.add_manifest(bytes)?;
        let anchor = self.anchor(bytes, new)?;
        self.write_model_file(&plain.path, &anchor)?;
        let mut written = vec![plain.path.clone()];
        if is_linked {
            let path = NameFolder::ManifestsV2.path(self.root(), &plain.name);
            self.link_name(&path, &new.digest)?;
            written.push(path);
        }
        Ok(written)
    }

    /// Makes the name at `path` a link to the blob of its manifest: a symbolic link, else a hard
    /// link, else a copy.
    fn link_name(&self, path: &Path, digest: &Digest) -> Result<(), StoreError> {
        let dir = path.parent().unwrap_or(Path::new("."));
        self.create_model_dir(dir)?;
        // Ollama treats files with this prefix as temporary.
        let temp = dir.join(format!(".manifest-{}", TempFile::new_name()));
        let blob = self.own_blob_path(digest);
        let up: PathBuf = path
            .strip_prefix(self.root())
            .unwrap_or(path)
            .components()
            .skip(1)
            .map(|_| "..")
            .collect();
        let relative = up.join("blobs").join(digest.file_name());
        let made = files::symlink(&relative, &temp).or_else(|_| fs::hard_link(&blob, &temp));
        let made = made.or_else(|_| fs::copy(&blob, &temp).map(drop));
        // If the folder of names is itself a link, the relative path leads elsewhere.
        let made = made.and_then(|()| match same_file(&temp, &blob) || !temp.is_symlink() {
            true => Ok(()),
            false => {
                fs::remove_file(&temp).and_then(|()| files::symlink(&blob.canonicalize()?, &temp))
            }
        });
        let renamed = files::fault_point().and(made).and_then(|()| files::fault_point());
        renamed.and_then(|()| fs::rename(&temp, path)).map_err(|e| {
            if !files::crashed() {
                let _ = fs::remove_file(&temp);
            }
            StoreError::io("write", path, &e)
        })?;
        files::sync_dir(dir);
        Ok(())
    }

    /// The anchor of a name in `manifests`: the manifest that older versions of Ollama run, with
    /// layers that keep the name's other blobs.
    fn anchor(&self, bytes: &[u8], new: &Entry) -> Result<Vec<u8>, StoreError> {
        let of_blob = |media_type: &str, digest: Digest| {
            let size = fs::metadata(self.own_blob_path(&digest)).map_or(0, |meta| meta.len());
            Layer::new(media_type, digest, size)
        };
        let (mut text, mut anchors) = (bytes.to_vec(), Vec::new());
        match &new.list {
            None => anchors.push(of_blob(media::MANIFEST, new.digest)),
            Some(list) => {
                let chosen = &list.children[list.chosen];
                text = child_text(self.root(), &new.name, chosen)?;
                anchors.push(of_blob(media::MANIFEST_LIST, new.digest));
                for (at, stored) in list.children.iter().enumerate() {
                    let Some(manifest) = &stored.manifest else { continue };
                    if stored.child.inline.is_none() {
                        anchors.push(of_blob(media::MANIFEST, stored.child.digest));
                    }
                    let is_there = |layer: &&Layer| self.own_blob_path(&layer.digest).is_file();
                    let others = manifest.blobs().filter(|_| at != list.chosen).filter(is_there);
                    anchors.extend(
                        others.map(|layer| {
                            Layer::new(media::RETAINED_BLOB, layer.digest, layer.size)
                        }),
                    );
                }
            }
        }
        with_layers(&text, &anchors).ok_or_else(|| StoreError::NoWeights(new.name.to_string()))
    }

    /// Removes a model, and the blobs that no other model references.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::BuiltIn`], or the store cannot be written.
    pub fn delete(&self, name: &ModelName) -> Result<DeleteOutcome, StoreError> {
        if self.removable_files(name)?.is_empty() {
            return Err(self.not_removable(name));
        }
        let _lock = self.lock()?;
        // Read the files again under the lock.
        let found = self.removable_files(name)?;
        if found.is_empty() {
            return Err(self.not_removable(name));
        }
        let entry = self.find_own(name).ok().flatten();
        let needed = self.references_of_files(&found);
        let record = self.record_removal(&needed)?;
        let mut trash = TrashBatch::new(self);
        self.remove_name_files(&found, &mut trash)?;
        // The time of an unreadable name is unknown.
        let written = entry.map_or(SystemTime::UNIX_EPOCH, |entry| entry.modified);
        let records: Vec<PathBuf> = record.into_iter().collect();
        let blocked_by = self.remove_unreferenced(&needed, &records, Some(written), &mut trash)?;
        Ok(DeleteOutcome { blocked_by, trash_error: trash.first_error() })
    }

    /// The files of a name that may be removed: not the tags by which Ollama keeps converted models
    /// for older versions.
    fn removable_files(&self, name: &ModelName) -> Result<Vec<NameFile>, StoreError> {
        let mut found = NameFile::all_of(self.root(), name)?;
        found.retain(|file| file.folder == NameFolder::ManifestsV2 || !is_shadow(name));
        Ok(found)
    }

    /// Removes the files of a name, the link before the anchor, so that the name stays valid in
    /// between.
    pub(crate) fn remove_name_files(
        &self,
        found: &[NameFile],
        trash: &mut TrashBatch<'_>,
    ) -> Result<(), StoreError> {
        for file in found {
            trash.remove(&file.path)?;
            remove_empty_folders(self.root(), &file.path);
        }
        Ok(())
    }

    /// The blobs that the readable files of a name reference.
    pub(crate) fn references_of_files(&self, found: &[NameFile]) -> HashSet<Digest> {
        found.iter().filter_map(|file| references_of(self.root(), file).ok()).flatten().collect()
    }

    /// The error for a name without files in the own folder: it is in another folder, embedded, or
    /// absent.
    fn not_removable(&self, name: &ModelName) -> StoreError {
        match self.find(name) {
            Ok(Some(Entry { name, location: StoreLocation::ReadOnly(folder), .. })) => {
                StoreError::ReadOnly { name: name.to_string(), folder }
            }
            Ok(Some(entry)) => StoreError::BuiltIn { name: entry.name.to_string() },
            Ok(None) => StoreError::NotFound(name.to_string()),
            Err(StoreError::Manifest { path, reason }) => {
                let folder = self.read_only_dirs().iter().find(|folder| path.starts_with(folder));
                match folder {
                    Some(folder) => {
                        StoreError::ReadOnly { name: name.to_string(), folder: folder.clone() }
                    }
                    None => StoreError::Manifest { path, reason },
                }
            }
            Err(error) => error,
        }
    }
}

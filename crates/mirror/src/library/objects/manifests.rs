//! Manifests and tags in a bucket.

use std::time::SystemTime;

use object_store::path::Path;
use puna_store::Digest;

use super::bucket::Entry;
use super::{ObjectLibrary, blob_key, each};
use crate::error::MirrorError;
use crate::holding::{Shown, Whose};
use crate::library::store::GRACE;
use crate::manifest::Manifest;
use crate::name::{Reference, Repository};

impl ObjectLibrary {
    pub(super) fn folder(&self, name: &Repository) -> Path {
        self.bucket.key(["repositories", &name.folder()])
    }

    pub(super) fn manifest_key(&self, name: &Repository, digest: &Digest) -> Path {
        self.folder(name).join("manifests").join(digest.hex())
    }

    pub(super) fn tag_key(&self, name: &Repository, tag: &str) -> Path {
        self.folder(name).join("tags").join(tag)
    }

    /// The digest that a tag stands for.
    pub(super) async fn tagged(
        &self,
        name: &Repository,
        tag: &str,
    ) -> Result<Option<Digest>, MirrorError> {
        Ok(self.tagged_version(name, tag).await?.map(|(digest, _)| digest))
    }

    /// The same, and in which version of it.
    async fn tagged_version(
        &self,
        name: &Repository,
        tag: &str,
    ) -> Result<Option<(Digest, String)>, MirrorError> {
        let Some((text, version)) = self.bucket.read_version(&self.tag_key(name, tag)).await?
        else {
            return Ok(None);
        };
        let digest = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok());
        Ok(digest.map(|digest| (digest, version)))
    }

    /// What says that a manifest is about another one.
    pub(super) fn referrer_key(
        &self,
        name: &Repository,
        subject: &Digest,
        digest: &Digest,
    ) -> Path {
        self.folder(name).join("referrers").join(subject.hex()).join(digest.hex())
    }

    /// A manifest of a repository.
    pub(super) async fn kept(
        &self,
        name: &Repository,
        digest: &Digest,
    ) -> Result<Option<Manifest>, MirrorError> {
        let key = self.manifest_key(name, digest);
        if let Some(known) = self.manifests.get(digest) {
            // Another repository may have it, and this one not, or not any more.
            return Ok(self.bucket.age(&key).await?.map(|_| known));
        }
        self.read_manifest(&key, digest).await
    }

    async fn read_manifest(
        &self,
        key: &Path,
        digest: &Digest,
    ) -> Result<Option<Manifest>, MirrorError> {
        let Some(bytes) = self.bucket.read(key).await? else { return Ok(None) };
        let manifest = Manifest::parse(bytes, None)?;
        if manifest.digest != *digest {
            tracing::error!(%key, "this manifest has been changed in the bucket: it is not served");
            return Ok(None);
        }
        self.manifests.put(*digest, manifest.clone());
        Ok(Some(manifest))
    }

    /// Keeps a manifest.
    pub(super) async fn keep(
        &self,
        name: &Repository,
        reference: &Reference,
        manifest: Manifest,
    ) -> Result<(), MirrorError> {
        self.hold(&manifest).await?;
        self.check_children(name, &manifest).await?;
        // Those of them that are here, as whoever pushes a list was told.
        let listed = manifest.children.iter().copied();
        let listed = each(listed, |child| async move { self.kept(name, &child).await }).await?;
        let key = self.manifest_key(name, &manifest.digest);
        let is_new = self.bucket.age(&key).await?.is_none();
        self.note_children(name, &manifest).await?;
        self.bucket.write(&key, manifest.bytes.clone()).await?;
        // Another mirror may have cleared a blob away between the two, which it does with old ones alone.
        if let Err(error) = self.hold(&manifest).await {
            // One that was there before stays, and so does one of which the service only did not say.
            if is_new && matches!(error, MirrorError::ManifestBlobUnknown(_)) {
                self.bucket.remove(&key).await?;
                self.forget_children(name, &manifest).await?;
            }
            return Err(error);
        }
        self.write_references(name, reference, &manifest).await?;
        self.outlast(name, reference, &manifest, listed).await
    }

    /// Keeps a manifest list of an upstream, of which nothing else need be here yet.
    pub(super) async fn keep_list(
        &self,
        name: &Repository,
        tag: &str,
        manifest: Manifest,
    ) -> Result<(), MirrorError> {
        let reference = Reference::Tag(tag.to_owned());
        self.note_children(name, &manifest).await?;
        self.bucket
            .write(&self.manifest_key(name, &manifest.digest), manifest.bytes.clone())
            .await?;
        self.write_references(name, &reference, &manifest).await?;
        self.outlast(name, &reference, &manifest, Vec::new()).await
    }

    /// Writes what leads to a manifest: its subject's entry, and its tag.
    async fn write_references(
        &self,
        name: &Repository,
        reference: &Reference,
        manifest: &Manifest,
    ) -> Result<(), MirrorError> {
        if let Some(subject) = &manifest.subject {
            self.bucket.write(&self.referrer_key(name, subject, &manifest.digest), "").await?;
        }
        if let Reference::Tag(tag) = reference {
            self.bucket.write(&self.tag_key(name, tag), manifest.digest.to_string()).await?;
        }
        Ok(())
    }

    /// Sees to it that the blobs of a manifest are here and stay for a while.
    async fn hold(&self, manifest: &Manifest) -> Result<(), MirrorError> {
        let hold = |digest: Digest| async move {
            let key = blob_key(&self.bucket, &digest);
            match self.bucket.age(&key).await? {
                Some(age) if age < GRACE / 2 => Ok(Some(())),
                _ => match self.bucket.read(&key).await? {
                    Some(place) => self.bucket.write(&key, place).await.map(Some),
                    None => Err(MirrorError::ManifestBlobUnknown(digest)),
                },
            }
        };
        let digests: Vec<_> = manifest.blobs.iter().map(|blob| blob.digest).collect();
        each(digests, hold).await.map(drop)
    }

    /// Removes a tag, or a manifest with its tags. Says whether there was one.
    pub(super) async fn forget(
        &self,
        name: &Repository,
        reference: &Reference,
    ) -> Result<bool, MirrorError> {
        match reference {
            Reference::Tag(tag) => {
                let key = self.tag_key(name, tag);
                let there = self.bucket.age(&key).await?.is_some();
                self.bucket.remove(&key).await?;
                Ok(there)
            }
            Reference::Digest(digest) => {
                let Some(manifest) = self.kept(name, digest).await? else { return Ok(false) };
                self.check_no_list_needs(name, digest).await?;
                // The tags first: one that stands for nothing would be an error.
                for Entry { name: tag, .. } in
                    self.bucket.entries(&self.folder(name).join("tags")).await?
                {
                    if self.tagged(name, &tag).await? == Some(*digest) {
                        self.bucket.remove(&self.tag_key(name, &tag)).await?;
                    }
                }
                if let Some(subject) = &manifest.subject {
                    self.bucket.remove(&self.referrer_key(name, subject, digest)).await?;
                }
                self.bucket.remove(&self.manifest_key(name, digest)).await?;
                self.forget_children(name, &manifest).await?;
                Ok(true)
            }
        }
    }

    /// What an object of a list says that a tag stands for.
    pub(super) async fn known_tag(
        &self,
        name: &Repository,
        tag: &Entry,
    ) -> Result<Option<Digest>, MirrorError> {
        let known = (self.tag_key(name, &tag.name).to_string(), tag.version.clone());
        if let Some(digest) = self.tags.get(&known) {
            return Ok(Some(digest));
        }
        let Some((digest, version)) = self.tagged_version(name, &tag.name).await? else {
            return Ok(None);
        };
        // It may have moved since it was listed, and may move back.
        if version == tag.version {
            self.tags.put(known, digest);
        }
        Ok(Some(digest))
    }

    pub(super) async fn all_repositories(&self) -> Result<Vec<Repository>, MirrorError> {
        let folders = self.bucket.folders(&self.bucket.key(["repositories"])).await?;
        Ok(folders.iter().filter_map(|name| Repository::of_folder(name)).collect())
    }

    /// Something of each manifest that some repositories have. All folders are listed before: a repository alone has too few manifests to ask for many
    /// at a time.
    pub(super) async fn of_manifests<T>(
        &self,
        is_wanted: impl Fn(&Repository) -> bool,
        work: impl Fn(Repository, Manifest, SystemTime) -> T + Sync,
    ) -> Result<Vec<T>, MirrorError> {
        let mut names = self.all_repositories().await?;
        names.retain(is_wanted);
        let list = |name: Repository| async move {
            let entries = self.bucket.entries(&self.folder(&name).join("manifests")).await?;
            Ok(Some(entries.into_iter().map(move |entry| (name.clone(), entry))))
        };
        let entries = each(names, list).await?.into_iter().flatten();
        let work = &work;
        let read = |(name, entry): (Repository, Entry)| async move {
            let kept = self.listed(&name, &entry).await?;
            Ok(kept.map(|kept| work(name, kept, entry.written)))
        };
        each(entries, read).await
    }

    /// The manifests of a repository that are named in a folder.
    pub(super) async fn manifests_in(
        &self,
        name: &Repository,
        folder: &Path,
    ) -> Result<Vec<Manifest>, MirrorError> {
        let read = |entry: Entry| async move { self.entry(name, &entry).await };
        each(self.bucket.entries(folder).await?, read).await
    }

    /// The manifest that an object of the repository's list of them is.
    pub(super) async fn listed(
        &self,
        name: &Repository,
        entry: &Entry,
    ) -> Result<Option<Manifest>, MirrorError> {
        let Ok(digest) = format!("sha256:{}", entry.name).parse() else { return Ok(None) };
        match self.manifests.get(&digest) {
            // It is there: the list says so.
            Some(known) => Ok(Some(known)),
            None => self.read_manifest(&self.manifest_key(name, &digest), &digest).await,
        }
    }

    /// The manifest of a repository that an entry of another folder names.
    async fn entry(
        &self,
        name: &Repository,
        entry: &Entry,
    ) -> Result<Option<Manifest>, MirrorError> {
        match format!("sha256:{}", entry.name).parse() {
            Ok(digest) => self.kept(name, &digest).await,
            Err(_) => Ok(None),
        }
    }

    pub(super) async fn all_tags(&self) -> Result<Vec<Shown>, MirrorError> {
        let names = self.all_repositories().await?;
        let list = |name: Repository| async move {
            let tags = self.bucket.entries(&self.folder(&name).join("tags")).await?;
            Ok(Some(tags.into_iter().map(move |tag| (name.clone(), tag))))
        };
        let tags = each(names, list).await?.into_iter().flatten();
        each(tags, |(name, tag)| async move { self.shown_tag(&name, tag).await }).await
    }

    async fn shown_tag(&self, name: &Repository, tag: Entry) -> Result<Option<Shown>, MirrorError> {
        let Some(digest) = self.known_tag(name, &tag).await? else { return Ok(None) };
        let written = Some(tag.written);
        // What the page shows need not be asked for again: a tag stands for a manifest that is there.
        let manifest = match self.manifests.get(&digest) {
            Some(known) => Some(known),
            None => self.kept(name, &digest).await?,
        };
        let Some(manifest) = manifest else { return Ok(None) };
        let size = self.size_of(name, &manifest).await?;
        let (name, whose) = (name.clone(), Whose::Registry);
        Ok(Some(Shown { name, tag: tag.name, digest, size, completed: None, whose, written }))
    }
}

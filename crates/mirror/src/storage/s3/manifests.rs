//! Manifests and tags in a bucket.

use std::time::SystemTime;

use object_store::path::Path;
use puna_store::Digest;

use super::blob_location::blob_key;
use super::bucket::ObjectInfo;
use super::{S3Storage, map_concurrently};
use crate::error::MirrorError;
use crate::storage::collection_rules::BLOB_GRACE_PERIOD;
use crate::types::manifest::Manifest;
use crate::types::repository::{Reference, Repository};
use crate::types::stored_object::{Owner, TagEntry};

impl S3Storage {
    pub(super) fn repository_key(&self, name: &Repository) -> Path {
        self.bucket.key(["repositories", &name.dir_name()])
    }

    pub(super) fn manifest_key(&self, name: &Repository, digest: &Digest) -> Path {
        self.repository_key(name).join("manifests").join(digest.hex())
    }

    pub(super) fn tag_key(&self, name: &Repository, tag: &str) -> Path {
        self.repository_key(name).join("tags").join(tag)
    }

    /// Returns the digest that a tag points to.
    pub(super) async fn tag_digest(
        &self,
        name: &Repository,
        tag: &str,
    ) -> Result<Option<Digest>, MirrorError> {
        Ok(self.tag_version(name, tag).await?.map(|(digest, _)| digest))
    }

    /// Returns the digest that a tag points to, and the version of the tag object.
    async fn tag_version(
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

    /// Key that records that a manifest refers to another one.
    pub(super) fn referrer_key(
        &self,
        name: &Repository,
        subject: &Digest,
        digest: &Digest,
    ) -> Path {
        self.repository_key(name).join("referrers").join(subject.hex()).join(digest.hex())
    }

    /// Returns a manifest of a repository.
    pub(super) async fn stored_manifest(
        &self,
        name: &Repository,
        digest: &Digest,
    ) -> Result<Option<Manifest>, MirrorError> {
        let key = self.manifest_key(name, digest);
        if let Some(cached) = self.manifests.get(digest) {
            // The cache is shared by all repositories, so the object in this one must exist.
            return Ok(self.bucket.age(&key).await?.map(|_| cached));
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
            tracing::error!(%key, "manifest does not match its digest; not serving it");
            return Ok(None);
        }
        self.manifests.put(*digest, manifest.clone());
        Ok(Some(manifest))
    }

    /// Stores a manifest.
    pub(super) async fn store_manifest(
        &self,
        name: &Repository,
        reference: &Reference,
        manifest: Manifest,
    ) -> Result<(), MirrorError> {
        self.refresh_blobs(&manifest).await?;
        self.check_children(name, &manifest).await?;
        // The present children of a list, which may have to be restored after a removal.
        let children = manifest.children.iter().copied();
        let children =
            map_concurrently(
                children,
                |child| async move { self.stored_manifest(name, &child).await },
            )
            .await?;
        let key = self.manifest_key(name, &manifest.digest);
        let is_new = self.bucket.age(&key).await?.is_none();
        self.note_children(name, &manifest).await?;
        self.bucket.write(&key, manifest.bytes.clone()).await?;
        // Between the two checks another mirror may have removed an old blob.
        if let Err(error) = self.refresh_blobs(&manifest).await {
            // A manifest that existed before stays. It also stays if the service only failed to
            // answer.
            if is_new && matches!(error, MirrorError::ManifestBlobUnknown(_)) {
                self.bucket.remove(&key).await?;
                self.forget_children(name, &manifest).await?;
            }
            return Err(error);
        }
        self.write_references(name, reference, &manifest).await?;
        self.restore_after_removals(name, reference, &manifest, children).await
    }

    /// Stores a manifest list of an upstream. Its children and blobs may be missing.
    pub(super) async fn store_upstream_list(
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
        self.restore_after_removals(name, &reference, &manifest, Vec::new()).await
    }

    /// Writes the tag of a manifest and its entry as a referrer.
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

    /// Checks that the blobs of a manifest exist, and renews their names so that garbage collection
    /// keeps them for a while.
    async fn refresh_blobs(&self, manifest: &Manifest) -> Result<(), MirrorError> {
        let hold = |digest: Digest| async move {
            let key = blob_key(&self.bucket, &digest);
            match self.bucket.age(&key).await? {
                Some(age) if age < BLOB_GRACE_PERIOD / 2 => Ok(Some(())),
                _ => match self.bucket.read(&key).await? {
                    Some(location) => self.bucket.write(&key, location).await.map(Some),
                    None => Err(MirrorError::ManifestBlobUnknown(digest)),
                },
            }
        };
        let digests: Vec<_> = manifest.blobs.iter().map(|blob| blob.digest).collect();
        map_concurrently(digests, hold).await.map(drop)
    }

    /// Removes a tag, or a manifest with its tags. Returns whether it existed.
    pub(super) async fn delete_manifest(
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
                let Some(manifest) = self.stored_manifest(name, digest).await? else {
                    return Ok(false);
                };
                self.check_no_list_needs(name, digest).await?;
                // Tags go first: a tag without a manifest would be an error.
                for ObjectInfo { name: tag, .. } in
                    self.bucket.list_objects(&self.repository_key(name).join("tags")).await?
                {
                    if self.tag_digest(name, &tag).await? == Some(*digest) {
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

    /// Returns the digest that a listed tag points to, from the cache if the version matches.
    pub(super) async fn cached_tag(
        &self,
        name: &Repository,
        tag: &ObjectInfo,
    ) -> Result<Option<Digest>, MirrorError> {
        let cached = (self.tag_key(name, &tag.name).to_string(), tag.version.clone());
        if let Some(digest) = self.tags.get(&cached) {
            return Ok(Some(digest));
        }
        let Some((digest, version)) = self.tag_version(name, &tag.name).await? else {
            return Ok(None);
        };
        // The tag may have moved since the listing, and may move back to the listed version.
        if version == tag.version {
            self.tags.put(cached, digest);
        }
        Ok(Some(digest))
    }

    pub(super) async fn all_repositories(&self) -> Result<Vec<Repository>, MirrorError> {
        let folders = self.bucket.list_folders(&self.bucket.key(["repositories"])).await?;
        Ok(folders.iter().filter_map(|name| Repository::from_dir_name(name)).collect())
    }

    /// Maps all manifests of matching repositories. All folders are listed first: a single
    /// repository has too few manifests for many concurrent requests.
    pub(super) async fn map_manifests<T>(
        &self,
        is_wanted: impl Fn(&Repository) -> bool,
        work: impl Fn(Repository, Manifest, SystemTime) -> T + Sync,
    ) -> Result<Vec<T>, MirrorError> {
        let mut names = self.all_repositories().await?;
        names.retain(is_wanted);
        let list = |name: Repository| async move {
            let objects =
                self.bucket.list_objects(&self.repository_key(&name).join("manifests")).await?;
            Ok(Some(objects.into_iter().map(move |object| (name.clone(), object))))
        };
        let objects = map_concurrently(names, list).await?.into_iter().flatten();
        let work = &work;
        let read = |(name, object): (Repository, ObjectInfo)| async move {
            let kept = self.manifest_of_object(&name, &object).await?;
            Ok(kept.map(|kept| work(name, kept, object.written)))
        };
        map_concurrently(objects, read).await
    }

    /// Returns the manifests of a repository that the objects in a folder name.
    pub(super) async fn manifests_in(
        &self,
        name: &Repository,
        folder: &Path,
    ) -> Result<Vec<Manifest>, MirrorError> {
        let read = |object: ObjectInfo| async move { self.manifest_named_by(name, &object).await };
        map_concurrently(self.bucket.list_objects(folder).await?, read).await
    }

    /// Returns the manifest of a listed object.
    pub(super) async fn manifest_of_object(
        &self,
        name: &Repository,
        object: &ObjectInfo,
    ) -> Result<Option<Manifest>, MirrorError> {
        let Ok(digest) = format!("sha256:{}", object.name).parse() else { return Ok(None) };
        match self.manifests.get(&digest) {
            // The listing shows that it exists.
            Some(cached) => Ok(Some(cached)),
            None => self.read_manifest(&self.manifest_key(name, &digest), &digest).await,
        }
    }

    /// Returns the manifest of a repository that an object in another folder names.
    async fn manifest_named_by(
        &self,
        name: &Repository,
        object: &ObjectInfo,
    ) -> Result<Option<Manifest>, MirrorError> {
        match format!("sha256:{}", object.name).parse() {
            Ok(digest) => self.stored_manifest(name, &digest).await,
            Err(_) => Ok(None),
        }
    }

    pub(super) async fn all_tags(&self) -> Result<Vec<TagEntry>, MirrorError> {
        let names = self.all_repositories().await?;
        let list = |name: Repository| async move {
            let tags = self.bucket.list_objects(&self.repository_key(&name).join("tags")).await?;
            Ok(Some(tags.into_iter().map(move |tag| (name.clone(), tag))))
        };
        let tags = map_concurrently(names, list).await?.into_iter().flatten();
        map_concurrently(tags, |(name, tag)| async move { self.tag_entry(&name, tag).await }).await
    }

    async fn tag_entry(
        &self,
        name: &Repository,
        tag: ObjectInfo,
    ) -> Result<Option<TagEntry>, MirrorError> {
        let Some(digest) = self.cached_tag(name, &tag).await? else { return Ok(None) };
        let written = Some(tag.written);
        // A cached manifest is good enough for a listing, because a tag points to a manifest that
        // exists.
        let manifest = match self.manifests.get(&digest) {
            Some(cached) => Some(cached),
            None => self.stored_manifest(name, &digest).await?,
        };
        let Some(manifest) = manifest else { return Ok(None) };
        let size = self.size_of(name, &manifest).await?;
        let (name, owner) = (name.clone(), Owner::Registry);
        Ok(Some(TagEntry { name, tag: tag.name, digest, size, completed: None, owner, written }))
    }
}

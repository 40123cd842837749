//! Manifest lists in the registry directory. An empty file `lists/<child>/<list>` records that a
//! list has a child.

use std::fs;

use bytes::Bytes;
use puna_store::Digest;

use super::registry_dir::{self, RegistryDir};
use crate::error::{Denial, MirrorError};
use crate::storage::check_child;
use crate::types::manifest::Manifest;
use crate::types::manifest_list::{describe, distinct_size};
use crate::types::repository::Repository;

impl RegistryDir {
    /// Rejects a list if one of its references is not a plain manifest of the repository.
    pub(crate) fn check_children(
        &self,
        name: &Repository,
        manifest: &Manifest,
    ) -> Result<(), MirrorError> {
        let Some(list) = &manifest.list else { return Ok(()) };
        for child in list.children.iter().filter(|child| child.inline.is_none()) {
            let found = self.by_digest(name, &child.digest)?;
            check_child(name, found.as_ref(), || describe(list, child))?;
        }
        Ok(())
    }

    /// Records the children of a list. The caller writes the list afterwards.
    pub(crate) fn note_children(
        &self,
        name: &Repository,
        manifest: &Manifest,
    ) -> Result<(), MirrorError> {
        let list = manifest.digest.hex();
        let mut children = manifest.list.iter().flat_map(|list| &list.children);
        children.try_for_each(|child| self.write(&self.lists(name, &child.digest).join(&list), b""))
    }

    /// Removes the records of a list's children. The caller has removed the list.
    pub(crate) fn forget_children<'a>(
        &self,
        name: &Repository,
        list: &Digest,
        children: impl IntoIterator<Item = &'a Digest>,
    ) -> Result<(), MirrorError> {
        for child in children {
            registry_dir::remove_file(&self.lists(name, child).join(list.hex()))?;
            let _ = fs::remove_dir(self.lists(name, child));
        }
        Ok(())
    }

    /// Returns the lists of a repository that have a manifest as their child, in the registry
    /// directory and in the store.
    pub(crate) fn lists_containing(
        &self,
        name: &Repository,
        child: &Digest,
    ) -> Result<Vec<Digest>, MirrorError> {
        let mut lists = self.dir_lists_containing(name, child)?;
        lists.extend(self.model_lists_containing(name, child)?.iter().map(|entry| entry.digest));
        Ok(lists)
    }

    /// Returns the lists of a repository in the registry directory that have a manifest as their
    /// child.
    pub(crate) fn dir_lists_containing(
        &self,
        name: &Repository,
        child: &Digest,
    ) -> Result<Vec<Digest>, MirrorError> {
        let noted = registry_dir::file_names(&self.lists(name, child))?;
        let lists = noted.iter().filter_map(|hex| format!("sha256:{hex}").parse().ok());
        Ok(lists.filter(|list: &Digest| self.manifests(name).join(list.hex()).is_file()).collect())
    }

    /// Returns an inline child of a list in the repository.
    pub(crate) fn inline_child(
        &self,
        name: &Repository,
        digest: &Digest,
    ) -> Result<Option<Manifest>, MirrorError> {
        for list in self.dir_lists_containing(name, digest)? {
            if let Some(list) = self.stored_manifest(name, &list)?
                && let Some(child) = list.inline_child(digest)?
            {
                return Ok(Some(child));
            }
        }
        Ok(None)
    }

    /// Returns a child of a list in the store, where references are blobs.
    pub(crate) fn child_of_model(
        &self,
        list: &Manifest,
        digest: &Digest,
    ) -> Result<Option<Manifest>, MirrorError> {
        match list.child(digest) {
            None => Ok(None),
            Some(child) if child.inline.is_some() => Ok(list.inline_child(digest)?),
            Some(_) => {
                let Some(bytes) = registry_dir::read_small_file(&self.store.blob_path(digest))?
                else {
                    return Ok(None);
                };
                let child = Manifest::parse_stored(Bytes::from(bytes))?;
                Ok(Some(child).filter(|child| child.digest == *digest))
            }
        }
    }

    /// Fails if a list of the repository has the manifest as its child.
    pub(crate) fn check_no_list_needs(
        &self,
        name: &Repository,
        digest: &Digest,
    ) -> Result<(), MirrorError> {
        match self.lists_containing(name, digest)?.first() {
            Some(list) => {
                let (name, digest, list) = (name.clone(), *digest, *list);
                Err(Denial::ManifestIsChild { name, digest, list }.into())
            }
            None => Ok(()),
        }
    }

    /// Sum of the blob sizes of a manifest in bytes; for a list, of its children's distinct blobs.
    pub(crate) fn size_of(
        &self,
        name: &Repository,
        manifest: &Manifest,
    ) -> Result<u64, MirrorError> {
        if manifest.list.is_none() {
            return Ok(manifest.size());
        }
        let mut all = vec![manifest.clone()];
        for child in &manifest.children {
            all.extend(self.stored_manifest(name, child)?);
        }
        Ok(distinct_size(&all))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use puna_store::Store;

    use super::*;
    use crate::types::manifest::ManifestKind;
    use crate::types::manifest_list::tests::{child, inline, list_of, reference};

    #[test]
    fn children_of_lists_in_the_store_are_found_by_digest() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path()).unwrap());
        let text = child(b"weights").to_string();
        let digest = store.add_blob(text.as_bytes()).unwrap().digest;
        let registry = RegistryDir::new(store);
        let children = [
            inline(b"whole", "llamacpp"),
            reference(&text, "ggml", "gguf"),
            reference("x", "mlx", "safetensors"),
        ];
        let list = Manifest::parse_stored(list_of(&children).into_bytes().into()).unwrap();
        assert_eq!(list.kind, ManifestKind::List);
        let found = |digest: &Digest| registry.child_of_model(&list, digest).unwrap();
        assert_eq!(found(&list.children[0]).unwrap().digest, list.children[0]);
        assert_eq!(found(&digest).unwrap().bytes, text);
        assert_eq!(found(&list.children[2]), None);
        assert_eq!(found(&Digest::of(b"another")), None);
        std::fs::write(registry.store.blob_path(&digest), child(b"damaged").to_string()).unwrap();
        assert_eq!(found(&digest), None);
    }
}

//! Manifest lists in the registry's folder. An empty file `lists/<child>/<list>` says that a list has a child.

use std::fs;

use bytes::Bytes;
use puna_store::Digest;

use super::folder::{self, Folder};
use crate::error::MirrorError;
use crate::manifest::{Kind, Manifest};
use crate::manifest_list::{describe, distinct_size};
use crate::name::Repository;

impl Folder {
    /// Refuses a list whose references are not all plain manifests of its repository.
    pub(super) fn check_children(
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

    /// Notes the children of a list, before the list itself is written.
    pub(super) fn note_children(
        &self,
        name: &Repository,
        manifest: &Manifest,
    ) -> Result<(), MirrorError> {
        let list = manifest.digest.hex();
        let mut children = manifest.list.iter().flat_map(|list| &list.children);
        children.try_for_each(|child| self.write(&self.lists(name, &child.digest).join(&list), b""))
    }

    /// Removes the notes of a list's children, after the list itself.
    pub(super) fn forget_children<'a>(
        &self,
        name: &Repository,
        list: &Digest,
        children: impl IntoIterator<Item = &'a Digest>,
    ) -> Result<(), MirrorError> {
        for child in children {
            folder::remove(&self.lists(name, child).join(list.hex()))?;
            let _ = fs::remove_dir(self.lists(name, child));
        }
        Ok(())
    }

    /// The lists of a repository that have a manifest as their child, in the registry's folder and in the store.
    pub(super) fn lists_with(
        &self,
        name: &Repository,
        child: &Digest,
    ) -> Result<Vec<Digest>, MirrorError> {
        let mut lists = self.kept_lists_with(name, child)?;
        lists.extend(self.store_lists_with(name, child)?.iter().map(|entry| entry.digest));
        Ok(lists)
    }

    /// The lists of a repository in the registry's folder that have a manifest as their child.
    pub(super) fn kept_lists_with(
        &self,
        name: &Repository,
        child: &Digest,
    ) -> Result<Vec<Digest>, MirrorError> {
        let noted = folder::names(&self.lists(name, child))?;
        let lists = noted.iter().filter_map(|hex| format!("sha256:{hex}").parse().ok());
        Ok(lists.filter(|list: &Digest| self.manifests(name).join(list.hex()).is_file()).collect())
    }

    /// An inline child of a list that the repository keeps.
    pub(super) fn inline_child(
        &self,
        name: &Repository,
        digest: &Digest,
    ) -> Result<Option<Manifest>, MirrorError> {
        for list in self.kept_lists_with(name, digest)? {
            if let Some(list) = self.kept(name, &list)?
                && let Some(child) = list.inline_child(digest)?
            {
                return Ok(Some(child));
            }
        }
        Ok(None)
    }

    /// A child of a list of the store, where references are blobs.
    pub(super) fn child_of_model(
        &self,
        list: &Manifest,
        digest: &Digest,
    ) -> Result<Option<Manifest>, MirrorError> {
        match list.child(digest) {
            None => Ok(None),
            Some(child) if child.inline.is_some() => list.inline_child(digest),
            Some(_) => {
                let Some(bytes) = folder::read(&self.store.blob_path(digest))? else {
                    return Ok(None);
                };
                let child = Manifest::of_store(Bytes::from(bytes))?;
                Ok(Some(child).filter(|child| child.digest == *digest))
            }
        }
    }

    /// Refuses to remove a manifest that a list of the repository has as its child.
    pub(super) fn check_no_list_needs(
        &self,
        name: &Repository,
        digest: &Digest,
    ) -> Result<(), MirrorError> {
        match self.lists_with(name, digest)?.first() {
            Some(list) => Err(MirrorError::is_child(name, digest, list)),
            None => Ok(()),
        }
    }

    /// Bytes of all blobs of a manifest; of a list those of its children, each once.
    pub(super) fn size_of(
        &self,
        name: &Repository,
        manifest: &Manifest,
    ) -> Result<u64, MirrorError> {
        if manifest.list.is_none() {
            return Ok(manifest.size());
        }
        let mut all = vec![manifest.clone()];
        for child in &manifest.children {
            all.extend(self.kept(name, child)?);
        }
        Ok(distinct_size(&all))
    }
}

/// Checks what was found of a child that a list refers to.
pub(super) fn check_child(
    name: &Repository,
    found: Option<&Manifest>,
    child: impl Fn() -> String,
) -> Result<(), MirrorError> {
    match found {
        None => Err(MirrorError::ManifestChildUnknown { name: name.clone(), child: child() }),
        Some(found) if matches!(found.kind, Kind::List | Kind::Index) => {
            Err(MirrorError::ManifestInvalid(format!("{} of the list is a list itself", child())))
        }
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use puna_store::Store;

    use super::*;
    use crate::manifest_list::tests::{child, inline, list_of, reference};

    #[test]
    fn children_of_lists_in_the_store_are_found_by_digest() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path()).unwrap());
        let text = child(b"weights").to_string();
        let digest = store.add_blob(text.as_bytes()).unwrap().digest;
        let folder = Folder::new(store);
        let children = [
            inline(b"whole", "llamacpp"),
            reference(&text, "ggml", "gguf"),
            reference("x", "mlx", "safetensors"),
        ];
        let list = Manifest::of_store(list_of(&children).into_bytes().into()).unwrap();
        assert_eq!(list.kind, Kind::List);
        let found = |digest: &Digest| folder.child_of_model(&list, digest).unwrap();
        assert_eq!(found(&list.children[0]).unwrap().digest, list.children[0]);
        assert_eq!(found(&digest).unwrap().bytes, text);
        assert_eq!(found(&list.children[2]), None);
        assert_eq!(found(&Digest::of(b"another")), None);
        std::fs::write(folder.store.blob_path(&digest), child(b"damaged").to_string()).unwrap();
        assert_eq!(found(&digest), None);
    }
}

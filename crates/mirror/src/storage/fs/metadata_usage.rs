//! Usage of namespaces by files other than blobs: manifests, tags, referrers, records of manifest
//! lists, push marks and size notes.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use puna_store::Digest;

use super::registry_dir::{self, RegistryDir};
use crate::error::MirrorError;
use crate::storage::InventoryScope;
use crate::types::repository::Repository;
use crate::types::storage_usage::{NamespaceUsages, StorageUsage, add_usage};

impl RegistryDir {
    /// Returns the usage of the namespaces in a scope.
    pub(super) fn metadata_usage(
        &self,
        scope: &InventoryScope,
    ) -> Result<NamespaceUsages, MirrorError> {
        let mut usages = self.model_manifest_usage(scope)?;
        for parent in [self.repositories(), self.pushed_marks(), self.sizes()] {
            for dir_name in registry_dir::file_names(&parent)? {
                let name = Repository::from_dir_name(&dir_name);
                let Some(name) = name.filter(|name| scope.contains(name)) else { continue };
                let usage = usage_below(&parent.join(dir_name))?;
                if usage != StorageUsage::default() {
                    add_usage(&mut usages, &name, usage);
                }
            }
        }
        Ok(usages)
    }

    /// Usage by the manifests of models in the store. A manifest that several models of a namespace
    /// share counts once.
    fn model_manifest_usage(&self, scope: &InventoryScope) -> Result<NamespaceUsages, MirrorError> {
        let mut usages = NamespaceUsages::new();
        let mut shared: HashMap<String, HashSet<Digest>> = HashMap::new();
        for entry in self.store.list()? {
            let name = Repository::from_model_name(&entry.name);
            let Some(name) = name.filter(|name| scope.contains(name)) else { continue };
            let counted = shared.entry(name.namespace().to_ascii_lowercase()).or_default();
            for (blob, bytes) in self.store.manifest_files(&entry)? {
                if blob.is_none_or(|blob| counted.insert(blob)) {
                    add_usage(&mut usages, &name, StorageUsage::one(bytes));
                }
            }
        }
        Ok(usages)
    }
}

/// Usage of the files below a directory. Files may be removed at any time.
fn usage_below(dir: &Path) -> Result<StorageUsage, MirrorError> {
    let mut usage = StorageUsage::default();
    for name in registry_dir::file_names(dir)? {
        let path = dir.join(name);
        let found = registry_dir::none_if_absent(fs::symlink_metadata(&path), "read", &path)?;
        let Some(meta) = found else { continue };
        usage = usage.plus(match meta.is_dir() {
            true => usage_below(&path)?,
            false => StorageUsage::one(meta.len()),
        });
    }
    Ok(usage)
}

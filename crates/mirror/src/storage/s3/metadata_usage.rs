//! Usage of namespaces by objects other than blobs: manifests, tags, referrers, records of manifest
//! lists, push marks and size notes.

use super::{PUSH_MARKS, S3Storage, SIZES, map_concurrently};
use crate::error::MirrorError;
use crate::storage::InventoryScope;
use crate::types::repository::Repository;
use crate::types::storage_usage::{NamespaceUsages, StorageUsage, add_usage};

/// Folders that have a folder for each repository.
const FOLDERS: [&str; 3] = ["repositories", PUSH_MARKS, SIZES];

impl S3Storage {
    /// Returns the usage of the namespaces in a scope.
    pub(super) async fn usage_by_metadata(
        &self,
        scope: InventoryScope,
    ) -> Result<NamespaceUsages, MirrorError> {
        let mut usages = NamespaceUsages::new();
        for folder in FOLDERS {
            for (name, bytes) in self.object_sizes(folder, &scope).await? {
                add_usage(&mut usages, &name, StorageUsage::one(bytes));
            }
        }
        Ok(usages)
    }

    /// Returns repository and size of the objects below a folder. One listing covers all
    /// repositories; otherwise only the matching ones are listed.
    async fn object_sizes(
        &self,
        folder: &str,
        scope: &InventoryScope,
    ) -> Result<Vec<(Repository, u64)>, MirrorError> {
        let key = self.bucket.key([folder]);
        if *scope == InventoryScope::All {
            let all = self.bucket.list_sizes(&key).await?.into_iter();
            let named = |(dir_name, bytes): (String, u64)| {
                Some((Repository::from_dir_name(&dir_name)?, bytes))
            };
            return Ok(all.filter_map(named).collect());
        }
        let folders = self.bucket.list_folders(&key).await?;
        let names = folders.iter().filter_map(|name| Repository::from_dir_name(name));
        let names: Vec<Repository> = names.filter(|name| scope.contains(name)).collect();
        let list = |name: Repository| async move {
            let of_repository = self.bucket.key([folder, &name.dir_name()]);
            let sizes = self.bucket.list_sizes(&of_repository).await?;
            Ok(Some(sizes.into_iter().map(move |(_, bytes)| (name.clone(), bytes))))
        };
        Ok(map_concurrently(names, list).await?.into_iter().flatten().collect())
    }
}

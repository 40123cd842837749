//! Quotas of namespaces, for models and uploads of API keys with namespaces.
//!
//! The mirror counts what a namespace has in the store, however it came there. This module asks it
//! before `/api` stores more for such a key.

use std::fmt;
use std::sync::Arc;

use puna_mirror::{FreeQuota, Mirror, MirrorError, StorageUsage};
use puna_store::{
    AdmissionFuture, AdmissionGuard, Digest, ModelAdmission, NewModel, Store, StoreError,
};

use crate::auth::caller::Caller;
use crate::mirror::MirrorService;
use crate::models::blob_access::UploadedBlobs;

/// Admits models of a caller with namespaces within their quotas. Uploads that no model has count
/// as if the new model had them.
#[derive(Clone)]
pub(crate) struct QuotaAdmission {
    mirror: Mirror,
    uploads: UploadedBlobs,
    store: Arc<Store>,
    caller: Caller,
}

impl QuotaAdmission {
    /// The admission for a caller; `None` if no quota applies to it.
    pub(crate) fn of(
        mirror: Option<&MirrorService>,
        uploads: &UploadedBlobs,
        store: &Arc<Store>,
        caller: &Caller,
    ) -> Option<Arc<dyn ModelAdmission>> {
        let mirror = mirror.filter(|_| caller.is_confined())?.of_store()?;
        let (mirror, uploads) = (mirror.clone(), uploads.clone());
        Some(Arc::new(Self { mirror, uploads, store: store.clone(), caller: caller.clone() }))
    }
}

impl fmt::Debug for QuotaAdmission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QuotaAdmission")
    }
}

impl ModelAdmission for QuotaAdmission {
    fn admit<'a>(&'a self, model: &'a NewModel) -> AdmissionFuture<'a> {
        Box::pin(async move {
            let (this, mut all) = (self.clone(), model.clone());
            let uploads = move || this.uploads.complete(&this.store, &this.caller);
            let uploads = tokio::task::spawn_blocking(uploads).await.unwrap_or_default();
            let is_new = |(digest, _): &(Digest, u64)| model.blobs.iter().all(|(d, _)| d != digest);
            all.blobs.extend(uploads.into_iter().filter(is_new));
            let guard = self.mirror.reserve_model(&all).await.map_err(not_admitted)?;
            Ok(Box::new(guard) as AdmissionGuard)
        })
    }
}

fn not_admitted(error: MirrorError) -> StoreError {
    match error {
        MirrorError::Store(error) => error,
        error => StoreError::NotAdmitted(error.to_string()),
    }
}

/// Returns what the namespaces of a caller may still store. Empty if one of them has no quota: a
/// pattern `name*` counts as the namespace `name`.
///
/// # Errors
/// The store cannot be read.
pub(crate) async fn free_quotas(
    mirror: Option<&MirrorService>,
    caller: &Caller,
) -> Result<Vec<FreeQuota>, StoreError> {
    let mut all = Vec::new();
    let Some(mirror) = mirror.and_then(MirrorService::of_store) else { return Ok(all) };
    for pattern in caller.namespaces().iter() {
        let free = mirror.free_quota(pattern.trim_end_matches('*')).await;
        match free.map_err(not_admitted)? {
            // Messages name the pattern that the caller knows from its key.
            Some(free) => all.push(FreeQuota { namespace: pattern.clone(), ..free }),
            None => return Ok(Vec::new()),
        }
    }
    Ok(all)
}

/// A number of objects in words.
fn objects(count: u64) -> String {
    if count == 1 { "1 object".to_owned() } else { format!("{count} objects") }
}

/// Space of a caller's namespaces for further uploads. An upload must fit into one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UploadQuota {
    /// Space of each namespace; empty without a limit.
    free: Vec<(String, StorageUsage)>,
}

impl UploadQuota {
    /// The space that earlier uploads leave, which no model of the namespace has yet.
    pub(crate) fn new(free: &[FreeQuota], earlier: &[(Digest, u64)]) -> Self {
        let left = |quota: &FreeQuota| {
            let pending = earlier.iter().filter(|(blob, _)| !quota.stored.contains_key(blob));
            let left = pending.fold(quota.free, |left, (_, bytes)| StorageUsage {
                bytes: left.bytes.saturating_sub(*bytes),
                objects: left.objects.saturating_sub(1),
            });
            (quota.namespace.clone(), left)
        };
        Self { free: free.iter().map(left).collect() }
    }

    /// Fails if no namespace has space for further uploads.
    ///
    /// # Errors
    /// [`StoreError::NotAdmitted`].
    pub(crate) fn check(&self, asked: StorageUsage) -> Result<(), StoreError> {
        let fits = |free: &StorageUsage| asked.bytes <= free.bytes && asked.objects <= free.objects;
        if self.free.is_empty() || self.free.iter().any(|(_, free)| fits(free)) {
            return Ok(());
        }
        let names: Vec<&str> = self.free.iter().map(|(name, _)| name.as_str()).collect();
        let left = self.free.iter().map(|(name, free)| {
            format!("{name} has {} bytes and {} left", free.bytes, objects(free.objects))
        });
        Err(StoreError::NotAdmitted(format!(
            "quota of namespace {} exceeded: the upload needs {} bytes and {}, but {}; create the models of earlier uploads, remove models, or have the quota raised",
            names.join(", "),
            asked.bytes,
            objects(asked.objects),
            left.collect::<Vec<_>>().join(", ")
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exceeded_quota_states_its_numbers() {
        let free = FreeQuota {
            namespace: "team*".into(),
            free: StorageUsage { bytes: 10, objects: 2 },
            stored: std::collections::HashMap::new(),
        };
        let quota = UploadQuota::new(&[free], &[]);
        assert!(quota.check(StorageUsage { bytes: 10, objects: 1 }).is_ok());
        let error = quota.check(StorageUsage { bytes: 11, objects: 1 }).unwrap_err().to_string();
        let expected = "quota of namespace team* exceeded: the upload needs 11 bytes and 1 object, but team* has 10 bytes and 2 objects left";
        assert!(error.starts_with(expected), "{error}");
    }
}

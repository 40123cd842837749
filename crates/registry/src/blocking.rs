//! Runs operations that wait for the disk on blocking threads.

use std::sync::Arc;

use puna_store::{Store, WorkGuard};
use puna_tasks::run_blocking;

use crate::error::{RegistryError, SetupProblem};

/// Runs a blocking operation on a thread of the blocking pool.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RegistryError> + Send + 'static,
) -> Result<T, RegistryError> {
    let done = run_blocking(work).await;
    done.unwrap_or_else(|e| Err(SetupProblem::Task { reason: e.to_string() }.into()))
}

/// Runs an operation while the store counts it as work in progress. Blobs pinned by it stay pinned
/// until its end.
pub(crate) async fn with_store_guard<T>(
    store: &Arc<Store>,
    operation: impl Future<Output = Result<T, RegistryError>>,
) -> Result<T, RegistryError> {
    let at = store.clone();
    let mut guard = StoreGuard(blocking(move || Ok(Some(at.begin_work()))).await?);
    let done = operation.await;
    let work = guard.0.take();
    blocking(move || {
        drop(work);
        Ok(())
    })
    .await?;
    done
}

/// Marks work in progress in a store. Other processes see it by a file, which is removed on drop.
/// If the task was cancelled, a blocking thread removes it.
struct StoreGuard(Option<WorkGuard>);

impl Drop for StoreGuard {
    fn drop(&mut self) {
        let Some(work) = self.0.take() else { return };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => _ = runtime.spawn_blocking(move || drop(work)),
            Err(_) => drop(work),
        }
    }
}

//! Work that waits for the disk.

use std::sync::Arc;

use puna_store::{Store, Work};
use puna_tasks::run_blocking;

use crate::error::RegistryError;

/// Does something on a thread that may wait for the disk.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RegistryError> + Send + 'static,
) -> Result<T, RegistryError> {
    run_blocking(work).await.unwrap_or_else(|e| Err(RegistryError::Setup(e.to_string())))
}

/// Does something as one who is at work on a model of a store: what is pinned meanwhile stays so until its end.
pub(crate) async fn at_work<T>(
    store: &Arc<Store>,
    doing: impl Future<Output = Result<T, RegistryError>>,
) -> Result<T, RegistryError> {
    let at = store.clone();
    let mut working = Working(blocking(move || Ok(Some(at.work()))).await?);
    let done = doing.await;
    let work = working.0.take();
    blocking(move || {
        drop(work);
        Ok(())
    })
    .await?;
    done
}

/// Somebody at work. Others see it by a file, which goes with it: also where nobody waits for the end any more, that is done elsewhere.
struct Working(Option<Work>);

impl Drop for Working {
    fn drop(&mut self) {
        let Some(work) = self.0.take() else { return };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => _ = runtime.spawn_blocking(move || drop(work)),
            Err(_) => drop(work),
        }
    }
}

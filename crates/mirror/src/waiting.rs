//! What takes a while: answers that are waited for, and work that waits for the disk.

use futures_util::future::BoxFuture;
use puna_tasks::run_blocking;

use crate::error::MirrorError;

/// What a library will answer.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, MirrorError>>;

/// Does something on a thread that may wait for the disk.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, MirrorError> + Send + 'static,
) -> Result<T, MirrorError> {
    let done = run_blocking(work).await;
    done.unwrap_or_else(|e| Err(MirrorError::Internal(e.to_string())))
}

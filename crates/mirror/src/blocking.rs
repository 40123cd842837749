//! Future type of storage operations, and a helper to run blocking file system work.

use futures_util::future::BoxFuture;
use puna_tasks::run_blocking;

use crate::error::{InternalError, MirrorError};

/// Future of an operation of a [`Storage`](crate::Storage).
pub type StorageFuture<'a, T> = BoxFuture<'a, Result<T, MirrorError>>;

/// Runs blocking work on a thread of the blocking pool.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, MirrorError> + Send + 'static,
) -> Result<T, MirrorError> {
    let done = run_blocking(work).await;
    done.unwrap_or_else(|e| Err(InternalError::Task { reason: e.to_string() }.into()))
}

//! Work that waits for the disk.

use crate::error::RegistryError;

/// Does something on a thread that may wait for the disk.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RegistryError> + Send + 'static,
) -> Result<T, RegistryError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| Err(RegistryError::Setup(e.to_string())))
}

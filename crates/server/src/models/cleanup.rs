//! Background clean-up: removes the remains of interrupted work, and blobs that were in the trash
//! for a day. A read-only store is left unchanged.

use std::sync::Arc;
use std::time::Duration;

use puna_store::Store;
use tokio::task::spawn_blocking;

/// Interval of the clean-up. Each change in a mirror's upstreams leaves an unused model behind.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// Cleans up the store once.
fn clean_up(store: &Store) {
    match store.clean_up() {
        // The store has logged entries that it does not understand.
        Ok(pruned) if pruned.removed.is_empty() => {}
        Ok(pruned) => {
            let (files, bytes) = (pruned.removed.len(), pruned.bytes());
            tracing::info!(
                files,
                bytes,
                "removed leftovers of unfinished operations; blobs stay in the trash for a day"
            );
        }
        Err(error) => tracing::debug!(%error, "cannot clean up the store"),
    }
}

/// Cleans up now and every hour, without end.
pub(crate) async fn clean_up_hourly(store: Arc<Store>) {
    let mut ticks = tokio::time::interval(CLEANUP_INTERVAL);
    loop {
        ticks.tick().await;
        // An empty store must not get a blobs directory by this.
        let store = store.clone();
        let cleaned =
            spawn_blocking(move || store.root().join("blobs").is_dir().then(|| clean_up(&store)))
                .await;
        if let Err(panic) = cleaned {
            tracing::error!(%panic, "clean-up of the store panicked");
        }
    }
}

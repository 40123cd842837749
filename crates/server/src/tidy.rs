//! Garbage collection in the background: what Puna itself has left unfinished, and what has been in the trash for a day.
//! A store that cannot be written is left as it is.

use std::sync::Arc;
use std::time::Duration;

use puna_store::Store;
use tokio::task::spawn_blocking;

/// How often it runs: what a mirror's upstreams have changes, and each change leaves a model.
const HOUR: Duration = Duration::from_secs(60 * 60);

/// Cleans up once.
fn clean_up(store: &Store) {
    match store.clean_up() {
        // What is not understood in the store has been logged.
        Ok(pruned) if pruned.removed.is_empty() => {}
        Ok(pruned) => {
            let (files, bytes) = (pruned.removed.len(), pruned.bytes());
            tracing::info!(
                files,
                bytes,
                "removed what unfinished work had left; blobs are in the trash for a day"
            );
        }
        Err(error) => tracing::debug!(%error, "the store cannot be cleaned up"),
    }
}

/// Cleans up now and every hour.
pub(crate) async fn clean_up_hourly(store: Arc<Store>) {
    let mut hours = tokio::time::interval(HOUR);
    loop {
        hours.tick().await;
        // Where nothing was ever stored, nothing is made either.
        let store = store.clone();
        let cleaned =
            spawn_blocking(move || store.root().join("blobs").is_dir().then(|| clean_up(&store)))
                .await;
        if let Err(panic) = cleaned {
            tracing::error!(%panic, "cleaning up the store");
        }
    }
}

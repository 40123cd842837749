//! Clearing away in the background what no model uses. A store that cannot be written is left as it is.

use std::sync::Arc;
use std::time::Duration;

use puna_store::{PruneOptions, Store};
use tokio::task::spawn_blocking;

/// How often a mirror does so: what upstreams have moves on, and each time leaves a model.
const HOUR: Duration = Duration::from_secs(60 * 60);

/// Does so once.
pub(crate) fn prune(store: &Store) {
    match store.prune(PruneOptions::default()) {
        // Where a manifest cannot be read, the list of models says so.
        Ok(pruned) if pruned.removed.is_empty() => {}
        Ok(pruned) => {
            let (files, bytes) = (pruned.removed.len(), pruned.bytes());
            tracing::info!(files, bytes, "removed what no model uses");
        }
        Err(error) => tracing::debug!(%error, "the store cannot be tidied up"),
    }
}

/// Does so now and every hour.
pub(crate) async fn prune_hourly(store: Arc<Store>) {
    let mut hours = tokio::time::interval(HOUR);
    loop {
        hours.tick().await;
        // Where nothing was ever stored, nothing is made either.
        let store = store.clone();
        let pruned = spawn_blocking(move || store.root().join("blobs").is_dir().then(|| prune(&store))).await;
        if let Err(panic) = pruned {
            tracing::error!(%panic, "clearing away what no model uses");
        }
    }
}

//! Background tasks of the registry: writing the usage log, garbage collection, retention.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;

use super::Mirror;
use crate::error::MirrorError;
use crate::retention::usage_log::SECONDS_PER_DAY;
use crate::retention::{RetentionReport, apply_retention};

/// Interval of garbage collection.
const GARBAGE_COLLECTION_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// Delay before a background task restarts after a panic.
const RESTART_DELAY: Duration = Duration::from_secs(60);

/// Delay of the first retention run after the start. Later runs follow daily.
const FIRST_RETENTION_DELAY: Duration = Duration::from_secs(5 * 60);

impl Mirror {
    /// Runs the background tasks forever: writing the usage log, garbage collection, retention. A
    /// panic of one task does not affect the others.
    pub async fn run_maintenance(&self) {
        tokio::join!(
            restart_on_panic("usage log", RESTART_DELAY, || self
                .usage_log()
                .run(self.storage().inventory.usage_notes())),
            restart_on_panic("garbage collection", RESTART_DELAY, || self.collect_garbage_hourly()),
            restart_on_panic("retention", RESTART_DELAY, || self.apply_retention_daily()),
        );
    }

    /// Writes unwritten usage records before shutdown.
    pub async fn flush_usage_log(&self) {
        if let Err(error) = self.usage_log().write(self.storage().inventory.usage_notes()).await {
            tracing::warn!(%error, "cannot write the usage log");
        }
    }

    /// Removes everything that no rule keeps, the blobs that become unreferenced, and usage records
    /// of missing items.
    ///
    /// # Errors
    /// The storage cannot be read or written.
    async fn apply_retention(&self) -> Result<RetentionReport, MirrorError> {
        let retained =
            apply_retention(self.storage(), self.usage_log(), &self.0.retention, false).await?;
        if !retained.removals.is_empty() {
            self.namespace_index().record_change();
            self.metrics().count_removed(retained.removals.len() as u64, retained.bytes());
            self.storage().inventory.collect_garbage().await?;
        }
        Ok(retained)
    }

    /// Runs retention daily. Without rules it only removes usage records of missing items.
    async fn apply_retention_daily(&self) {
        let has_rules = !self.0.retention.is_empty();
        tokio::time::sleep(FIRST_RETENTION_DELAY).await;
        loop {
            match self.apply_retention().await {
                Ok(retained) if has_rules => tracing::info!(
                    removed = retained.removals.len(),
                    bytes = retained.bytes(),
                    own = retained.kept_local_models,
                    "applied mirror.retention"
                ),
                Ok(_) => {}
                Err(error) if has_rules => {
                    tracing::warn!(%error, "cannot apply mirror.retention")
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot remove outdated usage records")
                }
            }
            tokio::time::sleep(Duration::from_secs(SECONDS_PER_DAY)).await;
        }
    }

    async fn collect_garbage_hourly(&self) {
        let mut hours = tokio::time::interval(GARBAGE_COLLECTION_INTERVAL);
        loop {
            hours.tick().await;
            if let Err(error) = self.storage().inventory.collect_garbage().await {
                tracing::warn!(%error, "garbage collection failed");
            }
        }
    }
}

/// Runs a task to its end. Restarts it after a delay if it panics.
async fn restart_on_panic<F: Future<Output = ()>>(
    what: &str,
    pause: Duration,
    work: impl Fn() -> F,
) {
    while let Err(panic) = AssertUnwindSafe(work()).catch_unwind().await {
        let error = MirrorError::from_panic(&*panic);
        tracing::error!(task = what, %error, "background task panicked; restarting it");
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[tokio::test]
    async fn a_panicking_task_restarts_and_stops_no_other() {
        let (permit, others) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = async || {
            assert!(permit.fetch_add(1, Relaxed) >= 2, "a panic of a test, which is no failure")
        };
        let other = async || {
            while permit.load(Relaxed) < 3 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            others.fetch_add(1, Relaxed);
        };
        let pause = Duration::from_millis(5);
        tokio::join!(
            restart_on_panic("one", pause, work),
            restart_on_panic("the other", pause, other)
        );
        assert_eq!((permit.into_inner(), others.into_inner()), (3, 1));
    }
}

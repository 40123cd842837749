//! Shutdown signal for responses that no runner ends.

use tokio::sync::watch;

use crate::canonical::ApiError;

/// The error of requests that the shutdown interrupts.
pub(crate) fn shutting_down() -> ApiError {
    ApiError::new(503, "the server is shutting down")
}

/// Signals the shutdown to running work. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ShutdownSignal(watch::Sender<bool>);

impl Default for ShutdownSignal {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl ShutdownSignal {
    /// Starts the shutdown.
    pub(crate) fn begin(&self) {
        self.0.send_replace(true);
    }

    /// Waits for the shutdown and returns the error for interrupted requests.
    pub(crate) async fn wait(&self) -> ApiError {
        // `wait_for` cannot fail: `self` holds a sender.
        let _ = self.0.subscribe().wait_for(|started| *started).await;
        shutting_down()
    }
}

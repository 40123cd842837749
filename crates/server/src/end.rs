//! The end of the server, for answers that no runner ends.

use tokio::sync::watch;

use crate::canonical::Failure;

/// What requests are told that end with the server.
pub(crate) fn shutting_down() -> Failure {
    Failure::new(503, "the server is shutting down")
}

/// Says when what still runs has to end. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct End(watch::Sender<bool>);

impl Default for End {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl End {
    /// It has come.
    pub(crate) fn begin(&self) {
        self.0.send_replace(true);
    }

    /// Waits for it; what is said then.
    pub(crate) async fn come(&self) -> Failure {
        // This holds a sender, without which there would be an error.
        let _ = self.0.subscribe().wait_for(|come| *come).await;
        shutting_down()
    }
}

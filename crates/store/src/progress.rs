//! Progress messages of model creation.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// A progress message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Description of the step, in Ollama's words.
    pub status: String,
    /// The blob that the step works on.
    pub digest: Option<String>,
    /// Total bytes.
    pub total: Option<u64>,
    /// Processed bytes.
    pub completed: Option<u64>,
}

impl Progress {
    /// A message with byte counts. Clients show a bar for messages with a digest, of a blob or a
    /// stand-in.
    pub(crate) fn bytes(status: &str, digest: &str, completed: u64, total: u64) -> Self {
        let (total, completed) = (Some(total), Some(completed));
        Self { status: status.to_owned(), digest: Some(digest.to_owned()), total, completed }
    }

    /// A message without byte counts.
    pub fn status(status: impl Into<String>) -> Self {
        Self { status: status.into(), ..Self::default() }
    }
}

/// Receives progress messages.
pub type ProgressFn<'a> = &'a mut dyn FnMut(Progress);

/// Limits the rate of progress messages. The last message of a step is never dropped.
pub(crate) struct ProgressThrottle {
    last: Option<Instant>,
}

impl ProgressThrottle {
    /// Least time between two messages.
    const INTERVAL: Duration = Duration::from_millis(100);

    pub(crate) fn new() -> Self {
        Self { last: None }
    }

    /// Whether to send a message now. A step that `is_done` always sends one.
    pub(crate) fn is_due(&mut self, is_done: bool) -> bool {
        let due = is_done || self.last.is_none_or(|last| last.elapsed() >= Self::INTERVAL);
        if due {
            self.last = Some(Instant::now());
        }
        due
    }
}

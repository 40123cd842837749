//! A task as its threads refer to it: its state, its events and its cancellation.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use super::protocol::{INITIAL_EVENT_CREDIT, RunnerResponse};
use super::runner_model::EncodeCancelled;
use crate::canonical::{ApiError, Event};
use crate::util::lock::lock;

/// State of a task that its threads share.
pub(crate) struct TaskState {
    /// Number of events that may still be sent.
    pub(super) credit: AtomicI64,
    pub(super) cancelled: AtomicBool,
    /// Number of the engine's request, once the engine has accepted it.
    pub(super) engine_request: Mutex<Option<u64>>,
}

impl TaskState {
    pub(crate) fn new() -> Self {
        Self {
            credit: AtomicI64::new(INITIAL_EVENT_CREDIT.into()),
            cancelled: AtomicBool::new(false),
            engine_request: Mutex::new(None),
        }
    }

    /// Whether this many more events may be sent before the final one.
    pub(crate) fn may_send(&self, events: i64) -> bool {
        // Two events stay reserved for the text that is held back until the end, and for the end.
        self.credit.load(Ordering::Acquire) >= events + 2
    }

    /// Number of events that may be sent now, as [`Self::may_send`] counts them.
    pub(crate) fn free_event_slots(&self) -> usize {
        usize::try_from(self.credit.load(Ordering::Acquire) - 2).unwrap_or(0)
    }

    /// Counts an event that was sent.
    pub(crate) fn sent(&self) {
        self.credit.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }
}

/// Task as its threads refer to it.
#[derive(Clone)]
pub(crate) struct TaskHandle {
    pub(crate) id: u64,
    pub(crate) client: u64,
    pub(crate) state: Arc<TaskState>,
    pub(super) out: Sender<RunnerResponse>,
    pub(super) tasks: Arc<Tasks>,
}

/// Tasks that have not ended, by number.
pub(super) type Tasks = Mutex<HashMap<u64, Arc<TaskState>>>;

impl TaskHandle {
    /// Sends an event; returns `false` if the task was cancelled.
    pub(crate) fn send(&self, event: Event) -> bool {
        if self.state.is_cancelled() {
            return false;
        }
        if event.is_end() {
            lock(&self.tasks).remove(&self.id);
        } else {
            self.state.sent();
        }
        self.out.send(RunnerResponse::Event(self.id, event)).is_ok()
    }

    /// Flag that is set once the task is cancelled.
    pub(crate) fn cancelled(&self) -> &AtomicBool {
        &self.state.cancelled
    }

    /// Stores the number of the engine's request; returns `false` if the task was cancelled in
    /// between.
    pub(crate) fn set_engine_request(&self, request: u64) -> bool {
        *lock(&self.state.engine_request) = Some(request);
        !self.state.is_cancelled()
    }
}

impl From<EncodeCancelled> for ApiError {
    /// Only a client that has disconnected cancels an encoding. No client receives this error.
    fn from(_: EncodeCancelled) -> Self {
        Self::new(Self::CLIENT_CLOSED_REQUEST, "the client has disconnected")
    }
}

/// Returns an error if the client has disconnected, which ends the preparation early. No client
/// receives this error.
pub(super) fn check_connected(handle: &TaskHandle) -> Result<(), ApiError> {
    match handle.state.is_cancelled() {
        true => Err(EncodeCancelled.into()),
        false => Ok(()),
    }
}

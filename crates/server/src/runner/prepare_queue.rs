//! Queue of tasks that wait to be prepared, with fair queueing between clients. A client with many
//! expensive tasks delays another client by at most one of them.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use puna_mirror::{SharedTable, TableLimit};

use super::task_handle::Handle;
use crate::canonical::Task;
use crate::scheduler::fair_queue::ServiceCounts;
use crate::util::lock::lock;

/// Description of the tasks of a runner.
pub(crate) static RUNNER_TASKS: SharedTable = SharedTable {
    name: "requests that a loaded model works on",
    holders: &[
        "puna_server::runner::prepare_queue::PrepareQueue",
        "puna_server::runner::task_handle::Tasks",
        "puna_server::runner::connection::Shared",
    ],
    limits: &[TableLimit::Rule("connections")],
    shares: &[TableLimit::Rule("the client with the fewest is next")],
    when_full: "waits",
    test: "constraints_of_different_clients_are_compiled_in_turn",
};

/// Queue of tasks, in order of arrival.
#[derive(Default)]
pub(super) struct PrepareQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

/// Waiting tasks, and how many tasks of each client were served.
#[derive(Default)]
struct QueueState {
    waiting: Vec<(Handle, Task)>,
    service_counts: ServiceCounts,
    closed: bool,
}

impl PrepareQueue {
    /// Waits for a task and returns it; clients with the fewest served tasks come first. Returns
    /// `None` once the queue is closed.
    pub(super) fn next(&self) -> Option<(Handle, Task)> {
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return None;
            }
            let clients = state.waiting.iter().map(|(handle, _)| handle.client).enumerate();
            // `min_by_key` returns the first of equals, which has waited longest.
            if let Some((index, client)) =
                clients.min_by_key(|(_, client)| state.service_counts.count(*client))
            {
                state.service_counts.record(client);
                return Some(state.waiting.remove(index));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Sender of a queue. Dropping it closes the queue.
pub(super) struct QueueSender(Arc<PrepareQueue>);

impl QueueSender {
    pub(super) fn new(queue: &Arc<PrepareQueue>) -> Self {
        Self(queue.clone())
    }

    /// Appends a task and wakes a thread.
    pub(super) fn push(&self, handle: Handle, task: Task) {
        let mut state = lock(&self.0.state);
        let QueueState { waiting, service_counts, .. } = &mut *state;
        service_counts.join(handle.client, waiting.iter().map(|(handle, _)| handle.client));
        waiting.push((handle, task));
        drop(state);
        self.0.changed.notify_one();
    }

    /// Removes a task if it still waits, and releases its memory.
    pub(super) fn remove(&self, id: u64) {
        let mut state = lock(&self.0.state);
        let index = state.waiting.iter().position(|(handle, _)| handle.id == id);
        let task = index.map(|index| state.waiting.remove(index));
        drop(state);
        drop(task);
    }
}

impl Drop for QueueSender {
    fn drop(&mut self) {
        lock(&self.0.state).closed = true;
        self.0.changed.notify_all();
    }
}

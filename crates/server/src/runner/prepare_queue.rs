//! Queue of tasks that wait to be prepared, with fair queueing between clients. A client with many
//! expensive tasks delays another client by at most one of them. Threads work on at most `share`
//! tasks of one client.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use puna_mirror::{SharedTable, TableLimit};

use super::task_handle::TaskHandle;
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
    test: "a_client_with_its_share_of_threads_leaves_one_to_another",
};

/// Queue of tasks, in order of arrival.
pub(super) struct PrepareQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
    /// Maximum number of tasks of a client that threads work on.
    share: usize,
}

/// Waiting tasks, and how many tasks of each client were served.
#[derive(Default)]
struct QueueState {
    waiting: Vec<(TaskHandle, Task)>,
    service_counts: ServiceCounts,
    /// Number of tasks of each client that threads work on.
    running: HashMap<u64, usize>,
    closed: bool,
}

impl QueueState {
    /// Removes the next task: of the clients below their share, the one with the fewest served
    /// tasks is first.
    fn take_next(&mut self, share: usize) -> Option<(TaskHandle, Task)> {
        let clients = self.waiting.iter().map(|(handle, _)| handle.client).enumerate();
        let may_run = |client: &u64| self.running.get(client).is_none_or(|count| *count < share);
        // `min_by_key` returns the first of equals, which has waited longest.
        let (index, client) = clients
            .filter(|(_, client)| may_run(client))
            .min_by_key(|(_, client)| self.service_counts.count(*client))?;
        self.service_counts.record(client);
        *self.running.entry(client).or_default() += 1;
        Some(self.waiting.remove(index))
    }

    fn end_task(&mut self, client: u64) {
        if let Some(count) = self.running.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.running.remove(&client);
            }
        }
    }
}

impl PrepareQueue {
    /// Creates a queue. `share` is the maximum number of tasks of a client that threads work on.
    pub(super) fn new(share: usize) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), share }
    }

    /// Waits for a task and returns it; clients with the fewest served tasks come first. Returns
    /// `None` once the queue is closed.
    pub(super) fn next(&self) -> Option<(RunningTask<'_>, TaskHandle, Task)> {
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return None;
            }
            if let Some((handle, task)) = state.take_next(self.share) {
                return Some((RunningTask { queue: self, client: handle.client }, handle, task));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A task counts to its client's share until this is dropped.
pub(super) struct RunningTask<'a> {
    queue: &'a PrepareQueue,
    client: u64,
}

impl Drop for RunningTask<'_> {
    fn drop(&mut self) {
        lock(&self.queue.state).end_task(self.client);
        self.queue.changed.notify_one();
    }
}

/// Sender of a queue. Dropping it closes the queue.
pub(super) struct QueueSender(Arc<PrepareQueue>);

impl QueueSender {
    pub(super) fn new(queue: &Arc<PrepareQueue>) -> Self {
        Self(queue.clone())
    }

    /// Appends a task and wakes a thread.
    pub(super) fn push(&self, handle: TaskHandle, task: Task) {
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::runner::task_handle::TaskState;

    #[test]
    fn a_client_with_its_share_of_threads_leaves_one_to_another() {
        let queue = Arc::new(PrepareQueue::new(1));
        let sender = QueueSender::new(&queue);
        let (out, _responses) = mpsc::channel();
        let push = |id, client| {
            let state = Arc::new(TaskState::new());
            let handle = TaskHandle { id, client, state, out: out.clone(), tasks: Arc::default() };
            sender.push(handle, Task::Detokenize(Vec::new()));
        };
        let take = || lock(&queue.state).take_next(queue.share).map(|(handle, _)| handle.id);
        [(1, 7), (2, 7), (3, 7)].into_iter().for_each(|(id, client)| push(id, client));
        let (running, handle, _) = queue.next().unwrap();
        assert_eq!((handle.id, take()), (1, None), "the client has its share");
        push(4, 8);
        assert_eq!((take(), take()), (Some(4), None));
        drop(running);
        assert_eq!((take(), take()), (Some(2), None));
        lock(&queue.state).end_task(7);
        lock(&queue.state).end_task(8);
        assert_eq!(take(), Some(3));
        lock(&queue.state).end_task(7);
        assert!(lock(&queue.state).running.is_empty());
    }
}

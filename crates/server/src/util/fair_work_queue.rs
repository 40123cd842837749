//! Queue of work for threads, with fair queueing between clients. The threads do a limited number
//! of pieces of work of one client at a time. A client with much expensive work therefore delays
//! another client by at most one piece.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::lock::lock;
use super::service_counts::ServiceCounts;

/// Work queue that serves the client with the least service first, and each client in order of
/// arrival.
pub(crate) struct FairWorkQueue<T> {
    state: Mutex<QueueState<T>>,
    changed: Condvar,
    /// Maximum pieces of work of a client at a time.
    max_per_client: usize,
}

/// Waiting work, and the service that each client had.
struct QueueState<T> {
    waiting: Vec<WaitingWork<T>>,
    service_counts: ServiceCounts,
    /// Pieces of work of each client that threads do now.
    running: HashMap<u64, usize>,
    closed: bool,
}

/// Work that waits for a thread.
struct WaitingWork<T> {
    client: u64,
    /// Size of the work, in the unit of the caller.
    cost: u64,
    work: T,
}

impl<T> QueueState<T> {
    /// Removes the next work. Of the clients with fewer than `max_per_client` pieces in progress,
    /// the one with the least service is first.
    fn take_next(&mut self, max_per_client: usize) -> Option<(u64, T)> {
        let clients = self.waiting.iter().map(|waiting| waiting.client).enumerate();
        let may_run =
            |client: &u64| self.running.get(client).is_none_or(|count| *count < max_per_client);
        // `min_by_key` returns the first of equals, which has waited longest.
        let (index, client) = clients
            .filter(|(_, client)| may_run(client))
            .min_by_key(|(_, client)| self.service_counts.count(*client))?;
        let WaitingWork { cost, work, .. } = self.waiting.remove(index);
        self.service_counts.record(client, cost);
        *self.running.entry(client).or_default() += 1;
        Some((client, work))
    }

    fn finish(&mut self, client: u64) {
        if let Some(count) = self.running.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.running.remove(&client);
            }
        }
    }
}

impl<T> FairWorkQueue<T> {
    /// Creates a queue. Threads do at most `max_per_client` pieces of work of one client at a time.
    pub(crate) fn new(max_per_client: usize) -> Self {
        let state = QueueState {
            waiting: Vec::new(),
            service_counts: ServiceCounts::default(),
            running: HashMap::new(),
            closed: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), max_per_client }
    }

    /// Waits for work and returns it; clients with the least service come first. Returns `None`
    /// once the queue is closed.
    pub(crate) fn next(&self) -> Option<(RunningWorkGuard<'_, T>, T)> {
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return None;
            }
            if let Some((client, work)) = state.take_next(self.max_per_client) {
                return Some((RunningWorkGuard { queue: self, client }, work));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the next work if there is any.
    #[cfg(test)]
    pub(crate) fn try_next(&self) -> Option<(RunningWorkGuard<'_, T>, T)> {
        let (client, work) = lock(&self.state).take_next(self.max_per_client)?;
        Some((RunningWorkGuard { queue: self, client }, work))
    }
}

/// Counts a piece of work as in progress until it is dropped.
pub(crate) struct RunningWorkGuard<'a, T> {
    queue: &'a FairWorkQueue<T>,
    client: u64,
}

impl<T> Drop for RunningWorkGuard<'_, T> {
    fn drop(&mut self) {
        lock(&self.queue.state).finish(self.client);
        self.queue.changed.notify_one();
    }
}

/// Sender of a queue. Dropping it closes the queue.
pub(crate) struct WorkSender<T>(Arc<FairWorkQueue<T>>);

impl<T> WorkSender<T> {
    pub(crate) fn new(queue: &Arc<FairWorkQueue<T>>) -> Self {
        Self(queue.clone())
    }

    /// Appends work of a client and wakes a thread. `cost` is the size of the work.
    pub(crate) fn push(&self, client: u64, cost: u64, work: T) {
        let mut state = lock(&self.0.state);
        let QueueState { waiting, service_counts, .. } = &mut *state;
        service_counts.add_waiting_client(client, waiting.iter().map(|waiting| waiting.client));
        waiting.push(WaitingWork { client, cost, work });
        drop(state);
        self.0.changed.notify_one();
    }

    /// Removes the first waiting work that matches, and releases its memory.
    pub(crate) fn remove_first(&self, matches: impl Fn(&T) -> bool) {
        let mut state = lock(&self.0.state);
        let index = state.waiting.iter().position(|waiting| matches(&waiting.work));
        let removed = index.map(|index| state.waiting.remove(index));
        drop(state);
        drop(removed);
    }
}

impl<T> Drop for WorkSender<T> {
    fn drop(&mut self) {
        lock(&self.0.state).closed = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(max_per_client: usize) -> (Arc<FairWorkQueue<u32>>, WorkSender<u32>) {
        let queue = Arc::new(FairWorkQueue::new(max_per_client));
        let sender = WorkSender::new(&queue);
        (queue, sender)
    }

    #[test]
    fn a_client_with_its_share_of_threads_leaves_one_to_another() {
        let (queue, sender) = queue(1);
        [1, 2, 3].into_iter().for_each(|work| sender.push(7, 1, work));
        let (running, first) = queue.next().unwrap();
        assert_eq!(first, 1);
        assert!(queue.try_next().is_none(), "the client has its share");
        sender.push(8, 1, 4);
        let (other, work) = queue.try_next().unwrap();
        assert_eq!(work, 4);
        assert!(queue.try_next().is_none());
        drop(running);
        let (running, work) = queue.try_next().unwrap();
        assert_eq!(work, 2);
        assert!(queue.try_next().is_none());
        drop((running, other));
        let (running, work) = queue.try_next().unwrap();
        assert_eq!(work, 3);
        drop(running);
        assert!(lock(&queue.state).running.is_empty());
    }

    #[test]
    fn a_client_with_expensive_work_is_served_less_often() {
        let (queue, sender) = queue(1);
        // The queue never runs empty, so the service of both clients counts.
        (0..9).for_each(|work| sender.push(7, 100, work));
        (10..19).for_each(|work| sender.push(8, 30, work));
        let order: Vec<_> = (0..9).map(|_| queue.try_next().unwrap().1).collect();
        assert_eq!(order, [0, 10, 11, 12, 13, 1, 14, 15, 16]);
    }

    #[test]
    fn removed_work_is_not_done_and_a_closed_queue_ends_its_threads() {
        let (queue, sender) = queue(1);
        sender.push(1, 1, 5);
        sender.push(1, 1, 6);
        sender.remove_first(|work| *work == 5);
        assert_eq!(queue.try_next().map(|(_, work)| work), Some(6));
        drop(sender);
        assert!(queue.next().is_none());
    }
}

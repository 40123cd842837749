//! Tasks that wait to be prepared. Clients take turns, so that one with many tasks that are hard to read holds up nobody else
//! for longer than one of them takes.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::worker::Handle;
use crate::canonical::Task;
use crate::fair_queue::ServiceCounts;
use crate::lock::lock;

/// A line of tasks, in order of arrival.
#[derive(Default)]
pub(super) struct Line {
    inside: Mutex<Inside>,
    changes: Condvar,
}

#[derive(Default)]
struct Inside {
    waiting: Vec<(Handle, Task)>,
    turns: ServiceCounts,
    closed: bool,
}

impl Line {
    /// The next task, of the client that has had fewest turns, once there is one; `None` when the line is closed.
    pub(super) fn next(&self) -> Option<(Handle, Task)> {
        let mut inside = lock(&self.inside);
        loop {
            if inside.closed {
                return None;
            }
            let clients = inside.waiting.iter().map(|(handle, _)| handle.client).enumerate();
            // The first of equals: the one that waits for longest.
            if let Some((at, client)) =
                clients.min_by_key(|(_, client)| inside.turns.count(*client))
            {
                inside.turns.record(client);
                return Some(inside.waiting.remove(at));
            }
            inside = self.changes.wait(inside).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The end of a line where tasks are put in; closes it when dropped.
pub(super) struct Entrance(Arc<Line>);

impl Entrance {
    pub(super) fn of(line: &Arc<Line>) -> Self {
        Self(line.clone())
    }

    pub(super) fn push(&self, handle: Handle, task: Task) {
        let mut inside = lock(&self.0.inside);
        let Inside { waiting, turns, .. } = &mut *inside;
        turns.join(handle.client, waiting.iter().map(|(handle, _)| handle.client));
        waiting.push((handle, task));
        drop(inside);
        self.0.changes.notify_one();
    }

    /// Forgets a task, if it waits here: nobody is to hold its memory any more.
    pub(super) fn remove(&self, id: u64) {
        let mut inside = lock(&self.0.inside);
        let at = inside.waiting.iter().position(|(handle, _)| handle.id == id);
        let task = at.map(|at| inside.waiting.remove(at));
        drop(inside);
        drop(task);
    }
}

impl Drop for Entrance {
    fn drop(&mut self) {
        lock(&self.0.inside).closed = true;
        self.0.changes.notify_all();
    }
}

//! Slots for work of requests, with a share for each client.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::lock::lock;

/// A number of slots, of which each client holds at most its share.
pub(crate) struct ClientSlots {
    all: Arc<Semaphore>,
    share: usize,
    /// Slots of clients that hold one or wait for one.
    clients: Mutex<HashMap<u64, Weak<Semaphore>>>,
}

/// A slot, which is free again when this is dropped.
pub(crate) struct ClientSlot {
    _all: Option<OwnedSemaphorePermit>,
    /// The client's entry exists as long as one of its slots.
    _own: Option<OwnedSemaphorePermit>,
}

impl ClientSlots {
    /// Creates this many slots, of which a client holds at most `share`.
    pub(crate) fn new(slots: usize, share: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(slots)), share, clients: Mutex::default() }
    }

    /// Waits for a slot of a client. Clients wait in order of arrival, without those that hold
    /// their share.
    pub(crate) async fn acquire(&self, client: u64) -> ClientSlot {
        // The semaphores are never closed.
        let own = self.client(client).acquire_owned().await.ok();
        ClientSlot { _all: self.all.clone().acquire_owned().await.ok(), _own: own }
    }

    fn client(&self, client: u64) -> Arc<Semaphore> {
        let mut clients = lock(&self.clients);
        if let Some(own) = clients.get(&client).and_then(Weak::upgrade) {
            return own;
        }
        clients.retain(|_, own| own.strong_count() > 0);
        let own = Arc::new(Semaphore::new(self.share));
        clients.insert(client, Arc::downgrade(&own));
        own
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_client_that_holds_its_share_of_slots_does_not_delay_another() {
        let slots = ClientSlots::new(3, 2);
        let try_acquire = |client| slots.acquire(client).now_or_never();
        let first = [try_acquire(1), try_acquire(1)];
        assert!(first.iter().all(Option::is_some) && try_acquire(1).is_none());
        // A request that waits for the share of its client takes no slot of another client.
        let mut waiting = Box::pin(slots.acquire(1));
        assert!(waiting.as_mut().now_or_never().is_none());
        let other = try_acquire(2);
        assert!(other.is_some() && try_acquire(3).is_none());
        drop((first, other, waiting));
        assert!(try_acquire(3).is_some());
        assert_eq!(lock(&slots.clients).len(), 1);
    }
}

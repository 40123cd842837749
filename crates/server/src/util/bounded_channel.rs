//! A bounded channel that also accepts messages beyond its bound. The senders of these messages
//! limit their number.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Creates a channel with a number of slots.
pub(crate) fn channel<T>(slots: usize) -> (Sender<T>, Receiver<T>) {
    let (to, messages) = mpsc::unbounded_channel();
    (Sender { to, slots: Arc::new(Semaphore::new(slots)) }, Receiver(messages))
}

/// A slot for one message, released on drop. Unbounded messages have none.
pub(crate) struct SendPermit {
    _permit: Option<OwnedSemaphorePermit>,
}

/// A message with the slot that it occupies until it is received.
type Reserved<T> = (T, SendPermit);

/// Sending half. Messages arrive in the order in which they were sent.
pub(crate) struct Sender<T> {
    to: mpsc::UnboundedSender<Reserved<T>>,
    slots: Arc<Semaphore>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { to: self.to.clone(), slots: self.slots.clone() }
    }
}

impl<T> Sender<T> {
    /// Waits for a slot.
    pub(crate) async fn reserve(&self) -> SendPermit {
        // The semaphore is never closed. A dropped receiver releases all slots.
        SendPermit { _permit: self.slots.clone().acquire_owned().await.ok() }
    }

    /// Sends a message in a reserved slot. Returns `false` if the receiver is gone.
    pub(crate) fn send_reserved(&self, permit: SendPermit, message: T) -> bool {
        self.to.send((message, permit)).is_ok()
    }

    /// Waits for a slot and sends a message. Returns `false` if the receiver is gone.
    pub(crate) async fn send(&self, message: T) -> bool {
        self.send_reserved(self.reserve().await, message)
    }

    /// Sends without a slot, for messages that must not wait or be lost, such as the end of a
    /// request that had one.
    pub(crate) fn send_unbounded(&self, message: T) {
        self.send_reserved(SendPermit { _permit: None }, message);
    }
}

/// Receiving half.
pub(crate) struct Receiver<T>(mpsc::UnboundedReceiver<Reserved<T>>);

impl<T> Receiver<T> {
    /// Receives the next message and releases its slot; `None` when no sender is left.
    pub(crate) async fn recv(&mut self) -> Option<T> {
        self.0.recv().await.map(|(message, _)| message)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn send_waits_for_a_slot_and_send_unbounded_keeps_the_order() {
        let (to, mut from) = channel(2);
        assert_eq!(
            (to.send(1).now_or_never(), to.send(2).now_or_never()),
            (Some(true), Some(true))
        );
        let mut third = Box::pin(to.send(3));
        assert!(timeout(Duration::from_millis(20), &mut third).await.is_err());
        to.send_unbounded(4);
        assert_eq!(from.recv().await, Some(1));
        assert!(third.await);
        // A send that is given up sends nothing and holds no slot.
        assert!(timeout(Duration::from_millis(20), to.send(5)).await.is_err());
        for message in [2, 4, 3] {
            assert_eq!(from.recv().await, Some(message));
        }
        assert_eq!(
            (to.send(6).now_or_never(), to.send(7).now_or_never()),
            (Some(true), Some(true))
        );
    }

    #[tokio::test]
    async fn send_returns_when_the_receiver_is_dropped() {
        let (to, from) = channel(1);
        assert!(to.send(1).await);
        let waiting = tokio::spawn({
            let to = to.clone();
            async move { to.send(2).await }
        });
        tokio::task::yield_now().await;
        drop(from);
        assert!(!waiting.await.unwrap());
        to.send_unbounded(3);
    }
}

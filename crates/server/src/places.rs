//! A channel whose messages wait without bound only where something else bounds them: others wait for one of its places.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// A channel with so many places.
pub(crate) fn channel<T>(places: usize) -> (Sender<T>, Receiver<T>) {
    let (to, messages) = mpsc::unbounded_channel();
    (Sender { to, places: Arc::new(Semaphore::new(places)) }, Receiver(messages))
}

/// A place for a message, free again when it is dropped; or none, where none is needed.
pub(crate) struct Place {
    _held: Option<OwnedSemaphorePermit>,
}

/// A message, and the place that it has until it is taken.
type Placed<T> = (T, Place);

/// The end where messages are put in. They come out in this order.
pub(crate) struct Sender<T> {
    to: mpsc::UnboundedSender<Placed<T>>,
    places: Arc<Semaphore>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { to: self.to.clone(), places: self.places.clone() }
    }
}

impl<T> Sender<T> {
    /// Waits for a place.
    pub(crate) async fn place(&self) -> Place {
        // They are never closed. Who listens no more gives all places back.
        Place { _held: self.places.clone().acquire_owned().await.ok() }
    }

    /// Puts a message in its place. `false` if nobody listens any more.
    pub(crate) fn put(&self, place: Place, message: T) -> bool {
        self.to.send((message, place)).is_ok()
    }

    /// Waits for a place and puts a message there. `false` if nobody listens any more.
    pub(crate) async fn send(&self, message: T) -> bool {
        self.put(self.place().await, message)
    }

    /// Needs no place: for what cannot wait or must not be lost, such as the end of what was sent with one.
    pub(crate) fn push(&self, message: T) {
        self.put(Place { _held: None }, message);
    }
}

/// The end where they come out.
pub(crate) struct Receiver<T>(mpsc::UnboundedReceiver<Placed<T>>);

impl<T> Receiver<T> {
    /// The next message, whose place is free then; `None` when there can be no more.
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
    async fn who_finds_no_place_waits_and_what_cannot_wait_passes_in_order() {
        let (to, mut from) = channel(2);
        assert_eq!(
            (to.send(1).now_or_never(), to.send(2).now_or_never()),
            (Some(true), Some(true))
        );
        let mut third = Box::pin(to.send(3));
        assert!(timeout(Duration::from_millis(20), &mut third).await.is_err());
        to.push(4);
        assert_eq!(from.recv().await, Some(1));
        assert!(third.await);
        // Who gives up has sent nothing and holds no place.
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
    async fn nobody_waits_for_a_place_where_nobody_listens() {
        let (to, from) = channel(1);
        assert!(to.send(1).await);
        let waiting = tokio::spawn({
            let to = to.clone();
            async move { to.send(2).await }
        });
        tokio::task::yield_now().await;
        drop(from);
        assert!(!waiting.await.unwrap());
        to.push(3);
    }
}

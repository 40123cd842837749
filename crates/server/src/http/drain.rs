//! Drains unread request bodies so that the client receives the error response instead of a reset.
//!
//! If a server closes a connection while the client still sends, the client's system discards
//! received data. The client then reports a broken connection instead of the error.
//!
//! A large body is drained at the pace of the threads for large bodies, so that reading it delays
//! no other request.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::{HeaderMap, header};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, timeout_at};

use super::body_workers::{BATCH_BYTES, ClientWorkers};

/// Maximum wait for the next chunk of an unread body.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(60);

/// Minimum average rate in bytes per second, after the first [`CHUNK_TIMEOUT`].
const MIN_BYTES_PER_SECOND: u64 = 1 << 10;

/// Request body. If it is dropped early, a background task reads the remainder.
pub(super) struct DrainOnDrop<B: Body<Data = Bytes> + Send + Unpin + 'static> {
    body: Option<B>,
    /// The client has sent `Expect: 100-continue` and has not been told to continue.
    awaits_continue: bool,
    /// Threads that take the chunks of a large body.
    workers: Option<ClientWorkers>,
}

impl<B: Body<Data = Bytes> + Send + Unpin + 'static> DrainOnDrop<B> {
    /// Wraps the body of a request with these headers.
    pub(super) fn new(body: B, headers: &HeaderMap, workers: ClientWorkers) -> Self {
        let awaits_continue = headers.contains_key(header::EXPECT);
        Self { body: Some(body), awaits_continue, workers: Some(workers) }
    }
}

impl<B: Body<Data = Bytes> + Send + Unpin + 'static> Body for DrainOnDrop<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        // hyper sends `100 Continue` when the body is first polled.
        self.awaits_continue = false;
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = std::task::ready!(Pin::new(body).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(B::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), B::size_hint)
    }
}

impl<B: Body<Data = Bytes> + Send + Unpin + 'static> Drop for DrainOnDrop<B> {
    fn drop(&mut self) {
        let (Some(body), Some(workers)) = (self.body.take(), self.workers.take()) else { return };
        if self.awaits_continue || body.is_end_stream() {
            return;
        }
        // Without a runtime the connection is closed anyway.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(drain(body, workers));
        }
    }
}

/// Reads a body to its end, within the limits of time.
async fn drain<B: Body<Data = Bytes> + Unpin>(mut body: B, workers: ClientWorkers) {
    let (begun, mut read, mut batch_bytes) = (Instant::now(), 0, 0);
    loop {
        let due = begun + CHUNK_TIMEOUT + Duration::from_secs(read / MIN_BYTES_PER_SECOND);
        let next = timeout_at(due.min(Instant::now() + CHUNK_TIMEOUT), body.frame());
        let Ok(Some(Ok(frame))) = next.await else { return };
        let Ok(data) = frame.into_data() else { continue };
        read += data.len() as u64;
        batch_bytes += data.len();
        if batch_bytes >= BATCH_BYTES {
            let waited = workers.run(batch_bytes, move || drop(data)).await;
            batch_bytes = 0;
            if waited.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::body::Body;
    use futures_util::StreamExt;

    use super::*;
    use crate::http::body_workers::BodyWorkers;

    /// A body of ten chunks, and the number of chunks read.
    fn ten() -> (Body, Arc<AtomicUsize>) {
        let taken = Arc::new(AtomicUsize::new(0));
        let counter = taken.clone();
        let pieces = futures_util::stream::iter(0..10).map(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok::<_, std::io::Error>(Bytes::from_static(b"piece"))
        });
        (Body::from_stream(pieces), taken)
    }

    fn headers(expect: bool) -> HeaderMap {
        let given = expect.then(|| (header::EXPECT, "100-continue".parse().unwrap()));
        given.into_iter().collect()
    }

    fn workers() -> ClientWorkers {
        BodyWorkers::default().for_client(1)
    }

    async fn settle() {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_dropped_body_is_read_to_its_end() {
        for read in [0, 3] {
            let (body, taken) = ten();
            let mut body = DrainOnDrop::new(body, &headers(false), workers());
            for _ in 0..read {
                body.frame().await.unwrap().unwrap();
            }
            assert_eq!(taken.load(Ordering::Relaxed), read);
            drop(body);
            settle().await;
            assert_eq!(taken.load(Ordering::Relaxed), 10, "after {read}");
        }
    }

    #[tokio::test]
    async fn a_large_body_is_drained_at_the_pace_of_the_threads_for_large_bodies() {
        const CHUNK_COUNT: usize = 10;
        let workers = BodyWorkers::default();
        // The client's share of the threads is in use.
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let busy = workers.clone();
        let running = tokio::spawn(async move {
            busy.run(1, 1, move || ended.recv().is_err()).await.unwrap();
        });
        settle().await;
        let taken = Arc::new(AtomicUsize::new(0));
        let counter = taken.clone();
        let pieces = futures_util::stream::iter(0..CHUNK_COUNT).map(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok::<_, std::io::Error>(Bytes::from(vec![0; BATCH_BYTES / 2]))
        });
        let body = Body::from_stream(pieces);
        drop(DrainOnDrop::new(body, &headers(false), workers.for_client(1)));
        settle().await;
        assert_eq!(taken.load(Ordering::Relaxed), 2, "the second chunk waits");
        drop(end);
        running.await.unwrap();
        crate::runner::tests::wait_until(|| taken.load(Ordering::Relaxed) == CHUNK_COUNT).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_is_drained_and_a_stalled_one_times_out() {
        let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Bytes, std::io::Error>>(1);
        let pieces = futures_util::stream::unfold(receiver, async |mut receiver| {
            receiver.recv().await.map(|piece| (piece, receiver))
        });
        drop(DrainOnDrop::new(Body::from_stream(pieces), &headers(false), workers()));
        for _ in 0..5 {
            tokio::time::sleep(CHUNK_TIMEOUT / 2).await;
            sender.send(Ok(Bytes::from(vec![0; 40 << 10]))).await.unwrap();
        }
        // Nothing arrives any more.
        sender.closed().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_arrives_byte_by_byte_times_out() {
        let drips = futures_util::stream::unfold((), async |()| {
            tokio::time::sleep(CHUNK_TIMEOUT / 4).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b"x")), ()))
        });
        let held = Arc::new(());
        let witness = held.clone();
        let drips = drips.map(move |piece| {
            let _ = &witness;
            piece
        });
        drop(DrainOnDrop::new(Body::from_stream(drips), &headers(false), workers()));
        tokio::time::sleep(2 * CHUNK_TIMEOUT).await;
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[tokio::test]
    async fn a_client_that_expects_continue_is_not_drained() {
        let (body, taken) = ten();
        drop(DrainOnDrop::new(body, &headers(true), workers()));
        settle().await;
        assert_eq!(taken.load(Ordering::Relaxed), 0);
        let (body, taken) = ten();
        let mut body = DrainOnDrop::new(body, &headers(true), workers());
        body.frame().await.unwrap().unwrap();
        drop(body);
        settle().await;
        assert_eq!(taken.load(Ordering::Relaxed), 10, "it is in the midst of sending");
    }
}

//! Request bodies that are read to their end even where the answer did not need them.
//!
//! Who closes a connection while the other side still sends takes the answer back with it: the client's system drops what it
//! had received, and the client reports a broken connection instead of what is wrong with its request.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::{HeaderMap, header};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, timeout_at};

/// How long the next piece of a body may take that nobody needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes a second that it must come with on the whole, once that is used up.
const SLOWEST: u64 = 1 << 10;

/// A body whose rest is read in the background when it is dropped before its end.
pub(super) struct Lingering<B: Body<Data = Bytes> + Send + Unpin + 'static> {
    body: Option<B>,
    /// The client asked whether to send, and has not been told to.
    withheld: bool,
}

impl<B: Body<Data = Bytes> + Send + Unpin + 'static> Lingering<B> {
    /// The body of a request with these headers.
    pub(super) fn new(body: B, headers: &HeaderMap) -> Self {
        Self { body: Some(body), withheld: headers.contains_key(header::EXPECT) }
    }
}

impl<B: Body<Data = Bytes> + Send + Unpin + 'static> Body for Lingering<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        // The first look at the body is what tells the client to send.
        self.withheld = false;
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

impl<B: Body<Data = Bytes> + Send + Unpin + 'static> Drop for Lingering<B> {
    fn drop(&mut self) {
        let Some(mut body) = self.body.take() else { return };
        if self.withheld || body.is_end_stream() {
            return;
        }
        // Without a runtime the connection is gone too.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let (begun, mut read) = (Instant::now(), 0);
                loop {
                    let due = begun + PATIENCE + Duration::from_secs(read / SLOWEST);
                    let next = timeout_at(due.min(Instant::now() + PATIENCE), body.frame());
                    let Ok(Some(Ok(frame))) = next.await else { return };
                    read += frame.data_ref().map_or(0, |data| data.len() as u64);
                }
            });
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

    /// A body of ten pieces that counts those that were taken.
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

    async fn settle() {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn what_is_left_of_a_body_is_read_when_it_is_dropped() {
        for read in [0, 3] {
            let (body, taken) = ten();
            let mut body = Lingering::new(body, &headers(false));
            for _ in 0..read {
                body.frame().await.unwrap().unwrap();
            }
            assert_eq!(taken.load(Ordering::Relaxed), read);
            drop(body);
            settle().await;
            assert_eq!(taken.load(Ordering::Relaxed), 10, "after {read}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_is_read_on_and_one_that_stands_still_is_given_up() {
        let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Bytes, std::io::Error>>(1);
        let pieces = futures_util::stream::unfold(receiver, async |mut receiver| {
            receiver.recv().await.map(|piece| (piece, receiver))
        });
        drop(Lingering::new(Body::from_stream(pieces), &headers(false)));
        for _ in 0..5 {
            tokio::time::sleep(PATIENCE / 2).await;
            sender.send(Ok(Bytes::from(vec![0; 40 << 10]))).await.unwrap();
        }
        tokio::time::sleep(2 * PATIENCE).await;
        assert!(sender.is_closed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_comes_byte_by_byte_is_given_up() {
        let drips = futures_util::stream::unfold((), async |()| {
            tokio::time::sleep(PATIENCE / 4).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b"x")), ()))
        });
        let held = Arc::new(());
        let witness = held.clone();
        let drips = drips.map(move |piece| {
            let _ = &witness;
            piece
        });
        drop(Lingering::new(Body::from_stream(drips), &headers(false)));
        tokio::time::sleep(2 * PATIENCE).await;
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[tokio::test]
    async fn a_client_that_waits_to_be_asked_is_not_asked_for_nothing() {
        let (body, taken) = ten();
        drop(Lingering::new(body, &headers(true)));
        settle().await;
        assert_eq!(taken.load(Ordering::Relaxed), 0);
        let (body, taken) = ten();
        let mut body = Lingering::new(body, &headers(true));
        body.frame().await.unwrap().unwrap();
        drop(body);
        settle().await;
        assert_eq!(taken.load(Ordering::Relaxed), 10, "it is in the midst of sending");
    }
}

//! The end of a server, as its connections see it: requests that are being answered are counted, and those that are still
//! being sent break off.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::sync::watch;

use super::lingering::Lingering;

/// Knows how many requests are being answered, and says when the end has come. Cheap to clone.
#[derive(Clone)]
pub(super) struct Ending {
    answers: watch::Sender<usize>,
    begun: watch::Sender<bool>,
}

impl Ending {
    pub(super) fn new() -> Self {
        Self { answers: watch::Sender::new(0), begun: watch::Sender::new(false) }
    }

    /// The end has come: nothing that is still being sent is waited for.
    pub(super) fn begin(&self) {
        self.begun.send_replace(true);
    }

    /// Waits until no request is being answered.
    pub(super) async fn idle(&self) {
        // This holds a sender, without which there would be an error.
        let _ = self.answers.subscribe().wait_for(|answers| *answers == 0).await;
    }

    /// A request whose body breaks off when the end comes before its own, and is read to its own otherwise.
    pub(super) fn request(&self, request: hyper::Request<Incoming>) -> Request {
        let mut begun = self.begun.subscribe();
        let end = async move {
            if begun.wait_for(|begun| *begun).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let (head, body) = request.into_parts();
        let body = Lingering::new(Sent { body, end: Box::pin(end) }, &head.headers);
        Request::from_parts(head, Body::new(body))
    }

    /// Counts a request that begins to be answered.
    pub(super) fn count(&self) -> Counted {
        self.answers.send_modify(|answers| *answers += 1);
        Counted(self.answers.clone())
    }
}

/// A request that is being answered, until this is dropped.
pub(super) struct Counted(watch::Sender<usize>);

impl Counted {
    /// Goes on until the answer is sent.
    pub(super) fn until_sent(self, response: Response) -> Response {
        response.map(|body| Body::new(Answer { body, _counted: self }))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|answers| *answers -= 1);
    }
}

/// The body of a request.
struct Sent {
    body: Incoming,
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl hyper::body::Body for Sent {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        self.end.as_mut().poll(cx).map(|()| Some(Err("the server is shutting down".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer.
struct Answer {
    body: Body,
    _counted: Counted,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

//! Graceful shutdown of connections: counts requests in progress, and aborts request bodies that
//! are still being received.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::sync::watch;

use super::body_workers::BodyWorkers;
use super::connection_table::ActiveConnection;
use super::drain::DrainOnDrop;

/// Counts requests in progress and signals the shutdown. Cheap to clone.
#[derive(Clone)]
pub(super) struct RequestTracker {
    active: watch::Sender<usize>,
    shutdown: watch::Sender<bool>,
    workers: BodyWorkers,
}

impl RequestTracker {
    /// Creates a tracker. `workers` take the chunks of large bodies that are drained.
    pub(super) fn new(workers: BodyWorkers) -> Self {
        Self { active: watch::Sender::new(0), shutdown: watch::Sender::new(false), workers }
    }

    /// Starts the shutdown: request bodies still being received are aborted.
    pub(super) fn start_shutdown(&self) {
        self.shutdown.send_replace(true);
    }

    /// Waits until no request is in progress.
    pub(super) async fn wait_until_idle(&self) {
        // `wait_for` cannot fail: `self` holds a sender.
        let _ = self.active.subscribe().wait_for(|active| *active == 0).await;
    }

    /// Wraps a request so that shutdown aborts its body, and an unread body is drained otherwise.
    /// `client` is the [client number](super::Client) of the peer.
    pub(super) fn wrap_request(&self, request: hyper::Request<Incoming>, client: u64) -> Request {
        let mut shutdown = self.shutdown.subscribe();
        let end = async move {
            if shutdown.wait_for(|shutdown| *shutdown).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let (head, body) = request.into_parts();
        let body = AbortableBody { body, end: Box::pin(end) };
        let body = DrainOnDrop::new(body, &head.headers, self.workers.for_client(client));
        Request::from_parts(head, Body::new(body))
    }

    /// Counts a new request as in progress.
    pub(super) fn start_request(&self) -> ActiveRequest {
        self.active.send_modify(|active| *active += 1);
        ActiveRequest(self.active.clone())
    }
}

/// A request in progress, until this is dropped.
pub(super) struct ActiveRequest(watch::Sender<usize>);

impl ActiveRequest {
    /// Keeps the request in progress until the response body is sent.
    pub(super) fn attach_to_body(
        self,
        response: Response,
        on_connection: ActiveConnection,
    ) -> Response {
        let _active = (self, on_connection);
        response.map(|body| Body::new(TrackedBody { body, _active }))
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.send_modify(|active| *active -= 1);
    }
}

/// Request body that fails when the shutdown starts.
struct AbortableBody {
    body: Incoming,
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl hyper::body::Body for AbortableBody {
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

/// Response body that keeps its request in progress.
struct TrackedBody {
    body: Body,
    _active: (ActiveRequest, ActiveConnection),
}

impl hyper::body::Body for TrackedBody {
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

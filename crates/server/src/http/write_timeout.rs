//! A stream with a timeout for writes when the client stops reading. It closes so that the client
//! receives the end of the response.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// A connection. Its writes fail after the client has read nothing for `limit`. The failure also
/// frees the resources of the response, such as its sequence and KV pages.
pub(crate) struct WriteTimeoutStream<S> {
    stream: S,
    /// `None` is no limit.
    limit: Option<Duration>,
    /// Runs while a write is pending.
    write_timer: Option<Pin<Box<Sleep>>>,
    closing: Option<Closing>,
}

/// State of a connection with a closed sending half. If the client sends unread data after the
/// close, its system discards the response. The server therefore reads until the client stops or a
/// limit is reached.
struct Closing {
    shutdown_sent: bool,
    limit: Pin<Box<Sleep>>,
    idle: Pin<Box<Sleep>>,
}

/// Maximum time to read from a client after the close.
const LINGER_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum silence of the client during that time.
const LINGER_IDLE_TIMEOUT: Duration = Duration::from_secs(2);

impl<S> WriteTimeoutStream<S> {
    pub(crate) fn new(stream: S, limit: Option<Duration>) -> Self {
        Self { stream, limit, write_timer: None, closing: None }
    }

    /// Replaces a write that has been pending for too long by an error.
    fn apply_timeout<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match (written, self.limit) {
            (Poll::Pending, Some(limit)) => {
                let write_timer = self.write_timer.get_or_insert_with(|| Box::pin(sleep(limit)));
                ready!(write_timer.as_mut().poll(cx));
                let text =
                    format!("the client has read nothing for {} seconds", limit.as_secs_f64());
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, text)))
            }
            (written, _) => {
                self.write_timer = None;
                written
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WriteTimeoutStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, data);
        self.apply_timeout(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, data);
        self.apply_timeout(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A socket has nothing to flush. The timer of a pending write continues.
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, closing, .. } = &mut *self;
        let closing = closing.get_or_insert_with(|| Closing {
            shutdown_sent: false,
            limit: Box::pin(sleep(LINGER_TIMEOUT)),
            idle: Box::pin(sleep(LINGER_IDLE_TIMEOUT)),
        });
        if !closing.shutdown_sent {
            ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
            closing.shutdown_sent = true;
        }
        let mut scratch = [0; 4096];
        while closing.limit.as_mut().poll(cx).is_pending() {
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut *stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    closing.idle.as_mut().reset(Instant::now() + LINGER_IDLE_TIMEOUT);
                }
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    ready!(closing.idle.as_mut().poll(cx));
                    return Poll::Ready(Ok(()));
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

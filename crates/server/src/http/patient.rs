//! Connections that do not wait for ever on somebody who has stopped to read, and end so that what was said last is heard.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// A connection on which writing fails once data has waited for the whole limit without a byte being taken. What the
/// answer holds (its sequence, its pages) is let go with it.
pub(crate) struct Patient<S> {
    stream: S,
    /// `None` is for ever.
    limit: Option<Duration>,
    /// Runs while data waits.
    waits: Option<Pin<Box<Sleep>>>,
    closing: Option<Closing>,
}

/// A connection that this side has closed. A system that gets data which nobody reads takes back what it had for the other
/// side: so who still sends is read to the end, or for a while.
struct Closing {
    told: bool,
    end: Pin<Box<Sleep>>,
    silence: Pin<Box<Sleep>>,
}

/// How long a client that still sends is read after the connection was closed.
const LAST: Duration = Duration::from_secs(30);

/// How long it may be silent meanwhile.
const SILENCE: Duration = Duration::from_secs(2);

impl<S> Patient<S> {
    pub(crate) fn new(stream: S, limit: Option<Duration>) -> Self {
        Self { stream, limit, waits: None, closing: None }
    }

    /// Passes the outcome of a write on, unless it has been pending for too long.
    fn outcome<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match (written, self.limit) {
            (Poll::Pending, Some(limit)) => {
                let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(limit)));
                ready!(waits.as_mut().poll(cx));
                let text =
                    format!("the client has taken nothing for {} seconds", limit.as_secs_f64());
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, text)))
            }
            (written, _) => {
                self.waits = None;
                written
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, data);
        self.outcome(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, data);
        self.outcome(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A socket has nothing to flush; what is pending is a write, and its time goes on.
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, closing, .. } = &mut *self;
        let closing = closing.get_or_insert_with(|| Closing {
            told: false,
            end: Box::pin(sleep(LAST)),
            silence: Box::pin(sleep(SILENCE)),
        });
        if !closing.told {
            ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
            closing.told = true;
        }
        let mut scratch = [0; 4096];
        while closing.end.as_mut().poll(cx).is_pending() {
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut *stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    closing.silence.as_mut().reset(Instant::now() + SILENCE);
                }
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    ready!(closing.silence.as_mut().poll(cx));
                    return Poll::Ready(Ok(()));
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

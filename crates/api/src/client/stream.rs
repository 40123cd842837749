//! Streamed responses: one JSON object per line.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{Stream as FuturesStream, StreamExt};
use reqwest::Response;
use serde::de::DeserializeOwned;

use super::{ClientError, body_error};
use crate::ollama::ErrorBody;

/// Largest line in bytes. A longer one ends the stream with an error.
const MAX_LINE_BYTES: usize = 64 << 20;

/// Stream of objects. Dropping it cancels the request.
pub struct Stream<T> {
    bytes: Pin<Box<dyn FuturesStream<Item = Result<Bytes, ClientError>> + Send>>,
    buffer: Vec<u8>,
    searched: usize,
    ended: bool,
    item: std::marker::PhantomData<fn() -> T>,
}

impl<T> Stream<T> {
    pub(super) fn new(response: Response) -> Self {
        Self {
            bytes: response.bytes_stream().map(|b| b.map_err(body_error)).boxed(),
            buffer: Vec::new(),
            searched: 0,
            ended: false,
            item: std::marker::PhantomData,
        }
    }
}

impl<T: DeserializeOwned> Stream<T> {
    /// Reads to the end and returns the last object: the complete answer if `stream` is false, or
    /// the end of progress reports.
    pub async fn last(mut self) -> Result<T, ClientError> {
        let mut last = None;
        while let Some(item) = self.next().await {
            last = Some(item?);
        }
        last.ok_or_else(|| ClientError::InvalidResponse("it is empty".into()))
    }

    /// Returns the next object. An error inside the stream is the last item.
    pub async fn next(&mut self) -> Option<Result<T, ClientError>> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, ClientError>>> {
        loop {
            if let Some(at) = self.buffer[self.searched..].iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=self.searched + at).collect();
                self.searched = 0;
                if line.iter().any(|b| !b.is_ascii_whitespace()) {
                    return Poll::Ready(Some(self.line(&line)));
                }
                continue;
            }
            self.searched = self.buffer.len();
            if self.ended {
                let rest = std::mem::take(&mut self.buffer);
                self.searched = 0;
                let blank = rest.iter().all(u8::is_ascii_whitespace);
                return Poll::Ready(if blank { None } else { Some(self.line(&rest)) });
            }
            match self.bytes.as_mut().poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => self.ended = true,
                Poll::Ready(Some(Err(e))) => {
                    self.stop();
                    return Poll::Ready(Some(Err(e)));
                }
                Poll::Ready(Some(Ok(bytes)))
                    if self.buffer.len() + bytes.len() > MAX_LINE_BYTES =>
                {
                    self.stop();
                    return Poll::Ready(Some(Err(ClientError::InvalidResponse(
                        "a line of more than 64 MiB".into(),
                    ))));
                }
                Poll::Ready(Some(Ok(bytes))) => self.buffer.extend_from_slice(&bytes),
            }
        }
    }

    fn line(&mut self, line: &[u8]) -> Result<T, ClientError> {
        if let Ok(ErrorBody { error, .. }) = serde_json::from_slice(line) {
            self.stop();
            return Err(ClientError::Status { status: 0, message: error });
        }
        serde_json::from_slice(line).map_err(|e| ClientError::InvalidResponse(e.to_string()))
    }

    fn stop(&mut self) {
        self.ended = true;
        self.buffer.clear();
        self.searched = 0;
    }
}

impl<T: DeserializeOwned> FuturesStream for Stream<T> {
    type Item = Result<T, ClientError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll(cx)
    }
}

//! Streams of lines, with bounds on their length and on silence.

use std::time::Duration;

use reqwest::Response;
use serde_json::Value;
use tokio::time::timeout;

use super::ask::broken;
use crate::canonical::ApiError;

/// Bytes of a line, or of an answer in one piece, at most.
const MOST: usize = 64 << 20;
/// Data of an event that is read with every further line, in bytes.
const SHORT_BYTES: usize = 4096;

/// Some servers begin a stream with this mark in UTF-8.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The lines of an answer.
pub(super) struct Lines {
    response: Response,
    silence: Option<Duration>,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were handed out.
    taken: usize,
    /// Bytes behind those in which there is no line end.
    searched: usize,
    ended: bool,
}

impl Lines {
    pub(super) fn new(response: Response, silence: Option<Duration>) -> Self {
        Self { response, silence, buffer: Vec::new(), taken: 0, searched: 0, ended: false }
    }

    async fn more(&mut self) -> Result<bool, ApiError> {
        let chunk = self.response.chunk();
        let chunk = match self.silence {
            None => chunk.await,
            Some(silence) => timeout(silence, chunk).await.map_err(|_| {
                let text =
                    format!("the remote server has sent nothing for {} s", silence.as_secs());
                ApiError::new(504, text)
            })?,
        };
        let Some(chunk) = chunk.map_err(|error| broken(&error))? else { return Ok(false) };
        self.buffer.drain(..self.taken);
        self.taken = 0;
        if self.buffer.len() + chunk.len() > MOST {
            return Err(too_long());
        }
        self.buffer.extend_from_slice(&chunk);
        Ok(true)
    }

    /// The next line, without its end; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<&[u8]>, ApiError> {
        loop {
            let from = self.taken + self.searched;
            if let Some(at) = self.buffer[from..].iter().position(|&byte| byte == b'\n') {
                let line = self.taken..from + at;
                (self.taken, self.searched) = (line.end + 1, 0);
                return Ok(Some(self.buffer[line].trim_ascii_end()));
            }
            self.searched = self.buffer.len() - self.taken;
            if !self.ended && self.more().await? {
                continue;
            }
            self.ended = true;
            let rest = self.taken..self.buffer.len();
            (self.taken, self.searched) = (self.buffer.len(), 0);
            return Ok(Some(self.buffer[rest].trim_ascii()).filter(|line| !line.is_empty()));
        }
    }

    /// The data of the next server-sent event; `None` at the end, which `[DONE]` is too. An answer in one piece, of servers
    /// that do not stream, counts as an event. An event ends once its data is complete, as some servers send no empty line.
    pub(super) async fn event(&mut self) -> Result<Option<Value>, ApiError> {
        let (mut data, mut is_bare) = (Vec::new(), false);
        // Long data is read again only once it is twice as long, so that it is read a few times only.
        let mut read_from = 0;
        while let Some(line) = self.next().await? {
            let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
            let part = match line.strip_prefix(b"data:") {
                Some(part) => part.trim_ascii(),
                None if is_bare => line,
                None if line.starts_with(b"{") && data.is_empty() => {
                    is_bare = true;
                    line
                }
                None if line.is_empty() && !data.is_empty() => break,
                // Comments that keep connections open, names of events, ends of events.
                None => continue,
            };
            if part.is_empty() {
                continue;
            }
            let is_first = data.is_empty();
            if is_first && part == b"[DONE]" {
                return Ok(None);
            }
            if data.len() + part.len() > MOST {
                return Err(too_long());
            }
            data.extend_from_slice(part);
            if is_first || (part.ends_with(b"}") && data.len() >= read_from) {
                match serde_json::from_slice(&data) {
                    Err(error) if error.is_eof() => {
                        read_from = if data.len() < SHORT_BYTES { 0 } else { 2 * data.len() }
                    }
                    other => return other.map(Some).map_err(|error| nonsense(&error)),
                }
            }
            data.push(b'\n');
        }
        if data.is_empty() { Ok(None) } else { object(&data).map(Some) }
    }

    /// The next line of objects.
    pub(super) async fn object(&mut self) -> Result<Option<Value>, ApiError> {
        while let Some(line) = self.next().await? {
            if !line.is_empty() {
                return object(line).map(Some);
            }
        }
        Ok(None)
    }

    /// All of the answer as one object.
    pub(super) async fn whole(mut self) -> Result<Value, ApiError> {
        while self.more().await? {}
        object(&self.buffer)
    }

    /// All of the answer, if it is short.
    pub(super) async fn text(mut self, most: usize) -> String {
        while self.buffer.len() < most && matches!(self.more().await, Ok(true)) {}
        self.buffer.truncate(most);
        String::from_utf8_lossy(&self.buffer).into_owned()
    }
}

fn object(bytes: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| nonsense(&error))
}

fn nonsense(error: &serde_json::Error) -> ApiError {
    ApiError::new(502, format!("the remote server's answer makes no sense: {error}"))
}

fn too_long() -> ApiError {
    ApiError::new(502, format!("the remote server sent a line of more than {} MiB", MOST >> 20))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn events(text: &'static str) -> Result<Vec<Value>, ApiError> {
        let mut lines = Lines::new(axum::http::Response::new(text).into(), None);
        let mut events = Vec::new();
        while let Some(event) = lines.event().await? {
            events.push(event);
        }
        Ok(events)
    }

    #[tokio::test]
    async fn events_may_have_a_byte_order_mark_and_several_lines() {
        let one = [json!({"a": {"b": 1}}), json!({"c": 2})];
        for text in [
            "data: {\"a\":{\"b\":1}}\n\ndata: {\"c\":2}\n\ndata: [DONE]\n\n",
            "\u{feff}data: {\"a\":{\"b\":1}}\n\ndata:{\"c\":2}\n\n",
            "data: {\"a\":\ndata: {\"b\":1}\ndata: }\n\ndata: {\"c\":2}\n",
            "data: {\"a\":\r\ndata: {\"b\":1}}\r\n\r\n: c\r\n\r\ndata: {\"c\":2}",
            "data: {\"a\":{\"b\":1}}\ndata: {\"c\":2}\n",
            "{\"a\":{\"b\":1}}\n{\"c\":2}\n",
        ] {
            assert_eq!(events(text).await.unwrap(), one, "{text}");
        }
        assert_eq!(events("{\n \"a\": {\n  \"b\": 1\n }\n}").await.unwrap(), one[..1]);
        for text in ["data: {oops\n\n", "data: {\"a\":\n\ndata: 1}\n\n", "data: {\"a\":"] {
            assert_eq!(events(text).await.unwrap_err().status, 502, "{text}");
        }
    }
}

//! Reads streams of lines and of server-sent events, with limits on their length and on silence.

use std::time::Duration;

use reqwest::Response;
use serde_json::Value;
use tokio::time::timeout;

use crate::canonical::ApiError;

/// Largest line, or response in one piece, in bytes.
const MAX_LINE_BYTES: usize = 64 << 20;
/// Size in bytes up to which an event's data is parsed after every line.
const SHORT_BYTES: usize = 4096;

/// UTF-8 byte order mark, with which some servers begin a stream.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The lines of a response's body.
pub(super) struct ResponseLines {
    response: Response,
    silence_timeout: Option<Duration>,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were returned as lines.
    returned: usize,
    /// Bytes after `returned` that were searched and have no line end.
    searched: usize,
    is_at_end: bool,
}

impl ResponseLines {
    pub(super) fn new(response: Response, silence_timeout: Option<Duration>) -> Self {
        Self {
            response,
            silence_timeout,
            buffer: Vec::new(),
            returned: 0,
            searched: 0,
            is_at_end: false,
        }
    }

    async fn read_chunk(&mut self) -> Result<bool, ApiError> {
        let chunk = self.response.chunk();
        let chunk = match self.silence_timeout {
            None => chunk.await,
            Some(silence_timeout) => timeout(silence_timeout, chunk).await.map_err(|_| {
                let text = format!(
                    "the remote server has sent nothing for {} s",
                    silence_timeout.as_secs()
                );
                ApiError::new(504, text)
            })?,
        };
        let Some(chunk) = chunk.map_err(|error| connection_error(&error))? else {
            return Ok(false);
        };
        self.buffer.drain(..self.returned);
        self.returned = 0;
        if self.buffer.len() + chunk.len() > MAX_LINE_BYTES {
            return Err(too_long());
        }
        self.buffer.extend_from_slice(&chunk);
        Ok(true)
    }

    /// Returns the next line without its end; `None` at the end of the stream.
    pub(super) async fn next_line(&mut self) -> Result<Option<&[u8]>, ApiError> {
        loop {
            let from = self.returned + self.searched;
            if let Some(at) = self.buffer[from..].iter().position(|&byte| byte == b'\n') {
                let line = self.returned..from + at;
                (self.returned, self.searched) = (line.end + 1, 0);
                return Ok(Some(self.buffer[line].trim_ascii_end()));
            }
            self.searched = self.buffer.len() - self.returned;
            if !self.is_at_end && self.read_chunk().await? {
                continue;
            }
            self.is_at_end = true;
            let rest = self.returned..self.buffer.len();
            (self.returned, self.searched) = (self.buffer.len(), 0);
            return Ok(Some(self.buffer[rest].trim_ascii()).filter(|line| !line.is_empty()));
        }
    }

    /// Returns the data of the next server-sent event; `None` at the end of the stream and at
    /// `[DONE]`. A response in one piece, from a server that does not stream, counts as one event.
    /// An event ends once its data is complete JSON, because some servers send no empty line.
    pub(super) async fn next_event(&mut self) -> Result<Option<Value>, ApiError> {
        let (mut data, mut is_bare) = (Vec::new(), false);
        // Long data is parsed again only once its length has doubled, which keeps the total cost
        // linear.
        let mut read_from = 0;
        while let Some(line) = self.next_line().await? {
            let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
            let part = match line.strip_prefix(b"data:") {
                Some(part) => part.trim_ascii(),
                None if is_bare => line,
                None if line.starts_with(b"{") && data.is_empty() => {
                    is_bare = true;
                    line
                }
                None if line.is_empty() && !data.is_empty() => break,
                // Comments that keep connections open, event names and ends of events are skipped.
                None => continue,
            };
            if part.is_empty() {
                continue;
            }
            let is_first = data.is_empty();
            if is_first && part == b"[DONE]" {
                return Ok(None);
            }
            if data.len() + part.len() > MAX_LINE_BYTES {
                return Err(too_long());
            }
            data.extend_from_slice(part);
            if is_first || (part.ends_with(b"}") && data.len() >= read_from) {
                match serde_json::from_slice(&data) {
                    Err(error) if error.is_eof() => {
                        read_from = if data.len() < SHORT_BYTES { 0 } else { 2 * data.len() }
                    }
                    other => return other.map(Some).map_err(|error| invalid_json(&error)),
                }
            }
            data.push(b'\n');
        }
        if data.is_empty() { Ok(None) } else { parse_json(&data).map(Some) }
    }

    /// Returns the JSON value of the next line that is not empty.
    pub(super) async fn next_json(&mut self) -> Result<Option<Value>, ApiError> {
        while let Some(line) = self.next_line().await? {
            if !line.is_empty() {
                return parse_json(line).map(Some);
            }
        }
        Ok(None)
    }

    /// Reads the whole response as one JSON value.
    pub(super) async fn into_json(mut self) -> Result<Value, ApiError> {
        while self.read_chunk().await? {}
        parse_json(&self.buffer)
    }

    /// Reads the response as text, up to `most` bytes.
    pub(super) async fn into_text(mut self, most: usize) -> String {
        while self.buffer.len() < most && matches!(self.read_chunk().await, Ok(true)) {}
        self.buffer.truncate(most);
        String::from_utf8_lossy(&self.buffer).into_owned()
    }
}

/// Error for a connection that ended before the response was complete.
pub(super) fn connection_error(error: &reqwest::Error) -> ApiError {
    let cause = puna_registry::root_cause(error);
    ApiError::new(502, format!("the connection to the remote server failed: {cause}"))
}

fn parse_json(bytes: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| invalid_json(&error))
}

fn invalid_json(error: &serde_json::Error) -> ApiError {
    ApiError::new(502, format!("invalid response from the remote server: {error}"))
}

fn too_long() -> ApiError {
    ApiError::new(
        502,
        format!("the remote server sent a line of more than {} MiB", MAX_LINE_BYTES >> 20),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn events(text: &'static str) -> Result<Vec<Value>, ApiError> {
        let mut lines = ResponseLines::new(axum::http::Response::new(text).into(), None);
        let mut events = Vec::new();
        while let Some(event) = lines.next_event().await? {
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

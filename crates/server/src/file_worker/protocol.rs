//! Messages between a file worker and its parent.
//!
//! ```text
//! to the worker     u32 version, then one message as in the runner protocol: the task
//! to the parent     frames: u8 kind, u32 length, content
//!                   kind 0 is a message in JSON, kind 1 the next bytes of the output file
//! ```
//!
//! Numbers are little-endian. The parent takes no more memory for a frame than arrives, and at most
//! [`MAX_FRAME_BYTES`].

use std::io::{self, Read, Write};
use std::path::PathBuf;

use puna_store::{FileJob, Progress};
use serde::{Deserialize, Serialize};

use crate::runner::protocol as runner_protocol;
use crate::runner::sandbox::SandboxReport;

/// Version of the protocol. It detects a program file that was replaced while its parent ran.
pub(super) const VERSION: u32 = 1;

/// Maximum size of a frame in bytes.
pub(super) const MAX_FRAME_BYTES: usize = 1 << 20;

/// Kinds of frames.
const MESSAGE: u8 = 0;
const DATA: u8 = 1;

/// The one task of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WorkerTask {
    /// A job of the store.
    File(FileJob),
    /// Checks that weights can be loaded with their adapters.
    CheckModel { weights: PathBuf, adapters: Vec<PathBuf> },
    /// Checks that a draft model fits its model.
    CheckDraft { weights: PathBuf, draft: PathBuf },
    /// Parses a Go template.
    CheckTemplate(String),
    /// Finds the built-in template that is equivalent to a Jinja template.
    DetectTemplate { source: String, bos: String, eos: String },
}

impl WorkerTask {
    /// All files that the task reads, except for further parts of split models.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        match self {
            Self::File(job) => job.paths().into_iter().map(ToOwned::to_owned).collect(),
            Self::CheckModel { weights, adapters } => {
                [weights].into_iter().chain(adapters).cloned().collect()
            }
            Self::CheckDraft { weights, draft } => vec![weights.clone(), draft.clone()],
            Self::CheckTemplate(_) | Self::DetectTemplate { .. } => Vec::new(),
        }
    }

    /// What the task does, for messages: `cannot ACTION: …`.
    pub(super) fn action(&self) -> &'static str {
        match self {
            Self::File(job) => job.action(),
            Self::CheckModel { .. } => "check the model",
            Self::CheckDraft { .. } => "check the draft model",
            Self::CheckTemplate(_) => "check the template",
            Self::DetectTemplate { .. } => "compare the template with built-in ones",
        }
    }
}

/// Message from a worker to its parent.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum WorkerMessage {
    /// The worker has entered its sandbox and has read no file yet.
    Sandboxed(SandboxReport),
    /// Progress of the task.
    Progress(Progress),
    /// The task is done. All bytes of the output file were sent before.
    Done {
        /// A remark about a model, or the name of a template.
        text: Option<String>,
    },
    /// The task has failed.
    Failed {
        /// Reason.
        message: String,
        /// Whether the request is at fault.
        is_bad_request: bool,
    },
}

/// A frame from a worker.
#[derive(Debug, PartialEq)]
pub(super) enum Frame {
    Message(WorkerMessage),
    Data(Vec<u8>),
}

/// Writes the task of a new worker.
pub(super) fn write_task(to: &mut impl Write, task: &WorkerTask) -> io::Result<()> {
    to.write_all(&VERSION.to_le_bytes())?;
    runner_protocol::write(to, task)
}

/// Reads the task; `None` if the parent has closed the socket.
pub(super) fn read_task(from: &mut impl Read) -> io::Result<Option<WorkerTask>> {
    let mut version = [0; 4];
    match from.read_exact(&mut version) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let version = u32::from_le_bytes(version);
    if version != VERSION {
        return Err(io::Error::other(format!(
            "the parent process uses version {version} of the protocol instead of {VERSION}: restart the server"
        )));
    }
    runner_protocol::read(from)
}

pub(super) fn write_message(to: &mut impl Write, message: &WorkerMessage) -> io::Result<()> {
    write_frame(to, MESSAGE, &serde_json::to_vec(message)?)
}

/// Writes bytes of the output file.
pub(super) fn write_data(to: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let (piece, rest) = bytes.split_at(bytes.len().min(MAX_FRAME_BYTES));
        write_frame(to, DATA, piece)?;
        bytes = rest;
    }
    Ok(())
}

fn write_frame(to: &mut impl Write, kind: u8, content: &[u8]) -> io::Result<()> {
    let length = u32::try_from(content.len()).ok().filter(|n| *n as usize <= MAX_FRAME_BYTES);
    let length = length.ok_or_else(|| too_large(content.len()))?;
    to.write_all(&[kind])?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(content)
}

/// Reads a frame; `None` at the end of the stream.
pub(super) fn read_frame(from: &mut impl Read) -> io::Result<Option<Frame>> {
    let mut header = [0; 5];
    match from.read_exact(&mut header) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let [kind, length @ ..] = header;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_FRAME_BYTES {
        return Err(too_large(length));
    }
    let mut content = Vec::new();
    from.take(length as u64).read_to_end(&mut content)?;
    if content.len() < length {
        return Ok(None);
    }
    match kind {
        MESSAGE => {
            serde_json::from_slice(&content).map(|m| Some(Frame::Message(m))).map_err(invalid)
        }
        DATA => Ok(Some(Frame::Data(content))),
        _ => Err(invalid(format!("a frame has the unknown kind {kind}"))),
    }
}

fn too_large(length: usize) -> io::Error {
    invalid(format!("a frame of {length} bytes is too large"))
}

/// An error of a worker that does not follow the protocol.
fn invalid(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(bytes: &[u8]) -> io::Result<Vec<Frame>> {
        let mut from = bytes;
        std::iter::from_fn(|| read_frame(&mut from).transpose()).collect()
    }

    #[test]
    fn messages_and_data_arrive_in_order() {
        let mut stream = Vec::new();
        let done = || WorkerMessage::Done { text: Some("chatml".into()) };
        let large = vec![7; MAX_FRAME_BYTES + 1];
        write_data(&mut stream, b"GGUF").unwrap();
        write_data(&mut stream, &large).unwrap();
        write_message(&mut stream, &done()).unwrap();
        let frames = frames(&stream).unwrap();
        let [first, second, third, last] = &frames[..] else { panic!("{}", frames.len()) };
        assert_eq!(*first, Frame::Data(b"GGUF".to_vec()));
        let parts = [second, third].map(|frame| match frame {
            Frame::Data(bytes) => bytes.len(),
            Frame::Message(_) => 0,
        });
        assert_eq!(parts, [MAX_FRAME_BYTES, 1]);
        assert_eq!(*last, Frame::Message(done()));
    }

    #[test]
    fn invalid_frames_are_errors_and_claim_no_memory() {
        let error = |bytes: &[u8]| frames(bytes).unwrap_err().to_string();
        assert!(error(&[1, 255, 255, 255, 255]).contains("too large"));
        assert!(error(&[9, 0, 0, 0, 0]).contains("unknown kind 9"));
        assert!(!error(&[0, 2, 0, 0, 0, b'{', b'x']).is_empty());
        // A worker that dies within a frame has ended.
        assert_eq!(frames(&[1, 4, 0, 0, 0, b'G']).unwrap(), []);
        assert!(write_frame(&mut Vec::new(), MESSAGE, &vec![0; MAX_FRAME_BYTES + 1]).is_err());
    }

    #[test]
    fn a_task_of_another_version_is_refused() {
        let mut stream = Vec::new();
        write_task(&mut stream, &WorkerTask::CheckTemplate("{{ .Prompt }}".into())).unwrap();
        let task = read_task(&mut &stream[..]).unwrap();
        assert!(matches!(task, Some(WorkerTask::CheckTemplate(text)) if text == "{{ .Prompt }}"));
        stream[0] += 1;
        let error = read_task(&mut &stream[..]).unwrap_err().to_string();
        assert!(error.contains("restart the server"), "{error}");
        assert!(read_task(&mut io::empty()).unwrap().is_none());
    }
}

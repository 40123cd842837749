//! The worker's side: reads its task, enters the sandbox, and sends the result.

use std::io::{self, BufWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::thread;

use puna_store::{FileTemplate, StoreError};

use super::JobError;
use super::protocol::{
    MAX_FRAME_BYTES, WorkerMessage, WorkerTask, read_task, write_data, write_message,
};
use crate::runner::sandbox::{self, Sandbox, SandboxReport};
use crate::runner::{check_draft, check_model, check_template, detect_template};
use crate::util::lock::lock;

/// Longest error message or remark that is sent, in bytes: JSON takes up to six bytes for each.
const MAX_TEXT_BYTES: usize = MAX_FRAME_BYTES / 8;

/// Runs the task on this process's standard input, for the hidden subcommand `worker`.
///
/// # Errors
/// Standard input is not a socket of a parent of the same version, or the parent has ended.
pub fn main() -> io::Result<()> {
    let Some(started) = SandboxedTask::receive_in_sandbox()? else { return Ok(()) };
    let SandboxedTask { task, sandbox, socket } = &started;
    let channel = Channel(Mutex::new(socket.try_clone()?));
    channel.send(&WorkerMessage::Sandboxed(sandbox.report.clone()))?;
    if let Some(message) = sandbox.refusal.clone() {
        return channel.send(&WorkerMessage::Failed { message, is_bad_request: false });
    }
    exit_with_parent(socket.try_clone()?)?;
    let result = match run(task, &channel) {
        Ok(text) => WorkerMessage::Done { text: text.map(truncate) },
        Err(JobError { message, is_bad_request }) => {
            WorkerMessage::Failed { message: truncate(message), is_bad_request }
        }
    };
    channel.send(&result)
}

/// Reads a task and enters the sandbox as [`main`] does, then calls `attempt` instead of running
/// the task. For tests that try to escape.
///
/// # Errors
/// Those of [`main`].
#[doc(hidden)]
pub fn attempt_in_sandbox(attempt: impl FnOnce(&SandboxReport)) -> io::Result<()> {
    if let Some(started) = SandboxedTask::receive_in_sandbox()? {
        attempt(&started.sandbox.report);
    }
    Ok(())
}

/// A task in the sandbox.
struct SandboxedTask {
    task: WorkerTask,
    sandbox: Sandbox,
    socket: UnixStream,
}

impl SandboxedTask {
    /// Reads the task from standard input and enters its sandbox. Returns `None` if the parent has
    /// closed the socket.
    fn receive_in_sandbox() -> io::Result<Option<Self>> {
        let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let Some(task) = read_task(&mut socket)? else { return Ok(None) };
        let sandbox = sandbox::enter(sandbox::inherited_mode(), &task.paths(), &[]);
        Ok(Some(Self { task, sandbox, socket }))
    }
}

/// Starts a thread that ends this process when the parent closes the socket. The parent sends
/// nothing after the task.
fn exit_with_parent(mut socket: UnixStream) -> io::Result<()> {
    let wait = move || {
        let _ = socket.read(&mut [0]);
        std::process::exit(1);
    };
    thread::Builder::new().name("parent".into()).spawn(wait).map(drop)
}

fn run(task: &WorkerTask, channel: &Channel) -> Result<Option<String>, JobError> {
    match task {
        WorkerTask::File(job) => {
            let mut out = BufWriter::with_capacity(MAX_FRAME_BYTES, DataSender(channel));
            let mut progress = |progress| {
                // The next write of data finds a closed socket, too.
                let _ = channel.send(&WorkerMessage::Progress(progress));
            };
            let done = job.run(&mut out, &mut progress).map_err(JobError::of_store);
            done.and_then(|()| out.flush().map_err(JobError::internal)).map(|()| None)
        }
        WorkerTask::CheckModel { weights, adapters } => {
            check_model(weights, adapters).map_err(JobError::bad_request)
        }
        WorkerTask::CheckDraft { weights, draft } => {
            check_draft(weights, draft).map_err(JobError::bad_request).map(|()| None)
        }
        WorkerTask::CheckTemplate(text) => {
            check_template(text).map_err(JobError::bad_request).map(|()| None)
        }
        WorkerTask::DetectTemplate { source, bos, eos } => {
            let (source, bos, eos) = (source.clone(), bos.clone(), eos.clone());
            Ok(detect_template(&FileTemplate { source, bos, eos }).map(|found| found.name))
        }
    }
}

impl JobError {
    fn of_store(error: StoreError) -> Self {
        Self { is_bad_request: error.is_bad_request(), message: error.to_string() }
    }

    fn bad_request(message: String) -> Self {
        Self { message, is_bad_request: true }
    }

    fn internal(error: io::Error) -> Self {
        Self { message: error.to_string(), is_bad_request: false }
    }
}

/// Cuts a text that would not fit a frame.
fn truncate(mut text: String) -> String {
    if text.len() > MAX_TEXT_BYTES {
        text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
        text.push('…');
    }
    text
}

/// The socket, which progress messages and data share.
struct Channel(Mutex<UnixStream>);

impl Channel {
    fn send(&self, message: &WorkerMessage) -> io::Result<()> {
        let mut bytes = Vec::new();
        write_message(&mut bytes, message)?;
        lock(&self.0).write_all(&bytes)
    }
}

/// Sends bytes of the output file.
struct DataSender<'a>(&'a Channel);

impl Write for DataSender<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_data(&mut *lock(&self.0.0), bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_so_that_its_frame_fits() {
        let message = truncate("\u{1}é".repeat(MAX_FRAME_BYTES));
        assert!(message.len() <= MAX_TEXT_BYTES + "…".len() && message.ends_with('…'));
        let failed = WorkerMessage::Failed { message, is_bad_request: true };
        write_message(&mut Vec::new(), &failed).unwrap();
        assert_eq!(truncate("short".into()), "short");
    }
}

//! The parent's side: starts a worker, sends its task, and receives its output.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use puna_registry::is_terminal_control;
use puna_store::Progress;

use super::protocol::{Frame, WorkerMessage, WorkerTask, read_frame, write_task};
use super::{FileWorkerLauncher, JobError};
use crate::runner::process_exit::{describe_exit, is_backtrace_line};
use crate::runner::sandbox::SandboxReport;
use crate::runner::sandbox::environment::runner_variables;
use crate::runner::sandbox::files::existing_files_with_parts;
use crate::util::lock::lock;

/// Maximum number of bytes kept of a line of a worker's log.
const MAX_LOG_LINE_BYTES: usize = 8 << 10;

/// Time limit for the end of the log after the process has ended.
const LOG_TIMEOUT: Duration = Duration::from_millis(500);

/// Largest size of an output file as a multiple of the input files. The largest true one is 21: F32
/// from 1.5 bits a weight.
const MAX_GROWTH: u64 = 32;
/// Bytes of an output file that are allowed besides [`MAX_GROWTH`].
const MAX_EXTRA_BYTES: u64 = 1 << 30;

/// Runs a task in a new worker. The bytes of its output file go to `out`. Returns the text of the
/// result.
pub(super) fn run(
    launcher: &FileWorkerLauncher,
    task: &WorkerTask,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(Progress),
) -> Result<Option<String>, JobError> {
    let action = task.action();
    let failed = |reason: String| JobError {
        message: format!("cannot {action}: {reason}"),
        is_bad_request: false,
    };
    let mut process = WorkerProcess::start(launcher)
        .map_err(|e| failed(format!("no process for it can be started: {e}")))?;
    // A worker that has died reads nothing. The end of its output tells why.
    let _ = write_task(&mut process.socket, task);
    let mut left = max_output_bytes(task);
    loop {
        match read_frame(&mut process.reader) {
            Ok(Some(Frame::Data(bytes))) => {
                left = left.checked_sub(bytes.len() as u64).ok_or_else(|| {
                    failed(
                        "its output is too large for its files: check that they are valid".into(),
                    )
                })?;
                out.write_all(&bytes).map_err(|e| JobError {
                    message: format!("cannot write the GGUF file: {e}"),
                    is_bad_request: false,
                })?;
            }
            Ok(Some(Frame::Message(message))) => match message {
                WorkerMessage::Sandboxed(report) => log_sandbox(process.child.id(), &report),
                WorkerMessage::Progress(mut line) => {
                    line.status = printable(&line.status);
                    line.digest = line.digest.map(|digest| printable(&digest));
                    progress(line);
                }
                WorkerMessage::Done { text } => return Ok(text.as_deref().map(printable)),
                WorkerMessage::Failed { message, is_bad_request } => {
                    return Err(JobError { message: printable(&message), is_bad_request });
                }
            },
            ended => {
                let reason = match ended {
                    Err(e) if e.kind() == io::ErrorKind::InvalidData => e.to_string(),
                    // A socket with an unread task reports a reset instead of its end.
                    _ => process.exit_reason(),
                };
                return Err(failed(format!(
                    "the process that reads the files stopped unexpectedly ({reason}): check the files and the free memory, then retry"
                )));
            }
        }
    }
}

/// Largest number of bytes that a worker may write for the files of its task.
fn max_output_bytes(task: &WorkerTask) -> u64 {
    let size = |path: &std::path::PathBuf| std::fs::metadata(path).map_or(0, |meta| meta.len());
    let read: u64 =
        existing_files_with_parts(&task.paths()).iter().map(size).fold(0, u64::saturating_add);
    read.saturating_mul(MAX_GROWTH).saturating_add(MAX_EXTRA_BYTES)
}

/// Replaces characters that control a terminal, because a worker that a file has taken over may
/// send control sequences of terminals.
fn printable(text: &str) -> String {
    let replace = |c: char| match is_terminal_control(c) && c != '\n' {
        true => char::REPLACEMENT_CHARACTER,
        false => c,
    };
    text.chars().map(replace).collect()
}

fn log_sandbox(pid: u32, report: &SandboxReport) {
    if report.missing.is_empty() {
        tracing::debug!(pid, sandbox = %report, "file worker entered its sandbox");
    } else {
        let missing = report.missing.join(", ");
        tracing::warn!(pid, sandbox = %report, missing, "file worker has an incomplete sandbox");
    }
}

/// A running worker. Dropping it ends the process.
struct WorkerProcess {
    child: Child,
    socket: UnixStream,
    reader: BufReader<UnixStream>,
    last_line: Arc<Mutex<String>>,
    /// Disconnected at the end of the log.
    log_end: Receiver<()>,
}

impl WorkerProcess {
    fn start(launcher: &FileWorkerLauncher) -> io::Result<Self> {
        let (socket, worker_socket) = UnixStream::pair()?;
        // The command owns this process's copy of the worker's end and is dropped here, so that the
        // socket ends with the worker.
        let mut child = Command::new(&launcher.program)
            .args(&launcher.args)
            // Variables may hold secrets, and a worker reads untrusted files.
            .env_clear()
            .envs(runner_variables(launcher.debug, launcher.sandbox))
            .stdin(Stdio::from(OwnedFd::from(worker_socket)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C in a terminal reaches the parent alone; the worker ends with it.
            .process_group(0)
            .spawn()?;
        let (log, pid) = (child.stderr.take(), child.id());
        let (last_line, (log_open, log_end)) = (Arc::<Mutex<String>>::default(), mpsc::channel());
        let (reader, last) = (BufReader::new(socket.try_clone()?), last_line.clone());
        let process = Self { child, socket, reader, last_line, log_end };
        if let Some(log) = log {
            let forward = move || {
                forward_log(log, pid, &last);
                drop(log_open);
            };
            thread::Builder::new().name("worker log".into()).spawn(forward)?;
        }
        Ok(process)
    }

    /// Ends the process and describes how it ended.
    fn exit_reason(&mut self) -> String {
        // A process that has died keeps its own status.
        let _ = self.child.kill();
        let status = self.child.wait();
        let _ = self.log_end.recv_timeout(LOG_TIMEOUT);
        let last_line = lock(&self.last_line).clone();
        describe_exit(status, &last_line).reason
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Forwards a worker's log to the log of this process and keeps its last line.
fn forward_log(log: ChildStderr, pid: u32, last: &Mutex<String>) {
    let mut log = BufReader::new(log);
    while let Ok(Some(line)) = next_line(&mut log) {
        let line = printable(String::from_utf8_lossy(&line).trim());
        if line.is_empty() {
            continue;
        }
        tracing::info!(worker = pid, "{line}");
        // A backtrace follows the cause of a panic and must not replace it.
        if !is_backtrace_line(&line) {
            *lock(last) = line;
        }
    }
}

/// Reads a line, or the next [`MAX_LOG_LINE_BYTES`] of a longer one; `None` at the end.
fn next_line(log: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let read = log.by_ref().take(MAX_LOG_LINE_BYTES as u64).read_until(b'\n', &mut line)?;
    Ok((read > 0).then_some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_worker_have_no_control_sequences() {
        assert_eq!(printable("a\x1b[2J\nb\u{9b}\u{202e}"), "a\u{fffd}[2J\nb\u{fffd}\u{fffd}");
    }

    #[test]
    fn long_lines_of_a_log_are_read_in_pieces() {
        let text = format!("one\n{}\nlast", "x".repeat(MAX_LOG_LINE_BYTES + 1));
        let mut log = text.as_bytes();
        let lengths: Vec<_> =
            std::iter::from_fn(|| next_line(&mut log).unwrap()).map(|line| line.len()).collect();
        assert_eq!(lengths, [4, MAX_LOG_LINE_BYTES, 2, 4]);
    }
}

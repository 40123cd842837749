//! Starting runner processes.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, BufReader};
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::sync::oneshot;

use super::generator::{LoadError, Loader};
use super::local::LocalLoader;
use super::protocol::{LoadSpec, MemoryParts, is_out_of_memory};
use super::worker::guarded;
use crate::lock::lock;
use crate::scheduler::RunnerExit;

/// Bytes of a line of a runner's log that are kept.
const MAX_LINE: usize = 8 << 10;

/// Starts runners.
pub trait Launcher: Send + Sync {
    /// Starts one.
    ///
    /// # Errors
    /// The system cannot.
    fn launch(&self) -> io::Result<Launched>;

    /// The bytes that a runner would need, without starting one.
    ///
    /// # Errors
    /// As [`Loader::plan`].
    fn plan(&self, spec: &LoadSpec) -> Result<MemoryParts, LoadError>;
}

/// A runner that was started.
pub struct Launched {
    /// Its process.
    pub pid: u32,
    /// The connection to it.
    pub stream: UnixStream,
    /// Ends it at once, if it still runs.
    pub kill: oneshot::Sender<()>,
    /// Why it ended, once it has.
    pub exit: Pin<Box<dyn Future<Output = RunnerExit> + Send>>,
}

/// Starts runners as child processes of this one.
pub struct ProcessLauncher {
    /// The program.
    pub program: PathBuf,
    /// Words that make it a runner.
    pub args: Vec<String>,
}

impl ProcessLauncher {
    /// This same program with the hidden subcommand `runner`.
    ///
    /// # Errors
    /// The program's path is not known.
    pub fn this_program() -> io::Result<Self> {
        Ok(Self { program: std::env::current_exe()?, args: vec!["runner".into()] })
    }
}

impl Launcher for ProcessLauncher {
    fn plan(&self, spec: &LoadSpec) -> Result<MemoryParts, LoadError> {
        guarded(|| LocalLoader.plan(spec))
    }

    fn launch(&self) -> io::Result<Launched> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut child = Command::new(&self.program)
            .args(&self.args)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            // Ctrl-C in a terminal is for the server, which ends its runners itself.
            .process_group(0)
            .spawn()?;
        let pid = child.id().unwrap_or_default();
        let last_words = Arc::new(Mutex::new(String::new()));
        let log =
            child.stderr.take().map(|stderr| tokio::spawn(follow(stderr, pid, last_words.clone())));
        let (kill, mut killed) = oneshot::channel();
        let exit = async move {
            let status = tokio::select! {
                status = child.wait() => status,
                _ = &mut killed => {
                    // Either it is to be killed, or nobody is left who could say so.
                    let _ = child.start_kill();
                    child.wait().await
                }
            };
            if let Some(log) = log {
                let _ = tokio::time::timeout(Duration::from_millis(500), log).await;
            }
            let words = lock(&last_words).clone();
            describe(status, &words)
        };
        Ok(Launched { pid, stream: UnixStream::from_std(ours)?, kill, exit: Box::pin(exit) })
    }
}

/// Passes a runner's log on to ours and keeps its last line.
async fn follow(stderr: impl AsyncRead + Unpin, pid: u32, last: Arc<Mutex<String>>) {
    let mut log = BufReader::new(stderr);
    while let Ok(Some(line)) = next_line(&mut log).await {
        let line = String::from_utf8_lossy(&line).trim().to_owned();
        if line.is_empty() {
            continue;
        }
        tracing::info!(runner = pid, "{line}");
        // A hint after the cause is not the cause.
        if !line.starts_with("note: run with `RUST_BACKTRACE") {
            *lock(&last) = line;
        }
    }
}

/// The beginning of the next line, however long that is; `None` at the end.
async fn next_line(log: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    loop {
        let read = log.fill_buf().await?;
        if read.is_empty() {
            return Ok(Some(line).filter(|line| !line.is_empty()));
        }
        let end = read.iter().position(|byte| *byte == b'\n');
        let piece = &read[..end.unwrap_or(read.len())];
        line.extend_from_slice(&piece[..piece.len().min(MAX_LINE - line.len())]);
        let used = end.map_or(read.len(), |end| end + 1);
        log.consume(used);
        if end.is_some() {
            return Ok(Some(line));
        }
    }
}

fn describe(status: io::Result<ExitStatus>, last_words: &str) -> RunnerExit {
    let ending = match status {
        Err(e) => format!("its end could not be observed: {e}"),
        Ok(status) => match (status.signal(), status.code()) {
            (Some(signal), _) => format!("signal: {}", signal_name(signal)),
            (_, code) => format!("exit status {}", code.unwrap_or(-1)),
        },
    };
    let reason = if last_words.is_empty() { ending } else { format!("{ending}: {last_words}") };
    let out_of_memory = is_out_of_memory(last_words);
    RunnerExit { reason, out_of_memory }
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        4 => "illegal instruction",
        6 => "aborted",
        7 => "bus error (the model's file may have been cut while it was in use)",
        8 => "arithmetic exception",
        9 => "killed (by somebody, or by the system for want of memory)",
        11 => "segmentation fault",
        15 => "terminated",
        _ => return signal.to_string(),
    };
    format!("{signal}, {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_are_described_with_the_runners_last_words() {
        let exit = |raw, words: &str| describe(Ok(ExitStatus::from_raw(raw)), words);
        assert_eq!(exit(11, "").reason, "signal: 11, segmentation fault");
        assert_eq!(exit(101 << 8, "panicked at x").reason, "exit status 101: panicked at x");
        assert!(exit(6, "memory allocation of 99999 bytes failed").out_of_memory);
        assert!(!exit(9, "").out_of_memory);
        assert!(exit(101 << 8, "no memory for a buffer of 9999999999 elements").out_of_memory);
    }

    #[tokio::test]
    async fn lines_of_any_length_are_read_and_only_their_beginning_is_kept() {
        let long = "x".repeat(3 * MAX_LINE + 7);
        let text = format!("one\n{long}\n\nlast");
        let mut log = BufReader::with_capacity(1000, text.as_bytes());
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut log).await.unwrap() {
            assert!(line.capacity() <= 2 * MAX_LINE);
            lines.push(String::from_utf8(line).unwrap());
        }
        assert_eq!(lines, ["one", &long[..MAX_LINE], "", "last"]);
    }

    #[tokio::test]
    async fn a_process_that_ends_is_reported_and_one_that_is_killed_too() {
        let shell = |script: &str| ProcessLauncher {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
        };
        let launched = shell("echo first >&2; echo last words >&2; exit 3").launch().unwrap();
        assert_eq!(launched.exit.await.reason, "exit status 3: last words");
        let launched = shell("sleep 60").launch().unwrap();
        launched.kill.send(()).unwrap();
        assert!(launched.exit.await.reason.starts_with("signal: 9"));
    }

    #[tokio::test]
    async fn a_runner_sees_the_end_of_its_server_on_standard_input() {
        let shell = ProcessLauncher {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), "cat; exit 7".into()],
        };
        let launched = shell.launch().unwrap();
        drop(launched.stream);
        assert_eq!(launched.exit.await.reason, "exit status 7");
    }
}

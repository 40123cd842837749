//! Starts runner processes and observes their exit.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, BufReader};
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::sync::oneshot;

use super::local::LocalLoader;
use super::process_exit::{describe_exit, is_backtrace_line};
use super::protocol::{LoadSpec, MemoryParts};
use super::runner_model::{LoadError, Loader};
use super::sandbox::SandboxMode;
use super::sandbox::environment::runner_variables;
use super::worker::catch_load_panic;
use crate::file_worker::FileWorkerLauncher;
use crate::model_scheduler::RunnerExit;
use crate::util::lock::lock;

/// Maximum number of bytes kept of a line of a runner's log.
const MAX_LOG_LINE_BYTES: usize = 8 << 10;

/// Starts runners.
pub trait Launcher: Send + Sync {
    /// Starts a runner.
    ///
    /// # Errors
    /// The system cannot start the process.
    fn launch(&self) -> io::Result<RunnerProcess>;

    /// Returns the memory that a runner would need, without starting one.
    ///
    /// # Errors
    /// As [`Loader::plan`].
    fn plan(&self, spec: &LoadSpec) -> Result<MemoryParts, LoadError>;

    /// Returns the launcher of processes for jobs on untrusted files; `None` runs these jobs in
    /// this process.
    fn file_worker(&self) -> Option<FileWorkerLauncher> {
        None
    }
}

/// Runner that was started.
pub struct RunnerProcess {
    /// Process id.
    pub pid: u32,
    /// Connection to the runner.
    pub stream: UnixStream,
    /// Kills the process if it still runs.
    pub kill: oneshot::Sender<()>,
    /// Resolves to the reason of the exit once the process has ended.
    pub exit: Pin<Box<dyn Future<Output = RunnerExit> + Send>>,
}

/// Starts runners as child processes of this one.
pub struct ProcessLauncher {
    /// Path of the program.
    pub program: PathBuf,
    /// Arguments that make the program a runner.
    pub args: Vec<String>,
    /// Log level of the runners: 0, 1 (debug) or 2 (trace).
    pub debug: u8,
    /// Switch of the runners' sandbox.
    pub sandbox: SandboxMode,
}

impl ProcessLauncher {
    /// Returns a launcher of this same program with the hidden subcommand `runner`, at a log level.
    ///
    /// # Errors
    /// The path of the program is unknown.
    pub fn this_program(debug: u8, sandbox: SandboxMode) -> io::Result<Self> {
        let (program, args) = (std::env::current_exe()?, vec!["runner".into()]);
        Ok(Self { program, args, debug, sandbox })
    }
}

impl Launcher for ProcessLauncher {
    fn plan(&self, spec: &LoadSpec) -> Result<MemoryParts, LoadError> {
        catch_load_panic(|| LocalLoader.plan(spec))
    }

    fn file_worker(&self) -> Option<FileWorkerLauncher> {
        Some(FileWorkerLauncher::of_program(self.program.clone(), self.debug, self.sandbox))
    }

    fn launch(&self) -> io::Result<RunnerProcess> {
        let (server_stream, runner_stream) = std::os::unix::net::UnixStream::pair()?;
        server_stream.set_nonblocking(true)?;
        let mut child = Command::new(&self.program)
            .args(&self.args)
            // Variables may hold secrets of the server, and a runner reads untrusted files.
            .env_clear()
            .envs(runner_variables(self.debug, self.sandbox))
            .stdin(Stdio::from(OwnedFd::from(runner_stream)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            // Ctrl-C in a terminal reaches the server alone, which ends its runners itself.
            .process_group(0)
            .spawn()?;
        let pid = child.id().unwrap_or_default();
        let last_line = Arc::new(Mutex::new(String::new()));
        let log = child
            .stderr
            .take()
            .map(|stderr| tokio::spawn(forward_log(stderr, pid, last_line.clone())));
        let (kill, mut killed) = oneshot::channel();
        let exit = async move {
            let status = tokio::select! {
                status = child.wait() => status,
                _ = &mut killed => {
                    // A message requests the kill; after the sender is dropped, no message can
                    // request it.
                    let _ = child.start_kill();
                    child.wait().await
                }
            };
            if let Some(log) = log {
                let _ = tokio::time::timeout(Duration::from_millis(500), log).await;
            }
            let last_line_text = lock(&last_line).clone();
            describe_exit(status, &last_line_text)
        };
        Ok(RunnerProcess {
            pid,
            stream: UnixStream::from_std(server_stream)?,
            kill,
            exit: Box::pin(exit),
        })
    }
}

/// Forwards a runner's log to the server's log and keeps its last line.
async fn forward_log(stderr: impl AsyncRead + Unpin, pid: u32, last: Arc<Mutex<String>>) {
    let mut log = BufReader::new(stderr);
    while let Ok(Some(line)) = next_line(&mut log).await {
        let line = String::from_utf8_lossy(&line).trim().to_owned();
        if line.is_empty() {
            continue;
        }
        tracing::info!(runner = pid, "{line}");
        // A backtrace follows the cause of a panic and must not replace it.
        if !is_backtrace_line(&line) {
            *lock(&last) = line;
        }
    }
}

/// Reads a line and returns its first [`MAX_LOG_LINE_BYTES`] bytes; `None` at the end.
async fn next_line(log: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    loop {
        let read = log.fill_buf().await?;
        if read.is_empty() {
            return Ok(Some(line).filter(|line| !line.is_empty()));
        }
        let end = read.iter().position(|byte| *byte == b'\n');
        let piece = &read[..end.unwrap_or(read.len())];
        line.extend_from_slice(&piece[..piece.len().min(MAX_LOG_LINE_BYTES - line.len())]);
        let used = end.map_or(read.len(), |end| end + 1);
        log.consume(used);
        if end.is_some() {
            return Ok(Some(line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_of_any_length_are_read_and_only_their_beginning_is_kept() {
        let long = "x".repeat(3 * MAX_LOG_LINE_BYTES + 7);
        let text = format!("one\n{long}\n\nlast");
        let mut log = BufReader::with_capacity(1000, text.as_bytes());
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut log).await.unwrap() {
            assert!(line.capacity() <= 2 * MAX_LOG_LINE_BYTES);
            lines.push(String::from_utf8(line).unwrap());
        }
        assert_eq!(lines, ["one", &long[..MAX_LOG_LINE_BYTES], "", "last"]);
    }

    #[tokio::test]
    async fn the_exit_of_a_process_is_reported_whether_it_ended_or_was_killed() {
        let shell = |script: &str| ProcessLauncher {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            debug: 0,
            sandbox: SandboxMode::Auto,
        };
        let process = shell("echo first >&2; echo last words >&2; exit 3").launch().unwrap();
        assert_eq!(process.exit.await.reason, "exit status 3: last words");
        let process = shell("sleep 60").launch().unwrap();
        process.kill.send(()).unwrap();
        assert!(process.exit.await.reason.starts_with("signal: 9"));
    }

    #[tokio::test]
    async fn a_backtrace_does_not_replace_the_cause_of_an_exit() {
        const PANIC: &str = "thread 'engine' panicked at crates/x.rs:1:2:\nindex 7 out of range";
        const TRACE: &str =
            "stack backtrace:\n   0: rust_begin_unwind\n             at /rustc/lib.rs:1";
        for note in [
            "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace",
            "note: Some details are omitted, run with `RUST_BACKTRACE=full` for a verbose backtrace.",
        ] {
            let script = format!("cat >&2 <<'END'\n{PANIC}\n{TRACE}\n{note}\nEND\nexit 101");
            let shell = ProcessLauncher {
                program: "/bin/sh".into(),
                args: vec!["-c".into(), script],
                debug: 0,
                sandbox: SandboxMode::Auto,
            };
            let reason = shell.launch().unwrap().exit.await.reason;
            assert_eq!(reason, "exit status 101: index 7 out of range");
        }
    }

    #[tokio::test]
    async fn a_runner_has_only_the_listed_variables() {
        // Cargo sets many variables of this process; the shell adds the last three itself.
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
        let shell = ProcessLauncher {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), "/usr/bin/env | sed 's/=.*//' | tr '\\n' ' ' >&2".into()],
            debug: 2,
            sandbox: SandboxMode::Auto,
        };
        let reason = shell.launch().unwrap().exit.await.reason;
        let names = reason.rsplit_once(": ").unwrap().1.split_whitespace();
        let by_shell = ["PWD", "SHLVL", "_"];
        let inherited: Vec<_> = names.filter(|name| !by_shell.contains(name)).collect();
        let expected = runner_variables(2, SandboxMode::Auto);
        assert!(inherited.contains(&"OLLAMA_DEBUG"), "{reason}");
        for name in inherited {
            assert!(expected.iter().any(|(expected, _)| expected == name), "{name}: {reason}");
        }
    }

    #[tokio::test]
    async fn a_runner_sees_the_end_of_its_server_on_standard_input() {
        let shell = ProcessLauncher {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), "cat; exit 7".into()],
            debug: 0,
            sandbox: SandboxMode::Auto,
        };
        let process = shell.launch().unwrap();
        drop(process.stream);
        assert_eq!(process.exit.await.reason, "exit status 7");
    }
}

//! Runs an agent: finds its executable, forwards signals, and returns its exit status.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, getpgrp, kill_process};
use rustix::termios::tcgetpgrp;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use super::agent::Setup;

/// Finds an executable on the search path.
pub fn find(program: &str, path: Option<&OsStr>) -> Option<PathBuf> {
    std::env::split_paths(path?).map(|folder| folder.join(program)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(file)
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Runs a program with its files in a folder, and waits for its end. Returns its exit status, or
/// 128 plus the number of the signal that ended it.
///
/// # Errors
/// The files cannot be written, or the program cannot be started.
pub fn run(program: &Path, setup: &Setup, arguments: &[String], folder: &Path) -> Result<u8> {
    for (name, content) in &setup.files {
        let path = folder.join(name);
        std::fs::write(&path, content)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let mut command = Command::new(program);
    for name in &setup.removed {
        command.env_remove(name);
    }
    command.envs(setup.set.iter().map(|(name, value)| (name, value)));
    command.args(&setup.arguments).args(arguments);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().context("cannot wait for a program")?;
    runtime.block_on(wait(command, program))
}

async fn wait(mut command: Command, program: &Path) -> Result<u8> {
    let listen = |kind| signal(kind).context("cannot listen to signals");
    let (mut terminate, mut hang_up) =
        (listen(SignalKind::terminate())?, listen(SignalKind::hangup())?);
    let (mut interrupt, mut quit) = (listen(SignalKind::interrupt())?, listen(SignalKind::quit())?);
    let mut child =
        command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    let id = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    let send = |to: Signal| {
        if let Some(id) = id {
            // Sending a signal to a child that has just ended fails.
            let _ = kill_process(id, to);
        }
    };
    loop {
        tokio::select! {
            status = child.wait() => return status.map(shell_status).context("cannot wait for the program"),
            _ = terminate.recv() => send(Signal::TERM),
            _ = hang_up.recv() => send(Signal::HUP),
            _ = interrupt.recv() => if !is_from_terminal() { send(Signal::INT) },
            _ = quit.recv() => if !is_from_terminal() { send(Signal::QUIT) },
        }
    }
}

/// Whether a terminal sends Ctrl-C and Ctrl-\ to this process, and thus to the child in the same
/// process group. The standard streams do not show this: a process with piped input may have a
/// terminal too.
fn is_from_terminal() -> bool {
    let foreground = File::open("/dev/tty").ok().and_then(|terminal| tcgetpgrp(terminal).ok());
    foreground == Some(getpgrp())
}

/// Exit status as a shell reports it.
fn shell_status(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

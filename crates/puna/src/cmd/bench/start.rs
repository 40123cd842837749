//! Measures the time from the start of a process to its first output, as for a user's first run of
//! a model.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// Seconds from starting `puna run FILE` to the first byte of its answer, per repetition. An
/// additional first run, which reads the file into the page cache, is not counted.
pub fn seconds(file: &Path, repetitions: usize) -> Result<Vec<f64>> {
    once(file)?;
    (0..repetitions).map(|_| once(file)).collect()
}

fn once(file: &Path) -> Result<f64> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let start = Instant::now();
    let mut child = Command::new(program)
        .arg("run")
        // A path with a folder is never read as a model name.
        .arg(std::path::absolute(file).unwrap_or_else(|_| file.to_owned()))
        .arg("Once upon a time")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start another puna")?;
    let mut byte = [0; 1];
    let read = match &mut child.stdout {
        Some(out) => out.read(&mut byte).context("cannot read what puna run prints")?,
        None => 0,
    };
    let seconds = start.elapsed().as_secs_f64();
    if read == 0 {
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        bail!(
            "puna run {} printed nothing: {}",
            file.display(),
            if said.is_empty() { "no error message" } else { &said }
        );
    }
    end(child)?;
    Ok(seconds)
}

/// Sends SIGTERM, so that the process removes its server and temporary folder.
fn end(mut child: Child) -> Result<()> {
    #[cfg(unix)]
    {
        use rustix::process::{Pid, Signal, kill_process};
        if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
    #[cfg(not(unix))]
    child.kill()?;
    // The pipe has no reader any more; a full one must not block the process.
    drop(child.stdout.take());
    drop(child.stderr.take());
    child.wait().map(|_| ()).context("cannot wait for puna run")
}

//! From the start of a process to its first output: what a person waits for who runs a model for the first time.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// Seconds from starting `puna run FILE` to the first byte of its answer, of each repetition. The first run of all, which
/// brings the file into the page cache, is not among them.
pub fn seconds(file: &Path, repetitions: usize) -> Result<Vec<f64>> {
    once(file)?;
    (0..repetitions).map(|_| once(file)).collect()
}

fn once(file: &Path) -> Result<f64> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let start = Instant::now();
    let mut child = Command::new(program)
        .arg("run")
        // A name with a folder is a path, whatever it looks like.
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
            if said.is_empty() { "no reason" } else { &said }
        );
    }
    end(child)?;
    Ok(seconds)
}

/// Asks it to end, so that it takes its server and its temporary folder with it.
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
    // Nobody reads the rest; a full pipe must not keep it from ending.
    drop(child.stdout.take());
    drop(child.stderr.take());
    child.wait().map(|_| ()).context("cannot wait for puna run")
}

//! Load generator for `--busy`: a child process with spinning threads.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// A process that keeps threads busy until it is dropped.
pub struct BusyProcess(Child);

impl BusyProcess {
    /// Starts the process. All its threads spin when this returns.
    pub fn start(threads: usize) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut child = Command::new(program)
            .args(["spin", &threads.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a busy process")?;
        // The process writes one byte when its threads run.
        let mut word = [0; 1];
        let out = child.stdout.take();
        let busy = Self(child);
        if let Some(mut out) = out {
            std::io::Read::read_exact(&mut out, &mut word)
                .context("the busy process did not start")?;
        }
        Ok(busy)
    }
}

impl Drop for BusyProcess {
    fn drop(&mut self) {
        // The process also exits when its standard input closes.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Body of the busy process: spins until standard input ends, which happens when the parent exits.
pub fn spin(threads: usize) -> Result<()> {
    for _ in 0..threads {
        std::thread::Builder::new()
            .spawn(|| {
                let mut x = 0u64;
                loop {
                    x = std::hint::black_box(x.wrapping_mul(3).wrapping_add(1));
                }
            })
            .context("cannot start a thread")?;
    }
    crate::out::text(".")?;
    let mut rest = Vec::new();
    let _ = std::io::Read::read_to_end(&mut std::io::stdin(), &mut rest);
    // The threads end with the process.
    Ok(())
}

/// Fraction of their speed that `threads` threads keep next to `busy` other ones, if the scheduler
/// shares `cores` evenly.
pub fn fair_share(threads: usize, busy: usize, cores: usize) -> f64 {
    let each = |runnable: usize| (cores as f64 / runnable.max(1) as f64).min(1.0);
    each(threads + busy) / each(threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fair_share_is_below_1_only_without_free_cores() {
        assert_eq!(fair_share(2, 2, 2), 0.5);
        assert_eq!(fair_share(2, 1, 2), 2.0 / 3.0);
        assert_eq!(fair_share(2, 2, 8), 1.0);
        assert_eq!(fair_share(4, 4, 2), 0.5);
    }
}

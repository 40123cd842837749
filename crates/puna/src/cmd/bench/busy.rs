//! A busy neighbour: a process of ours whose threads do nothing but spin.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// A process that keeps threads busy until this is dropped.
pub struct Busy(Child);

impl Busy {
    /// Starts it; every thread spins when this returns.
    pub fn start(threads: usize) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut child = Command::new(program)
            .args(["spin", &threads.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a busy process")?;
        // It says a word when its threads are there.
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

impl Drop for Busy {
    fn drop(&mut self) {
        // It also ends by itself when its standard input does.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The busy process itself: spins until standard input ends, which it does with whoever started it.
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
    // Threads end with the process.
    Ok(())
}

/// What `threads` keep of their speed beside as many `busy` ones, where `cores` are shared evenly.
pub fn fair_share(threads: usize, busy: usize, cores: usize) -> f64 {
    let each = |runnable: usize| (cores as f64 / runnable.max(1) as f64).min(1.0);
    each(threads + busy) / each(threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fair_share_counts_only_cores_that_are_missing() {
        assert_eq!(fair_share(2, 2, 2), 0.5);
        assert_eq!(fair_share(2, 1, 2), 2.0 / 3.0);
        assert_eq!(fair_share(2, 2, 8), 1.0);
        assert_eq!(fair_share(4, 4, 2), 0.5);
    }
}

//! Disk space that the work of callers with limited namespaces leaves free for other work.

use std::fmt;
use std::io::{self, Write};

use puna_store::{FileJob, JobExecutor, Progress, StoreError};

/// Bytes of the disk that stay free.
const MIN_FREE_BYTES: u64 = 256 << 20;
/// Bytes between two checks of the free disk space.
const CHECK_BYTES: usize = 64 << 20;

/// Fails if `free` bytes of the disk are too few for `needed` bytes. `None` if the system does not
/// tell.
///
/// # Errors
/// [`StoreError::NoSpace`]
pub(crate) fn check_free_space(free: Option<u64>, needed: u64) -> Result<(), StoreError> {
    match free {
        Some(free) if free < MIN_FREE_BYTES.saturating_add(needed) => {
            Err(StoreError::NoSpace { free, reserved: MIN_FREE_BYTES })
        }
        _ => Ok(()),
    }
}

/// Checks the free disk space while a file is written.
#[derive(Debug)]
pub(crate) struct PeriodicCheck {
    unchecked: usize,
}

impl PeriodicCheck {
    /// A check that is due at the first bytes.
    pub(crate) fn new() -> Self {
        Self { unchecked: CHECK_BYTES }
    }

    /// Counts bytes that are about to be written.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`]
    pub(crate) fn count(
        &mut self,
        bytes: usize,
        free: impl FnOnce() -> Option<u64>,
    ) -> Result<(), StoreError> {
        self.unchecked = self.unchecked.saturating_add(bytes);
        if self.unchecked >= CHECK_BYTES {
            check_free_space(free(), 0)?;
            self.unchecked = 0;
        }
        Ok(())
    }
}

/// Runs jobs that leave the reserve free.
pub(crate) struct ReserveExecutor<'a> {
    /// Runs the jobs.
    pub(crate) executor: &'a dyn JobExecutor,
    /// Free disk space in bytes.
    pub(crate) free: &'a (dyn Fn() -> Option<u64> + Sync),
}

impl fmt::Debug for ReserveExecutor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReserveExecutor").field(&self.executor).finish()
    }
}

impl JobExecutor for ReserveExecutor<'_> {
    fn execute(
        &self,
        job: &FileJob,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), StoreError> {
        let mut out =
            ReserveWriter { out, free: self.free, check: PeriodicCheck::new(), refusal: None };
        let done = self.executor.execute(job, &mut out, progress);
        out.refusal.map_or(done, Err)
    }
}

/// Writes until only the reserve is free.
struct ReserveWriter<'a> {
    out: &'a mut dyn Write,
    free: &'a (dyn Fn() -> Option<u64> + Sync),
    check: PeriodicCheck,
    refusal: Option<StoreError>,
}

impl Write for ReserveWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Err(refusal) = self.check.count(bytes.len(), self.free) {
            self.refusal = Some(refusal);
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Writes pieces of 1 MiB and takes their space, at most 1,000.
    #[derive(Debug)]
    struct Pieces<'a>(&'a AtomicU64);

    impl JobExecutor for Pieces<'_> {
        fn execute(
            &self,
            _: &FileJob,
            out: &mut dyn Write,
            _: &mut dyn FnMut(Progress),
        ) -> Result<(), StoreError> {
            let piece = vec![0; 1 << 20];
            for _ in 0..1000 {
                out.write_all(&piece).map_err(|_| StoreError::QuantizeSource)?;
                self.0.fetch_sub(1 << 20, Ordering::Relaxed);
            }
            Ok(())
        }
    }

    #[test]
    fn a_job_ends_when_only_the_reserve_is_free() {
        let job = FileJob::CheckImatrix { path: "x".into() };
        for (given, written) in [(255u64, 0), (256, 64), (400, 192), (2000, 1000)] {
            let space = AtomicU64::new(given << 20);
            let free = || Some(space.load(Ordering::Relaxed));
            let executor = ReserveExecutor { executor: &Pieces(&space), free: &free };
            let mut out = Vec::new();
            let done = executor.execute(&job, &mut out, &mut |_| {});
            assert_eq!(out.len() >> 20, written, "{given} MiB");
            assert_eq!(done.is_ok(), written == 1000, "{done:?}");
            assert!(done.is_ok() || matches!(done, Err(StoreError::NoSpace { .. })), "{done:?}");
        }
    }
}

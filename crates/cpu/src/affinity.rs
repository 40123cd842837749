//! The processors a thread may run on.

#[cfg(target_os = "linux")]
mod system {
    /// Words of the largest affinity set that is read: 65536 processors.
    const MOST_WORDS: usize = 1024;

    /// Processors that the calling thread may run on, in order. The system leaves out processors
    /// that control groups exclude or that are offline.
    pub fn get() -> Option<Vec<usize>> {
        let mut words = 16;
        while words <= MOST_WORDS {
            let mut set = vec![0u64; words];
            // SAFETY: the set has the given size, and all bit patterns are valid.
            if unsafe { libc::sched_getaffinity(0, 8 * words, set.as_mut_ptr().cast()) } == 0 {
                let has = |cpu: &usize| set[cpu / 64] >> (cpu % 64) & 1 == 1;
                return Some((0..64 * words).filter(has).collect());
            }
            // The system has sets larger than this one.
            words *= 2;
        }
        None
    }

    /// Pins the calling thread to `cpus`. If the system refuses, the affinity stays as it was.
    pub fn set(cpus: &[usize]) {
        let words = cpus.iter().max().map_or(1, |cpu| cpu / 64 + 1);
        let mut set = vec![0u64; words];
        cpus.iter().for_each(|cpu| set[cpu / 64] |= 1 << (cpu % 64));
        // SAFETY: the set has the given size.
        unsafe { libc::sched_setaffinity(0, 8 * words, set.as_ptr().cast()) };
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    /// Unknown on other systems.
    pub fn get() -> Option<Vec<usize>> {
        None
    }

    /// Other systems place threads themselves.
    pub fn set(_cpus: &[usize]) {}
}

pub use system::{get, set};

/// Pins the calling thread to some processors until it is dropped.
pub struct PinnedThread {
    before: Option<Vec<usize>>,
}

impl PinnedThread {
    /// Pins the calling thread to `cpus`. Does nothing if the current affinity is unknown, since it
    /// could not be restored.
    pub fn to(cpus: &[usize]) -> Self {
        let before = get();
        if before.is_some() {
            set(cpus);
        }
        Self { before }
    }
}

impl Drop for PinnedThread {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            set(before);
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_gets_its_affinity_back() {
        let before = get().unwrap();
        let one = [before[before.len() - 1]];
        let pinned = PinnedThread::to(&one);
        assert_eq!(get().unwrap(), one);
        drop(pinned);
        assert_eq!(get().unwrap(), before);
    }
}

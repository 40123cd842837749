//! Follows the processor limits of the process while it runs: affinity, cpuset and control-group
//! quota.

use std::time::{Duration, Instant};

use crate::topology::{Layout, Limits, System, Topology};

/// Shortest time between two reads of the limits. A read takes about 100 µs.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// The number of threads that the configuration asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadCount {
    /// As many as the limits allow; follows the limits.
    Automatic,
    /// Exactly this many; limits change only where they run.
    Exactly(usize),
    /// This many, or fewer while the limits allow fewer.
    AtMost(usize),
}

impl ThreadCount {
    fn layout(self, topology: &Topology) -> Layout {
        topology.layout(match self {
            Self::Automatic => None,
            Self::Exactly(threads) => Some(threads),
            Self::AtMost(threads) => Some(threads.min(topology.most_threads())),
        })
    }
}

/// Computes the thread layout of the next step from the current limits.
pub struct CpuLimitsWatcher {
    system: System,
    count: ThreadCount,
    limits: Limits,
    layout: Layout,
    next_read: Instant,
}

impl CpuLimitsWatcher {
    /// Reads the limits and computes the first layout.
    pub fn new(system: System, count: ThreadCount, now: Instant) -> Self {
        let limits = system.limits();
        let layout = count.layout(&Topology::new(&system, &limits));
        Self { system, count, limits, layout, next_read: now + READ_INTERVAL }
    }

    /// The layout as of the last read.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Reads the limits if [`READ_INTERVAL`] has passed, and returns the new layout if it changed.
    /// The backend calls it between steps.
    pub fn poll(&mut self, now: Instant) -> Option<&Layout> {
        if now < self.next_read {
            return None;
        }
        self.next_read = now + READ_INTERVAL;
        let limits = self.system.limits();
        if limits == self.limits {
            return None;
        }
        // The topology takes many files to read, so it is read only after a change of the limits.
        let layout = self.count.layout(&Topology::new(&self.system, &limits));
        self.limits = limits;
        if layout == self.layout {
            return None;
        }
        self.layout = layout;
        Some(&self.layout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::simulated::{machine, set_quota};

    /// Advances the clock by two intervals and returns the new number of threads, if it changed.
    fn threads(watcher: &mut CpuLimitsWatcher, now: &mut Instant) -> Option<usize> {
        *now += 2 * READ_INTERVAL;
        watcher.poll(*now).map(Layout::threads)
    }

    #[test]
    fn a_capped_count_grows_when_limits_are_raised() {
        let (root, system) = machine(1, 8, true);
        let mut now = Instant::now();
        set_quota(&root, "200000 100000");
        let mut watcher = CpuLimitsWatcher::new(system, ThreadCount::AtMost(6), now);
        assert_eq!(watcher.layout().threads(), 2);
        set_quota(&root, "400000 100000");
        assert_eq!(threads(&mut watcher, &mut now), Some(4));
        set_quota(&root, "max 100000");
        assert_eq!(threads(&mut watcher, &mut now), Some(6));
        watcher.system.affinity = Some(vec![0, 1, 2]);
        assert_eq!(threads(&mut watcher, &mut now), Some(3));
    }

    #[test]
    fn the_number_of_threads_follows_quota_and_affinity() {
        let (root, system) = machine(1, 8, true);
        let mut now = Instant::now();
        let mut watcher = CpuLimitsWatcher::new(system, ThreadCount::Automatic, now);
        assert_eq!(watcher.layout().threads(), 8);
        assert_eq!(threads(&mut watcher, &mut now), None);
        set_quota(&root, "250000 100000");
        assert_eq!(threads(&mut watcher, &mut now), Some(2));
        set_quota(&root, "270000 100000");
        assert_eq!(threads(&mut watcher, &mut now), None, "as many as before");
        set_quota(&root, "max 100000");
        assert_eq!(threads(&mut watcher, &mut now), Some(8));
        watcher.system.affinity = Some(vec![0, 1, 8]);
        assert_eq!(threads(&mut watcher, &mut now), Some(2));
    }

    #[test]
    fn limits_are_read_once_per_interval() {
        let (root, system) = machine(1, 8, false);
        let now = Instant::now();
        let mut watcher = CpuLimitsWatcher::new(system, ThreadCount::Automatic, now);
        set_quota(&root, "200000 100000");
        assert_eq!(watcher.poll(now + READ_INTERVAL / 2), None);
        assert_eq!(watcher.poll(now + READ_INTERVAL).map(Layout::threads), Some(2));
        set_quota(&root, "300000 100000");
        assert_eq!(watcher.poll(now + READ_INTERVAL + READ_INTERVAL / 2), None);
        assert_eq!(watcher.poll(now + 2 * READ_INTERVAL).map(Layout::threads), Some(3));
    }

    #[test]
    fn an_exact_thread_count_stays_and_threads_follow_the_affinity() {
        let (root, system) = machine(2, 4, false);
        let mut now = Instant::now();
        let mut watcher = CpuLimitsWatcher::new(system, ThreadCount::Exactly(4), now);
        assert_eq!((watcher.layout().threads(), watcher.layout().oversubscribed), (4, false));
        set_quota(&root, "200000 100000");
        assert_eq!(threads(&mut watcher, &mut now), Some(4));
        assert!(watcher.layout().oversubscribed, "waiting threads no longer spin");
        watcher.system.affinity = Some(vec![0, 1, 2, 3]);
        assert_eq!(threads(&mut watcher, &mut now), Some(4));
        assert_eq!(watcher.layout().groups.len(), 1);
    }
}

//! Follows what the process may use while it runs: a container's quota is changed, processors are taken away or given back.

use std::time::{Duration, Instant};

use crate::topology::{Layout, Limits, System, Topology};

/// How often limits are read at most. Reading takes some 100 µs, so it costs a ten-thousandth.
const EVERY: Duration = Duration::from_secs(1);

/// How many threads there are to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// As many as the limits suggest at any time.
    Automatic,
    /// So many; only their places may change.
    Exactly(usize),
    /// So many, as far as there are processors for them and time on these at any time.
    AtMost(usize),
}

impl Wanted {
    fn layout(self, topology: &Topology) -> Layout {
        topology.layout(match self {
            Self::Automatic => None,
            Self::Exactly(threads) => Some(threads),
            Self::AtMost(threads) => Some(threads.min(topology.most_threads())),
        })
    }
}

/// Says which threads the next step has.
pub struct Watch {
    system: System,
    /// Threads that were asked for.
    wanted: Wanted,
    limits: Limits,
    layout: Layout,
    due: Instant,
}

impl Watch {
    /// Reads the limits for the first time.
    pub fn new(system: System, wanted: Wanted, now: Instant) -> Self {
        let limits = system.limits();
        let layout = wanted.layout(&Topology::new(&system, &limits));
        Self { system, wanted, limits, layout, due: now + EVERY }
    }

    /// Which threads run where, as far as is known.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The new layout, if it is time to look and it has changed. Called between steps.
    pub fn changed(&mut self, now: Instant) -> Option<&Layout> {
        if now < self.due {
            return None;
        }
        self.due = now + EVERY;
        let limits = self.system.limits();
        if limits == self.limits {
            return None;
        }
        // Only now are the many files about cores and nodes read again.
        let layout = self.wanted.layout(&Topology::new(&self.system, &limits));
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

    /// Threads after each of some changes, two seconds apart.
    fn threads(watch: &mut Watch, now: &mut Instant) -> Option<usize> {
        *now += 2 * EVERY;
        watch.changed(*now).map(Layout::threads)
    }

    #[test]
    fn a_number_that_was_too_large_is_reached_when_limits_are_raised() {
        let (root, system) = machine(1, 8, true);
        let mut now = Instant::now();
        set_quota(&root, "200000 100000");
        let mut watch = Watch::new(system, Wanted::AtMost(6), now);
        assert_eq!(watch.layout().threads(), 2);
        set_quota(&root, "400000 100000");
        assert_eq!(threads(&mut watch, &mut now), Some(4));
        set_quota(&root, "max 100000");
        assert_eq!(threads(&mut watch, &mut now), Some(6));
        watch.system.affinity = Some(vec![0, 1, 2]);
        assert_eq!(threads(&mut watch, &mut now), Some(3));
    }

    #[test]
    fn the_number_of_threads_follows_quota_and_affinity() {
        let (root, system) = machine(1, 8, true);
        let mut now = Instant::now();
        let mut watch = Watch::new(system, Wanted::Automatic, now);
        assert_eq!(watch.layout().threads(), 8);
        assert_eq!(threads(&mut watch, &mut now), None);
        set_quota(&root, "250000 100000");
        assert_eq!(threads(&mut watch, &mut now), Some(2));
        set_quota(&root, "270000 100000");
        assert_eq!(threads(&mut watch, &mut now), None, "as many as before");
        set_quota(&root, "max 100000");
        assert_eq!(threads(&mut watch, &mut now), Some(8));
        watch.system.affinity = Some(vec![0, 1, 8]);
        assert_eq!(threads(&mut watch, &mut now), Some(2));
    }

    #[test]
    fn limits_are_not_read_before_their_time() {
        let (root, system) = machine(1, 8, false);
        let now = Instant::now();
        let mut watch = Watch::new(system, Wanted::Automatic, now);
        set_quota(&root, "200000 100000");
        assert_eq!(watch.changed(now + EVERY / 2), None);
        assert_eq!(watch.changed(now + EVERY).map(Layout::threads), Some(2));
        set_quota(&root, "300000 100000");
        assert_eq!(watch.changed(now + EVERY + EVERY / 2), None);
        assert_eq!(watch.changed(now + 2 * EVERY).map(Layout::threads), Some(3));
    }

    #[test]
    fn a_number_that_was_asked_for_stays_but_places_follow() {
        let (root, system) = machine(2, 4, false);
        let mut now = Instant::now();
        let mut watch = Watch::new(system, Wanted::Exactly(4), now);
        assert_eq!((watch.layout().threads(), watch.layout().crowded), (4, false));
        set_quota(&root, "200000 100000");
        assert_eq!(threads(&mut watch, &mut now), Some(4));
        assert!(watch.layout().crowded, "threads that wait do not spin any more");
        watch.system.affinity = Some(vec![0, 1, 2, 3]);
        assert_eq!(threads(&mut watch, &mut now), Some(4));
        assert_eq!(watch.layout().groups.len(), 1);
    }
}

//! The processors that the process may use, and the layout of threads on them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::affinity;
use crate::cgroup_quota::{self, MilliCpus};

/// Largest number of threads. No current machine has more cores, and a machine with two can still
/// start them.
const MAX_THREADS: usize = 512;

/// Limit of processor numbers.
const MAX_CPUS: usize = 1 << 16;

/// Source of facts about the machine; tests use a simulated one.
#[derive(Debug, Clone)]
pub struct System {
    /// Folder that holds `proc` and `sys`: `/`, except in tests.
    pub root: PathBuf,
    /// Affinity of the process on a simulated machine.
    pub affinity: Option<Vec<usize>>,
}

impl System {
    /// The machine that this process runs on.
    pub fn real() -> Self {
        Self { root: "/".into(), affinity: None }
    }

    /// Reads the limits that can change while the process runs: one system call and a few small
    /// files.
    pub fn limits(&self) -> Limits {
        let cpus = self.affinity.clone().or_else(affinity::get).filter(|cpus| !cpus.is_empty());
        let cpus = cpus.unwrap_or_else(|| {
            let count = std::thread::available_parallelism().map_or(1, usize::from);
            (0..count).collect()
        });
        Limits { cpus, quota: cgroup_quota::read(&self.root) }
    }

    /// Size in bytes of the largest cache of processor 0, if the system reports it.
    pub fn largest_cache(&self) -> Option<usize> {
        let entries = fs::read_dir(self.root.join("sys/devices/system/cpu/cpu0/cache")).ok()?;
        // The kernel writes sizes as `2048K`, always in K.
        let size = |folder: PathBuf| -> Option<usize> {
            let text = fs::read_to_string(folder.join("size")).ok()?;
            text.trim().strip_suffix('K')?.parse::<usize>().ok()?.checked_mul(1024)
        };
        entries.flatten().filter_map(|entry| size(entry.path())).max()
    }

    fn list(&self, path: &str) -> Option<BTreeSet<usize>> {
        read_list(&self.root.join("sys/devices/system").join(path))
    }

    /// The processors of each NUMA node, if the system reports it.
    fn nodes(&self) -> Vec<BTreeSet<usize>> {
        let Ok(entries) = fs::read_dir(self.root.join("sys/devices/system/node")) else {
            return Vec::new();
        };
        let number = |name: String| name.strip_prefix("node")?.parse::<usize>().ok();
        let numbers: BTreeSet<usize> = entries
            .flatten()
            .filter_map(|entry| number(entry.file_name().into_string().ok()?))
            .collect();
        numbers.iter().filter_map(|n| self.list(&format!("node/node{n}/cpulist"))).collect()
    }

    /// Identifies the physical core of a processor by the number of its first sibling.
    fn core(&self, cpu: usize) -> usize {
        let list = |name: &str| self.list(&format!("cpu/cpu{cpu}/topology/{name}"));
        // Kernels before 5.2 use the second name.
        let siblings = list("core_cpus_list").or_else(|| list("thread_siblings_list"));
        siblings.and_then(|list| list.first().copied()).unwrap_or(cpu)
    }
}

/// Limits of the process at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Processors that the process may run on, in ascending order; not empty.
    pub cpus: Vec<usize>,
    /// Processor time that control groups allow the process.
    pub quota: Option<MilliCpus>,
}

/// The part of the machine that this process may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// NUMA nodes in order of their numbers; at least one.
    pub nodes: Vec<Node>,
    /// Processor time that control groups allow the process.
    pub quota: Option<MilliCpus>,
}

/// Processors of one NUMA node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// Processors that the process may use, in ascending order.
    pub cpus: Vec<usize>,
    /// Number of their physical cores.
    pub cores: usize,
}

impl Topology {
    /// Groups the processors that `limits` allow by node and core.
    pub fn new(system: &System, limits: &Limits) -> Self {
        let online = system.list("cpu/online");
        let usable = |cpu: &usize| online.as_ref().is_none_or(|list| list.contains(cpu));
        let mut cpus: Vec<usize> = limits.cpus.iter().copied().filter(usable).collect();
        if cpus.is_empty() {
            cpus.clone_from(&limits.cpus);
        }
        let known = system.nodes();
        // A processor without a node counts as one of the first node.
        let home = |cpu: usize| known.iter().position(|node| node.contains(&cpu)).unwrap_or(0);
        let mut nodes: BTreeMap<usize, (Vec<usize>, BTreeSet<usize>)> = BTreeMap::new();
        for cpu in cpus {
            let (cpus, cores) = nodes.entry(home(cpu)).or_default();
            cpus.push(cpu);
            cores.insert(system.core(cpu));
        }
        let node = |(cpus, cores): (Vec<usize>, BTreeSet<usize>)| Node { cpus, cores: cores.len() };
        Self { nodes: nodes.into_values().map(node).collect(), quota: limits.quota }
    }

    /// Number of usable processors.
    pub fn cpus(&self) -> usize {
        self.nodes.iter().map(|node| node.cpus.len()).sum()
    }

    /// Number of usable physical cores.
    pub fn cores(&self) -> usize {
        self.nodes.iter().map(|node| node.cores).sum()
    }

    /// Largest number of threads that can run at the same time.
    pub fn most_threads(&self) -> usize {
        let paid = self
            .quota
            .map_or(usize::MAX, |milli| usize::try_from(milli / 1000).unwrap_or(usize::MAX));
        self.cpus().min(paid).max(1)
    }

    /// One thread per physical core, at most the quota rounded down. More threads would use up the
    /// quota early, and the kernel would then throttle all of them until the next period, in the
    /// middle of a step.
    pub fn default_threads(&self) -> usize {
        let paid = self
            .quota
            .map_or(usize::MAX, |milli| usize::try_from(milli / 1000).unwrap_or(usize::MAX));
        self.cores().min(paid).max(1)
    }

    /// Lays out `threads` threads, or [`Topology::default_threads`]; at most 512.
    pub fn layout(&self, threads: Option<usize>) -> Layout {
        let threads = threads.unwrap_or_else(|| self.default_threads()).clamp(1, MAX_THREADS);
        // Nodes get threads in proportion to their cores. Rounding the bounds keeps the sum exact.
        let cores = self.cores().max(1);
        let (mut groups, mut before, mut placed) = (Vec::new(), 0, 0);
        for node in &self.nodes {
            before += node.cores;
            // Rounded up, so that the first node gets the first thread.
            let end = (before * threads).div_ceil(cores);
            if end > placed {
                groups.push(Group { threads: end - placed, cpus: node.cpus.clone() });
            }
            placed = end;
        }
        if groups.len() == 1 {
            // With one node, the system places threads best.
            groups[0].cpus.clear();
        }
        let paid = self.quota.is_none_or(|milli| threads as u64 * 1000 <= milli);
        Layout { groups, oversubscribed: threads > self.cpus() || !paid }
    }
}

/// Placement of threads. Their numbers run through the groups in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// At least one.
    pub groups: Vec<Group>,
    /// Whether there are more threads than processors or quota, so that a spinning thread keeps
    /// another from working.
    pub oversubscribed: bool,
}

/// Threads of one NUMA node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Number of threads, at least one.
    pub threads: usize,
    /// Processors that the threads are pinned to; empty if they may run anywhere.
    pub cpus: Vec<usize>,
}

impl Layout {
    /// Makes groups of the given sizes, without pinning.
    #[cfg(test)]
    pub fn of(threads: &[usize]) -> Self {
        let groups = threads.iter().map(|&threads| Group { threads, cpus: Vec::new() }).collect();
        Self { groups, oversubscribed: false }
    }

    /// Keeps `threads` of the threads, at least one, in proportion to the groups.
    pub fn with(&self, threads: usize) -> Self {
        let all = self.threads().max(1);
        let (mut groups, mut before, mut placed) = (Vec::new(), 0, 0);
        for group in &self.groups {
            before += group.threads;
            let end = (before * threads.clamp(1, all)).div_ceil(all);
            if end > placed {
                groups.push(Group { threads: end - placed, cpus: group.cpus.clone() });
            }
            placed = end;
        }
        Self { groups, oversubscribed: self.oversubscribed }
    }

    /// Number of threads of all groups.
    pub fn threads(&self) -> usize {
        self.groups.iter().map(|group| group.threads).sum()
    }
}

/// Name of the processor from `/proc/cpuinfo`, or the architecture.
pub fn cpu_name() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

/// Reads a file in the kernel's list format, such as `0-3,8,10-11`.
fn read_list(path: &Path) -> Option<BTreeSet<usize>> {
    parse_list(&fs::read_to_string(path).ok()?)
}

fn parse_list(text: &str) -> Option<BTreeSet<usize>> {
    let mut list = BTreeSet::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if last >= MAX_CPUS {
            return None;
        }
        list.extend(first..=last);
    }
    Some(list)
}

#[cfg(test)]
pub mod simulated {
    //! Simulated machines: `proc` and `sys` in a temporary folder.

    use super::*;

    /// Makes a machine of `nodes` nodes with `cores` cores each. With `smt`, each core has a second
    /// hardware thread, which is numbered after all first threads, as on Linux on x86.
    pub fn machine(nodes: usize, cores: usize, smt: bool) -> (tempfile::TempDir, System) {
        let root = tempfile::tempdir().unwrap();
        let all = nodes * cores;
        for node in 0..nodes {
            let (first, last) = (node * cores, (node + 1) * cores - 1);
            let list = match smt {
                true => format!("{first}-{last},{}-{}", all + first, all + last),
                false => format!("{first}-{last}"),
            };
            write(&root, &format!("sys/devices/system/node/node{node}/cpulist"), &list);
        }
        let cpus = if smt { 2 * all } else { all };
        for cpu in 0..cpus {
            let core = cpu % all;
            let siblings = if smt { format!("{core},{}", core + all) } else { core.to_string() };
            write(
                &root,
                &format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"),
                &siblings,
            );
        }
        write(&root, "sys/devices/system/cpu/online", &format!("0-{}", cpus - 1));
        write(&root, "sys/devices/system/node/possible", "0-63");
        let system = System { root: root.path().into(), affinity: Some((0..cpus).collect()) };
        (root, system)
    }

    /// Sets the control-group quota of the process, as in `cpu.max`.
    pub fn set_quota(root: &tempfile::TempDir, max: &str) {
        write(root, "proc/self/mountinfo", "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        write(root, "proc/self/cgroup", "0::/app\n");
        write(root, "sys/fs/cgroup/app/cpu.max", max);
    }

    /// Writes a file of the machine.
    pub fn write(root: &tempfile::TempDir, name: &str, text: &str) {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::simulated::{machine, set_quota, write};
    use super::*;

    fn topology(system: &System) -> Topology {
        Topology::new(system, &system.limits())
    }

    fn sizes(layout: &Layout) -> Vec<usize> {
        layout.groups.iter().map(|group| group.threads).collect()
    }

    #[test]
    fn the_largest_cache_size_is_read_from_sysfs() {
        let (root, system) = machine(1, 2, false);
        assert_eq!(system.largest_cache(), None);
        for (index, size) in ["48K", "32K", "2048K", "491520K", "much"].iter().enumerate() {
            write(&root, &format!("sys/devices/system/cpu/cpu0/cache/index{index}/size"), size);
        }
        assert_eq!(system.largest_cache(), Some(480 << 20));
    }

    #[test]
    fn two_sockets_with_two_threads_per_core_get_one_thread_per_core() {
        let (_root, system) = machine(2, 8, true);
        let topology = topology(&system);
        assert_eq!((topology.cpus(), topology.cores(), topology.default_threads()), (32, 16, 16));
        let layout = topology.layout(None);
        assert_eq!(sizes(&layout), [8, 8]);
        assert_eq!(layout.groups[1].cpus, (8..16).chain(24..32).collect::<Vec<_>>());
        assert!(!layout.oversubscribed);
    }

    #[test]
    fn an_odd_set_of_processors_is_sorted_into_its_cores_and_nodes() {
        let (_root, mut system) = machine(2, 4, true);
        // Both threads of core 0, one of core 3; three cores of the second node.
        system.affinity = Some(vec![0, 3, 4, 5, 8, 14]);
        let topology = topology(&system);
        let nodes: Vec<_> = topology.nodes.iter().map(|n| (n.cpus.clone(), n.cores)).collect();
        assert_eq!(nodes, [(vec![0, 3, 8], 2), (vec![4, 5, 14], 3)]);
        assert_eq!(sizes(&topology.layout(None)), [2, 3]);
        system.affinity = Some(vec![5, 13]);
        let one = self::topology(&system).layout(None);
        assert_eq!(one.groups, [Group { threads: 1, cpus: vec![] }]);
    }

    #[test]
    fn offline_processors_are_not_counted() {
        let (root, system) = machine(1, 4, false);
        write(&root, "sys/devices/system/cpu/online", "0-1,3");
        assert_eq!(topology(&system).default_threads(), 3);
    }

    #[test]
    fn a_quota_is_rounded_down_to_whole_threads_and_is_at_least_one() {
        let (root, system) = machine(1, 8, true);
        for (quota, threads, oversubscribed) in [
            ("max 100000", 8, false),
            ("1600000 100000", 8, false),
            ("399999 100000", 3, false),
            ("150000 100000", 1, false),
            ("50000 100000", 1, true),
        ] {
            set_quota(&root, quota);
            let layout = topology(&system).layout(None);
            assert_eq!(
                (layout.threads(), layout.oversubscribed),
                (threads, oversubscribed),
                "{quota}"
            );
        }
        set_quota(&root, "400000 100000");
        let asked = topology(&system).layout(Some(6));
        assert_eq!((asked.threads(), asked.oversubscribed), (6, true));
    }

    #[test]
    fn threads_are_spread_over_nodes_by_their_cores() {
        let (_root, mut system) = machine(4, 4, false);
        for (threads, want) in [
            (1, vec![1]),
            (2, vec![1, 1]),
            (4, vec![1; 4]),
            (7, vec![2, 2, 2, 1]),
            (16, vec![4; 4]),
        ] {
            let layout = topology(&system).layout(Some(threads));
            assert_eq!(sizes(&layout), want, "{threads}");
            assert_eq!(layout.groups.len() == 1, layout.groups[0].cpus.is_empty());
        }
        system.affinity = Some(vec![0, 1, 2, 3, 4]);
        assert_eq!(sizes(&topology(&system).layout(Some(10))), [8, 2]);
        let max = topology(&system).layout(Some(usize::MAX));
        assert_eq!((max.threads(), max.oversubscribed), (MAX_THREADS, true));
    }

    #[test]
    fn a_machine_without_topology_files_has_one_node_and_one_core_per_processor() {
        let root = tempfile::tempdir().unwrap();
        let system = System { root: root.path().into(), affinity: Some(vec![2, 3, 7]) };
        let topology = topology(&system);
        assert_eq!(
            topology,
            Topology { nodes: vec![Node { cpus: vec![2, 3, 7], cores: 3 }], quota: None }
        );
    }

    #[test]
    fn a_smaller_thread_count_is_spread_evenly_over_the_nodes() {
        let (_root, system) = machine(2, 4, false);
        let layout = topology(&system).layout(None);
        for (threads, want) in
            [(8, vec![4, 4]), (4, vec![2, 2]), (2, vec![1, 1]), (1, vec![1]), (0, vec![1])]
        {
            assert_eq!(sizes(&layout.with(threads)), want, "{threads}");
        }
    }

    #[test]
    fn this_machine_has_at_least_one_processor_per_core() {
        let system = System::real();
        let limits = system.limits();
        let topology = Topology::new(&system, &limits);
        assert!(topology.cpus() == limits.cpus.len() && topology.cores() <= topology.cpus());
        assert_eq!(topology.layout(None).threads(), topology.default_threads());
    }

    #[test]
    fn lists_of_processors_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_list("0-2,5,8-9\n").unwrap(), BTreeSet::from([0, 1, 2, 5, 8, 9]));
        assert_eq!(parse_list("\n").unwrap(), BTreeSet::new());
        for bad in ["a", "1-", "-1", "0-99999999999", "1-2-3"] {
            assert_eq!(parse_list(bad), None, "{bad}");
        }
    }
}

//! What processors this process may use.

use std::collections::BTreeSet;
use std::fs;

/// One thread a physical core within the process's affinity and CPU quota.
pub fn default_threads() -> usize {
    // The standard library honours affinity and cgroup quotas.
    let allowed = std::thread::available_parallelism().map_or(1, |n| n.get());
    physical_cores().map_or(allowed, |cores| cores.min(allowed)).max(1)
}

/// Distinct cores of the machine, where the system tells.
fn physical_cores() -> Option<usize> {
    let mut siblings = BTreeSet::new();
    for cpu in 0.. {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        match fs::read_to_string(path) {
            Ok(list) => siblings.insert(list),
            Err(_) => break,
        };
    }
    Some(siblings.len()).filter(|&n| n > 0)
}

/// The processor's name, as the system tells it.
pub fn cpu_name() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

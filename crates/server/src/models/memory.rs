//! Reads from the system how much memory this process and its runners may use.

use std::fs;
use std::path::Path;

use crate::model_scheduler::Memory;

/// The machine's memory, limited by control groups. Values are `u64::MAX` where nothing can be
/// read.
pub fn read() -> Memory {
    let system = fs::read_to_string("/proc/meminfo").ok().and_then(|text| from_meminfo(&text));
    let system = system.unwrap_or(Memory { total: u64::MAX, available: u64::MAX });
    let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    group_folders(&group).iter().fold(system, |memory, dir| narrowed(memory, Path::new(dir)))
}

fn from_meminfo(text: &str) -> Option<Memory> {
    let field = |name: &str| {
        let line = text
            .lines()
            .find(|line| line.starts_with(name) && line[name.len()..].starts_with(':'))?;
        line[name.len() + 1..]
            .trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<u64>()
            .ok()?
            .checked_mul(1024)
    };
    let total = field("MemTotal")?;
    let free = || Some(field("MemFree")? + field("Buffers")? + field("Cached")?);
    Some(Memory { total, available: field("MemAvailable").or_else(free)?.min(total) })
}

/// Directories of this process's memory control groups and of their ancestors. Input lines have the
/// form `number:controllers:path`. Version 2 has number 0 and no controllers; version 1 has one
/// tree per controller.
fn group_folders(text: &str) -> Vec<String> {
    let tree = |line: &str| {
        let (number, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        match controllers {
            "" if number == "0" => Some(("/sys/fs/cgroup", path.to_owned())),
            _ if controllers.split(',').any(|c| c == "memory") => {
                Some(("/sys/fs/cgroup/memory", path.to_owned()))
            }
            _ => None,
        }
    };
    let folders = |(root, path): (&str, String)| {
        let around =
            |dir: &Path| format!("{root}{}", dir.display()).trim_end_matches('/').to_owned();
        Path::new(&path).ancestors().map(around).collect::<Vec<_>>()
    };
    text.lines().filter_map(tree).flat_map(folders).collect()
}

fn narrowed(memory: Memory, dir: &Path) -> Memory {
    let number = |file: &str| fs::read_to_string(dir.join(file)).ok()?.trim().parse::<u64>().ok();
    // The second name of each pair is that of version 1, which writes a huge number for no limit.
    let first = |names: [&str; 2]| names.into_iter().find_map(number);
    let Some(limit) = first(["memory.max", "memory.limit_in_bytes"]) else { return memory };
    // Inactive file pages can be reclaimed, so they do not count as used memory.
    let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let cached =
        |name: &str| stat.lines().find_map(|l| l.strip_prefix(name)?.trim().parse::<u64>().ok());
    let cached = cached("total_inactive_file ").or_else(|| cached("inactive_file ")).unwrap_or(0);
    let used =
        first(["memory.current", "memory.usage_in_bytes"]).unwrap_or(0).saturating_sub(cached);
    Memory {
        total: memory.total.min(limit),
        available: memory.available.min(limit.saturating_sub(used)),
    }
}

/// Formats a number of bytes as Ollama does: `5.6 GiB`, `512.0 MiB`.
pub fn human(bytes: u64) -> String {
    let units = [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_bytes() {
        let text = "MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:    9000 kB\n";
        assert_eq!(
            from_meminfo(text),
            Some(Memory { total: 16000 * 1024, available: 9000 * 1024 })
        );
        let old = "MemTotal: 16000 kB\nMemFree: 1000 kB\nBuffers: 10 kB\nCached: 20 kB\n";
        assert_eq!(from_meminfo(old), Some(Memory { total: 16000 * 1024, available: 1030 * 1024 }));
        assert_eq!(from_meminfo("nonsense"), None);
    }

    #[test]
    fn a_control_group_limit_reduces_the_reported_memory() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(dir.path().join(file), text).unwrap();
        let system = Memory { total: 1000, available: 900 };
        write("memory.max", "max\n");
        assert_eq!(narrowed(system, dir.path()), system);
        write("memory.max", "500\n");
        write("memory.current", "300\n");
        write("memory.stat", "anon 1\ninactive_file 100\n");
        assert_eq!(narrowed(system, dir.path()), Memory { total: 500, available: 300 });
    }

    #[test]
    fn limits_of_control_groups_version_1_count() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(dir.path().join(file), text).unwrap();
        let system = Memory { total: 1000, available: 900 };
        write("memory.limit_in_bytes", "9223372036854771712\n");
        write("memory.usage_in_bytes", "300\n");
        assert_eq!(narrowed(system, dir.path()), system);
        write("memory.limit_in_bytes", "500\n");
        write("memory.stat", "inactive_file 10\ntotal_inactive_file 100\n");
        assert_eq!(narrowed(system, dir.path()), Memory { total: 500, available: 300 });
    }

    #[test]
    fn limits_of_all_enclosing_groups_count() {
        assert_eq!(
            group_folders("0::/a/b\n"),
            ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"]
        );
        let old = "12:cpu,cpuacct:/x\n11:memory:/a/b\n1:name=systemd:/y\n";
        let memory =
            ["/sys/fs/cgroup/memory/a/b", "/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory"];
        assert_eq!(group_folders(old), memory);
    }

    #[test]
    fn sizes_are_written_in_binary_units() {
        assert_eq!(human(6_012_954_214), "5.6 GiB");
        assert_eq!(human(512 << 20), "512.0 MiB");
        assert_eq!(human(10), "10 B");
    }
}

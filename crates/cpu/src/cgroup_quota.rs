//! Reads the processor time that Linux control groups, version 1 and 2, allow this process.
//!
//! Formats: `proc(5)` for `mountinfo`, `cgroups(7)`, and the kernel documentation of `cpu.max` and
//! `cpu.cfs_quota_us`.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Processor time in thousandths of one processor.
pub type MilliCpus = u64;

/// Returns the tightest limit of the control group of this process and all its ancestors, or `None`
/// without a limit. Reads files below `root`: `/`, except in tests.
pub fn read(root: &Path) -> Option<MilliCpus> {
    let file = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
    let mounts = mounts(&file("proc/self/mountinfo"));
    let groups = file("proc/self/cgroup");
    let folders = groups.lines().filter_map(group).flat_map(|group| folders(&group, &mounts));
    folders.filter_map(|folder| limit(&root.join(folder))).min()
}

/// A tree of control groups that can limit processor time.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    v2: bool,
    /// The group that is mounted at `point`. A container often sees only its own group.
    root: PathBuf,
    /// Without the leading slash.
    point: PathBuf,
}

/// Parses lines `id parent device root point options … - type source options`. The last options
/// name the controllers of version 1.
fn mounts(mountinfo: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        let (place, kind) = line.split_once(" - ")?;
        let (mut place, mut kind) = (place.split(' ').skip(3), kind.split(' '));
        let (root, point) = (place.next()?, place.next()?);
        let v2 = match kind.next()? {
            "cgroup2" => true,
            "cgroup" if kind.nth(1)?.split(',').any(|option| option == "cpu") => false,
            _ => return None,
        };
        Some(Mount { v2, root: root.into(), point: point.trim_start_matches('/').into() })
    };
    mountinfo.lines().filter_map(mount).collect()
}

/// Version and path of a control group of this process that can limit its time. Lines are
/// `number:controllers:path`; version 2 has number 0 and no controllers.
fn group(line: &str) -> Option<(bool, PathBuf)> {
    let mut parts = line.splitn(3, ':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let v2 = number == "0" && controllers.is_empty();
    (v2 || controllers.split(',').any(|c| c == "cpu")).then(|| (v2, path.into()))
}

/// The folders of a group and its ancestors, up to the root of the mount.
fn folders((v2, path): &(bool, PathBuf), mounts: &[Mount]) -> Vec<PathBuf> {
    let Some(mount) = mounts.iter().find(|mount| mount.v2 == *v2) else { return Vec::new() };
    // The kernel writes a group outside of the mount with `..`; the mount itself stands for it.
    let inside = path.strip_prefix(&mount.root).unwrap_or(Path::new(""));
    let plain = inside.components().all(|part| matches!(part, Component::Normal(_)));
    let inside = if plain { inside } else { Path::new("") };
    inside.ancestors().map(|group| mount.point.join(group)).collect()
}

/// The limit of one group. Version 2 has `cpu.max` with `quota period` or `max period`, in µs.
/// Version 1 has a file for each and -1 for no limit.
fn limit(folder: &Path) -> Option<MilliCpus> {
    let file = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let (time, period) = match file("cpu.max") {
        Some(line) => {
            let (time, period) = line.trim().split_once(' ')?;
            (time.to_owned(), period.to_owned())
        }
        None => (file("cpu.cfs_quota_us")?, file("cpu.cfs_period_us")?),
    };
    let number = |text: String| text.trim().parse::<u64>().ok();
    number(time)?.checked_mul(1000)?.checked_div(number(period)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2: &str =
        "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "20 1 8:1 / / rw - ext4 /dev/sda rw\n\
        31 20 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n\
        32 20 0:31 /docker/abc /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n";

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_tightest_limit_of_a_group_and_its_ancestors_counts() {
        let files = [
            ("proc/self/mountinfo", V2),
            ("proc/self/cgroup", "0::/user.slice/app\n"),
            ("sys/fs/cgroup/user.slice/app/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/user.slice/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/cpu.max", "800000 100000\n"),
            // Not an ancestor.
            ("sys/fs/cgroup/user.slice/other/cpu.max", "1000 100000\n"),
        ];
        assert_eq!(read(machine(&files).path()), Some(1500));
        assert_eq!(read(machine(&files[..3]).path()), None);
    }

    #[test]
    fn a_container_sees_its_own_group_at_the_mount() {
        let cgroup = "4:cpuset:/docker/abc\n3:cpu,cpuacct:/docker/abc/inner\n0::/docker/abc\n";
        let files = [
            ("proc/self/mountinfo", V1),
            ("proc/self/cgroup", cgroup),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "250000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_period_us", "100000\n"),
        ];
        assert_eq!(read(machine(&files).path()), Some(2500));
    }

    #[test]
    fn a_group_outside_of_the_mount_is_read_at_the_mount() {
        for path in ["0::/../../other\n", "0::/\n", "0::/gone/away\n"] {
            let files = [
                ("proc/self/mountinfo", V2),
                ("proc/self/cgroup", path),
                ("sys/fs/cgroup/cpu.max", "50000 100000"),
            ];
            assert_eq!(read(machine(&files).path()), Some(500), "{path}");
        }
    }

    #[test]
    fn malformed_files_set_no_limit() {
        for text in ["", "max", "100000", "x y", "100000 0", "99999999999999999999 1", "-5 100000"]
        {
            let files = [
                ("proc/self/mountinfo", V2),
                ("proc/self/cgroup", "0::/\n"),
                ("sys/fs/cgroup/cpu.max", text),
            ];
            assert_eq!(read(machine(&files).path()), None, "{text}");
        }
        let lines = ["- -\n", "1 2 3 - cgroup2\n", "1 2 3 / - cgroup x cpu\n"].concat();
        let files =
            [("proc/self/mountinfo", lines.as_str()), ("proc/self/cgroup", "::\n0\n0::\n1:cpu\n")];
        assert_eq!(read(machine(&files).path()), None);
    }
}

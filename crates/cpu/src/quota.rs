//! How much processor time control groups allow this process.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Processor time, in thousandths of a processor.
pub type MilliCpus = u64;

/// The tightest limit on this process, of its own control group and of those around it; `None` where nothing limits it.
/// Files are looked for under `root`, which is `/` but in tests.
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
    /// The group that is seen at `point`: a container may see its own group and nothing around it.
    root: PathBuf,
    /// Without the leading slash.
    point: PathBuf,
}

/// Lines are `id parent device root point options … - type source options`; controllers of version 1 are among the last.
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

/// Version and path of a control group of this process that can limit its time. Lines are `number:controllers:path`; version 2
/// has number 0 and no controllers.
fn group(line: &str) -> Option<(bool, PathBuf)> {
    let mut parts = line.splitn(3, ':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let v2 = number == "0" && controllers.is_empty();
    (v2 || controllers.split(',').any(|c| c == "cpu")).then(|| (v2, path.into()))
}

/// The folders of a group and of those around it, as far as they can be seen.
fn folders((v2, path): &(bool, PathBuf), mounts: &[Mount]) -> Vec<PathBuf> {
    let Some(mount) = mounts.iter().find(|mount| mount.v2 == *v2) else { return Vec::new() };
    // A group outside of what is mounted, which the system writes with `..`, is seen as the mount itself.
    let inside = path.strip_prefix(&mount.root).unwrap_or(Path::new(""));
    let plain = inside.components().all(|part| matches!(part, Component::Normal(_)));
    let inside = if plain { inside } else { Path::new("") };
    inside.ancestors().map(|group| mount.point.join(group)).collect()
}

/// What one group allows: `cpu.max` of version 2 is `time period` or `max period`, version 1 has a file for each, and -1 for no
/// limit.
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

    const V2: &str = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
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
    fn the_tightest_group_on_the_way_up_counts() {
        let files = [
            ("proc/self/mountinfo", V2),
            ("proc/self/cgroup", "0::/user.slice/app\n"),
            ("sys/fs/cgroup/user.slice/app/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/user.slice/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/cpu.max", "800000 100000\n"),
            // Not on the way.
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
    fn a_group_outside_of_what_is_mounted_is_the_mount() {
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
    fn nonsense_limits_nothing() {
        for text in ["", "max", "100000", "x y", "100000 0", "99999999999999999999 1", "-5 100000"] {
            let files = [
                ("proc/self/mountinfo", V2),
                ("proc/self/cgroup", "0::/\n"),
                ("sys/fs/cgroup/cpu.max", text),
            ];
            assert_eq!(read(machine(&files).path()), None, "{text}");
        }
        let lines = ["- -\n", "1 2 3 - cgroup2\n", "1 2 3 / - cgroup x cpu\n"].concat();
        let files = [("proc/self/mountinfo", lines.as_str()), ("proc/self/cgroup", "::\n0\n0::\n1:cpu\n")];
        assert_eq!(read(machine(&files).path()), None);
    }
}

//! Files that a runner or a file worker may read.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use puna_gguf::PartName;

/// Most parts of a split model that get rules; the GGUF key for their number has 16 bits.
const MAX_PARTS: u32 = 65_535;

/// System files and folders that a runner may read:
///
/// - `/proc/cpuinfo`, `/sys/devices/system`: processors, NUMA nodes and caches for the thread pool.
/// - `/proc/self/cgroup`, `/proc/self/mountinfo`, `/sys/fs/cgroup`: limits of processor time, which
///   the thread pool reads again while it runs.
/// - Time zone files: templates use the current date.
#[cfg(target_os = "linux")]
pub(super) const SYSTEM_PATHS: &[&str] = &[
    "/proc/cpuinfo",
    "/proc/self/cgroup",
    "/proc/self/mountinfo",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
    "/sys/fs/cgroup",
    "/etc/localtime",
    "/usr/share/zoneinfo",
    "/usr/lib/zoneinfo",
    "/usr/share/lib/zoneinfo",
    "/etc/zoneinfo",
];

/// Returns the paths that are regular files, with all parts of the split models among them.
pub(crate) fn existing_files_with_parts(paths: &[PathBuf]) -> BTreeSet<PathBuf> {
    paths.iter().flat_map(|path| parts(path)).filter(|path| path.is_file()).collect()
}

/// Returns a path with the other parts of its model, as `puna_gguf` finds them: beside the path
/// itself, or beside the target of a link with another name.
fn parts(path: &Path) -> Vec<PathBuf> {
    let mut files = vec![path.to_owned()];
    let real = match has_part_name(path) {
        true => Some(path.to_owned()),
        false => path.canonicalize().ok(),
    };
    let Some(real) = real else { return files };
    let name = real.file_name().and_then(|name| name.to_str()).and_then(PartName::parse);
    if let Some(name) = name.filter(|name| name.count <= MAX_PARTS) {
        // A part that is missing ends the list: a name cannot claim more parts than exist.
        let others = (1..=name.count).map(|number| real.with_file_name(name.other(number)));
        files.extend(others.take_while(|other| other.is_file()));
    }
    files
}

fn has_part_name(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).and_then(PartName::parse).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &Path) -> BTreeSet<PathBuf> {
        existing_files_with_parts(&[path.to_owned()])
    }

    #[test]
    fn parts_are_found_beside_the_file_and_beside_the_target_of_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().canonicalize().unwrap().join(name);
        let names = ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"];
        for name in names.iter().chain(&["m.key", "n-00001-of-00003.gguf"]) {
            std::fs::write(at(name), "x").unwrap();
        }
        let all: BTreeSet<_> = names.map(at).into();
        assert_eq!(found(&at(names[0])), all);
        let link = at("sha256-1");
        std::os::unix::fs::symlink(at(names[0]), &link).unwrap();
        let with_link: BTreeSet<_> = all.iter().cloned().chain([link.clone()]).collect();
        assert_eq!(found(&link), with_link);
    }

    #[test]
    fn folders_and_missing_files_get_no_rule() {
        let folder = tempfile::tempdir().unwrap();
        assert!(found(folder.path()).is_empty());
        let claims = folder.path().join("m-00001-of-99999.gguf");
        assert!(found(&claims).is_empty());
        std::fs::write(&claims, "x").unwrap();
        assert_eq!(found(&claims), BTreeSet::from([claims.clone()]));
    }
}

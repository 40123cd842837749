//! Resident memory by kind: mapped model files, KV cache and the rest.

use std::path::{Path, PathBuf};

/// Resident bytes of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resident {
    /// All resident bytes.
    pub total: u64,
    /// Bytes of the model's files.
    pub file: u64,
    /// Bytes of the KV cache that were written.
    pub cache: u64,
}

impl Resident {
    /// Bytes outside the model's files and the KV cache.
    pub fn other_bytes(self) -> u64 {
        self.total.saturating_sub(self.file + self.cache)
    }
}

/// Reads the current values; `None` on systems without `/proc/self/smaps`. The caller knows `cache`
/// from its tests.
pub fn resident<'a>(files: impl Iterator<Item = &'a Path>, cache: u64) -> Option<Resident> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let files: Vec<PathBuf> = files.filter_map(|path| path.canonicalize().ok()).collect();
    Some(parse_smaps(&smaps, &files, cache))
}

/// Sums the mappings of an `smaps` file: a line with addresses and path, followed by lines of
/// values in kB.
fn parse_smaps(smaps: &str, files: &[PathBuf], cache: u64) -> Resident {
    let mut found = Resident { total: 0, file: 0, cache };
    let mut of_file = false;
    for line in smaps.lines() {
        let first = line.split_ascii_whitespace().next().unwrap_or_default();
        if let Some(kilobytes) = line.strip_prefix("Rss:") {
            let number = kilobytes.trim().trim_end_matches("kB").trim();
            let bytes = number.parse::<u64>().unwrap_or(0) * 1024;
            found.total += bytes;
            found.file += if of_file { bytes } else { 0 };
        } else if first.contains('-') && !first.ends_with(':') {
            // The path follows five fields (addresses, permissions, numbers) and may contain
            // blanks.
            of_file = line
                .find('/')
                .is_some_and(|at| files.iter().any(|file| file == Path::new(&line[at..])));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_memory_excludes_file_and_cache() {
        let smaps = "\
55d0c0000000-55d0c0100000 r-xp 00000000 fe:00 12   /usr/bin/puna
Size:               1024 kB
Rss:                 100 kB
Rss_of_no_interest:   99 kB
7f0000000000-7f0040000000 r--s 00000000 fe:00 34   /models/a model.gguf
Size:            1048576 kB
Rss:               40000 kB
VmFlags: rd mr
7f1000000000-7f1010000000 rw-p 00000000 00:00 0
Rss:                3000 kB
";
        let found = parse_smaps(smaps, &[PathBuf::from("/models/a model.gguf")], 1024 * 1000);
        assert_eq!(found, Resident { total: 43_100 * 1024, file: 40_000 * 1024, cache: 1_024_000 });
        assert_eq!(found.other_bytes(), 2_100 * 1024);
    }

    #[test]
    fn memory_of_this_process_is_read_if_available() {
        let found = resident(std::iter::empty(), 0);
        assert_eq!(found.is_some(), cfg!(target_os = "linux"));
        assert!(found.is_none_or(|found| found.other_bytes() > 1 << 20));
    }
}

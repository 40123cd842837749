//! Resident memory by what it is: the mapped file, the cache, and everything else.

use std::path::{Path, PathBuf};

/// Resident bytes of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resident {
    /// All of them.
    pub total: u64,
    /// Pages of the model's files.
    pub file: u64,
    /// Keys and values: pages that were written.
    pub cache: u64,
}

impl Resident {
    /// What is neither.
    pub fn beyond(self) -> u64 {
        self.total.saturating_sub(self.file + self.cache)
    }
}

/// As it is now; `None` on systems that do not tell. `cache` is known to whoever filled it.
pub fn resident<'a>(files: impl Iterator<Item = &'a Path>, cache: u64) -> Option<Resident> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let files: Vec<PathBuf> = files.filter_map(|path| path.canonicalize().ok()).collect();
    Some(sum(&smaps, &files, cache))
}

/// Adds up the mappings of an `smaps`: a line with addresses and the path, then lines of figures in kB.
fn sum(smaps: &str, files: &[PathBuf], cache: u64) -> Resident {
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
            // The path follows five fields of addresses, rights and numbers, and may have blanks in it.
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
    fn what_is_neither_file_nor_cache_is_beyond_them() {
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
        let found = sum(smaps, &[PathBuf::from("/models/a model.gguf")], 1024 * 1000);
        assert_eq!(found, Resident { total: 43_100 * 1024, file: 40_000 * 1024, cache: 1_024_000 });
        assert_eq!(found.beyond(), 2_100 * 1024);
    }

    #[test]
    fn this_process_is_looked_at_where_the_system_tells() {
        let found = resident(std::iter::empty(), 0);
        assert_eq!(found.is_some(), cfg!(target_os = "linux"));
        assert!(found.is_none_or(|found| found.beyond() > 1 << 20));
    }
}

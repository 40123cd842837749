//! History file of input lines, one entry per line, shared with Ollama.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

/// Maximum number of entries.
const MAX_ENTRIES: usize = 100;
/// Size limit of a history file, in bytes. A larger file is not a history file.
const MAX_BYTES: u64 = 16 << 20;

/// The latest entries, in memory and, unless disabled, in a file.
#[derive(Debug, Default)]
pub(super) struct History {
    path: Option<PathBuf>,
    saves: bool,
    entries: VecDeque<String>,
}

impl History {
    /// Reads the file if it exists. Without a path, or with `saves` false, the history stays in
    /// memory.
    pub(super) fn load(path: Option<PathBuf>, saves: bool) -> io::Result<Self> {
        let mut history = Self { path, saves, entries: VecDeque::new() };
        let Some(path) = &history.path else { return Ok(history) };
        match fs::metadata(path).and_then(|meta| match meta.is_file() {
            true => File::open(path),
            // Reading a pipe would block.
            false => Err(io::Error::other("not a regular file")),
        }) {
            Ok(file) => {
                let mut reader = BufReader::new(io::Read::take(file, MAX_BYTES));
                let mut line = Vec::new();
                while reader.read_until(b'\n', &mut line)? > 0 {
                    history.push(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']));
                    line.clear();
                }
                Ok(history)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(history),
            Err(e) => Err(e),
        }
    }

    /// Path of the history file.
    pub(super) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(String::as_str)
    }

    /// Sets whether new entries are written to the file.
    pub(super) fn save(&mut self, on: bool) {
        self.saves = on;
    }

    /// Adds an entry and rewrites the file. An entry with line breaks becomes several entries when
    /// the file is read again.
    pub(super) fn add(&mut self, entry: &str) -> io::Result<()> {
        self.push(entry);
        match (&self.path, self.saves) {
            (Some(path), true) => self.write(path.clone()),
            _ => Ok(()),
        }
    }

    fn push(&mut self, entry: &str) {
        if entry.trim().is_empty() {
            return;
        }
        if self.entries.len() == MAX_ENTRIES {
            self.entries.pop_front();
        }
        self.entries.push_back(entry.to_owned());
    }

    /// Writes a new file and renames it over the old one, so that a crash loses neither.
    fn write(&self, path: PathBuf) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let temporary = path.with_extension("tmp");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&temporary)?;
        let text: String = self.entries().flat_map(|entry| [entry, "\n"]).collect();
        file.write_all(text.as_bytes())?;
        drop(file);
        fs::rename(temporary, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(history: &History) -> Vec<&str> {
        history.entries().collect()
    }

    #[test]
    fn entries_persist_and_multi_line_entries_become_several() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("new/history");
        let mut history = History::load(Some(path.clone()), true).expect("no file is no error");
        for entry in ["first", "  ", "two\nlines", "/bye"] {
            history.add(entry).expect("written");
        }
        assert_eq!(entries(&history), ["first", "two\nlines", "/bye"]);
        assert_eq!(fs::read_to_string(&path).expect("a file"), "first\ntwo\nlines\n/bye\n");
        let again = History::load(Some(path.clone()), true).expect("read");
        assert_eq!(entries(&again), ["first", "two", "lines", "/bye"]);
        assert!(!path.with_extension("tmp").exists());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn the_history_keeps_the_last_hundred_entries() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history");
        let text: String = (0..250).map(|i| format!("entry {i}\n")).collect();
        fs::write(&path, text).expect("written");
        let mut history = History::load(Some(path.clone()), true).expect("read");
        history.add("new").expect("written");
        assert_eq!(history.entries().count(), 100);
        assert_eq!(history.entries().next(), Some("entry 151"));
        assert_eq!(fs::read_to_string(&path).expect("a file").lines().count(), 100);
    }

    #[test]
    fn a_disabled_history_writes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history");
        let mut history = History::load(Some(path.clone()), false).expect("read");
        history.add("secret").expect("kept in memory");
        assert!(!path.exists());
        assert_eq!(entries(&history), ["secret"]);
        history.save(true);
        history.add("public").expect("written");
        assert!(path.exists());
        assert_eq!(entries(&History::load(None, true).expect("nothing")), Vec::<&str>::new());
    }

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = History::load(Some(folder.path().to_owned()), true).expect_err("a folder");
        assert_eq!(error.to_string(), "not a regular file");
    }

    #[test]
    fn a_binary_file_is_tolerated() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history");
        fs::write(&path, b"ok\n\xff\xfe\x00\r\n\n").expect("written");
        let history = History::load(Some(path), true).expect("read");
        assert_eq!(history.entries().count(), 2);
    }
}

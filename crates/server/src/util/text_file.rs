//! Text files with errors that name the line.

use std::io;
use std::path::Path;

/// Reads a text file.
///
/// # Errors
/// The file cannot be read, or a line of it is not UTF-8.
pub(crate) fn read_utf8(path: &Path) -> io::Result<String> {
    String::from_utf8(std::fs::read(path)?).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        io::Error::new(io::ErrorKind::InvalidData, format!("line {line} is not UTF-8"))
    })
}

/// Returns the line of a byte offset, from 1.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text.get(..at).map_or(1, |before| before.matches('\n').count() + 1)
}

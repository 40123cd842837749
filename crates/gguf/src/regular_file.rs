//! Files that are checked to be regular before they are opened: opening a pipe would block until
//! its other end is opened.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// Rejects everything but regular files. A missing file passes, because opening it reports the
/// error.
///
/// # Errors
/// The path is a folder, a pipe or a device.
pub fn check_regular(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(meta) if !meta.is_file() => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
        }
        _ => Ok(()),
    }
}

/// Reads a file of at most `limit` bytes.
///
/// # Errors
/// The file is larger, is not a regular file, or cannot be read.
pub fn read_limited(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    check_regular(path)?;
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    if len > limit {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("{len} bytes, at most {limit} are expected"),
        ));
    }
    let mut bytes = Vec::with_capacity(len as usize);
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

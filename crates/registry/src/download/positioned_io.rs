//! Reads and writes at an offset of a file, for concurrent use by several threads.

use std::fs::File;
use std::io;

/// Bytes that are written or read at once.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// Number that identifies the file in its file system (inode on Unix).
pub(crate) fn file_id(file: &File) -> Option<u64> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        Some(file.metadata().ok()?.ino())
    }
    #[cfg(not(unix))]
    {
        let _ = file;
        None
    }
}

#[cfg(unix)]
pub(crate) fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(unix)]
pub(crate) fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

#[cfg(windows)]
pub(crate) fn write_at(file: &File, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let n = std::os::windows::fs::FileExt::seek_write(file, bytes, at)?;
        if n == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        (bytes, at) = (&bytes[n..], at + n as u64);
    }
    Ok(())
}

#[cfg(windows)]
pub(crate) fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let n =
            std::os::windows::fs::FileExt::seek_read(file, &mut bytes[done..], at + done as u64)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        done += n;
    }
    Ok(())
}

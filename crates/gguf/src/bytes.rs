//! Memory of a model: a mapped file, a buffer, or static data. A [`SharedBytes`] is a slice with
//! shared ownership, so that metadata and tensors need no lifetime.
//!
//! This module has the crate's only `unsafe`: mapping a file.

use std::fs::File;
use std::io::Read;
use std::ops::Deref;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use memmap2::Mmap;

/// Alignment in bytes of tensors returned as [`SharedBytes`].
pub const DATA_ALIGNMENT: usize = 32;

/// One cache line, so that a buffer of them is aligned for every kernel.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

#[derive(Debug)]
enum Backing {
    Mapped(Mmap),
    Static(&'static [u8]),
    Plain(Vec<u8>),
    Aligned(Vec<CacheLine>),
}

/// A read-only slice of memory with shared ownership. Cloning it copies no data.
#[derive(Clone)]
pub struct SharedBytes {
    backing: Arc<Backing>,
    start: usize,
    len: usize,
}

impl SharedBytes {
    /// Maps the first `len` bytes of `file`.
    pub(crate) fn map(file: &File, len: usize) -> std::io::Result<Self> {
        // SAFETY: the mapping is read-only and shared. Rust requires that bytes behind a `&[u8]` do
        // not change. Puna keeps this promise for its own files: it writes a model under another
        // name, renames it, and never modifies it. Other programs may break it.
        // `Gguf::check_unchanged` detects truncation. A change within the file can cause wrong
        // numbers, not memory errors: the parser copies every length, count and discriminant out of
        // the mapping when it checks them.
        let map = unsafe { memmap2::MmapOptions::new().len(len).map(file)? };
        Ok(Self::whole(Backing::Mapped(map), len))
    }

    /// Reads the first `len` bytes of `file` into memory that is aligned for every kernel. `len` is
    /// the size of the file, so the allocation is not larger than the file.
    pub(crate) fn read(mut file: &File, len: usize) -> std::io::Result<Self> {
        let mut lines = Vec::new();
        lines.try_reserve_exact(len.div_ceil(64)).map_err(|_| std::io::ErrorKind::OutOfMemory)?;
        lines.resize(len.div_ceil(64), CacheLine::zeroed());
        file.read_exact(&mut bytemuck::cast_slice_mut(&mut lines)[..len])?;
        Ok(Self::whole(Backing::Aligned(lines), len))
    }

    /// Borrows static data.
    pub fn from_static(bytes: &'static [u8]) -> Self {
        Self::whole(Backing::Static(bytes), bytes.len())
    }

    /// Copies `bytes` into memory that is aligned for every kernel.
    pub fn aligned(bytes: &[u8]) -> Self {
        let mut lines = vec![CacheLine::zeroed(); bytes.len().div_ceil(64)];
        bytemuck::cast_slice_mut(&mut lines)[..bytes.len()].copy_from_slice(bytes);
        Self::whole(Backing::Aligned(lines), bytes.len())
    }

    fn whole(backing: Backing, len: usize) -> Self {
        SharedBytes { backing: Arc::new(backing), start: 0, len }
    }

    /// The slice from `start` to `end`, which must lie within this one.
    pub fn slice(&self, start: usize, end: usize) -> Self {
        assert!(start <= end && end <= self.len, "slice {start}..{end} of {} bytes", self.len);
        SharedBytes {
            backing: Arc::clone(&self.backing),
            start: self.start + start,
            len: end - start,
        }
    }

    /// This slice, or a copy if it is not aligned to [`DATA_ALIGNMENT`].
    pub fn into_aligned(self) -> Self {
        if self.is_aligned() { self } else { Self::aligned(&self) }
    }

    /// Whether the slice is aligned to [`DATA_ALIGNMENT`].
    pub fn is_aligned(&self) -> bool {
        self.as_ptr().addr().is_multiple_of(DATA_ALIGNMENT)
    }

    /// The mapping, if the memory is one.
    pub(crate) fn mapping(&self) -> Option<&Mmap> {
        match &*self.backing {
            Backing::Mapped(map) => Some(map),
            _ => None,
        }
    }

    /// Offset of this slice within its backing memory.
    pub(crate) fn start(&self) -> usize {
        self.start
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &*self.backing {
            Backing::Mapped(map) => map,
            Backing::Static(bytes) => bytes,
            Backing::Plain(bytes) => bytes,
            Backing::Aligned(lines) => bytemuck::cast_slice(lines),
        };
        &all[self.start..self.start + self.len]
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        Self::whole(Backing::Plain(bytes), len)
    }
}

impl PartialEq for SharedBytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl std::fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

/// Embeds a file in the program, aligned so that a model in it is used in place:
/// `Gguf::from_bytes(include_aligned!("model.gguf"))`.
#[macro_export]
macro_rules! include_aligned {
    ($path:expr $(,)?) => {{
        #[repr(C, align(64))]
        struct Aligned<T: ?Sized>(T);
        static BYTES: &Aligned<[u8]> = &Aligned(*include_bytes!($path));
        &BYTES.0 as &'static [u8]
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_share_their_backing_and_copies_are_aligned() {
        let all = SharedBytes::from((0..200u8).collect::<Vec<_>>());
        let piece = all.slice(3, 103).slice(1, 51);
        drop(all);
        assert_eq!((piece.len(), piece[0], piece[49]), (50, 4, 53));
        let copy = SharedBytes::aligned(&piece);
        assert!(copy.is_aligned());
        assert_eq!(copy, piece);
        assert!(!copy.slice(1, 2).is_aligned());
        assert_eq!(copy.slice(1, 50).into_aligned(), piece.slice(1, 50));
        assert_eq!(&*SharedBytes::aligned(&[]), &[] as &[u8]);
    }

    #[test]
    fn included_files_are_aligned() {
        let bytes = include_aligned!("bytes.rs");
        assert!(bytes.as_ptr().addr().is_multiple_of(64));
        assert!(bytes.starts_with(b"//! Memory of a model"));
    }
}

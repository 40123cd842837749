//! Where the bytes of a model live: a mapped file, a buffer, or the program itself. A [`SharedBytes`] is a piece of
//! one of these that keeps the whole alive, so that metadata and tensors need no lifetime.
//!
//! The crate's only `unsafe` is here: mapping a file.

use std::fs::File;
use std::io::Read;
use std::ops::Deref;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use memmap2::Mmap;

/// Tensors handed out as [`SharedBytes`] start at a multiple of this many bytes.
pub const DATA_ALIGNMENT: usize = 32;

/// One cache line, so that a buffer of them is aligned for every kernel.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

#[derive(Debug)]
enum Owner {
    Mapped(Mmap),
    Static(&'static [u8]),
    Plain(Vec<u8>),
    Aligned(Vec<Line>),
}

/// A read-only piece of memory with shared ownership: cloning it copies nothing.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<Owner>,
    start: usize,
    len: usize,
}

impl SharedBytes {
    /// Maps the first `len` bytes of `file`.
    pub(crate) fn map(file: &File, len: usize) -> std::io::Result<Self> {
        // SAFETY: the mapping is read-only and shared. Rust's rule that nobody changes bytes behind a `&[u8]` holds
        // as far as the operating system lets us have it: models are written under another name, renamed into place
        // and never modified; `Gguf::check_unchanged` tells when a file was cut short behind our back. A change
        // within the file can give wrong numbers, not memory errors: whatever is used as a length, a count or a
        // discriminant was copied out of the mapping when it was checked.
        let map = unsafe { memmap2::MmapOptions::new().len(len).map(file)? };
        Ok(Self::whole(Owner::Mapped(map), len))
    }

    /// Reads the first `len` bytes of `file` into memory aligned for every kernel. `len` is the file's size, so this
    /// takes what the file really has.
    pub(crate) fn read(mut file: &File, len: usize) -> std::io::Result<Self> {
        let mut lines = Vec::new();
        lines.try_reserve_exact(len.div_ceil(64)).map_err(|_| std::io::ErrorKind::OutOfMemory)?;
        lines.resize(len.div_ceil(64), Line::zeroed());
        file.read_exact(&mut bytemuck::cast_slice_mut(&mut lines)[..len])?;
        Ok(Self::whole(Owner::Aligned(lines), len))
    }

    /// Borrows bytes of the program itself.
    pub fn from_static(bytes: &'static [u8]) -> Self {
        Self::whole(Owner::Static(bytes), bytes.len())
    }

    /// Copies `bytes` into memory aligned for every kernel.
    pub fn aligned(bytes: &[u8]) -> Self {
        let mut lines = vec![Line::zeroed(); bytes.len().div_ceil(64)];
        bytemuck::cast_slice_mut(&mut lines)[..bytes.len()].copy_from_slice(bytes);
        Self::whole(Owner::Aligned(lines), bytes.len())
    }

    fn whole(owner: Owner, len: usize) -> Self {
        SharedBytes { owner: Arc::new(owner), start: 0, len }
    }

    /// The piece from `start` to `end`, which must lie within this one.
    pub fn slice(&self, start: usize, end: usize) -> Self {
        assert!(start <= end && end <= self.len, "slice {start}..{end} of {} bytes", self.len);
        SharedBytes { owner: Arc::clone(&self.owner), start: self.start + start, len: end - start }
    }

    /// This piece, copied only where it does not start at a multiple of [`DATA_ALIGNMENT`].
    pub fn into_aligned(self) -> Self {
        if self.is_aligned() { self } else { Self::aligned(&self) }
    }

    /// Whether the piece starts at a multiple of [`DATA_ALIGNMENT`].
    pub fn is_aligned(&self) -> bool {
        self.as_ptr().addr().is_multiple_of(DATA_ALIGNMENT)
    }

    /// The mapping, where the bytes are one.
    pub(crate) fn mapping(&self) -> Option<&Mmap> {
        match &*self.owner {
            Owner::Mapped(map) => Some(map),
            _ => None,
        }
    }

    /// Offset of this piece within its owner.
    pub(crate) fn start(&self) -> usize {
        self.start
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &*self.owner {
            Owner::Mapped(map) => map,
            Owner::Static(bytes) => bytes,
            Owner::Plain(bytes) => bytes,
            Owner::Aligned(lines) => bytemuck::cast_slice(lines),
        };
        &all[self.start..self.start + self.len]
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        Self::whole(Owner::Plain(bytes), len)
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

/// The bytes of a file as part of the program, aligned so that a model in them is used in place:
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
    fn pieces_share_their_owner_and_copies_are_aligned() {
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
        assert!(bytes.starts_with(b"//! Where the bytes"));
    }
}

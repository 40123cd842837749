//! Buffers that the threads of a step share.
//!
//! The planner gives each value its own range of the arena, and the tasks of an instruction write
//! disjoint parts. The borrow checker cannot see either, so only this module accesses the arena
//! through raw pointers.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use puna_graph::{ArenaRange, BackendError};
use puna_kernels::huge_pages::{HUGE_PAGE, advise_huge};

/// Alignment of buffers in bytes: a cache line.
const ALIGN: usize = 64;

/// A buffer of numbers that several threads read and write in disjoint parts.
pub struct SharedBuffer<T> {
    /// The first element, aligned to [`ALIGN`].
    base: NonNull<T>,
    len: usize,
    /// Pointer and layout of the allocation, to free it.
    allocation: (*mut u8, Layout),
}

// SAFETY: the buffer is owned; numbers may move between threads.
unsafe impl<T: Send> Send for SharedBuffer<T> {}
// SAFETY: all access goes through `slice` and `slice_mut`. Their callers keep parts disjoint and
// separate writes from reads by barriers.
unsafe impl<T: Send> Sync for SharedBuffer<T> {}

impl<T: bytemuck::Zeroable + Copy> SharedBuffer<T> {
    /// Makes a buffer of `len` zeros.
    ///
    /// # Panics
    /// If memory is exhausted; see [`SharedBuffer::zeroed`].
    pub fn new(len: usize) -> Self {
        Self::try_new(len).unwrap_or_else(|| panic!("no memory for a buffer of {len} elements"))
    }

    /// Makes a buffer of `len` zeros. The system provides its memory at the first write.
    ///
    /// # Errors
    /// If memory is exhausted; the error names the buffer by `what`.
    pub fn zeroed(len: usize, what: &'static str) -> Result<Self, BackendError> {
        let bytes = len.saturating_mul(size_of::<T>());
        Self::try_new(len).ok_or(BackendError::OutOfMemory { what, bytes })
    }

    /// Makes a buffer of `len` zeros; `None` if memory is exhausted.
    pub fn try_new(len: usize) -> Option<Self> {
        // Over-allocate to align by hand: with a larger alignment, the allocator would write the
        // zeros itself and so touch all of the memory.
        let bytes = len.checked_mul(size_of::<T>())?.checked_add(ALIGN)?;
        let layout = Layout::from_size_align(bytes, align_of::<T>()).ok()?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        // SAFETY: the first cache line starts within the first `ALIGN` bytes, and the elements fit
        // behind it.
        let base = unsafe { start.add(start.align_offset(ALIGN)).cast() };
        if bytes >= 2 * HUGE_PAGE {
            advise_huge(start.as_ptr(), bytes);
        }
        Some(Self { base, len, allocation: (start.as_ptr(), layout) })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Elements `start .. start + len`.
    ///
    /// # Safety
    /// No thread writes them while the slice lives.
    pub unsafe fn slice(&self, start: usize, len: usize) -> &[T] {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len()));
        // SAFETY: in bounds; the caller guarantees that no thread writes.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(start), len) }
    }

    /// Elements `start .. start + len`, for writing.
    ///
    /// # Safety
    /// No other thread reads or writes them while the slice lives.
    #[allow(clippy::mut_from_ref)] // that is this type's purpose
    pub unsafe fn slice_mut(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len()));
        // SAFETY: in bounds; the caller guarantees exclusive access.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(start), len) }
    }

    /// Pointer to the elements `start .. start + len`, without borrowing them.
    pub fn address(&self, start: usize, len: usize) -> *mut T {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len()));
        // SAFETY: in bounds; no reference to elements is made.
        unsafe { self.base.as_ptr().add(start) }
    }

    /// All elements, with exclusive access.
    pub fn get_mut(&mut self) -> &mut [T] {
        // SAFETY: the whole buffer, borrowed for as long as `self`.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl<T> Drop for SharedBuffer<T> {
    fn drop(&mut self) {
        let (start, layout) = self.allocation;
        // SAFETY: allocated with this layout in `try_new`.
        unsafe { dealloc(start, layout) }
    }
}

/// Memory of all intermediate values of a step.
pub type Arena = SharedBuffer<f32>;

impl Arena {
    /// Row `row` of a value.
    ///
    /// # Safety
    /// As for [`SharedBuffer::slice`].
    pub unsafe fn row(&self, range: &ArenaRange, row: usize) -> &[f32] {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.slice(range.start + row * range.stride, range.cols) }
    }

    /// Row `row` of a value, for writing.
    ///
    /// # Safety
    /// As for [`SharedBuffer::slice_mut`].
    #[allow(clippy::mut_from_ref)] // that is this type's purpose
    pub unsafe fn row_mut(&self, range: &ArenaRange, row: usize) -> &mut [f32] {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.slice_mut(range.start + row * range.stride, range.cols) }
    }
}
